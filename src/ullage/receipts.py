"""The folder of receipts: one file for each start of an engine, the newest hundred.

The files are this user's alone.  A file is whole or not there, whoever writes beside it or is
ended meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import platformdirs

from ullage.errors import Unreadable, Usage
from ullage.report.json import document
from ullage.report.receipt import Receipt

SWITCH: Final = "ULLAGE_RECEIPTS"
LATEST: Final = "latest"
MOST: Final = 100
# The folder may be one that holds the user's other files.
_NAME: Final = re.compile(r"\.?(?P<name>\d{8}T\d{6}Z-[0-9a-f]{6})\.(?P<ending>json|draft)")
_DRAFT_KEPT_S: Final = 3600.0  # what a start that was ended has left half-written


def folder(environment: Mapping[str, str]) -> Path | None:
    """Where receipts are kept; None where they are switched off.  Raises Usage for no path."""
    value = environment.get(SWITCH, "")
    if value == "0":
        return None
    if value in ("", "1"):
        return platformdirs.user_state_path("ullage") / "receipts"
    try:
        return Path(value).expanduser().absolute()
    except RuntimeError as error:
        raise Usage(f"{SWITCH} is '{value}': {error} Set it to an absolute path.") from error


def fix_folder(environment: MutableMapping[str, str]) -> None:
    """For processes that this one starts, which may have another working directory or home."""
    where = folder(environment)
    if environment.get(SWITCH) and where is not None:
        environment[SWITCH] = str(where)


def new_name() -> str:
    """Sorts by time.  Containers that share a folder have equal process ids, hence the digits."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(3)}"


def write(where: Path, receipt: Receipt) -> Path:
    """Keep `receipt`, in the place of the one of its name, and remove the oldest beyond `MOST`.

    Raises OSError where the folder or the file cannot be written.
    """
    where.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = where / f"{receipt.name}.json"
    draft = where / f".{receipt.name}.draft"
    with contextlib.ExitStack() as undo:
        undo.callback(draft.unlink, missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(document(receipt))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    _remove_old(where)
    return path


def names(where: Path) -> Sequence[str]:
    """The oldest first; none where there is no folder.  Raises Unreadable."""
    try:
        found = (_NAME.fullmatch(entry) for entry in os.listdir(where))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unreadable(where, error) from error
    return sorted(match["name"] for match in found if match and match["ending"] == "json")


def load(where: Path, name: str) -> Receipt:
    """Raises Unreadable for a file that is no receipt of a version that is known."""
    path = where / f"{name}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Receipt)
    except OSError as error:
        raise _unreadable(path, error) from error
    except msgspec.MsgspecError as error:
        raise Unreadable(
            f"{path} is no receipt of this version: {error}. Remove it, or read it as JSON."
        ) from error


def find(where: Path, asked: str) -> str:
    """The name that `asked` stands for.  Raises Usage where there is none."""
    known = names(where)
    if not known:
        raise Usage(f"There is no receipt in {where}. Start an engine with `ullage serve` first.")
    if asked == LATEST:
        return known[-1]
    if asked not in known:
        raise Usage(f"There is no receipt '{asked}' in {where}. List them: ullage receipts.")
    return asked


def _unreadable(path: Path, error: OSError) -> Unreadable:
    return Unreadable(
        f"{path} cannot be read: {error.strerror}. Set {SWITCH} to a folder that this user may "
        "read."
    )


def _remove_old(where: Path) -> None:
    """Others do the same at the same time: what is gone is gone."""
    for name in names(where)[:-MOST]:
        (where / f"{name}.json").unlink(missing_ok=True)
    for draft in where.glob(".*.draft"):
        with contextlib.suppress(FileNotFoundError):
            if _NAME.fullmatch(draft.name) and time.time() - draft.stat().st_mtime > _DRAFT_KEPT_S:
                draft.unlink()

"""The lease folder: one file an engine, which says what it may take, and a lock for changing them.

Whose process has ended counts no more, whatever it left: the next engine removes its file.  The
folder is this user's alone.  Engines of another user, or that see another /tmp, are not found.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import filelock
import msgspec

from ullage.accounting.leases import Lease, Process, is_dead
from ullage.devices import host
from ullage.drivers import procfs
from ullage.errors import EngineFailed, Unreadable

CHANGED_WITHIN_S: Final = 20.0
MEASURED_WITHIN_S: Final = 400.0  # vLLM gives a start 600 s (VLLM_ENGINE_READY_TIMEOUT_S)
_SIZES_KEPT: Final = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """`living` with what they have taken now; `dead` ones count nothing; `unclear` are of another
    pid namespace, and `damaged` files are none of ours: neither counts, and neither is removed."""

    living: tuple[Lease, ...]
    dead: tuple[Lease, ...]
    unclear: tuple[Lease, ...]
    damaged: tuple[str, ...]


def default_folder(environment: Mapping[str, str]) -> Path:
    """$XDG_RUNTIME_DIR/ullage, or /tmp/ullage-UID: the same for each engine of the user.

    /run/user/UID is the login sessions': it goes with the last of them, and a service of the same
    user does not have it (pam_systemd(8)).
    """
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    if runtime and not runtime.startswith("/run/user/") and Path(runtime).is_dir():
        return Path(runtime) / "ullage"
    return Path(f"/tmp/ullage-{os.geteuid()}")  # noqa: S108 - made with 0700, and checked


def this_process() -> Process:
    boot, namespace, own = procfs.boot_id(), procfs.pid_namespace(), procfs.stat("self")
    if boot is None or namespace is None or own is None:
        raise Unreadable("This process cannot be named for a lease. Mount /proc.")
    return Process(
        boot_id=boot,
        pid_namespace=namespace,
        pid=own.pid,
        start_time_ticks=own.start_time_ticks,
    )


class LeaseFolder:
    """Raises Unreadable where the folder cannot be trusted or used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()
        except OSError as error:
            raise _unusable(folder, f"cannot be made: {error.strerror}") from error
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise _unusable(folder, f"is not a folder of user {os.geteuid()}")
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise _unusable(folder, "is open to other users")
        # systemd-tmpfiles leaves a locked folder alone, however old its files are (tmpfiles.d(5)).
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)
        self._measuring = filelock.FileLock(
            folder / "measuring.lock", mode=0o600, thread_local=False
        )

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Nobody else reads to write inside."""
        lock = filelock.FileLock(self._folder / "change.lock", mode=0o600, timeout=CHANGED_WITHIN_S)
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise _unusable(self._folder, f"stays locked for {CHANGED_WITHIN_S:.0f} s") from error
        try:
            yield
        finally:
            lock.release()

    def begin_measuring(self, waits: Callable[[], None]) -> None:
        """One engine at a time, until `end_measuring` or its end.  `waits` is told before waiting.

        Raises EngineFailed where another one takes too long.
        """
        with contextlib.suppress(filelock.Timeout):
            self._measuring.acquire(timeout=0)
            return
        waits()
        try:
            self._measuring.acquire(timeout=MEASURED_WITHIN_S)
        except filelock.Timeout as error:
            raise EngineFailed(
                f"Another engine has been warming up for {MEASURED_WITHIN_S:.0f} s, and this one "
                "cannot measure beside it. See `ullage leases`, and end it or start this one later."
            ) from error

    def end_measuring(self) -> None:
        self._measuring.release(force=True)

    def read(self) -> Found:
        """Every lease, judged now."""
        me = this_process()
        leases, damaged = self._load()
        verdicts = [
            (is_dead(lease, me, _start_time_ticks(lease.worker.pid)), lease) for lease in leases
        ]
        return Found(
            living=tuple(_as_of_now(lease) for dead, lease in verdicts if dead is False),
            dead=tuple(lease for dead, lease in verdicts if dead is True),
            unclear=tuple(lease for dead, lease in verdicts if dead is None),
            damaged=tuple(damaged),
        )

    def write(self, lease: Lease) -> None:
        """pre: inside `changing`."""
        self._replace(_name(lease), lease)

    def remove(self, lease: Lease) -> None:
        (self._folder / _name(lease)).unlink(missing_ok=True)

    def clean(self) -> Found:
        """Remove what ended engines left, and say what was found.  pre: inside `changing`."""
        found = self.read()
        for lease in found.dead:
            self.remove(lease)
        for unfinished in self._folder.glob("*.new"):  # its writer would hold the lock
            unfinished.unlink(missing_ok=True)
        return found

    def earlier_size_bytes(self, key: str) -> int | None:
        """What `keep_size` last kept for `key`; None without."""
        return self._sizes().get(key)

    def keep_size(self, key: str, size_bytes: int) -> None:
        """pre: inside `changing`."""
        others = [(name, size) for name, size in self._sizes().items() if name != key]
        self._replace("sizes", dict([*others, (key, size_bytes)][-_SIZES_KEPT:]))

    def _sizes(self) -> dict[str, int]:
        try:
            return msgspec.json.decode((self._folder / "sizes").read_bytes(), type=dict[str, int])
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
            return {}

    def _load(self) -> tuple[list[Lease], list[str]]:
        leases, damaged = [], []
        for path in sorted(self._folder.glob("*.json")):
            try:
                leases.append(msgspec.json.decode(path.read_bytes(), type=Lease))
            except FileNotFoundError:  # its engine has just ended
                continue
            except (OSError, msgspec.DecodeError, UnicodeDecodeError):
                damaged.append(str(path))
        return leases, damaged

    def _replace(self, name: str, value: Any) -> None:
        """Whole or not at all."""
        new = self._folder / f"{name}.new"
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(msgspec.json.encode(value))
            new.replace(self._folder / name)
        except OSError as error:
            raise _unusable(self._folder, f"cannot be written: {error.strerror}") from error


def _name(lease: Lease) -> str:
    return f"{lease.worker.pid}-{lease.worker.start_time_ticks}.json"


def _start_time_ticks(pid: int) -> int | None:
    found = procfs.stat(pid)
    return None if found is None or found.state == "Z" else found.start_time_ticks


def pids(lease: Lease) -> list[int]:
    """The processes of its engine."""
    tree = host.process_tree(lease.frontend_pid)
    return list(tree if lease.worker.pid in tree else host.process_tree(lease.worker.pid))


def _as_of_now(lease: Lease) -> Lease:
    taken_bytes = host.held_bytes(pids(lease))
    return lease if taken_bytes is None else dataclasses.replace(lease, taken_bytes=taken_bytes)


def _unusable(folder: Path, why: str) -> Unreadable:
    return Unreadable(
        f"The lease folder {folder} {why}. Remove it, or set XDG_RUNTIME_DIR to a folder of yours "
        "(the same one for every engine)."
    )

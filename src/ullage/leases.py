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
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
MEASURED_WITHIN_S: Final = 400.0  # one engine; vLLM gives it 600 s (VLLM_ENGINE_READY_TIMEOUT_S)
_LOOK_EVERY_S: Final = 0.1
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
        with self._usable("cannot be locked"):
            self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)
        self._measuring: int | None = None  # the descriptor that holds the lock

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Nobody else reads to write inside."""
        lock = filelock.FileLock(self._folder / "change.lock", mode=0o600, timeout=CHANGED_WITHIN_S)
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise _unusable(self._folder, f"stays locked for {CHANGED_WITHIN_S:.0f} s") from error
        except OSError as error:
            raise _unusable(self._folder, f"cannot be locked: {error.strerror}") from error
        try:
            yield
        finally:
            lock.release()

    def begin_measuring(self, limit: str, waits: Callable[[], None]) -> None:
        """One engine of `limit` at a time, until `end_measuring` or its end.  `waits` is told
        before waiting.

        Raises EngineFailed where one other engine takes too long.
        """
        self.end_measuring()
        path = self._folder / f"measuring-{limit.replace('/', '_')}.lock"
        with self._usable("cannot be locked"), contextlib.ExitStack() as undo:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            undo.callback(os.close, descriptor)
            if not _is_locked_now(descriptor):
                waits()
                _wait_in_turn(descriptor)
            os.pwrite(descriptor, f"{os.getpid():10} {time.monotonic_ns():20}".encode(), 0)
            undo.pop_all()
        self._measuring = descriptor

    def end_measuring(self) -> None:
        if self._measuring is not None:
            # By name: a child that was forked meanwhile has the same lock.
            fcntl.flock(self._measuring, fcntl.LOCK_UN)
            os.close(self._measuring)
            self._measuring = None

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
        with self._usable("cannot be written"):
            (self._folder / _name(lease)).unlink(missing_ok=True)

    def clean(self) -> Found:
        """Remove what ended engines left, and say what was found.  pre: inside `changing`."""
        found = self.read()
        for lease in found.dead:
            self.remove(lease)
        damaged = list(found.damaged)
        for unfinished in self._folder.glob("*.new"):  # its writer would hold the lock
            try:
                unfinished.unlink(missing_ok=True)
            except OSError:
                damaged.append(str(unfinished))
        return dataclasses.replace(found, damaged=tuple(damaged))

    def earlier_size_bytes(self, key: str) -> int | None:
        """What `keep_size` last kept for `key`; None without."""
        return self._sizes().get(key)

    def keep_size(self, key: str, size_bytes: int) -> None:
        """pre: inside `changing`."""
        others = [(name, size) for name, size in self._sizes().items() if name != key]
        self._replace("sizes", dict([*others, (key, size_bytes)][-_SIZES_KEPT:]))

    def _sizes(self) -> dict[str, int]:
        try:
            with self._usable("cannot be read"):
                return msgspec.json.decode(self._sizes_text(), type=dict[str, int])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return {}

    def _sizes_text(self) -> bytes:
        try:
            return (self._folder / "sizes").read_bytes()
        except FileNotFoundError:
            return b"{}"

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
        with self._usable("cannot be written"):
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(msgspec.json.encode(value))
            new.replace(self._folder / name)

    @contextlib.contextmanager
    def _usable(self, else_why: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _unusable(self._folder, f"{else_why}: {error.strerror}") from error


def _wait_in_turn(descriptor: int) -> None:
    """Whoever gets the lock writes there that it has: a new text is another engine."""
    holder, since_s = None, 0.0
    while not _is_locked_now(descriptor):
        now_s, seen = time.monotonic(), os.pread(descriptor, 100, 0)
        if seen != holder:
            holder, since_s = seen, now_s
        elif now_s - since_s >= MEASURED_WITHIN_S:
            raise EngineFailed(
                f"Another engine has been warming up for {MEASURED_WITHIN_S:.0f} s, and this one "
                "cannot measure beside it. See `ullage leases`, and end it or start this one later."
            )
        time.sleep(_LOOK_EVERY_S)


def _is_locked_now(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _name(lease: Lease) -> str:
    return f"{lease.worker.pid}-{lease.worker.start_time_ticks}.json"


def _start_time_ticks(pid: int) -> int | None:
    found = procfs.stat(pid)
    return None if found is None or found.state == "Z" else found.start_time_ticks


def pids(lease: Lease) -> list[int]:
    """The processes of its engine."""
    return engine_pids(lease.frontend_pid, (lease.worker.pid, *lease.rank_pids))


def engine_pids(frontend_pid: int, rank_pids: Sequence[int]) -> list[int]:
    """Front end, ranks, and all processes below them, each once."""
    found: dict[int, None] = {}
    for root in (frontend_pid, *rank_pids):
        if root not in found:
            found |= dict.fromkeys(host.process_tree(root))
    return list(found)


def _as_of_now(lease: Lease) -> Lease:
    taken_bytes = host.held_bytes(pids(lease))
    return lease if taken_bytes is None else dataclasses.replace(lease, taken_bytes=taken_bytes)


def _unusable(folder: Path, why: str) -> Unreadable:
    return Unreadable(
        f"The lease folder {folder} {why}. Remove it, or set XDG_RUNTIME_DIR to a folder of yours "
        "(the same one for every engine)."
    )

"""Read this host now: the plugin's one edge towards the kernel."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from ullage import leases
from ullage.accounting.exact import WorkingSet, limiting, settle
from ullage.accounting.leases import Lease, needed_by_source
from ullage.accounting.snapshot import Snapshot, snapshot
from ullage.devices import host
from ullage.devices.base import ProcessReading, Reading
from ullage.devices.bounds import ADDRESS_SPACE
from ullage.errors import MemoryRefused, Unreadable
from ullage.units import gib
from ullage.vllm_plugin import settings
from ullage.vllm_plugin.ranks import ALONE, Ranks


class Observer:
    """This engine's view of the host: the front end, all ranks, and every process below them are
    its own.

    What its processes touch of their mapped files during the usual work is the working set that
    every later reading keeps room for.
    """

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self._ranks = ranks
        self.frontend_pid = _frontend_pid()
        self.rank_pids = ranks.gather(os.getpid)
        self._working_set: WorkingSet | None = None
        self._places: host.Places | None = None
        self.limit_at_start_bytes: int | None = None  # the least memory of all sources, first seen
        self.others: Callable[[], Sequence[Lease]] = tuple  # other engines of ours, as of now

    def watch_usual_work(self, work: Callable[[], None]) -> None:
        """Have all ranks do at once what they do while they serve; the first one watches all.

        Where the references of an own process cannot be reset, the working set stays unknown, and
        every mapped page counts as in use.
        """
        forgotten = self._ranks.first(self._forget_references)
        self._ranks.together(work)
        if forgotten:
            self._working_set = self._ranks.first(self._referenced) or self._working_set

    def _forget_references(self) -> bool:
        try:
            host.forget_file_references(self._pids())
        except Unreadable:
            return False
        return True

    def _referenced(self) -> WorkingSet | None:
        """None where a process cannot be read."""
        referenced_bytes = host.referenced_file_bytes(self._pids())
        mapped = [
            size
            for process in [*self._processes(), *self._other_processes()]
            for size in (process.file_bytes, process.shmem_bytes)
        ]
        if referenced_bytes is None or None in mapped:
            return None
        return WorkingSet(
            mapped_bytes=sum(size or 0 for size in mapped), referenced_bytes=referenced_bytes
        )

    def take(self) -> Snapshot:
        """All readings and the own processes.  What others still need is not available."""
        promised = needed_by_source(self.others(), host.identities())
        self._places = host.places()
        taken = snapshot(
            readings=_without_addresses(host.read_at(self._places)),
            processes=self._processes(),
            taken_at_s=time.time(),
            working_set=self._working_set,
            promised=promised,
        )
        if self.limit_at_start_bytes is None:
            self.limit_at_start_bytes = limiting(taken.readings).total_bytes
        return taken

    def file_bytes(self, taken: Snapshot) -> int:
        """File pages that the own processes use.  Raises Unreadable where that is unknown."""
        if self._working_set is not None:
            return self._working_set.referenced_bytes
        if taken.own_file_bytes is None:
            raise Unreadable(
                "Which file pages the engine uses cannot be told: /proc does not say for all its "
                "processes. Make /proc readable, or leave ULLAGE_SHARE out."
            )
        return taken.own_file_bytes

    def available_bytes(self) -> int:
        """What the kernel would give now.  Cheaper than `take`: no process is looked at, no lease,
        and the sources are those of the last `take`."""
        self._places = self._places or host.places()
        readings = host.read_at(self._places, limits_only=True)
        return settle(_without_addresses(readings), working_set=self._working_set).available_bytes

    def mappable_bytes(self) -> int | None:
        """Addresses that this process may still take; None where nothing limits them."""
        bound = [each for each in host.read() if each.source == ADDRESS_SPACE]
        return settle(bound).available_bytes if bound else None

    def check_addresses(self, size_bytes: int) -> None:
        """Raises MemoryRefused where the process may not take so many addresses."""
        left_bytes = self.mappable_bytes()
        if left_bytes is not None and size_bytes > left_bytes:
            raise MemoryRefused(
                f"The KV cache needs {gib(size_bytes)} of addresses, and {ADDRESS_SPACE} leaves "
                f"{gib(left_bytes)}. Start the engine after `ulimit -v unlimited`: addresses take "
                "no memory."
            )

    def _pids(self) -> Sequence[int]:
        return leases.engine_pids(self.frontend_pid, self.rank_pids)

    def _other_processes(self) -> Sequence[ProcessReading]:
        """Their promises have room for the files that they use; here those are not foreign ones."""
        return host.read_processes(pid for lease in self.others() for pid in leases.pids(lease))

    def _processes(self) -> Sequence[ProcessReading]:
        return host.read_processes(self._pids())


def _frontend_pid() -> int:
    """The variable may be inherited from another engine, unless this process is below the one that
    it names, or vLLM has just set it (`settings.is_in_ray`)."""
    named = settings.read(os.environ).frontend_pid
    if named is None or settings.is_in_ray(os.environ):
        return named or os.getpid()
    return named if os.getpid() in host.process_tree(named) else os.getpid()


def _without_addresses(readings: Sequence[Reading]) -> Sequence[Reading]:
    """The KV cache's addresses are taken before its memory, so what is left of the addresses says
    nothing of the memory that may still be put behind them."""
    return [reading for reading in readings if reading.source != ADDRESS_SPACE]

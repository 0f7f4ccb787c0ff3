"""This engine among the others of its user: its lease, from the worker's start to its end."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from math import ceil

from vllm.logger import init_logger

from ullage.accounting.ceiling import Ceiling
from ullage.accounting.exact import limiting
from ullage.accounting.leases import (
    Lease,
    Process,
    Promise,
    asleep,
    foreign_bytes,
    left_share,
    needed_by_source,
    promised_bytes,
    promised_of_more,
    refuse_awake,
    refuse_if_promised,
)
from ullage.accounting.snapshot import Snapshot
from ullage.devices import host
from ullage.errors import Unreadable
from ullage.leases import LeaseFolder, default_folder, pids, this_process
from ullage.units import MIB, gib
from ullage.vllm_plugin import settings
from ullage.vllm_plugin.decision import Decision
from ullage.vllm_plugin.observe import Observer

logger = init_logger("vllm.ullage.tenant")

_NOTED_BYTES = 16 * MIB


class Tenant:
    """`enter` first; `decided` and `committed` as the start goes on; `leave` at any time.

    One worker of an engine enters for all.  Where one has not, the other calls do nothing.  Only
    for a share must the lease folder be usable: without one a warning says that there is no lease.
    """

    def __init__(self) -> None:
        self._settings = settings.read(os.environ)
        self._observer: Observer | None = None
        self._folder: LeaseFolder | None = None
        self._me: Process | None = None
        self._lease: Lease | None = None
        self._asleep: Lease | None = None  # what is promised instead, while the engine sleeps
        self._slept: Lease | None = None  # the same, until the engine has woken
        self._seen: Sequence[Lease] = ()
        self._source = ""
        # When this engine entered: what was not ours, and who was.
        self._foreign_bytes: int | None = None
        self._seen_then: set[Process] = set()
        self._left_then = Fraction(1)
        self._seen_asleep: Sequence[Lease] = ()
        self._key = ""

    def enter(self, observer: Observer, utilization: float | None) -> None:
        """Say what this engine will need.  Raises DoesNotFit where others were promised it.

        `utilization`: the user's own fraction, which is a share as well.
        """
        self._observer = observer
        with self._needed_for_a_share():
            self._folder, self._me = LeaseFolder(default_folder(os.environ)), this_process()
            observer.others = self._others
            self._enter(self._folder, self._me, observer, utilization)

    def _enter(
        self, folder: LeaseFolder, me: Process, observer: Observer, utilization: float | None
    ) -> None:
        with folder.changing():
            folder.clean()
            taken = observer.take()
            lease = self._new_lease(me, observer, taken, utilization)
            refuse_if_promised(self._share(utilization), lease.limit, self._seen)
            self._lease = lease
            self._write(lease)
        self._foreign_bytes = self._foreign(taken)
        self._seen_then = {each.worker for each in self._seen}
        self._left_then = left_share(lease.limit, self._seen)
        if lease.share is None:
            logger.info(
                "ullage: this engine takes all that is left of %s. To have others beside it, start "
                "each with its share, such as ULLAGE_SHARE=1/2.",
                gib(lease.limit_bytes),
            )

    def room(self, most: Ceiling) -> Ceiling:
        """The least of `most`, what others will not need of it, and what the promise leaves."""
        share = self._settings.share
        if self._lease is None:
            return most
        needed = needed_by_source(self._others(), host.identities()).get(most.source, 0)
        most = replace(most, available_bytes=max(0, most.available_bytes - needed))
        if share is None:
            return most
        taken_bytes = host.held_bytes(pids(self._lease)) or 0
        promised = Ceiling(
            source=f"the share {share} of {self._source}",
            total_bytes=self._lease.promised_bytes,
            available_bytes=max(0, self._lease.promised_bytes - taken_bytes),
            share=promised_of_more(share),
        )
        return min(most, promised, key=lambda each: each.available_bytes)

    @contextmanager
    def leaving_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.leave()
            raise

    def begin_measuring(self) -> None:
        """Until `committed` or `leave`, no other engine of the same limit warms up."""
        if self._lease is not None and self._folder is not None:
            with self._needed_for_a_share():
                self._folder.begin_measuring(self._lease.limit, self._say_who_is_waited_for)

    def promise(self, taken: Snapshot, alike: str) -> Promise | None:
        """What ULLAGE_SHARE promises.  `alike` is the same for starts that should be the same."""
        if self._settings.share is None or self._lease is None or self._folder is None:
            return None
        if self._observer is None:
            return None
        self._key = f"{alike} in {self._lease.share} of {self._lease.limit_bytes}"
        return Promise(
            size_bytes=self._lease.promised_bytes,
            file_bytes=self._observer.file_bytes(taken),
            earlier_kv_bytes=self._folder.earlier_size_bytes(self._key),
        )

    def decided(self, decision: Decision, taken: Snapshot) -> None:
        """Keep the size for equal starts, and say where others changed meanwhile."""
        if self._lease is None or self._folder is None:
            return
        if decision.budget.bound == "share":
            with self._folder.changing():
                self._folder.keep_size(self._key, decision.kv_bytes)
        self._note_foreign(self._foreign(taken))

    def committed(self) -> None:
        if self._lease is not None and self._folder is not None:
            with self._needed_for_a_share(), self._folder.changing():
                self._write(self._lease)
            self._folder.end_measuring()

    def asleep(self) -> None:
        """Promise what is still held and no more: others may take the rest."""
        if self._lease is None or self._asleep is not None:
            return
        taken_bytes = host.held_bytes(pids(self._lease))
        if taken_bytes is not None:
            self._seen_asleep = self._others()
            self._promise_less(asleep(self._lease, taken_bytes))

    def awake(self) -> None:
        """The promise again, before its memory is taken.

        Raises OverAvailable where others were promised it meanwhile; then it is asleep as before.
        """
        self._slept, self._asleep = self._asleep, None
        if self._slept is None or self._lease is None or self._folder is None:
            return
        share = self._left_then if self._lease.share is None else Fraction(self._lease.share)
        try:
            with self._folder.changing():
                others, limit = self._others(), self._lease.limit
                refuse_awake(share, limit, before=self._seen_asleep, now=others)
                self._write(self._lease)
        except BaseException:
            self._asleep = self._slept
            raise

    def asleep_again(self) -> None:
        """After `awake`, where the memory was refused."""
        if self._slept is not None:
            self._promise_less(self._slept)

    def leave(self) -> None:
        """Nothing is promised any more.  Raises nothing: it is the last step of an end."""
        if self._folder is None:
            return
        try:
            if self._lease is not None:
                self._folder.remove(self._lease)
        except Unreadable as error:
            logger.warning("ullage leaves its lease behind, which counts until it ends: %s", error)
        finally:
            self._lease = self._asleep = self._slept = None
            self._folder.end_measuring()

    @contextmanager
    def _needed_for_a_share(self) -> Iterator[None]:
        """Without one the start goes on, and has no lease."""
        try:
            yield
        except Unreadable as error:
            if self._settings.share is not None:
                raise
            logger.warning("ullage has no lease, so other engines do not know this one: %s", error)
            self.leave()

    def _promise_less(self, lease: Lease) -> None:
        if self._folder is None:
            return
        try:
            with self._folder.changing():
                self._folder.write(lease)
        except Unreadable as error:
            logger.warning("ullage keeps all that is promised while it sleeps: %s", error)
        else:
            self._asleep = lease

    def _share(self, utilization: float | None) -> Fraction | None:
        if self._settings.share is not None or utilization is None:
            return self._settings.share
        return Fraction(str(utilization))

    def _new_lease(
        self, me: Process, observer: Observer, taken: Snapshot, utilization: float | None
    ) -> Lease:
        identities = host.identities()
        limit = limiting(taken.readings)
        self._source = limit.source
        limit_bytes = limit.total_bytes or 0
        share = self._share(utilization)
        if self._settings.share is None and share is not None:
            promised = ceil(limit_bytes * share)  # as --gpu-memory-utilization means it
        else:
            promised = promised_bytes(limit_bytes, share)
        return Lease(
            worker=me,
            frontend_pid=observer.frontend_pid,
            rank_pids=observer.rank_pids,
            limit=identities.get(limit.source, limit.source),
            limits=tuple(identities.values()),
            limit_bytes=limit_bytes,
            share=None if share is None else str(share),
            promised_bytes=promised,
            taken_bytes=0,
        )

    def _write(self, lease: Lease) -> None:
        """With nothing taken where that cannot be told: then all of the promise is still kept."""
        if self._folder is not None:
            taken_bytes = host.held_bytes(pids(lease)) or 0
            self._folder.write(replace(lease, taken_bytes=taken_bytes))

    def _others(self) -> Sequence[Lease]:
        if self._folder is not None:
            found = self._folder.read().living
            self._seen = [each for each in found if each.worker != self._me]
        return self._seen

    def _foreign(self, taken: Snapshot) -> int | None:
        """pre: `_others` was last asked for `taken`."""
        identity = "" if self._lease is None else self._lease.limit
        return foreign_bytes(taken, self._source, identity, self._seen)

    def _note_foreign(self, now_bytes: int | None) -> None:
        """What an engine held before it had a lease cannot be told from what others hold."""
        if now_bytes is None or self._foreign_bytes is None:
            return
        if self._seen_then != {each.worker for each in self._seen}:
            return
        more_bytes = now_bytes - self._foreign_bytes
        if abs(more_bytes) >= _NOTED_BYTES:
            logger.info(
                "ullage: processes that are not ours hold %s %s than when this start began.",
                gib(abs(more_bytes)),
                "more" if more_bytes > 0 else "less",
            )

    def _say_who_is_waited_for(self) -> None:
        limit = None if self._lease is None else self._lease.limit
        others = [each for each in self._others() if each.limit == limit]
        names = ", ".join(str(each.worker.pid) for each in others)
        logger.info("ullage waits: another engine warms up (one of processes %s).", names)

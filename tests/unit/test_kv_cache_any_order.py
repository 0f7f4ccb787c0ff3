"""A KV cache after any order of calls and refusals, held to a model that knows every byte."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fakes.cache import make_layout, read, write
from fakes.memory import FakeMemory
from ullage.errors import MemoryRefused, OverAvailable
from ullage.kv.cache import KVCache


def is_open(machine: AnyOrder) -> bool:
    return hasattr(machine, "cache") and not machine.closed


class AnyOrder(RuleBasedStateMachine):
    """Every byte of every committed block, after any order of calls and refusals."""

    @initialize(
        strides=st.lists(st.integers(1, 40), min_size=1, max_size=4).map(tuple),
        capacity=st.integers(1, 10),
    )
    def start(self, strides: tuple[int, ...], capacity: int) -> None:
        self.memory = FakeMemory()
        self.layout = make_layout(strides, capacity)
        self.cache = KVCache(self.memory, self.layout, available=self.memory.available)
        self.address = self.cache.address
        self.closed = False
        # For each segment the byte that fills each block; None: nobody may rely on what is there.
        self.model: list[list[int | None]] = [[0] for _ in strides]

    @precondition(is_open)
    @rule(blocks=st.integers(-2, 12))
    def grow(self, blocks: int) -> None:
        before = self.cache.committed_blocks
        wanted = max(before, min(blocks, self.layout.capacity_blocks))
        if self.cache.asleep and wanted > before:
            with pytest.raises(ValueError, match="asleep"):
                self.cache.commit(blocks)
            return
        assert self.cache.commit(blocks) == wanted
        for filled in self.model:
            filled.extend([0] * (wanted - before))

    @precondition(is_open)
    @rule(blocks=st.integers(-2, 12))
    def shrink(self, blocks: int) -> None:
        kept = min(self.cache.committed_blocks, max(1, blocks))
        with self.losing_contents(kept):
            assert self.cache.shrink(blocks) == kept
        for filled in self.model:
            del filled[kept:]

    @precondition(is_open)
    @rule()
    def sleep(self) -> None:
        with self.losing_contents(0):
            self.cache.sleep()
        assert (self.cache.asleep, self.cache.physical_bytes) == (True, 0)

    @precondition(is_open)
    @rule()
    def wake(self) -> None:
        slept = self.cache.asleep
        self.cache.wake()
        assert not self.cache.asleep
        if slept:
            self.model = [[0] * len(filled) for filled in self.model]

    @rule()
    def close(self) -> None:
        self.cache.close()
        self.closed = True
        with pytest.raises(ValueError, match="closed"):
            self.cache.commit(1)

    @precondition(lambda self: is_open(self) and not self.cache.asleep)
    @rule(segment=st.integers(0, 3), block=st.integers(0, 11), byte=st.integers(0, 255))
    def use(self, segment: int, block: int, byte: int) -> None:
        segment %= len(self.model)
        block %= self.cache.committed_blocks
        write(self.cache, self.memory, self.layout.segments[segment], block, byte)
        self.model[segment][block] = byte

    @precondition(is_open)
    @rule(
        call=st.sampled_from(["grow", "shrink", "sleep", "wake", "close"]),
        blocks=st.integers(1, 12),
        after=st.integers(0, 8),
    )
    def be_refused(self, call: str, blocks: int, after: int) -> None:
        before = self.state()
        self.memory.fail_after = after
        try:
            getattr(self, call)(*[blocks] * (call in ("grow", "shrink")))
        except MemoryRefused:
            assert self.state() == before
        finally:
            self.memory.fail_after = None

    @precondition(is_open)
    @rule(
        call=st.sampled_from(["grow", "wake"]), blocks=st.integers(2, 12), room=st.integers(0, 20)
    )
    def meet_the_limit(self, call: str, blocks: int, room: int) -> None:
        before = self.state()
        self.memory.limit_bytes = self.memory.physical_bytes + 16 * room
        fits = self.layout.blocks_within(self.memory.limit_bytes)
        try:
            getattr(self, call)(*[blocks] * (call == "grow"))
        except OverAvailable:
            assert self.state() == before
            wanted = blocks if call == "grow" else self.cache.committed_blocks
            assert fits < min(wanted, self.layout.capacity_blocks)
        finally:
            self.memory.limit_bytes = None

    def state(self) -> tuple[object, ...]:
        cache = self.cache
        counters = cache.committed_blocks, cache.asleep, cache.physical_bytes
        return *counters, set(self.memory.granules), dict(self.memory.reserved)

    @contextmanager
    def losing_contents(self, kept: int) -> Iterator[None]:
        """A refused call may have zeroed what it was to take away."""
        try:
            yield
        except MemoryRefused:
            for filled in self.model:
                filled[kept:] = [None] * len(filled[kept:])
            raise

    @precondition(lambda self: is_open(self) and not self.cache.asleep)
    @invariant()
    def every_byte_is_what_the_model_says(self) -> None:
        for segment, filled in zip(self.layout.segments, self.model, strict=True):
            for block, byte in enumerate(filled):
                content = read(self.cache, self.memory, segment, block)
                assert byte is None or content == bytes([byte]) * segment.stride_bytes

    @precondition(is_open)
    @invariant()
    def memory_is_what_the_layout_says(self) -> None:
        blocks = 0 if self.cache.asleep else self.cache.committed_blocks
        expected = self.layout.physical_bytes_for(blocks)
        assert self.cache.physical_bytes == self.memory.physical_bytes == expected

    @precondition(is_open)
    @invariant()
    def addresses_and_the_null_block_stay(self) -> None:
        assert self.cache.address == self.address
        assert list(self.memory.reserved) == [self.address]
        assert self.cache.committed_blocks >= 1

    @precondition(lambda self: getattr(self, "closed", False))
    @invariant()
    def nothing_is_left_of_what_is_closed(self) -> None:
        assert (self.memory.reserved, self.memory.granules) == ({}, {})


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=80, stateful_step_count=25)

"""The arithmetic and the verdicts of the benchmarks' scripts."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="comes with the engine")

from hypothesis import given
from hypothesis import strategies as st

from harness import record
from harness.client import Answer
from harness.ledger import ledger_lines
from harness.pool import PoolState
from harness.record import Record
from ullage.accounting.ledger import Ledger
from ullage.budget import Engine, budget
from ullage.devices.base import MemoryParts, ProcessReading
from ullage.errors import Unreadable
from ullage.report.ledger import ledger_text
from ullage.units import GIB, MIB

stress = importlib.import_module("stress")
kv_share = importlib.import_module("kv_share")
cut_starts = importlib.import_module("cut_starts")
tight_container = importlib.import_module("tight_container")
start_time = importlib.import_module("start_time")
commit_speed = importlib.import_module("commit_speed")


@given(st.integers(64, 8192), st.integers(0, 99))
def test_no_request_of_the_stress_is_longer_than_the_model_allows(length: int, seed: int) -> None:
    asks = stress.asks(length, random.Random(seed))  # noqa: S311
    first_round = [next(asks) for _ in stress.KINDS]
    assert {ask.kind for ask in first_round} == {kind.name for kind in stress.KINDS}
    assert all(len(ask.prompt) + ask.output_tokens <= length for ask in first_round)
    assert max(len(ask.prompt) for ask in first_round) >= 0.98 * length - 1


def answer(kind: str, outcome: Any, reason: str | None = None) -> Answer:
    return Answer(kind=kind, outcome=outcome, reason=reason, elapsed_s=1.0)


def pool(usage: float | None) -> PoolState:
    return PoolState(usage=usage, running=1.0, waiting=5.0, preemptions=3.0)


def test_a_stress_counts_by_outcome_kind_and_reason_and_tells_how_full_the_pool_was() -> None:
    told = stress.outcome(
        [answer("a", "done"), answer("a", "failed", "HTTP 500: x"), answer("b", "cut")],
        [pool(0.5), pool(0.95), pool(1.0), pool(None)],
        answer("one more", "done"),
    )
    assert told["requests"] == {"done": 1, "failed": 1, "cut": 1}
    assert told["by_kind"] == {"a": {"done": 1, "failed": 1}, "b": {"cut": 1}}
    assert told["reasons"] == {"HTTP 500: x": 1}
    assert told["pool_full_share"] == pytest.approx(2 / 3)
    assert told["answered_afterwards"]


SURVIVED = {
    "oom_kills": 0,
    "engine_deaths": 0,
    "lost_processes": 0,
    "answered_afterwards": True,
    "error": None,
    "number": 1,
}


@pytest.mark.parametrize(
    "change",
    [
        {"oom_kills": 1},
        {"oom_kills": None},
        {"engine_deaths": 1},
        {"lost_processes": 1},
        {"answered_afterwards": False},
    ],
)
def test_a_stress_is_not_survived_with_a_kill_a_death_or_silence(change: dict[str, Any]) -> None:
    assert stress.survived(SURVIVED)
    assert not stress.survived({**SURVIVED, **change})
    assert "no: " in stress.table([{**SURVIVED, **change}])


PARTS = MemoryParts(
    anon_bytes=3000 * MIB,
    shmem_bytes=20 * MIB,
    file_bytes=600 * MIB,
    inactive_file_bytes=300 * MIB,
    active_file_bytes=280 * MIB,
    mapped_file_bytes=250 * MIB,
    dirty_bytes=0,
    writeback_bytes=0,
    unevictable_bytes=0,
    kernel_bytes=60 * MIB,
)


def process(file_bytes: int | None) -> ProcessReading:
    return ProcessReading(
        pid=1,
        ppid=0,
        name="engine",
        start_time_ticks=1,
        anon_bytes=1,
        shmem_bytes=0,
        file_bytes=file_bytes,
        source="smaps_rollup",
    )


def test_the_share_is_the_cache_over_what_memory_and_hot_files_leave() -> None:
    """4096 - (3080 - 1400) - 100 = 2316; others have nothing mapped."""
    told = kv_share.share(
        limit_bytes=4 * GIB,
        kv_bytes=1400 * MIB,
        parts=PARTS,
        processes=[process(250 * MIB)],
        referenced_bytes=100 * MIB,
    )
    assert told["non_kv_unreclaimable_bytes"] == 1680 * MIB
    assert told["hot_bytes"] == 100 * MIB
    assert told["left_bytes"] == 2316 * MIB
    assert told["kv_share"] == pytest.approx(1400 / 2316, abs=1e-4)
    assert told["group"]["anon_bytes"] == 3000 * MIB


def test_hot_pages_that_another_group_pays_for_count_as_well() -> None:
    told = kv_share.share(
        limit_bytes=4 * GIB,
        kv_bytes=1400 * MIB,
        parts=dataclasses.replace(PARTS, mapped_file_bytes=0),
        processes=[process(250 * MIB)],
        referenced_bytes=100 * MIB,
    )
    assert told["hot_charged_elsewhere_bytes"] == told["hot_bytes"] == 100 * MIB


@pytest.mark.parametrize(
    ("parts", "file_bytes", "referenced_bytes"),
    [
        (dataclasses.replace(PARTS, kernel_bytes=None), 1, 1),
        (PARTS, None, 1),
        (PARTS, 1, None),
        (dataclasses.replace(PARTS, dirty_bytes=None), 1, 1),
    ],
)
def test_no_share_is_told_from_what_cannot_be_read(
    parts: MemoryParts, file_bytes: int | None, referenced_bytes: int | None
) -> None:
    with pytest.raises(Unreadable):
        kv_share.share(
            limit_bytes=4 * GIB,
            kv_bytes=MIB,
            parts=parts,
            processes=[process(file_bytes)],
            referenced_bytes=referenced_bytes,
        )


def kv_run(share: float | None, error: str | None = None) -> dict[str, Any]:
    return {"files": "cold", "error": error, "kv_share": share}


@pytest.mark.parametrize(
    ("runs", "reached"),
    [
        ([kv_run(0.94), kv_run(0.95), kv_run(0.90)], True),
        ([kv_run(0.92)], False),
        ([kv_run(0.94, "it died")], False),
        ([{"files": "cold", "error": "refused"}], False),
    ],
)
def test_the_goal_needs_the_share_in_the_median_and_every_start(
    runs: list[dict[str, Any]], reached: bool
) -> None:
    assert kv_share.reached(kv_share.summary(runs)) is reached
    assert kv_share.table(runs)


def test_the_second_share_keeps_the_peak_that_the_plugin_s_ledger_names() -> None:
    """1400 / (2316 - 512); the margin and others are no peak."""
    bounds = budget(
        total_bytes=4 * GIB,
        available_bytes=3 * GIB,
        engine=Engine(used_bytes=0, kv_bytes=0, transient_bytes=512 * MIB, later_bytes=MIB),
        margin_bytes=64 * MIB,
        utilization=None,
    )
    ledger = Ledger(total_bytes=4 * GIB, lines=bounds.deductions)
    log = ["ullage: 7 KV cache blocks fit.", *ledger_text(ledger).splitlines()]
    left = {"left_bytes": 2316 * MIB}
    told = kv_share.with_peak_kept(left, 1400 * MIB, ledger_lines(log))
    assert told["ledger_peak_bytes"] == 512 * MIB
    assert told["kv_share_with_peak_kept"] == pytest.approx(1400 / 1804, abs=1e-4)
    assert kv_share.with_peak_kept(left, 1400 * MIB, [])["kv_share_with_peak_kept"] is None


@given(st.integers(1, 300), st.floats(1, 500), st.integers(0, 99))
def test_every_part_of_a_start_is_cut_once(count: int, ready_s: float, seed: int) -> None:
    span_s = ready_s * cut_starts.BEYOND_READY
    found = sorted(cut_starts.moments(count, ready_s, seed))
    for number, at_s in enumerate(found):
        assert number * span_s / count - 0.001 <= at_s <= (number + 1) * span_s / count + 0.001
    assert cut_starts.moments(count, ready_s, seed) == cut_starts.moments(count, ready_s, seed)


CUT = {
    "kind": "cut",
    "number": 1,
    "reached": "loading weights",
    "error": None,
    "processes": [],
    "groups": [],
    "mounts": [],
    "segments": [],
    "files": {"stock": ["shm/psm_1"], "ullage": []},
}
PROOF = {"kind": "proof", "number": 0, "error": None, "kv_tokens": 1000, "ready_s": 40.0}


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({**CUT, "processes": ["python"]}, "processes: python"),
        ({**CUT, "mounts": ["ullage /mnt"]}, "mounts: ullage /mnt"),
        ({**CUT, "error": "no room"}, "ended by itself: no room"),
        ({**PROOF, "error": "locked"}, "the next start fails: locked"),
        ({**PROOF, "kv_tokens": 700}, "the next start has 700 KV tokens, not 1000"),
    ],
)
def test_what_the_next_start_neither_cleans_nor_ignores_is_left_over(
    run: dict[str, Any], words: str
) -> None:
    assert cut_starts.left_over(run, PROOF) == [words]
    assert cut_starts.left_over(CUT, PROOF) == []
    assert cut_starts.left_over({**PROOF, "kv_tokens": 950}, PROOF) == []
    table = cut_starts.table([PROOF, CUT, run])
    assert words in table
    assert "| stock: shm |" in table


def cut_record(directory: Path, seed: int = 1, begun_at: str = "aaa") -> Record:
    return Record(
        name="cut_starts",
        directory=directory,
        question="?",
        goal="!",
        command="x",
        where="here",
        settings={"seed": seed},
        begun_at=begun_at,
    )


def test_a_series_that_was_stopped_is_carried_on_only_with_its_settings_and_its_commit(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    assert cut_starts.earlier(cut_record(tmp_path), said.append) == []
    assert said == []
    mine = [{**run, "commit": "aaa"} for run in (PROOF, CUT)]
    cut_record(tmp_path).write([*mine, {**CUT, "number": 2, "commit": "bbb"}], {}, "")
    assert cut_starts.earlier(cut_record(tmp_path), said.append) == mine
    assert said[0] == "carried on, runs of aaa: 2"
    assert said[1].endswith("changed files: 1")
    assert cut_starts.earlier(cut_record(tmp_path, seed=2), said.append) == []
    assert cut_starts.earlier(cut_record(tmp_path, begun_at="ccc"), said.append) == []
    assert said[-1].endswith("changed files: 3")


def test_a_run_of_changed_files_is_never_carried_on(tmp_path: Path) -> None:
    changed = "aaa" + record.CHANGED
    cut_record(tmp_path).write([{**PROOF, "commit": changed}], {}, "")
    assert cut_record(tmp_path, begun_at=changed).earlier() == ([], 1)


def test_every_run_of_a_series_has_the_commit_that_it_ran_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run is one during which the files became others."""
    heads = iter(("aaa", "aaa", "bbb", "bbb"))
    monkeypatch.setattr(cut_starts, "commit", lambda: next(heads))
    monkeypatch.setattr(cut_starts, "check_place", lambda limit_bytes: "here")
    settings = SimpleNamespace(flags=lambda: ())
    series = contextlib.nullcontext(SimpleNamespace(settings=settings))
    monkeypatch.setattr(cut_starts, "series_below", lambda logs: series)
    monkeypatch.setattr(cut_starts, "rest", lambda *_: [PROOF, CUT, PROOF])
    options = argparse.Namespace(output=tmp_path, starts=1, seed=1, afresh=False)
    runs = cut_starts.measure(options, lambda text: None)
    assert [run["commit"] for run in runs] == ["aaa", "aaa at the start, bbb at the end", "bbb"]
    told = json.loads((tmp_path / "cut_starts.json").read_text())
    assert [run["commit"] for run in told["runs"]] == [run["commit"] for run in runs]


def test_a_series_goes_on_where_it_stopped_and_ends_with_a_start_that_is_let_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cut_starts, "proof", lambda series, number: {**PROOF, "number": number})
    monkeypatch.setattr(
        cut_starts, "cut", lambda series, number, at_s: {**CUT, "number": number, "at_s": at_s}
    )
    options = argparse.Namespace(starts=43, seed=1)

    def rest(runs: list[Any]) -> list[Any]:
        return list(cut_starts.rest(None, runs, options, lambda text: None))

    whole = rest([])
    numbers = [(run["kind"], run["number"]) for run in whole]
    assert [number for kind, number in numbers if kind == "proof"] == [0, 0, 20, 40, 43]
    assert [number for kind, number in numbers if kind == "cut"] == list(range(1, 44))
    stopped = whole[:12]
    again = rest(stopped)
    assert again[0]["kind"] == "proof"
    assert [run for run in (*stopped, *again) if run["kind"] == "cut"] == [
        run for run in whole if run["kind"] == "cut"
    ]


def side(rate: float, **more: Any) -> dict[str, Any]:
    return {"error": None, "failed": 0, "preemptions": 0.0, "output_tok_s": rate, **more}


def test_a_pair_has_a_ratio_only_where_both_did_the_whole_work_alike() -> None:
    assert tight_container.ratio(side(57.0), side(60.0)) == 0.95
    assert tight_container.ratio(side(57.0, failed=1), side(60.0)) is None
    assert tight_container.ratio(side(57.0), side(60.0, preemptions=2.0)) is None
    assert tight_container.ratio({"error": "refused"}, side(60.0)) is None


def pair(
    ratio: float | None, tight: int | None = 0, large: int | None = 0, files: str = "cold"
) -> dict[str, Any]:
    sides = {
        "tight": {**side(1), "refaulted_pages": tight},
        "large": {**side(1), "refaulted_pages": large},
    }
    return {"number": 1, "files": files, "order": ["tight"], "ratio": ratio, **sides}


@pytest.mark.parametrize(
    ("pairs", "reached"),
    [
        ([pair(0.93), pair(0.96), pair(0.97)], True),
        ([pair(0.93), pair(0.94), pair(0.97)], False),
        ([pair(0.96), pair(None), pair(0.97)], False),
        ([pair(0.96, 3, 5), pair(0.96, 9, 9), pair(0.96, 7, 8)], True),
        ([pair(0.96, 4, 3)], False),
        ([pair(0.96, None, 3)], False),
        ([pair(0.96, 0, 90, "warm"), pair(0.96, 4, 3, "cold")], False),
        ([], False),
    ],
)
def test_a_tight_container_needs_every_pair_the_speed_and_no_more_pages_read_again(
    pairs: list[dict[str, Any]], reached: bool
) -> None:
    assert tight_container.reached(pairs) is reached
    assert all(str(each["ratio"] or "?") in tight_container.table(pairs) for each in pairs)


def test_each_container_comes_first_with_cold_and_with_warm_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tight_container, "run_side", lambda *_: side(60.0))
    monkeypatch.setattr(tight_container, "with_more_room", lambda trial, plan: (trial, plan))
    made = [
        tight_container.run_pair(Limited(), number, tmp_path, lambda text: None)
        for number in range(1, 5)
    ]
    assert {(each["files"], each["order"][0]) for each in made} == {
        (files, first) for files in ("cold", "warm") for first in ("tight", "large")
    }


@dataclasses.dataclass(frozen=True)
class Limited:
    files: str = "warm"


def test_what_neither_a_step_nor_a_compiler_explains_is_the_residual() -> None:
    steps = start_time.warm_up_steps(
        ["x ullage warm-up: largest prefill 7.2 s, peak 1.8 GiB, kept 1.7 GiB, "
         "longest decode 0.3 s, peak 1.7 GiB, kept 1.7 GiB."]
    )  # fmt: skip
    assert steps == {"largest prefill": 7.2, "longest decode": 0.3}
    run = {
        "error": None,
        "phases": {start_time.WARM_UP: 30.0, "engine made": 1.0},
        "warm_up_steps": steps,
        "compiling_s": 15.5,
        "seconds": 31.0,
    }
    assert start_time.residual_s(run) == 7.0
    stock = {**run, "phases": {"engine made": 1.0}, "warm_up_steps": {}, "seconds": 1.0}
    assert start_time.residual_s(stock) is None
    pair = {"number": 1, "order": ["stock", "ullage"], "ullage": run, "stock": stock, "more_s": 30}
    assert "| residual of the warm-up and measuring |  | 7.0 |" in start_time.table([pair])


def row(median_s: float, *, grown: bool, speed: float, page: int | None = None) -> dict[str, Any]:
    return {
        "layers": commit_speed.LAYERS,
        "huge_page_bytes": page,
        "grown": grown,
        "speed": speed,
        "commit_s": {"median": median_s},
    }


def test_the_commit_speed_goal_is_about_what_the_product_does() -> None:
    one_call = {**row(0.1, grown=False, speed=1.0), "layers": 1}
    good = [one_call, row(0.11, grown=False, speed=0.9), row(0.111, grown=True, speed=0.89)]
    assert commit_speed.verdicts(good) == {"fast_enough": True, "grows_no_slower": True}
    slow = [one_call, row(0.13, grown=False, speed=0.77), row(0.2, grown=True, speed=0.5)]
    assert commit_speed.verdicts(slow) == {"fast_enough": False, "grows_no_slower": False}


def test_a_cache_that_grows_keeps_its_address_and_every_byte() -> None:
    """For real, with 8 MiB: what would move raises."""
    for variant in commit_speed.variants(None):
        commit_s, read_s = commit_speed.run_once(variant, 8 * MIB)
        assert commit_s > 0
        assert read_s > 0

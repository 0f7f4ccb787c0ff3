"""What a start tells of itself, and that telling it never ends a start."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.memory import PAGE, FakeMemory
from fakes.ranks import on_ranks
from fakes.receipt import full_receipt
from ullage.accounting.snapshot import Snapshot
from ullage.errors import DoesNotFit, Unreadable
from ullage.kv.cache import KVCache
from ullage.kv.size import Layout, Segment
from ullage.vllm_plugin import settings
from ullage.vllm_plugin.ranks import Ranks
from ullage.vllm_plugin.recorder import Recorder

LAYOUT = Layout(
    size_bytes=64,
    capacity_blocks=4,
    segments=(Segment(offset_bytes=0, stride_bytes=16),),
    granularity_bytes=PAGE,
)
TAKEN: Any = full_receipt().final
DECISION: Any = SimpleNamespace(ledger=full_receipt().ledger, budget=full_receipt().budget)
STEPS = st.lists(st.tuples(st.text(max_size=5), st.integers(0, 1000)), max_size=10)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ULLAGE_RECEIPTS", str(tmp_path / "receipts"))
    return tmp_path / "receipts"


def recorder(
    warnings: list[str] | None = None, model: str | None = "org/model", **how: Any
) -> Recorder:
    environment = {"ULLAGE_EXPLAIN": "1"} if how.pop("explain", False) else {}
    return Recorder(
        model=model,
        settings=settings.read(environment),
        warn=([] if warnings is None else warnings).append,
        **how,
    )


def written(state: Path) -> dict[str, Any]:
    (path,) = state.glob("*.json")
    return dict(json.loads(path.read_text()))


def config() -> Any:
    """What of a VllmConfig is read, beside what must not be."""
    return SimpleNamespace(
        model_config=SimpleNamespace(
            dtype="torch.float32",
            quantization=None,
            max_model_len=2048,
            enforce_eager=True,
            hf_overrides={"hf_token": "secret"},
        ),
        cache_config=SimpleNamespace(
            block_size=None,
            cache_dtype="auto",
            gpu_memory_utilization=0.5,
            enable_prefix_caching=True,
        ),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=512, max_num_seqs=8),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
        load_config=SimpleNamespace(load_format="auto", download_dir="/home/me/secret"),
        api_key="secret",
    )


@given(steps=STEPS)
def test_phases_leave_no_gap(tmp_path_factory: pytest.TempPathFactory, steps: list[Any]):
    state = tmp_path_factory.mktemp("state")
    now = [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ULLAGE_RECEIPTS", str(state))
        start = recorder(clock=lambda: now[0])
        for name, elapsed in steps:
            now[0] += elapsed
            start.lap(name)
        start.finish("started")
    told = [(each["name"], each["elapsed_s"]) for each in written(state)["phases"]]
    assert told == [(name, float(elapsed)) for name, elapsed in steps]
    assert sum(elapsed for _, elapsed in told) == now[0]


def test_a_refusal_is_written_with_its_sentence_and_goes_on(state: Path):
    start = recorder()
    start.lap("load")
    with pytest.raises(DoesNotFit), start.refusals():
        raise DoesNotFit("It is so. Do this.")
    phases = [phase["name"] for phase in written(state)["phases"]]
    assert phases == ["load", "until it was refused"]
    assert written(state)["outcome"] == {"kind": "refused", "reason": "It is so. Do this."}


def test_a_start_that_ends_by_an_error_that_is_not_ours_or_is_killed_has_begun(state: Path):
    start = recorder()
    start.baseline(lambda: TAKEN)
    with pytest.raises(ZeroDivisionError), start.refusals():
        raise ZeroDivisionError
    assert written(state)["outcome"] == {"kind": "begun", "reason": None}
    assert written(state)["baseline"]["total_bytes"] == TAKEN.total_bytes


def test_what_has_begun_becomes_what_it_ended_with_in_the_same_file(state: Path):
    start = recorder()
    start.baseline(lambda: TAKEN)
    start.finish("stock", "It is so. Do this.")
    assert written(state)["outcome"]["kind"] == "stock"


def test_a_start_whose_model_is_not_known_has_none(state: Path):
    recorder(model=None).finish("stock", "It is so. Do this.")
    assert written(state)["model"] is None


def test_sized_becomes_started_in_the_same_file(state: Path):
    start = recorder()
    start.finish("sized")
    assert written(state)["outcome"]["kind"] == "sized"
    group = SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=128))
    cache = KVCache(FakeMemory(), LAYOUT)
    cache.commit(2)
    start.committed([group], cache)
    start.finish("started")
    assert written(state)["outcome"]["kind"] == "started"
    assert written(state)["cache"] == {
        "blocks": 2,
        "tokens": 256,
        "block_bytes": 16,
        "physical_bytes": 32,
    }


def test_of_several_ranks_steps_peaks_and_the_cache_are_all_ranks(state: Path):
    def start(ranks: Ranks) -> None:
        cache = KVCache(FakeMemory(), LAYOUT)
        cache.commit(2)
        own = recorder(rank=ranks.rank)
        own.sized(taken=TAKEN, decision=DECISION, warmed=[warmed(1.0), warmed(2.0)])
        own.committed([], cache, ranks)
        own.finish("started")

    on_ranks(2, start)
    receipt = written(state)
    assert receipt["transient_bytes"] == 14
    assert receipt["steps"] == [
        {"name": "decode", "peak_rss_bytes": 20, "kept_rss_bytes": 6, "elapsed_s": 2.0}
    ]
    assert receipt["cache"]["block_bytes"] == 32
    assert receipt["cache"]["physical_bytes"] == 64
    assert receipt["cache"]["blocks"] == 2


def warmed(elapsed_s: float) -> Any:
    step = SimpleNamespace(name="decode", peak_rss_bytes=10, kept_rss_bytes=3, elapsed_s=elapsed_s)
    return SimpleNamespace(transient_bytes=7, steps=(step,))


def test_layers_that_keep_different_parts_of_a_request_have_no_one_number_of_tokens(state: Path):
    group = SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=128))
    start = recorder()
    start.committed([group, group], KVCache(FakeMemory(), LAYOUT))
    start.finish("started")
    assert written(state)["cache"]["tokens"] is None


def test_of_several_ranks_the_first_one_tells_for_all(state: Path):
    for rank in (1, 0):
        recorder(model=f"of rank {rank}", rank=rank).finish("started")
    assert written(state)["model"] == "of rank 0"


def test_the_flags_are_those_of_the_list_and_nothing_else(state: Path):
    start = recorder()
    start.flags(config())
    start.finish("started")
    receipt = written(state)
    assert receipt["flags"]["max_num_batched_tokens"] == 512
    assert receipt["flags"]["dtype"] == "float32"
    assert "secret" not in json.dumps(receipt)


def test_switched_off_nothing_is_written(state: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ULLAGE_RECEIPTS", "0")
    recorder().finish("started")
    assert not state.exists()


def test_a_receipt_that_cannot_be_written_is_one_warning(state: Path):
    state.write_text("a file where the folder should be")
    warnings: list[str] = []
    recorder(warnings).finish("started")
    (warning,) = warnings
    assert warning.startswith(f"The receipt of this start cannot be written to {state}: ")
    assert warning.endswith("Set ULLAGE_RECEIPTS to a folder that can be written, or to 0.")


def test_a_host_that_cannot_be_read_leaves_the_baseline_open(state: Path):
    def refused() -> Snapshot:
        raise Unreadable("It cannot. Do this.")

    start = recorder()
    start.baseline(refused)
    start.finish("started")
    assert written(state)["baseline"] is None


def test_a_model_whose_name_is_no_text_is_told_with_escapes(state: Path):
    recorder(model="/models/\udcff").finish("started")
    assert written(state)["model"] == "/models/\\udcff"


@pytest.mark.parametrize(
    ("model", "kept"),
    [
        ("https://me:hf?SECRET@host/m", "https://host/m"),
        ("s3://bucket/m?token=hf_SECRET#hf_SECRET", "s3://bucket/m"),
        ("org/model", "org/model"),
        ("/models/a@b?c", "/models/a@b?c"),
    ],
)
def test_an_address_keeps_no_user_and_no_query(state: Path, model: str, kept: str):
    recorder(model=model).finish("stock", f"It is '{model}'. Do this.")
    assert written(state)["model"] == kept
    assert written(state)["outcome"]["reason"] == f"It is '{kept}'. Do this."


def test_a_reason_has_at_most_so_many_characters(state: Path):
    recorder().finish("refused", "x" * 100_000)
    assert len(written(state)["outcome"]["reason"]) < 2100


def test_a_stderr_that_nobody_reads_ends_no_start_and_the_receipt_is_written(
    state: Path, monkeypatch: pytest.MonkeyPatch
):
    reading, writing = os.pipe()
    os.close(reading)
    write = os.write
    monkeypatch.setattr(os, "write", lambda _, text: write(writing, text))
    recorder(explain=True).finish("started")
    os.close(writing)
    assert written(state)["outcome"]["kind"] == "started"


def test_explaining_prints_the_receipt_once_to_stderr_and_not_while_it_is_only_sized(
    state: Path, capfd: pytest.CaptureFixture[str]
):
    start = recorder(explain=True)
    start.baseline(lambda: TAKEN)
    start.finish("sized")
    assert capfd.readouterr() == ("", "")
    start.finish("started")
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.count("outcome     started") == 1
    assert state.exists()


def test_without_explaining_nothing_is_printed(state: Path, capfd: pytest.CaptureFixture[str]):
    recorder().finish("started")
    assert capfd.readouterr() == ("", "")
    assert state.exists()

"""Whole starts in a real memory group, with a small program in the engine's place.

It answers /health, names its KV cache in its log, and takes as much memory as its flags say.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from ullage.compare import load as load_module
from ullage.compare import server as server_module
from ullage.compare.checkpoint import Checkpoint
from ullage.compare.container import check_enforced
from ullage.compare.load import Load
from ullage.compare.server import ServerSettings
from ullage.compare.starts import STOCK, ULLAGE, SidePlan, Trial, run_start, run_starts, tuned
from ullage.compare.tune import EXPLICIT, lasting, search
from ullage.drivers.cgroups import memory_levels
from ullage.errors import NotEnforced
from ullage.units import MIB

LIMIT_BYTES = 256 * MIB
ROOM_BYTES = 200 * MIB  # what the program can certainly take of it

PROGRAM = """
    import http.server, json, os, sys, tempfile

    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

    def after(flag):
        return sys.argv[sys.argv.index(flag) + 1] if flag in sys.argv else None

    if sys.argv[1] == "bench":
        result = {"output_throughput": 5.0, "median_ttft_ms": 1.0, "median_tpot_ms": 2.0}
        result["completed"] = int(after("--num-prompts"))
        open(after("--result-filename"), "w").write(json.dumps(result))
    else:
        size = int(after("--kv-cache-memory-bytes") or 0)
        tempfile.mkdtemp(prefix="vllm_dist_")
        print("its receipt goes to", os.environ.get("ULLAGE_RECEIPTS", "no folder"))
        cache = bytearray(b"x") * size
        tokens = (size >> 20) + (1000 if os.environ.get("ULLAGE") else 0)
        print(f"CPU KV cache size: {tokens:,} tokens", flush=True)
        if os.environ.get("ULLAGE") and "--unloaded" not in sys.argv:
            print("INFO ullage committed 1000 blocks, 1.00 GiB", flush=True)
        if "--refuse" in sys.argv:
            raise ValueError("there is no room")
        address = ("127.0.0.1", int(after("--port")))
        http.server.HTTPServer(address, Health).serve_forever()
"""


@pytest.fixture(autouse=True)
def _engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        check_enforced(LIMIT_BYTES)
    except NotEnforced as error:
        pytest.skip(str(error))
    program = tmp_path / "engine.py"
    program.write_text(textwrap.dedent(PROGRAM))

    def command(words: Sequence[str]) -> list[str]:
        return [sys.executable, str(program), *words]

    monkeypatch.setattr(server_module, "engine_command", command)
    monkeypatch.setattr(load_module, "engine_command", command)
    monkeypatch.setattr("ullage.compare.starts.prepare", lambda state, model: 5)


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(
        limit_bytes=LIMIT_BYTES,
        files="cold",
        settings=ServerSettings(
            model=tmp_path,
            dtype="float32",
            compiled=False,
            max_model_len=64,
            max_num_batched_tokens=64,
            max_num_seqs=4,
            cpus="0-0",
            port=None,
            extra=(),
        ),
        load=Load(input_tokens=8, output_tokens=8, concurrency=4, prompts=6),
        checkpoint=Checkpoint(path=tmp_path, weights_bytes=0, kv_token_bytes=MIB),
        output=tmp_path / "out",
    )


def quiet(text: str) -> None:
    """Progress that nobody reads."""


def left_behind() -> list[Path]:
    groups = [Path(level.directory) for level in memory_levels()]
    return [path for group in groups for path in group.glob(f"ullage-{os.getpid()}-*")]


def test_a_start_is_measured_from_log_client_and_group(trial: Trial) -> None:
    side = tuned(EXPLICIT.flags(128 * MIB))
    start = run_start(trial, side, trial.output / "one", quiet)
    assert start.served
    assert (start.kv_tokens, start.kv_bytes) == (128, 128 * MIB)
    assert (start.completed, start.failed, start.output_tok_s) == (6, 0, 5.0)
    assert start.peak_unreclaimable_bytes is not None
    assert 128 * MIB < start.peak_unreclaimable_bytes < LIMIT_BYTES
    assert start.samples_per_s is not None
    assert start.warm_file_bytes == 5
    assert (trial.output / "one" / "server.log").is_file()
    assert left_behind() == []


def test_a_start_s_receipt_is_kept_beside_its_log_and_not_in_the_user_s_folder(
    trial: Trial,
) -> None:
    directory = trial.output / "one"
    run_start(trial, ULLAGE, directory, quiet)
    log = (directory / "server.log").read_text()
    assert f"its receipt goes to {directory / 'receipts'}\n" in log


def test_sides_take_turns_and_only_ullage_is_switched_on(trial: Trial) -> None:
    said: list[str] = []
    *_, sides = run_starts(trial, [STOCK, ULLAGE], 2, said.append)
    titles = list(dict.fromkeys(text.partition(": ")[0] for text in said))
    assert titles == [
        "stock, default, start 1 of 2",
        "ullage, default, start 1 of 2",
        "stock, default, start 2 of 2",
        "ullage, default, start 2 of 2",
    ]
    assert sides["stock"].values("kv_tokens") == [0, 0]
    assert sides["ullage"].values("kv_tokens") == [1000, 1000]


def test_an_ullage_that_was_not_loaded_has_not_served(trial: Trial) -> None:
    side = dataclasses.replace(ULLAGE, flags=("--unloaded",))
    start = run_start(trial, side, trial.output / "one", quiet)
    assert start.started
    assert not start.served
    assert start.error is not None
    assert start.error.startswith("ullage's plugin was not loaded")
    assert left_behind() == []


def test_a_refused_start_tells_why_and_leaves_nothing(trial: Trial) -> None:
    side = SidePlan(name="stock", label="stock", flags=("--refuse",))
    start = run_start(trial, side, trial.output / "one", quiet)
    assert (start.started, start.error) == (False, "ValueError: there is no room")
    assert start.oom_kills == 0
    assert left_behind() == []


def test_a_start_over_the_limit_is_told_with_the_limit(trial: Trial) -> None:
    side = tuned(EXPLICIT.flags(2 * LIMIT_BYTES))
    start = run_start(trial, side, trial.output / "one", quiet)
    assert not start.started
    assert start.oom_kills == 1
    assert start.error == "1 process(es) killed by the kernel at the limit of 0.25 GiB"


def test_no_temporary_file_of_the_engine_stays(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "tmp"
    own.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(own))
    run_start(trial, STOCK, trial.output / "one", quiet)
    assert list(own.iterdir()) == []


def test_the_search_finds_the_room_that_the_limit_leaves(trial: Trial) -> None:
    numbers = iter(range(20))

    def start(flags: tuple[str, ...]):  # type: ignore[no-untyped-def]
        return run_start(trial, tuned(flags), trial.output / str(next(numbers)), quiet)

    best, _ = lasting(search(EXPLICIT, LIMIT_BYTES, start), lambda flags, _: start(flags))
    assert best is not None
    assert ROOM_BYTES - 64 * MIB < int(best[1]) < LIMIT_BYTES

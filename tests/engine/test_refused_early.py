"""A model that cannot fit ends the start with a sentence, in a group whose kernel would kill."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from engines import TINY, environment, tiny_model

from fakes.checkpoint import write_hollow
from ullage.compare.container import container
from ullage.compare.counters import Sampler
from ullage.errors import NotEnforced
from ullage.units import GIB

pytestmark = [pytest.mark.timeout(600)]
pytest.importorskip("vllm", reason="needs vLLM")

LIMIT_BYTES = 2 * GIB


@dataclass(frozen=True)
class Ended:
    code: int
    stderr: str
    oom_kills: int | None
    receipts: list[dict[str, object]]


def hollow_model(directory: Path, weights_bytes: int) -> Path:
    """A model in bfloat16 whose tensors are holes: it takes no room on the disk."""
    wide = weights_bytes // (2 * TINY.layers * 3 * TINY.hidden)  # three matrices, two bytes each
    shape = replace(TINY, dtype="bfloat16", intermediate=wide)
    directory.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model() / name, directory)
    (directory / "config.json").write_text(json.dumps(shape.config()))
    shapes = {name: each for shard in shape.shards() for name, each in shard.items()}
    write_hollow(directory / "model.safetensors", shapes)
    return directory


def serve(scratch: Path, model: Path, *flags: str) -> Ended:
    receipts = scratch / "receipts"
    command = [sys.executable, "-m", "ullage", "serve", str(model), "--port", "0", *flags]
    try:
        with container(LIMIT_BYTES) as inside, Sampler(inside.group) as sampler:
            process = subprocess.run(
                inside.command(command),
                env=environment(
                    TMPDIR=str(scratch), XDG_RUNTIME_DIR=str(scratch), ULLAGE_RECEIPTS=str(receipts)
                ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            counters = sampler.counters()
    except NotEnforced as error:
        pytest.skip(str(error))
    return Ended(
        code=process.returncode,
        stderr=process.stdout,
        oom_kills=counters.oom_kills,
        receipts=[json.loads(path.read_text()) for path in sorted(receipts.glob("*.json"))],
    )


def test_weights_larger_than_the_limit_are_refused_before_the_engine_starts(tmp_path: Path):
    ended = serve(tmp_path, hollow_model(tmp_path / "model", 4 * GIB))
    assert (ended.code, ended.oom_kills) == (1, 0), ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"ullage: The weights of '{tmp_path}/model' take at least 4.00 GiB, and")
    assert "Raise the memory limit to 5." in line
    (receipt,) = ended.receipts
    assert receipt["outcome"] == {"kind": "refused", "reason": line.removeprefix("ullage: ")}


def test_weights_larger_than_what_the_engine_leaves_are_refused_before_they_are_read(
    tmp_path: Path,
):
    """1.5 GiB of weights in 2 GiB: the limit would hold them, and not three processes beside."""
    flags = ["--enforce-eager", "--max-model-len", "1024", "--dtype", "bfloat16"]
    ended = serve(tmp_path, hollow_model(tmp_path / "model", 3 * GIB // 2), *flags)
    assert (ended.code, ended.oom_kills) == (1, 0), ended.stderr[-6000:]
    assert "ullage.errors.DoesNotFit: The weights take 1.50 GiB, the KV cache" in ended.stderr
    assert "Loading safetensors" not in ended.stderr
    (receipt,) = ended.receipts
    assert receipt["outcome"]["kind"] == "refused"
    assert receipt["flags"]["max_model_len"] == 1024
    assert receipt["baseline"]["total_bytes"] == LIMIT_BYTES
    assert [phase["name"] for phase in receipt["phases"]] == [
        "device and ranks",
        "until it was refused",
    ]

"""The load: `vllm bench serve` as the client, outside the container."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ullage.compare.server import HOST, SERVED_NAME, engine_command, stop

CLIENT_WITHIN_S: Final = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Random prompts, all at once, with at most `concurrency` in flight."""

    input_tokens: int
    output_tokens: int
    concurrency: int
    prompts: int

    @property
    def sequence_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def command(self, model: Path, port: int, result: Path) -> list[str]:
        """The argument list of the client; greedy, so that all sides do the same work."""
        return engine_command([
            "bench", "serve",
            "--backend", "openai",
            "--endpoint", "/v1/completions",
            "--host", HOST,
            "--port", str(port),
            "--model", SERVED_NAME,
            "--tokenizer", str(model),
            "--dataset-name", "random",
            "--random-input-len", str(self.input_tokens),
            "--random-output-len", str(self.output_tokens),
            "--ignore-eos",
            "--temperature", "0",
            # The client sends one request first, and repeats it this long to an engine that died.
            "--ready-check-timeout-sec", "60",
            "--request-rate", "inf",
            "--seed", "0",
            "--max-concurrency", str(self.concurrency),
            "--num-prompts", str(self.prompts),
            "--save-result",
            "--result-filename", str(result),
        ])  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadResult:
    """What the client measured.  Rates and times are None where it finished nothing."""

    output_tok_s: float | None
    ttft_ms_median: float | None
    tpot_ms_median: float | None
    completed: int
    failed: int


def apply_load(
    load: Load, model: Path, port: int, env: Mapping[str, str], directory: Path
) -> LoadResult:
    """Run the client against a ready server and keep its result and log in `directory`."""
    result = directory / "load.json"
    with (directory / "load.log").open("wb") as output, contextlib.ExitStack() as undo:
        client = subprocess.Popen(
            load.command(model, port, result),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
            start_new_session=True,
        )
        undo.callback(stop, client)
        with contextlib.suppress(subprocess.TimeoutExpired):
            client.wait(CLIENT_WITHIN_S)
    return read_result(result, load.prompts)


def read_result(result: Path, prompts: int) -> LoadResult:
    """Parse the client's result file; without one, every request counts as failed."""
    if not result.is_file():
        return LoadResult(
            output_tok_s=None, ttft_ms_median=None, tpot_ms_median=None, completed=0, failed=prompts
        )
    document = json.loads(result.read_text())
    completed = document["completed"]
    return LoadResult(
        output_tok_s=document["output_throughput"] if completed else None,
        ttft_ms_median=document["median_ttft_ms"] if completed else None,
        tpot_ms_median=document["median_tpot_ms"] if completed else None,
        completed=completed,
        failed=prompts - completed,
    )

"""The load: `vllm bench serve` as the client, outside the container."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ullage.compare.engine import engine_command
from ullage.compare.server import HOST, SERVED_NAME, stop
from ullage.report.comparison import Start

CLIENT_WITHIN_S: Final = 3600.0
_CLIENT: Final = "the client "  # begins an error that is the client's


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
    """What the client measured.  Rates and times are None where it finished nothing.

    `error` is how the client itself failed; None where it came to its end.
    """

    output_tok_s: float | None
    ttft_ms_median: float | None
    tpot_ms_median: float | None
    completed: int
    failed: int
    error: str | None = None


def apply_load(
    load: Load, model: Path, port: int, env: Mapping[str, str], directory: Path
) -> LoadResult:
    """Run the client against a ready server and keep its result and log in `directory`."""
    result, log = directory / "load.json", directory / "load.log"
    with log.open("wb") as output, contextlib.ExitStack() as undo:
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
        code = client.poll()
    measured = read_result(result, load.prompts)
    return dataclasses.replace(measured, error=_client_error(code, log, measured.error))


def _client_error(code: int | None, log: Path, unread: str | None) -> str | None:
    """How the client failed, with the last line of its log."""
    if code == 0:
        return unread
    ended = f"ended with exit code {code}" if code is not None else "did not end within an hour"
    said = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"{_CLIENT}{ended}: {said[-1]}" if said else f"{_CLIENT}{ended} and said nothing"


def failed_in_client(start: Start) -> bool:
    """Did a start not serve although the engine lived and nothing was killed?

    That says nothing about the memory that the engine had.
    """
    if not start.started or start.served or start.oom_kills:
        return False
    return start.error is None or start.error.startswith(_CLIENT)


def read_result(result: Path, prompts: int) -> LoadResult:
    """Parse the client's result file; without a whole one, every request counts as failed."""
    try:
        return _parsed(json.loads(result.read_text()), prompts)
    except (OSError, ValueError, KeyError, TypeError):
        return LoadResult(
            output_tok_s=None,
            ttft_ms_median=None,
            tpot_ms_median=None,
            completed=0,
            failed=prompts,
            error=f"{_CLIENT}left no whole result in {result.name}",
        )


def _parsed(document: Mapping[str, Any], prompts: int) -> LoadResult:
    completed = int(document["completed"])
    return LoadResult(
        output_tok_s=document["output_throughput"] if completed else None,
        ttft_ms_median=document["median_ttft_ms"] if completed else None,
        tpot_ms_median=document["median_tpot_ms"] if completed else None,
        completed=completed,
        failed=prompts - completed,
    )

"""Programs with vLLM in them, run with a clean environment, and a model that is quick."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ullage.compare.model import Shape, cached_model
from ullage.devices import host

ENGINE_WITHIN_S = 400
HERE = Path(__file__).parent
SHARED_MEMORY = Path("/dev/shm")
OUR_WORKER = "ullage.vllm_plugin.cpu_worker.UllageCPUWorker"
STOCK_WORKER = "vllm.v1.worker.cpu_worker.CPUWorker"
TINY = Shape(
    dtype="float32",
    layers=2,
    hidden=256,
    intermediate=512,
    heads=4,
    kv_heads=2,
    head_dim=64,
    vocabulary=1024,
)


@functools.cache
def tiny_model() -> Path:
    return cached_model(TINY, lambda _written_bytes: None)


def environment(**added: str) -> dict[str, str]:
    """This process's environment without its own switches, all cores bound, and nothing online."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("ULLAGE")}
    cores = sorted(os.sched_getaffinity(0))
    return {
        **clean,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "ULLAGE_RECEIPTS": "0",  # none in the user's own folder
        "VLLM_CPU_OMP_THREADS_BIND": f"{cores[0]}-{cores[-1]}",
        **added,
    }


def each_rank_a_core() -> dict[str, str]:
    """vLLM's own binding wants a NUMA node for each rank."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    return {"VLLM_CPU_OMP_THREADS_BIND": f"{first}|{second}"}


def limit_bytes() -> int:
    """Which a fraction or a share is one of."""
    return min(reading.total_bytes or 1 << 62 for reading in host.read())


@contextlib.contextmanager
def shared_memory_of_its_own() -> Iterator[None]:
    """vLLM leaves its ranks' segments behind, also at an orderly end.  What was there before, and
    what a living process maps, is somebody else's."""
    before = set(SHARED_MEMORY.iterdir())
    try:
        yield
    finally:
        mapped = "".join(_maps(path) for path in Path("/proc").glob("[0-9]*/maps"))
        for path in set(SHARED_MEMORY.iterdir()) - before:
            if str(path) not in mapped:
                path.unlink(missing_ok=True)


def _maps(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""


@functools.cache
def run(
    program: str,
    *arguments: str,
    python: str = sys.executable,
    model: Path | None = None,
    **added: str,
) -> Any:
    """What `program` of this folder wrote as its result, with its output as "log".  Cached.

    `model` None: the tiny one.  No process of the program is left behind.
    """
    with tempfile.TemporaryDirectory() as scratch, shared_memory_of_its_own():
        result = Path(scratch) / "result.json"
        process = subprocess.Popen(
            [python, str(HERE / program), str(model or tiny_model()), str(result), *arguments],
            env=environment(XDG_RUNTIME_DIR=scratch, **added),  # nobody else's leases
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            log, _ = process.communicate(timeout=ENGINE_WITHIN_S)
        finally:
            # The engine's own processes too, whatever ended the wait.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0, log[-100_000:]
        return {**json.loads(result.read_text()), "log": log}

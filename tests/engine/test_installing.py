"""The wheel in an environment that has vLLM already: what it brings, changes, and leaves behind."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from engines import HERE, OUR_WORKER, STOCK_WORKER, run

pytestmark = [pytest.mark.timeout(600)]
pytest.importorskip("vllm", reason="needs vLLM")

ROOT = HERE.parents[1]


class Environment:
    """A virtual environment that sees every package of this one, except ullage."""

    def __init__(self, directory: Path) -> None:
        others = directory / "others"
        others.mkdir()
        for entry in Path(sysconfig.get_path("purelib")).iterdir():
            if "ullage" not in entry.name and entry.suffix != ".pth":
                (others / entry.name).symlink_to(entry)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory / "v"], check=True)
        self.python = str(directory / "v" / "bin" / "python")
        (self.packages,) = (directory / "v" / "lib").glob("python*/site-packages")
        (self.packages / "others.pth").write_text(f"{others}\n")

    def pip(self, *arguments: str) -> None:
        quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
        command = [sys.executable, "-m", "pip", *quiet, "--python", self.python, *arguments]
        subprocess.run(command, check=True)

    def files(self) -> set[str]:
        """Below the whole environment; compiled modules come with running, not with installing."""
        top = Path(self.python).parents[1]
        found = (path for path in top.rglob("*") if path.is_file() or path.is_symlink())
        return {str(path.relative_to(top)) for path in found if "__pycache__" not in path.parts}

    def worker(self, **switches: str) -> str:
        answer: str = run("choose.py", "plain", python=self.python, **switches)["plain"]["worker"]
        return answer


def test_installing_changes_nothing_until_switched_on_and_uninstalling_leaves_stock(tmp_path: Path):
    environment = Environment(tmp_path)
    before = environment.files()
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")

    # Without an index: a dependency that the engine's environment lacks could not be had.
    environment.pip("install", "--no-index", str(wheel))
    site = str(environment.packages.relative_to(Path(environment.python).parents[1]))
    for name in environment.files() - before:
        assert name == "bin/ullage" or name.startswith((f"{site}/ullage/", f"{site}/ullage-")), name
    assert before <= environment.files()
    assert environment.worker() == STOCK_WORKER
    assert environment.worker(ULLAGE="1", ULLAGE_STRICT="1") == OUR_WORKER

    environment.pip("uninstall", "--yes", "ullage")
    assert environment.files() == before
    run.cache_clear()
    assert environment.worker(ULLAGE="1", ULLAGE_STRICT="1") == STOCK_WORKER

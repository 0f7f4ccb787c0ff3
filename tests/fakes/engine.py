"""Commands in processes of their own, and an engine that only says how it was started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ullage


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ullage", *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "80", "ULLAGE_RECEIPTS": "0", **environment},
    )


class FakeEngine:
    """A package named vllm whose entry points print what they were started with."""

    ENTRY = "import os, sys\nprint(__spec__.name, *sys.argv[1:], os.environ['ULLAGE'], sep='|')\n"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("vllm.entrypoints.cli.main", "vllm.entrypoints.openai.api_server"):
            path = folder / (name.replace(".", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.ENTRY)
        for package in {p.parent for p in folder.rglob("*.py")} | {folder / "vllm/entrypoints"}:
            (package / "__init__.py").write_text("")
        (folder / "vllm" / "__init__.py").write_text("")

    def add_distribution(self) -> None:
        metadata = self.folder / "vllm-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 1.0\n")

    def add_plugin(self) -> None:
        metadata = self.folder / "other-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
        group = "[vllm.general_plugins]\nullage = ullage.vllm_plugin:register\n"
        (metadata / "entry_points.txt").write_text(group)

    def serve(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        paths = [str(self.folder), str(Path(ullage.__file__).parents[1])]
        return run("serve", *arguments, PYTHONPATH=os.pathsep.join(paths), **environment)

"""What a script measured, as JSON and Markdown: machine, versions, commit, every run, the spread.

A script writes anew after each run, so that one that is stopped leaves what it had.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from ullage.compare import machine
from ullage.compare.result import write_whole

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "benchmarks" / "results"


CHANGED: Final = ", with changes in src"


def commit() -> str:
    """The commit that is checked out, with a mark where the product's files differ from it."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.check_output([*git, "rev-parse", "--short=12", "HEAD"], text=True).strip()
    changes = subprocess.check_output([*git, "status", "--porcelain", "--", "src"], text=True)
    return head + CHANGED if changes.strip() else head


def both(start: str, end: str) -> str:
    """What was measured, where it was the same all along; else both, with a mark."""
    return start if start == end else f"{start} at the start, {end} at the end"


def command_line() -> str:
    """How this script was called."""
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """None where no value is known."""

    median: float | None
    min: float | None
    max: float | None
    count: int

    def text(self, digits: int = 2, unit: str = "") -> str:
        if self.median is None or self.min is None or self.max is None:
            return "not measured"
        low, high = f"{self.min:.{digits}f}", f"{self.max:.{digits}f}"
        return f"{self.median:.{digits}f}{unit} ({low} to {high}, {self.count} runs)"


def spread(values: Sequence[float | None]) -> Spread:
    """Of the known ones."""
    known = [value for value in values if value is not None]
    if not known:
        return Spread(median=None, min=None, max=None, count=0)
    return Spread(median=median(known), min=min(known), max=max(known), count=len(known))


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Where a script's result goes: `directory`/`name`.json and .md.

    `question` is what is asked, `goal` what was hoped for; `begun_at` the commit it began with.
    `version` counts up when the document's keys change.
    """

    name: str
    version: int = 1
    directory: Path
    question: str
    goal: str
    command: str
    where: str
    settings: Mapping[str, Any]
    begun_at: str = dataclasses.field(default_factory=commit)
    load_average_before: float = dataclasses.field(default_factory=lambda: os.getloadavg()[0])

    @property
    def path(self) -> Path:
        return self.directory / f"{self.name}.json"

    def earlier(self) -> tuple[list[Mapping[str, Any]], int]:
        """The runs of a series that was stopped, where its settings and their commit are this
        one's; and how many there are that are not.

        Of two states that are marked as changed nobody can tell whether they are the same.
        """
        try:
            told = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return [], 0
        runs: list[Mapping[str, Any]] = told["runs"]
        comparable = told["settings"] == self.settings and not self.begun_at.endswith(CHANGED)
        same = [run for run in runs if comparable and run.get("commit") == self.begun_at]
        return same, len(runs) - len(same)

    def write(
        self, runs: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], table: str
    ) -> None:
        """Replace document and table by what there is now."""
        told = {
            "schema": f"ullage.benchmark.{self.name}/{self.version}",
            "commit": both(self.begun_at, commit()),
            "command": self.command,
            "machine": dataclasses.asdict(machine.describe(self.where.partition(",")[0])),
            "versions": machine.versions(),
            "load_average_before": self.load_average_before,
            "settings": dict(self.settings),
            "goal": self.goal,
            "summary": dict(summary),
            "runs": [dict(run) for run in runs],
        }
        self.directory.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, json.dumps(told, indent=2) + "\n")
        write_whole(self.directory / f"{self.name}.md", self._page(told, table))

    def _page(self, told: Mapping[str, Any], table: str) -> str:
        place = told["machine"]
        versions = ", ".join(f"{name} {version}" for name, version in told["versions"].items())
        memory_gib = place["memory_bytes"] / (1 << 30)
        return (
            f"# {self.name}\n\n{self.question}\n\n"
            f"Hoped for: {self.goal}\n\n{table}\n\n"
            f"`{self.command}` at {told['commit']}, on {place['cores']} cores of {place['cpu']} "
            f"with {memory_gib:.1f} GiB, Linux {place['kernel']}, {place['cgroup']}; {versions}; "
            f"load average before: {self.load_average_before:.1f}.\n"
        )


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(value: object) -> str:
    return "?" if value is None else str(value).replace("|", "\\|")


def logs_below(directory: Path, name: str) -> Path:
    """A fresh folder for the logs of one call; git ignores those below `results`."""
    return directory.resolve() / "logs" / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"

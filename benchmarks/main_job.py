"""How large a KV cache, and does it serve: stock vLLM and ullage side by side in a container.

The demo model in a memory cgroup, files cold and warm, every start with fresh caches, the sides
interleaved.  Stock appears twice: as it is, and with the best setting that a search over its two
knobs finds and that serves the same load.  One document a scenario, `results/main_job-NAME.json`
(`ullage.compare/1`, with commit and command), and the table beside it in Markdown.

    python benchmarks/main_job.py              all scenarios (about three hours on 2 cores)
    python benchmarks/main_job.py 4GiB-cold    one
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from ullage.compare.files import FileState
from ullage.compare.interrupt import interruptible
from ullage.compare.machine import preferred_dtype
from ullage.compare.model import MAX_POSITIONS, cached_model, demo_shape
from ullage.compare.run import Request, compare
from ullage.report.comparison import Comparison, document
from ullage.report.comparison_table import markdown
from ullage.units import GIB

RESULTS: Final = Path(__file__).resolve().parent / "results"
# At 8 GiB and more a load that fills the pool takes an hour on 2 cores; the size of the pool does
# not depend on the load.
FEW_REQUESTS: Final = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    memory_bytes: int
    files: FileState
    starts: int
    tune_stock: bool
    concurrency: int | None = None
    compiled: bool = False


SCENARIOS: Final = {
    "4GiB-cold": Scenario(memory_bytes=4 * GIB, files="cold", starts=5, tune_stock=True),
    "4GiB-warm": Scenario(memory_bytes=4 * GIB, files="warm", starts=5, tune_stock=True),
    "3GiB-cold": Scenario(memory_bytes=3 * GIB, files="cold", starts=2, tune_stock=False),
    "3GiB-warm": Scenario(memory_bytes=3 * GIB, files="warm", starts=2, tune_stock=False),
    "8GiB-cold": Scenario(
        memory_bytes=8 * GIB, files="cold", starts=1, tune_stock=True, concurrency=FEW_REQUESTS
    ),
    "16GiB-cold": Scenario(
        memory_bytes=16 * GIB, files="cold", starts=1, tune_stock=True, concurrency=FEW_REQUESTS
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenario", nargs="*", choices=[[], *SCENARIOS], metavar="SCENARIO")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    with interruptible():
        for name in options.scenario or SCENARIOS:
            if SCENARIOS[name].memory_bytes > psutil.virtual_memory().total:
                print(f"{name}: this machine has less memory", file=sys.stderr)
                continue
            write(name, run(SCENARIOS[name]), options.output)


def run(scenario: Scenario) -> Comparison:
    shape = demo_shape(preferred_dtype(), small=False)
    began_s = time.monotonic()

    def phase(text: str) -> None:
        print(f"{time.monotonic() - began_s:6.0f} s  {text}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="ullage-bench-") as logs:
        return compare(
            Request(
                model=cached_model(shape, lambda _written_bytes: None),
                model_label="demo model",
                memory_bytes=scenario.memory_bytes,
                unconfined=False,
                starts=scenario.starts,
                files=scenario.files,
                tune_stock=scenario.tune_stock,
                compiled=scenario.compiled,
                output=Path(logs) / "logs",
                dtype=preferred_dtype(),
                max_model_len=MAX_POSITIONS,
                input_tokens=192,
                output_tokens=64,
                concurrency=scenario.concurrency,
                prompts=None,
                port=None,
                extra=(),
            ),
            phase,
        )


def write(name: str, comparison: Comparison, directory: Path) -> None:
    measured: dict[str, Any] = {
        **document(comparison),
        "commit": commit(),
        "command": f"python benchmarks/main_job.py {name}",
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"main_job-{name}.json").write_text(json.dumps(measured, indent=2) + "\n")
    (directory / f"main_job-{name}.md").write_text(markdown(comparison))
    print(markdown(comparison))


def commit() -> str:
    """The commit that was measured, with a mark where the product's files differ from it."""
    git = ["git", "-C", str(RESULTS.parent)]
    head = subprocess.check_output([*git, "rev-parse", "--short=12", "HEAD"], text=True).strip()
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "../src"], check=False)
    return f"{head}, with changes" if changed.returncode else head


if __name__ == "__main__":
    main()

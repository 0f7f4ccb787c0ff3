"""How large a KV cache, and does it serve: stock vLLM and ullage side by side in a container.

The demo model in a memory cgroup, files cold and warm, every start with fresh caches, the sides
interleaved.  Stock appears twice: as it is, and with the best setting that a search over its two
knobs finds and that serves the same load.  One document a scenario, `results/main_job-NAME.json`
(`ullage.compare/1`, with commit, command and where the logs are), and the table beside it in
Markdown.  Both are written anew after each start, so that an interrupt leaves what there was; the
logs of every start stay in `results/logs/`, which git ignores.

    python benchmarks/main_job.py              all scenarios (about three hours on 2 cores)
    python benchmarks/main_job.py 4GiB-cold    one
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from harness.record import RESULTS, both, commit
from ullage.compare.files import FileState
from ullage.compare.interrupt import interruptible
from ullage.compare.machine import preferred_dtype
from ullage.compare.model import cached_model, demo_shape
from ullage.compare.request import demo_request
from ullage.compare.result import write_whole
from ullage.compare.run import compare
from ullage.errors import UllageError
from ullage.report.comparison import Comparison, document
from ullage.report.comparison_table import markdown
from ullage.units import GIB

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
        failed = [
            name for name in options.scenario or SCENARIOS if not measure(name, options.output)
        ]
    sys.exit(1 if failed else 0)


def measure(name: str, directory: Path) -> bool:
    """Run one scenario; False where it did not come to its end, and the next one can still run."""
    scenario = SCENARIOS[name]
    if scenario.memory_bytes > psutil.virtual_memory().total:
        print(f"{name}: this machine has less memory", file=sys.stderr)
        return True
    try:
        run(name, scenario, directory)
    except UllageError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return False
    print((directory / f"main_job-{name}.md").read_text())
    return True


def run(name: str, scenario: Scenario, directory: Path) -> None:
    began_s = time.monotonic()
    shape = demo_shape(preferred_dtype(), small=False)
    logs = directory / "logs" / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    request = demo_request(
        shape,
        cached_model(shape, lambda _written_bytes: None),
        small=False,
        memory_bytes=scenario.memory_bytes,
        output=logs,
    )
    record = Record(name=name, directory=directory, logs=logs, commit=commit())

    def phase(text: str) -> None:
        print(f"{time.monotonic() - began_s:6.0f} s  {text}", file=sys.stderr, flush=True)

    compare(
        dataclasses.replace(
            request,
            starts=scenario.starts,
            files=scenario.files,
            tune_stock=scenario.tune_stock,
            compiled=scenario.compiled,
            concurrency=scenario.concurrency,
        ),
        phase,
        record.write,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Where one scenario's result goes, and the commit that it began with."""

    name: str
    directory: Path
    logs: Path
    commit: str

    def write(self, so_far: Comparison) -> None:
        """Replace the document and the table by what there is now."""
        told = document(so_far)
        told["machine"]["cgroup"] = told["machine"]["cgroup"].partition(",")[0]  # not whose
        measured: dict[str, Any] = {
            **told,
            "commit": both(self.commit, commit()),
            "command": f"python benchmarks/main_job.py {self.name}",
            "logs": str(self.logs.relative_to(self.directory)),
        }
        text = json.dumps(measured, indent=2) + "\n"
        write_whole(self.directory / f"main_job-{self.name}.json", text)
        write_whole(self.directory / f"main_job-{self.name}.md", markdown(so_far))


if __name__ == "__main__":
    main()

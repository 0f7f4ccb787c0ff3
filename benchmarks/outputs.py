"""Are greedy outputs with ullage those of stock vLLM, token for token?

Eager and compiled, prefix caching off and on, each side in a process of its own, requests one at a
time on cold prefix caches; with caching on, each one once more on what the first left.  Compiled
with a model of two layers, because compiling is what takes the time; eager also with the demo
model.  Writes `results/outputs.json`; ends with 1 where an output differs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, Final

from harness.record import RESULTS, ROOT, commit
from ullage.compare import machine
from ullage.compare.model import cached_model, demo_shape

sys.path.insert(0, str(ROOT / "tests" / "engine"))

from engines import run, tiny_model

MODES: Final = {"eager": (), "compiled": ("--compiled",)}
CACHING: Final = {"off": (), "on": ("--prefix-caching",)}
SIDES: Final = {"stock": {}, "ullage": {"ULLAGE": "1", "ULLAGE_STRICT": "1"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    demo = cached_model(demo_shape(machine.preferred_dtype(), small=False), lambda _bytes: None)
    cases = [
        case("two layers", tiny_model(), mode, caching) for mode in MODES for caching in CACHING
    ]
    cases += [case("demo model", demo, "eager", caching) for caching in CACHING]
    result = {
        "schema": "ullage.bench.outputs/1",
        "commit": commit(),
        "command": "python benchmarks/outputs.py",
        "machine": dataclasses.asdict(machine.describe("the caller's own group")),
        "versions": machine.versions(),
        "cases": cases,
    }
    (options.output / "outputs.json").write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(0 if all(one["equal"] for one in cases) else 1)


def case(name: str, model: Path, mode: str, caching: str) -> dict[str, Any]:
    arguments = (*MODES[mode], *CACHING[caching])
    outputs = {
        side: run("generate.py", *arguments, model=model, **added)["outputs"]
        for side, added in SIDES.items()
    }
    answer = {
        "model": name,
        "mode": mode,
        "prefix_caching": caching,
        "requests": len(outputs["stock"]),
        "output_tokens": sum(len(tokens) for tokens in outputs["stock"]),
        "equal": outputs["stock"] == outputs["ullage"],
    }
    print(answer, file=sys.stderr, flush=True)
    return answer


if __name__ == "__main__":
    main()

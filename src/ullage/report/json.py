"""Any result as one JSON document: bytes are ints, unknown is null."""

from __future__ import annotations

from typing import Any

import msgspec


def document(result: object) -> str:
    """`result`, a frozen value, as indented JSON with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(result), indent=2).decode() + "\n"


def json_schema(kind: type) -> dict[str, Any]:
    """The JSON Schema (2020-12) of what `document` makes from a value of `kind`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **msgspec.json.schema(kind),
    }

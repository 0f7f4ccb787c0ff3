"""ullage: the memory an LLM engine can truly take, and what follows from it."""

from __future__ import annotations

__version__ = "0.1.0"

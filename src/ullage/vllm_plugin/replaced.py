"""A name of one of vLLM's modules, for a while another one's."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(module: str, name: str, by: Callable[[Any], Any]) -> Iterator[None]:
    """Inside, `name` of `module` is what `by` makes of stock's; stock's is back at the end."""
    place = importlib.import_module(module)
    stock = getattr(place, name)
    setattr(place, name, by(stock))
    try:
        yield
    finally:
        setattr(place, name, stock)

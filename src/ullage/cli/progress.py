"""Progress on stderr: a live line with the elapsed time in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed
from rich.table import Column

from ullage.units import gib

Phase = Callable[[str], None]


@contextlib.contextmanager
def phases() -> Iterator[Phase]:
    """A function that is told what happens now.  The time shown is that of the whole command."""
    console = Console(stderr=True)
    if not console.is_terminal:
        began = time.monotonic()
        yield lambda text: console.print(
            f"{time.monotonic() - began:6.0f} s  {text}", soft_wrap=True, markup=False
        )
        return
    # Without leave to wrap, a long text takes the place of the columns before it.
    words = Column(no_wrap=False, overflow="fold")
    text = TextColumn("{task.description}", markup=False, table_column=words)
    columns = (SpinnerColumn(), Elapsed(), text)
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda text: progress.update(task, description=text)


@contextlib.contextmanager
def bytes_bar(title: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """A bar that is told how many more bytes are done; nothing is shown until there are any."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _announced(console, f"{title}, {gib(total_bytes)}")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=total_bytes, visible=False)
        yield lambda count: progress.update(task, advance=count, visible=True)


def _announced(console: Console, line: str) -> Callable[[int], None]:
    """Prints `line` when the first bytes are done."""
    lines = iter([line])

    def advance(count: int) -> None:
        for text in lines:
            console.print(text, soft_wrap=True, markup=False)

    return advance

"""A comparison as a table: one column a side, one row a question, for a terminal or Markdown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ullage.report.comparison import SIDE_NAMES, Comparison, Settings, Side, Start
from ullage.units import GIB, MIB, gib

NOT_ASKED: Final = "(with --tune-stock)"
NONE_WORKS: Final = "no setting works"
DASH: Final = "-"
# Of files that should be cold; below, it is the interpreter's own libraries.
WARM_BYTES: Final = 64 * MIB
LABEL_COLUMNS: Final = 18

_LABELS: Final = {
    "stock": "stock, default",
    "stock_tuned": "stock, best by hand",
    "ullage": "ullage, default",
}


def title(settings: Settings) -> str:
    """The conditions, in one line: they are the same for all sides."""
    limit = settings.memory_bytes
    place = "no limit enforced" if limit is None else f"{limit / GIB:g} GiB container"
    conditions = f"{settings.files} files, {settings.mode}, {settings.dtype}"
    return f"{place}, {settings.model}, {conditions}"


def load_line(settings: Settings) -> str:
    """What the client did, in one sentence."""
    return (
        f"Load: {settings.prompts} requests of {settings.input_tokens} + {settings.output_tokens} "
        f"tokens, at most {settings.concurrency} at once."
    )


def rows(comparison: Comparison) -> list[list[str]]:
    """Header and body, as text.  A range over starts is "min to max"; unknown is "-"."""
    limit_bytes = comparison.settings.memory_bytes
    cells: list[tuple[str, Callable[[Side], str]]] = [
        ("started", lambda side: f"{_started(side)} of {len(side.starts)}"),
        ("KV cache, tokens", _range("kv_tokens", "{:,.0f}")),
        ("output tok/s", _range("output_tok_s", "{:.1f}")),
        ("median TTFT, s", _range("ttft_ms_median", "{:.1f}", scale=1e-3)),
        ("median TPOT, ms", _range("tpot_ms_median", "{:.0f}")),
        ("failed requests", _total("failed")),
        ("OOM kills", _total("oom_kills")),
        ("peak unreclaimable memory / limit", lambda side: _peak(side, limit_bytes)),
    ]
    body = [[name, *(_cell(comparison, side, cell) for side in SIDE_NAMES)] for name, cell in cells]
    body[0] = ["started", *(_first(comparison, side, cells[0][1]) for side in SIDE_NAMES)]
    return [[title(comparison.settings), *(_LABELS[side] for side in SIDE_NAMES)], *body]


def _first(comparison: Comparison, name: str, cell: Callable[[Side], str]) -> str:
    side = {str(key): value for key, value in comparison.sides.items()}.get(name)
    if side is None:
        return NOT_ASKED
    return cell(side) if side.starts else NONE_WORKS


def _cell(comparison: Comparison, name: str, cell: Callable[[Side], str]) -> str:
    side = {str(key): value for key, value in comparison.sides.items()}.get(name)
    return cell(side) if side is not None and side.starts else ""


def _started(side: Side) -> int:
    return sum(start.started for start in side.starts)


def _range(field: str, form: str, *, scale: float = 1.0) -> Callable[[Side], str]:
    def cell(side: Side) -> str:
        values = [value * scale for value in side.values(field)]
        texts = [form.format(value) for value in (min(values), max(values))] if values else [DASH]
        return " to ".join(dict.fromkeys(texts))

    return cell


def _total(field: str) -> Callable[[Side], str]:
    def cell(side: Side) -> str:
        values = side.values(field)
        return f"{sum(values):.0f}" if values else DASH

    return cell


def _peak(side: Side, limit_bytes: int | None) -> str:
    peaks = side.values("peak_unreclaimable_bytes")
    if not peaks or limit_bytes is None:
        return DASH
    return f"{max(peaks) / GIB:.2f} / {gib(limit_bytes)}"


def notes(comparison: Comparison) -> list[str]:
    """What the table has no room for: flags, ratio, and why a start failed."""
    lines = [load_line(comparison.settings), *_warm(comparison)]
    tuned = comparison.sides.get("stock_tuned")
    if tuned is not None and tuned.starts:
        lines.append(f"{tuned.label}: {' '.join(tuned.flags)}")
        lines += _ratio(comparison.sides["ullage"], tuned)
    if tuned is not None:
        lines += [f"{tuned.label}: {note}" for note in tuned.notes]
    for side in comparison.sides.values():
        lines += _errors(side)
    return lines


def _ratio(ullage: Side, stock: Side) -> list[str]:
    ours, theirs = _served_tokens(ullage), _served_tokens(stock)
    if not ours or not theirs:
        return []
    return [f"KV cache: ullage has {min(ours) / max(theirs):.2f} times stock's best by hand."]


def _served_tokens(side: Side) -> list[int]:
    """A cache that did not serve the load is none."""
    return [start.kv_tokens for start in side.starts if start.served and start.kv_tokens]


def _warm(comparison: Comparison) -> list[str]:
    """Files that were to be cold and were not: stock then finds more room than on a first start."""
    if comparison.settings.files != "cold":
        return []
    kept = [size for side in comparison.sides.values() for size in side.values("warm_file_bytes")]
    if max(kept, default=0) <= WARM_BYTES:
        return []
    return [
        f"Not all files were cold: up to {gib(int(max(kept)))} of them stayed in memory before a "
        "start, because another process uses them."
    ]


def _errors(side: Side) -> list[str]:
    """Each different error once, with the starts that it ended."""
    met: dict[str, list[int]] = {}
    for number, start in enumerate(side.starts, start=1):
        if start.error is not None:
            met.setdefault(start.error, []).append(number)
    return [
        f"{side.label}, {_which(numbers, side.starts)}: {error}" for error, numbers in met.items()
    ]


def _which(numbers: list[int], starts: tuple[Start, ...]) -> str:
    verb = "refused" if not starts[numbers[0] - 1].started else "did not serve"
    return f"start {', '.join(map(str, numbers))} {verb}"


def print_table(comparison: Comparison, console: Console) -> None:
    """For terminals and pipes, in 60 columns as well.  A pipe gets each sentence as one line."""
    header, *body = rows(comparison)
    in_one_line = not console.is_terminal
    console.print(Text(header[0], style="bold"), soft_wrap=in_one_line)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("", width=LABEL_COLUMNS)
    for label in header[1:]:
        table.add_column(label.replace(", ", ",\n"), justify="right")
    for row in body:
        table.add_row(*row)
    console.print(table)
    for note in notes(comparison):
        console.print(Text(note), soft_wrap=in_one_line)


def markdown(comparison: Comparison) -> str:
    """The table and its notes as GitHub-flavoured Markdown."""
    header, *body = rows(comparison)
    lines = [_row(header), _row(["---"] * len(header)), *(_row(row) for row in body)]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes(comparison))]) + "\n"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

"""Are the files and functions of src/ short enough to be read?  Prints those that are not.

Limits: 300 lines a file, 40 a function, decorators and docstring included.  Exit 1 when one is
over.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
FILE_LINES: Final = 300
FUNCTION_LINES: Final = 40


def offenders(path: Path) -> Iterator[str]:
    """One sentence for each thing in `path` that is too long."""
    text = path.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    if lines > FILE_LINES:
        yield f"{path}: {lines} lines, {FILE_LINES} at most"
    for node in ast.walk(ast.parse(text, filename=str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from long_function(path, node)


def long_function(path: Path, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    # A command's parameters are its options, one or more lines each: there only the body counts.
    counted_from = node.body[0].lineno if path.parent.name == "cli" else first
    lines = (node.end_lineno or node.lineno) - counted_from + 1
    if lines > FUNCTION_LINES:
        yield f"{path}:{first}: {node.name} has {lines} lines, {FUNCTION_LINES} at most"


def main(folders: list[str]) -> int:
    roots = [Path(folder) for folder in folders] or [ROOT / "src"]
    found = [
        line for root in roots for path in sorted(root.rglob("*.py")) for line in offenders(path)
    ]
    print("\n".join(found) if found else "sizes: every file and function is within its limit")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

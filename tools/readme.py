"""Puts the output of `ullage demo` into README.md, between its two marks.

ullage demo > demo.txt && python tools/readme.py demo.txt
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

README: Final = Path(__file__).resolve().parent.parent / "README.md"
BEGIN: Final = "<!-- demo-output -->\n"
END: Final = "<!-- /demo-output -->"


def with_output(text: str, output: str) -> str:
    """`text` with `output` as code between the marks.  Raises ValueError where they are missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{README.name} has no {BEGIN.strip()} ... {END}.")
    block = "".join(f"    {line}".rstrip() + "\n" for line in output.strip("\n").split("\n"))
    return f"{before}{BEGIN}\n{block}\n{END}{after}"


if __name__ == "__main__":
    README.write_text(with_output(README.read_text(), Path(sys.argv[1]).read_text()))

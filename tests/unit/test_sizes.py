"""The size check finds what is too long, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "sizes.py"


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TOOL), str(folder)], capture_output=True, text=True, check=False
    )


def function_of(lines: int) -> str:
    return "def long() -> None:\n" + "    pass\n" * (lines - 1)


def test_a_file_and_a_function_at_their_limits_pass(tmp_path: Path):
    (tmp_path / "function.py").write_text(function_of(40))
    (tmp_path / "file.py").write_text("x = 1\n" * 300)
    result = check(tmp_path)
    assert (result.returncode, result.stdout.count("at most")) == (0, 0)


def test_one_line_more_is_named_with_its_place_and_both_numbers(tmp_path: Path):
    (tmp_path / "function.py").write_text(function_of(41))
    (tmp_path / "file.py").write_text("x = 1\n" * 301)
    result = check(tmp_path)
    assert result.returncode == 1
    assert "function.py:1: long has 41 lines, 40 at most" in result.stdout
    assert "file.py: 301 lines, 300 at most" in result.stdout


def test_a_method_counts_with_its_decorators(tmp_path: Path):
    body = "class C:\n    @property\n    @staticmethod\n" + "".join(
        f"    {line}\n" for line in function_of(39).splitlines()
    )
    (tmp_path / "method.py").write_text(body)
    assert "method.py:2: long has 41 lines" in check(tmp_path).stdout


def test_a_command_s_options_do_not_count(tmp_path: Path):
    options = "".join(f"    option_{n}: int,\n" for n in range(30))
    command = f"def command(\n{options}) -> None:\n" + "    pass\n" * 39
    for folder, code in (("cli", 0), ("kv", 1)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "command.py").write_text(command)
        assert check(tmp_path / folder).returncode == code

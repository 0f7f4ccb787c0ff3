"""The live line of a long command."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ullage.cli import progress


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_long_phase_is_whole_beside_the_elapsed_time(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    terminal = Console(file=out, width=columns, force_terminal=True, color_system=None)
    monkeypatch.setattr(progress, "Console", lambda stderr: terminal)
    phase = "tuning stock with --gpu-memory-utilization 0.4108: works with 2304 KV tokens, 0.18 GiB"
    with progress.phases() as say:
        say(phase)
    shown = out.getvalue()
    assert "0:00:0" in shown
    assert all(word in shown for word in phase.split())
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown

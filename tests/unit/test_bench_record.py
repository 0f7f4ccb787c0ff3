"""What the benchmarks' scripts share to tell what they measured."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import record
from harness.ledger import ledger_lines, size_bytes_of
from harness.leftovers import Places, by_owner, look
from harness.record import Record, markdown_table, spread
from harness.stamps import Event, durations, events
from harness.steps import BEGINNING, reached
from ullage.accounting.ledger import Ledger, Line
from ullage.report.ledger import ledger_text
from ullage.units import MIB


def test_a_spread_leaves_out_what_is_unknown_and_is_unknown_without_a_value() -> None:
    told = spread([3.0, None, 1.0, 2.0])
    assert (told.median, told.min, told.max, told.count) == (2.0, 1.0, 3.0, 3)
    assert told.text(1) == "2.0 (1.0 to 3.0, 3 runs)"
    assert spread([None]).median is None
    assert spread([None]).text() == "not measured"


def test_a_record_keeps_every_run_beside_the_page_and_names_both_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "commit", lambda: "bbb")
    kept = Record(
        name="some",
        directory=tmp_path / "results",
        question="Is it?",
        goal="It is.",
        command="python benchmarks/some.py",
        where="cgroup v1, below group /secret",
        settings={"limit_bytes": 1},
        begun_at="aaa",
    )
    kept.write([{"number": 1}], {"runs": 1}, markdown_table(["a|b"], [[None]]))
    kept.write([{"number": 1}, {"number": 2}], {"runs": 2}, markdown_table(["a|b"], [[None]]))
    told = json.loads(kept.path.read_text())
    assert told["schema"] == "ullage.benchmark.some/1"
    assert told["commit"] == "aaa at the start, bbb at the end"
    assert [run["number"] for run in told["runs"]] == [1, 2]
    assert told["machine"]["cgroup"] == "cgroup v1"
    page = (tmp_path / "results" / "some.md").read_text()
    assert "| a\\|b |\n| --- |\n| ? |" in page
    assert "Hoped for: It is." in page
    assert sorted(path.name for path in kept.path.parent.iterdir()) == ["some.json", "some.md"]


def test_a_new_file_in_src_marks_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@y"]
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a").touch()
    for words in (["init", "-q"], ["add", "src"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(record, "ROOT", tmp_path)
    assert "," not in record.commit()
    (tmp_path / "src" / "b").touch()
    assert record.commit().endswith(", with changes in src")


def test_the_last_ledger_of_a_log_is_read_line_by_line() -> None:
    ledger = Ledger(
        total_bytes=1024 * MIB,
        lines=(
            Line(
                name="file pages, mapped and in use",
                size_bytes=256 * MIB,
                provenance="estimated",
                source="cgroup1:/",
            ),
            Line(name="kernel memory", size_bytes=64 * MIB, provenance="exact", source="x"),
        ),
    )
    log = [
        "(Worker pid=1) INFO ullage: 7 KV cache blocks fit.",
        "(Worker pid=1) INFO 9.000 GiB  an earlier one  exact",
        "(Worker pid=1) INFO 9.000 GiB  total",
        "(Worker pid=1) INFO ullage: 8 KV cache blocks fit.",
        *(f"(Worker pid=1) INFO {line}" for line in ledger_text(ledger).splitlines()),
        "(Worker pid=1) INFO 5.000 GiB  of something else",
    ]
    lines = ledger_lines(log)
    assert [line.split("  ")[0] for line in lines] == [
        "0.250 GiB",
        "0.062 GiB",
        "0.688 GiB",
        "1.000 GiB",
    ]
    assert size_bytes_of(lines, "file pages, mapped") == 256 * MIB
    assert size_bytes_of(lines, "nothing of the kind") is None
    assert ledger_lines(["no ledger"]) == []


def test_the_phases_of_a_start_add_up_to_the_whole() -> None:
    import re

    ends = (("begun", re.compile("one")), ("middle", re.compile("two")), ("end", re.compile("3")))
    log = ["@1000.250 INFO one", "two without a stamp", "@1001.500 INFO two", "@1004.000 INFO 3"]
    found = events([*log, "@1009.000 INFO two again"], ends)
    assert found[0] == Event(phase="begun", at_s=1000.25)
    assert durations(found) == {"middle": 1.25, "end": 2.5}


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=12, unique=True))
def test_no_time_between_the_first_event_and_the_last_is_lost(milliseconds: list[int]) -> None:
    ordered = sorted(milliseconds)
    found = [Event(phase=str(at), at_s=at / 1000) for at in ordered]
    assert sum(durations(found).values()) == pytest.approx((ordered[-1] - ordered[0]) / 1000)


def test_the_last_step_of_a_log_says_how_far_a_start_came() -> None:
    assert reached([]) == BEGINNING
    assert reached(["INFO Starting to load model /x...", "noise"]) == "loading weights"
    assert reached(["Starting to load model", "ullage commits 7 blocks."]) == "committing"


def test_what_an_engine_leaves_is_found_and_told_apart_from_what_was_there(tmp_path: Path) -> None:
    shm, scratch = tmp_path / "shm", tmp_path / "scratch"
    shm.mkdir()
    scratch.mkdir()
    places = Places.below(scratch, shm)
    (shm / "psm_old").touch()
    before = look(places, [tmp_path])
    (shm / "psm_1234").touch()
    (places.tmp / "vllm_dist_99").touch()
    (places.runtime / "ullage").mkdir()
    (places.runtime / "ullage" / "12-34.json").touch()
    new = look(places, [tmp_path]).beyond(before)
    assert by_owner(new.files) == {
        "stock": ["shm/psm_1234", "tmp/vllm_dist_99"],
        "ullage": ["runtime/ullage/12-34.json"],
    }
    assert not new.groups
    assert not new.mounts

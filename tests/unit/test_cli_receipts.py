"""`ullage receipts`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from fakes.engine import run
from fakes.receipt import BARE, full_receipt
from ullage.receipts import write
from ullage.report.json import document, json_schema
from ullage.report.receipt import ReceiptsReport
from ullage.report.receipt_text import receipt_text

OLDER, NEWER = "20261130T120000Z-0000aa", "20261130T120001Z-0000aa"


@pytest.fixture
def kept(tmp_path: Path) -> str:
    write(tmp_path, replace(full_receipt(), name=NEWER))
    write(tmp_path, replace(BARE, name=OLDER))
    return str(tmp_path)


def test_it_lists_the_newest_first(kept: str):
    result = run("receipts", ULLAGE_RECEIPTS=kept)
    assert (result.returncode, result.stderr) == (0, "")
    heads = [line for line in result.stdout.splitlines() if not line.startswith(" ")]
    assert [head.split(",")[0] for head in heads] == [f"{NEWER}  started", f"{OLDER}  refused"]


def test_its_document_follows_the_schema_and_names_what_cannot_be_read(kept: str):
    (Path(kept) / "20261130T120002Z-0000aa.json").write_text("{")
    result = run("receipts", "--json", ULLAGE_RECEIPTS=kept)
    parsed = json.loads(result.stdout)
    jsonschema.validate(parsed, json_schema(ReceiptsReport))
    assert [each["name"] for each in parsed["receipts"]] == [NEWER, OLDER]
    assert len(parsed["unreadable"]) == 1
    assert result.returncode == 0


@pytest.mark.parametrize("name", ["latest", NEWER])
def test_it_shows_one_by_its_name_or_the_latest(kept: str, name: str):
    receipt = replace(full_receipt(), name=NEWER)
    assert run("receipts", name, ULLAGE_RECEIPTS=kept).stdout == receipt_text(receipt)
    assert run("receipts", name, "--json", ULLAGE_RECEIPTS=kept).stdout == document(receipt)


def test_without_a_receipt_it_says_so(tmp_path: Path):
    folder = str(tmp_path / "absent")
    listed = run("receipts", ULLAGE_RECEIPTS=folder)
    assert (listed.returncode, listed.stdout) == (0, f"There is no receipt in {folder}.\n")
    latest = run("receipts", "latest", ULLAGE_RECEIPTS=folder)
    assert (latest.returncode, latest.stdout) == (2, "")
    assert latest.stderr.endswith("Start an engine with `ullage serve` first.\n")


def test_an_unknown_name_and_receipts_that_are_switched_off_are_usage_errors(kept: str):
    assert run("receipts", "nonsense", ULLAGE_RECEIPTS=kept).returncode == 2
    off = run("receipts", ULLAGE_RECEIPTS="0")
    assert (off.returncode, off.stdout) == (2, "")
    assert "ULLAGE_RECEIPTS=0 switches receipts off" in off.stderr


def test_a_damaged_receipt_is_one_sentence(kept: str):
    (Path(kept) / "20261130T120002Z-0000aa.json").write_text("{")
    result = run("receipts", "latest", ULLAGE_RECEIPTS=kept)
    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr.count("\n") == 1
    assert "is no receipt of this version" in result.stderr

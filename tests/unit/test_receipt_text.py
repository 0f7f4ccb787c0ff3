"""Receipts as text and as documents."""

from __future__ import annotations

import json
from dataclasses import replace

import jsonschema
from hypothesis import given
from hypothesis import strategies as st

from fakes.receipt import BARE, full_receipt
from ullage.report.json import document, json_schema
from ullage.report.receipt import Outcome, Receipt, ReceiptsReport, summary
from ullage.report.receipt_text import WIDTH, receipt_text, receipts_text
from ullage.units import gib

TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=300)


def listed(*receipts: Receipt, unreadable: tuple[str, ...] = ()) -> ReceiptsReport:
    return ReceiptsReport(
        folder="/state/receipts",
        receipts=tuple(summary(receipt) for receipt in receipts),
        unreadable=unreadable,
    )


def test_documents_follow_their_schemas():
    for kind, values in (
        (Receipt, (full_receipt(), BARE)),
        (ReceiptsReport, (listed(full_receipt(), BARE), listed())),
    ):
        schema = json_schema(kind)
        jsonschema.Draft202012Validator.check_schema(schema)
        for value in values:
            jsonschema.validate(json.loads(document(value)), schema)


def test_what_a_start_did_not_come_to_is_null():
    parsed = json.loads(document(BARE))
    assert [parsed[key] for key in ("flags", "ledger", "final", "cache")] == [None] * 4


@given(model=TEXT, reason=TEXT)
def test_no_line_is_wider_than_eighty_columns(model: str, reason: str):
    receipt = replace(full_receipt(), model=model, outcome=Outcome(kind="refused", reason=reason))
    texts = [receipt_text(receipt), receipts_text(listed(receipt, unreadable=(reason,)))]
    assert max(len(line) for text in texts for line in text.splitlines()) <= WIDTH


def test_it_says_how_the_start_ended_and_every_line_of_the_ledger_with_its_residual():
    receipt = full_receipt()
    text = receipt_text(receipt)
    assert "outcome     started\n" in text
    assert "157,952 tokens in 1,234 blocks, 1.21 GiB" in text
    assert receipt.ledger is not None
    for line in receipt.ledger.lines:
        size = "?" if line.size_bytes is None else gib(line.size_bytes, digits=3)
        assert any(
            row.strip().startswith(size) and line.name[:40] in row for row in text.splitlines()
        ), line.name
    assert "0.000 GiB  residual" in text
    assert "4.000 GiB  total" in text


def test_its_phases_are_told_with_their_sum():
    assert receipt_text(full_receipt()).endswith(
        "     1.25 s  load\n     0.75 s  reserve\n     2.00 s  all of it\n"
    )


def test_a_refused_start_is_told_with_its_reason():
    text = receipt_text(BARE)
    assert "outcome     refused\nreason      It is so. Do this.\n" in text
    assert "GiB" not in text


def test_a_list_has_the_newest_first_and_names_what_cannot_be_read():
    text = receipts_text(listed(full_receipt(), BARE, unreadable=("x is no receipt.",)))
    assert text == (
        f"{BARE.name}  started, 157,952 tokens in 1,234 blocks, 1.21 GiB\n"
        "  org/model\n"
        f"{BARE.name}  refused\n"
        "  org/model\n"
        "  It is so. Do this.\n"
        "unreadable  x is no receipt.\n"
    )
    assert receipts_text(listed()) == "There is no receipt in /state/receipts.\n"

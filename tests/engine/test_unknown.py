"""A vLLM that is not known is left to stock with a receipt.  No engine is started."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from packaging.version import Version

pytest.importorskip("vllm", reason="needs vLLM")

from ullage.cli.receipts import read_all
from ullage.errors import Unsupported
from ullage.report.receipt_text import receipts_text

with warnings.catch_warnings():  # of vLLM's own imports
    warnings.simplefilter("ignore")
    from ullage.vllm_plugin import activate, settings, versions


@pytest.mark.parametrize(("strict", "kind"), [("0", "stock"), ("1", "refused")])
def test_a_start_of_an_unknown_version_has_one_receipt_without_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strict: str, kind: str
):
    monkeypatch.setenv(settings.FRONTEND, "")  # restored afterwards
    monkeypatch.setenv("ULLAGE_STRICT", strict)
    monkeypatch.setenv("ULLAGE_RECEIPTS", str(tmp_path))
    monkeypatch.setattr(versions, "installed", lambda: Version(f"9.9.{strict}"))
    for _ in range(2):
        try:
            activate.activate()
        except Unsupported:
            assert strict == "1"
    report = read_all(tmp_path)
    (each,) = report.receipts
    assert (each.outcome.kind, each.model) == (kind, None)
    assert each.outcome.reason is not None
    assert f"vLLM 9.9.{strict} is not in the table" in each.outcome.reason
    assert receipts_text(report).startswith(f"{each.name}  {kind}\n  ")

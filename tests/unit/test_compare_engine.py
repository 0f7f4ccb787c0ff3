"""Flags that are passed on, and an engine that would not load the plugin."""

from __future__ import annotations

import pytest

from ullage.compare.engine import check_plugin
from ullage.compare.flags import redacted
from ullage.errors import EngineFailed


def test_keys_and_tokens_are_not_repeated() -> None:
    given = ("--api-key", "a", "b", "--hf_token=c", "--block-size", "32", "--hf-token", "d")
    hidden = "--api-key *** *** --hf_token=*** --block-size 32 --hf-token ***"
    assert redacted(given) == tuple(hidden.split())
    assert redacted(("-O3", "--seed", "1")) == ("-O3", "--seed", "1")


def test_an_engine_that_would_not_load_the_plugin_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **which: [which["name"]])
    check_plugin({})
    check_plugin({"VLLM_PLUGINS": "other,ullage"})
    for names in ("", "other"):
        with pytest.raises(EngineFailed, match=r"VLLM_PLUGINS.* leaves ullage's plugin out"):
            check_plugin({"VLLM_PLUGINS": names})
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **which: [])
    with pytest.raises(EngineFailed, match="plugin is not installed"):
        check_plugin({})

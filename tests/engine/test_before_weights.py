"""What vLLM itself says of a model between its layers and their weights.  No engine is started."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.ranks import on_ranks

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("vllm", reason="needs vLLM")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own, of what vLLM imports
    from vllm.model_executor.model_loader import base_loader
    from vllm.v1.core import kv_cache_utils  # noqa: F401 - not first inside a test, where they raise
    from vllm.v1.kv_cache_interface import FullAttentionSpec

from ullage.accounting.ceiling import Ceiling  # noqa: E402
from ullage.devices import host  # noqa: E402
from ullage.devices.base import MemoryParts, Reading  # noqa: E402
from ullage.errors import DoesNotFit, Unreadable  # noqa: E402
from ullage.units import GIB, MIB  # noqa: E402
from ullage.vllm_plugin import before_weights  # noqa: E402
from ullage.vllm_plugin.ranks import ALONE, Ranks  # noqa: E402
from ullage.vllm_plugin.versions import TABLE  # noqa: E402

(RULES,) = TABLE
BLOCK = 16
LAYERS = 3
TOKEN_BYTES = LAYERS * 2 * 2 * 64 * 4  # layers, keys and values, heads, their size, float32


class Layers(torch.nn.Module):
    """16 MiB of weights, one of them under two names; and 64 MiB that get memory later."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Parameter(torch.empty(4 * MIB, dtype=torch.float32))
        self.head = self.embedding
        self.part = torch.nn.Parameter(self.embedding.detach()[: MIB // 2])
        self.later = torch.nn.Parameter(torch.empty(16 * MIB, device="meta"))


def worker(max_model_len: int, *, asked: int | None = None, spec_fails: bool = False) -> Any:
    def specs() -> dict[str, Any]:
        if spec_fails:
            raise NotImplementedError
        spec = FullAttentionSpec(
            block_size=BLOCK, num_kv_heads=2, head_size=64, dtype=torch.float32
        )
        return {f"layer {number}": spec for number in range(LAYERS)}

    model = SimpleNamespace(
        max_model_len=max_model_len,
        original_max_model_len=max_model_len if asked is None else asked,
    )
    config = SimpleNamespace(
        model_config=model,
        cache_config=SimpleNamespace(block_size=BLOCK),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1, prefill_context_parallel_size=1
        ),
    )
    return SimpleNamespace(vllm_config=config, get_kv_cache_spec=specs)


@pytest.fixture
def _small_group(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = MemoryParts(anon_bytes=GIB, shmem_bytes=0)
    reading = Reading(source="cgroup1:/job", scope="group", total_bytes=GIB + 64 * MIB, parts=parts)
    monkeypatch.setattr(host, "read", lambda: [reading])
    monkeypatch.setattr(base_loader, "initialize_model", lambda **_: Layers())


def load(max_model_len: int, margin_bytes: int = 0) -> Any:
    asked = worker(max_model_len)
    early = before_weights.refused_early(
        asked, RULES, margin_bytes=margin_bytes, ranks=ALONE, room=lambda most: most
    )
    with early:
        return base_loader.initialize_model(vllm_config=asked.vllm_config)


def checked(max_model_len: int, available_bytes: int) -> Callable[[Ranks], str]:
    """What a rank is told that has `Layers` and its part of the longest request."""
    most = Ceiling(source="cgroup1:/job", total_bytes=GIB, available_bytes=available_bytes)

    def told(ranks: Ranks) -> str:
        try:
            before_weights.check(Layers(), worker(max_model_len), RULES, ranks, (most, 0))
        except DoesNotFit as error:
            return str(error)
        return ""

    return told


def test_what_all_ranks_take_together_is_refused_on_all_with_one_sentence_and_the_advice_fits():
    """80 MiB for both ranks, 32 of them for weights: 48 MiB hold 24 MiB of context in each."""
    first, second = on_ranks(2, checked(16_384, 80 * MIB))
    assert first == second
    assert first.startswith("The weights take 0.03 GiB")
    assert "Set --max-model-len to 8192 or less" in first
    assert on_ranks(2, checked(8192, 80 * MIB)) == ["", ""]
    assert checked(16_384, 80 * MIB)(ALONE) == ""  # what a rank has by itself would fit


def test_weights_count_once_and_those_without_memory_not_at_all():
    assert before_weights.weights_bytes(Layers()) == 16 * MIB


def test_a_request_is_what_the_engine_says_and_the_longest_one_that_fits_is_whole_blocks():
    asked = worker(1000)
    request = before_weights.longest_request(asked, RULES)
    assert request is not None
    assert request.kv_bytes == 1008 * TOKEN_BYTES  # 63 blocks
    assert request.longest_within(100 * TOKEN_BYTES) == 96
    assert request.longest_within(BLOCK * TOKEN_BYTES - 1) == 0
    assert asked.vllm_config.model_config.max_model_len == 1000


def test_a_length_that_is_left_to_the_engine_is_not_judged():
    assert before_weights.longest_request(worker(1000, asked=-1), RULES) is None


def test_layers_that_cannot_say_yet_are_not_judged():
    assert before_weights.longest_request(worker(1000, spec_fails=True), RULES) is None


@pytest.mark.usefixtures("_small_group")
def test_a_context_that_cannot_fit_is_refused_when_the_layers_are_made_and_the_advice_loads():
    """64 MiB can be taken, 16 of them by the weights: 48 MiB hold 16,384 tokens."""
    with pytest.raises(DoesNotFit, match=r"Set --max-model-len to 16384 or less, or raise"):
        load(20_000)
    assert isinstance(load(16_384), Layers)
    with pytest.raises(DoesNotFit, match=r"Set --max-model-len to 5456 or less"):
        load(16_384, margin_bytes=32 * MIB)


@pytest.mark.usefixtures("_small_group")
def test_the_loader_is_as_it_was_afterwards():
    stock = base_loader.initialize_model
    with pytest.raises(DoesNotFit):
        load(20_000)
    assert base_loader.initialize_model is stock
    load(16)
    assert base_loader.initialize_model is stock


@pytest.mark.usefixtures("_small_group")
def test_a_host_that_cannot_be_read_refuses_nothing(monkeypatch: pytest.MonkeyPatch):
    def refused() -> None:
        raise Unreadable("It cannot. Do this.")

    monkeypatch.setattr(host, "read", refused)
    assert isinstance(load(1 << 40), Layers)

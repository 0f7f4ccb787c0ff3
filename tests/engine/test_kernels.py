"""What kernels for steps of other sizes will take, from one layer of each shape."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("vllm", reason="needs vLLM")

with warnings.catch_warnings():
    # vLLM's layers have torch.compile load what torch itself deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from ullage.units import KIB  # noqa: E402
from ullage.vllm_plugin import kernels, versions  # noqa: E402

OURS = dict.fromkeys(versions.KERNELS_KEPT, "0")
KERNEL_BYTES = 300 * KIB


class Heap:
    """Grows by one kernel with every layer that multiplies."""

    in_use_bytes = 0

    def __call__(self) -> Any:
        return SimpleNamespace(in_use_bytes=self.in_use_bytes)


class Unquantized(UnquantizedLinearMethod):
    def __init__(self, heap: Heap) -> None:
        self.heap = heap

    def apply(self, layer: Any, x: Any, bias: Any = None) -> Any:
        assert x.shape == (3, 8)
        self.heap.in_use_bytes += KERNEL_BYTES


class Quantized:
    def __init__(self, heap: Heap) -> None:
        self.apply = Unquantized(heap).apply


class ByAnotherLibrary:
    def apply(self, layer: Any, x: Any, bias: Any = None) -> Any:
        pass


def linear(method: object, outputs: int, *, bias: object = None) -> Any:
    layer = LinearBase.__new__(LinearBase)
    torch.nn.Module.__init__(layer)
    layer.quant_method, layer.input_size, layer.output_size = method, 8, outputs
    layer.skip_bias_add, layer.bias = False, bias
    return layer


def head(method: object, tokens: int) -> Any:
    layer = VocabParallelEmbedding.__new__(VocabParallelEmbedding)
    torch.nn.Module.__init__(layer)
    layer.quant_method, layer.embedding_dim, layer.num_embeddings = method, 8, tokens
    return layer


@pytest.fixture
def heap(monkeypatch: pytest.MonkeyPatch) -> Heap:
    growing = Heap()
    monkeypatch.setattr(kernels.malloc, "heap", growing)
    return growing


def to_come(*layers: Any, lm_head: Any = None, environment: dict[str, str] = OURS) -> int:
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(layers)
    model.lm_head = lm_head
    return kernels.to_come_bytes(model, torch.float32, environment)


def with_pieces(count: int) -> int:
    return count * KERNEL_BYTES * 5 // 4


def test_layers_of_one_shape_share_their_kernels_and_hold_thirty_two(heap: Heap):
    one, other = linear(Unquantized(heap), 8), linear(Unquantized(heap), 8)
    assert to_come(one, other) == with_pieces(32)


def test_each_shape_and_the_head_have_kernels_of_their_own(heap: Heap):
    method = Unquantized(heap)
    layers = linear(method, 8), linear(method, 16), linear(method, 16, bias=torch.zeros(16))
    assert to_come(*layers, lm_head=head(method, 100)) == with_pieces(4 * 32)


def test_an_embedding_that_is_no_head_multiplies_nothing(heap: Heap):
    assert to_come(head(Unquantized(heap), 100)) == 0


def test_quantized_layers_hold_more(heap: Heap):
    assert to_come(linear(Quantized(heap), 8)) == with_pieces(128)


def test_layers_that_another_library_computes_need_nothing(heap: Heap):
    assert to_come(linear(ByAnotherLibrary(), 8), environment={}) == 0


@pytest.mark.parametrize(
    ("set_by_user", "kept"),
    [({}, 1024), ({versions.KERNELS_KEPT[0]: "100"}, 1024), (dict(OURS), 0)]
    + [({**OURS, name: "100"}, 100) for name in versions.KERNELS_KEPT]
    + [({**OURS, versions.KERNELS_KEPT[0]: "many"}, 1024)],
)
def test_what_onednn_keeps_beside_the_layers_comes_on_top(
    heap: Heap, set_by_user: dict[str, str], kept: int
):
    layer = linear(Unquantized(heap), 8)
    assert to_come(layer, environment=set_by_user) == with_pieces(32 + kept)


def test_where_the_allocator_does_not_say_it_is_not_known(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernels.malloc, "heap", lambda: None)
    assert to_come(linear(ByAnotherLibrary(), 8)) == 0

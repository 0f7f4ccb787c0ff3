"""Every reason to leave a start to stock vLLM, on made-up configurations."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from packaging.version import Version

from ullage.vllm_plugin.eligible import reason_against
from ullage.vllm_plugin.versions import rules_for

RULES = rules_for(Version("0.32.0"))


def connector(name: str, *, module: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(kv_connector=name, kv_connector_module_path=module)


def config(**changes: Any) -> SimpleNamespace:
    """A start that is handled, but for `changes`, named "part__attribute" or "attribute"."""
    made = SimpleNamespace(
        cache_config=SimpleNamespace(
            kv_cache_memory_bytes=None, num_gpu_blocks_override=None, kv_offloading_size=None
        ),
        model_config=SimpleNamespace(
            runner_type="generate", is_encoder_decoder=False, is_multimodal_model=False
        ),
        parallel_config=SimpleNamespace(
            world_size=1,
            data_parallel_size=1,
            nnodes=1,
            distributed_executor_backend="mp",
            use_ray=False,
            prefill_context_parallel_size=1,
            decode_context_parallel_size=1,
            worker_cls="vllm.v1.worker.cpu_worker.CPUWorker",
            _api_process_count=1,
        ),
        kv_transfer_config=None,
        lora_config=None,
        speculative_config=None,
        use_v2_model_runner=False,
    )
    for name, value in changes.items():
        part, _, attribute = name.partition("__")
        setattr(getattr(made, part) if attribute else made, attribute or part, value)
    return made


def reason(changed: SimpleNamespace, *, nodes: str | None = "0", **variables: str) -> str | None:
    assert RULES is not None
    return reason_against(changed, RULES, variables, nodes)


def test_a_plain_start_is_handled():
    assert reason(config()) is None
    assert reason(config(), VLLM_USE_RUST_FRONTEND="0") is None


@pytest.mark.parametrize("name", ["ExampleConnector", "DecodeBenchConnector"])
def test_a_connector_without_memory_of_its_own_is_handled(name):
    assert reason(config(kv_transfer_config=connector(name))) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cache_config__kv_cache_memory_bytes": 1 << 30}, "--kv-cache-memory-bytes"),
        ({"cache_config__kv_cache_memory_bytes": 0}, "VLLM_CPU_KVCACHE_SPACE"),
        ({"cache_config__num_gpu_blocks_override": 100}, "--num-gpu-blocks-override"),
        ({"model_config": None}, "pooling or encoder-only"),
        ({"model_config__runner_type": "pooling"}, "pooling or encoder-only"),
        ({"model_config__is_encoder_decoder": True}, "encoder"),
        ({"parallel_config__data_parallel_size": 2}, "--data-parallel-size"),
        ({"parallel_config__nnodes": 2}, "--nnodes"),
        ({"parallel_config__prefill_context_parallel_size": 2}, "--prefill-context-parallel-size"),
        ({"parallel_config__decode_context_parallel_size": 2}, "--decode-context-parallel-size"),
        ({"model_config__is_multimodal_model": True}, "--mm-processor-cache-gb"),
        ({"kv_transfer_config": connector("NixlConnector")}, "the KV connector NixlConnector"),
        ({"kv_transfer_config": connector("MultiConnector")}, "--kv-transfer-config"),
        (
            {"kv_transfer_config": connector("ExampleConnector", module="my.own")},
            "ExampleConnector of my.own",
        ),
        ({"cache_config__kv_offloading_size": 4.0}, "--kv-offloading-size"),
        ({"lora_config": object()}, "--enable-lora"),
        ({"parallel_config___api_process_count": 2}, "--api-server-count"),
        ({"speculative_config": object()}, "--speculative-config"),
        ({"use_v2_model_runner": True}, "VLLM_USE_V2_MODEL_RUNNER"),
        ({"parallel_config__worker_cls": "my.Worker"}, "my.Worker"),
    ],
)
def test_each_reason_names_what_the_user_set(change, words):
    given = reason(config(**change))
    assert given is not None
    assert words in given


@pytest.mark.parametrize("backend", ["external_launcher", "uni", object])
def test_several_ranks_that_the_engine_does_not_start_itself_stay_stock_s(backend):
    changes = {"parallel_config__distributed_executor_backend": backend}
    given = reason(config(**changes, parallel_config__world_size=2))
    assert given is not None
    assert "--distributed-executor-backend" in given
    assert reason(config(**changes)) is None


def test_several_ranks_on_one_host_are_handled():
    assert reason(config(parallel_config__world_size=4)) is None
    by_ray = {
        "parallel_config__distributed_executor_backend": "ray",
        "parallel_config__use_ray": True,
    }
    assert reason(config(**by_ray, parallel_config__world_size=2)) is None


@pytest.mark.parametrize("nodes", ["0-1", "0,2", "", None])
def test_more_than_one_memory_node_is_not_taken_for_one(nodes):
    given = reason(config(), nodes=nodes)
    assert given is not None
    assert "--cpuset-mems" in given


def test_a_front_end_that_ignores_our_refusals_is_named():
    given = reason(config(), VLLM_USE_RUST_FRONTEND="1")
    assert given is not None
    assert "VLLM_USE_RUST_FRONTEND" in given


def test_of_several_reasons_the_first_is_given():
    given = reason(config(cache_config__kv_cache_memory_bytes=1, speculative_config=object()))
    assert given is not None
    assert "explicit KV cache size" in given

"""Greedy outputs of one engine, as JSON in a file.  A program, so that each engine has a process of
its own; vLLM's processes write their logs to both of its streams."""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
from pathlib import Path

import psutil

from ullage.devices import host

PROMPTS = 6
PROMPT_TOKENS = 300  # two whole blocks of 128 tokens that a later request can take from the cache
OUTPUT_TOKENS = 48


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("result", type=Path)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--prefix-caching", action="store_true")
    parser.add_argument("--utilization", type=float, default=0.15)
    parser.add_argument("--no-memory-flag", action="store_true", help="as a user starts it")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--pipeline-parallel", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--by-ray", action="store_true", help="workers are actors of a local Ray")
    parser.add_argument("--few-addresses", action="store_true", help="less than the memory")
    parser.add_argument("--max-model-len", type=int, default=1024)
    options = parser.parse_args()
    if options.few_addresses:
        # Inherited by the engine's processes: room for all they map, not for a whole reservation.
        most = psutil.virtual_memory().total - (1 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    options.result.write_text(json.dumps(generate(options)))
    sys.stdout.flush()
    sys.stderr.flush()
    # The interpreter's own end aborts now and then after vLLM 0.32 has shut its core down, stock as
    # it is: "terminate called without an active exception".  What was asked for is written.
    os._exit(0)


def generate(options: argparse.Namespace) -> dict[str, object]:
    from vllm import LLM, SamplingParams

    flags: dict[str, object] = {}
    if not options.no_memory_flag:
        flags["gpu_memory_utilization"] = options.utilization
    if options.by_ray:
        from ray_on_cpu import CpuRayExecutor

        flags["distributed_executor_backend"] = CpuRayExecutor
    llm = LLM(
        options.model,
        **flags,
        tensor_parallel_size=options.tensor_parallel,
        pipeline_parallel_size=options.pipeline_parallel,
        max_model_len=options.max_model_len,
        max_num_batched_tokens=1024,
        max_num_seqs=8,
        enforce_eager=not options.compiled,
        enable_prefix_caching=options.prefix_caching,
    )
    config = llm.llm_engine.vllm_config
    sampling = SamplingParams(temperature=0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    outputs, cached_tokens = [], 0
    for number in range(options.prompts):
        llm.reset_prefix_cache()
        prompt = [(number * 7919 + position * 31) % 1000 for position in range(PROMPT_TOKENS)]
        # With prefix caching the second one reads the first one's blocks.
        for _ in range(2 if options.prefix_caching else 1):
            (output,) = llm.generate({"prompt_token_ids": prompt}, sampling)
            outputs.append(list(output.outputs[0].token_ids))
            cached_tokens += output.num_cached_tokens or 0
    refusal = _refusal(llm, SamplingParams)
    taken_bytes = use_bytes()
    llm.llm_engine.engine_core.shutdown()
    return {
        "outputs": outputs,
        "cached_tokens": cached_tokens,
        "worker": config.parallel_config.worker_cls,
        "blocks": config.cache_config.num_gpu_blocks,
        "refusal": refusal,
        "use_bytes": taken_bytes,
    }


def use_bytes() -> int:
    """Anonymous and shared memory of this process and all below it."""
    processes = host.read_processes(host.process_tree(os.getpid()))
    return sum((each.anon_bytes or 0) + (each.shmem_bytes or 0) for each in processes)


def _refusal(llm: object, sampling: type) -> str | None:
    from vllm.exceptions import VLLMValidationError

    try:
        llm.generate("hello", sampling(max_tokens=1, prompt_logprobs=1))  # type: ignore[attr-defined]
    except VLLMValidationError as error:
        return str(error)
    return None


if __name__ == "__main__":
    main()

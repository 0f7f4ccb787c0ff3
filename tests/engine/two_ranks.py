"""One engine of two ranks with a KV connector, put to sleep and woken where that is asked for: what
it answered and the memory that it used, as JSON in a file."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from generate import use_bytes

PROMPTS = 3
PROMPT_TOKENS = 300


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("result", type=Path)
    parser.add_argument("--no-memory-flag", action="store_true", help="a share says it")
    parser.add_argument("--sleep", action="store_true")
    options = parser.parse_args()
    options.result.write_text(json.dumps(story(options)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def story(options: argparse.Namespace) -> dict[str, Any]:
    from vllm import LLM

    flags: dict[str, Any] = {} if options.no_memory_flag else {"gpu_memory_utilization": 0.1}
    llm = LLM(
        options.model,
        **flags,
        tensor_parallel_size=2,
        max_model_len=1024,
        max_num_batched_tokens=1024,
        max_num_seqs=8,
        enforce_eager=True,
        enable_prefix_caching=False,
        kv_transfer_config={
            "kv_connector": "DecodeBenchConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"fill_mean": 0.015},
        },
    )
    told: dict[str, Any] = {"outputs": outputs(llm), "awake_bytes": use_bytes()}
    if options.sleep:
        llm.sleep()
        told["asleep_bytes"] = use_bytes()
        llm.wake_up()
        told["woken_outputs"] = outputs(llm)
        told["woken_bytes"] = use_bytes()
    told["blocks"] = llm.llm_engine.vllm_config.cache_config.num_gpu_blocks
    llm.llm_engine.engine_core.shutdown()
    return told


def outputs(llm: Any) -> list[list[int]]:
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    prompts = [
        {"prompt_token_ids": [(number * 7919 + at * 31) % 1000 for at in range(PROMPT_TOKENS)]}
        for number in range(PROMPTS)
    ]
    answers = [llm.generate(prompt, sampling)[0] for prompt in prompts]
    return [list(answer.outputs[0].token_ids) for answer in answers]


if __name__ == "__main__":
    main()

"""One engine, put to sleep and woken in each way that there is; what it said, as JSON in a file."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from ullage.drivers import procfs
from ullage.errors import UllageError

PROMPTS = 3
PROMPT_TOKENS = 300  # two whole blocks of 128 tokens that a later request can take from the cache


def main() -> None:
    model, result = sys.argv[1:]
    Path(result).write_text(json.dumps(story(model)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def story(model: str) -> dict[str, Any]:
    from vllm import LLM

    llm = LLM(
        model,
        gpu_memory_utilization=0.15,
        max_model_len=1024,
        max_num_batched_tokens=1024,
        max_num_seqs=8,
        enforce_eager=True,
        enable_prefix_caching=True,
    )
    told: dict[str, Any] = {"first": generated(llm), "again": generated(llm), "awake": rss_bytes()}

    llm.sleep()
    told["asleep"] = rss_bytes()
    told["sleeping"] = llm.llm_engine.is_sleeping()
    llm.wake_up()
    told["woken"] = generated(llm)
    told["awake again"] = rss_bytes()

    # As `LLM.sleep` does it, step by step; each of the worker's methods twice.
    llm.reset_prefix_cache()
    llm.collective_rpc("sleep")
    llm.collective_rpc("sleep")
    told["asleep by rpc"] = rss_bytes()
    llm.collective_rpc("wake_up", kwargs={"tags": ["weights"]})
    told["weights awake"] = rss_bytes()
    llm.collective_rpc("wake_up")
    llm.collective_rpc("wake_up")
    told["woken by rpc"] = generated(llm)

    llm.reset_prefix_cache()
    llm.collective_rpc("sleep")
    try:
        generated(llm)
    except UllageError as error:
        told["error"] = str(error)
    return told


def generated(llm: Any) -> dict[str, Any]:
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    prompts = [
        {"prompt_token_ids": [(n * 7919 + at * 31) % 1000 for at in range(PROMPT_TOKENS)]}
        for n in range(PROMPTS)
    ]
    # One at a time: a batch of another make-up may round otherwise.
    outputs = [llm.generate(prompt, sampling)[0] for prompt in prompts]
    return {
        "outputs": [list(output.outputs[0].token_ids) for output in outputs],
        "cached_tokens": sum(output.num_cached_tokens or 0 for output in outputs),
    }


def rss_bytes() -> int | None:
    return procfs.rss_bytes("self")


if __name__ == "__main__":
    main()

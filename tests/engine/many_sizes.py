"""An engine under steps of many sizes, and what its processes take for that."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from generate import use_bytes

SIZES = range(1, 401)


def main() -> None:
    model, result = sys.argv[1], Path(sys.argv[2])
    result.write_text(json.dumps(measure(model)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # as in generate.py


def measure(model: str) -> dict[str, int]:
    from vllm import LLM, SamplingParams

    llm = LLM(
        model,
        gpu_memory_utilization=0.15,
        max_model_len=1024,
        max_num_batched_tokens=1024,
        max_num_seqs=8,
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=True,
    )
    sampling = SamplingParams(temperature=0, max_tokens=1)
    prompts = [{"prompt_token_ids": [7] * size} for size in SIZES]
    llm.generate(prompts[:1], sampling, use_tqdm=False)
    before_bytes = use_bytes()
    for prompt in prompts:
        llm.generate([prompt], sampling, use_tqdm=False)  # one step, of its tokens
    grown_bytes = use_bytes() - before_bytes
    llm.llm_engine.engine_core.shutdown()
    return {"grown_bytes": grown_bytes}


if __name__ == "__main__":
    main()

"""One step through the stages of a pipeline, as the worker runs it."""

from __future__ import annotations

from typing import Any

from vllm.distributed.parallel_state import get_pp_group, get_tp_group


def step(runner: Any, tokens: int, **how: Any) -> tuple[Any, Any]:
    """A dummy step with attention: the hidden states of all tokens and of those that are sampled.

    vLLM's dummy step neither receives nor sends.  In `Worker.execute_model` a stage holds what it
    got from the one before while it computes, and its own result until the next one has it.  A
    stage that is not the last samples nothing; for it both answers are None.
    """
    if runner.parallel_config.pipeline_parallel_size == 1:
        return runner._dummy_run(tokens, force_attention=True, **how)
    stages = get_pp_group()
    received = None
    if not stages.is_first_rank:
        received = stages.recv_tensor_dict(all_gather_group=get_tp_group())
    hidden, last = runner._dummy_run(tokens, force_attention=True, **how)
    del received
    if stages.is_last_rank:
        return hidden, last
    stages.send_tensor_dict(hidden.tensors, all_gather_group=get_tp_group())
    return None, None

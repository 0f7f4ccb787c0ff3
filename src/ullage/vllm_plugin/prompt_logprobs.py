"""Requests for log probabilities of the prompt, refused by name unless room is kept for them.

vLLM computes them for all tokens of a step at once (`GPUModelRunner._get_prompt_logprobs_dict`):
max_num_batched_tokens x vocabulary x 4 bytes, several times over.  No warm-up of stock's includes
that; a full KV cache leaves no room for it, and the process would be killed.
"""

from __future__ import annotations

import functools
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.input_processor import InputProcessor

from ullage.vllm_plugin.versions import OUR_WORKER

_MARK = "_ullage_wrapped"


def refuse(*, allowed: bool) -> None:
    """Make the engine's own validation say no; nothing is wrapped where they are `allowed`.

    It says no as well where the worker has left the start to stock: vLLM has no way from there to
    here (`EngineCoreReadyResponse` has a fixed list of fields), and stock keeps no room either.
    """
    stock = InputProcessor._validate_params
    if allowed or getattr(stock, _MARK, False):
        return

    @functools.wraps(stock)
    def validate(self: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        ours = self.vllm_config.parallel_config.worker_cls == OUR_WORKER
        if ours and getattr(params, "prompt_logprobs", None) is not None:
            raise VLLMValidationError(
                "prompt_logprobs needs memory for max_num_batched_tokens x vocabulary, and this "
                "start keeps no room for it. Start with ULLAGE_PROMPT_LOGPROBS=1 to keep some.",
                parameter="prompt_logprobs",
            )
        return stock(self, params, *args, **kwargs)

    setattr(validate, _MARK, True)
    InputProcessor._validate_params = validate

"""The vLLM plugin: the only code that knows vLLM.

vLLM calls `register` once in every process it starts, before it looks at its configuration.
Installed and not switched on (ULLAGE=1), it imports nothing of vLLM and changes nothing.
"""

from __future__ import annotations

import os


def register() -> None:
    """Entry point of the group `vllm.general_plugins`."""
    if os.environ.get("ULLAGE", "") not in ("", "0"):
        from ullage.vllm_plugin.activate import activate

        activate()

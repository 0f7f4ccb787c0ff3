"""ullage: the memory an LLM engine can truly take, and what follows from it.

The life of one number, bottom up; each imports only what stands above it:

    units, errors   bytes are ints; what can go wrong, with exit codes
    drivers         asks the kernel; decides nothing
    devices         what each source says of one device's memory
    accounting      readings settled into what is available, with a ledger
    budget          what the KV cache may take, each deduction by name
    vmem, kv        memory behind addresses; a cache that grows at fixed ones
    checkpoint      what a model's files say of its weights
    report          results as text, JSON and Markdown
    receipts        what earlier starts told of themselves
    vllm_plugin     the worker that acts on it inside vLLM
    compare, cli    stock and ullage side by side; one command a file
"""

from __future__ import annotations

__version__ = "0.1.0"

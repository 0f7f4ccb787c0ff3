"""A range of addresses as a torch tensor that neither owns nor copies it."""

from __future__ import annotations

import ctypes

import torch


def flat(address: int, size_bytes: int, *, owner: object) -> torch.Tensor:
    """One dimension of int8 over exactly `size_bytes` from `address` on.

    Its storage ends where the range ends, so code that moves whole storages (`untyped_storage()`)
    never reaches memory that is not there.  `owner` lives as long as the tensor or any view of it.
    """
    buffer = (ctypes.c_int8 * size_bytes).from_address(address)
    # A ctypes array keeps attributes that are set on it, and torch keeps the array.
    buffer.ullage_owner = owner  # type: ignore[attr-defined]
    return torch.frombuffer(buffer, dtype=torch.int8)

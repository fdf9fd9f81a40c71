"""How a tensor is made smaller before it travels.

Owns: the interface and what this version has of it, no compression.
"""

from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """Derive from this and override both; :meth:`compress` must return a dtype that the core reduces."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor that travels, and what :meth:`decompress` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """Inverse of :meth:`compress`, on the reduced tensor."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """The tensor as it is."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        return tensor


class Compression:
    """The compressors of this version, by name."""

    none = NoneCompressor

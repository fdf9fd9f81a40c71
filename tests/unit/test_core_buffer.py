"""Which memory the core takes, without a copy, and what it says about the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spark_hvd.core.buffer import BFLOAT16, DTYPES, Buffer
from spark_hvd.errors import ConfigError


class Exporter:
    """A tensor of some framework that shows its memory by DLPack alone, or refuses to."""

    def __init__(self, array: np.ndarray[Any, Any], refusal: Exception | None = None) -> None:
        self.array, self.refusal = array, refusal

    def __dlpack__(self, **options: Any) -> Any:
        if self.refusal is not None:
            raise self.refusal
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_arrays_are_taken_as_they_are(dtype: np.dtype[Any]) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    buffer = Buffer.of(array, "x")
    assert buffer.array is array
    assert (buffer.pointer, buffer.dtype) == (array.ctypes.data, DTYPES[dtype])
    assert buffer.like().array.shape == (2, 3)


def test_dlpack_shares_memory() -> None:
    array = np.zeros(4, np.float32)
    assert Buffer.of(Exporter(array), "x", written=True).pointer == array.ctypes.data


def test_scalars_and_empty_arrays_are_legal() -> None:
    assert Buffer.of(2.5, "x").array.shape == ()
    assert Buffer.of(np.empty((0, 3)), "x").array.size == 0


READ_ONLY = np.zeros(3)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("value", "written", "parts"),
    [
        (np.zeros(3, np.complex64), False, ("dtype complex64", "float32, float64", "bfloat16")),
        (np.zeros(3, ">f4"), False, ("dtype >f4",)),
        (np.array(["a"]), False, ("dtype <U1",)),
        (np.zeros((4, 4))[:, ::2], False, ("C-contiguous", "strides (32, 16)", "ascontiguousarray")),
        (READ_ONLY, True, ("read-only",)),
        (3.0, True, ("float", "array that can be written to")),
        (Exporter(np.zeros(1), BufferError("it requires grad")), False, ("Exporter", "it requires grad", "detach")),
    ],
)
def test_what_does_not_fit_is_named(value: Any, written: bool, parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as found:
        Buffer.of(value, "allreduce 'g'", written=written)
    assert all(part in str(found.value) for part in ("allreduce 'g'", *parts)), found.value


def test_the_output_must_be_like_the_input() -> None:
    with pytest.raises(ConfigError, match=r"out has shape \(4,\) and dtype float32, the input has \(3,\) and float32"):
        Buffer.of(np.zeros(3, np.float32), "x").require_like(Buffer.of(np.zeros(4, np.float32), "x"), "x")


def test_bfloat16_is_said_of_16_bit_integers() -> None:
    assert Buffer.of(np.zeros(3, np.uint16), "x", dtype="bfloat16").dtype == BFLOAT16
    with pytest.raises(ConfigError, match=r"x: dtype='bfloat16' for an array of float32; expected .* 16-bit integers"):
        Buffer.of(np.zeros(3, np.float32), "x", dtype="bfloat16")
    with pytest.raises(ConfigError, match="dtype='float16'"):
        Buffer.of(np.zeros(3, np.uint16), "x", dtype="float16")

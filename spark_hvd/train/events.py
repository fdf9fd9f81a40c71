"""The logs of a run as TensorBoard reads them.

Owns: the bytes of an event file: records of TensorFlow's format (length, masked CRC-32C, data, masked CRC-32C), each a
protobuf ``Event`` with scalar values. So TensorBoard needs no package here, and none that TensorBoard would pull in.
The file is written whole after each epoch; it is small. Format: tensorflow/core/util/event.proto,
summary.proto and lib/io/record_writer.h.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Iterator, Mapping

import numpy as np

from spark_hvd.store import Store, layout
from spark_hvd.train.callbacks import Callback, Logs, RunShape

logger = logging.getLogger(__name__)


def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _crc_table()


def _masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _message(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", _masked_crc(length)) + event + struct.pack("<I", _masked_crc(event))


def _event(when: float, step: int, content: bytes) -> bytes:
    # Event: 1 wall_time (double), 2 step (varint), then file_version (3) or summary (5).
    return b"\x09" + struct.pack("<d", when) + b"\x10" + _varint(step) + content


def _tag(name: str) -> str:
    split = "validation" if name.startswith("val_") else "train"
    return f"{name.removeprefix('val_')}/{split}"


def header(when: float) -> bytes:
    """The record that begins a file."""
    return _record(_event(when, 0, _message(3, b"brain.Event:2")))


def scalars(when: float, step: int, logs: Mapping[str, float]) -> bytes:
    """One record with a value for each of ``logs``; ``val_x`` and ``x`` share a chart."""
    with np.errstate(over="ignore"):  # what a float32 cannot hold is drawn as infinite
        numbers = {name: struct.pack("<f", np.float32(value)) for name, value in logs.items()}
    values = b"".join(_message(1, _message(1, _tag(n).encode()) + b"\x15" + data) for n, data in numbers.items())
    return _record(_event(when, step, _message(5, values)))


def records(data: bytes) -> Iterator[bytes]:
    """The events of a file; ValueError when a checksum is wrong."""
    place = 0
    while place < len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        event = data[place + 12 : place + 12 + length]
        found = struct.unpack_from("<I", data, place + 8)[0], struct.unpack_from("<I", data, place + 12 + length)[0]
        if found != (_masked_crc(data[place : place + 8]), _masked_crc(event)):
            raise ValueError(f"event file: wrong checksum at byte {place}")
        yield event
        place += 16 + length


class EventsWriter(Callback):
    """Writes the logs of every epoch, on rank 0. What fails here is logged and never fails the run."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store, self._path = store, layout.events(run_id)
        self._data: bytes | None = None

    def on_train_begin(self, shape: RunShape) -> None:
        if shape.rank == 0:
            now = time.time()
            self._data = header(now)
            for epoch, logs in enumerate(shape.history):
                self._data += scalars(now, epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        if self._data is None:
            return
        self._data += scalars(time.time(), epoch, logs)
        try:
            self._store.write(self._path, self._data)
        except Exception as e:
            logger.warning("the events for TensorBoard are not written: %s", e)

"""The reader contract on pyarrow alone."""

from __future__ import annotations

from contract.batch_reader import BatchReaderContract


class TestArrowReader(BatchReaderContract):
    engine = "arrow"

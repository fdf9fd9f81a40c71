"""An S3 on a loopback port, in this process, for as long as a test session needs it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def serve() -> Iterator[dict[str, Any]]:
    """``bucket`` (there and empty) and ``options`` (storage options that reach it)."""
    server = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    import fsspec

    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    try:
        host, port = running.get_host_and_port()
        options = {
            "key": "access", "secret": f"secret-{uuid.uuid4().hex}",
            "client_kwargs": {"endpoint_url": f"http://{host}:{port}"},
        }  # fmt: skip
        bucket = f"bucket-{uuid.uuid4().hex[:8]}"
        fsspec.filesystem("s3", **options).mkdir(bucket)
        yield {"bucket": bucket, "options": options}
    finally:
        running.stop()

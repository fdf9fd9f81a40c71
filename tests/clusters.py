"""Sessions of every kind of Spark that this package runs on, for one suite that is run on all of them.

``TEST_SPARK_MODE`` names the kind: ``local`` (default), ``local-cluster`` (executors are processes of their own),
``connect`` (a server behind gRPC), ``standalone`` (two workers in two network namespaces: two hosts with an address
each; needs root).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODES = ("local", "local-cluster", "connect", "standalone")
_NET = "10.177.43"


def mode() -> str:
    """The kind of Spark of this test run."""
    name = os.environ.get("TEST_SPARK_MODE", "local")
    if name not in MODES:
        raise pytest.UsageError(f"TEST_SPARK_MODE={name!r}: expected one of {', '.join(MODES)}")
    return name


def missing(name: str) -> str:
    """Why a kind cannot be had on this machine; empty if it can."""
    if name == "connect":
        try:
            import grpc  # noqa: F401
        except ImportError:
            return "Spark Connect needs grpcio: pip install 'spark_hvd[connect]'"
        if not list((_pyspark() / "jars").glob("spark-connect*.jar")):
            return "this pyspark brings no Connect server (3.5 gets it from Maven)"
    if name == "standalone":
        if os.geteuid() != 0 or shutil.which("ip") is None:
            return "two network namespaces need root and the ip command"
        if _run("ip", "netns", "add", f"hvd-try-{os.getpid()}").returncode != 0:
            return "this machine allows no network namespaces"
        _run("ip", "netns", "del", f"hvd-try-{os.getpid()}")
    return ""


@contextmanager
def session(worker_tmp: Path) -> Iterator[Any]:
    """The one SparkSession of a test run: two slots, quiet; its workers can import the package and the tests."""
    name = mode()
    why_not = missing(name)
    if why_not:
        pytest.skip(why_not)
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
        environment = {
            "PYTHONPATH": os.pathsep.join(p for p in paths if p),
            "TMPDIR": str(worker_tmp),
            "PYSPARK_PYTHON": sys.executable,
        }
        patch.setenv("SPARK_LOCAL_IP", f"{_NET}.1" if name == "standalone" else "127.0.0.1")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        master = {"local": "local[2]", "connect": "local[2]", "local-cluster": "local-cluster[2,1,1024]"}.get(name, "")
        if name == "standalone":
            master = stack.enter_context(_standalone({**os.environ, **environment}))
        if name == "local-cluster":
            patch.setenv("SPARK_HOME", str(_pyspark()))
        with pytest.MonkeyPatch.context() as start:
            # The JVM inherits them; this process goes on without.
            for variable, value in environment.items():
                start.setenv(variable, value)
            made = _start(name, master)
        try:
            yield made
        finally:
            made.stop()


def _start(name: str, master: str) -> Any:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    builder = builder.remote(master) if name == "connect" else builder.master(master)
    builder = (
        builder.appName("spark_hvd tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
    )
    if name == "standalone":
        builder = builder.config("spark.driver.host", f"{_NET}.1").config("spark.executor.memory", "600m")
    made = builder.getOrCreate()
    if name == "standalone":
        end = time.monotonic() + 60
        while made.sparkContext.defaultParallelism < 2 and time.monotonic() < end:
            time.sleep(0.2)
    return made


def _pyspark() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)


@contextmanager
def _standalone(environment: dict[str, str]) -> Iterator[str]:
    """A master here and a worker in each of two network namespaces, joined by a bridge. The master's URL."""
    tag = f"h{os.getpid() % 100000}"
    bridge, spaces = f"{tag}b", [f"{tag}n{i}" for i in (2, 3)]
    processes: list[subprocess.Popen[bytes]] = []
    folder = tempfile.mkdtemp(prefix="standalone-", dir=environment["TMPDIR"])
    log = open(f"{folder}/log", "wb")  # noqa: SIM115
    spark_class = str(_pyspark() / "bin/spark-class")

    def must(*command: str) -> None:
        done = _run(*command)
        assert done.returncode == 0, (command, done.stderr)

    def start(address: str, *command: str) -> None:
        processes.append(
            subprocess.Popen(
                command,
                env={**environment, "SPARK_LOCAL_IP": address, "SPARK_HOME": str(_pyspark())},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        )

    try:
        must("ip", "link", "add", bridge, "type", "bridge")
        must("ip", "addr", "add", f"{_NET}.1/24", "dev", bridge)
        must("ip", "link", "set", bridge, "up")
        for i, space in enumerate(spaces, 2):
            must("ip", "netns", "add", space)
            must("ip", "link", "add", f"{tag}v{i}", "type", "veth", "peer", "name", "eth0", "netns", space)
            must("ip", "link", "set", f"{tag}v{i}", "master", bridge, "up")
            must("ip", "-n", space, "addr", "add", f"{_NET}.{i}/24", "dev", "eth0")
            must("ip", "-n", space, "link", "set", "eth0", "up")
            must("ip", "-n", space, "link", "set", "lo", "up")
        deploy = "org.apache.spark.deploy"
        start(f"{_NET}.1", spark_class, f"{deploy}.master.Master", "--host", f"{_NET}.1", "--port", "7177",
              "--webui-port", "0")  # fmt: skip
        url = f"spark://{_NET}.1:7177"
        for i, space in enumerate(spaces, 2):
            start(f"{_NET}.{i}", "ip", "netns", "exec", space, spark_class, f"{deploy}.worker.Worker", "-c", "1", "-m",
                  "1g", "--host", f"{_NET}.{i}", "--webui-port", "0", "-d", f"{folder}/w{i}", url)  # fmt: skip
        time.sleep(3.0)
        yield url
    finally:
        for process in reversed(processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for space in spaces:
            _run("ip", "netns", "del", space)
        _run("ip", "link", "del", bridge)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)

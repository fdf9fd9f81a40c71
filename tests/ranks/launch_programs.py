"""What trainers run in the tests of the launcher: targets, called as ``function(context, payload) -> bytes``.

Each writes what the test wants to look at into the folder that its payload names.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from spark_hvd.errors import CommError
from spark_hvd.launch.child import TrainerContext
from spark_hvd.launch.inside import log_to_driver
from spark_hvd.settings import TOKEN_FD

LONG = 120.0


def note(payload: bytes, context: TrainerContext, **facts: Any) -> None:
    """Write what a rank knows of itself for the test."""
    path = Path(payload.decode()) / f"rank-{context.world.rank}.json"
    path.with_suffix(".part").write_text(json.dumps({"pid": os.getpid(), **facts}))
    path.with_suffix(".part").rename(path)


def wait_for(payload: bytes, size: int) -> None:
    """Until all ranks have written their note."""
    end = time.monotonic() + 30
    while len(list(Path(payload.decode()).glob("rank-*.json"))) < size:
        if time.monotonic() > end:
            raise TimeoutError("the other ranks wrote no note")
        time.sleep(0.01)


def look(context: TrainerContext, payload: bytes) -> bytes:
    """What a trainer sees of its world."""
    folder = os.getcwd()
    seen = {
        "world": vars(context.world),
        "run_id": context.run_id,
        "store_url": context.store_url,
        "secrets": dict(context.secrets),
        "attempt": context.attempt,
        "environ": dict(os.environ),
        "path": sys.path,
        "executable": sys.executable,
        "folder": folder,
        "mode": os.stat(folder).st_mode & 0o777,
        "payload": len(payload),
        "session": os.getsid(0) == os.getpid(),
        "cmdline": Path("/proc/self/cmdline").read_bytes().decode(),
    }
    return json.dumps(seen).encode()


def echo(context: TrainerContext, payload: bytes) -> bytes:
    """The payload."""
    return payload


def say(context: TrainerContext, payload: bytes) -> bytes:
    """Prints on both streams."""
    print(f"out of {context.world.rank}")
    print(f"err of {context.world.rank}", file=sys.stderr)
    print("no end of line", end="")
    return b""


def fail(context: TrainerContext, payload: bytes) -> bytes:
    """Rank 1 raises, the others sleep."""
    note(payload, context)
    wait_for(payload, context.world.size)
    if context.world.rank == 1:
        print("rank 1 is about to fail")
        raise ValueError("bad label 17 in column y")
    time.sleep(LONG)
    return b""


def die(context: TrainerContext, payload: bytes) -> bytes:
    """Rank 1 kills itself; every rank has children, also one that left its session and parent."""
    own = subprocess.Popen(["sleep", str(LONG)])
    script = (
        f"import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nprint(os.getpid(), flush=True)\ntime.sleep({LONG})"
    )
    left = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert left.stdout is not None
    note(payload, context, children=[own.pid, int(left.stdout.readline())])
    wait_for(payload, context.world.size)
    if context.world.rank == 1:
        print("rank 1 is about to die")
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(LONG)
    return b""


def crash(context: TrainerContext, payload: bytes) -> bytes:
    """Rank 1 gets a segmentation fault."""
    if context.world.rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(LONG)
    return b""


def leave(context: TrainerContext, payload: bytes) -> bytes:
    """Rank 1 leaves with the exit code in the payload, the others go on."""
    if context.world.rank == 1:
        sys.exit(int(payload))
    time.sleep(LONG)
    return b""


def early(context: TrainerContext, payload: bytes) -> bytes:
    """Rank 1 is done at once, the others go on for a while."""
    if context.world.rank == 1:
        return b""
    time.sleep(0.5)
    return b"done"


def leave_hard(context: TrainerContext, payload: bytes) -> bytes:
    """Rank 1 leaves past every handler, with the exit code in the payload."""
    if context.world.rank == 1:
        os._exit(int(payload))
    time.sleep(LONG)
    return b""


def frozen(context: TrainerContext, payload: bytes) -> bytes:
    """Rank 1 is stopped by a signal."""
    note(payload, context)
    wait_for(payload, context.world.size)
    if context.world.rank == 1:
        print("rank 1 stands still")
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(LONG)
    return b""


def talk(context: TrainerContext, payload: bytes) -> bytes:
    """Prints, tells the driver, and goes on until a file appears in the folder that the payload names."""
    print(f"hello of {context.world.rank}")
    log_to_driver(f"look at {context.world.rank}")
    end = time.monotonic() + 60
    while not Path(payload.decode(), "heard").exists():
        if time.monotonic() > end:
            raise TimeoutError("nobody heard")
        time.sleep(0.02)
    print("good bye")
    return b""


def chatter(context: TrainerContext, payload: bytes) -> bytes:
    """Prints as many lines as the payload says."""
    for i in range(int(payload)):
        print(f"line {i} " + "x" * 100)
    return b""


def token(context: TrainerContext, payload: bytes) -> bytes:
    """What is in the file without a name."""
    return os.pread(TOKEN_FD.get(), 1000, 0)


def sleep(context: TrainerContext, payload: bytes) -> bytes:
    """For a long time."""
    note(payload, context)
    time.sleep(LONG)
    return b""


def follow(context: TrainerContext, payload: bytes) -> bytes:
    """Rank 1 is killed; rank 0 hears of it at once, and its failed collective has the earlier time."""
    if context.world.rank == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        raise CommError("allreduce 'w' failed", failed_ranks=(1,), cause="peer closed its socket")
    except CommError as e:
        raise RuntimeError("training step 3") from e


def skip(context: TrainerContext, payload: bytes) -> bytes:
    """Rank 1 lives but takes part in nothing; rank 0 gives up on it."""
    if context.world.rank == 1:
        time.sleep(LONG)
    raise CommError("allreduce 'w': rank 1 did not join within 1 s", failed_ranks=(1,))


def bad_result(context: TrainerContext, payload: bytes) -> bytes:
    """Not bytes."""
    return "text"  # type: ignore[return-value]


def mpi(context: TrainerContext, payload: bytes) -> bytes:
    """An MPI program: sums over ranks, then tells where it listens and which segments it has mapped."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    total = world.allreduce(world.rank + 1)
    segments = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "mpich_shm" in line]
    facts = {"size": world.size, "rank": world.rank, "total": total, "segments": segments, "ports": listening()}
    if payload == b"finalize":
        MPI.Finalize()
    return json.dumps(facts).encode()


def mpi_without(context: TrainerContext, payload: bytes) -> bytes:
    """Rank 1 returns without MPI, the others wait for it in MPI_Init."""
    if context.world.rank == 1:
        return b""
    from mpi4py import MPI

    return str(MPI.COMM_WORLD.size).encode()


def core_die(context: TrainerContext, payload: bytes) -> bytes:
    """Rank 1 is killed between two reductions; the others are in the second one."""
    import numpy as np

    from spark_hvd import core

    world = core.init()
    world.allreduce(np.ones(3), name="first")
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    world.allreduce(np.ones(1000), name="second")
    return b""


def core_stay(context: TrainerContext, payload: bytes) -> bytes:
    """Leaves the core running: the launcher shuts it down."""
    from spark_hvd import core

    return bytes([core.init().rank, core.init().size])


def core_half(context: TrainerContext, payload: bytes) -> bytes:
    """Only rank 0 joins the second reduction; rank 1 returns."""
    import numpy as np

    from spark_hvd import core

    world = core.init()
    world.allreduce(np.ones(3), name="first")
    if world.rank == 0:
        world.allreduce(np.ones(3), name="second")
    return b""


def listening() -> list[str]:
    """IPv4 and IPv6 addresses (hex, as the kernel shows them) on which this process listens."""
    sockets = set()
    for fd in Path("/proc/self/fd").iterdir():
        try:
            sockets.add(os.readlink(fd))
        except OSError:
            continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                found.append(words[1].split(":")[0])
    return found

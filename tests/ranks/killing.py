"""Worlds whose ranks are killed at random moments, one after the other, in forks of one process that has all imported.

Started by ``test_core_kills.py`` as ``killing.py ROUNDS SEED``; prints one line for each round and exits with 1 at the
first one that went wrong.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
import uuid
from pathlib import Path

import numpy as np

from spark_hvd import core
from spark_hvd.core import Op, library
from spark_hvd.errors import CommError
from spark_hvd.launch.pmi import PmiServer, mpich_segments
from spark_hvd.settings import set_for_process

# Seconds in which the others must have noticed.
_NOTICED = 5.0
SURVIVED, UNHARMED = 7, 0


def rank_body(rank: int, go: int) -> int:
    """Collectives of all sorts without end; how it ended."""
    c = core.init()
    os.write(go, b"x")
    own, ordinary = c.empty(20_000), np.ones(50_000, np.float32)
    try:
        for step in range(10_000_000):
            handles = [c.allreduce_async(own, name="own", out=own), c.allreduce_async(ordinary, name="ordinary")]
            rows = c.allgather(np.full(step % 5 + rank, rank), name="rows")
            assert len(rows) == c.size * (step % 5) + c.size * (c.size - 1) // 2
            for handle in handles:
                handle.wait()
            c.allreduce(ordinary[:100], name="small", op=Op.MAX)
            c.broadcast(ordinary, step % c.size, name="broadcast")
            if step % 7 == 0:
                c.barrier()
    except CommError as e:
        core.shutdown(abort=True)
        return SURVIVED if e.failed_ranks else 3
    return UNHARMED


def fork_rank(rank: int, size: int, servers: list[PmiServer], go: int) -> int:
    """Process number of a new rank."""
    pid = os.fork()
    if pid:
        return pid
    code = 2
    try:
        os.setsid()
        for name, value in servers[rank].environment().items():
            set_for_process(name, value)
        set_for_process("SPARK_HVD_RANK", str(rank))
        set_for_process("SPARK_HVD_SIZE", str(size))
        for other, server in enumerate(servers):
            if other != rank:
                server.client.close()
        code = rank_body(rank, go)
    except BaseException as e:
        print(f"rank {rank}: {type(e).__name__}: {e}", flush=True)
    finally:
        os._exit(code)


def serve(servers: list[PmiServer], stop: threading.Event) -> None:
    """Let the ranks through MPI's barriers."""
    while not stop.wait(0.005):
        pending = [server.pending() for server in servers]
        if all(p is not None for p in pending):
            values = {k: v for p in pending if p for k, v in p.items()}
            for server in servers:
                server.release(values)


def play(size: int, victims: list[int], delay: float) -> str:
    """One world; what went wrong, or nothing."""
    kvsname = f"kill-{uuid.uuid4().hex}"
    servers = [PmiServer(rank, size, kvsname, lambda: None) for rank in range(size)]
    ready, go = os.pipe()
    pids = [fork_rank(rank, size, servers, go) for rank in range(size)]
    os.close(go)
    for server in servers:
        server.start()
        server.hand_over()
    stop = threading.Event()
    serving = threading.Thread(target=serve, args=(servers, stop))
    serving.start()
    codes: dict[int, int] = {}
    try:
        for _ in range(size):
            if os.read(ready, 1) != b"x":
                return "a rank did not start"
        time.sleep(delay)
        for victim in victims:
            os.kill(pids[victim], signal.SIGKILL)
        end = time.monotonic() + _NOTICED
        while len(codes) < size and time.monotonic() < end:
            for rank, pid in enumerate(pids):
                if rank not in codes:
                    ended, status = os.waitpid(pid, os.WNOHANG)
                    if ended:
                        codes[rank] = os.waitstatus_to_exitcode(status)
            time.sleep(0.005)
        if len(codes) < size:
            return f"ranks {sorted(set(range(size)) - set(codes))} did not end in time"
        wanted = {rank: -signal.SIGKILL if rank in victims else SURVIVED for rank in range(size)}
        left = [path for path in mpich_segments(kvsname, size) if Path(path).exists()]
        return "" if codes == wanted and not left else f"exit codes {codes}, left behind {left}"
    finally:
        for rank, pid in enumerate(pids):
            if rank not in codes:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        stop.set()
        serving.join()
        for server in servers:
            server.close()
        os.close(ready)


def main(rounds: int, seed: int) -> int:
    chance = random.Random(seed)
    library.load_core()
    for number in range(rounds):
        size = chance.choice((2, 2, 3, 4))
        victims = chance.sample(range(size), chance.randint(1, size))
        delay = chance.random() ** 2 * 0.2
        begin = time.monotonic()
        wrong = play(size, victims, delay)
        took = time.monotonic() - begin
        print(f"{number}: {size} ranks, killed {victims} after {delay * 1e3:.0f} ms, {took:.2f} s {wrong}", flush=True)
        if wrong:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))

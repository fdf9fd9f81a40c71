"""PMI-1, the process-management protocol of MPICH, spoken by a slot to one trainer over an inherited socketpair.

Owns the protocol: lines of ``key=value`` words, one answer per question (MPICH, ``src/pmi``, "PMI-1 wire protocol").
It does not own how puts travel to the other slots: when the trainer asks for a barrier the server remembers its puts
and waits; whoever owns the exchange collects them with :meth:`PmiServer.pending` and lets the trainer go with
:meth:`PmiServer.release`. No socket of the network is involved.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping

_LIMITS = "kvsname_max=256 keylen_max=64 vallen_max=1024"


class PmiServer(threading.Thread):
    """Answers one trainer. Daemonic; ends when the trainer closes its end, says finalize, or :meth:`close` is called.

    Parameters
    ----------
    rank, size
        Of the trainer.
    kvsname
        Name of the key-value space; the same on all ranks of a run and legal as a word. MPICH names its /dev/shm
        files after it, see :func:`mpich_segments`.
    on_barrier
        Called (from this thread) when the trainer has reached a barrier.
    """

    def __init__(self, rank: int, size: int, kvsname: str, on_barrier: Callable[[], None]) -> None:
        super().__init__(name=f"pmi-rank-{rank}", daemon=True)
        self._rank, self._size, self._kvsname = rank, size, kvsname
        self._on_barrier = on_barrier
        self._server, self.client = socket.socketpair()
        self._server.set_inheritable(False)
        # Every rank its own node: MPICH then makes no shared memory of its own for messages; the core has better.
        self._values: dict[str, str] = {"PMI_process_mapping": f"(vector,(0,{size},1))"}
        self._puts: dict[str, str] = {}
        self._lock = threading.Lock()
        self._at_barrier = False
        self._released = threading.Event()
        self._closed = False
        self.passed = 0  # barriers that the trainer was let through

    def hand_over(self) -> None:
        """Forget the trainer's end once the trainer has inherited it, so that its death is the end of the file here."""
        self.client.close()

    def environment(self, fd: int | None = None) -> dict[str, str]:
        """Variables that the trainer needs; ``client`` must be inherited under the number ``fd`` (default: its own)."""
        fd = self.client.fileno() if fd is None else fd
        return {"PMI_FD": str(fd), "PMI_RANK": str(self._rank), "PMI_SIZE": str(self._size)}

    def pending(self) -> dict[str, str] | None:
        """The puts of a trainer that waits at a barrier; None while it does not wait."""
        with self._lock:
            return dict(self._puts) if self._at_barrier else None

    def release(self, values: Mapping[str, str]) -> None:
        """Let the trainer leave its barrier; ``values`` are the puts of all ranks."""
        with self._lock:
            self._values.update(values)
            self._puts.clear()
            self._at_barrier = False
            self.passed += 1
        self._released.set()

    def close(self) -> None:
        """Stop answering; a trainer that still waits sees the end of its file."""
        self._closed = True
        self._released.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self.client.close()
        if self.ident is not None:  # started
            self.join(timeout=5.0)
        self._server.close()

    def run(self) -> None:
        try:
            with self._server.makefile("r", encoding="ascii", errors="replace", newline="\n") as lines:
                for line in lines:
                    answer = self._answer(line)
                    if answer is None:
                        return
                    self._server.sendall(answer.encode("ascii") + b"\n")
                    if "finalize_ack" in answer:
                        return
        except OSError:
            return  # the trainer is gone; its exit code says why

    def _answer(self, line: str) -> str | None:
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        command = words.get("cmd", "")
        if command == "barrier_in":
            return self._barrier()
        if command == "put":
            # A value may hold spaces, so it is taken from the line, not from its words.
            with self._lock:
                self._puts[words.get("key", "")] = line.split("value=", 1)[-1].rstrip("\n")
            return "cmd=put_result rc=0 msg=success"
        if command == "get":
            with self._lock:
                value = self._values.get(words.get("key", ""))
            if value is None:
                return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
            return f"cmd=get_result rc=0 msg=success value={value}"
        if command == "abort":
            return None
        return {
            "init": "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1",
            "get_maxes": f"cmd=maxes rc=0 {_LIMITS}",
            "get_appnum": "cmd=appnum rc=0 appnum=0",
            "get_my_kvsname": f"cmd=my_kvsname rc=0 kvsname={self._kvsname}",
            "get_universe_size": f"cmd=universe_size rc=0 size={self._size}",
            "finalize": "cmd=finalize_ack rc=0",
        }.get(command, f"cmd={command}_result rc=-1 msg=unknown_command")

    def _barrier(self) -> str | None:
        self._released.clear()
        with self._lock:
            self._at_barrier = True
        self._on_barrier()
        self._released.wait()
        return None if self._closed else "cmd=barrier_out rc=0"


def mpich_segments(kvsname: str, size: int) -> list[str]:
    """Paths of the /dev/shm files that MPICH makes for a run and leaves there when its processes are killed.

    Their names hold the FNV-1a 32-bit hash of the KVS name, in hex, and an index.
    """
    hashed = 0x811C9DC5
    for byte in kvsname.encode():
        hashed = ((hashed ^ byte) * 0x01000193) & 0xFFFFFFFF
    return [f"/dev/shm/mpich_shm_{hashed:x}_{index}" for index in range(size)]

"""Every rank proves to every other that it belongs to the run, before anything else is reduced.

MPI's ports ask for no token: whoever reaches one could take part. The launcher gives each trainer the run's token in a
file without a name; the ranks exchange random numbers and answer all of them with an HMAC. The token does not travel.
Processes that another launcher started have no token and nothing to prove.
"""

from __future__ import annotations

import hmac
import os
import secrets

import numpy as np

from spark_hvd.core.communicator import Communicator
from spark_hvd.errors import CommError
from spark_hvd.settings import TOKEN_FD

_LONGEST = 1024
_BYTES = 32  # of a random number, and of an answer


def read_token() -> bytes:
    """The run's token; empty when the launcher gave none."""
    descriptor = TOKEN_FD.get()
    return os.pread(descriptor, _LONGEST, 0) if descriptor >= 0 else b""


def prove(communicator: Communicator, token: bytes) -> None:
    """Prove the token to all ranks and check theirs. Collective; does nothing without a token.

    Raises
    ------
    CommError
        A rank does not know the token; ``failed_ranks`` says which.
    """
    if not token or communicator.size == 1:
        return
    asked = b"".join(_gather(communicator, secrets.token_bytes(_BYTES), "spark_hvd.trust.numbers"))
    answers = _gather(communicator, _answer(token, asked, communicator.rank), "spark_hvd.trust.answers")
    strangers = tuple(
        rank for rank, answer in enumerate(answers) if not hmac.compare_digest(answer, _answer(token, asked, rank))
    )
    if strangers:
        raise CommError(
            f"ranks {list(strangers)} do not know the token of this run: processes that do not belong to it have "
            "joined MPI. Look at who can reach the executors' network.",
            failed_ranks=strangers,
        )


def _gather(communicator: Communicator, mine: bytes, name: str) -> list[bytes]:
    """The bytes of every rank, by rank."""
    rows = communicator.allgather(np.frombuffer(mine, np.uint8).reshape(1, _BYTES), name=name)
    return [row.tobytes() for row in np.asarray(rows)]


def _answer(token: bytes, asked: bytes, rank: int) -> bytes:
    return hmac.digest(token, b"%d " % rank + asked, "sha256")

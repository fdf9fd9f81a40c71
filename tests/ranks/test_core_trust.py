"""Ranks prove the run's token to each other."""

from __future__ import annotations

import os

from harness import run_ranks


def join(token: str, stranger: int) -> str:
    """A rank with its token in a file without a name; ``stranger`` has another one."""
    from spark_hvd import core
    from spark_hvd.errors import CommError
    from spark_hvd.settings import RANK, TOKEN_FD, set_for_process

    descriptor = os.memfd_create("token")
    os.write(descriptor, b"guess" if RANK.get() == stranger else token.encode())
    set_for_process(TOKEN_FD.names[0], str(descriptor))
    try:
        world = core.init()
    except CommError as e:
        return f"{e.failed_ranks} {core.is_initialized()}"
    size = world.size
    core.shutdown()
    return f"joined {size}"


def test_ranks_that_know_the_token_join() -> None:
    assert run_ranks(3, join, ("a token", -1)) == ["joined 3"] * 3


def test_a_rank_that_does_not_is_found_by_the_others() -> None:
    results = run_ranks(3, join, ("a token", 1))
    assert results[0] == results[2] == "(1,) False"
    assert results[1] == "(0, 2) False"

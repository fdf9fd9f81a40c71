"""Who shares a host with whom: the World of every rank, from what each slot said of itself. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from spark_hvd.specs import World


def assign(keys: Sequence[Hashable], names: Sequence[str]) -> list[World]:
    """The World of every rank.

    Parameters
    ----------
    keys
        By rank; ranks with equal keys share a host. What makes a key is not decided here.
    names
        By rank; name of the host, for people.

    Returns
    -------
    list of World
        Local ranks follow the ranks of a host in ascending order. Hosts are counted in the order of their lowest rank;
        ``cross_rank`` is the host's index among those hosts that have this local rank.
    """
    if len(keys) != len(names):
        raise AssertionError(f"{len(keys)} keys and {len(names)} names")
    members: dict[Hashable, list[int]] = {}
    for rank, key in enumerate(keys):
        members.setdefault(key, []).append(rank)
    worlds = []
    for rank, key in enumerate(keys):
        local_rank = members[key].index(rank)
        peers = [host for host, ranks in members.items() if len(ranks) > local_rank]
        worlds.append(
            World(
                rank=rank,
                size=len(keys),
                local_rank=local_rank,
                local_size=len(members[key]),
                cross_rank=peers.index(key),
                cross_size=len(peers),
                host=names[rank],
            )
        )
    return worlds

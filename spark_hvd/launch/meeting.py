"""The first exchange: every slot shows a card, and all come to the same plan from all cards. Pure.

Owns what slots must agree on before a trainer is told to run: who shares a host, which GPU and which interface each
trainer gets, whether versions and modules fit. How the cards travel is not known here.
"""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata

from spark_hvd import __version__
from spark_hvd.errors import LaunchError
from spark_hvd.launch import devices, world
from spark_hvd.launch.network import LOOPBACK
from spark_hvd.specs import World

_COMPARED = ("torch", "tensorflow", "mpich", "mpi4py", "numpy", "pyarrow", "cloudpickle")
_MUST_AGREE = ("spark_hvd", "mpich")
ABSENT = "-"


@dataclass(frozen=True)
class Card:
    """What a slot says of itself.

    Attributes
    ----------
    slot, ranks
        Its number and its trainers.
    host, key
        Name of the host for people; slots with equal keys share a host.
    executor
        Address of the executor.
    pids
        Process ids of its trainers, as this host counts them.
    interface, asked
        Network interface for the trainers' traffic (empty: unknown), and whether somebody asked for it by name.
    versions
        What is installed, see :func:`versions`.
    missing
        Modules of the function that are not there.
    gpus, visible, found
        As in ``devices.SlotDevices``; ``gpus`` are the addresses of the task's resource.
    problem
        Why this slot cannot take part; empty if it can.
    """

    slot: int
    ranks: tuple[int, ...]
    host: str
    key: str
    executor: str = ""
    pids: tuple[int, ...] = ()
    interface: str = ""
    asked: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    visible: str | None = None
    found: tuple[str, ...] = ()
    problem: str = ""

    def to_message(self) -> str:
        """One line of text."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Plan:
    """What follows from all cards.

    Attributes
    ----------
    worlds
        By rank.
    devices
        Rank -> its CUDA_VISIBLE_DEVICES; ranks that are not in it keep what they have.
    interfaces
        By slot; empty: leave the choice to MPI.
    problem
        Why the run cannot start; empty if it can.
    differences
        Table of versions that differ between driver and executors; empty if none does.
    places
        Table of ranks, hosts, processes and devices.
    """

    worlds: tuple[World, ...]
    devices: Mapping[int, str]
    interfaces: tuple[str, ...]
    problem: str = ""
    differences: str = ""
    places: str = ""


def versions() -> dict[str, str]:
    """Name -> version of what has to fit between driver and executors. Nothing is imported."""
    found = {"python": platform.python_version(), "spark_hvd": __version__}
    for name in _COMPARED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ABSENT
    if found["tensorflow"] == ABSENT:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found["tensorflow"] = metadata.version("tensorflow-cpu")
    return found


def parse(messages: Sequence[str]) -> list[Card]:
    """The cards of all slots, in order. Spark answers an interrupted exchange with one line of text: LaunchError."""
    try:
        fields = [json.loads(message) for message in messages]
        tuples = ("ranks", "pids", "missing", "gpus", "found")
        return [Card(**{**f, **{name: tuple(f[name]) for name in tuples}}) for f in fields]
    except (ValueError, TypeError, KeyError) as e:
        raise LaunchError(f"The slots could not meet, Spark answered: {' '.join(messages)[:2000]}") from e


def settle(cards: Sequence[Card], driver: Mapping[str, str], use_gpu: bool | None) -> Plan:
    """The plan of a run.

    Parameters
    ----------
    cards
        Of all slots, in order.
    driver
        :func:`versions` of the driver.
    use_gpu
        As in ``LaunchSpec``.
    """
    owners = {rank: card for card in cards for rank in card.ranks}
    ordered = [owners[rank] for rank in range(len(owners))]
    worlds = tuple(world.assign([c.key for c in ordered], [c.host for c in ordered]))
    alone = len({card.key for card in cards}) == 1
    interfaces = tuple(LOOPBACK if alone and not card.asked else card.interface for card in cards)
    bound, problem = _bind(cards, use_gpu)
    problem = next((c.problem for c in cards if c.problem), "") or _missing(cards) or problem or _unfit(cards)
    problem = problem or _unreachable(cards, interfaces, alone)
    table = version_table(cards, driver)
    return Plan(worlds, bound, interfaces, problem, table, place_table(cards, worlds, bound, interfaces))


def version_table(cards: Sequence[Card], driver: Mapping[str, str]) -> str:
    """A table of what differs, one line for each package; empty when all agree. ``driver`` may be unknown: empty."""
    groups: dict[tuple[tuple[str, str], ...], list[Card]] = {}
    for card in cards:
        groups.setdefault(tuple(sorted(card.versions.items())), []).append(card)
    columns = [("driver", dict(driver))] if driver else []
    for found, members in groups.items():
        hosts = sorted({card.host for card in members})
        columns.append((f"{', '.join(hosts[:2])}{', ...' if len(hosts) > 2 else ''}", dict(found)))
    names = list(dict.fromkeys(name for _, found in columns for name in found))
    rows = [[name, *(found.get(name, ABSENT) for _, found in columns)] for name in names]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    return _table([["package", *(title for title, _ in columns)], *rows]) if rows else ""


def place_table(
    cards: Sequence[Card], worlds: Sequence[World], bound: Mapping[int, str], interfaces: Sequence[str]
) -> str:
    """Who is where: rank, host, pid, executor, interface, device."""
    owners = {rank: card for card in cards for rank in card.ranks}
    rows = [["rank", "host", "local rank", "pid", "executor", "interface", "device"]]
    for me in worlds:
        card = owners[me.rank]
        pid = dict(zip(card.ranks, card.pids, strict=False)).get(me.rank, 0)
        interface, device = interfaces[card.slot] or ABSENT, bound.get(me.rank) or ABSENT
        rows.append([str(me.rank), me.host, str(me.local_rank), str(pid), card.executor, interface, device])
    return _table(rows)


def _bind(cards: Sequence[Card], use_gpu: bool | None) -> tuple[dict[int, str], str]:
    if use_gpu is False:
        return {rank: "" for card in cards for rank in card.ranks}, ""
    if use_gpu is None and not any(card.gpus for card in cards):
        return {}, ""
    bound: dict[int, str] = {}
    for key in dict.fromkeys(card.key for card in cards):
        members = [card for card in cards if card.key == key]
        wanted = [devices.SlotDevices(c.slot, c.ranks, c.gpus, c.visible, c.found) for c in members]
        try:
            bound.update(devices.bind(wanted))
        except devices.BindingError as e:
            return {}, f"Host {members[0].host}: {e}"
    return bound, ""


def _missing(cards: Sequence[Card]) -> str:
    names = sorted({name for card in cards for name in card.missing})
    if not names:
        return ""
    where = sorted({card.host for card in cards if card.missing})
    return (
        f"The function of run() needs {'the module' if len(names) == 1 else 'modules'} {', '.join(names)}, not found "
        f"on {', '.join(where)}. Install it on the executors, ship it with spark.addArtifacts(..., pyfile=True) or "
        "--py-files, or call cloudpickle.register_pickle_by_value(module) on the driver before run()."
    )


def _unfit(cards: Sequence[Card]) -> str:
    for name in _MUST_AGREE:
        found = {card.versions.get(name, ABSENT) for card in cards if card.versions}
        if len(found) > 1:
            return (
                f"The executors have different versions of {name} ({', '.join(sorted(found))}), which cannot work "
                f"together. Install the same everywhere:\n{version_table(cards, {})}"
            )
    return ""


def _unreachable(cards: Sequence[Card], interfaces: Sequence[str], alone: bool) -> str:
    lonely = [c for c, name in zip(cards, interfaces, strict=True) if not alone and name == LOOPBACK]
    if not lonely:
        return ""
    return (
        f"The slots are on {len({c.key for c in cards})} hosts, but host {lonely[0].host} would use its loopback "
        "interface, which no other host reaches. Name an interface: run(nics=...) or SPARK_HVD_INTERFACE."
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)

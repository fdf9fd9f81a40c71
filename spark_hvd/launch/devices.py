"""Which GPU a trainer gets. Pure: lists in, lists out; what a machine has is asked in ``nvml.py``.

A device is named as CUDA_VISIBLE_DEVICES names it: by index, by UUID (``GPU-...``, also its beginning) or as a MIG
device (``MIG-...``). Owns how Spark's addresses relate to that variable, and who gets which. Decisions are taken for
all slots of a host together: each alone could read its addresses in another way than its neighbour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"


class BindingError(ValueError):
    """The devices of a host do not serve its trainers; the text says wanted, found and what to change."""


@dataclass(frozen=True)
class SlotDevices:
    """What a slot knows of GPUs.

    Attributes
    ----------
    slot
        Number of the slot.
    ranks
        Its trainers.
    addresses
        Of the task's own GPU resource, as Spark gives them; empty when the task has none.
    visible
        CUDA_VISIBLE_DEVICES of the Spark Python worker; None when it is not set.
    found
        Devices that the driver library shows; asked only where neither of the others says anything.
    """

    slot: int
    ranks: tuple[int, ...]
    addresses: tuple[str, ...] = ()
    visible: str | None = None
    found: tuple[str, ...] = ()


def listed(visible: str) -> list[str]:
    """Devices that CUDA takes from a value of CUDA_VISIBLE_DEVICES: it stops at the first that is no device."""
    devices = []
    for word in visible.split(","):
        name = word.strip()
        if not (name.isdigit() or name.upper().startswith(("GPU-", "MIG-"))):
            break
        devices.append(name)
    return devices


def same(one: str, other: str) -> bool:
    """Whether two names mean one device: equal, or one UUID is the beginning of the other."""
    if one.isdigit() or other.isdigit():
        return one.isdigit() and other.isdigit() and int(one) == int(other)
    a, b = one.lower(), other.lower()
    return a.startswith(b) or b.startswith(a)


def resolve(addresses: Sequence[Sequence[str]], visible: str | None) -> list[list[str]]:
    """The devices behind Spark's addresses, for all slots of a host that share one CUDA_VISIBLE_DEVICES.

    Parameters
    ----------
    addresses
        Per slot; what the discovery script wrote: it may have counted all devices of the host, or only the visible.
    visible
        CUDA_VISIBLE_DEVICES on that host; None when it is not set.

    Returns
    -------
    list of list of str
        Per slot, names for CUDA_VISIBLE_DEVICES of its trainers.

    Raises
    ------
    BindingError
        An address fits neither reading.
    """
    if visible is None:
        return [list(own) for own in addresses]
    shown = listed(visible)
    everything = [address for own in addresses for address in own]
    if all(any(same(address, name) for name in shown) for address in everything):
        return [[next(n for n in shown if same(address, n)) for address in own] for own in addresses]
    if all(address.isdigit() and int(address) < len(shown) for address in everything):
        # The discovery script saw only the visible ones and counted them from 0.
        return [[shown[int(address)] for address in own] for own in addresses]
    raise BindingError(
        f"Spark's tasks have the GPU addresses {everything}, but {VISIBLE} of their Python workers is {visible!r}: "
        "these are neither its names nor positions in it. Let the discovery script "
        "(spark.executor.resource.gpu.discoveryScript) list the devices that executors see, or unset the variable."
    )


def bind(slots: Sequence[SlotDevices]) -> dict[int, str]:
    """The device of every rank of one host.

    Parameters
    ----------
    slots
        Of one host, all that wants GPUs.

    Returns
    -------
    dict
        Rank -> value of its CUDA_VISIBLE_DEVICES; no device is given twice.

    Raises
    ------
    BindingError
        Fewer devices than trainers, or two trainers would share one.
    """
    ordered = sorted(slots, key=lambda s: s.slot)
    if all(s.addresses for s in ordered):
        bound = _of_tasks(ordered)
    elif any(s.addresses for s in ordered):
        without = [s.slot for s in ordered if not s.addresses]
        raise BindingError(f"Some tasks of this host have a GPU resource, the slots {without} have none")
    else:
        bound = _of_host(ordered)
    if not any(s.addresses for s in ordered):
        return bound
    taken: dict[str, int] = {}
    for rank, device in bound.items():
        other = next((r for name, r in taken.items() if same(name, device)), None)
        # Spark lets tasks share a device when spark.task.resource.gpu.amount is below 1: then their addresses are
        # equal by intent. Two names for one device are not.
        if other is not None and bound[other] != device:
            raise BindingError(f"ranks {other} and {rank} would share one GPU: {bound[other]} is {device}")
        taken.setdefault(device, rank)
    return bound


def _of_tasks(slots: Sequence[SlotDevices]) -> dict[int, str]:
    groups: dict[str | None, list[SlotDevices]] = {}
    for slot in slots:
        groups.setdefault(slot.visible, []).append(slot)
    bound: dict[int, str] = {}
    for visible, members in groups.items():
        for slot, devices in zip(members, resolve([s.addresses for s in members], visible), strict=True):
            if len(devices) < len(slot.ranks):
                raise BindingError(
                    f"slot {slot.slot}: wanted {len(slot.ranks)} GPUs, one for each of its trainers, the task has "
                    f"{len(devices)} ({', '.join(devices)}). Raise spark.task.resource.gpu.amount"
                )
            bound.update(zip(slot.ranks, devices, strict=False))
    return bound


def _of_host(slots: Sequence[SlotDevices]) -> dict[int, str]:
    head = slots[0]
    devices = listed(head.visible) if head.visible is not None else list(head.found)
    ranks = [rank for slot in slots for rank in slot.ranks]
    if len(devices) < len(ranks):
        source = f"{VISIBLE}={head.visible!r}" if head.visible is not None else "the driver library (NVML)"
        raise BindingError(
            f"use_gpu=True: wanted {len(ranks)} GPUs on this host, one for each trainer, found {len(devices)} in "
            f"{source}. Lower num_proc, or run with use_gpu=False"
        )
    return dict(zip(ranks, devices, strict=False))


def variables(device: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What a trainer with this device starts with. Spark's discovery scripts count devices in the order of the bus."""
    order = {} if ORDER in environment or not device.isdigit() else {ORDER: "PCI_BUS_ID"}
    return {VISIBLE: device, **order}

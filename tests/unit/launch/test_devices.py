"""GPU binding over lists, as discovery scripts and environments give them."""

from __future__ import annotations

import pytest

from spark_hvd.launch.devices import BindingError, SlotDevices, bind, listed, resolve, same, variables

A, B = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-1b2c3d4e-0000-1111-2222-333344445555"
MIG = "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f"


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("", []),
        ("0,1", ["0", "1"]),
        (" 2 , 3 ", ["2", "3"]),
        ("2,-1,3", ["2"]),
        ("2,none,3", ["2"]),
        (f"{A},{MIG}", [A, MIG]),
        ("-1", []),
    ],
)
def test_what_cuda_takes_from_the_variable(visible: str, expected: list[str]) -> None:
    assert listed(visible) == expected


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [("1", "01", True), ("1", "11", False), (A, A[:12], True), (A, B, False), (A.upper(), A, True), ("0", A, False)],
)
def test_names_of_one_device(one: str, other: str, equal: bool) -> None:
    assert same(one, other) is equal


@pytest.mark.parametrize(
    ("addresses", "visible", "expected"),
    [
        # Nothing is hidden: addresses are the devices.
        ([["0"], ["1"]], None, [["0"], ["1"]]),
        ([[A], [MIG]], None, [[A], [MIG]]),
        # The discovery script counted all devices of the host.
        ([["2"], ["3"]], "2,3", [["2"], ["3"]]),
        ([["3"]], "2,3", [["3"]]),
        # It counted the visible ones only.
        ([["0"], ["1"]], "2,3", [["2"], ["3"]]),
        # Each address alone could be read in both ways; together they cannot.
        ([["0"], ["1"]], "1,2", [["1"], ["2"]]),
        ([["0"]], A, [[A]]),
        ([["1", "0"]], f"{A},{MIG}", [[MIG, A]]),
        # UUIDs, also cut short as CUDA allows.
        ([[A], [B]], f"{B[:12]},{A[:12]}", [[A[:12]], [B[:12]]]),
        ([[MIG]], MIG, [[MIG]]),
    ],
)
def test_addresses_of_spark_become_devices(
    addresses: list[list[str]], visible: str | None, expected: list[list[str]]
) -> None:
    assert resolve(addresses, visible) == expected


@pytest.mark.parametrize(("addresses", "visible"), [([["4"]], "0,1"), ([[A]], "0,1"), ([["0"], ["2"]], "5,6")])
def test_addresses_that_fit_nowhere_are_refused(addresses: list[list[str]], visible: str) -> None:
    with pytest.raises(BindingError, match=f"CUDA_VISIBLE_DEVICES .* is '{visible}'"):
        resolve(addresses, visible)


def test_one_device_for_each_trainer_of_a_task() -> None:
    slots = [SlotDevices(1, (2, 3), ("2", "3")), SlotDevices(0, (0, 1), ("0", "1"))]
    assert bind(slots) == {0: "0", 1: "1", 2: "2", 3: "3"}
    with pytest.raises(BindingError, match=r"slot 0: wanted 2 GPUs.*the task has 1 \(7\)"):
        bind([SlotDevices(0, (0, 1), ("7",))])


def test_tasks_that_share_a_device_by_intent_may() -> None:
    assert bind([SlotDevices(0, (0,), ("0",)), SlotDevices(1, (1,), ("0",))]) == {0: "0", 1: "0"}


def test_two_names_for_one_device_are_refused() -> None:
    with pytest.raises(BindingError, match="would share one GPU"):
        bind([SlotDevices(0, (0,), (A,)), SlotDevices(1, (1,), (A[:10],))])


def test_hosts_whose_tasks_differ_are_refused() -> None:
    with pytest.raises(BindingError, match=r"the slots \[1\] have none"):
        bind([SlotDevices(0, (0,), ("0",)), SlotDevices(1, (1,))])


def test_without_a_resource_the_variable_or_the_driver_library_says() -> None:
    def two(**known: object) -> list[SlotDevices]:
        return [SlotDevices(slot, (slot,), **known) for slot in range(2)]  # type: ignore[arg-type]

    assert bind(two(visible="5,7,9")) == {0: "5", 1: "7"}
    assert bind(two(found=(A, B))) == {0: A, 1: B}
    with pytest.raises(BindingError, match=r"wanted 2 GPUs on this host.*found 1 in CUDA_VISIBLE_DEVICES='5'"):
        bind(two(visible="5", found=(A, B)))
    with pytest.raises(BindingError, match="found 0 in the driver library"):
        bind(two())


def test_variables_of_a_trainer() -> None:
    assert variables("2", {}) == {"CUDA_VISIBLE_DEVICES": "2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert variables("2", {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}) == {"CUDA_VISIBLE_DEVICES": "2"}
    assert variables(MIG, {}) == {"CUDA_VISIBLE_DEVICES": MIG}
    assert variables("", {}) == {"CUDA_VISIBLE_DEVICES": ""}

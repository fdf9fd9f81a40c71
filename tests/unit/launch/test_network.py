from __future__ import annotations

import pytest

from spark_hvd.launch import network


def test_loopback_is_an_interface_of_this_machine() -> None:
    known = network.interfaces()
    assert "127.0.0.1" in known["lo"]
    assert network.interface_of("127.0.0.1") == "lo"
    assert network.interface_of("192.0.2.77") is None


def test_the_way_to_the_driver_shows_the_interface() -> None:
    assert network.chosen([], "127.0.0.1") == ("lo", "127.0.0.1")
    assert network.chosen([], "localhost")[0] == "lo"
    assert network.chosen([], "") == ("", "")
    assert network.chosen([], "no-such-host.invalid") == ("", "")


def test_an_interface_that_was_asked_for() -> None:
    assert network.chosen(["no-such-0", "lo"], "192.0.2.1") == ("lo", "127.0.0.1")
    with pytest.raises(ValueError, match="no-such-0: not on this host, which has"):
        network.chosen(["no-such-0"], "")


def test_only_addresses_of_this_machine_are_listened_on() -> None:
    assert network.address_of_this("localhost") == "127.0.0.1"
    assert network.address_of_this("192.0.2.77") == ""
    assert network.address_of_this("no-such-host.invalid") == ""

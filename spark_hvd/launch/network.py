"""The network interfaces of this machine, and the one that leads to another. Linux; sends no packet.

Owns names and addresses of interfaces. Which one a run uses is settled in ``meeting.py``.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

LOOPBACK = "lo"
_GET_ADDRESS = 0x8915  # SIOCGIFADDR
_ANY_PORT = 9


def interfaces() -> dict[str, list[str]]:
    """Name -> addresses (IPv4 first) of every interface that has one."""
    found: dict[str, list[str]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            found.setdefault(name, []).append(socket.inet_ntoa(answer[20:24]))
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        words = line.split()
        found.setdefault(words[5], []).append(str(ipaddress.IPv6Address(bytes.fromhex(words[0]))))
    return found


def address_towards(host: str) -> str | None:
    """The address with which this machine would talk to ``host``; None when there is no way."""
    try:
        known = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, protocol, _, address in known:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return None


def address_of_this(host: str) -> str:
    """The address behind ``host`` if it belongs to this machine, else empty."""
    try:
        known = [str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except OSError:
        return ""
    mine = {address for addresses in interfaces().values() for address in addresses}
    return next((address for address in known if address in mine or ipaddress.ip_address(address).is_loopback), "")


def interface_of(address: str, known: dict[str, list[str]] | None = None) -> str | None:
    """Name of the interface that has ``address``."""
    known = interfaces() if known is None else known
    return next((name for name, addresses in known.items() if address in addresses), None)


def chosen(names: Sequence[str], driver: str) -> tuple[str, str]:
    """The interface for the traffic of this machine's trainers.

    Parameters
    ----------
    names
        Interfaces that somebody asked for; empty: the one that leads to ``driver``.
    driver
        Host name or address of the driver; empty when it is not known.

    Returns
    -------
    tuple of str
        Name and IPv4 (else IPv6) address; both empty when nothing shows an interface.

    Raises
    ------
    ValueError
        None of ``names`` is here; the text says which are.
    """
    known = interfaces()
    if names:
        name = next((n for n in names if n in known), None)
        if name is None:
            raise ValueError(f"network interface {' or '.join(names)}: not on this host, which has {sorted(known)}")
        return name, known[name][0]
    address = address_towards(driver) if driver else None
    if address is None:
        return "", ""
    if ipaddress.ip_address(address).is_loopback:
        return LOOPBACK, address
    return interface_of(address, known) or "", address

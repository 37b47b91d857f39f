"""Addresses, and the commands that make a bridge with one network namespace per worker.

host ── bridge 10.a.b.1 ──┬── veth ── namespace of worker 1, 10.a.b.11
                          ├── veth ── namespace of worker 2, 10.a.b.12
                          └── veth ── namespace of the scheduler, 10.a.b.2 (if it has one)
"""

from __future__ import annotations

import ipaddress
import random
import socket
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fpmdask.errors import LabError

Network = ipaddress.IPv4Network
FIRST_WORKER = 11
MOST_WORKERS = 240
# A bucket of this much time at full rate, but never under one large segment (64 KiB) twice over:
# with less, tbf drops the segments that the sender's offload makes and the rate collapses.
BURST_SECONDS = 0.002
SMALLEST_BURST_BYTES = 2 * 65536
LATENCY = "100ms"
# All that a lab's network needs, for a shell in a namespace of its own.
TRIAL = """
ip link add trial type bridge
ip link add one type veth peer name two
ip link set one master trial up
tc qdisc add dev one root tbf rate 100mbit burst 128kb latency 100ms
"""


@dataclass(frozen=True)
class Link:
    """One end point: a namespace, the host's end of its veth pair, its address and rate.

    Parameters
    ----------
    node : str
        ``scheduler`` or the worker's name.
    namespace : str
        Name of the network namespace.
    veth : str
        Interface on the host.
    address : str
        IPv4 address inside.
    rate : int or None
        bit/s.
    """

    node: str
    namespace: str
    veth: str
    address: str
    rate: int | None = None


def routes(text: str | None = None) -> tuple[Network, ...]:
    """Return the IPv4 networks that this machine has routes to, the default route left out.

    Parameters
    ----------
    text : str, optional
        The content of ``/proc/net/route``; read if not given.
    """
    lines = (text if text is not None else Path("/proc/net/route").read_text("ascii")).splitlines()
    found = []
    for line in lines[1:]:
        columns = line.split()
        destination, mask = (struct.pack("=L", int(columns[i], 16)) for i in (1, 7))
        if any(mask):
            text_form = f"{socket.inet_ntoa(destination)}/{socket.inet_ntoa(mask)}"
            found.append(Network(text_form, strict=False))
    return tuple(found)


def choose_network(taken: Iterable[Network], seed: str) -> Network:
    """Return a private /24 that overlaps with none of those taken.

    Parameters
    ----------
    taken : iterable of IPv4Network
        Networks in use.
    seed : str
        Decides the order in which 10.64.0.0 – 10.127.255.0 are tried.

    Raises
    ------
    LabError
        If nothing is free.

    Examples
    --------
    >>> choose_network([], "a").prefixlen
    24
    """
    used = tuple(taken)
    first = int(ipaddress.IPv4Address("10.64.0.0"))
    for index in random.Random(seed).sample(range(1 << 14), 1 << 14):
        candidate = Network((first + (index << 8), 24))
        if not any(candidate.overlaps(network) for network in used):
            return candidate
    raise LabError(
        "routes cover all of 10.64.0.0/10, so the lab has no addresses; remove a route or use "
        "backend = 'duty-cycle', which needs none"
    )


def plan_links(
    identity: str, network: Network, workers: Sequence[tuple[str, int | None]], *, scheduler: bool
) -> tuple[Link, ...]:
    """Return the end points of a lab: the scheduler's first if it has one, then the workers'.

    Parameters
    ----------
    identity : str
        The lab's random suffix, at most 8 characters (interface names hold 15).
    network : IPv4Network
        A /24.
    workers : sequence of (str, int or None)
        Names and rates in bit/s.
    scheduler : bool
        Whether the scheduler has a namespace.
    """
    if len(workers) > MOST_WORKERS:
        raise LabError(f"{len(workers)} workers asked for; a lab holds at most {MOST_WORKERS}")
    nodes: list[tuple[str, int, int | None]] = [("scheduler", 2, None)] if scheduler else []
    nodes += [(name, FIRST_WORKER + i, rate) for i, (name, rate) in enumerate(workers)]
    return tuple(
        Link(name, f"fpm{identity}-{host}", f"fpm{identity}-{host}", str(network[host]), rate)
        for name, host, rate in nodes
    )


def bridge_name(identity: str) -> str:
    """Return the name of the lab's bridge.

    Examples
    --------
    >>> bridge_name("0a1b2c")
    'fpm0a1b2c'
    """
    return f"fpm{identity}"


def bridge_commands(bridge: str, network: Network) -> tuple[tuple[str, ...], ...]:
    """Return the commands that make the bridge and give the host its address."""
    return (
        ("ip", "link", "add", bridge, "type", "bridge"),
        ("ip", "address", "add", f"{network[1]}/{network.prefixlen}", "dev", bridge),
        ("ip", "link", "set", bridge, "up"),
    )


def link_commands(bridge: str, link: Link, prefix: int = 24) -> tuple[tuple[str, ...], ...]:
    """Return the commands that make one namespace, connect it and limit its rate both ways."""
    inside = ("ip", "-n", link.namespace)
    peer = ("peer", "name", "eth0", "netns", link.namespace)
    commands = (
        ("ip", "netns", "add", link.namespace),
        ("ip", "link", "add", link.veth, "type", "veth", *peer),
        ("ip", "link", "set", link.veth, "master", bridge, "up"),
        (*inside, "address", "add", f"{link.address}/{prefix}", "dev", "eth0"),
        (*inside, "link", "set", "eth0", "up"),
        (*inside, "link", "set", "lo", "up"),
    )
    if link.rate is None:
        return commands
    shape = rate_arguments(link.rate)
    return (
        *commands,
        ("tc", "qdisc", "add", "dev", link.veth, "root", *shape),
        ("tc", "-n", link.namespace, "qdisc", "add", "dev", "eth0", "root", *shape),
    )


def rate_arguments(rate: int) -> tuple[str, ...]:
    """Return tc's arguments for a rate in bit/s.

    Examples
    --------
    >>> rate_arguments(100_000_000)
    ('tbf', 'rate', '100000000bit', 'burst', '131072', 'latency', '100ms')
    """
    burst = max(SMALLEST_BURST_BYTES, round(rate / 8 * BURST_SECONDS))
    return ("tbf", "rate", f"{rate}bit", "burst", str(burst), "latency", LATENCY)

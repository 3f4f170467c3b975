"""The proof that packets leave where they were meant to; nothing is sent or changed here."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from udpbench.agent.host import Host
from udpbench.errors import SafetyError
from udpbench.model import WorkerSpec

ROUTE_TYPES = {
    1: "unicast",
    2: "local",
    3: "broadcast",
    4: "anycast",
    5: "multicast",
    6: "blackhole",
    7: "unreachable",
    8: "prohibit",
}
"""RTN_* of include/uapi/linux/rtnetlink.h."""


def prove(host: Host, interface: str, workers: Iterable[WorkerSpec]) -> None:
    """Prove that every flow's route is unicast and leaves by ``interface``.

    The kernel is asked with the flow's own source address, so that policy routing counts and an
    address that is not the host's is found. Raises SafetyError with everything wrong at once.
    """
    pairs = {(flow.source, flow.destination) for spec in workers for flow in spec.flows}
    wrong = [
        f"{source} → {destination}: {reason}"
        for source, destination in sorted(pairs)
        for reason in _objections(host, interface, source, destination)
    ]
    if wrong:
        raise SafetyError(
            "nothing was sent, because packets might leave the lab: "
            + "; ".join(wrong)
            + f"; every route must be unicast by {interface}: see `ip route get`"
        )


def _objections(host: Host, interface: str, source: str, destination: str) -> list[str]:
    if ipaddress.ip_address(destination).is_multicast:
        return ["a multicast address"]
    try:
        wanted = host.index(interface)
        route = host.rtnl("route", "get", dst=destination, src=source)[0]
    except OSError as error:
        return [f"no route ({error.strerror})"]
    objections = []
    kind = ROUTE_TYPES.get(route["type"], f"type {route['type']}")
    if kind != "unicast":
        objections.append(f"a {kind} address")
    leaves_by = route.get_attr("RTA_OIF")
    if leaves_by != wanted:
        objections.append(f"it leaves by interface {leaves_by}, not by {interface} ({wanted})")
    return objections

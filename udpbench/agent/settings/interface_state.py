"""Kind ``interface_state``: all that an interface had before a run, to be seen again afterwards.

A setting may change more than itself, and the kernel does not always say so. Nothing is set here;
what is there in addition afterwards is others'.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

from udpbench.agent.host import files
from udpbench.agent.host.system import Host
from udpbench.agent.settings import link_flap
from udpbench.agent.settings.card import QUEUE_FILES
from udpbench.agent.settings.kind import Kind
from udpbench.agent.settings.queue_polling import DEVICE_ATTRIBUTES

PARAMETERS = ("net/ipv4/conf", "net/ipv4/neigh", "net/ipv6/conf", "net/ipv6/neigh")
NOT_OURS = frozenset(
    f"net/ipv6/{name}"
    for name in (
        *("conf/mtu", "conf/hop_limit", "conf/stable_secret"),
        *("neigh/base_reachable_time", "neigh/base_reachable_time_ms"),
        *("neigh/retrans_time", "neigh/retrans_time_ms"),
    )
)
"""What any advertisement of a router sets (net/ipv6/ndisc.c), and a secret."""
LINK = ("IFLA_MTU", "IFLA_TXQLEN", "IFLA_ADDRESS", "IFLA_GROUP", "IFLA_MASTER")
FLAGS = 0x1 | 0x80 | 0x100 | 0x200 | 0x1000  # IFF_UP, NOARP, PROMISC, ALLMULTI, MULTICAST
LASTING = (0, 3, 4)
"""RTPROT_UNSPEC, BOOT and STATIC: daemons and routers change their routes at any time, and those of
the kernel come and go with addresses."""
IFA_F_OPTIMISTIC = 4


class InterfaceState(Kind):
    """What an interface has: name → text. Read before the first change, compared after the last."""

    is_witness = True

    def read(self, host: Host, target: str) -> dict[str, str]:
        """Return what can be read; what cannot is left out."""
        state: dict[str, str] = {}
        for part in (_link, _parameters, _attached, _queues, _threads):
            with suppress(OSError):
                state.update(part(host, target))
        return state

    def write(self, host: Host, target: str, value: Any) -> None:
        """Do nothing: each setting puts back its own."""

    def by_hand(self, target: str, _value: Any) -> str:
        """Return the command that shows most of it."""
        shown = shlex.quote(target)
        return f"see ip -d link show {shown}; ip address show {shown}; sysctl -a"

    def same(self, requested: Mapping[str, str], got: Mapping[str, str]) -> bool:
        """Return whether all that there was is there."""
        return not self.lost(requested, got)

    def lost(self, before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
        """Return what is missing or has another value."""
        return [
            f"{name}: {value} → {now[name]}" if name in now else f"{name} is missing"
            for name, value in before.items()
            if now.get(name) != value
        ]


def _link(host: Host, interface: str) -> Iterator[tuple[str, str]]:
    message = host.link(interface)
    for name in LINK:
        yield name.partition("_")[2].lower(), str(message.get_attr(name))
    yield "flags", hex(message["flags"] & FLAGS)
    program = message.get_attr("IFLA_XDP")
    if program is not None:
        yield "XDP program", str(program.get_attr("IFLA_XDP_PROG_ID"))
    spec = message.get_attr("IFLA_AF_SPEC")
    ipv6 = spec.get_attr("AF_INET6") if spec is not None else None
    if ipv6 is not None:
        yield "token", str(ipv6.get_attr("IFLA_INET6_TOKEN"))


def _parameters(host: Host, interface: str) -> Iterator[tuple[str, str]]:
    for room in PARAMETERS:
        for name in files.names(host, f"/proc/sys/{room}/{interface}"):
            text = files.read(host, f"/proc/sys/{room}/{interface}/{name}")
            if text is not None and f"{room}/{name}" not in NOT_OURS:
                yield f"{room}/*/{name}", text


def _attached(host: Host, interface: str) -> Iterator[tuple[str, str]]:
    for (noun, fields), lacks in link_flap.state(host, (host.index(interface),)):
        own = dict(fields)
        fleeting = "preferred_lft" in own or {"temporary", "expires"} & set(lacks)
        if fleeting or (noun == "route" and own["proto"] not in LASTING):
            continue
        if noun == "addr" and "flags" in own:
            own["flags"] &= ~IFA_F_OPTIMISTIC
        name = f"{noun} {own.pop('dst', None) or own.pop('address', None)}"
        yield f"{name} ({_in_words(own)})", ", ".join(lacks)


def _in_words(fields: Mapping[str, Any]) -> str:
    return " ".join(f"{key} {fields[key]}" for key in sorted(fields))


def _queues(host: Host, interface: str) -> Iterator[tuple[str, str]]:
    folder = f"/sys/class/net/{interface}"
    for name in DEVICE_ATTRIBUTES:
        yield from _text(host, folder, name)
    for queue in files.names(host, f"{folder}/queues"):
        for name in chain.from_iterable(QUEUE_FILES.values()):
            yield from _text(host, f"{folder}/queues", f"{queue}/{name}")


def _text(host: Host, folder: str, name: str) -> Iterator[tuple[str, str]]:
    text = files.read(host, f"{folder}/{name}")
    if text is not None:
        yield name, text


def _threads(host: Host, interface: str) -> Iterator[tuple[str, str]]:
    """Yield CPUs, policy and priority of the NAPI threads, in the order of their queues."""
    for number, napi in enumerate(host.napis(interface)):
        if napi.pid is not None:
            policy = os.sched_getscheduler(napi.pid)
            priority = os.sched_getparam(napi.pid).sched_priority
            cpus = " ".join(map(str, sorted(host.affinity(napi.pid))))
            yield f"NAPI thread {number}", f"CPUs {cpus} policy {policy} priority {priority}"


KINDS: Mapping[str, Kind] = {"interface_state": InterfaceState()}

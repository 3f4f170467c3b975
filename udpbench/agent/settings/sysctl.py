"""Kind ``sysctl``: a kernel parameter."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, Union

from udpbench.agent.host.system import Host, own_address
from udpbench.agent.settings import link_flap
from udpbench.agent.settings.kind import EVERY, Command, Kind
from udpbench.agent.settings.routes import check_forwarding
from udpbench.model.limits import sysctl_refusal
from udpbench.setting_kinds import INDEX_OF

_READ_ONLY = "it is read-only here; set it on the machine as root"

Plain = Union[int, str]
Value = Union[Plain, dict[str, Plain]]
ALONG: Mapping[str, tuple[str, ...]] = {
    # net/ipv4/devinet.c: inet_forward_change()
    "net/ipv4/ip_forward": ("net/ipv4/conf/*/forwarding", "net/ipv4/conf/all/accept_redirects"),
    "net/ipv4/conf/all/forwarding": (
        "net/ipv4/conf/*/forwarding",
        "net/ipv4/conf/all/accept_redirects",
    ),
    # net/ipv4/tcp_cong.c: from then on every user may choose the machine's default
    "net/ipv4/tcp_congestion_control": ("net/ipv4/tcp_allowed_congestion_control",),
    # net/ipv6/addrconf.c: addrconf_fixup_forwarding() and its like
    "net/ipv6/conf/all/forwarding": (
        "net/ipv6/conf/*/forwarding",
        "net/ipv6/conf/*/force_forwarding",
    ),
    **{
        f"net/ipv6/conf/all/{name}": (f"net/ipv6/conf/*/{name}",)
        for name in (
            "force_forwarding",
            "disable_ipv6",
            "addr_gen_mode",
            "disable_policy",
            "ignore_routes_with_linkdown",
        )
    },
    # mm/page-writeback.c: setting one of a pair clears the other
    **{
        f"vm/{name}": (f"vm/{other}",)
        for pair in (
            ("dirty_bytes", "dirty_ratio"),
            ("dirty_background_bytes", "dirty_background_ratio"),
        )
        for name, other in (pair, pair[::-1])
    },
}
"""Parameter → others that the kernel changes with it; a star matches any name."""
_IN_TWO_UNITS = re.compile(
    r"net/ipv[46]/(?:neigh/[^/]+/(?:unres_qlen(?:_bytes)?|(?:base_reachable|retrans)_time(?:_ms)?)"
    r"|route/gc_min_interval(?:_ms)?)"
)
"""The same number, also rounded (net/core/neighbour.c, net/ipv6/route.c)."""
_COPIED = re.compile(r"(net/(?:ipv4/conf|ipv[46]/neigh)/)default(/[^/]+)")
"""Copied to each interface without a value of its own; with its first IPv4 address it has them all
(net/ipv4/devinet.c: devinet_copy_dflt_conf; net/core/neighbour.c: neigh_copy_dflt_parms)."""
_SECRET = re.compile(r"net/ipv4/tcp_fastopen_key|net/ipv6/conf/[^/]+/stable_secret")
"""Root alone may read them, and what is set back instead of none is a key that everybody knows."""
_OF_INTERFACE = re.compile(r"net/ipv[46]/(?:conf|neigh)/([^/]+)/[^/]+")
_APART = re.compile(
    r"net/core/(?:[rw]mem_(?:max|default)|optmem_max|netdev_max_backlog|netdev_budget(?:_usecs)?"
    r"|dev_weight\w*|busy_(?:poll|read)|skb_defer_max|rps_sock_flow_entries)"
    r"|net/ipv4/(?:udp_(?:mem|[rw]mem_min|early_demux)|ip_early_demux)"
)
"""Read where packets or sockets are, and by nothing that sets something else."""
_ONE_WAY = ("net/netfilter/nf_hooks_lwtunnel",)


def _read(host: Host, name: str) -> Plain:
    text = " ".join(host.read_text(f"/proc/sys/{name}").split())
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def _along(host: Host, own: str) -> list[str]:
    names: list[str] = []
    if _IN_TWO_UNITS.fullmatch(own):
        names += [re.sub("_(?:bytes|ms)$", "", own) + unit for unit in ("", "_bytes", "_ms")]
    copied = _COPIED.fullmatch(own)
    for pattern in [copied.expand(r"\1*\2")] if copied is not None else ALONG.get(own, ()):
        folder, star, rest = pattern.partition("*")
        if not star:
            names.append(pattern)
        elif host.exists(f"/proc/sys/{folder}"):
            names += [f"{folder}{name}{rest}" for name in host.listdir(f"/proc/sys/{folder}")]
    return [name for name in names if name != own and host.exists(f"/proc/sys/{name}")]


@lru_cache(maxsize=1024)
def _name(target: str) -> str:
    """Return the path below /proc/sys."""
    first = re.search(r"[./]", target)
    parts = target.split("/" if first and first.group() == "/" else ".")
    if any(part in ("", ".", "..") or "/" in part for part in parts):
        raise ValueError(f"{target} is not the name of a kernel parameter")
    return "/".join(parts)


def _of(name: str, interface: str) -> str:
    """Return the same parameter of another interface."""
    *place, _, parameter = name.split("/")
    return "/".join((*place, interface, parameter))


def _interface(name: str) -> str:
    """Return the interface that a parameter of one belongs to; empty for every other."""
    match = _OF_INTERFACE.fullmatch(name)
    return match[1] if match is not None and match[1] not in ("all", "default") else ""


def _indexes(host: Host, names: Iterable[str]) -> dict[str, int]:
    """Return ``index of eth0`` of the interfaces of parameters, for one that is renamed."""
    indexes = {}
    for interface in sorted({_interface(name) for name in names} - {""}):
        with suppress(OSError):  # gone meanwhile, or of another namespace
            indexes[INDEX_OF + interface] = host.index(interface)
    return indexes


def _as_named_now(values: Mapping[str, Any], indexes: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters by what their interfaces are called now, without those that are gone.

    ``indexes`` are of now; one whose index was never recorded keeps its name.
    """
    names_now = {index: name.removeprefix(INDEX_OF) for name, index in indexes.items()}
    renamed = {}
    for name, value in values.items():
        index = values.get(INDEX_OF + _interface(name))
        if name.startswith(INDEX_OF) or (index is not None and index not in names_now):
            continue
        renamed[name if index is None else _of(name, names_now[index])] = value
    return renamed


def _lacks_ipv6(host: Host, name: str) -> bool:
    """Return whether a switch of IPv6 is missing, as a kernel has none (``ipv6.disable=1``)."""
    return name.endswith("/disable_ipv6") and not host.exists("/proc/sys/net/ipv6/conf")


def _ipv6_addresses(host: Host) -> set[tuple[int, str, int]]:
    messages = host.rtnl("addr", "dump", family=socket.AF_INET6)
    return {(item["index"], own_address(item), item["prefixlen"]) for item in messages}


@contextmanager
def _no_new_addresses(host: Host, name: str) -> Iterator[None]:
    """Remove link-local addresses that the kernel makes, even on a link that is down, for a mode.

    net/ipv6/addrconf.c: addrconf_sysctl_addr_gen_mode().
    """
    if not name.endswith("/addr_gen_mode"):
        yield
        return
    had = _ipv6_addresses(host)
    yield
    for index, address, length in _ipv6_addresses(host) - had:
        host.rtnl("addr", "del", index=index, address=address, prefixlen=length)


OFF = 1
"""The value of ``disable_ipv6`` of a kernel without IPv6."""


class Sysctl(Kind):
    """A kernel parameter, ``net.core.rmem_max``; an integer, or text as printed.

    As in sysctl(8), a name whose first separator is a slash keeps its dots:
    ``net/ipv4/conf/eth0.100/rp_filter``. If the kernel changes others with it, all are read as
    {name: value}, the parameter itself first, and restored together; with the index of each
    interface, which may have another name then.
    """

    instead: Mapping[int, str] = {
        errno.ENOENT: "this kernel has no such parameter, or not in a network namespace (see "
        "sysctl -a); write a name that contains dots with slashes: "
        "net/ipv4/conf/eth0.100/rp_filter",
        errno.EACCES: _READ_ONLY,
        errno.EPERM: _READ_ONLY,
        0: "the kernel limits it; use the value it kept",
    }

    def interface(self, target: str) -> str:
        """Return the interface that a parameter belongs to, if any."""
        return _interface(_name(target))

    def renamed(self, target: str, before: Value, name: str) -> tuple[str, Value]:
        """Return the parameter of the same interface, and those that changed along with it."""
        if isinstance(before, dict):
            before = {_of(other, name): value for other, value in before.items()}
        return _of(_name(target), name), before

    def disturbed(self, target: str) -> str:
        """Return the interface that a parameter belongs to, or EVERY."""
        if _COPIED.fullmatch(_name(target)):
            return EVERY
        match = _OF_INTERFACE.fullmatch(_name(target))
        return match.group(1) if match is not None and match.group(1) != "default" else ""

    def is_apart(self, target: str) -> bool:
        """Return whether it is a limit or a budget, which no other setting reads."""
        return _APART.fullmatch(_name(target)) is not None

    def read(self, host: Host, target: str) -> Value:
        """Return the value, or {name: value} with those changed along; several numbers are text."""
        own = _name(target)
        if _SECRET.fullmatch(own):
            raise ValueError("it is a secret, which no record may hold; leave it out")
        if _lacks_ipv6(host, own):
            return OFF
        along = _along(host, own)
        if not along:
            return _read(host, own)
        values = {name: _read(host, name) for name in (own, *along)}
        return values if _interface(own) else {**values, **_indexes(host, along)}

    def write(self, host: Host, target: str, value: Value) -> None:
        """Set the value; a value read with others is restored with them."""
        if _lacks_ipv6(host, _name(target)) and str(value) == str(OFF):
            return
        with _no_new_addresses(host, _name(target)):
            self._write(host, target, value)

    def _write(self, host: Host, target: str, value: Value) -> None:
        if not isinstance(value, dict):
            host.write_text(f"/proc/sys/{_name(target)}", f"{value}\n")
            return
        value = _as_named_now(value, _indexes(host, _along(host, _name(target))))
        # The first round may be refused if only the other one of a pair sets it
        # (vm.dirty_bytes).
        for may_fail in (True, False):
            for name, before in value.items():
                if not host.exists(f"/proc/sys/{name}") or _read(host, name) == before:
                    continue
                try:
                    host.write_text(f"/proc/sys/{name}", f"{before}\n")
                except OSError:
                    if not may_fail:
                        raise

    def same(self, requested: Value, got: Value) -> bool:
        """Compare word by word, as the kernel prints tabs; others only if they existed before."""
        if not isinstance(requested, dict):
            own: Any = next(iter(got.values())) if isinstance(got, dict) else got
            return str(requested).split() == str(own).split()
        there = got if isinstance(got, dict) else {}
        indexes = {name: index for name, index in there.items() if name.startswith(INDEX_OF)}
        expected = _as_named_now(requested, indexes)
        return all(there.get(name, value) == value for name, value in expected.items())

    def check(self, host: Host, target: str, value: Value, now: Value) -> None:
        """Refuse parameters that no measurement needs, and changes that cannot be undone.

        Such changes lose or add addresses, or lose routes, neighbours or LRO.
        """
        del now
        name, interface = _name(target), self.disturbed(target)
        allowed = sysctl_refusal(name)
        if allowed is not None:
            raise ValueError(f"it must not be set here; {allowed}; leave it out")
        if name in _ONE_WAY:
            raise ValueError("the kernel does not set it back; set it by hand before the run")
        if (
            interface
            and name.endswith("/addr_gen_mode")
            and str(value) != str(link_flap.ADDR_GEN_MODE_NONE)
        ):
            what = f"{target} would permanently add link-local addresses"
            raise OSError(
                errno.EBUSY, f"{what}; only {link_flap.ADDR_GEN_MODE_NONE} (none) can be undone"
            )
        if str(value) == "0":
            return
        check_forwarding(host, name)
        if not interface or not name.endswith("/disable_ipv6"):
            return
        lost = link_flap.lost_with_ipv6(host, None if interface == EVERY else host.index(interface))
        if lost:
            what = f"{target} would permanently remove {link_flap.listed(lost)}"
            raise OSError(errno.EBUSY, f"{what}; remove them first, or choose another interface")

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that sets it."""
        values = value if isinstance(value, dict) else {target: value}
        named = ((k, number) for k, number in values.items() if not k.startswith(INDEX_OF))
        return ["sysctl", "-w", *(f"{name}={number}" for name, number in named)]


KINDS: Mapping[str, Kind] = {"sysctl": Sysctl()}

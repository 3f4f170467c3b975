"""Kind ``qdisc``: an interface's root qdisc."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any, Optional

from udpbench.agent.host.system import Host
from udpbench.agent.settings.kind import Command, Kind

TC_H_ROOT = 0xFFFFFFFF
TICK_NS = 64  # include/net/pkt_sched.h: PSCHED_SHIFT 6
MAX_RATE_BYTES = 2**32 - 1  # struct tc_ratespec.rate
KNOWN = ("tbf", "pfifo", "bfifo")
FIFO_LIMITS = {"pfifo": "limit_packets", "bfifo": "limit_bytes"}


def _options(kind: str, options: Any) -> dict[str, int]:
    if kind in FIFO_LIMITS:
        return {FIFO_LIMITS[kind]: options["limit"]}
    if kind == "tbf":
        parameters = options.get_attr("TCA_TBF_PARMS")
        burst_ns = parameters["buffer"] * TICK_NS
        return {
            "rate_bps": parameters["rate"] * 8,
            "burst_bytes": round(burst_ns * parameters["rate"] / 10**9),
            "limit_bytes": parameters["limit"],
        }
    return {}


def root_discipline(host: Host, interface: str) -> Any:
    """Return the message of a configured root qdisc; None if there is only the default."""
    for message in host.rtnl("tc", "dump", index=host.index(interface)):
        # The kernel's default (noqueue, mq, pfifo_fast) has no handle; a configured qdisc has.
        if message["parent"] == TC_H_ROOT and message["handle"] != 0:
            return message
    return None


def teach_bfifo() -> None:
    """Teach pyroute2 0.9.7 bfifo, whose option has the layout of pfifo's (sch_fifo.c)."""
    from pyroute2.netlink.rtnl.tcmsg import plugins

    plugins.setdefault("bfifo", plugins["pfifo"])


def _refuse(target: str, there: Any) -> None:
    if there:
        raise OSError(errno.EEXIST, f"{target} already has a {next(iter(there))}")


def _fields(kind: str, options: dict[str, int]) -> dict[str, int]:
    if kind in FIFO_LIMITS:
        return {"limit": options[FIFO_LIMITS[kind]]}
    if kind == "tbf":
        rate_bytes = options["rate_bps"] // 8
        if rate_bytes > MAX_RATE_BYTES:
            raise ValueError(f"{options['rate_bps']} bps is above {MAX_RATE_BYTES * 8} bps")
        limits = {"burst": options["burst_bytes"], "limit": options["limit_bytes"]}
        return {"rate": rate_bytes, **limits}
    raise ValueError(f"{kind} is not one of {', '.join(KNOWN)}")


class RootQdisc(Kind):
    """An interface's root qdisc; null is the kernel's default.

    Values: {tbf: {rate_bps, burst_bytes, limit_bytes}}, {pfifo: {limit_packets}}, {bfifo:
    {limit_bytes}}. Another program's qdisc is not replaced, because it could not be restored.
    """

    disruptive = True
    instead: Mapping[int, str] = {
        errno.EEXIST: "remove the existing qdisc, or leave it out",
        errno.ENOENT: "tbf and pfifo need the kernel module sch_tbf: modprobe sch_tbf",
    }

    def read(self, host: Host, target: str) -> Optional[dict[str, Any]]:
        """Return the root qdisc; the kernel keeps rates in bytes/s, so in steps of 8 bit/s."""
        teach_bfifo()
        message = root_discipline(host, target)
        if message is None:
            return None
        kind = message.get_attr("TCA_KIND")
        return {kind: _options(kind, message.get_attr("TCA_OPTIONS"))}

    def write(self, host: Host, target: str, value: Optional[dict[str, Any]]) -> None:
        """Add a root qdisc, or delete one of the known kinds."""
        index = host.index(target)
        teach_bfifo()
        there = set(self.read(host, target) or {})
        if value is None:
            if there - set(KNOWN):
                raise OSError(errno.EBUSY, f"{target} has a {there.pop()} not set by udpbench")
            host.rtnl("tc", "del", index=index, parent=TC_H_ROOT)
            return
        # The kernel would replace it: pyroute2's "add" lacks NLM_F_EXCL.
        _refuse(target, there)
        ((kind, options),) = value.items()
        host.rtnl("tc", "add", kind=kind, index=index, parent=TC_H_ROOT, **_fields(kind, options))

    def same(self, requested: Any, got: Any) -> bool:
        """Compare; pyroute2 sends bursts in whole microseconds, so one may read back smaller."""
        if not (requested and got and "tbf" in requested and "tbf" in got):
            return bool(requested == got)
        asked, kept = requested["tbf"], got["tbf"]
        microsecond_bytes = kept["rate_bps"] // 8 // 10**6 + 1
        return bool(
            asked["rate_bps"] // 8 == kept["rate_bps"] // 8
            and asked["limit_bytes"] == kept["limit_bytes"]
            and abs(asked["burst_bytes"] - kept["burst_bytes"]) <= microsecond_bytes
        )

    def check(self, _host: Host, target: str, value: Any, now: Any) -> None:
        """Refuse to replace an existing qdisc."""
        if value is not None:
            _refuse(target, now)

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that sets it."""
        if value is None:
            return ["tc", "qdisc", "del", "dev", target, "root"]
        ((name, options),) = value.items()
        words = ["tc", "qdisc", "replace", "dev", target, "root", name]
        for key, number in options.items():
            words += [key.partition("_")[0], f"{number}bit" if key == "rate_bps" else str(number)]
        return words


KINDS: Mapping[str, Kind] = {"qdisc": RootQdisc()}

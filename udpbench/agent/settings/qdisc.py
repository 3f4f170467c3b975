"""Kinds ``qdisc``, an interface's root qdisc, and ``qdisc_tree``, the kernel's default ones."""

from __future__ import annotations

import errno
import shlex
import struct
from collections import Counter
from collections.abc import Mapping
from typing import Any, Optional

from udpbench.agent.host.genetlink import attributes, numbers
from udpbench.agent.host.system import TCM_BYTES, Host
from udpbench.agent.settings.kind import Command, Kind
from udpbench.agent.settings.links import Up

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

    disruptive = destroys = True
    alters = ("qdisc_tree",)
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


REBUILDING = 0x75640000
"""Handle of the root qdisc whose removal makes the kernel build its default ones again."""
TCA_KIND, TCA_OPTIONS = 1, 2  # include/uapi/linux/rtnetlink.h
TC_H_INGRESS = 0xFFFFFFF1
"""Parent of ingress and clsact, which no root qdisc affects."""
PLAIN = ("mq", "noqueue")
"""Kinds without parameters, built whatever net.core.default_qdisc is."""
QUANTA = {"fq_codel": (6, 1), "fq": (3, 2)}
"""Kind → its attribute with the quantum, and how many of the largest frames that is by default."""
HEADER_BYTES = {1: 14}
"""Length of a link layer's header by ARPHRD type: Ethernet."""
DEFAULT_QDISC = "/proc/sys/net/core/default_qdisc"


def _tree(messages: list[bytes]) -> Optional[dict[str, str]]:
    """Return parent → kind and options in hexadecimal; None if the root is not the default one."""
    tree = {}
    for message in messages:
        handle, parent = struct.unpack_from("=II", message)
        if parent == TC_H_INGRESS:
            continue
        if parent == TC_H_ROOT and handle not in (0, REBUILDING):
            return None
        parts = dict(attributes(message[TCM_BYTES - 8 :]))
        words = (parts[TCA_KIND].rstrip(b"\0").decode(), parts.get(TCA_OPTIONS, b"").hex())
        place = "root" if parent == TC_H_ROOT else f":{parent & 0xFFFF:x}"
        tree[place] = " ".join(filter(None, words))
    return tree


class QdiscTree(Kind):
    """The qdiscs that the kernel gave an interface by default, with their parameters.

    Value: {up, frame_bytes, qdiscs: {parent: "kind options"}}; no qdiscs before an interface is
    first up, null if the root qdisc was set by somebody. The kernel alone can build them: with the
    queues, the MTU and the queue length that the interface has when its root qdisc is removed. It
    is up meanwhile, hence ``up``: taking it down again may fail.
    """

    def read(self, host: Host, target: str) -> Optional[dict[str, Any]]:
        """Return the default qdiscs; ``frame_bytes`` is the largest frame, None if unknown."""
        try:
            tree = _tree(host.qdiscs(target))
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:  # a kernel without traffic control
                return None
            raise
        if tree is None:
            return None
        link = host.link(target)
        header_bytes = HEADER_BYTES.get(link["ifi_type"])
        frame_bytes = None if header_bytes is None else link.get_attr("IFLA_MTU") + header_bytes
        up = Up().read(host, target)
        return {"up": up, "frame_bytes": frame_bytes, "qdiscs": tree}

    def write(self, host: Host, target: str, value: dict[str, Any]) -> None:
        """Have the kernel build its qdiscs again; ValueError if they are not the same."""
        index = host.index(target)
        root = {"index": index, "parent": TC_H_ROOT}
        host.rtnl("tc", "add", kind="pfifo", handle=REBUILDING, limit=1000, **root)
        host.rtnl("tc", "del", **root)
        if value["qdiscs"] and not Up().read(host, target):
            # Only an interface that is up is given qdiscs.
            Up().write(host, target, True)
        if value.get("up") is False and Up().read(host, target):
            Up().write(host, target, False)
        built = (self.read(host, target) or value)["qdiscs"]
        if built != value["qdiscs"]:
            had = _differing(value["qdiscs"], built)
            raise ValueError(f"the kernel gave it {_differing(built, value['qdiscs'])}, not {had}")

    def same(self, requested: Any, got: Any) -> bool:
        """Compare; what somebody set is not udpbench's, whose own is removed before."""
        if requested is None or got is None:
            return True
        left_up = requested.get("up") is False and got["up"]
        return requested["qdiscs"] == got["qdiscs"] and not left_up

    def check(self, host: Host, target: str, value: Any, now: Any) -> None:
        """Refuse to destroy qdiscs that the kernel would not build again as they are."""
        del value
        default = host.read_text(DEFAULT_QDISC) if host.exists(DEFAULT_QDISC) else None
        for words in (now or {"qdiscs": {}})["qdiscs"].values():
            kind, _, options = words.partition(" ")
            if kind in PLAIN:
                continue
            if default not in (None, kind):
                what = f"{target} has {kind}, and net.core.default_qdisc is {default} by now"
                raise OSError(errno.EBUSY, f"{what}; {self._renewal(target)}")
            quantum, usual = _quantum(kind, options), _usual_quantum(kind, now["frame_bytes"])
            if None not in (quantum, usual) and quantum != usual:
                what = f"{target} has {kind} with a quantum of {quantum} B, from another MTU"
                raise OSError(errno.EBUSY, f"{what}; {self._renewal(target)}")

    def _renewal(self, target: str) -> str:
        return f"it could not be restored; renew it by hand first: {self.by_hand(target, None)}"

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the commands that make the kernel build its default qdiscs."""
        del value
        name = shlex.quote(target)
        return f"tc qdisc replace dev {name} root pfifo; tc qdisc del dev {name} root"


def _differing(tree: dict[str, str], other: dict[str, str]) -> str:
    """Return how many of which qdiscs in a tree are not in the other."""
    counts = Counter(words for place, words in tree.items() if other.get(place) != words)
    return ", ".join(f"{count} {words}" for words, count in counts.items()) or "none"


def _quantum(kind: str, options: str) -> Optional[int]:
    if kind not in QUANTA:
        return None
    return numbers(bytes.fromhex(options)).get(QUANTA[kind][0])


def _usual_quantum(kind: str, frame_bytes: Optional[int]) -> Optional[int]:
    if kind not in QUANTA or frame_bytes is None:
        return None
    return QUANTA[kind][1] * frame_bytes


KINDS: Mapping[str, Kind] = {"qdisc_tree": QdiscTree(), "qdisc": RootQdisc()}

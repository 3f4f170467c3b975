"""Kinds that select a packet's queue or CPU: RPS, RFS, XPS, hash, table and rules."""

from __future__ import annotations

import errno
import re
import shlex
from collections.abc import Mapping
from typing import Any, Optional, Union

from udpbench.agent.host import ethtool
from udpbench.agent.host.system import Host
from udpbench.agent.settings.kind import Command, Kind, echo
from udpbench.cpu_lists import cpu_mask, parse_cpu_mask

_QUEUE = re.compile(r"([^/]+)/((?:rx|tx)-\d+)")


def queue_file(target: str, file: str) -> str:
    """Return the path of a queue's file; ValueError if the target is not a queue."""
    match = _QUEUE.fullmatch(target)
    if match is None or match.group(1) in (".", ".."):
        raise ValueError(f"{target} is not a queue; write for example send0/tx-0")
    return f"/sys/class/net/{match.group(1)}/queues/{match.group(2)}/{file}"


class CpuMask(Kind):
    """A list of CPUs, stored as a mask in a file; [] is off."""

    def file_of(self, target: str) -> str:
        """Return the target's file; ValueError if it has none."""
        raise NotImplementedError

    def is_apart(self, target: str) -> bool:
        """Return whether it is of a queue that exists, and not of those to come."""
        return "/" in target

    def read(self, host: Host, target: str) -> list[int]:
        """Return the CPUs of the mask."""
        return list(parse_cpu_mask(host.read_text(self.file_of(target))))

    def write(self, host: Host, target: str, value: list[int]) -> None:
        """Set the mask."""
        host.write_text(self.file_of(target), cpu_mask(value))

    def same(self, requested: list[int], got: list[int]) -> bool:
        """Compare as sets."""
        return set(requested) == set(got)

    def by_hand(self, target: str, value: list[int]) -> Command:
        """Return the command that sets it."""
        return echo(cpu_mask(value), self.file_of(target))


class Rps(CpuMask):
    """The RPS CPUs of an RX queue, ``receive0/rx-0``."""

    instead: Mapping[int, str] = dict.fromkeys(
        (errno.EPERM, errno.EACCES), "without root, link: {receive: inline} needs no RPS"
    )

    def file_of(self, target: str) -> str:
        """Return the queue's file."""
        return queue_file(target, "rps_cpus")


class RpsDefault(CpuMask):
    """The default RPS CPUs of RX queues created afterwards, per namespace (Linux 6.3).

    The only way to set RPS without root: a queue's own file needs CAP_NET_ADMIN on the machine.
    """

    def file_of(self, target: str) -> str:
        """Return the namespace's file."""
        if target != "queues":
            raise ValueError(f"{target}: the only target is queues")
        return "/proc/sys/net/core/rps_default_mask"


class Xps(CpuMask):
    """The XPS CPUs of a TX queue, ``send0/tx-0``."""

    instead: Mapping[int, str] = {
        errno.ENOENT: "an interface with one TX queue has no XPS; create it with more queues; a "
        "kernel for one CPU has none"
    }

    def file_of(self, target: str) -> str:
        """Return the queue's file."""
        return queue_file(target, "xps_cpus")


def _rfs_path(target: str) -> str:
    path = queue_file(target, "rps_flow_cnt")
    if "/rx-" not in target:
        raise ValueError(f"{target} is not an RX queue; write for example receive0/rx-0")
    return path


class Rfs(Kind):
    """Entries in an RX queue's RFS flow table, ``receive0/rx-0``; 0 is off.

    Effective only with the machine's sysctl net.core.rps_sock_flow_entries.
    """

    instead: Mapping[int, str] = {
        errno.EPERM: "flow steering needs root on the machine; leave it out"
    }

    def read(self, host: Host, target: str) -> int:
        """Return the number of entries."""
        return int(host.read_text(_rfs_path(target)))

    def write(self, host: Host, target: str, value: int) -> None:
        """Set the number of entries; the kernel rounds up to a power of two."""
        host.write_text(_rfs_path(target), str(value))

    def rounded(self, requested: int, got: int) -> bool:
        """Return whether ``got`` is ``requested`` rounded up to a power of two."""
        return requested > 0 and got == 1 << (requested - 1).bit_length()

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that sets it."""
        return echo(value, _rfs_path(target))


HASHED_FLOWS = ("udp4", "udp6", "tcp4", "tcp6")


def _split_flow(target: str) -> tuple[str, str]:
    interface, _, flow = target.partition("/")
    if flow not in HASHED_FLOWS:
        raise ValueError(
            f"{target} is not one of {', '.join(HASHED_FLOWS)}; write for example eth0/udp4"
        )
    return interface, flow


class FlowHashFields(Kind):
    """Header fields hashed to select the RX queue, ``receive0/udp4``; "sdfn", "sd".

    Letters as in ethtool -N rx-flow-hash. Some drivers refuse with exit status 0: only reading back
    shows it.
    """

    instead: Mapping[int, str] = {
        errno.EOPNOTSUPP: "spread over addresses instead of ports, or use rps or ntuple",
        0: "the driver hashes other fields; spread over addresses, or use rps or ntuple",
    }
    otherwise = "some cards hash only sd or sdfn; spread over addresses, or use rps or ntuple"

    def read(self, host: Host, target: str) -> str:
        """Return the letters in ethtool's order."""
        interface, flow = _split_flow(target)
        text = ethtool.show(host, "-n", interface, "rx-flow-hash", flow)
        return ethtool.parse_flow_hash(text)

    def write(self, host: Host, target: str, value: str) -> None:
        """Set the fields."""
        interface, flow = _split_flow(target)
        ethtool.change(host, "-N", interface, ["rx-flow-hash", flow, value])

    def same(self, requested: str, got: str) -> bool:
        """Compare as sets of fields."""
        return set(requested) == set(got)

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that sets it."""
        interface, _, flow = target.partition("/")
        return ["ethtool", "-N", interface, "rx-flow-hash", flow, value]


Table = dict[str, Any]


def words_for(value: Table) -> Optional[str]:
    """Return the ethtool words for a table, None if there are none; ``default`` resets it."""
    size = len(value["table"])
    runs = [value["table"].count(queue) for queue in range(max(value["table"]) + 1)]
    weights = " ".join(str(run) for run in runs)
    for words in ("default", f"equal {len(runs)}", f"weight {weights}"):
        if table_of(words, value["rings"], size) == value["table"]:
            return words
    return None


def table_of(words: str, rings: int, size: int) -> list[int]:
    """Return the table for ethtool words; ValueError if invalid.

    ``default`` is the kernel's ethtool_rxfh_indir_default(), used by nearly every driver;
    ``weight`` as in ethtool.c: fill_indir_table().
    """
    kind, *numbers = words.split()
    values = [int(number) for number in numbers]
    if kind == "default" and not values:
        return [entry % rings for entry in range(size)]
    if kind == "equal" and len(values) == 1 and values[0] > 0:
        return [entry % values[0] for entry in range(size)]
    if kind == "weight" and sum(values) > 0:
        return _weighted(values, size)
    raise ValueError(f"{words} is not one of default, equal N, weight N N ...")


def _weighted(weights: list[int], size: int) -> list[int]:
    table: list[int] = []
    partial = 0
    for queue, weight in enumerate(weights):
        partial += weight
        end = size * partial // sum(weights)
        table += [queue] * (end - len(table))
    return table


class Indirection(Kind):
    """The RX indirection table (hash value to queue); "equal 2", "weight 6 2", "default".

    Reads as {rings, table}. A table that ethtool cannot express is never changed, because it could
    not be restored.
    """

    instead: Mapping[int, str] = {
        errno.EOPNOTSUPP: "use ethtool.channels, ntuple or rps to choose queues",
        errno.EBUSY: "set it with `ethtool -X ... default` before the run",
        0: "the driver keeps its table; use ethtool.channels, ntuple or rps to choose queues",
    }
    otherwise = (
        "a table leads only to queues that there are (`ethtool -l {interface}`); use "
        "ethtool.channels, ntuple or rps to choose queues"
    )

    def read(self, host: Host, target: str) -> Table:
        """Return the number of RX rings and the table."""
        rings, table = ethtool.parse_indirection(ethtool.show(host, "-x", target))
        return {"rings": rings, "table": table}

    def write(self, host: Host, target: str, value: Union[str, Table]) -> None:
        """Set the table; OSError EBUSY if the current one could not be restored."""
        now = self.read(host, target)
        if words_for(now) is None:
            raise OSError(errno.EBUSY, f"{target} has a table that ethtool could not restore")
        # Read with a different number of rings, a default table may need other words.
        words = value if isinstance(value, str) else words_for({**value, "rings": now["rings"]})
        if words is None:
            raise ValueError("ethtool cannot express this table")
        ethtool.change(host, "-X", target, words.split())

    def same(self, requested: Union[str, Table], got: Table) -> bool:
        """Compare tables."""
        if isinstance(requested, str):
            return bool(table_of(requested, got["rings"], len(got["table"])) == got["table"])
        return bool(requested["table"] == got["table"])

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that sets it."""
        words = words_for(value)
        return ["ethtool", "-X", target, *words.split()] if words is not None else None


STEERED_FLOWS = {"udp4": "UDP over IPv4", "udp6": "UDP over IPv6"}
_RULE = re.compile(r"([^/]+)/(udp4|udp6)/(\d{1,5})")


def _find_rule(host: Host, target: str) -> Optional[ethtool.NtupleRule]:
    interface, flow, port = _split_rule(target)
    for rule in ethtool.parse_ntuple(ethtool.show(host, "-n", interface)):
        if (rule.flow, rule.port, rule.more) == (STEERED_FLOWS[flow], port, False):
            return rule
    return None


def _split_rule(target: str) -> tuple[str, str, int]:
    match = _RULE.fullmatch(target)
    if match is None:
        raise ValueError(f"{target} is not a rule; write for example receive0/udp4/4321")
    return match.group(1), match.group(2), int(match.group(3))


class SteeringRule(Kind):
    """An ntuple rule: the RX queue of one UDP port, ``receive0/udp4/4321``; null without a rule.

    Only rules that match nothing but a destination port are read or written. The driver numbers
    them; the number is read from its list. The feature rx-ntuple-filter must be on.
    """

    needs = "feature"
    instead: Mapping[int, str] = {
        errno.EOPNOTSUPP: "the feature rx-ntuple-filter must be on; else use rx-flow-hash",
        errno.EEXIST: "delete that rule (ethtool -N ... delete), or leave it out",
        0: "the driver ignored the rule; use rx-flow-hash or rps",
    }
    otherwise = (
        "some cards steer no single port, or have no room for a rule (`ethtool -n {interface}`); "
        "use rx-flow-hash or rps"
    )

    def read(self, host: Host, target: str) -> Optional[int]:
        """Return the queue of this port's rule."""
        rule = _find_rule(host, target)
        return rule.queue if rule is not None else None

    def write(self, host: Host, target: str, value: Optional[int]) -> None:
        """Add the rule, or delete it by the driver's number."""
        interface, flow, port = _split_rule(target)
        rule = _find_rule(host, target)
        if value is None:
            if rule is not None:
                ethtool.change(host, "-N", interface, ["delete", str(rule.location)])
            return
        self.check(host, target, value, rule.queue if rule is not None else None)
        words = ["flow-type", flow, "dst-port", str(port), "action", str(value)]
        ethtool.change(host, "-N", interface, words)

    def check(self, host: Host, target: str, value: Optional[int], now: Optional[int]) -> None:
        """Refuse to replace a rule."""
        if value is not None and now is not None:
            _, flow, port = _split_rule(target)
            rule = _find_rule(host, target)
            number = rule.location if rule is not None else "of that number"
            raise OSError(errno.EEXIST, f"rule {number} already steers {flow} port {port}")

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that sets it."""
        interface, _, rule = target.partition("/")
        if value is None:
            quoted = shlex.quote(interface)
            return f"ethtool -n {quoted}, then ethtool -N {quoted} delete NUMBER of {rule}"
        flow, _, port = rule.partition("/")
        words = ["flow-type", flow, "dst-port", port, "action", str(value)]
        return ["ethtool", "-N", interface, *words]


KINDS: Mapping[str, Kind] = {
    "rps": Rps(),
    "rps_default": RpsDefault(),
    "rfs": Rfs(),
    "xps": Xps(),
    "flow_hash": FlowHashFields(),
    "indirection": Indirection(),
    "ntuple": SteeringRule(),
}

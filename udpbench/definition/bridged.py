"""What joins more than two namespaces of a built-in lab: a bridge with one port for each host.

The settings of the bridge's own agent, which makes every pair; no host is asked here. Two hosts
need none of this: the receiver makes the one pair that joins them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from udpbench.definition.card import TSO_FEATURES, cable
from udpbench.definition.host_block import LabContext, block_of
from udpbench.definition.wanted import end_of_link, mac_of
from udpbench.model import Host, Lab, Setting, Trial

BRIDGE = "bridge"
"""Name of the agent that has the bridge's namespace to itself; it plays no role in a trial."""
BRIDGE_INTERFACE = "bridge0"


def bridge_settings_for(lab: Lab, trial: Trial | None, context: LabContext) -> tuple[Setting, ...]:
    """Return the settings of the bridge's agent in the order of application; none for two hosts.

    The pairs come first, so that whatever changes behind them leaves them as they are. Raises
    Unavailable where a link is to have queues on CPUs that are not there.
    """
    if not lab.bridged:
        return ()
    ports = [
        _Port(n, host, mac_of(lab, host), block_of(lab, trial, host))
        for n, host in enumerate(lab.hosts, 1)
    ]
    ends = [end_of_link(lab, trial, port.host, context) for port in ports]
    pids = context.pids
    return (
        *(
            port.pair(pids.get(port.host.name), queues)
            for port, (queues, _) in zip(ports, ends, strict=True)
        ),
        Setting("bridge", BRIDGE_INTERFACE, True),
        *(_quiet(name) for name in (BRIDGE_INTERFACE, *(port.name for port in ports))),
        *(one for port in ports for one in port.sizes()),
        *(
            one
            for port, (_, receive) in zip(ports, ends, strict=True)
            for one in port.features(receive)
        ),
        *(port.joined() for port in ports),
        *(Setting("up", port.name, True) for port in ports),
        *(one for port in ports for one in port.rate()),
        Setting("up", BRIDGE_INTERFACE, True),
    )


def _quiet(name: str) -> Setting:
    """Return IPv6 off while the link is down, or neighbour discovery would count as packets."""
    return Setting("sysctl", f"net.ipv6.conf.{name}.disable_ipv6", 1, optional=True)


@dataclass(frozen=True)
class _Port:
    """The bridge's end of the pair of one host."""

    number: int
    host: Host
    station: str
    """The host's MAC."""
    block: dict[str, Any]
    """The host's settings."""

    @property
    def name(self) -> str:
        return f"port{self.number}"

    def path(self, path: str) -> str:
        return f"settings.{self.host.role}.{path}"

    def pair(self, pid: int | None, queues: int) -> Setting:
        value = {
            "peer": self.host.interface,
            "peer_pid": pid,
            "peer_mac": self.station,
            "mac": f"02:75:62:03:{self.number // 256:02x}:{self.number % 256:02x}",
            "queues": queues,
        }
        return Setting("link", self.name, value, path=self.path("link"))

    def sizes(self) -> Iterator[Setting]:
        # A bridge drops what is longer than its port's MTU without counting it (6.18).
        if "mtu_bytes" in self.block:
            yield Setting("mtu", self.name, self.block["mtu_bytes"], path=self.path("mtu"))

    def features(self, receive: str) -> Iterator[Setting]:
        # The port is what sends to the host, so its TSO would keep packets from the host's NAPI.
        if self.host.role == "receiver" and receive == "napi":
            for name in TSO_FEATURES:
                path = self.path("link.receive")
                yield Setting("feature", f"{self.name}/{name}", False, path=path)

    def rate(self) -> Iterator[Setting]:
        # What a receiver's cable cannot carry is lost in the switch: stage ``link``.
        rate_bps = self.block.get("link", {}).get("rate_bps")
        if self.host.role == "receiver" and rate_bps is not None:
            value = cable(rate_bps, self.block)
            yield Setting("qdisc", self.name, value, path=self.path("link.rate"))

    def joined(self) -> Setting:
        return Setting("port", self.name, {"bridge": BRIDGE_INTERFACE, "station": self.station})

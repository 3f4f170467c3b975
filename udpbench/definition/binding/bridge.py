"""The bridge that joins more than two namespaces of a built-in lab, with one port per host.

Pure: the settings of the bridge's own agent, which creates every pair. Two hosts need no bridge:
the receiver creates the pair that joins them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from udpbench.definition.binding.card import TSO_FEATURES, cable
from udpbench.definition.binding.host_block import LabContext, block_of
from udpbench.definition.binding.setting_order import link_end, mac_of
from udpbench.host_settings import Settings, VethPair
from udpbench.model import Lab, LabHost, Setting, Trial

BRIDGE = "bridge"
"""Name of the agent in the bridge's namespace; it has no role in a trial."""
BRIDGE_INTERFACE = "bridge0"


def bridge_settings_for(lab: Lab, trial: Trial | None, context: LabContext) -> tuple[Setting, ...]:
    """Return the settings of the bridge's agent in order of application; none for two hosts.

    The pairs come first, so that later changes leave them in place. Raises Unavailable if a link is
    to have queues on CPUs that do not exist.
    """
    if not lab.bridged:
        return ()
    ports = [
        _Port(n, host, mac_of(lab, host), block_of(lab, trial, host))
        for n, host in enumerate(lab.hosts, 1)
    ]
    ends = [link_end(lab, trial, port.host, context) for port in ports]
    pids = context.pids
    return (
        *(
            port.pair(pids.get(port.host.name), queues)
            for port, (queues, _) in zip(ports, ends, strict=True)
        ),
        Setting("bridge", BRIDGE_INTERFACE, True),
        *(_quiet(name) for name in (BRIDGE_INTERFACE, *(port.name for port in ports))),
        *(setting for port in ports for setting in port.sizes()),
        *(
            setting
            for port, (_, receive) in zip(ports, ends, strict=True)
            for setting in port.features(receive)
        ),
        *(port.joined() for port in ports),
        *(Setting("up", port.name, True) for port in ports),
        *(setting for port in ports for setting in port.rate()),
        Setting("up", BRIDGE_INTERFACE, True),
    )


def _quiet(name: str) -> Setting:
    """Return IPv6 off, set while the link is down: neighbour discovery would count as packets."""
    return Setting("sysctl", f"net.ipv6.conf.{name}.disable_ipv6", 1, optional=True)


@dataclass(frozen=True)
class _Port:
    """The bridge's end of the pair of one host."""

    number: int
    host: LabHost
    station: str
    """The host's MAC."""
    settings: Settings

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
        # A bridge drops frames longer than its port's MTU without counting them (6.18).
        if self.settings.mtu_bytes is not None:
            yield Setting("mtu", self.name, self.settings.mtu_bytes, path=self.path("mtu"))

    def features(self, receive: str) -> Iterator[Setting]:
        # The port sends to the host, so its TSO would keep packets from the host's NAPI.
        if self.host.role == "receiver" and receive == "napi":
            for name in TSO_FEATURES:
                path = self.path("link.receive")
                yield Setting("feature", f"{self.name}/{name}", False, path=path)

    def rate(self) -> Iterator[Setting]:
        # What exceeds a receiver's link rate is lost in the bridge: stage ``link``.
        rate_bps = (self.settings.link or VethPair()).rate_bps
        if self.host.role == "receiver" and isinstance(rate_bps, int):
            value = cable(rate_bps, self.settings)
            yield Setting("qdisc", self.name, value, path=self.path("link.rate"))

    def joined(self) -> Setting:
        return Setting("port", self.name, {"bridge": BRIDGE_INTERFACE, "station": self.station})

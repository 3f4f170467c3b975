"""The joint of a built-in lab: the node that makes a pair to each namespace, with a port per host.

Pure: the settings of its own agent. Two hosts need no joint: the receiver creates the pair that
joins them. Of several the joint is a bridge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from udpbench.definition.binding.card import TSO_FEATURES, cable
from udpbench.definition.binding.host_block import HostBlock, LabContext
from udpbench.definition.binding.setting_order import mac, mac_of
from udpbench.model.experiment import Trial
from udpbench.model.host import Setting
from udpbench.model.lab import BRIDGE, Lab


def joint_settings_for(lab: Lab, trial: Trial | None, context: LabContext) -> tuple[Setting, ...]:
    """Return the settings of the joint's agent in order of application; none without a joint.

    The pairs come first, so that later changes leave them in place. Raises Unavailable if a link is
    to have queues on CPUs that do not exist.
    """
    if lab.joint is None:
        return ()
    ports = [_Port(n, HostBlock(lab, trial, host, context)) for n, host in enumerate(lab.ends, 1)]
    return (
        *(port.pair() for port in ports),
        Setting("bridge", BRIDGE.interface, True),
        *(_quiet(name) for name in (BRIDGE.interface, *(port.name for port in ports))),
        *(setting for port in ports for setting in port.sizes()),
        *(setting for port in ports for setting in port.features()),
        *(port.joined() for port in ports),
        *(Setting("up", port.name, True) for port in ports),
        *(setting for port in ports for setting in port.rate()),
        Setting("up", BRIDGE.interface, True),
    )


def _quiet(name: str) -> Setting:
    """Return IPv6 off, set while the link is down: neighbour discovery would count as packets."""
    return Setting("sysctl", f"net.ipv6.conf.{name}.disable_ipv6", 1, optional=True)


@dataclass(frozen=True)
class _Port:
    """The joint's end of the pair of one host."""

    number: int
    block: HostBlock

    @property
    def name(self) -> str:
        return f"port{self.number}"

    @property
    def station(self) -> str:
        """The host's MAC."""
        return mac_of(self.block.lab, self.block.host)

    def setting(self, kind: str, target: str, value: object, path: str) -> Setting:
        return Setting(kind, f"{self.name}{target}", value, path=self.block.path(path))

    def pair(self) -> Setting:
        host = self.block.host
        value = {
            "peer": host.interface,
            "peer_pid": self.block.context.pids.get(host.name),
            "peer_mac": self.station,
            "mac": mac(3, self.number),
            "queues": self.block.link_queues,
        }
        return self.setting("link", "", value, "link")

    def sizes(self) -> Iterator[Setting]:
        # A bridge drops frames longer than its port's MTU without counting them (6.18).
        if self.block.settings.mtu_bytes is not None:
            yield self.setting("mtu", "", self.block.settings.mtu_bytes, "mtu")

    def features(self) -> Iterator[Setting]:
        # The port sends to the host, so its TSO would keep packets from the host's NAPI.
        if self.block.host.receives and self.block.receive == "napi":
            for name in TSO_FEATURES:
                yield self.setting("feature", f"/{name}", False, "link.receive")

    def rate(self) -> Iterator[Setting]:
        # What exceeds a receiver's link rate is lost in the bridge: stage ``link``.
        rate_bps = self.block.link.rate_bps
        if self.block.host.receives and isinstance(rate_bps, int):
            yield self.setting("qdisc", "", cable(rate_bps, self.block.settings), "link.rate")

    def joined(self) -> Setting:
        return Setting("port", self.name, {"bridge": BRIDGE.interface, "station": self.station})

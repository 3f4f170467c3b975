"""The kinds of setting by name: how each is read, written and compared, and nothing else.

A new kind is a module with ``read`` and ``write`` and one line here; restoring is the engine's.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable, Optional

from udpbench.agent.host import Host
from udpbench.agent.settings import (
    address,
    bridge,
    channels,
    coalesce,
    cpu_latency,
    device,
    explain,
    feature,
    firewall,
    flow_hash,
    governor,
    indirection,
    irq,
    irqbalance,
    link,
    mtu,
    napi_cpus,
    neighbour,
    ntuple,
    pause,
    port,
    qdisc,
    rfs,
    rings,
    route,
    rps,
    rps_default,
    sysctl,
    tc_drop,
    trap,
    turbo,
    txqueuelen,
    unclaimed,
    up,
    xdp,
    xps,
)


def _never(_wanted: Any, _got: Any) -> bool:
    return False


def _anything(_host: Host, _target: str, _value: Any, _now: Any) -> None:
    """Refuse nothing."""


@dataclass(frozen=True)
class Kind:
    """One kind: ``same(wanted, got)`` says whether a value is the one that was asked for.

    ``rounded(wanted, got)`` says whether ``got`` is what the kernel or a driver makes of it.
    """

    read: Callable[[Host, str], Any]
    write: Callable[[Host, str, Any], None]
    same: Callable[[Any, Any], bool] = operator.eq
    rounded: Callable[[Any, Any], bool] = _never
    check: Callable[[Host, str, Any, Any], None] = _anything
    """``check(host, target, value, now)`` raises OSError where a change would take along what could
    not be given back, or what is there is somebody else's; so a dry run knows it, too."""
    disruptive: bool = False
    """It could cut a connection by its interface, the first part of the target."""
    needs: str = ""
    """Kind that may have to be set before it can even be read."""
    diverts: bool = False
    """It leads packets to an address or network, the rest of the target, by its interface."""
    flaps: bool = False
    """A driver may take the link down and up again for it."""
    alike: Optional[Callable[[Any, Any], bool]] = None
    """``alike(wanted, got)`` compares without what others, or the kernel, may move at any time: to
    tell what somebody else changed, and what was put back. None: ``same`` does."""
    stays: bool = True
    """It is a state that can be looked at again; false: what was found when it was asked for."""


KINDS: Mapping[str, Kind] = {
    "link": Kind(link.read, link.write, link.same),
    "bridge": Kind(bridge.read, bridge.write),
    "port": Kind(port.read, port.write),
    "up": Kind(up.read, up.write, disruptive=True),
    "unclaimed": Kind(unclaimed.read, unclaimed.write, check=unclaimed.check, stays=False),
    "address": Kind(address.read, address.write, diverts=True),
    "neighbour": Kind(neighbour.read, neighbour.write, neighbour.same, diverts=True),
    "route": Kind(route.read, route.write, route.same, check=route.check, diverts=True),
    "mtu": Kind(mtu.read, mtu.write, check=mtu.check, disruptive=True, flaps=True),
    "txqueuelen": Kind(txqueuelen.read, txqueuelen.write),
    "qdisc": Kind(qdisc.read, qdisc.write, qdisc.same, check=qdisc.check, disruptive=True),
    "xdp": Kind(xdp.read, xdp.write, disruptive=True),
    "tc_drop": Kind(tc_drop.read, tc_drop.write),
    "explain": Kind(explain.read, explain.write),
    "trap": Kind(trap.read, trap.write, disruptive=True),
    "firewall": Kind(firewall.read, firewall.write, firewall.same),
    "channels": Kind(
        channels.read,
        channels.write,
        channels.same,
        alike=channels.alike,
        disruptive=True,
        flaps=True,
    ),
    "rings": Kind(rings.read, rings.write, rings.same, rings.rounded, disruptive=True, flaps=True),
    "feature": Kind(feature.read, feature.write, check=feature.check, disruptive=True, flaps=True),
    "flow_hash": Kind(flow_hash.read, flow_hash.write, flow_hash.same),
    "indirection": Kind(indirection.read, indirection.write, indirection.same),
    "ntuple": Kind(ntuple.read, ntuple.write, check=ntuple.check, needs="feature"),
    "coalesce": Kind(coalesce.read, coalesce.write, coalesce.same, coalesce.rounded),
    "pause": Kind(pause.read, pause.write, pause.same, disruptive=True, flaps=True),
    "device": Kind(device.read, device.write),
    "napi_cpus": Kind(napi_cpus.read, napi_cpus.write, napi_cpus.same),
    "irqbalance": Kind(irqbalance.read, irqbalance.write, irqbalance.same),
    "irq": Kind(irq.read, irq.write, irq.same, disruptive=True),
    "rps": Kind(rps.read, rps.write, rps.same),
    "rps_default": Kind(rps_default.read, rps_default.write, rps_default.same),
    "rfs": Kind(rfs.read, rfs.write, rounded=rfs.rounded),
    "xps": Kind(xps.read, xps.write, xps.same),
    "sysctl": Kind(sysctl.read, sysctl.write, sysctl.same, check=sysctl.check),
    "governor": Kind(governor.read, governor.write, governor.same),
    "turbo": Kind(turbo.read, turbo.write),
    "cpu_latency": Kind(cpu_latency.read, cpu_latency.write, rounded=cpu_latency.rounded),
}

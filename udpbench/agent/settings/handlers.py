"""Every kind of setting by name, collected from the modules that define them."""

from __future__ import annotations

from collections.abc import Mapping

from udpbench.agent.settings import (
    addresses,
    card,
    cpu,
    drop_reasons,
    firewall,
    interface_state,
    links,
    packet_traps,
    passed_rules,
    path_guard,
    qdisc,
    queue_polling,
    routes,
    steering,
    sysctl,
    wireguard,
)
from udpbench.agent.settings.kind import Kind

KINDS: Mapping[str, Kind] = {
    **links.KINDS,
    **wireguard.KINDS,
    **addresses.KINDS,
    **routes.KINDS,
    **card.KINDS,
    **queue_polling.KINDS,
    **steering.KINDS,
    **cpu.KINDS,
    **qdisc.KINDS,
    **sysctl.KINDS,
    **firewall.KINDS,
    **passed_rules.KINDS,
    **path_guard.KINDS,
    **packet_traps.KINDS,
    **drop_reasons.KINDS,
    **interface_state.KINDS,
}

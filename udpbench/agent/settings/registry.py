"""The kinds of setting by name: how each is read, written and compared, and nothing else.

A new kind is a module with ``read`` and ``write`` and one line here; restoring is the engine's.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable

from udpbench.agent.host import Host
from udpbench.agent.settings import (
    address,
    device,
    feature,
    link,
    mtu,
    napi_cpus,
    neighbour,
    qdisc,
    rps,
    sysctl,
    txqueuelen,
    up,
    xps,
)


@dataclass(frozen=True)
class Kind:
    """One kind: ``same(wanted, got)`` says whether the kernel keeps what was asked for."""

    read: Callable[[Host, str], Any]
    write: Callable[[Host, str, Any], None]
    same: Callable[[Any, Any], bool] = operator.eq


KINDS: Mapping[str, Kind] = {
    "link": Kind(link.read, link.write, link.same),
    "up": Kind(up.read, up.write),
    "address": Kind(address.read, address.write),
    "neighbour": Kind(neighbour.read, neighbour.write, neighbour.same),
    "mtu": Kind(mtu.read, mtu.write),
    "txqueuelen": Kind(txqueuelen.read, txqueuelen.write),
    "qdisc": Kind(qdisc.read, qdisc.write, qdisc.same),
    "feature": Kind(feature.read, feature.write),
    "device": Kind(device.read, device.write),
    "napi_cpus": Kind(napi_cpus.read, napi_cpus.write, napi_cpus.same),
    "rps": Kind(rps.read, rps.write, rps.same),
    "xps": Kind(xps.read, xps.write, xps.same),
    "sysctl": Kind(sysctl.read, sysctl.write, sysctl.same),
}

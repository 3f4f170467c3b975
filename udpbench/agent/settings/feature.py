"""Kind ``feature``: an offload feature of an interface, ``send0/rx-gro``; the kernel's names.

A fixed feature is refused, or quietly kept as it is: only reading back tells.
"""

from __future__ import annotations

import errno

from udpbench.agent import ethtool
from udpbench.agent.host import Host

STEERING = "rx-ntuple-filter"


def read(host: Host, target: str) -> bool:
    """Say whether the feature is active."""
    interface, _, name = target.partition("/")
    features = host.features(interface)
    if name not in features:
        raise OSError(errno.EINVAL, f"{interface} has no feature {name}")
    return features[name]


def write(host: Host, target: str, value: bool) -> None:
    """Ask for the feature to be on or off."""
    interface, _, name = target.partition("/")
    host.set_feature(interface, name, value)


def check(host: Host, target: str, value: bool, now: bool) -> None:
    """Refuse to switch steering off under rules: drivers forget them (i40e, ice, bnxt)."""
    del now
    interface, _, name = target.partition("/")
    if name != STEERING or value:
        return
    try:
        rules = ethtool.parse_ntuple(ethtool.show(host, "-n", interface))
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:  # it has no rules to list
            return
        raise
    if rules:
        listed = ", ".join(str(rule.location) for rule in rules)
        raise OSError(errno.EEXIST, f"{interface} would forget its steering rules: {listed}")

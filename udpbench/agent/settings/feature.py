"""Kind ``feature``: an offload feature of an interface, ``send0/rx-gro``; the kernel's names.

A fixed feature is refused, or quietly kept as it is: only reading back tells.
"""

from __future__ import annotations

import errno

from udpbench.agent.host import Host


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

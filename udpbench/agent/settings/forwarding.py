"""What goes for good when an interface begins to forward: advertised IPv6 routes, and LRO.

Switching forwarding off again brings neither back, so whoever switches it on is refused.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

from udpbench.agent import reading
from udpbench.agent.host import Host

ROUTES = "/proc/net/ipv6_route"
RTF_DEFAULT = 0x00010000  # include/uapi/linux/ipv6_route.h
RTF_ADDRCONF = 0x00040000
ACCEPTED_ALL_THE_SAME = "2"
"""Of accept_ra: routes are learnt, and kept, while an interface forwards."""
LRO = "rx-lro"
_NAME = re.compile(r"net/(?:ipv4/ip_forward|(ipv[46])/conf/([^/]+)/forwarding)")


def check(host: Host, name: str) -> None:
    """Refuse to switch a parameter on; OSError EBUSY where something would go for good.

    net/ipv6/addrconf.c: addrconf_fixup_forwarding(); net/ipv4/devinet.c: inet_forward_change().
    """
    found = _NAME.fullmatch(name)
    if found is None or found.group(2) == "default":
        return
    version, where = found.group(1) or "ipv4", found.group(2) or "all"
    learnt = sorted(set(_learnt(host))) if version == "ipv6" else []
    if learnt:
        step = " ".join(f"net/ipv6/conf/{one}/accept_ra=2" for one in learnt)
        raise OSError(
            errno.EBUSY,
            f"{name} would take the routes that routers advertise on {', '.join(learnt)} away "
            f"for good, and an SSH connection with them; keep them: sysctl -w {step}",
        )
    merging = [one for one in _affected(host, where) if _merges(host, one)]
    if merging:
        step = "; ".join(f"ethtool -K {one} lro off" for one in merging)
        what = f"{name} would switch LRO off for good on {', '.join(merging)}"
        raise OSError(errno.EBUSY, f"{what}; switch it off before the run: {step}")


def _learnt(host: Host) -> Iterator[str]:
    """Yield the interfaces whose advertised routes the kernel purges, of the whole namespace."""
    for line in (reading.read(host, ROUTES) or "").splitlines():
        *_, flags, interface = line.split()
        if int(flags, 16) & (RTF_DEFAULT | RTF_ADDRCONF):
            accept = reading.read(host, f"/proc/sys/net/ipv6/conf/{interface}/accept_ra")
            if accept != ACCEPTED_ALL_THE_SAME:
                yield interface


def _affected(host: Host, where: str) -> list[str]:
    """Return an interface and all that it stands on, or all interfaces."""
    if where == "all":
        return reading.names(host, "/sys/class/net")
    found = [where]
    for one in found:  # it grows
        names = reading.names(host, f"/sys/class/net/{one}")
        lower = [name[len("lower_") :] for name in names if name.startswith("lower_")]
        found += [name for name in lower if name not in found]
    return found


def _merges(host: Host, interface: str) -> bool:
    try:
        return host.features(interface).get(LRO, False)
    except OSError:  # /sys/class/net/bonding_masters is none, and some have no ethtool
        return False

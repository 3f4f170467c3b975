"""Kind ``device``: an integer among an interface's attributes in /sys/class/net."""

from __future__ import annotations

import errno

from udpbench.agent.host import Host
from udpbench.agent.settings import up

KNOWN = ("threaded", "napi_defer_hard_irqs", "gro_flush_timeout")


def read(host: Host, target: str) -> int:
    """Return the attribute; gro_flush_timeout is in nanoseconds."""
    return int(host.read_text(_path(target)))


def write(host: Host, target: str, value: int) -> None:
    """Set the attribute.

    A veth that is down has no NAPI, and Linux 6.18 refuses even to clear ``threaded`` there, which
    would be left behind where somebody has cut the link: it is up for as long as the write takes.
    """
    path = _path(target)
    interface = target.partition("/")[0]
    try:
        host.write_text(path, str(value))
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP or up.read(host, interface):
            raise
        up.write(host, interface, True)
        try:
            host.write_text(path, str(value))
        finally:
            up.write(host, interface, False)


def _path(target: str) -> str:
    interface, _, name = target.partition("/")
    if name not in KNOWN or interface in ("", ".", ".."):
        raise ValueError(f"{target} is no interface with one of {', '.join(KNOWN)}")
    return f"/sys/class/net/{interface}/{name}"

"""Kind ``device``: an integer among an interface's attributes in /sys/class/net."""

from __future__ import annotations

from udpbench.agent.host import Host

KNOWN = ("threaded", "napi_defer_hard_irqs", "gro_flush_timeout")


def read(host: Host, target: str) -> int:
    """Return the attribute; gro_flush_timeout is in nanoseconds."""
    return int(host.read_text(_path(target)))


def write(host: Host, target: str, value: int) -> None:
    """Set the attribute."""
    host.write_text(_path(target), str(value))


def _path(target: str) -> str:
    interface, _, name = target.partition("/")
    if name not in KNOWN or interface in ("", ".", ".."):
        raise ValueError(f"{target} is no interface with one of {', '.join(KNOWN)}")
    return f"/sys/class/net/{interface}/{name}"

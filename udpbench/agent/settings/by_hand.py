"""The command that sets one value by hand, for the moment when restoring did not."""

from __future__ import annotations

import shlex
from typing import Any

from udpbench.agent.settings import masks
from udpbench.model import Setting


def command(setting: Setting, value: Any) -> str:
    """Return a shell command that sets ``value`` where ``setting`` changed it."""
    interface, _, rest = setting.target.partition("/")
    words = _words(setting.kind, interface, rest, value)
    if words is not None:
        return shlex.join(words)
    return _writes(setting, interface, rest, value)


def _words(kind: str, interface: str, rest: str, value: Any) -> Any:
    if kind == "link" and value is None:
        return ["ip", "link", "del", interface]
    if kind == "up":
        return ["ip", "link", "set", interface, "up" if value else "down"]
    if kind in ("mtu", "txqueuelen"):
        return ["ip", "link", "set", interface, kind, str(value)]
    if kind == "address":
        return ["ip", "address", "add" if value else "del", rest, "dev", interface]
    if kind == "neighbour":
        verb = ["del", rest] if value is None else ["replace", rest, "lladdr", value]
        return ["ip", "neighbour", *verb, "dev", interface]
    if kind == "qdisc":
        return ["tc", "qdisc", *_qdisc(interface, value)]
    if kind == "feature":
        return ["ethtool", "-K", interface, rest, "on" if value else "off"]
    return None


def _qdisc(interface: str, value: Any) -> list[str]:
    if value is None:
        return ["del", "dev", interface, "root"]
    ((name, options),) = value.items()
    spelled = {
        "rate_bps": ("rate", "bit"),
        "burst_bytes": ("burst", ""),
        "limit_bytes": ("limit", ""),
        "limit_packets": ("limit", ""),
    }
    words = ["replace", "dev", interface, "root", name]
    for key, number in options.items():
        word, unit = spelled[key]
        words += [word, f"{number}{unit}"]
    return words


def _writes(setting: Setting, interface: str, rest: str, value: Any) -> str:
    if setting.kind == "device":
        return f"echo {value} > {shlex.quote(f'/sys/class/net/{interface}/{rest}')}"
    if setting.kind in ("rps", "xps"):
        path = masks.path(setting.target, f"{setting.kind}_cpus")
        return f"echo {masks.text(value)} > {shlex.quote(path)}"
    if setting.kind == "sysctl":
        return shlex.join(["sysctl", "-w", f"{setting.target}={value}"])
    if setting.kind == "napi_cpus" and all(cpus == value[0] for cpus in value):
        listed = ",".join(map(str, value[0]))
        return f"for pid in $(pgrep napi/{interface}-); do taskset -cp {listed} $pid; done"
    return f"put {setting.kind} {setting.target} back to {value}"

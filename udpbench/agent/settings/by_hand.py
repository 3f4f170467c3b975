"""The command that sets one value by hand, for the moment when restoring did not."""

from __future__ import annotations

import shlex
from typing import Any, Optional

from udpbench.agent import ethtool
from udpbench.agent.settings import (
    channels,
    coalesce,
    governor,
    indirection,
    iptables,
    masks,
    rps_default,
    rules,
)
from udpbench.model import Setting


def command(setting: Setting, value: Any) -> str:
    """Return a shell command that sets ``value`` where ``setting`` changed it; else it in words."""
    try:
        return _command(setting, value)
    except Exception:  # noqa: BLE001 - it is asked for while restoring, which has to go on
        return _told(setting, value)


def _command(setting: Setting, value: Any) -> str:
    interface, _, rest = setting.target.partition("/")
    if setting.kind == "firewall":
        return shlex.join(iptables.by_hand(rules.parse(setting.target), bool(value)))
    words = _words(setting.kind, interface, rest, value)
    if words is None:
        words = _ethtool(setting.kind, interface, rest, value)
    if words is not None:
        return shlex.join(words)
    return _writes(setting, interface, rest, value)


def _words(kind: str, interface: str, rest: str, value: Any) -> Optional[list[str]]:
    if kind in ("link", "bridge") and value is None:
        return ["ip", "link", "del", interface]
    if kind == "port" and value is None:
        return ["ip", "link", "set", interface, "nomaster"]
    if kind == "up":
        return ["ip", "link", "set", interface, "up" if value else "down"]
    if kind in ("mtu", "txqueuelen"):
        return ["ip", "link", "set", interface, kind, str(value)]
    if kind == "address":
        return ["ip", "address", "add" if value else "del", rest, "dev", interface]
    if kind == "neighbour":
        change = ["del", rest] if value is None else ["replace", rest, "lladdr", value]
        return ["ip", "neighbour", *change, "dev", interface]
    if kind == "route":
        gateway = ["via", value] if value not in (None, "link") else []
        verb = "del" if value is None else "add"
        return ["ip", "route", verb, rest, *gateway, "dev", interface]
    if kind == "irqbalance":
        return ["pkill", "-CONT" if value else "-STOP", "-x", "irqbalance"]
    if kind == "xdp" and value is None:
        return ["ip", "link", "set", interface, "xdp", "off"]
    if kind in ("tc_drop", "trap") and value is None:
        place = "clsact" if kind == "tc_drop" else "root"
        return ["tc", "qdisc", "del", "dev", interface, place]
    if kind == "qdisc":
        return ["tc", "qdisc", *_qdisc(interface, value)]
    if kind == "feature":
        return ["ethtool", "-K", interface, rest, "on" if value else "off"]
    return None


def _ethtool(kind: str, interface: str, rest: str, value: Any) -> Optional[list[str]]:
    if kind == "flow_hash":
        return ["ethtool", "-N", interface, "rx-flow-hash", rest, value]
    if kind == "ntuple" and value is not None:
        flow, _, port = rest.partition("/")
        rule = ["flow-type", flow, "dst-port", port, "action", str(value)]
        return ["ethtool", "-N", interface, *rule]
    if kind == "indirection":
        words = indirection.words_for(value)
        return ["ethtool", "-X", interface, *words.split()] if words is not None else None
    options = {"rings": "-G", "pause": "-A"}
    if kind in options:
        switches = value if kind == "pause" else ()
        return ["ethtool", options[kind], interface, *ethtool.words_of(value, switches)]
    return None


def _coalesce(interface: str, value: dict[str, int]) -> str:
    """Return the numbers while nothing adapts, whatever does now, and then what shall adapt."""
    adapting = {key: 1 for key in coalesce.SWITCHES if value.get(key)}
    steps = coalesce.steps({**value, **dict.fromkeys(adapting, 0)}) + coalesce.steps(adapting)
    return "; ".join(
        shlex.join(["ethtool", "-C", interface, *ethtool.words_of(step, coalesce.SWITCHES)])
        for step in steps
    )


def _channels(interface: str, value: dict[str, Any]) -> str:
    """Return the counts and then what depends on them, as far as it was set."""
    counts = ethtool.words_of(channels.counts_of(value, value))
    commands = [shlex.join(["ethtool", "-L", interface, *counts])]
    table = value.get("indirection")
    words = indirection.words_for(table) if table is not None else None
    if words is not None:
        commands.append(shlex.join(["ethtool", "-X", interface, *words.split()]))
    for name, text in value.get("queues", {}).items():
        if text.strip("0,"):
            commands.append(_echo(text, f"/sys/class/net/{interface}/queues/{name}"))
    for name, cpus in value.get("interrupts", {}).items():
        number = f"$(grep -lxF {shlex.quote(name)} /sys/kernel/irq/*/actions | cut -d/ -f5)"
        commands.append(f"echo {cpus} > /proc/irq/{number}/smp_affinity_list")
    threads = value.get("napi_cpus")
    if threads:
        commands.append(_taskset(interface, threads))
    return "; ".join(commands)


def _taskset(interface: str, threads: list[list[int]]) -> str:
    """Return what pins NAPI threads, whose numbers are in their queues' order."""
    if all(cpus == threads[0] for cpus in threads):
        listed = ",".join(map(str, threads[0]))
        return f"for pid in $(pgrep napi/{interface}-); do taskset -cp {listed} $pid; done"
    return f"put napi_cpus {interface} back to {threads}"


def _echo(text: Any, path: str) -> str:
    return f"echo {text} > {shlex.quote(path)}"


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
        return _echo(value, f"/sys/class/net/{interface}/{rest}")
    if setting.kind == "coalesce":
        return _coalesce(interface, value)
    if setting.kind == "channels":
        return _channels(interface, value)
    if setting.kind == "governor":
        return "; ".join(_echo(text, governor.path(name)) for name, text in value.items())
    if setting.kind == "irq":
        listed = ",".join(map(str, value))
        where = f"see the number of {interface}'s {rest} in /proc/interrupts"
        return f"{where}, then {_echo(listed, '/proc/irq/NUMBER/smp_affinity_list')}"
    if setting.kind == "turbo":
        return (
            "cd /sys/devices/system/cpu; if [ -e intel_pstate/no_turbo ]; "
            f"then {_echo(int(not value), 'intel_pstate/no_turbo')}; "
            f"else {_echo(int(value), 'cpufreq/boost')}; fi"
        )
    if setting.kind == "ntuple":
        return f"ethtool -n {interface}, then ethtool -N {interface} delete NUMBER of {rest}"
    if setting.kind in ("rps", "xps"):
        return _echo(masks.text(value), masks.path(setting.target, f"{setting.kind}_cpus"))
    if setting.kind == "rps_default":
        return _echo(masks.text(value), rps_default.PATH)
    if setting.kind == "rfs":
        return _echo(value, masks.path(setting.target, "rps_flow_cnt"))
    if setting.kind == "sysctl":
        values = value if isinstance(value, dict) else {setting.target: value}
        return shlex.join(["sysctl", "-w", *(f"{name}={one}" for name, one in values.items())])
    if setting.kind == "napi_cpus":
        return _taskset(interface, value)
    return _told(setting, value)


def _told(setting: Setting, value: Any) -> str:
    return f"put {setting.kind} {setting.target} back to {value}"

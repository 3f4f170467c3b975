"""The recipe of a tune: keys of an experiment, commands, a systemd drop-in, socket options.

Translates keys into what the owner of the program or the host would write. Pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from udpbench.definition.overrides import split
from udpbench.model.experiment import Trial
from udpbench.model.host import Facts
from udpbench.model.limits import Role
from udpbench.printable import printable
from udpbench.text_tables import rows_of

Form = Literal["shell", "systemd", "C", "program"]
"""Root's command; a line below ``[Service]``; a line of C; a requirement on the program."""


Ways = Mapping[str, tuple[str, str]]
"""Node in the middle → the interfaces by which packets come in and leave."""
ANYWHERE = "", ("eth0", "eth1")


class Instruction(NamedTuple):
    """One thing to do."""

    form: Form
    text: str


_INSTRUCTIONS = """\
receive.buffer | C | int bytes = {receive.buffer_bytes};
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
receive.gro | C | int on = 1; setsockopt(fd, SOL_UDP, UDP_GRO, &on, sizeof on);
receive.sockets | C | int on = 1; setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
receive.workers | program | threads that read, each on a CPU of its own: {receive.workers}
receive.batch | C | recvmmsg(fd, messages, {receive.messages}, MSG_WAITFORONE, NULL);
receive.cpus | systemd | CPUAffinity={receive.cpus}
send.workers | program | threads that send, each on a CPU of its own: {send.workers}
send.batch | C | sendmmsg(fd, messages, {send.messages}, 0);
send.gso | C | int bytes = {traffic.datagrams.longest_bytes};
  setsockopt(fd, SOL_UDP, UDP_SEGMENT, &bytes, sizeof bytes);
settings.receiver.firewall.accept | shell | iptables -I INPUT -p udp --dport {port} -j ACCEPT
settings.receiver.firewall.notrack | shell
  | iptables -t raw -I PREROUTING -p udp --dport {port} -j NOTRACK
settings.receiver.ethtool.rings.rx | shell | ethtool -G {receiver} rx {value}
settings.receiver.ethtool.rx-flow-hash.udp4 | shell
  | ethtool -N {receiver} rx-flow-hash udp4 {value}
settings.receiver.irq.cpus | shell | for irq in /sys/class/net/{receiver}/device/msi_irqs/*;
  do echo {value} > /proc/irq/${{irq##*/}}/smp_affinity_list; done
settings.receiver.rps.cpus | shell | for queue in /sys/class/net/{receiver}/queues/rx-*;
  do echo {mask} > $queue/rps_cpus; done
settings.receiver.cpu.governor | shell | cpupower frequency-set -g {value}
settings.middle.firewall.accept | shell | iptables -I FORWARD -p udp --dport {port} -j ACCEPT
settings.middle.firewall.notrack | shell
  | iptables -t raw -I PREROUTING -p udp --dport {port} -j NOTRACK
settings.middle.ethtool.rings.rx | shell | ethtool -G {middle} rx {value}
settings.middle.irq.cpus | shell | for irq in /sys/class/net/{middle}/device/msi_irqs/*;
  do echo {value} > /proc/irq/${{irq##*/}}/smp_affinity_list; done
settings.middle.rps.cpus | shell | for queue in /sys/class/net/{middle}/queues/rx-*;
  do echo {mask} > $queue/rps_cpus; done
settings.middle.qdisc | shell | tc qdisc replace dev {out} root pfifo limit {limit}
settings.sender.qdisc | shell | tc qdisc replace dev {sender} root pfifo limit 1000
"""
"""Key | form | text; ``{…}`` is a value of the trial, or the interface of a role."""
_LINK = {
    "napi": "ethtool -K {receiver} gro on; echo 1 > /sys/class/net/{receiver}/threaded",
    "rps": "for queue in /sys/class/net/{receiver}/queues/rx-*; do echo ff > $queue/rps_cpus; done",
}
"""``link.receive`` of a veth pair → equivalent commands for the user's own interface."""


INSTRUCTIONS = {key: (form, line) for key, form, line in rows_of(_INSTRUCTIONS)}


def as_yaml(sets: Sequence[str]) -> str:
    """Return ``path=value`` pairs as the keys of an experiment that extends another."""
    nested: dict[str, Any] = {}
    for each in sets:
        path, _, value = each.partition("=")
        *above, last = map(str, split(path))
        block = nested
        for key in above:
            block = block.setdefault(key, {})
        block[last] = value
    return "\n".join(_lines(nested, ""))


def instructions(
    sets: Sequence[str],
    trial: Trial,
    facts: Mapping[Role, Facts],
    nodes: Ways,
) -> tuple[Instruction, ...]:
    """Return the instructions equivalent to ``path=value`` pairs of a trial, without duplicates.

    What is set of nodes in the middle is typed at each of them.
    """
    lines: dict[Instruction, None] = {}
    for each in sets:
        at = nodes.items() if each.startswith("settings.middle.") else ()
        for node, interfaces in at or [ANYWHERE]:
            for form, text in _of(each, trial, facts, interfaces):
                lines[Instruction(form, f"{text}  # {node}" if node else text)] = None
    return tuple(Instruction(form, printable(text, keep="")) for form, text in lines)


def _lines(block: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in block.items():
        if isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from _lines(value, f"{indent}  ")
        else:
            yield f"{indent}{key}: {value}"


def _of(
    text: str, trial: Trial, facts: Mapping[Role, Facts], interfaces: tuple[str, str]
) -> Iterator[Instruction]:
    path, _, value = text.partition("=")
    names: dict[str, str] = {role: each.interface for role, each in facts.items()}
    # Whoever wrote the run folder chose the names; a reader types what they are part of.
    words = {role: shlex.quote(names.get(role, "eth0")) for role in ("sender", "receiver")}
    words |= dict(zip(("middle", "out"), map(shlex.quote, interfaces), strict=True))
    quoted = shlex.quote(value)
    sysctl = re.fullmatch(r"settings\.(?:sender|middle|receiver)\.sysctl\.(.+)", path)
    if sysctl is not None:
        yield Instruction("shell", f"sysctl -w {shlex.quote(sysctl[1])}={quoted}")
    elif path == "settings.receiver.link.receive":
        yield Instruction("shell", _LINK[value].format(**words))
    elif value == "same-node":
        text = "run on the CPUs of its node: /sys/class/net/{receiver}/device/local_cpulist"
        yield Instruction("program", text.format(**words))
    elif path.endswith(".priority"):
        yield from _priority(value)
    elif path in INSTRUCTIONS:
        yield from _limit(path, trial, facts.get("receiver"))
        form, line = INSTRUCTIONS[path]
        block = trial.settings.get("middle" if path.startswith("settings.middle.") else "receiver")
        firewall = block.firewall if block is not None else None
        queue = block.qdisc.pfifo if block is not None and block.qdisc is not None else None
        words["limit"] = str(queue.limit_packets) if queue is not None else ""
        parts = {"send": trial.send, "receive": trial.receive, "traffic": trial.traffic}
        port = firewall.udp if firewall is not None else ""
        mask = _mask(value) if path.endswith("rps.cpus") else ""
        filled = line.format(**words, **parts, value=quoted, port=port, mask=mask)
        yield Instruction(form, filled)  # type: ignore[arg-type]


def _limit(path: str, trial: Trial, facts: Facts | None) -> Iterator[Instruction]:
    """Yield the sysctl that a socket option needs, since the kernel clamps it to its limit."""
    requested_bytes = trial.receive.buffer_bytes
    limit = facts.limits.get("net.core.rmem_max") if facts is not None else None
    if (
        path == "receive.buffer"
        and requested_bytes is not None
        and (limit is None or limit < requested_bytes)
    ):
        yield Instruction("shell", f"sysctl -w net.core.rmem_max={requested_bytes}")


def _priority(value: str) -> Iterator[Instruction]:
    kind, _, number = value.partition(" ")
    if kind == "fifo":
        yield Instruction("systemd", "CPUSchedulingPolicy=fifo")
        yield Instruction("systemd", f"CPUSchedulingPriority={number}")
    else:
        yield Instruction("systemd", f"Nice={number}")


def _mask(cpus: str) -> str:
    """Return a list of CPU numbers as sysfs's hexadecimal mask."""
    return f"{sum(1 << int(cpu) for cpu in cpus.split(',')):x}"

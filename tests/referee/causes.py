"""The causes that are planted, what is true of each, and how its size is drawn.

A cause is a function: its name is the cause's in our own words (what udpbench calls it is for
``accepted.py`` alone), its docstring says what is true and what a right answer must and must not
say, and it draws a plan. Not every trial of an experiment loses something by its plan: what lost
nothing is planted again, and then counts as void.
"""
# ruff: noqa: D401 - what is true of a cause is no command

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import actions
from planting import Action, Plan, Step

MORE = r"(?<!no )(?<!not )\b(raise|enlarge|larger|bigger|more|another|faster)\b"
BUFFER = rf"{MORE}.{{0,40}}(buffer|rmem)|receive\.buffer="
FASTER = rf"{MORE}.{{0,40}}(worker|reader|queue|cpu)|workers="
SENDER = rf"{MORE}.{{0,40}}send.{{0,20}}worker|send\.(workers|batch|cpus)="
ANY = rf"{BUFFER}|{FASTER}|{SENDER}"
BASE = {"question": "What loses packets?", "duration": "1500ms", "warmup": "0s", "repetitions": 1}
LAST_S = 1.5
WINDOW_S = 0.3
BURST = (100, 240)
"""Packets that the ring of a veth holds (256, VETH_RING_SIZE), so that it loses none."""


@dataclass(frozen=True)
class Cause:
    """A cause, or a pair of causes that ``a+b`` names."""

    label: str
    truth: str
    draw: Callable[..., Plan]
    """With ``leave=k`` a pair leaves out its k-th part, with the same numbers."""
    must_not: str = r"(?!)"
    """Matches remedies and settings that are wrong, case ignored."""
    healthy: bool = False
    """Whether nothing may be lost."""


CAUSES: list[Cause] = []
"""All of them, in the order of this file; ``a+b`` is a pair."""
Draw = Callable[[Random], Plan]
Parts = tuple[Plan, Plan, Mapping[str, Any]]
"""Two plans, and what both have in common."""


def truth_of(draw: Callable[..., Any]) -> str:
    """Return a function's docstring as a line."""
    return " ".join((draw.__doc__ or "").split())


def plant(must_not: str = r"(?!)", healthy: bool = False) -> Callable[[Draw], Draw]:
    """Add a cause, named like the function that draws it."""

    def add(draw: Draw) -> Draw:
        CAUSES.append(Cause(draw.__name__, truth_of(draw), draw, must_not, healthy))
        return draw

    return add


def pair(label: str) -> Callable[[Callable[[Random], Parts]], Callable[..., Plan]]:
    """Add a pair of causes, whose shares are measured by leaving out either."""

    def add(draw: Callable[[Random], Parts]) -> Callable[..., Plan]:
        def drawn(chance: Random, leave: int | None = None) -> Plan:
            first, second, common = draw(chance)
            parts = [part for index, part in enumerate((first, second)) if index != leave]
            steps = tuple(step for part in parts for step in part.steps)
            return Plan(data(common, *(part.data for part in parts)), steps)

        CAUSES.append(Cause(label, truth_of(draw), drawn))
        return drawn

    return add


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return a map in which maps of both are merged."""
    result = dict(base)
    for key, value in more.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merged(old, value) if both else value  # type: ignore[arg-type]
    return result


def data(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return an experiment of one trial with these keys."""
    result: dict[str, Any] = dict(BASE)
    for part in parts:
        result = merged(result, part)
    return result


def ways(chance: Random) -> dict[str, Any]:
    """Return ways to send and receive a moderate load, all of which lose nothing by themselves."""
    call = chance.choice(("recvmmsg", "recv", "io_uring"))
    waits = ("block", "nap 100us", "auto") + (("epoll",) if call != "io_uring" else ())
    several: dict[str, Any] = {}
    if chance.random() < 0.4:
        several = {
            "traffic": {"flows": {"from": "65400-65415"}},
            "send": {"workers": chance.choice((1, 2))},
            "receive": {"workers": 2, "sockets": chance.choice(("shared", "reuseport"))},
        }
    way = {
        "traffic": {"size": f"{chance.choice((18, 64, 200, 700, 1400))}B"},
        "send": {"call": chance.choice(("sendmmsg", "send", "io_uring")), "bucket": "50ms"},
        "receive": {"call": call, "wait": chance.choice(waits)},
    }
    return merged(way, several)


def rate(pps: float) -> dict[str, Any]:
    """Return a rate."""
    return {"traffic": {"rate": f"{round(pps)}pps"}}


def steady(chance: Random, *parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a load of 5 to 30 kpps, sent and received in some way."""
    return data(ways(chance), rate(chance.uniform(5e3, 30e3)), *parts)


def program(mode: str, number: int = 0) -> dict[str, Any]:
    """Return a receiver that is the user's program, in a mode of ``program.c``."""
    command = ["PROGRAM", mode, "4321", str(number)]
    return {"receive": {"command": command, "ready": "listening"}}


def receiver(**settings: Any) -> dict[str, Any]:
    """Return settings of the receiving host."""
    return {"settings": {"receiver": settings}}


def sender(**settings: Any) -> dict[str, Any]:
    """Return settings of the sending host."""
    return {"settings": {"sender": settings}}


def small(chance: Random) -> dict[str, Any]:
    """Return a size of datagrams, small enough for 768 B of memory each."""
    return {"traffic": {"size": f"{chance.choice((18, 32, 64, 128, 200))}B"}}


def in_window(action: Action, chance: Random) -> Step:
    """Return a step in the middle of the measured phase."""
    return Step(action, at_s=chance.uniform(0.3, 0.9), for_s=WINDOW_S)


def sometimes(action: Action, chance: Random) -> Step:
    """Return a step in the middle, or from the beginning to the end."""
    return chance.choice((in_window(action, chance), Step(action)))


# A user's program


@plant(must_not=BUFFER)
def reader_sleeps(chance: Random) -> Plan:
    """The program sleeps after each request, off the CPU.

    It must stop waiting, and neither a buffer nor CPUs help a steady load.
    """
    pause_us = chance.choice((300, 500, 500, 500, 800))
    load = rate(chance.uniform(2.2, 3.5) * 1e6 / (pause_us + 60))
    return Plan(data(small(chance), load, program("sleep", pause_us)))


@plant(must_not=BUFFER)
def reader_spins(chance: Random) -> Plan:
    """The program computes on each request, so its CPU is full in user mode.

    It must do less or have more CPUs, and no buffer helps.
    """
    work_us = chance.randint(30, 100)
    load = rate(chance.uniform(1.5, 2.5) * 1e6 / work_us)
    return Plan(data(small(chance), load, program("spin", work_us)))


@plant(must_not=FASTER)
def reader_lumps(chance: Random) -> Plan:
    """The program pauses for 150 to 400 ms and then reads all there is, fast enough on average.

    It must read more often, or its buffer must hold a pause; not faster CPUs or more
    workers.
    """
    pause_us = chance.randint(150, 400) * 1000
    return Plan(data(small(chance), rate(chance.uniform(5e3, 15e3)), program("lump", pause_us)))


@plant(must_not=BUFFER)
def reader_locks(chance: Random) -> Plan:
    """Two threads wait for one lock, held during a sleep, off the CPU.

    The lock limits, and neither buffer nor CPUs help.
    """
    held_us = chance.randint(300, 1000)
    load = rate(chance.uniform(2.2, 3.5) * 1e6 / (held_us + 60))
    return Plan(data(small(chance), load, program("lock", held_us)))


@plant(must_not=BUFFER)
def reader_forks(chance: Random) -> Plan:
    """The program forks a process for each request and waits for it.

    This costs CPU time in the kernel, and no buffer helps.
    """
    return Plan(data(small(chance), rate(chance.uniform(15e3, 25e3)), program("fork")))


@plant(must_not=BUFFER)
def reader_syncs(chance: Random) -> Plan:
    """The program waits for the disk (fsync) on each request.

    Not the CPU, and no buffer helps.
    """
    return Plan(data(small(chance), rate(chance.uniform(8e3, 15e3)), program("sync")))


@plant(must_not=ANY)
def reader_never(chance: Random) -> Plan:
    """The program stopped reading for good though its socket is open.

    No buffer and no CPU helps.
    """
    first = program("never", chance.randint(2000, 4000))
    return Plan(data(small(chance), rate(chance.uniform(5e3, 10e3)), first))


@plant(must_not=ANY)
def reader_closes(chance: Random) -> Plan:
    """The program closed its socket midway.

    Nothing is bound to the port any more.
    """
    first = program("close", chance.randint(2000, 4000))
    return Plan(data(small(chance), rate(chance.uniform(5e3, 10e3)), first))


@plant()
def program_tiny_buffer(chance: Random) -> Plan:
    """The program set a tiny SO_RCVBUF, which a burst overflows.

    The program must ask for more.
    """
    burst = {"traffic": {"count": chance.randint(*BURST)}, "duration": "5s"}
    return Plan(data(small(chance), burst, program("tiny", chance.randint(1152, 4096))))


@plant(must_not=ANY)
def program_filter(chance: Random) -> Plan:
    """The program's own socket filter drops a share at random.

    Only the filter can be changed.
    """
    filtered = program("filter", chance.randint(100, 400))
    return Plan(data(small(chance), rate(chance.uniform(5e3, 15e3)), filtered))


@plant(must_not=BUFFER)
def quota(chance: Random) -> Plan:
    """A cgroup's CPU quota throttles the reader, whose CPU is mostly idle.

    Raise the quota, no buffer helps.
    """
    # 20 us for each of 10,000 packets is a fifth of a CPU.
    work = chance.choice((program("spin", 20), {"receive": {"work": "20us", "buffer": "128KiB"}}))
    limit = actions.quota("receiver", chance.uniform(0.04, 0.08))
    load = rate(chance.uniform(8e3, 12e3))
    return Plan(data(small(chance), load, work), (Step(limit, at_s=None),))


# udpbench's own reader and sender


@plant(must_not=BUFFER)
def reader_slow(chance: Random) -> Plan:
    """The reader's own work on each datagram fills its CPU at a steady load.

    More readers or less work, and no buffer helps.
    """
    work_us = chance.randint(15, 60)
    work = {"receive": {"work": f"{work_us}us", "buffer": f"{chance.choice((64, 256, 1024))}KiB"}}
    return Plan(data(ways(chance), rate(chance.uniform(1.8, 3) * 1e6 / work_us), work))


@plant(must_not=BUFFER)
def reader_slow_anywhere(chance: Random) -> Plan:
    """The reader needs more CPU time for each datagram than there is, wherever it runs.

    More readers or less work, and no buffer helps.
    """
    work_us, pps = chance.choice(((15, 100e3), (5, 150e3)))
    work = {"receive": {"work": f"{work_us}us", "cpus": "any"}}
    return Plan(data(small(chance), rate(pps * chance.uniform(1, 1.15)), work))


@plant()
def burst_over_buffer(chance: Random) -> Plan:
    """A burst is larger than the receive buffer.

    A larger buffer holds it.
    """
    burst = {"traffic": {"count": chance.randint(*BURST)}, "duration": "5s"}
    reader = {
        "work": f"{chance.randint(10, 25)}us",
        "buffer": f"{chance.choice((4, 8, 16, 32))}KiB",
    }
    return Plan(data(small(chance), burst, {"send": {"bucket": "200ms"}, "receive": reader}))


@plant(must_not=FASTER)
def reader_stopped(chance: Random) -> Plan:
    """The reader did not run for 300 ms (SIGSTOP) and is fast enough otherwise.

    It must not be called too slow, nor be given more workers.
    """
    load = rate(chance.uniform(15e3, 25e3))
    buffer = {"receive": {"buffer": f"{chance.choice((128, 256, 512))}KiB"}}
    stop = in_window(actions.stopped("receiver"), chance)
    return Plan(data(ways(chance), load, buffer), (stop,))


@plant(must_not=BUFFER)
def worker_hangs(chance: Random) -> Plan:
    """One of two workers of a reuseport group hangs, so its share of the flows is lost.

    The other is idle, and neither buffer nor rate is to blame.
    """
    workers = {
        "traffic": {"flows": {"from": "65400-65431"}},
        "receive": {
            "workers": 2,
            "workers_as": "processes",
            "sockets": "reuseport",
            "buffer": f"{chance.choice((64, 128, 256))}KiB",
        },
    }
    load = rate(chance.uniform(10e3, 30e3))
    stop = Step(actions.stopped("receiver", -1), at_s=None, for_s=LAST_S + 0.3)
    return Plan(data(small(chance), load, workers), (stop,))


@plant(must_not=SENDER)
def sender_stopped(chance: Random) -> Plan:
    """The sender did not run for 300 ms (SIGSTOP).

    It is far from too slow for the rate, so no workers, batches or CPUs help.
    """
    load = rate(chance.choice((100, 200, 1000)))
    pace = {"send": {"pace": chance.choice(("sleep", "spin"))}, "duration": "2s"}
    return Plan(data(small(chance), load, pace), (in_window(actions.stopped("sender"), chance),))


@plant()
def sender_too_slow(chance: Random) -> Plan:
    """The sender cannot send at the rate: its CPU is full."""
    way = {"send": {"call": chance.choice(("send", "sendmmsg"))}, "receive": {"workers": 1}}
    return Plan(data(small(chance), way, rate(chance.uniform(3e6, 5e6))))


@plant(must_not=BUFFER)
def sender_cpu_taken(chance: Random) -> Plan:
    """A real-time program takes the sender's CPU for 300 ms.

    That program must go elsewhere.
    """
    load = rate(chance.uniform(20e3, 60e3))
    return Plan(data(small(chance), load), (in_window(actions.hog(1, "chrt", "-f", "50"), chance),))


@plant()
def reader_cpu_taken(chance: Random) -> Plan:
    """A real-time program takes the reader's and its queue's CPU for 300 ms.

    That program must go elsewhere, the reader is fast enough.
    """
    load = rate(chance.uniform(20e3, 40e3))
    return Plan(data(ways(chance), load), (in_window(actions.hog(0, "chrt", "-f", "50"), chance),))


@plant(must_not=BUFFER)
def reader_cpu_shared(chance: Random) -> Plan:
    """Another program with a better nice value takes most of the reader's CPU throughout.

    That program must go elsewhere, and no buffer helps.
    """
    # The reader alone needs about 0.7 of the CPU, of which the other program takes nearly all.
    work_us = chance.randint(20, 40)
    load = rate(0.6e6 / work_us)
    reader = {"receive": {"work": f"{work_us}us", "buffer": "128KiB"}}
    hogs = Step(actions.hog(0, "nice", "-n", "-15"))
    return Plan(data(small(chance), load, reader), (hogs,))


@plant(must_not=BUFFER)
def reader_over_napi(chance: Random) -> Plan:
    """The reader spins at real-time priority and keeps the queue's thread from their common CPU.

    Lower the priority, do not spin, or use another CPU; the reader itself is idle.
    """
    reader = {"receive": {"wait": "spin", "priority": f"fifo {chance.randint(10, 60)}"}}
    explained = {"path_check": "explained"}
    return Plan(data(small(chance), rate(chance.uniform(5e3, 20e3)), reader, explained))


# Strangers, rules and the network


@plant(must_not=ANY)
def stranger_some(chance: Random) -> Plan:
    """Another program's socket joined the reuseport group and takes a share of the flows.

    That program must leave the port.
    """
    group = {"traffic": {"flows": {"from": "65400-65431"}}, "receive": {"sockets": "reuseport"}}
    other = Step(actions.stranger(chance.choice(("stranger", "stranger-idle")), 0))
    return Plan(steady(chance, group), (other,))


@plant(must_not=ANY)
def stranger_all(chance: Random) -> Plan:
    """Another program's socket is bound to the address itself and takes everything.

    That program must leave the port.
    """
    group = {"receive": {"sockets": "reuseport"}}
    mode = chance.choice(("stranger", "stranger-idle"))
    return Plan(steady(chance, group), (Step(actions.stranger(mode, actions.ADDRESS)),))


def dropping(role: str, hooks: tuple[str, ...], chance: Random) -> Plan:
    """Return a rule that drops everything for a while, or a share all the time."""
    hook = chance.choice(hooks)
    if chance.random() < 0.6:
        return Plan(steady(chance), (in_window(actions.rule(role, hook, "drop"), chance),))
    share = f"numgen random mod 100 < {chance.randint(10, 60)} drop"
    return Plan(steady(chance), (Step(actions.rule(role, hook, share)),))


@plant(must_not=ANY)
def rule_ingress(chance: Random) -> Plan:
    """A netdev ingress rule of the receiver drops all for 300 ms, or a share.

    That rule must change. No counter of the ledger sees it.
    """
    return dropping("receiver", ("ingress",), chance)


@plant(must_not=ANY)
def rule_egress(chance: Random) -> Plan:
    """A netdev egress rule of the sender drops all for 300 ms, or a share.

    That rule must change. No counter of the ledger sees it.
    """
    return dropping("sender", ("egress",), chance)


@plant(must_not=ANY)
def rule_receiver(chance: Random) -> Plan:
    """A rule at INPUT or PREROUTING of the receiver drops all for 300 ms, or a share.

    That rule must change.
    """
    return dropping("receiver", ("input", "prerouting"), chance)


@plant(must_not=ANY)
def rule_sender(chance: Random) -> Plan:
    """A rule at OUTPUT of the sender drops all for 300 ms, or a share.

    That rule must change.
    """
    return dropping("sender", ("output",), chance)


@plant(must_not=ANY)
def rule_every_nth(chance: Random) -> Plan:
    """A rule at INPUT drops every nth packet at any rate.

    Change it; not overload, not a burst.
    """
    nth = chance.choice((5, 7, 7, 11))
    by_iptables = actions.commands(
        "receiver",
        "iptables -A INPUT -p udp --dport 4321 -m statistic --mode nth"
        f" --every {nth} --packet 0 -j DROP",
    )
    by_nft = actions.rule("receiver", "input", f"numgen inc mod {nth} == 0 drop")
    return Plan(steady(chance), (Step(chance.choice((by_iptables, by_nft))),))


@plant(must_not=BUFFER)
def rules_by_thousands(chance: Random) -> Plan:
    """3,000 firewall rules that match nothing cost the receiver's CPU more than it has.

    Fewer rules or a jump by port, and no buffer helps.
    """
    hook = chance.choice(("input", "prerouting"))
    rules = Step(actions.many_rules("receiver", hook, 3000), at_s=None)
    load = rate(chance.uniform(40e3, 60e3))
    # To load them takes up to a second of a CPU, which must not be the sender's when it counts.
    return Plan(data(small(chance), load, {"warmup": "1500ms"}), (rules,))


def blocking(role: str, direction: str, chance: Random) -> Plan:
    """Return an IPsec policy that blocks the traffic."""
    policy = f"dir {direction} src 0.0.0.0/0 dst 0.0.0.0/0 proto udp dport 4321"
    block = actions.commands(
        role, f"ip xfrm policy add {policy} action block", f"ip xfrm policy delete {policy}"
    )
    return Plan(steady(chance), (sometimes(block, chance),))


@plant(must_not=ANY)
def xfrm_in(chance: Random) -> Plan:
    """An IPsec policy of the receiver blocks the traffic (XfrmInPolBlock).

    That policy must change. It is no rule of a firewall.
    """
    return blocking("receiver", "in", chance)


@plant(must_not=ANY)
def xfrm_out(chance: Random) -> Plan:
    """An IPsec policy of the sender blocks the traffic (XfrmOutPolBlock).

    That policy must change. It is no rule of a firewall.
    """
    return blocking("sender", "out", chance)


@plant(must_not=ANY)
def tc_drop(chance: Random) -> Plan:
    """A tc filter on the receiver's ingress drops for 300 ms.

    Change that filter.
    """
    do = (
        "tc qdisc add dev receive0 clsact &&"
        " tc filter add dev receive0 ingress bpf da bytecode '1,6 0 0 2,'"
    )
    drop = actions.commands("receiver", do, "tc qdisc del dev receive0 clsact")
    return Plan(steady(chance), (in_window(drop, chance),))


@plant(must_not=ANY)
def xdp_drop(chance: Random) -> Plan:
    """An XDP program on the receiver's interface drops all for 300 ms.

    That program must go.
    """
    return Plan(steady(chance), (in_window(actions.drop_program("xdp"), chance),))


@plant(must_not=ANY)
def tcx_drop(chance: Random) -> Plan:
    """A TCX program on the receiver's interface drops all for 300 ms.

    That program must go. No counter of the ledger sees it.
    """
    return Plan(steady(chance), (in_window(actions.drop_program("tcx"), chance),))


@plant(must_not=BUFFER)
def token_bucket(chance: Random) -> Plan:
    """A token bucket on the sender lets only part of the rate through.

    Raise it or send less.
    """
    size, pps = chance.choice((200, 700, 1400)), chance.uniform(10e3, 25e3)
    mbit = pps * (size + 42) * 8 / 1e6 * chance.uniform(0.4, 0.7)
    bucket = f"tbf rate {mbit:.2f}mbit burst 10kb limit 20kb"
    shape = actions.commands("sender", f"tc qdisc replace dev send0 root {bucket}")
    # Above what the queue holds, or the sender's buffer would be full first, and it would wait.
    load = {"traffic": {"size": f"{size}B"}, "send": {"buffer": "4MiB"}}
    return Plan(data(load, rate(pps)), (Step(shape),))


@plant(must_not=ANY)
def mtu_differs(chance: Random) -> Plan:
    """The receiver's MTU is below the packets' length, so the link drops them.

    Make MTUs equal.
    """
    size = {"traffic": {"size": f"{chance.choice((1000, 1200, 1400))}B"}}
    lower = actions.commands(
        "receiver",
        f"ip link set receive0 mtu {chance.choice((600, 900))}",
        "ip link set receive0 mtu 1500",
    )
    return Plan(steady(chance, size), (sometimes(lower, chance),))


@plant(must_not=ANY)
def route_refuses(chance: Random) -> Plan:
    """A route of the receiver swallows its own address for 300 ms.

    Not the reader. A sender's route cannot do this: a socket that is bound to a device takes what
    it refuses to be on the link (ip_route_output_key_hash_rcu in net/ipv4/route.c).
    """
    kind, own = chance.choice(("blackhole", "prohibit", "unreachable")), "192.168.254.1"
    local = f"local {own} dev receive0 proto kernel scope host src {own} table local"
    refuse = actions.commands(
        "receiver",
        f"ip route del {local} && ip route add {kind} {own} table local",
        f"ip route del {kind} {own} table local && ip route add {local}",
    )
    return Plan(steady(chance), (in_window(refuse, chance),))


@plant(must_not=ANY)
def neighbour_wrong(chance: Random) -> Plan:
    """The sender's neighbour entry has a wrong MAC address, so frames go to no host.

    Correct the entry.
    """
    wrong = actions.commands(
        "sender",
        "ip neigh show 192.168.254.1 dev send0 > /dev/null &&"
        " ip neigh replace 192.168.254.1 lladdr 02:00:00:00:00:99 dev send0 nud permanent",
        "ip neigh replace 192.168.254.1 lladdr $(cat /sys/class/net/send0/address |"
        " sed s/02:75:62:01/02:75:62:02/) dev send0 nud permanent",
    )
    return Plan(steady(chance), (sometimes(wrong, chance),))


@plant(must_not=ANY)
def neighbour_gone(chance: Random) -> Plan:
    """The sender's neighbour entry is gone and nobody answers ARP.

    The address is not resolved.
    """
    silent = actions.commands(
        "receiver", "ip link set receive0 arp off", "ip link set receive0 arp on"
    )
    gone = actions.commands("sender", "ip neigh del 192.168.254.1 dev send0")
    return Plan(steady(chance), (Step(silent, at_s=0.3), Step(gone, at_s=0.4)))


@plant(must_not=ANY)
def checksum_damaged(chance: Random) -> Plan:
    """Something on the way damages UDP checksums for 300 ms.

    The path or an offload, not the reader.
    """
    # With either offload a veth vouches for the checksum (veth_xmit in drivers/net/veth.c).
    off = {"ethtool": {"features": {"tx-checksum-ip-generic": False}}}
    real = merged(sender(**off), receiver(ethtool={"features": {"rx-checksum": False}}))
    # At the sender, because GRO has looked at the checksum before the receiver's ingress.
    damage = actions.rule("sender", "egress", "udp checksum set 0x1234")
    return Plan(steady(chance, real), (in_window(damage, chance),))


@plant(must_not=ANY)
def reverse_path(chance: Random) -> Plan:
    """The receiver's reverse path filter refuses the source.

    Correct the route or rp_filter.
    """
    strict = actions.commands(
        "receiver",
        "ip link set lo up && ip route add 192.168.254.30/32 dev lo &&"
        " echo 1 > /proc/sys/net/ipv4/conf/receive0/rp_filter",
        "echo 0 > /proc/sys/net/ipv4/conf/receive0/rp_filter;"
        " ip route del 192.168.254.30/32 dev lo",
    )
    return Plan(steady(chance), (sometimes(strict, chance),))


@plant(must_not=ANY)
def address_gone(chance: Random) -> Plan:
    """The receiver lost its address for 300 ms.

    Not the reader.
    """
    gone = actions.commands(
        "receiver",
        "ip addr del 192.168.254.1/24 dev receive0",
        "ip addr add 192.168.254.1/24 dev receive0",
    )
    return Plan(steady(chance), (in_window(gone, chance),))


@plant(must_not=ANY)
def link_down(chance: Random) -> Plan:
    """The receiver's interface was down for 300 ms.

    Not the reader, not a slow sender.
    """
    down = actions.commands("receiver", "ip link set receive0 down", "ip link set receive0 up")
    return Plan(steady(chance), (in_window(down, chance),))


@plant()
def backlog_short(chance: Random) -> Plan:
    """The sysctl net.core.netdev_max_backlog is too short for a burst.

    Raise it.
    """
    short = receiver(
        link={"receive": "rps"},  # on the sender's CPU a soft interrupt empties it after each call
        sysctl={"net.core.netdev_max_backlog": chance.choice((1, 2, 4))},
    )
    burst = {"traffic": {"count": chance.randint(2000, 20000)}, "duration": "5s"}
    return Plan(data(small(chance), burst, short))


@plant(must_not="receive\\.buffer=")
def udp_memory_short(chance: Random) -> Plan:
    """The sysctl net.ipv4.udp_mem allows all sockets together too little.

    Raise it, not receive.buffer.
    """
    pages = chance.choice((32, 64, 128))
    little = receiver(sysctl={"net.ipv4.udp_mem": f"{pages} {pages} {pages * 2}"})
    # The buffer would hold all of it, 768 B each.
    reader = {"receive": {"work": f"{chance.randint(30, 40)}us", "buffer": "4MiB"}}
    burst = {"traffic": {"count": chance.randint(3000, 8000)}, "duration": "5s"}
    # In the 3 ms for which the reader keeps the queue's thread waiting, the ring does not fill.
    return Plan(data(small(chance), rate(50e3), burst, reader, little))


# Healthy


@plant(must_not=ANY, healthy=True)
def healthy_rate(chance: Random) -> Plan:
    """Nothing is lost, at an offered rate."""
    return Plan(steady(chance))


@plant(must_not=ANY, healthy=True)
def healthy_work(chance: Random) -> Plan:
    """Nothing is lost, with CPU to spare."""
    work_us = chance.randint(5, 20)
    reader = {"receive": {"work": f"{work_us}us"}}
    return Plan(data(ways(chance), rate(chance.uniform(0.1, 0.25) * 1e6 / work_us), reader))


@plant(must_not=ANY, healthy=True)
def healthy_program(chance: Random) -> Plan:
    """A program loses nothing."""
    return Plan(data(small(chance), rate(chance.uniform(2e3, 10e3)), program("plain")))


@plant(must_not=BUFFER, healthy=True)
def healthy_sender_limits(chance: Random) -> Plan:
    """Nothing is lost without a rate: the sender waits for its token bucket, which limits."""
    # The sender's buffer is smaller than the queue: it waits for the queue, and loses nothing.
    bucket = {"rate": f"{chance.randint(20, 60)}Mbps", "burst": "10kB", "limit": "1MiB"}
    size = {"traffic": {"size": f"{chance.choice((700, 1400))}B"}, "send": {"buffer": "16KiB"}}
    return Plan(data(size, sender(qdisc={"tbf": bucket})))


# Pairs: each part alone is a cause from above


@pair("rule_every_nth+reader_slow")
def nth_and_slow(chance: Random) -> Parts:
    """A rule drops every nth packet, and the reader is too slow for the rest."""
    nth, work_us = chance.choice((2, 3, 7)), chance.randint(30, 50)
    drop = actions.rule("receiver", "input", f"numgen inc mod {nth} == 0 drop")
    slow = {"receive": {"work": f"{work_us}us", "buffer": "64KiB"}}
    common = rate(chance.uniform(1.5, 2.5) * 1e6 / work_us)
    return Plan({}, (Step(drop),)), Plan(slow), common


@pair("reader_cpu_taken+reader_slow")
def hog_and_slow(chance: Random) -> Parts:
    """A real-time program takes the reader's CPU for a while, and the reader is too slow anyhow."""
    hog = Step(actions.hog(0, "chrt", "-f", "50"), at_s=0.4, for_s=chance.uniform(0.3, 0.6))
    work_us = chance.randint(20, 30)
    slow = {"receive": {"work": f"{work_us}us", "buffer": "64KiB"}}
    return Plan({}, (hog,)), Plan(slow), rate(chance.uniform(1.2, 1.9) * 1e6 / work_us)


@pair("rule_ingress+reader_stopped")
def ingress_and_stop(chance: Random) -> Parts:
    """An ingress rule drops for a while, and later the reader stops for a while."""
    drop = Step(actions.rule("receiver", "ingress", "drop"), 0.2, chance.uniform(0.1, 0.3))
    stop = Step(actions.stopped("receiver"), 0.7, chance.uniform(0.2, 0.4))
    common = {"receive": {"buffer": "128KiB"}}
    return Plan({}, (drop,)), Plan({}, (stop,)), data(common, rate(chance.uniform(10e3, 20e3)))


@pair("program_filter+rule_egress")
def filter_and_egress(chance: Random) -> Parts:
    """An egress rule of the sender drops a share, and the program's filter one of the rest."""
    filtered = program("filter", chance.randint(100, 400))
    share = f"numgen random mod 100 < {chance.randint(10, 40)} drop"
    drop = Step(actions.rule("sender", "egress", share))
    common = data(rate(chance.uniform(5e3, 15e3)), program("plain"))
    return Plan(filtered), Plan({}, (drop,)), common


@pair("token_bucket+rule_receiver")
def bucket_and_input(chance: Random) -> Parts:
    """The sender's token bucket drops a share, and a rule at INPUT one of the rest."""
    pps = chance.uniform(10e3, 20e3)
    mbit = pps * 742 * 8 / 1e6 * chance.uniform(0.5, 0.8)
    bucket = f"tc qdisc replace dev send0 root tbf rate {mbit:.2f}mbit burst 10kb limit 20kb"
    drop = actions.rule("receiver", "input", f"numgen inc mod {chance.choice((2, 4, 7))} == 0 drop")
    common = {"traffic": {"size": "700B"}, "send": {"buffer": "4MiB"}}
    first = Plan({}, (Step(actions.commands("sender", bucket)),))
    return first, Plan({}, (Step(drop),)), data(common, rate(pps))


@pair("sender_stopped+reader_stopped")
def stops_of_both(chance: Random) -> Parts:
    """The sender stops for a while, and later the reader."""
    of_sender = Step(actions.stopped("sender"), 0.2, chance.uniform(0.1, 0.4))
    of_reader = Step(actions.stopped("receiver"), 0.8, chance.uniform(0.2, 0.4))
    common = data(rate(chance.uniform(5e3, 10e3)), {"receive": {"buffer": "64KiB"}})
    return Plan({}, (of_sender,)), Plan({}, (of_reader,)), common

"""What limits a trial: a small set of named bottlenecks, each a function of the evidence it needs.

Pure, from the record alone, also of a trial whose rates are struck out. They speak in the order of
the table: first what is out of the ordinary, then what is left; ``remedies`` says what helps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from udpbench.analysis.cpu_use import (
    TICK_NS,
    CpuGroup,
    cpu_use,
    main_user,
    napi_alone_ns,
    stolen_ns,
)
from udpbench.analysis.ledger import skbs
from udpbench.analysis.ledger.intended_load import intended_packets, unsent_packets
from udpbench.analysis.ledger.ledger import OR, intervals, losses, packets_at, worst_place
from udpbench.analysis.ledger.skbs import Span
from udpbench.analysis.ledger.stages import NAPI_PACKETS, STAGES
from udpbench.analysis.queue_counters import by_receiver
from udpbench.analysis.rates import IDLE_TIMES, full_line_bps, host_of, lag, window_ns
from udpbench.analysis.readings import Readings
from udpbench.analysis.remedies import REMEDIES, helps_at
from udpbench.model import Bottleneck, Certainty, Facts, Ledger, Role, WorkerStats
from udpbench.units import format_bytes, show_count

CERTAIN: Certainty = "certain"
LIKELY: Certainty = "likely"
TO_BE_TESTED: Certainty = "to be tested"
FULL = 0.9
"""Share of the time from which on a CPU is called full."""
TAKEN = 0.1
"""Share of a CPU that others must have taken to be a reason."""
MUCH = 0.2
"""Share from which on a part of what a CPU does is a reason beside the largest."""
ONE_OF_MANY = 0.75
"""Share of the packets from which on one of several queues has most of them."""
LAG = 0.01
"""Share of the load's time by which receivers may be late (``Search.precision``)."""
LEAST_WINDOW_NS = 20 * TICK_NS
"""In less time ticks cannot tell whether a CPU was busy, and a load is no lasting one."""
UNSENT = 0.005
"""Part of the intended load that a sender may leave out (RFC 2285 3.5)."""
RULE_NS = 5
"""A firewall rule that does not match takes so long at least (measured: 7 ns, nf_tables, 6.18)."""
UDP_MEMORY, BACKLOG = "net.ipv4.udp_mem", "net.core.netdev_max_backlog"
SYSCTL_NUMBERS = re.compile(r"\s*[0-9]{1,19}(\s+[0-9]{1,19})*\s*")
PAGE_BYTES = 4096
"""The smallest page of any CPU; larger ones make of a number of pages more memory."""
ROWS = {stage.name: stage for stage in STAGES}
REASONS_RELEASE = (5, 17)
"""Before it the kernel names no drop reasons (include/trace/events/skb.h: kfree_skb)."""
REFUSING = (
    *("tx_netfilter", "rx_xdp", "xsk_fill", "rx_tc", "rx_ip", "rx_netfilter", "udp_checksum"),
    *("udp_no_port", "udp_filter", "udp_memory", "udp_purged", "app_truncated", "app_log"),
)
"""Stages whose counter alone says why packets end there: no CPU would be fast enough."""
SENDING = ("unsent", "tx_qdisc")
SEND_ERRORS = ("econnrefused", "emsgsize", "other_errors")
SLEEPLESS = ("spin", "nap", "busy-poll")
"""Ways to wait by which a CPU is busy, or not, whether datagrams come or not."""


@dataclass(frozen=True)
class LoadedCpu:
    """One CPU of a role in shares of the time in which packets came."""

    role: Role
    machine: str
    cpu: int | None
    """None: its one worker is not pinned, and all is what that used."""
    busy: float
    user: float
    """Its workers' own time, and below that of the system for them."""
    system: float
    workers: tuple[WorkerStats, ...] = ()
    others: float = 0.0
    """Other programs', at least."""
    steal: float = 0.0
    napi: float = 0.0
    softirq: float = 0.0
    queues: tuple[str, ...] = ()
    """RX queues that it serves."""

    @property
    def full(self) -> bool:
        """Whether no more would fit."""
        return self.busy >= FULL

    @property
    def receiving(self) -> float:
        """Share of NAPI's threads and of soft interrupts."""
        return self.napi + self.softirq

    @property
    def shares(self) -> dict[str, float]:
        """All of it by name."""
        names = ("busy", "user", "system", "napi", "softirq", "others", "steal")
        return {name: round(getattr(self, name), 4) for name in names}

    @property
    def name(self) -> str:
        """``the reader's CPU 0``, or ``CPU 2`` of one that only serves queues."""
        whose = "the sender" if self.role == "sender" else "the reader"
        if self.cpu is None:
            return f"{whose}'s thread"
        return f"{whose}'s CPU {self.cpu}" if self.workers else f"CPU {self.cpu}"

    @property
    def text(self) -> str:
        """How busy it is, and what uses most of it."""
        queues = f" of queue {', '.join(self.queues)}" if self.queues else ""
        uses = {
            f"the NAPI thread{queues}": self.napi,
            "soft interrupts": self.softirq,
            "the system's work for it": self.system,
            "its own work": self.user,
            "other programs": self.others,
        }
        most = max(uses, key=lambda use: uses[use])
        part = min(uses[most] / self.busy, 1.0) if self.busy else 0.0
        state = "full" if self.full else "busy"
        return f"{self.name} is {state} ({_percent(self.busy)}, {_percent(part)} of it {most})"


@dataclass(frozen=True, eq=False)
class Case:
    """The evidence of one trial."""

    readings: Readings
    ledger: Ledger
    stage: str
    """Where most packets ended of which the stage is known; empty if there are none."""
    packets: int
    shared: str = ""
    """The stages that share more than that, each an interval; empty if they do not."""

    @property
    def lossless(self) -> bool:
        """Whether no packet is missing, for certain."""
        return not self.stage and not self.shared and self.ledger.unaccounted == 0

    @property
    def offered_all(self) -> bool:
        """Whether a rate or a count was given, and the senders reached it."""
        traffic = self.readings.record.trial.traffic
        return (traffic.rate or traffic.count_packets) is not None and self.stage not in SENDING

    @property
    def limited_by_sender(self) -> bool:
        """Whether more would have arrived if the sender had offered more."""
        everything = self.lossless and not self.offered_all and not self.falls_behind
        return self.stage == "unsent" or everything

    @property
    def sender_waits(self) -> bool:
        """Whether the sender limits although it has time and never sleeps by itself."""
        trial, cpu = self.readings.record.trial, self.sending
        never_sleeps = trial.traffic.rate is None or trial.send.pace == "spin"
        idles = never_sleeps and self.lasts and cpu is not None and not cpu.full
        return self.limited_by_sender and idles

    @cached_property
    def held_up(self) -> bool:
        """Whether it waits for the receiver's CPU: a pair's packets fill its buffer until then.

        Not where a full line holds it up, however busy that CPU is.
        """
        peer = self.polling if self.readings.all_veth else None
        if peer is None or not self.sender_waits or full_line_bps(self.readings) is not None:
            return False
        return self.is_behind(peer) if peer.workers else peer.full

    @property
    def falls_behind(self) -> bool:
        """Whether receivers needed longer than senders: of a longer load they would lose some."""
        return self.lossless and self.lasts and (lag(self.readings) or 0.0) > LAG

    @property
    def in_ring(self) -> bool:
        """Whether packets were lost where the CPU of a queue did not poll in time."""
        by_peer = ("tx_device", "link") if self.readings.record.built_in_lab else ()
        return self.stage in ("rx_ring", "rx_backlog", *by_peer)

    @property
    def overrun(self) -> bool:
        """Whether a backlog overflowed though its CPU receives little, whatever programs run there.

        Soft interrupts come before them.
        """
        cpu = self.polling
        return self.stage == "rx_backlog" and cpu is not None and cpu.receiving < MUCH

    @cached_property
    def load_ns(self) -> int:
        """The time from the first packet to the last, of either role."""
        roles: tuple[Role, ...] = ("sender", "receiver")
        readings = self.readings
        return max(window_ns(readings, readings.workers(role)) or 0 for role in roles)

    @property
    def lasts(self) -> bool:
        """Whether the load lasted so long that no buffer is meant to hold what does not fit."""
        return self.load_ns >= LEAST_WINDOW_NS

    @cached_property
    def sending(self) -> LoadedCpu | None:
        """The sender's fullest CPU."""
        return self._of("sender")

    @cached_property
    def reading(self) -> LoadedCpu | None:
        """The fullest CPU of the readers: of those whose sockets dropped packets, if any did."""
        return self._of("receiver")

    @cached_property
    def polling(self) -> LoadedCpu | None:
        """The fullest CPU that serves an RX queue; None of receive work on the sender's CPU."""
        readers = self.readings.workers("receiver")
        cpus = [
            self._cpu("receiver", machine, cpu, [r for r in readers if self._runs(r, machine, cpu)])
            for machine, cpu in sorted(self.served)
        ]
        return _fullest(cpus)

    @property
    def late(self) -> LoadedCpu | None:
        """The CPU that should have been faster; None where no CPU would help."""
        if self.limited_by_sender:
            return self.polling if self.held_up else self.sending
        if self.in_ring:
            return None if self.overrun else self.polling
        slow = self.stage in ("udp_rcvbuf", "xsk_ring") or self.falls_behind
        return self.reading if slow else None

    @property
    def behind(self) -> LoadedCpu | None:
        """The receiving CPU that is full as long as the load lasts; None if it has time."""
        cpu = self.late
        if cpu is None or cpu.role == "sender" or not self.lasts:
            return None
        return cpu if (cpu.full if self.in_ring or self.held_up else self.is_behind(cpu)) else None

    def alone(self, cpu: LoadedCpu) -> float:
        """Return how many such CPUs the readers' own work for the whole load would take."""
        received = self.ledger.received_packets
        return cpu.user * self.ledger.intended_packets / received if received else 0.0

    def is_behind(self, cpu: LoadedCpu) -> bool:
        """Whether readers have no time left: those that never sleep, if calls return datagrams."""
        if self.readings.record.trial.receive.wait.split()[0] not in SLEEPLESS:
            return cpu.full
        calls, empty = (
            sum(stats.counts.get(name, 0) for stats in cpu.workers)
            for name in ("receive_calls", "empty_calls")
        )
        return calls > 0 and 1 - empty / calls >= FULL

    @cached_property
    def served(self) -> dict[tuple[str, int], tuple[str, ...]]:
        """Machine and number of each CPU that serves RX queues with packets → the queues."""
        readings = self.readings
        served: dict[tuple[str, int], list[str]] = {}
        packets = by_receiver(readings)
        for host in readings.roles.receivers:
            facts = readings.record.facts.get(host)
            for queue, cpus in facts.queue_cpus.items() if facts is not None else ():
                for cpu in cpus if packets.get(host, {}).get(int(queue), 1) else ():
                    served.setdefault((readings.machine_of(host), cpu), []).append(queue)
        return {place: tuple(queues) for place, queues in served.items()}

    @cached_property
    def words(self) -> dict[str, str]:
        """What fills the <angles> of remedies and of their steps, as far as it is known."""
        record = self.readings.record
        hosts = [record.facts[h] for h in self.readings.roles.receivers if h in record.facts]
        ports = [port for spec in record.workers for port in spec.bind_ports]
        words = {"port": str(min(ports))} if ports else {}
        late = self.late
        if late is not None:
            words["late"] = "send" if late.role == "sender" else "receive"
        return {**words, **_of_memory(self, hosts), **_of_cpus(self, hosts)}

    def _runs(self, stats: WorkerStats, machine: str, cpu: int) -> bool:
        return stats.cpu == cpu and self.readings.machine_of(host_of(stats.worker)) == machine

    def _of(self, role: Role) -> LoadedCpu | None:
        groups: dict[tuple[str, int | None, str], list[WorkerStats]] = {}
        for stats in self.readings.workers(role):
            unpinned = stats.worker if stats.cpu is None else ""
            place = self.readings.machine_of(host_of(stats.worker)), stats.cpu, unpinned
            groups.setdefault(place, []).append(stats)
        dropped = {place: own for place, own in groups.items() if self._dropped(own)}
        cpus = [self._cpu(role, *place[:2], own) for place, own in (dropped or groups).items()]
        return _fullest(cpus)

    def _dropped(self, workers: list[WorkerStats]) -> bool:
        inodes = {inode for stats in workers for inode in stats.socket_inodes}
        return any(self.readings.counter("receiver", f"socket.{n}.drops") for n in inodes)

    def _cpu(
        self, role: Role, machine: str, cpu: int | None, workers: list[WorkerStats]
    ) -> LoadedCpu | None:
        """Return what a CPU did while packets came; before and after them it idled.

        None if neither its idle time is known nor that of its workers.
        """
        readings, load_ns = self.readings, max(self.load_ns, 1)
        user, system = (
            min(sum(stats.counts.get(name, 0) for stats in workers) / load_ns, 1.0)
            for name in ("user_ns", "system_ns")
        )
        busy = min(user + system, 1.0)
        plain = LoadedCpu(role, machine, cpu, busy, user, system, tuple(workers))
        delta = readings.deltas.get(machine)
        times = delta.numbered("cpu").get(cpu, {}) if delta is not None and cpu is not None else {}
        if cpu is None or delta is None or not any(times.values()):
            return plain if any("user_ns" in stats.counts for stats in workers) else None
        beside_ns = max(delta.elapsed_ns - load_ns, 0)
        idle_ns = sum(delta.total(f"cpu.{cpu}.{time}_ns") or 0 for time in IDLE_TIMES)
        idle_ns = max(idle_ns - beside_ns, 0)
        group = CpuGroup(machine, frozenset({cpu}))
        use, (stolen, elapsed_ns) = cpu_use(readings, group), stolen_ns(readings, group)
        napi_ns = napi_alone_ns(readings, machine, cpu)
        return replace(
            plain,
            busy=min(max(1 - idle_ns / load_ns, 0.0), 1.0),
            others=use.others_ns / use.time_ns if use is not None else 0.0,
            steal=(stolen or 0) / max(elapsed_ns, 1),
            napi=min(napi_ns / load_ns, 1.0),
            softirq=min((delta.total(f"cpu.{cpu}.softirq_ns") or 0) / load_ns, 1.0),
            queues=self.served.get((machine, cpu), ()),
        )


def _fullest(cpus: Iterable[LoadedCpu | None]) -> LoadedCpu | None:
    known = (cpu for cpu in cpus if cpu is not None)
    return max(known, key=lambda cpu: cpu.busy, default=None)


def diagnose(readings: Readings, ledger: Ledger | None) -> tuple[Bottleneck, ...]:
    """Return what limits a trial, what matters most first; empty if nothing can be said.

    A stream has no ledger, and a trial without a packet no limit.
    """
    if ledger is None or not ledger.intended_packets:
        return ()
    case = _case(readings, ledger)
    bottlenecks = [bottleneck for find in BOTTLENECKS for bottleneck in find(case)]
    if not any(bottleneck.stage == case.stage for bottleneck in bottlenecks):
        bottlenecks += unexplained(case)
    return (*bottlenecks, *power_saving(case))


def _case(readings: Readings, ledger: Ledger) -> Case:
    """Return the evidence, with the stage at which most packets ended before or after they left."""
    ended = losses(ledger)
    if unsent_packets(readings) <= UNSENT * intended_packets(readings):
        ended.pop("unsent", None)
    known = {place: packets for place, packets in ended.items() if OR not in place}
    stage, place = worst_place(known), worst_place(ended)
    return Case(readings, ledger, stage, known.get(stage, 0), place if place != stage else "")


def _bottleneck(
    case: Case,
    name: str,
    certainty: Certainty,
    what: str,
    cpu: LoadedCpu | None = None,
    *,
    test: str = "",
    remedy: str = "",
    words: Mapping[str, str] | None = None,
    numbers: Mapping[str, float] | None = None,
) -> Bottleneck:
    """Return a bottleneck; behind ``what`` stands how busy a CPU is, if one speaks for it."""
    behind = "the receiver falls behind" if case.falls_behind and case.behind else ""
    text = ": ".join(filter(None, (behind, what, cpu.text if cpu is not None else "")))
    fill = {**case.words, **(words or {})}
    helps = REMEDIES[remedy or name].text
    for word, value in fill.items():
        helps = helps.replace(f"<{word}>", value)
    evidence = {**(numbers or {}), **(cpu.shares if cpu is not None else {})}
    return Bottleneck(name, certainty, case.stage, case.packets, text, helps, test, evidence, fill)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _packets(number: int) -> str:
    return f"{show_count(number)} packet{'s' * (number != 1)}"


def _meaning(stage: str) -> str:
    """Return what a stage means, in one clause."""
    text = ROWS[stage].means.split(". ")[0].rstrip(".").split(": ")[0]
    return text[:1].lower() + text[1:]


# --- what remedies and their steps are filled with -----------------------------------------------


def _of_memory(case: Case, hosts: Sequence[Facts]) -> dict[str, str]:
    """Return sizes of buffers, backlog, ring and UDP's memory that would hold what came."""
    words: dict[str, str] = {}
    sizes = _buffers(case.readings.workers("receiver"))
    if sizes:
        wanted_bytes = _with_room(case, min(sizes))
        words["buffer"] = format_bytes(wanted_bytes)
        words["large_buffer"] = format_bytes(4 * wanted_bytes)
    backlogs = [int(text.split()[0]) for text in _in_force(case, hosts, BACKLOG)]
    if any(backlogs):
        backlog_packets = _with_room(case, min(filter(None, backlogs)))
        words |= {"backlog": str(backlog_packets), "large_backlog": str(8 * backlog_packets)}
    rings = [facts.rings for facts in hosts if facts.rings.get("rx-max")]
    longest = min((each["rx-max"] for each in rings), default=0)
    if any(each.get("rx", 0) < longest for each in rings):
        words["ring"] = str(longest)
    pages = _udp_pages(case, hosts)
    if pages is not None:
        words |= {"udp_pages": str(pages), "udp_mem": f"{pages} {pages} {2 * pages}"}
    return words


def _udp_pages(case: Case, hosts: Sequence[Facts]) -> int | None:
    """Return pages that hold all receive buffers full, and as many as UDP may take now, if known.

    None if neither is known; a network namespace of its own does not show what UDP may take.
    """
    sockets = {
        inode: stats.buffer_bytes or 0
        for stats in case.readings.workers("receiver")
        for inode in stats.socket_inodes
    }
    bounds = _in_force(case, hosts, UDP_MEMORY)
    now = max((int(text.split()[-1]) for text in bounds), default=0)
    pages = max(2 * sum(sockets.values()) // PAGE_BYTES, now)
    return 1 << (pages - 1).bit_length() if pages else None


def _in_force(case: Case, hosts: Sequence[Facts], sysctl: str) -> list[str]:
    """Return a sysctl of the machines as the trial set it, else as hosts show it; may be empty.

    A network namespace of its own shows none that its machine shares.
    """
    changes = chain.from_iterable(case.readings.record.changes.values())
    texts = [str(each.after) for each in changes if each.setting.target == sysctl]
    shown = (each.environment.get(sysctl, each.limits.get(sysctl, "")) for each in hosts)
    return [text for text in texts or map(str, shown) if SYSCTL_NUMBERS.fullmatch(text)]


def _of_cpus(case: Case, hosts: Sequence[Facts]) -> dict[str, str]:
    """Return how many CPUs each role may use, and which have no worker; none of a single one.

    Hosts of a built-in lab split the machine's.
    """
    shared = case.readings.record.built_in_lab
    words: dict[str, str] = {}
    receiving = min((len(facts.cpus) for facts in hosts), default=0)
    senders = [case.readings.record.facts.get(host) for host in case.readings.roles.senders]
    sending = min((len(facts.cpus) for facts in senders if facts is not None), default=0)
    for word, cpus in (
        ("cpus", (receiving + 1) // 2 if shared else receiving),
        ("sender_cpus", sending // 2 if shared else sending),
    ):
        words |= {word: str(cpus)} if cpus > 1 else {}
    if len(hosts) == 1 and not shared:
        (facts,) = hosts
        used = {stats.cpu for stats in case.readings.workers("receiver")}
        others = [str(cpu) for cpu in facts.cpus if cpu not in used]
        words |= {"other_cpus": ",".join(others)} if others else {}
        words["all_cpus"] = ",".join(map(str, facts.cpus))
    return words


def _buffers(workers: Iterable[WorkerStats]) -> list[int]:
    """Return the bytes that were asked for each socket's buffer; the kernel doubles them."""
    return [stats.buffer_bytes // 2 for stats in workers if stats.buffer_bytes]


def _with_room(case: Case, held: int) -> int:
    """Return a power of two with room for twice as much as came, for what ``held`` has held."""
    received = max(case.ledger.received_packets, 1)
    room = 2 * held * (received + case.packets) // received
    return 1 << (room - 1).bit_length()


# --- out of the ordinary -------------------------------------------------------------------------


def unaccounted(case: Case) -> Iterator[Bottleneck]:
    """Find more packets that no stage explains, or counters that contradict what was received."""
    remainder, lost = case.ledger.unaccounted or 0, losses(case.ledger)
    what = f"no stage explains {_packets(remainder)} of the loss"
    if remainder < 0:
        what = f"stages count {_packets(-remainder)} more than were lost"
    unplaced = not case.stage and not case.shared
    if remainder > lost.get(worst_place(lost), 0) or (remainder and unplaced):
        nowhere = replace(case, stage="unaccounted", packets=max(remainder, 0))
        yield _bottleneck(nowhere, "unaccounted", CERTAIN, what)


def bounded_loss(case: Case) -> Iterator[Bottleneck]:
    """Find a loss of which the ledger knows how large it is, and not at which of several stages."""
    if not case.shared:
        return
    packets = packets_at(losses(case.ledger), case.shared)
    spans = intervals(case.ledger, case.shared)
    parts = [f"{stage} {show_count(s.low)} to {show_count(s.high)}" for stage, s in spans.items()]
    what = f"{_packets(packets)}, {', '.join(parts)}"
    evidence = {f"{stage}_at_least": s.low for stage, s in spans.items()}
    evidence |= {f"{stage}_at_most": s.high for stage, s in spans.items()}
    shared = replace(case, stage=case.shared, packets=packets)
    named = _explainable(case, spans, packets)
    if named:
        words, test = {"explained": ", ".join(named)}, "explain: true"
        yield _bottleneck(
            shared, "bounded_loss", CERTAIN, what, test=test, words=words, numbers=evidence
        )
        return
    explained = case.readings.record.trial.explain
    nothing_does = "neither counters nor drop reasons tell" if explained else "no counter tells"
    what = f"{what}; {nothing_does} them apart"
    plain = _bottleneck(shared, "bounded_loss", CERTAIN, what, numbers=evidence)
    yield replace(plain, remedy=helps_at(case.shared))


def _explainable(case: Case, spans: Mapping[str, Span], packets: int) -> list[str]:
    """Return the stages whose drops ``explain`` would count, if that may make all of them exact.

    Not if two or more others share a part of the loss that no reason can have.
    """
    record = case.readings.record
    if record.trial.explain or record.built_in_lab:
        return []
    named = [stage for stage in spans if ROWS[stage].reasons and _names_reasons(case, stage)]
    most = sum(span.high if stage in named else span.low for stage, span in spans.items())
    return named if len(spans) - len(named) <= 1 or most >= packets else []


def _names_reasons(case: Case, stage: str) -> bool:
    """Return whether the kernels at a stage name drop reasons, as far as that is known."""
    record = case.readings.record
    for host in case.readings.hosts(ROWS[stage].role):
        selftest, facts = record.selftests.get(host), record.facts.get(host)
        release = re.match(r"(\d+)\.(\d+)", facts.kernel) if facts is not None else None
        if selftest is not None and selftest.unexplained is not None:
            return False
        if release is not None and tuple(map(int, release.groups())) < REASONS_RELEASE:
            return False
    return True


def refused(case: Case) -> Iterator[Bottleneck]:
    """Find a stage that drops by a rule or a bound, however fast anybody is."""
    if case.stage in REFUSING:
        yield _bottleneck(case, case.stage, CERTAIN, _meaning(case.stage))


def failing_calls(case: Case) -> Iterator[Bottleneck]:
    """Find calls of the sender that failed rather than came too late."""
    failed = {name: case.readings.count("sender", name) for name in SEND_ERRORS}
    if case.stage == "unsent" and 2 * sum(failed.values()) > case.packets:
        most = max(failed, key=lambda name: failed[name])
        what = f"calls of the sender failed, most by {most} ({show_count(failed[most])})"
        yield _bottleneck(case, "failing_calls", CERTAIN, what, numbers=failed)


def others_cpu(case: Case) -> Iterator[Bottleneck]:
    """Find other programs, or a hypervisor, on the CPU that should have been faster.

    A sender that is robbed makes up for it in bursts, for which a receiver that has time is late.
    """
    cpu, certainty = case.late, CERTAIN
    if case.stage and cpu is not None and cpu.role == "receiver" and not cpu.full:
        cpu, certainty = case.sending, LIKELY
    if cpu is None or not cpu.full:
        return
    if cpu.others >= TAKEN:
        group = CpuGroup(cpu.machine, frozenset({cpu.cpu or 0}))
        used_ns = int(cpu.others * case.readings.deltas[cpu.machine].elapsed_ns)
        user = main_user(case.readings, group, "other", used_ns)
        what = f"other programs took {_percent(cpu.others)} of {cpu.name}"
        sure = certainty if cpu.others >= MUCH else LIKELY
        what += f" ({user})" if user else ""
        yield _bottleneck(case, "others_cpu", sure, what, remedy="busy", numbers=cpu.shares)
    if cpu.steal >= TAKEN:
        what = f"the hypervisor took {_percent(cpu.steal)} of {cpu.name}"
        sure = certainty if cpu.steal >= MUCH else LIKELY
        yield _bottleneck(case, "steal", sure, what, numbers=cpu.shares)


def inline(case: Case) -> Iterator[Bottleneck]:
    """Find receive work on the sender's CPU, as in a pair without NAPI and RPS."""
    readings, cpu = case.readings, case.sending
    elsewhere = readings.counter("receiver", NAPI_PACKETS) or case.served
    if readings.all_veth and not elsewhere and case.limited_by_sender and cpu and cpu.full:
        what = "the sender's system calls do the receive work"
        yield _bottleneck(case, "inline", CERTAIN, what, cpu)


def sender_queue(case: Case) -> Iterator[Bottleneck]:
    """Find a queue of the sender that drops, or for which a sender waits that never sleeps."""
    if case.stage == "tx_qdisc":
        what = "the sender's queueing discipline drops what exceeds its rate or its limit"
        yield _bottleneck(case, "sender_queue", CERTAIN, what)
    elif case.sender_waits and not case.held_up:
        what = "the sender waits for its queue"
        yield _bottleneck(case, "sender_queue", LIKELY, what, case.sending)


def small_backlog(case: Case) -> Iterator[Bottleneck]:
    """Find a backlog too small for what comes at once, before a CPU that has time."""
    cpu = case.polling
    if case.stage == "rx_backlog" and cpu is not None and case.behind is None:
        what = "the CPU's backlog is too small for the bursts"
        sure = LIKELY if cpu.full else CERTAIN
        yield _bottleneck(case, "small_backlog", sure, what, cpu, remedy="rx_backlog")


def short_ring(case: Case) -> Iterator[Bottleneck]:
    """Find a ring that overflows although the CPU that polls it has time."""
    cpu = case.polling
    if case.in_ring and case.stage != "rx_backlog" and cpu is not None and case.behind is None:
        what = "the ring is too short for the burst"
        yield _bottleneck(case, "short_ring", LIKELY, what, cpu)


def small_buffer(case: Case) -> Iterator[Bottleneck]:
    """Find a buffer that is too small for a burst, since the reader has time otherwise."""
    cpu = case.reading
    if case.stage != "udp_rcvbuf" or cpu is None or case.behind is not None:
        return
    sizes = _buffers(cpu.workers)
    now = f" of {format_bytes(min(sizes))}" if sizes else ""
    what = f"the receive buffer{now} is too small for the burst"
    unknown = {} if sizes else {"buffer": "what holds it"}
    sure, shown = (CERTAIN, cpu) if case.lasts else (LIKELY, None)
    yield _bottleneck(case, "small_buffer", sure, what, shown, words=unknown, numbers=cpu.shares)


# --- a full receiving CPU: what of it could be spared ---------------------------------------------


def firewall(case: Case) -> Iterator[Bottleneck]:
    """Find rules that take a part of the receive work, if each packet passes all of them.

    One that a rule of udpbench's accepts passes no others of that hook: it is at the head of their
    chains.
    """
    cpu, readings = case.behind, case.readings
    facts = (readings.record.facts.get(host) for host in readings.roles.receivers)
    rules = max((each.firewall_rules or 0 for each in facts if each is not None), default=0)
    accepted = readings.counter("receiver", "firewall.*/input/accept/*") or 0
    delivered = readings.counter("receiver", "{ip}InDelivers") or 0  # fragments reassembled
    share = 1 - min(accepted / delivered, 1.0) if delivered else 1.0
    passed_ns = share * rules * RULE_NS * (skbs.received_skbs(readings) or 0)
    if cpu is None or not rules or passed_ns < MUCH * cpu.receiving * case.load_ns:
        return
    port = min((port for spec in readings.record.workers for port in spec.bind_ports), default=0)
    what = f"packets pass up to {show_count(rules)} firewall rules"
    test = f"settings.receiver.firewall: {{udp: {port}, accept: true, notrack: true}}"
    yield _bottleneck(case, "firewall", LIKELY, what, cpu, test=test, numbers={"rules": rules})


def shared_socket(case: Case) -> Iterator[Bottleneck]:
    """Find several readers of one socket, more than CPUs or with one lock."""
    cpu = case.behind
    readers: dict[int, list[WorkerStats]] = {}
    for stats in case.readings.workers("receiver"):
        for inode in stats.socket_inodes:
            readers.setdefault(inode, []).append(stats)
    most = max(readers.values(), key=len, default=[])
    cpus = len({stats.cpu for stats in most})
    if cpu is None or len(most) < 2:
        return
    packets = max(sum(stats.counts.get("read_packets", 0) for stats in most), 1)
    switches = sum(stats.counts.get("voluntary_switches", 0) for stats in most)
    numbers = {"readers": len(most), "cpus": cpus, "switches_per_packet": switches / packets}
    place = f" and {cpus} CPU{'s' if cpus > 1 else ''}" if len(most) > cpus else ""
    what = f"{len(most)} readers share one socket{place}"
    sure = LIKELY if place else TO_BE_TESTED
    test = "receive.workers: 1" if cpus == 1 else "receive.sockets: reuseport"
    yield _bottleneck(case, "shared_socket", sure, what, cpu, test=test, numbers=numbers)


def unmerged(case: Case) -> Iterator[Bottleneck]:
    """Find skbs of many packets that the kernel takes apart for a reader without UDP_GRO."""
    cpu, readings = case.behind, case.readings
    received, segments = skbs.received_skbs(readings), skbs.received_segments(readings)
    if cpu is None or readings.record.trial.receive.gro or not received or not segments:
        return
    each = segments / received
    if each >= 2:
        what = f"{each:.0f} datagrams arrive in one skb and are read one by one"
        numbers = {"packets_per_skb": each}
        yield _bottleneck(
            case, "unmerged", LIKELY, what, cpu, test="receive.gro: true", numbers=numbers
        )


def remote_node(case: Case) -> Iterator[Bottleneck]:
    """Find a reader on another NUMA node than the card."""
    cpu = case.behind
    for host in case.readings.roles.receivers:
        facts = case.readings.record.facts.get(host)
        if cpu is None or not cpu.workers or facts is None or facts.interface_node is None:
            continue
        near = facts.numa_nodes.get(str(facts.interface_node), ())
        if near and cpu.cpu is not None and cpu.cpu not in near:
            what = f"the reader is not on the card's NUMA node {facts.interface_node}"
            test = "receive.cpus: same-node"
            yield _bottleneck(
                case, "remote_node", TO_BE_TESTED, what, cpu, test=test, remedy="worker_nodes"
            )
            return


def one_queue(case: Case) -> Iterator[Bottleneck]:
    """Find one of several RX queues with most packets, whose CPU is full."""
    cpu = case.behind
    for packets in by_receiver(case.readings).values() if cpu is not None else ():
        most = max(packets, key=lambda queue: packets[queue])
        share = packets[most] / max(sum(packets.values()), 1)
        if cpu and len(packets) > 1 and share >= ONE_OF_MANY and str(most) in cpu.queues:
            what = f"queue {most} of {len(packets)} has {_percent(share)} of the packets"
            numbers = {"share": share}
            yield _bottleneck(case, "one_queue", CERTAIN, what, cpu, numbers=numbers)


def full_cpu(case: Case) -> Iterator[Bottleneck]:
    """Find what a full CPU does: the reader's work, the system's for it, or receiving.

    First what it does most; but the reader's work, if it is much, where a CPU without anything
    else would not do it at the rate that was asked for.
    """
    cpu = case.behind
    if cpu is None:
        return
    parts = {"reader_work": cpu.user, "shared_cpu": cpu.receiving, "reader_system": cpu.system}
    if not cpu.workers:
        parts = {"receive_cpu": cpu.receiving}
    much = {name for name in parts if parts[name] >= MUCH * cpu.busy}
    rated = case.readings.record.trial.traffic.rate is not None and case.is_behind(cpu)
    alone = case.alone(cpu) if rated and "reader_work" in much else 0.0
    lacking = f"the reader's own work at this rate would take {alone:.1f} CPUs"
    whats = {"reader_work": lacking} if alone > 1 else {}
    ordered = sorted(parts, key=lambda name: (name not in whats, -parts[name]))
    for name in ordered:
        if name == ordered[0] or name in much:
            sure = CERTAIN if name == ordered[0] else LIKELY
            yield _bottleneck(case, name, sure, whats.get(name, ""), cpu)


# --- what is left --------------------------------------------------------------------------------


def sender_cpu(case: Case) -> Iterator[Bottleneck]:
    """Find a sender that offers no more."""
    cpu = case.sending
    if case.limited_by_sender and cpu is not None and cpu.full:
        yield _bottleneck(case, "sender_cpu", CERTAIN, "", cpu)


def nothing(case: Case) -> Iterator[Bottleneck]:
    """Find that all that was offered arrived."""
    if case.lossless and case.offered_all and case.behind is None:
        what = "nothing limits this load, and its rate is a lower bound"
        yield _bottleneck(case, "nothing", CERTAIN, what)


def unexplained(case: Case) -> Iterator[Bottleneck]:
    """Return the stage alone, where nothing is known of CPUs."""
    if case.stage:
        yield _bottleneck(case, case.stage, LIKELY, _meaning(case.stage))


def power_saving(case: Case) -> Iterator[Bottleneck]:
    """Find a clock that follows the load, where a receiving CPU is full or comes late."""
    cpu = case.late
    for host in case.readings.roles.receivers if cpu and cpu.role == "receiver" else ():
        facts = case.readings.record.facts.get(host)
        governor = facts.environment.get("governor") if facts is not None else None
        if governor not in (None, "performance"):
            what = f"the governor of the receiver's CPUs is {governor}"
            test = "settings.receiver.cpu: {governor: performance}"
            yield _bottleneck(case, "governor", TO_BE_TESTED, what, test=test)
            return


BOTTLENECKS: tuple[Callable[[Case], Iterator[Bottleneck]], ...] = (
    unaccounted,
    bounded_loss,
    refused,
    failing_calls,
    others_cpu,
    inline,
    sender_queue,
    small_backlog,
    short_ring,
    small_buffer,
    firewall,
    shared_socket,
    unmerged,
    remote_node,
    one_queue,
    full_cpu,
    sender_cpu,
    nothing,
)
"""In the order in which they speak."""

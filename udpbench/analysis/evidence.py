"""The evidence of one trial: what CPUs, readers and senders did while packets came, computed once.

Pure, from the record alone. Owns no verdict: ``diagnosis`` has the rules that use it. What a host
cannot tell is None. Long, because all of it is one frozen object that answers each rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from udpbench.analysis.cpu_owners import cpus_of_node
from udpbench.analysis.cpu_use import (
    TICK_NS,
    CpuGroup,
    cpu_use,
    napi_alone_ns,
    napi_waits_ns,
    others_anywhere,
    stolen_ns,
)
from udpbench.analysis.ledger.ledger import lost_by_place
from udpbench.analysis.motion import (
    LEAST_INTERVALS,
    LOSING_BETWEEN,
    Course,
    course,
    sent_course,
)
from udpbench.analysis.queue_counters import loaded_queues
from udpbench.analysis.rates import (
    IDLE_TIMES,
    full_line_bps,
    host_of,
    lag,
    series_of,
    window_ns,
)
from udpbench.analysis.reader_time import (
    CAUSES_OF_LATE,
    EMPTIED,
    FULL,
    MUCH,
    SPARE,
    LoadedCpu,
    ReaderTime,
    reading_threads,
    time_of,
)
from udpbench.analysis.readings import End, Readings
from udpbench.model.host import FIREWALL_CHANGED, FIREWALL_RULES
from udpbench.model.limits import NUMBER, SAMPLE_NS, SECOND_NS
from udpbench.model.record import Stall, WorkerStats
from udpbench.model.result import Ledger
from udpbench.ways import wait_of

LAG = 0.01
"""Share of the load's time by which receivers may be late (``Search.precision``)."""
LEAST_WINDOW_NS = 20 * TICK_NS
"""In less time ticks cannot tell whether a CPU was busy, and a load is no lasting one."""
LITTLE = 0.05
"""Share of a loss below which a cause is not named, nor makes another less certain."""
LONG_STALL_NS = 50 * 10**6
"""A sender that is late for its CPU stalls for less, again and again."""
REAL_TIME = ("fifo", "rr")
"""Words of a priority that no ordinary thread interrupts (sched(7))."""
SENDING = ("unsent", "tx_qdisc")
MOVING = ("received_packets", "dropped_packets")
LASTING = 0.8
"""Share of the intervals that lose packets, from which on a load is more than its reader's."""
MOST_OF_IT = 0.7
"""Part of a time or a loss: shares are of the time between snapshots, longer than the load's."""
SKB_BYTES = 1024
"""Most that a socket is charged for a packet beside its data, which may be rounded up to twice as
much (include/linux/skbuff.h, SKB_TRUESIZE)."""
OWN = 0.8
"""Share of a CPU that nobody but a program can have used."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """The evidence of one trial for one place at which packets ended."""

    readings: Readings
    ledger: Ledger
    stage: str
    """Where most packets ended of which the stage is known; empty if there are none."""
    packets: int
    shared: str = ""
    """The stages that share more than that, each an interval; empty if they do not."""
    valid: bool = True
    """Whether the trial counts."""

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
        if self.keeps_from_polling(peer):
            return True
        return self.is_behind(peer) if peer.workers else peer.full

    def keeps_from_polling(self, cpu: LoadedCpu) -> bool:
        """Return whether readers of a real-time priority keep a CPU from polling its queue."""
        priority = self.readings.record.trial.receive.priority.split()[0]
        shares = bool(cpu.full and cpu.workers and cpu.queues and cpu.napi)
        return shares and priority in REAL_TIME

    @property
    def falls_behind(self) -> bool:
        """Whether receivers needed longer than senders: of a longer load they would lose some."""
        return self.lossless and self.lasts and (lag(self.readings) or 0.0) > LAG

    @property
    def in_ring(self) -> bool:
        """Whether packets were lost where the CPU of a queue did not poll in time."""
        last = f"{[*self.readings.exits][-1]}.fwd_device" if self.readings.exits else "tx_device"
        by_peer = (last, "link") if self.readings.record.built_in_lab else ()
        return self.stage in ("rx_ring", "rx_backlog", *by_peer)

    @property
    def node(self) -> str:
        """The node in the middle at which packets ended; empty of an end.

        The ring of a veth that is full is counted by the device at its other end.
        """
        name, _, stage = self.stage.rpartition(".")
        nodes = [*self.readings.exits]
        if nodes and self.readings.wired and stage in ("tx_device", "fwd_device"):
            following = nodes[nodes.index(name) + 1 :] if name in nodes else nodes
            return next(iter(following), "")
        return name if name in nodes else ""

    @property
    def node_stage(self) -> str:
        """The stage of that node: of a ring that its neighbour counts, ``fwd_ring``."""
        own = self.stage.rpartition(".")[0] == self.node
        return self.stage if own or not self.node else f"{self.node}.fwd_ring"

    @property
    def overrun(self) -> bool:
        """Whether a backlog overflowed though its CPU receives little, whatever programs run there.

        Soft interrupts come before them.
        """
        cpu = self.polling
        return self.stage == "rx_backlog" and cpu is not None and cpu.receiving < MUCH

    @cached_property
    def load_ns(self) -> int:
        """The time from the first packet to the last, at either end."""
        readings = self.readings
        return max(window_ns(readings, end.workers) or 0 for end in readings.ends)

    @property
    def lasts(self) -> bool:
        """Whether the load lasted so long that no buffer is meant to hold what does not fit."""
        return self.load_ns >= LEAST_WINDOW_NS

    @cached_property
    def sending(self) -> LoadedCpu | None:
        """The sender's fullest CPU."""
        return _fullest(cpu for cpu, _ in self._loaded(self.readings.sender))

    @cached_property
    def reading(self) -> LoadedCpu | None:
        """The fullest CPU of the readers: of those whose sockets dropped packets, if any did."""
        return _fullest(cpu for cpu, _ in self._loaded(self.readings.receiver))

    @cached_property
    def polling(self) -> LoadedCpu | None:
        """The fullest CPU that serves an RX queue; None of receive work on the sender's CPU."""
        readers: dict[tuple[str, int | None], list[WorkerStats]] = {}
        for stats in self.readings.receiver.workers:
            place = self.readings.machine_of(host_of(stats.worker)), stats.cpu
            readers.setdefault(place, []).append(stats)
        cpus = [
            self._cpu(self.readings.receiver, machine, cpu, readers.get((machine, cpu), []))
            for machine, cpu in sorted(self.served)
        ]
        return _fullest(cpus)

    def forwarding(self, node: str) -> LoadedCpu | None:
        """Return the fullest CPU that a node in the middle has for itself; None without one."""
        view = self.readings.only(node).at("middle")
        cpus = (self._cpu(view, *cpu, []) for cpu in cpus_of_node(self.readings, node))
        return _fullest(replace(cpu, node=node) for cpu in cpus if cpu is not None)

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
    def lost_packets(self) -> int:
        """Packets that ended anywhere, whether a stage explains them or not."""
        return sum(lost_by_place(self.ledger).values()) + abs(self.ledger.unaccounted or 0)

    @cached_property
    def behind(self) -> LoadedCpu | None:
        """The receiving CPU that is full as long as the load lasts; None if it has time."""
        cpu = self.late
        if cpu is None or cpu.sends or not self.lasts:
            return None
        if self.stage == "udp_rcvbuf":
            return cpu if self.late_packets["capacity"] >= LITTLE * self.packets else None
        return cpu if (cpu.full if self.in_ring or self.held_up else self.is_behind(cpu)) else None

    def receiving_need(self, cpu: LoadedCpu) -> float:
        """Return how many CPUs the receive work of all that came to a queue would take."""
        passed = self.ledger.received_packets
        return cpu.receiving * (passed + self.packets) / passed if passed else 0.0

    @property
    def knows_readers(self) -> bool:
        """Whether it is known how the readers that dropped packets spent their time."""
        return all(each.waiting is not None for each in self.readers)

    @property
    def robbed_sender(self) -> LoadedCpu | None:
        """The sender's CPU if it is full and others took a tenth of it or more."""
        cpu = self.sending
        taken = cpu is not None and cpu.full and max(cpu.others, cpu.steal) >= SPARE
        return cpu if taken else None

    def sent_on_all_of(self, cpu: LoadedCpu) -> float:
        """Return how many packets more a sender had sent if nobody else had used its CPU."""
        taken = min(max(cpu.others, cpu.steal), OWN)
        sent_packets = self.ledger.intended_packets - self.packets
        return sent_packets * taken / (1 - taken)

    @cached_property
    def long_stalls(self) -> list[Stall]:
        """The stalls of senders of 50 ms or more: one that lacks CPU time has many short ones."""
        return [
            stall
            for stats in self.readings.sender.workers
            for stall in stats.stalls
            if stall.until_ns - stall.from_ns >= LONG_STALL_NS
        ]

    @property
    def stalls_explain(self) -> bool:
        """Whether what was not offered was due in long stalls of a sender that is on time else."""
        missed = sum(stall.packets for stall in self.long_stalls)
        unsent = self.stage == "unsent" and missed >= (1 - LITTLE) * self.packets > 0
        return unsent and not self.sends_late

    @property
    def stalled_ns(self) -> int:
        """Time of the long stalls together."""
        return sum(stall.until_ns - stall.from_ns for stall in self.long_stalls)

    @property
    def sender_waited(self) -> bool | None:
        """Whether a stalled sender waited for its CPU most of that time; None if not known."""
        waits = [s.counts.get("runnable_ns") for s in self.readings.sender.workers]
        known = [waited_ns for waited_ns in waits if waited_ns is not None]
        if known and max(known) >= MOST_OF_IT * self.stalled_ns > 0:
            return True
        return False if len(known) == len(waits) else None

    def others_share(self, cpu: LoadedCpu) -> float:
        """Return for which share of the load others, or the machine, had a CPU, at most.

        What they used is known for the time between the snapshots.
        """
        elapsed_ns = self.readings.deltas[cpu.machine].elapsed_ns
        used = min(max(cpu.others, cpu.steal) * elapsed_ns / max(self.load_ns, 1), 1.0)
        return max(used, cpu.napi_waits if cpu.kept_off >= LITTLE else 0.0)

    def belonged_to_others(self, cpu: LoadedCpu | None) -> bool:
        """Return whether others had a CPU for most of the time of the long stalls, or more.

        Programs only if the sender may have waited for them: a hypervisor it does not see.
        """
        if cpu is None or self.others_share(cpu) < SPARE:
            return False
        if self.sender_waited is False and cpu.kept_off < LITTLE:
            cpu = replace(cpu, others=0.0)
        return self.others_share(cpu) * self.load_ns >= MOST_OF_IT * self.stalled_ns

    @property
    def sender_slept_ns(self) -> int:
        """Time in which a sender that never sleeps neither ran nor waited for its CPU."""
        trial, cpu = self.readings.record.trial, self.sending
        delta = self.readings.deltas.get(cpu.machine) if cpu is not None else None
        if trial.send.pace != "spin" or cpu is None or delta is None:
            return 0
        names = ("elapsed_ns", "running_ns", "runnable_ns")
        known = [s.counts for s in self.readings.sender.workers if s.counts.keys() >= {*names}]
        idle = [each["elapsed_ns"] - each["running_ns"] - each["runnable_ns"] for each in known]
        return sum(idle) - len(idle) * round(cpu.steal * delta.elapsed_ns)

    @property
    def stopped_sender(self) -> bool:
        """Whether a sender stood still though nobody had its CPU, or for longer than they had."""
        if not self.stalls_explain or self.sender_waited:
            return False
        slept = self.sender_slept_ns >= MOST_OF_IT * self.stalled_ns
        return slept or not self.belonged_to_others(self.sending)

    @property
    def interrupted_sender(self) -> LoadedCpu | None:
        """The sender's CPU if others took it while what was not offered was due."""
        return None if self.stopped_sender or not self.stalls_explain else self.sending

    @property
    def interrupted_polling(self) -> LoadedCpu | None:
        """The CPU at the other end of a pair, if others took it and that held the sender up."""
        cpu = self.polling if self.readings.all_veth and self.stage == "unsent" else None
        if cpu is None or self.sends_late is not False or self.others_share(cpu) < SPARE:
            return None
        came = (self.ledger.received_packets + self.packets) * self.others_share(cpu)
        explains = came >= MOST_OF_IT * self.packets and self.may_fill_buffer(came)
        sending = self.sending
        return cpu if explains and (sending is None or sending.others < SPARE) else None

    def may_fill_buffer(self, packets: float) -> bool:
        """Return whether so many packets may fill the senders' buffers; only then they block."""
        buffers = [stats.buffer_bytes for stats in self.readings.sender.workers]
        known_bytes = [size_bytes for size_bytes in buffers if size_bytes is not None]
        most_bytes = SKB_BYTES + 2 * self.readings.record.trial.traffic.datagrams.longest_bytes
        whole = len(known_bytes) == len(buffers)
        return not whole or packets * most_bytes >= sum(known_bytes)

    @cached_property
    def sends_late(self) -> bool | None:
        """Whether senders of a rate offered less than it all the time; None if not known."""
        rate = self.readings.record.trial.traffic.rate
        sent = sent_course(self.readings)
        if rate is None or sent is None or rate.packets_per_s is None:
            return None
        due = rate.packets_per_s * SAMPLE_NS / SECOND_NS
        late = [packets < (1 - LOSING_BETWEEN) * due for packets in sent]
        return sum(late) >= LASTING * len(late)

    def alone(self, cpu: LoadedCpu) -> float:
        """Return how many such CPUs the readers' own work for the whole load would take."""
        received = self.ledger.received_packets
        longer = 1 + (lag(self.readings) or 0.0) if self.falls_behind else 1.0
        return cpu.user * longer * self.ledger.intended_packets / received if received else 0.0

    def is_behind(self, cpu: LoadedCpu) -> bool:
        """Whether readers have no time left: those that never sleep, if calls return datagrams."""
        if not wait_of(self.readings.receive).sleepless:
            return cpu.full
        calls, empty = (
            sum(stats.counts.get(name, 0) for stats in cpu.workers)
            for name in ("receive_calls", "empty_calls")
        )
        return calls > 0 and 1 - empty / calls >= FULL

    @cached_property
    def served(self) -> dict[tuple[str, int], tuple[str, ...]]:
        """Machine and number of each CPU that serves RX queues with packets → the queues."""
        served: dict[tuple[str, int], list[str]] = {}
        for host, queue, cpus in loaded_queues(self.readings):
            for cpu in cpus:
                served.setdefault((self.readings.machine_of(host), cpu), []).append(queue)
        return {place: tuple(queues) for place, queues in served.items()}

    @cached_property
    def course(self) -> Course | None:
        """The load's course; None if it was too short, or has no series."""
        return course(self.readings)

    @property
    def lasts_on(self) -> bool | None:
        """Whether packets were lost as long as the load went on, once buffers were full.

        None if the load has no course to tell it from.
        """
        lasting = self.course.lasting if self.course is not None else None
        return None if lasting is None else lasting >= LASTING

    @property
    def goes_dark(self) -> bool:
        """Whether nothing arrived for 0.1 s or more although packets were sent."""
        return self.course is not None and self.course.dark

    def is_interrupted(self, cpu: LoadedCpu) -> bool:
        """Return whether others took a CPU for a while in which what was lost came, not all along.

        Then it need not be full over the whole time.
        """
        came, taken = self.ledger.received_packets + self.packets, self.others_share(cpu)
        explains = came * taken >= MOST_OF_IT * self.packets
        return self.lasts_on is False and taken >= SPARE and explains

    @property
    def firewall_rules(self) -> int:
        """The most rules that any host had before the trial or after it, as far as known."""
        record = self.readings.record
        before = (facts.firewall_rules or 0 for facts in record.facts.values())
        after = (known.get(FIREWALL_RULES, "") for known in record.environment_after.values())
        return max((*before, *(int(n) for n in after if re.fullmatch(NUMBER, n))), default=0)

    @property
    def firewall_changed(self) -> bool:
        """Return whether others changed a host's rules since the facts of the trial were read."""
        struck = {each.what for each in self.readings.record.findings if each.severity == "struck"}
        return "firewall" in self.changes or FIREWALL_CHANGED in struck

    @property
    def changes(self) -> dict[str, list[str]]:
        """Subject, such as ``firewall`` → the hosts at which others changed it meanwhile."""
        changed: dict[str, list[str]] = {}
        for host in (*self.readings.sender.hosts, *self.readings.receiver.hosts):
            delta = self.readings.deltas.get(host)
            for name, times in delta.block("changed").items() if delta is not None else ():
                if times:
                    changed.setdefault(name.partition(".")[2], []).append(host)
        return changed

    @cached_property
    def readers(self) -> tuple[ReaderTime, ...]:
        """The readers whose sockets dropped packets, by CPU; all of them if none is known to."""
        times = [self._reader_time(cpu, own) for cpu, own in self._loaded(self.readings.receiver)]
        read = {
            inode
            for each in times
            if each.read_packets
            for s in each.workers
            for inode in s.socket_inodes
        }
        # One that shares a socket may be idle while others read it; a socket that none reads hangs.
        return tuple(
            each
            for each in times
            if each.read_packets
            or read.isdisjoint(i for s in each.workers for i in s.socket_inodes)
        )

    @cached_property
    def late_packets(self) -> dict[str, float]:
        """Cause of a full socket buffer → packets that were dropped by it."""
        lasting = self.lasts and self.lasts_on is not False
        whole = dict.fromkeys(CAUSES_OF_LATE, 0.0)
        sending_ns = window_ns(self.readings, self.readings.sender.workers) or self.load_ns
        coming = sending_ns / max(self.load_ns, 1)
        for reader in self.readers:
            for cause, packets in reader.shares_out(lasting, coming).items():
                whole[cause] += packets
        total = sum(whole.values())
        # Sockets' own drops may not be known, or be of skbs: the stage has the packets.
        return {c: n * self.packets / total if total else 0.0 for c, n in whole.items()}

    def _reader_time(self, cpu: LoadedCpu | None, own: Sequence[WorkerStats]) -> ReaderTime:
        """Return how readers of one CPU spent their time."""
        load_ns = max(self.load_ns, 1)
        threads = [thread for stats in own for thread in reading_threads(stats.threads)]
        read = sum(stats.counts.get("received_packets", 0) for stats in own)
        dropped = self._drops(own)
        plain = self.readings.receiving.takes != "program"
        stood_ns = sum(stats.counts.get("standstill_ns", 0) for stats in own)
        spent_by = time_of(threads, stood_ns / load_ns / len(own))
        stopped = spent_by.stopped
        call, asleep, waiting, count = "", None, None, 1
        emptied = self._was_emptied(own)
        if plain:
            running = self._busy_share(cpu, own, emptied is False)
            runnable_ns = [s.counts["runnable_ns"] for s in own if "runnable_ns" in s.counts]
            runnable = min(sum(runnable_ns) / load_ns / len(own), 1.0) if runnable_ns else None
            beside = runnable if runnable is not None else self._beside(cpu)
            waiting, asleep = max(1 - running - beside - stopped, 0.0), 0.0
            if cpu is not None and cpu.cpu is not None and wait_of(self.readings.receive).naps:
                waiting = min(waiting, 1 - cpu.busy)  # asleep, it leaves its CPU idle
        elif threads:
            count, running, runnable = len(threads), spent_by.running, spent_by.runnable
            asleep, waiting, call = spent_by.asleep, spent_by.waiting, spent_by.call
        else:
            spent = [(s.process_cpu_ns, s.process_load_ns) for s in own]
            known = [(a, b) for a, b in spent if a is not None and b]
            running = min(sum(a / b for a, b in known), 1.0) if known else 0.0
            runnable = None
        pauses = self._pauses_ns(own) if not plain else []
        if len(pauses) == 1:
            # One that pauses again and again is slow, and does not stand still.
            stopped = max(stopped, pauses[0] / load_ns)
        if not plain:
            used = cpu.busy - self._beside(cpu) if cpu is not None and cpu.cpu is not None else 0.0
            if cpu is not None and used and used >= OWN * (1 - cpu.receiving):
                # Processes that it starts and that end between two looks are its own work, too.
                running = max(running, used)
                asleep = waiting = None if asleep is None else 0.0
        if asleep is None and self.lasts_on:
            # With packets in its queue all the time it did not wait for one.
            beside = runnable if runnable is not None else self._beside(cpu)
            waiting, asleep = 0.0, max(1 - running - beside - stopped, 0.0)
        return ReaderTime(
            *(tuple(own), cpu, running, stopped, asleep, waiting, runnable, read, dropped),
            threads=count,
            call=call,
            emptied=emptied is True or len(pauses) > 1,
            always_full=emptied is False,
        )

    def _busy_share(
        self, cpu: LoadedCpu | None, own: Sequence[WorkerStats], always_full: bool
    ) -> float:
        """Return in which share of the time readers of ours ran for datagrams, not for none.

        With a queue that is never empty, a call that returns nothing (io_uring) was for some.
        """
        load_ns = max(self.load_ns, 1)
        spent_ns = sum(s.counts.get(n, 0) for s in own for n in ("user_ns", "system_ns"))
        count = 1 if cpu is not None and cpu.cpu is not None else len(own)
        running = min(spent_ns / load_ns / count, 1.0)
        if always_full or not wait_of(self.readings.receive).sleepless:
            return running
        calls, empty = (
            sum(stats.counts.get(name, 0) for stats in own)
            for name in ("receive_calls", "empty_calls")
        )
        return running * (1 - empty / calls) if calls else running

    def _beside(self, cpu: LoadedCpu | None) -> float:
        """Return in which share of the time a CPU did something else."""
        return min(cpu.others + cpu.steal + cpu.receiving, 1.0) if cpu is not None else 0.0

    def _pauses_ns(self, own: Sequence[WorkerStats]) -> list[int]:
        """Return for how long readers read nothing while their sockets dropped packets, each time.

        Of the reader that did so most often.
        """
        most: list[int] = []
        for stats in own:
            samples = series_of(self.readings).get(stats.worker, ())
            series = [s for s in samples if s.counts.keys() >= set(MOVING)]
            runs, since = [0], None
            for before, after in pairwise(series):
                rose = {n: after.counts.get(n, 0) - before.counts.get(n, 0) for n in MOVING}
                if rose["dropped_packets"] > 0 and rose["received_packets"] == 0:
                    since = before.clock_ns if since is None else since
                    runs[-1] = after.clock_ns - since
                elif runs[-1]:
                    runs, since = [*runs, 0], None
            most = max(most, [run for run in runs if run], key=len)
        return most

    def _was_emptied(self, own: Sequence[WorkerStats]) -> bool | None:
        """Return whether the queue of readers was nearly empty after it had overflowed.

        None if nobody looked at it often enough.
        """
        looks = 0
        for stats in own:
            series = series_of(self.readings).get(stats.worker, ())
            held = [(s.counts.get("dropped_packets", 0), s.counts["queued_bytes"]) for s in series
                    if "queued_bytes" in s.counts]  # fmt: skip
            most = max((queued for _, queued in held), default=0)
            ends = max((dropped for dropped, _ in held), default=0)
            after = [queued for dropped, queued in held if 0 < dropped < ends]
            if any(queued <= EMPTIED * most for queued in after):
                return True
            looks += len(after)
        return False if looks >= LEAST_INTERVALS else None

    def _loaded(self, node: End) -> list[tuple[LoadedCpu | None, list[WorkerStats]]]:
        """Return an end's workers by CPU: of those whose sockets dropped packets, if any did."""
        groups: dict[tuple[str, int | None, str], list[WorkerStats]] = {}
        for stats in node.workers:
            unpinned = stats.worker if stats.cpu is None else ""
            place = self.readings.machine_of(host_of(stats.worker)), stats.cpu, unpinned
            groups.setdefault(place, []).append(stats)
        dropped = {place: own for place, own in groups.items() if self._drops(own)}
        return [
            (self._cpu(node, *place[:2], own), own) for place, own in (dropped or groups).items()
        ]

    def _drops(self, workers: Iterable[WorkerStats]) -> int | None:
        """Return what the workers' sockets dropped; None if that is not counted."""
        inodes = {inode for stats in workers for inode in stats.socket_inodes}
        counted = [self.readings.receiver.counter(f"socket.{n}.drops") for n in inodes]
        known = [drops for drops in counted if drops is not None]
        return sum(known) if known else None

    def _cpu(
        self, node: End, machine: str, cpu: int | None, workers: list[WorkerStats]
    ) -> LoadedCpu | None:
        """Return what a CPU did while packets came; before and after them it idled.

        None if neither its idle time is known nor that of its workers.
        """
        readings, load_ns = self.readings, max(self.load_ns, 1)
        user, system = (
            min(sum(stats.counts.get(name, 0) for stats in workers) / load_ns, 1.0)
            for name in ("user_ns", "system_ns")
        )
        spent = [(stats.process_cpu_ns, stats.process_load_ns) for stats in workers]
        if not any("user_ns" in stats.counts for stats in workers):
            # A user's program: what its processes used, in all.
            user = min(sum(ns / of_ns for ns, of_ns in spent if ns is not None and of_ns), 1.0)
        elif node.part == "receiver":
            # Which of the two the kernel charges, ticks decide: of short work most may be system.
            read = sum(stats.counts.get("read_packets", 0) for stats in workers)
            own = min(read * (readings.record.trial.receive.work_ns or 0) / load_ns, user + system)
            user, system = max(user, own), user + system - max(user, own)
        busy = min(user + system, 1.0)
        plain = LoadedCpu(node.part, machine, cpu, busy, user, system, tuple(workers))
        delta = readings.deltas.get(machine)
        times = delta.numbered("cpu").get(cpu, {}) if delta is not None and cpu is not None else {}
        if cpu is None and delta is not None:
            plain = replace(plain, others=min(others_anywhere(readings, machine), 1.0))
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
            napi_waits=min(napi_waits_ns(readings, machine, cpu) / load_ns, 1.0),
            softirq=min((delta.total(f"cpu.{cpu}.softirq_ns") or 0) / load_ns, 1.0),
            queues=self.served.get((machine, cpu), ()),
        )


def _fullest(cpus: Iterable[LoadedCpu | None]) -> LoadedCpu | None:
    known = (cpu for cpu in cpus if cpu is not None)
    return max(known, key=lambda cpu: cpu.busy, default=None)

"""How readers and their CPUs spent the time of a load, and which packets each part of it cost.

Pure, as shares; ``evidence`` has them from a trial, and ``watch`` from threads of a live host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from udpbench.model.limits import Part
from udpbench.model.record import ThreadUse, WorkerStats
from udpbench.units import show_percent

FULL = 0.9
"""Share of the time from which on a CPU is called full."""
MUCH = 0.2
"""Share from which on a part of what a CPU does is a reason beside the largest."""
SPARE = 0.1
"""Share of the load's time in which a reader waited for datagrams, from which on it had time."""
EMPTIED = 0.25
"""Share of the most that a queue held, below which it was emptied."""
LEAST_SHARE = 0.02
"""Part of the time; less is what timers and clocks cannot tell."""
RECEIVING_CALLS = {
    *("recvfrom", "recvmsg", "recvmmsg", "read", "readv", "poll", "ppoll", "select", "pselect6"),
    *("epoll_wait", "epoll_pwait", "epoll_pwait2", "io_uring_enter"),
}
"""System calls in which a thread that sleeps waits for a datagram."""
STOPPED = ("T", "t")
CAUSES_OF_LATE = ("stopped", "asleep", "robbed", "throttled", "capacity", "buffer")
"""Why a socket's buffer was full."""
AFTER = 1.2
"""A full queue after a pause costs packets, too, until it is worked off."""


@dataclass(frozen=True)
class LoadedCpu:
    """One CPU of an end or a node of the path, in shares of the time in which packets came."""

    part: Part
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
    napi_waits: float = 0.0
    """For how long its NAPI threads waited for it."""
    queues: tuple[str, ...] = ()
    """RX queues that it serves."""
    node: str = ""
    """The node in the middle whose it is; empty of an end's."""

    @property
    def full(self) -> bool:
        """Whether no more would fit."""
        return self.busy >= FULL

    @property
    def sends(self) -> bool:
        """Whether it is the sender's."""
        return self.part == "sender"

    @property
    def kept_off(self) -> float:
        """For how long at least somebody else had it while its NAPI threads waited."""
        return max(self.napi_waits - self.user - self.system, 0.0)

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
        """``the reader's CPU 0``, ``router1's CPU 2``, or ``CPU 2`` that only serves queues."""
        if self.node:
            return f"{self.node}'s CPU {self.cpu}"
        whose = "the sender" if self.sends else "the reader"
        if self.cpu is None:
            return f"{whose}'s thread"
        return f"{whose}'s CPU {self.cpu}" if self.workers else f"CPU {self.cpu}"

    @property
    def text(self) -> str:
        """How busy it is, and what uses most of it."""
        busy, use = self._use
        return f"{self.name} is {'full' if self.full else 'busy'} ({busy}, {use})"

    @property
    def beside(self) -> str:
        """How busy it is, where something else is the reason."""
        busy, use = self._use
        return f"{self.name} {'is full' if self.full else 'has time left'} ({busy} busy, {use})"

    @property
    def _use(self) -> tuple[str, str]:
        """For which share of the time it is busy, and with what most of that."""
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
        return show_percent(self.busy), f"{show_percent(part)} of it {most}"


@dataclass(frozen=True)
class ReaderTime:
    """How the readers on one CPU spent the time of the load, as shares; together at most 1.

    A user's program is judged by those of its threads that ran or waited for datagrams. None: not
    known.
    """

    workers: tuple[WorkerStats, ...]
    cpu: LoadedCpu | None
    running: float
    stopped: float
    """It made no call although packets waited, or was stopped by a signal."""
    asleep: float | None
    """Neither waiting for a datagram nor for a CPU: a program's own pauses and locks."""
    waiting: float | None
    """For a datagram: it had read all that there was."""
    runnable: float | None
    """Waiting for a CPU."""
    read_packets: int
    dropped_packets: int | None
    """By its own sockets."""
    threads: int = 1
    """Over which the shares are a mean."""
    call: str = ""
    """The system call in which it sleeps most, other than for datagrams if it does."""
    emptied: bool = False
    """Its sockets' queue was nearly empty at some moment after packets were lost."""
    always_full: bool = False
    """It never was, as often as anybody looked."""

    @property
    def receiving(self) -> float:
        """Share of its CPU that receiving takes, in NAPI's threads and soft interrupts."""
        return self.cpu.receiving if self.cpu is not None else 0.0

    @property
    def robbed(self) -> float:
        """Share of the time in which it could have run and another program, or machine, did."""
        cpu = self.cpu
        taken = cpu.others + cpu.steal if cpu is not None else 0.0
        if self.runnable is None:
            return min(taken, max(1 - self.running - self.receiving, 0.0))
        # A NAPI thread on the same CPU makes it wait, too.
        beside = cpu.napi if cpu is not None and cpu.cpu is not None else 0.0
        waited = max(self.runnable - beside, 0.0)
        return min(waited, taken) if cpu is not None else waited

    @property
    def throttled(self) -> float:
        """Share of the time in which it waited for a CPU that idled: a quota kept it off."""
        cpu = self.cpu
        if self.runnable is None or cpu is None or cpu.cpu is None:
            return 0.0
        kept_off = min(self.runnable - cpu.receiving - cpu.others, 1 - cpu.busy)
        return kept_off if kept_off >= SPARE else 0.0

    def needed_cpus(self) -> float:
        """Return how many CPUs all that came to it would take, at what a datagram took."""
        came = self.read_packets + (self.dropped_packets or 0)
        running = self.running * self.threads
        each = running * came / self.read_packets if self.read_packets else 0.0
        return each + self.receiving

    def shares_out(self, lasting: bool, coming: float = 1.0) -> dict[str, float]:
        """Return cause → packets that its sockets dropped by it, together all of them.

        ``coming``: in which share of the time packets came; for what is read later none is lost.

        ``stopped``, ``asleep``, ``robbed`` and ``throttled``: what it would have read in that time
        at the rate of the rest; ``capacity``: what it would not have read even then; ``buffer``:
        what is left, which came while it was busy with what had come just before.
        """
        lost, read = float(self.dropped_packets or 0), self.read_packets
        out = dict.fromkeys(CAUSES_OF_LATE, 0.0)
        if not read or not self.running:
            # Without a datagram that it read nothing says how fast it would be.
            unknown = "" if lasting and read else "buffer" if read else "stopped"
            return {**out, unknown: lost} if unknown else out
        has_time = self.waiting is not None and self.waiting >= SPARE and not self.always_full
        used_up = lasting and not has_time
        per_time, left = read / self.running, lost
        if used_up:
            able = per_time * max(1 - self.receiving, 0.0)
            out["capacity"] = min(max(read + lost - able, 0.0), left)
            left -= out["capacity"]
        # A pause of a reader that has time costs what came in it, else what it would have read.
        came = per_time if used_up else AFTER * (read + lost)
        spent = {name: share for name, share in self.held_up.items() if share >= LEAST_SHARE}
        scale = min(left / (came * sum(spent.values())), 1.0) if spent else 0.0
        if spent and not lasting:
            # No more than it would have read meanwhile at its own pace: a buffer holds no more.
            most = per_time * min(sum(spent.values()), coming)
            scale = min(scale, most / (came * sum(spent.values())))
        out |= {name: came * share * scale for name, share in spent.items()}
        left = max(left - sum(out[name] for name in spent), 0.0)
        if not used_up:
            out["buffer"] = left
        elif any(out.values()):
            # All of its time is known to be used: what is left are errors of the shares.
            out[max(out, key=lambda name: out[name])] += left
        else:
            out["capacity"] = left
        return out

    @property
    def held_up(self) -> dict[str, float]:
        """Cause → share of the time in which it kept the reader from reading."""
        return {
            "stopped": self.stopped,
            "asleep": self.asleep or 0.0,
            "throttled": self.throttled,
            "robbed": self.robbed,
        }


def reading_threads(threads: Sequence[ThreadUse]) -> list[ThreadUse]:
    """Return the threads of a program that wait for datagrams; if none does, those that ran."""
    waits = [thread for thread in threads if thread.calls.keys() & RECEIVING_CALLS]
    ran = [thread for thread in threads if thread.running_ns >= LEAST_SHARE * thread.elapsed_ns]
    return waits or ran or list(threads[:1])


def readers_among(threads: Sequence[ThreadUse], *, waits: bool) -> list[ThreadUse]:
    """Return the threads that read a socket; ``waits``: its queue was emptied now and then.

    Whoever waits for datagrams while some are always in the queue reads another socket.
    """
    others = [each for each in threads if (time_of([each]).waiting or 0.0) < SPARE]
    return reading_threads(threads if waits or not others else others)


def times_ns(threads: Sequence[ThreadUse]) -> dict[str, int]:
    """Return state → how long threads were in it, together."""
    times = dict.fromkeys(("running", "runnable", "sleeping"), 0)
    for each in threads:
        times["running"] += each.running_ns
        times["runnable"] += each.runnable_ns
        times["sleeping"] += max(each.elapsed_ns - each.running_ns - each.runnable_ns, 0)
    return times


def time_of(threads: Sequence[ThreadUse], stood: float = 0.0, *, waits: bool = True) -> ReaderTime:
    """Return how a program's threads spent their time, as a mean over them.

    ``stood``: the share in which it is known to have stood still. ``waits``: it may have waited for
    a datagram; not if some were in its queue all the time. What it slept for is None if nobody saw
    it in a system call.
    """
    elapsed_ns = max(sum(thread.elapsed_ns for thread in threads), 1)
    running = min(sum(thread.running_ns for thread in threads) / elapsed_ns, 1.0)
    runnable = min(sum(thread.runnable_ns for thread in threads) / elapsed_ns, 1.0)
    looks = sum(sum(thread.looks.values()) for thread in threads)
    frozen = sum(thread.looks.get(state, 0) for thread in threads for state in STOPPED)
    stopped = max(stood, frozen / looks if looks else 0.0)
    rest = max(1 - running - runnable - stopped, 0.0)
    calls: dict[str, int] = {}
    for thread in threads:
        for name, seen in thread.calls.items():
            calls[name] = calls.get(name, 0) + seen
    others = {name: n for name, n in calls.items() if not waits or name not in RECEIVING_CALLS}
    slept, asleep, waiting = sum(calls.values()), None, None
    if slept:
        asleep = rest * sum(others.values()) / slept
        waiting = rest * (slept - sum(others.values())) / slept
    call = max(others or calls, key=lambda name: calls[name], default="")
    return ReaderTime(
        *((), None, running, stopped, asleep, waiting, runnable, 0, None),
        threads=len(threads),
        call=call,
    )

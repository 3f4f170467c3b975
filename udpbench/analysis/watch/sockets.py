"""What each watched socket loses between two looks, at which stage, and what its reader does.

A socket has its reason where the namespace's counters leave only one, or where the kernel named it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from udpbench.analysis.delta import Deltas, since_u32
from udpbench.analysis.ledger.sockets import POLICY_IN
from udpbench.analysis.ledger.stages import STAGES
from udpbench.analysis.motion import SKEW_NS
from udpbench.analysis.reader_time import (
    EMPTIED,
    FULL,
    MUCH,
    RECEIVING_CALLS,
    SPARE,
    ReaderTime,
    readers_among,
    time_of,
)
from udpbench.analysis.readings import FAMILIES, known_sum
from udpbench.analysis.remedies import REMEDIES
from udpbench.analysis.watch.history import HostState
from udpbench.model.limits import LEDGER_STAGES, SECOND_NS, THREADS_MAX
from udpbench.model.record import OTHER_CALL, SocketCount, ThreadUse, UdpSocket
from udpbench.units import counted, format_bytes, show_percent

REASONS = {reason: stage.name for stage in STAGES for reason in stage.reasons}
LEAST_LOOKS = 3
"""From which on it is said that a program never ran."""
MOST_BUFFER_BYTES = 256 * 2**20
"""A burst for which this does not suffice is a load."""
SKB_BYTES, FRAME_BYTES = 256, 2048
"""What a datagram takes of a buffer beside its data, and the least room for these that a card's
driver gives (include/linux/skbuff.h, SKB_TRUESIZE)."""
SHARED_BYTES = 384
"""Beside the data of a datagram that came over loopback: skb_shared_info and headers; of 100 B the
kernel took 768 B in all."""
ELSEWHERE = "waits for datagrams of other sockets"
NOT_KNOWN = "not known (needs root or the same user)"
NOT_YET_KNOWN = "not known yet (its process was not seen)"


@dataclass(frozen=True)
class SocketReader:
    """What the reader of a socket did, as of the latest look at which packets had been dropped."""

    looks: int
    """At which packets had been dropped."""
    emptied: int
    """At how many of these the queue was nearly empty: it had overflowed in a burst."""
    burst: int
    """The most packets that were dropped between two looks: of one burst, or of several."""
    datagram_bytes: int
    """About what a datagram takes of the buffer."""
    visible: bool
    """The socket's processes are known."""
    by_root: bool = False
    """More rights would not show them."""
    never: bool = False
    """It has read nothing since the first look."""
    time: ReaderTime | None = None
    """None: its threads were not seen."""
    limit_bytes: int | None = None
    """``net.core.rmem_max``, above which a program gets no larger buffer; None: not known."""
    dropped_per_read: float = 0.0
    """What the socket dropped for each datagram that was read, of it or of others: at least."""

    @property
    def bursts(self) -> bool:
        """Whether the queue is emptied between drops."""
        return 2 * self.emptied >= self.looks

    @property
    def has_time(self) -> bool:
        """Whether a buffer would help: drops come in bursts, and the reader waits between them."""
        time = self.time
        waits = time is not None and time.waiting is not None and time.waiting >= SPARE
        return self.bursts and waits and not self.never

    @property
    def lacks_cpus(self) -> bool:
        """Whether a CPU of its own would not do for all that comes, whoever else runs."""
        return self._needed_cpus > 1

    @property
    def _needed_cpus(self) -> float:
        """How many CPUs each thread would take, at least, for all that comes."""
        running = self.time.running if self.time is not None else 0.0
        return running * (1 + self.dropped_per_read)

    @property
    def _needs(self) -> str:
        return f"all that comes would take a thread {self._needed_cpus:.1f} CPUs or more"

    @cached_property
    def shares(self) -> dict[str, float]:
        """What it does → the share of the time, the largest first, without what matters little."""
        time = self.time
        if time is None or time.running >= FULL:
            return {}
        rest = 1 - time.running - time.stopped - (time.runnable or 0.0)
        shares = {
            "stopped": time.stopped,
            self._sleeps: time.asleep if time.asleep is not None else rest,
            "waits for a CPU": time.runnable or 0.0,
            "waits for datagrams": time.waiting or 0.0,
        }
        most_first = sorted(shares, key=lambda name: -shares[name])
        much = [name for name in most_first if shares[name] >= MUCH]
        if not much and time.running < 1 - MUCH:
            much = most_first[:1]
        return {name: shares[name] for name in much}

    @property
    def _sleeps(self) -> str:
        """What sleeping is called: a call that waits for a datagram is not a pause."""
        time = self.time
        return ELSEWHERE if time is not None and time.call in RECEIVING_CALLS else "sleeps"

    @property
    def does(self) -> str:
        """What it does, ``sleeps 80 % of the time (in futex)``; empty if its threads are unseen."""
        time = self.time
        if self.never:
            return "never reads"
        if time is None:
            return "" if self.visible else NOT_YET_KNOWN if self.by_root else NOT_KNOWN
        if not self.shares:
            emptied = "empties its queue, and never sleeps" if self.bursts else "bound by its CPU"
            return f"{emptied} ({show_percent(time.running)})"
        call = f" (in {time.call})" if time.call not in ("", OTHER_CALL) else ""
        where = {self._sleeps: call if time.asleep is not None else " (root sees in which call)"}
        return ", ".join(
            f"{name} {show_percent(share)} of the time{where.get(name, '')}"
            for name, share in self.shares.items()
        )

    def wanted_bytes(self, buffer_bytes: int | None) -> int | None:
        """Return the SO_RCVBUF to ask for, with room for twice the largest burst.

        None where a buffer is of no use, or none is large enough.
        """
        if buffer_bytes is None or not self.has_time:
            return None
        room = buffer_bytes // 2 + self.burst * self.datagram_bytes  # the kernel doubles it
        size_bytes = 1 << (room - 1).bit_length()
        if size_bytes > MOST_BUFFER_BYTES:
            return None
        return (
            min(size_bytes, self.limit_bytes or 0) if self._has_more(buffer_bytes) else size_bytes
        )

    def _has_more(self, buffer_bytes: int) -> bool:
        """Return whether ``net.core.rmem_max`` is known, and allows more than there is."""
        return self.limit_bytes is not None and buffer_bytes // 2 < self.limit_bytes

    def _limit(self, buffer_bytes: int, size_bytes: int) -> str:
        """Return in words what ``net.core.rmem_max`` has to do with a size."""
        if self.limit_bytes is None:
            return "raise net.core.rmem_max if it allows less"
        limit = format_bytes(self.limit_bytes)
        if not self._has_more(buffer_bytes):
            return f"raise net.core.rmem_max first, which is {limit}"
        return f"net.core.rmem_max allows {'no more' if size_bytes == self.limit_bytes else limit}"

    def helps(self, buffer_bytes: int | None) -> str:
        """Return what helps; empty if nobody knows."""
        size_bytes = self.wanted_bytes(buffer_bytes)
        if size_bytes is not None and self.time is not None:
            waits = f"it waits for datagrams {show_percent(self.time.waiting or 0.0)} of the time"
            burst = f"up to {counted(self.burst, 'packet')} did not fit between two looks"
            # The kernel doubles what is asked for: this is twice of what it has.
            first_bytes = min(buffer_bytes or 0, size_bytes)
            size = f"a larger SO_RCVBUF, {format_bytes(first_bytes)} first"
            size += f", {format_bytes(size_bytes)} at most" if first_bytes < size_bytes else ""
            return f"{size} ({self._limit(buffer_bytes or 0, size_bytes)}): {burst}, and {waits}"
        if self.never:
            return READERS_HELPS["stopped"]
        if self.time is None or (not self.shares and self.bursts):
            return ""
        most = next(iter(self.shares), "bound")
        if most == "waits for a CPU" and self.lacks_cpus:
            return f"{READERS_HELPS['bound']}: {self._needs}"
        if most == "sleeps" and self.bursts:
            return REMEDIES["reader_pauses"].text
        return READERS_HELPS.get(most, "")


READERS_HELPS = {
    "stopped": REMEDIES["standstill"].text.replace(
        "then repeat", "or whether it forgot the socket"
    ),
    "sleeps": REMEDIES["reader_sleeps"].text,
    ELSEWHERE: "have it read this socket, too; no buffer helps",
    "waits for a CPU": REMEDIES["busy"].text.partition(" of the load")[0],
    "bound": REMEDIES["late_readers"].text,
}
"""What a reader does most → what helps; it has no keys of an experiment, either."""


@dataclass(frozen=True)
class SocketLoss:
    """One socket now, and what it has lost since it was first seen."""

    socket: UdpSocket
    dropped_pps: float
    dropped: int
    arrived_pps: float | None = None
    read_pps: float | None = None
    """Datagrams; None: not counted."""
    stages: tuple[str, ...] = ()
    """Where its packets ended: one where it is known, several where it may be any of them."""
    known: bool = False
    """The kernel named the stages, or only one is possible."""
    reader: SocketReader | None = None
    """None: nothing was dropped for which it may have been late."""

    @property
    def owner(self) -> str:
        """Return its process; without root only the user for other users' sockets."""
        processes = self.socket.processes
        if not processes:
            return f"of user {self.socket.uid}"
        more = f" and {len(processes) - 1} more" if len(processes) > 1 else ""
        return f"{processes[0]}{more}"

    @property
    def address(self) -> str:
        """Return its address, and the other end's if it is connected."""
        text = endpoint(self.socket.address, self.socket.port)
        if self.socket.peer is None:
            return text
        return f"{text} ← {endpoint(self.socket.peer, self.socket.peer_port)}"

    @property
    def reader_helps(self) -> str:
        """Return what helps its reader; empty if that is not known."""
        return self.reader.helps(self.socket.buffer_bytes) if self.reader is not None else ""

    @property
    def filled(self) -> float | None:
        """Return the share of its buffer in which datagrams wait."""
        size_bytes = self.socket.buffer_bytes
        return self.socket.queued_bytes / size_bytes if size_bytes else None


def endpoint(address: str, port: int) -> str:
    """Return address and port as written, ``0.0.0.0:53``."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def losses_by_socket(
    before: HostState,
    now: HostState,
    delta: Deltas,
    ever: Deltas,
    earlier: tuple[SocketLoss, ...] | None,
    port: int | None,
    limit_bytes: int | None = None,
) -> tuple[SocketLoss, ...]:
    """Return what each watched socket lost, the worst first; ``earlier`` is of the look before.

    ``limit_bytes`` is ``net.core.rmem_max``, if that is known.
    """
    seconds = max(delta.elapsed_ns, 1) / SECOND_NS
    if earlier is not None and _nothing_new(before, now, earlier):
        return earlier
    known_losses = {loss.socket.cookie: loss for loss in earlier or ()}
    # Most sockets of most looks are those of the look before, as objects.
    lately = {
        cookie: _dropped_lately(cookie, before, now)
        for cookie, each in now.sockets.items()
        if each is not before.sockets.get(cookie)
    }
    possible = possible_stages(delta, sum(lately.values()))
    readers = _Readers(now, ever, limit_bytes)
    losses = []
    for cookie, each in now.sockets.items():
        if (now.watched is not None and cookie not in now.watched) or port not in (None, each.port):
            continue
        before_this = known_losses.get(cookie)
        if now.counts is None and before_this is not None and not lately.get(cookie):
            same = before_this.socket is each and not before_this.dropped_pps
            dropped = since_u32(now.opened_drops.get(cookie, 0), each.drops or 0)
            rest = replace(before_this, socket=each, dropped_pps=0, dropped=dropped)
            losses.append(before_this if same else rest)
            continue
        dropped = since_u32(now.opened_drops.get(cookie, 0), each.drops or 0)
        loss = SocketLoss(each, lately.get(cookie, 0) / seconds, dropped)
        if dropped:
            loss = _explained(
                loss, lately.get(cookie, 0), possible[each.family], known_losses.get(cookie)
            )
        if now.counts is not None:
            loss = _counted(loss, before, now, seconds)
        reader = readers.of(loss, before_this, lately.get(cookie, 0))
        losses.append(replace(loss, reader=reader) if reader is not None else loss)
    idle = [loss for loss in losses if not loss.dropped and not loss.socket.queued_bytes]
    busy = [loss for loss in losses if loss.dropped or loss.socket.queued_bytes]
    return (*sorted(busy, key=_worst_first), *idle)


def _nothing_new(before: HostState, now: HostState, earlier: tuple[SocketLoss, ...]) -> bool:
    """Return whether what was said of the sockets still holds, as of most looks at a quiet host.

    It is the same of each socket; saying so of a thousand takes a third of the time of a look.
    """
    if any(loss.dropped_pps for loss in earlier) or now.counts is not None:
        return False
    return now.sockets is before.sockets and now.watched == before.watched


def _worst_first(loss: SocketLoss) -> tuple[float, ...]:
    return -loss.dropped_pps, -loss.dropped, -(loss.filled or 0), -loss.socket.queued_bytes


def _dropped_lately(cookie: int, before: HostState, now: HostState) -> int:
    earlier = before.sockets.get(cookie)
    drops = earlier.drops if earlier is not None else now.opened_drops.get(cookie, 0)
    return since_u32(drops or 0, now.sockets[cookie].drops or 0)


def possible_stages(delta: Deltas, dropped: int) -> dict[int, tuple[str, ...]]:
    """Return IP version of a socket → the stages at which what it dropped lately may have ended.

    All sockets together dropped as many. An IPv6 socket may have taken packets of either version.
    Memory that ran out may be counted at the sockets alone (docs/kernel.md, UDP memory): then it is
    what no other counter explains, beyond what came between the readings of both. Without
    MemErrors it may be what else is a filter's.
    """
    counted: dict[int, dict[str, int]] = {}
    either: dict[int, int] = {}
    for family, names in FAMILIES.items():
        each = {
            key: delta.values.get(f"{names['{udp}']}{key}", 0)
            for key in ("InErrors", "RcvbufErrors", "InCsumErrors")
        }
        memory = delta.values.get(f"{names['{udp}']}MemErrors")
        others = each["InErrors"] - each["RcvbufErrors"] - each["InCsumErrors"] - (memory or 0)
        policy = min(max(others, 0), sum(delta.total(name) or 0 for name in POLICY_IN))
        counted[family] = {
            "udp_rcvbuf": each["RcvbufErrors"],
            "udp_checksum": each["InCsumErrors"],
            "rx_policy": policy,
            "udp_filter": others - policy,
            "udp_memory": memory or 0,
        }
        if memory is None:
            either[family] = max(counted[family]["udp_filter"], 0)
    explained = sum(max(n, 0) for family in counted.values() for n in family.values())
    for version, packets in either.items():
        counted[version]["udp_memory"] = packets
    if dropped - explained > dropped * SKEW_NS / max(delta.elapsed_ns, 1):
        for of_family in counted.values():
            of_family["udp_memory"] = of_family["udp_memory"] or dropped - explained
    moved = {
        family: {stage for stage, packets in each.items() if packets > 0}
        for family, each in counted.items()
    }
    return {
        4: tuple(stage for stage in LEDGER_STAGES if stage in moved[4]),
        6: tuple(stage for stage in LEDGER_STAGES if stage in moved[4] | moved[6]),
    }


def _explained(
    loss: SocketLoss, lately: int, possible: tuple[str, ...], earlier: SocketLoss | None
) -> SocketLoss:
    """Return a loss with its stages; what is said of it before stays unless it is contradicted."""
    if (
        earlier is not None
        and earlier.known
        and (not lately or set(earlier.stages) <= set(possible))
    ):
        return replace(loss, stages=earlier.stages, known=True)
    if not lately:
        return replace(loss, stages=earlier.stages if earlier is not None else ())
    return replace(loss, stages=possible, known=len(possible) == 1)


def _counted(loss: SocketLoss, before: HostState, now: HostState, seconds: float) -> SocketLoss:
    """Return a loss with what was counted at its socket, and the kernel's own reasons."""
    cookie = loss.socket.cookie
    count = (now.counts or {}).get(cookie, SocketCount(read=0))
    then = (before.counts or {}).get(cookie, SocketCount(read=0))
    read = count.read - then.read if count.read is not None and then.read is not None else None
    loss = replace(
        loss,
        arrived_pps=(count.arrived - then.arrived) / seconds,
        read_pps=read / seconds if read is not None else None,
    )
    if not now.names_reasons or not loss.dropped:
        return loss
    named: dict[str, int] = {}
    for reason, packets in count.dropped.items():
        stage = REASONS.get(reason, "udp_filter")
        named[stage] = named.get(stage, 0) + packets
    if loss.dropped > sum(named.values()):  # its reader found the checksum wrong
        named["udp_checksum"] = loss.dropped - sum(named.values())
    most_first = sorted(named, key=lambda stage: -named[stage])
    return replace(loss, stages=tuple(most_first), known=True)


class _Readers:
    """What is known of readers at one look."""

    def __init__(self, now: HostState, ever: Deltas, limit_bytes: int | None) -> None:
        self._limit_bytes = limit_bytes
        self._now = now
        self._ever = ever
        self._times: dict[tuple[tuple[str, ...], bool], ReaderTime | None] = {}
        """One process may hold a thousand sockets."""

    def of(self, loss: SocketLoss, earlier: SocketLoss | None, lately: int) -> SocketReader | None:
        """Return what a socket's reader did; as before if the socket dropped nothing lately."""
        before = earlier.reader if earlier is not None else None
        if not lately or "udp_rcvbuf" not in loss.stages:
            return before
        looks, emptied, burst = (
            (before.looks, before.emptied, before.burst) if before is not None else (0, 0, 0)
        )
        emptied += loss.filled is not None and loss.filled < EMPTIED
        processes = loss.socket.processes
        return SocketReader(
            looks=looks + 1,
            emptied=emptied,
            burst=max(lately, burst),
            datagram_bytes=self._datagram_bytes,
            visible=bool(processes),
            by_root=self._now.by_root,
            # Where nothing waits to be read, nothing got into the queue.
            never=loss.socket.queued_bytes > 0 and self._never_reads(loss.socket),
            time=self._time(processes, waits=emptied > 0 or looks + 1 < LEAST_LOOKS),
            limit_bytes=self._limit_bytes,
            dropped_per_read=loss.dropped / read if (read := self._read) else 0.0,
        )

    @cached_property
    def _read(self) -> int | None:
        """How many datagrams were read of all sockets since the first look."""
        names = [f"{names['{udp}']}InDatagrams" for names in FAMILIES.values()]
        return known_sum(self._ever.values.get(name) for name in names)

    def _never_reads(self, each: UdpSocket) -> bool:
        """Return whether a socket was not read, for certain: by its own count, or as nobody could.

        That is if no application of the namespace has read a datagram, or none of its threads ran.
        """
        count = (self._now.counts or {}).get(each.cookie)
        if count is not None and count.read is not None:
            return count.read == 0
        if self._read == 0:
            return True
        seen = [self._now.threads.get(process, ()) for process in each.processes]
        # In a second or two a reader may just sleep.
        looks = min(map(len, seen), default=0)
        windows = [window for windows in seen for window in windows]
        unseen = any(len(window) >= THREADS_MAX for window in windows)
        ran = any(thread.running_ns for window in windows for thread in window)
        return looks >= LEAST_LOOKS and not unseen and not ran

    def _time(self, processes: tuple[str, ...], *, waits: bool) -> ReaderTime | None:
        """Return how readers among processes' threads spent their time; None if none was seen.

        At a look or two, a burst may just have come to one that waited for it. Of several readers
        one that is full says why packets were lost, whatever the others have left.
        """
        if (processes, waits) in self._times:
            return self._times[processes, waits]
        threads: list[ThreadUse] = []
        for window in chain.from_iterable(self._now.threads.get(each, ()) for each in processes):
            threads += readers_among(window, waits=waits)
        full = [each for each in threads if each.running_ns >= FULL * each.elapsed_ns]
        time = time_of(full or threads, waits=waits) if threads else None
        self._times[processes, waits] = time
        return time

    @cached_property
    def _datagram_bytes(self) -> int:
        """About what a datagram takes of a buffer, by the mean size of what came."""
        links = self._ever.block("link")
        came, size_bytes = (
            sum(value for name, value in links.items() if name.endswith(f".{which}"))
            for which in ("rx_packets", "rx_bytes")
        )
        mean_bytes = -(-size_bytes // came) if came > 0 else 0
        # Over loopback comes what the sender allocated, in no room of a driver.
        local = 2 * links.get("link.lo.rx_packets", 0) > came
        room_bytes = mean_bytes + SHARED_BYTES if local else max(mean_bytes, FRAME_BYTES)
        return SKB_BYTES + (1 << (room_bytes - 1).bit_length())

"""What a host has lost since an exporter began, as counters that never fall, by few labels.

Pure but for its own sums. Whoever may open a socket chooses its process's name and port: such
labels have a budget for each user, and what exceeds it is summed under ``other`` for good. Long,
because counters that may never fall carry all that is known from look to look.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field, replace

from udpbench.analysis.delta import Deltas, deltas, is_u32, since_u32
from udpbench.analysis.ledger.stages import STAGES
from udpbench.analysis.reader_time import EMPTIED, readers_among, times_ns
from udpbench.analysis.watch.host import (
    DEVICE_STAGES,
    LATER_STAGES,
    observable_stages,
    stage_losses,
)
from udpbench.analysis.watch.labels import OTHER, UNKNOWN, Budget, SocketLabels, folded, shown
from udpbench.analysis.watch.sockets import LEAST_LOOKS, REASONS, possible_stages
from udpbench.model.host import Facts
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import HostLook, Snapshot, SocketCount, ThreadUse, UdpSocket
from udpbench.model.survey import MachineLook

REFUSED = tuple(stage.name for stage in STAGES if stage.meant_by)
MOST_DEVICES = 32
"""Interfaces with a name of their own: whoever has a namespace may make some without end."""
PATIENCE_NS = 60 * SECOND_NS
"""Until a socket whose process is not known is counted without it."""
BASE_NS = 600 * SECOND_NS
"""After which counters are compared with later ones: of 32 bits, they wrap in an hour at least."""
MOST_SOCKETS = 2**17
"""Kept of one namespace; further ones are not counted."""
SEEN_KEPT = 4096
"""Namespaces that may be read again."""
SPARE_UNITS = 64
"""Processes that may have ended, whose units are kept."""
ENDED_KEPT = 3
"""Looks for which a closed socket may still be counted by BPF."""
Device = tuple[str, str]
"""Stage and interface."""


NOBODY = SocketLabels(OTHER, OTHER, OTHER, OTHER, OTHER)
"""For readers whose sockets have no labels of their own."""
Lost = tuple[str, SocketLabels]
"""Stage and labels."""


@dataclass
class Gauges:
    """What the open sockets with the same labels have now."""

    queue_bytes: int = 0
    buffer_bytes: int | None = None
    """None: not known of any."""
    last_read_ns: int | None = None
    """The earliest of theirs, by CLOCK_REALTIME."""


@dataclass
class _Space:
    """One network namespace across looks."""

    name: str
    first: Snapshot
    latest: Snapshot
    interfaces: tuple[str, ...] = ()
    is_new: bool = True
    """What its sockets lost, they lost while it was watched; not of those at the first look."""
    base: dict[Device, int] = field(default_factory=dict)
    """What was lost before ``first``."""
    since: dict[Device, int] = field(default_factory=dict)
    """What has been lost since; the most that was ever read."""
    sockets: dict[int, _Socket] = field(default_factory=dict)
    """By cookie."""
    unlabelled: dict[int, _Socket] = field(default_factory=dict)
    """Those of them that are not counted under any labels so far."""
    ended: dict[int, tuple[_Socket, int]] = field(default_factory=dict)
    """Those that have closed, with the looks for which they are kept."""


@dataclass
class _Socket:
    """An open socket."""

    now: UdpSocket
    since_ns: int
    netns: str
    """The name of its namespace when it was first seen: the number may be another's later."""
    labels: SocketLabels | None = None
    """None: not counted under any labels so far."""
    shown: bool = False
    """Its labels are its own, not ``other``."""
    lost: dict[str, int] = field(default_factory=dict)
    """Stage → packets that wait for its labels."""
    stages: tuple[str, ...] = ()
    """Where it lost packets last, if that was certain."""
    last_read_ns: int | None = None
    full_looks: int = 0
    """At which it had lost packets since its queue was last seen nearly empty."""
    count: SocketCount = field(default_factory=lambda: SocketCount(read=0))
    arrived: int = 0
    read: int = 0
    """Packets that wait for its labels, too."""
    dropped: int = 0
    """Since it is known."""
    dropped_before: int = 0
    """As of the look before."""
    named: int = 0
    """Those of them whose reason the kernel named, and damaged ones."""


class Sums:
    """All counters of one host, from survey to survey."""

    def __init__(self, with_address: bool = False) -> None:
        self.dropped: dict[Lost, int] = {}
        self.arrived: dict[SocketLabels, int] = {}
        self.read: dict[SocketLabels, int] = {}
        """Only with exact counts."""
        self.gauges: dict[SocketLabels, Gauges] = {}
        self.reader_ns: dict[tuple[str, SocketLabels], int] = {}
        """State and socket → time of the threads that read it, once it has lost packets."""
        self.softirq_ns: dict[int, int] = {}
        self.readable: dict[str, bool] = {}
        """By namespace."""
        self.observable: frozenset[str] = frozenset()
        self.folded = 0
        """Sockets that are counted as ``other``, for want of room."""
        self.observer_cpu_ns = 0
        self._with_address = with_address
        self._counted: tuple[KeysView[str], tuple[str, ...], dict[str, Facts]] | None = None
        """The counters and interfaces of which ``observable`` is known."""
        self._spaces: dict[int, _Space] = {}
        self._devices: dict[str, None] = {}
        """Interfaces that have a name of their own."""
        self._units: dict[str, str] = {}
        self._most_units = SPARE_UNITS
        self._budget = Budget()
        self._ephemeral = range(0)
        self._memory = 0
        """Refused for memory, by sockets; the kernel may not count them anywhere else."""
        self._begun = False
        self._seen: dict[int, None] = {}
        """Namespaces that were there before they were read, or read again."""
        self.left_out = 0
        """Namespaces that the latest survey did not read, because there are too many."""
        self._wall_ns = 0

    # --- what is read of them ------------------------------------------------------------------

    @property
    def stages(self) -> dict[Device, int]:
        """Return stage and interface → packets, of all namespaces; those at 0, too."""
        total = dict.fromkeys(self._known_stages(), 0)
        for space in self._spaces.values():
            for key in {*space.base, *space.since}:
                packets = space.base.get(key, 0) + space.since.get(key, 0)
                total[key] = total.get(key, 0) + packets
        memory = ("udp_memory", "")
        if self._memory > total.get(memory, 0):
            total[memory] = self._memory
        return self._few_devices(total)

    def _few_devices(self, total: dict[Device, int]) -> dict[Device, int]:
        """Return the packets of all interfaces that came after the first ones together.

        For good: packets that changed their name would make a counter fall.
        """
        few: dict[Device, int] = {}
        for (stage, device), packets in total.items():
            if device and len(self._devices) < MOST_DEVICES:
                self._devices[device] = None
            key = (stage, device if not device or device in self._devices else OTHER)
            few[key] = few.get(key, 0) + packets
        return few

    @property
    def lost_packets(self) -> int:
        """Return what was lost against anybody's will: no rule refused it, and a port was open."""
        return sum(packets for (stage, _), packets in self.stages.items() if stage not in REFUSED)

    def _known_stages(self) -> Iterator[Device]:
        own = next(iter(self._spaces.values()), None)
        for stage in LATER_STAGES if own is not None else ():
            if stage in self.observable:
                yield stage, ""
        for stage in DEVICE_STAGES if own is not None else ():
            for name in own.interfaces if own is not None and stage in self.observable else ():
                yield stage, name

    # --- what is added -------------------------------------------------------------------------

    def add(self, survey: MachineLook, facts: Mapping[str, Facts]) -> None:
        """Count what happened since the survey before; ``facts`` by the observer's interfaces."""
        self._units.update(survey.units)
        self._ephemeral = (
            range(survey.ephemeral[0], survey.ephemeral[-1] + 1) if (survey.ephemeral) else range(0)
        )
        self.observer_cpu_ns = survey.cpu_ns
        self.readable = {each.name: each.look is not None for each in survey.spaces}
        if not survey.sees_all:
            self.readable[UNKNOWN] = False
        for place, each in enumerate(survey.spaces):
            if each.look is None:
                self._seen[each.netns] = None
            else:
                space = self._space(each.netns, each.name, each.look)
                self._add_look(space, each.look, facts if place == 0 else {}, survey.wall_ns)
        self._gauge()
        self._forget({each.netns for each in survey.spaces})
        self._begun, self.left_out = True, survey.left_out

    def _space(self, number: int, name: str, look: HostLook) -> _Space:
        """Return a namespace; what a new one has counted, it has counted since the last look."""
        if number not in self._spaces:
            is_new = self._begun and not self.left_out and number not in self._seen
            counters = look.snapshot.counters
            counters = dict.fromkeys(counters, 0) if is_new else counters
            first = replace(look.snapshot, counters=counters)
            self._spaces[number] = _Space(name, first, first, is_new=is_new)
        self._spaces[number].name = name
        return self._spaces[number]

    def _add_look(
        self, space: _Space, look: HostLook, facts: Mapping[str, Facts], wall_ns: int
    ) -> None:
        before, now = space.latest, look.snapshot
        if not now.counters:
            return
        base = _new_base(space, look)
        if base is not None:
            for key, packets in space.since.items():
                space.base[key] = space.base.get(key, 0) + packets
            space.since, space.first = {}, base
        lately, ever = deltas(before, now), deltas(space.first, now)
        # Most namespaces of a host do nothing most of the time.
        moved = now.counters != before.counters
        for loss in stage_losses(lately, ever, look.interfaces, facts, 1.0) if moved else ():
            key = (label_of(loss.stage.split(" or ")), loss.where)
            space.since[key] = max(space.since.get(key, 0), loss.packets)
        space.latest, space.interfaces = now, look.interfaces
        if look.interfaces:
            self._observe(lately, look.interfaces, facts)
            for cpu, times in ever.numbered("cpu").items():
                if "softirq_ns" in times:
                    self.softirq_ns[cpu] = now.counters[f"cpu.{cpu}.softirq_ns"]
        possible = possible_stages(lately, self._listed(space, look, wall_ns))
        self._lose(space, look, possible)
        self._count_exactly(space, look)
        self._end(space, look)
        if look.threads:
            self._add_readers(space, look.threads)

    def _observe(
        self, lately: Deltas, interfaces: Sequence[str], facts: Mapping[str, Facts]
    ) -> None:
        """Learn which stages are counted: that depends on which counters there are."""
        known = lately.values.keys(), (*interfaces,), {**facts}
        if known != self._counted:
            self.observable = observable_stages(lately, interfaces, facts)
            self._counted = known

    def _listed(self, space: _Space, look: HostLook, wall_ns: int) -> int:
        """Take what the look says of sockets; return how many packets they dropped lately."""
        dropped = 0
        for each in look.sockets:
            known = space.sockets.get(each.cookie)
            if known is None and len(space.sockets) >= MOST_SOCKETS:
                continue
            if known is None:
                known = space.sockets[each.cookie] = _Socket(
                    each, look.snapshot.clock_ns, space.name
                )
                space.unlabelled[each.cookie] = known
                # What a socket lost that was opened under way, it lost while it was watched.
                lately = (each.drops or 0) if space.is_new else 0
                was_queued = 0
            else:
                lately = since_u32(known.now.drops or 0, each.drops or 0)
                was_queued = known.now.queued_bytes
            if each.queued_bytes == 0:
                known.last_read_ns = None
            elif each.queued_bytes < was_queued or known.last_read_ns is None:
                known.last_read_ns = wall_ns
            if each.queued_bytes <= EMPTIED * (each.buffer_bytes or 0):
                known.full_looks = 0
            elif lately:
                known.full_looks += 1
            known.now = each
            if lately:
                known.lost[""] = known.lost.get("", 0) + lately
            dropped += lately
        self._wall_ns, space.is_new = wall_ns, True
        return dropped

    def _lose(self, space: _Space, look: HostLook, possible: Mapping[int, tuple[str, ...]]) -> None:
        """Give what sockets dropped lately a stage, unless the kernel names it."""
        cookies = (each.cookie for each in look.sockets)
        listed = [space.sockets[cookie] for cookie in cookies if cookie in space.sockets]
        for known in listed:
            lately = known.lost.pop("", 0)
            if look.counts is not None and look.names_reasons:
                known.dropped += lately
            elif lately:
                stages = possible[known.now.family]
                if not (known.stages and set(known.stages) <= set(stages)):
                    known.stages = stages if len(stages) == 1 else ()
                stage = label_of(known.stages or stages)
                known.lost[stage] = known.lost.get(stage, 0) + lately
        # What others had lost is counted already: there are thousands of them.
        for known in (*listed, *space.unlabelled.values()):
            self._label(known, look.snapshot.clock_ns)
        space.unlabelled = {
            cookie: known for cookie, known in space.unlabelled.items() if known.labels is None
        }

    def _count_exactly(self, space: _Space, look: HostLook) -> None:
        for text, count in (look.counts or {}).items():
            cookie = int(text)
            known = space.sockets.get(cookie)
            if known is None and cookie in space.ended:
                known = space.ended[cookie][0]
            if known is None:  # it lived between two looks, and whose it was is not known
                nobody = UdpSocket(cookie, 0, 4, "", 0, None, 0, 0, 0, None, None)
                labels = SocketLabels(UNKNOWN, "", space.name, OTHER, UNKNOWN)
                known = _Socket(nobody, look.snapshot.clock_ns, space.name, labels, shown=True)
                space.ended[cookie] = known, ENDED_KEPT
            self._add_count(known, count, look.names_reasons)
        counted = [*space.sockets.values(), *(known for known, _ in space.ended.values())]
        for known in counted if look.counts is not None else ():
            self._name_damaged(known)
            ended = known.now.cookie not in space.sockets
            if ended or known.lost:
                self._label(known, look.snapshot.clock_ns, ended=ended)
            else:
                self._settle(known)

    def _name_damaged(self, known: _Socket) -> None:
        """Count what a socket had dropped at the look before and no reason says: at the read.

        The kernel then finds the checksum wrong. Reasons are read before sockets are listed.
        """
        damaged = known.dropped_before - known.named
        known.dropped_before = known.dropped
        if damaged > 0 and known.named + damaged <= known.dropped:
            known.lost["udp_checksum"] = known.lost.get("udp_checksum", 0) + damaged
            known.named += damaged

    def _add_count(self, known: _Socket, count: SocketCount, names_reasons: bool) -> None:
        before, known.count = known.count, count
        known.arrived += max(count.arrived - before.arrived, 0)
        if count.read is not None and before.read is not None:
            known.read += max(count.read - before.read, 0)
            if count.read > before.read and known.last_read_ns is not None:
                known.last_read_ns = self._wall_ns
        for reason, packets in count.dropped.items() if names_reasons else ():
            lately = packets - before.dropped.get(reason, 0)
            stage = REASONS.get(reason, "udp_filter")
            if lately > 0:
                known.lost[stage] = known.lost.get(stage, 0) + lately
                known.named += lately

    def _end(self, space: _Space, look: HostLook) -> None:
        """Keep of closed sockets their sums; a look later BPF has their last counts."""
        space.ended = {
            cookie: (known, looks - 1)
            for cookie, (known, looks) in space.ended.items()
            if looks > 0
        }
        for cookie in look.ended:
            known = space.sockets.pop(cookie, None)
            space.unlabelled.pop(cookie, None)
            if known is not None:
                self._label(known, look.snapshot.clock_ns, ended=True)
                space.ended[cookie] = known, ENDED_KEPT

    def _forget(self, listed: Collection[int]) -> None:
        """Keep of namespaces that are gone what they lost, as that of the observer's own."""
        own = next(iter(self._spaces.values()), None)
        for number in [number for number in self._spaces if number not in listed]:
            gone = self._spaces.pop(number)
            self._seen[number] = None
            for known in gone.sockets.values():
                self._label(known, gone.latest.clock_ns, ended=True)
            if own is not None:
                for key in {*gone.base, *gone.since}:
                    packets = gone.base.get(key, 0) + gone.since.get(key, 0)
                    own.base[key] = own.base.get(key, 0) + packets
        while len(self._seen) > SEEN_KEPT:
            del self._seen[next(iter(self._seen))]
        if len(self._units) > self._most_units:
            used = {
                process
                for space in self._spaces.values()
                for known in space.sockets.values()
                for process in known.now.processes
            }
            self._units = {name: unit for name, unit in self._units.items() if name in used}
            self._most_units = 2 * len(self._units) + SPARE_UNITS

    # --- labels --------------------------------------------------------------------------------

    def _label(self, known: _Socket, now_ns: int, ended: bool = False) -> None:
        """Give a socket its labels if it is time, and count what it lost under them.

        A socket is given some for good once it loses; those that do not have less room.
        """
        loses = any(known.lost.values())
        counts = loses or known.arrived > 0 or known.read > 0
        waits = not known.now.processes and now_ns - known.since_ns < PATIENCE_NS
        is_due = counts if ended else not waits and (loses or now_ns > known.since_ns)
        if is_due and (known.labels is None or (loses and not known.shown)):
            labels = self._labels(known)
            known.shown = self._budget.has_room(labels, known.now.uid, loses)
            if known.labels is None:
                self.folded += not known.shown
                known.labels = folded(labels)
            known.labels = labels if known.shown else known.labels
        self._settle(known)

    def _settle(self, known: _Socket) -> None:
        labels = known.labels
        if labels is None:
            return
        for stage, packets in known.lost.items():
            if packets:
                key = (stage, labels)
                self.dropped[key] = self.dropped.get(key, 0) + packets
                if stage == "udp_memory":
                    self._memory += packets
        known.lost = {}
        if known.arrived or known.read:
            self.arrived[labels] = self.arrived.get(labels, 0) + known.arrived
            self.read[labels] = self.read.get(labels, 0) + known.read
            known.arrived = known.read = 0

    def _labels(self, known: _Socket) -> SocketLabels:
        each = known.now
        process = each.processes[0] if each.processes else ""
        comm, unit, netns = shown(process, self._units.get(process, ""), known.netns)
        return SocketLabels(
            comm,
            unit,
            netns,
            port=OTHER if each.port in self._ephemeral else str(each.port),
            family=str(each.family),
            address=each.address if self._with_address else "",
        )

    # --- what is now ---------------------------------------------------------------------------

    def _gauge(self) -> None:
        self.gauges = {}
        for space in self._spaces.values():
            for known in space.sockets.values():
                if known.labels is None:
                    continue
                gauges = self.gauges.get(known.labels)
                if gauges is None:
                    gauges = self.gauges[known.labels] = Gauges()
                gauges.queue_bytes += known.now.queued_bytes
                if known.now.buffer_bytes is not None:
                    gauges.buffer_bytes = (gauges.buffer_bytes or 0) + known.now.buffer_bytes
                read_ns = self._wall_ns if known.last_read_ns is None else known.last_read_ns
                earlier_ns = gauges.last_read_ns
                gauges.last_read_ns = read_ns if earlier_ns is None else min(read_ns, earlier_ns)

    def _add_readers(self, space: _Space, seen: Mapping[str, Sequence[ThreadUse]]) -> None:
        """Count what processes' threads did, at each of their sockets that have lost packets."""
        lossy = {labels for _, labels in self.dropped}
        waits: dict[str, dict[SocketLabels, bool]] = {process: {} for process in seen}
        for known in space.sockets.values():
            for process in known.now.processes if known.labels in lossy and known.shown else ():
                if process in waits and known.labels is not None:
                    others = waits[process].get(known.labels, False)
                    waits[process][known.labels] = others or known.full_looks < LEAST_LOOKS
        for process, threads in seen.items():
            times = [times_ns(readers_among(threads, waits=each)) for each in (False, True)]
            for each, may_wait in (waits[process] or {NOBODY: True}).items():
                for state, spent_ns in times[may_wait].items():
                    key = (state, each)
                    self.reader_ns[key] = self.reader_ns.get(key, 0) + spent_ns


def label_of(stages: Iterable[str]) -> str:
    """Return the label of a stage, or of several of which it may be any: ``a_or_b``."""
    return "_or_".join(stages) or UNKNOWN


def _new_base(space: _Space, look: HostLook) -> Snapshot | None:
    """Return with what later counters are compared from now on; None: with the same as before.

    An interface may be new under its name: then its counters began at 0 before this look.
    """
    now, before = look.snapshot, space.latest
    fell = [
        name for name, value in before.counters.items() if now.counters.get(name, value) < value
    ]
    if any(not is_u32(name) for name in fell):
        return now
    is_late = now.clock_ns - space.first.clock_ns > BASE_NS
    return before if fell or is_late or space.interfaces != look.interfaces else None

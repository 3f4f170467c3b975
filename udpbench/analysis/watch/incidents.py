"""What a recorded host lost and when: each loss with its start, its socket, and what had changed.

Pure: from looks in their order. A loss begins after the last look without it. Long, because one
replay carries all that is known from look to look.
"""

from __future__ import annotations

import shlex
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate

from udpbench.analysis.ledger.stages import STAGES
from udpbench.analysis.watch.history import HostState, after
from udpbench.analysis.watch.host import GONE, SOCKET_STAGES, LiveHost, live_host
from udpbench.analysis.watch.sockets import endpoint
from udpbench.differences import differences, flat, written
from udpbench.model.host import Facts
from udpbench.model.limits import SECOND_NS, is_system
from udpbench.model.record import UdpSocket
from udpbench.model.survey import MachineLook, Moment, SpaceLook
from udpbench.units import show_percent, show_pps

QUIET_NS = 10 * SECOND_NS
"""Without a loss, from which on the next is another."""
GAP_NS = 5 * SECOND_NS
"""Between two looks of a recorder that looks each second: it did not run."""
BEFORE_NS, AFTER_NS = 60 * SECOND_NS, 3 * SECOND_NS
"""Around the start of a loss: what changed then may be its cause."""
MUCH = 0.2
"""The part of a CPU from which on a process that had not used it before is an event."""
GREW = 1.5
"""Times the packets that came before, from which on the load is an event."""
LOAD_LOOKS = 30
"""Looks of which the load before is the mean."""
LEAST_PPS = 100
FULL, SHOWN_PROGRAMS = 0.5, 4
"""The part of a CPU from which on it is said what it did, and of how much of that."""
CHANGE = "change"
BY_RULES = tuple(stage.name for stage in STAGES if stage.meant_by == "rules")
LEAST_REFUSED_PPS = 10
OWN = "host"
"""The name of the recorder's namespace."""
EPHEMERAL = 32768
"""From here on ports are clients', and their sockets no events."""
MOST_EVENTS, MOST_LOSSES = 1000, 1000
"""Kept of each user's sockets in each namespace, and of what is no socket's; of events as many of
each kind. More are counted, and of losses the smallest go."""
MOST_KEPT = 8 * MOST_LOSSES
"""As many of all users of the system together, of all others, of the recorder's namespace, and of
all other namespaces: who may be many users, or make namespaces, hides nothing of others."""
MOST_NEAR, MOST_NEAR_IN_ALL = 128, 2**16
"""Named of an incident: of changes of the machine and of other events each, the latest. And of all
incidents together: where ten thousand are at the same time, each has the events of all."""
MOST_CPUS, MOST_CPU_SUMS = 32, 2**22
"""Busy CPUs of an incident, the first; and sums of CPU time for all incidents, 2 us each."""
PLACE_BITS = 32
NO_SUMS = "what CPUs did is worked out of fewer incidents: ask for a shorter time"
MOST_COMINGS = 20
"""As many in a minute of a user's sockets in a namespace: where they come and go all the time, it
is no news."""


@dataclass(frozen=True)
class Event:
    """Something that changed."""

    at_ns: int
    """By CLOCK_REALTIME: when it was first seen."""
    what: str
    netns: str = ""
    """The namespace that alone has it; empty: it is of the whole machine."""
    kind: str = CHANGE
    """A change of the machine, or what anybody may bring about."""


@dataclass(frozen=True)
class Loss:
    """Packets that one place lost, without a pause."""

    place: str
    """A socket with its process, or a stage with its interface."""
    netns: str
    stages: tuple[str, ...]
    start_ns: int
    """The time of the last look before it; it began less than a look later."""
    end_ns: int
    packets: int
    peak_pps: float
    reader: str = ""
    """What the socket's reader did, in words."""
    helps: str = ""


@dataclass(frozen=True)
class Incident:
    """Losses of a namespace at the same time, and what had changed when they began."""

    losses: tuple[Loss, ...]
    """The largest first."""
    events: tuple[Event, ...]
    cpus: tuple[str, ...] = ()
    """What busy CPUs did in its first minute, in words, if that was recorded."""
    more_events: int = 0
    """That are not named, because there are too many."""

    @property
    def start_ns(self) -> int:
        """When the first loss began."""
        return min(loss.start_ns for loss in self.losses)

    @property
    def end_ns(self) -> int:
        """When the last one ended."""
        return max(loss.end_ns for loss in self.losses)


@dataclass(frozen=True)
class Second:
    """One look of one namespace in numbers."""

    at_ns: int
    netns: str
    received_pps: float
    read_pps: float
    lost: Mapping[str, float]
    """Stage → packets per second."""


@dataclass(frozen=True)
class Flight:
    """A recorded time."""

    host: str
    since_ns: int
    until_ns: int
    seconds: tuple[Second, ...]
    gaps: tuple[tuple[int, int], ...]
    """Between two looks that are further apart: nobody looked."""
    incidents: tuple[Incident, ...]
    events: tuple[Event, ...]
    left_out: int = 0
    """Events beyond those that are kept."""
    left_out_losses: int = 0
    left_out_packets: int = 0
    """What was lost beyond the losses that are kept, which are larger."""
    unrecorded: Mapping[str, int] = field(default_factory=dict)
    """User → sockets that the recording left out, or has later than they came."""


def course_of(moments: Iterable[Moment], since_ns: int) -> Flight:
    """Return what happened from a time on; earlier looks only say what was there before."""
    replayed = _Replay(since_ns)
    for moment in moments:
        replayed.add(moment)
    return replayed.course()


@dataclass
class _Space:
    """One namespace across looks."""

    first: HostState
    latest: HostState
    live: LiveHost | None = None


@dataclass
class _Open:
    """A loss that may go on."""

    loss: Loss
    last_ns: int
    user: int | None

    @property
    def whose(self) -> tuple[str, int | None]:
        """Namespace and user."""
        return self.loss.netns, self.user


class _CpuTimes:
    """What CPUs did between looks, from which that of any time is soon worked out."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []
        """When the time between two looks ended, and how long it was."""
        self._numbers: dict[str, int] = {}
        """A CPU and what it did → its number."""
        self._rows: array[int] = array("Q")
        """Such a number, and which two looks, as one number each."""
        self._times_ns = array("d")

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, then_ns: int, now_ns: int, times: Mapping[str, int]) -> None:
        """Take what CPUs did between two looks."""
        place = len(self._spans)
        self._spans.append((now_ns, now_ns - then_ns))
        for key, time_ns in times.items():
            number = self._numbers.setdefault(key, len(self._numbers))
            self._rows.append(number << PLACE_BITS | place)
            self._times_ns.append(time_ns)

    def sums(self) -> Callable[[int, int], dict[str, dict[str, float]]]:
        """Return what tells of some time CPU → what it did → for which part of it."""
        import numpy as np  # late: it takes 0.1 s

        in_order = sorted(range(len(self._spans)), key=lambda place: self._spans[place][0])
        ends_ns = [self._spans[place][0] for place in in_order]
        elapsed_ns = [0, *accumulate(self._spans[place][1] for place in in_order)]
        rows = np.array(self._rows, np.uint64)
        if in_order != sorted(in_order):  # the clock was set back
            ranks = np.argsort(in_order).astype(np.uint64)
            rows = (rows >> PLACE_BITS << PLACE_BITS) | ranks[rows & (2**PLACE_BITS - 1)]
        order = np.argsort(rows, kind="stable")
        rows = rows[order]
        whole_ns = np.concatenate(([0.0], np.cumsum(np.array(self._times_ns)[order])))
        firsts = np.arange(len(self._numbers), dtype=np.uint64) << PLACE_BITS
        names = [*self._numbers]

        def shares(from_ns: int, to_ns: int) -> dict[str, dict[str, float]]:
            first, last = bisect_right(ends_ns, from_ns), bisect_right(ends_ns, to_ns)
            begins, ends = (np.searchsorted(rows, firsts + np.uint64(n)) for n in (first, last))
            spent_ns = whole_ns[ends] - whole_ns[begins]
            known: dict[str, dict[str, float]] = {}
            for number in np.flatnonzero(begins < ends).tolist():
                cpu, _, name = names[number].partition(" ")
                share = float(spent_ns[number]) / (elapsed_ns[last] - elapsed_ns[first])
                known.setdefault(cpu, {})[name] = share
            return known

        return shares


@dataclass
class _Replay:
    """A recording from look to look."""

    since_ns: int
    host: str = ""
    spaces: dict[int, _Space] = field(default_factory=dict)
    before: Moment | None = None
    open: dict[tuple[str, str], _Open] = field(default_factory=dict)
    losses: dict[str, list[_Open]] = field(default_factory=dict)
    """By group."""
    held: Counter[tuple[str, int | None]] = field(default_factory=Counter)
    """Namespace and user → how many of these are theirs."""
    events: list[Event] = field(default_factory=list)
    uses: list[tuple[float, Event]] = field(default_factory=list)
    """CPU time of processes, each with its share."""
    seconds: list[Second] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    busy: dict[str, float] = field(default_factory=dict)
    cpu_ns: dict[str, int] = field(default_factory=dict)
    cpu_at_ns: int = 0
    cpu_times: _CpuTimes = field(default_factory=_CpuTimes)
    loads: dict[str, list[float]] = field(default_factory=dict)
    usual: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    young: dict[str, dict[int, tuple[int, UdpSocket]]] = field(default_factory=dict)
    """Namespace → sockets that were new at its latest look, and when that was."""
    comings: dict[tuple[str, int | None], tuple[int, int]] = field(default_factory=dict)
    """Namespace and user → the latest minute in which sockets came or went, and how many."""
    kept: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Kind, and whose → how many events are kept."""
    left_out: int = 0
    left_out_losses: int = 0
    left_out_packets: int = 0
    unrecorded: Counter[str] = field(default_factory=Counter)
    begun_ns: int | None = None

    def add(self, moment: Moment) -> None:
        """Take the next look."""
        now_ns = moment.survey.wall_ns
        before = self.before
        self.unrecorded.update(moment.survey.unrecorded)
        if before is not None and not 0 < now_ns - before.survey.wall_ns <= GAP_NS:
            if min(now_ns, before.survey.wall_ns) >= self.since_ns:
                self.gaps.append((before.survey.wall_ns, now_ns))
            self.spaces, self.busy, self.cpu_ns, before = {}, {}, {}, None
        if before is not None:
            self._note(before, moment)
            if moment.survey.cpu_time:
                self.cpu_times.add(before.survey.wall_ns, now_ns, moment.survey.cpu_time)
        listed = {each.netns for each in moment.survey.spaces}
        self.spaces = {number: each for number, each in self.spaces.items() if number in listed}
        for place, each in enumerate(moment.survey.spaces):
            if each.look is not None:
                then_ns = before.survey.wall_ns if before is not None else now_ns
                self._look(each, moment, moment.facts if place == 0 else {}, then_ns)
        own = moment.survey.spaces[0].look if moment.survey.spaces else None
        self.host = own.snapshot.host if own is not None else self.host
        self.begun_ns = now_ns if self.begun_ns is None else self.begun_ns
        self.before = moment

    def _look(
        self, each: SpaceLook, moment: Moment, facts: Mapping[str, Facts], then_ns: int
    ) -> None:
        look = each.look
        if look is None:
            return
        known = self.spaces.get(each.netns)
        if known is None:
            state = after(None, look)
            self.spaces[each.netns] = _Space(state, state)
            return
        if moment.whole:
            there = {socket.cookie for socket in look.sockets}
            look = replace(look, ended=tuple(known.latest.sockets.keys() - there))
        self._compare_sockets(
            each.name, known.latest.sockets, look.sockets, look.ended, moment.survey.wall_ns
        )
        # Nobody asks where sockets have closed, nor of interfaces that went before the last look.
        now = replace(after(known.latest, look), ended_at={})
        enter = _into(each.name) if each is not moment.survey.spaces[0] else ""
        live = live_host(known.first, known.latest, now, facts, known.live, enter=enter)
        known.live = replace(live, gone=())
        known.latest = now
        if then_ns >= self.since_ns:
            self._lose(known.live, each.name, then_ns, moment.survey.wall_ns)

    # --- losses --------------------------------------------------------------------------------

    def _lose(self, live: LiveHost, netns: str, then_ns: int, now_ns: int) -> None:
        lost = {loss.stage: loss.pps for loss in live.stages if loss.pps}
        self.seconds.append(Second(now_ns, netns, live.received_pps, live.read_pps, lost))
        for each in live.losing:
            packets = round(each.dropped_pps * live.seconds)
            place = _named(each.socket)
            reader = each.reader.does if each.reader is not None else ""
            step = each.reader_helps or live.helps_at(each.stages)
            loss = Loss(
                *(place, netns, each.stages, then_ns, now_ns, packets, each.dropped_pps),
                *(reader, step),
            )
            self._extend(loss, each.socket.uid)
        for stage in live.stages:
            of_sockets = {*SOCKET_STAGES, *(name for each in live.losing for name in each.stages)}
            is_of_socket = bool(live.losing) and stage.stage in of_sockets
            packets = round(stage.pps * live.seconds)
            is_loss = stage.stage not in live.unwatched and not is_of_socket
            if packets and is_loss and self._is_unusual(netns, stage.stage, stage.pps):
                place = f"{stage.stage} {stage.where}".strip()
                names, step = (stage.stage,), live.helps_at(stage.stage.split(" or "))
                self._extend(
                    Loss(place, netns, names, then_ns, now_ns, packets, stage.pps, "", step)
                )
        self._load(live, netns, now_ns)

    def _is_unusual(self, netns: str, stage: str, pps: float) -> bool:
        """Return whether a stage takes more than usual, if it takes what a rule is to refuse."""
        if stage not in BY_RULES:
            return True
        usual = self.usual.setdefault((netns, stage), [])
        mean = sum(usual) / len(usual) if usual else pps
        if pps > 2 * mean + LEAST_REFUSED_PPS:
            return True
        usual.append(pps)
        del usual[:-LOAD_LOOKS]
        return False

    def _extend(self, loss: Loss, user: int | None = None) -> None:
        key = (loss.netns, loss.place)
        known = self.open.get(key)
        if known is None or loss.start_ns - known.last_ns > QUIET_NS:
            known = self.open[key] = _Open(loss, loss.end_ns, user)
            group = self.losses.setdefault(_group(loss.netns, user), [])
            group.append(known)
            self.held[known.whose] += 1
            # Twice as many, so that each has time to grow.
            self._lessen(group, 2, known.whose)
            return
        before, known.last_ns = known.loss, loss.end_ns
        known.loss = replace(
            before,
            end_ns=loss.end_ns,
            packets=before.packets + loss.packets,
            peak_pps=max(before.peak_pps, loss.peak_pps),
            stages=loss.stages or before.stages,
            reader=loss.reader or before.reader,
            helps=loss.helps or before.helps,
        )

    def _lessen(self, group: list[_Open], times: int, whose: tuple[str, int | None]) -> None:
        """Keep the largest losses of a user and of a group, if there are so many times too many."""
        if self.held[whose] > times * MOST_LOSSES:
            self._drop(group, [each for each in group if each.whose == whose], MOST_LOSSES)
        if len(group) > times * MOST_KEPT:
            self._drop(group, group, MOST_KEPT)

    def _drop(self, group: list[_Open], losses: list[_Open], most: int) -> None:
        """Keep the largest of some losses, of equal ones the first, and add up the others."""
        dropped = sorted(losses, key=lambda each: -each.loss.packets)[most:]
        for each in dropped:
            self.left_out_losses += 1
            self.left_out_packets += each.loss.packets
            self.held[each.whose] -= 1
            key = (each.loss.netns, each.loss.place)
            if self.open.get(key) is each:
                del self.open[key]
        gone = {id(each) for each in dropped}
        group[:] = [each for each in group if id(each) not in gone]

    # --- events --------------------------------------------------------------------------------

    def _event(
        self, kind: str, at_ns: int, what: str, netns: str = "", user: int | None = None
    ) -> None:
        """Note an event if there is room: what one has in plenty hides nothing of others."""
        if at_ns < self.since_ns - BEFORE_NS:
            return
        own, group = (kind, netns, f"{user}"), (kind, _group(netns, user))
        if self.kept[own] >= MOST_EVENTS or self.kept[group] >= MOST_KEPT:
            self.left_out += 1
            return
        self.kept.update((own, group))
        self.events.append(Event(at_ns, what, netns, kind))

    def _coming(self, at_ns: int, what: str, netns: str = "", user: int | None = None) -> None:
        """Note a socket that came or went; what others do all the time hides nothing else."""
        minute = at_ns // (60 * SECOND_NS)
        latest, count = self.comings.get((netns, user), (minute, 0))
        count = count + 1 if latest == minute else 1
        self.comings[netns, user] = minute, count
        if count <= MOST_COMINGS:
            self._event("coming", at_ns, what, netns, user)
        elif at_ns >= self.since_ns - BEFORE_NS:
            self.left_out += 1

    def _note(self, before: Moment, moment: Moment) -> None:
        """Note what differs between two looks but for counters and sockets."""
        now_ns, old, new = moment.survey.wall_ns, before.survey, moment.survey
        for each in differences(old.settings, new.settings):
            self._event(CHANGE, now_ns, f"{each.path}: {each.before} → {each.after}")
        for name, count in new.changed.items():
            if count > old.changed.get(name, count):
                self._event(CHANGE, now_ns, f"{name.removeprefix('changed.')} changed")
        for name, facts in moment.facts.items():
            known = before.facts.get(name)
            if known is not None and known is not facts and known != facts:
                for each in differences(dict(flat(known)), dict(flat(facts))):
                    self._event(CHANGE, now_ns, f"{name}: {each}")
        went = [f"{name} {GONE}" for name in sorted(_interfaces(old) - _interfaces(new))]
        there = {space.netns for space in new.spaces}
        ended = [space.name for space in old.spaces if space.netns not in there]
        went += [f"network namespace {name} is gone" for name in ended if not new.left_out]
        for what in went:
            self._coming(now_ns, what)
        if new.processes:
            self._busy(new.processes, now_ns)

    def _busy(self, processes: Mapping[str, int], now_ns: int) -> None:
        elapsed_ns = now_ns - self.cpu_at_ns if self.cpu_at_ns else 0
        # By number: threads of the kernel change their names. What is seen first has no share.
        numbers = {name: name.rpartition(" ")[2] for name in processes}
        shares = {
            name: (ns - self.cpu_ns[numbers[name]]) / elapsed_ns
            for name, ns in processes.items()
            if elapsed_ns and numbers[name] in self.cpu_ns
        }
        for name, share in sorted(shares.items(), key=lambda item: -item[1]):
            if share >= MUCH > 2 * self.busy.get(numbers[name], 0.0):
                what = f"{name} uses {show_percent(share)} of a CPU"
                self._use(Event(now_ns, what, kind="busy"), share)
        self.busy = {numbers[name]: share for name, share in shares.items()}
        self.cpu_ns.update({numbers[name]: ns for name, ns in processes.items()})
        self.cpu_at_ns = now_ns

    def _use(self, event: Event, share: float) -> None:
        """Keep the largest uses: of processes nobody knows whose they are."""
        if event.at_ns < self.since_ns - BEFORE_NS:
            return
        self.uses.append((share, event))
        if len(self.uses) > 2 * MOST_EVENTS:
            self._drop_uses()

    def _drop_uses(self) -> None:
        self.uses.sort(key=lambda each: -each[0])
        self.left_out += len(self.uses[MOST_EVENTS:])
        del self.uses[MOST_EVENTS:]

    def _compare_sockets(
        self,
        netns: str,
        before: Mapping[int, UdpSocket],
        listed: Iterable[UdpSocket],
        ended: Collection[int],
        now_ns: int,
    ) -> None:
        """Note sockets of servers that come, go or change; not those that live for a look."""
        young, ended = self.young.pop(netns, {}), dict.fromkeys(ended)
        for cookie, (at_ns, each) in young.items():
            if cookie not in ended:
                self._coming(at_ns, f"{_holder(each)} opened {_bound(each)}", netns, each.uid)
        for each in listed:
            known = before.get(each.cookie)
            if known is None and 0 < each.port < EPHEMERAL:
                self.young.setdefault(netns, {})[each.cookie] = now_ns, each
            elif known is not None and known.buffer_bytes != each.buffer_bytes:
                sizes = (known.buffer_bytes, each.buffer_bytes)  # twice what was asked for
                change = " → ".join(written("x_bytes", size and size // 2) for size in sizes)
                what = f"{_named(each)}: receive buffer {change}"
                self._event("buffer", now_ns, what, netns, each.uid)
        for cookie in ended:
            gone = before.get(cookie)
            if gone is not None and 0 < gone.port < EPHEMERAL and cookie not in young:
                self._coming(now_ns, f"{_holder(gone)} closed {_bound(gone)}", netns, gone.uid)

    def _load(self, live: LiveHost, netns: str, now_ns: int) -> None:
        """Note when many more packets come than before."""
        loads = self.loads.setdefault(netns, [])
        mean = sum(loads) / len(loads) if loads else None
        if mean is not None and live.received_pps > max(GREW * mean, mean + LEAST_PPS):
            text = f"{show_pps(mean)} → {show_pps(live.received_pps)}"
            self._event("load", now_ns, f"packets that come: {text}", netns)
            loads.clear()
        loads.append(live.received_pps)
        del loads[:-LOAD_LOOKS]

    # --- the end -------------------------------------------------------------------------------

    def course(self) -> Flight:
        """Return all of it."""
        for group in self.losses.values():
            for whose in {each.whose for each in group}:
                self._lessen(group, 1, whose)
        self._drop_uses()
        self.events += [event for _, event in self.uses]
        until_ns = self.before.survey.wall_ns if self.before is not None else self.since_ns
        return Flight(
            host=self.host,
            since_ns=max(self.since_ns, self.begun_ns or 0),
            until_ns=until_ns,
            seconds=tuple(self.seconds),
            gaps=tuple(self.gaps),
            incidents=tuple(self._incidents()),
            events=tuple(each for each in self._in_order() if each.at_ns >= self.since_ns),
            left_out=self.left_out,
            left_out_losses=self.left_out_losses,
            left_out_packets=self.left_out_packets,
            unrecorded=dict(self.unrecorded),
        )

    def _in_order(self) -> list[Event]:
        return sorted(self.events, key=lambda event: event.at_ns)

    def _incidents(self) -> list[Incident]:
        """Return the losses of each namespace that overlap together, by their start."""
        groups: dict[str, list[list[Loss]]] = {}
        ends_ns: dict[str, int] = {}
        losses = (each.loss for group in self.losses.values() for each in group)
        for each in sorted(losses, key=lambda loss: loss.start_ns):
            own = groups.setdefault(each.netns, [])
            if own and each.start_ns <= ends_ns[each.netns] + QUIET_NS:
                own[-1].append(each)
                ends_ns[each.netns] = max(ends_ns[each.netns], each.end_ns)
            else:
                own.append([each])
                ends_ns[each.netns] = each.end_ns
        near = _Near(self._in_order())
        shares = self.cpu_times.sums() if self.cpu_times and groups else None
        room = MOST_CPU_SUMS // max(len(self.cpu_times), 1)
        incidents = []
        in_order = (group for own in groups.values() for group in own)
        for number, group in enumerate(sorted(in_order, key=lambda group: group[0].start_ns)):
            start_ns = group[0].start_ns
            events, more = near.events(group[0].netns, [loss.start_ns for loss in group])
            end_ns = min(max(loss.end_ns for loss in group), start_ns + BEFORE_NS)
            cpus: Iterable[str] = (NO_SUMS,) if self.cpu_times else ()
            if shares is not None and number < room:
                before = shares(start_ns - BEFORE_NS, start_ns)
                cpus = _cpus_in_words(shares(start_ns, end_ns), before)
            largest_first = sorted(group, key=lambda loss: -loss.packets)
            incidents.append(Incident((*largest_first,), (*events,), (*cpus,), more))
        return incidents


class _Near:
    """Which events were about the start of losses."""

    def __init__(self, in_order: list[Event]) -> None:
        self._in_order = in_order
        self._places: dict[tuple[str, bool], list[int]] = {}
        """Namespace, and whether it is a change of the machine → where such events are."""
        for place, event in enumerate(in_order):
            self._places.setdefault((event.netns, event.kind == CHANGE), []).append(place)
        self._room = MOST_NEAR_IN_ALL

    def events(self, netns: str, starts_ns: list[int]) -> tuple[list[Event], int]:
        """Return those of the machine and of a namespace, and how many more there were."""
        named: list[int] = []
        more = 0
        for is_change in (True, False):
            latest: list[int] = []
            count = 0
            for name in {"", netns}:
                places = self._places.get((name, is_change), [])
                for begin, end in self._spans(places, starts_ns):
                    latest += places[max(begin, end - MOST_NEAR) : end]
                    count += end - begin
            most = min(MOST_NEAR, self._room)
            kept = sorted(latest)[max(len(latest) - most, 0) :]
            self._room -= len(kept)
            named += kept
            more += count - len(kept)
        return [self._in_order[place] for place in sorted(named)], more

    def _spans(self, places: list[int], starts_ns: list[int]) -> Iterator[tuple[int, int]]:
        """Yield where events near any of some losses in their order begin and end."""
        last = 0
        for start_ns in starts_ns:
            first_ns, last_ns = start_ns - BEFORE_NS, start_ns + AFTER_NS
            begin = max(bisect_left(places, first_ns, key=self._at_ns), last)
            last = max(bisect_right(places, last_ns, key=self._at_ns), last)
            if begin < last:
                yield begin, last

    def _at_ns(self, place: int) -> int:
        return self._in_order[place].at_ns


def _group(netns: str, user: int | None) -> str:
    """Return with whom a user, or what is no user's, shares room."""
    if user is not None:
        return "system" if is_system(user) else "others"
    return "own" if netns in ("", OWN) else "namespaces"


def _cpus_in_words(
    during: Mapping[str, Mapping[str, float]], before: Mapping[str, Mapping[str, float]]
) -> Iterable[str]:
    """Yield of each busy CPU what it did, and how busy it had been."""
    full = {cpu: busy for cpu, known in during.items() if (busy := sum(known.values())) >= FULL}
    for cpu in sorted(full, key=lambda cpu: cpu.zfill(8))[:MOST_CPUS]:
        known, busy = during[cpu], full[cpu]
        most = sorted(known.items(), key=lambda item: -item[1])[:SHOWN_PROGRAMS]
        parts = ", ".join(f"{name} {show_percent(share)}" for name, share in most)
        earlier = before.get(cpu)
        was = f"; before {show_percent(sum(earlier.values()))}" if earlier is not None else ""
        yield f"CPU {cpu}: {show_percent(min(busy, 1.0))} busy ({parts}){was}"
    if len(full) > MOST_CPUS:
        yield f"and {len(full) - MOST_CPUS} more busy CPUs"


def _into(netns: str) -> str:
    """Return what begins a command in a namespace by its name in a survey."""
    if not netns.isdecimal():
        return f"ip netns exec {shlex.quote(netns)} "
    # Of its processes nobody knows which are left when this is read.
    pid = f"lsns -nt net -o NS,PID | awk '$1 == {netns} {{print $2}}'"
    return f'nsenter -t "$({pid})" -n '


def _named(each: UdpSocket) -> str:
    return f"{_holder(each)} {_bound(each)}"


def _holder(each: UdpSocket) -> str:
    return each.processes[0] if each.processes else f"user {each.uid}"


def _bound(each: UdpSocket) -> str:
    return endpoint(each.address, each.port)


def _interfaces(survey: MachineLook) -> set[str]:
    """Return the interfaces of the recorder's namespace that were up."""
    return {name for space in survey.spaces[:1] if space.look for name in space.look.interfaces}

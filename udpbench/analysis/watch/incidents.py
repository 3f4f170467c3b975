"""What a recorded host lost and when: each loss with its start, its socket, and what had changed.

Pure: from looks in their order. A loss begins after the last look without it. Long, because one
replay carries all that is known from look to look.
"""

from __future__ import annotations

import shlex
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

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
    cpu_times: list[tuple[int, int, Mapping[str, int]]] = field(default_factory=list)
    """The two looks between which CPUs were sampled, and what they did."""
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
                span = before.survey.wall_ns, now_ns
                self.cpu_times.append((*span, moment.survey.cpu_time))
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
        now = after(known.latest, look)
        enter = _into(each.name) if each is not moment.survey.spaces[0] else ""
        known.live = live_host(known.first, known.latest, now, facts, known.live, enter=enter)
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
        young = self.young.pop(netns, {})
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
        losses = (each.loss for group in self.losses.values() for each in group)
        for each in sorted(losses, key=lambda loss: loss.start_ns):
            own = groups.setdefault(each.netns, [])
            if own and each.start_ns <= max(loss.end_ns for loss in own[-1]) + QUIET_NS:
                own[-1].append(each)
            else:
                own.append([each])
        incidents = [self._incident(group) for own in groups.values() for group in own]
        return sorted(incidents, key=lambda incident: incident.start_ns)

    def _incident(self, losses: list[Loss]) -> Incident:
        start_ns = min(loss.start_ns for loss in losses)
        starts = sorted({loss.start_ns for loss in losses})
        near = [
            event
            for event in self._in_order()
            if _is_near(event.at_ns, starts) and event.netns in ("", losses[0].netns)
        ]
        largest_first = sorted(losses, key=lambda loss: -loss.packets)
        end_ns = min(max(loss.end_ns for loss in losses), start_ns + BEFORE_NS)
        during = self._shares(start_ns, end_ns)
        cpus = _cpus_in_words(during, self._shares(start_ns - BEFORE_NS, start_ns))
        return Incident(tuple(largest_first), tuple(near), tuple(cpus))

    def _shares(self, from_ns: int, to_ns: int) -> dict[str, dict[str, float]]:
        """Return CPU → what it did → which part of some time."""
        spent_ns: dict[str, dict[str, int]] = {}
        elapsed_ns = 0
        for then_ns, now_ns, times in self.cpu_times:
            if from_ns < now_ns <= to_ns:
                elapsed_ns += now_ns - then_ns
                for key, time_ns in times.items():
                    cpu, _, name = key.partition(" ")
                    known = spent_ns.setdefault(cpu, {})
                    known[name] = known.get(name, 0) + time_ns
        return {
            cpu: {name: time_ns / elapsed_ns for name, time_ns in known.items()}
            for cpu, known in spent_ns.items()
        }


def _group(netns: str, user: int | None) -> str:
    """Return with whom a user, or what is no user's, shares room."""
    if user is not None:
        return "system" if is_system(user) else "others"
    return "own" if netns in ("", OWN) else "namespaces"


def _is_near(at_ns: int, starts: list[int]) -> bool:
    """Return whether something was about the start of any of some losses."""
    place = bisect_left(starts, at_ns - AFTER_NS)
    return place < len(starts) and starts[place] <= at_ns + BEFORE_NS


def _cpus_in_words(
    during: Mapping[str, Mapping[str, float]], before: Mapping[str, Mapping[str, float]]
) -> Iterable[str]:
    """Yield of each busy CPU what it did, and how busy it had been."""
    for cpu, known in sorted(during.items(), key=lambda item: item[0].zfill(8)):
        busy = sum(known.values())
        if busy < FULL:
            continue
        most = sorted(known.items(), key=lambda item: -item[1])[:SHOWN_PROGRAMS]
        parts = ", ".join(f"{name} {show_percent(share)}" for name, share in most)
        earlier = before.get(cpu)
        was = f"; before {show_percent(sum(earlier.values()))}" if earlier is not None else ""
        yield f"CPU {cpu}: {show_percent(min(busy, 1.0))} busy ({parts}){was}"


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

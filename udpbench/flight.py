"""A flight recorder: what a host did second by second, in append-only segments of JSON lines.

Owns the segments of a folder, its lock, and nothing else in it. A segment begins with the whole
state, then has what changed; so each can be read without the others, and the oldest can be removed.
A killed recorder leaves a torn last line at most, which is not read. Python 3.9, standard library.
"""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Optional

from udpbench.folder import Folder, lock_file
from udpbench.json_lines import Room, append, read_lines
from udpbench.model.host import Facts
from udpbench.model.limits import COUNTERS_MAX, SECOND_NS, is_system
from udpbench.model.record import HostLook, Snapshot, UdpSocket
from udpbench.model.survey import MachineLook, Moment, SpaceLook
from udpbench.protocol import decode, encode

SCHEMA = 1
"""Form of segments. History: 1 — the first form."""
NAME = re.compile(r"(looks|loss)-([0-9]{10})-([0-9]{13})\.jsonl")
"""Kind, number, and the time in ms when it begins."""
LEAST_BYTES = 2**24
"""The least size of a folder: less would be minutes."""
PARTS, MOST_SEGMENT_BYTES = 32, 2**24
"""A segment is such a part of its folder, and at most so long."""
BEFORE_NS, AFTER_NS = 10 * SECOND_NS, 60 * SECOND_NS
"""Around a loss, which is kept longer than the rest."""
SYNC_NS = 10 * SECOND_NS
"""Between two flushes to the disk: what a power cut takes."""
HELD_MAX = COUNTERS_MAX // 2
"""Counters of all namespaces together that are read, 0.6 kB each."""
ENTRIES_MAX = 2**24
"""Counters, sockets and settings read over all looks, 2 us each: 4.6 hours with 1000 of them."""
FACTS_ENTRIES = LOOK_ENTRIES = SPACE_ENTRIES = 64
"""As much as an interface's facts cost at each look, a look that says nothing, and a namespace."""
SEGMENTS_MAX = 2**16
"""Segments that are read: as many as a terabyte has."""
FRESH = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
TORN_MAX = 8
"""Last segments without a look, of which a recorder leaves one when it is killed."""
USER_PART, SOCKET_BYTES, LEAST_SOCKETS = 8, 512, 16
"""A user's open sockets take such a part of a segment, which begins with all; a socket at most."""
CHANGES_PER_S, CHANGES_BYTES = 8, 2**26
"""Changes of a user's sockets, and another one for each such part of the folder."""
LATE_MAX = 2**10
"""New sockets of a namespace that wait for room, 3 us at each look; others come as they change."""
LEAST_LOST = 10
"""Packets lost between two looks, from which on they are kept longer."""


def _loses(socket: UdpSocket, known: Mapping[int, UdpSocket]) -> bool:
    before = known.get(socket.cookie)
    return (socket.drops or 0) > ((before.drops or 0) if before is not None else 0)


@dataclass
class _Space:
    """What is known of a network namespace."""

    snapshot: Snapshot
    interfaces: tuple[str, ...] = ()
    sockets: dict[int, UdpSocket] = field(default_factory=dict)

    def take(self, look: HostLook) -> None:
        """Take what a look says."""
        self.snapshot, self.interfaces = look.snapshot, look.interfaces
        self.sockets.update({each.cookie: each for each in look.sockets})
        for cookie in look.ended:
            self.sockets.pop(cookie, None)


def _held(units: Mapping[str, str], sockets: Iterable[UdpSocket]) -> dict[str, str]:
    """Return the units of the processes that hold sockets."""
    holders = {process for socket in sockets for process in socket.processes}
    return {name: unit for name, unit in units.items() if name in holders}


class _Shares:
    """How much of a recording the sockets of a user may take, so that they hide nobody else's.

    All users of the system have twice as much together, and so have all others.
    """

    def __init__(self, at_most_bytes: int, segment_bytes: int) -> None:
        self._most = max(segment_bytes // USER_PART // SOCKET_BYTES, LEAST_SOCKETS)
        self._change_ns = SECOND_NS // (CHANGES_PER_S + at_most_bytes // CHANGES_BYTES)
        self._due_ns: dict[str, int] = {}
        self._kept: Counter[str] = Counter()

    def begin(self, kept: Iterable[UdpSocket]) -> None:
        """Learn what is recorded as open; before each look."""
        self._kept.clear()
        for each in kept:
            self._kept.update(_keys(each))

    def has_room(self, socket: UdpSocket, is_new: bool, loses: bool, wall_ns: int) -> bool:
        """Take room for a change of a socket: a segment's share at once, then some each second.

        Of sockets that lose packets twice as many.
        """
        change_ns = self._change_ns // 2 if loses else self._change_ns
        end_ns = wall_ns + self._most * self._change_ns
        due_ns = [min(max(self._due_ns.get(k, 0), wall_ns), end_ns) for k in _keys(socket)]
        full = (self._kept[key] >= self._most * n for n, key in enumerate(_keys(socket), 1))
        if max(due_ns) >= end_ns or (is_new and any(full)):
            return False
        for times, (key, at_ns) in enumerate(zip(_keys(socket), due_ns), 1):
            self._due_ns[key] = at_ns + change_ns // times
            self._kept[key] += is_new
        return True


def _keys(socket: UdpSocket) -> tuple[str, str]:
    return f"{socket.uid}", "system" if is_system(socket.uid) else "others"


class Recorder:
    """Writes looks into a folder of at most so many bytes."""

    def __init__(self, path: Path, at_most_bytes: int, about: Mapping[str, str]) -> None:
        """Raise OSError if the folder cannot be written, or another recorder has it."""
        self._folder = Folder.open(path, make=True)
        self._folder.close_to_others()
        for how in self._folder.other_writers():
            self._folder.close()
            raise OSError(errno.EPERM, f"{how}; choose a folder of your own", str(path))
        try:
            self._lock = self._folder.lock()
        except OSError:
            self._folder.close()
            raise
        if not lock_file(self._lock):
            os.close(self._lock)
            self._folder.close()
            text = "another process records into this folder; choose another"
            raise OSError(errno.EBUSY, text, str(path))
        self._at_most_bytes = at_most_bytes
        self._segment_bytes = min(at_most_bytes // PARTS, MOST_SEGMENT_BYTES)
        self._about = dict(about)
        self._spaces: dict[int, _Space] = {}
        self._facts: Mapping[str, Facts] = {}
        self._units: dict[str, str] = {}
        self._settings: dict[str, str] = {}
        self._shares = _Shares(at_most_bytes, self._segment_bytes)
        self._late_units: dict[str, str] = {}
        self._late: dict[int, dict[int, UdpSocket]] = {}
        """Namespace → sockets whose latest change had no room yet; of new ones a few."""
        self._refused: dict[int, set[int]] = {}
        """Namespace → every open socket that had no room as it came."""
        self._fd: Optional[int] = None
        self._name = ""
        self._begun_ns = self._synced_ns = self._lost_ns = 0
        self._number = max((number for _, number, _ in segments(self._folder.names())), default=0)

    def add(self, survey: MachineLook, facts: Mapping[str, Facts], lost: int) -> None:
        """Write one look, at which so many packets had been lost since the look before; OSError."""
        wall_ns = survey.wall_ns
        survey = self._shared(survey)
        line = self._line(survey, facts)
        self._take(survey, facts)
        if self._fd is None or os.fstat(self._fd).st_size >= self._segment_bytes:
            self._begin(wall_ns)
        elif line is not None:
            append(self._fd, line, sync=wall_ns - self._synced_ns >= SYNC_NS)
        if wall_ns - self._synced_ns >= SYNC_NS:
            self._synced_ns = wall_ns
        if lost >= LEAST_LOST:
            self._keep(wall_ns)

    def close(self) -> None:
        """End the last segment."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        os.close(self._lock)
        self._folder.close()

    def _shared(self, survey: MachineLook) -> MachineLook:
        """Return a survey with the changes of sockets for which their users have room.

        First those that have lost packets, then what has waited longest.
        """
        spaces, unrecorded = [], Counter[str]()
        late, self._late = self._late, {}
        refused, self._refused = self._refused, {}
        self._shares.begin(s for known in self._spaces.values() for s in known.sockets.values())
        for each in survey.spaces:
            if each.look is None:
                spaces.append(each)
                continue
            known = self._spaces[each.netns].sockets if each.netns in self._spaces else {}
            waiting = dict(late.get(each.netns, {}))
            waiting.update({socket.cookie: socket for socket in each.look.sockets})
            for cookie in each.look.ended:
                waiting.pop(cookie, None)
            left = self._refused[each.netns] = refused.get(each.netns, set())
            left.difference_update(each.look.ended)
            waits: dict[int, UdpSocket] = {}
            self._late[each.netns] = waits
            written = []
            losing = [socket for socket in waiting.values() if _loses(socket, known)]
            for socket in {each.cookie: each for each in (*losing, *waiting.values())}.values():
                is_new, loses = socket.cookie not in known, _loses(socket, known)
                if self._shares.has_room(socket, is_new, loses, survey.wall_ns):
                    written.append(socket)
                    left.discard(socket.cookie)
                    continue
                if not is_new or len(waits) < LATE_MAX:
                    waits[socket.cookie] = socket
                if is_new and socket.cookie not in left:
                    left.add(socket.cookie)
                    unrecorded[f"{socket.uid}"] += 1
            ended = tuple(cookie for cookie in each.look.ended if cookie in known)
            look = replace(each.look, sockets=tuple(written), ended=ended)
            spaces.append(replace(each, look=look))
        units = {**self._late_units, **survey.units}
        waiting_for = (each for known in self._late.values() for each in known.values())
        self._late_units = _held(units, waiting_for)
        looks = (each.look for each in spaces if each.look is not None)
        units = _held(units, (socket for look in looks for socket in look.sockets))
        return replace(survey, spaces=tuple(spaces), units=units, unrecorded=dict(unrecorded))

    def _line(self, survey: MachineLook, facts: Mapping[str, Facts]) -> dict[str, Any]:
        """Return what is new since the look before."""
        spaces = []
        for each in survey.spaces:
            known = self._spaces.get(each.netns)
            if each.look is not None and known is not None:
                before = known.snapshot.counters
                counters = each.look.snapshot.counters
                moved = {k: v for k, v in counters.items() if before.get(k) != v}
                snapshot = replace(each.look.snapshot, counters=moved)
                each = replace(each, look=replace(each.look, snapshot=snapshot, namespaces=()))
            spaces.append(each)
        new = {
            name: encode(known) for name, known in facts.items() if self._facts.get(name) != known
        }
        settings = survey.settings if survey.settings != self._settings else {}
        units = {k: v for k, v in survey.units.items() if self._units.get(k) != v}
        survey = replace(survey, spaces=tuple(spaces), settings=settings, units=units)
        return {"look": _plain(survey), "facts": new}

    def _take(self, survey: MachineLook, facts: Mapping[str, Facts]) -> None:
        self._facts, self._settings = dict(facts), survey.settings
        self._units.update(survey.units)
        listed = {each.netns for each in survey.spaces}
        self._spaces = {number: each for number, each in self._spaces.items() if number in listed}
        for each in survey.spaces:
            if each.look is not None:
                known = self._spaces.setdefault(each.netns, _Space(each.look.snapshot))
                known.take(each.look)
        used = {p for s in self._spaces.values() for e in s.sockets.values() for p in e.processes}
        if len(self._units) > 2 * len(used) + 64:
            self._units = {name: unit for name, unit in self._units.items() if name in used}
        self._latest = survey

    def _whole(self) -> dict[str, Any]:
        """Return the whole state."""
        spaces = []
        for each in self._latest.spaces:
            known = self._spaces.get(each.netns)
            if each.look is not None and known is not None:
                sockets = tuple(known.sockets.values())
                look = replace(each.look, sockets=sockets, ended=(), namespaces=())
                each = replace(each, look=look)
            spaces.append(each)
        survey = replace(self._latest, spaces=tuple(spaces), units=self._units)
        facts = {name: encode(known) for name, known in self._facts.items()}
        return {"whole": _plain(survey), "facts": facts}

    def _begin(self, wall_ns: int) -> None:
        """Begin the next segment with the whole state; make room first."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._trim()
        self._number += 1
        self._begun_ns = wall_ns
        is_late = self._lost_ns and wall_ns - self._lost_ns <= AFTER_NS
        kind = "loss" if is_late else "looks"
        self._name = f"{kind}-{self._number:010d}-{wall_ns // 10**6:013d}.jsonl"
        fd = self._folder.file(self._name, FRESH, private=True)
        try:
            append(fd, {"schema": SCHEMA, **self._about}, sync=False)
            append(fd, self._whole())
        except OSError:
            os.close(fd)
            with suppress(OSError):
                self._folder.remove(self._name)
            raise
        self._fd = fd

    def _keep(self, wall_ns: int) -> None:
        """Have this segment kept longer, and the one before it if this has just begun."""
        self._lost_ns = wall_ns
        names = {number: name for name, number, _ in segments(self._folder.names())}
        marked = [self._number]
        if wall_ns - self._begun_ns < BEFORE_NS:
            marked.append(self._number - 1)
        for number in marked:
            name = names.get(number, "")
            if name.startswith("looks"):
                kept = name.replace("looks", "loss", 1)
                self._folder.rename(name, kept)
                self._name = kept if number == self._number else self._name

    def _trim(self) -> None:
        """Remove the oldest segments: those with a loss once they take half of the room."""
        sizes = {
            name: self._folder.status(name).st_size for name, _, _ in segments(self._folder.names())
        }
        room_bytes = self._at_most_bytes - self._segment_bytes
        while sizes and sum(sizes.values()) > room_bytes:
            kept = [name for name in sizes if name.startswith("loss")]
            others = [name for name in sizes if name not in kept]
            kept_bytes = sum(sizes[name] for name in kept)
            oldest = kept if kept_bytes > room_bytes // 2 or not others else others
            self._folder.remove(oldest[0])
            del sizes[oldest[0]]


def _plain(survey: MachineLook) -> dict[str, Any]:
    """Return a look as it is written each second: without what is hardly ever there."""
    plain: dict[str, Any] = encode(survey)
    for space in plain["spaces"]:
        if space["look"] is not None and not space["look"]["by_root"]:
            del space["look"]["by_root"]
    return {key: value for key, value in plain.items() if value or key != "unrecorded"}


def segments(names: list[str]) -> list[tuple[str, int, int]]:
    """Return name, number and begin in ns of the segments among names, by their number."""
    matches = [match for name in names if (match := NAME.fullmatch(name)) is not None]
    named = [(match[0], int(match[2]), int(match[3]) * 10**6) for match in matches]
    return sorted(named, key=lambda each: each[1])


def is_flight(path: Path) -> bool:
    """Return whether a folder holds a recording."""
    try:
        return any(NAME.fullmatch(name) for name in os.listdir(path))  # noqa: PTH208 - names
    except OSError:
        return False


def span_ns(path: Path) -> tuple[int, int]:
    """Return when a recording begins and ends, by CLOCK_REALTIME; OSError, ValueError."""
    named = segments(os.listdir(path))  # noqa: PTH208 - names
    for name, _, _ in named[: -TORN_MAX - 1 : -1]:
        last_ns = None
        for number, (survey, _, _) in enumerate(_looks(path / name, Room())):
            _refuse_many(number * LOOK_ENTRIES, path)
            last_ns = survey.wall_ns
        if last_ns is not None:
            return named[0][2], last_ns
    raise ValueError(f"{path}: its last {TORN_MAX} segments have no look")


def moments(path: Path, since_ns: int, until_ns: int) -> Iterator[Moment]:
    """Yield the looks of a recording until a time, from the last whole one before another on.

    OSError, ValueError for what is none.
    """
    entries, room = 0, Room()
    for name in _names_between(path, since_ns, until_ns):
        for moment, held in _moments(path / name, room):
            entries += held
            _refuse_many(entries, path)
            if moment.survey.wall_ns <= until_ns:
                yield moment


def _names_between(path: Path, since_ns: int, until_ns: int) -> list[str]:
    """Return the segments that may have looks of some time."""
    named = segments(os.listdir(path))  # noqa: PTH208 - names
    ends_ns = [*(begin_ns for _, _, begin_ns in named[1:]), None]
    names = [
        name
        for (name, _, begin_ns), end_ns in zip(named, ends_ns)
        if begin_ns <= until_ns and (end_ns is None or end_ns > since_ns)
    ]
    if len(names) > SEGMENTS_MAX:
        raise _too_many(f"this time has more than {SEGMENTS_MAX} segments", path)
    return names


def _refuse_many(entries: int, path: Path) -> None:
    if entries > ENTRIES_MAX:
        what = f"its looks have more than {ENTRIES_MAX} counters, sockets and settings"
        raise _too_many(what, path)


def _too_many(what: str, path: Path) -> OSError:
    step = "ask for a shorter time by --since and --until"
    return OSError(errno.EFBIG, f"{what}; {step}", str(path))


def _moments(path: Path, room: Room) -> Iterator[tuple[Moment, int]]:
    """Yield the looks of a segment, each with how many entries it stands for.

    Counters, settings and facts are whole in each.
    """
    spaces: dict[int, dict[str, int]] = {}
    sockets: dict[int, set[int]] = {}
    facts: dict[str, Facts] = {}
    settings: dict[str, str] = {}
    for survey, new, is_whole in _looks(path, room):
        facts.update(new)
        settings = survey.settings or settings
        listed = {each.netns for each in survey.spaces}
        if len(listed) < len(survey.spaces):
            raise ValueError(f"{path}: a look has a namespace twice")
        spaces = {netns: known for netns, known in spaces.items() if netns in listed}
        sockets = {netns: known for netns, known in sockets.items() if netns in listed}
        whole = [_whole_space(each, spaces) for each in survey.spaces]
        held = sum(map(len, spaces.values()))
        if held > HELD_MAX:
            raise OSError(errno.EFBIG, f"more than {HELD_MAX} counters at a time", str(path))
        for each in survey.spaces:
            if each.look is not None:
                known = sockets.setdefault(each.netns, set())
                known.difference_update(known if is_whole else each.look.ended)
                known.update(socket.cookie for socket in each.look.sockets)
        held += sum(map(len, sockets.values())) + len(settings)
        held += sum(map(_entries_of, facts.values()))
        held += LOOK_ENTRIES + SPACE_ENTRIES * len(listed)
        survey = replace(survey, spaces=tuple(whole), settings=settings)
        yield Moment(survey, dict(facts), is_whole), held


def _entries_of(facts: Facts) -> int:
    """Return as how many entries an interface's facts count at each look: each queue is asked."""
    queues = len(facts.queue_irqs) + len(facts.tx_queue_irqs) + len(facts.queue_cpus)
    return FACTS_ENTRIES + queues


def _looks(path: Path, room: Room) -> Iterator[tuple[MachineLook, dict[str, Facts], bool]]:
    """Yield each look of a segment; a living recorder may have renamed or removed it meanwhile."""
    try:
        yield from _written_looks(path, room)
    except FileNotFoundError:
        numbers = {number for _, number, _ in segments([path.name])}
        for name, number, _ in segments(os.listdir(path.parent)):  # noqa: PTH208 - names
            if number in numbers:
                yield from _written_looks(path.with_name(name), room)


def _written_looks(path: Path, room: Room) -> Iterator[tuple[MachineLook, dict[str, Facts], bool]]:
    """Yield each look of a segment as it was written, what facts are new, and if it is whole."""
    for number, line, _ in read_lines(path, room, follow=False):
        if line is None or number == 1:
            continue
        try:
            is_whole = "whole" in line
            survey = decode(MachineLook, line["whole" if is_whole else "look"])
            facts = {name: decode(Facts, known) for name, known in dict(line["facts"]).items()}
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}:{number}: not a look of this version: {error}") from error
        yield survey, facts, is_whole


def _whole_space(each: SpaceLook, spaces: dict[int, dict[str, int]]) -> SpaceLook:
    if each.look is None:
        return each
    counters = {**spaces.get(each.netns, {}), **each.look.snapshot.counters}
    spaces[each.netns] = counters
    snapshot = replace(each.look.snapshot, counters=counters)
    return replace(each, look=replace(each.look, snapshot=snapshot))

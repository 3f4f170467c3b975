"""The path of the packets: the stages that a load passed, as a band that loses what ends there.

Computed from the ledger of a result, whatever stages it has; drawn as text here, and for reports by
``figures.path_figure``. No packet is left out: what no stage explains is a part of it. Long,
because what is in a picture, and its eight lines of text, are read together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from rich.text import Text

from udpbench.analysis.cpu_owners import LINK, RECEIVER, SENDER
from udpbench.analysis.evidence import LEAST_WINDOW_NS
from udpbench.analysis.ledger import application, before_ip, between, ip, sender, sockets
from udpbench.analysis.ledger.ledger import OR, UNOBSERVED, lost_by_place
from udpbench.analysis.points import Point
from udpbench.analysis.rates import window_ns
from udpbench.analysis.readings import readings_of
from udpbench.cpu_stages import FORWARDING, PACKETS_STAGES, STAGES
from udpbench.judged_run import Chapter
from udpbench.model.experiment import Trial
from udpbench.model.record import TrialRecord
from udpbench.model.result import CpuLoad, Ledger, LedgerEntry, Result
from udpbench.report.summary import MEANT, accounted, name_of
from udpbench.units import counted, show_count, show_percent, show_pps, show_ratio
from udpbench.ways import WAYS, ways_of

ALL = "all"
"""What ``name_of`` calls a point without a name."""
MOST_PICTURES = 8
LEAST_SHARE = 0.0001
"""The least that is told in percent."""
LEAST_FILLED = 0.005
"""The least of a buffer that is told in whole percent."""
MOST_CPUS = 2
"""CPUs of each end whose use is shown: the fullest."""
DEVICE, APPLICATION, WAY_BACK = "device", "app", "way back"
ROOMS = (
    (sender, "sender"),
    (between, "link"),
    (before_ip, DEVICE),
    (ip, "IP"),
    (sockets, "socket"),
    (application, APPLICATION),
)
"""Where the rows of the ledger's stages are → what that part of the path is called."""
ZONES = {row.name: name for room, name in ROOMS for row in room.ROWS}
OF_ANSWERS = ("app_unanswered", "answer_lost")
BUFFER_STAGE = "udp_rcvbuf"
FULL = {"rx_ring": "ring", "rx_backlog": "backlog", "xsk_ring": "ring of AF_XDP"}
"""Stage → the queue before the socket's buffer that was full when packets ended there."""
OF_PAIR = ("tx_device", "receiver's ring")
"""Likewise, where sender and receiver are the ends of one veth pair."""
BOUNDED = ("pfifo", "bfifo", "tbf")
"""Queueing disciplines that drop only what exceeds their limit."""
CPU_ZONES = {
    **{stage: "sender" for stage in STAGES if stage.startswith("tx_")},
    "bridge": "link",
    **{stage: "link" for stage in STAGES if stage.startswith(FORWARDING)},
    **dict.fromkeys(("rx_poll", "rx_xdp", "rx_gro", "rx_core", "rx_tc", "rx_backlog"), DEVICE),
    **dict.fromkeys(("rx_ip", "rx_netfilter", "rx_conntrack"), "IP"),
    **dict.fromkeys(("rx_udp", "rx_wakeup", "rx_schedule", "rx_syscall"), "socket"),
    **dict.fromkeys(("rx_read", "rx_copy", "rx_memory"), "socket"),
    "rx_application": APPLICATION,
}
"""Stage of CPU time → the part of the path whose work that is; others are no packet's."""
UNACCOUNTED = "unaccounted"
NOTHING_LOST = "Nothing was lost."
ROWS = 3
"""Lines of the band in text; each shows eighths."""
BLOCKS = " ▁▂▃▄▅▆▇█"
UNSEEN, FALL = "░", "▼"
MARGIN = 2
"""Columns between two texts."""
GAPS = ("   ", "  ", ", ", " ")
"""Between a picture's fillings: the first that leaves room for all of them."""


@dataclass(frozen=True)
class PathStage:
    """A stage that the load passed."""

    stage: str
    zone: str
    """Part of the path: ``device``."""
    observable: bool = True


@dataclass(frozen=True)
class PathLoss:
    """Packets that left the path at one place."""

    name: str
    """A stage, or several that share what cannot be told apart: ``link or rx_ring``."""
    packets: int
    stop: int
    """Number of the stop: of several the last."""


@dataclass(frozen=True)
class Filling:
    """How full a queue or a CPU was."""

    name: str
    share: float
    stop: int
    """Number of the stop below which it is shown."""

    @property
    def text(self) -> str:
        """Return it for reading: ``receive buffer 97 %``."""
        return f"{self.name} {show_percent(self.share)}"


@dataclass(frozen=True)
class PathPicture:
    """The path of one trial's packets."""

    name: str
    point: str
    entered: int
    watched: bool
    """Nothing was sent: what entered is what came."""
    answered: bool
    """What is received are answers."""
    stops: tuple[PathStage, ...]
    """In the packet's order."""
    losses: tuple[PathLoss, ...]
    """By their stops."""
    received: int
    unaccounted: int | None
    """None if nothing balances, because others sent the packets."""
    fillings: tuple[Filling, ...]
    limit: str
    """What limits a load that lost nothing, as a sentence; else empty."""
    costs: Mapping[str, float]
    """Part of the path → its nanoseconds of CPU time per packet; empty if not measured."""

    def share(self, packets: int) -> float:
        """Return packets as a share of those that entered."""
        return packets / self.entered if self.entered else 0.0

    @property
    def is_only(self) -> bool:
        """Return whether it is of a point without a name, which stands for all."""
        return self.name.startswith(f"{ALL} #")

    @property
    def lost_share(self) -> float:
        """Return which share did not reach the end."""
        return 1 - self.share(self.received)

    def lost_text(self, packets: int) -> str:
        """Return a loss for reading: ``−162 (81.00 %)``."""
        return f"−{show_count(packets)} ({self._ratio(packets)})"

    @property
    def unaccounted_text(self) -> str:
        """Return what is missing without a reason, or was counted beyond what is missing."""
        packets = self.unaccounted or 0
        what = "missing" if packets > 0 else "too many"
        return f"{show_count(abs(packets))} {what} ({self._ratio(packets)})"

    def _ratio(self, packets: int) -> str:
        """Return a share for reading; neither some nor all but some reads as none or all."""
        share = self.share(abs(packets))
        if 0 < share < LEAST_SHARE:
            return f"< {show_ratio(LEAST_SHARE)}"
        if 1 - LEAST_SHARE < share < 1:
            return f"> {show_ratio(1 - LEAST_SHARE)}"
        return show_ratio(share)

    @property
    def entered_text(self) -> str:
        """Return what entered the path."""
        return f"{counted(self.entered, 'packet')} {'came' if self.watched else 'intended'}"

    @property
    def received_text(self) -> str:
        """Return what reached its end."""
        word = "answered" if self.answered else "read" if self.watched else "received"
        return f"{show_count(self.received)} {word} ({self._ratio(self.received)})"

    @property
    def remaining(self) -> tuple[int, ...]:
        """Return how many packets go on behind each stop."""
        left, behind = self.entered, []
        for number in range(len(self.stops)):
            left -= sum(loss.packets for loss in self.losses if loss.stop == number)
            behind.append(left)
        return tuple(behind)

    @property
    def zones(self) -> tuple[tuple[str, int], ...]:
        """Return the parts of the path, each with the number of its first stop."""
        named = [stop.zone for stop in self.stops]
        return tuple(
            (zone, number)
            for number, zone in enumerate(named)
            if number == 0 or named[number - 1] != zone
        )


def pictures(
    chapter: Chapter, most: int = MOST_PICTURES, points: Sequence[Point] | None = None
) -> tuple[PathPicture, ...]:
    """Return the picture of each point's representative trial; of ``points`` only, if given."""
    shown = (
        _picture(point, result, result.ledger, chapter)
        for point, result in accounted(chapter)
        if result.ledger is not None
        and result.ledger.intended_packets
        and (points is None or point in points)
    )
    return tuple(islice(shown, most))


def _picture(point: Point, result: Result, ledger: Ledger, chapter: Chapter) -> PathPicture:
    trial = result.trial
    stops = tuple(_stops(ledger, trial))
    places = {stop.stage: number for number, stop in enumerate(stops)}
    measured, name = _measured(point, result, chapter)
    lost = lost_by_place(ledger)
    first = measured.diagnosis[0] if measured.diagnosis else None
    quiet = not lost and not ledger.unaccounted
    record = next((r for r in chapter.records if r.trial.name == measured.trial.name), None)
    return PathPicture(
        name,
        point.name,
        ledger.intended_packets,
        trial.watched,
        trial.traffic.answers is not None,
        stops,
        tuple(
            sorted(
                (
                    PathLoss(place, packets, max(places[stage] for stage in place.split(OR)))
                    for place, packets in lost.items()
                ),
                key=lambda loss: loss.stop,
            )
        ),
        ledger.received_packets,
        ledger.unaccounted,
        tuple(_fillings(measured, record, places, lost)),
        (f"{first.place}{first.why}" if first is not None else NOTHING_LOST) if quiet else "",
        _costs(result, {stop.zone for stop in stops}),
    )


def _measured(point: Point, result: Result, chapter: Chapter) -> tuple[Result, str]:
    """Return the trial whose ledger is shown, and its name; of a search it is one of many."""
    for search in chapter.searches:
        if search.result.trial == result.trial:
            for trial in search.trials:
                if trial.ledger is result.ledger:
                    rate = trial.trial.traffic.rate
                    pps = rate.packets_per_s if rate is not None else None
                    load = f"at {show_pps(pps)}" if pps is not None else "unlimited"
                    return trial, f"{name_of(point)}, {load}" if point.name else load
    invalid = "" if result.valid else " (invalid)"
    return result, f"{name_of(point)} #{result.trial.repetition}{invalid}"


def _costs(result: Result, zones: Collection[str]) -> Mapping[str, float]:
    """Return part of the path → nanoseconds of CPU time per packet, where a trial has that.

    What several nodes share has no part of its own.
    """
    costs: dict[str, float] = {}
    for cost in result.cpu_time.costs if result.cpu_time is not None else ():
        zone = CPU_ZONES.get(cost.stage)
        if cost.end not in (SENDER, RECEIVER, LINK) and cost.stage in PACKETS_STAGES:
            zone = cost.end if cost.end in zones else None
        if zone is not None and cost.ns_per_packet is not None:
            costs[zone] = costs.get(zone, 0.0) + cost.ns_per_packet
    return costs


def _stops(ledger: Ledger, trial: Trial) -> Iterator[PathStage]:
    """Yield the stages that a trial's way to send and to receive passes, or that lost packets."""
    lost = {stage for place in lost_by_place(ledger) for stage in place.split(OR)}
    for entry in ledger.entries:
        if entry.stage in lost or _is_passed(entry.stage, trial):
            yield PathStage(entry.stage, _zone(entry.stage), _is_observable(entry))


def _zone(stage: str) -> str:
    node = stage.rpartition(".")[0]
    if node:
        return node
    zone = ZONES.get(stage, "")
    return WAY_BACK if zone == APPLICATION and MEANT[stage].part == "sender" else zone


def _is_observable(entry: LedgerEntry) -> bool:
    return entry.packets is not None and entry.source != UNOBSERVED


def _is_passed(stage: str, trial: Trial) -> bool:
    """Return whether packets pass a stage: frames of AF_XDP pass neither stack nor sockets."""
    sending, receiving = ways_of(trial)
    if stage in OF_ANSWERS:
        return trial.traffic.answers is not None
    if any(stage in way.adds for way in WAYS):
        return stage in receiving.adds
    order = list(MEANT)
    zone, place = ZONES.get(stage, ""), order.index(stage) if stage in order else 0
    if sending.takes == "frames" and zone == "sender":
        return stage in ("unsent", "tx_device")
    if receiving.takes == "frames" and zone != APPLICATION:
        return place <= max(map(order.index, receiving.adds), default=len(order))
    return True


def _fillings(
    result: Result,
    record: TrialRecord | None,
    places: Mapping[str, int],
    lost: Mapping[str, int],
) -> Iterator[Filling]:
    """Yield the fullest sending CPUs, full queues, the fullest buffer and receiving CPUs."""
    loads = () if result.struck else result.cpus
    alone = len({cpu.machine for cpu in loads}) == 1
    for receives, stop in ((False, 0), (True, len(places) - 1)):
        if receives and record is not None:
            yield from (Filling(name, 1.0, places[at]) for at, name in _full(record, lost))
        if receives and record is not None and BUFFER_STAGE in places:
            # What overflowed was full, whether or not a sample saw it.
            most = 1.0 if BUFFER_STAGE in lost else max(_buffers(record), default=0.0)
            if most >= LEAST_FILLED:
                yield Filling("receive buffer", most, places[BUFFER_STAGE])
        mine = sorted((cpu for cpu in loads if cpu.receives == receives), key=lambda c: -c.busy)
        for cpu in mine[:MOST_CPUS]:
            name = f"CPU {cpu.cpu}" if alone else f"{cpu.machine} CPU {cpu.cpu}"
            busy = _busy_in_load(cpu, record)
            if busy is not None:
                yield Filling(f"{'receiving' if receives else 'sending'} {name}", busy, stop)


def _full(record: TrialRecord, lost: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield the stage and the name of each queue that packets were refused by, so it was full."""
    measured = readings_of(record)
    named = dict([OF_PAIR]) if measured is not None and measured.one_pair else {}
    settings = record.trial.settings.get("sender")
    qdisc = settings.qdisc if settings is not None else None
    kind = next((each for each in BOUNDED if getattr(qdisc, each, None) is not None), None)
    if kind is not None:
        named["tx_qdisc"] = f"{kind} queue"
    yield from ((stage, name) for stage, name in (*named.items(), *FULL.items()) if stage in lost)


def _busy_in_load(cpu: CpuLoad, record: TrialRecord | None) -> float | None:
    """Return how busy a CPU was while packets came; before and after them it idled.

    None if that is unknown, or too short for the kernel's ticks.
    """
    measured = readings_of(record) if record is not None else None
    delta = measured.deltas.get(cpu.machine) if measured is not None else None
    if measured is None or delta is None:
        return None
    load_ns = max(window_ns(measured, end.workers) or 0 for end in measured.ends)
    if load_ns < LEAST_WINDOW_NS:
        return None
    idle_ns = (1 - cpu.busy) * delta.elapsed_ns - max(delta.elapsed_ns - load_ns, 0)
    return 1 - max(idle_ns, 0.0) / load_ns


def _buffers(record: TrialRecord) -> Iterator[float]:
    """Yield how full each receive buffer was at most when it was looked at."""
    if not record.phases:
        return
    sizes = {s.worker: s.buffer_bytes for s in record.phases[-1].stats if s.buffer_bytes}
    for sample in record.series:
        queued_bytes = sample.counts.get("queued_bytes")
        if queued_bytes is not None and sample.worker in sizes:
            yield min(queued_bytes / sizes[sample.worker], 1.0)


# --- as text -------------------------------------------------------------------------------------


def path_lines(picture: PathPicture, width: int = 80) -> list[Text]:
    """Return the picture in eight lines of at most ``width`` columns."""
    count = len(picture.stops)
    places = [number * (width - 1) // max(count, 1) for number in range(count)]
    marked = [*((places[loss.stop], loss) for loss in picture.losses)]
    names, numbers = _labels(picture, marked, width)
    if picture.limit:
        names, numbers = _wrapped(picture.limit, width)
    name = picture.name.replace(f"{ALL} #", "trial #") if picture.is_only else picture.name
    head = f"{name}: {picture.entered_text}, {picture.received_text}"
    beside = _beside(picture, width)
    gap = next((gap for gap in GAPS if len(gap.join(beside)) <= width), GAPS[-1])
    return [
        Text(_cut(head, width), style="bold"),
        Text(_zones(picture, places, width), style="dim"),
        *(Text(_band(picture, places, row, width), style="blue") for row in range(ROWS)),
        names,
        numbers,
        Text(_cut(gap.join(beside), width), style="dim"),
    ]


def _beside(picture: PathPicture, width: int) -> list[str]:
    """Return how full queues and CPUs were; the fullest, where there is no room for all."""
    unseen = [f"{UNSEEN} not observable"] if not all(s.observable for s in picture.stops) else []
    shown = list(picture.fillings)
    while True:
        texts = [*unseen, *(each.text for each in shown)]
        if not shown or len(GAPS[-1].join(texts)) <= width:
            return texts
        shown.remove(min(shown, key=lambda each: each.share))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _wrapped(text: str, width: int) -> tuple[Text, Text]:
    """Return a sentence in two lines."""
    first, rest = "", text
    while rest and len(first) + len(rest.partition(" ")[0]) + 1 <= width:
        word, _, rest = rest.partition(" ")
        first = f"{first} {word}".lstrip()
    return Text(first), Text(_cut(rest, width))


def _zones(picture: PathPicture, places: Sequence[int], width: int) -> str:
    """Return the names of the path's parts above their first stages, where there is room.

    With what each takes of a CPU for a packet, if that is known.
    """
    line = ""
    ends = [places[number] for _, number in picture.zones[1:]] + [width]
    for (name, number), end in zip(picture.zones, ends, strict=True):
        ns = picture.costs.get(name)
        zone = name if ns is None else f"{name} {ns:.0f} ns"
        if len(zone) >= end - places[number]:
            zone = name
        start = max(min(places[number], width - len(zone)), len(line))
        if start + len(zone) <= min(max(end, places[number] + len(zone)), width):
            line = f"{line:{start}}{zone} "
    return line.rstrip()


def _level(picture: PathPicture, left: int) -> int:
    """Return the height of the band in eighths of a line; 1 at least if a packet is left."""
    height = round(ROWS * 8 * min(picture.share(left), 1.0))
    return max(height, 1) if left > 0 else 0


def _band(picture: PathPicture, places: Sequence[int], row: int, width: int) -> str:
    """Return one line of the band, from the sender's socket to the application."""
    levels = [_level(picture, left) for left in (picture.entered, *picture.remaining)]
    columns, passed = [], 0
    for column in range(width):
        while passed < len(places) and places[passed] < column:
            passed += 1
        inside = next((n for n in reversed(range(len(places))) if places[n] <= column), 0)
        level = _level(picture, picture.received) if column == width - 1 else levels[passed]
        eighths = min(max(level - 8 * (ROWS - 1 - row), 0), 8)
        unseen = bool(picture.stops) and not picture.stops[inside].observable
        columns.append(UNSEEN if unseen and eighths else BLOCKS[eighths])
    return "".join(columns).rstrip()


@dataclass(frozen=True)
class Label:
    """What is written below the place of a loss."""

    place: int
    name: str
    number: str
    packets: int
    style: str = "red"

    @property
    def width(self) -> int:
        """Return its columns."""
        return max(len(self.name), len(self.number))


def _labels(
    picture: PathPicture, marked: Sequence[tuple[int, PathLoss]], width: int
) -> tuple[Text, Text]:
    """Return the names of stages that lost packets, and beneath what they lost.

    Those that lost most have room first, ``unaccounted`` always has; what has none is a sum.
    """
    labels = [
        Label(place, f"{FALL} {loss.name}", picture.lost_text(loss.packets), loss.packets)
        for place, loss in marked
    ]
    always = []
    if picture.unaccounted:
        number = picture.unaccounted_text
        always = [Label(width, UNACCOUNTED, number, abs(picture.unaccounted), "bold red")]
    labels.sort(key=lambda label: -label.packets)
    kept, rest = list(labels), 0
    while kept and sum(each.width + MARGIN for each in [*kept, *always]) > width + MARGIN:
        rest += kept.pop().packets
        more = f"{FALL} {len(labels) - len(kept)} more stages"
        always = [each for each in always if each.name == UNACCOUNTED]
        always.append(Label(width, more, picture.lost_text(rest), rest))
    return _placed(sorted([*kept, *always], key=lambda each: each.place), width)


def _placed(labels: Sequence[Label], width: int) -> tuple[Text, Text]:
    """Return two lines of labels, each as near to its place as the others leave it room."""
    starts, room = [], width
    for label in reversed(labels):
        starts.append(max(min(label.place, room - label.width), 0))
        room = starts[-1] - MARGIN
    upper, lower, free = Text(), Text(), 0
    for start, label in zip(reversed(starts), labels, strict=True):
        at = max(start, free)
        for line, word in ((upper, label.name), (lower, label.number)):
            line.append(" " * (at - len(line)))
            line.append(word, style=label.style)
        free = at + label.width + MARGIN
    return upper, lower


def picture_lines(chapter: Chapter, width: int) -> list[Text]:
    """Return an experiment's pictures as lines, and how many points are not among them."""
    shown = pictures(chapter)
    lines: list[Text] = []
    for picture in shown:
        lines += [*([Text("")] if lines else []), *path_lines(picture, width)]
    rest = len(accounted(chapter)) - len(shown)
    return [*lines, *([Text(f"and {rest} more points", style="dim")] if rest > 0 else [])]

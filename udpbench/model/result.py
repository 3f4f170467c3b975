"""What follows from records: ledgers, bottlenecks, results, estimates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Literal, Optional, Union

from udpbench.frozen import dataclass
from udpbench.metrics import METRICS
from udpbench.model.experiment import Trial
from udpbench.model.limits import PhaseName, Role, stage_of
from udpbench.model.record import Finding, Sample, Snapshot, Stall, TrialRecord
from udpbench.units import show_percent, show_range


@dataclass(frozen=True)
class LedgerEntry:
    """One line of a ledger: packets that ended at a stage; None if it cannot be observed.

    Known without a counter, too, where no other stage can explain them.
    """

    stage: str
    packets: Optional[int]
    source: str
    """The counters it was read from, as an expression that a reader can check."""
    at_most: Optional[int] = None
    """Upper limit if others may have moved the counters, or the kernel counted skbs of unknown
    size; ``packets`` is then the lower one, None if that is 0 and the stage not observable."""
    parts: dict[str, int] = field(default_factory=dict)
    """The same by queue, CPU, worker or counter, if counted that way; only those that changed."""
    also: dict[str, int] = field(default_factory=dict)
    """Other counters of the same stage, by name; never added up, they must agree."""
    others_packets: int = 0
    """By how much its counters moved beyond what the traffic lost."""
    node: Optional[str] = None
    """The node in the middle at which packets ended; None of all other stages."""


@dataclass(frozen=True)
class Ledger:
    """The balance of all packets: intended = Σ entries + received + unaccounted.

    Received are those that reached the application, or its log if it has one.
    """

    intended_packets: int
    received_packets: int
    entries: tuple[LedgerEntry, ...]
    unaccounted: Optional[int]
    """The value nearest to 0 if an entry is an interval."""

    def named(self, name: str) -> tuple[LedgerEntry, ...]:
        """Return the entries of a stage: by its own name, or by that of every node's."""
        return self._named.get(name, ())

    @cached_property
    def _named(self) -> dict[str, tuple[LedgerEntry, ...]]:
        """By each name: a report asks for every stage of every trial, which took their square."""
        by_name: dict[str, tuple[LedgerEntry, ...]] = {}
        for entry in self.entries:
            for name in {entry.stage, stage_of(entry.stage)}:
                by_name[name] = (*by_name.get(name, ()), entry)
        return by_name

    @property
    def lost_packets(self) -> int:
        """Intended and not received, as far as the ledger explains it: the sum of all entries."""
        return self.intended_packets - self.received_packets - (self.unaccounted or 0)


Bounded = Literal["regular", "at least", "none", "unfinished"]
"""What a search knows of a goal: both bounds; a lower one alone, since nothing above could be
tried; none, since the lowest load lost more already; or what it knew when it was ended."""


@dataclass(frozen=True)
class GoalBounds:
    """What a search says about one loss goal."""

    loss: float
    kind: Bounded = "unfinished"
    throughput_pps: Optional[float] = None
    """What arrived of the load at the lower bound (RFC 9971: conditional throughput)."""
    lower_pps: Optional[float] = None
    upper_pps: Optional[float] = None
    """Loads that did, and did not, meet the goal."""


@dataclass(frozen=True)
class CpuLoad:
    """How busy one CPU of the load was in a measured phase, and with what."""

    machine: str
    cpu: int
    busy: float
    """Share of the time; of a sender that spins always near 1."""
    receives: bool
    """It runs a receiving worker, or serves an RX queue."""
    uses: dict[str, float] = field(default_factory=dict)
    """What used it → share of the time; a thread of NAPI is system time in /proc/stat."""
    taken: float = 0.0
    """Share of the time that other programs and the hypervisor took."""


@dataclass(frozen=True)
class CpuEntry:
    """CPU time that one CPU spent at a stage of the packets' way, on work of one kind."""

    machine: str
    cpu: int
    end: str
    """Whose packets it is divided by: ``sender``, ``receiver``, a node in the middle, ``nodes`` of
    several that share a CPU, or ``link`` of what another forwards."""
    stage: str
    """One of ``cpu_stages.STAGES``, ``unattributed`` or ``hypervisor``; of another program its
    name, in brackets."""
    kind: str
    samples: int
    sampled_ns: int
    """As sampled: no more than the samples stand for."""
    time_ns: float
    """Scaled to the time that the kernel counted."""


@dataclass(frozen=True)
class CpuBalance:
    """The time of one CPU: wall = entries + idle; whether it adds up."""

    machine: str
    cpu: int
    wall_ns: int
    idle_ns: int
    """As the kernel counts it."""
    sampled_idle_ns: int
    unattributed_ns: int
    """Sampled without a stage, lost or never taken; as sampled."""
    allowed_ns: float
    """How far the samples' busy time may be from the kernel's: 3 % and three standard errors."""
    struck: str = ""
    """Why its numbers are struck out; empty if they hold."""

    @property
    def busy_ns(self) -> int:
        """All but idle, as the kernel counts it."""
        return self.wall_ns - self.idle_ns

    @property
    def sampled_busy_ns(self) -> int:
        """All but idle, as sampled."""
        return self.wall_ns - self.sampled_idle_ns


@dataclass(frozen=True)
class StageCost:
    """What a packet of one end or node costs at a stage: CPU time, with an interval."""

    end: str
    stage: str
    ns_per_packet: Optional[float]
    """None: struck out, or without a packet."""
    low_ns: Optional[float]
    high_ns: Optional[float]
    share: float
    """Its part of all time of that end or node."""
    entered_packets: Optional[int]
    """Packets that came to the stage; None: not known."""
    ns_per_entered: Optional[float]
    kinds: dict[str, float]
    """Kind → its share of the stage."""


@dataclass(frozen=True)
class CpuTime:
    """Where the time of the load's CPUs went in a measured phase."""

    clock: str
    costs: tuple[StageCost, ...]
    entries: tuple[CpuEntry, ...]
    balances: tuple[CpuBalance, ...]


Certainty = Literal["certain", "likely", "to be tested"]


UNKNOWN = "unknown"
"""Name of a loss whose cause the evidence does not tell."""
ALL = 0.95
"""Share of a loss from which on it is called all of it."""
LEAST_REST = 0.01
"""Share of a loss below which nothing is said of it."""


BECAUSE: Mapping[Certainty, str] = {
    "certain": "",
    "likely": "likely because ",
    "to be tested": "possibly because ",
}
"""What stands before a cause that is not the first."""
LOSS, MISSING = "the loss", "what was lost or not offered"
"""What shares of causes are parts of."""


@dataclass(frozen=True)
class Bottleneck:
    """One thing that limits a trial, with the evidence for it."""

    name: str
    """One of ``analysis.remedies``."""
    certainty: Certainty
    stage: str
    """Where most packets ended: several stages, if each is an interval (``link or rx_ring``), or
    ``unaccounted``; empty if none is missing."""
    packets: int
    """That ended there."""
    what: str
    remedy: str
    """What helps, in the imperative."""
    test: str = ""
    """Keys of an experiment that would decide it."""
    evidence: Mapping[str, float] = field(default_factory=dict)
    """The numbers that speak for it: shares of the time in which packets came, counts, limits."""
    words: Mapping[str, str] = field(default_factory=dict)
    """What fills the <angles> of its remedy, and of the steps that ``udpbench tune`` tries."""
    share: Optional[float] = None
    """Part of all packets that were lost; None of what was seen beside the causes of the loss."""
    sets: tuple[str, ...] = ()
    """``path=value`` for ``--set``: the first thing to try; empty if no setting helps."""
    aside: str = ""
    """What the stage is here, where its name alone misleads; else empty."""
    whole: str = LOSS
    """The thing of which its share is a part: packets that were not offered are no loss."""

    @property
    def sentence(self) -> str:
        """Return where packets ended, why, and what helps."""
        return f"{self.place}{self.why} {self.helps}"

    @property
    def place(self) -> str:
        """Return ``Lost at udp_rcvbuf``, or that nothing was."""
        late = " yet" if self.what.startswith("the receiver falls behind") else ""
        nowhere = {
            "": f"Nothing was lost{late}",
            "unsent": "Not offered",
            "unaccounted": "Unaccounted",
        }
        beside = f" ({self.aside})" if self.aside else ""
        return nowhere.get(self.stage, f"Lost at {self.stage}") + beside

    @property
    def why(self) -> str:
        """Return what limits it, for which part of the loss, and with how certain that is."""
        causes = {"certain": "cause", "likely": "likely cause", "to be tested": "possible cause"}
        share = self.share or 0.0
        part = f"{show_percent(share)} of {self.whole}" if 0 < share < ALL else ""
        if self.name == UNKNOWN or self.stage == "unaccounted":
            return f"{f', {part}' if part else ''}: {self.what}."
        if not part and self.certainty == "certain":
            return f": {self.what}."
        return f"; {causes[self.certainty]}{f' of {part}' if part else ''}: {self.what}."

    @property
    def helps(self) -> str:
        """Return the remedy as a sentence, and the test of what is not certain."""
        test = f" To test it: {self.test}." if self.test and self.certainty != "certain" else ""
        return f"{self.remedy[:1].upper()}{self.remedy[1:]}.{test}"


def rest_of(causes: Sequence[Bottleneck]) -> str:
    """Return the rest of a loss behind its first cause, as a sentence; empty if that is all."""
    shares = [each.share or 0.0 for each in causes]
    unknown = 1 - sum(shares)
    if not shares or not 0 < shares[0] < ALL or unknown < -LEAST_REST:
        return ""  # or the causes are of several trials
    texts = []
    for each, share in zip(causes[1:], shares[1:], strict=True):
        place = "not offered" if each.stage == "unsent" else f"at {each.stage}"
        where = f"{place}, " if each.stage != causes[0].stage else ""
        sure = BECAUSE[each.certainty] if each.name != UNKNOWN else ""
        texts += [f"{show_percent(share)}: {where}{sure}{each.what}"] if share else []
    texts += [f"{show_percent(unknown)}: not known why"] if unknown >= LEAST_REST else []
    return f" {'; '.join(texts)}." if texts else ""


@dataclass(frozen=True)
class WorkerResult:
    """One worker's share of a result."""

    worker: str
    role: Role
    cpu: Optional[int]
    packets: int
    pps: Optional[float]
    memory_bytes: Optional[int] = None
    cost: dict[str, int] = field(default_factory=dict)
    """Its thread's time, switches and calls, by the names of ``WorkerStats.counts``; what the
    machine does not count, often cycles and instructions, is missing."""


@dataclass(frozen=True)
class Column:
    """A column of a result's table: its key in JSON and frames, and what its cells are."""

    name: str
    kind: Literal["text", "number", "moment", "count", "quotient"] = "text"
    """A number names something, as CPU 3; moments are left out of the whole phase, where counts of
    the same thing add up. Quotients have fractions, and never do."""
    unit: str = ""


Cell = Union[str, int, float, None]
Row = tuple[Cell, ...]


@dataclass(frozen=True)
class ResultTable:
    """A table of a result: every output shows it, and knows none."""

    name: str
    """Its key in JSON, and its frame."""
    caption: str
    columns: tuple[Column, ...]
    rows: Callable[[], Iterable[Row]] = field(default=tuple, compare=False, repr=False)
    """Reads the rows, which may be many, from the trial's record; nothing keeps them."""
    always: bool = False
    """Shown where not everything is, too."""


@dataclass(frozen=True)
class Result:
    """The result of one trial, derived from its record by ``judge`` alone."""

    trial: Trial
    status: Literal["done", "failed", "skipped"]
    valid: bool
    findings: tuple[Finding, ...]
    unavailable: bool = False
    """Skipped, and not because of the experiment's ``needs``."""
    numbers: Mapping[str, Optional[float]] = field(default_factory=dict)
    """Metric → its value; None or missing if unknown."""
    stalls: tuple[Stall, ...] = ()
    """Stalls of all senders."""
    ledger: Optional[Ledger] = None
    workers: tuple[WorkerResult, ...] = ()
    cpus: tuple[CpuLoad, ...] = ()
    """The CPUs of the load."""
    diagnosis: tuple[Bottleneck, ...] = ()
    """What limits it, what matters most first."""
    cpu_time: Optional[CpuTime] = None
    """With ``cpu_time``, where it can be sampled."""
    spans: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Metric → least and most, where a search knows it no better than that."""
    unfinished: bool = False
    """A search ended before it knew the rate of each of its goals."""
    took_ns: Optional[int] = None
    """The whole trial, or search, with all that is beside its measured phase."""
    lag: Optional[float] = None
    """How much longer than the senders' the receivers' time was, as a share of the senders': what
    they could not receive in time waited in queues. Kept where rates are struck out."""
    lump_share: Optional[float] = None
    """What came at once on average, with one read of each receiver or one call of each sender, as a
    share of all: rates are known no better."""
    full_line_bps: Optional[int] = None
    """Rate of the senders' lines, if these kept them from sending more."""
    tables: tuple[ResultTable, ...] = field(default=(), compare=False, repr=False)
    """All that have rows or might; of a result of ``judged_run``."""

    @property
    def struck(self) -> tuple[Finding, ...]:
        """Why rates, delays and CPU numbers are struck out; the counts still hold."""
        return tuple(finding for finding in self.findings if finding.severity == "struck")

    def __getattr__(self, name: str) -> Optional[float]:
        """Return a metric by its name, such as ``delay_p99_ns``; None if unknown."""
        if name not in METRICS:
            raise AttributeError(f"a result has no {name}")
        return self.numbers.get(name)


@dataclass(frozen=True)
class Estimate:
    """A median with its interval over the valid trials of one point."""

    median: float
    low: Optional[float]
    high: Optional[float]
    n: int
    unit: str


@dataclass(frozen=True)
class Progress:
    """What ``control`` reports during a run; ``report`` draws it and decides nothing.

    The event ``sample`` has ``samples`` of workers or ``snapshots``: of each host first all
    counters before the phase, then those that changed. ``trial`` has its ``record`` and its
    ``result``, and ``phase`` the part of the record that exists so far. ``search`` follows each
    trial of a search.
    """

    event: Literal["wait", "run", "host", "step", "phase", "sample", "trial", "search", "restore"]
    text: str
    trial: Optional[Trial] = None
    index: int = 0
    total: int = 0
    """Trials of the run that are certain; comparisons may want more."""
    phase: Optional[PhaseName] = None
    samples: tuple[Sample, ...] = ()
    snapshots: tuple[Snapshot, ...] = ()
    record: Optional[TrialRecord] = None
    result: Optional[Result] = None
    total_at_most: int = 0
    bounds: tuple[GoalBounds, ...] = ()
    """In ``search``: what is known of each goal after the trial before."""
    range_pps: Optional[tuple[float, float]] = None
    """In ``search``: between which rates it looks; None before the upper end is known."""
    left_ns: Optional[int] = None
    """In ``search``: how long all searches of the run may still take."""
    ended: bool = False
    """In ``search``: nothing more of it will be tried."""

    @property
    def place(self) -> str:
        """Return ``[3/12]``, where comparisons decide ``[3/14–30]``; empty before any trial.

        Of a search, which takes as many as it takes, ``[3]``.
        """
        if self.trial is not None and self.trial.search_trial:
            return f"[{self.index}]"
        return f"[{self.index}/{show_range(self.total, self.total_at_most)}]" if self.total else ""

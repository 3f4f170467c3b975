"""The samples and counters over time of a run's trials, and how they get into their records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from udpbench.errors import RecordError
from udpbench.model.limits import RAW_NS
from udpbench.model.record import Finding, Sample, Snapshot, TrialRecord
from udpbench.records.lines import LineReader


def _told_apart(finding: Finding) -> Finding:
    """Return a finding with its kind; older runs have it only in how the text begins."""
    old = finding.kind == "" and finding.what.startswith("the controller was slow: ")
    return replace(finding, kind="timing") if old else finding


def _refuse_milliseconds(record: TrialRecord, series: Sequence[Sample], where: str) -> None:
    """Raise RecordError for packets of every millisecond of a load that is too long for them."""
    if record.trial.duration_ns > RAW_NS and any(sample.packets_per_ms for sample in series):
        what = f"packets of every millisecond of a load of more than {RAW_NS // 10**9} s"
        raise RecordError(f"{where}: series: {what}; the file is damaged")


@dataclass(frozen=True)
class StoredSeries:
    """Sequence number → samples, and → counters; lines of one trial are joined."""

    samples: dict[int, list[Sample]]
    snapshots: dict[int, list[Snapshot]]
    findings: list[Finding]

    @property
    def numbers(self) -> Iterable[int]:
        """Return the sequence numbers of all series."""
        return self.samples

    def join(self, record: TrialRecord, number: int, where: str) -> TrialRecord:
        """Return a record with its series; raises RecordError."""
        own, moved = self.samples.get(number, ()), self.snapshots.get(number, ())
        _refuse_milliseconds(record, own, where)
        findings = tuple(map(_told_apart, record.findings))
        return replace(record, series=tuple(own), motion=tuple(moved), findings=findings)


def read_series(path: Path, reading: LineReader) -> StoredSeries:
    """Return all series of a run; raises RecordError."""
    samples: dict[int, list[Sample]] = defaultdict(list)
    snapshots: dict[int, list[Snapshot]] = defaultdict(list)
    for where, text in reading.lines(path):
        line = reading.series_line(where, text)
        samples[line.sequence] += line.samples
        snapshots[line.sequence] += line.snapshots
    return StoredSeries(samples, snapshots, reading.findings)

"""Progress as control reports it, of a trial that is being measured.

Not a test.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from analysis.build import BASE, COUNTERS, START_NS, record, trial

from udpbench.model.limits import SECOND_NS
from udpbench.model.record import Sample, Snapshot
from udpbench.model.result import Progress
from udpbench.model.work import WorkerSpec


def measuring(workers: Sequence[WorkerSpec] | None = None, **changes: Any) -> Progress:
    """Return the begin of the measured phase of the first of two trials."""
    of = replace(record(phases=()), **({} if workers is None else {"workers": tuple(workers)}))
    plain = Progress("phase", "example#1 measured 1s", of.trial, 1, 2, "measured", record=of)
    return replace(plain, **changes)


def counters(second: int, **moved: dict[str, int]) -> tuple[Snapshot, ...]:
    """Return a round at a second: all counters at 0, later those of each host that moved."""
    return tuple(
        Snapshot(
            host,
            START_NS + second * SECOND_NS,
            dict.fromkeys(names, BASE) if second == 0 else moved.get(host, {}),
        )
        for host, names in COUNTERS.items()
    )


def sampled(
    series: Sequence[Sample], rcvbuf: Sequence[int] = (), **common: Any
) -> Iterator[Progress]:
    """Yield samples one by one, and each second a round where RcvbufErrors are so many by then."""
    name = "snmp.Udp.RcvbufErrors"
    for number, sample in enumerate(series):
        second = number // 10
        if number % 10 == 0 and second < len(rcvbuf):
            moved = {"right": {name: BASE + rcvbuf[second]}}
            shown = counters(second, **moved)
            yield Progress("sample", "measured", trial(), 1, 2, snapshots=shown, **common)
        yield Progress("sample", "measured", trial(), 1, 2, samples=(sample,), **common)

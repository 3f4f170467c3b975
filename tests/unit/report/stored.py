"""Runs as a test wants them: written to a folder and read back, without any host.

Not a test. What differs from a good run is given; see analysis.build for the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

from analysis.build import (
    START_NS,
    experiment,
    paced,
    receiver_counts,
    record,
    sender_counts,
    series,
    trial,
    worker,
)

from udpbench.model.experiment import Experiment, Trial
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import Histogram, Sample, Snapshot, TrialRecord
from udpbench.records.reader import read_run
from udpbench.records.run import Ending, Run, RunHeader
from udpbench.records.writer import RunWriter
from udpbench.report.terminal import Terminal

COMPLETE = Ending("2026-11-21T08:00:09+00:00", "complete")
ODD = r"""$x$ #let *a* _b_ [c] <d> "e" \f 🚀 `g` @h ~i // j"""
"""Everything that means something to typst or rich, and an emoji."""


def header(*experiments: Experiment, **changes: Any) -> RunHeader:
    """Return the header of a run in the built-in lab."""
    plain = RunHeader(
        udpbench="0.1.0",
        started_at="2026-11-21T08:00:00.000+00:00",
        command=("udpbench", "run", "example"),
        seed=7,
        lab_name="local",
        lab_text="sender: []\nreceiver: []\n",
        experiments=experiments or (experiment(),),
    )
    return replace(plain, **changes)


def stored(
    folder: Path,
    records: Sequence[TrialRecord] | None = None,
    *experiments: Experiment,
    ending: Ending | None = COMPLETE,
    **changes: Any,
) -> Run:
    """Return a run that was written to ``folder``; by default one good trial."""
    writer = RunWriter.create(folder, header(*experiments, **changes))
    for trial_record in [record(series=series([1000]))] if records is None else records:
        writer.write(trial_record)
    if ending is not None:
        writer.finish(ending)
    else:
        writer.close()
    return read_run(folder)


def swept(sizes: Sequence[int], repetitions: int = 3) -> tuple[Experiment, list[TrialRecord]]:
    """Return an experiment of a point per size, and its good trials, each with a series."""
    points = [trial(f"size={size}") for size in sizes]
    records = [
        record(
            1000 + size + repetition,
            of=replace(point, repetition=repetition),
            series=series([1000 + size + repetition]),
        )
        for size, point in zip(sizes, points, strict=True)
        for repetition in range(1, repetitions + 1)
    ]
    return experiment(points=points, repetitions=repetitions), records


DRAWN_S = 10
"""How long a trial of ``drawn`` takes."""


def drawn(number: int, of: Trial) -> TrialRecord:
    """Return a trial that has something to show in every figure: uneven rates, two losses, times.

    Its rates differ in each bin of 100 ms, its losses in each second, its load in each millisecond.
    """
    random = Random(number)
    sent_ms = random.choices((0, 9, 10, 11, 20), (1, 7, 84, 7, 1), k=1000 * DRAWN_S)
    per_ms = [tuple(sent_ms[at : at + 100]) for at in range(0, len(sent_ms), 100)]
    sent = list(accumulate(map(sum, per_ms), initial=0))
    read = [sum(each) - random.randrange(60, 140) for each in per_ms]
    received = list(accumulate(read, initial=0))
    samples = []
    for tick, (left, right) in enumerate(zip(sent, received, strict=True)):
        at_ns = START_NS + tick * SECOND_NS // 10
        kept = {"first_ms": 100 * (tick - 1), "packets_per_ms": per_ms[tick - 1]} if tick else {}
        samples += [
            Sample("left.sender0", at_ns, {"sent_packets": left}, **kept),  # type: ignore[arg-type]
            Sample("right.receiver0", at_ns, {"received_packets": right}),
        ]
    unbound = 50 + number
    full = sent[-1] - received[-1] - unbound
    right = {"snmp.Udp.InDatagrams": received[-1], "snmp.Udp.NoPorts": unbound}
    right |= dict.fromkeys(("snmp.Udp.RcvbufErrors", "snmp.Udp.InErrors", "socket.77.drops"), full)
    shares = {"user": 1, "system": 2, "softirq": 1, "idle": 6}
    times = {f"cpu.{cpu}.{name}_ns": n * SECOND_NS for cpu in (0, 1) for name, n in shares.items()}
    counts = (sender_counts(sent[-1]), receiver_counts(received[-1]))
    late = [Histogram(tuple((low + n, 1 + 3000 // (n + 1)) for n in range(600))) for low in (9, 11)]
    workers = [
        worker("sender", _longer(counts[0]), histograms={"pacing": late[0]}),
        worker("receiver", _longer(counts[1]), histograms={"delay": late[1]}),
    ]
    whole = record(sent[-1], of=of, moves={"right": right, "machine": times}, workers=workers)
    (phase,) = whole.phases
    clock_ns = START_NS + DRAWN_S * SECOND_NS
    after = {host: replace(each, clock_ns=clock_ns) for host, each in phase.after.items()}
    motion = []
    for second in range(1, DRAWN_S):
        share = second / DRAWN_S + random.uniform(-0.03, 0.03)
        for host, first in phase.before.items():
            last = after[host].counters
            moved = {
                name: begin + int((last[name] - begin) * share)
                for name, begin in first.counters.items()
                if last[name] != begin
            }
            motion.append(Snapshot(host, START_NS + second * SECOND_NS, moved))
    phases = (replace(phase, after=after),)
    return replace(whole, phases=phases, series=tuple(samples), motion=tuple(motion))


def _longer(counts: dict[str, int]) -> dict[str, int]:
    return {**counts, "last_ns": counts["last_ns"] + (DRAWN_S - 1) * SECOND_NS}


def drawn_study(folder: Path, experiments: int) -> Run:
    """Return a study of twenty trials to an experiment, whose four points are all drawn."""
    studies, records = [], []
    for place in range(experiments):
        changes = {"experiment": f"{place:02d}-experiment", "duration_ns": DRAWN_S * SECOND_NS}
        points = [
            paced(10_000, point=f"buffer={2**size}KiB,rmem_max=67108864", **changes)
            for size in range(4)
        ]
        whole = experiment(points=points, repetitions=5)
        question = f"Does it arrive {place}?"
        studies.append(replace(whole, name=points[0].experiment, question=question))
        records += [
            drawn(20 * place + 5 * number + repetition, replace(point, repetition=repetition))
            for number, point in enumerate(points)
            for repetition in range(1, 6)
        ]
    return stored(folder, records, *studies)


def printed(*parts: Any, width: int = 80) -> str:
    """Return what a terminal of so many columns shows, without colours."""
    out = StringIO()
    console = Terminal(file=out, width=width)
    for part in parts:
        console.print(part)
    return out.getvalue()

"""Runs of several days and pairs in a store, without any host. Not a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from analysis.build import experiment, record, trial
from report.stored import stored

from udpbench.model.record import TrialRecord
from udpbench.records.run import Run
from udpbench.store.dataset import write_runs

POINTS = ("size=1472B", "size=64B")


def trials(pps: int, repetitions: int = 3) -> list[TrialRecord]:
    """Return good trials of two points, the first at about this rate, the other at half of it."""
    return [
        record(
            pps // share + repetition, of=trial(name, repetition, values={"traffic.size": name[5:]})
        )
        for name, share in zip(POINTS, (1, 2), strict=True)
        for repetition in range(1, repetitions + 1)
    ]


def run_of(folder: Path, pps: int, day: str = "2026-11-21", **facts: object) -> Run:
    """Return a run of a day; ``facts`` are of the host that receives."""
    records = trials(pps)
    changed = [
        replace(each, facts={**each.facts, "right": replace(each.facts["right"], **facts)})  # type: ignore[arg-type]
        for each in records
    ]
    declared = experiment(points=[trial(name) for name in POINTS], repetitions=3)
    return stored(folder, changed, declared, started_at=f"{day}T08:00:00.000+00:00")


def fill(store: Path, folder: Path, pair: str, rates: Sequence[int], **facts: object) -> None:
    """Put a run a day into a store, each at its rate, from 2026-11-01 on."""
    for number, pps in enumerate(rates, start=1):
        run = run_of(folder / f"{pair}-{number}", pps, f"2026-11-{number:02d}", **facts)
        write_runs([run.folder], store, campaign="nightly", pair=pair)

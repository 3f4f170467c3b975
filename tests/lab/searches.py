"""Search for rates that are known by other means, and say whether answer and end are right.

``searches.py [PART]... [--out FOLDER] [--times N] [--minutes N]``, as root; folders, exit codes and
going on as in ``verdicts.py``. The parts, all of them if none is named:

``work``   a reader that works 20 us on each datagram: in 19 of 20 searches the answer lies within 5 %
           of 1 s / (20 us + c), where c is the receiver's CPU time per datagram less that work, its
           thread's and its queue's, in a trial at 90 % of the rate that was found
``drops``  a token bucket whose queue is shorter than the send buffer: stage ``tx_qdisc`` breaks first
``line``   a link with a rate, whose queue is longer: the sender blocks, ``at least``, its line is full
``queue``  a token bucket with a long queue: likewise, though the send buffer holds 37 ms of packets
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from verdicts import Part, Session, main

from udpbench.analysis.cpu_use import OTHERS
from udpbench.definition.load import load_experiment_data
from udpbench.model.experiment import Experiment
from udpbench.model.limits import SECOND_NS
from udpbench.report.search import breaking_lines, found_text

WORK_NS = 20_000
WITHIN = 0.05
RIGHT = 19 / 20
ROBBED = 1 / 3
TRIES = 3
"""The trial that says what a datagram costs: its rates are struck out if others run."""
LARGE_BYTES = 1472
FRAME_BYTES = LARGE_BYTES + 42
BUCKET = {"rate": "30Mbps", "burst": "32KiB"}
SEARCH = {"loss": "0.1%", "precision": "2%", "trial": "500ms", "time": "3s"}


def work(session: Session, times: int = 20) -> bool | None:
    """Find the rate of a reader of which it is known how long a datagram takes."""
    errors: list[float] = []
    tried = 0
    while len(errors) < times and tried < 2 * times:
        tried += 1
        error = _worked(session, tried, times - len(errors) - 1)
        errors += [error] if error is not None else []
    right = sum(abs(error) <= WITHIN for error in errors)
    print(
        f"work: {right} of {len(errors)} answers lie within {WITHIN:.0%} of 1 s / (20 us + c) (at "
        f"least {RIGHT:.0%}); {tried - len(errors)} of {tried} searches do not count"
    )
    return right >= RIGHT * len(errors) if len(errors) == times else None


def _worked(session: Session, n: int, left: int) -> float | None:
    """Search once; return by how much the answer differs from the reader's cost.

    None if others had CPUs of the load in more than ROBBED of the trials, or if there is no answer.
    """
    reading: dict[str, Any] = {"traffic": {"size": "64B"}, "receive": {"work": f"{WORK_NS}ns"}}
    rate = {"from": "20kpps", "to": "60kpps"}
    data = {"question": "How many?", **reading, "search": {**SEARCH, "rate": rate}}
    name = f"work-{n:02}"
    experiment = load_experiment_data(data, "work")
    (search,) = session.chapter(name, experiment).searches
    pps = search.headline.throughput_pps
    text = f"{name}: {found_text(search)}"
    robbed = sum(bool(trial.struck) for trial in search.trials)
    if search.headline.kind != "regular" or pps is None or robbed > ROBBED * len(search.trials):
        print(f"{text}; others had the CPUs in {robbed} of {len(search.trials)} trials", flush=True)
        return None
    slower = {**reading["traffic"], "rate": f"{0.9 * pps:.0f}pps"}
    data = {"question": "What does a datagram cost?", **reading, "traffic": slower}
    data |= {"duration": "2s", "warmup": "200ms", "repetitions": 1}
    cost_ns = next(_costs(session, name, data), None)
    if cost_ns is None:
        print(
            f"{name}: {found_text(search)}; no valid trial says what a datagram costs", flush=True
        )
        return None
    known_pps = SECOND_NS / cost_ns
    error = pps / known_pps - 1
    c_us = (cost_ns - WORK_NS) / 1000
    print(
        f"{text}; c = {c_us:.2f} us, so {known_pps / 1000:.1f} kpps: {error:+.1%}"
        f"{session.left(left)}",
        flush=True,
    )
    return error


def _costs(session: Session, name: str, data: dict[str, Any]) -> Iterator[float]:
    """Yield the CPU time of a datagram in each trial that has one."""
    for n in range(1, TRIES + 1):
        chapter = session.chapter(f"{name}-cost-{n}", load_experiment_data(data, "cost"))
        (result,) = chapter.results
        (reader,) = (worker for worker in result.workers if worker.role == "receiver")
        uses = [cpu.uses for cpu in result.cpus if reader.worker in cpu.uses]
        if result.valid and "user_ns" in reader.cost and uses:
            # What others or a hypervisor take from this CPU is not the receiver's.
            own = sum(share for name, share in uses[0].items() if name != OTHERS)
            spent_ns = reader.cost["user_ns"] + reader.cost["system_ns"]
            yield spent_ns * own / uses[0][reader.worker] / reader.packets


def drops(session: Session, times: int = 1) -> bool | None:
    """Find the rate of a bucket whose queue drops."""
    qdisc = {"tbf": {**BUCKET, "limit": "16KiB"}}
    return _limited(session, "drops", {"sender": {"qdisc": qdisc}}, 30, "tx_qdisc", times)


def line(session: Session, times: int = 1) -> bool | None:
    """Find the rate of a link."""
    return _limited(session, "line", {"receiver": {"link": {"rate": "100Mbps"}}}, 100, None, times)


def queue(session: Session, times: int = 1) -> bool | None:
    """Find the rate of a bucket before which the sender has to wait."""
    qdisc = {"tbf": {**BUCKET, "limit": "4MiB"}}
    return _limited(session, "queue", {"sender": {"qdisc": qdisc}}, 30, None, times)


def limited(name: str, settings: dict[str, Any], **search: str) -> Experiment:
    """Return the search for the rate of a line."""
    data = {
        "question": "How many?",
        "traffic": {"size": f"{LARGE_BYTES}B"},
        "settings": settings,
        "search": {**SEARCH, "rate": {"from": "500pps", "to": "sender"}, **search},
    }
    return load_experiment_data(data, name)


def _limited(
    session: Session,
    name: str,
    settings: dict[str, Any],
    line_mbps: int,
    stage: str | None,
    times: int,
) -> bool | None:
    """Search below a known line; with a stage it drops, without one the sender blocks."""
    experiment = limited(name, settings)
    known_pps, right = line_mbps * 10**6 / 8 / FRAME_BYTES, 0
    for n in range(1, times + 1):
        (search,) = session.chapter(f"{name}-{n}", experiment).searches
        kind, pps = search.headline.kind, search.headline.throughput_pps
        broken = search.breaking.stage if search.breaking is not None else None
        ended = search.full_line_bps == line_mbps * 10**6
        called = (
            kind == "at least" and ended if stage is None else (kind, broken) == ("regular", stage)
        )
        close = pps is not None and abs(pps / known_pps - 1) <= WITHIN
        right += called and close
        text = " ".join([f"{found_text(search)}.", *breaking_lines([search])])
        print(f"{name}-{n}: {text} (the line: {known_pps:.0f} pps)", flush=True)
    print(f"{name}: {right} of {times} find the line's rate, and call its end rightly")
    return right == times


PARTS: dict[str, Part] = {"work": work, "drops": drops, "line": line, "queue": queue}

if __name__ == "__main__":
    sys.exit(main("searches.py", __doc__, PARTS))

"""Compare equal points forty times, and points that differ: few false alarms, and the right word.

``verdicts.py [PART]... [--out FOLDER] [--times N] [--minutes N]``, as root. The parts, all of them
if none is named:

``equal``    ``smoke`` with itself, 40 times, each judged alone: at most 5 call a difference
``batches``  ``compare/batching``: 64 datagrams a call are faster than one
``waits``    a reader that naps has a datagram later than one that blocks
``reader``   a reader that takes 5 % longer for a datagram, under overload: found in 8 of 10 attempts
             at least, of those in which two equal readers scatter by at most 3 % from block to block
``kept``     a point at its sender's full rate with itself, 40 times on kept workers and 40 times on
             fresh ones: on kept workers at most 4 call a difference and 20 or more the same, and
             their blocks scatter by at least 0.8 of what those of fresh workers do

Prints a line for each comparison and one for each part. What the folder has already is read and not
run again, so that the same command goes on where it was interrupted, and repeats the lines of what
is complete; to measure one again, remove its folder. Exits 1 if a part misses its bar, 5 if it is not complete or cannot be told.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median, stdev
from typing import Any

from udpbench.analysis.comparison.comparisons import CANNOT_COMPARE, CANNOT_TELL, SAME, Comparison
from udpbench.analysis.comparison.comparisons import compare_blocks as by_blocks
from udpbench.control.run import RunOptions, run
from udpbench.definition.definition_changes import differing
from udpbench.definition.load import load_experiment_data, load_experiments, load_lab
from udpbench.definition.point_pairs import against_itself
from udpbench.errors import RecordError
from udpbench.judged_run import Chapter, judged
from udpbench.model.experiment import LOOKS, Experiment
from udpbench.model.limits import SECOND_NS
from udpbench.records.reader import read_run
from udpbench.records.run import RUN_FILE, new_header
from udpbench.records.writer import RunWriter

NO_DIFFERENCE = (SAME, CANNOT_TELL, CANNOT_COMPARE)
FALSE_ALARMS = 5 / 40
"""With 40 at 4.9 % there are more than 5 in 1.3 % of all cases."""
CALLED_SHARE = 8 / 10
FULL_RATE = ("traffic.rate=unlimited", "repetitions=1")
KEPT_ALARMS, SAME_SHARE, LEAST_SCATTER = 4 / 40, 20 / 40, 0.8
LONGER = 0.05
QUIET = 0.03
"""The most that blocks of equal readers may scatter for an attempt to count."""
WORK_NS = 50_000
# Who sleeps in the call is woken by a datagram; who naps, by the clock: half a nap later, 50 us or more.
WAITS: dict[str, Any] = {
    "question": "How much later does a reader have a datagram that naps, against one that blocks?",
    "traffic": {"rate": "20kpps"},
    "send": {"bucket": "200ms"},
    "variants": {"block": {"receive.wait": "block"}, "nap": {"receive.wait": "nap 100us"}},
    "compare": {"a": "block", "b": "nap", "metric": "delay_p50_ns"},
    "duration": "1s",
    "warmup": "200ms",
}
OVERLOADED: dict[str, Any] = {
    "question": "What does a reader deliver that takes a little longer for each datagram?",
    "traffic": {"size": "32B", "rate": "40kpps"},  # twice what it can read
    "send": {"bucket": "200ms"},
    "duration": "1s",
    "warmup": "200ms",
}


class OutOfTime(Exception):
    """The minutes are over, and another comparison would have to be run."""


@dataclass
class Session:
    """The comparisons in one folder, each measured once."""

    folder: Path
    until_s: float = math.inf
    program: str = "verdicts.py"
    taken_s: list[float] = field(default_factory=list)
    """How long each comparison took that this process ran."""

    def chapter(self, name: str, experiment: Experiment) -> Chapter:
        """Return what a run of an experiment says, and run it if it is not there."""
        folder = self.folder / name
        if not _complete(folder, experiment):
            if time.monotonic() > self.until_s:
                raise OutOfTime
            shutil.rmtree(folder, ignore_errors=True)
            begun = time.monotonic()
            measure(experiment, folder, self.program)
            self.taken_s.append(time.monotonic() - begun)
        (chapter,) = judged([experiment], read_run(folder).records)
        return chapter

    def compared(self, name: str, experiment: Experiment, left: int = 0) -> Comparison:
        """Return the one comparison of an experiment, printed; ``left`` follow that are alike."""
        (comparison,) = self.chapter(name, experiment).comparisons
        print(
            f"{name}: {comparison.text} ({comparison.blocks} blocks{self.left(left)})", flush=True
        )
        return comparison

    def left(self, number: int) -> str:
        """Return how long the latest measurement took, and so many more like it will."""
        if not number or not self.taken_s:
            return ""
        return (
            f"; {self.taken_s[-1]:.0f} s, about {number * median(self.taken_s) / 60:.0f} min left"
        )


def _complete(folder: Path, experiment: Experiment) -> bool:
    """Return whether a folder has a whole run of an experiment; leaves if it is of another."""
    if not (folder / RUN_FILE).exists():
        return False
    try:
        stored = read_run(folder)
    except RecordError:
        return False
    if any(differing(stored.header.experiments[0], experiment)):
        raise SystemExit(f"{folder} is a run of another experiment: name another --out")
    return stored.ending is not None and stored.ending.status == "complete"


def measure(experiment: Experiment, folder: Path, program: str) -> None:
    """Run an experiment in the built-in lab."""
    lab = load_lab("local")
    header = new_header([experiment], lab, (program,))
    writer = RunWriter.create(folder, header)
    outcome = run([experiment], lab, writer, lambda _: None, RunOptions(seed=header.seed))
    if outcome.error is not None:
        raise outcome.error
    if outcome.interrupted:
        raise KeyboardInterrupt


# --- the parts: True if a bar is reached, None if that cannot be told ----------------------------


def same_smoke(blocks: tuple[int, ...] = tuple(LOOKS), sets: Sequence[str] = ()) -> Experiment:
    """Return ``smoke`` compared with itself."""
    (experiment,) = against_itself(load_experiments(["smoke"], sets), "all")
    pairs = tuple(replace(pair, blocks=blocks) for pair in experiment.compare)
    return replace(experiment, compare=pairs)


def equal(session: Session, times: int = 40) -> bool | None:
    """Compare ``smoke`` with itself."""
    comparisons = [
        session.compared(f"equal-{n:02}", same_smoke(), times - n) for n in range(1, times + 1)
    ]
    alarms = sum(comparison.verdict not in NO_DIFFERENCE for comparison in comparisons)
    undecided = sum(not comparison.answered for comparison in comparisons)
    apart = sum(
        comparison.low is not None and not comparison.low <= 1 <= (comparison.high or 1)
        for comparison in comparisons
    )
    spoilt = sum(comparison.low is None for comparison in comparisons)
    print(
        f"equal: {alarms} of {times} comparisons of smoke with itself call a difference (at most "
        f"{FALSE_ALARMS * times:.0f}), {times - alarms - undecided} the same, {undecided} cannot tell; "
        f"{apart} intervals leave 0 out, {spoilt} comparisons have none: other programs were in the way"
    )
    return False if alarms > FALSE_ALARMS * times else None if spoilt else True


def batches(session: Session, times: int = 1) -> bool | None:
    """Compare one datagram a call with 64."""
    (experiment,) = load_experiments(["compare/batching"])
    return _called(session, "batches", experiment, "faster", times)


def waits(session: Session, times: int = 1) -> bool | None:
    """Compare a reader that blocks with one that naps."""
    return _called(session, "waits", load_experiment_data(WAITS, "waits"), "longer", times)


def _called(
    session: Session, name: str, experiment: Experiment, word: str, times: int
) -> bool | None:
    comparisons = [
        session.compared(f"{name}-{n}", experiment, times - n) for n in range(1, times + 1)
    ]
    wrong = [comparison for comparison in comparisons if comparison.verdict != word]
    right = times - len(wrong)
    metric, b, a = comparisons[0].metric, comparisons[0].b, comparisons[0].a
    print(f"{name}: {right} of {times} call {metric} of {b} against {a} {word}")
    return not wrong or (None if all(comparison.low is None for comparison in wrong) else False)


def reader(session: Session, times: int = 10) -> bool | None:
    """Compare readers of which one takes 5 % longer."""
    data = {**OVERLOADED, "receive": {"work": f"{WORK_NS}ns"}, "repetitions": 5}
    base = session.chapter("reader-alone", load_experiment_data(data, "reader-alone"))
    rates = [each.delivered_pps for each in base.results if each.valid and each.delivered_pps]
    if not rates:
        shutil.rmtree(session.folder / "reader-alone")
        print("reader: no valid trial says how long a datagram takes")
        return None
    whole_ns = SECOND_NS / median(rates)
    longer_ns = round(WORK_NS + LONGER * whole_ns)
    print(f"reader: {whole_ns / 1000:.2f} us a datagram, {longer_ns - WORK_NS} ns more for longer")
    attempts = list(_attempts(session, longer_ns, times))
    quiet = [verdict for verdict, scatter in attempts if scatter is not None and scatter <= QUIET]
    called = quiet.count("slower")
    print(
        f"reader: {called} of {len(quiet)} attempts call the longer reader slower (at least "
        f"{CALLED_SHARE:.0%}); in {times - len(quiet)} of {times} equal readers scatter by more than "
        f"{QUIET:.0%}"
    )
    return called >= CALLED_SHARE * len(quiet) if quiet else None


def _attempts(session: Session, longer_ns: int, times: int) -> Iterator[tuple[str, float | None]]:
    """Yield the verdict of each attempt, and how much blocks of two equal readers scatter in it."""
    works = {"reader": WORK_NS, "again": WORK_NS, "longer": longer_ns}
    data = {
        **OVERLOADED,
        "variants": {name: {"receive.work": f"{work_ns}ns"} for name, work_ns in works.items()},
        "compare": {"a": "reader", "b": "longer"},
        "repetitions": 7,
    }
    experiment = load_experiment_data(data, "reader")
    for n in range(1, times + 1):
        name = f"reader-{n:02}"
        verdict = session.compared(name, experiment, times - n).verdict
        points = {point.name: point for point in session.chapter(name, experiment).points}
        sides = points["reader"].results, points["again"].results
        effects = by_blocks(*sides, "delivered_pps", LONGER).effects
        logs = [math.log(ratio) for _, ratio in effects]
        scatter = stdev(logs) if len(logs) > 1 else None
        shown = "unknown" if scatter is None else f"{scatter:.2%}"
        print(f"{name}: equal readers scatter by {shown} from block to block", flush=True)
        yield verdict, scatter


def kept(session: Session, times: int = 40) -> bool | None:
    """Compare a point with itself on kept and on fresh workers, in turn."""
    sides = {"kept": (), "fresh": ("fresh=true",)}
    verdicts: dict[str, list[Comparison]] = {side: [] for side in sides}
    for n in range(1, times + 1):
        for side, sets in sides.items():
            experiment = same_smoke(sets=(*FULL_RATE, *sets))
            comparison = session.compared(f"{side}-{n:02}", experiment, 2 * (times - n))
            verdicts[side].append(comparison)
    scatters = {side: _scatter(comparisons) for side, comparisons in verdicts.items()}
    for side, comparisons in verdicts.items():
        alarms = sum(each.verdict not in NO_DIFFERENCE for each in comparisons)
        same = sum(each.verdict == SAME for each in comparisons)
        shown = "unknown" if scatters[side] is None else f"{scatters[side]:.2%}"
        print(f"{side}: {alarms} of {times} call a difference, {same} the same; scatter {shown}")
    own, fresh = scatters["kept"], scatters["fresh"]
    if own is None or fresh is None:
        return None
    alarms = sum(each.verdict not in NO_DIFFERENCE for each in verdicts["kept"])
    same = sum(each.verdict == SAME for each in verdicts["kept"])
    print(f"kept: blocks scatter by {own / fresh:.2f} of what those of fresh workers do")
    enough = same >= SAME_SHARE * times and own >= LEAST_SCATTER * fresh
    return enough and alarms <= KEPT_ALARMS * times


def _scatter(comparisons: Sequence[Comparison]) -> float | None:
    """Return the median of how much the blocks of each comparison scatter, as a share."""
    logs = [[math.log(ratio) for _, ratio in each.effects] for each in comparisons]
    scatters = [stdev(each) for each in logs if len(each) > 1]
    return median(scatters) if scatters else None


Part = Callable[..., "bool | None"]
PARTS: dict[str, Part] = {
    "equal": equal,
    "batches": batches,
    "waits": waits,
    "reader": reader,
    "kept": kept,
}


def main(program: str, about: str | None, parts: Mapping[str, Part]) -> int:
    """Measure the parts that the command names, and return the exit code of all."""
    parser = argparse.ArgumentParser(description=about.split("\n")[0] if about else "")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(parts))
    out = Path("results") / Path(program).stem
    parser.add_argument("--out", type=Path, default=out, metavar="FOLDER")
    parser.add_argument("--times", type=int, metavar="N", help="measurements of each part")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin none after these")
    options = parser.parse_args()
    if not set(options.parts) <= parts.keys():
        parser.error(f"the parts are {', '.join(parts)}")
    session = Session(options.out, time.monotonic() + 60 * options.minutes, program)
    repeated = {} if options.times is None else {"times": options.times}
    met: list[bool | None] = []
    for name in options.parts or parts:
        try:
            met.append(parts[name](session, **repeated))
        except OutOfTime:
            print(f"{name}: the time is over; the same command goes on")
            met.append(None)
        except KeyboardInterrupt:
            print(f"{name}: interrupted; the same command goes on")
            return 130
    return 1 if False in met else 5 if None in met else 0


if __name__ == "__main__":
    sys.exit(main("verdicts.py", __doc__, PARTS))

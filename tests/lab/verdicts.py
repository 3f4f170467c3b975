"""Compare equal points forty times, and points that differ: few false alarms, and the right word.

``verdicts.py [TIMES]``: prints a line for each comparison, and exits 1 if more than 5 in 40 of equal
points call a difference, or if one of points that differ does not call it rightly.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from udpbench.analysis.comparisons import CANNOT_COMPARE, CANNOT_TELL, SAME, Comparison
from udpbench.control.run import RunOptions, run
from udpbench.definition.load import load_experiment_data, load_experiments, load_lab
from udpbench.definition.same_point import against_itself
from udpbench.model import LOOKS, Experiment
from udpbench.records import RunWriter, new_header, read_run
from udpbench.report.summary import chapters_of

SHORT = ("duration=200ms", "warmup=0s")
NO_DIFFERENCE = (SAME, CANNOT_TELL, CANNOT_COMPARE)
FALSE_ALARMS = 5 / 40
"""Of 40 at 4.9 % there are more than 5 in 1.3 % of all cases."""
# In a virtual pair whoever does the receive work pays for waking a reader, a nap the reader itself.
WAITS: dict[str, Any] = {
    "question": "What does a reader cost that naps, against one that sleeps in the call?",
    "traffic": {"rate": "20kpps"},
    "send": {"bucket": "200ms"},
    "variants": {"block": {"receive.wait": "block"}, "nap": {"receive.wait": "nap 100us"}},
    "compare": {"a": "block", "b": "nap", "metric": "receive_cpu_load"},
    "duration": "1s",
    "warmup": "200ms",
}


def equal(blocks: tuple[int, ...] = LOOKS) -> Experiment:
    """Return ``smoke`` compared with itself."""
    (found,) = against_itself(load_experiments(["smoke"], SHORT), "all")
    pairs = tuple(replace(pair, blocks=blocks) for pair in found.compare)
    return replace(found, compare=pairs)


def compared(experiment: Experiment, folder: Path) -> Comparison:
    """Run an experiment in the built-in lab and return its one comparison."""
    lab = load_lab("local")
    header = new_header([experiment], lab, ())
    outcome = run(
        [experiment],
        lab,
        RunWriter.create(folder, header),
        lambda _: None,
        RunOptions(seed=header.seed),
    )
    if outcome.error is not None:
        raise outcome.error
    (chapter,) = chapters_of([experiment], read_run(folder).records)
    (comparison,) = chapter.comparisons
    print(f"{comparison.b} against {comparison.a}: {comparison.text}", flush=True)
    return comparison


def main(times: int) -> int:
    """Compare, and say how many false alarms there were."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = [compared(equal(), folder / f"equal-{n}") for n in range(times)]
        batching = load_experiments(["compare/batching"])[0]
        waits = load_experiment_data(WAITS, "waits")
        words = [compared(each, folder / each.name).verdict for each in (batching, waits)]
    alarms = sum(one.verdict not in NO_DIFFERENCE for one in found)
    untold = sum(not one.answered for one in found)
    print(f"{alarms} of {times} call a difference of equal points; {untold} cannot tell")
    return 0 if words == ["faster", "more"] and alarms <= FALSE_ALARMS * times else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 40))

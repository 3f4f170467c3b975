"""Plant a bottleneck, tune, and see that what is proven repairs it without being told.

``tunes.py [PLANT]... [--times N] [--seed N] [--minutes N] [--out FOLDER] [--for METRIC]``, as root; plants,
seeds and folders as in ``diagnoses.py``. Without names, all of ``REPAIRED``, and ``healthy``, in which nothing may
be changed. Prints a line for each tune. Exits 1 if a plant was repaired in fewer than 8 of 10 tunes, or
the healthy one left alone in fewer than 19 of 20, 5 if the minutes did not suffice.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from diagnoses import EACH, PLANTS, adding_rules, busy, chosen, plant_parser

from udpbench.control.run import RunOptions, run
from udpbench.definition.load import load_experiment_data, load_lab
from udpbench.judged_run import Chapter, chapters_of
from udpbench.model.limits import SECOND_NS
from udpbench.records.reader import read_run
from udpbench.records.run import new_header
from udpbench.records.writer import RunWriter
from udpbench.tuning.derived_points import asked, tuned

REPAIRED = ("burst", "inline", "backlog", "udp-mem", "twenty-threads", "firewall")
"""Plants that a tune must repair: a gain is proven, and what was planted limits no more."""
LEFT_ALONE = 19 / 20
WITHIN_NS = 200 * SECOND_NS
LIMIT_S = 300


def tune(name: str, seed: int, folder: Path, metric: str | None) -> Chapter:
    """Return a tune of a plant whose numbers ``seed`` draws."""
    plant = PLANTS[name]
    data = {
        "question": "What helps?",
        "variants": {name: plant.draw(random.Random(seed))},
        "duration": "1s",
        "warmup": "0s",
    }
    experiments, lab = [load_experiment_data(data, "planted")], load_lab("local")
    experiments = tuned(experiments, asked(experiments, None, metric, WITHIN_NS))
    writer = RunWriter.create(folder, new_header(experiments, lab, ("tunes.py",)))
    with busy(plant.busy_cpu):
        outcome = run(experiments, lab, writer, adding_rules(plant.rules), RunOptions(seed=seed))
    if outcome.error is not None:
        raise outcome.error
    if outcome.interrupted:
        raise KeyboardInterrupt
    stored = read_run(folder)
    (chapter,) = chapters_of(stored)
    return chapter


def is_right(name: str, chapter: Chapter) -> bool:
    """Return whether a plant is repaired; the healthy one: whether nothing was changed."""
    tuning = chapter.tuning
    assert tuning is not None
    assert tuning.ending is not None
    if name not in REPAIRED:
        return tuning.ending.why == "nothing limits"
    limits = {bottleneck.name for bottleneck in tuning.ending.limits}
    return tuning.proven is not None and PLANTS[name].expected not in limits


def tuned_often(
    name: str, seeds: Sequence[int], folder: Path, until_s: float, metric: str | None
) -> list[bool]:
    """Return for each seed whether the tune of a plant was right, and print what it said."""
    right: list[bool] = []
    for seed in seeds:
        begun_s = time.monotonic()
        if begun_s > until_s:
            break
        chapter = tune(name, seed, folder / f"{name}-{seed}", metric)
        took_s = time.monotonic() - begun_s
        right.append(is_right(name, chapter) and took_s <= LIMIT_S)
        answer = chapter.tuned
        assert answer is not None
        word = "right" if right[-1] else "WRONG"
        print(f"{name} {seed}: {word} in {took_s:.0f} s: {answer.sentence}")
        lines = (*(" | ".join(rung) for rung in answer.rungs), *answer.notes)
        print("\n".join(f"    {line}" for line in lines), flush=True)
    return right


def main(words: Sequence[str] | None = None) -> int:
    """Plant, tune, and return the exit code of all plants."""
    parser = plant_parser(__doc__, PLANTS)
    parser.add_argument(
        "--for", metavar="METRIC", dest="metric", help="lost_packets, if others run"
    )
    options, chance, until_s = chosen(parser, PLANTS, words)
    right: dict[str, list[bool]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.plants or (*REPAIRED, "healthy"):
            seeds = [chance.randrange(2**32) for _ in range(options.times)]
            right[name] = tuned_often(
                name, seeds, options.out or Path(scratch), until_s, options.metric
            )
    for name, answers in right.items():
        print(f"{name}: {sum(answers)} of {len(answers)}")
    if any(len(answers) < options.times for answers in right.values()):
        return 5
    shares = {name: EACH if name in REPAIRED else LEFT_ALONE for name in right}
    return int(any(sum(each) < shares[name] * len(each) for name, each in right.items()))


if __name__ == "__main__":
    sys.exit(main())

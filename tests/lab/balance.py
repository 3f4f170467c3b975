"""Lose packets in many places at once in a hundred random trials, and see every ledger close.

``balance.py [SEED] [TRIALS]``: prints the seed, a line for every trial whose ledger does not close,
and exits 1 if there is one. A seed that is given repeats the same trials.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from udpbench.analysis.judge import judge
from udpbench.control.run import RunOptions, run
from udpbench.definition.lab_rules import refuse_together
from udpbench.definition.load import load_experiment_data, load_lab
from udpbench.definition.losses import LOSS_PORTS
from udpbench.errors import InputError
from udpbench.model.experiment import Experiment
from udpbench.model.record import TrialRecord
from udpbench.model.result import Result
from udpbench.records.reader import read_run
from udpbench.records.run import RunHeader, now_utc
from udpbench.records.writer import RunWriter

SIZES = (18, 32, 68, 69, 200, 500, 1400)
"""Around what is special: the header, early and late checksums, and what an skb is charged."""
MESSAGE_BYTES = 65507


def drawn(chance: random.Random) -> dict[str, Any]:
    """Return the data of one random experiment of one trial; not every one makes sense."""
    size = chance.choice(SIZES)
    gso = chance.choice(("off", "off", min(chance.randint(2, 60), MESSAGE_BYTES // size)))
    stages = chance.sample(sorted(LOSS_PORTS), chance.randint(0, 6))
    count = chance.randint(200, 3000)
    receive: dict[str, Any] = {"gro": chance.random() < 0.3}
    if chance.random() < 0.4:
        receive |= {"work": "50us", "buffer": f"{chance.choice((4, 16, 64))}KiB"}
    if chance.random() < 0.3 and not receive["gro"]:
        receive["call"] = "recv"
    send: dict[str, Any] = {"bucket": "200ms", "gso": gso}
    if chance.random() < 0.3:
        send["call"] = "send"
    rate = chance.choice(("unlimited", "20kpps", "50kpps"))
    return {
        "question": "Does the ledger close?",
        "traffic": {
            "size": f"{size}B",
            "count": count,
            "rate": rate,
            "family": chance.choice((4, 6)),
        },
        "send": send,
        "receive": receive,
        "settings": {"receiver": {"link": {"receive": chance.choice(("napi", "rps", "inline"))}}},
        "losses": {stage: chance.randint(1, 300) for stage in stages},
        "duration": "20s",
        "warmup": "0s",
        "repetitions": 1,
        "path_check": "explained",
    }


def trials(seed: int, count: int) -> list[Experiment]:
    """Return so many random experiments that this lab can do."""
    chance, lab = random.Random(seed), load_lab("local")
    experiments: list[Experiment] = []
    while len(experiments) < count:
        data = drawn(chance)
        try:
            experiment = load_experiment_data(data, f"{len(experiments) + 1:03d}")
            refuse_together([experiment], lab)
        except InputError:
            continue
        experiments.append(experiment)
    return experiments


def ran(seed: int, count: int, folder: Path) -> list[tuple[TrialRecord, Result]]:
    """Run random trials and return each with what it says."""
    experiments, lab = trials(seed, count), load_lab("local")
    header = RunHeader("test", now_utc(), (), seed, lab.name, lab.text, tuple(experiments))
    writer = RunWriter.create(folder, header)
    run(experiments, lab, writer, lambda _: None, RunOptions(seed=seed))
    return [(record, judge(record)) for record in read_run(folder).records]


def complaint(record: TrialRecord, result: Result) -> str | None:
    """Return what is wrong with a trial's ledger; None where it closes.

    Every stage with a loss must have at least what was lost there on purpose.
    """
    trial = record.trial
    how = {"traffic": trial.traffic, "send": trial.send, "receive": trial.receive}
    name = f"{trial.name}: {how}, {trial.settings}, losses {trial.losses}"
    if result.ledger is None:
        return f"{name}: {record.status}: {record.error}"
    if result.unaccounted != 0:
        lines = {
            entry.stage: entry.packets for entry in result.ledger.entries if entry.packets != 0
        }
        return f"{name}: {lines}, unaccounted {result.unaccounted}"
    for entry in result.ledger.entries:
        planted = trial.losses.get(entry.stage, 0)
        # GRO may have merged them: then they are within an interval.
        most = entry.at_most if entry.at_most is not None else entry.packets
        if planted and (most is None or most < planted):
            return f"{name}: {entry.stage} {entry.packets}, lost on purpose {planted}"
    return None


def main(seed: int, count: int) -> int:
    """Run, print what does not close, and how many did."""
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        judged = ran(seed, count, Path(folder) / "run")
    wrong = [text for record, result in judged if (text := complaint(record, result)) is not None]
    intervals = sum(
        any(entry.at_most is not None for entry in result.ledger.entries)
        for _, result in judged
        if result.ledger is not None
    )
    print("\n".join(wrong))
    print(f"{len(judged) - len(wrong)} of {count} ledgers close; {intervals} by an interval")
    return 0 if not wrong and len(judged) == count else 1


if __name__ == "__main__":
    arguments = [int(text) for text in sys.argv[1:]]
    chosen = arguments[0] if arguments else random.randrange(2**32)
    sys.exit(main(chosen, arguments[1] if len(arguments) > 1 else 100))

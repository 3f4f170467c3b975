"""Plant known causes of loss from outside of udpbench, and count what it says of them.

``referee.py [SEED] [--cases N] [--only CAUSE]... [--minutes N] [--out FOLDER] [--busy]``, as root.

Draws cases over all causes of ``causes.py``, runs each as a trial in the built-in lab, and meddles
with it by processes, rules, stops and limits that udpbench has not started. What is true is known by
construction; the shares of two causes at once by leaving out either. Where the first answer
recommends settings, the same case is repeated with these.

A finished case is a line of a file in the folder, named by commit and seed, and is not run again: the
same command goes on where it was interrupted. A case in which other programs used the CPUs is not
finished, since they may be a cause as well. The seed is by default the commit's hash. Exits 0 if
the bars of ``scoring.py`` are met, 1 if not, 5 if it is not complete.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from accepted import ACCEPTED
from causes import CAUSES, Cause
from planting import Plan, answer, build
from scoring import is_disturbed, is_void, judge, lines_of, others_share, shortfalls

ROOT = Path(__file__).resolve().parents[2]
MET, MISSED, UNFINISHED = 0, 1, 5
CASES = 200
RUN_KEYS = ("planted", "status", "loss", "others_share", "ledger", "unaccounted")
"""What is kept of a run without a part."""
ATTEMPTS = 2
"""A plant that did not take is planted once more."""


def commit() -> str:
    """Return the commit's hash."""
    words = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def drawn(seed: str, count: int, only: Sequence[str] = ()) -> list[tuple[Cause, int]]:
    """Return so many cases: causes in turn, in random order, each with the number of its drawing."""
    causes = [cause for cause in CAUSES if not only or cause.label in only]
    cases: list[tuple[Cause, int]] = []
    for block in range(-(-count // len(causes))):
        order = list(causes)
        Random(f"{seed} {block}").shuffle(order)
        cases += [(cause, block) for cause in order]
    return cases[:count]


def plan_of(seed: str, cause: Cause, number: int, leave: int | None = None) -> Plan:
    """Return a case's plan, or that of a pair without one of its parts."""
    chance = Random(f"{seed} {cause.label} {number}")
    return cause.draw(chance) if leave is None else cause.draw(chance, leave=leave)


def lost(answered: Mapping[str, Any]) -> float:
    """Return the share of packets that did not arrive."""
    return float(answered.get("loss") or 0)


def without_parts(
    seed: str, cause: Cause, number: int, folder: Path, program: Path
) -> list[dict[str, Any]]:
    """Return what a pair loses without its first part, and without its second; else nothing."""
    parts = range(len(cause.label.split("+")))
    plans = [plan_of(seed, cause, number, leave=k) for k in parts] if len(parts) > 1 else []
    return [answer(plan, folder / f"without-{k}", program) for k, plan in enumerate(plans)]


def shares_of(cause: Cause, loss: float, without: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return part → share of the loss: what is no longer lost without it."""
    parts = cause.label.split("+")
    if len(parts) == 1 or loss == 0:
        return dict.fromkeys(parts, 1.0)
    rests = [lost(answered) for answered in without]
    return {part: max(0.0, loss - rest) / loss for part, rest in zip(parts, rests, strict=True)}


def planted(seed: str, cause: Cause, number: int, program: Path, folder: Path) -> dict[str, Any]:
    """Run a case, what its truth needs, and its remedy; return its record."""
    start_s = time.monotonic()
    plan = plan_of(seed, cause, number)
    answered = answer(plan, folder / "case", program)
    without = without_parts(seed, cause, number, folder, program)
    record = {
        "label": cause.label,
        "number": number,
        "truth": cause.truth,
        "must_not": cause.must_not,
        "healthy": cause.healthy,
        "data": plan.data,
        "answer": answered,
        "without": [{key: run.get(key) for key in RUN_KEYS} for run in without],
        "shares": shares_of(cause, lost(answered), without),
    }
    sets = (answered.get("answers") or [{}])[0].get("sets")
    if sets and lost(answered) > 0 and not is_void(record):
        record["repeated"] = answer(plan, folder / "repeated", program, sets)
    return {**record, "took_s": round(time.monotonic() - start_s, 1)}


def settled(seed: str, cause: Cause, number: int, program: Path, busy: bool) -> dict[str, Any]:
    """Return a case's record, of a second attempt if its plant did not take.

    Or if other programs used the CPUs, unless ``busy`` says that this does not matter.
    """
    record: dict[str, Any] = {}
    for _ in range(ATTEMPTS):
        with tempfile.TemporaryDirectory(dir=program.parent) as text:
            folder = Path(text)
            folder.chmod(0o755)
            record = planted(seed, cause, number, program, folder)
        if not is_void(record) and (busy or not is_disturbed(record)):
            break
    return record


def stored(file: Path) -> list[dict[str, Any]]:
    """Return the records of a file, less a last line that an interruption cut off."""
    if not file.exists():
        return []
    text = file.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        file.write_text(whole)
    return [json.loads(line) for line in whole.splitlines()]


def run_missing(
    seed: str, cases: Sequence[tuple[Cause, int]], file: Path, until_s: float, busy: bool
) -> Iterator[dict[str, Any]]:
    """Run the cases that a file does not have, append each, and yield it."""
    done = {(record["label"], record["number"]) for record in stored(file)}
    with tempfile.TemporaryDirectory(prefix="referee-") as text:
        program = build(Path(text))
        for cause, number in cases:
            if (cause.label, number) in done:
                continue
            if time.monotonic() > until_s:
                return
            record = settled(seed, cause, number, program, busy)
            if is_disturbed(record) and not busy:
                print(f"disturbed {cause.label}: others used {others_share(record):.1%} of all CPUs",
                      flush=True)  # fmt: skip
                continue
            with file.open("a") as lines:
                lines.write(json.dumps(record) + "\n")
            yield record


def score(records: Sequence[Mapping[str, Any]], expected: int) -> int:
    """Print the score by cause, and return the exit code."""
    judged = [judge(record, ACCEPTED) for record in records]
    print("\n".join(lines_of(judged)))
    missed = shortfalls(judged)
    undecided = {item.label for item in judged if item.verdict == "undecided"}
    if undecided:
        print(f"accepted.py has no words for: {', '.join(sorted(undecided))}")
    print("\n".join(missed) or "every bar is met")
    if len(records) < expected or undecided:
        print(f"{len(records)} of {expected} cases: repeat the command to go on")
        return UNFINISHED
    return MISSED if missed else MET


def interrupt(number: int, frame: object) -> None:
    """End by an exception, so that everything that was done is undone."""
    raise KeyboardInterrupt


def main() -> int:
    """Run, print a line for each case, and the score."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("seed", nargs="?", help="by default the commit's hash")
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--only", action="append", default=[], metavar="CAUSE")
    parser.add_argument("--minutes", type=float, default=24 * 60.0)
    parser.add_argument("--busy", action="store_true", help="also while other programs use CPUs")
    parser.add_argument("--out", type=Path, default=ROOT / ".nox" / "referee")
    asked = parser.parse_args()
    unknown = set(asked.only) - {cause.label for cause in CAUSES}
    if unknown:
        parser.error(f"no such cause: {', '.join(sorted(unknown))}; see tests/referee/causes.py")
    if shutil.which("nft") is None:
        parser.error("nft is missing: install nftables")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    head = commit()
    seed = asked.seed or head
    asked.out.mkdir(parents=True, exist_ok=True)
    file = asked.out / f"{head[:12]}-{seed[:12]}.jsonl"
    cases = drawn(seed, asked.cases, asked.only)
    print(f"seed {seed}; results in {file}", flush=True)
    until_s = time.monotonic() + asked.minutes * 60
    for record in run_missing(seed, cases, file, until_s, asked.busy):
        item = judge(record, ACCEPTED)
        loss = record["answer"].get("loss")
        lost_text = "–" if loss is None else f"{loss:.1%}"
        print(
            f"{item.verdict:9} {item.label}: lost {lost_text}: {item.text} ({record['took_s']} s)",
            flush=True,
        )
    drawings = {(cause.label, number) for cause, number in cases}
    records = [r for r in stored(file) if (r["label"], r["number"]) in drawings]
    return score(records, len(cases))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted: repeat the command to go on")
        sys.exit(UNFINISHED)

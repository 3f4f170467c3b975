"""Judges stored cases: which answers are right, and whether the referee's bars are met.

Pure: records in, words and numbers out; what counts as right comes in as a table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["right", "wrong", "unknown", "void", "undecided"]
Record = Mapping[str, Any]
Table = Mapping[str, frozenset[str]]

CERTAIN, UNKNOWN = "certain", "unknown"
CERTAIN_SHARE = 120 / 200
WRONG_SHARE = UNKNOWN_SHARE = 10 / 200
FAILED_SHARE = 5 / 200
LEAST_LOSS = 0.002
"""What a plant must lose to count as planted: a thousand times what a quiet lab loses."""
CLOSE = 0.15
"""Where the shares of two causes differ by less, either may be first."""
LARGE = 0.25
"""A further answer that claims this share of the loss must be right, too, where it is certain."""
BUSY = 0.07
"""Share of all CPUs, in user mode: beyond this other programs may be a cause, too. Without any up to 0.053
is measured, as ticks and exact times differ."""
LEGEND = (
    "ok, bad, ?: first answer right, wrong, does not know; -: nothing was planted",
    "crt: certain and right; c!: certain and wrong; rem: remedies refused or without effect",
)
HELPED = 0.8
"""A remedy must leave at most this part of the loss."""


@dataclass(frozen=True)
class Judged:
    """What a case is worth."""

    label: str
    verdict: Verdict
    certain: bool
    certain_wrong: bool
    remedy: Literal["helped", "failed", "none"]
    text: str
    """The answer in short, for the table."""


def first_causes(record: Record) -> list[str]:
    """Return which planted causes may be named first: those with the largest share of the loss.

    A share is what is no longer lost without that cause, at least: what either of two causes would
    drop is in neither's share, and counts as both's.
    """
    shares: Mapping[str, float] = record["shares"]
    largest, either = max(shares.values()), max(1 - sum(shares.values()), 0.0)
    return [part for part, share in shares.items() if share + either > largest - CLOSE]


def is_void(record: Record) -> bool:
    """Return whether the plant did not take: then no answer could be right or wrong."""
    answer = record["answer"]
    if not answer["planted"] or "status" not in answer:
        return True
    if any(not run["planted"] or run["loss"] is None for run in record.get("without", ())):
        return True
    if answer["status"] != "done" or answer["loss"] is None:
        return bool(answer["status"] == "skipped")
    if record["healthy"]:
        return bool(answer["loss"] > 0)
    return bool(answer["loss"] < LEAST_LOSS and answer["valid"])


def others_share(record: Record) -> float:
    """Return the largest share of all CPUs that other programs used in any run of a case."""
    runs = [record["answer"], record.get("repeated") or {}, *record.get("without", ())]
    return max(run.get("others_share") or 0.0 for run in runs)


def is_disturbed(record: Record) -> bool:
    """Return whether other programs used so much CPU that the truth is not known."""
    return others_share(record) > BUSY


def names_of(parts: Iterable[str], accepted: Table) -> frozenset[str]:
    """Return every word that is right for any of these causes."""
    return frozenset().union(*(accepted.get(part, frozenset()) for part in parts))


def excused(answer: Record, names: Iterable[str]) -> bool:
    """Return whether udpbench refused the trial's numbers for the true reason."""
    reasons = {"invalid": " ".join(answer["invalid"]), "failed": answer["reason"] or ""}
    kind = "failed" if answer["status"] == "failed" else "invalid"
    marks = [name.partition(":")[2] for name in names if name.startswith(f"{kind}:")]
    return any(mark in reasons[kind] for mark in marks)


def remedy_of(record: Record) -> Literal["helped", "failed", "none"]:
    """Return what came of the repetition with the first answer's settings."""
    repeated = record.get("repeated")
    if repeated is None:
        return "none"
    before, after = record["answer"]["loss"], repeated.get("loss")
    helped = repeated["code"] != 2 and after is not None and after <= before * HELPED
    return "helped" if helped else "failed"


def judge(record: Record, accepted: Table) -> Judged:
    """Judge one case."""
    answer, label = record["answer"], record["label"]
    if is_void(record):
        why = answer.get("error") or answer.get("reason") or "lost nothing, or something"
        return Judged(label, "void", False, False, "none", str(why)[:120])
    parts = list(record["shares"])
    first_names, all_names = names_of(first_causes(record), accepted), names_of(parts, accepted)
    entries: Sequence[Record] = answer["answers"]
    first = entries[0] if entries else {"name": UNKNOWN, "certainty": "", "remedy": ""}
    reasons = answer["invalid"] or [answer["reason"]]
    why = f" [{str(reasons[0])[:50]}]" if not answer["valid"] else ""
    text = f"{first['name']}, {first['certainty']}{why}"
    if not first_names:
        return Judged(label, "undecided", False, False, remedy_of(record), text)
    advice = " ".join([first.get("remedy") or "", *(first.get("sets") or ())])
    bad_advice = re.search(record["must_not"], advice, re.IGNORECASE) is not None
    right = first["name"] in first_names and not bad_advice
    certain = first["certainty"] == CERTAIN
    verdict: Verdict = "right" if right else "unknown" if first["name"] == UNKNOWN else "wrong"
    further = [entry for entry in entries[1:] if (entry.get("share") or 0) >= LARGE]
    wrong_for_certain = (certain and verdict == "wrong") or any(
        entry["certainty"] == CERTAIN and entry["name"] not in all_names for entry in further
    )
    if not answer["valid"] and excused(answer, all_names):
        verdict = "right"
    return Judged(label, verdict, certain and right, wrong_for_certain, remedy_of(record), text)


def lines_of(judged: Sequence[Judged]) -> list[str]:
    """Return a line for each cause: how often it was right, and what was said instead."""
    lines = []
    for label in dict.fromkeys(item.label for item in judged):
        own = [item for item in judged if item.label == label]
        counts = Counter(item.verdict for item in own)
        certain = sum(item.certain for item in own)
        wrong = sum(item.certain_wrong for item in own)
        failed = sum(item.remedy == "failed" for item in own)
        text = Counter(item.text for item in own if item.verdict != "right" or item.certain_wrong)
        words = "; ".join(f"{text} ×{times}" for text, times in text.most_common(3))
        numbers = " ".join(f"{counts[word]:3d}" for word in ("right", "wrong", "unknown", "void"))
        lines.append(f"{label:32} {numbers} {certain:3d} {wrong:3d} {failed:3d}  {words}")
    head = f"{'cause':32} {'ok':>3} {'bad':>3} {'?':>3} {'-':>3} {'crt':>3} {'c!':>3} {'rem':>3}"
    return [*LEGEND, head, *lines] if lines else []


def shortfalls(judged: Sequence[Judged]) -> list[str]:
    """Return which bars are missed; empty if all are met."""
    counted = [item for item in judged if item.verdict != "void"]
    wrong_for_certain = sum(item.certain_wrong for item in counted)
    rows = (
        ("'certain' and wrong", wrong_for_certain, 0),
        ("first cause wrong", sum(item.verdict == "wrong" for item in counted), WRONG_SHARE),
        ("does not know", sum(item.verdict == "unknown" for item in counted), UNKNOWN_SHARE),
        ("remedies that failed", sum(item.remedy == "failed" for item in counted), FAILED_SHARE),
    )
    total = len(counted)
    missed = [
        f"{what}: {number} of {total}, at most {int(share * total)}"
        for what, number, share in rows
        if number > share * total
    ]
    certain = sum(item.certain for item in counted)
    if certain < CERTAIN_SHARE * total:
        missed.append(f"certain and right: {certain} of {total}, at least {CERTAIN_SHARE:.0%}")
    return missed

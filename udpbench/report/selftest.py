"""Output of ``udpbench selftest``: lost and counted packets per stage, and conclusions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from udpbench.analysis.ledger.selftest import (
    REASON,
    exit_code,
    is_believable,
    is_complete,
    missing,
    reasons,
)
from udpbench.errors import CANNOT_TELL, UdpbenchError
from udpbench.model.limits import DRIVER_STAGES
from udpbench.model.record import SelfTest, StageProof, TrialRecord
from udpbench.report.terminal import drawn

SCHEMA = 1
"""Form of ``selftest --json``. History: 1 — the first form."""
COLUMNS = ("stage", "IP", "lost", "counted", "counters that changed by as many", "explain")


def print_selftest(console: Console, selftest: SelfTest, host: str = "") -> None:
    """Print the proofs of a host's kernel, worst first, and whether its ledger is reliable."""
    where = f"{host}: " if host else ""
    console.print(Text(f"{where}Linux {selftest.kernel} ({selftest.build})"))
    rows = (_row(proof) for proof in selftest.proofs if proof.packets is not None)
    console.print(drawn(COLUMNS, rows))
    for line in conclusions(selftest):
        console.print(Text(line))


def _row(proof: StageProof) -> tuple[str, ...]:
    counters = [name for name in proof.counters if f" {REASON}" not in name]
    return (
        proof.stage,
        str(proof.family),
        str(proof.packets),
        str(proof.counted) if proof.counted is not None else "–",
        ", ".join(counters) or ("none: workers count it" if proof.holds else "none"),
        ", ".join(reasons(proof)) or "–",
    )


def conclusions(selftest: SelfTest) -> Iterator[str]:
    """Yield the conclusions, a line each."""
    untried = [proof for proof in selftest.proofs if proof.packets is None]
    yield from _grouped("cannot be tried", [proof for proof in untried if not proof.failed])
    yield from _grouped("missing, its trial failed", missing(selftest))
    for proof in selftest.proofs:
        if proof.packets is not None and not proof.counted:
            where = f", on {proof.driver}" if proof.stage in DRIVER_STAGES else ""
            place = f"{_place(proof)}{where}"
            shown = ", and from now on shown as such" if is_complete(selftest) else ""
            yield f"not observable on this kernel{shown}: {place}"
        elif not proof.holds and proof.packets is not None:
            unaccounted = f"{proof.unaccounted or 0:+d}"
            counts = f"{proof.counted} of {proof.packets} counted, unaccounted {unaccounted}"
            yield f"counted wrongly: {_place(proof)}: {counts}"
    if selftest.unexplained is not None:
        yield f"explain: true does not work here: {selftest.unexplained}"
    elif silent := _unexplained(selftest):
        yield f"explain: true has no distinct drop reason for: {', '.join(silent)}"
    yield _answer(selftest)


def _answer(selftest: SelfTest) -> str:
    """Return whether the ledger is reliable, as a sentence."""
    lacking = missing(selftest)
    if exit_code(selftest) == CANNOT_TELL:
        every = [proof for proof in selftest.proofs if proof.packets is not None or proof.failed]
        part = f"{len(lacking)} of {len(every)} tries failed" if lacking else "nothing was tried"
        return f"cannot tell whether the ledger is reliable on this kernel: {part}"
    # A stage of no IP version cannot be provoked anywhere.
    skipped = any(proof.packets is None and proof.family is not None for proof in selftest.proofs)
    believable = "" if is_believable(selftest) else "not "
    part = ", as far as it can be tried" if skipped and not lacking else ""
    return f"the ledger is {believable}reliable on this kernel{part}"


def not_kept(selftest: SelfTest) -> str | None:
    """Return why a result is not kept for later runs; None if it is."""
    if is_complete(selftest):
        return None
    return "not kept for later runs: it is incomplete; an earlier result of this kernel stays"


def _grouped(head: str, proofs: Sequence[StageProof]) -> Iterator[str]:
    """Yield a line for each reason, with all stages that have it."""
    for why in dict.fromkeys(proof.why for proof in proofs):
        yield f"{head}: {', '.join(_place(proof) for proof in proofs if proof.why == why)}: {why}"


def _unexplained(selftest: SelfTest) -> list[str]:
    """Return the stages whose losses no drop reason counted completely."""
    tried = [proof for proof in selftest.proofs if proof.packets is not None]
    return list(dict.fromkeys(proof.stage for proof in tried if not reasons(proof)))


def _place(proof: StageProof) -> str:
    return f"{proof.stage} (IPv{proof.family})" if proof.family is not None else proof.stage


def selftest_json(selftest: SelfTest) -> dict[str, Any]:
    """Return the same as JSON data."""
    lacking = [
        {"stage": proof.stage, "family": proof.family, "why": proof.why}
        for proof in missing(selftest)
    ]
    answer = {"believable": is_believable(selftest), "missing": lacking}
    return {"schema": SCHEMA, **answer, **asdict(selftest)}


def failure_json(error: UdpbenchError) -> dict[str, Any]:
    """Return as JSON data that a host could not be tested at all."""
    return {"schema": SCHEMA, "believable": False, "error": str(error)}


def untried(records: Sequence[TrialRecord], lab: str) -> str | None:
    """Return what to type if the ledger was never verified on a host's kernel; else None.

    ``lab`` names the records' lab on the command line.
    """
    kernels = {
        facts.kernel: None
        for record in records
        for host, facts in record.facts.items()
        if host not in record.selftests
    }
    if not kernels:
        return None
    where = "" if all(record.built_in_lab for record in records) else f" --lab {lab}"
    return (
        f"the ledger was never verified on Linux {', '.join(kernels)}: udpbench selftest{where} "
        "loses packets at each stage on purpose and checks that they are counted"
    )

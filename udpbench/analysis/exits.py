"""The exit code of every verb: one pure function, and the order in which codes outrank others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from udpbench.analysis.expect import Verdict
from udpbench.model import Result

YES, NO, BAD_INPUT, FAILED, NOT_RESTORED, CANNOT_TELL, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
PRECEDENCE = (NOT_RESTORED, INTERRUPTED, FAILED, BAD_INPUT, NO, CANNOT_TELL)


def worst(codes: Iterable[int]) -> int:
    """Return the code that outranks the others; 0 where there is none."""
    present = set(codes)
    return next((code for code in PRECEDENCE if code in present), YES)


def exit_code(
    results: Sequence[Result], verdicts: Sequence[Verdict], errors: Iterable[int] = ()
) -> int:
    """Return the code of a run: ``errors`` are the codes of what ended or broke it, if anything.

    Skips alone are 0: a host that lacks something has not answered no.
    """
    codes = set(errors)
    if any(result.status == "failed" for result in results):
        codes.add(FAILED)
    if any(verdict.answer == "no" for verdict in verdicts):
        codes.add(NO)
    invalid = any(result.status == "done" and not result.valid for result in results)
    if invalid or any(verdict.answer == "cannot tell" for verdict in verdicts):
        codes.add(CANNOT_TELL)
    return worst(codes)

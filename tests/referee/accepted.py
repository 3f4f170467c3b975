"""Which of udpbench's words count as right for each planted cause.

A word is a diagnosis's ``name``; ``invalid:TEXT`` or ``failed:TEXT``, if a trial that udpbench calls
invalid, or that failed, for a reason that contains TEXT is right as well. Left empty, a cause cannot
be scored.
"""

from __future__ import annotations

from causes import CAUSES

ACCEPTED: dict[str, frozenset[str]] = {
    part: frozenset() for cause in CAUSES for part in cause.label.split("+")
}

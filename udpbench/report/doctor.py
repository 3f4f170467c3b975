"""Output of ``udpbench doctor``: each check that fires, worst first, and unreadable ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from udpbench.analysis.doctor import Readiness
from udpbench.model.lab import Lab
from udpbench.printable import printable
from udpbench.report.terminal import listed

SCHEMA = 1
"""Form of ``doctor --json``. History: 1 — the first form."""


def is_ready(results: Iterable[Readiness]) -> bool:
    """Return whether every check could be read and none fires."""
    return all(readiness.status == "ready" for readiness in results)


def print_readiness(console: Console, results: Sequence[Readiness]) -> None:
    """Print what is unknown, then the checks that fire with their remedies, or that none does."""
    unknown: dict[str, list[str]] = {}
    for readiness in results:
        if readiness.status == "unknown":
            unknown.setdefault(readiness.host, []).append(readiness.check)
    for host, checks in unknown.items():
        console.print(Text(f"unknown, not readable here: {host}: {', '.join(checks)}"))
    distorting = [readiness for readiness in results if readiness.status == "spoils"]
    if distorting:
        console.print(listed((each.severity, _text(each)) for each in distorting))
    else:
        console.print("nothing else was found" if unknown else "ready")


def _text(readiness: Readiness) -> str:
    line = f"\nsettings: {{{readiness.settings}}}" if readiness.settings else ""
    return printable(f"{readiness.finding}{line}")


def print_worst(console: Console, distorting: Sequence[Readiness], command: str) -> None:
    """Print the worst checks below a result, a line each; nothing if there are none."""
    if distorting:
        console.print(Text(f"hosts: what may distort it, worst first; full list: {command}"))
    for readiness in distorting:
        console.print(Text(f"{readiness.severity}  {readiness.finding.brief}"))


def readiness_json(results: Sequence[Readiness], lab: Lab) -> dict[str, Any]:
    """Return the same as JSON data, every check of every host included."""
    return {
        "schema": SCHEMA,
        "lab": {"name": lab.name, "built_in": lab.built_in},
        "ready": is_ready(results),
        "checks": [asdict(readiness) for readiness in results],
    }

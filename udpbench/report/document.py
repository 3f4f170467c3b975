"""The door of the report: ``write`` makes the document of a run, as PDF and as PNG pages.

Computes what is shown and hands it to report.typ as data; the template only places it. Every text
crosses as a JSON string, so nothing that a user wrote is ever read as markup.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from udpbench.definition.published import Bar, published
from udpbench.errors import InputError, Problem
from udpbench.model import Facts
from udpbench.records import Run
from udpbench.report.figures import draw
from udpbench.report.ladder import draw_ladder, ladder, ladder_data, show_bar
from udpbench.report.story import (
    LAB_LABEL,
    Chapter,
    accounted,
    answer,
    findings_of,
    hosts_of,
    in_groups,
    name_of,
    tell,
    trials_label,
)
from udpbench.report.table import POINT_COLUMNS, invalid_cells, ledger_rows, point_cells
from udpbench.units import format_bytes

Format = Literal["pdf", "png"]
FORMATS: tuple[Format, ...] = ("pdf", "png")
PNG_PPI = 110
"""An A4 page of 909 × 1286 pixels: readable on a screen, some 100 KiB."""
TEMPLATE = Path(__file__).with_name("report.typ")
LEDGER_COLUMNS = 4
"""Points side by side in one ledger table; more would not fit an A4 page."""


def write(run: Run, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write the document of a run into a folder and return its files, the PDF first.

    Raises InputError for a format that does not exist, and OSError where the folder can't be
    written.
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        limit = f"known: {', '.join(FORMATS)}"
        raise InputError([Problem("no such format", "--format", name, limit) for name in unknown])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="udpbench-report-") as name:
        room = Path(name)
        _prepare(run, room)
        return [
            path for form in FORMATS if form in formats for path in _compile(room, folder, form)
        ]


def _prepare(run: Run, room: Path) -> None:
    """Lay out what the template reads: itself, its data and the figures."""
    shutil.copy(TEMPLATE, room / TEMPLATE.name)
    chapters = []
    told = tell(run.header.experiments, run.records)
    for number, chapter in enumerate(told):
        figures = room / str(number)
        figures.mkdir()
        drawn = {figure: f"{number}/{file}" for figure, file in draw(chapter, figures).items()}
        chapters.append({**chapter_data(chapter), "figures": drawn})
    data = {**run_data(run), "chapters": chapters, "ladder": _ladder(told, room)}
    (room / "data.json").write_text(json.dumps(data, allow_nan=False))


def _ladder(chapters: Sequence[Chapter], room: Path) -> dict[str, Any] | None:
    """Return the summary of several experiments, with its figure laid out."""
    found = ladder(chapters)
    if found is None:
        return None
    drawn = draw_ladder(found, room / "ladder.svg")
    return {**ladder_data(found), "figure": "ladder.svg" if drawn else None}


def _compile(room: Path, folder: Path, form: Format) -> list[Path]:
    import typst

    # Only the fonts that come with typst: the same page on every machine.
    # One page comes as bytes, several PNG pages as a list, whatever its annotation says.
    made: Any = typst.compile(
        str(room / TEMPLATE.name),
        root=str(room),
        format=form,
        ppi=PNG_PPI,
        ignore_system_fonts=True,
    )
    pages = made if isinstance(made, list) else [made]
    if form == "pdf":
        names = ["report.pdf"]
    else:
        for old in folder.glob("report-*.png"):
            old.unlink()
        names = [f"report-{number}.png" for number in range(1, len(pages) + 1)]
    for file, page in zip(names, pages, strict=True):
        (folder / file).write_bytes(page)
    return [folder / file for file in names]


# --- what is shown -------------------------------------------------------------------------------


def chapter_data(chapter: Chapter) -> dict[str, Any]:
    """Return what the template shows of one experiment, figures apart."""
    return {
        "name": chapter.experiment.name,
        "question": chapter.experiment.question,
        "lab": LAB_LABEL if chapter.built_in_lab else "",
        "answer": answer(chapter),
        "columns": list(POINT_COLUMNS),
        "rows": _rows(chapter),
        "caption": (
            "Medians over valid trials; in brackets the 95 % interval of the median, below six "
            "trials smallest to largest. A trial that is struck out is invalid and in no median; "
            "its reason is among the findings."
        ),
        "verdicts": [
            {"answer": one.answer, "expected": one.expected, "measured": one.measured}
            for one in chapter.verdicts
        ],
        "ledger": _ledger(chapter),
        "findings": [
            {
                "severity": finding.severity,
                "text": str(finding),
                "trials": trials_label(names),
            }
            for finding, names in findings_of(chapter)
        ],
        "published": published_data(chapter),
        "yaml": chapter.experiment.text,
    }


def _rows(chapter: Chapter) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for point in chapter.points:
        rows.append({"struck": False, "cells": point_cells(point)})
        rows += [
            {"struck": result.status != "skipped", "cells": invalid_cells(result)}
            for result in point.results
            if not result.valid
        ]
    return rows


def _ledger(chapter: Chapter) -> list[dict[str, Any]]:
    """Return the ledgers of the points' representative trials, a few points to a table."""
    parts = []
    for group in in_groups(accounted(chapter), LEDGER_COLUMNS):
        rows = [
            {"name": row.name, "cells": list(row.cells), "source": row.source}
            for row in ledger_rows([result for _, result in group])
        ]
        points = [
            f"{name_of(point)} #{result.trial.repetition}{'' if result.valid else ' (invalid)'}"
            for point, result in group
        ]
        parts.append({"points": points, "rows": rows})
    return parts


def published_data(chapter: Chapter) -> dict[str, Any] | None:
    """Return the published figures of the experiment's source, for showing beside."""
    sources = [chapter.experiment.source, *(trial.source for trial in chapter.experiment.points)]
    found = [(name, published(name)) for name in dict.fromkeys(sources) if name is not None]
    known = [(name, study) for name, study in found if study is not None]
    if not known:
        return None
    study = known[0][1]
    figures = [
        {
            "name": name.partition("/")[2],
            "value": ", ".join(_bar_text(bar) for bar in one.bars),
            "note": "; ".join(text for text in (one.note, one.correction) if text),
        }
        for name, one in known
    ]
    about = {"title": study.title, "conditions": study.conditions, "source": study.source}
    return {**about, "figures": figures}


def _bar_text(bar: Bar) -> str:
    """Return a published number as it was printed, with its unit and its metric."""
    text = show_bar(bar)
    name = bar.metric.removesuffix("_percent").rpartition("_")[0] or bar.metric
    return text if bar.metric == "pps" else f"{text} {name.replace('_', ' ')}"


def run_data(run: Run) -> dict[str, Any]:
    """Return what the template shows of the run as a whole."""
    header = run.header
    hosts = hosts_of(run.records)
    return {
        "title": ", ".join(experiment.question for experiment in header.experiments),
        "version": header.udpbench,
        "started_at": header.started_at,
        "hosts": [{"name": host} for host in hosts],
        "host_rows": _host_rows(list(hosts.values())),
        "run_rows": [
            {"name": "command", "value": " ".join(header.command)},
            {"name": "seed", "value": str(header.seed)},
            {"name": "trials", "value": str(len(run.records))},
        ],
        "lab_name": header.lab_name,
        "lab_yaml": header.lab_text,
    }


def _host_rows(hosts: Sequence[Facts]) -> list[dict[str, Any]]:
    def row(name: str, *cells: object) -> dict[str, Any]:
        return {"name": name, "cells": ["–" if cell is None else str(cell) for cell in cells]}

    def addresses(facts: Facts) -> str:
        more = len(facts.addresses) - 2
        return ", ".join(facts.addresses[:2]) + (f" and {more} more" if more > 0 else "")

    rows = [
        row("kernel", *(facts.kernel for facts in hosts)),
        row("CPU", *(facts.cpu_model for facts in hosts)),
        row("CPUs", *(len(facts.cpus) for facts in hosts)),
        row("NUMA nodes", *(len(facts.numa_nodes) or None for facts in hosts)),
        row("interface", *(f"{facts.interface} ({facts.driver})" for facts in hosts)),
        row("MTU", *(facts.mtu for facts in hosts)),
        row("queues", *(f"{facts.rx_queues} RX, {facts.tx_queues} TX" for facts in hosts)),
        row("addresses", *(addresses(facts) for facts in hosts)),
        row("rmem_max", *(_limit(facts, "net.core.rmem_max") for facts in hosts)),
    ]
    names = dict.fromkeys(name for facts in hosts for name in facts.environment)
    return rows + [row(name, *(facts.environment.get(name) for facts in hosts)) for name in names]


def _limit(facts: Facts, name: str) -> str | None:
    value = facts.limits.get(name)
    return format_bytes(value) if value is not None else None

"""Entry point of the report: ``write`` makes one document of runs, and exports their data.

Lays out what ``pages`` and ``figures`` return for typst; report.typ computes nothing.
"""

from __future__ import annotations

import fnmatch
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from udpbench.errors import InputError, Problem
from udpbench.folder import Folder
from udpbench.installation import how_to_add
from udpbench.judged_run import Against, Chapter, chapters_of
from udpbench.meanwhile import Meanwhile
from udpbench.printable import all_printable
from udpbench.records.run import Run
from udpbench.report.answers import first_kinds
from udpbench.report.captions import COLUMNS, HEADINGS, NOTES
from udpbench.report.data_frames import DATA, write_frames
from udpbench.report.embedded_data import packed
from udpbench.report.figures.experiment_figures import NARROW, draw
from udpbench.report.figures.ladder_figure import NARROW_NAME, draw_ladder
from udpbench.report.html_page import html_page
from udpbench.report.ladder import Ladder, ladder_data, ladders
from udpbench.report.pages import chapter_data, overview, run_data, stages, trials_data
from udpbench.report.stack_files import STACKS, write_stacks
from udpbench.report.summary import LAB_LABEL
from udpbench.units import plural

Pages = Literal["pdf", "png"]
PAGES: tuple[Pages, ...] = ("pdf", "png")
DOCUMENTS = ("html", *PAGES)
FORMATS: tuple[str, ...] = (*DOCUMENTS, *DATA, *STACKS)
PNG_PPI = 110
"""An A4 page of 909 × 1286 pixels: readable on a screen, some 100 KiB."""
TEMPLATE = Path(__file__).with_name("templates") / "report.typ"
FIGURES = "report-figures"
"""Folder of single figures, next to the pages."""
PAGES_BYTES = 400 * 2**20
"""Limit of the estimate: one cell in auto columns and struck out takes 1.2 times it."""
TEXT_BYTES, LEDGER_BYTES, FIGURE_BYTES = 20_000, 9_000, 3_000_000
"""Memory of typst 0.15 for a short text, one in a ledger, and a figure in a PNG: measured."""
CHARACTER_BYTES, LISTED_BYTES = 600, 2300
"""Likewise, of a character in a cell, and in a listing in colours, as in ``a: [1]``."""
MOST_LINES, MOST_CHARACTERS = 1000, 2**15
"""Limits of a text. typst's time for a listing grows with its square: 4000 lines take 6 s."""
REPEATED = (("points", list), ("hosts", list), ("version", str), ("started_at", str))
MOST_NAME = 256
"""Characters at the head of a column or the foot of a page: of each page, and shall not fill it."""
CAPTIONED = ("paths", "dots", "sweeps", "matrices", "searches")
"""Figures beside an answer that say what they show; others have their caption with their table."""
MOST_DRAWN = 3
"""Experiments whose figures stand beside their answers on one page."""
MOST_ROWS = 24
"""Rows of a result's table, whose points are one below the other."""
MOST_CELLS = 8
"""Cells in a row: more than any table has columns."""
ENTRY_CHARACTERS = 128
"""Limit of the longest text, for each entry of the longest list."""


def write(
    runs: Sequence[Run],
    folder: Path,
    formats: Sequence[str] = DOCUMENTS,
    named: bool = True,
    against: Mapping[str, Against] | None = None,
) -> list[Path]:
    """Write one document of some runs, or their data, into a folder; return the files.

    ``html`` is one self-contained file that includes the data; ``png`` are the pages, and every
    figure as PNG and SVG; ``csv`` and ``parquet`` are the frames, ``folded`` and ``speedscope`` the
    sampled chains of functions. Raises InputError for an unknown
    format, a folder that cannot be created or runs that must not be combined, and OSError if the
    folder cannot be written. A folder that was not ``named`` to be written to must be the user's
    alone. ``against``: experiment of the last run → its comparison with another run.
    """
    _refuse(runs, formats)
    try:
        out = Folder.open(folder, make=True)
    except OSError as error:
        what = f"cannot create the folder: {error.strerror}"
        step = "name another with --out"
        raise InputError([Problem(what, "--out", str(folder), next_step=step)]) from error
    with out:
        if not named:
            refuse_shared(out)
        return _write(runs, out, formats, against or {})


def refuse_shared(folder: Folder) -> None:
    """Raise InputError if others write a folder: they chose what is in it, and may read it."""
    step = "name another with --out"
    for how in folder.other_writers():
        what = f"the report would be written beside what is reported, which {how}"
        raise InputError([Problem(what, "--out", str(folder.path), next_step=step)])


def _write(
    runs: Sequence[Run], folder: Folder, formats: Sequence[str], against: Mapping[str, Against]
) -> list[Path]:
    written: list[Path] = []
    if set(formats) & set(DOCUMENTS):
        with tempfile.TemporaryDirectory(prefix="udpbench-report-") as name:
            room = Path(name)
            suffixes = ["svg", "png"] if "png" in formats else ["svg"]
            drawing = _Drawing(runs, room, suffixes, against)
            stored = packed(runs) if "html" in formats else ""
            data = _prepare(runs, room, drawing)
            if "html" in formats:
                page = html_page(data, room, stored)
                written.append(folder.write("report.html", page.encode()))
            if set(formats) & set(PAGES):
                (room / "data.json").write_text(json.dumps(for_pages(data), allow_nan=False))
            for form in PAGES:
                written += _compile(room, folder, form) if form in formats else []
            if "png" in formats:
                folder.remove(FIGURES)
                written.append(_hand_out(room / FIGURES, folder))
    for kind in DATA:
        written += write_frames(runs, folder, kind) if kind in formats else []
    for stacks in STACKS:
        written += write_stacks(runs, folder, stacks) if stacks in formats else []
    return written


def wrong_formats(
    formats: Sequence[str], known: Sequence[str], what: str = "unknown format"
) -> list[Problem]:
    """Return what is wrong with the formats that are asked for; ``what`` if one is not known."""
    limit = f"one of {', '.join(known)}"
    problems = [Problem(what, "--format", name, limit) for name in formats if name not in known]
    if "parquet" in formats and find_spec("pyarrow") is None:
        step = how_to_add("store")
        problems.append(Problem("needs pyarrow", "--format", "parquet", next_step=step))
    return problems


def _refuse(runs: Sequence[Run], formats: Sequence[str]) -> None:
    """Raise InputError with every reason against a document."""
    problems = wrong_formats(formats, FORMATS)
    in_lab = {any(record.built_in_lab for record in run.records) for run in runs if run.records}
    if len(in_lab) > 1:
        problems.append(
            Problem(
                "runs of the built-in lab cannot share a document with a watch, or other hosts",
                ", ".join(str(run.folder) for run in runs),
                next_step="report them separately",
            )
        )
    if problems:
        raise InputError(problems)


class _Drawing:
    """The chapters of some runs, whose figures are drawn while their other parts are written."""

    def __init__(
        self,
        runs: Sequence[Run],
        room: Path,
        suffixes: Sequence[str],
        against: Mapping[str, Against],
    ) -> None:
        self.suffixes = suffixes
        self.numbered = [
            (number, chapter)
            for number, run in enumerate(runs)
            for chapter in _chapters(run, runs, against if run is runs[-1] else {})
        ]
        """Each with the number of its run."""
        self._folders = [
            room / FIGURES / f"{place:02d}-{_plain(chapter.experiment.name)}"
            for place, (_, chapter) in enumerate(self.numbered, start=1)
        ]
        (room / FIGURES).mkdir()
        for folder in self._folders:
            folder.mkdir()
        self._drawn = Meanwhile(self._draw)

    def _draw(self) -> list[dict[str, list[str]]]:
        return [
            draw(chapter, folder, self.suffixes)
            for (_, chapter), folder in zip(self.numbered, self._folders, strict=True)
        ]

    def files(self) -> list[dict[str, list[str]]]:
        """Return the figures of each chapter, by kind."""
        return [
            {
                kind: [f"{FIGURES}/{folder.name}/{name}.svg" for name in names]
                for kind, names in drawn.items()
            }
            for drawn, folder in zip(self._drawn.result(), self._folders, strict=True)
        ]


def _prepare(runs: Sequence[Run], room: Path, drawing: _Drawing) -> dict[str, Any]:
    """Lay out the figures and return the data for the templates."""
    shutil.copy(TEMPLATE, room / TEMPLATE.name)
    numbered, suffixes = drawing.numbered, drawing.suffixes
    written = [{**chapter_data(chapter), "trials": trials_data(chapter)} for _, chapter in numbered]
    chapters = []
    for (number, chapter), parts, drawn in zip(numbered, written, drawing.files(), strict=True):
        first = [
            {
                "file": drawn[kind][0],
                "narrow": drawn.get(kind + NARROW, [""])[0],
                "caption": parts["captions"][kind] if kind in CAPTIONED else "",
            }
            for kind in first_kinds(drawn, len(chapter.points), chapter.tuning is not None)
        ]
        beside = {"figures": drawn, "first": first, "of_run": number}
        chapters.append({**parts, **beside})
    between = any(chapter.against is not None for _, chapter in numbered)
    climbed = [] if between else ladders([chapter for _, chapter in numbered])
    alone = len(climbed) == 1 and len(climbed[0].chapters) == len(numbered)
    questions = ", ".join(chapter["question"] for chapter in chapters)
    data: dict[str, Any] = all_printable(
        {
            "headings": HEADINGS,
            "columns": COLUMNS,
            "notes": NOTES,
            "title": questions,
            "headline": f"{plural(len(runs), 'run')} compared"
            if between and len(runs) > 1
            else plural(len(chapters), "experiment"),
            "answers": _answers(chapters) if len(chapters) > 1 and not alone else [],
            "lab": LAB_LABEL if any(chapter["lab"] for chapter in chapters) else "",
            "runs": [run_data(run) for run in runs],
            "chapters": chapters,
            "stages": stages([chapter for _, chapter in numbered]),
            "ladders": [
                _ladder_section(ladder, f"study-{number}", room, suffixes)
                for number, ladder in enumerate(climbed, start=1)
            ],
        }
    )
    return data


def _answers(chapters: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return question and answer of each experiment; of a few also their first figure.

    First of what is compared with another run.
    """
    return [
        {
            "chapter": number,
            "question": chapter["question"],
            "answer": chapter["answer"],
            "first": chapter["first"][: len(chapters) <= MOST_DRAWN],
        }
        for number, chapter in sorted(
            enumerate(chapters, start=1), key=lambda pair: not pair[1]["compared"]
        )
    ]


def for_pages(data: dict[str, Any]) -> dict[str, Any]:
    """Return what typst has room for: the document's data, long lists and texts cut.

    Every list is cut to the same length, the largest that has room, lists in lists to twice that.
    A dict with a cut list has ``more``: its key → entries that are missing.
    """
    chapters = [
        # Only HTML shows every trial, and every row of tables, which other lists shall not pay for.
        {
            **chapter,
            "trials": [],
            "figures": {k: v for k, v in chapter["figures"].items() if not k.endswith(NARROW)},
            "sheets": [_cut(each, MOST_ROWS) for each in chapter["sheets"]],
        }
        for chapter in data["chapters"]
    ]
    data = {**data, "chapters": chapters}
    most = MOST_CHARACTERS
    while most > 1 and _typst_bytes(data, most, TEXT_BYTES) > PAGES_BYTES:
        most //= 2
    cut = _cut(data, most)
    return {**cut, "cut": NOTES["cut"] if cut != data else ""}


def _most(data: Any, most: int) -> int:
    """Return how many entries of a list, or characters of a text, are shown."""
    if isinstance(data, str):
        lines = data.split("\n", MOST_LINES)
        rest = len(lines[-1]) + 1 if len(lines) > MOST_LINES and lines[-1] else 0
        return min(len(data) - rest, most * ENTRY_CHARACTERS, MOST_CHARACTERS)
    is_row = all(isinstance(item, str) and not item.endswith(".svg") for item in data[:most])
    return max(most, MOST_CELLS) if is_row else most


def _typst_bytes(data: Any, most: int, text_bytes: int) -> int:
    """Return about the most memory that typst takes for data, cut."""
    if isinstance(data, dict):
        return sum(
            _typst_bytes(value, most, LEDGER_BYTES if key == "ledger" else text_bytes)
            for key, value in data.items()
        )
    if isinstance(data, list):
        shown = data[: _most(data, most)]
        return sum(_typst_bytes(item, 2 * most, text_bytes) for item in shown)
    if not isinstance(data, str):
        return 0
    if data.endswith(".svg"):
        return FIGURE_BYTES
    each_bytes = LISTED_BYTES if "\n" in data else CHARACTER_BYTES
    return text_bytes + each_bytes * _most(data, most)


def _cut(data: Any, most: int, most_characters: int = MOST_CHARACTERS) -> Any:
    """Return data cut."""
    if isinstance(data, dict):
        cut = {
            key: _cut(value, most, MOST_NAME if (key, type(value)) in REPEATED else MOST_CHARACTERS)
            for key, value in data.items()
        }
        lists = {key: len(value) for key, value in data.items() if isinstance(value, list)}
        before = data.get("more", {})
        more = {key: n - len(cut[key]) + before.get(key, 0) for key, n in lists.items()}
        more = {key: n for key, n in more.items() if n > 0}
        return {**cut, "more": more} if more else cut
    if isinstance(data, list):
        return [_cut(item, 2 * most, most_characters) for item in data[: _most(data, most)]]
    if not isinstance(data, str):
        return data
    shown = data[: min(_most(data, most), most_characters)]
    if shown == data:
        return data
    lines = data.rstrip("\n").count("\n") - shown.count("\n")
    return f"{shown}\n… {NOTES['lines'].format(lines)}" if lines else f"{shown}…"


def _chapters(run: Run, runs: Sequence[Run], against: Mapping[str, Against]) -> Iterator[Chapter]:
    """Yield a run's chapters, each with the run's name if there are several runs."""
    name = run.folder.name if len(runs) > 1 else ""
    for chapter in chapters_of(run):
        yield replace(chapter, run=name, against=against.get(chapter.experiment.name))


def _plain(name: str) -> str:
    """Return an experiment's name without characters that are special in paths or shells."""
    return "".join(c if (c.isalnum() and c.isascii()) or c in "-_." else "-" for c in name)[:60]


def _ladder_section(
    ladder: Ladder, name: str, room: Path, suffixes: Sequence[str]
) -> dict[str, Any]:
    """Return the summary of a study's experiments, with its figures laid out."""
    folder = room / FIGURES / name
    folder.mkdir()
    drawn = [f"{FIGURES}/{name}/{figure}.svg" for figure in draw_ladder(ladder, folder, suffixes)]
    narrow = f"{FIGURES}/{name}/{NARROW_NAME}.svg" if drawn else ""
    return {**ladder_data(ladder), **overview(ladder), "figures": drawn, "narrow": narrow}


def _compile(room: Path, folder: Folder, form: Pages) -> list[Path]:
    import typst

    # Only typst's own fonts: the same page on every machine.
    # One page is bytes, several PNG pages are a list, contrary to the annotation.
    compiled: Any = typst.compile(
        str(room / TEMPLATE.name),
        root=str(room),
        format=form,
        ppi=PNG_PPI,
        ignore_system_fonts=True,
    )
    pages = compiled if isinstance(compiled, list) else [compiled]
    if form == "pdf":
        names = ["report.pdf"]
    else:
        for old in fnmatch.filter(folder.names(), "report-*.png"):
            folder.remove(old)
        names = [f"report-{number}.png" for number in range(1, len(pages) + 1)]
    return [folder.write(file, page) for file, page in zip(names, pages, strict=True)]


def _hand_out(drawn: Path, folder: Folder) -> Path:
    """Copy a folder of single figures next to the pages."""
    with folder.make(drawn.name) as copy:
        for file in drawn.iterdir():
            if file.is_dir():
                _hand_out(file, copy)
            else:
                copy.write(file.name, file.read_bytes())
        return copy.path

"""Points that combine two things: which ones, and what stands in each cell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pypdf
import pytest
from analysis.build import LOAD_MS, experiment, failed, hog, lossy, record, shared, trial

from report.stored import stored
from udpbench.judged_run import judged
from udpbench.model.experiment import Receive, Send, Traffic, Trial
from udpbench.model.record import TrialRecord
from udpbench.model.result import Estimate
from udpbench.report import document
from udpbench.report.figures.experiment_figures import draw
from udpbench.report.figures.matrix import Matrix, MatrixCell, draw_matrix, matrix

SENDS = (Send(call="send"), Send(), Send(gso=64), Send(gso=64, zerocopy=True))
RECEIVES = (Receive(call="recv"), Receive(), Receive(gro=True))
POINTS = [
    trial(f"{n}", send=send, receive=receive, duration_ns=10**9)
    for n, (send, receive) in enumerate(product(SENDS, RECEIVES))
]


SLOWED = shared(LOAD_MS + 400, hog(400))
"""Others had its CPU, so that its rates are struck out."""


def of(points: Sequence[Trial], records: Sequence[TrialRecord] | None = None) -> Matrix | None:
    """Return the matrix of points that delivered 1000, 2000 and so on, or of records."""
    if records is None:
        records = [record(1000 * (n + 1), of=point) for n, point in enumerate(points)]
    (chapter,) = judged([experiment(points=points)], records)
    return matrix(chapter)


def skipped(point: Trial) -> TrialRecord:
    """Return the record of a trial that a host could not run."""
    return replace(failed("UnmetNeeds", "sender: no such kernel", of=point), status="skipped")


def medians(shown: Matrix) -> list[list[float | None]]:
    """Return what is in the cells."""
    return [
        [cell.delivered.median if cell and cell.delivered else None for cell in row]
        for row in shown.cells
    ]


def drawn(shown: Matrix) -> dict[tuple[float, float], list[str]]:
    """Return the texts of each cell by its column and row, from top to bottom."""
    (axes,) = draw_matrix(shown).axes
    cells: dict[tuple[float, float], list[tuple[float, str]]] = {}
    for text in axes.texts:
        x, y = text.get_position()
        cells.setdefault((int(x), int(y)), []).append((y, text.get_text()))
    return {place: [text for _, text in sorted(texts)] for place, texts in cells.items()}


def test_two_blocks_that_points_differ_in_are_rows_and_columns() -> None:
    """Each is called by what it has that is not usual, the usual by what the others lack."""
    shown = of(POINTS)
    assert shown is not None
    assert ("send", "receive") == (shown.row_block, shown.column_block)
    assert ("call=send", "call=sendmmsg", "gso=64", "gso=64, zerocopy=true") == shown.rows
    assert ("call=recv", "call=recvmmsg", "gro=true") == shown.columns
    expected = [[1000.0 * (3 * row + n) for n in (1, 2, 3)] for row in range(4)]
    assert expected == medians(shown)


def test_a_sweep_over_words_is_a_matrix_too() -> None:
    """As variants are."""
    points = [
        trial(f"{a},{b}", values={"send.call": a, "receive.read": b}, send=Send(call=a),
              receive=Receive(read=b))
        for a in ("send", "sendmmsg", "io_uring") for b in ("none", "copy", "header")
    ]  # fmt: skip
    shown = of(points)
    assert shown is not None
    assert ("call=send", "call=sendmmsg", "call=io_uring") == shown.rows
    assert ("read=none", "read=copy", "read=header") == shown.columns


@pytest.mark.parametrize(
    "points",
    [
        POINTS[:6],
        [POINTS[n] for n in (0, 4, 8)],
        [*POINTS, trial("again", send=SENDS[0], receive=RECEIVES[0])],
        [replace(point, traffic=Traffic(size_bytes=n)) for n, point in enumerate(POINTS, start=32)],
        [trial(str(n), send=Send(batch=n), receive=receive)
         for n in (1, 8, 64) for receive in RECEIVES],
        [trial(f"{n}", send=SENDS[n // 9], receive=Receive(batch=n % 9 + 1, wait="spin"))
         for n in range(27)],
    ],
    ids=["two rows", "a diagonal", "two in a cell", "three blocks", "a quantity", "many columns"],
)  # fmt: skip
def test_other_points_are_no_matrix(points: list[Any]) -> None:
    """They are read off the other figures."""
    if points[0].send.batch == 1:
        points = [replace(each, values={"send.batch": each.send.batch}) for each in points]
    assert of(points) is None


def test_a_cell_has_its_median_and_interval_or_says_why_not() -> None:
    """Three trials have an interval; where there is none a word says why."""
    first, second, third, fourth, fifth, *_ = POINTS
    records = [
        record(1000 + n, of=replace(first, repetition=n + 1)) for n in (4, 0, 9)
    ]  # their median is the 1004
    records += [skipped(second), lossy(1000, {}, 250, of=third)]
    records += [failed("WorkerFailed", "it died", of=fourth), replace(SLOWED, trial=fifth)]
    shown = of(POINTS, records)
    assert shown is not None
    assert MatrixCell("0", Estimate(1004.0, 1000.0, 1009.0, 3, "pps")) == shown.cells[0][0]
    words = [cell.word for row in shown.cells[:2] for cell in row if cell is not None]
    assert ["", "skipped", "invalid", "failed", "struck out", "not run"] == words
    texts = drawn(shown)
    assert ["1.0", "1.0 – 1.0"] == texts[0, 0]
    assert [["skipped"], ["invalid"], ["failed"]] == [texts[1, 0], texts[2, 0], texts[0, 1]]


def test_a_figure_draws_every_number_in_one_unit() -> None:
    """The largest rate's, dark where much is; a combination that nobody declared is a dash."""
    records = [record(700 * (n + 1), of=point) for n, point in enumerate(POINTS[:-1])]
    shown = of(POINTS[:-1], records)
    assert shown is not None
    figure = draw_matrix(shown)
    (axes,) = figure.axes
    (mesh,) = axes.collections
    rates = np.ma.filled(mesh.get_array(), np.nan).ravel()
    assert [pytest.approx(0.7 * (n + 1)) for n in range(11)] == rates[:-1].tolist()
    assert np.isnan(rates[-1])
    texts = drawn(shown)
    assert (["0.7"], ["7.7"], ["–"]) == (texts[0, 0], texts[1, 3], texts[2, 3])
    assert [*shown.columns] == [label.get_text() for label in axes.get_xticklabels()]
    assert [*shown.rows] == [label.get_text() for label in axes.get_yticklabels()]
    assert "receive; delivered (kpps), n = 11 trials" == axes.get_xlabel()


def test_the_matrix_is_the_answer_and_stands_first(tmp_path: Path) -> None:
    """On page one of the PDF and above all of HTML, and the figure of all trials below."""
    records = [record(1000 * (n + 1), of=point) for n, point in enumerate(POINTS)]
    run = stored(tmp_path / "run", records, experiment(points=POINTS))
    pdf, html = sorted(document.write([run], tmp_path / "out", ["html", "pdf"]), reverse=True)
    pages = [re.sub(r"\s+", " ", page.extract_text()) for page in pypdf.PdfReader(pdf).pages]
    cells, dots = "Each cell has the median over valid trials", "Every trial is a dot."
    assert cells in pages[0]
    assert "call=sendmmsg" in pages[0]
    for text, measured_on in ((" ".join(pages), "Measured on"), (html.read_text(), ">Measured on")):
        assert [1, 1] == [text.count(each) for each in (cells, dots)]
        assert text.index(cells) < text.index(measured_on) < text.index(dots)


def test_nothing_is_drawn_where_nothing_was_measured(tmp_path: Any) -> None:
    """Skipped trials have no figure, a matrix has one."""
    assert of(POINTS, [skipped(point) for point in POINTS]) is None
    (chapter,) = judged([experiment(points=POINTS)], [record(1000, of=point) for point in POINTS])
    assert ["matrices-1"] == draw(chapter, tmp_path, ["svg"])["matrices"]

"""The document: its pages, its figures, and what it refuses."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import pypdf
import pytest
from analysis.build import expectation, experiment, failed, lossy, paced, record, series, trial
from golden import Golden
from PIL import Image

from report.stored import ODD, header, stored, swept
from udpbench.errors import InputError
from udpbench.judged_run import judged
from udpbench.model.experiment import PointPair
from udpbench.model.host import Change, Setting
from udpbench.report import document, pages
from udpbench.report.figures.style import styled
from udpbench.report.pages import chapter_data, run_data
from udpbench.report.sessions import UNKNOWN, command

LOST = {"right": {"snmp.Udp.RcvbufErrors": 250, "snmp.Udp.InErrors": 250}}
LABEL = "built-in lab: namespaces of one machine, no hardware"


def texts(folder: Path) -> list[str]:
    """Return the text of each page, blanks made one."""
    pages = pypdf.PdfReader(folder / "report.pdf").pages
    return [re.sub(r"\s+", " ", page.extract_text()) for page in pages]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a document with a good, an invalid and a failed trial, and with odd texts."""
    folder = tmp_path_factory.mktemp("whole")
    points = [paced(point="good", source="cloudflare-2015/pinned"), paced(point=ODD)]
    of = experiment(
        expectation("received_packets", ">", "5000"),
        points=points,
        question=f"Does {ODD} arrive?",
        repetitions=2,
        text=f"question: {ODD}\n```\n#panic()\n",
    )
    changes = {
        "right": (
            Change(Setting("mtu", "receive0", 9000), 1500, 9000),
            Change(Setting("sysctl", ODD, "1"), "0", "0", refusal=f"no {ODD}"),
        )
    }
    records = [
        replace(lossy(1000, LOST, 250, of=points[0], series=series([1000])), changes=changes),
        record(900, of=replace(points[0], repetition=2)),
        failed("WorkerFailed", f"it died of {ODD}", of=points[1]),
    ]
    run = stored(folder / "run", records, of, command=("udpbench", "run", ODD), lab_text=ODD)
    document.write([run], folder / "out")
    return folder / "out"


def test_what_moves_by_itself_is_not_among_the_settings() -> None:
    """Else trials with the same settings would be shown as if they differed."""
    lines = [
        list(
            pages._lines(
                [
                    Change(
                        Setting("channels", "eth3", 4),
                        {"combined": 8, "interrupts": {"eth3-TxRx-0": cpu}},
                        {"combined": 4, "interrupts": {}, "napi_cpus": None},
                    )
                ]
            )
        )
        for cpu in ("1", "2")
    ]
    assert [[("channels eth3", "combined=8 → combined=4")]] * 2 == lines


def test_pages_are_the_same_as_pdf_and_png(whole: Path) -> None:
    """A PNG for each page of the PDF, and no other."""
    pages = texts(whole)
    names = sorted(file.name for file in whole.glob("report-*.png"))
    assert sorted(f"report-{n}.png" for n in range(1, len(pages) + 1)) == names
    assert 6 == len(pages)
    numbers = [page.rsplit(" ", 3)[1:] for page in pages]
    assert [[str(n), "/", "6"] for n in range(1, 7)] == numbers


def test_page_one_answers_the_question(whole: Path) -> None:
    """What failed, why, what not to trust, the picture, what to type, and nothing else."""
    first, second, *_ = texts(whole)
    assert first.startswith(f"Does {ODD.replace('🚀 ', '')}"[:12])
    assert "1 of 1 expectation does not hold: received_packets > 5000 (" in first
    assert "good: Lost at udp_rcvbuf: udpbench does not know why" in first
    assert "2 of 3 trials are not counted (invalid), " in first
    for part in ("1 000 packets intended", "750 received (75.00 %)", "−250 (25.00 %)"):
        assert part in first
    assert "What to type next" in first
    for part in ("good #2: invalid: sender-bound", "left and right: Linux 6.18.0", "published, on"):
        assert part not in first
        assert part in second


def test_what_does_not_fit_on_page_one_has_no_page_of_its_own(tmp_path: Path) -> None:
    """Nor has the note below the stages, which stands above them."""
    of = experiment(points=[paced(point="good")], question="How much of it arrives? " * 70)
    run = stored(tmp_path / "run", [lossy(1000, LOST, 250, of=of.points[0])], of)
    document.write([run], tmp_path, ["pdf"])
    pages = texts(tmp_path)
    (second,) = (page for page in pages if "What to type next" in page)
    assert pages.index(second) > 0
    assert "What limits" in second
    (stages,) = (page for page in pages if "docs/ledger.md has remedies" in page)
    assert "udp_rcvbuf" in stages


@pytest.mark.parametrize("others", ["b", "bcd"])
def test_page_one_of_a_comparison_ends_with_what_to_type(others: str, tmp_path: Path) -> None:
    """Where its figure has no room above the steps it is below them."""
    points = [paced(point=name) for name in f"a{others}"]
    pairs = tuple(PointPair("a", name, "loss_ratio", 0.001, (7,)) for name in others)
    records = [
        lossy(1000, LOST, 250, of=replace(each, repetition=n))
        if each.point == "a"
        else record(of=replace(each, repetition=n))
        for n in range(1, 8)
        for each in points
    ]
    of = experiment(points=points, repetitions=7, compare=pairs)
    run = stored(tmp_path / "run", records, of, command=("udpbench", "run", "pairs.yaml"))
    document.write([run], tmp_path, ["pdf"])
    first, *rest = texts(tmp_path)
    assert "750 received (75.00 %)" in first
    assert "udpbench run pairs.yaml" in first
    assert ("repetition, in the order of the run" in first) is (others == "b")
    assert "repetition, in the order of the run" in " ".join([first, *rest])


def test_the_lab_is_labelled_on_every_page(whole: Path) -> None:
    """Nobody takes a page out of the document for hardware."""
    assert [] == [n for n, text in enumerate(texts(whole), 1) if LABEL not in text]


def test_every_part_is_there(whole: Path) -> None:
    """In the order in which a reader asks."""
    text = " ".join(texts(whole))
    heads = (
        "What to type next",
        "What limits",
        "Left out of medians",
        "Measured on",
        "Results",
        "Expectations",
        "Ledger",
        "Delay, pacing, cost and memory",
        "Over time",
        "Findings",
        "Published: How to receive a million packets per second",
        "Settings of good",
        "The experiment",
        "The run",
        "The environment",
        "The lab: local",
        "How the ledger is read",
    )
    places = [text.find(head) for head in heads]
    assert -1 not in places, dict(zip(heads, places, strict=True))
    assert sorted(places) == places


def test_a_newcomer_can_follow_a_packet(whole: Path) -> None:
    """The place of a loss is explained where it is shown, and once; every stage is at the end."""
    text = " ".join(texts(whole))
    ledger, legend = text.split("How the ledger is read")
    full = "The socket's receive buffer was full: the application did not read fast enough."
    assert [1, 1] == [part.count(full) for part in (ledger, legend)]
    assert "What helps: for bursts enlarge receive.buffer" in ledger
    assert "The UDP checksum was wrong." in legend
    assert "The UDP checksum was wrong." not in ledger


def test_a_failed_trial_and_a_missed_expectation_are_there(whole: Path) -> None:
    """With the error's own words and the numbers that missed."""
    text = " ".join(texts(whole))
    assert "failed: it died of $x$ #let *a* _b_ [c] <d>" in text
    assert "received_packets > 5000" in text
    assert "750 is not > 5 000" in text


def test_settings_and_how_to_repeat_it_are_there(whole: Path) -> None:
    """What was there, what was in force, what was refused, that it was put back."""
    text = " ".join(texts(whole))
    assert "mtu receive0 1500 → 9000" in text
    assert "refused: no $x$" in text
    assert "All settings were restored at the end of the run" in text
    assert "--seed 7" in text


def test_odd_texts_are_shown_and_never_obeyed(whole: Path) -> None:
    """What typst would read as markup, code or the end of a block stands there as written."""
    text = " ".join(texts(whole))
    plain = "$x$ #let *a* _b_ [c] <d>"
    assert text.count(plain) >= 5
    assert "#panic()" in text


def test_each_figure_is_there_by_itself(whole: Path) -> None:
    """As SVG, whose text is text, and as PNG; nothing of them is cut at the edges."""
    figures = sorted((whole / document.FIGURES).rglob("*.svg"))
    names = ["dots-1.svg", "paths-1.svg", "paths_narrow.svg", "timelines-1.svg"]
    assert names == [file.name for file in figures]
    dots = figures[0].read_text()
    assert "delivered (kpps), n = 1 of 2 trials" in dots
    assert not figures[2].with_suffix(".png").exists()
    for file in (*figures[:2], figures[3]):
        image = Image.open(file.with_suffix(".png")).convert("L")
        edges = [
            image.crop(box).getextrema()[0]
            for box in (
                (0, 0, image.width, 1),
                (0, image.height - 1, image.width, image.height),
                (0, 0, 1, image.height),
                (image.width - 1, 0, image.width, image.height),
            )
        ]
        assert [255] * 4 == edges, file


# --- what pages have no room for -----------------------------------------------------------------


def test_pages_say_what_they_have_no_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How much of each list and text is missing, and where it is; nothing in HTML is."""
    of, records = swept(range(12), repetitions=1)
    run = stored(tmp_path / "run", records, replace(of, text="- {a: 1}\n" * 1500))
    monkeypatch.setattr(document, "PAGES_BYTES", 20_000_000)
    monkeypatch.setattr(document, "draw", lambda *_: {})  # takes seconds
    document.write([run], tmp_path, ["html", "pdf"])
    pages = texts(tmp_path)
    text = " ".join(pages)
    where = "in the report as HTML and in the run folder"
    assert 10 > len(pages)
    assert pages[0].startswith("These pages leave out what they have no room for")
    assert f"… 4 more, {where}" in text
    assert f"… 1386 more lines, {where}" in text
    assert (tmp_path / "report.html").read_text().count("- {a: 1}") == 1500


def test_pages_have_room_for_400_points(tmp_path: Path) -> None:
    """Nothing of them is cut, nor of a definition of 1000 lines."""
    of, records = swept(range(4), repetitions=1)
    (chapter,) = judged([replace(of, text="# x\n" * 1000)], records)
    data = chapter_data(chapter)
    for part, times in (("rows", 400), ("ledger", 100), ("numbers", 100)):
        data[part] = data[part][:1] * times
    data["figures"] = {"dots": ["a.svg"] * 16, "ways": ["a.svg"] * 16}
    data["first"] = []
    whole = {"chapters": [{**data, "trials": []}], "cut": ""}
    assert whole == document.for_pages(whole)


def test_a_name_leaves_room_below_the_head_of_its_column() -> None:
    """Typst repeats the head on each page."""
    data = {"chapters": [], "points": ["x" * 5000], "version": "x" * 5000, "text": "x" * 5000}
    cut = document.for_pages(data)
    assert [256, 256, 5000] == [
        len(text.removesuffix("…")) for text in (*cut["points"], cut["version"], cut["text"])
    ]


def test_each_list_of_a_chapter_says_what_is_missing() -> None:
    """The template has a place for it."""
    (chapter,) = judged([experiment()], [record()])
    template = document.TEMPLATE.read_text()
    lists = {key for key, value in chapter_data(chapter).items() if isinstance(value, list)}
    for key in lists - {"columns", "comparison_columns"}:
        assert f'rest(chapter, "{key}")' in template, key


# --- several runs --------------------------------------------------------------------------------


def test_several_runs_are_one_document(tmp_path: Path) -> None:
    """Each has its chapter, named after it, and its own environment."""
    runs = [stored(tmp_path / name, [record(of=trial(source=None))]) for name in ("one", "two")]
    files = document.write(runs, tmp_path / "out", ["pdf"])
    assert [tmp_path / "out" / "report.pdf"] == files
    text = " ".join(texts(tmp_path / "out"))
    assert "example · one" in text
    assert "example · two" in text
    assert "The run one" in text
    assert "udpbench 0.1.0 · 2 runs" in text


def test_lab_and_hardware_are_not_mixed(tmp_path: Path, golden: Golden) -> None:
    """Their numbers say nothing of each other."""
    lab, real = (
        stored(tmp_path / name, [record(built_in_lab=built_in)])
        for name, built_in in (("lab", True), ("real", False))
    )
    with golden.raises(InputError) as refused:
        document.write([lab, real], tmp_path / "out", ["pdf", "docx"])
    assert 2 == len(refused.value.problems)
    assert not (tmp_path / "out").exists()


def test_a_format_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    """With those that do."""
    with pytest.raises(InputError) as refused:
        document.write([stored(tmp_path / "run")], tmp_path / "out", ["docx"])
    known = "expected: one of html, pdf, png, csv, parquet, folded, speedscope"
    assert f"--format: docx: unknown format; {known}" == str(refused.value)


def test_a_run_without_a_trial_is_a_document(tmp_path: Path) -> None:
    """It says that it was killed and that nothing ran; results on hardware have no label."""
    run = stored(tmp_path / "run", [], ending=None)
    document.write([run], tmp_path / "out", ["pdf"])
    text = " ".join(texts(tmp_path / "out"))
    assert "No trial is stored." in text
    assert "the run did not end: it was killed, or is still running" in text
    assert "No host was asked before the run ended." in text
    assert LABEL not in text


def test_pages_of_an_earlier_report_are_replaced(tmp_path: Path) -> None:
    """No page is left of a longer one, and nothing else is touched."""
    out = tmp_path / "out"
    (out / document.FIGURES).mkdir(parents=True)
    for name in ("report-9.png", f"{document.FIGURES}/old.svg", "mine.txt"):
        (out / name).touch()
    document.write([stored(tmp_path / "run")], out, ["png"])
    assert not (out / "report-9.png").exists()
    assert not (out / document.FIGURES / "old.svg").exists()
    assert (out / "mine.txt").exists()


def test_a_median_of_fewer_trials_says_of_how_many(tmp_path: Path) -> None:
    """A percentile that only one of two trials can carry is not read as that of both."""
    (chapter,) = judged([experiment(repetitions=2)], [record(), record(of=trial(repetition=2))])
    (point,) = chapter.points
    first = point.results[0]
    some = replace(first, numbers={**first.numbers, "delay_p99_ns": 1500})
    mixed = replace(chapter, points=(replace(point, results=(some, point.results[1])),))
    (part,) = chapter_data(mixed)["numbers"]
    assert {"name": "delay p99", "cells": ["1.5 µs (n = 1)"]} in part["rows"]
    assert {"name": "send calls per packet", "cells": ["0.1 calls"]} in part["rows"]


def test_figures_are_the_documents_whatever_else_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a user's own matplotlibrc or other code of this process chose is in them."""
    with mpl.rc_context({"text.usetex": True, "axes.facecolor": "red"}):
        before = dict(mpl.rcParams)
        monkeypatch.setattr(os, "open", _refused)  # as in a folder closed to this user
        with styled():
            assert not mpl.rcParams["text.usetex"]
            assert "white" == mpl.rcParams["axes.facecolor"]
        assert before == dict(mpl.rcParams)


def _refused(*_: object, **__: object) -> int:
    raise PermissionError


# --- the run's own page --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "repeated"),
    [
        (("udpbench", "run", "smoke"), "udpbench run smoke --seed 7"),
        (
            ("udpbench", "run", "my file.yaml", "--out", "x", "--seed", "3"),
            "udpbench run 'my file.yaml' --seed 7",
        ),
        (("udpbench", "run", "a", "--out=x", "--seed=3"), "udpbench run a --seed 7"),
        (("pytest", "a.yaml::one point"), "pytest 'a.yaml::one point'"),
        (("udpbench", "run", "a\nb;reboot"), r"udpbench run 'a\nb;reboot' --seed 7"),
        (("sh", "-c", "curl x | sudo sh"), ""),
        (("udpbench", "run", "--resume", "x", "--trust"), ""),
        (("udpbench", "run", "--resume=x"), ""),
        (("udpbench", "deploy", "--lab", "x"), ""),
        (("udpbench",), ""),
        (("pytest", "-p", "evil"), ""),
        (("pytest", "@evil"), ""),
        ((), ""),
    ],
)
def test_the_command_repeats_the_run(words: tuple[str, ...], repeated: str) -> None:
    """In the same order, into a folder of its own; pytest has no option for either."""
    assert repeated == command(header(command=words))


def test_a_command_that_is_not_ours_is_not_for_typing(tmp_path: Path) -> None:
    """Whoever wrote the run folder chose it."""
    run = stored(tmp_path, command=("sh", "-c", "curl x | sudo sh"))
    data = run_data(run)
    assert not [line for line in data["commands"] if not line["type"].startswith("udpbench ")]
    assert UNKNOWN == data["run_rows"][0]["value"]


@pytest.mark.parametrize(
    "words",
    [
        ("--set", 'receive.command=["/tmp/x"]'),
        ("--set", "receive={command: [/tmp/x]}"),
        ('--set=receive={"comm\\x61nd": [/tmp/x]}',),
        ("--set", "receive.log.path=/etc/x", "--set", "receive.batch=1"),
    ],
)
def test_a_command_that_starts_a_program_is_not_for_typing(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    """Nor one that writes a log; other keys are."""
    run = stored(tmp_path / "a", command=("udpbench", "run", "smoke", *words))
    assert [] == [line for line in run_data(run)["commands"] if "receive" in line["type"]]
    assert UNKNOWN == run_data(run)["run_rows"][0]["value"]
    run = stored(tmp_path / "b", command=("udpbench", "run", "smoke", "--set", "receive.batch=1"))
    assert "receive.batch=1" in run_data(run)["run_rows"][0]["value"]


def test_what_differs_between_the_hosts_is_marked(tmp_path: Path) -> None:
    """The governor differs; that each has an interface of its own is no difference."""
    trial_record = record()
    right = replace(
        trial_record.facts["right"],
        environment={"governor": "powersave", "offloads": "rx-gro tx-gso"},
    )
    left = replace(
        trial_record.facts["left"], environment={"governor": "performance", "offloads": "tx-gso"}
    )
    run = stored(tmp_path, [replace(trial_record, facts={"left": left, "right": right})])
    (environment,) = run_data(run)["environments"]
    rows = {row["name"]: row for row in environment["rows"]}
    assert ["governor", "offloads, only here"] == [n for n, row in rows.items() if row["differs"]]
    assert ["tx-gso", "tx-gso"] == rows["offloads, everywhere"]["cells"]
    assert ["–", "rx-gro"] == rows["offloads, only here"]["cells"]

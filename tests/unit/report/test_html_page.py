"""The report as one HTML file: what it says, what it never does, and that it is data, too."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from math import cos, pi, sin
from pathlib import Path
from random import Random
from xml.etree.ElementTree import fromstring as parsed

import pandas as pd
import pytest
from analysis.build import (
    BASE,
    LOAD_MS,
    START_NS,
    experiment,
    failed,
    hog,
    lossy,
    paced,
    receiver_counts,
    record,
    series,
    shared,
    trial,
)
from golden import Golden
from sampled import sampled

from report.stored import ODD, drawn_study, stored, swept
from udpbench import read_run
from udpbench.analysis.result_tables import TABLES
from udpbench.errors import RecordError
from udpbench.judged_run import chapters_of
from udpbench.model.experiment import Trial
from udpbench.model.host import Change, Setting
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import (
    RecordedError,
    Sample,
    TrialRecord,
)
from udpbench.records.run import Ending, Run
from udpbench.report import document, pages
from udpbench.report.captions import HEADINGS
from udpbench.report.data_frames import COLUMNS
from udpbench.report.embedded_data import HEAD, LINK, MOST_BYTES, read_report
from udpbench.report.figures.inline_svg import InlineFigures, fewest, path, titled
from udpbench.report.json_output import as_json
from udpbench.units import show_count, show_pps, show_ratio

LOST = {"right": {"snmp.Udp.RcvbufErrors": 250, "snmp.Udp.InErrors": 250}}
EVIL = f"</script><img src=x onerror=alert(1)> {ODD} ' &amp;"
VOID = ("meta", "br", "link", "img", "input", "hr")
RAW = ("series", "counters", "settings")
STUDY_BYTES = 420_000


class Page(HTMLParser):
    """A page as a list of elements; every one is closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.tables: list[list[list[str]]] = []
        self.summaries: list[str] = []
        self.heads: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert [] == self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep it."""
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag == "summary":
            self.summaries.append("")
        if tag in ("h1", "h2", "h3", "summary"):
            self.heads.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep it; nothing is in it."""
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost, which must be it."""
        assert tag == self._open.pop()

    def handle_data(self, data: str) -> None:
        """Keep it for whom it belongs to."""
        if "style" in self._open:
            return
        self.text += data
        if "td" in self._open or "th" in self._open:
            self.tables[-1][-1][-1] += data
        if "summary" in self._open:
            self.summaries[-1] += data
        if {"h1", "h2", "h3", "summary"} & set(self._open):
            self.heads[-1] += data


def page_of(*runs: Run, out: Path) -> tuple[str, Page]:
    """Return the page of some runs, as text and as its elements."""
    assert [out / "report.html"] == document.write(runs, out, ["html"])
    text = (out / "report.html").read_text()
    return text, Page(text)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run, Page]:
    """Write the page of a run with a good, an invalid and a failed trial, and with odd texts."""
    folder = tmp_path_factory.mktemp("odd")
    points = [paced(point="good", source="cloudflare-2015/pinned"), paced(point=EVIL)]
    of = experiment(points=points, question=EVIL, repetitions=2, text=f"question: {EVIL}\n")
    changes = {"right": (Change(Setting("sysctl", EVIL, "1"), "0", "0", refusal=EVIL),)}
    records = [
        replace(lossy(1000, LOST, 250, of=points[0], series=series([1000])), changes=changes),
        record(900, of=replace(points[0], repetition=2)),
        failed("WorkerFailed", EVIL, of=points[1]),
    ]
    run = stored(folder / "run", records, of, command=("udpbench", "run", EVIL), lab_text=EVIL)
    _, page = page_of(run, out=folder)
    return folder / "report.html", run, page


def test_no_text_becomes_markup(odd: tuple[Path, Run, Page]) -> None:
    """A question, a point, a setting, an error, a command and a file that hold it show it."""
    text, page = odd[0].read_text(), odd[2]
    assert {"svg", "table", "details"} <= {tag for tag, _ in page.elements}
    assert not {"script", "img", "iframe", "link", "object", "base"} & {
        tag for tag, _ in page.elements
    }
    assert "<img" not in text
    assert not [name for _, names in page.elements for name in names if name.startswith("on")]
    assert page.text.count("</script><img src=x onerror=alert(1)>") >= 8


def test_nothing_is_fetched_and_a_policy_says_so(odd: tuple[Path, Run, Page]) -> None:
    """Every reference is to the page itself or is the data; no style names another place."""
    text, page = odd[0].read_text(), odd[2]
    names = ("href", "src", "xlink:href", "action", "data", "poster", "srcset")
    targets = [each[name] for _, each in page.elements for name in names if name in each]
    assert not [target for target in targets if not target.startswith(("#", "data:"))]
    assert not re.findall(r"url\((?!#)|@import|xmlns", text)
    policies = [
        each["content"]
        for _, each in page.elements
        if each.get("http-equiv") == "Content-Security-Policy"
    ]
    assert ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"] == policies


def test_an_id_is_there_once_and_every_reference_has_one(odd: tuple[Path, Run, Page]) -> None:
    """Also between figures, whose ids matplotlib makes of their content."""
    page = odd[2]
    ids = Counter(each["id"] for _, each in page.elements if "id" in each)
    used = set(re.findall(r"url\(#([\w-]+)\)", odd[0].read_text()))
    used |= {each["href"][1:] for _, each in page.elements if each.get("href", "").startswith("#")}
    assert {1} == set(ids.values())
    assert used == set(ids) - {LINK, "chapter-1"}


def test_what_somebody_reads_in_one_minute_comes_first(odd: tuple[Path, Run, Page]) -> None:
    """Question, answer, picture, what to type, what limits; then all else in the PDF's order."""
    text = odd[2].text
    heads = ("commands", "limits", "struck", "environment", "results", "ledger")
    heads += ("numbers", "timelines", "findings", "trials", "published", "settings", "yaml")
    heads += ("run", "hosts", "lab", "stages")
    titles = [next(t for t in odd[2].heads if t.startswith(HEADINGS[head])) for head in heads]
    assert sorted(titles, key=odd[2].heads.index) == titles
    shown = ("alert(1)", "good: Lost at udp_rcvbuf", "packets intended", "What limits")
    places = [text.index(each) for each in shown]
    assert sorted(places) == places
    (chapter,) = chapters_of(odd[1])
    assert pages.limits(chapter)
    assert all(line in text for line in pages.limits(chapter))
    assert "--seed 7" in text


def test_dots_and_bars_say_their_values_under_the_pointer(odd: tuple[Path, Run, Page]) -> None:
    """No link is left of what carried them there."""
    text = odd[0].read_text()
    assert "<title>good: 750 pps</title>" in text
    assert "<title>udp_rcvbuf: −250 (25.00 %)</title>" in text
    assert 1 == len([tag for tag, _ in odd[2].elements if tag == "a"])


def test_a_figure_that_is_not_shown_still_has_the_hatches_of_others(
    odd: tuple[Path, Run, Page],
) -> None:
    """A pattern in what has display:none is not drawn where a telephone's figure refers to it."""
    text = odd[0].read_text()
    assert '<div class="wide roomy">' in text
    assert not re.findall(r"\.roomy{[^}]*display:none", text)
    assert text.index("<pattern") < text.index('<div class="narrow">')


def test_a_figure_has_the_pages_own_colours_and_text(odd: tuple[Path, Run, Page]) -> None:
    """So it follows light and dark; what is white or black in it is paper or ink."""
    text, page = odd[0].read_text(), odd[2]
    assert "prefers-color-scheme:dark" in text
    assert not re.findall(r"fill:#fff|stroke:#000|Libertinus", text)
    figures = [each for tag, each in page.elements if tag == "svg"]
    assert len(figures) == 4
    assert all(each["role"] == "img" and each["aria-label"] for each in figures)
    assert "n = 1 of 2 trials" in page.text


def test_each_trial_is_folded_with_its_ledger_and_findings(odd: tuple[Path, Run, Page]) -> None:
    """Line by line as on a terminal; an invalid one is marked."""
    _, _, page = odd
    captions = [table.caption for table, _ in TABLES]
    first, second, third = [each for each in page.summaries if each not in captions][:3]
    assert first.startswith("good #1 750 pps delivered, 25.00 % lost, most of it at udp_rcvbuf")
    assert second.startswith("✗ good #2 invalid: ")
    assert third.startswith("✗ ")
    assert "failed: </script>" in third


def test_a_reason_that_trials_in_a_row_share_is_there_once(tmp_path: Path) -> None:
    """Fifteen lines with the same reason hide what differs."""
    busy = [replace(shared(LOAD_MS + 400, hog(400)), trial=trial(repetition=n)) for n in (1, 2, 3)]
    (chapter,) = chapters_of(stored(tmp_path / "run", busy, experiment(repetitions=3)))
    first, *others = (each["line"] for each in pages.trials_data(chapter))
    assert first.startswith("struck out: machine: CPU 0: other programs used CPUs of the load (")
    assert all(line.startswith("struck out as before (") for line in others)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run, Page]:
    """Write the page of a study of a hundred trials, each with a series."""
    folder = tmp_path_factory.mktemp("study")
    of, records = swept([100 * size for size in range(1, 21)], 5)
    run = stored(folder / "study", records, of)
    _, page = page_of(run, out=folder)
    return folder / "report.html", run, page


def test_a_study_of_a_hundred_trials_is_small(study: tuple[Path, Run, Page]) -> None:
    """It can be sent by mail, or attached to an issue."""
    assert 100 == len(study[1].records)
    assert study[0].stat().st_size <= STUDY_BYTES


def test_every_number_is_that_of_the_data(study: tuple[Path, Run, Page]) -> None:
    """A trial's rate, loss and ledger, read off the page, are those of ``show --json``."""
    _, run, page = study
    trials = {each["name"].partition("::")[2]: each for each in as_json(run)["trials"]}
    lines = [line for line in page.summaries if "delivered" in line]
    assert len(trials) == len(lines)
    ledgers = [table for table in page.tables if table[0][0] == "intended"]
    assert len(trials) == len(ledgers)
    for line, ledger in zip(lines, ledgers, strict=True):
        mine = trials["#".join(line.split(" #")).split(" ")[0]]
        text = f"{show_pps(mine['delivered_pps'])} delivered, {show_ratio(mine['loss_ratio'])} lost"
        assert text in line
        packets = {row[0]: row[1] for row in ledger}
        assert {
            "intended": show_count(mine["intended_packets"]),
            "sent": show_count(mine["sent_packets"]),
            "received": show_count(mine["ledger_received_packets"]),
            "unaccounted": show_count(mine["unaccounted"]),
            **{
                entry["stage"]: show_count(entry["packets"])
                for entry in mine["ledger"]
                if entry["packets"]
            },
        } == packets


BUSY_POINTS, BUSY_REPETITIONS = 4, 5


def busy(number: int, of: Trial) -> TrialRecord:
    """Return a trial that others disturbed: it has many findings, with values of its own.

    But for the last of two points of four, whose rates and times hold, so that they are drawn.
    """
    random = Random(number)
    trial_record = shared(
        LOAD_MS + 700 + number, hog(500 + number), hog(200), steal_ms=200 + number
    )
    if of.repetition == BUSY_REPETITIONS and of.point < "buffer=4KiB":
        trial_record = shared(LOAD_MS)
    (phase,) = trial_record.phases
    moved = {
        "snmp.Udp.InDatagrams": 700,
        "snmp.Udp.RcvbufErrors": 280 - number,
        "snmp.Udp.InErrors": 280 - number,
        "snmp.Udp.NoPorts": number,
    }
    counters = {name: BASE + moves for name, moves in moved.items()}
    right = phase.after["right"]
    after = {**phase.after, "right": replace(right, counters={**right.counters, **counters})}
    sender, receiver = phase.stats
    workers = (
        replace(sender, counts={**sender.counts, "sent_packets": 980}, cpu=None),
        replace(receiver, counts=receiver_counts(700, truncated_packets=number), cpu=None),
    )
    per_ms = tuple(random.choices((0, 9, 10, 11, 20), (1, 7, 84, 7, 1), k=1000))
    samples = (
        *series([980], "left.sender0", "sent_packets"),
        *series([700 + random.randrange(20)]),
        Sample("left.sender0", START_NS + SECOND_NS, {}, first_ms=0, packets_per_ms=per_ms),
    )
    phases = (replace(phase, after=after, stats=workers),)
    return replace(trial_record, trial=of, phases=phases, series=samples)


@pytest.mark.parametrize("experiments", sampled([2, 5], []))
def test_a_busy_study_of_a_hundred_trials_is_small(experiments: int, tmp_path: Path) -> None:
    """What others did to it is said once, and each trial has its own values of it."""
    studies, records = [], []
    for place in range(experiments):
        name = f"0{place}-experiment"
        points = [
            paced(1000, experiment=name, point=f"buffer={2**size}KiB,rmem_max=67108864")
            for size in range(BUSY_POINTS)
        ]
        whole = experiment(points=points, repetitions=BUSY_REPETITIONS)
        studies.append(replace(whole, name=name, question=f"Does it arrive {place}?"))
        records += [
            busy(place * 10 + 2 * number + 1, replace(point, repetition=repetition))
            for number, point in enumerate(points)
            for repetition in range(1, BUSY_REPETITIONS + 1)
        ]
    run = stored(tmp_path / "busy", records, *studies)
    text, page = page_of(run, out=tmp_path)
    trials = as_json(run)["trials"]
    assert 20 * experiments == len(trials)
    assert 6 <= min(len(each["findings"]) for each in trials if each["repetition"] < 5)
    assert len(text.encode()) <= STUDY_BYTES * (1 + experiments) // 6
    assert 2 * experiments == page.text.count("other programs used CPUs of the load; rates")
    values = {f["value"] for each in trials for f in each["findings"] if f["value"]}
    assert [] == [value for value in values if value not in page.text]


@pytest.mark.parametrize("experiments", sampled([2, 5], [2]))
def test_a_study_with_everything_over_time_is_small(experiments: int, tmp_path: Path) -> None:
    """A time line and a radar of each point, two kinds of times, and a hundred trials are small."""
    run = drawn_study(tmp_path / "study", experiments)
    text, page = page_of(run, out=tmp_path)
    trials = as_json(run)["trials"]
    assert 20 * experiments == sum(each["valid"] for each in trials)
    dots = Counter(re.findall(r"<title>(buffer=[^<]* pps|buffer=[^<]* kpps)</title>", text))
    rates = [f"{each['point']}: {show_pps(each['delivered_pps'])}" for each in trials]
    assert Counter(rates) == dots
    labels = [each["aria-label"].partition(":")[0] for tag, each in page.elements if tag == "svg"]
    figures = {"timelines": 4, "radars": 1, "times": 2, "ways": 1}
    assert {kind: n * experiments for kind, n in figures.items()} == {
        kind: labels.count(HEADINGS[kind]) for kind in figures
    }
    assert len(text.encode()) <= STUDY_BYTES * (1 + experiments) // 6
    ids = Counter(each["id"] for _, each in page.elements if "id" in each)
    used = {each["href"][1:] for tag, each in page.elements if tag == "use"}
    assert used <= set(ids)
    assert {1} == set(ids.values())
    assert "<!--" not in text


# --- the data in it ------------------------------------------------------------------------------


def test_the_page_has_the_data_and_reads_back(study: tuple[Path, Run, Page]) -> None:
    """Frame by frame what the run folder gives, but for what only raw records have."""
    file, run, page = study
    (link,) = [each for _, each in page.elements if each.get("id") == LINK]
    assert "study.json.gz" == link["download"]
    unpacked = gzip.decompress(base64.b64decode(link["href"].removeprefix(HEAD)))
    assert json.loads(json.dumps([as_json(run)])) == json.loads(unpacked)
    with pytest.warns(UserWarning, match="no settings, series or counters; read its run folder"):
        back = read_run(file)
    whole = read_run(run.folder)
    for name in COLUMNS:
        if name in RAW:
            assert 0 == len(getattr(back, name))
        else:
            pd.testing.assert_frame_equal(getattr(whole, name), getattr(back, name))
    (row,) = whole.definitions.to_dict("records")
    assert ("study", "example", "local") == (row["run"], row["experiment"], row["lab"])


def test_the_name_of_a_run_in_a_page_is_not_obeyed(study: tuple[Path, Run, Page]) -> None:
    """The page may be anybody's, and the warning goes to a terminal."""
    file, run, _ = study
    page = file.read_text()
    forged = json.dumps([{**as_json(run), "run": "\x1b]0;x\x07\nERROR"}]).encode()
    data = base64.b64encode(gzip.compress(forged)).decode()
    begin = page.index(HEAD) + len(HEAD)
    forged_page = run.folder / "forged.html"
    forged_page.write_text(page[:begin] + data + page[page.index('"', begin) :])
    with pytest.warns(UserWarning, match=r"run folder: \\x1b\]0;x\\x07\\nERROR$"):
        read_run(forged_page)


def test_several_runs_are_one_page_and_read_back(tmp_path: Path) -> None:
    """Each with its chapter, its commands and its data; folders and pages mix."""
    runs = [stored(tmp_path / name, [record(of=trial(source=None))]) for name in ("one", "two")]
    _, page = page_of(*runs, out=tmp_path / "out")
    assert "udpbench 0.1.0 · 2 runs" in page.text
    assert 2 == page.text.count("repeat it in the same order")
    with pytest.warns(UserWarning, match="run folder"):
        back = read_run(tmp_path / "one", tmp_path / "out" / "report.html")
    assert ["one", "one", "two"] == list(back.trials.run)


def test_a_run_without_a_trial_is_a_page(tmp_path: Path) -> None:
    """It says how to go on."""
    _, page = page_of(stored(tmp_path / "run", [], ending=None), out=tmp_path)
    assert "No trial is stored." in page.text
    assert "udpbench run --resume" in page.text


def test_a_failed_run_says_how_it_ended(tmp_path: Path) -> None:
    """With the command that goes on."""
    error = RecordedError("AgentLost", "gone <b>", "left")
    ending = Ending("2026-11-21T08:00:09+00:00", "failed", error)
    _, page = page_of(stored(tmp_path / "run", [record()], ending=ending), out=tmp_path)
    assert "the run failed: left: gone <b>" in page.text
    assert "continue where it stopped" in page.text


def spoiled(data: object) -> bytes:
    """Return a page whose link holds something else."""
    plain = data if isinstance(data, bytes) else gzip.compress(json.dumps(data).encode())
    return f'<a id="{LINK}" href="{HEAD}{base64.b64encode(plain).decode()}">'.encode()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"<p>hello</p>", id="foreign"),
        pytest.param(f'<a id="{LINK}" href="{HEAD}!">'.encode(), id="letters"),
        pytest.param(spoiled(gzip.compress(b"[{}]")[:-4]), id="torn"),
        pytest.param(spoiled(b"plain"), id="no gzip"),
        pytest.param(spoiled([{"x": 1}]), id="no runs"),
        pytest.param(spoiled(7), id="no list"),
        pytest.param(spoiled([{"schema": 2}]), id="another schema"),
        pytest.param(spoiled([{"schema": 1, "run": "x"}]), id="no trials"),
    ],
)
def test_what_is_no_report_is_refused(content: bytes, tmp_path: Path, golden: Golden) -> None:
    """In one line, whatever is in the file."""
    (tmp_path / "report.html").write_bytes(content)
    with golden.raises(RecordError):
        read_run(tmp_path / "report.html")


def test_a_page_that_cannot_be_opened_is_refused(tmp_path: Path, golden: Golden) -> None:
    """With the system's word."""
    with golden.raises(RecordError):
        read_report(tmp_path / "missing.html")


def test_data_without_end_is_not_unpacked(
    tmp_path: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of a few bytes may hold any number of them."""
    assert 2**27 == MOST_BYTES
    monkeypatch.setattr("udpbench.report.embedded_data.MOST_BYTES", 100)
    (tmp_path / "report.html").write_bytes(spoiled([{"schema": 1, "x": "y" * 1000}]))
    with golden.raises(RecordError):
        read_run(tmp_path / "report.html")


def test_a_page_without_end_is_not_read(
    tmp_path: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one that is larger than any report."""
    monkeypatch.setattr("udpbench.report.embedded_data.MOST_PAGE_BYTES", 100)
    (tmp_path / "report.html").write_bytes(spoiled([{"schema": 1, "x": "y" * 1000}]))
    with golden.raises(RecordError):
        read_run(tmp_path / "report.html")


# --- a figure in it ------------------------------------------------------------------------------


def test_a_path_is_relative_and_rounded() -> None:
    """To a tenth of a point, a marker to a hundredth; corners of a curve that nobody sees go."""
    assert "M10 20l5.5-.25v1" == path("M 10 20 \nL 15.5 19.75 \nL 15.501 19.7501 \nL 15.5 20.75")
    assert "M0 0c1 2 3 4 5 6z" == path("M 0 0 C 1 2 3 4 5 6 z")
    assert "M0 0l1 2 .1 .1-1-2" == path("M 0 0 L 1 2 L 1.1 2.1 L 0.1 0.1")
    assert "M80 20.1h-.1" == path("M 80.04 20.06 L 79.9 20.06")
    flat = "M 0 0 L 0.12 0.04 " + "".join(f"L {n + 0.1} 0 " for n in range(1, 51))
    assert "M0 0h50.1" == path(flat)
    assert "M0 0h50.1l10 9zM5 5h50" == path(
        f"{flat} L 60.1 9 z M 5 5 " + "".join(f"L {n + 5} 5 " for n in range(51))
    )


def circle(corners: int, radius: float = 20.0) -> str:
    """Return a path around 50, 50 of so many curves, as matplotlib draws it."""
    ends = [
        (50 + radius * cos(2 * pi * n / corners), 50 + radius * sin(2 * pi * n / corners))
        for n in range(corners + 1)
    ]
    curves = "".join(f"C {x} {y} {x} {y} {x} {y} " for x, y in ends[1:])
    return f"M {ends[0][0]} {ends[0][1]} {curves}"


def test_a_circle_of_curves_is_two_arcs() -> None:
    """Few curves may be anything, and so may what does not close or is not round."""
    assert "M70 50a20 20 0 1 1-40 0a20 20 0 1 1 40 0z" == path(f"{circle(16)}z")
    assert "M70 50a20 20 0 1 1-40 0a20 20 0 1 1 40 0M50 50z" == path(
        f"{circle(16)} M 50 50 {'C 50 50 50 50 50 50 ' * 16}z"
    )
    for other in (circle(4), circle(16).rpartition("C")[0], f"{circle(16)}C 1 2 3 4 70 50 "):
        assert "a" not in path(other)
        assert other.count("C") == path(other).count("c")


def test_what_a_later_figure_repeats_is_there_once(tmp_path: Path) -> None:
    """An axis and a legend; what nothing refers to has no name."""
    run = stored(tmp_path / "run", [lossy(1000, LOST, 250, series=series([1000]))])
    document.write([run], tmp_path, ["png"])
    (file,) = (tmp_path / document.FIGURES).rglob("dots-1.svg")
    figures = InlineFigures()
    first, second = (figures.inline(file, "label") for _ in range(2))
    page = parsed(f"<p>{figures.named(first + second)}</p>")  # noqa: S314 – our own
    names = {each.attrib["id"] for each in page.iter("g") if "id" in each.attrib}
    assert names == {
        each.attrib["href"][1:] for each in page.iter("use") if each.attrib["href"][1] == "d"
    }
    assert len(names) >= 2
    assert len(second) < 0.6 * len(first)
    alone = InlineFigures()
    assert 'id="d' not in alone.named(alone.inline(file, "label"))


def test_steps_do_not_add_up_to_an_error() -> None:
    """Each is from where the last one was drawn; where they run together, in whole points."""
    crowd = "M 0 0 " + "".join(f"L {n * 0.93} {n % 2 * 9} " for n in range(1000))
    assert "." not in path(crowd)
    corners = [(n * 0.93, n % 2 * 0.67) for n in range(100)]
    data = "M 0 0 " + "".join(f"L {x} {y} " for x, y in corners[1:])
    numbers = re.findall(r"-?\d*\.?\d+", path(data).removeprefix("M0 0"))
    steps = [*map(float, numbers)]
    assert 2 * 99 == len(steps)
    assert abs(sum(steps[::2]) - 99 * 0.93) < 0.06
    assert abs(sum(steps[1::2]) - 0.67) < 0.06


def test_corners_stay_where_they_can_be_seen() -> None:
    """Also a peak of one corner, what a line returns from, and a closed shape."""
    level = [(n / 10, 0.1 * (n % 2)) for n in range(100)]
    peak = [*level[:50], (5.0, 9.0), *level[51:]]
    assert [(0.0, 0.0), (9.9, 0.1)] == fewest(level)
    assert (5.0, 9.0) in fewest(peak)
    assert len(fewest(peak)) <= 5
    back = [(0.0, 0.0), (9.0, 0.0), (3.0, 0.0)]
    assert back == fewest(back)
    square = [(0.0, 0.0), (9.0, 0.0), (9.0, 9.0), (0.0, 9.0), (0.0, 0.0)]
    assert square == fewest(square)


def test_a_link_becomes_a_title() -> None:
    """With its text as it is, escaped already."""
    for quote, value in (('"', "it's &lt; b"), ("'", 'a &lt; "b"')):
        svg = f'<a xlink:href={quote}{value}{quote} target="_blank"><path/></a>'
        assert f"<g><title>{value}</title><path/></g>" == titled(svg)


def test_a_figure_is_well_formed_and_without_form_of_its_own(tmp_path: Path) -> None:
    """Its groups, ids and metadata are gone unless something needs them; classes are shared."""
    run = stored(tmp_path / "run", [lossy(1000, LOST, 250, series=series([1000]))])
    document.write([run], tmp_path, ["png"])
    files = sorted((tmp_path / document.FIGURES).rglob("*.svg"))
    figures = InlineFigures()
    for file in files:
        inline = figures.inline(file, 'a "label" <&>')
        assert len(inline) < 0.5 * file.stat().st_size
        root = parsed(inline)  # noqa: S314 – our own
        assert 'a "label" <&>' == root.attrib["aria-label"]
        assert not {"metadata", "style"} & {element.tag for element in root.iter()}
        text = parsed(file.read_text()).itertext()  # noqa: S314
        assert set(map(str.strip, root.itertext())) <= {"", *map(str.strip, text)}
    assert {"font-size", "fill"} <= set(re.findall(r"[\w-]+(?=:)", figures.rules()))


def test_what_helps_at_a_stage_of_a_watched_host_says_where_to_type_it() -> None:
    """The report does not know in which network namespace its reader is."""
    for stage, end in (
        ("rx_netfilter", "if that is full, all in the network namespace that was watched."),
        ("udp_rcvbuf", "that depends on each socket's reader, and the answer names it."),
        ("udp_memory", "or make receive buffers smaller."),
    ):
        advice = pages._stage_advice(stage, watched=True, of_program=False)
        assert advice["helps"].endswith(end)
    assert "watched" not in pages._stage_advice("rx_netfilter", False, False)["helps"]

"""The tables of the terminal: every number whole at 80 columns, every doubt in words."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from analysis.build import (
    START_NS,
    expectation,
    experiment,
    failed,
    lossy,
    paced,
    receiver_counts,
    record,
    sender_counts,
    series,
    trial,
    unlogged,
    worker,
)
from rich.console import Console

from report.stored import ODD, printed, swept
from udpbench.model import Entry, Experiment, Finding, Histogram, TrialRecord
from udpbench.report.story import Chapter, tell
from udpbench.report.table import (
    findings_table,
    ledger_tables,
    packets_cell,
    point_cells,
    points_table,
    print_chapter,
    verdicts_table,
)

LOST = {"right": {"snmp.Udp.RcvbufErrors": 250, "snmp.Udp.InErrors": 250}}


def chapter(*records: TrialRecord, of: Experiment | None = None) -> Chapter:
    """Return the one chapter of an experiment with these trials."""
    (only,) = tell([of if of is not None else experiment()], records)
    return only


def shown(one: Chapter, width: int = 80) -> str:
    """Return a whole chapter as printed."""
    out = StringIO()
    print_chapter(Console(file=out, width=width, highlight=False), one)
    return out.getvalue()


def rows(text: str) -> list[list[str]]:
    """Return the words of each line."""
    return [line.split() for line in text.splitlines()]


def test_a_points_row_has_the_medians_of_its_valid_trials() -> None:
    """Offered and delivered rate, loss and spread are those of the judge."""
    one = chapter(lossy(1000, LOST, 250, series=series([600, 150, 150])))
    row = rows(printed(points_table(one)))[2]
    assert ["all", "1/1", "1.0", "kpps", "750", "pps", "25.00", "%", "–"] == row


def test_three_trials_have_an_interval() -> None:
    """The interval of the median stands beside it, in its unit."""
    of, records = swept([500])
    text = printed(points_table(chapter(*records, of=of)))
    assert "1.5 kpps [1.5 – 1.5]" in text


def test_an_invalid_trial_is_struck_out_and_in_no_median() -> None:
    """Its row says so in a word, its cells are struck, its reason is the first finding."""
    short = record(900, of=paced(repetition=2))
    one = chapter(record(1000, of=paced()), short, of=experiment(repetitions=2))
    styles = {cell.style for column in points_table(one).columns for cell in [*column.cells][1:]}
    text = rows(printed(points_table(one)))
    assert {"strike"} == styles
    assert ["all", "1/2"] == text[2][:2]
    assert ["#2", "invalid"] == text[3][:2]
    assert printed(findings_table(one)).startswith("invalid  ")


def test_a_wide_terminal_shows_times() -> None:
    """As many as fit, of points that know them; an invalid trial's are struck out, too."""
    histogram = Histogram(((5, 990), (127, 1000)))
    workers = [
        worker("sender", sender_counts(900), histograms={"pacing": histogram}),
        worker("receiver", receiver_counts(900), histograms={"delay": histogram}),
    ]
    full = [
        worker("sender", sender_counts(1000), histograms={"pacing": histogram}),
        worker("receiver", receiver_counts(1000)),
    ]
    of = experiment(points=[paced()], repetitions=2)
    records = [record(of=paced(), workers=full)]
    records += [record(900, of=paced(repetition=2), workers=workers)]
    one = chapter(*records, of=of)
    for width, heads in ((80, []), (91, []), (92, ["pacing p99"]), (140, ["pacing p99"])):
        assert heads == [str(column.header) for column in points_table(one, width).columns][6:]
    text = rows(printed(points_table(one, 92), width=92))
    assert [["127", "ns"], ["127", "ns"]] == [text[2][-2:], text[3][-2:]]


def test_a_failed_trial_shows_its_error() -> None:
    """The row says failed, and the error's own message stands below with the trial's name."""
    text = shown(chapter(record(), failed(of=trial(repetition=2)), of=experiment(repetitions=2)))
    assert ["#2", "failed", "–", "–", "–", "–"] in rows(text)
    assert "right: failed: it died [#2]" in text


def test_a_skipped_trial_shows_its_reason() -> None:
    """A host that lacks something is a note, and the row is not struck out."""
    one = chapter(failed("skipped", "needs 8 CPUs, there are 2"))
    styles = {cell.style for column in points_table(one).columns for cell in [*column.cells][1:]}
    assert {"dim"} == styles
    assert "note  right: skipped: needs 8 CPUs, there are 2 [#1]" in shown(one)


def test_where_no_trial_ran_it_says_so() -> None:
    """A run that was killed before its first trial has a question and no table."""
    assert ["", "Does it arrive?", "no trial ran"] == shown(chapter()).splitlines()


def test_where_some_trials_never_ran_it_says_how_many() -> None:
    """What an interrupt left out is told beside what there is."""
    text = shown(chapter(record(), of=experiment(repetitions=7)))
    assert "1 of 7 trials ran" in text


def test_results_of_the_lab_are_labelled() -> None:
    """Nobody takes namespaces of one machine for hardware."""
    label = "built-in lab: namespaces of one machine, no hardware"
    assert label in shown(chapter(record()))
    assert label not in shown(chapter(record(built_in_lab=False)))


@pytest.mark.parametrize("width", [80, 100, 200])
def test_no_number_is_lost_on_a_narrow_terminal(width: int) -> None:
    """Twelve long-named points: every rate and every count of every ledger is there whole."""
    points = [trial(f"a-rather-long-variant,size={size}B") for size in range(12)]
    records = [record(10**9 + n, of=point) for n, point in enumerate(points)]
    one = chapter(*records, of=experiment(points=points))
    text = shown(one, width)
    assert 24 == text.count("1000.000 Mpps")
    missing = [n for n in range(12) if text.count(f"1 000 000 {n:03d}") != 3]
    assert [] == missing
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width


def test_the_ledger_lists_every_stage_from_intended_to_unaccounted() -> None:
    """Each line has its packets and the counters they were read from."""
    (table,) = ledger_tables(chapter(lossy(1000, LOST, 250)), 200)
    text = rows(printed(table, width=200))
    assert ["intended", "1", "000"] == text[2]
    assert ["received", "750"] == text[-2]
    assert ["unaccounted", "0"] == text[-1]
    assert ["udp_rcvbuf", "250", "Δ", "snmp.Udp.RcvbufErrors"] in text


def test_the_ledger_of_a_log_closes() -> None:
    """What was read and not logged ended there, and is not received as well."""
    (table,) = ledger_tables(chapter(unlogged(400)), 200)
    text = rows(printed(table, width=200))
    assert "400" == next(row for row in text if row[0] == "app_log")[1]
    assert [["received", "600"], ["unaccounted", "0"]] == text[-2:]


def test_a_median_of_fewer_trials_than_are_valid_says_of_how_many() -> None:
    """One of two trials read everything at once, and has no rate."""
    at_once = receiver_counts(2, last_ns=START_NS + 10**6)
    workers = (worker("sender", sender_counts(2)), worker("receiver", at_once))
    two = record(2, of=trial(repetition=2), workers=workers)
    (point,) = chapter(record(2), two).points
    assert "2 pps (n = 1)" == point_cells(point)[3]


def test_what_a_line_was_read_from_is_not_broken_within_a_name() -> None:
    """Of a narrow terminal the heads of the columns give way."""
    points = [paced(10_000, point=f"a-long-variant,buffer={size}") for size in ("32KiB", "1MiB")]
    records = [replace(lossy(1000, LOST, 250), trial=point) for point in points]
    for table in ledger_tables(chapter(*records, of=experiment(points=points)), 80):
        assert "Δ snmp.Udp.RcvbufErrors" in printed(table, width=80)


def test_the_ledger_of_an_invalid_trial_says_so() -> None:
    """A point without a valid trial shows where its packets went, marked."""
    (table,) = ledger_tables(chapter(record(900, of=paced())), 120)
    assert "all #1 (invalid)" in printed(table, width=120)


def test_a_remainder_keeps_its_sign() -> None:
    """What the ledger cannot place is printed with its sign, never rounded away."""
    over, under = record(1000, 990), record(1000, 1003)
    (plus,), (minus,) = chapter(over).results, chapter(under).results
    assert ("+10", "-3") == (packets_cell(plus, "unaccounted"), packets_cell(minus, "unaccounted"))
    (cable,) = chapter(record(1000, built_in_lab=False)).results
    assert "not observable" == packets_cell(cable, "link")


def test_merged_packets_that_were_lost_are_an_interval() -> None:
    """Where one count of the kernel may be many packets both ends are shown."""
    (good,) = chapter(record()).results
    assert good.ledger is not None
    entry = Entry("udp_rcvbuf", 1200, "x", at_most=40_000)
    merged = replace(good, ledger=replace(good.ledger, entries=(entry,)))
    assert "1 200 to 40 000" == packets_cell(merged, "udp_rcvbuf")


def test_a_long_finding_is_indented() -> None:
    """Its later lines stand below its first word, and a finding of many trials counts them."""
    finding = Finding("note", "a word " * 20, "left")
    records = [record(of=trial(repetition=n), findings=(finding,)) for n in range(1, 6)]
    one = chapter(*records, of=experiment(repetitions=5))
    first, *later = printed(findings_table(one)).splitlines()
    assert first.startswith("note  left: a word")
    assert later[0].startswith("      word a word")
    assert "[5 trials]" in printed(findings_table(one), width=400)


def test_an_expectation_shows_its_answer_and_its_numbers() -> None:
    """Answer, what was expected, and what was measured."""
    of = experiment(expectation("received_packets", ">", "5000"))
    text = printed(verdicts_table(chapter(record(), of=of)))
    assert ["no", "received_packets", ">", "5000", "1", "000", "is", "not", ">", "5", "000"] == (
        rows(text)[2]
    )


def test_odd_texts_are_shown_as_they_are() -> None:
    """No bracket of a user is taken for markup."""
    of = experiment(points=[trial(ODD)], question=ODD)
    one = chapter(record(of=replace(trial(ODD))), of=of)
    text = shown(one, 300)
    assert text.count(ODD) >= 2


def test_without_colour_every_doubt_is_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR leaves no colour in the output, and colour only repeats what a word says."""
    monkeypatch.setenv("NO_COLOR", "1")
    of = experiment(expectation("received_packets", ">", "5000"))
    out = StringIO()
    console = Console(file=out, width=80, highlight=False, force_terminal=True)
    print_chapter(console, chapter(record(), of=of))
    assert "\x1b[3" not in out.getvalue()
    assert " no " in out.getvalue()

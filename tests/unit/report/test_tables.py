"""The tables of the terminal: every number whole at 80 columns, every doubt in words."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from analysis.build import (
    LOAD_MS,
    START_NS,
    expectation,
    experiment,
    failed,
    hog,
    lossy,
    paced,
    receiver_counts,
    record,
    sender_counts,
    series,
    shared,
    trial,
    unlogged,
    worker,
)
from analysis.test_checks import clocks, sampled
from analysis.test_checks import findings as said_by
from analysis.test_shared_hosts import Mixture
from rich.table import Table

from report.stored import ODD, printed, stored, swept
from report.test_summary import AT_ONCE
from udpbench.analysis.checks import clock_checks, offered_load
from udpbench.analysis.comparison.comparisons import Comparison
from udpbench.control.phase import path_plan
from udpbench.control.trial_state import late
from udpbench.judged_run import Chapter, judged
from udpbench.model.experiment import Experiment
from udpbench.model.limits import LEDGER_STAGES
from udpbench.model.record import Finding, Histogram, TrialRecord
from udpbench.model.result import Bottleneck, LedgerEntry
from udpbench.report.sheets import (
    LEFT_OUT_BLOCKS,
    NOT_REPLACED,
    TOGETHER,
    comparison_cells,
    legends,
    packets_cell,
    point_cells,
)
from udpbench.report.summary import diagnosed, findings_of, is_aside, left_out, merged
from udpbench.report.tables import (
    closing,
    comparison_parts,
    findings_parts,
    findings_table,
    ledger_tables,
    points_table,
    print_chapter,
    verdicts_table,
)
from udpbench.report.terminal import Terminal

LOST = {"right": {"snmp.Udp.RcvbufErrors": 250, "snmp.Udp.InErrors": 250}}


def chapter(*records: TrialRecord, of: Experiment | None = None) -> Chapter:
    """Return the one chapter of an experiment with these trials."""
    (only,) = judged([of if of is not None else experiment()], records)
    return only


def shown(chapter_: Chapter, width: int = 80, everything: bool = False) -> str:
    """Return a whole chapter as printed."""
    out = StringIO()
    print_chapter(Terminal(file=out, width=width), chapter_, everything)
    return out.getvalue()


def rows(text: str) -> list[list[str]]:
    """Return the words of each line."""
    return [line.split() for line in text.splitlines()]


def table(chapter_: Chapter, width: int = 80) -> Table:
    """Return the results where all of their columns fit."""
    return points_table(chapter_, width)


def test_a_narrow_terminal_has_every_name_and_the_rate() -> None:
    """In a table that is not split: what is beside the rate gives way, and no number is cut."""
    points = [paced(point=f"buffer={size}KiB") for size in (8, 200)]
    of = experiment(points=points, repetitions=3)
    records = [
        record(400_000 + n, of=replace(point, repetition=n), series=series([400_000 + n]))
        for point in points
        for n in (1, 2, 3)
    ]
    chapter_ = chapter(*records, of=of)
    for width in (60, 70, 80):
        text = printed(points_table(chapter_, width), width=width)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width
        assert 1 == text.count("results")
        assert 2 == text.count("400.0 kpps [400.0 – 400.0]")
        for name in ("buffer=8KiB", "buffer=200KiB"):
            assert name in text
    assert "spread" in printed(points_table(chapter_, 80), width=80)
    assert "spread" not in printed(points_table(chapter_, 60), width=60)


def test_the_diagnosis_speaks_first() -> None:
    """Where packets ended, why, and what helps; of several points with the same one once."""
    text = shown(chapter(lossy(1000, LOST, 250)), 200)
    assert "Lost at udp_rcvbuf: udpbench does not know why; the socket's receive" in text
    assert text.index("Lost at") < text.index("results")
    for long, head in (("", "a, b, c, d:"), ("x" * 30, "4 points:")):
        of = experiment(points=[paced(point=name + long) for name in "abcd"], repetitions=1)
        names = [lossy(1000, LOST, 250, of=each) for each in of.points]
        (line, *more) = diagnosed(chapter(*names, of=of))
        assert (True, []) == (line.startswith(f"{head} Lost at udp_rcvbuf:"), more)
    of = experiment(points=[paced(point=name) for name in "abcd"], repetitions=1)
    names = [lossy(1000, LOST, 250, of=each) for each in of.points]
    few = diagnosed(chapter(names[0], record(of=paced(point="b")), of=of))
    assert ["a: Lost at udp_rcvbuf", "b: Nothing was lost: "] == [line[:21] for line in few]


def test_who_is_late_without_a_loss_is_not_said_to_be_well() -> None:
    """That nothing was lost is no reason why it falls behind."""
    late = Bottleneck("reader_work", "certain", "", 0, "the receiver falls behind: x", "do less")
    assert "Nothing was lost yet: the receiver falls behind: x. Do less." == late.sentence
    assert replace(late, what="it keeps up").sentence.startswith("Nothing was lost: it keeps up.")


def test_numbers_in_what_is_said_of_several_points_say_whose_they_are() -> None:
    """The remedy of one buffer is not that of another."""
    of = experiment(points=[paced(point=name) for name in "ab"], repetitions=1)
    plain = chapter(*(lossy(1000, LOST, 250, of=paced(point=name)) for name in "ab"), of=of)
    points = []
    for point in plain.points:
        (result,) = point.results
        cause = replace(result.diagnosis[0], what=f"buffer of {point.name}")
        points.append(replace(point, results=(replace(result, diagnosis=(cause,)),)))
    (line,) = diagnosed(replace(plain, points=tuple(points)))
    assert line.startswith("a, b (numbers of a): Lost at udp_rcvbuf: buffer of a")


def test_a_loss_that_is_only_bounded_is_a_loss() -> None:
    """In the headline as in the table."""
    mixture = Mixture(driver="virtio_net").lose("link", 900)
    plain = mixture.record()
    record_ = replace(plain, trial=replace(plain.trial, traffic=paced(9000).traffic))
    (line,) = diagnosed(chapter(record_))
    assert line.startswith("Lost at link or rx_ring: 900 packets, link 0 to 900, rx_ring 0 to 900;")
    assert "10.00 %" in shown(chapter(record_), 200)


def test_what_is_said_of_the_median_trial_does_not_hide_the_losses_of_others() -> None:
    """One of three lost packets; and one of two points."""
    of = experiment(points=[paced(point=name) for name in "ab"], repetitions=3)
    trials = [(name, n) for name in "ab" for n in (1, 2, 3)]
    records = [
        lossy(1000, LOST if each == ("a", 2) else {}, 250 if each == ("a", 2) else 0,
              of=paced(point=each[0], repetition=each[1]))
        for each in trials
    ]  # fmt: skip
    (line,) = diagnosed(chapter(*records, of=of))
    assert line.startswith("a, b: Nothing was lost: ")
    assert line.endswith(" 1 of 6 trials lost packets, up to 25.00 %, most of it at udp_rcvbuf.")
    (quiet,) = diagnosed(chapter(*records[3:], of=of))
    assert "But" not in quiet


def test_a_points_row_has_the_medians_of_its_valid_trials() -> None:
    """Offered and delivered rate, loss and spread are those of the judge."""
    chapter_ = chapter(lossy(1000, LOST, 250, series=series([600, 150, 150])))
    row = rows(printed(points_table(chapter_)))[2]
    assert ["all", "1/1", "1.0", "kpps", "750", "pps", "25.00", "%", "–"] == row


def test_three_trials_have_an_interval() -> None:
    """The interval of the median stands beside it, in its unit."""
    of, records = swept([500])
    text = printed(points_table(chapter(*records, of=of)))
    assert "1.5 kpps [1.5 – 1.5]" in text


def test_an_invalid_trial_is_struck_out_and_in_no_median() -> None:
    """Its row says so in a word, its cells are struck, its reason is the first finding."""
    short = record(900, of=paced(repetition=2))
    chapter_ = chapter(record(1000, of=paced()), short, of=experiment(repetitions=2))
    styles = {cell.style for column in table(chapter_).columns for cell in [*column.cells][1:]}
    text = rows(printed(points_table(chapter_)))
    assert {"strike"} == styles
    assert ["all", "1/2"] == text[2][:2]
    assert ["#2", "invalid"] == text[3][:2]
    assert printed(findings_table(findings_of(chapter_))).startswith("invalid  ")


def test_rates_that_are_struck_out_are_in_no_median_and_loss_is() -> None:
    """The trial is valid, says so in its own row, and its reason stands among the findings."""
    busy = shared(LOAD_MS + 400, hog(400))
    busy = replace(busy, trial=trial(repetition=2))
    chapter_ = chapter(shared(LOAD_MS), busy, of=experiment(repetitions=2))
    text = rows(printed(points_table(chapter_, 120), width=120))
    assert ["all", "2/2", "1.0", "kpps", "1.0", "kpps", "(n", "=", "1)"] == text[2][:9]
    assert ["#2", "struck", "out", "–", "–", "0.00", "%", "–"] == text[3]
    assert printed(findings_table(findings_of(chapter_))).startswith(
        "struck  machine: CPU 0: other programs used"
    )


def test_what_is_left_out_of_medians_is_said_below_them() -> None:
    """Which trials, what they are, and why; nothing where all are in, or none was tried."""
    of = experiment(repetitions=5)
    at_once = record(2, of=trial(repetition=5), workers=AT_ONCE)
    records = [record(900, of=paced(repetition=2)), failed(of=trial(repetition=3)), at_once]
    busy = replace(shared(LOAD_MS + 400, hog(400)), trial=trial(repetition=4))
    chapter_ = chapter(record(of=paced()), busy, *records, of=of)
    assert [
        "all #2: invalid: sender-bound: the senders did not reach the intended load",
        "all #3: failed: it died",
        "all #4: struck out (rates alone; its loss counts): other programs used CPUs of the load",
        "all #5: its delivered rate is unknown: everything was read at once",
    ] == left_out(chapter_)
    text = " ".join(shown(chapter_).split())
    assert "left out of medians: all #4: struck out (rates alone; its loss counts)" in text
    for plain in (record(), failed("skipped", "needs 8 CPUs"), record(2, workers=AT_ONCE)):
        assert [] == left_out(chapter(plain))


def test_findings_of_several_cpus_are_joined() -> None:
    """With the range of their values; of other trials, hosts or texts each stays."""
    busy = Finding("struck", "shared", "left: CPU 0", "4.00 %, most by hog (pid 7)", "5 %", "stop")
    other = replace(busy, where="left: CPU 2", value="9.00 %, most by pig (pid 8)")
    (both,) = merged([(busy, ("a#1",)), (other, ("a#1",))])
    assert (
        "left: CPUs 0, 2: shared (4.00 – 9.00 %, most by pig (pid 8)); expected: 5 %; stop"
        == str(both[0])
    )
    apart = [
        (busy, ("a#1",)),
        (other, ("a#2",)),
        (replace(busy, where="right: CPU 0"), ("a#1",)),
        (replace(busy, where="left: CPU 3", limit="1 %"), ("a#1",)),
        (replace(busy, where="left: NIC"), ("a#1",)),
    ]
    assert apart == list(merged(apart))
    ranges = [(replace(busy, value="4 – 7 %"), ("a#1",)), (replace(other, value="9 %"), ("a#1",))]
    assert ["4 – 9 %"] == [finding.value for finding, _ in merged(ranges)]
    assert ["4.00 – 9 %, most by pig"] == [
        finding.value
        for finding, _ in merged(
            [
                (replace(busy, value="4.00 – 7.50 %, most by hog"), ("a#1",)),
                (replace(other, value="5.00 – 9 %, most by pig"), ("a#1",)),
            ]
        )
    ]
    unlike = [(replace(busy, value="x"), ("a#1",)), (replace(other, value="y"), ("a#1",))]
    assert ["x; y"] == [finding.value for finding, _ in merged(unlike)]


def test_more_findings_than_anybody_reads_are_counted() -> None:
    """What is worst is listed, whatever comes first."""
    notes = tuple(Finding("note", f"w{number}") for number in range(3000))
    chapter_ = chapter(record())
    (point,) = chapter_.points
    worst = replace(point.results[0], findings=(*notes, Finding("invalid", "no")))
    chapter_ = replace(chapter_, points=(replace(point, results=(worst,)),))
    (first, *_), *_, (last, names) = findings_of(chapter_)
    assert ("no", "1001 further findings are not listed; --json has them") == (
        first.what,
        last.what,
    )
    assert (worst.trial.name,) == tuple(names)


def test_blocks_that_are_left_out_are_counted() -> None:
    """With the reason below the table, where any is."""
    plain = Comparison("a", "b", "delivered_pps", 0.03, "cannot tell", blocks=6)
    assert "6" == comparison_cells(plain)[-1]
    lacking = replace(plain, lost=2)
    assert "6 (2 left out)" == comparison_cells(lacking)[-1]
    for each, explained in ((plain, False), (lacking, True)):
        assert explained is (LEFT_OUT_BLOCKS in printed(*comparison_parts([each]), width=200))


def test_why_blocks_are_not_run_again_and_why_an_interval_is_wider_than_alone() -> None:
    """Only below comparisons of which it is so."""
    plain = Comparison("a", "b", "udp_rcvbuf", 0.001, "cannot tell", low=-0.06, high=0.01, blocks=7)
    assert [] == list(legends([replace(plain, lost=0)]))
    assert [LEFT_OUT_BLOCKS] == list(legends([replace(plain, lost=5)]))
    assert [LEFT_OUT_BLOCKS, NOT_REPLACED] == list(legends([replace(plain, lost=7)]))
    assert [LEFT_OUT_BLOCKS] == list(legends([replace(plain, lost=7, paired=False)]))
    assert [TOGETHER.format(2)] == list(legends([plain, plain]))
    assert [] == list(legends([plain, plain], together=False)), "a tune decides one by one"
    assert [] == list(legends([plain, replace(plain, low=None)]))


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
    chapter_ = chapter(*records, of=of)
    for width, heads in ((80, []), (91, []), (92, ["pacing p99"]), (140, ["pacing p99"])):
        assert heads == [str(column.header) for column in table(chapter_, width).columns][6:]
    text = rows(printed(points_table(chapter_, 92), width=92))
    assert [["127", "ns"], ["127", "ns"]] == [text[2][-2:], text[3][-2:]]


def test_a_failed_trial_shows_its_error() -> None:
    """The row says failed, and the error's own message stands below with the trial's name."""
    text = shown(chapter(record(), failed(of=trial(repetition=2)), of=experiment(repetitions=2)))
    assert ["#2", "failed", "–", "–", "–", "–"] in rows(text)
    assert "right: failed: it died [#2]" in text


def test_a_skipped_trial_shows_its_reason() -> None:
    """A host that lacks something is a note, and the row is not struck out."""
    chapter_ = chapter(failed("skipped", "needs 8 CPUs, there are 2"))
    styles = {cell.style for column in table(chapter_).columns for cell in [*column.cells][1:]}
    assert {"dim"} == styles
    assert "note  right: skipped: needs 8 CPUs, there are 2 [#1]" in shown(chapter_)


def test_where_nothing_was_measured_it_says_so() -> None:
    """Also where a need is not met of the other trials."""
    skipped = failed("skipped", "needs 8 CPUs", of=trial(repetition=2))
    chapter_ = chapter(failed("unavailable", "no CPU 7"), skipped, of=experiment(repetitions=2))
    first = "nothing was measured: all trials were skipped: no CPU 7"
    assert first in shown(chapter_).splitlines()
    assert "nothing was measured" not in shown(chapter(skipped, of=experiment(repetitions=1)))


def test_where_no_trial_ran_it_says_so() -> None:
    """A run that was killed before its first trial has no table."""
    assert ["", "details of example", "no trial is stored"] == shown(chapter()).splitlines()


def test_where_some_trials_never_ran_it_says_how_many() -> None:
    """What an interrupt left out is told beside what there is."""
    text = shown(chapter(record(), of=experiment(repetitions=7)))
    assert "1 of 7 trials are stored" in text


def test_results_of_the_lab_are_labelled(tmp_path: Path) -> None:
    """Nobody takes namespaces of one machine for hardware."""
    label = "built-in lab: namespaces of one machine, no hardware"
    for built_in, times in ((True, 1), (False, 0)):
        run = stored(tmp_path / str(built_in), [record(built_in_lab=built_in)])
        assert times == "".join(map(str, closing(run, 80))).count(label)


@pytest.mark.parametrize("width", [80, 100, 200])
def test_no_number_is_lost_on_a_narrow_terminal(width: int) -> None:
    """Twelve long-named points: every rate and every count of every ledger is there whole."""
    points = [trial(f"a-rather-long-variant,size={size}B") for size in range(12)]
    records = [record(10**9 + n, of=point) for n, point in enumerate(points)]
    chapter_ = chapter(*records, of=experiment(points=points))
    text = shown(chapter_, width)
    assert text.count("1000.000 Mpps") in (12, 24)
    missing = [n for n in range(12) if text.count(f"1 000 000 {n:03d}") < 2]
    assert [] == missing
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width


def test_the_ledger_shows_stages_that_lost_packets_or_could_not_be_observed() -> None:
    """One that lost any at one point is there at all points; the last line says what is missing."""
    points = [trial("small"), trial("large")]
    of = experiment(points=points)
    lost, whole = replace(lossy(1000, LOST, 250), trial=points[0]), record(1000, of=points[1])
    (table, source, note) = ledger_tables(chapter(lost, whole, of=of), 60)
    words = [row[0] for row in rows(printed(table, width=60)) if row]
    assert ["udp_rcvbuf"] == [word for word in words if word in LEDGER_STAGES]
    for name in ("intended", "sent", "received", "unaccounted"):
        assert 1 == words.count(name)
    assert str(source).startswith("udp_rcvbuf: Δ snmp.Udp.RcvbufErrors")
    assert "Stages that lost nothing are omitted: udpbench show --all" == str(note)


def test_points_that_do_not_fit_side_by_side_are_below_each_other() -> None:
    """With where the rest of their packets went, also what nothing explains; in no second table."""
    points = [trial(f"point-{n}") for n in range(6)]
    records = [replace(lossy(1000, LOST, 250 + n), trial=of) for n, of in enumerate(points)]
    (table, *_) = ledger_tables(chapter(*records, of=experiment(points=points)), 80)
    text = printed(table, width=80)
    assert max(map(len, text.splitlines())) <= 80
    for n in range(6):
        assert f"point-{n} #1" in text
        assert f"udp_rcvbuf 250, unaccounted +{n}" in text or n == 0


def test_a_stage_that_is_not_observable_is_omitted_where_nothing_was_lost() -> None:
    """With every packet received, none can have ended there."""
    whole = shown(chapter(record(1000, built_in_lab=False)))
    assert "not observable" not in whole
    assert "tx_qdisc" not in whole
    every = shown(chapter(record(1000, built_in_lab=False)), everything=True)
    assert ["link", "not", "observable"] in [row[:3] for row in rows(every)]
    lost = shown(chapter(record(1000, 990, built_in_lab=False)))
    assert "link" in lost


def test_all_stages_are_shown_when_asked_for() -> None:
    """Those without a loss too, and then there is nothing to say about any left out."""
    text = shown(chapter(record()), everything=True)
    stages = {row[0] for row in rows(text) if row}
    judged = chapter(record()).results[0].ledger
    assert judged is not None
    assert {entry.stage for entry in judged.entries} <= stages
    assert "left out" not in text


def test_an_experiment_of_two_points_fits_one_screen() -> None:
    """Forty lines at 80 columns, with a loss, a finding and three expectations."""
    points = [trial("small"), trial("large")]
    of = experiment(*(3 * [expectation("unaccounted", "==", "0")]), points=points)
    finding = Finding("note", "a word " * 20)
    lost = replace(lossy(1000, LOST, 250), trial=points[0], findings=(finding,))
    text = shown(chapter(lost, record(1000, of=points[1]), of=of))
    assert len(text.splitlines()) <= 40


def test_the_ledger_lists_every_stage_from_intended_to_unaccounted() -> None:
    """Each line has its packets and the counters they were read from."""
    (table, *sources) = ledger_tables(chapter(lossy(1000, LOST, 250)), 200, everything=True)
    text = rows(printed(table, width=200))
    assert ["intended", "1", "000"] == text[2]
    assert ["received", "750"] == text[-2]
    assert ["unaccounted", "0"] == text[-1]
    assert ["udp_rcvbuf", "250"] in text
    assert any(str(line).startswith("udp_rcvbuf: Δ snmp.Udp.RcvbufErrors;") for line in sources)


def test_the_ledger_of_a_log_closes() -> None:
    """What was read and not logged ended there, and is not received as well."""
    (table, _) = ledger_tables(chapter(unlogged(400)), 200, everything=True)
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


def test_the_ledger_of_an_invalid_trial_says_so() -> None:
    """A point without a valid trial shows where its packets went, marked."""
    (table, *_) = ledger_tables(chapter(record(900, of=paced())), 120)
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
    entry = LedgerEntry("udp_rcvbuf", 1200, "x", at_most=40_000)
    merged = replace(good, ledger=replace(good.ledger, entries=(entry,)))
    assert "1 200 to 40 000" == packets_cell(merged, "udp_rcvbuf")


def test_a_long_finding_is_indented() -> None:
    """Its later lines stand below its first word, and a finding of many trials counts them."""
    finding = Finding("note", "a word " * 20, "left")
    records = [record(of=trial(repetition=n), findings=(finding,)) for n in range(1, 6)]
    chapter_ = chapter(*records, of=experiment(repetitions=5))
    first, *later = printed(findings_table(findings_of(chapter_))).splitlines()
    assert first.startswith("note  left: a word")
    assert later[0].startswith("      word a word")
    assert "[5 trials]" in printed(findings_table(findings_of(chapter_)), width=400)


def test_what_concerns_the_number_stands_first_and_the_rest_is_counted() -> None:
    """Clocks, the controller and notes are one line, unless all is asked for, or there is one."""
    (bound,) = said_by(offered_load.receiver_not_saturated, record(1000))
    receiver = Finding("warning", "the socket buffer is smaller", "right.receiver0")
    (apart,) = said_by(clock_checks.clocks_apart, clocks(6_500_000, 6 * 10**6))
    slow = late(path_plan(()), 7000)
    notes = [Finding("note", f"note {n}", "left") for n in "ab"]
    every = (*notes, apart, slow, receiver, bound)

    def lines(*findings: Finding, everything: bool = False) -> list[str]:
        of = chapter(record(of=paced(), findings=findings))
        shown_parts = findings_parts(of, everything)
        return [
            line.strip() for part in shown_parts for line in printed(part, width=400).splitlines()
        ]

    text = lines(*every)
    assert ["the socket", "lower boun"] == [line.split(": ", 1)[1][:10] for line in text[:2]]
    assert "2 further warnings and 2 further notes: udpbench show --all" == text[-1]
    assert 3 == len(text)
    assert 6 == len(lines(*every, everything=True))
    (alone,) = lines(notes[0])
    assert alone.startswith("note")
    assert "2 further notes: udpbench show --all" == lines(*notes)[-1]
    assert "1 further warning and 1 further note: udpbench show --all" == lines(notes[0], slow)[-1]


def test_what_checks_say_of_clocks_and_the_controller_is_set_aside() -> None:
    """By their kind; a warning of a worker never is."""
    (apart,) = said_by(clock_checks.clocks_apart, clocks(6_500_000, 6 * 10**6))
    (gap,) = said_by(clock_checks.samples_missing, sampled(100, 600, 100))
    assert ["warning"] * 3 == [each.severity for each in (apart, gap, late(path_plan(()), 7000))]
    assert all(map(is_aside, (apart, gap, late(path_plan(()), 7000))))
    assert not is_aside(Finding("warning", "failed calls"))


def test_an_expectation_shows_its_answer_and_its_numbers() -> None:
    """Answer, what was expected, and what was measured."""
    of = experiment(expectation("received_packets", ">", "5000"))
    text = printed(verdicts_table(chapter(record(), of=of)))
    assert ["no", "received_packets", ">", "5000", "1", "000", "is", "not", ">", "5", "000"] == (
        rows(text)[2]
    )


def test_the_trial_that_misses_an_expectation_has_its_ledger_and_its_reason_shown() -> None:
    """The median trial lost something else: its numbers explain nothing of what failed."""

    def lost(number: int, packets: int, point: str) -> TrialRecord:
        moves = {"right": dict.fromkeys(LOST["right"], packets)}
        return lossy(1000, moves, packets, of=replace(paced(point=point), repetition=number))

    packets = {"a": (0, 7, 250), "b": (5, 5, 5)}
    records = [lost(n, each, p) for p in packets for n, each in enumerate(packets[p], start=1)]
    of = experiment(
        expectation("udp_rcvbuf[a]", "<", "100"),
        expectation("udp_rcvbuf[a]", "<", "3"),
        points=[paced(point=name) for name in "ab"],
        repetitions=3,
    )
    both = chapter(*records, of=of)
    text = shown(both, 120)
    missed = "the trial by which an expectation does not hold"
    assert f"ledger (packets of the median trial, or of {missed})" in text
    assert ["a", "#3", "b", "#2"] in [row[:4] for row in rows(text)]
    assert ["udp_rcvbuf", "250", "5"] in [row[:3] for row in rows(text)]
    alone = replace(both, points=both.points[:1])
    assert f"ledger (packets of {missed})" in shown(alone, 120)
    held = replace(both, verdicts=both.verdicts[:0])
    assert "ledger (packets of the median trial)" in shown(held, 120)


def test_odd_texts_are_shown_as_they_are() -> None:
    """No bracket of a user is taken for markup."""
    of = experiment(points=[trial(ODD)], question=ODD)
    chapter_ = chapter(record(of=replace(trial(ODD))), of=of)
    text = shown(chapter_, 300)
    assert text.count(ODD) >= 2


def test_without_colour_every_doubt_is_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR leaves no colour in the output, and colour only repeats what a word says."""
    monkeypatch.setenv("NO_COLOR", "1")
    of = experiment(expectation("received_packets", ">", "5000"))
    out = StringIO()
    console = Terminal(file=out, width=80, force_terminal=True)
    print_chapter(console, chapter(record(), of=of))
    assert "\x1b[3" not in out.getvalue()
    assert " no " in out.getvalue()


def test_what_cannot_be_observed_is_one_line_and_others_packets_another() -> None:
    """A cable and a ring without a counter have one number together; others' stand below."""
    lost = record(1000, 990, moves={"right": {"snmp.Udp.NoPorts": 190}}, built_in_lab=False)
    right = replace(lost.facts["right"], driver="virtio_net")
    quiet = record(1000, of=trial("quiet"), built_in_lab=False)
    of = experiment(points=[trial(), trial("quiet")])
    chapter_ = chapter(replace(lost, facts={**lost.facts, "right": right}), quiet, of=of)
    (table, *sources) = ledger_tables(chapter_, 200)
    text = rows(printed(table, width=200))
    assert ["udp_no_port", "0", "to", "10", "0"] == next(r for r in text if "udp_no_port" in r)[:5]
    hidden = next(row for row in text if "rx_ring" in row)
    assert ["link", "or", "rx_ring", "0", "to", "10", "0"] == hidden
    assert any(str(line).startswith("link or rx_ring: not observable:") for line in sources)
    assert ["others'", "packets", "180", "0"] == text[-1]

"""The live view on a terminal: what it shows at 80 and 200 columns, after a resize, uncoloured."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO

import pytest
from analysis.build import BASE, series, specs, trial
from rich.console import Console

from report.progress import counters, measuring, sampled
from report.stored import printed
from udpbench.analysis.motion import CpuShare
from udpbench.model.experiment import Search, Traffic, Trial, trial_ns
from udpbench.model.limits import SECOND_NS
from udpbench.model.result import GoalBounds, Progress
from udpbench.report.live import live_view
from udpbench.report.live_rates import Moving, QueueRate, Watch
from udpbench.report.screen import (
    Screen,
    busiest_first,
    clock,
    done,
    headline,
    queue_row,
    titled,
    view,
)
from udpbench.report.screen import counters as counters_table

MOVED = {
    "right": {
        "snmp.Udp.RcvbufErrors": BASE + 12_345,
        "ethtool.receive0.rx_queue_0_xdp_packets": BASE + 40_000,
    },
    "machine": {"cpu.0.softirq_ns": BASE + 40, "cpu.0.idle_ns": BASE + 60},
}


def busy(of: Trial | None = None) -> Watch:
    """Return a watch in the middle of a measured phase that loses packets."""
    watch = Watch([trial(), trial(repetition=2)])
    common = {} if of is None else {"trial": of}
    watch.add(measuring(**common), 0)
    both = [
        *sampled(series([40_000], of_worker="left.sender0", field="sent_packets")),
        *sampled(series([27_655])),
    ]
    for event in both:
        watch.add(event, 0)
    for snapshots in (counters(0), counters(1, **MOVED)):
        watch.add(Progress("sample", "", trial(), 1, 2, snapshots=snapshots), 0)
    return watch


def shown(watch: Watch, width: int, height: int = 40) -> list[str]:
    """Return the lines of the view."""
    text = printed(view(watch, SECOND_NS // 2, width, height), width=width)
    return [line.rstrip() for line in text.splitlines()]


def words(lines: list[str]) -> list[list[str]]:
    """Return the words of each line."""
    return [line.split() for line in lines]


def test_80_columns_show_everything_below_each_other() -> None:
    """Trial, phase, time left; workers, drops, queues, CPUs; then the counters."""
    lines = words(shown(busy(), 80))
    assert ["[1/2]", "example#1", "measured", "1", "s", "of", "1s", "0:05", "left"] == lines[0]
    assert [
        ["send", "left.sender0", "40.0", "kpps", "0.0", "MiB/s", "CPU", "1"],
        ["receive", "right.receiver0", "27.7", "kpps", "0.0", "MiB/s", "CPU", "0"],
        ["drops", "udp_rcvbuf", "12.3", "kpps", "12", "345", "so", "far"],
        ["queues", "right", "rx-0", "40.0", "kpps", "CPU", "0"],
        ["CPUs", "machine", "0", "40", "%", "busy", "40", "%", "in", "softirq"],
        ["counters", "per", "second"],
        ["right", "ethtool.receive0.rx_queue_0_xdp_packets", "40", "000"],
        ["right", "snmp.Udp.RcvbufErrors", "12", "345"],
    ] == lines[2:]


def test_a_very_narrow_terminal_keeps_names_and_rates_whole() -> None:
    """What belongs to a rate gives way to it."""
    lines = words(shown(busy(), 44))
    assert ["send", "left.sender0", "40.0", "kpps"] == lines[2]
    assert ["receive", "right.receiver0", "27.7", "kpps"] == lines[3]


def test_a_count_has_a_deadline_and_no_length() -> None:
    """A burst takes as long as it takes."""
    burst = trial(traffic=Traffic(count_packets=200))
    assert "measured 1 s of at most 1s" in headline(busy(burst), burst, 0, 80)


def test_200_columns_show_the_counters_beside() -> None:
    """What needs eight lines below needs none beside."""
    lines = shown(busy(), 200)
    assert 2 + 5 == len(lines)
    assert lines[2].endswith("per second")
    assert lines[4].endswith("12 345")


@pytest.mark.parametrize("width", [20, 80, 119, 120, 200])
@pytest.mark.parametrize("height", [4, 10, 23])
def test_the_view_never_leaves_the_terminal(width: int, height: int) -> None:
    """No line is wider and there are no more than fit, whatever the terminal."""
    of = trial("a-rather-long-variant,size=1400B,and-more-of-it=yes")
    lines = shown(busy(of), width, height)
    assert max(map(len, lines)) <= width
    assert len(lines) <= height


def test_of_many_rows_some_are_shown_and_the_sum() -> None:
    """Twenty workers: eight of them, how many more, and all together."""
    rows = [(f"right.receiver{n}", "1 pps", "") for n in range(20)]
    titled_rows = list(titled("receive", rows, [("all 20", "20 pps", "")]))
    assert ("receive", "right.receiver0", "1 pps", "") == titled_rows[0]
    assert [("", "and 12 more", "", ""), ("", "all 20", "20 pps", "")] == titled_rows[8:]


def test_one_worker_has_no_sum() -> None:
    """It would only say the same again."""
    assert 1 == len(list(titled("send", [("left.sender0", "1 pps", "")], [("all 1", "", "")])))


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [(0, "0:00"), (1, "0:01"), (65 * SECOND_NS, "1:05"), (7205 * SECOND_NS, "2:00:05")],
)
def test_time_reads_as_on_a_clock(time_ns: int, text: str) -> None:
    """Minutes and seconds, hours where there are any."""
    assert text == clock(time_ns)


def test_a_resumed_run_counts_what_is_done_already() -> None:
    """The number of the trial is that of the whole run, the time left that of what is to be run."""
    of = trial()
    watch = Watch([of, of])
    step = Progress("step", "facts", trial=of, index=3, total=4)
    watch.add(step, 0)
    line = headline(watch, of, 0, 80)
    left = clock(2 * trial_ns(of))
    assert (True, True) == (line.startswith("[3/4] "), line.endswith(f"{left} left"))
    assert 2 == done(watch)


def test_where_comparisons_decide_totals_are_a_range() -> None:
    """What is certain, and what there is at most; a further block adds its time."""
    of = trial()
    watch = Watch([of, of])
    watch.add(Progress("step", "facts", trial=of, index=1, total=2, total_at_most=6), 0)
    line = headline(watch, of, 0, 90)
    left = clock(2 * trial_ns(of))
    assert (True, True) == (line.startswith("[1/2–6] "), line.endswith(f"at least {left} left"))
    watch.add(Progress("step", "facts", trial=of, index=2, total=6, total_at_most=6), 0)
    line = headline(watch, of, 0, 90)
    assert line.startswith("[2/6] ")
    assert clock(6 * trial_ns(of)) in line
    assert "at least" not in line


def test_a_search_shows_its_bracket_in_place_of_the_trials_done() -> None:
    """On one line, until another search has its turn; only what has ended is said for good."""
    of = trial(search=Search(), search_trial=2)
    watch = Watch([of])
    watch.add(Progress("step", "facts", trial=of, index=2, total=2), 0)
    bounds = (GoalBounds(0.001, "unfinished", 4e5, 4e5, 5e5),)
    known = Progress("search", "x#1: at most 9s left", of, bounds=bounds, left_ns=9 * SECOND_NS)
    known = replace(known, range_pps=(1e3, 1e6))
    watch.add(known, 0)
    bar = "x#1 |-----------====---------------| 0.1% lost: 400.0 – 500.0 kpps; at most 9s left"
    assert bar == shown(watch, 90)[1]
    assert 60 == len(shown(watch, 60)[1])
    other = trial("other", search=Search(), search_trial=1)
    watch.add(Progress("step", "facts", trial=other, index=3, total=3), 0)
    assert "lost:" not in "\n".join(shown(watch, 90))
    terminal = Terminal(90)
    with Screen(terminal, Watch([of])) as screen:
        tell(screen, known, replace(known, text="x#1: done", ended=True))
    assert 1 == terminal.out.getvalue().count("0.1% lost: 400.0 – 500.0 kpps; done\n")
    assert "9s left\n" not in terminal.out.getvalue()


def test_before_a_trial_nothing_is_drawn() -> None:
    """Agents start first."""
    assert [""] == shown(Watch(), 80)


def test_counters_without_room_are_left_out() -> None:
    """No title without a line below it."""
    assert [0, 2] == [counters_table([Moving("right", "x", 1.0)], n).row_count for n in (1, 2)]


def test_of_many_cpus_the_busiest_come_first() -> None:
    """Few stand in their order."""
    shares = {f"machine {n}": CpuShare(n / 100, 0.0) for n in range(20)}
    assert "machine 19" == busiest_first(shares)[0][0]
    few = {name: shares[name] for name in ("machine 0", "machine 9")}
    assert [*few] == [name for name, _ in busiest_first(few)]


class Terminal(Console):
    """A terminal whose size a test sets."""

    def __init__(self, width: int) -> None:
        self.out = StringIO()
        super().__init__(
            file=self.out, force_terminal=True, width=width, height=30, highlight=False
        )


def tell(screen: Screen, *events: Progress) -> None:
    """Let a screen hear progress."""
    for event in events:
        screen(event)


def test_what_was_said_stays_and_the_view_goes() -> None:
    """Events are lines for good; the view's own are taken away at the end."""
    terminal = Terminal(80)
    with Screen(terminal, Watch([trial()])) as screen:
        tell(screen, Progress("run", "run 1: 2 trials"), measuring(), *sampled(series([1])))
    assert "run 1: 2 trials\n" in terminal.out.getvalue()
    assert terminal.out.getvalue().endswith("\x1b[2K")


def test_samples_do_not_draw_each_time() -> None:
    """Ten samples within half a second are one drawing."""
    terminal = Terminal(80)
    with Screen(terminal, Watch([trial()]), now_ns=lambda: 10**12) as screen:
        screen(measuring())
        before = len(terminal.out.getvalue())
        tell(screen, *sampled(series([1])))
        assert before == len(terminal.out.getvalue())


def test_a_resize_begins_anew() -> None:
    """The screen is cleared, the last lines are said again, nothing is wider than it is now."""
    terminal = Terminal(200)
    with Screen(terminal, Watch([trial()])) as screen:
        tell(screen, Progress("run", "run 1: 2 trials"), measuring())
        begin = terminal.out.tell()
        terminal.width = 60
        tell(screen, *sampled(series([1])))
        text = terminal.out.getvalue()[begin:]
    assert "\x1b[2J" in text
    assert 1 == text.count("run 1: 2 trials")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert max(len(line) for line in re.split(r"[\r\n]", plain)) <= 60


def test_no_color_leaves_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR (no-color.org) leaves bold, and no code of a colour."""
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal(80)
    with Screen(terminal, Watch([trial()])) as screen:
        tell(screen, measuring(), *sampled(series([1])))
    codes = {f"\x1b[{code}m" for code in (*range(30, 38), *range(90, 98))}
    assert [] == [code for code in codes if code in terminal.out.getvalue()]
    assert "\x1b[38;" not in terminal.out.getvalue()


def test_a_terminal_gets_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is a terminal is drawn on; TERM=dumb gets plain lines."""
    for name, drawn in (("xterm", True), ("dumb", False)):
        monkeypatch.setenv("TERM", name)
        monkeypatch.setenv("TTY_COMPATIBLE", "1")
        out = StringIO()
        with live_view(out, [], quiet=False) as say:
            say(Progress("run", "run 1: 2 trials"))
        assert drawn is ("\x1b[" in out.getvalue())


def test_workers_of_paper_need_no_cpu() -> None:
    """A worker that may run anywhere says so."""
    watch = Watch()
    watch.add(measuring(workers=[replace(spec, cpu=None) for spec in specs(trial())]), 0)
    for event in sampled(series([1])):
        watch.add(event, 0)
    assert "any CPU" in shown(watch, 80)[2]


def test_a_queue_shows_what_is_counted_of_it() -> None:
    """Drops and interrupts where there are any, and no more CPUs than took them."""
    full = QueueRate("right rx-0", 40_000.0, 12.0, 345.0, (1, 0))
    bare = QueueRate("left tx-0", None, 0.0, None, ())
    assert [
        ("right rx-0", "40.0 kpps", "12/s dropped  345 interrupts/s  CPU 1,0"),
        ("left tx-0", "–", ""),
    ] == [queue_row(full), queue_row(bare)]

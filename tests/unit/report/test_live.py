"""Plain lines: what a pipe or a file gets while a run works."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from analysis.build import failed, lossy, paced, record, series, trial

from report.progress import measuring, sampled
from udpbench.analysis.judge import judge
from udpbench.model.result import Progress
from udpbench.report.live import LiveLines, live_view
from udpbench.report.summary import event_line

LOST = {"right": {"snmp.Udp.RcvbufErrors": 250, "snmp.Udp.InErrors": 250}}


STEP = Progress("step", "verify", trial(), 1, 2)
"""What follows a phase."""


def trial_end(of: Any, text: str) -> Progress:
    """Return the end of a trial."""
    return Progress("trial", text, of.trial, 3, 12, record=of, result=judge(of))


def test_a_trial_is_a_line_whatever_happens_in_it() -> None:
    """In the units of its result; of steps, phases and samples nobody reads in a file."""
    out = StringIO()
    tell = LiveLines(out)
    end = trial_end(lossy(1000, LOST, 250), "example#1: done")
    for progress in (measuring(), *sampled(series([1000, 2000, 3000])), STEP, end):
        tell(progress)
    assert [event_line(end)] == out.getvalue().splitlines()


@pytest.mark.parametrize("ended", [False, True])
def test_a_search_has_a_line_at_its_end(ended: bool) -> None:
    """Until then each of its trials has."""
    out = StringIO()
    LiveLines(out)(Progress("search", "one#1: 159.0 kpps", ended=ended))
    assert ended == bool(out.getvalue())


def test_the_end_of_a_trial_tells_its_result() -> None:
    """Rate, loss and the stage that took most; of an invalid trial why it is."""
    assert (
        "[3/12] example#1: done: 750 pps delivered, 25.00 % lost, most of it at udp_rcvbuf"
        == event_line(trial_end(lossy(1000, LOST, 250), "example#1: done"))
    )
    short = event_line(trial_end(record(900, of=paced()), "example#1: done"))
    assert short.startswith("[3/12] example#1: done: invalid: sender: sender-bound")
    assert short.endswith("(900 pps delivered, 0.00 % lost)")


def test_a_reason_that_many_trials_share_is_written_once() -> None:
    """In a file 143 lines in a row named it; it stands anew behind a trial that had none."""
    out = StringIO()
    tell = LiveLines(out)
    short, full = record(900, of=paced()), record(1000, of=paced())
    for each in (short, short, full, short):
        tell(trial_end(each, "example#1: done"))
    first, again, _, anew = out.getvalue().splitlines()
    assert "done: invalid: sender: sender-bound" in first
    assert "[3/12] example#1: done: invalid as before (900 pps delivered, 0.00 % lost)" == again
    assert first == anew


def test_the_end_of_a_failed_trial_tells_the_error_once() -> None:
    """What control says of it is enough."""
    line = event_line(trial_end(failed(), "example#1: failed: it died"))
    assert "[3/12] example#1: failed: it died" == line


@pytest.mark.parametrize("quiet", [False, True])
def test_quiet_says_nothing(quiet: bool) -> None:
    """What is no terminal gets plain lines, and none with --quiet."""
    out = StringIO()
    with live_view(out, [], quiet) as tell:
        tell(Progress("run", "run 1: 2 trials"))
    assert ("" if quiet else "run 1: 2 trials\n") == out.getvalue()


@pytest.mark.parametrize("quiet", [False, True])
def test_a_wait_is_reported_also_if_quiet(quiet: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """On stderr then, for stdout is the result's: hours of silence would look like work."""
    out = StringIO()
    with live_view(out, [], quiet) as tell:
        tell(Progress("wait", "waiting until run 1-17 has ended"))
    line = "waiting until run 1-17 has ended\n"
    assert (("", line) if quiet else (line, "")) == (out.getvalue(), capsys.readouterr().err)


class Closed(StringIO):
    """A pipe whose reader has left."""

    def __init__(self) -> None:
        super().__init__()
        self.tried = 0

    def write(self, _: str) -> int:
        """Fail as the kernel does."""
        self.tried += 1
        raise BrokenPipeError


def test_a_reader_who_leaves_does_not_end_the_run() -> None:
    """The first line fails, later ones are not even tried."""
    out = Closed()
    tell = LiveLines(out)
    for _ in range(3):
        tell(Progress("run", "run 1: 2 trials"))
    assert 1 == out.tried

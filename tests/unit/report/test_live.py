"""Plain lines: what a pipe or a file gets while a run works."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from analysis.build import START_NS, failed, lossy, paced, record, series, specs, trial

from report.progress import measuring, sampled
from udpbench.analysis.judge import judge
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import Sample
from udpbench.model.result import Progress
from udpbench.report.live import LiveLines, live_view, second_line
from udpbench.report.summary import event_line

LOST = {"right": {"snmp.Udp.RcvbufErrors": 250, "snmp.Udp.InErrors": 250}}


STEP = Progress("step", "verify", trial(), 1, 2)
"""What follows a phase."""


def trial_end(of: Any, text: str) -> Progress:
    """Return the end of a trial."""
    return Progress("trial", text, of.trial, 3, 12, record=of, result=judge(of))


def test_a_second_reads_as_in_the_tools_that_udpbench_reproduces() -> None:
    """Packets, MiB and Mbit of payload, each per second."""
    assert "0.352M pps 10.742MiB / 90.112Mb" == second_line(352_000, 352_000 * 32)


def test_one_line_a_second_while_packets_flow() -> None:
    """Three seconds of samples each 100 ms are three lines, each with the rate of its second."""
    out = StringIO()
    tell = LiveLines(out)
    for progress in (measuring(), *sampled(series([1000, 2000, 3000])), STEP):
        tell(progress)
    assert [
        "[1/2] example#1 measured 1s",
        "  0.001M pps 0.000MiB / 0.000Mb",
        "  0.002M pps 0.000MiB / 0.000Mb",
        "  0.003M pps 0.000MiB / 0.000Mb",
    ] == out.getvalue().splitlines()


def test_a_line_names_the_stages_that_lose_packets_now() -> None:
    """A drop is seen in the second in which it happens."""
    out = StringIO()
    tell = LiveLines(out)
    for progress in (measuring(), *sampled(series([1000, 1000, 1]), rcvbuf=(0, 500, 500))):
        tell(progress)
    first, second = out.getvalue().splitlines()[1:]
    assert first.endswith("Mb; drops: udp_rcvbuf 500 pps")
    assert second.endswith("Mb")


def test_the_end_of_a_trial_tells_its_result() -> None:
    """Rate, loss and the stage that took most; of an invalid trial why it is."""
    assert (
        "[3/12] example#1: done: 750 pps delivered, 25.00 % lost, most of it at udp_rcvbuf"
        == event_line(trial_end(lossy(1000, LOST, 250), "example#1: done"))
    )
    short = event_line(trial_end(record(900, of=paced()), "example#1: done"))
    assert short.startswith("[3/12] example#1: done: invalid: sender: sender-bound")
    assert short.endswith("(900 pps delivered, 0.00 % lost)")


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


def test_before_the_second_sample_nothing_is_said() -> None:
    """One sample makes no rate."""
    out = StringIO()
    tell = LiveLines(out)
    tell(measuring())
    tell(Progress("sample", "measured", trial(), 1, 2, samples=series([1])[:1]))
    assert 1 == len(out.getvalue().splitlines())


def test_two_workers_are_one_line() -> None:
    """The line is of all receivers together."""
    of = trial()
    both = (*specs(of), replace(specs(of)[1], index=1))
    out = StringIO()
    tell = LiveLines(out)
    tell(measuring(workers=both))
    more = series([1000], of_worker="right.receiver1")
    for sample, other in zip(series([1000]), more, strict=True):
        tell(Progress("sample", "measured", of, 1, 2, samples=(sample, other)))
    tell(STEP)
    assert "  0.002M pps 0.000MiB / 0.000Mb" == out.getvalue().splitlines()[1]


def load(seconds: float, pps: int, wait_s: float = 0.35) -> Iterator[Progress]:
    """Yield samples each 100 ms of a reader that waits, has so long a load, and waits again."""
    begin, end = (round(START_NS + at * SECOND_NS) for at in (wait_s, wait_s + seconds))
    for tick in range(round((seconds + 2 * wait_s) * 10) + 1):
        clock = START_NS + tick * SECOND_NS // 10
        packets = max(min(clock, end) - begin, 0) * pps // SECOND_NS
        counts = {"received_packets": packets, "received_bytes": 32 * packets}
        times = {"first_ns": begin if packets else 0, "last_ns": min(clock, end) if packets else 0}
        sample = Sample("right.receiver0", clock, {**counts, **times})
        yield Progress("sample", "measured", trial(), 1, 2, samples=(sample,))


@pytest.mark.parametrize("wait_s", [0.0, 0.05, 0.35, 1.25])
def test_the_lines_of_a_phase_tile_its_load(wait_s: float) -> None:
    """Neither the wait before the load nor that after it lowers a rate, nor is a part left out."""
    out = StringIO()
    tell = LiveLines(out)
    for progress in (measuring(), *load(2.6, 280_000, wait_s), STEP):
        tell(progress)
    lines = out.getvalue().splitlines()[1:]
    assert ["  0.280M pps 8.545MiB / 71.680Mb"] * 2 == lines[:2]
    assert ["  0.280M pps 8.545MiB / 71.680Mb; of the last 0.6 s"] == lines[2:]


def test_a_load_that_ends_with_a_second_has_no_line_of_what_is_left() -> None:
    """A rest shorter than the time between two samples has no rate."""
    out = StringIO()
    tell = LiveLines(out)
    for progress in (measuring(), *load(1.0, 1000), STEP, *load(1.03, 1000), STEP):
        tell(progress)
    assert ["  0.001M pps 0.031MiB / 0.256Mb"] * 2 == out.getvalue().splitlines()[1:]


def test_a_host_that_nothing_reaches_has_no_part_in_the_line() -> None:
    """The others' seconds are told all the same."""
    out = StringIO()
    tell = LiveLines(out)
    for progress in (measuring(), *load(1.5, 1000)):
        others = tuple(
            replace(sample, worker="other.receiver0", counts=IDLE) for sample in progress.samples
        )
        tell(replace(progress, samples=(*progress.samples, *others)))
    assert ["  0.001M pps 0.031MiB / 0.256Mb"] == out.getvalue().splitlines()[1:]


IDLE = {"received_packets": 0, "received_bytes": 0, "first_ns": 0, "last_ns": 0}

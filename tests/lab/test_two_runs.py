"""Two runs on one machine: the second waits, is refused, or shares it, and either is told."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from own_namespaces import own_namespaces
from sampled import sampled
from test_command_line import LIMIT_S, SHORT, done, result, start, start_with_phases
from waiting import wait_until

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]

ASLEEP = ("--set", "send.pace=sleep")
"""For runs that last seconds: a sender that spins would take a CPU for them."""
LONG = ("run", "smoke", "--no-report", "--set", "duration=60s", "--set", "repetitions=1", *ASLEEP)
BRIEF = ("run", "smoke", "--no-report", *SHORT)
WHOM = r"run (\S+) \(pid (\d+)\)"


@contextmanager
def going(folder: Path, *words: str, until: str) -> Iterator[subprocess.Popen[str]]:
    """Start udpbench, wait until it says a word, and end it."""
    process = start_with_phases(folder, *words)
    try:
        assert process.stdout is not None
        output = ""
        while until not in output:
            line = process.stdout.readline()
            assert line, f"no {until!r} in {output}"
            output += line
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    """Whoever was killed leaves agents, which end by themselves, and no note of them."""
    before = own_namespaces()
    yield
    wait_until("the agents of the killed have ended", lambda: own_namespaces() <= before)


def agents(controller: subprocess.Popen[str]) -> list[int]:
    """Return the processes of a run's agents."""
    return [child.pid for child in psutil.Process(controller.pid).children(recursive=True)]


def test_who_does_not_wait_is_refused_and_told_whom_for(tmp_path: Path) -> None:
    """With 3, the other run, and a process that is one of its own."""
    with going(tmp_path, *LONG, "--out", "first", until="measured") as first:
        code, out, err = done(tmp_path, *BRIEF, "--no-wait", "--out", "second")
        assert 3 == code, out + err
        match = re.search(rf"not started until {WHOM} no longer uses this machine; omit --no-", err)
        assert match is not None, err
        assert match[1].endswith(f"-{first.pid}")
        assert int(match[2]) in agents(first)
        assert first.poll() is None


@pytest.mark.long
def test_a_wait_can_be_interrupted(tmp_path: Path) -> None:
    """It ends with 130, the first run goes on, and even --quiet said whom it waited for."""
    with going(tmp_path, *LONG, "--out", "first", until="measured") as first:
        second = start(tmp_path, *BRIEF, "--quiet", "--out", "second")
        try:
            assert second.stderr is not None
            assert re.match(f"waiting until {WHOM}", second.stderr.readline())
            second.send_signal(signal.SIGINT)
            second.communicate(timeout=LIMIT_S)
        finally:
            second.kill()
        assert (130, None) == (second.returncode, first.poll())


def kill(controller: subprocess.Popen[str]) -> None:
    """Kill a controller alone."""
    controller.kill()


def kill_all(controller: subprocess.Popen[str]) -> None:
    """Kill a controller with all of its agents and guardians."""
    every = agents(controller)
    controller.send_signal(signal.SIGSTOP)
    for pid in every:
        os.kill(pid, signal.SIGKILL)
    controller.kill()


@pytest.mark.parametrize("death", sampled([kill, kill_all], [kill_all]))
def test_any_death_ends_a_wait(
    tmp_path: Path, death: Callable[[subprocess.Popen[str]], None]
) -> None:
    """The second run then measures alone, without a word of the first in its trials."""
    with going(tmp_path, *LONG, "--out", "first", until="measured") as first:
        with going(tmp_path, *BRIEF, "--out", "second", until="waiting until run") as second:
            death(first)
            out, err = second.communicate(timeout=LIMIT_S)
        assert second.returncode in (0, 5), out + err
    (trial,) = result(tmp_path, "second")["trials"]
    assert "another run" not in str(trial["findings"])
    left = [*Path("/run/udpbench").glob("*.jsonl")]
    assert [] == left, "what it changed went with its namespaces"


def test_both_who_share_have_it_in_every_trial(tmp_path: Path) -> None:
    """The numbers of the first are moved as well, although it never asked for company."""
    words = ("--set", "duration=400ms", "--set", "warmup=0s", "--set", "repetitions=200")
    first_words = ("run", "smoke", "--no-report", *words, *ASLEEP, "--out", "first")
    with going(tmp_path, *first_words, until="measured") as first:
        code, out, err = done(tmp_path, *BRIEF, "--share", "--out", "second")
        assert code in (0, 5), out + err
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=LIMIT_S)
    findings = {
        run: [
            [finding["value"] for finding in trial["findings"] if "another run" in finding["what"]]
            for trial in result(tmp_path, run)["trials"]
        ]
        for run in ("first", "second")
    }
    ((second,),) = findings["second"]
    assert f"-{first.pid} (pid " in second
    (met,) = {tuple(others) for others in findings["first"]} - {()}
    assert 1 == len(met)
    assert [] == [*Path("/run/udpbench").glob("*.lock")]

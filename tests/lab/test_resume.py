"""Runs that go on after a death, as a user meets them: real processes in the built-in lab."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
import ssh_hosts
from own_namespaces import left_since, own_namespaces
from ssh_hosts import pair_of_hosts
from test_command_line import LIMIT_S, await_line, done, start_with_phases

from udpbench.analysis.judge import judge
from udpbench.records.reader import read_run
from udpbench.records.run import RUN_FILE, SERIES_FILE

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]

TEXT = """question: Does it go on?
traffic: {rate: 5kpps}
duration: 300ms
warmup: 0s
repetitions: 2
"""


def content(folder: Path) -> list[bytes]:
    """Return what the files of a run hold."""
    return [(folder / name).read_bytes() for name in (RUN_FILE, SERIES_FILE)]


def test_a_killed_run_is_resumed_and_has_each_trial_once(tmp_path: Path) -> None:
    """SIGKILL in the second of two trials; a changed file is refused with nothing touched."""
    spaces = own_namespaces()
    (tmp_path / "mine.yaml").write_text(TEXT)
    options = ("--seed", "1", "--set", "traffic.size=64B", "--no-report")
    process = start_with_phases(tmp_path, "run", "mine.yaml", "--out", "run", *options)
    try:
        assert process.stdout is not None
        await_line(process.stdout, "mine#2 measured")
        process.send_signal(signal.SIGSTOP)
        busy = done(tmp_path, "run", "--resume", "run")
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=LIMIT_S)
    assert (2, True) == (busy[0], "in use by a run that is still going on" in busy[2])
    before, (first,) = content(tmp_path / "run"), read_run(tmp_path / "run").records

    (tmp_path / "mine.yaml").write_text(TEXT.replace("300ms", "400ms"))
    code, _, err = done(tmp_path, "run", "--resume", "run")
    change = "duration: 300ms → 400ms: changed since the run began"
    step = "restore it, or start a new run"
    assert (2, f"mine.yaml: {change}; {step}\n") == (code, err)
    assert before == content(tmp_path / "run")

    (tmp_path / "mine.yaml").write_text(TEXT)
    code, out, err = done(tmp_path, "run", "--resume", "run", "--no-report")
    # 5: a busy machine may make a trial invalid, and it counts as run all the same.
    assert (True, "") == (code in (0, 5), err), out
    assert "run: 1 of 2 trials are stored\n" in out
    run = read_run(tmp_path / "run")
    assert ([f"mine#{n}" for n in (1, 2)], [1, 1]) == (
        [record.trial.name for record in run.records],
        [session.trials for session in run.sessions],
    )
    assert first == run.records[0]
    assert [64] * 2 == [record.trial.traffic.size_bytes for record in run.records]
    assert [0] * 2 == [judge(record).unaccounted for record in run.records]
    assert set() == left_since(spaces)
    texts = [finding.what for record in run.records for finding in record.findings]
    assert [] == [what for what in texts if "before the run was resumed" in what]


@pytest.mark.long
@pytest.mark.skipif(not Path(ssh_hosts.SSHD).exists(), reason="needs sshd: openssh-server")
def test_a_campaign_in_which_hosts_were_lost_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 3 and a failed trial; then the same cards and rights are known again, over SSH."""
    (tmp_path / "mine.yaml").write_text(TEXT)
    resume = ("run", "--resume", "run", "--no-report", "--quiet")
    with pair_of_hosts(tmp_path) as pair:
        monkeypatch.setenv("HOME", str(pair.home))
        (tmp_path / "lab.yaml").write_text(pair.lab())
        words = (
            "run",
            "mine.yaml",
            "--lab",
            "lab.yaml",
            "--out",
            "run",
            "--no-report",
            "--lease=3s",
        )
        process = start_with_phases(tmp_path, *words)
        try:
            assert process.stdout is not None
            await_line(process.stdout, "mine#2 measured")
            process.send_signal(signal.SIGSTOP)  # it would be done before all are found
            family = psutil.Process(process.pid).children(recursive=True)
            for agent in family:
                if "udpbench.agent.serve" in agent.cmdline():
                    agent.kill()
            process.send_signal(signal.SIGCONT)
            _, err = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
        assert (3, ["done", "failed"]) == (process.returncode, statuses(tmp_path)), err
        assert [] == psutil.wait_procs(family, LIMIT_S)[1]  # until its agents have let go

        code, out, err = done(tmp_path, *resume)
        assert (True, "") == (code in (0, 5), err), out + err
        assert ["done", "done"] == statuses(tmp_path)


def statuses(folder: Path) -> list[str]:
    """Return how each trial of the run in a folder ended."""
    return [record.status for record in read_run(folder / "run").records]

"""The program as a user runs it: real processes, the built-in lab, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from busy import ended_well
from own_namespaces import left_since, own_namespaces
from program_forks import UDPBENCH, WITH_PHASES, Forked, completed
from recorded_host import RecordedHost, read_recorded
from sampled import sampled

from udpbench.analysis.doctor import most_distorting
from udpbench.definition.load import load_lab
from udpbench.records.reader import read_run
from udpbench.report.summary import hosts_of

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]

LIMIT_S = 200.0
STRANGER = 54321
"""Nobody has it here."""
SHORT = ("--set", "duration=400ms", "--set", "warmup=100ms", "--set", "repetitions=1")


def start(folder: Path, *words: str, program: str = UDPBENCH) -> subprocess.Popen[str]:
    """Start udpbench in a folder."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return Forked((program, *words), cwd=folder, text=True, **pipes)


def start_with_phases(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start udpbench in a folder so that it prints the phases of each trial, too."""
    return start(folder, *words, program=WITH_PHASES)


def done(folder: Path, *words: str) -> tuple[int, str, str]:
    """Run udpbench in a folder; return exit code, what it printed, and what it complained of."""
    ended = completed(words, LIMIT_S, cwd=folder)
    return ended.returncode, ended.stdout, ended.stderr


def result(folder: Path, run: str) -> dict[str, Any]:
    """Return what ``show --json`` says of a run."""
    _, out, err = done(folder, "show", "--json", run)
    assert err == ""
    data: dict[str, Any] = json.loads(out)
    return data


def test_smoke_runs_shows_and_reports(tmp_path: Path) -> None:
    """A user's first run: table, ledger and document; as JSON every packet has an entry."""
    code, out, err = done(tmp_path, "run", "smoke", "--out", "run")
    assert (True, "") == (ended_well(code, tmp_path / "run"), err), out
    for part in ("Do 32-byte datagrams arrive", "results", "ledger", "yes", "run folder: run"):
        assert part in out
    assert (tmp_path / "run" / "report.pdf").read_bytes().startswith(b"%PDF")
    facts = hosts_of(read_run(tmp_path / "run").records).values()
    spoiling = most_distorting(facts, load_lab("local"))
    assert bool(spoiling) == ("worst first; full list: udpbench doctor\n" in out)
    assert [] == [finding.check for finding in spoiling if finding.what not in out]
    (trial,) = result(tmp_path, "run")["trials"]
    placed = sum(entry["packets"] or 0 for entry in trial["ledger"])
    assert 0 == trial["unaccounted"]
    assert trial["intended_packets"] == placed + trial["received_packets"]


def test_facts_are_a_file_that_a_test_can_read(tmp_path: Path) -> None:
    """In a built-in lab the machine's, by its own agent; nothing else is written."""
    code, out, err = done(tmp_path, "facts", "--out", "facts.json")
    assert (0, "", [tmp_path / "facts.json"]) == (code, err, list(tmp_path.iterdir())), out
    (tree,) = read_recorded(tmp_path / "facts.json")[1].values()
    assert len(os.sched_getaffinity(0)) == len(RecordedHost(tree).affinity(0))


@pytest.mark.long
@pytest.mark.parametrize("mode", ["napi", "rps", "inline"])
def test_each_loss_has_its_own_line(mode: str, tmp_path: Path) -> None:
    """A closed port, a slow reader and a small buffer, in every way a pair may receive."""
    receive = ("--set", f"settings.receiver.link.receive={mode}")
    names = ("drops/closed-port", "drops/slow-reader", "drops/small-buffer")
    words = ("run", *names, "--out", "run", "--no-report", "--quiet", *SHORT, *receive)
    code, out, err = done(tmp_path, *words)
    assert (True, "") == (ended_well(code, tmp_path / "run"), err), out
    lost: dict[str, dict[str, int]] = {}
    for trial in result(tmp_path, "run")["trials"]:
        name = f"{trial['experiment']} {trial['point']}".strip()
        entries = {entry["stage"]: entry["packets"] for entry in trial["ledger"]}
        # What a busy machine did not send in time is no loss.
        lost[name] = {s: n for s, n in entries.items() if n and s != "unsent"}
        assert ("done", 0) == (trial["status"], trial["unaccounted"]), trial["findings"]
    assert {
        "closed-port": ["udp_no_port"],
        "slow-reader": ["udp_rcvbuf"],
        "small-buffer small": ["udp_rcvbuf"],
        "small-buffer large": [],
    } == {name: list(stages) for name, stages in lost.items()}


def test_ctrl_c_ends_a_run_restored_and_in_words(tmp_path: Path) -> None:
    """Exit 130 and no traceback; the run folder says that it was interrupted."""
    spaces = own_namespaces()
    process = start_with_phases(tmp_path, "run", "smoke", "--out", "run", "--set", "duration=60s")
    try:
        assert process.stdout is not None
        line = await_line(process.stdout, "measured 1min")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert (130, "the run was interrupted\n") == (process.returncode, err), line + out
    assert "no trial is stored" in out
    assert set() == left_since(spaces)
    assert 130 == done(tmp_path, "show", "run")[0]


def await_line(lines: Any, text: str) -> str:
    """Read lines until one has a text; return all of them."""
    read: Sequence[str] = []
    for line in lines:
        read = [*read, line]
        if text in line:
            return "".join(read)
    raise AssertionError(f"never said {text!r}:\n{''.join(read)}")


@pytest.mark.long
def test_a_reader_who_leaves_does_not_end_the_run(tmp_path: Path) -> None:
    """The run goes on to its end without anybody who reads its lines, and its folder is whole."""
    process = start(tmp_path, "run", "smoke", "--out", "run", "--no-report", *SHORT)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert ("", 0) == (process.stderr.read(), process.wait(LIMIT_S))
    assert [True] == [trial["valid"] for trial in result(tmp_path, "run")["trials"]]


def test_root_writes_by_nobody_elses_link(tmp_path: Path) -> None:
    """In a folder of another user's, or by a link that is put into one's own, no file is made."""
    (tmp_path / "root").mkdir()
    (tmp_path / "results").symlink_to("root")
    os.chown(tmp_path / "results", STRANGER, -1, follow_symlinks=False)
    code, out, err = done(tmp_path, "run", "smoke", *SHORT)
    assert (2, "") == (code, out)
    assert f"/results belongs to user {STRANGER}; root writes only to folders of root or of" in err
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", STRANGER, -1)
    code, out, err = done(tmp_path / "theirs", "run", "smoke", "--out", "run", *SHORT)
    assert (2, "") == (code, out)
    assert "name another with --out" in err
    assert [] == [*(tmp_path / "root").iterdir(), *(tmp_path / "theirs").iterdir()]


@pytest.mark.long
def test_a_report_replaces_links_and_follows_none(tmp_path: Path) -> None:
    """Whatever lies in the run folder by the report's names."""
    assert 0 == done(tmp_path, "run", "smoke", "--out", "run", "--no-report", *SHORT)[0]
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "kept").write_text("mine")
    for name in ("report.pdf", "report-1.png", "report.html", "trials.csv", "trials.parquet"):
        (tmp_path / "run" / name).symlink_to(victim / "kept")
    (tmp_path / "run" / "report-figures").symlink_to(victim)
    code, _, err = done(tmp_path, "report", "run", "--format", "html,pdf,png,csv,parquet")
    assert (0, "") == (code, err)
    assert ["kept"] == [path.name for path in victim.iterdir()]
    assert "mine" == (victim / "kept").read_text()
    assert (tmp_path / "run" / "report-figures").is_dir()
    os.chown(tmp_path / "run", STRANGER, -1)
    code, _, err = done(tmp_path, "report", "run")
    assert 2 == code
    assert f"/run belongs to user {STRANGER}" in err


def test_a_run_folder_that_is_deleted_ends_the_run_restored(tmp_path: Path) -> None:
    """Noticed at the next record: exit 3, what was lost, and no trace on the machine."""
    spaces = own_namespaces()
    many = ("--set", "duration=200ms", "--set", "warmup=0s", "--set", "repetitions=30")
    process = start(tmp_path, "run", "smoke", "--out", "run", *many)
    try:
        assert process.stdout is not None
        await_line(process.stdout, "smoke#1: done")
        shutil.rmtree(tmp_path / "run")
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert 3 == process.returncode, out + err
    assert re.fullmatch(
        r"smoke#\d+ ran and could not be stored: run: the run folder was deleted, with \d+ "
        r"stored trials, during the run; find out who deleted it, and run again\n",
        err,
    ), err
    assert set() == left_since(spaces)


def test_a_full_disk_names_the_trial_that_ran(tmp_path: Path) -> None:
    """A real one: room for the header and not for a record."""
    (tmp_path / "disk").mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=32k", "udpbench", str(tmp_path / "disk"))
    subprocess.run(mount, check=True)
    try:
        code, out, err = done(tmp_path, "run", "smoke", "--out", "disk/run", *SHORT)
        shown = done(tmp_path, "show", "disk/run")
    finally:
        subprocess.run(("umount", str(tmp_path / "disk")), check=True)
    assert 3 == code, out + err
    assert (
        "smoke#1 ran and could not be stored: disk/run: cannot write to the run: No space left on "
        "device; free space, then: udpbench run --resume disk/run"
    ) in err
    assert "no trial ran" not in out
    assert "no trial is stored" in shown[1]


@pytest.mark.parametrize("change", sampled(["name", "gone"], ["name"]))
def test_an_interface_that_goes_under_way_is_reported_in_words(tmp_path: Path, change: str) -> None:
    """Renamed or removed while packets flow: the trial fails, or is invalid, without a bare errno."""
    spaces = own_namespaces()
    long = ("--set", "duration=3s", "--set", "warmup=0s", "--set", "repetitions=1")
    process = start_with_phases(tmp_path, "run", "smoke", "--out", "run", "--no-report", *long)
    try:
        assert process.stdout is not None
        line = await_line(process.stdout, "measured 3")
        pid = re.search(r"receiver: agent (\d+) is up", line)
        assert pid is not None, line
        inside = ("nsenter", "-t", pid[1], "-n", "ip", "link")
        if change == "gone":
            subprocess.run((*inside, "delete", "receive0"), check=True)
        else:
            subprocess.run((*inside, "set", "receive0", "down"), check=True)
            subprocess.run((*inside, "set", "receive0", "name", "other0"), check=True)
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    output = out + err
    assert 3 == process.returncode, output
    assert re.search(
        r"(receive|send)0: No such (device|file)\b.*, while .*; it was removed", output
    ), output
    assert not re.search(r"Errno|OSError|Traceback|bug", output), output
    assert set() == left_since(spaces)


def test_where_nothing_was_measured_no_gate_is_green(tmp_path: Path) -> None:
    """5 from run, show and pytest, and beforehand ``plan`` says which point cannot be tried."""
    gate = tmp_path / "there.udpbench.yaml"
    gate.write_text(
        'question: "?"\nreceive: {cpus: 777}\nduration: 200ms\nwarmup: 0s\nrepetitions: 2\n'
        "expect: [unaccounted == 0]\n"
    )
    code, out, _ = done(tmp_path, "plan", gate.name)
    assert (0, True) == (code, "would be skipped" in out)
    assert "receiver has no CPU 777; its agent may use" in out
    code, out, _ = done(tmp_path, "run", gate.name, "--out", "run", "--quiet", "--no-report")
    assert (5, True) == (code, "nothing was measured: all trials were skipped" in out)
    assert 5 == done(tmp_path, "show", "run")[0]
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", gate.name]
    tried = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert (1, True) == (tried.returncode, "nothing was measured" in tried.stdout)
    assert 0 == done(tmp_path, "run", gate.name, "--set", "needs.lab=false", "--no-report")[0]


def test_what_the_lab_file_contradicts_makes_no_run_folder(tmp_path: Path) -> None:
    """Both verbs say it with its line, and exit with 2."""
    (tmp_path / "x.yaml").write_text('question: "?"\ntraffic:\n  size: 4000B\n')
    for words in (("plan", "x.yaml"), ("run", "x.yaml", "--out", "run")):
        code, _, err = done(tmp_path, *words)
        assert (2, 2) == (code, len(err.splitlines()))
        assert err.startswith("x.yaml:3: traffic.size: 4000B: a datagram of 4000B needs an MTU")
    assert not (tmp_path / "run").exists()


def test_a_misspelt_sysctl_is_seen_by_plan(tmp_path: Path) -> None:
    """One of the namespace, which is really tried, and one of the machine, which is only read."""
    names = "{net.ipv4.ip_forwardd: 1, net.core.rmem_maxx: 4096}"
    text = f'question: "?"\nsettings: {{receiver: {{sysctl: {names}}}}}\n'
    (tmp_path / "x.yaml").write_text(text)
    code, out, _ = done(tmp_path, "plan", "x.yaml")
    assert (0, 2) == (code, out.count("cannot be set: the kernel says"))

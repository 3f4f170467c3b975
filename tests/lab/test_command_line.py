"""The program as a user runs it: real processes, the built-in lab, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]

LIMIT_S = 60.0
SHORT = ("--set", "duration=400ms", "--set", "warmup=100ms", "--set", "repetitions=1")


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start udpbench in a folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "udpbench", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def done(folder: Path, *words: str) -> tuple[int, str, str]:
    """Run udpbench in a folder; return exit code, what it printed, and what it complained of."""
    process = start(folder, *words)
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    return process.returncode, out, err


def result(folder: Path, run: str) -> dict[str, Any]:
    """Return what ``show --json`` says of a run."""
    _, out, err = done(folder, "show", "--json", run)
    assert err == ""
    data: dict[str, Any] = json.loads(out)
    return data


def namespaces() -> set[str]:
    """Return the network namespaces of every process there is."""
    found = set()
    for process in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(str(process.readlink()))
        except OSError:
            continue
    return found


def state() -> dict[str, str]:
    """Return what a run could change on this machine."""
    names = ("net/core", "net/ipv4", "kernel/sched_rt_runtime_us")
    files = [
        file
        for name in names
        for file in (Path("/proc/sys") / name).rglob("*")
        if file.is_file() and os.access(file, os.R_OK) and file.stat().st_mode & 0o400
    ]
    found = {}
    for file in files:
        try:
            found[str(file)] = file.read_text()
        except OSError:
            continue
    links = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=True)
    return {**found, "addresses": links.stdout}


def test_smoke_runs_shows_and_reports(tmp_path: Path) -> None:
    """A user's first run: exit 0, table, ledger and document; as JSON every packet has an entry."""
    code, out, err = done(tmp_path, "run", "smoke", "--out", "run")
    assert (0, "") == (code, err), out
    for part in ("Do 32-byte datagrams arrive", "results", "ledger", "yes", "run folder: run"):
        assert part in out
    assert (tmp_path / "run" / "report.pdf").read_bytes().startswith(b"%PDF")
    (trial,) = result(tmp_path, "run")["trials"]
    placed = sum(entry["packets"] or 0 for entry in trial["ledger"])
    assert 0 == trial["unaccounted"]
    assert trial["intended_packets"] == placed + trial["received_packets"]


def test_a_plan_changes_nothing(tmp_path: Path) -> None:
    """It says what would change; no setting, address, namespace or file is other than before."""
    before, spaces = state(), namespaces()
    code, out, err = done(tmp_path, "plan", "smoke")
    assert (0, "") == (code, err), out
    assert "neighbour send0/192.168.254.1-20" in out
    after = state()
    assert {} == {
        name: (before.get(name), now) for name, now in after.items() if before.get(name) != now
    }
    assert (set(), []) == (namespaces() - spaces, list(tmp_path.iterdir()))


@pytest.mark.parametrize("mode", ["napi", "rps", "inline"])
def test_each_loss_has_its_own_line(mode: str, tmp_path: Path) -> None:
    """A closed port, a slow reader and a small buffer, in every way a pair may receive."""
    receive = ("--set", f"settings.receiver.link.receive={mode}")
    names = ("drops/closed-port", "drops/slow-reader", "drops/small-buffer")
    words = ("run", *names, "--out", "run", "--no-report", "--quiet", *SHORT, *receive)
    code, out, err = done(tmp_path, *words)
    # 5: a busy machine did not offer the load, and the ledger holds all the same.
    assert (True, "") == (code in (0, 5), err), out
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
    spaces = namespaces()
    one = start(tmp_path, "run", "smoke", "--out", "run", "--set", "duration=60s")
    try:
        assert one.stdout is not None
        said = await_line(one.stdout, "measured 1min")
        one.send_signal(signal.SIGINT)
        out, err = one.communicate(timeout=LIMIT_S)
    finally:
        one.kill()
    assert (130, "the run was interrupted\n") == (one.returncode, err), said + out
    assert "no trial ran" in out
    assert set() == namespaces() - spaces
    assert 130 == done(tmp_path, "show", "run")[0]


def await_line(lines: Any, text: str) -> str:
    """Read lines until one has a text; return all of them."""
    read: Sequence[str] = []
    for line in lines:
        read = [*read, line]
        if text in line:
            return "".join(read)
    raise AssertionError(f"never said {text!r}:\n{''.join(read)}")


def test_a_reader_who_leaves_does_not_end_the_run(tmp_path: Path) -> None:
    """The run goes on to its end without anybody who reads its lines, and its folder is whole."""
    one = start(tmp_path, "run", "smoke", "--out", "run", "--no-report", *SHORT)
    assert one.stdout is not None
    assert one.stderr is not None
    one.stdout.readline()
    one.stdout.close()
    assert ("", 0) == (one.stderr.read(), one.wait(LIMIT_S))
    assert [True] == [trial["valid"] for trial in result(tmp_path, "run")["trials"]]

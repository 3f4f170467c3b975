"""A flight recorder of a namespace in which sockets lose packets at known moments."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_watch import Holder, holder

from udpbench.flight import NAME, moments

pytestmark = [pytest.mark.apart, pytest.mark.lab]
__all__ = ["holder"]

LIMIT_S = 60
UDPBENCH = (sys.executable, "-m", "udpbench")


def looks(folder: Path) -> int:
    """Return how many looks a folder holds."""
    return len([*moments(folder, 0, 2**62)]) if folder.exists() else 0


def until(folder: Path, number: int) -> None:
    """Wait until it holds so many."""
    end_s = time.monotonic() + LIMIT_S
    while looks(folder) < number:
        assert time.monotonic() < end_s


@pytest.fixture
def recorder(holder: Holder) -> Iterator[Callable[[Path], subprocess.Popen[bytes]]]:
    """Yield what records the holder's namespace; no recorder outlives the test."""
    enter = ("nsenter", f"--target={holder.pid}", "--net")
    begun: list[subprocess.Popen[bytes]] = []

    def record(folder: Path) -> subprocess.Popen[bytes]:
        begun.append(subprocess.Popen((*enter, *UDPBENCH, "export", "--record", str(folder))))
        return begun[-1]

    yield record
    for each in begun:
        each.kill()
        each.wait()


def shown(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Return what is shown of it."""
    command = (*UDPBENCH, "show", str(folder), *words)
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_recording_says_when_it_began_at_which_socket_and_what_had_changed(
    holder: Holder, recorder: Callable[[Path], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """Within a second; a recorder that was killed has lost no look before, and the next goes on."""
    folder = tmp_path / "flight"
    first = recorder(folder)
    until(folder, 4)
    began_ns = time.time_ns()
    holder.do("lose")
    until(folder, looks(folder) + 3)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert all(NAME.fullmatch(file.name) for file in folder.glob("[!.]*"))
    before = looks(folder)
    second = recorder(folder)
    until(folder, before + 3)
    second.send_signal(signal.SIGINT)
    assert 0 == second.wait(LIMIT_S)
    done = shown(folder, "--json")
    assert 1 == done.returncode
    # Others on this machine may lose packets in namespaces of their own meanwhile.
    incidents = json.loads(done.stdout)["incidents"]
    (incident,) = [each for each in incidents if each["losses"][0]["netns"] == "host"]
    losses = {loss["place"].rpartition(":")[2]: loss for loss in incident["losses"]}
    assert {"7001", "7002"} <= losses.keys()
    assert "udp_rcvbuf" in losses["7001"]["stages"]
    assert 50 == losses["7002"]["packets"]
    assert abs(losses["7001"]["start_ns"] - began_ns) <= 10**9
    assert any(":7001: receive buffer " in event["what"] for event in incident["events"])
    text = shown(folder).stdout
    assert ":7001" in text
    assert "what had changed" in text
    assert (
        0 == shown(folder, "--since", "2001-01-01T03:00", "--until", "2001-01-01T04:00").returncode
    )

"""By which interface the controller talks to the agent."""

from __future__ import annotations

import os
import subprocess
import tracemalloc
from pathlib import Path
from typing import Optional

import pytest
from proc_files import stat

from udpbench.agent.host.control_path import control_interface
from udpbench.agent.host.reading import ENVIRON_BYTES
from udpbench.agent.host.system import Host


@pytest.mark.parametrize(
    ("connection", "interface"),
    [
        ("127.0.0.1 40022 127.0.0.1 22", "lo"),
        ("::1 40022 ::1 22", "lo"),
        ("UNKNOWN 65535 UNKNOWN 65535", None),
        (None, None),
    ],
)
def test_the_interface_is_that_of_the_route_to_the_ssh_client(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    connection: Optional[str],
    interface: Optional[str],
) -> None:
    """A client on this very host is reached by lo; without a client nothing is guessed."""
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    folder = tmp_path / "proc" / str(os.getpid())
    folder.mkdir(parents=True)
    known = f"SSH_CONNECTION={connection}\0" if connection is not None else ""
    (folder / "environ").write_text(f"HOME=/root\0{known}TERM=dumb\0")
    (folder / "stat").write_text(stat(os.getpid(), "x", parent=0))
    assert interface == control_interface(Host(tmp_path))


def test_of_an_environment_without_end_the_beginning_is_read(tmp_path: Path) -> None:
    """An ancestor may be anybody's, and may have moved the end of its own (prctl(2))."""
    folder = tmp_path / "proc/7"
    folder.mkdir(parents=True)
    with (folder / "environ").open("wb") as file:
        file.write(b"TERM=dumb\0SSH_CONNECTION=a=b\0no name\0LONG=")
        file.truncate(2**36)
    tracemalloc.start()
    try:
        known = Host(tmp_path).environ(7)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert {"TERM": "dumb", "SSH_CONNECTION": "a=b", "LONG": ""} == known
    assert peak_bytes < 100 * ENVIRON_BYTES


def test_the_environment_of_a_process_is_that_of_its_start() -> None:
    """As of a real one; one that has ended is an error."""
    with subprocess.Popen(("sleep", "60"), env={"A": "1", "B": ""}) as sleeper:
        assert {"A": "1", "B": ""} == Host().environ(sleeper.pid)
        sleeper.kill()
    with pytest.raises(OSError, match="environ"):
        Host().environ(sleeper.pid)

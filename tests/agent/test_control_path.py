"""By which interface the controller talks to the agent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

import pytest
from proc_files import stat

from udpbench.agent.host.control_path import control_interface
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

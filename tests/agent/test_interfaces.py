"""The interfaces that a host lists, read from a fake root and given netlink answers."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, Optional

import pytest
from proc_files import stat

from udpbench.agent.host.system import Host
from udpbench.agent.interfaces import interfaces
from udpbench.protocol import Interface, Interfaces

INDEXES = {"eth0": 2, "eth1": 3}


class Message(dict[str, Any]):
    """One message of netlink; attributes and header fields alike."""

    def get_attr(self, name: str) -> Any:
        """Return an attribute; None if the message has none such."""
        return self.get(name)


MESSAGES = {
    "link": [
        Message(index=index, IFLA_IFNAME=name, IFLA_ADDRESS=f"02:00:00:00:00:0{index}")
        for name, index in INDEXES.items()
    ],
    "route": [Message(dst_len=24, type=1, RTA_OIF=2)],
}


class Listed(Host):
    """A host with two interfaces; SSH comes by the first."""

    def rtnl(self, noun: str, verb: str, **fields: Any) -> list[Any]:
        """Return links, the way to the SSH client, and one address of each interface."""
        if noun == "addr":
            index = fields["index"]
            address = Message(prefixlen=24, IFA_LOCAL=f"10.0.{index}.1")
            return [address] if fields["family"] == 2 else []
        return MESSAGES[noun] if (noun, verb) != ("route", "dump") else []

    def link(self, interface: str) -> Any:
        """Return the message of an interface; neither is virtual."""
        return MESSAGES["link"][INDEXES[interface] - 2]

    def index(self, interface: str) -> int:
        """Return an index."""
        return INDEXES[interface]

    def read_text(self, path: str) -> str:
        """Fail as a carrier does that belongs to an interface which is down."""
        if path == "/sys/class/net/eth1/carrier":
            raise OSError(errno.EINVAL, "Invalid argument")
        return super().read_text(path)


@pytest.mark.parametrize(
    ("connection", "controller"), [("10.0.2.9 40022 10.0.2.1 22", "10.0.2.9"), (None, None)]
)
def test_every_interface_but_lo_is_listed(
    connection: Optional[str],
    controller: Optional[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With what carries SSH marked, if the controller came by it; other files there are none."""
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    for name in ("lo", *INDEXES):
        folder = tmp_path / "sys/class/net" / name
        folder.mkdir(parents=True)
        (folder / "address").write_text(f"mac of {name}\n")
        (folder / "carrier").write_text("1\n")
    (tmp_path / "sys/class/net/bonding_masters").write_text("\n")
    process = tmp_path / "proc" / str(os.getpid())
    process.mkdir(parents=True)
    (process / "stat").write_text(stat(os.getpid(), "x", parent=0))
    known = f"SSH_CONNECTION={connection}\0" if connection is not None else ""
    (process / "environ").write_text(f"HOME=/root\0{known}")
    carries = connection is not None
    assert Interfaces(
        (
            Interface("eth0", None, "mac of eth0", "up", ("10.0.2.1/24",), carries),
            Interface("eth1", None, "mac of eth1", "down", ("10.0.3.1/24",)),
        ),
        controller,
    ) == interfaces(Listed(tmp_path))

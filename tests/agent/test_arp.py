"""The proof of a link: what is sent, what is heard, and where nothing may be sent."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any, Optional

import pytest
from golden import Golden

from udpbench.agent import arp
from udpbench.agent.arp import PROBED, ArpListener, send_arp
from udpbench.agent.host.system import Host
from udpbench.agent.settings.addresses import arp_probe
from udpbench.errors import AgentError, SafetyError
from udpbench.protocol import HeardArp

MAC = bytes.fromhex("020000000001")
OTHER = bytes.fromhex("020000000002")


class PaperSocket:
    """A packet socket that holds frames, and notes those sent."""

    def __init__(self, *frames: tuple[bytes, bytes], down: bool = False) -> None:
        self.frames = list(frames)
        self.down = down
        self.sent: list[tuple[bytes, Any]] = []
        self.closed = False

    def recvfrom(self, _size: int, flags: int) -> tuple[bytes, Any]:
        """Return a frame and who sent it; fail if there is none."""
        assert socket.MSG_DONTWAIT == flags
        if self.down:
            raise OSError(errno.ENETDOWN, "Network is down")
        if not self.frames:
            raise BlockingIOError(errno.EAGAIN, "try again")
        packet, mac = self.frames.pop(0)
        return packet, ("eth1", arp.ETH_P_ARP, 1, 1, mac)

    def getsockname(self) -> Any:
        """Return an address with a MAC."""
        return ("eth1", arp.ETH_P_ARP, 0, 1, MAC)

    def sendto(self, packet: bytes, to: Any) -> None:
        """Note it."""
        self.sent.append((packet, to))

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close."""
        self.closed = True


class Wired(Host):
    """A host with given sockets, and without the right to any other."""

    def __init__(self, root: Path, **sockets: PaperSocket) -> None:
        super().__init__(root)
        self.sockets = sockets

    def packet_socket(self, interface: str, protocol: int) -> Any:
        """Return a socket, or fail as without CAP_NET_RAW."""
        assert arp.ETH_P_ARP == protocol
        if interface not in self.sockets:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return self.sockets[interface]


def carrier(root: Path, text: Optional[str]) -> Path:
    """Write whether eth1 has a link."""
    folder = root / "sys/class/net/eth1"
    folder.mkdir(parents=True)
    if text is not None:
        (folder / "carrier").write_text(text)
    return root


def test_the_probes_that_arrived_are_heard_once(tmp_path: Path) -> None:
    """Whatever else is on the link; an interface that went down has none."""
    probe = arp_probe(MAC, PROBED)[1]
    frames = [(probe, MAC), (probe + bytes(18), MAC), (probe, OTHER), (b"short", MAC)]
    near, far = PaperSocket(*frames), PaperSocket(down=True)
    listener = ArpListener(Wired(tmp_path, eth1=near, eth2=far))
    assert (HeardArp("eth1", "02:00:00:00:00:01"),) == listener.hear(["eth1", "eth2"])
    assert () == listener.hear(["eth1"])
    assert (False, True) == (near.closed, far.closed)
    assert () == listener.hear([])
    assert near.closed


class Flooded(PaperSocket):
    """A packet socket into which others send probes faster than they can be read."""

    reads = 0

    def recvfrom(self, _size: int, _flags: int) -> tuple[bytes, Any]:
        """Return a probe of yet another sender."""
        self.reads += 1
        assert self.reads <= 2**14, "read without end"
        mac = self.reads.to_bytes(6, "big")
        return arp_probe(mac, PROBED)[1], ("eth1", arp.ETH_P_ARP, 1, 1, mac)


def test_of_a_flood_so_many_frames_are_read(tmp_path: Path) -> None:
    """Each call ends, and so does what it returns; more than fit the socket are never queued."""
    link = Flooded()
    listener = ArpListener(Wired(tmp_path, eth1=link))
    assert arp.MOST_FRAMES == len(listener.hear(["eth1"])) == link.reads
    assert arp.MOST_FRAMES == len(listener.hear(["eth1"]))


def test_one_request_is_sent_to_all_on_the_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It claims no address."""
    monkeypatch.setattr(arp, "protected", lambda _: frozenset())
    link = PaperSocket()
    send_arp(Wired(carrier(tmp_path, "1"), eth1=link), "eth1")
    to, packet = arp_probe(MAC, PROBED)
    assert [(packet, ("eth1", arp.ETH_P_ARP, 0, 0, to))] == link.sent
    assert (b"\xff" * 6, True) == (to, link.closed)


@pytest.mark.parametrize(
    ("text", "carrying"), [("1", {"eth1"}), ("0", set()), (None, set())], ids=str
)
def test_nothing_is_sent_where_it_may_not_be(
    text: Optional[str],
    carrying: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    golden: Golden,
) -> None:
    """Over what carries SSH, or without a link."""
    monkeypatch.setattr(arp, "protected", lambda _: frozenset(carrying))
    link = PaperSocket()
    with golden.raises(SafetyError):
        send_arp(Wired(carrier(tmp_path, text), eth1=link), "eth1")
    assert [] == link.sent


def test_without_the_right_to_raw_frames_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Sending and hearing alike."""
    monkeypatch.setattr(arp, "protected", lambda _: frozenset())
    host = Wired(carrier(tmp_path, "1"))
    with golden.raises(AgentError):
        send_arp(host, "eth1")
    with golden.raises(AgentError):
        ArpListener(host).hear(["eth1"])

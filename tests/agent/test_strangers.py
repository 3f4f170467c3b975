"""Who else sends to the traffic's ports: who is heard, and who is not."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Optional

import pytest
from golden import Golden
from test_workers import receiver

from udpbench.agent import strangers
from udpbench.agent.host.frames import UDP, headers
from udpbench.agent.host.system import Host
from udpbench.agent.strangers import HEARD_BYTES, HEARD_MAX, StrangerListener, strange_sockets
from udpbench.errors import AgentError
from udpbench.model.experiment import Traffic
from udpbench.model.limits import ETHERNET_BYTES
from udpbench.model.record import UdpSocket
from udpbench.model.work import FlowSpec, WorkerSpec
from udpbench.protocol import Stranger

PORT = 4321
ANYWHERE = "0.0.0.0"  # noqa: S104
MACS = ("02:00:00:00:00:01", "02:00:00:00:00:02")
OWN, OTHER = {4: "10.0.0.1", 6: "fd00::1"}, {4: "10.0.0.9", 6: "fd00::9"}
HERE = {4: "10.0.0.2", 6: "fd00::2"}
Family = Literal[4, 6]


class PaperLink:
    """A packet socket that has a few packets, and then an error."""

    def __init__(self, packets: list[bytes], code: int = errno.EAGAIN) -> None:
        self.packets = packets
        self.code = code
        self.closed = False

    def recv(self, size: int, flags: int) -> bytes:
        """Return the next packet, as far as there is room."""
        assert socket.MSG_DONTWAIT == flags
        if not self.packets:
            raise OSError(self.code, os.strerror(self.code))
        return self.packets.pop(0)[:size]

    def __enter__(self) -> None:
        """Be used."""

    def __exit__(self, *_: object) -> None:
        self.closed = True


class Wired(Host):
    """A host with one packet socket, or without the right to any."""

    def __init__(self, root: Path, link: Optional[PaperLink]) -> None:
        super().__init__(root)
        self.link = link

    def packet_socket(self, interface: Optional[str], protocol: int) -> Any:
        """Return it, or fail as without CAP_NET_RAW."""
        assert (None, True) == (interface, protocol in (0x0800, 0x86DD))
        if self.link is None:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return self.link


def worker(family: Family = 4) -> WorkerSpec:
    """Return a receiver of one flow at ``PORT``."""
    flow = FlowSpec(0, OWN[family], 65400, HERE[family], PORT)
    return replace(receiver(PORT), traffic=Traffic(family=family), flows=(flow,))


def packet(family: Family, source: str, port: int, to: int = PORT) -> bytes:
    """Return a datagram from its IP header on."""
    frame = headers(MACS, (source, HERE[family]), (port, to), 200, 1)
    return frame[ETHERNET_BYTES:] + bytes(200)


def heard(
    packets: list[bytes], tmp_path: Path, family: Family = 4, code: int = errno.EAGAIN
) -> Any:
    """Return who is heard of these packets."""
    link = PaperLink(packets, code)
    listener = StrangerListener(Wired(tmp_path, link))
    assert () == listener.hear([worker(family)])
    strange = listener.hear(())
    assert link.closed
    assert () == listener.hear(()), "it listens no longer"
    return strange


@pytest.fixture(autouse=True)
def unfiltered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attach no filter to paper."""
    if "port" not in request.fixturenames:
        monkeypatch.setattr(strangers, "attach_filter", lambda *_: None)


@pytest.mark.parametrize("family", [4, 6])
def test_all_but_the_flows_are_strangers(tmp_path: Path, family: Family) -> None:
    """Another port of a sender's host is one, too; who sends most comes first."""
    own, other = OWN[family], OTHER[family]
    sources = [(own, 65400), (other, 65400), (own, 40000), (own, 40000)]
    packets = [packet(family, *source) for source in sources]
    assert (Stranger(own, 40000, 2), Stranger(other, 65400, 1)) == heard(packets, tmp_path, family)


def test_what_is_no_datagram_to_the_port_is_not_heard(tmp_path: Path) -> None:
    """Another port, another protocol, a later fragment, or a packet cut short."""
    whole = packet(4, OTHER[4], 40000)
    tcp = whole[:9] + bytes([UDP - 11]) + whole[10:]
    later = whole[:6] + b"\x00\x01" + whole[8:]
    others = [packet(4, OTHER[4], 40000, PORT + 1), tcp, later, whole[:20], whole[:3], b""]
    assert () == heard(others, tmp_path)
    first = whole[:6] + b"\x20\x00" + whole[8:]
    options = bytes([whole[0] + 1]) + whole[1:20] + bytes(4) + whole[20:]
    assert (Stranger(OTHER[4], 40000, 2),) == heard([first, options], tmp_path)


def test_a_flood_is_not_read_to_its_end(tmp_path: Path) -> None:
    """Nor does an interface that goes down matter."""
    flood = [packet(4, OTHER[4], 40000)] * 2 * HEARD_MAX
    assert (Stranger(OTHER[4], 40000, HEARD_MAX),) == heard(flood, tmp_path)
    few = flood[:3]
    assert (Stranger(OTHER[4], 40000, 3),) == heard(few, tmp_path, code=errno.ENETDOWN)


def test_without_the_right_to_listen_it_says_so(tmp_path: Path, golden: Golden) -> None:
    """The controller then does without a name."""
    with golden.raises(AgentError):
        StrangerListener(Wired(tmp_path, None)).hear([worker()])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs CAP_NET_RAW")
@pytest.mark.parametrize("family", [4, 6])
def test_the_kernel_passes_datagrams_to_the_ports_alone(port: int, family: Family) -> None:
    """Short and long ones; all others stay out of the packet socket's buffer."""
    address = "127.0.0.1" if family == 4 else "::1"
    inet = socket.AF_INET if family == 4 else socket.AF_INET6
    spec = replace(worker(family), bind_ports=(port,))
    listener = StrangerListener(Host())
    assert () == listener.hear([spec])
    link = listener._link
    assert link is not None
    with (
        socket.socket(inet, socket.SOCK_DGRAM) as there,
        socket.socket(inet, socket.SOCK_DGRAM) as stranger,
    ):
        there.bind((address, port))
        stranger.bind((address, 0))
        beside = stranger.getsockname()[1]
        for size, to in [(1, beside), (0, port), (2000, port), (9, beside)]:
            stranger.sendto(bytes(size), (address, to))
            last = there if to == port else stranger
            assert size == len(last.recv(4096)), "it came by before the next"
        lengths = [len(link.recv(4096, socket.MSG_DONTWAIT)) for _ in range(2)]
        assert [True, True] == [length <= HEARD_BYTES for length in lengths]
        with pytest.raises(BlockingIOError):
            link.recv(4096, socket.MSG_DONTWAIT)
        stranger.sendto(b"x", (address, port))
        there.recv(4096)
        assert (Stranger(address, beside, 1),) == listener.hear(())


TAKING = [
    # of ours at any address: bound, connected; then the stranger: bound, connected; taken?
    (ANYWHERE, ANYWHERE, None, True),
    (ANYWHERE, HERE[4], None, True),
    (ANYWHERE, "::", None, False),
    (ANYWHERE, ANYWHERE, (OWN[4], 65400), True),
    (ANYWHERE, HERE[4], (OTHER[4], 65400), False),
    ("::", "::", None, True),
    ("::", f"::ffff:{HERE[4]}", None, True),
    (HERE[4], ANYWHERE, None, False),
    (None, ANYWHERE, None, True),
    (None, OTHER[4], None, False),
]
"""Where our own socket is bound, where the stranger's is and to whom it is connected, and whether
the kernel may give it packets of the traffic."""


@pytest.mark.parametrize(("own", "bound", "peer", "takes"), TAKING)
def test_a_strangers_socket_counts_if_the_kernel_may_prefer_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own: Optional[str],
    bound: str,
    peer: Optional[tuple[str, int]],
    takes: bool,
) -> None:
    """It is named with its holder, address and port, unless that is the program under test."""

    def listed(inode: int, address: str, peer: Optional[tuple[str, int]] = None) -> UdpSocket:
        version: Literal[4, 6] = 6 if ":" in address else 4
        there, port = peer or (None, 0)
        return UdpSocket(inode, inode, version, address, PORT, there, port, 0, 0, None, 5)

    sockets = [listed(8, bound, peer), *([listed(7, own)] if own is not None else [])]

    class Listing:
        def __init__(self, ports: set[int]) -> None:
            assert {PORT} == ports

        def read(self) -> dict[int, UdpSocket]:
            return {each.cookie: each for each in sockets}

    monkeypatch.setattr(strangers, "SocketList", Listing)
    folder = tmp_path / "proc/12/fd"
    folder.mkdir(parents=True)
    (folder / "3").symlink_to("socket:[8]")
    (tmp_path / "proc/12/comm").write_text("python3\n")
    (tmp_path / "proc/12/status").write_text("Uid:\t0\t0\t0\t0\n")
    host = Host(tmp_path)
    expected = [f"python3 12 (user 0) at {f'[{bound}]' if ':' in bound else bound}:{PORT}"]
    assert (expected if takes else []) == list(strange_sockets(host, (worker(),), {7}, ()).values())
    assert {} == strange_sockets(host, (worker(),), {7}, {12})

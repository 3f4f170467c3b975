"""WireGuard in a process of its own, and the kernel's: its key, its ends, and what is missing."""

from __future__ import annotations

import errno
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional, cast

import pytest
from settings_world import fake_host

from udpbench.agent.host import genetlink, wireguard, wireguard_ends
from udpbench.agent.host.changes import Changes
from udpbench.agent.host.system import Host
from udpbench.agent.host.wireguard import KernelWireGuard, WireGuard, public_key
from udpbench.agent.settings.link_flap import NUD_NOARP, is_set
from udpbench.agent.settings.wireguard import TunnelCounts, WireGuardInterface
from udpbench.agent.verbs import Verbs
from udpbench.errors import SettingRefused

ANSWER = """private_key=00
listen_port=51820
public_key=0a
endpoint=10.1.0.2:51820
tx_bytes=7
allowed_ip=10.0.0.0/24
allowed_ip=10.0.1.0/24
errno=0

"""
GONE = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
END = {"peer": "0a", "remote": "10.1.0.2", "allowed": ["10.0.0.0/24", "10.0.1.0/24"]}


PRIVATE = "10e42e90a29e94debbcf946fa8cc3ffdcf4293d76ce0cd0290d1e9648c824058"
PUBLIC = "f1c385cd2a0e1741af8953093dd55fa590b12f42beb90e528f565cf577b1321e"
"""A pair that wg genkey and wg pubkey made."""


def test_a_public_key_is_that_of_the_private_one() -> None:
    """As WireGuard's own tools have it."""
    assert PUBLIC == public_key(bytes.fromhex(PRIVATE)).hex()


class Known(WireGuard):
    """One whose process runs."""

    name = "wg0"

    @property
    def pid(self) -> Optional[int]:
        """Return a number."""
        return 7


@contextmanager
def answering(folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> Iterator[list[str]]:
    """Have a process that answers once; yield what it was asked."""
    path, asked = folder / "wg.sock", list[str]()
    monkeypatch.setattr(wireguard, "SOCKET", str(path))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            link, _ = server.accept()
            with link:
                asked.append(link.recv(4096).decode())
                link.sendall(answer.encode())

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield asked
        finally:
            thread.join()


def test_a_process_has_one_time_for_its_whole_answer(tmp_path: Path) -> None:
    """A byte now and then would hold the agent: no order, no lease, no restore."""
    path = tmp_path / "wg.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        asked = threading.Event()

        def drip() -> None:
            link, _ = server.accept()
            with link, suppress(OSError):
                while not asked.wait(0.01):
                    link.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            with pytest.raises(socket.timeout):
                wireguard_ends.ask(str(path), 0.1)
        finally:
            asked.set()
            thread.join()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize(("user", "refused"), [(None, False), (65534, True)])
def test_a_link_that_leads_to_another_users_socket_is_not_followed(
    tmp_path: Path, user: Optional[int], refused: bool
) -> None:
    """The path lies in the files of the process, and a link there leads from the agent's root."""
    path = tmp_path / "any.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        server.settimeout(10)
        process = subprocess.Popen(["sleep", "60"], user=user)
        try:
            error = PermissionError if refused else socket.timeout
            with pytest.raises(error):
                wireguard_ends.ask(f"/proc/{process.pid}/root{path}", 0.1)
        finally:
            process.kill()
            process.wait()
        assert (b"" if refused else b"get=1\n\n") == server.accept()[0].recv(64)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Known:
    """Return one on a host without programs."""
    monkeypatch.setattr(Host, "program", lambda *_: None)
    known = Known(Host(tmp_path))
    known.name = "wg0"
    return known


def test_it_tells_its_other_ends(
    own: Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what may be behind each, and no word of the key."""
    with answering(tmp_path, monkeypatch, ANSWER) as asked:
        assert (END,) == own.ends()
    assert ["get=1\n\n"] == asked


def test_the_end_that_was_set_comes_first(
    own: Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever order the process lists them: all others are named, and a look finds them same."""
    with answering(tmp_path, monkeypatch, ANSWER):
        own.lead("0a", "10.1.0.2", ["10.0.0.0/24"])
    other = "public_key=01\nendpoint=10.9.9.2:51820\n"
    before = ANSWER.replace("public_key=0a", f"{other}public_key=0a")
    behind = ANSWER.replace("errno", f"{other}errno")
    for n, answer in enumerate((before, behind)):
        folder = tmp_path / str(n)
        folder.mkdir()
        with answering(folder, monkeypatch, answer):
            assert (END, {"peer": "01", "remote": "10.9.9.2", "allowed": []}) == own.ends()


def test_an_answer_that_is_a_refusal_or_ends_early_is_an_error(
    own: Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the process did not take is not in force."""
    for n, answer in enumerate(("errno=-22\n\n", "errno=0")):
        folder = tmp_path / str(n)
        folder.mkdir()
        with (
            answering(folder, monkeypatch, answer),
            pytest.raises(OSError, match="refused what it was asked"),
        ):
            own.lead("0a", "10.1.0.2", ["0.0.0.0/0"])


def unknown(_: str) -> int:
    """Refuse as a kernel without WireGuard does."""
    raise OSError(errno.ENOENT, "No such file or directory")


def test_what_is_missing_is_named_with_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package, then the module; neither where both are there."""
    host = fake_host(tmp_path)
    verbs = Verbs(host, "wg1", "run", ("namespace",), cast("Any", SimpleNamespace(others=None)), {})
    monkeypatch.setattr(Host, "program", lambda *_: None)
    monkeypatch.setattr(genetlink, "family_id", unknown)
    with pytest.raises(SettingRefused, match="apt-get install wireguard-go"):
        verbs.tunnel_key()
    monkeypatch.setattr(Host, "program", lambda *_: Path("/bin/false"))
    with pytest.raises(SettingRefused, match="modprobe tun"):
        verbs.tunnel_key()
    (tmp_path / "dev/net").mkdir(parents=True)
    (tmp_path / "dev/net/tun").touch()
    assert 64 == len(verbs.tunnel_key())
    assert verbs.tunnel_key() == verbs.tunnel_key()
    assert not isinstance(host.wireguard, KernelWireGuard)


def test_a_question_about_a_way_searches_processes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both that of a node and that of a sender, and nothing is kept for the next."""
    host = fake_host(tmp_path)
    verbs = Verbs(host, "wg1", "run", ("namespace",), cast("Any", SimpleNamespace(others=None)), {})
    asked: list[Any] = []

    def looking(*_: Any) -> Any:
        asked.append(host.tuns)
        return SimpleNamespace(outer=(), hops=(), rewrites=())

    for name in ("passage", "led_away", "prove", "find_stations"):
        monkeypatch.setattr(f"udpbench.agent.verbs.{name}", lambda *_, **__: looking())
    verbs.passage("", "eth0", (), ())
    assert [{}] == asked
    verbs._prove("eth0", (), None)
    assert [{}, {}, None, None, {}, None, None] == asked
    assert host.tuns is None


def test_the_kernels_own_needs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is one it is taken."""
    host = fake_host(tmp_path)
    monkeypatch.setattr(Host, "program", lambda *_: None)
    monkeypatch.setattr(genetlink, "family_id", lambda _: 31)
    assert "" == wireguard.lacking(host)
    assert isinstance(wireguard.chosen(host), KernelWireGuard)


class Netlink:
    """A kernel that keeps what it is told of a device, and tells that."""

    listens = b""
    """On which port it listens, as an attribute."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[str] = []
        self.fails = ""
        self.peers: list[bytes] = []
        self.key = b""
        monkeypatch.setattr(genetlink, "ask", self.ask)
        monkeypatch.setattr(Host, "rtnl", self.rtnl)
        monkeypatch.setattr(Host, "index", lambda *_: 5)

    def ask(self, family: str, command: int, *asked: bytes, dump: bool = False) -> list[bytes]:
        """Keep the peers, or tell them, each message by itself."""
        known = dict(genetlink.attributes(b"".join(asked)))
        assert ("wireguard", b"wg0\0") == (family, known[wireguard_ends.IFNAME])
        if dump:
            assert wireguard_ends.GET_DEVICE == command
            answers = [genetlink.nest(wireguard_ends.PEERS, peers) for peers in self.peers]
            return [self.listens + answer for answer in answers] or [self.listens]
        self.key = known[wireguard.PRIVATE_KEY]
        self.peers = [known[wireguard_ends.PEERS]]
        return []

    def rtnl(self, noun: str, verb: str, **fields: Any) -> list[Any]:
        """Note it, or refuse."""
        self.did.append(f"{verb} {fields.get('kind', noun)}")
        if self.fails in self.did[-1:]:
            raise OSError(errno.EPERM, "Operation not permitted")
        return []


@pytest.fixture
def netlink(monkeypatch: pytest.MonkeyPatch) -> Netlink:
    """Return a kernel with WireGuard."""
    return Netlink(monkeypatch)


def interface(folder: Path) -> KernelWireGuard:
    """Return one whose interface was made."""
    (folder / "sys/class/net/wg0").mkdir(parents=True)
    own = KernelWireGuard(Host(folder))
    own.begin("wg0")
    return own


def test_the_kernel_tells_the_ends_that_it_was_given(netlink: Netlink, tmp_path: Path) -> None:
    """Its key goes to it alone, and what may be behind an end in several messages is of one."""
    tunnel = interface(tmp_path)
    assert tunnel.runs
    assert () == tunnel.ends()
    tunnel.lead("0a" * 32, "10.1.0.2", ["10.0.0.0/24", "10.0.1.0/24"])
    assert tunnel.public == public_key(netlink.key).hex()
    end = {**END, "peer": "0a" * 32}
    assert (end,) == tunnel.ends() == tunnel.glance()
    more = genetlink.nest(wireguard_ends.PEER_ALLOWED, wireguard._allowed("fd00::/64"))
    rest = genetlink.attribute(wireguard_ends.PEER_KEY, bytes.fromhex("0a" * 32)) + more
    netlink.peers.append(genetlink.nest(0, rest))
    assert ({**end, "allowed": [*END["allowed"], "fd00::/64"]},) == tunnel.ends()


@pytest.mark.parametrize(
    ("packed", "text"),
    [
        ("0200ca6c0a010002" + "00" * 8, "10.1.0.2"),
        ("020000090a010002" + "00" * 8, "10.1.0.2:9"),
        ("0a00ca6c00000000fd" + "00" * 14 + "01" + "00" * 4, "fd00::1"),
        ("0a00000900000000fd" + "00" * 14 + "01" + "00" * 4, "[fd00::1]:9"),
        ("", ""),
    ],
)
def test_an_end_has_its_port_if_that_is_another(packed: str, text: str) -> None:
    """An end without an address is nowhere yet."""
    assert text == wireguard_ends._endpoint(bytes.fromhex(packed))


def test_an_interface_of_the_kernel_has_a_queue_or_is_not_there(
    netlink: Netlink, tmp_path: Path
) -> None:
    """Without the queue nothing counts what it is given."""
    tunnel = interface(tmp_path)
    assert ["add wireguard", "add pfifo"] == netlink.did
    tunnel.end()
    assert ("del link", False) == (netlink.did[-1], tunnel.runs)
    netlink.fails = "add pfifo"
    with pytest.raises(OSError, match="not permitted"):
        tunnel.begin("wg0")
    assert ("del link", "") == (netlink.did[-1], tunnel.name)


def test_what_comes_out_of_the_kernels_is_counted_by_a_rule(
    netlink: Netlink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own counter has handshakes and keepalives; all tables go with the interface."""
    tables: dict[str, int] = {}
    monkeypatch.setattr(
        "udpbench.agent.settings.wireguard.replace_table",
        lambda _, name, chain, rules: tables.update({f"{chain['hook']} {name}": len(rules)}),
    )
    monkeypatch.setattr(genetlink, "family_id", lambda _: 31)
    (tmp_path / "sys/class/net/wg0").mkdir(parents=True)
    host, kind = Host(tmp_path), WireGuardInterface()
    end = {**END, "peer": "0a" * 32}
    kind.write(host, "wg0", end)
    counted = ("output udpbench_sent", "input udpbench_came", "prerouting udpbench_inner")
    assert {counted[0]: 4, counted[1]: 4, counted[2]: 1} == tables
    assert end == kind.read(host, "wg0")
    kind.write(host, "wg0", None)
    assert dict.fromkeys(counted, 0) == tables
    assert kind.read(host, "wg0") is None
    assert "del link" == netlink.did[-1]


def test_a_process_that_ends_at_once_made_no_interface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the user may make none."""
    monkeypatch.setattr(Host, "program", lambda *_: Path("/bin/false"))
    monkeypatch.setattr(wireguard, "enter_own_run", lambda: None)
    started = WireGuard(Host(tmp_path))
    with pytest.raises(OSError, match="wireguard-go ended"):
        started.begin("wg0")
    assert (None, "") == (started.pid, started.name)


def test_a_device_that_is_no_tun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """And closed again."""
    files = os.listdir("/proc/self/fd")  # noqa: PTH208
    monkeypatch.setattr(wireguard, "TUN", "/dev/null")
    with pytest.raises(OSError, match="ioctl"):
        wireguard.one_by_one("wg0")
    assert len(files) == len(os.listdir("/proc/self/fd"))  # noqa: PTH208


class Started(WireGuard):
    """One that says how it was started."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.did: list[str] = []

    def _start(self, name: str, tun: Optional[int] = None) -> None:
        given = "" if tun is None else f" {Path(f'/proc/self/fd/{tun}').readlink()}"
        self.did.append(f"{name}{given}")

    def end(self) -> None:
        """Say so."""
        self.did.append("end")


@pytest.mark.parametrize(
    ("flags", "did"),
    [("0x1002", ["wg0"]), ("0x5001", ["wg0", "end", "wg0 /dev/null"]), (None, ["wg0"])],
)
def test_a_release_that_joins_packets_gets_a_device_that_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: Optional[str], did: list[str]
) -> None:
    """By what the device that it made says of itself."""
    if flags is not None:
        place = tmp_path / "sys/class/net/wg0"
        place.mkdir(parents=True)
        (place / "tun_flags").write_text(f"{flags}\n")
    monkeypatch.setattr(wireguard, "one_by_one", lambda _: os.open("/dev/null", os.O_RDONLY))
    own = Started(Host(tmp_path))
    own.begin("wg0")
    assert did == own.did


class Ends:
    """A tunnel whose process says this, in turn."""

    name = "wg0"

    def __init__(self, *says: Any) -> None:
        self.says = iter(says)

    def glance(self) -> Any:
        """Return the next, or fail so."""
        each = next(self.says)
        if isinstance(each, OSError):
            raise each
        return each


def test_another_end_is_a_change_and_silence_is_none() -> None:
    """A process that has no time to answer has none to obey; one that is gone is a change."""
    host = Host()
    host.wireguard = Ends("a", "a", socket.timeout(), "a", "b", ConnectionRefusedError())
    changes = Changes(host)
    counts = [changes.counts(["lo"]).get("changed.links") for _ in range(5)]
    assert [0, 0, 0, 1, 2] == counts


def test_an_end_of_a_process_that_is_there_is_asked_for_at_each_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the socket that was looked up once; one that has no time to answer is no change."""
    for name in ("wg0", "eth0"):
        (tmp_path / f"sys/class/net/{name}").mkdir(parents=True)
    says: Iterator[Any] = iter([ANSWER, socket.timeout(), ANSWER, ANSWER.replace(".2:", ".9:")])
    says = chain(says, [GONE, ANSWER, ANSWER])
    looked: list[str] = []

    def answer(path: str, _: float) -> str:
        assert "/wg0.sock" == path
        each = next(says)
        if isinstance(each, OSError):
            raise each
        return str(each)

    monkeypatch.setattr(wireguard_ends, "ask", answer)
    monkeypatch.setattr(
        "udpbench.agent.host.tun_devices.wireguard_socket",
        lambda _, name: looked.append(name) or ("/wg0.sock" if name == "wg0" else None),
    )
    indexes = {"wg0": 5, "eth0": 2}
    monkeypatch.setattr(Host, "index", lambda _, name: indexes[name])
    looks = Changes(Host(tmp_path))
    looks._ends = looks._other_ends(["wg0", "eth0", "gone0"])
    kept = [looks._other_ends(["wg0"]) for _ in range(3)]
    assert [True, True, False] == [each == looks._ends for each in kept]
    assert ["wg0", "eth0"] == looked
    assert looks._other_ends(["wg0"]) is None, "its process has ended"
    assert looks._other_ends(["wg0"]) is not None
    indexes["wg0"] = 6
    assert looks._other_ends(["wg0"]) is not None
    assert ["wg0", "eth0", "wg0", "wg0"] == looked, "another process, and another device"


def test_a_process_is_not_searched_for_at_each_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where this user may not ask it, and once a second where it has ended."""
    (tmp_path / "sys/class/net/wg0").mkdir(parents=True)
    looked: list[str] = []
    says: list[OSError] = [PermissionError(errno.EACCES, "Permission denied")]
    now_ns = 10**9

    def answer(*_: Any) -> str:
        raise says[-1]

    monkeypatch.setattr(wireguard_ends, "ask", answer)
    monkeypatch.setattr(
        "udpbench.agent.host.tun_devices.wireguard_socket",
        lambda _, name: looked.append(name) or "/wg0.sock",
    )
    monkeypatch.setattr(Host, "index", lambda *_: 5)
    monkeypatch.setattr(Host, "clock_ns", lambda _: now_ns)
    looks = Changes(Host(tmp_path))

    def searches(count: int) -> int:
        looked.clear()
        assert [None] * count == [looks._other_ends(["wg0"]) for _ in range(count)]
        return len(looked)

    assert 1 == searches(9)
    says.append(OSError(errno.EPROTO, "the process of WireGuard answered"))
    assert 0 == searches(9)
    says.append(GONE)
    assert 1 == searches(9), "the first time it was there"
    now_ns += 10**9 - 1
    assert 0 == searches(9)
    now_ns += 1
    assert 1 == searches(9)


@pytest.mark.parametrize(
    "text",
    [
        "endpoint=10.1.0.2:51820\npublic_key=0a\n",
        "allowed_ip=10.0.0.0/24\npublic_key=0a\n",
        "listen_port=abc\n",
        "listen_port=\n",
        f"listen_port={'9' * 5000}\n",
        "public_key=0a\nendpoint=10.1.0.2\n",
        "public_key=0a\nendpoint=10.1.0.2:65536\n",
        f"public_key=0a\nendpoint=10.1.0.2:{'9' * 5000}\n",
        "public_key=0a\nendpoint=10.1.0.999:7\n",
        "public_key=0a\nendpoint=[fd00:::2]:7\n",
        "public_key=0a\nendpoint=example.org:7\n",
        "public_key=0a\nallowed_ip=everything\n",
    ],
)
def test_an_answer_that_is_none_of_wireguards_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Whoever has the process chooses what it answers."""
    words = "the process of WireGuard answered what is not its protocol"
    if "everything" not in text:
        with pytest.raises(OSError, match=words):
            wireguard_ends.listed(text)
    monkeypatch.setattr(wireguard_ends, "ask", lambda *_: text)
    monkeypatch.setattr("udpbench.agent.host.tun_devices.wireguard_socket", lambda *_: "/wg0.sock")
    host, to = Host(tmp_path), ("10.0.0.9",)
    (why,) = wireguard_ends.without_end(host, "wg0", to)
    assert f"wg0, a tunnel (wireguard) whose ends this agent cannot ask for ({words})," == why
    tunnel = wireguard_ends.facts(host, "wg0", to, by_process=True)
    assert tunnel is not None
    assert tunnel.remote is None


def test_ends_have_addresses_of_a_link_and_of_ipv6() -> None:
    """As WireGuard writes them."""
    text = "public_key=0a\nendpoint=[fe80::1%eth0]:7\npublic_key=0b\nendpoint=[fd00::2]:51820\n"
    _, ends = wireguard_ends.listed(text)
    assert ["[fe80::1%eth0]:7", "[fd00::2]"] == [end["remote"] for end in ends]


@pytest.mark.parametrize(
    ("remote", "end"),
    [
        ("10.1.0.2", ("10.1.0.2", 51820)),
        ("10.1.0.2:7", ("10.1.0.2", 7)),
        ("fd00::2", ("fd00::2", 51820)),
        ("[fd00::2]", ("fd00::2", 51820)),
        ("[fd00::2]:7", ("fd00::2", 7)),
    ],
)
def test_an_end_is_an_address_and_a_port(remote: str, end: tuple[str, int]) -> None:
    """As the kernel's are written here, and as a process tells them."""
    assert end == wireguard_ends._apart(remote)


def test_a_tunnel_is_that_of_this_agent_alone(own: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the address by which its packets leave; further ends are named."""
    host = Host()
    assert wireguard_ends.facts(host, "wg0") is None
    host.wireguard = own
    assert wireguard_ends.facts(host, "wg1") is None
    monkeypatch.setattr(Known, "ends", lambda *_: ({**END}, {**END, "remote": ""}))

    def no_route(*_: str, **__: str) -> Any:
        raise OSError(errno.ENETUNREACH, "no route")

    monkeypatch.setattr(host, "rtnl", no_route)
    tunnel = wireguard_ends.facts(host, "wg0")
    assert tunnel is not None
    assert (None, "10.1.0.2", 51820) == (tunnel.local, tunnel.remote, tunnel.port)
    why = [*wireguard_ends.unfollowed(host, tunnel)]
    assert ["wg0, a tunnel (wireguard) with other ends: nowhere,"] == why


class Entry(dict[str, Any]):
    """A neighbour."""

    get_attr = dict.get


@pytest.mark.parametrize(("mac", "kept"), [("", False), ("02:00:00:00:00:05", True)])
def test_a_neighbour_that_the_kernel_makes_on_a_tun_device_is_not_kept(
    mac: str, kept: bool
) -> None:
    """It has no MAC, so that nothing could make it again, and the kernel does for each packet."""
    entry = {"flags": 0, "state": NUD_NOARP, "NDA_DST": "10.0.0.5", "NDA_LLADDR": mac}
    assert kept is is_set(Entry(entry))


# --- interfaces that others made --------------------------------------------------------------------

NEAR_END = ("0a", "10.1.0.2", ("10.0.0.0/16", "fd00::/64"))
NARROWER = ("0b", "10.1.0.3", ("10.0.2.0/24",))


def peers(*ends: tuple[str, str, tuple[str, ...]]) -> bytes:
    """Return ends of a device as the kernel tells them."""
    listed = []
    for key, remote, networks in ends:
        known = [genetlink.attribute(wireguard_ends.PEER_KEY, bytes.fromhex(key * 32))]
        if ":" in remote:
            packed = struct.pack("=H", 10) + struct.pack("!HI16s", 51820, 0, _ip(remote))
            known.append(genetlink.attribute(wireguard_ends.PEER_ENDPOINT, packed))
        elif remote:
            packed = struct.pack("=H", 2) + struct.pack("!H4s8x", 4500, _ip(remote))
            known.append(genetlink.attribute(wireguard_ends.PEER_ENDPOINT, packed))
        allowed = genetlink.nest(wireguard_ends.PEER_ALLOWED, *map(wireguard._allowed, networks))
        listed.append(genetlink.nest(0, *known, allowed))
    return b"".join(listed)


def _ip(text: str) -> bytes:
    return ip_address(text).packed


@pytest.fixture
def others(netlink: Netlink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Return a host with an interface of the kernel's that listens on a port of its own."""
    place = tmp_path / "sys/class/net/wg0"
    place.mkdir(parents=True)
    (place / "uevent").write_text("DEVTYPE=wireguard\nINTERFACE=wg0\nIFINDEX=5\n")
    netlink.listens = genetlink.attribute(wireguard_ends.LISTEN_PORT, struct.pack("=H", 4501))
    monkeypatch.setattr(netlink, "rtnl", lambda *_, **__: [Entry(RTA_PREFSRC="10.1.0.1")])
    monkeypatch.setattr(Host, "rtnl", lambda *_, **__: [Entry(RTA_PREFSRC="10.1.0.1")])
    return Host(tmp_path)


@pytest.mark.parametrize(
    ("ends", "to", "remote", "why"),
    [
        ((NEAR_END, NARROWER), ("10.0.0.9", "10.0.1.9"), "10.1.0.2", ()),
        ((NARROWER, NEAR_END), ("10.0.2.9", "10.99.0.9"), "10.1.0.3", ()),
        (
            (NEAR_END, NARROWER),
            ("10.0.0.9", "10.0.2.9"),
            "10.1.0.2",
            ("with several ends for the receivers: 10.1.0.2:4500, 10.1.0.3:4500",),
        ),
        (
            (("0a", "", ("10.0.0.0/16",)), NARROWER),
            ("10.0.0.9", "10.0.2.9"),
            None,
            (
                "with several ends for the receivers: nowhere, 10.1.0.3:4500",
                "whose other end has no address yet (endpoint)",
            ),
        ),
        ((("0a", "fd00::2", ("10.0.0.0/16",)),), ("10.0.0.9",), "fd00::2", ("over IPv6",)),
        (
            (("0a", "fe80::2", ("10.0.0.0/16",)),),
            ("10.0.0.9",),
            "fe80::2",
            ("over IPv6",),
        ),
        ((NEAR_END,), (), None, ()),
    ],
)
def test_an_interface_of_others_leads_to_the_end_that_the_receivers_are_behind(
    others: Host,
    netlink: Netlink,
    ends: tuple[tuple[str, str, tuple[str, ...]], ...],
    to: tuple[str, ...],
    remote: Optional[str],
    why: tuple[str, ...],
) -> None:
    """By the longest network, as WireGuard chooses; nothing of its key is in what it tells."""
    netlink.peers = [peers(*ends)]
    tunnel = wireguard_ends.facts(others, "wg0", to)
    assert tunnel is not None
    assert (remote, 4501) == (tunnel.remote, tunnel.listens)
    if remote == "10.1.0.2":
        assert ("10.1.0.1", 4500) == (tunnel.local, tunnel.port)
    texts = [f"wg0, a tunnel (wireguard) {text}," for text in why]
    assert texts == [*wireguard_ends.unfollowed(others, tunnel, to)]


def test_who_may_not_ask_an_interface_of_others_is_told_why(
    others: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ends may be anywhere."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(genetlink, "ask", refuse)
    tunnel = wireguard_ends.facts(others, "wg0", ("10.0.0.9",))
    assert tunnel is not None
    assert (None, None, 0) == (tunnel.local, tunnel.remote, tunnel.listens)
    (text,) = wireguard_ends.unfollowed(others, tunnel, ("10.0.0.9",))
    assert "whose ends this agent cannot ask for (Operation not permitted)," in text
    assert {} == (Changes(others)._other_ends(["eth0"]) or {})
    assert Changes(others)._other_ends(["wg0"]) is None


def test_an_end_of_others_that_moves_is_a_change_and_one_that_is_heard_of_first_is_none(
    others: Host, netlink: Netlink
) -> None:
    """It sent the first packet; from then on it stays where it is, and so does its port."""
    looks = Changes(others)

    def moved(*ends: tuple[str, str, tuple[str, ...]]) -> Optional[int]:
        netlink.peers = [peers(*ends)]
        return looks.counts(["wg0"]).get("changed.links")

    silent = ("0a", "", ("10.0.0.0/16",))
    assert 0 == moved(silent)
    assert 0 == moved(("0a", "10.1.0.2", ("10.0.0.0/16",)))
    assert 1 == moved(("0a", "10.1.0.9", ("10.0.0.0/16",)))
    assert 2 == moved(("0a", "10.1.0.9", ("10.0.0.0/24",)))
    assert 3 == moved(("0a", "10.1.0.9", ("10.0.0.0/24",)), NARROWER)
    netlink.listens = genetlink.attribute(wireguard_ends.LISTEN_PORT, struct.pack("=H", 9))
    assert 4 == moved(("0a", "10.1.0.9", ("10.0.0.0/24",)), NARROWER)


def test_rules_count_at_an_interface_of_others_by_the_port_where_it_listens(
    others: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data alone: what has no packet inside passes the last rule of each table by."""
    tables: dict[str, list[Any]] = {}
    monkeypatch.setattr(
        "udpbench.agent.settings.wireguard.replace_table",
        lambda _, name, chain, rules: tables.update({f"{chain['hook']} {name}": [*rules]}),
    )
    monkeypatch.setattr(
        "udpbench.agent.settings.wireguard.rules_of",
        lambda _, name: tables.get(f"prerouting {name}"),
    )
    kind = TunnelCounts()
    assert kind.read(others, "wg0") is None
    kind.write(others, "wg0", True)
    assert kind.read(others, "wg0")
    for hook, field in (
        ("output udpbench_sent_data", "sport"),
        ("input udpbench_came_data", "dport"),
    ):
        *passed, data = tables[hook]
        assert [{"accept": None}] * 4 == [rule["expr"][-1] for rule in passed]
        left = {"payload": {"protocol": "udp", "field": field}}
        assert {"match": {"op": "==", "left": left, "right": 4501}} == data["expr"][0]
        assert {"counter": None} == data["expr"][-1]
    kind.write(others, "wg0", None)
    assert [[], [], []] == [*tables.values()]
    assert kind.read(others, "wg0") is None

"""``udpbench serve`` with Debian's iperf3 as its client, between two network namespaces."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from iperf3_client import Client
from sampled import sampled
from waiting import wait_until

from udpbench.agent.host.frames import headers, packed_addresses, udp_checksum
from udpbench.analysis.judge import judge
from udpbench.client_gate import ClientGate
from udpbench.errors import HostError
from udpbench.model.record import TrialRecord
from udpbench.records import read_run

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(shutil.which("iperf3") is None, reason="apt-get install iperf3"),
]

LIMIT_S = 60
SERVER, CLIENT = "10.77.0.1", "10.77.0.2"
SERVER_6 = "fd77::1"
HOLD = "import signal; print('ready', flush=True); signal.pause()"
OWN = f'mount -t sysfs sysfs /sys; exec "{sys.executable}" -c "$0"'
"""Whoever is started in the namespaces later finds its interfaces in /sys."""
JOIN = """
import sys, time
from pyroute2 import IPRoute
name, other, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
with IPRoute() as link:
    if other != "-":
        link.link("add", ifname=name, kind="veth", peer={"ifname": "out0", "net_ns_pid": int(other)})
    for each in ("lo", name):
        index = link.link_lookup(ifname=each)[0]
        link.link("set", index=index, state="up")
    link.addr("add", index=index, address=f"10.77.0.{number}", prefixlen=24)
    link.addr("add", index=index, address=f"fd77::{number}", prefixlen=64, flags=0x02)
"""


class Hosts:
    """Two hosts joined by a veth pair: at one udpbench serves, at the other iperf3 sends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._holders = [self._hold() for _ in range(2)]
        self.server, self.client = (str(each.pid) for each in self._holders)
        self._python(self.server, JOIN, "in0", self.client, "1")
        self._python(self.client, JOIN, "out0", "-", "2")
        self.macs = self._mac(self.client, "out0"), self._mac(self.server, "in0")

    def _hold(self) -> subprocess.Popen[str]:
        words = ("unshare", "--net", "--mount", "sh", "-ec", OWN, HOLD)
        holder = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert holder.stdout is not None
        assert "ready\n" == holder.stdout.readline()
        return holder

    def _python(self, pid: str, text: str, *words: str) -> None:
        subprocess.run(self.inside(pid, sys.executable, "-c", text, *words), check=True)

    def _mac(self, pid: str, interface: str) -> str:
        path = f"/sys/class/net/{interface}/address"
        command = self.inside(pid, "cat", path)
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def inside(self, pid: str, *words: str) -> tuple[str, ...]:
        """Return a command that runs on a host."""
        return ("nsenter", f"--target={pid}", "--net", "--mount", *words)

    def serve(self, *words: str) -> Serving:
        """Serve, and wait until it listens."""
        program = (sys.executable, "-m", "udpbench", "serve")
        return Serving(self.inside(self.server, *program, *words), self.folder)

    def iperf3(self, *words: str, to: str = SERVER) -> subprocess.CompletedProcess[str]:
        """Run a client to its end."""
        command = self.inside(self.client, "iperf3", "-c", to, *words)
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    def test(self, *words: str, to: str = SERVER) -> Test:
        """Serve a single client over UDP, and return what both say."""
        folder = self.folder / f"run{len(list(self.folder.iterdir()))}"
        with closing(self.serve("--listen", "::", "--once", "--out", str(folder))) as serving:
            client = self.iperf3("-u", "-J", *words, to=to)
            printed = serving.wait()
        return Test(json.loads(client.stdout), printed, folder)

    def close(self) -> None:
        """End both hosts."""
        for each in self._holders:
            each.kill()
            each.communicate()


class Serving:
    """A server that runs."""

    def __init__(self, command: tuple[str, ...], folder: Path) -> None:
        self.process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout is not None
        self.first = self.process.stdout.readline()
        assert self.first.startswith("listening"), self.first + self.process.stdout.read()

    def wait(self) -> str:
        """Return all that it prints to its end."""
        printed, _ = self.process.communicate(timeout=LIMIT_S)
        return self.first + printed

    def close(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.communicate(timeout=LIMIT_S)


class Test:
    """What a client's test says at both ends."""

    __test__ = False

    def __init__(self, client: dict[str, Any], printed: str, folder: Path) -> None:
        self.client = client
        self.printed = printed
        self.run = read_run(folder)
        (self.record,) = self.run.records
        self.result = judge(self.record)

    @property
    def numbers(self) -> tuple[int, int]:
        """Return packets and lost packets as the client shows them."""
        total = self.client["end"]["sum"]
        return total["packets"], total["lost_packets"]

    @property
    def ledger(self) -> dict[str, int]:
        """Return stage → packets, of those with any; all are exact."""
        assert self.result.ledger is not None
        entries = self.result.ledger.entries
        assert [] == [entry for entry in entries if entry.at_most is not None]
        return {entry.stage: entry.packets for entry in entries if entry.packets}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Join two hosts."""
    with closing(Hosts(tmp_path_factory.mktemp("served"))) as joined:
        yield joined


@pytest.mark.parametrize(
    "options",
    [
        ("-b", "5M", "-t", "1"),
        ("-b", "1M", "-l", "16", "-n", "16K", "--udp-counters-64bit"),
        ("-b", "20M", "-k", "500", "-P", "3"),
        ("-b", "20M", "-t", "2", "-O", "1", "-l", "1448"),
        ("-b", "5M", "-t", "1", "-S", "16", "-A", "0,0", "-w", "64K", "--dont-fragment"),
        ("-b", "0", "-k", "2000", "-l", "200", "-4"),
    ],
    ids=" ".join,
)
def test_each_option_of_a_client_is_served(hosts: Hosts, options: tuple[str, ...]) -> None:
    """Client and server agree on every packet; a busy machine may lose some, where it says."""
    test = hosts.test(*options)
    assert "error" not in test.client
    packets, lost = test.numbers
    assert packets > 0
    if "-O" not in options:
        assert (packets, lost) == (test.result.sent_packets, test.result.lost_packets)
    assert {test.result.lost_packets} == {sum(test.ledger.values())}
    assert (True, 0) == (test.result.valid, test.result.unaccounted)
    assert test.ledger.keys() <= {"udp_rcvbuf"}


def test_a_device_that_runs_iperf3_gets_a_gate(tmp_path: Path) -> None:
    """The server runs beside the test, and each of its clients has a result and a run folder."""
    with ClientGate(tmp_path, ("pytest",), port=5211) as server:
        for lost in (0, 3):
            with closing(Client(5211)) as client:
                client.begin()
                client.send(range(1, 101))
                client.end(100 + lost)
            result = server.result()
            assert (lost, lost) == (result.lost_packets, result.ledger["before_host"])
        with pytest.raises(TimeoutError, match="no iperf3 client"):
            server.result(within_s=0.1)
    assert ["0001", "0002"] == sorted(path.name for path in tmp_path.iterdir())
    with (
        socket.create_server(("127.0.0.1", 5211)),
        pytest.raises(HostError, match="in use"),
        ClientGate(tmp_path / "other", ("pytest",), port=5211),
    ):
        pass


GATED = """
import sys
sys.path.append({fixtures!r})
from iperf3_client import Client


def served(server, lost):
    client = Client(server.port)
    client.begin()
    client.send(range(1, 101))
    client.end(100 + lost)
    client.close()
    return server.result()


def test_each_block_has_results_of_its_own(udpbench_serve):
    for lost in (0, 3):
        with udpbench_serve(port=5212) as server:
            assert lost == served(server, lost).ledger["before_host"]


def test_nowhere(udpbench_serve):
    with udpbench_serve(listen="nowhere"):
        pass
"""


def test_the_fixture_is_a_gate_in_a_test(tmp_path: Path) -> None:
    """Block after block; an error of udpbench is its message, without a traceback."""
    fixtures = str(Path(__file__).parents[1] / "fixtures")
    (tmp_path / "test_it.py").write_text(GATED.format(fixtures=fixtures))
    plugin = [] if entry_points(group="pytest11", name="udpbench") else ["-pudpbench.pytest_plugin"]
    words = (*plugin, "-p", "no:cacheprovider", "--udpbench-out", "runs", "-m", "udpbench")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "\n--listen: nowhere: not an address" in done.stdout
    assert "Traceback" not in done.stdout
    assert "ip_address" not in done.stdout
    assert 2 == len([*(tmp_path / "runs").glob("*/*/run.jsonl")])


# --- losses planted on the receiving side --------------------------------------------------------

PLANTER = """
import ctypes, os, signal, socket, struct, sys
from udpbench.agent.host.socket_options import SO_ATTACH_FILTER, attach_filter
from udpbench.agent.host.system import Host
from udpbench.agent.settings.handlers import KINDS
host = Host()
for line in sys.stdin:
    word, *rest = line.split()
    if word in ("tc_drop", "xdp"):
        KINDS[word].write(host, "in0", int(rest[0]) or None)
    elif word == "filter":
        pidfd = os.pidfd_open(int(rest[0]))
        for name in os.listdir(f"/proc/{rest[0]}/fd"):
            fd = ctypes.CDLL(None).syscall(438, pidfd, int(name), 0)  # pidfd_getfd
            try:
                with socket.socket(fileno=fd) as sock:
                    if sock.type == socket.SOCK_DGRAM and sock.getpeername()[1] == int(rest[1]):
                        if rest[2] == "on":
                            attach_filter(sock, SO_ATTACH_FILTER, [(0x06, 0, 0, 0)])
                        else:
                            sock.setsockopt(socket.SOL_SOCKET, 27, struct.pack("i", 0))
            except OSError:
                pass
    print("done", flush=True)
"""
PORT = 5201
CLONE_NEWNET = 0x40000000
SIZE_BYTES = 100
FULL = 3000
"""More packets than the default buffer holds."""


@contextmanager
def network_of(pid: str) -> Iterator[None]:
    """Let this thread open sockets in the network of a process."""
    libc = ctypes.CDLL(None, use_errno=True)
    spaces = Path("/proc/thread-self/ns/net"), Path(f"/proc/{pid}/ns/net")
    with spaces[0].open() as own, spaces[1].open() as other:
        assert libc.setns(other.fileno(), CLONE_NEWNET) == 0
        try:
            yield
        finally:
            assert libc.setns(own.fileno(), CLONE_NEWNET) == 0


class Planted:
    """A client's test of which packets are lost on purpose, each at a stage of the receiver."""

    def __init__(self, hosts: Hosts, draw: random.Random) -> None:
        self.hosts = hosts
        self.draw = draw
        self.counter = 0
        self.planted: Counter[str] = Counter()
        program = (sys.executable, "-c", PLANTER)
        self.planter = subprocess.Popen(
            hosts.inside(hosts.server, *program),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with network_of(hosts.client):
            self.client = Client(PORT, SERVER)
            self.client.begin(time=30, len=SIZE_BYTES, window=2**18)
            self.raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            self.raw.bind(("out0", 0))
        self.server = self._server()

    def _server(self) -> int:
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                net = (process / "ns/net").readlink()
                if b"udpbench.agent.clients" in words and net == self._net():
                    return int(process.name)
        raise AssertionError("no server")

    def _net(self) -> Path:
        return Path(f"/proc/{self.hosts.server}/ns/net").readlink()

    def plant(self, *words: object) -> None:
        """Have the receiving side changed."""
        assert self.planter.stdin is not None
        assert self.planter.stdout is not None
        self.planter.stdin.write(" ".join(map(str, words)) + "\n")
        self.planter.stdin.flush()
        assert "done\n" == self.planter.stdout.readline()

    def counters(self, packets: int) -> list[int]:
        """Take the next counters."""
        first, self.counter = self.counter + 1, self.counter + packets
        return list(range(first, self.counter + 1))

    def arrive(self, packets: int) -> None:
        """Send packets that arrive, slowly enough."""
        for counter in self.counters(packets):
            self.client.send([counter], size_bytes=SIZE_BYTES)
        self.settle()

    def settle(self) -> None:
        """Wait until all that was sent is where it ends."""
        stream = self.client.streams[0]

        def taken_up() -> bool:
            waiting = ctypes.c_int(0)
            fcntl.ioctl(stream, 0x5411, waiting)  # SIOCOUTQ
            return waiting.value == 0

        wait_until("packets are taken up", taken_up)

    def lose(self, stage: str, packets: int) -> None:
        """Lose so many at a stage."""
        getattr(self, f"_{stage}")(packets)
        self.planted[stage] += packets

    def _before_host(self, packets: int) -> None:
        self.counters(packets)

    def _rx_tc(self, packets: int) -> None:
        self.plant("tc_drop", PORT)
        self.arrive(packets)
        self.plant("tc_drop", 0)

    def _rx_xdp(self, packets: int) -> None:
        self.plant("xdp", PORT)
        self.arrive(packets)
        self.plant("xdp", 0)

    def _rx_netfilter(self, packets: int) -> None:
        rule = "chain in { type filter hook input priority 0; udp dport 5201 drop; }"
        for text in (f"add table ip plant {{ {rule}; }}", "delete table ip plant"):
            command = self.hosts.inside(self.hosts.server, "nft", "-f", "-")
            subprocess.run(command, input=f"{text}\n", text=True, check=True)
            if text.startswith("add"):
                self.arrive(packets)

    def _frames(self, packets: int, flaw: str) -> None:
        stream = self.client.streams[0]
        ports = (stream.getsockname()[1], PORT)
        payload = bytes(SIZE_BYTES)
        addresses = (CLIENT, SERVER)
        frame = bytearray(headers(self.hosts.macs, addresses, ports, len(payload), 64))
        checksum = udp_checksum(packed_addresses(*addresses), ports, payload)
        wrong = checksum ^ 0x5555 or 1
        struct.pack_into("!H", frame, len(frame) - 2, wrong if flaw == "udp" else checksum)
        if flaw == "ip":
            frame[24] ^= 0x55
        for _ in self.counters(packets):
            self.raw.send(bytes(frame) + payload)

    def _rx_ip(self, packets: int) -> None:
        self._frames(packets, "ip")

    def _udp_checksum(self, packets: int) -> None:
        self._frames(packets, "udp")

    def _udp_filter(self, packets: int) -> None:
        port = self.client.streams[0].getsockname()[1]
        self.plant("filter", self.server, port, "on")
        self.arrive(packets)
        self.plant("filter", self.server, port, "off")

    def _app_truncated(self, packets: int) -> None:
        for counter in self.counters(packets):
            self.client.send([counter], size_bytes=SIZE_BYTES + 1)

    def overflow(self) -> None:
        """Send more than the buffer holds while the receiver is stopped: the kernel says how many."""
        os.kill(self.server, signal.SIGSTOP)
        try:
            self.arrive(FULL)
        finally:
            os.kill(self.server, signal.SIGCONT)
        wait_until("the receiver has caught up", lambda: not self._queued())

    def _queued(self) -> int:
        """Return the bytes that wait in the streams of the server."""
        lines = Path(f"/proc/{self.server}/net/udp").read_text().split("\n")[1:-1]
        queues = (line.split()[4].partition(":")[2] for line in lines if ":1451" in line.split()[1])
        return sum(int(queue, 16) for queue in queues)

    def close(self) -> None:
        """End client and planter."""
        self.client.close()
        self.raw.close()
        self.planter.kill()
        self.planter.communicate()


STAGES = (
    *("before_host", "rx_tc", "rx_xdp", "rx_netfilter", "rx_ip", "udp_checksum"),
    *("udp_filter", "app_truncated"),
)


def planted_test(hosts: Hosts, seed: int, folder: Path) -> tuple[Planted, Any, TrialRecord, str]:
    """Return a test with losses drawn at random, the client's results, and what was counted."""
    draw = random.Random(seed)
    words = ("--listen", SERVER, "--once", "--out", str(folder))
    with closing(hosts.serve(*words)) as serving, closing(Planted(hosts, draw)) as test:
        for stage in draw.sample(STAGES, draw.randint(1, len(STAGES))):
            test.arrive(draw.randint(1, 200))
            test.lose(stage, draw.randint(1, 40))
        if draw.random() < 0.5:
            test.overflow()
        again = draw.randint(0, 9)
        test.client.send([1] * again, size_bytes=SIZE_BYTES)
        tail = draw.randint(0, 9)
        test.lose("before_host", tail)
        results = test.client.end(test.counter)
        printed = serving.wait()
    (record,) = read_run(folder).records
    return test, results, record, printed


@pytest.mark.parametrize("seed", sampled(list(range(100)), [0, 1, 2]))
def test_losses_at_every_stage_are_counted_exactly(hosts: Hosts, seed: int, tmp_path: Path) -> None:
    """Whatever is lost where, in whatever order: client and server agree, stage by stage."""
    test, results, record, printed = planted_test(hosts, seed, tmp_path / "run")
    result = judge(record)
    assert result.ledger is not None
    spans = {
        each.stage: (each.packets or 0, each.packets if each.at_most is None else each.at_most)
        for each in result.ledger.entries
    }
    overflowed, most = spans.pop("udp_rcvbuf")
    assert overflowed == most
    ended = {stage: low or high for stage, (low, high) in spans.items() if high}
    if test.planted["rx_xdp"]:  # no counter of a driver says whose packets XDP took
        low, high = spans["before_host"]
        assert test.planted["rx_xdp"] == spans["rx_xdp"][1] == high - low
        ended["before_host"] = low
    assert {stage: n for stage, n in test.planted.items() if n} == {
        stage: n for stage, n in ended.items() if n
    }, printed
    lost = sum(test.planted.values()) + overflowed
    (stream,) = results["streams"]
    assert (test.counter, lost, lost) == (stream["packets"], stream["errors"], result.lost_packets)
    assert (0, True) == (result.ledger.unaccounted, result.valid)

"""``udpbench serve`` with Debian's iperf3 as its client, between two network namespaces."""

from __future__ import annotations

import json
import random
import re
import resource
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from importlib.metadata import entry_points
from itertools import zip_longest
from pathlib import Path

import pytest
import served
from iperf3_client import Client
from iperf3_releases import clients, independent
from sampled import sampled
from served import BEFORE, Loss, Plan, Planted
from served_hosts import LIMIT_S, PORT, SERVER, SERVER_6, Hosts, Test, network_of

from udpbench.agent.host.frames import packed_addresses
from udpbench.analysis.judge import judge
from udpbench.client_gate import ClientGate
from udpbench.errors import HostError
from udpbench.records.reader import read_run

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(shutil.which("iperf3") is None, reason="apt-get install iperf3"),
]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Join two hosts."""
    with closing(Hosts(tmp_path_factory.mktemp("served"))) as joined:
        yield joined


OPTIONS = (
    ("-b", "5M", "-t", "1"),
    ("-b", "1M", "-l", "16", "-n", "16K", "--udp-counters-64bit"),
    ("-b", "20M", "-k", "500", "-P", "3"),
    ("-b", "20M", "-t", "2", "-O", "1", "-l", "1448"),
    ("-b", "5M", "-t", "1", "-S", "16", "-A", "0,0", "-w", "64K", "--dont-fragment"),
    ("-b", "0", "-k", "2000", "-l", "200", "-4", "--get-server-output"),
    ("-b", "5M", "-t", "1", "-6", "-P", "2"),
    ("-b", "20M", "-t", "1", "-l", "1000", "--gsro", "--skip-rx-copy"),
)
SAMPLE = [("installed", options) for options in OPTIONS]


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Test]]:
    """Serve one client after the other, each by a call."""
    folder = tmp_path_factory.mktemp("tested")
    words = ("--listen", "::", "--no-report", "--out", str(folder / "runs"))
    with closing(Hosts(folder)) as joined, closing(joined.serve(*words)) as serving:
        yield partial(joined.test, serving)


@pytest.mark.drawn(4)
@pytest.mark.parametrize(
    ("client", "options"),
    sampled([(client, options) for client in clients() for options in OPTIONS], SAMPLE),
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_each_option_of_a_client_is_served(
    tested: Callable[..., Test], client: str, options: tuple[str, ...]
) -> None:
    """Client and server agree on every packet; a busy machine may lose some, where it says."""
    program = clients()[client]
    known = subprocess.run((*program, "--help"), capture_output=True, text=True, check=False).stdout
    missing = [word for word in options if word.startswith("--") and word not in known]
    if missing:
        pytest.skip(f"{client}: this release has no {' '.join(missing)}")
    test = tested(*options, to=SERVER_6 if "-6" in options else SERVER, program=program)
    assert "error" not in test.client, test.client
    packets, lost = test.numbers
    assert packets > 0
    if "-O" not in options:
        assert (packets, lost) == (test.result.sent_packets, test.result.lost_packets)
    assert {test.result.lost_packets} == {sum(test.ledger.values())}
    assert (True, 0) == (test.result.valid, test.result.unaccounted)
    assert test.ledger.keys() <= {"udp_rcvbuf"}
    assert ("--get-server-output" in options) == ("server_output_text" in test.client)
    named = {"gsro", "skip_rx_copy"} & set(test.served.ignored)
    assert bool(named) == ("--gsro" in options)


@pytest.mark.long
@pytest.mark.skipif(not independent().exists(), reason="python3 noxfile.py served fetches it")
def test_a_client_that_shares_no_code_with_iperf3_is_served(hosts: Hosts, tmp_path: Path) -> None:
    """It has no options: 10 s with the older greeting, and packets of 1458 B."""
    words = ("--listen", SERVER, "--once", "--out", str(tmp_path / "run"))
    with closing(hosts.serve(*words)) as serving:
        command = (sys.executable, str(independent()), "-u", "-c", SERVER)
        inside = hosts.inside(hosts.client, *command)
        client = subprocess.run(inside, capture_output=True, text=True, check=False)
        printed = serving.wait()
    assert (0, "") == (client.returncode, client.stderr), printed
    (record,) = read_run(tmp_path / "run").records
    result = judge(record)
    assert result.sent_packets is not None
    assert 8000 < result.sent_packets < 10_000
    assert (result.sent_packets, 0) == (result.received_packets, result.unaccounted), printed
    assert record.served is not None
    assert ("3.6", "") == (record.served.version, record.served.ended)


def test_a_device_that_runs_iperf3_gets_a_gate(tmp_path: Path) -> None:
    """The server runs beside the test, and each of its clients has a result and a run folder."""
    noted: list[Path] = []
    with ClientGate(tmp_path, ("pytest",), noted.append, port=5211) as server:
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
    assert ["0001", "0002"] == [path.name for path in noted]
    with (
        socket.create_server(("127.0.0.1", 5211)),
        pytest.raises(HostError, match="in use"),
        ClientGate(tmp_path / "other", ("pytest",), noted.append, port=5211),
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


def test_nothing_is_lost(udpbench_serve):
    with udpbench_serve(port=5212) as server:
        assert 0 == served(server, 7).ledger["before_host"]


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
    assert "2 failed, 1 passed" in done.stdout, done.stdout
    assert re.search(r"before_host +7", done.stdout), done.stdout
    assert 3 == len(re.findall(r"^test_it\.py::test_\w+  (?:passed|failed)  ", done.stdout, re.M))
    assert "\n--listen: nowhere: not an address" in done.stdout
    assert "Traceback" not in done.stdout
    assert "ip_address" not in done.stdout
    assert 3 == len([*(tmp_path / "runs").glob("*/*/run.jsonl")])


# --- losses planted on the receiving side --------------------------------------------------------


@pytest.mark.drawn(2)
@pytest.mark.parametrize("seed", range(10))
def test_losses_at_every_stage_are_counted_exactly(hosts: Hosts, seed: int, tmp_path: Path) -> None:
    """Whatever is lost where, in whatever order: client and server agree, stage by stage."""
    plan = served.drawn(random.Random(seed))
    assert [] == list(served.complaints(plan, served.ran(hosts, plan, tmp_path / "run")))


AMONG_TWO = (
    ("rx_netfilter", "udp_rcvbuf", BEFORE),
    ("rx_tc", "udp_rcvbuf", "app_truncated"),
)


def test_of_two_clients_at_once_each_has_a_ledger(hosts: Hosts, tmp_path: Path) -> None:
    """What each one's sockets dropped is exact; stages before these are shared: intervals."""
    plans = [
        Plan(streams, False, tuple(Loss(0, 50, stage, 7 + 4 * streams) for stage in stages), 2, 2)
        for streams, stages in zip((1, 2), AMONG_TWO, strict=True)
    ]
    words = ("--listen", SERVER, "--clients", "2", "--out", str(tmp_path / "runs"))
    with closing(hosts.serve(*words)) as serving:
        tests = [Planted(hosts, plan) for plan in plans]
        for _ in zip_longest(*(test.send() for test in tests)):
            pass  # one after the other
        answers = [test.end() for test in tests]
        for test in tests:
            test.close()
        folders = [serving.stored() for _ in tests]
    assert [True] * 2 == [(folder / "report.html").exists() for folder in folders]
    for place, (plan, answered) in enumerate(zip(plans, answers, strict=True), 1):
        (record,) = read_run(tmp_path / "runs" / f"{place:04d}").records
        result, lost = judge(record), plan.lost
        assert result.ledger is not None
        spans = {
            entry.stage: (entry.packets or 0, entry.at_most) for entry in result.ledger.entries
        }
        assert (lost["udp_rcvbuf"], None) == spans["udp_rcvbuf"]
        assert (lost["app_truncated"], None) == spans["app_truncated"]
        for stage in (BEFORE, "rx_netfilter", "rx_tc"):
            low, high = spans[stage]
            assert low == 0, spans
            assert high is not None
            assert lost[stage] <= high <= lost[BEFORE] + lost["rx_netfilter"] + lost["rx_tc"]
        assert (0, True) == (result.ledger.unaccounted, result.valid)
        assert (lost.total(), lost.total()) == (
            result.lost_packets,
            sum(stream["errors"] for stream in answered["streams"]),
        )


# --- ten thousand strangers ----------------------------------------------------------------------

HALF_OPEN = 10_000
SYN = struct.pack("!HHIIBBHHH", 0, PORT, 1, 0, 5 << 4, 0x02, 65535, 0, 0)


def syn(macs: tuple[str, str], number: int) -> bytes:
    """Return a frame that begins a connection from an address where nobody is, from any port."""
    client, server = (bytes.fromhex(mac.replace(":", "")) for mac in macs)
    addresses = packed_addresses("10.77.0.99", SERVER)
    segment = bytearray(SYN)
    struct.pack_into("!HHI", segment, 0, 1024 + number % 60_000, PORT, number)
    struct.pack_into("!H", segment, 16, ones_sum(addresses + struct.pack("!HH", 6, 20) + segment))
    head = bytearray(struct.pack("!BBHHHBBH", 0x45, 0, 40, number % 2**16, 0, 64, 6, 0) + addresses)
    struct.pack_into("!H", head, 10, ones_sum(head))
    return server + client + b"\x08\x00" + bytes(head) + bytes(segment)


def ones_sum(data: bytes | bytearray) -> int:
    """Return the checksum of IP (RFC 1071)."""
    total = sum(word for (word,) in struct.iter_unpack("!H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def memory_kib(pid: int) -> int:
    """Return what a process has resident."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("VmRSS")))


@pytest.fixture
def many_files() -> Iterator[None]:
    """Let this process hold ten thousand connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(hard, HALF_OPEN + 1000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.drawn(1)
@pytest.mark.parametrize("way", ["silent", "cookie cut off", "SYN"])
def test_ten_thousand_half_open_connections_do_no_harm(
    hosts: Hosts, way: str, many_files: None, tmp_path: Path
) -> None:
    """A test that goes on loses nothing, the next client is served, and the server does not grow."""
    words = ("--listen", SERVER, "--out", str(tmp_path / "runs"))
    # All are closed also where the test fails: later tests' descriptors must fit into select().
    with (
        closing(hosts.serve(*words)) as serving,
        network_of(hosts.client),
        ExitStack() as held,
    ):
        client = held.enter_context(closing(Client(PORT, SERVER)))
        raw = held.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
        raw.bind(("out0", 0))
        client.begin(time=240)  # longer than a busy machine takes to open them
        server = hosts.pid_of("udpbench.agent.clients")
        before_kib = memory_kib(server)
        for number in range(HALF_OPEN):
            if way == "SYN":
                raw.send(syn(hosts.macs, number))
            else:
                half = held.enter_context(socket.create_connection((SERVER, PORT), LIMIT_S))
                if way == "cookie cut off":
                    with suppress(OSError):  # closed for another
                        half.send(b"half a cookie")
            if number % 10 == 0:
                client.send([number // 10 + 1])
        grown_kib = memory_kib(server) - before_kib
        descriptors = len([*Path(f"/proc/{server}/fd").iterdir()])
        results = client.end(HALF_OPEN // 10)
        other = hosts.iperf3("-u", "-J", "-b", "1M", "-k", "20")
        folders = [serving.stored() for _ in range(2)]
    assert [True] * 2 == [(folder / "report.html").exists() for folder in folders]
    (stream,) = results["streams"]
    assert (HALF_OPEN // 10, 0) == (stream["packets"], stream["errors"])
    assert 20 == json.loads(other.stdout)["end"]["sum"]["packets"], other.stdout
    assert descriptors < 128
    assert grown_kib < 8192

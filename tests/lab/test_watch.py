"""``udpbench watch`` of a namespace whose sockets lose packets for reasons of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from program_forks import UDPBENCH, Forked, completed
from test_path import There

import udpbench

pytestmark = [pytest.mark.apart, pytest.mark.lab]

LIMIT_S = 60
KERNEL = tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2])
OWNER_ID = 54322
"""Nobody has it here, so that whatever sockets others have open, an exporter has room for its own."""
HOLDER = r"""
import fcntl, os, socket, struct, sys
from udpbench.agent.host.socket_options import SO_ATTACH_FILTER, attach_filter

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh22x", b"lo", 1))
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
os.setresuid(*3 * [int(sys.argv[1])])

def bound(port):
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", port))
    receiver.setblocking(False)
    return receiver

def send(port, packets):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(packets):
            sender.sendto(bytes(200), ("127.0.0.1", port))

sockets = {port: bound(port) for port in range(7000, 7200)}
print("bound", flush=True)
for command in sys.stdin:
    if command == "lose\n":
        sockets[7001].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        send(7001, 60)
        attach_filter(sockets[7002], SO_ATTACH_FILTER, [(0x06, 0, 0, 0)])
        send(7002, 50)
        header = struct.pack("!HHHH", 9, 7003, 208, 1)
        ip = struct.pack("!BBHHHBBH4s4s", 69, 0, 228, 1, 0, 9, 17, 0, b"\x7f\0\0\1", b"\x7f\0\0\1")
        for _ in range(40):
            raw.sendto(ip + header + bytes(200), ("127.0.0.1", 0))
        send(7004, 5)
        with bound(7300) as ending:
            send(7300, 3)
    if command == "knock\n":
        sockets[7199].close()
        send(7998, 6)
        send(7199, 4)
    for port in (7003, 7004):
        try:
            while True:
                sockets[port].recv(300)
        except BlockingIOError:
            pass
    print("done", flush=True)
"""
Look = dict[str, Any]


class Holder:
    """A process with 200 sockets in a network namespace of its own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            ("unshare", "--net", sys.executable, "-c", HOLDER, str(OWNER_ID)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._await_word("bound")

    @property
    def pid(self) -> str:
        """Return its number: unshare replaces itself."""
        return str(self.process.pid)

    def do(self, command: str) -> None:
        """Have it done, and wait until it is."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        self._await_word("done")

    def _await_word(self, word: str) -> None:
        assert self.process.stdout is not None
        assert f"{word}\n" == self.process.stdout.readline()


@pytest.fixture
def holder() -> Iterator[Holder]:
    """Start the process, and end it."""
    started = Holder()
    yield started
    started.process.kill()
    started.process.communicate()


def watch_until(
    arguments: tuple[str, ...], act: Callable[[], None], enough: Callable[[Look], bool]
) -> tuple[Look, int]:
    """Return the first look that is enough, and the exit code after Ctrl-C."""
    words = (UDPBENCH, "watch", "--json", "--for", f"{LIMIT_S}s", *arguments)
    with Forked(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        look = json.loads(process.stdout.readline())
        act()
        while not enough(look):
            look = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        return look, process.wait(LIMIT_S)


def losing(look: Look) -> dict[int, tuple[int, list[str]]]:
    """Return port → packets and stages of the sockets that lost any."""
    return {
        each["port"]: (each["dropped"], each["stages"])
        for each in look["sockets"]
        if each["dropped"]
    }


@pytest.mark.skipif(KERNEL < (6, 15), reason="watch --exact needs Linux 6.15")
def test_each_socket_that_drops_is_named_with_its_reason_and_no_other(holder: Holder) -> None:
    """Two hundred sockets, three of which drop for three reasons, and one that came and went."""
    look, code = watch_until(
        ("--exact", "--pid", holder.pid),
        lambda: holder.do("lose"),
        lambda look: {7001, 7002, 7003} <= losing(look).keys() or holder.do("read") is not None,
    )
    assert 1 == code
    lost = losing(look)
    assert {7001: ["udp_rcvbuf"], 7002: ["udp_filter"], 7003: ["udp_checksum"]} == {
        port: stages for port, (_, stages) in lost.items()
    }
    assert (50, 40) == (lost[7002][0], lost[7003][0])
    assert 200 == look["sockets_watched"]
    owners = {tuple(each["processes"]) for each in look["sockets"]}
    assert {(f"python3 {holder.pid}",)} == {
        (re.sub(r"^python[\d.]*", "python3", o[0]),) for o in owners
    }


SENDS = (
    "import socket; s = socket.socket(2, 2); [s.sendto(b'', ('10.2.0.2', 9)) for _ in range(50)]"
)
BINDS = "import socket, sys; s = socket.socket(2, 2); s.bind(('', 0)); sys.stdin.read()"
"""A namespace is chosen by a process that has a socket in it."""


def test_a_watched_router_tells_what_it_forwards_and_loses() -> None:
    """No socket of its own has it: its rule drops datagrams of others."""
    there = There()

    def inside(short: str) -> tuple[str, ...]:
        return ("ip", "netns", "exec", there.name(short), sys.executable, "-c")

    def send() -> None:
        subprocess.run((*inside("red"), SENDS), check=True)

    try:
        there.open()
        there.inside("gateway", "iptables -A FORWARD -p udp -j DROP")
        with subprocess.Popen((*inside("gateway"), BINDS), stdin=subprocess.PIPE) as router:
            look, _ = watch_until(
                ("--pid", str(router.pid)),
                send,
                lambda look: bool(look["stages"]),
            )
    finally:
        there.close()
    assert [("fwd_netfilter", 50)] == [(s["stage"], s["packets"]) for s in look["stages"]]
    assert look["forwarded_pps"] > 0


def test_an_interface_that_is_removed_ends_no_watch(holder: Holder) -> None:
    """What it lost before stays, and it is named."""
    inside = ("nsenter", "-t", holder.pid, "-n", "ip", "link")
    pair = ("add", "eth7", "up", "type", "veth", "peer", "name", "eth8")
    for words in (pair, ("set", "eth8", "up")):
        subprocess.run([*inside, *words], check=True)

    def remove() -> None:
        subprocess.run([*inside, "del", "eth7"], check=True)

    look, code = watch_until(
        ("--pid", holder.pid), remove, lambda look: bool(look["interfaces_gone"])
    )
    assert (["eth7", "eth8"], 0) == (sorted(look["interfaces_gone"]), code)


@pytest.mark.skipif(KERNEL < (6, 15), reason="watch --exact needs Linux 6.15")
def test_what_comes_to_a_closed_port_is_counted_by_port(holder: Holder) -> None:
    """From when its socket has closed on, and not what comes to another one at the same time."""
    look, code = watch_until(
        ("--exact", "--pid", holder.pid, "--port", "7199"),
        lambda: holder.do("knock"),
        lambda look: look["unbound_packets"] > 0,
    )
    assert (4, 1) == (look["unbound_packets"], code)


def test_a_watch_is_kept_as_a_run(holder: Holder, tmp_path: Path) -> None:
    """With report and frames; ``show`` ends as the watch did."""
    out = tmp_path / "kept"
    look, code = watch_until(
        ("--pid", holder.pid, "--out", str(out)),
        lambda: holder.do("lose"),
        lambda look: 7001 in losing(look),
    )
    assert (1, True) == (code, (out / "report.html").exists())
    frames = udpbench.read_run(out)
    lost = dict(zip(frames.ledger.stage, frames.ledger.packets, strict=True))
    dropped = sum(packets for port, (packets, _) in losing(look).items() if port == 7001)
    assert dropped <= lost["udp_rcvbuf"] <= 60
    assert (50, 0) == (lost["udp_filter"], lost["udp_no_port"])
    assert {"udp_rcvbuf", "udp_filter"} <= set(frames.ledger.stage)
    assert 1 == completed(("show", str(out)), LIMIT_S).returncode


@pytest.fixture
def unit() -> Iterator[Path]:
    """Make the cgroup of a unit, where systemd would make it."""
    roots = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
    root = next((root for root in roots if (root / "cgroup.procs").exists()), None)
    if root is None or not os.access(root, os.W_OK):
        pytest.skip("needs cgroup v2, and the right to make a group")
    folder = root / f"udpbench-test-{os.getpid()}.service"
    folder.mkdir()
    yield folder
    folder.rmdir()


def test_the_sockets_of_a_unit_are_watched(unit: Path, holder: Holder) -> None:
    """By the cgroup of its processes."""
    (unit / "cgroup.procs").write_text(holder.pid)
    look, code = watch_until(
        ("--unit", unit.name.removesuffix(".service")),
        lambda: holder.do("lose"),
        lambda look: 7001 in losing(look),
    )
    assert (1, 200) == (code, look["sockets_watched"])


@pytest.mark.long
def test_an_iperf3_server_is_watched_under_its_own_client(
    unit: Path, holder: Holder, tmp_path: Path
) -> None:
    """Its socket is opened under way; what it says of itself is what the kernel counts."""
    if shutil.which("iperf3") is None:
        pytest.skip("needs iperf3: apt install iperf3")
    inside = ("nsenter", f"--target={holder.pid}", "--net", "iperf3")
    report: dict[str, Any] = {}
    with subprocess.Popen(
        (*inside, "--server", "--one-off", "--forceflush"), stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        while "Server listening" not in server.stdout.readline():
            assert server.poll() is None
        for pid in (holder.pid, str(server.pid)):
            (unit / "cgroup.procs").write_text(pid)

        def load() -> None:
            client = (*inside, "--client", "127.0.0.1", "--udp", "--bitrate", "20M", "--json")
            done = subprocess.run((*client, "--time", "4"), capture_output=True, check=True)
            report.update(json.loads(done.stdout))

        ports: set[int] = set()

        def enough(look: Look) -> bool:
            ports.update(each["port"] for each in look["sockets"] if each["read_pps"])
            return bool(look["sockets_ended"])

        watch_until(("--exact", "--unit", unit.name, "--out", str(tmp_path / "kept")), load, enough)
        assert 0 == server.wait(LIMIT_S)
    assert {5201} == ports
    (trial,) = udpbench.read_run(tmp_path / "kept").trials.to_dict("records")
    summed = report["end"]["sum"]
    greetings = 2  # of the client, and of the server
    assert summed["packets"] - summed["lost_packets"] + greetings == trial["received_packets"]


def test_a_socket_that_loses_nothing_ends_with_0(holder: Holder) -> None:
    """Whatever the others of its namespace lose at their own sockets."""
    arguments = ("--pid", holder.pid, "--port", "7004")
    look, code = watch_until(arguments, lambda: None, lambda look: look["sockets_watched"] == 1)
    assert (0, False, {}) == (code, look["lost"], losing(look))


@pytest.mark.parametrize("arguments", [("--port", "9"), ("--unit", "no-such-unit")])
def test_what_is_not_there_is_one_line_and_exit_2(
    arguments: tuple[str, ...], holder: Holder
) -> None:
    """The words are in tests/agent and tests/unit/control."""
    chosen = ("--pid", holder.pid, *arguments) if "--port" in arguments else arguments
    ended = completed(("watch", *chosen), LIMIT_S)
    assert (2, "", 1) == (ended.returncode, ended.stdout, len(ended.stderr.splitlines()))


READER = r"""
import fcntl, os, signal, socket, struct, sys, time

does, own = sys.argv[1], os.getpid()
signal.alarm(120)  # should nobody end it
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh22x", b"lo", 1))
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
receiver.bind(("127.0.0.1", 7000))

def spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass

print("bound", flush=True)
if os.fork() == 0:
    receiver.close()
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    while os.getppid() == own:
        for _ in range(100):
            sender.sendto(bytes(200), ("127.0.0.1", 7000))
        time.sleep(0.2 if does == "waits" else 0.05)
    os._exit(0)

if does == "spins":  # who else uses this machine is not what is tested
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
while True:
    if does != "hangs":
        receiver.recv(300)
    if does == "sleeps":
        time.sleep(0.02)
    elif does == "hangs":
        time.sleep(0.1)
    else:
        spin(0.02 if does == "spins" else 0.0001)
"""


@pytest.fixture
def reader(request: pytest.FixtureRequest) -> Iterator[str]:
    """Start a program that loses packets by what it does, with its sender; yield its number."""
    command = ("unshare", "--net", sys.executable, "-c", READER, request.param)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first_line = process.stdout.readline()
        yield str(process.pid)
        process.kill()
        assert "bound\n" == first_line


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("reader", "does", "wants"),
    [
        ("sleeps", r"sleeps 9\d % of the time \(in clock_nanosleep\)", False),
        ("spins", r"bound by its CPU \(\d+ %\)", False),
        ("hangs", r"never reads", False),
        ("waits", r"waits for datagrams \d+ % of the time.*", True),
    ],
    indirect=["reader"],
)
def test_a_reader_is_named_by_what_it_does(reader: str, does: str, wants: bool) -> None:
    """A larger buffer is advised to the one alone that has time for what it would hold."""

    def named(look: Look) -> bool:
        return any(re.fullmatch(does, words) for words in words_of(look))

    look, code = watch_until(("--pid", reader), lambda: None, named)
    (size_bytes,) = [each["reader"]["wanted_bytes"] for each in look["sockets"] if each["dropped"]]
    assert (1, wants) == (code, size_bytes is not None)


def words_of(look: Look) -> list[str]:
    """Return what readers do."""
    return [each["reader"]["does"] or "" for each in look["sockets"] if each["reader"]]

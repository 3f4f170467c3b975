"""Lose a client's packets at ten stages of the receiving side, in a hundred random tests of serve.

``served.py [SEED] [TESTS]``, as root: a client of our own sends from one namespace to ``udpbench
serve`` in another. What is lost where is drawn before, and lost by construction: no counter of the
kernel's says what ought to be counted. Prints a line for each test with a wrong number, and exits 1
if there is one. A finished test is a line of a file named by the seed, by default the commit, and is
not run again: the command goes on where it was interrupted.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iperf3_client import Client
from served_hosts import CLIENT, OTHER, PORT, SERVER, Hosts, network_of
from waiting import wait_until

from udpbench.agent.host.frames import headers, packed_addresses, udp_checksum
from udpbench.analysis.judge import judge
from udpbench.model.record import TrialRecord
from udpbench.records.reader import read_run

ROOT = Path(__file__).parents[2]
TESTS = 100
XDP = "rx_xdp"
"""Its counter does not say whose packets it took: others' may be among them, and as many more may
have been lost before."""
STAGES = (
    *(XDP, "rx_tc", "rx_ip", "rx_netfilter", "udp_checksum", "udp_no_port", "rx_policy"),
    *("udp_filter", "udp_rcvbuf", "app_truncated"),
)
"""Those of the receiving side, in a packet's order."""
BEFORE = "before_host"
SIZE_BYTES = 100
WINDOW_BYTES = 2**16
AT_ONCE = 40
"""Packets, of which the buffer holds four times as many."""
PLANTER = """
import ctypes, os, socket, struct, sys
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
DROP = f"chain c {{ type filter hook input priority 0; udp dport {PORT} drop; }}"
POLICY = f"src {CLIENT} dst {SERVER} proto udp dport {PORT} dir in"
RULES = {
    "rx_netfilter": (
        ("nft", f"add table ip plant {{ {DROP}; }}"),
        ("nft", "delete table ip plant"),
    ),
    "rx_policy": (
        ("ip", *f"xfrm policy add {POLICY} action block".split()),
        ("ip", *f"xfrm policy delete {POLICY}".split()),
    ),
}
"""Stage → what loses all packets to the port there, and what ends that."""


@dataclass(frozen=True)
class Loss:
    """So many packets that arrive, then so many that do not."""

    stream: int
    arrive: int
    stage: str
    packets: int


@dataclass(frozen=True)
class Plan:
    """One test of a client, all of it known before."""

    streams: int
    wide: bool
    losses: tuple[Loss, ...]
    late: int
    """Packets of the first stream that are sent after all others."""
    again: int
    """Packets of the first stream that are sent twice."""

    @property
    def lost(self) -> Counter[str]:
        """Return stage → packets."""
        return sum((Counter({each.stage: each.packets}) for each in self.losses), Counter())


def drawn(chance: random.Random) -> Plan:
    """Return a test of one to three streams; at each stage packets are lost up to three times."""
    streams = chance.randint(1, 3)
    stages = chance.sample((BEFORE, *STAGES), chance.randint(1, len(STAGES) + 1))
    order = [stage for stage in stages for _ in range(chance.choice((1, 1, 2, 3)))]
    chance.shuffle(order)
    order += [BEFORE] * (chance.random() < 0.5)  # behind the last that arrives
    losses = tuple(
        Loss(chance.randrange(streams), chance.randint(0, 200), stage, chance.randint(1, 40))
        for stage in order
    )
    late, again = chance.randint(0, 9), chance.randint(0, 9)
    return Plan(streams, chance.random() < 0.5, losses, late, again)


class Planted:
    """A client's test, of which packets are lost on purpose."""

    def __init__(self, hosts: Hosts, plan: Plan) -> None:
        self.hosts = hosts
        self.plan = plan
        self.counters = [0] * plan.streams
        program = (sys.executable, "-c", PLANTER)
        self.planter = subprocess.Popen(
            hosts.inside(hosts.server, *program),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with network_of(hosts.client):
            self.client = Client(PORT, SERVER)
            self.client.begin(
                plan.streams,
                time=60,
                len=SIZE_BYTES,
                window=WINDOW_BYTES,
                udp_counters_64bit=int(plan.wide),
            )
            self.raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            self.raw.bind(("out0", 0))
        self.server = hosts.pid_of("udpbench.agent.clients")

    def close(self) -> None:
        """End client and planter."""
        self.client.close()
        self.raw.close()
        self.planter.kill()
        self.planter.communicate()

    def send(self) -> Iterator[Loss]:
        """Send as planned; yield each loss when it has happened."""
        for stream in range(self.plan.streams):
            self._arrive(stream, 1)
        late = self._next(0, self.plan.late)
        for each in self.plan.losses:
            self._arrive(each.stream, each.arrive)
            self._lose(each)
            yield each
        self.client.send([*late, *[1] * self.plan.again], size_bytes=SIZE_BYTES)
        self._settle(0)
        wait_until("packets are read", lambda: not self._queued())

    def end(self) -> Any:
        """Return the server's results."""
        return self.client.end(*self.counters)

    def _plant(self, *words: object) -> None:
        assert self.planter.stdin is not None
        assert self.planter.stdout is not None
        self.planter.stdin.write(" ".join(map(str, words)) + "\n")
        self.planter.stdin.flush()
        assert "done\n" == self.planter.stdout.readline()

    def _next(self, stream: int, packets: int) -> list[int]:
        """Take the next counters of a stream."""
        first, self.counters[stream] = self.counters[stream] + 1, self.counters[stream] + packets
        return list(range(first, self.counters[stream] + 1))

    def _arrive(self, stream: int, packets: int) -> None:
        """Send packets, so few at a time that each has room."""
        for begun in range(0, packets, AT_ONCE):
            self._send(stream, min(AT_ONCE, packets - begun))
            wait_until("packets are read", lambda: not self._queued())

    def _send(self, stream: int, packets: int, size_bytes: int = SIZE_BYTES) -> None:
        self.client.send(self._next(stream, packets), stream, size_bytes)
        self._settle(stream)

    def _settle(self, stream: int) -> None:
        """Wait until all that was sent is where it ends: at a veth that is before it is freed."""

        def taken_up() -> bool:
            waiting = ctypes.c_int(0)
            fcntl.ioctl(self.client.streams[stream], 0x5411, waiting)  # SIOCOUTQ
            return waiting.value == 0

        wait_until("packets are taken up", taken_up)

    # --- where a packet ends ----------------------------------------------------------------------

    def _lose(self, loss: Loss) -> None:
        stream, packets = loss.stream, loss.packets
        if loss.stage == BEFORE:
            self._next(stream, packets)
        elif loss.stage == "app_truncated":
            self._send(stream, packets, SIZE_BYTES + 1)
        elif loss.stage == "udp_rcvbuf":
            self._overflow(stream, packets)
        elif loss.stage in ("rx_ip", "udp_checksum", "udp_no_port"):
            self._send_frames(loss)
        else:
            for on in (True, False):
                self._switch(loss, on)
                if on:
                    self._arrive(stream, packets)

    def _switch(self, loss: Loss, on: bool) -> None:
        """Have all packets lost at a stage, or none."""
        if loss.stage in RULES:
            command = self.hosts.inside(self.hosts.server, *RULES[loss.stage][0 if on else 1])
            subprocess.run(command, check=True, capture_output=True)
        elif loss.stage == "udp_filter":
            port = self.client.streams[loss.stream].getsockname()[1]
            self._plant("filter", self.server, port, "on" if on else "off")
        else:
            self._plant(loss.stage.replace("rx_tc", "tc_drop").replace("rx_", ""), PORT * on)

    def _send_frames(self, loss: Loss) -> None:
        """Send frames of a stream that IP, the checksum, or a lookup of sockets refuses."""
        ports = (self.client.streams[loss.stream].getsockname()[1], PORT)
        addresses = (CLIENT, OTHER if loss.stage == "udp_no_port" else SERVER)
        payload = bytes(SIZE_BYTES)
        frame = bytearray(headers(self.hosts.macs, addresses, ports, len(payload), 64))
        checksum = udp_checksum(packed_addresses(*addresses), ports, payload)
        if loss.stage == "udp_checksum":
            checksum = checksum ^ 0x5555 or 1
        struct.pack_into("!H", frame, len(frame) - 2, checksum)
        if loss.stage == "rx_ip":
            frame[24] ^= 0x55  # of the header's checksum
        for _ in self._next(loss.stream, loss.packets):
            self.raw.send(bytes(frame) + payload)

    def _overflow(self, stream: int, packets: int) -> None:
        """Stop the receiver, fill the buffer of a stream, and send beyond."""
        os.kill(self.server, signal.SIGSTOP)
        try:
            wait_until("the receiver is stopped", self._stopped)
            queued, more = -1, self._queued()
            while more > queued:
                self._send(stream, 1)
                queued, more = more, self._queued()
            self._send(stream, packets - 1)  # the last one had no room
            assert self._queued() == more
        finally:
            os.kill(self.server, signal.SIGCONT)
        wait_until("the receiver has caught up", lambda: not self._queued())

    def _stopped(self) -> bool:
        """Return whether every thread of the server is stopped."""
        stats = [p.read_text() for p in Path(f"/proc/{self.server}/task").glob("*/stat")]
        return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)

    def _queued(self) -> int:
        """Return the bytes that wait in the streams of the server."""
        lines = Path(f"/proc/{self.server}/net/udp").read_text().split("\n")[1:-1]
        port = f":{PORT:04X}"
        queues = (line.split()[4].partition(":")[2] for line in lines if port in line.split()[1])
        return sum(int(queue, 16) for queue in queues)


@dataclass(frozen=True)
class Counted:
    """What both ends say of a test."""

    results: Any
    """The server's, as its client has them."""
    sent: tuple[int, ...]
    """By stream."""
    record: TrialRecord
    printed: str


def ran(hosts: Hosts, plan: Plan, folder: Path) -> Counted:
    """Run a test as planned."""
    words = ("--listen", SERVER, "--once", "--no-report", "--out", str(folder))
    with closing(hosts.serve(*words)) as serving, closing(Planted(hosts, plan)) as test:
        for _ in test.send():
            pass
        results = test.end()
        printed = serving.wait()
    (record,) = read_run(folder).records
    return Counted(results, tuple(test.counters), record, printed)


def complaints(plan: Plan, counted: Counted) -> Iterator[str]:
    """Yield what is wrong with a test: each stage, the sum, and what either end says."""
    result, lost = judge(counted.record), plan.lost
    if result.ledger is None or result.ledger.unaccounted or not result.valid:
        yield f"the ledger does not close: {counted.printed}"
        return
    dropped = lost[XDP]
    for entry in result.ledger.entries:
        low = entry.packets or 0
        high = low if entry.at_most is None else entry.at_most
        planted = lost[entry.stage]
        spans = {XDP: (0, dropped), BEFORE: (planted, planted + dropped)}
        if (low, high) != spans.get(entry.stage, (planted, planted)):
            yield f"{entry.stage} {planted}, counted {low} to {high}"
    total, sent = sum(lost.values()), sum(counted.sent)
    if (total, sent) != (result.lost_packets, result.sent_packets):
        yield f"lost {total} of {sent}, counted {result.lost_packets} of {result.sent_packets}"
    streams = counted.results["streams"]
    if counted.sent != tuple(stream["packets"] for stream in streams):
        yield f"sent {counted.sent}, the client is answered {streams}"
    if total != sum(stream["errors"] for stream in streams):
        yield f"lost {total}, the client is answered {streams}"


def stored(file: Path) -> dict[int, list[str]]:
    """Return what was wrong with each test that has ended."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {each["test"]: each["wrong"] for each in map(json.loads, lines)}


def run_missing(seed: str, tests: int, file: Path) -> dict[int, list[str]]:
    """Run the tests that a file does not have, and store each; return all."""
    done = stored(file)
    for number in range(tests):
        if number in done:
            continue
        plan = drawn(random.Random(f"{seed} {number}"))
        with tempfile.TemporaryDirectory() as scratch:
            (Path(scratch) / "hosts").mkdir()
            with closing(Hosts(Path(scratch) / "hosts")) as hosts:
                counted = ran(hosts, plan, Path(scratch) / "run")
        done[number] = list(complaints(plan, counted))
        with file.open("a") as lines:
            lines.write(json.dumps({"test": number, "wrong": done[number]}) + "\n")
        for text in done[number]:
            print(f"test {number}: {text}", flush=True)
    return {number: done[number] for number in range(tests)}


def main(seed: str, tests: int) -> int:
    """Run what is missing, and print the score."""
    file = ROOT / ".nox" / "served" / f"{seed[:12]}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    print(f"seed {seed}; results in {file}", flush=True)
    wrong = [number for number, texts in run_missing(seed, tests, file).items() if texts]
    print(f"{tests - len(wrong)} of {tests} tests: each stage exact, and both ends agree")
    return 1 if wrong else 0


def commit() -> str:
    """Return the commit's hash."""
    words = ("git", "-C", str(ROOT), "rev-parse", "HEAD")
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    arguments = sys.argv[1:]
    chosen = arguments[0] if arguments else commit()
    try:
        sys.exit(main(chosen, int(arguments[1]) if len(arguments) > 1 else TESTS))
    except KeyboardInterrupt:
        sys.exit("interrupted: repeat the command to go on")

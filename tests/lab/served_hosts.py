"""Two hosts for tests of ``udpbench serve``: namespaces joined by a veth pair."""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from udpbench.analysis.judge import judge
from udpbench.records.reader import read_run

LIMIT_S = 60
STORED = "run folder: "
IPERF3 = ("iperf3",)
PORT = 5201
CLONE_NEWNET = 0x40000000
SERVER, CLIENT, OTHER = "10.77.0.1", "10.77.0.2", "10.77.0.11"
"""The last is the server's, too; it need not listen there."""
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
    for last in (number, number + 10):
        link.addr("add", index=index, address=f"10.77.0.{last}", prefixlen=24)
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

    def iperf3(
        self, *words: str, to: str = SERVER, program: Sequence[str] = IPERF3
    ) -> subprocess.CompletedProcess[str]:
        """Run a client to its end."""
        command = self.inside(self.client, *program, "-c", to, *words)
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    def pid_of(self, module: str) -> int:
        """Return the process at the server's host that runs a module of ours."""
        net = Path(f"/proc/{self.server}/ns/net").readlink()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if module.encode() in words and (process / "ns/net").readlink() == net:
                    return int(process.name)
        raise AssertionError(f"{module} does not run")

    def test(
        self,
        serving: Serving,
        *words: str,
        to: str = SERVER,
        program: Sequence[str] = IPERF3,
    ) -> Test:
        """Let a client test over UDP, and return what both say."""
        client = self.iperf3("-u", "-J", *words, to=to, program=program)
        assert client.stdout, client.stderr
        return Test(json.loads(client.stdout), serving.stored())

    def close(self) -> None:
        """End both hosts."""
        for each in self._holders:
            each.kill()
            each.communicate()


class Serving:
    """A server that runs."""

    def __init__(
        self, command: tuple[str, ...], folder: Path, environment: dict[str, str] | None = None
    ) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.first = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.first += line
            if line.startswith("listening"):
                return
        raise AssertionError(self.first)

    def wait(self) -> str:
        """Return all that it prints to its end."""
        printed, _ = self.process.communicate(timeout=LIMIT_S)
        return self.first + printed

    def stored(self) -> Path:
        """Return where the next test is stored, once it is."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.first += line
            if line.startswith(STORED):
                return Path(line.removeprefix(STORED).strip())
        raise AssertionError(self.first)

    def close(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.communicate(timeout=LIMIT_S)


class Test:
    """What a client's test says at both ends."""

    __test__ = False

    def __init__(self, client: dict[str, Any], folder: Path) -> None:
        self.client = client
        self.run = read_run(folder)
        (self.record,) = self.run.records
        self.result = judge(self.record)
        assert self.record.served is not None
        self.served = self.record.served

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

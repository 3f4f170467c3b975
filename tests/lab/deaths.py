"""Whole runs of the command line that are hit while they work, and what has to be left afterwards.

``Lab`` and ``Ssh`` are the two places: each knows its hosts' namespaces, journals and visible state.
Whoever is hit is found by what it is in /proc; nothing is ever waited for by time alone.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import psutil
import settings_fixture
from program_forks import WITH_PHASES, Forked, completed
from ssh_hosts import Pair
from waiting import DEADLINE_S, wait_until

Victim = Literal[
    "controller", "stopped", "agent", "guardian", "worker", "connection", "link", "way"
]
When = Literal["apply", "path", "warmup", "measured", "between", "restore"]

LEASE_S = 2
PATIENT_LEASE_S = 20
"""For a run whose lease should not end, however long a busy machine holds it up."""
ROOT = Path(__file__).parents[2]
VISIBLE = (sys.executable, str(Path(settings_fixture.__file__)), "visible")


def namespace(pid: int | str) -> int:
    """Return the inode number of a process's network namespace."""
    return Path(f"/proc/{pid}/ns/net").stat().st_ino


class Run:
    """``udpbench run`` in a process of its own, and all that it says."""

    def __init__(
        self, folder: Path, lab: str, experiment: dict[str, Any], home: Path, lease_s: int
    ) -> None:
        self.folder = folder / "run"
        (folder / "mine.yaml").write_text(json.dumps(experiment))
        self._errors = (folder / "errors").open("w+")
        words = ["run", str(folder / "mine.yaml"), "--lab", lab, "--lease", f"{lease_s}s"]
        words += ["--out", str(self.folder), "--no-report"]
        self.process = Forked(
            (WITH_PHASES, *words),
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=folder,
            env={**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT)},
        )
        self._out = b""
        self._held: psutil.Process | None = None

    @property
    def out(self) -> str:
        """What it has said on stdout so far, as far as it was read."""
        return self._out.decode()

    @property
    def output(self) -> str:
        """All that it has said so far."""
        self._errors.seek(0)
        return self.out + self._errors.read()

    def _read(self, limit_s: float) -> bool:
        """Take in what there is; False at the end."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], limit_s)[0]:
            return True
        chunk = os.read(self.process.stdout.fileno(), 65536)
        self._out += chunk
        return bool(chunk)

    def await_line(self, text: str) -> None:
        """Wait until it has said a text, or fail with all it said."""
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.out:
            assert self._read(max(deadline - time.monotonic(), 0)), f"no {text!r} in {self.output}"
            assert time.monotonic() < deadline, f"no {text!r} in {self.output}"

    def look(self) -> None:
        """Take in what it has said without waiting."""
        self._read(0)

    def end(self) -> int:
        """Read all it says to the end and return the exit status."""
        deadline = time.monotonic() + DEADLINE_S
        while self._read(max(deadline - time.monotonic(), 0)):
            assert time.monotonic() < deadline, f"no end of {self.output}"
        return self.process.wait(DEADLINE_S)

    @property
    def name(self) -> str:
        """What agents and journals call it."""
        self.await_line("\n")
        return self.out.split()[1].rstrip(":")

    def hold(self, process: psutil.Process) -> None:
        """Stop one of its processes until it is let go, at the latest when all is over."""
        self._held = process
        process.suspend()

    def let_go(self) -> None:
        """Let whoever is held go on."""
        if self._held is not None:
            with suppress(psutil.NoSuchProcess):  # it was the one that was hit
                self._held.resume()
        self._held = None

    def close(self) -> None:
        """Kill it if it still runs."""
        self.let_go()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._errors.close()


@dataclass(frozen=True)
class Kin:
    """One process of a run."""

    process: psutil.Process
    command: tuple[str, ...]
    namespace: int

    def gone(self) -> bool:
        """Say whether it holds nothing any more; a stopped controller cannot bury its children."""
        return not self.process.is_running() or self.process.status() == psutil.STATUS_ZOMBIE


def parent_of(process: psutil.Process) -> int | None:
    """Return the number of a process's parent; None of one that has ended."""
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return None


def family(pid: int) -> list[Kin]:
    """Return all descendants of a process."""
    results = []
    for child in psutil.Process(pid).children(recursive=True):
        try:
            results.append(Kin(child, tuple(child.cmdline()), namespace(child.pid)))
        except (psutil.NoSuchProcess, OSError):
            continue  # it has ended meanwhile
    return results


class Place(Protocol):
    """Where a run runs."""

    lab: str
    sender: str
    receiver: str
    victim: str
    """The host whose agent and guardian are hit; the last one to be restored."""
    experiment: dict[str, Any]

    def home(self) -> Path:
        """Return the home folder of the controller."""

    def settle(self, run: Run) -> None:
        """Wait until every agent is up, and learn the hosts' namespaces."""

    def space(self, host: str) -> int:
        """Return a host's network namespace."""

    def journals(self, host: str) -> Path:
        """Return the folder of a host's journals as the test sees it."""

    def visible(self) -> dict[str, dict[str, str]]:
        """Return the visible state of every host that outlives the run."""

    def inside(self, host: str, *command: str) -> tuple[str, ...]:
        """Return a command that runs another one on a host."""


EXPERIMENT: dict[str, Any] = {
    "question": "What is left of it?",
    "traffic": {"rate": "2kpps"},
    "send": {"pace": "sleep", "bucket": "1s"},
    "duration": "400ms",
    "warmup": "200ms",
    "settings": {
        "sender": {"mtu": 1400, "qdisc": {"pfifo": {"limit": 100}}},
        "receiver": {
            "addresses": ["10.99.0.1/24"],
            "neighbours": ["10.99.0.9 02:00:00:00:00:63"],
            "routes": ["10.77.0.0/16 via 10.99.0.9", "10.78.0.0/16 via link"],
            "mtu": 1400,
            "txqueuelen": 77,
            "sysctl": {"net.ipv4.ip_default_ttl": 33},
            "ethtool": {
                "channels": 1,
                "rings": {"rx": 4096},
                "features": {"gro": True},
                "coalesce": {"rx-usecs": 8},
                "pause": {"rx": False},
                "rx-flow-hash": {"udp4": "sdfn"},
                "indirection": "equal 1",
            },
            "firewall": {"udp": 4321, "accept": True, "notrack": True},
            "irq": {"cpus": "0"},
            "rps": {"cpus": "0"},
            "rfs": 64,
            "napi": {
                "threaded": True,
                "cpus": "0",
                "defer-hard-irqs": 2,
                "gro-flush-timeout": "200us",
            },
            "cpu": {"governor": "performance", "turbo": False, "latency": "20us"},
            "optional": [
                *("irq", "rfs", "cpu", "ethtool.rings", "ethtool.coalesce", "ethtool.pause"),
                *("ethtool.rx-flow-hash", "ethtool.indirection"),
            ],
        },
    },
}
"""Changes of every kind, so that all could be left behind; what a veth has not is optional."""


@dataclass
class BuiltIn:
    """The built-in lab; what outlives its namespaces is the machine, of which a sysctl changes."""

    folder: Path
    lab = "local"
    sender = "sender"
    receiver = "receiver"
    victim = "machine"
    pids: dict[str, int] = field(default_factory=dict)
    spaces: dict[str, int] = field(default_factory=dict)

    @property
    def experiment(self) -> dict[str, Any]:
        """The experiment, with a setting of machine scope."""
        name = "net.core.netdev_max_backlog"
        value = int(Path("/proc/sys", *name.split(".")).read_text()) + 1
        settings = EXPERIMENT["settings"]
        sysctl = {**settings["receiver"]["sysctl"], name: value}
        receiver = {**settings["receiver"], "sysctl": sysctl}
        return {**EXPERIMENT, "settings": {**settings, "receiver": receiver}}

    def home(self) -> Path:
        """Return any."""
        return self.folder

    def settle(self, run: Run) -> None:
        """Read the agents' pids from what the run says."""
        for host in (self.sender, self.receiver, self.victim):
            run.await_line(f"{host}: agent ")
            run.await_line(" is up\n")
        for line in run.out.splitlines():
            words = line.split()
            if words[1:2] == ["agent"]:
                self.pids[words[0].rstrip(":")] = int(words[2])
        self.spaces = {host: namespace(pid) for host, pid in self.pids.items()}

    def space(self, host: str) -> int:
        """Return that of its agent."""
        return self.spaces[host]

    def journals(self, host: str) -> Path:  # noqa: ARG002 - all are of this machine
        """All hosts of this machine have one folder."""
        return Path("/run/udpbench")

    def visible(self) -> dict[str, dict[str, str]]:
        """Return what this machine shows; the namespaces go with the last process in them."""
        return {"machine": visible_state(())}

    def inside(self, host: str, *command: str) -> tuple[str, ...]:
        """Enter the agent's namespace."""
        return ("nsenter", f"--target={self.pids[host]}", "--net", *command)


@dataclass
class BySsh:
    """Two hosts, each with a real sshd; all they are outlives the run."""

    pair: Pair
    folder: Path
    sender = "left"
    receiver = "right"
    victim = "right"
    experiment = EXPERIMENT

    @property
    def lab(self) -> str:
        """The file of the pair's lab."""
        path = self.folder / "lab.yaml"
        path.write_text(self.pair.lab())
        return str(path)

    def _pid(self, host: str) -> int:
        return {host.name: host.pid for host in self.pair.hosts}[host]

    def home(self) -> Path:
        """Return the one that leads to the pair."""
        return self.pair.home

    def settle(self, run: Run) -> None:
        """Wait for both."""
        for host in (self.sender, self.receiver):
            run.await_line(f"{host}: agent is up\n")

    def space(self, host: str) -> int:
        """Return that of its holder."""
        return namespace(self._pid(host))

    def journals(self, host: str) -> Path:
        """Each has a /run of its own."""
        return Path(f"/proc/{self._pid(host)}/root/run/udpbench")

    def visible(self) -> dict[str, dict[str, str]]:
        """Return what each host shows."""
        return {host.name: visible_state(host.inside()) for host in self.pair.hosts}

    def inside(self, host: str, *command: str) -> tuple[str, ...]:
        """Enter the host."""
        return ("nsenter", f"--target={self._pid(host)}", "--net", "--mount", *command)


@dataclass
class OnPath:
    """Two ends and two routers in namespaces that are there before the run; it may change each.

    A fifth namespace hangs on both routers: nothing of the lab may get there.
    """

    folder: Path
    victim: str
    spaces: dict[str, int] = field(default_factory=dict)
    sender = "red"
    receiver = "blue"
    hosts = ("red", "router1", "router2", "blue")
    beyond = "beyond"
    experiment: ClassVar[dict[str, Any]] = {
        **EXPERIMENT,
        "settings": {
            "sender": {"mtu": 1400, "sysctl": {"net.ipv4.ip_default_ttl": 33}},
            "middle": {
                "routes": ["10.77.0.0/16 via link"],
                "mtu": 1400,
                "qdisc": {"pfifo": {"limit": 100}},
                "sysctl": {"net.ipv4.ip_default_ttl": 33},
                "ethtool": {"features": {"gro": True}},
                "firewall": {"udp": 4321, "accept": True, "notrack": True},
                "rps": {"cpus": "0"},
                "napi": {"threaded": True},
            },
            "receiver": {"mtu": 1400, "firewall": {"udp": 4321, "accept": True}},
        },
    }

    @property
    def lab(self) -> str:
        """The file of the lab."""
        path = self.folder / "lab.yaml"
        at = {host: {"name": host, "connect": {"netns": self.name(host)}} for host in self.hosts}
        end = {"interface": "eth0", "addresses": "existing"}
        node = {"interfaces": {"in": "in0", "out": "out0"}, "change": True}
        data = {
            "sender": [at["red"] | end],
            "middle": [at["router1"] | node, at["router2"] | node],
            "receiver": [at["blue"] | end],
        }
        path.write_text(json.dumps(data))
        return str(path)

    def name(self, host: str) -> str:
        """Return a namespace's name."""
        return f"ub{os.getpid()}-{host}"

    def open(self) -> None:
        """Lay the namespaces and their links, as an administrator does."""
        for host in (*self.hosts, self.beyond):
            subprocess.run(("ip", "netns", "add", self.name(host)), check=True)
            self._run(host, "sysctl -qw net.ipv6.conf.default.disable_ipv6=1")
            self._run(host, "ip link set lo up")
        self._link("red eth0 router1 in0", 1)
        self._link("router1 out0 router2 in0", 2)
        self._link("router2 out0 blue eth0", 3)
        self._link("router1 aside0 beyond eth1", 4)
        self._link("router2 aside0 beyond eth2", 5)
        self._run("red", "ip route add default via 10.1.0.2")
        self._run("router1", "ip route add default via 10.2.0.2")
        self._run("router2", "ip route add 10.1.0.0/24 via 10.2.0.1")
        self._run("blue", "ip route add default via 10.3.0.1")
        for router in ("router1", "router2"):
            self._run(router, "sysctl -qw net.ipv4.ip_forward=1")
        # The kernel says some time later that a link has its carrier.
        late = ("state LOWERLAYERDOWN", "state DOWN", "NO-CARRIER")
        for host in (*self.hosts, self.beyond):
            shown = partial(self._run, host, "ip -o link show up")
            wait_until("every link is up", lambda: not any(word in shown() for word in late))  # noqa: B023

    def _run(self, host: str, words: str) -> str:
        done = subprocess.run(
            self.inside(host, *words.split()), capture_output=True, text=True, check=False
        )
        assert 0 == done.returncode, (host, words, done.stderr)
        return done.stdout

    def _link(self, ends: str, net: int) -> None:
        host, interface, other, peer = ends.split()
        words = f"ip link add {interface} type veth peer name {peer} netns {self.name(other)}"
        self._run(host, words)
        for number, (end, device) in enumerate(((host, interface), (other, peer)), 1):
            self._run(end, f"ip addr add 10.{net}.0.{number}/24 dev {device}")
            self._run(end, f"ip link set {device} up")

    def close(self) -> None:
        """Remove the namespaces."""
        for host in (*self.hosts, self.beyond):
            subprocess.run(("ip", "netns", "del", self.name(host)), check=False)

    def strays(self) -> list[str]:
        """Return the packets that each interface beyond the lab has received."""
        names = " ".join(f"/sys/class/net/eth{n}/statistics/rx_packets" for n in (1, 2))
        return self._run(self.beyond, f"cat {names}").split()

    def home(self) -> Path:
        """Return any."""
        return self.folder

    def settle(self, run: Run) -> None:
        """Wait for all, and learn their namespaces."""
        for host in self.hosts:
            run.await_line(f"{host}: agent ")
            self.spaces[host] = Path("/run/netns", self.name(host)).stat().st_ino

    def space(self, host: str) -> int:
        """Return a host's."""
        return self.spaces[host]

    def journals(self, host: str) -> Path:  # noqa: ARG002 - all are of this machine
        """All hosts of this machine have one folder."""
        return Path("/run/udpbench")

    def visible(self) -> dict[str, dict[str, str]]:
        """Return what each host shows."""
        return {host: visible_state(self.inside(host)) for host in self.hosts}

    def inside(self, host: str, *command: str) -> tuple[str, ...]:
        """Enter the namespace."""
        return ("ip", "netns", "exec", self.name(host), *command)


def visible_state(enter: tuple[str, ...]) -> dict[str, str]:
    """Return the whole visible state of a place that a command enters."""
    done = subprocess.run((*enter, *VISIBLE), capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    state: dict[str, str] = json.loads(done.stdout)
    return state


PROGRAM = (ROOT / "experiments/own/asyncio_receiver.py").read_text()
COMMAND = ["python3", "-c", PROGRAM, "4321"]
"""A receiver of the user's; as text, because who runs it may not enter this folder."""
WAYS: dict[str, dict[str, dict[str, Any]]] = {
    "sockets": {},
    "command": {"receive": {"command": COMMAND, "ready": "listening"}},
    "af_xdp": {"send": {"call": "af_xdp"}, "receive": {"call": "af_xdp", "wait": "epoll"}},
    "io_uring": {"send": {"call": "io_uring"}, "receive": {"call": "io_uring"}},
}
"""What is run → the keys that ask for it."""
PROBES = {
    "af_xdp": """
import socket
from udpbench._native import ffi, lib
from udpbench.agent.host.bpf import bpf
from udpbench.agent.host.bpf.port_taker import takes
index = socket.if_nametoindex("test0")
with socket.socket(44, socket.SOCK_RAW, 0) as own:  # AF_XDP
    if lib.ub_xsk_open_receiver(ffi.new("struct ub_xsk *"), own.fileno(), index, 0, 100):
        print("queue")
program = bpf.load(bpf.XDP, takes(bpf.create_sockets(1), 4, [1], ["192.0.2.1"]), "probe")
try:
    bpf.link_xdp(program, index)
except OSError:
    print("program")
""",
    "io_uring": """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
    try:
        own.bind(("", 4321))
    except OSError:
        print("port")
""",
}
"""Way → a program that says what it cannot have on a host of ``BySsh``, because a worker has it."""
HELD = {
    "af_xdp": {"left": ["queue"], "right": ["queue", "program"]},
    "io_uring": {"left": [], "right": ["port"]},
}
"""Way → host → what that is while its workers live."""


@contextmanager
def running(
    place: Place,
    folder: Path,
    repetitions: int,
    lease_s: int = LEASE_S,
    way: str = "sockets",
    fresh: bool = False,
) -> Iterator[Run]:
    """Yield a run in a place; what is left of it is killed."""
    experiment = {**place.experiment, "repetitions": repetitions, "receive": {}, "fresh": fresh}
    experiment |= {block: experiment[block] | keys for block, keys in WAYS[way].items()}
    run = Run(folder, place.lab, experiment, place.home(), lease_s)
    try:
        yield run
    finally:
        run.close()


def typed(place: Place, *words: str) -> subprocess.CompletedProcess[str]:
    """Return how a command of udpbench ended that was typed where a run of the place was."""
    home = {"HOME": str(place.home()), "PYTHONPATH": str(ROOT)}
    return completed(words, DEADLINE_S, env={**os.environ, **home})


class Scene:
    """One run with the processes it has at one moment, and the deeds that can be done to it."""

    def __init__(self, place: Place, run: Run) -> None:
        self.place = place
        self.run = run
        place.settle(run)
        self.kin: list[Kin] = []

    def gather(self) -> None:
        """Learn who is there now."""
        self.kin = family(self.run.process.pid)

    def journal(self, host: str) -> Path:
        """Return the file of a host's journal."""
        return self.place.journals(host) / f"{self.run.name}-{self.place.space(host)}.jsonl"

    def kin_of(self, host: str, module: str) -> Kin:
        """Return the process of a module on a host."""
        space = self.place.space(host)
        processes = [
            kin
            for kin in self.kin
            if kin.namespace == space and f"udpbench.agent.{module}" in kin.command
        ]
        # Over SSH the shells before it carry the agent's name, too, and have become it by now. A
        # program that it starts is its own copy for a moment.
        pids = {kin.process.pid for kin in processes}
        processes = [kin for kin in processes if parent_of(kin.process) not in pids]
        assert 1 == len(processes), f"{module} of {host} among {self.kin}"
        return processes[0]

    # --- moments ---------------------------------------------------------------------------------

    def reach(self, when: When, who: Victim) -> None:
        """Wait for a moment, and hold the run there where it would not last."""
        if when == "apply":
            # A link can be cut where it is made and up: when the sender, who is last, has begun.
            self._reach_apply(self.place.sender if who == "link" else self.place.receiver)
        else:
            getattr(self, f"_reach_{when}")()

    def _reach_apply(self, host: str) -> None:
        """Stop where a host is at its settings."""
        journal, process = self.journal(host), self.run.process
        wait_until(f"a journal of {host}", lambda: journal.exists() or process.poll() is not None)
        self.run.look()
        assert journal.exists(), self.run.output
        self.hold(host)
        self.run.look()
        later = {self.place.sender} - {host}
        assert not any(self.journal(name).exists() for name in later), f"{host} was done already"
        assert " path\n" not in self.run.out, "all hosts were done already"

    def _reach_path(self) -> None:
        self.run.await_line("mine#1 path\n")
        self.hold(self.place.sender)

    def _reach_warmup(self) -> None:
        self.run.await_line("mine#1 warmup ")
        self.gather()

    def _reach_measured(self) -> None:
        self.run.await_line("mine#2 warmup ")
        self.gather()
        sender = self.kin_of(self.place.sender, "serve").process
        self.run.await_line("mine#2 measured ")
        self.run.hold(sender)
        self.gather()

    def _reach_between(self) -> None:
        self.run.await_line("[1/2] mine#1: done")
        self.hold(self.place.sender)
        self.run.look()
        assert "mine#2 path" not in self.run.out, "the next trial has begun already"

    def _reach_restore(self) -> None:
        self.run.await_line("\nrestoring ")
        self.hold(self.place.victim)
        assert self.journal(self.place.victim).exists(), f"{self.place.victim} was restored already"

    def hold(self, host: str) -> None:
        """Stop a host's agent for as long as the deed takes."""
        self.gather()
        self.run.hold(self.kin_of(host, "serve").process)

    def held(self, way: str) -> dict[str, list[str]]:
        """Return what workers hold on each host, so that nobody else can have it."""
        by_name = {}
        for host in HELD[way]:
            probe = self.place.inside(host, sys.executable, "-c", PROBES[way])
            done = subprocess.run(probe, capture_output=True, text=True, check=False)
            assert 0 == done.returncode, done.stderr
            by_name[host] = done.stdout.split()
        return by_name

    # --- deeds -----------------------------------------------------------------------------------

    def hit(self, who: Victim) -> None:
        """Do it."""
        getattr(self, f"_hit_{who}")()

    def _hit_controller(self) -> None:
        self.run.process.kill()

    def _hit_stopped(self) -> None:
        self.run.process.send_signal(signal.SIGSTOP)

    def _hit_agent(self) -> None:
        self.kin_of(self.place.victim, "serve").process.kill()

    def _hit_guardian(self) -> None:
        self.kin_of(self.place.victim, "settings.guardian").process.kill()

    def _hit_worker(self) -> None:
        programs = [kin for kin in self.kin if PROGRAM in kin.command]
        victim = programs[0] if programs else self.kin_of(self.place.receiver, "workers.process")
        victim.process.kill()

    def _hit_connection(self) -> None:
        """Kill the sshd that carries it, the parent of the agent; another one may be made."""
        agent = self.kin_of(self.place.victim, "serve").process
        parent = agent.parent()
        assert parent is not None
        assert "sshd" in parent.name()
        parent.kill()

    def _hit_way(self) -> None:
        """Cut the connection, and let no other one be made."""
        assert isinstance(self.place, BySsh)
        self.place.pair.write_home({self.place.victim: "false {}"})
        self._hit_connection()

    def _hit_link(self) -> None:
        """Take the receiver's end down, so that the sender loses its carrier."""
        interface = "receive0" if isinstance(self.place, BuiltIn) else "test0"
        down = ("ip", "link", "set", interface, "down")
        subprocess.run(self.place.inside(self.place.receiver, *down), check=True)

    # --- afterwards ------------------------------------------------------------------------------

    def await_journals_gone(self, *hosts: str, limit_s: float) -> None:
        """Wait until nothing of the run is left to undo on some hosts."""
        for host in hosts:
            wait_until(f"{host} is restored", lambda: not self.journal(host).exists(), limit_s)  # noqa: B023

    def await_nobody(self, limit_s: float) -> None:
        """Wait until no process of the run is left."""
        left = [kin for kin in self.kin if not kin.gone()]
        wait_until(f"an end of {left}", lambda: all(kin.gone() for kin in left), limit_s)

"""The lab of a duel and its two sides: udpbench's own workers, and a rival's two programs.

Owns namespaces, pinning, priorities and the kernel's counters. Knows no contestant and no bar.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from udpbench.agent.host.frames import headers, packed_addresses, udp_checksum
from udpbench.control.agents import Agents
from udpbench.control.lab_lock import Surroundings, Terms, take_lab
from udpbench.control.run import run_name
from udpbench.control.trial import (
    apply_settings,
    await_links,
    bind_workers,
    close_workers,
    prove_destinations,
    read_facts,
)
from udpbench.control.trial_state import Attempt, Bench, trial_agents
from udpbench.control.wait import Clock, Interrupt, Waiter
from udpbench.definition.load import load_experiment_data, load_lab
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import Sample, Snapshot
from udpbench.protocol import PhaseOrder

PROGRAM_S = 90
"""After so long a side ends by itself, whatever becomes of this program."""
LEASE_NS = 10 * SECOND_NS
START_NS = 50 * 10**6
DEADLINE_S = 5.0
NICE = -20
FRAME_PAYLOAD_BYTES = 32
ADDRESS, OWN_PORT, RIVAL_PORT = "192.168.254.1", 4321, 4322
PREPARING = (
    read_facts,
    apply_settings,
    read_facts,
    await_links,
    bind_workers,
    prove_destinations,
)
"""The steps of a trial up to its workers, as a run takes them."""


@dataclass(frozen=True)
class Own:
    """udpbench itself, by the keys of an experiment."""

    keys: dict[str, Any]


@dataclass(frozen=True)
class Rival:
    """Two programs, the receiver first; ``{bare}`` stands for the bare loops."""

    receiver: str
    sender: str


@dataclass(frozen=True)
class Half:
    """A program in the place of one of udpbench's ends, and the other end if it is needed.

    It prints ``ready``. ``{bare}`` stands for the bare loops, ``{frame}`` for a datagram in hex as
    udpbench's sender of frames would send it, but for what is different in each.
    """

    role: str
    program: str
    beside: Own | None = None


class Nowhere:
    """Where samples would go; slices run no phase of a trial."""

    def stream(self, _samples: tuple[Sample, ...], _snapshots: tuple[Snapshot, ...]) -> None:
        """Take nothing."""

    def streamed(self) -> tuple[tuple[Sample, ...], tuple[Snapshot, ...]]:
        """Return nothing."""
        return (), ()


@dataclass
class Stage:
    """The lab with one set of settings in force, and what each contestant needs there."""

    agents: Agents
    bench: Bench
    bare: Path
    first: bool
    """Whether all of it goes before whatever else runs here."""
    attempts: dict[str, Attempt] = field(default_factory=dict)

    def pid(self, role: str) -> int:
        """Return the process whose network namespace is the role's."""
        remote = (self.agents.senders if role == "sender" else self.agents.receivers)[0]
        assert remote.channel.pid is not None
        return remote.channel.pid

    def attempt(self, name: str, own: Own) -> Attempt:
        """Return a trial, bound to workers, with its settings in force."""
        if name not in self.attempts:
            duration = f"{PROGRAM_S}s"
            data = {"question": "How fast?", "warmup": "0s", "duration": duration, **own.keys}
            (trial,) = load_experiment_data(data, "ways").points
            attempt = Attempt(self.bench, trial, 1, 1, 1)
            for step in PREPARING:
                step(attempt)
            self.attempts[name] = attempt
        return self.attempts[name]

    def cpu(self, role: str) -> int:
        """Return the CPU of a role's worker; rivals are pinned to it, too."""
        attempt = self.attempt("own", Own({}))
        (cpu,) = [spec.cpu for spec in attempt.workers if spec.role == role]
        assert cpu is not None
        return cpu

    def frame(self, size_bytes: int) -> bytes:
        """Return a datagram of udpbench's first flow, from its Ethernet header to its payload."""
        attempt = self.attempt("own", Own({}))
        spec, receiver = sorted(attempt.workers, key=lambda worker: worker.role == "receiver")
        flow, payload = spec.flows[0], bytes(size_bytes)
        source, destination = (attempt.facts[worker.host].mac or "" for worker in (spec, receiver))
        addresses = (flow.source, flow.destination)
        ports = (flow.source_port, flow.destination_port)
        front = headers((source, destination), addresses, ports, size_bytes, spec.traffic.ttl)
        checksum = udp_checksum(packed_addresses(*addresses), ports, payload)
        return front[:-2] + checksum.to_bytes(2) + payload

    def put_first(self) -> None:
        """Let it go before whatever else runs here, if it is to."""
        if self.first:
            put_first()


def put_first() -> None:
    """Let this program, all it starts and the lab's NAPI threads go before whatever else runs here.

    All alike, so that they share a CPU among themselves as they would on a machine of their own. A
    session is a group of its own, with a priority of its own (sched(7), autogroup).
    """
    os.setpriority(os.PRIO_PROCESS, 0, NICE)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
            os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
            Path(f"/proc/{process.pid}/autogroup").write_text(f"{NICE}")
    for comm in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if comm.read_text().startswith("napi/receive0-"):
                os.setpriority(os.PRIO_PROCESS, int(comm.parent.name), NICE)


@contextmanager
def stage(bare: Path, first: bool = True) -> Iterator[Stage]:
    """Yield the built-in lab, and throw it away."""
    if first:
        put_first()
    lab = load_lab("local")
    with take_lab([lab], run_name(), LEASE_NS, Surroundings(), Terms()) as (_, agents):
        waiter = Waiter(Clock(), Interrupt())
        yield Stage(agents, Bench(lab, agents, waiter, lambda _: None, Nowhere()), bare, first)


def delivered(stage: Stage) -> int:
    """Return the messages that sockets of the receiver's namespace have read."""
    text = Path(f"/proc/{stage.pid('receiver')}/net/snmp").read_text()
    names, values = (line.split() for line in text.splitlines() if line.startswith("Udp:"))
    return int(values[names.index("InDatagrams")])


def offered(stage: Stage) -> int:
    """Return the packets that the sender's device was given, taken or not."""
    taken, dropped = _of_sending_device(stage)
    return taken + dropped


def brought(stage: Stage) -> int:
    """Return the packets that the sender's device brought to its peer."""
    return _of_sending_device(stage)[0]


def taken(stage: Stage) -> int:
    """Return the frames that AF_XDP sockets got into their rings, while a program takes all."""
    packets, refused = _of_device(stage, "receiver", "receive0", RX_PACKETS, RX_DROPPED)
    return packets - refused


DROPPING = (
    "from udpbench.agent.host.bpf import bpf, instructions as code\n"
    "from udpbench.agent.host.system import Host\n"
    "from udpbench.agent.settings.packet_traps import XDP_CONTEXT, XDP_VERDICTS, _attach\n"
    "program = code.drops_port({port}, XDP_CONTEXT, XDP_VERDICTS)\n"
    "_attach(Host(), 'receive0', bpf.load(bpf.XDP, program, 'bench_drop'))"
)


def drop_all(stage: Stage) -> None:
    """Have the receiver's device drop the traffic as soon as it has it, for the lab's life."""
    inside = ["nsenter", f"--target={stage.pid('receiver')}", "--net"]
    program = DROPPING.format(port=OWN_PORT)
    subprocess.run([*inside, sys.executable, "-c", program], check=True)


def _of_sending_device(stage: Stage) -> tuple[int, int]:
    return _of_device(stage, "sender", "send0", TX_PACKETS, TX_DROPPED)


RX_PACKETS, RX_DROPPED, TX_PACKETS, TX_DROPPED = 1, 3, 9, 11
"""Columns of /proc/net/dev. What a ring has no room for is dropped there (docs/kernel.md)."""


def _of_device(stage: Stage, role: str, device: str, first: int, second: int) -> tuple[int, int]:
    text = Path(f"/proc/{stage.pid(role)}/net/dev").read_text()
    return device_counts(text, device, first, second)


def device_counts(text: str, device: str, first: int, second: int) -> tuple[int, int]:
    """Return two columns of a device in the text of /proc/net/dev."""
    numbers = re.findall(rf"^ *{device}:(.*)$", text, re.MULTILINE)[0].split()
    return int(numbers[first]), int(numbers[second])


def rate(counter: Callable[[], int], settle_s: float, slice_s: float) -> float:
    """Return how fast a counter grows over one slice, per second."""
    time.sleep(settle_s)
    before, begun_ns = counter(), time.monotonic_ns()
    time.sleep(slice_s)
    after, ended_ns = counter(), time.monotonic_ns()
    return (after - before) * SECOND_NS / (ended_ns - begun_ns)


@contextmanager
def running(stage: Stage, name: str, own: Own) -> Iterator[list[int]]:
    """Yield the processes of udpbench's workers, in their loops."""
    attempt = stage.attempt(name, own)
    pids: list[int] = []
    try:
        for remote in trial_agents(attempt).working:
            mine = [spec for spec in attempt.workers if spec.host == remote.name]
            pids += {worker.pid for worker in remote.prepare(mine)}
        stage.put_first()
        at_ns = time.monotonic_ns() + START_NS
        order = PhaseOrder("measured", 7, at_ns, PROGRAM_S * SECOND_NS)
        for remote in trial_agents(attempt).working:
            remote.start(order)
        yield pids
    finally:
        for pid in pids:
            send_signal(pid, signal.SIGCONT)
        close_workers(attempt)


@contextmanager
def beside(stage: Stage, name: str, half: Half) -> Iterator[None]:
    """Have a program run in the place of one end, and then udpbench's other end."""
    program = spawn(stage, half.role, half.program, subprocess.PIPE)
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n", f"{program.args!r} ended"
        stage.put_first()
        with running(stage, name, half.beside) if half.beside is not None else nullcontext():
            yield
    finally:
        end(program)


@contextmanager
def playing(stage: Stage, rival: Rival) -> Iterator[list[int]]:
    """Yield the processes of a rival's two programs, once packets flow."""
    receiver = spawn(stage, "receiver", rival.receiver)
    try:
        await_listener(stage, receiver, tcp=rival.receiver.startswith("iperf3"))
        sender = spawn(stage, "sender", rival.sender)
        try:
            stage.put_first()
            await_packets(stage)
            yield [receiver.pid, sender.pid]
        finally:
            end(sender)
    finally:
        end(receiver)


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def spawn(
    stage: Stage, role: str, program: str, out: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a program in a role's namespace, on the CPU of its worker."""
    inside = ["nsenter", f"--target={stage.pid(role)}", "--net"]
    pinned = ["taskset", "--cpu-list", str(stage.cpu(role))]
    frame = stage.frame(FRAME_PAYLOAD_BYTES).hex()
    words = [word.format(bare=stage.bare, frame=frame) for word in shlex.split(program)]
    command = [*inside, *pinned, *words]
    # A session of its own has a priority of its own; that of whoever runs this is left alone.
    return subprocess.Popen(command, start_new_session=True, stdout=out, stderr=subprocess.DEVNULL)


def await_listener(stage: Stage, receiver: subprocess.Popen[bytes], tcp: bool) -> None:
    """Wait until somebody listens on the port."""
    file = Path(f"/proc/{stage.pid('receiver')}/net/{'tcp6' if tcp else 'udp'}")
    deadline = time.monotonic() + DEADLINE_S
    while f":{RIVAL_PORT:04X} " not in file.read_text():
        assert receiver.poll() is None, f"{receiver.args!r} ended"
        assert time.monotonic() < deadline, f"{receiver.args!r} does not listen"
        time.sleep(0.01)


def await_packets(stage: Stage, counter: Callable[[Stage], int] = delivered) -> None:
    """Wait until packets flow: rivals shake hands first."""
    deadline, before = time.monotonic() + DEADLINE_S, counter(stage)
    while counter(stage) < before + 100:
        assert time.monotonic() < deadline, "no packet arrives"
        time.sleep(0.01)


def end(program: subprocess.Popen[bytes]) -> None:
    """End a program that was started here."""
    program.kill()
    program.wait()
    if program.stdout is not None:
        program.stdout.close()

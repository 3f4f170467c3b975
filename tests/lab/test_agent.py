"""Agents in network namespaces of their own: real links, real packets, real deaths."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, cast

import pytest
from sampled import sampled

from udpbench.control.connections import forks
from udpbench.control.connections.channel import Pipes
from udpbench.control.connections.forks import LocalAgents
from udpbench.model.experiment import Fault, Receive, Send, Traffic
from udpbench.model.host import Facts, Setting
from udpbench.model.limits import Scope
from udpbench.model.record import Snapshot
from udpbench.model.work import FlowSpec, LossSpec, WorkerSpec
from udpbench.protocol import (
    PROTOCOL,
    PhaseOrder,
    SampleReply,
    Use,
    build_id,
    decode,
    encode,
    read_line,
    write_line,
)

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces; run it as root"),
]

DEADLINE_S = 10.0
SECOND_NS = 10**9
OWN_NAMESPACE = ("unshare", "--net", "--mount")
SENDER, RECEIVER = "198.18.0.30", "198.18.0.1"
"""From the range that RFC 2544 sets aside for benchmarks."""
PACKETS = 20_000


class Forked:
    """An agent in namespaces of its own, as a built-in lab has it, with what we need of a Popen."""

    def __init__(self, name: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(forks, "Channel", lambda _, pipes: pipes)
            self._pipes = cast("Pipes", LocalAgents().forked(name, private=True))
        assert self._pipes.pid is not None
        self.pid = self._pipes.pid
        self.stdin, self.stderr = self._pipes.requests, self._pipes.errors
        self.stdout = os.fdopen(os.dup(self._pipes.replies.fd), "rb")
        self.kill = self._pipes.kill

    def poll(self) -> int | None:
        """Return the exit status; None while it runs."""
        return self._pipes.ended(0)

    def wait(self, limit_s: float) -> int:
        """Return the exit status, within a limit."""
        status = self._pipes.ended(round(limit_s * SECOND_NS))
        assert status is not None
        return status


class Agent:
    """A real agent, spoken to in lines."""

    def __init__(self, name: str, *prefix: str) -> None:
        self.name = name
        self.process = (
            Forked(name)
            if prefix == OWN_NAMESPACE
            else subprocess.Popen(
                [*prefix, sys.executable, "-m", "udpbench.agent.serve"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
        self.number = 0
        self.requests = cast("IO[bytes]", self.process.stdin)
        self.replies = cast("IO[bytes]", self.process.stdout)

    def ask(self, verb: str, **args: Any) -> Any:
        """Return the result of a request; its error where it failed."""
        self.number += 1  # one that was answered before would get its old answer
        self.requests.write(write_line({"id": self.number, "verb": verb, "args": encode(args)}))
        self.requests.flush()
        assert select.select([self.replies], [], [], DEADLINE_S)[0], f"no reply to {verb}"
        reply = read_line(self.replies.readline())
        return reply.get("result", reply.get("error"))

    def hello(
        self,
        run: str = "test",
        scopes: Sequence[Scope] = ("namespace",),
        lease_s: int = 60,
        use: Use = "alone",
    ) -> Any:
        """Greet the agent and take its host; return what it says of both."""
        hello = self.done(
            "hello",
            host=self.name,
            run=run,
            build=build_id(),
            protocol=PROTOCOL,
            lease_ns=lease_s * SECOND_NS,
            scopes=scopes,
        )
        return {**hello, **self.ask("take", use=use)}

    def done(self, verb: str, **args: Any) -> Any:
        """Return the result of a request that must not fail."""
        result = self.ask(verb, **args)
        assert not (isinstance(result, dict) and "kind" in result), result
        return result


@pytest.fixture
def start() -> Iterator[Callable[..., Agent]]:
    """Start agents that are not left behind."""
    agents: list[Agent] = []

    def start_agent(name: str, *prefix: str) -> Agent:
        agents.append(Agent(name, *prefix))
        return agents[-1]

    yield start_agent
    for agent in agents:
        agent.requests.close()
        if agent.process.poll() is None:
            agent.process.wait(DEADLINE_S)
        agent.replies.close()
        cast("IO[bytes]", agent.process.stderr).close()


@pytest.fixture
def pair(start: Callable[..., Agent]) -> tuple[Agent, Agent]:
    """Join a sender's and a receiver's namespace by a veth pair."""
    left, right = start("left", *OWN_NAMESPACE), start("right", *OWN_NAMESPACE)
    left.hello()
    right.hello()
    link = {"peer": "send0", "peer_pid": left.process.pid, "queues": 2}
    link |= {"mac": "02:00:00:00:00:01", "peer_mac": "02:00:00:00:00:02"}
    right.done(
        "apply",
        settings=[
            Setting("link", "receive0", link),
            Setting("address", f"receive0/{RECEIVER}/24", True),
            Setting("up", "receive0", True),
        ],
    )
    left.done(
        "apply",
        settings=[Setting("address", f"send0/{SENDER}/24", True), Setting("up", "send0", True)],
    )
    return left, right


def flows(destination: str = RECEIVER) -> tuple[FlowSpec, ...]:
    """Return two flows from one source."""
    return tuple(FlowSpec(n, SENDER, 65400 + n, destination, 4321) for n in (0, 1))


def sender(destination: str = RECEIVER, **traffic: Any) -> WorkerSpec:
    """Return a sender that sends a fixed number of packets."""
    return WorkerSpec(
        "sender",
        "left",
        0,
        None,
        flows(destination),
        Traffic(**traffic),
        send=Send(),
        rate_pps=100_000,
        count_packets=PACKETS,
    )


def receiver() -> WorkerSpec:
    """Return a receiver with a large buffer."""
    return WorkerSpec(
        "receiver", "right", 0, None, flows(), Traffic(), receive=Receive(), bind_ports=(4321,)
    )


def sample(agent: Agent) -> SampleReply:
    """Return an agent's sample in the model's terms."""
    return cast("SampleReply", decode(SampleReply, agent.done("sample", since=0)))


def until(agent: Agent, what: str, condition: Callable[[SampleReply], Any]) -> SampleReply:
    """Poll an agent until a condition holds of its sample; fail at the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition(reply := sample(agent)):
        assert time.monotonic() < deadline, f"{agent.name}: not {what}: {reply}"
    return reply


def run_phase(left: Agent, right: Agent, tag: int) -> tuple[SampleReply, SampleReply]:
    """Send one phase and return what both ends counted once all is quiet."""
    at_ns = time.monotonic_ns() + SECOND_NS // 20
    for agent in (right, left):
        agent.done("start", order=PhaseOrder("measured", tag, at_ns))
    sent = until(left, "done", lambda reply: reply.state == "done")
    until(right, "all read", lambda reply: reply.stats[0].counts["received_packets"] == PACKETS)
    right.done("stop")
    return sent, until(right, "done", lambda reply: reply.state == "done")


def snapshot(agent: Agent, interface: str) -> dict[str, int]:
    """Return an agent's counters."""
    reply = cast("Snapshot", decode(Snapshot, agent.done("snapshot", interface=interface)))
    assert agent.name == reply.host
    return reply.counters


def test_every_packet_arrives_and_is_counted_at_each_place(pair: tuple[Agent, Agent]) -> None:
    """Loops, flows, sockets, IP, devices and queues agree, in a second phase as in the first."""
    left, right = pair
    right.done("prepare", interface="receive0", workers=[receiver()])
    left.done("prepare", interface="send0", workers=[sender()])
    for tag in (1, 2):
        before = {**snapshot(left, "send0"), **snapshot(right, "receive0")}
        sent, received = run_phase(left, right, tag)
        after = {**snapshot(left, "send0"), **snapshot(right, "receive0")}
        # The kernel lists a type of ICMPv6 message once it has seen one.
        moved = {name: after[name] - before[name] for name in before}

        assert PACKETS == sent.stats[0].counts["sent_packets"]
        assert PACKETS == received.stats[0].counts["received_packets"]
        assert [(f.flow, f.packets, f.highest_sequence) for f in sent.flows] == [
            (f.flow, f.packets, f.highest_sequence) for f in received.flows
        ]
        assert PACKETS == sum(flow.packets for flow in received.flows)
        assert PACKETS == moved["snmp.Udp.InDatagrams"]
        assert PACKETS == moved["netstat.IpExt.InNoECTPkts"]
        assert PACKETS <= moved["link.send0.tx_packets"]
        assert PACKETS <= moved["link.receive0.rx_packets"]
        assert (0, 0) == (moved["qdisc.send0.drops"], moved["link.receive0.rx_dropped"])
        inode = received.stats[0].socket_inodes[0]
        assert 0 == moved[f"socket.{inode}.drops"]
        assert "ethtool.receive0.rx_queue_1_drops" in moved
        assert [] == [name for name in moved if name.startswith(("softnet", "cpu", "rt_cache"))]
        # A veth has no MAC, and the kernel answers without an error.
        assert [] == [name for name in moved if name.startswith(("eth-mac", "rmon"))]


def test_a_socket_that_nobody_reads_loses_what_the_ledger_finds(pair: tuple[Agent, Agent]) -> None:
    """Drops of the socket by its inode are those of the namespace: nothing else was lost."""
    left, right = pair
    small = Receive(buffer_bytes=4096, work_ns=1_000_000, batch=1)
    spec = WorkerSpec(
        "receiver", "right", 0, None, flows(), Traffic(), receive=small, bind_ports=(4321,)
    )
    inode = right.done("prepare", interface="receive0", workers=[spec])[0]["socket_inodes"][0]
    left.done("prepare", interface="send0", workers=[sender()])
    before = snapshot(right, "receive0")
    at_ns = time.monotonic_ns() + SECOND_NS // 20
    for agent in (right, left):
        agent.done("start", order=PhaseOrder("measured", 1, at_ns, SECOND_NS))
    until(left, "done", lambda reply: reply.state == "done")
    quiet = until(right, "queue empty", lambda reply: reply.queued_bytes == 0)
    right.done("stop")
    quiet = until(right, "done", lambda reply: reply.state == "done")
    after = snapshot(right, "receive0")

    drops = after[f"socket.{inode}.drops"] - before[f"socket.{inode}.drops"]
    rcvbuf = after["snmp.Udp.RcvbufErrors"] - before["snmp.Udp.RcvbufErrors"]
    assert drops == rcvbuf
    assert drops > 0
    assert PACKETS == quiet.stats[0].counts["received_packets"] + drops


NOBODY = "192.0.2.9"
COUNTER = (
    "add table inet seen; add counter inet seen loads; "
    "add chain inet seen out { type filter hook output priority 0; }; "
    "add rule inet seen out oifname other0 meta l4proto udp counter name loads"
)


def inside(agent: Agent, *command: str) -> str:
    """Return what a command prints in an agent's network namespace."""
    with Path(f"/proc/{agent.process.pid}/ns/net").open() as held:
        return in_namespace(held.fileno(), *command)


def turned_away(left: Agent) -> None:
    """Give the sender's namespace another way to everywhere, by an interface beside the lab's."""
    for words in (
        "link add other0 type veth peer other1",
        "address add 192.0.2.1/24 dev other0",
        "address add 2001:db8::1/64 dev other0 nodad",
        "link set other1 up",
        "link set other0 up",
        f"neighbour add {NOBODY} lladdr 02:00:00:00:00:09 dev other0",
        "neighbour add 2001:db8::9 lladdr 02:00:00:00:00:09 dev other0",
        f"route add default via {NOBODY}",
        "-6 route add default via 2001:db8::9",
    ):
        inside(left, "ip", *words.split())
    inside(left, "nft", COUNTER)


def elsewhere(left: Agent) -> int:
    """Return the UDP datagrams that left by the other interface."""
    counted = inside(left, "nft", "list", "counter", "inet", "seen", "loads")
    return int(counted.split("packets ")[1].split()[0])


# --- frames --------------------------------------------------------------------------------------


def framing(destination: str = RECEIVER, **changes: Any) -> WorkerSpec:
    """Return a sender of frames, fewer than a ring of the pair holds."""
    return replace(
        sender(destination),
        **{"send": Send(call="af_xdp"), "rate_pps": None, "count_packets": 100, **changes},
    )


def test_frames_that_the_device_drops_are_reported_by_the_call(pair: tuple[Agent, Agent]) -> None:
    """Longer than the receiver's MTU: each was sent, and dropped, and the device says the same."""
    left, _ = pair
    inside(left, "ip", "link", "set", "send0", "mtu", "2000")
    spec = framing(traffic=Traffic(size_bytes=1700))
    (prepared,) = left.done("prepare", interface="send0", workers=[spec])
    before = snapshot(left, "send0")
    at_ns = time.monotonic_ns()
    left.done("start", order=PhaseOrder("measured", 1, at_ns, 20 * SECOND_NS))
    counts = until(left, "done", lambda reply: reply.state == "done").stats[0].counts
    after = snapshot(left, "send0")
    dropped = "link.send0.tx_dropped"
    assert (100, 100, 100) == (
        counts["sent_packets"],
        counts["ebusy"],
        after[dropped] - before[dropped],
    )
    # A veth has no zero-copy (drivers/net/veth.c).
    assert prepared["zerocopy"] is False


def test_frames_need_a_neighbour_that_answers(pair: tuple[Agent, Agent]) -> None:
    """Nobody has that address; nothing is opened."""
    left, _ = pair
    refused = left.ask("prepare", interface="send0", workers=[framing("198.18.0.8")])
    assert "AgentError" == refused["kind"]
    assert "no neighbour entry on send0 for 198.18.0.8;" in refused["message"]
    assert "none" == sample(left).state


def test_frames_need_a_queue_of_their_own(pair: tuple[Agent, Agent]) -> None:
    """The pair has two; the error names the queue."""
    left, _ = pair
    refused = left.ask("prepare", interface="send0", workers=[framing(index=2)])
    expected = "left.sender2: AF_XDP socket on TX queue 2 of send0: Invalid argument"
    assert ("WorkerFailed", expected) == (refused["kind"], refused["message"].partition(";")[0])


def test_a_killed_sender_of_frames_leaves_nothing_behind(pair: tuple[Agent, Agent]) -> None:
    """Its queue can be had again, no program is attached, and all of a second phase arrives."""
    left, right = pair
    right.done("prepare", interface="receive0", workers=[receiver()])
    endless = framing(count_packets=None, rate_pps=1000)
    (prepared,) = left.done("prepare", interface="send0", workers=[endless])
    at_ns = time.monotonic_ns()
    for agent in (right, left):
        agent.done("start", order=PhaseOrder("measured", 1, at_ns, 20 * SECOND_NS))
    until(right, "reached", lambda reply: reply.stats[0].counts["received_packets"] > 0)
    os.kill(prepared["pid"], signal.SIGKILL)
    until(left, "failed", lambda reply: reply.error is not None)
    left.done("close")
    right.done("close")

    right.done("prepare", interface="receive0", workers=[receiver()])
    left.done("prepare", interface="send0", workers=[framing()])
    at_ns = time.monotonic_ns()
    for agent in (right, left):
        agent.done("start", order=PhaseOrder("measured", 2, at_ns, 20 * SECOND_NS))
    until(right, "all read", lambda reply: reply.stats[0].counts["received_packets"] == 100)
    assert "xdp" not in inside(left, "ip", "-details", "link", "show", "send0")


TAKEN = 400
IN_RING = 2048
"""UB_XSK_FRAMES of native/udpbench.h."""
TO_ANOTHER_PORT = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'', ("
OTHERS_PROGRAM = (
    "from udpbench.agent.host.bpf import bpf, instructions;"
    "from udpbench.agent.host.system import Host; from udpbench.agent.settings import packet_traps;"
    'packet_traps._attach(Host(), "receive0", bpf.load(bpf.XDP, instructions.passes(2), "others"))'
)


def taking(index: int, **receive: Any) -> WorkerSpec:
    """Return a receiver of one queue's frames."""
    way = Receive(call="af_xdp", wait="epoll", workers=2, **receive)
    return replace(receiver(), index=index, receive=way)


def begin(left: Agent, right: Agent, tag: int) -> None:
    """Start a phase of both."""
    at_ns = time.monotonic_ns()
    for agent in (right, left):
        agent.done("start", order=PhaseOrder("measured", tag, at_ns, 20 * SECOND_NS))


def counted(reply: SampleReply, name: str) -> int:
    """Return a count of all workers."""
    return sum(stats.counts.get(name, 0) for stats in reply.stats)


def moved(agent: Agent, before: dict[str, int], *kinds: str) -> int:
    """Return what the receiver's queues have counted since."""
    after = snapshot(agent, "receive0")
    names = [f"ethtool.receive0.rx_queue_{queue}_{kind}" for queue in (0, 1) for kind in kinds]
    return sum(after[name] - before[name] for name in names)


@pytest.mark.parametrize("workers_as", ["threads", "processes"])
def test_a_receiver_of_frames_takes_the_traffic_and_leaves_the_rest(
    pair: tuple[Agent, Agent], workers_as: Any
) -> None:
    """Each packet once, past IP and UDP; a ping is answered; killed it leaves no program."""
    left, right = pair
    specs = [taking(index, workers_as=workers_as) for index in (0, 1)]
    ready = right.done("prepare", interface="receive0", workers=specs)
    assert [False, False] == [worker["zerocopy"] for worker in ready]
    few = replace(sender(), rate_pps=2000, count_packets=TAKEN)
    left.done("prepare", interface="send0", workers=[few])
    for tag in (1, 2):
        before = snapshot(right, "receive0")
        begin(left, right, tag)
        until(right, "all read", lambda reply: counted(reply, "received_packets") == TAKEN)
        right.done("stop")
        reply = until(right, "done", lambda reply: reply.state == "done")
        names = ("read_packets", "purged_packets", "xsk_ring_packets", "xsk_fill_packets")
        assert [TAKEN, 0, 0, 0] == [counted(reply, name) for name in names]
        assert TAKEN == sum(flow.packets for flow in reply.flows)
        assert TAKEN == moved(right, before, "xdp_redirect")
        assert before["snmp.Udp.InDatagrams"] == snapshot(right, "receive0")["snmp.Udp.InDatagrams"]
    inside(left, sys.executable, "-c", f"{TO_ANOTHER_PORT}'{RECEIVER}', 9))")
    deadline, other = time.monotonic() + DEADLINE_S, "snmp.Udp.NoPorts"
    while snapshot(right, "receive0")[other] != before[other] + 1:
        assert time.monotonic() < deadline, "the host did not get what is not the traffic's"
    assert "xdp" in inside(right, "ip", "-details", "link", "show", "receive0")
    started = Path(f"/proc/{right.process.pid}/task/{right.process.pid}/children").read_text()
    (worker,) = [pid for pid in started.split() if b"workers.process" in command_line(int(pid))]
    os.kill(int(worker), signal.SIGKILL)
    until(right, "failed", lambda reply: reply.error is not None)
    assert "xdp" not in inside(right, "ip", "-details", "link", "show", "receive0")


def test_a_ring_that_nobody_reads_is_counted_to_the_frame(pair: tuple[Agent, Agent]) -> None:
    """What it holds is purged, what came when it was full is the ring's, and the device agrees."""
    left, right = pair
    flow, count = flows()[:1], IN_RING + 152
    # One flow stays at one queue of the pair, whichever it is.
    faults = [Fault(worker=number, after_ns=0, does="hang") for number in (1, 2)]
    specs = [replace(taking(n, fault=fault), flows=flow) for n, fault in enumerate(faults)]
    right.done("prepare", interface="receive0", workers=specs)
    spec = replace(sender(), flows=flow, rate_pps=5000, count_packets=count)
    left.done("prepare", interface="send0", workers=[spec])
    before = snapshot(right, "receive0")
    begin(left, right, 1)
    until(left, "done", lambda reply: reply.state == "done")
    deadline = time.monotonic() + DEADLINE_S
    while moved(right, before, "xdp_redirect", "drops") < count:
        assert time.monotonic() < deadline, "not all came"
    right.done("stop")
    reply = until(right, "done", lambda reply: reply.state == "done")
    names = ("received_packets", "purged_packets", "xsk_ring_packets", "xsk_fill_packets")
    assert [0, IN_RING, 152, 0] == [counted(reply, name) for name in names]
    assert 152 == moved(right, before, "drops")


def test_frames_are_refused_where_they_cannot_be_taken(pair: tuple[Agent, Agent]) -> None:
    """A queue that is not there, and an interface with somebody else's program."""
    _, right = pair
    refused = right.ask("prepare", interface="receive0", workers=[taking(0), taking(2)])
    assert "AF_XDP socket on RX queue 2 of receive0: Invalid argument" in refused["message"]
    inside(right, sys.executable, "-c", OTHERS_PROGRAM)
    refused = right.ask("prepare", interface="receive0", workers=[taking(0), taking(1)])
    assert "XDP program on receive0: Device or resource busy: another program" in refused["message"]


@pytest.mark.parametrize("family", sampled([4, 6], [6]))
def test_no_packet_leaves_by_another_interface(pair: tuple[Agent, Agent], family: int) -> None:
    """The lab's goes down under way: every send fails from then on, and is counted by its errno."""
    left, right = pair
    source, destination = {4: (SENDER, RECEIVER), 6: ("fd00::30", "fd00::1")}[family]
    for agent, interface, address in ((left, "send0", source), (right, "receive0", destination)):
        if family == 6:
            add = ("ip", "address", "add", f"{address}/64", "dev", interface, "nodad")
            inside(agent, *add)
    turned_away(left)
    flow = FlowSpec(0, source, 65400, destination, 4321)
    traffic = Traffic(family=family)  # type: ignore[arg-type]
    base = replace(sender(), flows=(flow,), traffic=traffic, rate_pps=20_000, count_packets=None)
    listening = replace(receiver(), flows=(flow,), traffic=traffic)
    right.done("prepare", interface="receive0", workers=[listening])
    left.done("prepare", interface="send0", workers=[base])
    at_ns = time.monotonic_ns()
    for agent in (right, left):
        agent.done("start", order=PhaseOrder("measured", 1, at_ns, 20 * SECOND_NS))
    until(right, "reached", lambda reply: reply.stats[0].counts["received_packets"] > 100)
    inside(left, "ip", "link", "set", "send0", "down")
    failed = until(left, "failing", lambda reply: reply.stats[0].counts["other_errors"] > 1000)
    left.done("stop")
    failed = until(left, "done", lambda reply: reply.state == "done")
    right.done("stop")

    counts = failed.stats[0].counts
    assert (0, errno.ENETUNREACH) == (elsewhere(left), counts["last_errno"])
    assert counts["attempted_packets"] == counts["sent_packets"] + counts["other_errors"]


@pytest.mark.parametrize("stage", sampled(["udp_no_port", "rx_ip"], ["rx_ip"]))
def test_no_loss_made_on_purpose_leaves_by_another_interface(
    pair: tuple[Agent, Agent], stage: str
) -> None:
    """By a UDP socket or as a frame: what cannot be sent is counted as unsent."""
    left, _ = pair
    turned_away(left)
    macs = ("02:00:00:00:00:02", "02:00:00:00:00:01")
    spec = LossSpec(stage, 10, 1, 100, 4, SENDER, RECEIVER, 64112, *macs, gro=False)
    left.done("expect_losses", interface="send0", part="sender", losses=[spec])
    inside(left, "ip", "link", "set", "send0", "down")
    counts = left.done("send_losses", stage=stage)["counts"]
    gone = errno.ENETUNREACH if stage == "udp_no_port" else errno.ENETDOWN
    assert (0, 10, 0) == (elsewhere(left), counts["attempted_packets"], counts["sent_packets"])
    assert (10, gone) == (counts["other_errors"], counts["last_errno"])


def test_a_gateway_is_for_the_networks_that_the_lab_routes(pair: tuple[Agent, Agent]) -> None:
    """A receiver that names its own addresses could else name anybody's."""
    left, _ = pair
    far = "203.0.113.7"
    inside(left, "ip", "route", "add", "default", "via", RECEIVER)
    for routed in ([], ["198.51.100.0/24"]):
        arguments = {"interface": "send0", "workers": [sender(far)], "routed": routed}
        error = left.ask("prepare", **arguments)
        assert "SafetyError" == error["kind"]
        assert (
            f"{SENDER} → {far}: goes through gateway {RECEIVER}, which `existing`"
            in error["message"]
        )
    for known in (None, ["203.0.113.0/24"]):
        left.done("prepare", interface="send0", workers=[sender(far)], routed=known)
    left.done("prepare", interface="send0", workers=[sender()], routed=[])


def test_facts_are_those_of_the_namespace(pair: tuple[Agent, Agent]) -> None:
    """Sysfs and netlink show the pair that was made in this namespace alone."""
    _, right = pair
    facts = cast("Facts", decode(Facts, right.done("facts", interface="receive0")))

    assert ("veth", "02:00:00:00:00:01", 1500, 2, 2) == (
        facts.driver,
        facts.mac,
        facts.mtu,
        facts.rx_queues,
        facts.tx_queues,
    )
    assert (f"{RECEIVER}/24",) == facts.addresses
    shown = Path(f"/proc/{right.process.pid}/root/sys/class/net").iterdir()
    assert ["receive0"] == [path.name for path in shown if path.name != "lo"]


def test_a_queue_is_served_by_its_napi_thread(start: Callable[..., Agent]) -> None:
    """Where NAPI is threaded, a queue's CPUs are those that its kernel thread may run on."""
    left, right = start("left", *OWN_NAMESPACE), start("right", *OWN_NAMESPACE)
    left.hello()
    right.hello()
    cpu = max(os.sched_getaffinity(0))
    link = {"peer": "send0", "peer_pid": left.process.pid, "queues": 2}
    link |= {"mac": "02:00:00:00:00:01", "peer_mac": "02:00:00:00:00:02"}
    settings = [
        Setting("link", "receive0", link),
        Setting("up", "receive0", True),
        Setting("feature", "receive0/rx-gro", True),
        Setting("device", "receive0/threaded", 1),
        Setting("napi_cpus", "receive0", [[cpu], [cpu]]),
    ]
    right.done("apply", settings=settings)
    facts = cast("Facts", decode(Facts, right.done("facts", interface="receive0")))

    assert {"0": (cpu,), "1": (cpu,)} == facts.queue_cpus


def test_the_machines_counters_are_the_machine_agents(start: Callable[..., Agent]) -> None:
    """With scope machine alone there is nothing of a namespace in a snapshot."""
    machine = start("machine", *OWN_NAMESPACE)
    machine.hello(scopes=("machine",))
    counters = snapshot(machine, "")

    assert {"softnet", "rt_cache", "arp_cache", "cpu", "softirq", "machine"} == {
        name.split(".")[0] for name in counters
    }


def test_nothing_is_sent_without_a_proven_route(pair: tuple[Agent, Agent]) -> None:
    """A wrong destination is refused at prepare, with its reason, and no worker is made."""
    left, _ = pair
    reasons = {
        SENDER: "local address",
        "198.18.0.255": "broadcast address",
        "224.0.0.1": "multicast address",
        "203.0.113.1": "no route (Network is unreachable)",
    }
    for destination, reason in reasons.items():
        error = left.ask("prepare", interface="send0", workers=[sender(destination)])
        assert "SafetyError" == error["kind"]
        assert f"{SENDER} → {destination}: {reason}" in error["message"]
        assert "none" == sample(left).state


SEG6 = "encap seg6 mode encap segs fc00:9::2"
AWAY = "protocol ip u32 match u32 0 0 action mirred egress redirect dev lo"
IPSEC = "ip xfrm policy add src 198.18.0.0/24 dst"
TUNNEL = f"tmpl src {SENDER} dst"
OUTPUT = "add chain ip t c {{ type {} hook output priority 0 ; }} ; add rule ip t c"


@pytest.mark.parametrize(
    ("commands", "why"),
    [
        ([f"ip route add {RECEIVER}/32 {SEG6} dev send0"], "a route that encapsulates"),
        (
            [
                f"ip nexthop add id 5 {SEG6} dev send0",
                f"ip route add {RECEIVER}/32 nhid 5",
            ],
            "a route that encapsulates",
        ),
        (
            [
                f"ip nexthop add id 5 {SEG6} dev send0",
                "ip nexthop add id 6 via 198.18.0.9 dev send0",
                "ip nexthop add id 7 group 5/6",
                f"ip route add {RECEIVER}/32 nhid 7",
            ],
            "a route with several next hops",
        ),
        (
            [f"ip route add {RECEIVER}/32 nexthop dev send0 nexthop via 198.18.0.9 dev send0"],
            "a route with several next hops",
        ),
        (
            [f"nft add table ip t ; {OUTPUT.format('nat')} dnat to 198.18.0.9"],
            "a rule to 198.18.0.9 (DNAT)",
        ),
        (
            [f"nft add table ip t ; {OUTPUT.format('route')} ip daddr set 198.18.0.9"],
            "mangle may lead",
        ),
        (
            [
                f"nft add table ip t ; {OUTPUT.format('route')} meta mark set 7",
                "ip rule add fwmark 7 table 77",
            ],
            "a route by a mark (ip rule)",
        ),
        (
            [
                "iptables -t nat -A OUTPUT -m comment --comment -p -j DNAT --to-destination 198.18.0.9"
            ],
            "a rule to 198.18.0.9 (DNAT)",
        ),
        (
            [
                "tc qdisc add dev send0 root handle 1: htb default 1",
                "tc class add dev send0 parent 1: classid 1:1 htb rate 1gbit",
                "tc qdisc add dev send0 parent 1:1 handle 20: htb",
                f"tc filter add dev send0 parent 20: {AWAY}",
            ],
            "a tc filter on send0",
        ),
        (
            [
                "tc qdisc add dev send0 root handle 1: htb default 1",
                "tc class add dev send0 parent 1: classid 1:1 htb rate 1gbit",
                f"tc filter add dev send0 parent 1:1 {AWAY}",
            ],
            "a tc filter on send0",
        ),
        (
            [
                "ip rule add oif send0 table 77",
                f"ip route add {RECEIVER} via 198.18.0.9 dev send0 onlink table 77",
            ],
            "a route by the interface (ip rule), to 198.18.0.9",
        ),
        (
            [
                "sysctl -qw net.ipv4.nexthop_compat_mode=0",
                "ip nexthop add id 1 dev send0",
                "ip nexthop add id 2 via 198.18.0.9 dev send0 onlink",
                "ip nexthop add id 3 group 1/2",
                f"ip route add {RECEIVER}/32 nhid 3",
            ],
            "a route with several next hops",
        ),
        (
            [
                "iptables -t mangle -A OUTPUT -p udp -j TOS --set-tos 0x10",
                f"ip route add {RECEIVER} tos 0x10 via 198.18.0.9 dev send0 onlink",
            ],
            f"a route to {RECEIVER} by the type of service",
        ),
        (
            [
                f"{IPSEC} {RECEIVER} dir out {TUNNEL} 198.18.0.9 proto esp mode tunnel",
            ],
            f"an IPsec tunnel for {RECEIVER}/32",
        ),
    ],
)
def test_what_would_lead_packets_elsewhere_is_refused_at_the_sender(
    pair: tuple[Agent, Agent], commands: list[str], why: str
) -> None:
    """Behind a route that looks right: each is one more way to another host."""
    left, _ = pair
    for command in commands:
        inside(left, *command.split())
    error = left.ask("prepare", interface="send0", workers=[sender()])
    assert "SafetyError" == error["kind"], error
    assert why in error["message"]


def test_rules_for_others_do_not_keep_a_sender_from_sending(pair: tuple[Agent, Agent]) -> None:
    """A VPN's and a container engine's, and IPsec to the receiver itself."""
    left, _ = pair
    for command in (
        "iptables -t nat -N DOCKER",
        "iptables -t nat -A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER",
        "iptables -t nat -A DOCKER -p udp --dport 4321 -j DNAT --to-destination 172.17.0.2:53",
        "iptables -t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
        "iptables -t nat -A PREROUTING -j REDIRECT",
        "ip rule add not fwmark 7 table 77",
        f"{IPSEC} {RECEIVER} dir out {TUNNEL} {RECEIVER} proto esp mode tunnel",
        f"{IPSEC} 10.0.0.0/8 dir out {TUNNEL} 198.18.0.9 proto esp mode tunnel",
        "ip nexthop add id 5 dev send0",
        f"ip route add {RECEIVER}/32 nhid 5",
    ):
        inside(left, *command.split())
    left.done("prepare", interface="send0", workers=[sender()])


def test_a_route_by_another_interface_is_refused(pair: tuple[Agent, Agent]) -> None:
    """The route exists, but does not leave where the lab says."""
    left, _ = pair
    error = left.ask("prepare", interface="lo", workers=[sender()])

    assert "SafetyError" == error["kind"]
    assert "every route must be unicast and leave by lo" in error["message"]


def test_a_datagram_is_not_fragmented_unless_asked(pair: tuple[Agent, Agent]) -> None:
    """Beyond the MTU every attempt fails with EMSGSIZE; with ``fragment`` all of them go out."""
    left, _ = pair
    for fragment, field in ((False, "emsgsize"), (True, "sent_packets")):
        worker = sender(size_bytes=2000, fragment=fragment)
        left.done("prepare", interface="send0", workers=[worker])
        at_ns = time.monotonic_ns()
        left.done("start", order=PhaseOrder("path", 1, at_ns, SECOND_NS, 50))
        reply = until(left, "done", lambda reply: reply.state == "done")
        assert 50 == reply.stats[0].counts[field]


def test_restore_undoes_the_pair(pair: tuple[Agent, Agent]) -> None:
    """What was applied is undone, newest first, and the journal goes with it."""
    left, right = pair
    undone = right.done("restore")

    kinds = [change["setting"]["kind"] for change in undone]
    assert ["up", "qdisc_tree", "address", "link"] == kinds
    assert None is decode(Facts, right.done("facts", interface="receive0")).driver
    assert [] == right.done("restore")
    assert None is decode(Facts, left.done("facts", interface="send0")).driver


def test_a_lease_that_runs_out_ends_workers_and_settings(start: Callable[..., Agent]) -> None:
    """An agent without a controller puts its host back by itself."""
    agent = start("left", *OWN_NAMESPACE)
    agent.hello(lease_s=1)
    agent.done("apply", settings=[Setting("sysctl", "net.ipv4.ip_default_ttl", 33)])
    namespace = os.open(f"/proc/{agent.process.pid}/ns/net", os.O_RDONLY)
    assert 0 == agent.process.wait(DEADLINE_S)

    ttl = in_namespace(namespace, "cat", "/proc/sys/net/ipv4/ip_default_ttl")
    os.close(namespace)
    assert "64" == ttl


def test_what_somebody_else_changed_is_left_and_reported(start: Callable[..., Agent]) -> None:
    """The agent ends with status 4 and says what remains; its journal stays."""
    agent = start("left", *OWN_NAMESPACE)
    netns = agent.hello()["netns"]
    agent.done("apply", settings=[Setting("sysctl", "net.ipv4.ip_default_ttl", 33)])
    guardian = os.pidfd_open(children(agent)[0])
    enter = ["nsenter", f"--target={agent.process.pid}", "--net", "sysctl", "-qw"]
    subprocess.run([*enter, "net.ipv4.ip_default_ttl=44"], check=True, timeout=DEADLINE_S)
    agent.requests.close()
    status = agent.process.wait(DEADLINE_S)
    stderr = cast("IO[bytes]", agent.process.stderr).read().decode()
    assert select.select([guardian], [], [], DEADLINE_S)[0], "the guardian still lives"
    os.close(guardian)
    journal = Path(f"/run/udpbench/test-{netns}.jsonl")
    left_behind = journal.exists()
    journal.unlink(missing_ok=True)

    assert (4, True) == (status, left_behind)
    assert stderr.startswith("udpbench agent: stdin ended; not restored: sysctl net.ipv4.ip_def")


def test_an_agent_that_cannot_settle_says_so() -> None:
    """Without the right to mount in its own namespace it does not start half-blind."""
    drop = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
    command = [*OWN_NAMESPACE, *drop, sys.executable, "-m", "udpbench.agent.serve"]
    ran = subprocess.run(command, input=b"", capture_output=True, check=False, timeout=DEADLINE_S)

    assert (
        3,
        b"",
        (
            "udpbench agent: not started: /sys: mount of sysfs: Operation not permitted; "
            "give this user the permission, or run as root\n"
        ),
    ) == (ran.returncode, ran.stdout, ran.stderr.decode())


def in_namespace(descriptor: int, *command: str) -> str:
    """Return what a command prints in a network namespace that is held open."""
    enter = ["nsenter", f"--net=/proc/self/fd/{descriptor}", *command]
    ran = subprocess.run(enter, pass_fds=(descriptor,), capture_output=True, check=True, timeout=10)
    return ran.stdout.decode().strip()


def test_a_killed_agent_leaves_nothing(pair: tuple[Agent, Agent]) -> None:
    """Workers, guardians, namespaces and links vanish after SIGKILL, without anybody's help."""
    left, right = pair
    journals = [
        Path(f"/run/udpbench/test-{Path(f'/proc/{agent.process.pid}/ns/net').stat().st_ino}.jsonl")
        for agent in pair
    ]
    assert [True, True] == [journal.exists() for journal in journals]
    worker = right.done("prepare", interface="receive0", workers=[receiver()])[0]["pid"]
    watched = [os.pidfd_open(pid) for pid in (worker, *children(left), *children(right))]
    left.process.kill()
    right.process.kill()

    deadline = time.monotonic() + DEADLINE_S
    for pidfd in watched:
        left_s = max(deadline - time.monotonic(), 0)
        assert select.select([pidfd], [], [], left_s)[0], "a child of the agent still lives"
        os.close(pidfd)
    assert [False, False] == [journal.exists() for journal in journals]


def children(agent: Agent) -> list[int]:
    """Return an agent's child processes."""
    pid = agent.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_line(pid: int) -> bytes:
    """Return a process's arguments; empty once it has ended, also between open and read."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def guardians(agent: Agent) -> list[int]:
    """Return those of an agent's child processes that watch over it."""
    words = b"udpbench.agent.settings.guardian"
    return [pid for pid in children(agent) if words in command_line(pid)]


def test_a_dead_guardian_is_replaced(start: Callable[..., Agent]) -> None:
    """A host is never changed without somebody to put it back."""
    agent = start("left", *OWN_NAMESPACE)
    agent.hello()
    agent.done("apply", settings=[Setting("sysctl", "net.ipv4.ip_default_ttl", 33)])
    first = guardians(agent)
    assert 1 == len(first)
    os.kill(first[0], signal.SIGKILL)

    deadline = time.monotonic() + DEADLINE_S
    while guardians(agent) in (first, []):
        assert time.monotonic() < deadline, "the guardian was not replaced"
        agent.done("ping")
    assert 1 == len(guardians(agent))


def test_a_namespace_belongs_to_one_run(start: Callable[..., Agent]) -> None:
    """A second run is told who has it, until that has ended, however it ends."""
    first = start("left", *OWN_NAMESPACE)
    first.hello("one")
    enter = ("nsenter", f"--net=/proc/{first.process.pid}/ns/net")
    second = start("left", *enter)
    reply = second.hello("two", use="shared")
    assert (f"run one (pid {first.process.pid})", "namespace") == (reply["held_by"], reply["lock"])

    first.process.kill()
    first.process.wait(DEADLINE_S)
    free = {"held_by": None, "lock": None, "left_behind": [], "in_use": []}
    assert free == second.done("take", use="alone")


def test_a_machine_changes_under_one_run_alone(start: Callable[..., Agent]) -> None:
    """Whichever namespaces they are in: of those that share it one changes it at a time."""
    first, second = start("left", *OWN_NAMESPACE), start("right", *OWN_NAMESPACE)
    for agent, run in ((first, "one"), (second, "two")):
        assert agent.hello(run, ("machine",), use="shared")["held_by"] is None
    setting = Setting("sysctl", "net.ipv4.ip_default_ttl", 33, "machine")
    assert 33 == first.done("apply", settings=[setting])[0]["after"]
    refused = second.ask("apply", settings=[setting])
    expected = (
        f"run one (pid {first.process.pid}) is changing this machine's settings; run one at a time"
    )
    assert ("SettingRefused", expected) == (refused["kind"], refused["message"])
    assert [f"run two (pid {second.process.pid})"] == first.done("others")

    first.requests.close()
    first.process.wait(DEADLINE_S)
    assert 33 == second.done("apply", settings=[setting])[0]["after"]


def test_an_agent_without_root_has_a_run_folder_of_its_own(start: Callable[..., Agent]) -> None:
    """In a user namespace it settles as well, journals included, and tells what it may not do."""
    drop = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    unshare = ("unshare", "--user", "--map-root-user", *OWN_NAMESPACE[1:])
    tried = subprocess.run(
        [*drop, *unshare, sys.executable, "-c", "import pyroute2"],
        capture_output=True,
        check=False,
        timeout=DEADLINE_S,
    )
    if tried.returncode != 0:
        pytest.skip(f"not possible as another user: {tried.stderr.decode().strip()[-200:]}")
    # As a controller would be: the parent is of the same user and stays in its own namespaces.
    agent = start("left", *drop, "sh", "-c", '"$@"; exit $?', "sh", *unshare)
    hello = agent.hello()
    changed = agent.done("apply", settings=[Setting("sysctl", "net.ipv4.ip_default_ttl", 33)])

    assert hello["capabilities"]["net_admin"]
    assert 33 == changed[0]["after"]
    assert ["sysctl"] == [change["setting"]["kind"] for change in agent.done("restore")]


def test_an_agent_of_another_namespace_sees_the_cgroups_of_the_machine() -> None:
    """Its guardian leaves the agent's: who ends a cgroup, as systemd does, must not end both."""
    program = """
from pathlib import Path
from udpbench.agent.host import namespace
from udpbench.agent.host.system import Host
from udpbench.agent.settings.guardian import CGROUPS

def groups():
    return [name for name in CGROUPS if Path("/", name, "cgroup.procs").exists()]

before = groups()
namespace.enter_own(Host())
print(before == groups() != [])
"""
    command = [sys.executable, "-c", program]
    output = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert "True\n" == output.stdout, output.stderr

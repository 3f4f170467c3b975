"""The agent as a process on a pipe: what it answers, what it refuses, and how it ends.

The agents here are given no scope, so that they change, lock and send nothing.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast, get_type_hints

import psutil
import pytest
from settings_world import fake_host

from udpbench.agent.clients import Server
from udpbench.agent.host.namespace import INIT_USER_NS, is_own
from udpbench.agent.host.system import Host
from udpbench.agent.locks import Locks
from udpbench.agent.loop import STDIN_ENDED, parse, unexpected
from udpbench.agent.observe import ORDERS, Observer
from udpbench.agent.serve import end
from udpbench.agent.session import GREETING, SERVING, Session
from udpbench.agent.settings.journal import Journal
from udpbench.agent.verbs import Verbs
from udpbench.errors import AgentError, RestoreError
from udpbench.model.experiment import Receive, Send, Traffic
from udpbench.model.host import Setting
from udpbench.model.record import Snapshot
from udpbench.model.work import FlowSpec, WorkerSpec
from udpbench.protocol import (
    PROTOCOL,
    VERBS,
    AgentVerbs,
    PhaseOrder,
    build_id,
    encode,
    read_line,
    write_line,
)

DEADLINE_S = 10.0
SECOND_NS = 10**9


class Agent:
    """A real agent, spoken to in lines."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "udpbench.agent.serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.requests = cast("IO[bytes]", self.process.stdin)
        self.replies = cast("IO[bytes]", self.process.stdout)
        self._number = 0

    def raw(self, line: bytes) -> dict[str, Any]:
        """Return the reply to a line."""
        self.requests.write(line)
        self.requests.flush()
        ready = select.select([self.replies], [], [], DEADLINE_S)[0]
        assert ready, f"no reply within {DEADLINE_S} s to {line[:100]!r}"
        return read_line(self.replies.readline())

    def ask(self, verb: str, **args: Any) -> Any:
        """Return the result of a request; its error where it failed."""
        self._number += 1
        reply = self.raw(write_line({"id": self._number, "verb": verb, "args": args}))
        assert self._number == reply["id"]
        return reply.get("result", reply.get("error"))

    def hello(self, **changed: Any) -> Any:
        """Greet the agent; it is given no scope."""
        greeting = {
            "host": "left",
            "run": "test",
            "build": build_id(),
            "protocol": PROTOCOL,
            "lease_ns": 60 * SECOND_NS,
            "scopes": [],
        }
        hello = self.ask("hello", **{**greeting, **changed})
        return hello if "kind" in hello else {**hello, **self.ask("take", use="alone")}

    def ended(self) -> tuple[int, str]:
        """Return exit status and stderr once the agent has ended."""
        status = self.process.wait(DEADLINE_S)
        return status, cast("IO[bytes]", self.process.stderr).read().decode()


@pytest.fixture
def agent() -> Iterator[Agent]:
    """Start an agent that is not left behind."""
    agent = Agent()
    yield agent
    with contextlib.suppress(BrokenPipeError):
        agent.requests.close()
    agent.process.wait(DEADLINE_S)
    agent.replies.close()
    cast("IO[bytes]", agent.process.stderr).close()


def test_hello_tells_who_the_agent_is(agent: Agent) -> None:
    """Process, namespace, build and what it may do are told; it is in a session of its own."""
    hello = agent.hello()

    assert (agent.process.pid, build_id(), None) == (
        hello["pid"],
        hello["build"],
        hello["held_by"],
    )
    assert os.stat("/proc/self/ns/net").st_ino == hello["netns"]  # noqa: PTH116
    assert {
        "net_admin",
        "rcvbuf_force",
        "machine_sysctl",
        "kernel_threads",
        "napi_threads",
        "rps",
        "rps_default",
        "real_time",
        "udp_gso",
        "udp_gro",
        "udp_zerocopy",
        "af_xdp",
        "io_uring_send",
        "io_uring_receive",
        "af_xdp_receive",
        "busy_poll",
        "reuseport_cbpf",
        "reuseport_ebpf",
        "incoming_cpu",
        "bpf",
    } == set(hello["capabilities"])
    if sys.version_info >= (3, 11):  # as the controller, which asks for them
        from udpbench.definition.binding.requirements import REQUIREMENTS

        asked = {required.capability or name for name, required in REQUIREMENTS.items()}
        assert set() == asked - set(hello["capabilities"])
    assert agent.process.pid == os.getsid(agent.process.pid)


def test_hello_refuses_another_make_with_every_difference(agent: Agent) -> None:
    """Protocol and build are both named, and what to do; the agent can then be greeted rightly."""
    refused = agent.hello(build="0123", protocol=99)

    assert {
        "kind": "HelloRefused",
        "message": f"the controller speaks protocol 99, the agent {PROTOCOL}; the controller's "
        f"build is 0123, the agent's {build_id()}; install the same udpbench on both",
        "host": "left",
    } == refused
    assert "pid" in agent.hello()


def test_hello_is_sent_once(agent: Agent) -> None:
    """An agent serves one run."""
    agent.hello()

    assert "this agent already serves run test" == agent.hello()["message"]


def test_hello_refuses_a_run_whose_name_is_no_file_name(agent: Agent) -> None:
    """A run's name becomes part of its journal's."""
    refused = agent.hello(run="../x")

    assert "HelloRefused" == refused["kind"]
    assert refused["message"].startswith("run '../x': ")


def test_no_host_is_touched_before_it_is_taken(agent: Agent) -> None:
    """Another run may use it: what is asked too early, or after it was let go, is refused."""
    agent.hello()
    assert agent.ask("release") is None
    refused = agent.ask("apply", settings=[])
    expected = ("HelloRefused", "apply before take: another run may use this host")
    assert expected == (refused["kind"], refused["message"])
    assert agent.ask("ping") is None
    assert [] == agent.ask("take", use="alone")["left_behind"]
    assert [] == agent.ask("apply", settings=[])


def test_no_verb_is_served_before_hello(agent: Agent) -> None:
    """What is asked too early is refused, and the agent waits on."""
    refused = agent.ask("ping")

    assert {
        "kind": "HelloRefused",
        "message": "ping before hello: the first request must be hello",
        "host": "",
    } == refused
    assert "pid" in agent.hello()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"what\n", "not a request: not JSON"),
        (b"[1]\n", "not a request: a message must be a JSON object"),
        (b"\xff\n", "not a request: "),
        (b'{"id":9,"verb":"jump"}\n', "verb 'jump' is unknown; this agent knows hello, take"),
        (b'{"id":9,"verb":["x"]}\n', "verb ['x'] is unknown"),
        (b'{"id":9,"verb":"ping","args":[1]}\n', "ping: args must be an object, not list"),
        (b'{"id":9,"verb":"sample"}\n', "sample: missing a required argument: 'since'"),
        (b'{"id":9,"verb":"ping","args":{"x":1}}\n', "ping: got an unexpected keyword"),
        (b'{"id":9,"verb":"apply","args":{"settings":5}}\n', "apply: expected a list, got 5"),
        (
            b'{"id":9,"verb":"start","args":{"order":{"tag":1,"x":2}}}\n',
            "start: PhaseOrder: unknown",
        ),
    ],
)
def test_a_bad_request_is_answered_with_what_is_wrong(
    agent: Agent, line: bytes, words: str
) -> None:
    """Every line gets one reply, and the loop goes on."""
    agent.hello()
    error = agent.raw(line)["error"]

    assert ("AgentError", "left") == (error["kind"], error["host"])
    assert error["message"].startswith(words)
    assert agent.ask("ping") is None


def test_a_bug_in_a_verb_leaves_the_agent_serving(agent: Agent) -> None:
    """It comes back as an AgentError, with the traceback on stderr and never in the reply."""
    agent.hello()
    error = agent.ask("send_losses", stage="rx_ring")
    assert (
        "AgentError",
        (
            "a bug of udpbench, while losing packets on purpose: KeyError: 'rx_ring'; its traceback "
            "is on stderr; report it"
        ),
    ) == (error["kind"], error["message"])
    assert agent.ask("ping") is None

    agent.requests.close()
    status, stderr = agent.ended()
    assert 0 == status
    assert "Traceback" in stderr


def test_an_interface_that_has_gone_is_reported_in_words() -> None:
    """It was renamed or removed under way: where, what, while doing what, and the next step."""
    gone = OSError(errno.ENODEV, "No such device")
    error = unexpected(gone, {"verb": "snapshot", "args": {"interface": "eth3"}}, "left")
    assert (
        "eth3: No such device, while reading counters; it was removed or renamed: check "
        "`ip link` there, and what changed it"
    ) == error["message"]
    full = OSError(errno.EMFILE, "Too many open files", "/proc/stat")
    assert (
        "/proc/stat: Too many open files, while serving poem; raise the limit of open files "
        "(ulimit -n)"
    ) == unexpected(full, {"verb": "poem", "args": 5}, "left")["message"]


def verbs(root: Path) -> Verbs:
    """Return what serves a run on a host of files."""
    host = fake_host(root)
    return Verbs(host, "left", "run-1", ("namespace",), Locks(host, "run-1"), {})


def test_in_a_path_phase_a_tunnels_rules_are_read_at_both_ends_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listing rules takes time: neither while packets flow, nor where no tunnel is."""
    monkeypatch.setattr("udpbench.agent.verbs.tunnel_counts", lambda _: {"rules.output.data": 5})
    monkeypatch.setattr("udpbench.agent.verbs.snapshot", lambda *_: Snapshot("left", 1, {}))
    host = fake_host(tmp_path)
    served = Verbs(host, "left", "run-1", (), Locks(host, "run-1"), {})
    taken = [
        served.snapshot("lo", edge, tunnel=tunnel).counters.get("rules.output.data")
        for edge, tunnel in (("path", "wg0"), ("path", ""), (None, "wg0"))
    ]
    assert [5, None, None] == taken


def test_every_method_of_the_agent_is_in_the_table_of_verbs(tmp_path: Path) -> None:
    """And no verb is there that no method serves."""
    public = {name for name in vars(Verbs) if not name.startswith("_")} - {
        *("check_guardian", "end", "look_out")
    }
    assert set(VERBS) == {*GREETING, *public, *SERVING, *ORDERS, *verbs(tmp_path).elsewhere}
    assert set(VERBS) == {name for name in vars(AgentVerbs) if name[0] != "_"} - {"ask"}


@pytest.mark.parametrize("verb", VERBS)
def test_what_serves_a_verb_has_the_types_of_its_row(verb: str, tmp_path: Path) -> None:
    """Those that call it by its row know no others; and who waits for it says what it does."""
    row = VERBS[verb]
    elsewhere = verbs(tmp_path).elsewhere
    agents = (Session,) if verb in GREETING else (Server,) if verb in SERVING else (Verbs, Observer)
    of_agent = next(each for each in agents if hasattr(each, verb) or verb in elsewhere)
    served = [elsewhere.get(verb) or getattr(of_agent, verb)]
    served += [getattr(Observer, verb)] if verb in ORDERS else []
    assert [row.kinds] * len(served) == [get_type_hints(method) for method in served]
    assert row.doing
    assert row.method.__doc__


def test_a_reply_carries_the_agents_clock(agent: Agent) -> None:
    """CLOCK_MONOTONIC at the reply lies between the request and its answer."""
    before_ns = time.monotonic_ns()
    clock_ns = agent.raw(b'{"id":1,"verb":"ping"}\n')["clock_ns"]

    assert before_ns < clock_ns < time.monotonic_ns()


def test_without_workers_no_stranger_is_heard(agent: Agent) -> None:
    """Neither while it would listen, nor at the end."""
    agent.hello()
    assert [[], []] == [agent.ask("hear_strangers", listen=listen) for listen in (True, False)]


def test_a_lease_that_runs_out_ends_the_agent(agent: Agent) -> None:
    """Without a request the agent ends by itself, restored."""
    agent.hello(lease_ns=SECOND_NS // 10)

    assert (0, "udpbench agent: the lease of 0.1 s expired; restored\n") == agent.ended()


def test_every_request_renews_the_lease(agent: Agent) -> None:
    """An agent that is asked again and again outlives its lease twice."""
    agent.hello(lease_ns=SECOND_NS)
    end = time.monotonic() + 2.2
    while time.monotonic() < end:
        assert agent.ask("ping") is None

    assert agent.process.poll() is None


def test_an_agent_that_nobody_hears_ends_as_well(agent: Agent) -> None:
    """A closed stderr does not turn a restored host into a failure."""
    agent.hello(lease_ns=SECOND_NS // 10)
    cast("IO[bytes]", agent.process.stderr).close()

    assert 0 == agent.process.wait(DEADLINE_S)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_agent_restored(agent: Agent, number: signal.Signals) -> None:
    """SIGTERM and SIGHUP are requests to put things back and go."""
    agent.hello()
    agent.process.send_signal(number)

    assert (0, f"udpbench agent: received {number.name}; restored\n") == agent.ended()


def test_ctrl_c_is_for_the_controller(agent: Agent) -> None:
    """SIGINT does not touch an agent."""
    agent.hello()
    agent.process.send_signal(signal.SIGINT)

    assert agent.ask("ping") is None


@pytest.mark.parametrize("greeted", [True, False])
def test_the_end_of_stdin_ends_the_agent(agent: Agent, greeted: bool) -> None:
    """A controller that is gone, however it went, leaves nothing running; that is no message."""
    if greeted:
        agent.hello()
    agent.requests.close()

    assert (0, "") == agent.ended()


def test_a_controller_that_reads_no_more_ends_the_agent(agent: Agent) -> None:
    """A reply that nobody takes is as good as an end of stdin."""
    agent.hello()
    agent.replies.close()
    agent.requests.write(b'{"id":9,"verb":"ping"}\n')
    agent.requests.flush()

    assert (0, "udpbench agent: the controller stopped reading; restored\n") == agent.ended()


def test_a_setting_outside_the_scopes_is_refused(agent: Agent) -> None:
    """A scope that hello did not give is never touched."""
    agent.hello()
    setting = {"kind": "sysctl", "target": "net.core.rmem_max", "value": 1, "scope": "machine"}
    error = agent.ask("apply", settings=[setting])

    assert "SettingRefused" == error["kind"]
    planned = agent.ask("plan", settings=[setting])
    assert "scope machine is outside this agent's scopes (none)" == planned[0]["refusal"]


def spec(role: str, destination: str, port: int) -> dict[str, Any]:
    """Return a worker's specification in its plain form."""
    flow = FlowSpec(0, "127.0.0.1", 65400, destination, port)
    worker = WorkerSpec(
        cast("Any", role),
        "left",
        0,
        None,
        (flow,),
        Traffic(),
        Send(),
        Receive(),
        bind_ports=(port,),
    )
    return cast("dict[str, Any]", encode(worker))


@pytest.mark.parametrize(
    ("destination", "reason"),
    [
        ("127.0.0.1", "127.0.0.1 → 127.0.0.1: local address"),
        ("224.0.0.1", "127.0.0.1 → 224.0.0.1: multicast address"),
        ("255.255.255.255", "127.0.0.1 → 255.255.255.255: "),
    ],
)
def test_a_sender_is_not_prepared_for_an_unproven_route(
    agent: Agent, destination: str, reason: str
) -> None:
    """A destination on this host, or on more than one, is refused before a socket is opened."""
    agent.hello()
    error = agent.ask("prepare", interface="lo", workers=[spec("sender", destination, 9)])

    assert "SafetyError" == error["kind"]
    assert reason in error["message"]
    assert "none" == agent.ask("sample", since=0)["state"]


def running_receiver(agent: Agent, port: int) -> int:
    """Start a receiver; return its process."""
    workers = [spec("receiver", "127.0.0.1", port)]
    pid = int(agent.ask("prepare", interface="lo", workers=workers)[0]["pid"])
    order = PhaseOrder("path", 1, time.monotonic_ns(), 10**9, 1)
    assert agent.ask("start", order=encode(order)) is None
    return pid


def wait_for_end(pid: int) -> None:
    """Wait until a process that is not our child is gone."""
    pidfd = os.pidfd_open(pid)
    assert select.select([pidfd], [], [], DEADLINE_S)[0], f"process {pid} still lives"
    os.close(pidfd)


def test_a_host_is_recorded_without_its_name(agent: Agent) -> None:
    """With what it answers of an interface; one that is not there is no error, for facts have none."""
    agent.hello()
    tree = agent.ask("record", interface="lo")
    assert "lo" == tree["interface"]
    assert {"hostname", "kernel", "link lo"} <= set(tree["answers"])
    assert "eth99" == agent.ask("record", interface="eth99")["interface"]


def test_workers_are_sampled_stopped_and_closed(agent: Agent, port: int) -> None:
    """The agent itself samples every 100 ms; stop ends the loops, close the process."""
    agent.hello()
    pid = running_receiver(agent, port)
    deadline = time.monotonic() + DEADLINE_S
    while len((reply := agent.ask("sample", since=0))["samples"]) < 9:
        assert time.monotonic() < deadline, reply
    assert "running" == reply["state"]
    gaps_ms = [
        (later["clock_ns"] - sooner["clock_ns"]) // 10**6
        for sooner, later in zip(reply["samples"][1:], reply["samples"][2:])
    ]
    # The median: a CPU that stands still makes a sample late, and the next one early.
    assert 80 <= statistics.median(gaps_ms) <= 200, gaps_ms

    agent.ask("stop")
    while agent.ask("sample", since=0)["state"] != "done":
        assert time.monotonic() < deadline
    os.kill(pid, 0)
    agent.ask("close")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert "none" == agent.ask("sample", since=0)["state"]


def test_idle_workers_are_looked_at_and_their_routes_proven(agent: Agent, port: int) -> None:
    """Without workers nothing is as it was."""
    agent.hello()
    assert False is agent.ask("confirm", interface="lo")
    agent.ask("prepare", interface="lo", workers=[spec("receiver", "127.0.0.1", port)])
    assert True is agent.ask("confirm", interface="lo")
    agent.ask("close")
    assert False is agent.ask("confirm", interface="lo")


def test_workers_to_come_are_started_from_the_second_end_on(agent: Agent, port: int) -> None:
    """A run of a single trial needs no others; one of several does, and their start takes time."""
    agent.hello()
    left = []
    for _ in range(2):
        agent.ask("prepare", interface="lo", workers=[spec("receiver", "127.0.0.1", port)])
        agent.ask("close")
        left.append(len(psutil.Process(agent.process.pid).children()))
    assert [0, 1] == left


def test_a_guardian_starts_while_others_have_settings_applied(agent: Agent) -> None:
    """The end of a pair is asked for none before its own: the same guardian serves both."""
    agent.hello()
    agent.ask("apply", settings=[])
    (child,) = psutil.Process(agent.process.pid).children()
    assert "udpbench.agent.settings.guardian" in child.cmdline()
    agent.ask("apply", settings=[])
    assert [child] == psutil.Process(agent.process.pid).children()


def test_workers_die_with_their_agent(agent: Agent, port: int) -> None:
    """An agent that is killed cannot end its workers: the kernel does."""
    agent.hello()
    pid = running_receiver(agent, port)
    agent.process.kill()

    wait_for_end(pid)


def test_workers_end_with_the_lease(agent: Agent, port: int) -> None:
    """Running loops are no reason to stay."""
    agent.hello(lease_ns=SECOND_NS)
    pid = running_receiver(agent, port)

    assert 0 == agent.ended()[0]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_line_that_is_too_long_is_an_error_of_its_own() -> None:
    """The reply names the limit."""
    with pytest.raises(AgentError) as caught:
        parse(None)

    assert "a line is longer than 67108864 B; split the request" == caught.value.message


def test_a_stray_print_is_no_reply() -> None:
    """Whatever prints goes to stderr: stdout is for replies alone."""
    code = (
        "import atexit, sys; from udpbench.agent.serve import main;"
        "atexit.register(print, 'stray'); sys.exit(main())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], input=b"", capture_output=True, check=True, timeout=10
    )

    assert (b"", b"stray\n") == (ran.stdout, ran.stderr)


@pytest.mark.parametrize(
    ("same", "there", "expected"), [(False, True, True), (True, True, False), (False, False, False)]
)
def test_an_agent_mounts_only_in_namespaces_of_its_own(
    tmp_path: Path, same: bool, there: bool, expected: bool
) -> None:
    """Both namespaces must differ from the parent's; a parent out of sight is no proof."""
    for pid in ("self", str(os.getppid())):
        (tmp_path / "proc" / pid / "ns").mkdir(parents=True)
    for kind in ("net", "mnt"):
        own = tmp_path / "proc/self/ns" / kind
        parents = tmp_path / f"proc/{os.getppid()}/ns" / kind
        own.touch()
        if there and same and kind == "mnt":
            os.link(own, parents)
        elif there:
            parents.touch()

    assert expected == is_own(Host(tmp_path))


class Hidden(Host):
    """A host on which the parent belongs to somebody else."""

    def path(self, path: str) -> Path:
        """Refuse what is the parent's."""
        if f"/{os.getppid()}/" in path:
            raise PermissionError(1, "Operation not permitted", path)
        return super().path(path)


@pytest.mark.skipif(
    Path("/proc/self/ns/user").stat().st_ino != INIT_USER_NS, reason="in a user namespace"
)
def test_a_user_who_came_by_ssh_mounts_nothing() -> None:
    """The machine's namespaces are not the agent's own, although they are of its user namespace."""
    assert not is_own(Hidden())


def test_an_agent_answers_hello_quickly() -> None:
    """No heavy library is loaded before hello is answered: pyroute2 alone would take 0.2 s."""
    code = "import json, sys; import udpbench.agent.serve; print(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=10)

    loaded = set(json.loads(ran.stdout))
    assert set() == loaded & {"pyroute2", "psutil", "cffi", "udpbench._native", "asyncio"}


NETLINK = """
import sys
from udpbench.agent.host.system import Host
{before}
for _ in range(2):
    host = Host()
    links = host.rtnl("link", "dump")
    host.close()
print(len(links) > 0, "pyroute2.iwutil" in sys.modules)
"""


@pytest.mark.parametrize(
    ("before", "whole"),
    [
        ("", False),
        ("import pyroute2", True),
        ("Host().rtnl('link', 'dump'); from pyroute2 import NDB, config; NDB", True),
    ],
    ids=["part", "imported before", "its names are asked for"],
)
def test_netlink_is_opened_without_the_whole_of_its_package(before: str, whole: bool) -> None:
    """Again and again in one process, and with all of it if that is there, or is needed."""
    code = NETLINK.format(before=before)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert f"True {whole}\n" == ran.stdout, ran.stderr


def greeted(host: Host, engine: Any, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Return a session whose verbs have another way to restore."""
    session = Session(host)
    session.verbs = Verbs(host, "left", "test", (), Locks(host, "test"), {})
    monkeypatch.setattr(session.verbs._engine, "restore", engine)
    return session


def fails(error: Exception) -> Callable[[], None]:
    """Return what raises an error."""

    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RestoreError("mtu send0"), "not restored: mtu send0"),
        (
            AttributeError("get_attr"),
            "settings may not be restored: AttributeError: get_attr; type: udpbench restore",
        ),
    ],
)
def test_an_agent_that_could_not_restore_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    text: str,
) -> None:
    """Its exit status is that of a host that is not as it was, whatever went wrong."""
    session = greeted(fake_host(tmp_path), fails(error), monkeypatch)
    assert 4 == end(session, STDIN_ENDED)
    assert f"udpbench agent: stdin ended; {text}\n" == capsys.readouterr().err


def test_a_journal_of_a_run_that_was_still_ending_goes_with_the_next(tmp_path: Path) -> None:
    """Whose own is removed, too: nothing is left of either."""
    host = fake_host(tmp_path)
    verbs = Verbs(host, "left", "test", (), Locks(host, "test"), {})
    dead = Journal(host, "dead", ends_with_run=True)
    dead.begin(Setting("fake", "a", 1), 0)
    assert () == verbs.restore()
    assert dead.path.exists(), "its processes still hold it"
    dead.close()
    assert () == verbs.restore()
    assert [] == host.listdir("/run/udpbench")


def test_workers_that_cannot_be_ended_keep_no_setting_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings are undone whatever becomes of the workers."""
    restored: list[bool] = []
    session = greeted(fake_host(tmp_path), lambda: restored.append(True), monkeypatch)
    assert session.verbs is not None
    monkeypatch.setattr(session.verbs.pool, "close", fails(OSError("no such process")))
    assert (4, [True]) == (end(session, STDIN_ENDED), restored)

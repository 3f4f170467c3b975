"""An observer has no code that changes a host, and no power to, whoever starts it."""

from __future__ import annotations

import ast
import errno
import gc
import inspect
import json
import os
import shutil
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from golden import Golden

import udpbench
from udpbench.agent import observe, watch
from udpbench.agent.host.cpu_sampler import CpuSampler
from udpbench.agent.host.privileges import DAC_READ_SEARCH, OBSERVER_USER, SYS_PTRACE, mask
from udpbench.agent.host.reading import ReadingHost
from udpbench.agent.host.system import Host
from udpbench.agent.notes import trusted_notes
from udpbench.agent.observe import (
    ORDERS,
    PLACES_MAX,
    Observer,
)
from udpbench.errors import AgentError, HelloRefused
from udpbench.heap import TIDIED_LOOKS
from udpbench.model.survey import MachineLook
from udpbench.protocol import PROTOCOL, VERBS, build_id

PACKAGE = Path(udpbench.__file__).parent
REACHED = {
    *("counters.parse", "counters.snapshot"),
    *("anonymity", "loop", "notes", "observe", "recording", "spaces", "watch", "workers.usage"),
    *(
        f"host.{name}"
        for name in (
            *("bpf.bpf", "bpf.btf", "bpf.cgroups", "bpf.instructions", "bpf.kfree_skb"),
            "bpf.port_taker",
            *("bpf.socket_counts", "bpf.socket_programs", "capabilities", "changes"),
            "control_path",
            *(
                "cpu_clocks",
                "cpu_sampler",
                "doctor",
                "environment",
                "ethtool",
                "facts",
                "files",
                "genetlink",
            ),
            *("interrupts", "ip_tunnels", "namespace", "native", "nf_tables", "privileges"),
            *("processes", "programs", "reading", "rtstats", "socket_options", "socket_owners"),
            *("tun_devices", "udp_diag", "udp_sockets", "unix_names", "wireguard_ends", "xtables"),
        )
    ),
}
"""Every module of the agent that an observer imports, now or later; none changes a host."""
SETTERS = {
    *("chmod", "chown", "hold_cpu_latency", "kill", "link", "makedirs", "mkdir", "mknod"),
    *("remove_from_firewall", "rename", "replace_text", "rmdir", "rmtree", "sched_setscheduler"),
    *("sched_setaffinity", "set_affinity", "set_feature", "set_features", "setpriority", "signal"),
    *("symlink", "sysctl_write", "truncate", "unlink", "utime", "write_bytes", "write_text"),
}
ALLOWED = {
    "host.capabilities": {"sched_setaffinity", "sched_setscheduler"},  # tried with what is in force
    "host.namespace": {"mkdir"},  # /run of an own namespace, which an observer has not
    "loop": {"signal"},  # its own handlers
    "recording": {"link"},  # ReadingHost.link reads an interface
    "host.facts": {"link"},
    "host.ip_tunnels": {"link"},
    "host.reading": {"link", "kill"},  # a program that it has started
}
"""Calls of these names that change nothing of the host."""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root alone has a right to give up")


def imported(module: str) -> set[str]:
    """Return the modules of udpbench that a module imports, also within functions."""
    base = PACKAGE.joinpath(*module.split("."))
    tree = ast.parse(
        (base / "__init__.py" if base.is_dir() else base.with_suffix(".py")).read_text()
    )
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    inside = {name.removeprefix("udpbench.") for name in names if name.startswith("udpbench.")}
    return {
        name for name in inside if PACKAGE.joinpath(*name.split(".")).with_suffix(".py").exists()
    }


def closure(module: str) -> set[str]:
    """Return everything of udpbench that a module leads to."""
    reached, ahead = {module}, [module]
    while ahead:
        fresh = imported(ahead.pop()) - reached
        reached |= fresh
        ahead += fresh
    return reached


def calls(module: str) -> set[str]:
    """Return the names of all functions and methods that a module calls."""
    tree = ast.parse(PACKAGE.joinpath("agent", *module.split(".")).with_suffix(".py").read_text())
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {
        each.attr if isinstance(each, ast.Attribute) else each.id
        for each in called
        if isinstance(each, (ast.Attribute, ast.Name))
    }


def test_an_observer_reaches_no_module_that_changes_a_host() -> None:
    """The list is literal: another module is added on purpose, and none calls a setter."""
    reached = closure("agent.observe")
    assert REACHED == {name[6:] for name in reached if name.startswith("agent.")}
    assert {"agent.settings.engine", "agent.locks"} <= closure("agent.serve")
    setting = {name: (calls(name) & SETTERS) - ALLOWED.get(name, set()) for name in REACHED}
    assert {} == {name: names for name, names in setting.items() if names}


def test_no_verb_of_an_observer_sets_anything(golden: Golden) -> None:
    """Every other verb of the protocol is refused."""
    observer = Observer(ReadingHost(), {})
    for verb in VERBS.keys() - set(ORDERS):
        with pytest.raises(AgentError, match="it only looks"):
            observer.serve(verb, {})
    with golden.raises(AgentError):
        observer.serve("apply", {"settings": []})
    with golden.raises(HelloRefused):
        observer.serve("facts", {"interface": "lo"})


class Parsed:
    """What refers to itself, as an answer does that pyroute2 has parsed."""

    def __init__(self) -> None:
        self.own = self


def test_what_was_parsed_does_not_stay_until_there_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cycles among what is new are searched for every few surveys."""
    left: list[weakref.ref[Parsed]] = []

    class Surveying:
        def survey(self, *_: bool) -> MachineLook:
            left.append(weakref.ref(Parsed()))
            return MachineLook(0, ())

    observer, before = Observer(ReadingHost(), {}), gc.get_threshold()
    monkeypatch.setattr(observer, "_looks", Surveying())
    for _ in range(TIDIED_LOOKS):
        observer.survey(exact=False)
    gc.set_threshold(*before)
    assert 1 == len([each for each in left if each() is not None])


def test_an_observer_that_was_not_to_sample_says_so() -> None:
    """It cannot begin any more: its rights to do so are gone."""
    assert "it was not asked for" == Observer(ReadingHost(), {}).cpu_samples().why


def test_an_observers_host_can_be_asked_for_no_change(golden: Golden) -> None:
    """Neither by netlink nor by a program."""
    host = ReadingHost()
    with golden.raises(OSError):
        host.rtnl("link", "set", index=1, state="down")
    for command in (
        *(("ethtool", "-G", "lo", "rx", "1"), ("ethtool", "-s", "lo"), ("ethtool", "--flash")),
        *(("nft", "flush", "ruleset"), ("nft", "-j", "add", "table", "x"), ("iptables", "-F")),
        *(("iptables-save", "-M", "/tmp/x"), ("sh", "--version"), ("sysctl", "-w", "x=1")),
    ):
        with pytest.raises(OSError, match="an observer may not run"):
            host.run(*command)
    with golden.raises(OSError):
        host.run("ethtool", "-G", "lo", "rx", "1")


class Started:
    """An observer of its own network namespace, that answered hello."""

    def __init__(self, *words: str) -> None:
        command = ("unshare", "--net", sys.executable, "-m", "udpbench.agent.observe", *words)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process: Any = subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]
        greeting = {"host": "left", "run": "r", "build": build_id(), "protocol": PROTOCOL}
        scopes = ["namespace", "machine"]
        self.hello = self.ask("hello", **greeting, lease_ns=10**10, scopes=scopes)

    def ask(self, verb: str, **args: Any) -> Any:
        """Return the result of a request, or its error."""
        print(
            json.dumps({"id": 0, "verb": verb, "args": args}), file=self.process.stdin, flush=True
        )
        reply = json.loads(self.process.stdout.readline())
        return reply.get("result", reply.get("error"))

    def status(self) -> dict[str, str]:
        """Return /proc/PID/status."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


@pytest.fixture
def started(request: pytest.FixtureRequest) -> Iterator[Started]:
    """Yield an observer with the words of the test."""
    observer = Started(*getattr(request, "param", ()))
    yield observer
    observer.process.stdin.close()
    assert 0 == observer.process.wait(10)


@as_root
def test_no_other_user_can_stop_an_observer(started: Started) -> None:
    """Nor lower its limits: what runs as nobody could, were it nobody's."""
    code = """if True:
    import os, resource, sys
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    pid = int(sys.argv[1])
    for attempt in (lambda: os.kill(pid, 0), lambda: resource.prlimit(pid, resource.RLIMIT_CPU)):
        try:
            attempt()
        except PermissionError:
            print("refused")
    """
    command = (sys.executable, "-c", code, str(started.process.pid))
    done = subprocess.run(command, check=False, capture_output=True)
    assert (b"refused\n" * 2, b"") == (done.stdout, done.stderr)


@as_root
@pytest.mark.parametrize("started", [(), ("firewall",), ("exact",)], indirect=True)
def test_an_observer_of_roots_keeps_two_capabilities_to_read(
    started: Started, request: pytest.FixtureRequest
) -> None:
    """No account, no group, no way back, before its first answer; and the looks still work."""
    status = started.status()
    assert [str(OBSERVER_USER)] * 4 == status["Uid"].split() == status["Gid"].split()
    assert ("", "1") == (status["Groups"], status["NoNewPrivs"])
    sets = {name: int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")}
    assert dict.fromkeys(sets, mask((SYS_PTRACE, DAC_READ_SEARCH))) == sets
    assert (0, 0) == (int(status["CapInh"], 16), int(status["CapAmb"], 16))
    assert started.hello["capabilities"]["net_admin"] is True
    assert "lo" == started.ask("facts", interface="lo")["interface"]
    exact = "exact" in request.node.name
    look = started.ask("look", pid=None, unit=None, exact=exact)
    assert ("snmp.Udp.NoPorts" in look["snapshot"]["counters"]) is True, look
    assert (look["counts"] is not None) is exact
    assert "not the name of an interface" in started.ask("inspect", interface="../x")["message"]


@as_root
@pytest.mark.parametrize("word", ["exact", "cpu-time", "reasons:5201"])
def test_a_user_has_few_observers_that_take_the_machines_time(word: str) -> None:
    """Nobody is charged with it; who may only look takes no more, and nobody else's."""
    code = """if True:
    import sys
    from udpbench.agent import observe
    (refusal,) = observe.take_places(sys.argv[1:]).values() or [None]
    print(refusal.strerror if refusal else "place", flush=True)
    sys.stdin.read()
    """
    running = []

    def start(user: int) -> str:
        command = (*within, sys.executable, "-c", code, word)
        environment = {**os.environ, "SUDO_UID": f"{user}"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        running.append(subprocess.Popen(command, text=True, env=environment, **pipes))  # type: ignore[call-overload]
        return str(running[-1].stdout.readline().strip())

    within: tuple[str, ...] = ("unshare", "--net")
    first = start(1)
    within = ("nsenter", f"--net=/proc/{running[0].pid}/ns/net")
    assert ["place"] * PLACES_MAX == [first, *(start(1) for _ in range(PLACES_MAX - 1))]
    assert f"user 1 has {PLACES_MAX} observers that do" == start(1)
    assert ["place"] * (PLACES_MAX + 2) == [start(2), *(start(0) for _ in range(PLACES_MAX + 1))]
    for process in running:
        process.communicate()


def test_a_place_is_of_the_namespace_in_which_observers_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever may observe would have more of them in each namespace that has a name."""
    done: list[str] = []
    monkeypatch.setattr(sys, "argv", ["observe", "netns:red", "exact"])
    monkeypatch.setattr(observe, "take_places", lambda _: done.append("taken"))
    monkeypatch.setattr(observe, "enter_named", lambda *_: done.append("entered"))
    monkeypatch.setattr(observe, "prepare", lambda *_: done.append("prepared"))
    observe.begin()
    assert ["taken", "entered", "prepared"] == done


def test_what_a_user_has_no_place_for_is_told(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sockets are not counted exactly, CPUs are not sampled, and reasons are not counted."""
    refusal = OSError(errno.EUSERS, "user 1 has 4 observers that do")
    golden.check(watch._why_inexact(refusal))
    sampler = CpuSampler(Host())
    sampler.begin_early(999, refusal)
    golden.check(sampler.why)
    monkeypatch.setattr(observe, "keep_only", lambda *_: None)
    counted: list[object] = []
    monkeypatch.setattr(observe, "_count_reasons", lambda *words: counted.append(words))
    host = observe.EarlyHost()
    observe.prepare(host, ["reasons:5201"], {"reasons": refusal})
    assert [] == counted
    observe.prepare(host, ["reasons:5201"], {"reasons": None})
    assert 1 == len(counted)


NOT_UTF_8 = """
import os, subprocess
from udpbench.agent import observe

odd = os.fsdecode(b"v\\xff\\xfe")
subprocess.run(("ip", "link", "add", "name", odd, "type", "veth", "peer", "name", "q0"), check=True)
host = observe.EarlyHost()
observe.settle(host)
host.learn(False)
print(host.tcx_programs(odd) == host.tcx_programs("q0"), host.link(odd)["index"] == host.index(odd))
for asked in host.features, host.statistics:
    try:
        asked(odd)
    except OSError as error:
        print(ascii(error))
"""


@as_root
def test_an_interface_whose_name_is_not_utf_8_is_looked_at_without_ethtool() -> None:
    """The kernel takes any bytes; whoever may make an interface would keep observers away."""
    command = ("unshare", "--net", "--mount", sys.executable, "-c", NOT_UTF_8)
    done = subprocess.run(command, check=False, text=True, capture_output=True)
    refused = "OSError(95, 'pyroute2 asks for names in UTF-8 alone')"
    assert ["True True", refused, refused] == done.stdout.splitlines(), done.stderr


@as_root
@pytest.mark.parametrize("started", [()], indirect=True)
def test_an_observer_sees_what_the_reader_of_anothers_socket_does(started: Started) -> None:
    """By itself between two requests, with the two capabilities that it has."""
    code = """if True:
    import os, socket, sys, time
    os.setgroups([])
    os.setresuid(65534, 65534, 65534)
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    receiver.bind(("127.0.0.1", 7000))
    if os.fork() == 0:
        receiver.close()
        reader, sender = os.getppid(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        while os.getppid() == reader:
            sender.sendto(bytes(200), ("127.0.0.1", 7000))
            time.sleep(0.001)
        os._exit(0)
    print("bound", flush=True)
    while True:
        time.sleep(0.01)
    """
    inside = ("nsenter", f"--target={started.process.pid}", "--net")
    subprocess.run((*inside, "ip", "link", "set", "lo", "up"), check=True)
    command = (*inside, sys.executable, "-c", code)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        first_line = reader.stdout.readline()
        end = time.monotonic() + 20
        threads: dict[str, Any] = {}
        while not threads and time.monotonic() < end:
            look = started.ask("look", pid=None, unit=None, exact=False)
            threads = {name: uses for name, uses in look["threads"].items() if uses[0]["calls"]}
        reader.kill()
    assert "bound\n" == first_line
    ((name, (use,)),) = threads.items()
    assert name.split()[1] == str(reader.pid)
    # Before Python 3.11 time.sleep() is a select() of no descriptor.
    assert {*use["calls"]} in ({"clock_nanosleep"}, {"pselect6 of nothing"})


BOUND = """if True:
    import socket
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", 7000))
    print("bound", flush=True)
    input()
"""


@as_root
@pytest.mark.parametrize(("started", "named"), [((), 1), (("ownerless",), 0)], indirect=["started"])
def test_who_holds_sockets_is_searched_for_unless_it_was_not_to(
    started: Started, named: int
) -> None:
    """One that serves clients knows whose the sockets are."""
    command = ("nsenter", f"--target={started.process.pid}", "--net", sys.executable, "-c", BOUND)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as holder:
        assert holder.stdout is not None
        first_line = holder.stdout.readline()
        look = started.ask("look", pid=None, unit=None, exact=False)
        holder.kill()
    assert "bound\n" == first_line
    assert [named] == [len(each["processes"]) for each in look["sockets"]]


TRIES = """
import json, os, socket, sys
from udpbench.agent import observe
observe.prepare(observe.EarlyHost(), sys.argv[1:])
from pyroute2.iproute.linux import IPRoute

def write(path):
    os.close(os.open(path, os.O_WRONLY))

def reset():
    with IPRoute() as link:
        link.link("set", index=1, state="up")

tries = {
    "sysctl": lambda: write("/proc/sys/net/ipv4/ip_forward"),
    "machine's sysctl": lambda: write("/proc/sys/kernel/panic"),
    "file": lambda: write("/etc/passwd"),
    "new file": lambda: os.mkdir("/var/lib/udpbench-observer"),
    "root": lambda: os.setuid(0),
    "signal": lambda: os.kill(1, 0),
    "affinity": lambda: os.sched_setaffinity(2, os.sched_getaffinity(2)),
    "raw": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0),
    "link": reset,
}
done = []
for name, attempt in tries.items():
    try:
        attempt()
        done.append(name)
    except Exception as error:
        assert getattr(error, "errno", 1) in (1, 13) or "permitted" in str(error), (name, error)
loaded = [name for name in sys.modules if name.startswith("udpbench.")]
print(json.dumps([done, loaded]))
"""


@as_root
@pytest.mark.parametrize("words", [(), ("exact",), ("firewall",), ("changes",)])
def test_what_was_given_up_cannot_be_done(words: tuple[str, ...]) -> None:
    """Not even by code that it does not have."""
    ran = subprocess.run(
        ("unshare", "--net", sys.executable, "-c", TRIES, *words),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "" == ran.stderr
    done, loaded = json.loads(ran.stdout)
    assert [] == done
    assert [] == [
        name
        for name in loaded
        if name.startswith("udpbench.agent.")
        and name[15:] not in REACHED
        and not (PACKAGE.parent / name.replace(".", "/")).is_dir()
    ]


@as_root
@pytest.mark.parametrize("started", [("firewall",)], indirect=True)
def test_rules_are_listed_while_that_is_permitted(started: Started) -> None:
    """What nft shows to root alone is known to an observer that has lost the right to it."""
    assert started.ask("inspect", interface="lo")["firewall"] == []
    assert "firewall_rules" in started.ask("record", interface="lo")["answers"]


@as_root
@pytest.mark.skipif(shutil.which("nft") is None, reason="needs nft")
@pytest.mark.parametrize("started", [("changes",)], indirect=True)
def test_changed_rules_and_policies_are_heard_of_without_the_right_to_ask(started: Started) -> None:
    """What listens was opened while that was permitted."""
    table = ("nft", "add", "table", "inet", "x")
    policy = ("ip", "xfrm", "policy", "add", "src", "192.0.2.1", "dst", "192.0.2.2", "dir", "out")
    seen = []
    for command in (("true",), table, ("true",), policy):
        enter = ("nsenter", f"--target={started.process.pid}", "--net")
        subprocess.run((*enter, *command), check=True)
        changed = started.ask("survey", exact=False, closely=True)["look"]["changed"]
        seen.append([changed["changed.firewall"], changed["changed.policies"]])
    rules, policies = zip(*seen)
    assert (0, rules[1], rules[1], rules[1]) == rules
    assert rules[1] > 0
    assert (0, 0, 0, 1) == policies


BINDS = """if True:
    import os, socket, sys
    inode = os.stat("/proc/self/ns/net").st_ino
    name = f"udpbench/deadbeef/namespace-{inode}-1-false"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as false:
        false.bind(chr(0) + name)
        print("bound", flush=True)
        sys.stdin.read()
"""
TAKES = """if True:
    import sys
    from udpbench.agent.host.system import Host
    from udpbench.agent.locks import Locks
    locks = Locks(Host(), "first")
    locks.take(["namespace"], "none")
    print("taken", flush=True)
    sys.stdin.read()
    locks.release()
"""


@as_root
def test_root_of_a_container_keeps_no_observer_from_starting(started: Started) -> None:
    """Root's observer believes what root alone writes, while its agent lives."""
    inside = f"/proc/{started.process.pid}/ns/net"

    def taken(code: str) -> Any:
        command = ("nsenter", f"--net={inside}", sys.executable, "-c", code)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
            assert process.stdout.readline() in ("bound\n", "taken\n")
            answer = started.ask("take", use="none")
            process.communicate()
        return answer["held_by"]

    assert taken(BINDS) is None
    assert "run first (pid " in taken(TAKES)
    dead = Path(f"/run/udpbench/namespace-{Path(inside).stat().st_ino}-1-dead.lock")
    dead.touch()
    try:
        assert started.ask("take", use="none")["held_by"] is None
    finally:
        dead.unlink()


def test_an_observer_without_root_believes_notes_of_root_and_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No other user can keep it away."""
    host = ReadingHost()
    me = os.geteuid()
    users = {"own": me, "root": 0, "others": me + 1}
    names = [(f"a/namespace-{host.netns()}-1-{run}", user, False) for run, user in users.items()]
    monkeypatch.setattr("udpbench.agent.notes.note_names", lambda _: [names])
    assert ["own", "root"] == [note.run for note in trusted_notes(host)]
    observer = Observer(host, {})
    monkeypatch.setattr(observer, "_scopes", ("namespace",))
    assert "run own (pid 1)" == observer.take("none").held_by


def test_an_observer_takes_what_an_agent_takes() -> None:
    """Who asks does not know which of both answers: each verb has the same arguments."""
    for name in set(VERBS) & set(dir(Observer)):
        asked = set(inspect.signature(VERBS[name].method).parameters)
        assert asked == set(inspect.signature(getattr(Observer, name)).parameters), name

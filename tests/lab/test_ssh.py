"""Whole runs over real OpenSSH: the same as in the lab, whatever the way to the hosts is like."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import mixtures
import psutil
import pytest
import ssh_hosts
from controllers import Controller, controllers
from program_forks import completed
from ssh_hosts import (
    NETWORK,
    SUDO_RULE,
    TINY,
    UP,
    USER,
    Pair,
    SshHost,
    allow_sudo,
    listening,
    pair_of_hosts,
)
from waiting import DEADLINE_S, wait_until

from udpbench.analysis.judge import judge, path_ledger
from udpbench.analysis.readings import readings_of
from udpbench.commands import selftest
from udpbench.definition.load import load_lab
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import TrialRecord
from udpbench.model.result import Result

pytestmark = [*ssh_hosts.needed(), pytest.mark.apart]

LEASE_NS = 4 * SECOND_NS
SILENT_S = 3.0
"""Many a request of a phase is due meanwhile."""
PACKETS = 240
"""No ring and no socket buffer overflows, however long a CPU stands still."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Yield two hosts; every test leaves them as they were."""
    with pair_of_hosts(tmp_path_factory.mktemp("ssh")) as hosts:
        yield hosts


@pytest.fixture(autouse=True)
def _home(pair: Pair) -> None:
    """Every test begins with a home in which all is well."""
    pair.write_home()


Start = Callable[..., Controller]


@pytest.fixture
def start(pair: Pair, tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts a controller; what is left of any is killed by pid."""

    def starting(
        lab: str | None,
        within: tuple[str, ...] = (),
        lease_ns: int = LEASE_NS,
        **keys: Any,
    ) -> Controller:
        """Run in a lab given as its text, or built in; ``within`` is a command in front."""
        (tmp_path / "lab.yaml").write_text(lab or "")
        arguments = [str(lease_ns), json.dumps({**TINY, **keys})]
        arguments += [str(tmp_path / "lab.yaml")] if lab else []
        return group.start(arguments, within=within, environment={"HOME": str(pair.home)})

    with controllers(tmp_path) as group:
        yield starting


STATE = """
import os
from pyroute2 import IPRoute
with IPRoute() as netlink:
    print(sorted(str(a.get_attr("IFA_ADDRESS")) for a in netlink.get_addr(family=2)))
    print(sorted((l.get_attr("IFLA_IFNAME"), l["flags"] & 1) for l in netlink.get_links()))
print(sorted(os.listdir("/run/udpbench")) if os.path.exists("/run/udpbench") else [])
"""


def state(pair: Pair) -> list[str]:
    """Return IPv4 addresses, interfaces and journals of both hosts; IPv6 ones come by themselves."""
    return [host.python(STATE) for host in pair.hosts]


def results(controller: Controller) -> list[Result]:
    """Return what a controller that ended well has measured."""
    assert 0 == controller.end(), controller.log.read_text()
    return [judge(record) for record in controller.run().records]


def shape(records: tuple[TrialRecord, ...]) -> list[dict[str, Any]]:
    """Return of each record what must not depend on how its hosts were reached."""
    return [
        {
            "workers": record.workers,
            **{
                phase.name: (
                    [
                        (stats.worker, stats.role, stats.cpu, sorted(stats.counts))
                        for stats in phase.stats
                    ],
                    {host: len(flows) for host, flows in phase.flows.items()},
                )
                for phase in record.phases
            },
            **{
                f"{phase.name} {name}": True
                for phase in record.phases
                for snapshots in (phase.before, phase.after)
                for name in counter_names(snapshots)
            },
            "facts": {
                name: (
                    host_facts.interface,
                    host_facts.driver,
                    host_facts.mtu,
                    host_facts.addresses,
                    host_facts.rx_queues,
                )
                for name, host_facts in record.facts.items()
            },
            "addresses and links": sorted(
                (host, change.setting.kind, change.setting.target, change.after)
                for host, changes in record.changes.items()
                for change in changes
                if change.setting.kind in ("address", "up")
            ),
        }
        for record in records
    ]


def stages(result: Result) -> dict[str, tuple[int | None, str]]:
    """Return stage → its packets, and where they are read from."""
    assert result.ledger is not None
    return {entry.stage: (entry.packets, entry.source) for entry in result.ledger.entries}


def counter_names(snapshots: dict[str, Any]) -> set[str]:
    """Return the counters of all agents together; in the lab the machine's are in its own.

    But for the types of ICMPv6 messages: the kernel lists one once it has seen it.
    """
    names = {name for snapshot in snapshots.values() for name in snapshot.counters}
    names = {name for name in names if not re.match(r"snmp6\.Icmp6(In|Out)Type", name)}
    return {re.sub(r"^(socket|process)\.\d+", r"\1.N", name) for name in names}


def amiss(controller: Controller) -> list[str]:
    """Return what is wrong with a run in which all packets should have arrived."""
    (result,) = results(controller)
    counts = (result.sent_packets, result.received_packets, result.unaccounted)
    wrong = [str(finding) for finding in result.findings if finding.severity == "invalid"]
    return [*wrong, *([] if counts == (PACKETS, PACKETS, 0) else [f"{result.status}: {counts}"])]


def test_a_run_over_ssh_measures_and_leaves_the_hosts_as_they_were(
    pair: Pair, start: Start
) -> None:
    """Every packet has an entry, addresses are gone again, and there is no machine agent."""
    before = state(pair)
    # Long enough to look at both hosts under way.
    controller = start(pair.lab(), duration="4s", traffic={"rate": "60pps"})
    controller.await_line("measured")
    during = state(pair)
    assert [] == amiss(controller)
    assert f"{NETWORK}.30" in during[0]
    assert f"{NETWORK}.2" in during[1]
    assert before == state(pair)
    (record,) = controller.run().records
    assert (False, {"left", "right"}) == (record.built_in_lab, set(record.facts))


@pytest.mark.long
def test_the_same_experiment_has_the_same_record_in_the_lab_and_over_ssh(
    pair: Pair, start: Start
) -> None:
    """Workers, phases, counters and ledgers are alike; only the link's own settings differ."""
    keys = {
        "receive": {"workers": 2, "work": "10us"},
        "traffic": {"rate": "800pps", "flows": {"to": "receiver.addresses[1-2]:4321"}},
    }
    far = start(pair.lab(), **keys)
    far_results = results(far)
    near = start(re.sub(r"\{ssh.*?\}", "namespace", pair.lab()), **keys)
    near_results = results(near)
    for here, there in zip(shape(near.run().records), shape(far.run().records), strict=True):
        assert [] == [key for key in {**here, **there} if here.get(key) != there.get(key)]
    for near_result, far_result in zip(near_results, far_results, strict=True):
        here, there = stages(near_result), stages(far_result)
        # What lies between two real hosts nobody can look into.
        assert (0, None) == (here.pop("link")[0], there.pop("link")[0])
        assert here == there
    assert ([], []) == (amiss(near), amiss(far))


@pytest.mark.long
def test_a_lossy_experiment_closes_over_ssh(pair: Pair, start: Start) -> None:
    """What a slow reader loses is found at the socket, packet by packet."""
    controller = start(
        pair.lab(),
        traffic={"rate": "20kpps"},
        receive={"work": "200us", "buffer": "4KiB"},
        expect=["udp_rcvbuf > 0", "unaccounted == 0"],
    )
    (result,) = results(controller)
    assert result.ledger is not None
    lost = {entry.stage: entry.packets for entry in result.ledger.entries if entry.packets}
    assert (["udp_rcvbuf"], 0) == (list(lost), result.unaccounted)


@pytest.fixture
def settled(pair: Pair) -> Iterator[Pair]:
    """Yield the hosts with addresses that somebody else has given them."""
    for host, addresses in zip(pair.hosts, (("10.9.9.9", "10.8.8.1"), ("10.8.8.2",)), strict=True):
        host.python(UP, *(f"test0={address}" for address in addresses))
    yield pair
    for host in pair.hosts:
        host.python(FLUSH)


def test_addresses_that_exist_are_used_and_stay(settled: Pair, start: Start) -> None:
    """The sender takes the one that is in the receiver's network."""
    before = state(settled)
    controller = start(re.sub(r"addresses: \[.*?\]", "addresses: existing", settled.lab()))
    assert [] == amiss(controller)
    (record,) = controller.run().records
    assert {("10.8.8.1", "10.8.8.2")} == {
        (flow.source, flow.destination) for spec in record.workers for flow in spec.flows
    }
    assert before == state(settled)


BETWEEN_READS = 8
"""Others' packets, one each 20 ms, go on while a snapshot reads one counter after the other."""
OTHERS = """
import socket, time
full = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
full.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
full.bind(("127.0.0.1", 0))
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(1000):
    sender.sendto(bytes(1000), full.getsockname())
    if any(int(line.split()[-1]) for line in list(open("/proc/thread-self/net/udp"))[1:]):
        print("full", flush=True)
        break
while True:
    sender.sendto(b"", ("127.0.0.1", 9))
    sender.sendto(bytes(1000), full.getsockname())
    time.sleep(0.02)
"""


@contextmanager
def others_sending(host: SshHost) -> Iterator[None]:
    """Let another program of a host send to itself, in vain, once its socket is full."""
    program = subprocess.Popen(host.inside(sys.executable, "-c", OTHERS), stdout=subprocess.PIPE)
    try:
        assert program.stdout is not None
        assert b"full\n" == program.stdout.readline()
        yield
    finally:
        program.kill()
        program.wait()


def test_others_packets_on_a_host_make_no_trial_invalid(pair: Pair, start: Start) -> None:
    """50 datagrams a second to a closed port and as many to another program's full socket."""
    with others_sending(pair.right):
        controller = start(pair.lab())
        assert [] == amiss(controller)
    (result,) = results(controller)
    assert result.valid
    assert result.ledger is not None
    moved = {entry.stage for entry in result.ledger.entries if entry.others_packets}
    assert {"udp_no_port", "udp_rcvbuf"} == moved
    assert [] == [entry.stage for entry in result.ledger.entries if entry.at_most]


def test_ledgers_hold_what_was_lost_of_ours_and_others(pair: Pair, tmp_path: Path) -> None:
    """Three of the two hundred mixtures of session ``mixtures``."""
    assert ([], 3) == mixtures.ran(pair, seed=1, count=3, folder=tmp_path)


def test_a_kernel_is_tried_in_a_private_lab_of_its_host(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As selftest does: agents over SSH make namespaces there, and nothing of them stays."""
    monkeypatch.setenv("HOME", str(pair.home))
    monkeypatch.setattr(selftest, "NAMES", ("drops/one-by-one",))
    monkeypatch.setitem(selftest.POINTS, "one-by-one", ("udp_no_port",))
    (tmp_path / "lab.yaml").write_text(pair.lab())
    before = state(pair)
    labs = selftest.private_labs(load_lab(str(tmp_path / "lab.yaml")))
    host, lab, around = next(iter(labs))
    tried = selftest.try_ledger(lab, lambda _: None, around)
    (proof,) = (proof for proof in tried.proofs if proof.stage == "udp_no_port")
    assert proof.packets is not None, proof.why
    assert ("left", "udp_no_port", True) == (host, proof.stage, proof.holds)
    assert before == state(pair)


DROPPING = """
add table inet drops
add chain inet drops mine { type filter hook input priority 0; }
add rule inet drops mine udp dport 4321 numgen inc mod 4 == 0 counter drop
add rule inet drops mine udp dport 9 drop
"""


def test_drop_reasons_tell_our_packets_from_others(pair: Pair, start: Start) -> None:
    """A firewall drops both at once: ours to the packet, and theirs beside them."""
    with others_sending(pair.right), ExitStack() as dropping:
        pair.right.run("nft", DROPPING)
        dropping.callback(pair.right.run, "nft", "delete", "table", "inet", "drops")
        controller = start(pair.lab(), explain=True, path_check="explained", warmup="0s")
        (result,) = results(controller)
        counted = re.search(
            r"packets (\d+)", pair.right.run("nft", "list", "table", "inet", "drops")
        )
    (record,) = controller.run().records
    path, phase = path_ledger(record), readings_of(record)
    assert None not in (counted, path, phase, result.ledger)
    assert counted and path and phase and result.ledger  # noqa: PT018
    ours = int(counted.group(1)) - path.lost_packets
    lost = {e.stage: (e.packets, e.at_most) for e in result.ledger.entries if e.packets}
    assert (True, {"rx_netfilter": (ours, None)}, 0) == (result.valid, lost, result.unaccounted)
    (dropped, full, errors) = (
        phase.receiver.counter(name)
        for name in (
            "reason_others.NETFILTER_DROP",
            "reason_others.SOCKET_RCVBUFF",
            "snmp.Udp.RcvbufErrors",
        )
    )
    theirs = {e.stage: e.others_packets for e in result.ledger.entries if e.others_packets}
    assert dropped is not None
    assert full is not None
    assert errors == pytest.approx(full, abs=BETWEEN_READS)
    assert theirs == pytest.approx({"rx_netfilter": dropped, "udp_rcvbuf": full}, abs=BETWEEN_READS)


@pytest.mark.long
@pytest.mark.parametrize(("end", "hook", "warned"), [(0, "egress", False), (1, "ingress", True)])
def test_a_loss_that_no_counter_sees_is_the_links(
    pair: Pair, start: Start, end: int, hook: str, warned: bool
) -> None:
    """To the packet; but if all came in at the receiver, a warning says so."""
    host = pair.hosts[end]
    chain = f"{{ type filter hook {hook} device test0 priority 0; }}"
    rule = "udp dport 4321 numgen inc mod 7 == 0 counter drop"
    add = f"add table netdev cable; add chain netdev cable drops {chain}"
    host.run("nft", f"{add}; add rule netdev cable drops {rule}")
    try:
        controller = start(pair.lab(), warmup="0s")
        (result,) = results(controller)
        counted = re.search(r"packets (\d+)", host.run("nft", "list", "table", "netdev", "cable"))
    finally:
        host.run("nft", "delete", "table", "netdev", "cable")
    path = path_ledger(controller.run().records[0])
    assert counted is not None
    assert path is not None
    assert result.ledger is not None
    lost = {entry.stage: entry.packets for entry in result.ledger.entries if entry.packets}
    dropped = int(counted.group(1)) - path.lost_packets
    assert (True, {"link": dropped}, 0) == (result.valid, lost, result.unaccounted)
    warnings = [finding for finding in result.findings if finding.where == "link"]
    assert warned == bool(warnings)


FLUSH = """
from pyroute2 import IPRoute
with IPRoute() as netlink:
    index = netlink.link_lookup(ifname="test0")[0]
    netlink.flush_addr(index=index)
    netlink.link("set", index=index, state="down")
"""


@pytest.mark.long
def test_one_of_the_hosts_may_be_the_controllers_own(pair: Pair, start: Start) -> None:
    """Its agent is a child of the controller, the other one is reached by SSH."""
    before = state(pair)
    lab = re.sub(r"\{ssh: left.*?\}", "local", pair.lab())
    controller = start(lab, within=pair.left.inside())
    assert [] == amiss(controller)
    assert before == state(pair)


def test_a_user_who_is_not_root_runs_all_by_sudo(pair: Pair, start: Start) -> None:
    """The agents are root's, and so is what they change and put back."""
    if shutil.which("sudo") is None:
        pytest.skip("needs sudo: apt install sudo")
    pair.write_home(User=USER)
    for host in pair.hosts:
        allow_sudo(host, SUDO_RULE)
    before = state(pair)
    assert [] == amiss(start(pair.lab(become="sudo")))
    assert before == state(pair)


STATUS = """
import signal, socket, subprocess
print(open("/proc/self/status").read())
root = subprocess.run(["sudo", "-n", "id"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
print("sudo:" + root.stdout, flush=True)
bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
bound.bind(("0.0.0.0", 4321))
while True:
    bound.recv(2000)
"""


@pytest.mark.parametrize("user", [None, USER])
def test_a_program_on_a_host_with_sudo_cannot_become_root(
    pair: Pair, start: Start, user: str | None
) -> None:
    """Though its account may by docs/hosts.md: it is nobody's, and if it is that account's, locked."""
    if shutil.which("sudo") is None:
        pytest.skip("needs sudo: apt install sudo")
    pair.write_home(User=USER)
    for host in pair.hosts:
        allow_sudo(host, "NOPASSWD: ALL")
    named = {"user": user} if user else {}
    receive = {"command": ["/usr/bin/python3", "-c", STATUS], "folder": "/", **named}
    controller = start(pair.lab(become="sudo"), receive=receive)
    assert 0 == controller.end(), controller.log.read_text()
    (output,) = controller.folder.glob("*.output")
    rows = dict(row.split(":", 1) for row in output.read_text().splitlines() if ":" in row)
    uid = pair.right.run("id", "-u", user or "nobody").strip()
    zero = {f"Cap{name}": "0" * 16 for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")}
    expected = {"Uid": uid, "Groups": "", "NoNewPrivs": "1", "sudo": "", **zero}
    assert expected == {name: " ".join(rows[name].split()[:1]) for name in expected}


def slow(seconds: float) -> dict[str, str]:
    """Return proxies that hold each byte back on its way to either host, and on its way back."""
    program = Path(__file__).with_name("slow_link.py")
    return dict.fromkeys(("left", "right"), f"{sys.executable} {program} {seconds} {{}}")


@pytest.mark.long
def test_a_link_of_200_milliseconds_is_only_slow(pair: Pair, start: Start) -> None:
    """The trial is as valid as on a fast one, and no loop was started a round trip late."""
    pair.write_home(slow(0.1))
    controller = start(pair.lab())
    (result,) = results(controller)
    late = [str(finding.value) for finding in result.findings if "was slow" in finding.what]
    assert [] == amiss(controller)
    assert [] == [value for value in late if int(value.removesuffix("us late")) >= 200_000]


def shared(result: Result) -> dict[str, str | None]:
    """Return host → value of the finding that its control traffic shares the path."""
    what = "control traffic shares the path under test"
    return {finding.where: finding.value for finding in result.findings if finding.what == what}


def control_interfaces(controller: Controller) -> dict[str, str | None]:
    """Return host → the interface of its SSH connection."""
    (record,) = controller.run().records
    return {
        name: facts.environment.get("control_interface") for name, facts in record.facts.items()
    }


@pytest.mark.long
def test_over_tcp_by_another_interface_all_is_well(pair: Pair, start: Start) -> None:
    """A daemon, a management link to each host, and no finding."""
    with ssh_hosts.management(pair) as control:
        addresses = {host.name: f"10.7.{n}.2" for n, host in enumerate(pair.hosts)}
        pair.write_home_tcp(addresses)
        with listening(*((host, addresses[host.name]) for host in pair.hosts)):
            controller = start(pair.lab(), within=control.inside())
            (result,) = results(controller)
    assert ([], {}) == (amiss(controller), shared(result))
    assert {"left": "control0", "right": "control0"} == control_interfaces(controller)


@pytest.mark.long
def test_control_traffic_on_the_path_under_test_is_a_finding(pair: Pair, start: Start) -> None:
    """The receiver is reached by a jump over the sender, and so by the cable under test."""
    pair.left.python(UP, f"test0={NETWORK}.201")
    pair.right.python(UP, f"test0={NETWORK}.200")
    pair.write_home()
    with (pair.home / ".ssh" / "config").open("r+") as config:
        text = config.read().partition("Host right")[0]
        config.seek(0)
        config.truncate()
        config.write(f"{text}Host right\n  HostName {NETWORK}.200\n  User root\n  ProxyJump left\n")
    with (pair.home / ".ssh" / "known_hosts").open("a") as known:
        known.write(f"{NETWORK}.200 {pair.right.public_key}\n")
    try:
        with listening((pair.right, f"{NETWORK}.200")):
            controller = start(pair.lab())
            (result,) = results(controller)
    finally:
        for host in pair.hosts:
            host.python(FLUSH)
    assert {"right": "SSH uses test0"} == shared(result)
    assert {"left": None, "right": "test0"} == control_interfaces(controller)
    assert [] == amiss(controller)


# --- interrupts ----------------------------------------------------------------------------------


@pytest.mark.long
def test_a_second_interrupt_over_ssh_is_told_what_is_being_restored(
    pair: Pair, start: Start
) -> None:
    """And abandons nothing: the hosts are as they were, finished trials are readable, exit 130."""
    pair.write_home(slow(0.05))
    before = state(pair)
    controller = start(pair.lab(), duration="5s")
    controller.await_line("phase 1 tiny#1 measured")
    controller.process.send_signal(signal.SIGINT)
    controller.await_line("restore 0 restoring left, right")
    controller.process.send_signal(signal.SIGINT)
    controller.await_line("still restoring left, right; please wait")
    assert 130 == controller.end(), controller.log.read_text()
    assert before == state(pair)
    ending = controller.run().ending
    assert ("interrupted", ()) == (
        ending.status if ending is not None else None,
        controller.run().records,
    )


def await_packets(pid: int, more: int) -> None:
    """Wait until a process's namespace has sent so many packets more."""

    def sent() -> int:
        line = re.search(r"^ *send0:(.*)$", Path(f"/proc/{pid}/net/dev").read_text(), re.MULTILINE)
        assert line is not None
        return int(line.group(1).split()[9])

    before = sent()
    wait_until(f"{more} more packets sent", lambda: sent() >= before + more)


def test_a_second_interrupt_in_the_lab_is_told_what_is_being_restored(start: Start) -> None:
    """The machine's agent is held up meanwhile; nobody is left behind."""
    controller = start(None, duration="5s")
    controller.await_line("phase 1 tiny#1 measured")
    family = psutil.Process(controller.process.pid).children(recursive=True)
    (forking,) = psutil.Process(controller.process.pid).children()
    machine, sender, *_ = forking.children()
    await_packets(sender.pid, 1000)
    machine.suspend()
    try:
        controller.process.send_signal(signal.SIGINT)
        controller.await_line("restore 0 restoring sender, receiver, machine")
        controller.process.send_signal(signal.SIGINT)
        controller.await_line("still restoring sender, receiver, machine; please wait")
        assert machine.is_running()
    finally:
        machine.resume()
    assert 130 == controller.end(), controller.log.read_text()
    assert [] == psutil.wait_procs(family, 5)[1]


@pytest.mark.long
def test_a_silent_connection_that_goes_on_within_the_lease_costs_nothing(
    pair: Pair, start: Start
) -> None:
    """Three silent seconds in the middle: every packet is there, and every sample of them as well."""
    pair.write_home(slow(0))
    rate = {"rate": "40pps"}
    controller = start(pair.lab(), lease_ns=15 * SECOND_NS, duration="5s", traffic=rate)
    controller.await_line("phase 1 tiny#1 measured")
    children = psutil.Process(controller.process.pid).children(recursive=True)
    links = [child for child in children if "slow_link.py" in " ".join(child.cmdline())]
    assert 2 == len(links)
    for link in links:
        link.suspend()
    silent_until = time.monotonic() + SILENT_S
    while time.monotonic() < silent_until:
        assert controller.process.poll() is None, controller.log.read_text()
        time.sleep(0.01)
    for link in links:
        link.resume()
    (result,) = results(controller)
    assert (200, 200, 0) == (result.sent_packets, result.received_packets, result.unaccounted)
    clocks = [
        s.clock_ns for s in controller.run().records[0].series if s.worker == "right.receiver0"
    ]
    assert 50 <= len(clocks)
    assert 10**9 > max(later - sooner for sooner, later in pairwise(clocks))


RESTORED = "the connection was lost and restored"


def carrier(host: SshHost, *inner: str) -> psutil.Process:
    """Return the sshd of a connection to a host, above the agent there, or in a namespace of it."""
    words = ["udpbench.agent.serve", *inner]
    agents = [  # sudo's words are the same
        process
        for process in psutil.process_iter(["cmdline"])
        if (process.info["cmdline"] or [])[-len(words) :] == words
    ]
    space = Path(f"/proc/{host.pid}/ns/net").readlink()
    return next(
        parent
        for agent in agents
        for parent in agent.parents()
        if "sshd" in parent.name() and Path(f"/proc/{parent.pid}/ns/net").readlink() == space
    )


@pytest.mark.long
@pytest.mark.parametrize("way", ["tcp", "sudo"])
def test_a_connection_that_is_killed_is_made_anew(pair: Pair, start: Start, way: str) -> None:
    """Both in one phase: all is there once, the trial has a note of each, the hosts are restored."""
    before = state(pair)
    with ExitStack() as stack:
        within: tuple[str, ...] = ()
        connect = {}
        if way == "sudo":
            if shutil.which("sudo") is None:
                pytest.skip("needs sudo: apt install sudo")
            pair.write_home(User=USER)
            for host in pair.hosts:
                allow_sudo(host, SUDO_RULE)
            connect = {"become": "sudo"}
        if way == "tcp":
            control = stack.enter_context(ssh_hosts.management(pair))
            before = state(pair)
            addresses = {host.name: f"10.7.{n}.2" for n, host in enumerate(pair.hosts)}
            pair.write_home_tcp(addresses)
            stack.enter_context(listening(*((host, addresses[host.name]) for host in pair.hosts)))
            within = control.inside()
        lab = pair.lab(**connect)
        controller = start(lab, within=within, duration="2s", traffic={"rate": "100pps"})
        controller.await_line("phase 1 tiny#1 measured")
        for sshd in [carrier(host) for host in pair.hosts]:
            sshd.kill()
        (result,) = results(controller)
        after = state(pair)
    lost = [f.where for f in result.findings if f.what.startswith(RESTORED)]
    assert (["left", "right"], before) == (sorted(lost), after)
    assert (200, 200, 0) == (result.sent_packets, result.received_packets, result.unaccounted)
    clocks = [
        s.clock_ns for s in controller.run().records[0].series if s.worker == "right.receiver0"
    ]
    assert 20 <= len(clocks)
    gaps_ns = [later - sooner for sooner, later in pairwise(clocks)]
    assert 0 < min(gaps_ns)
    assert 10**9 > max(gaps_ns)


INNER = "inner"


@pytest.fixture
def inside(pair: Pair) -> Iterator[Pair]:
    """Keep each host's end of the cable in a namespace that ``ip netns`` lists there."""
    for host in pair.hosts:
        host.run("ip", "netns", "add", INNER)
        host.run("ip", "link", "set", "test0", "netns", INNER)
        host.run("ip", "-n", INNER, "link", "set", "lo", "up")
    try:
        yield pair
    finally:
        for host in pair.hosts:
            host.run("ip", "-n", INNER, "link", "set", "test0", "netns", str(host.pid))
            host.run("ip", "netns", "del", INNER)


def test_namespaces_behind_ssh_are_hosts_also_after_a_lost_connection(
    inside: Pair, start: Start
) -> None:
    """Agents enter them by name, are found there again, and leave them as they were."""
    before = [host.run("ip", "-n", INNER, "-o", "addr") for host in inside.hosts]
    controller = start(inside.lab(netns=INNER), duration="2s", traffic={"rate": "100pps"})
    controller.await_line("phase 1 tiny#1 measured")
    for host in inside.hosts:
        carrier(host, INNER).kill()
    (result,) = results(controller)
    lost = [f.where for f in result.findings if f.what.startswith(RESTORED)]
    assert ["left", "right"] == sorted(lost)
    assert (200, 200, 0) == (result.sent_packets, result.received_packets, result.unaccounted)
    facts = controller.run().records[0].facts
    assert ["test0", "test0"] == [facts[name].interface for name in ("left", "right")]
    assert before == [host.run("ip", "-n", INNER, "-o", "addr") for host in inside.hosts]


def test_a_namespace_that_is_not_behind_ssh_is_named(pair: Pair, start: Start) -> None:
    """Nothing is entered instead."""
    controller = start(pair.lab(netns="missing"))
    assert 0 != controller.end()
    assert "/run/netns/missing" in controller.log.read_text()


def test_a_namespace_behind_ssh_is_watched(inside: Pair, tmp_path: Path) -> None:
    """By an observer that enters it before it gives up its rights."""
    (tmp_path / "lab.yaml").write_text(inside.lab(netns=INNER))
    words = ("watch", "--lab", "lab.yaml", "--json", "--for", "1s")
    environment = {**os.environ, "HOME": str(inside.home)}
    done = completed(words, DEADLINE_S, cwd=tmp_path, env=environment)
    assert (0, "") == (done.returncode, done.stderr)
    assert {"right"} == {json.loads(line)["host"] for line in done.stdout.splitlines()}


SPOILED = """
ip link set test0 mtu 1400
tc qdisc add dev test0 clsact
sysctl -qw net.ipv4.conf.test0.rp_filter=1
iptables -A INPUT -p udp -j DROP
"""
MENDED = """
ip link set test0 mtu 1500
tc qdisc del dev test0 clsact
sysctl -qw net.ipv4.conf.test0.rp_filter=0
iptables -D INPUT -p udp -j DROP
"""


def test_a_host_is_watched_over_ssh_and_left_as_it_was(pair: Pair, tmp_path: Path) -> None:
    """The receiver of the lab: its sockets, its own interfaces, and nobody to wait for."""
    (tmp_path / "lab.yaml").write_text(pair.lab())
    before = state(pair)
    words = ("watch", "--lab", "lab.yaml", "--json", "--for", "2s", "--exact")
    environment = {**os.environ, "HOME": str(pair.home)}
    done = completed(words, DEADLINE_S, cwd=tmp_path, env=environment)
    looks = [json.loads(line) for line in done.stdout.splitlines()]
    assert [("right", [])] * len(looks) == [(look["host"], look["stages"]) for look in looks]
    assert (0, "") == (done.returncode, done.stderr)
    assert 2 <= len(looks)
    assert before == state(pair)


@pytest.mark.long
def test_doctor_lists_what_is_wrong_with_either_host(pair: Pair, tmp_path: Path) -> None:
    """As the kernel has it: on the host where it is so, with what is there, changing nothing."""
    (tmp_path / "lab.yaml").write_text(pair.lab())
    pair.right.run("sh", "-ec", SPOILED)
    before = state(pair)
    try:
        environment = {**os.environ, "HOME": str(pair.home)}
        words = ("doctor", "--lab", "lab.yaml", "--json")
        done = completed(words, DEADLINE_S, cwd=tmp_path, env=environment)
        assert (1, "") == (done.returncode, done.stderr)
        assert before == state(pair)
    finally:
        pair.right.run("sh", "-ec", MENDED)
    checks = json.loads(done.stdout)["checks"]
    spoils = {(check["check"], check["host"]): check["value"] for check in checks if check["value"]}
    assert {
        ("mtu", "right"): "1400",
        ("tc_filter", "right"): "a qdisc on ingress",
        ("reverse_path", "right"): "strict, 2 addresses",
    }.items() <= spoils.items()
    assert "INPUT: 1 rule, policy accept" in spoils["firewall", "right"]
    ready = {(check["check"], check["host"]) for check in checks if check["status"] == "ready"}
    of_left = ("mtu", "tc_filter", "reverse_path", "firewall", "conntrack", "listeners", "arp_flux")
    assert [] == [name for name in of_left if (name, "left") not in ready]

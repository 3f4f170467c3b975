"""What would spoil a measurement: for each check a host on which it fires, and one that is ready."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from golden import Golden

from analysis import build
from udpbench.analysis.doctor import (
    FUNCTIONS,
    READINESS,
    Readiness,
    arp_flux,
    assess,
    most_distorting,
)
from udpbench.definition.load import load_lab
from udpbench.model.host import Facts, Inspection
from udpbench.model.lab import Lab
from udpbench.model.record import Examined, Snapshot

HOSTS = """\
sender: [{name: left, connect: {ssh: left}, interface: eth3, addresses: [10.0.0.30/24]}]
receiver: [{name: right, connect: {ssh: right}, interface: eth2, addresses: [10.0.0.1/24]}]
"""
SECOND_NS = 10**9
ENVIRONMENT = {
    "governor": "performance",
    "turbo": "off",
    "irqbalance": "not running",
    "clocksource": "tsc",
    "mitigations": "tsx_async_abort: Vulnerable",
    "link": "10000 Mb/s, full duplex",
    "offloads": "rx-checksum rx-gro tx-checksum-ip-generic tx-generic-segmentation",
    "rp_filter": "0",
    "xdp": "none",
    "tcx": "none",
}
RIGHTS = ("net_admin", "kernel_threads", "rcvbuf_force", "real_time")
INSPECTION = Inspection(
    clock_ns=0,
    wall_ns=0,
    wall_synchronised=True,
    idle_states_us={"POLL": 0, "C1": 2},
    pcie={
        "current_link_speed": "8.0 GT/s PCIe",
        "current_link_width": "8",
        "max_link_speed": "8.0 GT/s PCIe",
        "max_link_width": "8",
    },
    pause={"autoneg": 0, "rx": 0, "tx": 0},
    flow_hash="sdfn",
    tracked_connections=0,
    firewall=(),
    udp_ports=(53,),
    arp={"arp_ignore": 0, "arp_filter": 0},
    other_addresses={"eth0": ("192.0.2.7/24",)},
    stacked=(),
)
QUEUES = {"ethtool.eth2.rx_queue_0_packets": 60_000, "ethtool.eth2.rx_queue_1_packets": 40_000}
BUSY = ("user", "idle", "iowait", "steal")
PATTERN = {"cpu.0": (10, 990, 0, 0), "cpu.1": (10, 990, 0, 0)}


def facts(host: str, interface: str, address: str) -> Facts:
    """Return a host that is ready: two cores of two threads on each of two nodes."""
    return build.facts(
        host,
        interface,
        address,
        cpus=(0, 1, 2, 3),
        numa_nodes={"0": (0, 1, 4, 5), "1": (2, 3, 6, 7)},
        siblings={str(cpu): (cpu % 4, cpu % 4 + 4) for cpu in range(8)},
        driver="igb",
        interface_node=0,
        rx_queues=2,
        queue_cpus={"0": (0,), "1": (1,)},
        rings={"rx": 4096, "rx-max": 4096},
        limits={"net.core.rmem_max": 212992},
        capabilities=dict.fromkeys(RIGHTS, True),
        environment=ENVIRONMENT,
        link="up",
    )


@dataclass(frozen=True)
class Case:
    """What differs from hosts that are ready: of the receiver, or of the sender."""

    check: str
    value: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    inspection: Mapping[str, Any] = field(default_factory=dict)
    moved: Mapping[str, int] = field(default_factory=dict)
    """Counters between the two snapshots, beside those that stand in ``QUEUES`` and ``PATTERN``."""
    counters: Mapping[str, int] = field(default_factory=dict)
    wall_offset_ns: int = 0
    settings: str = ""
    lab_cpus: str = ""
    others: tuple[str, ...] = ()
    """Checks that fire along with it."""


def moves(changes: Mapping[str, int]) -> dict[str, int]:
    """Return how counters move in a second without load."""
    times = {
        f"{c}.{t}_ns": ms * 10**6
        for c, all_ in PATTERN.items()
        for t, ms in zip(BUSY, all_, strict=True)
    }
    for cpu in (2, 3):
        times |= {f"cpu.{cpu}.{time}_ns": 0 for time in BUSY} | {f"cpu.{cpu}.idle_ns": SECOND_NS}
    return {**times, "link.eth2.rx_packets": 3, "link.eth2.tx_packets": 0, **changes}


def examined(case: Case) -> Examined:
    """Return a receiver that differs as the case says."""
    plain = facts("right", "eth2", "10.0.0.1/24")
    environment = {**plain.environment, **case.environment}
    counters = {**dict.fromkeys(moves(case.moved), 1000), **QUEUES, **case.counters}
    later = {name: value + moves(case.moved).get(name, 0) for name, value in counters.items()}
    return Examined(
        facts=replace(plain, **{"environment": environment, **case.facts}),
        inspection=replace(INSPECTION, **case.inspection),
        before=Snapshot("right", 0, counters),
        after=Snapshot("right", SECOND_NS, later),
        wall_offset_ns=case.wall_offset_ns,
        wall_bound_ns=10**6,
    )


def sender() -> Examined:
    """Return a sender that is ready."""
    right = examined(Case("", ""))
    left = facts("left", "eth3", "10.0.0.30/24")
    assert right.after is not None
    assert right.before is not None
    renamed = [
        replace(
            snapshot, counters={n.replace("eth2", "eth3"): v for n, v in snapshot.counters.items()}
        )
        for snapshot in (right.before, right.after)
    ]
    return replace(right, facts=left, before=renamed[0], after=renamed[1])


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """Return a lab of two hosts."""
    return lab_of(tmp_path)


def lab_of(folder: Path, settings: str = "", cpus: str = "") -> Lab:
    """Return a lab of two hosts, the receiver with settings and CPUs."""
    text = HOSTS.replace("[10.0.0.1/24]", f"[10.0.0.1/24]{cpus}{settings}")
    (folder / "hosts.yaml").write_text(text)
    return load_lab(str(folder / "hosts.yaml"))


CASES = (
    Case("link", "eth2: no carrier", {"link": "no carrier"}),
    Case("steal", "CPU 1: 3.00 %", moved={"cpu.1.steal_ns": 30 * 10**6}),
    Case("busy", "CPU 0: 10.00 %", moved={"cpu.0.idle_ns": 900 * 10**6}),
    Case("traffic", "203 pps", moved={"link.eth2.tx_packets": 200}),
    Case("control_path", "SSH uses eth2", environment={"control_interface": "eth2"}),
    Case("listeners", "UDP port 4321", inspection={"udp_ports": (53, 4321)}),
    Case(
        "firewall",
        "inet filter input: 3 rules, policy drop",
        inspection={"firewall": ("inet filter input: 3 rules, policy drop",)},
        settings="firewall: {udp: 4321, accept: true}",
    ),
    Case(
        "conntrack",
        "7 connections",
        inspection={"tracked_connections": 7},
        settings="firewall: {udp: 4321, notrack: true}",
    ),
    Case("xdp", "program 7", environment={"xdp": "program 7"}),
    Case("tc_filter", "tcx: 2", environment={"tcx": "2"}),
    Case("tc_filter", "a qdisc on ingress", counters={"qdisc.eth2.ingress.drops": 0}),
    Case("stacked", "bond", {"driver": "bond"}),
    Case("stacked", "part of bond0", inspection={"stacked": ("part of bond0",)}),
    Case("mtu", "1400", {"mtu": 1400}, settings="mtu: 1500"),
    Case(
        "link_speed",
        "1000 Mb/s, full duplex",
        environment={"link": "1000 Mb/s, full duplex"},
    ),
    Case(
        "link_speed",
        "10000 Mb/s, half duplex",
        environment={"link": "10000 Mb/s, half duplex"},
    ),
    Case(
        "pcie",
        "4 lanes",
        inspection={"pcie": {**(INSPECTION.pcie or {}), "current_link_width": "4"}},
    ),
    Case(
        "pcie",
        "2.5 GT/s",
        inspection={"pcie": {**(INSPECTION.pcie or {}), "current_link_speed": "2.5 GT/s PCIe"}},
    ),
    Case(
        "queue_nodes",
        "CPU 2",
        {"queue_cpus": {"0": (0,), "1": (2,)}},
        settings='irq: {cpus: "0,1"}',
    ),
    Case("worker_nodes", "CPUs 2-3", {"cpus": (0, 2, 3)}, lab_cpus=', cpus: "0,2,3"'),
    Case("single_queue", "1", {"rx_queues": 1}, settings="ethtool: {channels: 4}"),
    Case(
        "flow_hash",
        "sd",
        inspection={"flow_hash": "sd"},
        settings="ethtool: {rx-flow-hash: {udp4: sdfn}}",
    ),
    Case(
        "flow_hash_idle",
        "queue 0: 99.98 % of 60010 packets",
        counters={"ethtool.eth2.rx_queue_1_packets": 10},
    ),
    Case(
        "ring",
        "256",
        {"rings": {"rx": 256, "rx-max": 4096}},
        settings="ethtool: {rings: {rx: 4096}}",
    ),
    Case(
        "pause",
        "rx on",
        inspection={"pause": {"autoneg": 1, "rx": 1, "tx": 0}},
        settings="ethtool: {pause: {rx: false, tx: false}}",
    ),
    Case(
        "offloads",
        "rx-gro",
        environment={"offloads": ENVIRONMENT["offloads"].replace("rx-gro ", "")},
        settings="ethtool: {features: {rx-gro: true}}",
    ),
    Case(
        "offloads",
        "tx-checksum-ip-generic",
        environment={"offloads": ENVIRONMENT["offloads"].replace("tx-checksum-ip-generic ", "")},
        settings="ethtool: {features: {tx-checksum-ip-generic: true}}",
    ),
    Case(
        "reverse_path",
        "strict, 2 addresses",
        {"addresses": ("10.0.0.1/24", "10.0.0.2/24")},
        {"rp_filter": "1"},
        settings="sysctl: {net.ipv4.conf.all.rp_filter: 2}",
    ),
    Case(
        "arp_flux",
        "eth0 is in the same network",
        inspection={"other_addresses": {"eth0": ("10.0.0.9/24",)}},
        settings="sysctl: {net.ipv4.conf.all.arp_ignore: 1}",
    ),
    Case(
        "governor",
        "powersave",
        environment={"governor": "powersave"},
        settings="cpu: {governor: performance}",
    ),
    Case(
        "idle_states",
        "C6: 133 µs",
        inspection={"idle_states_us": {"C1": 2, "C6": 133}},
        settings="cpu: {latency: 0s}",
    ),
    Case(
        "irqbalance",
        "running",
        environment={"irqbalance": "running"},
        settings='irq: {cpus: "0,1"}',
    ),
    Case(
        "smt_siblings",
        "CPUs 0,4",
        {"cpus": (0, 1, 2, 4)},
        others=("steal", "busy"),
    ),
    Case(
        "buffer_limit",
        "212992 bytes",
        {"capabilities": {**dict.fromkeys(RIGHTS, True), "rcvbuf_force": False}},
        settings="sysctl: {net.core.rmem_max: 4194304}",
        others=("rights",),
    ),
    Case(
        "rights", "real_time", {"capabilities": {**dict.fromkeys(RIGHTS, True), "real_time": False}}
    ),
    Case("clocksource", "hpet", environment={"clocksource": "hpet"}),
    Case("turbo", "on", environment={"turbo": "on"}, settings="cpu: {turbo: false}"),
    Case(
        "mitigations",
        "meltdown, mds",
        environment={
            "mitigations": "meltdown: Mitigation: PTI; mds: Mitigation: Clear; x: Vulnerable"
        },
    ),
    Case("clock_synchronised", "free-running", inspection={"wall_synchronised": False}),
    Case("clock_offset", "-0.013 s to left", wall_offset_ns=-13 * 10**6),
)


MANY = {
    "busy": Case("", "", moved={"cpu.0.idle_ns": 900 * 10**6, "cpu.1.idle_ns": 0}),
    "smt_siblings": Case("", "", {"queue_cpus": {"0": (4,), "1": (5,)}}),
    "firewall": Case("", "", inspection={"firewall": ("ip a b: 1 rule, policy drop",) * 3}),
}


@pytest.mark.parametrize(
    ("check", "value"),
    [
        ("busy", "CPUs 0-1: up to 100.00 %"),
        ("smt_siblings", "CPUs 0,4; 2 cores in all"),
        ("firewall", "ip a b: 1 rule, policy drop; 3 chains in all"),
    ],
)
def test_many_of_a_kind_are_one_line(check: str, value: str, lab: Lab) -> None:
    """A machine of a hundred CPUs has no hundred lines."""
    assert [value] == [
        result.value for result in not_ready(MANY[check], lab) if result.check == check
    ]


@pytest.mark.parametrize(
    ("cpus", "name", "other"),
    [((0, 1), "remote", False), ((0, 1, 2), "remote", True), ((0, 1, 2), "local", False)],
)
def test_other_cpus_are_advised_where_there_are_others(
    cpus: tuple[int, ...], name: str, other: bool, lab: Lab
) -> None:
    """On a machine of two, both busy, there are none; a built-in lab needs two."""
    case = Case("", "", {"cpus": cpus}, moved=MANY["busy"].moved)
    chosen = lab if name == "remote" else load_lab("local")
    (busy,) = (result for result in not_ready(case, chosen) if result.check == "busy")
    assert other == ("list other CPUs" in busy.remedy)


@pytest.mark.parametrize(
    ("stolen_ms", "severity", "limit"),
    [(8, "", ""), (20, "warning", "at most 1.00 %"), (60, "struck", "at most 5.00 %")],
)
def test_what_a_hypervisor_takes_has_the_limits_of_a_trial(
    stolen_ms: int, severity: str, limit: str, lab: Lab
) -> None:
    """A little is a warning there, and strikes nothing out."""
    case = Case("steal", "", moved={"cpu.1.steal_ns": stolen_ms * 10**6})
    seen = [(each.severity, each.limit) for each in not_ready(case, lab)]
    assert [(severity, limit)] * bool(severity) == seen


def test_the_irqbalance_of_a_built_in_lab_has_no_settings() -> None:
    """Its interfaces have no interrupts to pin."""
    machine = examined(Case("", "", environment={"irqbalance": "running"}))
    machine = replace(machine, facts=replace(machine.facts, host="machine", interface=""))
    results = assess([machine], load_lab("local"))
    assert [""] == [result.settings for result in results if result.status == "spoils"]


def not_ready(case: Case, lab: Lab) -> list[Readiness]:
    """Return what is not ready."""
    return [
        result for result in assess([sender(), examined(case)], lab) if result.status != "ready"
    ]


def test_hosts_on_which_no_check_fires_are_ready(lab: Lab) -> None:
    """Each check has a host on which it can be read and does not fire."""
    results = assess([sender(), examined(Case("", ""))], lab)
    assert [] == [result for result in results if result.status != "ready"]
    assert sorted((row.name, host) for row in READINESS for host in ("left", "right")) == sorted(
        (result.check, result.host) for result in results
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.check}-{case.value}")
def test_each_check_fires_alone(case: Case, tmp_path: Path, golden: Golden) -> None:
    """With the value, and the settings that would mend it, on the host where it is so."""
    lab = lab_of(tmp_path, cpus=case.lab_cpus)
    results = [result for result in not_ready(case, lab) if result.check not in case.others]
    expected = (case.check, "right", "spoils", case.value, case.settings)
    assert [expected] == [
        (result.check, result.host, result.status, result.value, result.settings)
        for result in results
    ]
    golden.check(results[0].finding)


def test_networks_of_other_interfaces_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 4,096 of one interface with each of thousands of others took hours."""
    compared: list[object] = []
    equal = IPv4Network.__eq__
    monkeypatch.setattr(
        IPv4Network, "__eq__", lambda of, other: (compared.append(of), equal(of, other))[1]
    )
    others = {"eth0": tuple(f"10.{n >> 8}.{n & 255}.1/24" for n in range(1000))}
    inspection = SimpleNamespace(arp={}, other_addresses=others)
    addresses = tuple(f"11.{n >> 8}.{n & 255}.1/24" for n in range(1000))
    subject: Any = SimpleNamespace(inspection=inspection, addresses=addresses)
    assert [] == list(arp_flux(subject))
    assert len(compared) < 1000


def test_every_check_has_a_function_and_a_case() -> None:
    """A row without a function, or a function without a row, checks nothing."""
    rows = [row.name for row in READINESS]
    assert rows == list(FUNCTIONS)
    assert set(rows) == {case.check for case in CASES}


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.settings], ids=lambda case: f"{case.check}-{case.value}"
)
def test_the_settings_that_a_check_names_mend_it(case: Case, tmp_path: Path) -> None:
    """A lab takes the line as it is printed, and is ready with it, for then a run sets it."""
    settings = yaml.safe_load(f"{{{case.settings}}}")
    results = not_ready(
        case,
        lab_of(
            tmp_path, f", settings: {yaml.safe_dump(settings, default_flow_style=True).strip()}"
        ),
    )
    assert [] == [result.check for result in results if result.check not in case.others]


def test_the_worst_comes_first_and_the_unknown_last(lab: Lab) -> None:
    """By what it does to a trial, whichever host it is on."""
    case = Case(
        "", "", {"link": "no carrier"}, {"turbo": "on", "governor": "powersave"}, {"pause": None}
    )
    results = not_ready(case, lab)
    assert ["link", "governor", "turbo", "pause"] == [result.check for result in results]
    assert ["invalid", "warning", "note"] == [result.severity for result in results[:3]]
    assert "unknown" == results[3].status


PCIE = INSPECTION.pcie or {}
NEVER_UNKNOWN = {"control_path"}
"""A controller that came by no SSH connection shares no path."""


def test_what_cannot_be_read_is_unknown(lab: Lab) -> None:
    """Never ready: not one check takes a missing value for a good one."""
    plain = facts("right", "eth2", "10.0.0.1/24")
    blank = Facts(
        **{
            **{name: getattr(plain, name) for name in ("host", "hostname", "kernel", "boot_id")},
            **dict.fromkeys(("cpu_model", "driver", "mac", "mtu", "tx_queues")),
            **{name: {} for name in ("numa_nodes", "siblings", "queue_cpus", "limits")},
            "rx_queues": None,
            "capabilities": {},
            "addresses": (),
            "python": "3.11",
            "cpus": (0, 1),
            "interface": "eth2",
        }
    )
    results = assess([sender(), Examined(blank)], lab)
    unknown = {
        result.check for result in results if result.host == "right" and result.status == "unknown"
    }
    assert {row.name for row in READINESS} - NEVER_UNKNOWN == unknown


@pytest.mark.parametrize(
    ("check", "case"),
    [
        ("link_speed", Case("", "", {"driver": "veth"}, {"link": "10 Mb/s, half duplex"})),
        ("ring", Case("", "", {"driver": "veth", "rings": {}})),
        ("queue_nodes", Case("", "", {"numa_nodes": {"0": (0, 1)}, "interface_node": None})),
        ("flow_hash", Case("", "", {"rx_queues": 1}, inspection={"flow_hash": None})),
        ("flow_hash_idle", Case("", "", {"rx_queues": 1}, inspection={"flow_hash": None})),
        ("flow_hash_idle", Case("", "", inspection={"flow_hash": "sd"})),
        ("pcie", Case("", "", inspection={"pcie": {}})),
        ("pause", Case("", "", inspection={"pause": {}})),
        ("arp_flux", Case("", "", inspection={"arp": {"arp_ignore": 1, "arp_filter": 0}})),
    ],
)
def test_what_a_host_does_not_have_spoils_nothing(check: str, case: Case, lab: Lab) -> None:
    """A virtual interface has no ring, one queue needs no hash, one node is near."""
    assert [] == [result for result in not_ready(case, lab) if result.check == check]


@pytest.mark.parametrize(
    ("check", "case"),
    [
        ("steal", Case("", "", {"cpus": (0, 9)})),
        ("traffic", Case("", "", {"interface": "eth9"})),
        ("flow_hash_idle", Case("", "", {"interface": "eth9"})),
        ("queue_nodes", Case("", "", {"queue_cpus": {}})),
        ("pcie", Case("", "", inspection={"pcie": {"max_link_speed": "Unknown"}})),
        *(
            ("pcie", Case("", "", inspection={"pcie": {**PCIE, "current_link_width": width}}))
            for width in ("1.2.3", ".", "9" * 5000, "٣")
        ),
    ],
)
def test_what_is_not_counted_is_unknown(check: str, case: Case, lab: Lab) -> None:
    """A CPU or an interface without counters, queues without a known CPU."""
    assert ["unknown"] == [
        result.status for result in not_ready(case, lab) if result.check == check
    ]


def test_a_built_in_lab_is_its_machine() -> None:
    """Its interfaces are made by a run, so that there is nothing to read before."""
    machine = examined(Case("", ""))
    machine = replace(machine, facts=replace(machine.facts, host="machine", interface=""))
    results = assess([machine], load_lab("local"))
    assert {row.name for row in READINESS if row.scope == "machine"} == {
        result.check for result in results
    }
    assert {"ready"} == {result.status for result in results}


def test_a_run_tells_the_worst_of_its_facts(lab: Lab) -> None:
    """The same checks, as far as facts go; of a built-in lab those of its machine, once."""
    case = Case(
        "", "", {"link": "no carrier"}, {"turbo": "on", "governor": "powersave", "xdp": "1"}
    )
    hosts = [sender().facts, examined(case).facts]
    assert ["link", "xdp", "governor"] == [result.check for result in most_distorting(hosts, lab)]
    results = most_distorting(hosts[::-1], load_lab("local"))
    assert [("governor", "machine"), ("turbo", "machine")] == [
        (result.check, result.host) for result in results
    ]
    assert () == most_distorting([], lab)

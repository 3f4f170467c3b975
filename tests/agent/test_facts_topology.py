"""A host of two nodes with SMT and a card of four queues, as a tree of files."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
from two_nodes import TwoNodes

from udpbench.agent.host import environment as host_environment
from udpbench.agent.host import facts
from udpbench.agent.host.environment import environment
from udpbench.agent.host.system import Host


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> TwoNodes:
    """Return the host."""
    monkeypatch.setattr(facts, "driver", lambda *_: "sfc")
    return TwoNodes()


def test_the_whole_topology_is_read(host: TwoNodes) -> None:
    """Nodes, cores, caches, the card's node, its queues, interrupts, CPUs and rings."""
    host_facts = facts.facts(host, "right", "eth3", {})
    assert {"0": (0, 1, 4, 5), "1": (2, 3, 6, 7)} == host_facts.numa_nodes
    assert {str(cpu): (cpu % 4, cpu % 4 + 4) for cpu in range(8)} == host_facts.siblings
    near, far = (0, 1, 4, 5), (2, 3, 6, 7)
    assert {str(cpu): near if cpu % 4 < 2 else far for cpu in range(8)} == host_facts.cache_siblings
    assert (1, 9000, 4, 4) == (
        host_facts.interface_node,
        host_facts.mtu,
        host_facts.rx_queues,
        host_facts.tx_queues,
    )
    irqs = {"0": 121, "1": 122, "2": 123, "3": 124}
    assert (irqs, irqs) == (host_facts.queue_irqs, host_facts.tx_queue_irqs)
    assert {"0": (2,), "1": (3,), "2": (6,), "3": (7,)} == host_facts.queue_cpus
    assert {"rx": 256, "tx": 256, "rx-max": 4096, "tx-max": 4096} == host_facts.rings
    assert {
        "net.core.rmem_max": 212992,
        "net.core.optmem_max": 131072,
        "net.ipv4.udp_early_demux": 1,
        "net.ipv4.conf.all.rp_filter": 0,
    } == host_facts.limits
    assert "Example CPU 8-Thread @ 2.60GHz" == host_facts.cpu_model
    assert tuple(range(8)) == host_facts.cpus


def test_a_virtual_interface_is_not_asked_for_rings(host: TwoNodes) -> None:
    """It has none, and a program would be started for each look."""
    host.run = Mock(side_effect=AssertionError)  # type: ignore[method-assign]
    assert {} == facts.rings(host, "bond0")


def test_a_fork_knows_the_versions_that_were_read_before_it(
    host: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each agent of a built-in lab would start three programs."""
    monkeypatch.setattr(host_environment, "_read_before", {})
    monkeypatch.setattr(host_environment, "Host", lambda: host)
    host_environment.load_versions()
    other = TwoNodes()
    other.run = Mock(side_effect=AssertionError)  # type: ignore[method-assign]
    known = {name: host_environment.version(other, name) for name in host_environment.PROGRAMS}
    assert {"ethtool": "6.1", "iptables": "1.8.9 (nf_tables)", "nft": None} == known


def test_a_kernel_that_prints_null_for_no_cpus_has_none_without_a_tick() -> None:
    """As Debian's 6.12 does in /sys/devices/system/cpu/nohz_full without ``nohz_full=``."""

    class Ticking(TwoNodes):
        def read_text(self, path: str) -> str:
            return "(null)" if path.endswith("/nohz_full") else super().read_text(path)

    properties = environment(Ticking(), "eth3", "")
    assert "nohz_full_cpus" not in properties


def test_what_moves_a_number_is_recorded(host: TwoNodes) -> None:
    """Power, mitigations, versions, and the state of the link; what is empty is left out."""
    assert {
        "mitigations": "mds: Mitigation: Clear CPU buffers; SMT vulnerable",
        "governor": "powersave",
        "kernel_build": "#1 SMP x86_64",
        "turbo": "on",
        "smt": "on",
        "nohz_full_cpus": "6-7",
        "idle_driver": "intel_idle",
        "transparent_hugepages": "madvise",
        "clocksource": "tsc",
        "caches": "L1d 32K, L1i 32K, L2 1024K, L3 11264K",
        "net.ipv4.udp_mem": "189051 252069 378102",
        "net.core.default_qdisc": "fq_codel",
        "rp_filter": "2",
        "virtual_machine": "no",
        "irqbalance": "running",
        "system": "Example Linux 12",
        "offloads": "rx-gro",
        "link": "10000 Mb/s, full duplex",
        "tcx": "2",
        "driver_version": "4.1",
        "firmware": "6.2.7.1001 rx1 tx1",
        "ethtool": "6.1",
        "iptables": "1.8.9 (nf_tables)",
    } == environment(host, "eth3", host.read_text("/proc/cpuinfo"))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"intel_pstate/no_turbo": "1"}, "off"),
        ({"cpufreq/boost": "1"}, "on"),
        ({"cpufreq/boost": "0"}, "off"),
        ({}, None),
    ],
)
def test_turbo_is_known_where_a_switch_shows_it(
    tmp_path: Path, files: dict[str, str], expected: str | None
) -> None:
    """Neither switch: nothing is said."""
    for name, text in files.items():
        path = tmp_path / "sys/devices/system/cpu" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    assert expected == environment(Host(tmp_path), None, "").get("turbo")


@pytest.mark.parametrize(("node", "expected"), [("-1", None), ("0", 0)])
def test_a_card_of_virtio_keeps_its_node_one_folder_up(
    tmp_path: Path, node: str, expected: int | None
) -> None:
    """-1 is no node."""
    (tmp_path / "sys/class/net/eth3/device").mkdir(parents=True)
    (tmp_path / "sys/class/net/eth3/numa_node").write_text(node)
    assert expected == facts.interface_node(Host(tmp_path), "eth3")

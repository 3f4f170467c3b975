"""What a host is, read from a fake root."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Optional

import pytest
from proc_files import OF_ROOT, stat

from udpbench.agent.host import facts
from udpbench.agent.host.environment import socket_memory
from udpbench.agent.host.interrupts import queue_interrupts, rx_interrupts
from udpbench.agent.host.system import Host, NapiInstance


class FakeHost(Host):
    """A host whose files lie in a folder and whose netlink answers are given."""

    def __init__(self, root: Path, napis: dict[int, NapiInstance]) -> None:
        super().__init__(root)
        self._napis = napis

    def queue_napis(
        self,
        interface: str,  # noqa: ARG002 - Host's signature
        way: str = "rx",  # noqa: ARG002 - Host's signature
    ) -> dict[int, NapiInstance]:
        """Return the NAPI instances given, or fail as an old kernel does."""
        if not self._napis:
            raise OSError(2, "No such file or directory")
        return self._napis

    def affinity(self, pid: int) -> list[int]:
        """Return a CPU that tells the thread."""
        return [pid % 100]


def tree(root: Path, files: dict[str, str]) -> Path:
    """Write files below a root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


QUEUES = {
    "sys/class/net/eth3/queues/rx-0/rps_cpus": "0",
    "sys/class/net/eth3/queues/rx-1/rps_cpus": "00000000,0000000c",
    "sys/class/net/eth3/queues/tx-0/xps_cpus": "f",
}
IRQS = {
    "sys/class/net/eth3/device/msi_irqs/40": "msix",
    "sys/class/net/eth3/device/msi_irqs/41": "msix",
    "sys/class/net/eth3/device/msi_irqs/42": "msix",
    "sys/kernel/irq/40/actions": "eth3-TxRx-0",
    "sys/kernel/irq/41/actions": "eth3-TxRx-1",
    "sys/kernel/irq/42/actions": "eth3-tx-1",
    "proc/irq/40/effective_affinity_list": "5",
    "proc/irq/41/effective_affinity_list": "6",
    "proc/irq/42/effective_affinity_list": "7",
}


@pytest.mark.parametrize(
    ("files", "napis", "expected"),
    [
        ({}, {}, {}),
        ({"sys/class/net/eth3/queues/rx-0/rps_cpus": "0"}, {}, {}),
        (IRQS, {}, {"0": (5,), "1": (6,)}),
        ({**IRQS, **QUEUES}, {}, {"0": (5,), "1": (2, 3)}),
        (
            QUEUES,
            {0: NapiInstance(1, None, 109), 1: NapiInstance(2, None, 110)},
            {"0": (9,), "1": (2, 3)},
        ),
        ({}, {0: NapiInstance(1, 33, None)}, {}),
    ],
)
def test_a_queue_is_served_where_its_packets_reach_the_socket(
    tmp_path: Path, files: dict[str, str], napis: dict[int, NapiInstance], expected: dict[str, Any]
) -> None:
    """A steering mask wins over a NAPI thread, and that over an interrupt; else it is unknown."""
    host = FakeHost(tree(tmp_path, files), napis)

    assert expected == facts.queue_cpus(host, "eth3")


@pytest.mark.parametrize(
    ("effective", "smp", "expected"),
    [
        ("5", "0-7", (5,)),
        # Written, and in effect with the next interrupt.
        ("5", "6", (6,)),
        ("5", None, (5,)),
        (None, "6-7", (6, 7)),
    ],
)
def test_an_interrupt_that_is_moved_is_where_it_comes_next(
    tmp_path: Path, effective: str | None, smp: str | None, expected: tuple[int, ...]
) -> None:
    """A worker is placed relative to it before any packet has come."""
    files = {
        "sys/class/net/eth3/device/msi_irqs/40": "msix",
        "sys/kernel/irq/40/actions": "eth3-TxRx-0",
    }
    masks = {"effective": effective, "smp": smp}
    files |= {f"proc/irq/40/{k}_affinity_list": mask for k, mask in masks.items() if mask}
    assert {"0": expected} == facts.irq_cpus(Host(tree(tmp_path, files)), "eth3")


@pytest.mark.parametrize(
    ("action", "queue"),
    [
        ("eth0-TxRx-3", "3"),
        ("virtio1-input.2", "2"),
        ("mlx5_comp7@pci:0000:01:00.0", "7"),
        ("ens1-rx-4", "4"),
        ("vmxnet3-rxtx-1", "1"),
        ("eth2-5", "5"),
        ("virtio1-output.2", None),
        ("ens1-tx-4", None),
        ("virtio1-config", None),
        ("ice-eth3-TxRx-6", "6"),
        ("i40e-0000:04:00.0:fdir-TxRx-0", None),
        ("ice-0000:04:00.0:ctrl-TxRx-0", None),
        ("irdma-0000:04:00.0-CEQ-1", None),
        ("irdma-0000:04:00.0-AEQCEQ-0", None),
    ],
)
def test_an_interrupts_name_tells_its_rx_queue(
    tmp_path: Path, action: str, queue: str | None
) -> None:
    """Drivers name queues differently; what only sends or configures is no RX queue."""
    files = {
        "sys/class/net/eth3/device/msi_irqs/40": "msix",
        "sys/kernel/irq/40/actions": action,
        "proc/irq/40/effective_affinity_list": "1",
    }

    cpus = facts.irq_cpus(Host(tree(tmp_path, files)), "eth3")

    assert ({} if queue is None else {queue: (1,)}) == cpus


@pytest.mark.parametrize(
    ("action", "queue"),
    [
        ("eth0-TxRx-3", 3),
        ("ens1-tx-4", 4),
        ("mlx5_comp7@pci:0000:01:00.0", 7),
        ("virtio1-output.2", 2),
        ("virtio1-input.2", None),
        ("ens1-rx-4", None),
        ("ice-0000:04:00.0:ctrl-TxRx-0", None),
    ],
)
def test_an_interrupts_name_tells_its_tx_queue(
    tmp_path: Path, action: str, queue: int | None
) -> None:
    """One that serves both is in both; a virtio device keeps its list one folder up."""
    files = {"sys/class/net/eth3/msi_irqs/40": "msix", "sys/kernel/irq/40/actions": action}
    (tmp_path / "sys/class/net/eth3/device").mkdir(parents=True)
    host = Host(tree(tmp_path, files))
    assert ({} if queue is None else {queue: 40}) == queue_interrupts(host, "eth3")["tx"]


@pytest.mark.parametrize("other", ["40", "42"])
def test_an_interrupt_named_after_its_interface_wins(tmp_path: Path, other: str) -> None:
    """Whatever else the same device has, before it and after it."""
    files = {
        "sys/class/net/eth3/device/msi_irqs/41": "msix",
        "sys/kernel/irq/41/actions": "i40e-eth3-TxRx-0",
        f"sys/class/net/eth3/device/msi_irqs/{other}": "msix",
        f"sys/kernel/irq/{other}/actions": "i40e-eth30-TxRx-0",
    }

    assert {0: 41} == rx_interrupts(Host(tree(tmp_path, files)), "eth3")


def interrupts(root: Path, names: list[str], **queues: int) -> dict[str, dict[int, int]]:
    """Return the interrupts of an interface's queues, by names numbered from 40."""
    files = {f"sys/class/net/eth3/device/msi_irqs/{40 + n}": "msix" for n in range(len(names))}
    files |= {f"sys/kernel/irq/{40 + n}/actions": name for n, name in enumerate(names)}
    folder = "sys/class/net/eth3/queues"
    files |= {f"{folder}/{way}-{n}/x": "" for way, count in queues.items() for n in range(count)}
    return queue_interrupts(FakeHost(tree(root, files), {}), "eth3")


def test_an_interrupt_of_no_queue_in_use_is_left_out(tmp_path: Path) -> None:
    """mlx5 requests one for each CPU, also with two channels."""
    names = [f"mlx5_comp{n}@pci:0000:3b:00.0" for n in range(8)]
    two = {0: 40, 1: 41}
    assert {"rx": two, "tx": two} == interrupts(tmp_path, names, rx=2, tx=2)


def test_a_vector_that_only_sends_is_not_counted_among_rx_queues(tmp_path: Path) -> None:
    """Numbers in the names of tg3 are of vectors."""
    names = ["eth3-tx-0", "eth3-rx-1", "eth3-rx-2"]
    assert {"rx": {0: 41, 1: 42}, "tx": {0: 40}} == interrupts(tmp_path, names, rx=2, tx=1)


def test_the_kernels_answer_replaces_names(tmp_path: Path) -> None:
    """It has all queues of a driver that answers."""
    files = {
        "sys/class/net/eth3/device/msi_irqs/40": "msix",
        "sys/kernel/irq/40/actions": "eth3-TxRx-4",
    }
    host = FakeHost(tree(tmp_path, files), {0: NapiInstance(1, 51, None)})
    assert {"rx": {0: 51}, "tx": {0: 51}} == queue_interrupts(host, "eth3")


def test_an_interfaces_own_name_excludes_nothing(tmp_path: Path) -> None:
    """Only what follows it tells what an interrupt is for."""
    files = {
        "sys/class/net/control0/device/msi_irqs/41": "msix",
        "sys/kernel/irq/41/actions": "control0-TxRx-0",
    }

    assert {0: 41} == rx_interrupts(Host(tree(tmp_path, files)), "control0")


def test_topology_limits_and_environment_are_read(tmp_path: Path) -> None:
    """Nodes, siblings, sysctls and what moves a number come from /proc and /sys."""
    host = Host(
        tree(
            tmp_path,
            {
                "sys/devices/system/node/node0/cpulist": "0-1",
                "sys/devices/system/node/node1/cpulist": "2-3",
                "sys/devices/system/node/possible": "0-1",
                "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0,2",
                "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
                "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave",
                "sys/devices/system/cpu/vulnerabilities/mds": "Not affected",
                "sys/devices/system/cpu/vulnerabilities/spectre_v2": "Mitigation: Retpolines",
                "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc",
                "proc/sys/net/core/rmem_max": "212992",
                "proc/41/stat": stat(41, "irqbalance"),
                "proc/41/status": OF_ROOT,
            },
        )
    )

    assert {"0": (0, 1), "1": (2, 3)} == facts.numa_nodes(host)
    assert {"0": (0, 2)} == facts.siblings(host)
    assert {"net.core.rmem_max": 212992} == facts.limits(host, ())
    assert {
        "mitigations": "spectre_v2: Mitigation: Retpolines",
        "governor": "performance, powersave",
        "clocksource": "tsc",
        "virtual_machine": "yes",
        "irqbalance": "running",
        "kernel_build": host.kernel()[1],
    } == facts.environment(host, None, "flags\t\t: fpu hypervisor")


@pytest.mark.parametrize("release", ["5.10.0", "6.0.19", "6.1.0", "6.18.44"])
def test_the_lowest_limit_of_memory_for_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    """Any cgroup around this process; version 2 refuses no datagram from Linux 6.1 on."""
    sockets, memory = "memory.kmem.tcp.limit_in_bytes", "memory.max"
    files = {
        "proc/self/cgroup": "4:cpu,cpuacct:/a\n3:memory:/a/b\n0::/c/d\n",
        f"sys/fs/cgroup/memory/a/b/{sockets}": "9223372036854771712",
        f"proc/{os.getppid()}/root/sys/fs/cgroup/memory/a/{sockets}": "1048576",
        f"sys/fs/cgroup/memory/{sockets}": "9223372036854771712",
        f"sys/fs/cgroup/c/d/{memory}": "max",
        f"sys/fs/cgroup/c/{memory}": "65536",
    }
    host = Host(tree(tmp_path, files))
    monkeypatch.setattr(host, "kernel", lambda: (release, ""))
    early = release < "6.1"
    expected = "65536 bytes of cgroup /c" if early else "1048576 bytes of cgroup /a"
    assert expected == socket_memory(host)
    outside = Host(tree(tmp_path / "other", {"proc/self/cgroup": "3:memory:/../x\nodd\n"}))
    assert None is socket_memory(outside)


def test_a_bare_host_has_no_invented_facts(tmp_path: Path) -> None:
    """What cannot be read is left out; an interface that is not there has no properties."""
    host = Host(tree(tmp_path, {"proc/sys/kernel/random/boot_id": "b"}))

    host_facts = facts.facts(host, "left", "receive0", {"net_admin": False})

    assert ("left", "receive0", "b") == (host_facts.host, host_facts.interface, host_facts.boot_id)
    assert (None, None, None, None, None) == (
        host_facts.driver,
        host_facts.mac,
        host_facts.mtu,
        host_facts.rx_queues,
        host_facts.cpu_model,
    )
    assert ((), {}, {}, {}) == (
        host_facts.addresses,
        host_facts.queue_cpus,
        host_facts.limits,
        host_facts.numa_nodes,
    )
    build = host.kernel()[1]
    assert {"irqbalance": "not running", "kernel_build": build} == host_facts.environment
    assert tuple(sorted(os.sched_getaffinity(0))) == host_facts.cpus


def test_a_devices_driver_is_the_link_in_sysfs(tmp_path: Path) -> None:
    """A real device names its driver by a symbolic link."""
    device = tmp_path / "sys/class/net/eth3/device"
    device.mkdir(parents=True)
    (device / "driver").symlink_to("../../drivers/mlx5_core")

    assert "mlx5_core" == facts.driver(Host(tmp_path), "eth3")


class DownHost(Host):
    """A host whose interface is down: its carrier cannot be read."""

    def read_text(self, path: str) -> str:
        """Fail as sysfs does."""
        raise OSError(22, "Invalid argument", path)


@pytest.mark.parametrize(
    ("carrier", "expected"), [("1", "up"), ("0", "no carrier"), (None, None)], ids=str
)
def test_a_link_has_a_carrier_or_not(
    tmp_path: Path, carrier: Optional[str], expected: Optional[str]
) -> None:
    """What cannot be read is not known."""
    tree(tmp_path, {} if carrier is None else {"sys/class/net/eth3/carrier": carrier})
    assert expected == facts.link(Host(tmp_path), "eth3")


def test_a_link_that_is_taken_down_is_down(tmp_path: Path) -> None:
    """Then the kernel refuses to say whether it has a carrier."""
    assert "down" == facts.link(DownHost(tmp_path), "eth3")


def test_the_limit_of_segments_is_asked_at_the_first_address(tmp_path: Path) -> None:
    """Once there is one; where no message is taken there is no limit."""
    host = Host(tree(tmp_path, {}))
    assert {"udp.gso_segments"} == set(facts.limits(host, ("127.0.0.1/8", "fd00::1/64")))
    assert {} == facts.limits(host, ("192.0.2.1/24",))


class RulesHost(Host):
    """A host whose kernel counts firewall rules, or refuses to."""

    rules: Optional[int] = None

    def firewall_rules(self) -> int:
        """Return the rules given, or fail as without privileges."""
        if self.rules is None:
            raise PermissionError(1, "Operation not permitted")
        return self.rules


def test_firewall_rules_are_counted_where_the_kernel_counts_them(tmp_path: Path) -> None:
    """None and 0 are not the same."""
    host = RulesHost(tmp_path)
    assert facts.firewall_rules(host) is None
    host.rules = 0
    assert 0 == facts.firewall_rules(host)


class XdpHost(Host):
    """A host whose kernel says what a driver does for XDP, or is too old to."""

    features: Optional[tuple[str, ...]] = None

    def xdp_features(self, interface: str) -> tuple[str, ...]:  # noqa: ARG002 - Host's signature
        """Return those given, or fail as without the family."""
        if self.features is None:
            raise FileNotFoundError(2, "No such file or directory")
        return self.features


def test_what_a_driver_does_for_xdp_is_known_where_the_kernel_says_it(tmp_path: Path) -> None:
    """None and nothing are not the same; the loopback interface does nothing."""
    host = XdpHost(tmp_path)
    assert facts.xdp_features(host, "eth3") is None
    host.features = ()
    assert () == facts.xdp_features(host, "eth3")
    assert facts.facts(Host(), "left", "lo", {}, False).xdp_features in (None, ())


def test_a_host_that_is_only_watched_is_not_asked_for_its_rules() -> None:
    """The question may load a module, and looking on changes nothing."""
    host = RulesHost()
    host.rules = 3
    counted = [facts.facts(host, "left", "", {}, taken).firewall_rules for taken in (True, False)]
    assert [3, None] == counted

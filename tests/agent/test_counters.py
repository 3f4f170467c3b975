"""Parsers of the kernel's counter files, on text as kernels of several ages print it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from udpbench.agent.counters import parse
from udpbench.agent.host.udp_sockets import SocketQueue, parse_udp_sockets

FIXTURES = Path(__file__).parent.parent / "fixtures" / "counters"


def fixture(name: str) -> str:
    """Return the text of one captured file."""
    return (FIXTURES / name).read_text()


def test_snmp_counts_by_protocol_and_name() -> None:
    """Names and values of /proc/net/snmp are paired, and settings among them are left out."""
    counters = parse.parse_snmp(fixture("snmp-6.18"), "snmp")

    assert 50000 == counters["snmp.Udp.InDatagrams"]
    assert 7 == counters["snmp.Udp.NoPorts"]
    assert 3 == counters["snmp.Udp.RcvbufErrors"]
    assert 50010 == counters["snmp.Ip.InDelivers"]
    assert "snmp.Ip.Forwarding" not in counters
    assert [] == [name for name in counters if name.startswith("snmp.Tcp.")]


def test_netstat_counts_segments_at_ip_input() -> None:
    """The ECN counters of IpExt, which count segments and not skbs, are read."""
    counters = parse.parse_snmp(fixture("netstat-6.18"), "netstat")

    assert 50010 == counters["netstat.IpExt.InNoECTPkts"]
    assert 2 == counters["netstat.TcpExt.IPReversePathFilter"]
    assert [] == [name for name in counters if name.startswith("netstat.MPTcpExt.")]


@pytest.mark.parametrize(
    ("columns", "online", "expected"),
    [
        (11, (0, 2), {"softnet.cpu0.dropped": 2, "softnet.cpu2.dropped": 0x12}),
        (13, (), {"softnet.cpu0.dropped": 2, "softnet.cpu3.dropped": 0x12}),
        (15, (), {"softnet.cpu0.dropped": 2, "softnet.cpu3.dropped": 0x12}),
    ],
)
def test_softnet_is_read_by_its_number_of_columns(
    columns: int, online: tuple[int, ...], expected: dict[str, int]
) -> None:
    """A line's CPU is what the line says, and before Linux 5.10 its place among those online."""
    counters = parse.parse_softnet(fixture(f"softnet_stat-{columns}"), online)

    assert expected == {name: value for name, value in counters.items() if "dropped" in name}
    assert 0x1F == counters["softnet.cpu0.processed"]
    assert 4 == counters["softnet.cpu0.flow_limit_count"]
    assert 10 == len(counters)


def test_rt_cache_is_summed_over_cpus() -> None:
    """Hexadecimal lines are added up, and the gauge in the first column is left out."""
    counters = parse.parse_rt_cache(fixture("rt_cache"))

    assert 0x10 + 2 == counters["rt_cache.in_martian_src"]
    assert "rt_cache.entries" not in counters


def test_rt_cache_of_a_kernel_without_it_is_empty() -> None:
    """No lines are no counters."""
    assert {} == parse.parse_rt_cache("")


def test_snmp6_counts_by_name() -> None:
    """IPv6 and its UDP are read, UDP-Lite is not."""
    counters = parse.parse_snmp6(fixture("snmp6-6.18"))

    assert (7, 3) == (counters["snmp6.Udp6NoPorts"], counters["snmp6.Udp6RcvbufErrors"])
    assert 160482 <= counters["snmp6.Ip6InNoECTPkts"]
    assert [] == [name for name in counters if "Lite" in name]


def test_ipsec_counts_by_cause() -> None:
    """Each line is a counter; a kernel without IPsec has no file, and then there is none."""
    text = "XfrmInError             \t0\nXfrmInPolBlock          \t7\n"
    assert {"xfrm.XfrmInError": 0, "xfrm.XfrmInPolBlock": 7} == parse.parse_xfrm(text)
    assert {} == parse.parse_xfrm("")


def test_conntrack_is_summed_over_cpus() -> None:
    """Its drops are added up, and the number of connections is no counter."""
    counters = parse.parse_conntrack(fixture("nf_conntrack"))

    assert (0x1A, 2, 1) == tuple(
        counters[f"conntrack.{name}"] for name in ("drop", "insert_failed", "early_drop")
    )
    assert "conntrack.entries" not in counters


def test_interrupts_are_those_of_the_lines_asked_for() -> None:
    """A line's CPUs are the header's, and what follows them is its name."""
    assert {"interrupt.34.cpu0": 206, "interrupt.34.cpu1": 0} == parse.parse_interrupts(
        "           CPU0       CPU1\n 34:  206  0 PCI-MSIX 1-edge virtio4-input\nERR: 0\n", {34}
    )
    assert {} == parse.parse_interrupts(fixture("interrupts"), set())


@pytest.mark.parametrize("fields", [23, 25])
def test_link_statistics_are_as_many_as_the_kernel_has(fields: int) -> None:
    """An older kernel's struct ends earlier; a padding attribute before it is skipped."""
    struct_bytes = b"".join(n.to_bytes(8, sys.byteorder) for n in range(fields))
    header = (4 + len(struct_bytes)).to_bytes(2, sys.byteorder) + (1).to_bytes(2, sys.byteorder)
    padding = (4).to_bytes(2, sys.byteorder) + (0).to_bytes(2, sys.byteorder)

    statistics = parse.parse_link_statistics(padding + header + struct_bytes)

    assert fields == len(statistics)
    assert (6, 15) == (statistics["rx_dropped"], statistics["rx_missed_errors"])
    assert (24 if fields == 25 else None) == statistics.get("rx_otherhost_dropped")
    assert {} == parse.parse_link_statistics(b"")


def test_cpu_times_are_nanoseconds_per_cpu() -> None:
    """Ticks of 10 ms become nanoseconds; the line of all CPUs together is not one of them."""
    times = parse.parse_cpu_times(fixture("stat"), 100)

    assert 110_000_000 == times["cpu.0.softirq_ns"]
    assert 280_000_000 == times["cpu.1.steal_ns"]
    assert times["machine.context_switches"] > 0
    assert 17 == len(times)


def test_softirqs_are_the_networks_two() -> None:
    """Only the softirqs that send and receive are read."""
    assert {
        "softirq.cpu0.NET_TX": 4,
        "softirq.cpu1.NET_TX": 0,
        "softirq.cpu0.NET_RX": 3222,
        "softirq.cpu1.NET_RX": 6204,
    } == parse.parse_softirqs(fixture("softirqs"))


def test_udp_sockets_are_known_by_inode() -> None:
    """Queue and drops of a socket are found by the inode that its owner sees."""
    assert {
        22307: SocketQueue(queued_bytes=0, drops=0, local="1E00090A:FF78"),
        22308: SocketQueue(queued_bytes=166400, drops=4294967295, local="00000000:10E1"),
    } == parse_udp_sockets(fixture("udp"))


def test_device_statistics_are_named_as_the_driver_names_them() -> None:
    """An indented name is stripped, one that repeats is summed, and an index is no counter."""
    pairs = [("  pkts rx OOB", 1), ("rx_drops", 2), ("rx_drops", 3), ("peer_ifindex", 9)]

    assert {
        "ethtool.eth1.pkts rx OOB": 1,
        "ethtool.eth1.rx_drops": 5,
    } == parse.device_statistics("eth1", pairs)


@pytest.mark.skipif(sys.byteorder != "little", reason="addresses are in the host's byte order")
@pytest.mark.parametrize(
    ("local", "address", "port"),
    [
        ("1E00090A:FF78", "10.9.0.30", 65400),
        ("00000000:10E1", "0.0.0.0", 4321),  # noqa: S104 - names it, binds nothing
        ("000000FD000000000000000001000000:0035", "fd00::1", 53),
        ("00000000000000000000000000000000:10E1", "::", 4321),
    ],
)
def test_where_a_socket_is_bound(local: str, address: str, port: int) -> None:
    """Address and port of both families, as the kernel writes them."""
    known = SocketQueue(0, 0, local)
    assert (address, port) == (known.address, known.port)

"""Which interfaces a snapshot counts, and what of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyroute2.ethtool.ioctl import IoctlEthtool

from udpbench.agent.counters.snapshot import bridge_ports, carrier_counters, redirects
from udpbench.agent.host.system import Host


def test_a_bridge_is_counted_with_its_ports(tmp_path: Path) -> None:
    """In their order by name; any other interface, also one that is not there, has none."""
    ports = tmp_path / "sys/class/net/bridge0/brif"
    ports.mkdir(parents=True)
    for name in ("port2", "port1"):
        (ports / name).touch()
    (tmp_path / "sys/class/net/eth0").mkdir()
    host = Host(tmp_path)
    assert [["port1", "port2"], [], []] == [
        bridge_ports(host, name) for name in ("bridge0", "eth0", "eth9")
    ]


def test_redirects_of_both_ip_versions_count(tmp_path: Path) -> None:
    """A kernel without IPv6 has those of IPv4 alone."""
    net = tmp_path / "proc/thread-self/net"
    net.mkdir(parents=True)
    (net / "snmp").write_text("Icmp: InMsgs InRedirects\nIcmp: 9 2\n")
    assert 2 == redirects(Host(tmp_path))
    (net / "snmp6").write_text("Icmp6InRedirects                \t1\n")
    assert 3 == redirects(Host(tmp_path))


def test_lost_carriers_are_counted_where_the_kernel_does(tmp_path: Path) -> None:
    """A kernel without the file is no reason to fail."""
    for name in ("eth0", "eth1"):
        (tmp_path / "sys/class/net" / name).mkdir(parents=True)
    (tmp_path / "sys/class/net/eth0/carrier_down_count").write_text("3\n")
    host = Host(tmp_path)
    assert {"link.eth0.carrier_downs": 3} == carrier_counters(host, "eth0")
    assert {} == carrier_counters(host, "eth1")


def test_a_name_that_a_driver_repeats_for_each_queue_is_the_sum_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As vmxnet3 does: a ring that was full is counted, whichever queue it belongs to."""
    listed = [("  pkts rx OOB", 4), ("rx_queue_0_packets", 9), ("  pkts rx OOB", 3)]
    monkeypatch.setattr(IoctlEthtool, "get_stringset_length", lambda *_: len(listed))
    monkeypatch.setattr(IoctlEthtool, "get_statistics", lambda _: listed)
    assert {"  pkts rx OOB": 7, "rx_queue_0_packets": 9} == Host(Path("/")).statistics("lo")

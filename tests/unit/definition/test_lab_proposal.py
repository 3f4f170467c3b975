"""What is proposed for two hosts, from what they are."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest
from definition_fixture import facts
from golden import Golden

from udpbench.definition import lab_proposal
from udpbench.definition.endpoints import addresses_of
from udpbench.definition.lab_proposal import (
    HostSurvey,
    addresses_in,
    common_network,
    free_network,
    joined_pairs,
    proposed_cpus,
)
from udpbench.model.lab import Connect
from udpbench.model.limits import Role
from udpbench.protocol import Interface

SSH = Connect("ssh", "left")


def interface(name: str, *addresses: str, protected: bool = False) -> Interface:
    """Return an interface that is up."""
    return Interface(name, "ixgbe", None, "up", addresses, protected)


def host(*interfaces: Interface) -> HostSurvey:
    """Return a host with these interfaces."""
    return HostSurvey("left", "sender", SSH, interfaces)


@pytest.mark.parametrize(
    ("left", "right", "network"),
    [
        (("10.0.0.1/24",), ("10.0.0.2/24",), "10.0.0.0/24"),
        (("10.1.0.1/24", "fd00::1/64"), ("fd00::2/64",), "fd00::/64"),
        (("10.0.0.1/24",), ("10.0.0.2/25",), None),
        (("172.17.0.1/16",), ("172.17.0.1/16",), None),
        ((), ("10.0.0.2/24",), None),
    ],
)
def test_a_common_network_needs_an_address_of_each(
    left: tuple[str, ...], right: tuple[str, ...], network: str | None
) -> None:
    """The same address on both, as every Docker bridge has it, joins nothing."""
    assert network == common_network(interface("a", *left), interface("b", *right))


def test_a_proven_link_counts_more_than_a_common_network() -> None:
    """Without either there is no pair, and an interface that carries SSH is in none."""
    ssh = interface("eth0", "10.9.0.1/24", protected=True)
    left = host(ssh, interface("eth1", "10.0.0.1/24"), interface("eth2"))
    right = host(ssh, interface("eth1", "10.0.0.2/24"), interface("eth2"))
    (near,) = joined_pairs(left, right)
    (proven,) = joined_pairs(left, right, [("eth2", "eth1")])
    assert ("eth1", "eth1", "10.0.0.0/24", False) == (
        near.left,
        near.right,
        near.network,
        near.proven,
    )
    assert ("eth2", "eth1", None, True) == (
        proven.left,
        proven.right,
        proven.network,
        proven.proven,
    )
    assert () == joined_pairs(host(interface("eth1")), right)


def test_addresses_are_read_once_however_many_interfaces_meet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each with each of thousands, and each address with each, took hours."""
    read: list[str] = []
    known = lab_proposal.ip_interface
    monkeypatch.setattr(
        lab_proposal, "ip_interface", lambda text: (read.append(text), known(text))[1]
    )
    docker = ("172.17.0.1/16", "172.18.0.1/16")
    bridges = [interface(f"br{n}", *docker) for n in range(1000)]
    assert () == joined_pairs(host(*bridges), host(*bridges))
    assert len(read) <= 4000
    read.clear()
    sides = [
        host(*(interface(f"e{n}", *(f"10.{k}.{n >> 8}.{n & 255}/16" for k in range(side, 9)))
               for n in range(600)))
        for side in (0, 1)
    ]  # fmt: skip
    pairs = joined_pairs(*sides)
    assert (256, "10.1.0.0/16") == (len(pairs), pairs[-1].network)
    assert len(read) <= 600 * 18 + 256 * 18
    every = [(f"e{n}", f"e{k}") for n in range(30) for k in range(30)]
    assert 256 == len(joined_pairs(*sides, every))


def test_a_free_network_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 254 with each of thousands of networks took minutes."""
    compared: list[object] = []
    overlaps = IPv4Network.overlaps
    monkeypatch.setattr(
        IPv4Network, "overlaps", lambda of, other: (compared.append(of), overlaps(of, other))[1]
    )
    many = [f"192.168.{n}.{k}/30" for n in range(255, 2, -1) for k in range(1, 60, 4)]
    assert "192.168.2.0/24" == free_network([host(interface("a", *many, "fd00::1/64"))])
    assert len(compared) <= len(many)
    assert "192.168.254.0/24" == free_network([host(interface("a", "192.0.0.1/8"))])


def test_a_free_network_overlaps_no_address_of_either_host() -> None:
    """Whatever the interface; when none is left, the run finds what is in use."""
    left = host(interface("eth0", "192.168.254.7/24", "fd00::1/64"))
    right = host(interface("eth0", "192.168.252.1/23"))
    assert "192.168.254.0/24" == free_network([])
    assert "192.168.251.0/24" == free_network([left, right])
    assert "192.168.254.0/24" == free_network([host(interface("eth0", "192.168.0.1/16"))])


@pytest.mark.parametrize(
    ("network", "role", "text"),
    [
        ("192.168.254.0/24", "sender", "[192.168.254.30/24]"),
        ("192.168.254.0/24", "receiver", "[192.168.254.1-20/24]"),
        ("10.0.0.64/27", "sender", "[10.0.0.94/27]"),
        ("10.0.0.64/27", "receiver", "[10.0.0.65-84/27]"),
        ("existing", "receiver", "existing"),
    ],
)
def test_both_hosts_have_addresses_of_one_network(network: str, role: Role, text: str) -> None:
    """As many receivers' as shipped experiments ask for."""
    assert text == addresses_in(network, role)
    if network != "existing":
        assert (1 if role == "sender" else 20) == len(addresses_of(text.strip("[]")))


@pytest.mark.parametrize("network", ["192.168.254.1/24", "10.0.0.0/28", "fd00::/64", "here"])
def test_a_network_without_room_is_refused(network: str, golden: Golden) -> None:
    """With what would do."""
    with golden.raises(ValueError):
        addresses_in(network, "sender")


@pytest.mark.parametrize(("role", "cpus"), [("receiver", (6, 7, 4, 5)), ("sender", (6, 7, 4, 5))])
def test_cpus_are_those_of_the_interfaces_node(role: Role, cpus: tuple[int, ...]) -> None:
    """Those that serve a queue come last."""
    own = facts(
        "left",
        tuple(range(8)),
        numa_nodes={"0": (0, 1, 2, 3), "1": (4, 5, 6, 7)},
        interface_node=1,
        queue_cpus={"0": (4,), "1": (5,)},
    )
    assert cpus == proposed_cpus(own, role, facts("right", boot_id="another"))


class Cpu(int):
    """The number of a CPU that counts how often it is compared."""

    compared = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        Cpu.compared += 1
        return int(self) == other


def test_cpus_of_a_node_are_looked_up() -> None:
    """Each CPU with each of its node took minutes for tens of thousands."""
    cpus = range(1000)
    node = {"0": tuple(map(Cpu, cpus))}
    own = facts("left", tuple(map(Cpu, cpus)), numa_nodes=node, interface_node=0)
    assert tuple(cpus) == proposed_cpus(own, "receiver", facts("right", boot_id="another"))
    assert Cpu.compared < 10 * len(cpus)


def test_hosts_on_one_machine_split_its_cpus() -> None:
    """The receiver has the lower half; a single CPU is shared, and an unknown node is no node."""
    triple, single = facts("left", (0, 1, 2)), facts("left", (0,), numa_nodes={})
    assert (0, 1) == proposed_cpus(triple, "receiver", triple)
    assert (2,) == proposed_cpus(triple, "sender", triple)
    assert (0,) == proposed_cpus(single, "sender", single)

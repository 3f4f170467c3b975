"""A bridge and its ports in namespaces of the tests' own: what is set, and what the kernel counts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from settings_fixture import Inside, setting

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]

STATION, PORT_MAC, FAR = "02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03"


@pytest.fixture
def spaces() -> Iterator[tuple[Inside, Inside, Inside]]:
    """Yield a sender's, a receiver's and a bridge's namespace."""
    namespaces = (Inside(), Inside(), Inside())
    yield namespaces
    for namespace in namespaces:
        namespace.close()


def bridge_of(sender: Inside, receiver: Inside) -> tuple[dict[str, Any], ...]:
    """Return the settings of a bridge with a port for each."""
    links = [
        setting("link", name, {**peer, "mac": f"02:00:00:00:03:0{n}", "queues": 1})
        for n, (name, peer) in enumerate(
            (
                ("port1", {"peer": "send0", "peer_pid": sender.pid, "peer_mac": STATION}),
                ("port2", {"peer": "receive0", "peer_pid": receiver.pid, "peer_mac": FAR}),
            )
        )
    ]
    return (
        *links,
        setting("bridge", "bridge0", True),
        *(
            setting("sysctl", f"net.ipv6.conf.{name}.disable_ipv6", 1)
            for name in ("bridge0", "port1", "port2")
        ),
        setting("port", "port1", {"bridge": "bridge0", "station": STATION}),
        setting("port", "port2", {"bridge": "bridge0", "station": FAR}),
        *(setting("up", name, True) for name in ("port1", "port2", "bridge0")),
    )


def test_a_bridge_and_its_ports_are_applied_and_the_visible_state_restored(
    spaces: tuple[Inside, Inside, Inside],
) -> None:
    """Each value reads back as asked; afterwards nothing that can be seen differs."""
    sender, receiver, bridge = spaces
    states = [space.call("visible") for space in spaces]
    changes = bridge.apply(*bridge_of(sender, receiver))
    assert [True] * len(changes) == [change["before"] != change["after"] for change in changes]
    assert changes == bridge.apply(*(change["setting"] for change in changes))
    assert "static" in bridge.shell(f"bridge fdb show | grep {FAR}")
    bridge.call("restore")
    assert states == [space.call("visible") for space in spaces]


def test_a_port_leaves_its_bridge_with_all_that_it_was_told(
    spaces: tuple[Inside, Inside, Inside],
) -> None:
    """A port that nothing was known of is in no bridge; one without a station has None."""
    sender, receiver, bridge = spaces
    *first, port1, _, _, _, _ = bridge_of(sender, receiver)
    bridge.apply(*first)
    bridge.shell("ip link set port1 master bridge0")
    changes = bridge.apply(*first, port1)
    assert {"bridge": "bridge0", "station": None} == changes[-1]["before"]


def traffic(spaces: tuple[Inside, Inside, Inside], count: int, size: int) -> None:
    """Send datagrams across the bridge to a port where nobody listens."""
    sender, receiver, _ = spaces
    for inside, name, own, other, mac in (
        (sender, "send0", "10.0.0.30", "10.0.0.1", FAR),
        (receiver, "receive0", "10.0.0.1", "10.0.0.30", STATION),
    ):
        inside.shell(
            f"sysctl -qw net.ipv6.conf.{name}.disable_ipv6=1;"
            f"ip address replace {own}/24 dev {name}; ip link set {name} up;"
            f"ip neighbour replace {other} lladdr {mac} dev {name} nud permanent"
        )
    program = (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
        f"[s.sendto(bytes({size}), ('10.0.0.1', 9)) for _ in range({count})]"
    )
    sender.shell(f'python3 -c "{program}"')


def counted(bridge: Inside, name: str) -> tuple[int, int, int, int]:
    """Return a port's packets in, packets out, drops in, drops out."""
    files = ("rx_packets", "tx_packets", "rx_dropped", "tx_dropped")
    text = bridge.shell(f"cd /sys/class/net/{name}/statistics && cat {' '.join(files)}")
    rx_packets, tx_packets, rx_drops, tx_drops = map(int, text.split())
    return rx_packets, tx_packets, rx_drops, tx_drops


def test_a_bridge_drops_without_counting(spaces: tuple[Inside, Inside, Inside]) -> None:
    """What is longer than a port's MTU comes in and goes out nowhere, and no counter says so."""
    sender, receiver, bridge = spaces
    bridge.apply(*bridge_of(sender, receiver), setting("mtu", "port2", 1000))
    traffic(spaces, 10, 1200)
    assert (10, 0, 0, 0) == counted(bridge, "port1")
    assert (0, 0, 0, 0) == counted(bridge, "port2")


def test_a_port_counts_what_its_host_refused(spaces: tuple[Inside, Inside, Inside]) -> None:
    """Longer than the receiver's own MTU: tx_dropped of its port, and not of the sender."""
    sender, receiver, bridge = spaces
    bridge.apply(*bridge_of(sender, receiver))
    receiver.apply(setting("mtu", "receive0", 1000))
    traffic(spaces, 10, 1200)
    assert (10, 0, 0, 0) == counted(bridge, "port1")
    assert (0, 0, 0, 10) == counted(bridge, "port2")


def test_nothing_is_flooded(spaces: tuple[Inside, Inside, Inside]) -> None:
    """A frame goes to the one port of its station and to no other, learnt or not."""
    sender, receiver, bridge = spaces
    bridge.apply(*bridge_of(sender, receiver))
    third = Inside()
    try:
        mac, station = "02:00:00:00:03:09", "02:00:00:00:00:09"
        peer = {"peer": "send0", "peer_pid": third.pid, "peer_mac": station}
        more = (
            setting("link", "port3", {**peer, "mac": mac, "queues": 1}),
            setting("sysctl", "net.ipv6.conf.port3.disable_ipv6", 1),
            setting("port", "port3", {"bridge": "bridge0", "station": station}),
            setting("up", "port3", True),
        )
        bridge.apply(*bridge_of(sender, receiver), *more)
        third.shell("sysctl -qw net.ipv6.conf.send0.disable_ipv6=1; ip link set send0 up")
        traffic(spaces, 10, 100)
        assert 10 == counted(bridge, "port2")[1]
        assert (0, 0, 0, 0) == counted(bridge, "port3")
    finally:
        third.close()

"""Where a bridge on the way out sends frames, and neighbours that are asked so that it knows."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from settings_world import fake_host

from udpbench.agent import stations as stations_module
from udpbench.agent.host.system import Host
from udpbench.agent.stations import PERMANENT, PROBE, find_stations, stations
from udpbench.protocol import EVERY_PORT

TO, MAC = "10.0.1.2", "02:00:00:00:00:01"
PAIRS = {("10.0.1.9", TO), ("10.0.1.9", "10.9.9.9")}


class Entry(dict[str, Any]):
    """A message of netlink."""

    def get_attr(self, name: str) -> Any:
        """Return one of its words."""
        return self.get(name)


class Bridged(Host):
    """A host whose bridge has ports, and a neighbour that its table lacks."""

    state = 4
    refused = 0
    answers = True
    learnt = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: list[dict[str, Any]] = []

    def index(self, interface: str) -> int:
        """Return a number."""
        return {"br0": 4, "eth0": 5, "eth1": 6}[interface]

    def link(self, interface: str) -> Any:
        """Return what is a bridge."""
        kind = Entry(IFLA_INFO_KIND="bridge") if interface == "br0" else None
        return Entry(ifname=interface, IFLA_LINKINFO=kind)

    def name_of(self, index: int) -> str:
        """Return a port."""
        return {5: "eth0", 6: "eth1"}[index]

    def rtnl(self, *words: str, **fields: Any) -> Any:
        """Have an entry of the table once the neighbour was asked."""
        if words == ("neigh", "replace"):
            if self.refused:
                raise OSError(self.refused, os.strerror(self.refused))
            self.asked.append(fields)
            self.learnt = self.answers
        if words[0] == "route" and fields["dst"] != TO:
            raise OSError(errno.ENETUNREACH, "no route")
        return {
            "neigh": [Entry(ifindex=4, state=self.state, NDA_DST=TO, NDA_LLADDR=MAC)],
            "fdb": [Entry(ifindex=6, NDA_MASTER=4, NDA_LLADDR=MAC)] if self.learnt else [],
            "route": [Entry()],
        }[words[0]]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bridged:
    """Return one with two ports."""
    fake_host(tmp_path)
    for name in ("eth0", "eth1"):
        (tmp_path / f"sys/class/net/br0/brif/{name}").mkdir(parents=True)
    monkeypatch.setattr(stations_module, "RESOLVE_S", 0.0)
    return Bridged(tmp_path)


def test_a_neighbour_that_a_bridge_has_forgotten_is_asked(host: Bridged) -> None:
    """The answer makes its port known."""
    assert [(MAC, EVERY_PORT)] == [*stations(host, "br0", {MAC})]
    find_stations(host, "br0", PAIRS)
    assert [(MAC, "eth1")] == [*stations(host, "br0", {MAC})]
    find_stations(host, "br0", PAIRS)
    assert [{"dst": TO, "lladdr": MAC, "ifindex": 4, "state": PROBE}] == host.asked


@pytest.mark.parametrize(
    "changes", [{"state": PERMANENT}, {"refused": errno.EPERM}, {"answers": False}]
)
def test_who_cannot_be_asked_or_does_not_answer_stays_unknown(
    host: Bridged, changes: dict[str, Any]
) -> None:
    """An entry by hand, an agent without the right, a silent neighbour: the path check decides."""
    for name, value in changes.items():
        setattr(host, name, value)
    find_stations(host, "br0", PAIRS)
    assert [(MAC, EVERY_PORT)] == [*stations(host, "br0", {MAC})]


def test_a_bridge_with_a_single_port_floods_to_no_other(host: Bridged, tmp_path: Path) -> None:
    """Nor does what is no bridge."""
    (tmp_path / "sys/class/net/br0/brif/eth0").rmdir()
    assert [] == [*stations(host, "br0", {MAC})]
    find_stations(host, "br0", PAIRS)
    find_stations(host, "eth1", PAIRS)
    assert [] == host.asked

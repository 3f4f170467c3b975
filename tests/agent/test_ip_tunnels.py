"""Tunnels of the kernel by the numbers of their attributes: where they lead, and what is not followed.

As messages have them: the kernels on which tests run need none of these.
"""

from __future__ import annotations

import struct
from ipaddress import ip_address
from typing import Any, Optional

import pytest

from udpbench.agent.host import genetlink, ip_tunnels
from udpbench.agent.host.system import Host
from udpbench.protocol import Tunnel


class Described(Host):
    """A host with a single tunnel."""

    kind = ""

    def link(self, interface: str) -> Any:
        """Return its kind."""
        del interface
        kind = self.kind

        class Info:
            """What a message of pyroute2 is asked."""

            def get_attr(self, name: str) -> Any:
                """Return it."""
                return {"IFLA_LINKINFO": self, "IFLA_INFO_KIND": kind}.get(name)

        return Info()

    def index(self, interface: str) -> int:
        """Return a number."""
        del interface
        return 7


def info(kind: str, attributes: dict[int, bytes]) -> bytes:
    """Return a link's description."""
    data = b"".join(genetlink.attribute(number, value) for number, value in attributes.items())
    parts = genetlink.attribute(1, kind.encode() + b"\0") + genetlink.attribute(2, data)
    return genetlink.attribute(18, parts)


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what makes a host with a tunnel that the kernel describes so."""

    def make(kind: str, attributes: dict[int, bytes]) -> Described:
        host = Described()
        host.kind = kind
        answer = bytes(12) + info(kind, attributes)
        monkeypatch.setattr(genetlink, "get", lambda *_: answer)
        return host

    return make


def ip(text: str) -> bytes:
    """Return a packed address."""
    return ip_address(text).packed


NEAR, FAR = ip("10.1.0.1"), ip("10.1.0.2")


@pytest.mark.parametrize(
    ("kind", "attributes", "local", "remote", "port", "protocols"),
    [
        ("gre", {6: NEAR, 7: FAR}, "10.1.0.1", "10.1.0.2", 0, ("gre",)),
        ("ip6gretap", {6: ip("::"), 7: ip("fd00::2")}, None, "fd00::2", 0, ("gre",)),
        ("sit", {2: NEAR, 3: FAR}, "10.1.0.1", "10.1.0.2", 0, ("ipencap", "ipv6")),
        ("geneve", {2: FAR, 5: struct.pack("!H", 6081)}, None, "10.1.0.2", 6081, ("udp",)),
        ("geneve", {7: ip("fd00::2"), 5: bytes(2)}, None, "fd00::2", 0, ("udp",)),
        ("ipip", {2: bytes(4), 3: bytes(4)}, None, None, 0, ("ipencap", "ipv6")),
    ],
)
def test_a_tunnel_leads_where_its_attributes_say(
    described: Any,
    kind: str,
    attributes: dict[int, bytes],
    local: Optional[str],
    remote: Optional[str],
    port: int,
    protocols: tuple[str, ...],
) -> None:
    """Without a device of its own, by whatever way."""
    host = described(kind, attributes)
    assert Tunnel("t0", 0, local, remote, port, 0) == ip_tunnels.facts(host, "t0")
    assert (protocols, None) == (ip_tunnels.protocols(host, "t0"), ip_tunnels.bound_to(host, "t0"))


def test_a_tunnel_may_be_bound_to_a_device(described: Any) -> None:
    """And what is of another kind is none."""
    assert 5 == ip_tunnels.bound_to(described("gre", {1: struct.pack("=I", 5), 7: FAR}), "t0")
    other = described("dummy", {})
    assert (None, ("udp",), None) == (
        ip_tunnels.facts(other, "t0"),
        ip_tunnels.protocols(other, "t0"),
        ip_tunnels.bound_to(other, "t0"),
    )


@pytest.mark.parametrize(
    ("kind", "attributes", "why"),
    [
        ("gre", {7: FAR}, ()),
        ("gre", {7: FAR, 9: b"\x01", 14: bytes(2), 20: bytes(4)}, ()),
        ("gre", {7: bytes(4)}, ("without a single other end (remote)",)),
        ("gre", {7: ip("239.1.1.1")}, ("without a single other end (remote)",)),
        ("gre", {18: b""}, ("whose ends are chosen by rules (external)",)),
        ("sit", {3: FAR, 15: b"\x01\0"}, ("within UDP (encap)",)),
        ("ipip", {3: FAR, 20: b"\x07\0\0\0"}, ("by a mark (fwmark)",)),
        ("geneve", {2: FAR, 4: b"\x20"}, ("by a type of service (tos)",)),
        ("geneve", {6: b""}, ("whose ends are chosen by rules (external)",)),
    ],
)
def test_what_may_lead_out_of_a_tunnel_elsewhere_is_named(
    described: Any, kind: str, attributes: dict[int, bytes], why: tuple[str, ...]
) -> None:
    """It has a single other end, or nothing is sent."""
    host = described(kind, attributes)
    tunnel = ip_tunnels.facts(host, "t0")
    assert tunnel is not None
    texts = [f"t0, a tunnel {text}," for text in why]
    assert texts == [*ip_tunnels.without_end(host, tunnel)]


def test_of_a_tunnel_every_attribute_is_watched() -> None:
    """A bridge has timers among its own."""

    def watched(kind: str, value: bytes) -> Optional[bytes]:
        return ip_tunnels.watched(dict(genetlink.attributes(info(kind, {7: value}))))

    assert watched("gre", NEAR) != watched("gre", FAR)
    assert watched("gre", FAR) == watched("gre", FAR)
    assert watched("bridge", FAR) is None
    assert ip_tunnels.watched({}) is None

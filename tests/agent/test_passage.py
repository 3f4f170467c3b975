"""What a node says may lead packets elsewhere: rules of every program that makes them, programs."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any, Optional

import pytest
from settings_world import fake_host

from udpbench.agent.host import genetlink
from udpbench.agent.host.reading import Done
from udpbench.agent.host.system import Host
from udpbench.agent.passage import passage
from udpbench.agent.settings.own_tables import rules_of
from udpbench.protocol import Passage

DNAT = "*nat\n-A PREROUTING -p udp -m udp --dport 4321 -j DNAT --to-destination {}\nCOMMIT\n"
BY_IPTABLES = {"xt": {"type": "target", "name": "DNAT"}}
"""All that nft's JSON has of such a rule, as nft 1.0.6 prints it."""


class Router(Host):
    """A host with two interfaces and no routes, whose programs print what the test wants."""

    printed: dict[str, str]
    rules = 0
    xdp: Optional[int] = None
    tcx = 0

    def run(self, *command: str, stdin: str = "") -> Done:  # noqa: ARG002 - Host's signature
        """Print, or not be installed."""
        if command[0] not in self.printed:
            raise OSError(errno.ENOPKG, f"{command[0]} is not installed")
        return Done(0, self.printed[command[0]], "")

    def program(self, name: str) -> Optional[Path]:
        """Return where it is, if it is installed."""
        return Path(name) if name in self.printed else None

    def firewall_rules(self) -> int:
        """Return how many rules there are."""
        return self.rules

    def index(self, interface: str) -> int:
        """Return a number."""
        return {"in0": 2, "out0": 3}[interface]

    def link(self, interface: str) -> dict[str, Any]:
        """Return no kind of interface."""
        return Message(ifname=interface)

    def rtnl(self, *words: str, **fields: Any) -> Any:  # noqa: ARG002 - Host's signature
        """Have neither addresses, neighbours nor rules."""
        return []

    def xdp_program(self, interface: str) -> Optional[int]:
        """Return that of the way in."""
        return self.xdp if interface == "in0" else None

    def tcx_programs(self, interface: str) -> Optional[int]:
        """Return those of the way out."""
        return self.tcx if interface == "out0" else 0


class Message(dict[str, Any]):
    """A link's message without attributes."""

    def get_attr(self, name: str) -> None:
        """Have none."""


@pytest.fixture
def router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Router:
    """Return a router without rules, programs or filters."""
    monkeypatch.setattr(genetlink, "dump", lambda *_: [])
    fake_host(tmp_path)
    host = Router(tmp_path)
    host.printed = {}
    return host


def look(host: Router) -> Passage:
    """Return what it says of packets to a receiver."""
    return passage(host, "in0", "out0", (), (4321,))


def ruleset(*expressions: dict[str, Any]) -> str:
    """Return what nft prints of a rule in each IP version."""
    place = {"table": "nat", "chain": "PREROUTING", "handle": 2, "expr": list(expressions)}
    rules = [{"rule": {"family": family, **place}} for family in ("ip", "ip6")]
    return json.dumps({"nftables": [{"metainfo": {}}, *rules]})


def test_a_router_without_rules_leads_nowhere_else(router: Router) -> None:
    """No program is asked, as none may be installed."""
    assert ((), (), ()) == (look(router).rewrites, look(router).sources, look(router).unread)


def test_rules_of_both_iptables_are_read(router: Router) -> None:
    """Of each IP version: nft's JSON has no destination of theirs."""
    router.rules = 2
    router.printed = {
        "nft": ruleset(BY_IPTABLES),
        "iptables-save": DNAT.format("10.9.9.9"),
        "ip6tables-nft-save": DNAT.format("[fd00::9]:53"),
    }
    assert (("10.9.9.9", "fd00::9"), ()) == (look(router).rewrites, look(router).unread)


def test_rules_by_iptables_that_nothing_prints_are_named(router: Router) -> None:
    """A container made them, for example; a host with rules of nft alone needs no iptables."""
    router.rules = 2
    router.printed = {"nft": ruleset(BY_IPTABLES), "iptables-save": DNAT.format("10.9.9.9")}
    why = "the rules of ip6tables in nat (ip6tables-save is not installed): "
    assert (f"{why}install ip6tables-nft-save",) == look(router).unread
    router.printed = {"nft": ruleset({"accept": None})}
    assert () == look(router).unread


@pytest.mark.parametrize(("family", "name"), [("ip", "iptables"), ("ip6", "ip6tables")])
def test_tables_of_the_legacy_kind_are_read_or_named(
    router: Router, family: str, name: str
) -> None:
    """They are not in nf_tables, and the other kind of iptables does not show them."""
    tables = router.root / f"proc/thread-self/net/{family}_tables_names"
    tables.parent.mkdir(parents=True, exist_ok=True)
    tables.write_text("nat\nfilter\n")
    step = f"install {name}-legacy-save"
    why = f"the rules of {name} in filter, nat ({name}-save is not installed): {step}"
    assert (why,) == look(router).unread
    router.printed = {f"{name}-save": "# Warning: legacy tables present\n*filter\nCOMMIT\n"}
    why = f"the rules of {name} in nat ({name}-save does not show them): {step}"
    assert (why,) == look(router).unread
    router.printed[f"{name}-legacy-save"] = "*filter\nCOMMIT\n" + DNAT.format("10.9.9.9")
    assert (("10.9.9.9",), ()) == (look(router).rewrites, look(router).unread)


def test_rules_without_nft_are_named(router: Router) -> None:
    """Nobody can say where they lead."""
    router.rules = 1
    assert ("the rules of nf_tables (nft is not installed): install nft",) == look(router).unread
    router.printed = {"nft": "not JSON"}
    assert look(router).unread[0].startswith("the rules of nf_tables (Expecting value")


def test_programs_and_filters_are_named(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    """At either interface: what they do with a packet is not followed."""
    router.xdp, router.tcx = 7, 1
    assert ("an XDP program on in0", "a tcx program on out0") == look(router).unread
    router.xdp, router.tcx = None, 0
    monkeypatch.setattr(genetlink, "dump", lambda *_: [b"kind mirred\0"])
    assert ("a tc filter on in0", "a tc filter on out0") == look(router).unread


def test_a_node_without_nft_cannot_be_guarded(router: Router) -> None:
    """What to install, and where."""
    with pytest.raises(OSError, match="nft is not installed; install it on the node"):
        rules_of(router, "udpbench_path")

"""What rules dropped, by their own counters; a drop that none counts makes the number unknown."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, Optional

import pytest

from udpbench.agent.counters import rule_drops as module
from udpbench.agent.counters.rule_drops import counted, rule_drops
from udpbench.agent.host.system import Host

TO = {"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "daddr"}}}}
UDP = {"match": {"op": "==", "left": {"meta": {"key": "l4proto"}}, "right": "udp"}}
BY = {"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "in0"}}
NOT_UDP = {"match": {"op": "!=", "left": {"meta": {"key": "l4proto"}}, "right": "udp"}}
SEVEN = {"counter": {"packets": 7, "bytes": 700}}
DROP: dict[str, Any] = {"drop": None}
NONE_6 = {"rules6.prerouting.drops": 0, "rules6.input.drops": 0}
Items = list[dict[str, Any]]


def chain(name: str, hook: Optional[str] = None, family: str = "ip", policy: str = "accept") -> Any:
    """Return a chain as nft lists it; without a hook it is only jumped to."""
    base = {"hook": hook, "policy": policy} if hook else {}
    return {"chain": {"family": family, "table": "t", "name": name, **base}}


def rule(*expr: Any, at: str = "p", family: str = "ip") -> Any:
    """Return a rule of a chain."""
    return {"rule": {"family": family, "table": "t", "chain": at, "expr": [*expr]}}


PREROUTING = chain("p", "prerouting")
JUMP = {"jump": {"target": "c"}}
SEVERAL = [chain("c"), rule(JUMP), rule(JUMP, at="f"), rule(SEVEN, DROP, at="c")]
"""A chain to which two lead."""


@pytest.mark.parametrize(
    ("items", "drops"),
    [
        ([], 0),
        ([PREROUTING], 0),
        ([PREROUTING, rule(TO, SEVEN, DROP)], 7),
        ([PREROUTING, rule(TO, SEVEN, {"reject": None}), rule(SEVEN, {"log": None}, DROP)], 14),
        ([PREROUTING, rule(TO, SEVEN, {"accept": None}), rule(SEVEN, {"notrack": None})], 0),
        ([PREROUTING, rule({"xt": {"type": "match", "name": "comment"}}, SEVEN, DROP)], 7),
        ([PREROUTING, chain("c"), rule(JUMP), rule(SEVEN, DROP, at="c")], 7),
        ([chain("p", "prerouting", "inet"), rule(UDP, SEVEN, DROP, family="inet")], 7),
        ([chain("p", "prerouting", "ip6"), rule(DROP, family="ip6")], 0),
        ([chain("p", "forward"), rule(DROP)], 0),
    ],
)
def test_counted_drops_are_added(items: Items, drops: int) -> None:
    """Those of IPv4 and UDP at the hook, right before the verdict; what drops nothing is nothing."""
    assert {"prerouting": drops, "input": 0} == dict(counted(items))


@pytest.mark.parametrize(
    "items",
    [
        [PREROUTING, rule(TO, DROP)],
        [PREROUTING, rule(SEVEN, TO, DROP)],
        [PREROUTING, rule(SEVEN, {"limit": {"rate": 1}}, DROP)],
        [PREROUTING, rule(SEVEN, {"xt": {"type": "target", "name": "REJECT"}})],
        [PREROUTING, rule(SEVEN, {"xt": {"name": "REJECT"}})],
        [PREROUTING, rule({"vmap": {}})],
        [PREROUTING, rule("jump {")],
        [chain("p", "prerouting", policy="drop")],
        [chain("p", "prerouting", "inet"), rule(BY, SEVEN, DROP, family="inet")],
        [chain("p", "prerouting", "inet"), rule(NOT_UDP, SEVEN, DROP, family="inet")],
        [PREROUTING, chain("f", "forward"), *SEVERAL],
    ],
)
def test_a_drop_that_is_not_counted_makes_the_number_unknown(items: Items) -> None:
    """No counter, one before a condition, of several hooks, of other protocols, or not understood."""
    assert {"input": 0} == dict(counted(items))


class Kernel(Host):
    """A host with rules; ``count`` None: without nf_tables."""

    count: Optional[int] = 1

    def firewall_rules(self) -> int:
        """Return how many rules there are."""
        if self.count is None:
            raise OSError(errno.EOPNOTSUPP, "no nf_tables")
        return self.count


def test_each_version_of_ip_has_the_counts_of_its_own_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule of both counts for each if it is for UDP."""
    to_6 = {"match": {"op": "==", "left": {"payload": {"protocol": "ip6", "field": "daddr"}}}}
    items = [
        PREROUTING,
        rule(SEVEN, DROP),
        chain("p", "prerouting", "ip6"),
        rule(to_6, {"counter": {"packets": 5}}, DROP, family="ip6"),
        chain("p", "prerouting", "inet"),
        rule(UDP, {"counter": {"packets": 1}}, DROP, family="inet"),
    ]
    monkeypatch.setattr(module.programs, "ruleset", lambda _: items)
    counts = rule_drops(Kernel(tmp_path), "in0")
    assert (8, 6) == (counts["rules.prerouting.drops"], counts["rules6.prerouting.drops"])


def test_rules_are_listed_only_where_there_are_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be listed, or is the legacy iptables', is not known."""
    host, listed = Kernel(tmp_path), list[str]()

    def ruleset(_: Host) -> Items:
        listed.append("listed")
        return [PREROUTING, rule(SEVEN, DROP)]

    monkeypatch.setattr(module.programs, "ruleset", ruleset)
    assert {"rules.prerouting.drops": 7, "rules.input.drops": 0, **NONE_6} == rule_drops(
        host, "in0"
    )
    host.count = 0
    assert {"rules.prerouting.drops": 0, "rules.input.drops": 0, **NONE_6} == rule_drops(
        host, "in0"
    )
    host.count = None
    assert {} == rule_drops(host, "in0")
    host.count = 1
    names = tmp_path / module.LEGACY_TABLES.format("ip").lstrip("/")
    names.parent.mkdir(parents=True)
    names.write_text("raw\n")
    assert NONE_6 == rule_drops(host, "in0")
    (names.parent / "ip6_tables_names").write_text("raw\n")
    assert {} == rule_drops(host, "in0")
    assert ["listed"] * 2 == listed


def test_what_a_tunnel_sent_and_got_without_packets_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the rules of its own tables, each by its counter."""
    place = {"family": "inet", "chain": "count"}
    rules = [
        {"rule": {**place, "table": table, "expr": [{"counter": {"packets": packets}}]}}
        for table, packets in (("udpbench_sent", 2), ("udpbench_sent", 3), ("mine", 9))
    ]
    monkeypatch.setattr(module.programs, "ruleset", lambda _: rules)
    counts = rule_drops(Kernel(tmp_path), "in0")
    assert {"rules.output.control": 5} == {
        name: packets for name, packets in counts.items() if name.endswith(".control")
    }


def test_what_an_interface_of_others_carried_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the rules of our tables alone; without any, or if they cannot be listed, nothing is known."""
    place, host = {"family": "inet", "chain": "count"}, Kernel(tmp_path)
    rules = [
        {"rule": {**place, "table": table, "expr": [{"counter": {"packets": packets}}]}}
        for table, packets in (("udpbench_sent_data", 5), ("udpbench_inner", 4), ("mine", 9))
    ]
    monkeypatch.setattr(module.programs, "ruleset", lambda _: rules)
    assert {"rules.output.data": 5, "rules.prerouting.inner": 4} == module.tunnel_counts(host)
    host.count = 0
    assert {} == module.tunnel_counts(host)
    host.count = None
    assert {} == module.tunnel_counts(host)


@pytest.mark.parametrize(
    ("path", "text", "drops"),
    [
        ("/proc/sys/net/bridge/bridge-nf-call-iptables", "1", 0),
        ("/sys/class/net/br0/bridge/nf_call_iptables", "1", 0),
        ("/proc/sys/net/bridge/bridge-nf-call-iptables", "0", 7),
    ],
)
def test_a_bridge_that_calls_the_rules_drops_before_ip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, text: str, drops: int
) -> None:
    """What it dropped never came in at IP, which then does not call PREROUTING again."""
    host = Kernel(tmp_path)
    monkeypatch.setattr(module.programs, "ruleset", lambda _: [PREROUTING, rule(SEVEN, DROP)])
    port = tmp_path / "sys/class/net/in0/brport"
    port.mkdir(parents=True)
    (port / "bridge").symlink_to("../../br0")
    switch = tmp_path / path.lstrip("/")
    switch.parent.mkdir(parents=True)
    switch.write_text(f"{text}\n")
    assert {"rules.prerouting.drops": drops, "rules.input.drops": 0, **NONE_6} == rule_drops(
        host, "in0"
    )

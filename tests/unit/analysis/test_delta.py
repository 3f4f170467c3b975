"""Differences of counters."""

from __future__ import annotations

import pytest

from udpbench.analysis import delta as module
from udpbench.analysis.delta import deltas
from udpbench.model.record import Snapshot


def difference(before: dict[str, int], after: dict[str, int]) -> tuple[dict[str, int], tuple]:
    """Return the values and what went backwards."""
    delta = deltas(Snapshot("h", 10, before), Snapshot("h", 30, after))
    return delta.values, delta.backwards


def test_a_counter_that_grew_has_its_difference() -> None:
    """The plain case."""
    assert ({"snmp.Udp.NoPorts": 3}, ()) == difference(
        {"snmp.Udp.NoPorts": 2**40}, {"snmp.Udp.NoPorts": 2**40 + 3}
    )


def test_u32_counters_wrap() -> None:
    """Softnet columns and socket drops are taken modulo 2^32."""
    names = ("softnet.cpu3.dropped", "socket.9.drops", "interrupt.34.cpu1", "softirq.cpu0.NET_RX")
    before, after = dict.fromkeys(names, 2**32 - 5), dict.fromkeys(names, 2)
    assert (dict.fromkeys(names, 7), ()) == difference(before, after)


def test_any_other_counter_refuses_to_go_backwards() -> None:
    """It has no difference, and is told with both readings."""
    assert ({}, ("snmp.Udp.NoPorts: 7 > 6",)) == difference(
        {"snmp.Udp.NoPorts": 7}, {"snmp.Udp.NoPorts": 6}
    )


def test_a_counter_that_only_one_snapshot_holds_has_no_difference() -> None:
    """Missing is not 0."""
    assert ({}, ()) == difference({"a.b": 1}, {"c.d": 2})


def test_totals_add_up_what_matches_and_know_when_nothing_does() -> None:
    """A pattern without a match is None; a match of 0 is 0."""
    delta = deltas(
        Snapshot("h", 10, {"softnet.cpu0.dropped": 1, "softnet.cpu1.dropped": 1, "x.y": 0}),
        Snapshot("h", 30, {"softnet.cpu0.dropped": 3, "softnet.cpu1.dropped": 4, "x.y": 0}),
    )
    assert 5 == delta.total("softnet.*.dropped")
    assert 0 == delta.total("x.y")
    assert delta.total("x.*.z") is None
    assert delta.total("x.z") is None
    assert 20 == delta.elapsed_ns


def test_what_went_backwards_is_found_by_pattern() -> None:
    """A stage asks only for its own counters."""
    delta = deltas(Snapshot("h", 0, {"a.b": 2, "c.d": 2}), Snapshot("h", 1, {"a.b": 1, "c.d": 1}))
    assert ("a.b: 2 > 1",) == delta.went_backwards("a.*")


def test_of_many_interfaces_counters_each_is_searched_for_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Searching all counters for each interface took the square of their number."""
    names = [f"ethtool.e{n}.rx_queue_{q}_drops" for n in range(200) for q in range(9)]
    names += ["ethtool.e7", "ethtool.e7.100.rx_queue_0_drops", "ethtool.f.a"]
    known = deltas(
        Snapshot("h", 1, dict.fromkeys(names, 0)), Snapshot("h", 2, dict.fromkeys(names, 1))
    )
    asked: list[str] = []
    matches = module.fnmatchcase
    monkeypatch.setattr(
        module, "fnmatchcase", lambda name, pattern: (asked.append(name), matches(name, pattern))[1]
    )
    own = {f"ethtool.e7.rx_queue_{q}_drops" for q in range(9)}
    assert own == {*known.matching("ethtool.e7.rx_queue_*_drops")}
    assert 9 == len(asked)
    assert 9 == known.total("ethtool.e7.rx_queue_?_drops")
    assert own | {"ethtool.e7.100.rx_queue_0_drops"} == {*known.beginning("ethtool.e7.")}
    assert 200 == len(known.matching("ethtool.*.rx_queue_3_drops"))
    assert {} == known.beginning("qdisc.e7.")

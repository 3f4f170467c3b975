"""What ``plan`` prints: every trial with its time, every change once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

import pytest
from analysis.build import expectation, experiment, trial

from report.stored import ODD
from udpbench.model.experiment import PointPair, Search, planned_text, trial_ns
from udpbench.model.host import Planned, Setting
from udpbench.model.limits import SECOND_NS
from udpbench.model.result import Progress
from udpbench.report.plan import (
    compared_pairs,
    joined_targets,
    print_rehearsal,
    print_skips,
    print_trials,
    summed_up,
    too_few_blocks,
)
from udpbench.report.terminal import Terminal


@dataclass(frozen=True)
class Rehearsed:
    """Settings that some trials share."""

    trials: tuple[str, ...]
    hosts: dict[str, tuple[Planned, ...]]


def planned(kind: str, target: str, now: Any, value: Any, refusal: str | None = None) -> Planned:
    """Return what a dry run found of one setting."""
    return Planned(Setting(kind, target, value), now, refusal, as_wanted=now == value)


def lines(*settings: Planned) -> list[str]:
    """Return the lines of settings, name and change."""
    return [f"{name}: {change}" for name, change in summed_up(settings)]


def test_every_point_has_its_repetitions_and_its_time() -> None:
    """A trial of 1 s costs at most 1.5 s more; the sum stands below."""
    out = StringIO()
    of = experiment(points=[trial("a"), trial("b")], repetitions=3)
    print_trials(Terminal(file=out, width=80), [of])
    text = [line.split() for line in out.getvalue().splitlines()]
    assert ["example", "a", "3", "8s"] == text[1]
    assert ["example", "b", "3", "8s"] == text[2]
    assert ["6", "trials,", "at", "most", "15s"] == text[3]


def test_compared_points_have_blocks() -> None:
    """7 to 15 of each and five in place of others, the third point its repetitions.

    Alone, a pair can be decided at once.
    """
    out = StringIO()
    pairs = (PointPair("a", "b", "delivered_pps", 0.03),)
    of = experiment(points=[trial(name) for name in "abc"], repetitions=3, compare=pairs)
    print_trials(Terminal(file=out, width=80), [of])
    text = [line.split() for line in out.getvalue().splitlines()]
    assert ["example", "b", "7–20", "50s"] == text[2]
    assert ["example", "c", "3", "8s"] == text[3]
    assert ["17–43", "trials,", "at", "most", "108s"] == text[4]
    assert ["example:", "compares", "b", "against", "a:", "delivered_pps,", "margin", "3", "%"] == (
        text[5]
    )
    assert 6 == len(text)


def test_of_many_pairs_the_first_are_named() -> None:
    """And the others are counted; shares have a margin in percentage points."""
    pairs = [PointPair("a", f"b{n}", "loss_ratio", 0.001) for n in range(6)]
    rows = {n: list(compared_pairs(experiment(compare=tuple(pairs[:n])))) for n in (0, 1, 4, 5, 6)}
    assert [0, 1, 4, 5, 5] == [len(lines) for lines in rows.values()]
    assert ["example: compares b0 against a: loss_ratio, margin 0.1 percentage points"] == rows[1]
    assert ["example: and 1 more pair", "example: and 2 more pairs"] == [rows[5][4], rows[6][4]]


def test_too_few_blocks_are_foretold() -> None:
    """One of four comparisons cannot be decided alone after 7 blocks, and of 1000 never."""
    pairs = tuple(PointPair("a", f"b{n}", "delivered_pps", 0.03) for n in range(1000))
    of = [experiment(name="few", compare=pairs[:4]), experiment(name="many", compare=pairs)]
    assert too_few_blocks(of[0]).startswith("few: 7 blocks")
    assert "11 blocks" not in too_few_blocks(of[0])
    assert "15 blocks" in too_few_blocks(of[1])
    assert "" == too_few_blocks(experiment(compare=pairs[:1]))


def test_too_few_repetitions_are_foretold() -> None:
    """Expectations between points take as many as comparisons; a lone point takes six."""
    points = [trial(name) for name in "abcde"]
    claims = [expectation(f"delivered_pps[{n}]", ">", "delivered_pps[a]") for n in "bcde"]
    few = experiment(*claims, points=points, repetitions=6)
    assert too_few_blocks(few).startswith("example: 6 repetitions")
    assert "" == too_few_blocks(replace(few, repetitions=8))
    assert "" == too_few_blocks(replace(few, expect=tuple(claims[:1])))
    pair = PointPair("a", "b", "delivered_pps", 0.03)
    beside = [expectation(f"delivered_pps[{n}]", ">", "delivered_pps[c]") for n in "de"]
    both = experiment(*beside, points=points, repetitions=6, compare=(pair,))
    assert ("6 repetitions" in too_few_blocks(both), "blocks" in too_few_blocks(both)) == (
        True,
        False,
    )


def test_trials_on_real_hosts_take_longer() -> None:
    """What cards count is waited for: 2 s after each of three phases."""
    out = StringIO()
    print_trials(Terminal(file=out, width=80), [experiment(points=[trial("a")])], built_in=False)
    assert out.getvalue().endswith("\n1 trial, at most 9s\n")


def test_searches_are_counted_as_searches() -> None:
    """Each takes as many trials as it takes; compared points have extra blocks besides."""
    searched = experiment(points=[trial("a", search=Search()), trial("b", search=Search())])
    assert "2 searches" == planned_text([searched])
    pair = PointPair("a", "b", "delivered_pps", 0.03)
    compared = experiment(points=[trial("a"), trial("b")], compare=(pair,))
    assert "14–30 trials and 2 searches" == planned_text([searched, compared])
    assert "14–40 trials" == planned_text([compared], extra_blocks=5)
    assert "1 trial" == planned_text([experiment(points=[trial("a")])])
    of_search = replace(trial("a", search=Search()), search_trial=39)
    assert "[39]" == Progress("trial", "", trial=of_search, index=39, total=43).place


def test_the_last_trial_of_a_search_may_end_after_its_time() -> None:
    """In 9 s with trials of 3 s, or a last trial of 10 s, and what a trial costs besides."""
    search = Search(trial_ns=3 * SECOND_NS, within_ns=9 * SECOND_NS)
    longest = [
        trial_ns(trial("a", search=each, warmup_ns=0)) / SECOND_NS
        for each in (search, replace(search, confirm_ns=10 * SECOND_NS))
    ]
    assert [13.5, 20.5] == longest


def test_settings_that_only_count_up_share_a_line() -> None:
    """Twenty addresses are one line, and so are twenty neighbours."""
    addresses = [planned("address", f"r0/10.0.0.{n}/24", None, True) for n in range(1, 21)]
    mac = "02:00:00:00:00:01"
    neighbours = [planned("neighbour", f"r0/10.0.0.{n}", None, mac) for n in range(1, 21)]
    assert [
        "address r0/10.0.0.1-20/24: added",
        f"neighbour r0/10.0.0.1-20: none → {mac}",
    ] == lines(*addresses, *neighbours)


def test_settings_that_differ_in_value_or_kind_have_lines_of_their_own() -> None:
    """What is changed otherwise is never summed up."""
    assert [
        "feature r0/gro: off → on",
        "feature r0/tso: on → off",
        "mtu r0: 1500 (already set)",
        "rps r0/rx-0: 0 → 1",
        "link r0: none → peer=s0 queues=1",
    ] == lines(
        planned("feature", "r0/gro", False, True),
        planned("feature", "r0/tso", True, False),
        planned("mtu", "r0", 1500, 1500),
        planned("rps", "r0/rx-0", [0], [1]),
        planned("link", "r0", None, {"peer": "s0", "queues": 1}),
    )


@pytest.mark.parametrize(
    ("targets", "text"),
    [
        (["mtu"], "mtu"),
        (["r0/tso", "r0/gso"], "r0/tso, gso"),
        (["r0/rx-0", "r0/rx-1", "r0/rx-2"], "r0/rx-0-2"),
        (["r0/rx-0", "r0/rx-2"], "r0/rx-0, rx-2"),
        (["r0/a", "r0/a1"], "r0/a, a1"),
        (["net.a", "net.b"], "net.a, net.b"),
    ],
)
def test_targets_are_reported_together(targets: list[str], text: str) -> None:
    """Numbers in a row become a range, everything else a list."""
    assert text == joined_targets(targets)


def test_a_refusal_is_reported_with_its_reason() -> None:
    """What cannot be set stands in the plan, before anything ran; brackets are no markup."""
    out = StringIO()
    settings = {"right": (planned("mtu", ODD, 1500, 9000, "[driver] says no"),)}
    print_rehearsal(Terminal(file=out, width=200), [Rehearsed(("x",), settings)])
    text = out.getvalue()
    assert "settings of x" in text
    assert f"right  mtu {ODD}  cannot be set: [driver] says no" in text


def test_a_plan_has_room_on_80_columns() -> None:
    """No line is longer and no address is cut."""
    out = StringIO()
    addresses = (planned("neighbour", "receive0/192.168.254.30", None, "02:75:62:01:00:01"),)
    print_rehearsal(Terminal(file=out, width=80), [Rehearsed(("x",), {"receiver": addresses})])
    assert "neighbour receive0/192.168.254.30  none → 02:75:62:01:00:01" in out.getvalue()


def test_a_long_name_of_a_setting_stays_whole() -> None:
    """The line breaks before it, and what is said of its change has the rest."""
    out = StringIO()
    name = "net.ipv4.neigh.receive0.base_reachable_time_ms"
    refusal = "Operation not permitted, because the host's namespace is owned by somebody else"
    refused = (planned("sysctl", name, None, "30000", refusal),)
    print_rehearsal(Terminal(file=out, width=80), [Rehearsed(("x",), {"receiver": refused})])
    printed = out.getvalue().splitlines()
    assert any(line.split()[:1] == [name] or f" {name} " in line for line in printed)
    assert max(map(len, printed)) <= 80


def test_what_sets_of_settings_have_in_common_is_printed_once() -> None:
    """And then a line for each set with what it has besides, also where that is nothing."""
    out = StringIO()
    mtu, address = (
        planned("mtu", "r0", 1500, 9000),
        planned("address", "r0/10.0.0.1/24", None, True),
    )
    sets = [
        Rehearsed(("a", "b"), {"left": (mtu,), "right": (mtu, planned("sysctl", "x", 1, 2))}),
        Rehearsed(("c",), {"left": (mtu,), "right": (mtu, planned("sysctl", "x", 1, 3))}),
        Rehearsed(("d",), {"left": (mtu, address), "right": (mtu,)}),
        Rehearsed(("e",), {"left": (mtu,), "right": (mtu,)}),
    ]
    print_rehearsal(Terminal(file=out, width=80), sets)
    assert [
        "settings of a, b, c, d, e",
        "host   setting  now → requested",
        "left   mtu r0   1500 → 9000",
        "right  mtu r0   1500 → 9000",
        "settings that differ",
        "points  host   setting                 now → requested",
        "a, b    right  sysctl x                1 → 2",
        "c       right  sysctl x                1 → 3",
        "d       left   address r0/10.0.0.1/24  added",
        "e              none of these",
    ] == [line.strip() for line in out.getvalue().splitlines() if line]


def test_of_many_points_with_a_setting_there_is_the_number() -> None:
    """Which they are is in the table of trials."""
    out = StringIO()
    settings = {"right": (planned("mtu", "r0", 1500, 9000),)}
    print_rehearsal(Terminal(file=out, width=80), [Rehearsed(tuple("abcdefghijklmnopq"), settings)])
    assert "settings of all 17 points" in out.getvalue()


def test_each_skip_is_reported_with_its_reason() -> None:
    """And nothing where none is foreseen."""
    out = StringIO()
    print_skips(Terminal(file=out, width=80), {})
    assert "" == out.getvalue()
    print_skips(Terminal(file=out, width=80), {"mine::a": "right has no CPU [7]"})
    assert ["would be skipped", "point    reason", "mine::a  right has no CPU [7]"] == [
        line.strip() for line in out.getvalue().splitlines() if line
    ]

"""Tunes of a path that loses packets at a host in the middle, planted there from outside of udpbench."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from golden import Golden
from test_path import There

from udpbench.control.run import RunOptions, run
from udpbench.definition.load import load_experiment_data, load_lab
from udpbench.judged_run import Chapter, chapters_of
from udpbench.model.lab import Lab
from udpbench.model.limits import SECOND_NS
from udpbench.records.reader import read_run
from udpbench.records.run import new_header
from udpbench.records.writer import RunWriter
from udpbench.tuning.derived_points import asked, tuned
from udpbench.tuning.outcome import TuningAnswer

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]

BURST = {"count": 1000, "rate": "4kpps"}
WITHIN_NS = 240 * SECOND_NS


@pytest.fixture
def there() -> Iterator[There]:
    """Yield namespaces that were made as an administrator makes them."""
    namespaces = There()
    try:
        namespaces.open()
        yield namespaces
    finally:
        namespaces.close()


def tune(folder: Path, lab: Lab, never: tuple[str, ...] = (), **keys: Any) -> Chapter:
    """Return a tune of what packets are lost."""
    plain = {"question": "What helps?", "duration": "5s", "warmup": "0s", "traffic": BURST}
    data = {**plain, "send": {"bucket": "200ms"}, "path_check": "explained", **keys}
    experiments = [load_experiment_data(data, "planted")]
    asking = asked(experiments, None, "lost_packets", WITHIN_NS, never=never)
    experiments = tuned(experiments, asking)
    writer = RunWriter.create(folder / "run", new_header(experiments, lab, ()))
    outcome = run(experiments, lab, writer, lambda _: None, RunOptions(seed=1))
    assert outcome.error is None, outcome.error
    (chapter,) = chapters_of(read_run(folder / "run"))
    return chapter


def written(recipe: str) -> Any:
    """Return the keys of a recipe with their values as text."""
    nested: dict[str, Any] = {}
    above = [nested]
    for line in recipe.splitlines():
        depth, (key, _, value) = (len(line) - len(line.lstrip())) // 2, line.strip().partition(": ")
        above = above[: depth + 1]
        name = key.removesuffix(":")
        above[-1][name] = value or {}
        above.append(above[-1][name])
    return nested


def answer_of(chapter: Chapter) -> TuningAnswer:
    """Return the answer of a tune."""
    assert chapter.tuned is not None
    return chapter.tuned


def assert_repaired(chapter: Chapter, stage: str, *settings: dict[str, Any]) -> None:
    """Assert that a loss at a stage is repaired by some settings or others, which are proven."""
    assert chapter.tuning is not None
    assert stage == chapter.tuning.first_limits[0].stage
    answer = answer_of(chapter)
    assert written(answer.recipe) in [{"settings": each} for each in settings], answer
    assert chapter.tuning.proven is not None
    lost = {result.lost_packets for result in chapter.trials if result.trial.point == "after"}
    assert {0} == lost


@pytest.mark.long
def test_a_queue_that_shapes_is_replaced(tmp_path: Path) -> None:
    """A token bucket at the way out of a router."""
    bucket = {"qdisc": {"tbf": {"rate": "1Mbps", "burst": "4KiB", "limit": "8KiB"}}}
    chapter = tune(tmp_path, load_lab("router"), settings={"middle": bucket})
    qdisc = {"middle": {"qdisc": "{pfifo: {limit: 1024}}"}}
    assert_repaired(chapter, "router1.fwd_qdisc", qdisc)
    typed = "tc qdisc replace dev out0 root pfifo limit 1024  # router1"
    assert [typed] == [line.text for line in answer_of(chapter).instructions]


@pytest.mark.long
def test_a_rule_that_limits_a_rate_is_passed_by(there: There, tmp_path: Path) -> None:
    """The rule that a tune tries stands ahead of it in FORWARD, and is gone afterwards."""
    rule = "iptables -A FORWARD -p udp --dport 4321 -m hashlimit --hashlimit-name x"
    there.inside("gateway", f"{rule} --hashlimit-above 500/sec --hashlimit-burst 100 -j DROP")
    before = there.inside("gateway", "iptables -S")
    chapter = tune(tmp_path, there.lab(change=True))
    accepted = {"middle": {"firewall": {"udp": "4321", "accept": "true"}}}
    assert_repaired(chapter, "gateway.fwd_netfilter", accepted)
    assert before == there.inside("gateway", "iptables -S")


def test_a_node_that_is_read_only_is_never_changed(
    there: There, tmp_path: Path, golden: Golden
) -> None:
    """What would help there is said in words, and no trial is made of it."""
    there.inside("gateway", "tc qdisc replace dev eth2 root tbf rate 1mbit burst 4k limit 8k")
    chapter = tune(tmp_path, there.lab())
    assert {"base"} == {result.trial.point for result in chapter.trials}
    golden.check([answer_of(chapter).sentence])


@pytest.mark.long
def test_a_full_table_of_connections_is_enlarged(tmp_path: Path) -> None:
    """The machine's, which all its namespaces share; entries last a second, less than a trial."""
    table = {"net.netfilter.nf_conntrack_max": 64, "net.netfilter.nf_conntrack_udp_timeout": 1}
    many = {"flows": {"from": "40000-40511"}, **BURST}
    tracked = {"middle": {"sysctl": table, "firewall": {"udp": 4321, "track": True}}}
    chapter = tune(tmp_path, load_lab("router"), ("notrack",), traffic=many, settings=tracked)
    larger = {"net.netfilter.nf_conntrack_max": "2048"}
    assert_repaired(chapter, "router1.fwd_conntrack", {"middle": {"sysctl": larger}})


AT_ONCE = {
    "send": {"gso": 32, "bucket": "200ms"},
    "traffic": {"size": "32B", **BURST},
}
"""Bursts of 32 packets, which leave the sender one by one."""
ONE_BY_ONE = {"ethtool": {"features": {"tso": False, "tx-udp-segmentation": False}}}
SHORT = {"sysctl": {"net.core.netdev_max_backlog": 8}}
LONGER = [
    {"middle": {"sysctl": {"net.core.netdev_max_backlog": size}}} for size in ("1024", "8192")
]
"""Either holds a burst."""


@pytest.mark.long
def test_a_backlog_that_is_too_short_is_lengthened(tmp_path: Path) -> None:
    """It holds eight of the packets that come at once."""
    settings = {"sender": ONE_BY_ONE, "middle": SHORT}
    chapter = tune(tmp_path, load_lab("router"), **AT_ONCE, settings=settings)
    assert_repaired(chapter, "router1.fwd_backlog", *LONGER)


@pytest.mark.long
def test_the_queue_behind_a_tunnel_is_lengthened(tmp_path: Path) -> None:
    """It is as long as a backlog, and holds eight of the packets that come out at once."""
    polled = {**SHORT, "ethtool": {"features": {"rx-gro": True}}}
    settings = {"sender": ONE_BY_ONE, "middle": polled}
    chapter = tune(tmp_path, load_lab("vxlan"), **AT_ONCE, settings=settings)
    assert_repaired(chapter, "vtep2.fwd_cells", *LONGER)

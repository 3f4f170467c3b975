"""``selftest``: which packets are lost where, in which lab, and how a run that ends early ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from control.fake import World
from golden import Golden

from udpbench.commands.selftest import (
    THIS_MACHINE,
    losing_experiments,
    node_labs,
    private_labs,
    try_hosts,
    try_ledger,
)
from udpbench.definition.load import load_lab
from udpbench.definition.losses import LOSS_PORTS
from udpbench.errors import ConnectError, Interrupted
from udpbench.model.limits import LEDGER_STAGES
from udpbench.model.record import SelfTest


def test_every_stage_that_can_lose_packets_does_so_over_ipv4_alone() -> None:
    """And over IPv6 together, where a program and the backlog count no other way."""
    trials = [trial for experiment in losing_experiments() for trial in experiment.points]
    alone = [next(iter(t.losses)) for t in trials if len(t.losses) == 1]
    assert sorted(LOSS_PORTS) == sorted(alone)
    (together,) = (t for t in trials if len(t.losses) > 1)
    assert set(LOSS_PORTS) - {"rx_xdp", "rx_backlog"} == set(together.losses)
    assert (6, 13) == (together.traffic.family, len(set(together.losses.values())))


def test_the_traffic_beside_them_fits_into_a_ring() -> None:
    """All of it at once, also over IPv6; the kernel's reasons are asked for."""
    trials = [trial for experiment in losing_experiments() for trial in experiment.points]
    counts = [trial.traffic.count_packets or 0 for trial in trials]
    assert max(counts) < 256
    assert {1000} == {t.traffic.rate.pps(32) for t in trials if t.traffic.rate is not None}
    assert sum(counts) / 1000 < 30
    assert all(trial.explain and trial.losses for trial in trials)


def test_each_kernel_is_tried_where_it_is() -> None:
    """A built-in lab of two is taken as it is; one with a bridge is this machine, too."""
    two = load_lab("two-cpus")
    ((host, own, around),) = private_labs(two)
    assert (THIS_MACHINE, True) == (host, own is two)
    assert around is None, "an ordinary user's namespaces end with each run, and it may run twice"
    labs = {
        name: [(host, own.name) for host, own, _ in private_labs(load_lab(name))]
        for name in ("two-senders", "two-hosts")
    }
    assert {
        "two-senders": [(THIS_MACHINE, "local")],
        "two-hosts": [("left", "local"), ("right", "local")],
    } == labs


def test_a_ledger_is_tried_by_a_run_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fake agents lose nothing, so no stage counts what was lost there.

    A lab that needs a program is tried where that is installed, or the kernel does without.
    """
    monkeypatch.setattr("udpbench.commands.selftest.KERNELS_OWN", tmp_path)
    monkeypatch.setattr("udpbench.commands.selftest.which", lambda name: name)
    assert ["router", "bridge", "vxlan", "wireguard"] == node_labs(here=True)
    assert ["router", "bridge", "vxlan"] == node_labs(here=False)
    monkeypatch.setattr("udpbench.commands.selftest.which", lambda _: None)
    assert ["router", "bridge", "vxlan"] == node_labs(here=True)
    (tmp_path / "wireguard").mkdir()
    assert ["router", "bridge", "vxlan", "wireguard"] == node_labs(here=True)
    (tmp_path / "wireguard").rmdir()
    world = World()
    selftest = try_ledger(load_lab("local"), world.progress.append, world.surroundings())
    stages = {proof.stage for proof in selftest.proofs}
    assert set(LEDGER_STAGES) == stages
    begun = [
        progress.text
        for progress in world.progress
        if progress.event == "run" and "trial" in progress.text
    ]
    assert 8 == len(begun), "what does not hold is tried once more, and so are nodes"
    silent = [proof for proof in selftest.proofs if proof.packets is not None and not proof.holds]
    assert {"udp_no_port", "rx_netfilter"} <= {proof.stage for proof in silent}


def test_a_host_costs_no_other_hosts_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error stands in for its result; an interrupt ends all."""
    world, broken = World(), World()
    broken.raises("open receiver", ConnectError("no such namespace"))
    lab = load_lab("local")
    labs = [("left", lab, broken.surroundings()), ("right", lab, world.surroundings())]
    monkeypatch.setattr("udpbench.commands.selftest.private_labs", lambda *_: iter(labs))
    tried = dict(try_hosts(lab, world.progress.append))
    assert (ConnectError, SelfTest) == (type(tried["left"]), type(tried["right"]))
    interrupted = World()
    interrupted.hooks["send_losses sender udp_no_port"] = interrupted.interrupt.note
    labs.insert(0, ("first", lab, interrupted.surroundings()))
    with pytest.raises(Interrupted):
        list(try_hosts(lab, world.progress.append))


def test_what_ends_the_run_is_raised(golden: Golden) -> None:
    """An error, or an interrupt."""
    world = World()
    world.raises("open receiver", ConnectError("no such namespace"))
    with pytest.raises(ConnectError, match="no such namespace"):
        try_ledger(load_lab("local"), world.progress.append, world.surroundings())
    world = World()
    world.hooks["send_losses sender udp_no_port"] = world.interrupt.note
    with golden.raises(Interrupted):
        try_ledger(load_lab("local"), world.progress.append, world.surroundings())

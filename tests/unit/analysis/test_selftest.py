"""What losing packets on purpose proves: what was counted where, and what follows for a ledger."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from analysis import build
from analysis.test_forwarding import before_6_8, passed, routed
from analysis.test_stages import lacking
from udpbench.analysis.judge import judge
from udpbench.analysis.ledger.ledger import lost_at_any, make_ledger, unobserved
from udpbench.analysis.ledger.selftest import (
    exit_code,
    is_believable,
    is_complete,
    missing,
    reasons,
    selftest_of,
)
from udpbench.analysis.ledger.stages import STAGES
from udpbench.analysis.readings import readings_of
from udpbench.errors import CANNOT_TELL, NO, YES, CannotTell
from udpbench.model.host import Change, Setting
from udpbench.model.limits import FORWARDING_STAGES
from udpbench.model.record import (
    RecordedError,
    SelfTest,
    StageProof,
    TrialRecord,
)
from udpbench.model.result import Ledger

AT = "2026-11-22T16:00:00.000+00:00"
NO_PORT = {"right": {"snmp.Udp.NoPorts": 97, "reason.NO_SOCKET": 97, "interrupt.34.cpu1": 97}}


def losing(stage: str, moves: dict[str, dict[str, int]], packets: int = 97) -> TrialRecord:
    """Return the record of a trial that lost packets at a stage, and moved counters so."""
    return build.lossy(1000, moves, packets, of=build.trial(losses={stage: packets}))


def prove(*records: TrialRecord) -> SelfTest:
    """Return what records prove."""
    return selftest_of(records, AT, "0.2.0")


def proof(selftest: SelfTest, stage: str) -> StageProof:
    """Return the first proof of a stage."""
    return next(proof for proof in selftest.proofs if proof.stage == stage)


def ledger_of(record: TrialRecord) -> Ledger:
    """Return the ledger of a record's measured phase."""
    measured = readings_of(record)
    assert measured is not None
    return make_ledger(measured)


def proven(record: TrialRecord, *proofs: StageProof) -> TrialRecord:
    """Return a record with a selftest of the kernel of both hosts."""
    selftest = SelfTest("6.18.0", "", AT, "0.2.0", proofs)
    return replace(record, selftests={"left": selftest, "right": selftest})


def test_a_stage_that_counted_every_packet_is_proven_with_its_counters() -> None:
    """Those of packets that moved by exactly that number, reasons among them."""
    selftest = prove(losing("udp_no_port", NO_PORT))
    assert StageProof(
        "udp_no_port",
        4,
        97,
        counted=97,
        unaccounted=0,
        counters=("receiver reason.NO_SOCKET", "receiver snmp.Udp.NoPorts"),
        driver="veth",
    ) == proof(selftest, "udp_no_port")
    assert ("NO_SOCKET",) == reasons(proof(selftest, "udp_no_port"))
    assert is_believable(selftest)


def test_the_machine_and_a_socket_without_its_number_are_named_too() -> None:
    """A socket's inode says nothing after the trial."""
    moves = {
        "right": {"snmp.Udp.RcvbufErrors": 97, "snmp.Udp.InErrors": 97, "socket.77.drops": 97},
        "machine": {"softnet.cpu0.dropped": 97},
    }
    counters = proof(prove(losing("udp_rcvbuf", moves)), "udp_rcvbuf").counters
    assert (
        "machine softnet.cpu0.dropped",
        "receiver snmp.Udp.InErrors",
        "receiver snmp.Udp.RcvbufErrors",
        "receiver socket.*.drops",
    ) == counters


def test_stages_that_a_lab_cannot_provoke_are_named_with_the_reason() -> None:
    """Each of them, in the packet's order with the others."""
    selftest = prove(losing("udp_no_port", NO_PORT))
    lasting = ["app_log", "app_unanswered", "answer_lost"]
    first = ["unsent", "tx_policy", "tx_ipsec", "link"]
    receiving = ["rx_ring", "xsk_ring", "xsk_fill", "udp_no_port", "rx_policy"]
    assert [*first, *receiving, *lasting] == [proof.stage for proof in selftest.proofs]
    unprovoked = {stage.name: stage.unprovoked for stage in STAGES if stage.unprovoked}
    nodes = {name for name in unprovoked if name in FORWARDING_STAGES}
    assert {name: why for name, why in unprovoked.items() if name not in nodes} == {
        proof.stage: proof.why for proof in selftest.proofs if proof.packets is None
    }
    routed = replace(losing("udp_no_port", NO_PORT), exits={"router1": "eth1"})
    assert nodes <= {proof.stage for proof in prove(routed).proofs if proof.packets is None}


def test_a_kernel_that_counts_nothing_or_elsewhere_is_not_believed() -> None:
    """Not observed, half of it, or at another stage: unaccounted has the rest."""
    silent = prove(losing("udp_no_port", {}))
    half = prove(losing("udp_no_port", {"right": {"snmp.Udp.NoPorts": 48}}))
    elsewhere = prove(losing("udp_no_port", {"left": {"qdisc.send0.drops": 97}}))
    proofs = [proof(selftest, "udp_no_port") for selftest in (silent, half, elsewhere)]
    assert [(0, 97), (48, 49), (0, 0)] == [
        (stage_proof.counted, stage_proof.unaccounted) for stage_proof in proofs
    ]
    assert [False] * 3 == [is_believable(selftest) for selftest in (silent, half, elsewhere)]


def test_what_a_kernel_counts_at_another_stage_is_proven_there() -> None:
    """Before Linux 6.8 what FORWARD drops is missing where what PREROUTING drops is."""
    losses = {"fwd_prerouting": 4, "fwd_netfilter": 3}
    way = {"snmp.Icmp.OutMsgs": 0, **passed(1000, forwarded=7)}
    lossy = routed({"r": way}, 7)
    trial = replace(lossy.trial, losses=losses)
    old, new = (
        replace(record, trial=trial) for record in (before_6_8(lossy), routed({"r": way}, 7))
    )
    first, second = (proof(prove(old), stage) for stage in losses)
    assert (4, 4, True) == (first.packets, first.counted, first.holds)
    assert (None, "fwd_prerouting has its packets on this kernel") == (second.packets, second.why)
    assert (7, 0) == tuple(proof(prove(new), stage).counted for stage in losses)


@pytest.mark.parametrize("stage", ["udp_filter", "udp_memory"])
def test_an_interval_that_holds_what_was_lost_is_right(stage: str) -> None:
    """Before Linux 5.11 two stages are counted together; too few errors are wrong there as well."""
    for errors, expected in ((97, (97, True)), (90, (90, False))):
        moves = {"right": {"snmp.Udp.InErrors": errors, "socket.77.drops": errors}}
        of_stage = proof(prove(lacking("snmp.Udp.MemErrors", losing(stage, moves))), stage)
        assert expected == (of_stage.counted, of_stage.holds)


def test_a_trial_that_was_skipped_proves_nothing() -> None:
    """Its reason is kept; without any other the ledger is not believed."""
    skipped = replace(
        build.record(of=build.trial(losses={"rx_xdp": 100})),
        status="skipped",
        error=RecordedError("unavailable", "no right to load programs"),
    )
    selftest = prove(skipped)
    assert StageProof("rx_xdp", 4, None, why="no right to load programs") == proof(
        selftest, "rx_xdp"
    )
    assert ((), CANNOT_TELL) == (missing(selftest), exit_code(selftest))
    beside = prove(skipped, losing("udp_no_port", NO_PORT))
    assert (True, YES) == (is_believable(beside), exit_code(beside))


def test_a_trial_that_failed_leaves_its_stages_missing() -> None:
    """Each of them, of its IP version: the kernel may count there or not."""
    no_cpus = RecordedError("SettingRefused", "napi_cpus: No such file", "receiver")
    six = {"rx_tc": 101, "udp_no_port": 102}
    traffic = replace(build.trial().traffic, family=6)
    failed = replace(
        build.record(of=build.trial(losses=six, traffic=traffic)), status="failed", error=no_cpus
    )
    selftest = prove(failed, losing("udp_no_port", NO_PORT))
    expected = tuple(StageProof(stage, 6, None, why=no_cpus.message, failed=True) for stage in six)
    assert expected == missing(selftest)
    assert (False, False, CANNOT_TELL) == (
        is_complete(selftest),
        is_believable(selftest),
        exit_code(selftest),
    )
    wrong = prove(failed, losing("udp_no_port", {}))
    assert (False, NO) == (is_complete(wrong), exit_code(wrong))


def test_a_trial_without_a_measured_phase_is_missing_too() -> None:
    """It ended as done, and says nothing."""
    empty = replace(build.record(of=build.trial(losses={"rx_tc": 100})), phases=())
    assert ["rx_tc"] == [each.stage for each in missing(prove(empty))]


def test_why_reasons_are_not_counted_is_kept() -> None:
    """As the host refused it."""
    refused = Change(Setting("explain", "drops", True), None, None, "no BTF")
    record = replace(losing("udp_no_port", NO_PORT), changes={"right": (refused,)})
    assert "no BTF" == prove(record).unexplained
    assert None is prove(losing("udp_no_port", NO_PORT)).unexplained


def test_without_any_host_nothing_was_tried(golden: Any) -> None:
    """It says why."""
    failed = replace(build.record(), facts={}, error=RecordedError("x", "no unshare"))
    with golden.raises(CannotTell):
        prove(failed)
    with golden.raises(CannotTell):
        prove()


def silent(stage: str, counted: int | None = 0, **changes: Any) -> StageProof:
    """Return the proof that no counter of a stage moves."""
    plain = StageProof(stage, 4, 100, counted, 100, driver="veth")
    return replace(plain, **changes)


def at(record: TrialRecord, stage: str) -> int | None:
    """Return a ledger's packets at a stage."""
    return next(entry.packets for entry in ledger_of(record).entries if entry.stage == stage)


def test_a_stage_proven_not_to_move_is_not_observable() -> None:
    """Not 0; and what it lost stays unaccounted in the built-in lab."""
    record = build.record(1000, 990)
    assert 0 == at(record, "udp_no_port")
    assert None is at(proven(record, silent("udp_no_port")), "udp_no_port")
    assert 10 == ledger_of(proven(record, silent("udp_no_port"))).unaccounted


@pytest.mark.parametrize(
    "proofs",
    [
        (silent("udp_no_port", counted=100),),
        (silent("udp_no_port", family=6),),
        (silent("udp_no_port", packets=None),),
        (silent("udp_rcvbuf"),),
        (),
    ],
)
def test_nothing_else_makes_it_unobservable(proofs: tuple[StageProof, ...]) -> None:
    """Neither a proof that it moves, nor one of the other IP version, of no try, of another."""
    assert 0 == at(proven(build.record(1000, 990), *proofs), "udp_no_port")


def test_what_moved_all_the_same_is_counted() -> None:
    """Only a 0 proves nothing."""
    record = build.lossy(1000, {"right": {"snmp.Udp.NoPorts": 7}}, 7)
    assert 7 == at(proven(record, silent("udp_no_port")), "udp_no_port")


def test_a_drivers_counter_is_proven_for_that_driver_alone() -> None:
    """A veth's silence says nothing of a card's."""
    record = proven(build.record(1000, 990), silent("tx_device"))
    assert None is at(record, "tx_device")
    card = replace(record.facts["left"], driver="igb")
    assert 0 == at(replace(record, facts={**record.facts, "left": card}), "tx_device")


def test_on_shared_hosts_a_silent_stage_may_have_the_loss() -> None:
    """Together with the others that are not observable; nothing remains unaccounted."""
    record = replace(build.record(1000, 990), built_in_lab=False)
    ledger = ledger_of(proven(record, silent("udp_no_port")))
    assert {"link", "udp_no_port"} == set(unobserved(ledger))
    assert (10, 10, 0) == (
        lost_at_any(ledger, unobserved(ledger)).low,
        lost_at_any(ledger, unobserved(ledger)).high,
        ledger.unaccounted,
    )


def test_what_remains_is_named_by_the_kernels_reasons(golden: Any) -> None:
    """With explain; without it, the finding says how to have them."""
    of = build.trial(explain=True)
    reasons_moved = {"right": {"reason.PROTO_MEM": 217, "reason.NO_SOCKET": 5}}
    no_port = {"snmp.Udp.NoPorts": 5, **reasons_moved["right"]}
    for record in (
        build.record(1000, 783),
        build.record(1000, 783, of=of, moves={"right": {"reason.PROTO_MEM": 0}}),
        build.lossy(1000, {"right": no_port}, 222, of=of),
        build.lossy(1000, {"right": {"reason.A": 3, "reason.B": 4}}, 7, of=of),
        build.record(1000, 1003, of=of, moves=reasons_moved),
    ):
        findings = judge(record).findings
        golden.check([finding for finding in findings if finding.what.startswith("unaccounted")])

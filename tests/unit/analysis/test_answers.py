"""Answers of a program: a packet without one is lost, in the program or on the way back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from analysis import build
from udpbench.analysis.judge import judge
from udpbench.analysis.ledger.ledger import make_ledger
from udpbench.analysis.readings import readings_of
from udpbench.model.experiment import Answers, Receive, Traffic
from udpbench.model.record import TrialRecord
from udpbench.model.result import LedgerEntry

PROGRAM = Receive(command=("./server",))
WITH_ANSWERS = Traffic(answers=Answers())


def answered(
    packets: int, sent: int = 1000, read: int = 1000, **moves: Mapping[str, int]
) -> TrialRecord:
    """Return a trial whose program read and answered so many; ``out``: the answers it sent."""
    out = moves.pop("out", {"snmp.Udp.OutDatagrams": packets})
    counts = {"answered_packets": packets, "answer_first_ns": build.START_NS + 10**6}
    counts |= {"answer_last_ns": build.START_NS + 10**6 + build.SECOND_NS}
    counts |= {"answer_first_packets": 1, "answered_bytes": packets * 64}
    workers = (
        build.worker("sender", build.sender_counts(sent, **counts)),
        build.worker("receiver", build.receiver_counts(read)),
    )
    right = {"snmp.Udp.InDatagrams": read, **out, **moves.pop("right", {})}
    all_moves = {"right": right, **moves}
    of = build.trial(traffic=WITH_ANSWERS, receive=PROGRAM)
    return build.record(sent, read, of=of, workers=workers, moves=all_moves)


def moved(record: TrialRecord) -> dict[str, LedgerEntry]:
    """Return the entries of the ledger that hold packets."""
    measured = readings_of(record)
    assert measured is not None
    return {entry.stage: entry for entry in make_ledger(measured).entries if entry.packets}


def numbers(record: TrialRecord) -> tuple[Any, ...]:
    """Return answered, lost, the ledger's received and what is unaccounted."""
    result = judge(record)
    return (
        result.answered_packets,
        result.lost_packets,
        result.ledger_received_packets,
        result.unaccounted,
    )


def test_an_answer_for_each_packet_loses_none() -> None:
    """What was read remains what it was, and answers have a rate by the sender's clock."""
    result = judge(answered(1000))
    assert (1000, 0, 1000, 0) == numbers(answered(1000))
    assert (1000, 0.0, True) == (result.received_packets, result.loss_ratio, result.valid)
    assert result.answered_pps == pytest.approx(999)


def test_without_answers_nothing_changes() -> None:
    """No number of theirs, and 0 at their stages."""
    record = build.record()
    result = judge(record)
    assert (None, None, 0) == (result.answered_packets, result.answered_pps, result.lost_packets)
    assert {} == moved(record)


def test_what_was_read_and_not_answered_is_a_stage() -> None:
    """By what left the receiver."""
    record = answered(960, read=990, right={"snmp.Udp.RcvbufErrors": 10, "snmp.Udp.InErrors": 10})
    entries = moved(record)
    assert {"udp_rcvbuf": 10, "app_unanswered": 30} == {n: e.packets for n, e in entries.items()}
    assert (960, 40, 960, 0) == numbers(record)
    assert 0.04 == judge(record).loss_ratio
    assert "Δ snmp.Udp.OutDatagrams" in entries["app_unanswered"].source


BACK = {"snmp.Udp.RcvbufErrors": 7, "snmp.Udp.InErrors": 7, "snmp.Udp.NoPorts": 3}


def test_answers_are_lost_on_the_way_back() -> None:
    """At stages of that way, by the counters of the sender's host; none is one of the way out."""
    record = answered(990, out={"snmp.Udp.OutDatagrams": 1000}, left=BACK)
    entries = moved(record)
    assert {"answer_lost": 10} == {name: entry.packets for name, entry in entries.items()}
    assert {"udp_rcvbuf": 7, "udp_no_port": 3} == entries["answer_lost"].parts
    assert (990, 10, 990, 0) == numbers(record)


@pytest.mark.parametrize(("counted", "refused"), [(990, 10), (1000, 0)])
def test_answers_that_the_device_drops_at_once_were_sent(counted: int, refused: int) -> None:
    """Whether this kernel counts them as sent or as errors of the buffer."""
    right = {"link.receive0.tx_dropped": 10, "snmp.Udp.SndbufErrors": refused}
    record = answered(990, out={"snmp.Udp.OutDatagrams": counted}, right=right)
    entries = moved(record)
    assert {"answer_lost": 10} == {name: entry.packets for name, entry in entries.items()}
    assert {"tx_device": 10} == entries["answer_lost"].parts
    assert (990, 10, 990, 0) == numbers(record)


def test_answers_that_no_counter_has_are_unaccounted() -> None:
    """Sent, by the kernel, and neither here nor there."""
    record = answered(990, out={"snmp.Udp.OutDatagrams": 1000})
    assert (990, 10, 990, 10) == numbers(record)
    assert not judge(record).valid


def test_a_host_that_does_not_count_what_it_sends() -> None:
    """What was not answered is not observable then."""
    record = answered(1000, out={})
    measured = readings_of(record)
    assert measured is not None
    (entry,) = (e for e in make_ledger(measured).entries if e.stage == "app_unanswered")
    assert entry.packets is None


def test_on_hosts_that_others_use_both_are_intervals() -> None:
    """Others send datagrams, too; what was read and not answered is known all the same."""
    out = {"snmp.Udp.OutDatagrams": 5000}
    record = replace(answered(960, out=out), built_in_lab=False)
    measured = readings_of(record)
    assert measured is not None
    entries = {e.stage: e for e in make_ledger(measured).entries}
    unanswered = [entries[name] for name in ("app_unanswered", "answer_lost")]
    assert [40, 40] == [entry.at_most for entry in unanswered]
    assert (960, 40, 960, 0) == numbers(record)

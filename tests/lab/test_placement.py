"""Flows and CPUs that follow from RX queues, on real namespaces."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from test_several import conducted

from udpbench.analysis.delta import deltas
from udpbench.analysis.queue_counters import carrying, queue_packets, sent_flows
from udpbench.definition.load import load_lab
from udpbench.model.record import TrialRecord

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]
FOUR_QUEUES = {"receiver": {"link": {"queues": 4, "cpus": 0}}}


def measured(folder: Path, **keys: Any) -> TrialRecord:
    """Return the record of a short trial on a link of four queues, all served by CPU 0."""
    loaded = {"rate": "480pps", **keys.pop("traffic", {})}
    _, record, _ = conducted(
        folder, load_lab("local"), traffic=loaded, settings=FOUR_QUEUES, **keys
    )
    return record


def used_queues(record: TrialRecord) -> tuple[int, ...]:
    """Return the receiver's queues that carried the measured phase."""
    phase = record.phases[-1]
    facts = record.facts["receiver"]
    packets = queue_packets(facts, deltas(phase.before["receiver"], phase.after["receiver"]))
    assert packets is not None
    return carrying(packets, sent_flows(record.workers))


def test_kept_flows_alone_are_sent_and_fill_two_queues(tmp_path: Path) -> None:
    """Some of sixteen are kept; each of these was sent, and nothing else."""
    flows = {"from": "65400-65415", "queues": 2}
    record = measured(tmp_path, traffic={"flows": flows})
    assert "done" == record.status, record.error
    sender, receiver = record.workers
    assert sender.flows == receiver.flows
    assert 2 <= len(sender.flows) < 16
    sent = {flow.flow: flow.packets for flow in record.phases[-1].flows["sender"]}
    assert {flow.flow for flow in sender.flows} == set(sent)
    assert min(sent.values()) > 0
    assert 2 == len(used_queues(record))
    arrived = {flow.flow: flow.packets for flow in record.phases[-1].flows["receiver"]}
    assert sent == {flow: count for flow, count in arrived.items() if count > 0}


def test_a_receiver_runs_on_the_cpu_of_its_queue(tmp_path: Path) -> None:
    """It was prepared anew there once the path phase had told which queue that is."""
    record = measured(tmp_path, receive={"cpus": "same-cpu"})
    assert "done" == record.status, record.error
    (queue,) = used_queues(record)
    (receiver,) = (worker for worker in record.workers if worker.role == "receiver")
    assert (receiver.cpu,) == record.facts["receiver"].queue_cpus[str(queue)]
    (stats,) = (stats for stats in record.phases[-1].stats if stats.role == "receiver")
    assert (receiver.cpu,) == stats.cpus_seen

"""Several hosts of a role on real namespaces and a real bridge, and workers as processes."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from sampled import sampled

from udpbench.analysis.clock_offsets import since_start_ns
from udpbench.analysis.judge import judge
from udpbench.analysis.rates import host_of
from udpbench.analysis.readings import readings_of
from udpbench.control.plan import rehearse
from udpbench.control.run import Outcome, RunOptions, run
from udpbench.definition.load import load_experiment_data, load_lab
from udpbench.host_settings import Settings
from udpbench.model.lab import Lab
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import TrialRecord
from udpbench.model.result import Progress, Result
from udpbench.records.reader import read_run
from udpbench.records.run import RunHeader, now_utc
from udpbench.records.writer import RunWriter

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]

TINY = {"question": "Does it run?", "duration": "500ms", "warmup": "100ms", "repetitions": 1}


def conducted(
    folder: Path, lab: Lab, tell: Any = lambda _: None, **keys: Any
) -> tuple[Outcome, TrialRecord, Result]:
    """Return how a run of one trial ended, its record and its result."""
    experiment = load_experiment_data({**TINY, **keys}, "tiny")
    header = RunHeader("test", now_utc(), (), 1, lab.name, lab.text, (experiment,))
    writer = RunWriter.create(folder, header)
    outcome = run([experiment], lab, writer, tell, RunOptions(seed=1, lease_ns=2 * SECOND_NS))
    records = read_run(folder).records
    assert records, outcome
    return outcome, records[-1], judge(records[-1])


def entries(result: Result) -> dict[str, int | None]:
    """Return the stages of a ledger that are not 0."""
    assert result.ledger is not None, result.findings
    return {entry.stage: entry.packets for entry in result.ledger.entries if entry.packets != 0}


def packets(result: Result) -> dict[str, int]:
    """Return worker → packets."""
    return {worker.worker: worker.packets for worker in result.workers}


def test_two_senders_and_one_receiver(tmp_path: Path) -> None:
    """The rate is the total over both, each sends its half, and every packet has an entry."""
    keys = {"traffic": {"rate": "400pps", "count": "201"}, "duration": "5s"}
    outcome, record, result = conducted(tmp_path, load_lab("two-senders"), **keys)
    judged = (outcome.exit_code, result.status, result.unaccounted)
    assert (0, "done", 0) == judged, (packets(result), entries(result), result.findings)
    assert {
        "left.sender0": 101,
        "middle.sender0": 100,
        "right.receiver0": 201,
    } == packets(result)
    assert {} == entries(result)
    hosts = {"left", "middle", "right", "bridge", "machine"}
    assert hosts == set(record.changes)
    assert {host: host for host in hosts} == {
        host: snapshot.host for host, snapshot in record.phases[-1].after.items()
    }
    flows = {flow.flow: flow.packets for flow in record.phases[-1].flows["right"]}
    assert {0: 101, 1: 100} == flows
    measured = readings_of(record)
    assert measured is not None
    last_ns = {
        sample.worker: since_start_ns(measured.phase, host_of(sample.worker), sample.clock_ns)
        for sample in record.series
    }
    assert {"left.sender0", "middle.sender0", "right.receiver0"} == set(last_ns)
    assert min(last_ns.values()) > 0


@pytest.mark.long
def test_one_sender_and_two_receivers(tmp_path: Path) -> None:
    """Addresses are of each receiver, which gets its own flows and no other's."""
    keys = {
        "traffic": {
            "rate": "400pps",
            "count": "200",
            "flows": {"to": "receiver.addresses[1-2]:4321"},
        },
        "duration": "5s",
    }
    _, record, result = conducted(tmp_path, load_lab("two-receivers"), **keys)
    assert ("done", 0) == (result.status, result.unaccounted), result.findings
    assert {
        "left.sender0": 200,
        "middle.receiver0": 100,
        "right.receiver0": 100,
    } == packets(result)
    flows = record.phases[-1].flows
    assert {0: 50, 1: 50, 2: 0, 3: 0} == {
        number: sum(flow.packets for flow in flows["middle"] if flow.flow == number)
        for number in range(4)
    }
    assert {2: 50, 3: 50} == {flow.flow: flow.packets for flow in flows["right"] if flow.packets}


@pytest.mark.parametrize("lab", sampled(["two-senders", "two-receivers"], ["two-senders"]))
@pytest.mark.parametrize("receive", sampled(["napi", "rps", "inline"], ["napi"]))
def test_under_overload_the_ledger_closes(tmp_path: Path, lab: str, receive: str) -> None:
    """Whoever does the receive work, what was lost has its place, and nothing remains."""
    settings = {"receiver": {"link": {"receive": receive}}}
    keys = {"settings": settings, "traffic": {"flows": {"from": "65400-65403"}}}
    _, _, result = conducted(tmp_path, load_lab(lab), send={"workers": 2}, **keys)
    assert ("done", 0) == (result.status, result.unaccounted), result.findings
    assert result.sent_packets is not None
    assert result.sent_packets > 1000
    if receive == "napi":
        # The ring of 256 behind the port is full while the receiver's CPU reads.
        assert (entries(result).get("link") or 0) > 0
    assert "tx_device" not in entries(result)


@pytest.mark.long
def test_loss_at_two_receivers_is_summed_and_findings_name_the_host(tmp_path: Path) -> None:
    """Slow readers lose at their sockets; each host has settings of its own."""
    lab = load_lab("two-receivers")
    right = replace(lab.receivers[1], settings=Settings(txqueuelen_packets=77))
    lab = replace(lab, hosts=(*lab.hosts[:-1], right))
    keys = {"receive": {"work": "200us", "buffer": "16KiB"}, "traffic": {"rate": "10kpps"}}
    _, record, result = conducted(tmp_path, lab, **keys)
    assert ("done", 0) == (result.status, result.unaccounted), result.findings
    assert (entries(result)["udp_rcvbuf"] or 0) > 0
    own = {
        host: [change.after for change in changes if change.setting.kind == "txqueuelen"]
        for host, changes in record.changes.items()
    }
    assert {"left": [], "middle": [], "right": [77], "bridge": [], "machine": []} == own


@pytest.mark.long
def test_a_closed_port_behind_a_bridge_is_explained(tmp_path: Path) -> None:
    """ICMP comes back over the bridge and disturbs no entry."""
    keys = {"receive": {"workers": 0}, "path_check": "explained", "traffic": {"rate": "400pps"}}
    _, _, result = conducted(tmp_path, load_lab("two-senders"), **keys)
    assert ("done", 0) == (result.status, result.unaccounted), result.findings
    assert {"udp_no_port": result.sent_packets} == {
        stage: count for stage, count in entries(result).items() if stage != "unsent"
    }


@pytest.mark.parametrize("lab", sampled(["two-senders", "two-receivers"], ["two-senders"]))
def test_a_plan_tries_every_setting_on_a_bridge_of_its_own(lab: str) -> None:
    """Nothing is refused, and what the bridge's agent makes is listed under its name."""
    (rehearsed,) = rehearse([load_experiment_data(TINY, "tiny")], load_lab(lab))
    refusals = [entry.refusal for planned in rehearsed.hosts.values() for entry in planned]
    assert {None} == set(refusals)
    targets = [
        planned.setting.target for planned in rehearsed.hosts["bridge"] if planned.now is None
    ]
    links = ["port1", "port2", "port3"]
    assert [*links, "bridge0", *links] == targets


def test_a_bridge_that_dies_ends_the_run(tmp_path: Path) -> None:
    """Its loss takes every pair along; the trial is recorded as failed, and nothing is left."""
    family: list[psutil.Process] = []
    before = psutil.Process().children(recursive=True)

    def tell(progress: Progress) -> None:
        if progress.event == "phase" and "measured" in progress.text:
            now = psutil.Process().children(recursive=True)
            family.extend(each for each in now if each not in before)
            bridge = [line for line in hosts if line.startswith("bridge: agent ")]
            os.kill(int(bridge[0].split()[2]), signal.SIGKILL)
        if progress.event == "host":
            hosts.append(progress.text)

    hosts: list[str] = []
    lab = load_lab("two-senders")
    outcome, record, _ = conducted(tmp_path, lab, tell, duration="30s", traffic={"rate": "1kpps"})
    assert (3, "failed") == (outcome.exit_code, record.status)
    assert record.error is not None
    gone, alive = psutil.wait_procs(family, timeout=10)
    assert (True, []) == (len(gone) > 5, alive)


def test_workers_as_processes_lose_no_packet_from_the_ledger(tmp_path: Path) -> None:
    """Two sending and two reading processes: exact counts, and the memory of each."""
    keys = {
        "send": {"workers": 2, "workers_as": "processes"},
        "receive": {"workers": 2, "workers_as": "processes"},
        "traffic": {"flows": {"from": "65400-65403"}},
    }
    _, record, result = conducted(tmp_path, load_lab("local"), **keys)
    assert ("done", 0) == (result.status, result.unaccounted), result.findings
    assert 4 == sum(count > 0 for count in packets(result).values())
    assert [True] * 4 == [(worker.memory_bytes or 0) > 2**20 for worker in result.workers]
    flows = record.phases[-1].flows
    assert result.received_packets == sum(flow.packets for flow in flows["receiver"])
    assert result.sent_packets == sum(flow.packets for flow in flows["sender"])

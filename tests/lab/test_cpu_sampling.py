"""CPU time on this kernel: sampled in a run of the built-in lab and of a live host, and it adds up."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from udpbench.analysis.diagnosis import RULE_NS
from udpbench.control import phase
from udpbench.control.run import RunOptions, run
from udpbench.definition.load import load_experiment_data, load_lab
from udpbench.judged_run import Chapter, judged
from udpbench.model.result import Result
from udpbench.records.reader import read_run
from udpbench.records.run import new_header
from udpbench.records.writer import RunWriter

pytestmark = [pytest.mark.quiet, pytest.mark.lab]


def measured(folder: Path, lab_name: str = "local", **keys: Any) -> Chapter:
    """Return an experiment of a second, with its CPUs sampled."""
    data = {
        "question": "Where does the CPU time go?",
        "traffic": {"size": "64B", "rate": "30kpps"},
        "send": {"pace": "sleep"},
        "cpu_time": True,
        "duration": "1500ms",
        "warmup": "100ms",
        "repetitions": 1,
        **keys,
    }
    experiment, lab = load_experiment_data(data, "cost"), load_lab(lab_name)
    header = new_header([experiment], lab, ("test",))
    writer = RunWriter.create(folder, header)
    outcome = run([experiment], lab, writer, lambda _: None, RunOptions(header.seed))
    assert outcome.error is None
    (chapter,) = judged([experiment], read_run(folder).records)
    return chapter


def test_each_nanosecond_of_the_lab_has_an_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ends, by stages that the packets really pass; little is unattributed.

    At 999 Hz the shortest of them, some 100 ns of a packet, has 5 samples, and none now and then.
    """
    monkeypatch.setattr(phase, "CPU_FREQUENCY", 4987)
    (result,) = measured(tmp_path / "run").results
    cpu_time = result.cpu_time
    assert cpu_time is not None, result.findings
    at = {(cost.end, cost.stage) for cost in cpu_time.costs}
    assert {("sender", "tx_udp"), ("receiver", "rx_udp"), ("receiver", "rx_read")} <= at
    for balance in cpu_time.balances:
        if not balance.struck:
            assert balance.unattributed_ns <= 0.05 * balance.sampled_busy_ns + 3 * 10**6
        parts = sum(e.time_ns for e in cpu_time.entries if e.cpu == balance.cpu)
        assert balance.wall_ns == pytest.approx(parts + balance.idle_ns, rel=1e-6)


def test_work_of_a_known_length_is_the_applications(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that works 20 us on each datagram spends them in its own code.

    As sampled: what that is scaled by, the kernel's idle time, is off by up to the whole of what a
    balance allows, a tenth of the busy time here.
    """
    monkeypatch.setattr(phase, "CPU_FREQUENCY", 4987)
    traffic = {"size": "64B", "rate": "10kpps"}
    (result,) = measured(tmp_path / "run", receive={"work": "20us"}, traffic=traffic).results
    assert 20_000 == pytest.approx(sampled_ns(result)["receiver", "rx_application"], rel=0.15)


def sampled_ns(result: Result) -> dict[tuple[str, str], float]:
    """Return who has time at which stage → its nanoseconds for each packet sent, as sampled."""
    assert result.cpu_time is not None, result.findings
    times: Counter[tuple[str, str]] = Counter()
    for entry in result.cpu_time.entries:
        times[entry.end, entry.stage] += entry.sampled_ns
    packets = result.numbers["sent_packets"] or 0
    return {whose: ns / packets for whose, ns in times.items()}


def test_rules_that_a_router_has_are_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand in FORWARD take microseconds of each packet there, and at no other stage of it."""
    monkeypatch.setattr(phase, "CPU_FREQUENCY", 4987)
    results = measured(
        tmp_path / "run",
        "router",
        traffic={"size": "64B", "rate": "10kpps"},
        settings={"middle": {"firewall": {"udp": 4321, "accept": True}}},
        variants={
            "without": {},
            "with": {"settings.middle.firewall": {"udp": 4321, "rules": 1000}},
        },
    ).results
    times = {result.trial.point: sampled_ns(result) for result in results}
    before, after = times["without"], times["with"]
    assert {"sender", "router1", "receiver"} == {whose for whose, _ in after}
    assert {"fwd_ip", "fwd_device"} <= {stage for whose, stage in after if whose == "router1"}
    rules = "router1", "fwd_netfilter"
    more_ns = after[rules] - before.get(rules, 0.0)
    assert more_ns > 1000 * RULE_NS
    # A device's time has the wake-up of the CPU behind it: 0.5 us if that is awake, else 11 to 22.
    apart = rules, ("router1", "fwd_device")
    others = (whose for whose in after if whose[0] == "router1" and whose not in apart)
    assert all(after[each] - before.get(each, 0.0) < more_ns / 4 for each in others)
    for result in results:
        assert result.cpu_time is not None
        for balance in result.cpu_time.balances:
            parts = sum(e.time_ns for e in result.cpu_time.entries if e.cpu == balance.cpu)
            assert balance.wall_ns == pytest.approx(parts + balance.idle_ns, rel=1e-6)


@pytest.mark.parametrize(
    ("lab", "whose", "stage"),
    [("nat", "router1", "fwd_conntrack"), ("two-routers", "nodes", "fwd_ip")],
)
def test_what_nodes_forward_is_theirs(
    lab: str, whose: str, stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by its name; of two on the same CPUs none, as nothing tells them apart."""
    monkeypatch.setattr(phase, "CPU_FREQUENCY", 4987)
    (result,) = measured(tmp_path / "run", lab, traffic={"size": "64B", "rate": "20kpps"}).results
    times = sampled_ns(result)
    assert {"sender", whose, "receiver"} == {each for each, _ in times}
    assert times[whose, stage] > 0


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="both ends and a node need a CPU each")
def test_a_cpu_that_only_a_router_has_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what comes before ip_forward, and all else that runs there."""
    monkeypatch.setattr(phase, "CPU_FREQUENCY", 4987)
    ends, own = sorted(os.sched_getaffinity(0))[:2]
    text = (Path(__file__).parents[2] / "experiments" / "labs" / "router.yaml").read_text()
    for interface in ("send0", "receive0"):
        text = text.replace(f"interface: {interface},", f"interface: {interface}, cpus: {ends},")
    rules = f"cpus: {own}, settings: {{rps: {{cpus: {own}}}, firewall: {{udp: 4321, rules: 1000}}}}"
    text = text.replace(
        "- name: router1", "\n    ".join(("- name: router1", *rules.split(", ", 1)))
    )
    (tmp_path / "own.yaml").write_text(text)
    (result,) = measured(
        tmp_path / "run", str(tmp_path / "own.yaml"), traffic={"size": "64B", "rate": "10kpps"}
    ).results
    assert result.cpu_time is not None, result.findings
    assert {"router1"} == {each.end for each in result.cpu_time.entries if each.cpu == own}
    stages = {each.stage for each in result.cpu_time.entries if each.cpu == own}
    assert {"rx_ip", "fwd_netfilter"} <= stages
    assert not [each for each in sampled_ns(result) if each[0] != "router1" and "fwd" in each[1]]


def test_a_live_host_is_sampled_by_who_only_looks(tmp_path: Path) -> None:
    """The observer samples before it gives up its rights; its reader's time is at its stages."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as reader:
        reader.bind(("127.0.0.1", 0))
        port = reader.getsockname()[1]
        load = (
            "import socket\n"
            "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            f"while True: s.sendto(b'x' * 64, ('127.0.0.1', {port}))\n"
        )
        with subprocess.Popen([sys.executable, "-c", load]) as sender:
            words = ("watch", "--cpu-time", "2s", "--json")
            done = subprocess.run(
                [sys.executable, "-m", "udpbench", *words],
                capture_output=True,
                text=True,
                check=False,
                cwd=tmp_path,
                env={**os.environ},
                timeout=60,
            )
            sender.kill()
    print(done.stdout[-4000:], done.stderr)
    assert done.returncode in (0, 1), done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])["cpu_time"]
    stages = {row["stage"]: row["share"] for row in rows}
    assert stages.get("rx_udp", 0.0) > 0.01

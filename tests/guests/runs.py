"""What the tests share: a run from guest to guest, a command on a guest, and the switches' drops."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from udpbench.model.record import Phase, TrialRecord
from udpbench.records.reader import read_run

PATIENT = Path(__file__).with_name("patient.py")
STARTED: list[subprocess.Popen[str]] = []
"""Runs; what a failed test leaves of them is interrupted (conftest)."""
GUESTS = os.environ.get("UDPBENCH_GUESTS", "").split(",")
"""The processes of the sender and the receiver."""
NEEDED = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(GUESTS == [""], reason="python3 noxfile.py guests"),
]
LAB = """
sender:
  - {{name: left, connect: {{ssh: left}}, interface: {kind}0, addresses: [192.168.254.30/24]}}
receiver:
  - {{name: right, connect: {{ssh: right}}, interface: {kind}0, addresses: [192.168.254.1-20/24]}}
"""
PACED = """
question: What does the switch drop?
traffic:
  size: 32B
  rate: {rate}
  count: {count}
  flows: {{from: 65400-65415, to: "receiver.addresses[1]:4321"}}
send: {{pace: sleep, bucket: 1s}}
duration: 60s
warmup: 0s
repetitions: 1
settings: {{receiver: {{ethtool: {ethtool}}}}}
"""
EVERY = 7
FAULTY = f"""
table bridge faulty {{
    set dropped {{ typeof @th,64,32; size 64; flags dynamic; counter; }}
    chain forward {{
        type filter hook forward priority 0;
        ether type ip udp dport 4321 numgen inc mod {EVERY} == 0 update @dropped {{ @th,64,32 }} drop
    }}
}}
"""
"""Drops of the traffic's port alone, and counts by the first word of a datagram, its phase's tag."""


def nft(*words: str, stdin: str = "") -> str:
    """Return what nft prints in the namespace of the switches."""
    command = ["nft", *words]
    return subprocess.run(command, input=stdin, text=True, check=True, capture_output=True).stdout


def dropped_packets(phase: Phase) -> int:
    """Return what the switch dropped in one phase, as it counted itself."""
    listed = nft("list", "table", "bridge", "faulty")
    counted = re.findall(r"(0x[0-9a-f]+) counter packets (\d+)", listed)
    return {int(tag, 16): int(packets) for tag, packets in counted}.get(phase.tag, 0)


def on(guest: str, command: str) -> str:
    """Return what a command prints on a guest."""
    ssh = Path.home() / ".ssh"
    known = f"UserKnownHostsFile={ssh / 'known_hosts'}"
    words = ["ssh", "-F", ssh / "config", "-o", known, guest, command]
    return subprocess.run(words, text=True, check=True, capture_output=True).stdout


def tap_frames(tap: str) -> tuple[int, int]:
    """Return how many frames a tap took from its guest, and how many were sent to the guest."""
    lines = (line.partition(":") for line in Path("/proc/net/dev").read_text().splitlines())
    (numbers,) = (numbers.split() for name, _, numbers in lines if name.strip() == tap)
    return int(numbers[1]), int(numbers[9])


def paced(ethtool: str = "{}", rate: str = "1kpps", count: int = 3000) -> str:
    """Return an experiment with settings of the receiver's card."""
    return PACED.format(rate=rate, count=count, ethtool=ethtool)


def measure(
    folder: Path, kind: str, ethtool: str = "{}", rate: str = "1kpps", count: int = 3000
) -> TrialRecord:
    """Return the record of a paced run over a kind of card."""
    (record,) = records(folder, start(folder, kind, paced(ethtool, rate, count)))
    return record


def start(folder: Path, kind: str, experiment: str, lease: str = "60s") -> subprocess.Popen[str]:
    """Return a run over a kind of card that has begun; it says all on stdout."""
    (folder / "lab.yaml").write_text(LAB.format(kind=kind))
    (folder / "mine.yaml").write_text(experiment)
    words = ("mine.yaml", "--lab", "lab.yaml", "--lease", lease, "--no-report", "--out", "run")
    run = subprocess.Popen(
        [sys.executable, PATIENT, "run", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    STARTED.append(run)
    return run


def records(folder: Path, run: subprocess.Popen[str]) -> tuple[TrialRecord, ...]:
    """Return what a run has recorded that ended well, whether or not all of it is valid."""
    output, _ = run.communicate()
    assert run.returncode in (0, 5), output
    return read_run(folder / "run").records


def await_words(run: subprocess.Popen[str], words: str) -> None:
    """Wait until a run has said some words."""
    assert run.stdout is not None
    output = ""
    while words not in output:
        line = run.stdout.readline()
        assert line, output
        output += line


def measured(record: TrialRecord) -> Phase:
    """Return the measured phase."""
    return next(phase for phase in record.phases if phase.name == "measured")


def by_queue(phase: Phase) -> dict[int, int]:
    """Return RX queue → packets in a phase, by the names of the receiver's igb."""
    before, after = phase.before["right"].counters, phase.after["right"].counters
    names = {name: re.fullmatch(r"ethtool.igb0.rx_queue_(\d+)_packets", name) for name in after}
    return {
        int(match[1]): after[name] - before[name]
        for name, match in names.items()
        if match is not None and name in before
    }

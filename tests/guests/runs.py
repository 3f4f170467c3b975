"""What the tests share: a run from guest to guest, a command on a guest, and the switches' drops."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from udpbench.model import Phase, TrialRecord
from udpbench.records import read_run

PATIENT = Path(__file__).with_name("patient.py")
NEEDED = [
    pytest.mark.timeout(900),
    pytest.mark.skipif("UDPBENCH_GUESTS" not in os.environ, reason="python3 noxfile.py guests"),
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


def measure(
    folder: Path, kind: str, ethtool: str = "{}", rate: str = "1kpps", count: int = 3000
) -> TrialRecord:
    """Return the record of a run over a kind of card, with settings of the receiver's."""
    (record,) = records(folder, start(folder, kind, ethtool, rate, count))
    return record


def start(
    folder: Path,
    kind: str,
    ethtool: str = "{}",
    rate: str = "1kpps",
    count: int = 3000,
    names: tuple[str, ...] = ("paced.yaml",),
    lease: str = "60s",
) -> subprocess.Popen[str]:
    """Return a run over a kind of card that has begun; it says all on stdout."""
    (folder / "lab.yaml").write_text(LAB.format(kind=kind))
    (folder / "paced.yaml").write_text(PACED.format(rate=rate, count=count, ethtool=ethtool))
    words = ("run", *names, "--lab", "lab.yaml", "--lease", lease, "--no-report", "--out", "run")
    return subprocess.Popen(
        [sys.executable, PATIENT, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def records(folder: Path, run: subprocess.Popen[str]) -> tuple[TrialRecord, ...]:
    """Return what a run has recorded that ended well."""
    said, _ = run.communicate()
    assert run.returncode in (0, 5), said
    return read_run(folder / "run").records


def await_words(run: subprocess.Popen[str], words: str) -> None:
    """Wait until a run has said some words."""
    assert run.stdout is not None
    said = ""
    while words not in said:
        line = run.stdout.readline()
        assert line, said
        said += line


def measured(record: TrialRecord) -> Phase:
    """Return the measured phase."""
    return next(phase for phase in record.phases if phase.name == "measured")


def moved(phase: Phase, name: str) -> int:
    """Return by how much a counter of the receiver moved in a phase."""
    return phase.after["right"].counters[name] - phase.before["right"].counters[name]

"""What udpbench's own readings cost a receiver beside 10,000 other sockets, while it receives.

Two namespaces, of which that of the receiver has these sockets before a run; the same without any,
in turn. Prints the CPU time of the receiver's agent within the measured phase, as a share of it,
and fails where the sockets add more than BUDGET. Needs root.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from udpbench.control.run import RunOptions, run
from udpbench.definition.load import load_experiment_data, load_lab
from udpbench.model.record import TrialRecord
from udpbench.records.reader import read_run
from udpbench.records.run import RunHeader, now_utc
from udpbench.records.writer import RunWriter

SOCKETS = 10_000
ROUNDS = 5
BUDGET = 0.003
RECEIVER = "receiver"
DEFINITION: dict[str, Any] = {
    "question": "What do readings cost the receiver?",
    "traffic": {"rate": "20kpps"},
    "duration": "10s",
    "warmup": "200ms",
    "repetitions": 1,
    "path_check": "arrive",
}
HOLD = """
import resource, signal, socket, sys
number = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (number + 64, number + 64))
kept = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(number)]
for n, each in enumerate(kept):
    each.bind(("127.0.0.1", 10000 + n))
print(flush=True)
signal.pause()
"""


def ip(words: str) -> None:
    """Configure namespaces and links."""
    subprocess.run(("ip", *words.split()), check=True)


@contextmanager
def lab_file(folder: Path) -> Iterator[Path]:
    """Yield a lab of two namespaces that are there before a run."""
    names = {role: f"crowded-{os.getpid()}-{role}" for role in ("sender", RECEIVER)}
    lines = []
    try:
        for name in names.values():
            ip(f"netns add {name}")
        ip(
            f"link add test0 netns {names['sender']} type veth "
            f"peer name test0 netns {names[RECEIVER]}"
        )
        for n, (role, name) in enumerate(names.items(), start=1):
            ip(f"-n {name} link set lo up")
            lines.append(f"{role}:\n  - connect: {{netns: {name}}}\n    interface: test0")
            lines.append(f"    addresses: [10.77.0.{n}/24]")
        file = folder / "crowded.yaml"
        file.write_text("\n".join(lines) + "\n")
        yield file
    finally:
        for name in names.values():
            subprocess.run(("ip", "netns", "del", name), check=False)


@contextmanager
def sockets(file: Path, number: int) -> Iterator[None]:
    """Hold so many UDP sockets in the receiver's namespace."""
    namespace = load_lab(str(file)).receivers[0].connect.name
    command = ("ip", "netns", "exec", str(namespace), sys.executable, "-c", HOLD, str(number))
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        if not holder.stdout.readline():
            raise SystemExit(f"crowded: {number} sockets could not be opened")
        try:
            yield
        finally:
            holder.send_signal(signal.SIGKILL)


def measured(folder: Path, file: Path) -> TrialRecord:
    """Return the record of a trial."""
    experiment, lab = load_experiment_data(DEFINITION, "crowded"), load_lab(str(file))
    command = ("benchmarks/crowded.py",)
    header = RunHeader("", now_utc(), command, 1, lab.name, lab.text, (experiment,))
    outcome = run(
        [experiment], lab, RunWriter.create(folder, header), lambda _: None, RunOptions(seed=1)
    )
    records = read_run(folder).records
    if not records or records[-1].status != "done":
        raise SystemExit(f"crowded: no trial: {outcome}")
    return records[-1]


def own_share(record: TrialRecord) -> float:
    """Return the CPU time of the receiver's agent and its guardian, as a share of the phase."""
    phase = record.phases[-1]
    ours = {
        host: {each.pid: each.cpu_ns for each in after.processes if each.whose == "run"}
        for host, after in phase.after.items()
    }
    alone = ours[RECEIVER].keys() - ours["sender"].keys()
    time_ns = phase.after[RECEIVER].clock_ns - phase.before[RECEIVER].clock_ns
    return sum(ours[RECEIVER][pid] for pid in alone) / time_ns


def main(rounds: int) -> None:
    """Print the shares, and leave with 1 where the budget is exceeded."""
    shares: dict[int, list[float]] = {0: [], SOCKETS: []}
    with tempfile.TemporaryDirectory() as name, lab_file(Path(name)) as file:
        for n in range(rounds):
            for number, known in shares.items():
                with sockets(file, number):
                    record = measured(Path(name) / f"{n}-{number}", file)
                known.append(own_share(record))
                print(f"{number} sockets: {known[-1]:.3%}; {record.overhead_ns}", file=sys.stderr)
    for number, known in shares.items():
        print(f"{number} other sockets: {median(known):.2%} ({min(known):.2%}–{max(known):.2%})")
    if median(shares[SOCKETS]) - median(shares[0]) > BUDGET:
        raise SystemExit(f"they add more than the budget of {BUDGET:.1%}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)

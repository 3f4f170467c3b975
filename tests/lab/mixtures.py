"""Lose our packets and others' in random mixtures over SSH; each ledger must hold what was lost.

``mixtures.py [SEED] [TRIALS]``, as root: two hundred trials between two namespaces with a real sshd in each.
The firewall counts what it drops of ours at each stage, while another program loses packets of its
own. Prints a line for each trial whose ledger is wrong or invalid, and exits 1 if there is one.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ssh_hosts import NETWORK, Pair, SshHost, pair_of_hosts

from udpbench.analysis.judge import judge
from udpbench.control.run import RunOptions, run
from udpbench.definition.load import load_experiment_data, load_lab
from udpbench.model.experiment import Experiment
from udpbench.model.record import TrialRecord
from udpbench.model.result import Progress, Result
from udpbench.records.reader import read_run
from udpbench.records.run import new_header
from udpbench.records.writer import RunWriter

PORT = 4321
OURS = {
    "link": (0, "netdev", "type filter hook egress device test0 priority 0", "drop"),
    "rx_ip": (
        1,
        "ip",
        "type filter hook prerouting priority -10",
        "ip daddr set 203.0.113.1",
    ),
    "rx_netfilter": (1, "inet", "type filter hook input priority 0", "drop"),
}
"""Stage → host, table, hook, and what a rule does with every n-th packet, in a packet's order."""
READER = "udp_rcvbuf"
"""Lost by a reader that is too slow, and not counted by a rule."""
THEIRS = {
    "udp_no_port": (0, 1, 9),
    "rx_netfilter": (0, 1, 5555),
    "rx_ip": (0, 1, 5556),
    "udp_checksum": (0, 1, 0),
    "udp_rcvbuf": (1, 1, 5557),
    "link": (0, 0, 5558),
}
"""Stage → sending host, the host whose rules it needs, and port (0: a datagram of our own making)."""
RULES = {
    5555: ("inet", "type filter hook input priority 1", "drop"),
    5556: ("ip", "type filter hook prerouting priority 1", "ip daddr set 203.0.113.2"),
    5558: ("netdev", "type filter hook egress device test0 priority 1", "drop"),
}
UNCOUNTED = "link"
"""Nobody counts what others lose there."""
OFTEN_S = 0.01
"""A pause with which others lose several packets in any trial."""
AT_ONCE = 50
"""Trials of one pair of hosts, which ends by itself after HOLD_S."""
SENDING = """
import json, socket, sys, time
to, pauses_s = sys.argv[1], {int(port): s for port, s in json.loads(sys.argv[2]).items()}
plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
full = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
full.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
if 5557 in pauses_s:
    full.bind(("127.0.0.1", 5557))
wrong = bytes.fromhex("0009 0009 0010 0001") + bytes(8)
due = dict.fromkeys(pauses_s, 0.0)
print("ready", flush=True)
while True:
    now = time.monotonic()
    for port, pause_s in pauses_s.items():
        if now < due[port]:
            continue
        due[port] = now + pause_s
        try:
            if port == 0:
                raw.sendto(wrong, (to, 0))
            else:
                plain.sendto(bytes(800), ("127.0.0.1" if port == 5557 else to, port))
        except OSError:
            pass
    time.sleep(0.001)
"""
RECEIVER = f"{NETWORK}.1"


@dataclass(frozen=True)
class Mixture:
    """What is lost in a trial: of ours every n-th packet at a stage, and others' with a pause."""

    every: dict[str, int]
    others_s: dict[str, float]
    data: dict[str, Any]


@dataclass
class Scene:
    """The hosts while a run's trials follow each other, each with its own mixture."""

    pair: Pair
    mixtures: Sequence[Mixture]
    programs: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ready: int = 0
    """Index of the latest trial that the hosts are prepared for."""
    dropped: dict[str, dict[str, int]] = field(default_factory=dict)
    """Name of a trial's experiment → packets that our rules have dropped by stage."""

    def follow(self, progress: Progress) -> None:
        """Prepare the hosts at the first step of a trial, and read the rules after its last."""
        if progress.event == "step" and progress.index is not None and progress.index > self.ready:
            self.ready = progress.index
            assert progress.trial is not None
            self._begin(self.mixtures[int(progress.trial.experiment) - 1])
        if progress.event == "trial" and progress.trial is not None:
            self.dropped[progress.trial.experiment] = self.end()

    def _begin(self, mixture: Mixture) -> None:
        self.end()
        for number, host in enumerate(self.pair.hosts):
            host.run("nft", "".join(rules(number, mixture)) or "list tables")
            pauses_s = {
                THEIRS[stage][2]: pause_s
                for stage, pause_s in mixture.others_s.items()
                if THEIRS[stage][0] == number
            }
            if pauses_s:
                self._send(host, pauses_s)

    def _send(self, host: SshHost, pauses_s: dict[int, float]) -> None:
        """Start a program of somebody else that sends to ports of the receiver."""
        command = host.inside(sys.executable, "-c", SENDING, RECEIVER, json.dumps(pauses_s))
        program = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.programs.append(program)
        assert program.stdout is not None
        with program.stdout:
            assert b"ready\n" == program.stdout.readline()

    def end(self) -> dict[str, int]:
        """End others' programs, then delete the rules; return what ours had dropped."""
        for program in self.programs:
            program.kill()
            program.wait()
        self.programs.clear()
        counted: dict[str, int] = {}
        for host in self.pair.hosts:
            listed = json.loads(host.run("nft", "--json", "list", "ruleset"))["nftables"]
            tables = {
                (entry["table"]["family"], entry["table"]["name"])
                for entry in listed
                if "table" in entry
            }
            for entry in listed:
                counter = entry.get("counter")
                if counter is not None and counter["table"].startswith("ours"):
                    counted[counter["name"]] = counter["packets"]
            for family, name in tables:
                if name.startswith(("ours", "theirs")):
                    host.run("nft", "delete", "table", family, name)
        return counted


def rules(number: int, mixture: Mixture) -> Iterator[str]:
    """Yield the firewall of one host for a mixture, as text for nft."""
    for stage, (host, family, hook, act) in OURS.items():
        if host == number and stage in mixture.every:
            which = f"udp dport {PORT} numgen inc mod {mixture.every[stage]} == 0"
            yield chain(family, f"ours_{stage}", hook, f"{which} counter name {stage} {act}", stage)
    for stage in mixture.others_s:
        _, host, port = THEIRS[stage]
        if host == number and port in RULES:
            family, hook, act = RULES[port]
            yield chain(family, f"theirs_{stage}", hook, f"udp dport {port} {act}")


def chain(family: str, table: str, hook: str, rule: str, counter: str | None = None) -> str:
    """Return a table with one chain of one rule, and a counter if one is named."""
    named = [f"add counter {family} {table} {counter}"] if counter else []
    lines = [
        f"add table {family} {table}",
        *named,
        f"add chain {family} {table} c {{ {hook}; }}",
        f"add rule {family} {table} c {rule}",
    ]
    return "".join(f"{line}\n" for line in lines)


def drawn(chance: random.Random) -> Mixture:
    """Return one mixture: up to three stages of ours, up to three of others'."""
    slow = chance.random() < 0.3
    receive = {"work": "400us", "buffer": "4KiB"} if slow else {}
    data = {
        "question": "What was lost where?",
        "traffic": {
            "size": f"{chance.choice((32, 200, 1400))}B",
            "count": chance.randint(300, 1500),
            "rate": "4kpps",
        },
        "send": {"bucket": "200ms"},
        "receive": receive,
        "explain": chance.random() < 0.4,
        "duration": "10s",
        "warmup": "0s",
        "repetitions": 1,
        "path_check": "explained",
    }
    every = {
        stage: chance.randint(2, 40) for stage in chance.sample(sorted(OURS), chance.randint(0, 3))
    }
    theirs = chance.sample(sorted(THEIRS), chance.randint(0, 3))
    return Mixture(every, {stage: chance.uniform(0.002, 0.05) for stage in theirs}, data)


@contextmanager
def at_home(pair: Pair) -> Iterator[None]:
    """Let ssh find the hosts of a pair."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(pair.home))
        yield


def ran(pair: Pair, seed: int, count: int, folder: Path) -> tuple[list[str], int]:
    """Run random mixtures between two hosts; return what is wrong, and how many trials there were."""
    chance = random.Random(seed)
    mixtures = [drawn(chance) for _ in range(count)]
    experiments = [
        load_experiment_data(mixture.data, f"{number:03d}")
        for number, mixture in enumerate(mixtures, 1)
    ]
    (folder / "lab.yaml").write_text(pair.lab())
    records, scene = _records(pair, experiments, mixtures, seed, folder)
    complaints = [
        complaint(record, judge(record), mixture, scene.dropped[record.trial.experiment])
        for record in records
        for mixture in [mixtures[int(record.trial.experiment) - 1]]
    ]
    return [text for text in complaints if text is not None], len(records)


def _records(
    pair: Pair,
    experiments: Sequence[Experiment],
    mixtures: Sequence[Mixture],
    seed: int,
    folder: Path,
) -> tuple[Sequence[TrialRecord], Scene]:
    lab, scene = load_lab(str(folder / "lab.yaml")), Scene(pair, mixtures)
    writer = RunWriter.create(folder / "run", new_header(experiments, lab, ("mixtures.py",)))
    with at_home(pair):
        try:
            outcome = run(experiments, lab, writer, scene.follow, RunOptions(seed=seed))
        finally:
            scene.end()
    if outcome.error is not None:
        raise outcome.error
    if outcome.interrupted:
        raise KeyboardInterrupt
    return read_run(folder / "run").records, scene


def lost_of_ours(record: TrialRecord, mixture: Mixture, dropped: dict[str, int]) -> dict[str, int]:
    """Return packets of the measured phase that were lost by stage; the path phase came before."""
    sent = {
        phase.name: sum(
            stats.counts["sent_packets"] for stats in phase.stats if stats.role == "sender"
        )
        for phase in record.phases
    }
    left, ours = sent["path"], {}
    for stage in OURS:
        if stage in mixture.every:
            before = -(-left // mixture.every[stage])  # the first of them, too
            ours[stage] = dropped[stage] - before
            left -= before
    return ours


def complaint(
    record: TrialRecord, result: Result, mixture: Mixture, dropped: dict[str, int]
) -> str | None:
    """Return what is wrong with a trial; None where the ledger holds what was lost."""
    name = f"{record.trial.name}: ours every {mixture.every}, others {sorted(mixture.others_s)}"
    ledger = result.ledger
    if ledger is None:
        return f"{name}: {record.status}: {record.error}"
    ours = lost_of_ours(record, mixture, dropped)
    rest = ledger.intended_packets - ledger.received_packets - sum(ours.values())
    ours[READER] = rest
    amiss = [finding.brief for finding in result.findings if finding.severity == "invalid"]
    if rest < 0 or (rest and not mixture.data["receive"]):
        amiss.append(f"{rest} more were lost than planned")
    if ledger.unaccounted != 0:
        amiss.append(f"unaccounted {ledger.unaccounted}")
    for entry in ledger.entries:
        low = entry.packets or 0
        high = low if entry.at_most is None else entry.at_most
        if not low <= ours.get(entry.stage, 0) <= high:
            amiss.append(f"{entry.stage} {ours.get(entry.stage, 0)}, printed {low} to {high}")
        # The sender's IP counts what its own device's hook has dropped.
        dropped_early = entry.stage.startswith("tx_") and "link" in mixture.others_s
        if entry.others_packets and entry.stage not in mixture.others_s and not dropped_early:
            amiss.append(f"{entry.stage}: {entry.others_packets} of others that nobody sent")
        pause_s = mixture.others_s.get(entry.stage, math.inf)
        seen = entry.others_packets or entry.at_most is not None or entry.stage == UNCOUNTED
        if pause_s < OFTEN_S and not seen:
            amiss.append(f"{entry.stage}: others' packets were not seen")
    return f"{name}, lost {ours}: {'; '.join(amiss)}" if amiss else None


def main(seed: int, count: int) -> int:
    """Run, print what is wrong, and how many ledgers hold."""
    print(f"seed {seed}", flush=True)
    wrong, trials = 0, 0
    for begun in range(0, count, AT_ONCE):
        with tempfile.TemporaryDirectory() as scratch, pair_of_hosts(Path(scratch) / "h") as pair:
            few = min(AT_ONCE, count - begun)
            complaints, ended = ran(pair, seed + begun, few, Path(scratch))
        print("".join(f"{text}\n" for text in complaints), end="", flush=True)
        wrong, trials = wrong + len(complaints), trials + ended
    print(f"{trials - wrong} of {count} ledgers hold what was lost")
    return 0 if not wrong and trials == count else 1


if __name__ == "__main__":
    arguments = [int(text) for text in sys.argv[1:]]
    chosen = arguments[0] if arguments else random.randrange(2**32)
    sys.exit(main(chosen, arguments[1] if len(arguments) > 1 else 200))

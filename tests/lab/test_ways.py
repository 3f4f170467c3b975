"""Every way to send with every way to receive, in one run of the built-in lab: nothing is lost."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sampled import sampled
from settings_fixture import Inside

from udpbench.agent.host.system import Host
from udpbench.analysis.judge import judge
from udpbench.control.run import RunOptions, run
from udpbench.definition.load import load_experiment_data, load_lab
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

PACKETS = 240
"""No ring and no socket buffer overflows, however long a CPU stands still."""
BASE = {
    "question": "Is every packet accounted for?",
    "traffic": {
        "count": PACKETS,
        "rate": "2kpps",
        "size": "64B",
        "flows": {"from": "65400-65403"},
    },
    "send": {"pace": "sleep", "bucket": "1s"},
    "receive": {"workers": 2},
    "duration": "5s",
    "warmup": "0s",
    "repetitions": 1,
}
"""A sender that sleeps leaves the CPUs to the tests beside."""

Choice = dict[str, Any]
WAYS: dict[str, dict[str, Choice]] = {
    "send": {
        "send": {"send.call": "send"},
        "sendmmsg": {"send.batch": 64},
        "af_xdp": {"send.call": "af_xdp"},
        "gso": {"send.gso": 8},
        "gso-send": {"send.gso": "max", "send.call": "send", "send.tail": "20B"},
        "zerocopy": {"send.zerocopy": True, "send.batch": 16},
        "io_uring": {"send.call": "io_uring"},
        "fragment": {"traffic.fragment": True, "traffic.size": "4000B", "traffic.rate": "5kpps"},
    },
    "receive": {
        # First, so that it stands once with a wait that it has.
        "io_uring": {"receive.call": "io_uring"},
        "recv": {"receive.call": "recv"},
        "recvmmsg": {"receive.batch": 32},
        "gro": {"receive.gro": True},
        "gro-recv": {"receive.gro": True, "receive.call": "recv"},
    },
    "wait": {
        wait.partition(" ")[0]: {"receive.wait": wait}
        for wait in ("block", "epoll", "spin", "nap 100us", "busy-poll 50us", "auto")
    },
    "read": {read: {"receive.read": read} for read in ("none", "copy", "header", "verify")},
    "sockets": {
        sockets: {"receive.sockets": sockets}
        for sockets in ("shared", "reuseport", "reuseport-cpu", "incoming-cpu")
    },
    "family": {"v4": {"traffic.family": 4}, "v6": {"traffic.family": 6}},
    "workers": {
        "threads": {"receive.workers_as": "threads"},
        "processes": {"receive.workers_as": "processes"},
    },
}


def pairs_of(chosen: dict[str, str]) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    """Return every two choices that stand together."""
    return set(itertools.combinations(sorted(chosen.items()), 2))


def refused(chosen: dict[str, str]) -> bool:
    """Tell whether the definition refuses a combination."""
    return chosen["receive"] == "io_uring" and chosen["wait"] in ("epoll", "busy-poll")


def all_pairs() -> Iterator[dict[str, str]]:
    """Yield combinations until every two choices of different kinds have stood together once."""
    every = [dict(zip(WAYS, values)) for values in itertools.product(*WAYS.values())]  # noqa: B905
    every = [combination for combination in every if not refused(combination)]
    missing = set().union(*map(pairs_of, every))
    while missing:
        best = max(every, key=lambda combination: len(pairs_of(combination) & missing))
        missing -= pairs_of(best)
        yield best


def conducted(
    folder: Path, *experiments: dict[str, Any], tell: Callable[[Progress], None] = lambda _: None
) -> tuple[TrialRecord, ...]:
    """Return the records of a run in the built-in lab."""
    loaded = tuple(
        load_experiment_data({**BASE, **keys}, f"ways{n}") for n, keys in enumerate(experiments)
    )
    lab = load_lab("local")
    header = RunHeader("test", now_utc(), (), 1, lab.name, lab.text, loaded)
    writer = RunWriter.create(folder, header)
    options = RunOptions(seed=1, lease_ns=5 * SECOND_NS)
    outcome = run(loaded, lab, writer, tell, options)
    assert (None, ()) == (outcome.error, outcome.restore_errors)
    return read_run(folder).records


def summary(result: Result) -> dict[str, Any]:
    """Return what a result says of its packets, and why it is not to be trusted."""
    wrong = [str(finding) for finding in result.findings if finding.severity == "invalid"]
    return {
        "status": result.status,
        "sent": result.sent_packets,
        "unaccounted": result.unaccounted,
        "wrong": wrong,
    }


def each_once() -> Iterator[dict[str, str]]:
    """Yield combinations in which each choice of each kind stands at least once."""
    for number in range(max(map(len, WAYS.values()))):
        yield {kind: list(ways)[number % len(ways)] for kind, ways in WAYS.items()}


@pytest.mark.parametrize("combined", sampled([each_once, all_pairs], [each_once]))
def test_every_way_accounts_for_every_packet(
    tmp_path: Path, combined: Callable[[], Iterator[dict[str, str]]]
) -> None:
    """Whatever two ways stand together, the ledger closes: received, or lost where it says."""
    variants = {
        " ".join(chosen.values()): {
            key: value for kind, way in chosen.items() for key, value in WAYS[kind][way].items()
        }
        for chosen in combined()
    }
    # The pair of the lab is made anew for each family; so it is for each once.
    families = [
        {
            "variants": {
                name: way for name, way in variants.items() if way["traffic.family"] == family
            }
        }
        for family in (4, 6)
    ]
    results = [judge(record) for record in conducted(tmp_path / "run", *families)]
    good = {"status": "done", "sent": PACKETS, "unaccounted": 0, "wrong": []}
    summaries = {str(result.trial.variant): summary(result) for result in results}
    assert {} == {name: entry for name, entry in summaries.items() if entry != good}
    assert set(variants) == set(summaries)


def test_frames_of_every_queue_are_accounted_for(tmp_path: Path) -> None:
    """Sent and taken past every socket, or either alone, over both families: nothing is lost."""
    take = {"receive.call": "af_xdp", "receive.wait": "epoll"}
    link = {"settings.receiver.link.queues": 2}
    ways = {
        "both": {**link, **take, "send.call": "af_xdp", "send.workers": 2},
        "taken": {**link, **take, "traffic.family": 6, "receive.read": "verify"},
    }
    results = [judge(record) for record in conducted(tmp_path / "run", {"variants": ways})]
    good = {"status": "done", "sent": PACKETS, "unaccounted": 0, "wrong": []}
    assert [good, good] == [summary(result) for result in results]
    assert [PACKETS, PACKETS] == [result.received_packets for result in results]


def xdp_features(host: Host, interface: str) -> tuple[str, ...]:
    """Return what the kernel says of a driver; the test is skipped where it says nothing."""
    try:
        return host.xdp_features(interface)
    except FileNotFoundError:
        pytest.skip("Linux 6.3 says it first")


def test_a_driver_says_what_it_does_for_xdp() -> None:
    """A bridge nothing; a veth as much as its peer's TX queues leave it."""
    assert () == xdp_features(Host(), "lo")
    program = "from udpbench.agent.host.system import Host; print(Host().xdp_features('{}'))"
    inside = Inside()
    try:
        inside.shell("ip link add bridge0 type bridge")
        inside.shell(
            "ip link add less numtxqueues 1 numrxqueues 1 type veth "
            "peer name more numtxqueues 2 numrxqueues 2"
        )
        features = {
            name: inside.shell(f'{sys.executable} -c "{program.format(name)}"').strip()
            for name in ("bridge0", "less", "more")
        }
    finally:
        inside.close()
    nothing, native = "()", "('basic', 'redirect', 'rx-sg')"
    assert {"bridge0": nothing, "less": nothing, "more": native} == features


def test_frames_are_not_taken_without_native_xdp(tmp_path: Path) -> None:
    """The trial is skipped with the reason; with no more queues of the peer it is done."""
    xdp_features(Host(), "lo")
    take = {
        "receive.call": "af_xdp",
        "receive.wait": "epoll",
        "receive.workers": 1,
        "settings.receiver": {"link": {"queues": 2}, "ethtool": {"channels": 1}},
    }
    ways = {"skipped": take, "taken": {**take, "settings.sender.ethtool.channels": 1}}
    skipped, taken = conducted(tmp_path / "run", {"variants": ways})
    assert "skipped" == skipped.status
    assert skipped.error is not None
    assert "receive.call: af_xdp: receive0 of receiver has no native XDP" in skipped.error.message
    good = {"status": "done", "sent": PACKETS, "unaccounted": 0, "wrong": []}
    assert good == summary(judge(taken))


def test_streams_and_members_that_fail_are_accounted_for(tmp_path: Path) -> None:
    """A baseline has no ledger; what a hanging or leaving member holds has its own line."""
    # Of 64 flows the kernel's hash, which differs from boot to boot, leaves no member without one.
    many = {"traffic.flows": {"from": "65300-65363"}}
    group = {**many, "receive.sockets": "reuseport", "receive.wait": "nap 100us"}
    variants = {
        "tcp": {"traffic.protocol": "tcp"},
        "hang": {**group, "receive.fault": {"worker": 1, "after": "30ms", "does": "hang"}},
        "exit": {**group, "receive.fault": {"worker": 2, "after": "30ms", "does": "exit"}},
    }
    records = conducted(tmp_path / "run", {"variants": variants})
    results = {str(record.trial.variant): judge(record) for record in records}
    lines = {
        name: {entry.stage: entry.packets for entry in result.ledger.entries}
        for name, result in results.items()
        if result.ledger is not None
    }
    assert {"hang", "exit"} == set(lines)
    good = {"status": "done", "sent": PACKETS, "unaccounted": 0, "wrong": []}
    assert {"tcp": {**good, "unaccounted": None}, "hang": good, "exit": good} == {
        name: summary(result) for name, result in results.items()
    }
    assert PACKETS == results["tcp"].received_packets
    received = results["hang"].received_packets
    purged = lines["hang"]["udp_purged"]
    assert received is not None
    assert purged is not None
    assert 0 < purged < PACKETS
    assert 0 < received < PACKETS
    assert lines["exit"]["udp_purged"] is not None


def test_flows_split_over_workers_are_merged(tmp_path: Path) -> None:
    """Each worker reads some packets of the one flow, and the flow has them all, each once."""
    keys = {"traffic.flows": {"from": 65400}, "receive.workers": 3, "receive.call": "recv"}
    ((record,)) = conducted(tmp_path / "run", {"variants": {"one": keys}})
    (measured,) = [phase for phase in record.phases if phase.name == "measured"]
    (flow,) = measured.flows["receiver"]
    shares = [
        stats.counts["received_packets"] for stats in measured.stats if stats.role == "receiver"
    ]
    assert (PACKETS, PACKETS - 1, PACKETS) == (flow.packets, flow.highest_sequence, sum(shares))
    assert [True] * 3 == [share > 0 for share in shares]


def test_a_pinned_program_steers_the_flows(tmp_path: Path) -> None:
    """As it is pinned on the machine: even flows to the first worker, odd ones to the second."""
    receive = {"workers": 2, "sockets": "reuseport-ebpf", "steering": "/sys/fs/bpf/by_flow"}
    experiment = tmp_path / "steered.yaml"
    experiment.write_text(json.dumps({**BASE, "receive": receive}))
    program = Path(__file__).parents[1] / "fixtures" / "steering_program.py"
    python, command = sys.executable, Path(sys.executable).with_name("udpbench")
    script = (
        f"mount -t bpf bpf /sys/fs/bpf && {python} {program} /sys/fs/bpf/by_flow && "
        f"exec {command} run {experiment} --out {tmp_path}/run"
    )
    ended = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True
    )
    (record,) = read_run(tmp_path / "run").records
    (measured,) = [phase for phase in record.phases if phase.name == "measured"]
    read = [
        stats.counts["received_packets"] for stats in measured.stats if stats.role == "receiver"
    ]
    assert ([PACKETS // 2] * 2, "done") == (read, record.status), ended.stdout + ended.stderr


@pytest.mark.long
@pytest.mark.skipif(shutil.which("sockperf") is None, reason="apt-get install sockperf")
def test_a_rivals_packets_are_counted_foreign(tmp_path: Path) -> None:
    """All that sockperf says it sent to our port, and the trial is invalid for it."""
    pids: dict[str, str] = {}
    rivals: list[subprocess.Popen[str]] = []

    def tell(progress: Progress) -> None:
        if progress.event == "host":
            name, _, rest = progress.text.partition(": agent ")
            pids[name] = rest.partition(" ")[0]
        if progress.event == "phase" and " measured " in progress.text:
            throughput = "sockperf throughput -i 192.168.254.1 -p 4321 -m 32 -t 1 --mps=2000"
            command = ["nsenter", f"--target={pids['sender']}", "--net", *throughput.split()]
            rivals.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))

    keys = {"traffic": {"rate": "5kpps"}, "duration": "3s"}
    (record,) = conducted(tmp_path / "run", keys, tell=tell)
    (rival,) = rivals
    output = rival.communicate(timeout=10)[0]
    sent = re.search(r"Total of (\d+) messages sent", output)
    assert sent is not None, output
    (measured,) = [phase for phase in record.phases if phase.name == "measured"]
    counts = [stats.counts for stats in measured.stats if stats.role == "receiver"]
    result = judge(record)
    assert 1000 < int(sent.group(1))
    assert int(sent.group(1)) == sum(count["foreign_packets"] for count in counts)
    assert ({"foreign traffic"}, 0) == (
        {
            str(finding.what).partition(":")[0]
            for finding in result.findings
            if finding.severity == "invalid"
        },
        result.unaccounted,
    )

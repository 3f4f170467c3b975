"""Programs of the user's as receivers: their ledgers balance, and nothing of them is left."""

from __future__ import annotations

import random
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from balance import complaint
from test_ledger import records

from udpbench.analysis.delay import size
from udpbench.analysis.judge import judge
from udpbench.analysis.search import searches_of
from udpbench.control.run import RunOptions, run
from udpbench.definition.lab_rules import refuse_together
from udpbench.definition.load import load_experiment_data, load_experiments, load_lab
from udpbench.definition.losses import LOSS_PORTS
from udpbench.definition.shipped import folder as shipped_folder
from udpbench.errors import InputError
from udpbench.model.experiment import Experiment, Search
from udpbench.model.limits import SECOND_NS
from udpbench.records.run import RunHeader, now_utc
from udpbench.records.writer import RunWriter

pytestmark = pytest.mark.lab

SERVER = ["python3", "asyncio_receiver.py", "4321"]
PRINTER = """
import collections, signal, socket, sys
def end(*_):
    print(*(f"{text.hex()}:{number}" for text, number in sorted(seen.items())))
    sys.exit()
seen = collections.Counter()
signal.signal(signal.SIGTERM, end)
receiving = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiving.bind(("0.0.0.0", 4321))
while True:
    seen[receiving.recv(2000)] += 1
"""


@pytest.fixture(scope="module")
def own() -> Iterator[str]:
    """Return a folder with the shipped receivers that every user may read."""
    folder = Path(tempfile.mkdtemp())
    for file in (shipped_folder() / "own").iterdir():
        shutil.copy(file, folder)
    folder.chmod(0o755)
    yield str(folder)
    shutil.rmtree(folder)


def experiment(folder: str, name: str = "own", **parts: Any) -> Experiment:
    """Return one short trial of a program."""
    data: dict[str, Any] = {
        "question": "Does it arrive?",
        "traffic": {"size": "64B", "count": 200, "rate": "2kpps"},
        "receive": {"command": SERVER, "ready": "listening", "folder": folder},
        "duration": "5s",
        "warmup": "0s",
        "repetitions": 1,
    }
    return load_experiment_data({**data, **parts}, name)


def mixtures(folder: str, seed: int, count: int) -> list[Experiment]:
    """Return trials of random sizes and families that lose packets at random stages."""
    chance, lab = random.Random(seed), load_lab("local")
    drawn: list[Experiment] = []
    while len(drawn) < count:
        # What is cut off behind the read cannot be known of a program.
        stages = chance.sample(sorted({*LOSS_PORTS} - {"app_truncated"}), chance.randint(1, 6))
        size, family = chance.choice((1, 18, 68, 69, 500, 1400)), chance.choice((4, 6))
        traffic = {"size": f"{size}B", "count": 200, "rate": "2kpps", "family": family}
        losses = {stage: chance.randint(1, 200) for stage in stages}
        way = {"receiver": {"link": {"receive": chance.choice(("napi", "rps", "inline"))}}}
        parts: dict[str, Any] = {"traffic": traffic, "losses": losses, "settings": way}
        mixture = experiment(folder, f"{len(drawn) + 1:03d}", **parts, path_check="explained")
        try:
            refuse_together([mixture], lab)
        except InputError:
            continue
        drawn.append(mixture)
    return drawn


def assert_balance(folder: Path, experiments: list[Experiment], seed: int) -> None:
    """Run them; every packet is accounted for, and the programs themselves say as much."""
    done = records(folder, experiments, seed)
    assert len(experiments) == len(done)
    for record in done:
        result = judge(record)
        assert None is complaint(record, result)
        (file,) = folder.glob(f"{record.trial.experiment}-1-receiver.output")
        report = re.fullmatch(r"listening\nread (\d+)\n", file.read_text())
        ours = sum(
            stats.counts["read_packets"]
            for phase in record.phases
            for stats in phase.stats
            if stats.role == "receiver"
        )
        assert report is not None
        assert ours == int(report[1])


def test_what_a_program_reads_is_what_it_says(own: str, tmp_path: Path) -> None:
    """In random mixtures of losses in front of it, to the packet.

    Of each message that is to be lost at a full backlog the first datagram comes through, and is
    read by the agent.
    """
    way = {"receiver": {"link": {"receive": "inline"}}}
    losses = {"losses": {"rx_backlog": 93}, "path_check": "explained"}
    backlog = experiment(own, "005", settings=way, **losses)
    assert_balance(tmp_path / "run", [*mixtures(own, seed=1, count=4), backlog], 1)


@pytest.mark.long
def test_what_a_program_reads_is_what_it_says_in_more_mixtures(own: str, tmp_path: Path) -> None:
    """Sixteen others."""
    assert_balance(tmp_path / "run", mixtures(own, seed=2, count=16), 2)


REPORTS = {
    "sockperf": (r"Total (\d+) messages received and handled", 1),
    "socat": (r"(\d+)\n\Z", 64),
}
"""Program → what it says at its end, and how much of that is one datagram."""


@pytest.mark.long
@pytest.mark.parametrize("name", REPORTS)
def test_what_others_programs_report_is_what_the_ledger_says(name: str, tmp_path: Path) -> None:
    """Under more than they can read: they, our counts and /proc/net/udp agree to the packet."""
    if shutil.which(name) is None:
        pytest.skip(f"needs {name}: apt install {name}")
    sets = ("traffic.rate=unlimited", "duration=500ms", "repetitions=1")
    shipped = load_experiments([f"own/{name}"], sets)
    (record,) = records(tmp_path / "run", shipped)
    result = judge(record)
    text, each = REPORTS[name]
    (file,) = (tmp_path / "run").glob("*.output")
    report = re.search(text, file.read_text())
    assert report is not None, file.read_text()
    read = sum(
        stats.counts["read_packets"]
        for phase in record.phases
        for stats in phase.stats
        if stats.role == "receiver"
    )
    assert (read * each, 0) == (int(report[1]), result.unaccounted)
    (measured,) = (phase for phase in record.phases if phase.name == "measured")
    (inode,) = next(s.socket_inodes for s in measured.stats if s.role == "receiver")
    name = f"socket.{inode}.drops"
    drops = [edge["receiver"].counters[name] for edge in (measured.before, measured.after)]
    assert result.ledger is not None
    lost = {entry.stage: entry.packets for entry in result.ledger.entries}
    assert drops[1] - drops[0] == (lost["udp_rcvbuf"] or 0) + (lost["udp_memory"] or 0)


@pytest.mark.apart
def test_a_program_gets_the_payloads_in_turn(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte as they are written, and nothing of ours."""
    (Path(own) / "query.bin").write_bytes(b"who?")
    monkeypatch.chdir(own)
    payload = [{"hex": "00ff"}, {"file": "query.bin"}]
    parts = {
        "traffic": {"count": 200, "rate": "2kpps", "payload": payload},
        "receive": {"command": ["python3", "-c", PRINTER]},
    }
    (record,) = records(tmp_path / "run", [experiment(own, **parts)])
    result = judge(record)
    assert (200, 0, None) == (result.received_packets, result.unaccounted, result.delivered_mib_s)
    sent = sum(
        stats.counts["sent_packets"]
        for p in record.phases
        for stats in p.stats
        if stats.role == "sender"
    )
    output = (tmp_path / "run" / "own-1-receiver.output").read_text()
    assert f"00ff:{sent // 2} {b'who?'.hex()}:{sent // 2}\n" == output


ANSWERER = """
import socket, sys
silent = int(sys.argv[1])
serving = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
serving.bind(("0.0.0.0", 4321))
number = 0
while True:
    datagram, asker = serving.recvfrom(2000)
    number += 1
    if number % silent:
        serving.sendto(datagram[:2] + b" answered", asker)
"""
BLOCKED = {"sender": {"firewall": {"udp": 65400, "drop": "input"}}}


def answering(folder: str, name: str, silent: int, **parts: Any) -> Experiment:
    """Return a trial of a program that leaves every ``silent``-th datagram without an answer."""
    traffic = {"payload": {"hex": "0000beef"}, "count": 200, "rate": "2kpps", "answers": "count"}
    receive = {"command": ["python3", "-c", ANSWERER, str(silent)]}
    return experiment(folder, name, **{"traffic": traffic, "receive": receive, **parts})


@pytest.mark.apart
def test_packets_without_an_answer_are_lost_where_it_ended(own: str, tmp_path: Path) -> None:
    """In the program, on the way back, or on the way out: sent = answered + every stage."""
    lossy = {"settings": BLOCKED, "losses": {"udp_no_port": 50}}
    experiments = [
        answering(own, "some", 5, losses={"udp_no_port": 50}),
        answering(own, "none", 5, **lossy, path_check="explained"),
    ]
    some, none = (judge(record) for record in records(tmp_path / "run", experiments))
    for result, back, answered in ((some, 0, 160), (none, 160, 0)):
        assert result.ledger is not None
        ended = {entry.stage: entry for entry in result.ledger.entries if entry.packets}
        lost = {"udp_no_port": 50, "app_unanswered": 40, **({"answer_lost": back} if back else {})}
        assert lost == {name: entry.packets for name, entry in ended.items()}
        assert (200, answered, 0) == (
            result.received_packets,
            result.answered_packets,
            result.unaccounted,
        )
        assert (250, 250 - answered) == (result.sent_packets, result.lost_packets)
    assert none.ledger is not None
    (lost_back,) = (e for e in none.ledger.entries if e.stage == "answer_lost")
    assert {"rx_netfilter": 160} == lost_back.parts


@pytest.mark.apart
def test_answers_by_id_have_round_trips(own: str, tmp_path: Path) -> None:
    """One for each answer, in the path check, at rest, too."""
    traffic = {"payload": {"hex": "0000beef"}, "count": 200, "rate": "2kpps"}
    traffic["answers"] = {"id_at": 0, "timeout": "4s"}
    (record,) = records(tmp_path / "run", [answering(own, "ids", 5, traffic=traffic)])
    result = judge(record)
    assert (200, 160, 40, 0) == (
        result.sent_packets,
        result.answered_packets,
        result.lost_packets,
        result.unaccounted,
    )
    counted = [
        (stats.counts["unmatched_packets"], size(stats.histograms["round_trip"]))
        for phase in record.phases
        for stats in phase.stats
        if stats.role == "sender"
    ]
    assert [(0, 80), (0, 160)] == counted
    names = ("round_trip_min_ns", "round_trip_p50_ns", "rest_round_trip_p50_ns")
    assert None not in [result.numbers[name] for name in names]


@pytest.mark.long
@pytest.mark.parametrize("traffic", [{"rate": "20kpps"}, {"rate": "200kpps"}, {}])
def test_a_flooded_dns_server_answers_or_its_stages_say_why_not(
    own: str, tmp_path: Path, traffic: dict[str, Any]
) -> None:
    """Real queries to a real server: sent = answered + every stage, however many there are."""
    (dns,) = load_experiments(["own/dns"], ())[0].points
    receive = {"command": list(dns.receive.command or ()), "ready": dns.receive.ready}
    queries = [{"hex": text} for text in dns.traffic.payload or ()]
    queried = {"payload": queries, "flows": {"from": "65400-65407"}, **traffic}
    queried["answers"] = {"id_at": 0, "timeout": "200ms"}
    parts = {"traffic": queried, "receive": receive, "duration": "2s", "warmup": "500ms"}
    (record,) = records(tmp_path / "run", [experiment(own, "flood", **parts)])
    result = judge(record)
    assert result.ledger is not None
    ended = {entry.stage: entry.packets for entry in result.ledger.entries if entry.packets}
    (sender,) = (s.counts for s in record.phases[-1].stats if s.role == "sender")
    print(traffic, ended, {name: value for name, value in result.numbers.items() if value})
    assert 0 == result.unaccounted
    answered = sender["answered_packets"]
    assert result.sent_packets == answered + result.lost_packets
    # The question, and 16 B: its name by a pointer, type, class, time to live, length, address.
    assert (True, answered * (29 + 16)) == (answered > 0, sender["answered_bytes"])


@pytest.mark.long
def test_how_many_queries_a_dns_server_answers_is_found(tmp_path: Path) -> None:
    """By the experiment that ships; what breaks first is a stage of the ledger, or its CPU."""
    (dns,) = load_experiments(["own/dns"], ())
    points = [
        replace(point, search=replace(point.search or Search(), within_ns=300 * SECOND_NS))
        for point in dns.points
    ]
    done = records(tmp_path / "run", [replace(dns, points=tuple(points))])
    (search,) = searches_of([judge(record) for record in done])
    assert search.headline.throughput_pps is not None
    assert search.headline.throughput_pps > 1000
    assert {0} == {judge(record).unaccounted for record in done}
    print(search.headline, search.breaking)


@pytest.mark.apart
def test_a_program_that_fails_leaves_a_restored_lab(own: str, tmp_path: Path) -> None:
    """One error, and the next trial runs."""
    experiments = [
        experiment(own, "fails", receive={"command": ["sh", "-c", "echo no; exit 7"]}),
        experiment(own, "serves"),
    ]
    lab = load_lab("local")
    header = RunHeader("test", now_utc(), (), 1, lab.name, lab.text, tuple(experiments))
    writer = RunWriter.create(tmp_path / "run", header)
    errors: dict[str, Any] = {}
    outcome = run(
        experiments,
        lab,
        writer,
        lambda p: errors.update(
            {p.trial.experiment: p.record.error} if p.record and p.trial else {}
        ),
        RunOptions(seed=1),
    )
    assert (None, ()) == (outcome.error, outcome.restore_errors)
    assert "WorkerFailed" == errors["fails"].kind
    assert "ended unexpectedly (exit status 7): no" in errors["fails"].message
    assert None is errors["serves"]

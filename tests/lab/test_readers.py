"""Readers in the built-in lab that misread, are held up, or share a CPU: what a trial says then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from sampled import sampled
from test_ways import conducted

from udpbench.analysis.judge import judge
from udpbench.control import drain
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import (
    RecordedError,
    TrialRecord,
    WorkerStats,
)
from udpbench.model.result import Progress, Result

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]

GIVE = """
import socket
giver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for size in (63, 63, 65, 64, 2):
    giver.sendto(bytes(size), ("192.168.254.1", 4321))
"""
"""One of them has the run's size, and one is longer than the room."""


STRANGE = """
import itertools, os, socket, time
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
stranger.bind(("", 40000))
for number in itertools.count():
    stranger.sendto(bytes(64), ("192.168.254.1", 4321))
    if number == 0:
        print("sending", flush=True)
    time.sleep(0.01)  # its rate
"""
"""A hundred datagrams of the run's size in a second, without end, and however busy the machine is."""


def once_measured(
    act: Callable[[dict[str, int]], None], phase: str = "measured"
) -> Callable[[Progress], None]:
    """Return a listener that acts once packets are measured, given each agent's process."""
    pids: dict[str, int] = {}

    def tell(progress: Progress) -> None:
        if progress.event == "host":
            name, _, rest = progress.text.partition(": agent ")
            pids[name] = int(rest.partition(" ")[0])
        if progress.event == "phase" and progress.phase == phase:
            act(pids)

    return tell


def datagrams_read(pid: int) -> int:
    """Return InDatagrams of UDP in the network namespace of a process."""
    lines = Path(f"/proc/{pid}/net/snmp").read_text().splitlines()
    names, values = (line.split() for line in lines if line.startswith("Udp:"))
    return int(dict(zip(names, values, strict=True))["InDatagrams"])


def wrong(result: Result, severity: str = "invalid") -> list[str]:
    """Return what the findings of a severity are about."""
    return [
        finding.what.partition(":")[0]
        for finding in result.findings
        if finding.severity == severity
    ]


def reading(record: TrialRecord, name: str = "measured") -> WorkerStats:
    """Return the statistics of a record's one reader in a phase."""
    (measured,) = [phase for phase in record.phases if phase.name == name]
    (reader,) = [stats for stats in measured.stats if stats.role == "receiver"]
    return reader


Strange = Callable[..., TrialRecord]


FLIGHT_NS = 2 * SECOND_NS
"""In place of nine seconds; with a second to hear who sends, a stranger is an error after three."""


@pytest.fixture
def strange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Strange]:
    """Yield what conducts a trial in which a stranger sends from a phase on."""
    monkeypatch.setattr(drain, "FLIGHT_NS", FLIGHT_NS)
    strangers: list[subprocess.Popen[str]] = []

    def begin(pids: dict[str, int]) -> None:
        command = ["nsenter", f"--target={pids['sender']}", "--net", sys.executable, "-c", STRANGE]
        stranger = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        strangers.append(stranger)
        assert stranger.stdout is not None
        assert "sending" in stranger.stdout.readline()

    def conduct(phase: str, receive: dict[str, Any], **traffic: Any) -> TrialRecord:
        keys = {
            "traffic": {"count": 3000, "rate": "20kpps", "size": "64B", **traffic},
            "receive": {"workers": 1, **receive},
        }
        return conducted(tmp_path / "run", keys, tell=once_measured(begin, phase))[0]

    yield conduct
    for stranger in strangers:
        stranger.kill()
        stranger.communicate()


WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("path", {"read": "none"}),
    "header": ("path", {"read": "header"}),
    "slow": ("path", {"read": "header", "work": "8ms", "batch": 8}),
    "measured": ("measured", {"read": "none"}),
    "af_xdp": ("path", {"call": "af_xdp", "wait": "epoll"}),
}


@pytest.mark.parametrize("way", sampled(list(WAYS), ["slow"]))
def test_a_stranger_is_named_after_a_while(strange: Strange, way: str) -> None:
    """However datagrams are read; what was read of ours until then is counted exactly."""
    phase, receive = WAYS[way]
    record = strange(phase, receive)
    error = record.error or RecordedError()
    assert ("DeadlineExceeded", "receiver") == (error.kind, error.host), error
    assert "192.168.254.30 port 40000 (" in error.message
    assert FLIGHT_NS + SECOND_NS <= record.overhead_ns[phase]
    counts = reading(record, phase).counts
    sent = sum(s.counts.get("sent_packets", 0) for s in record.phases[-1].stats)
    if phase == "path":
        assert sent == counts["received_packets"] > 0
        assert counts["foreign_packets"] > 100


@pytest.mark.parametrize("read", sampled(["header", "none"], ["none"]))
def test_a_long_queue_of_a_slow_reader_is_not_cut_off(strange: Strange, read: str) -> None:
    """Four seconds of ours are read to the end, beside a stranger where he is told apart.

    The ring of the pair, of 256 packets, may have overflowed before on a busy machine.
    """
    phase = "measured" if read == "header" else "never"
    receive = {"read": read, "work": "4ms", "batch": 8, "buffer": "16MiB"}
    record = strange(phase, receive, count=1000)
    counts, result = reading(record).counts, judge(record)
    assert ("done", 0) == (record.status, result.unaccounted), record.error
    assert result.ledger is not None
    assert 1000 == counts["received_packets"] + result.ledger.lost_packets
    assert record.overhead_ns["measured"] > FLIGHT_NS + SECOND_NS
    assert (read == "header") == ("foreign traffic" in wrong(result))


def test_foreign_sizes_are_reported_without_headers(tmp_path: Path) -> None:
    """Under `copy` strangers of another size are not ours; one of our size cannot be told."""

    def give(pids: dict[str, int]) -> None:
        command = ["nsenter", f"--target={pids['sender']}", "--net", sys.executable, "-c", GIVE]
        subprocess.run(command, check=True, timeout=10)

    keys = {"receive": {"read": "copy"}, "duration": "2s"}
    (record,) = conducted(tmp_path / "run", keys, tell=once_measured(give))
    counts, result = reading(record).counts, judge(record)
    packets = [counts[f"{kind}_packets"] for kind in ("received", "foreign_size", "truncated")]
    assert [(result.sent_packets or 0) + 1, 3, 1] == packets
    assert {"foreign_packets", "corrupt_packets"}.isdisjoint(counts)
    assert "foreign traffic" in wrong(result)


@pytest.mark.long
def test_readers_that_share_a_cpu_do_all_their_work(tmp_path: Path) -> None:
    """Eight readers of 20 µs on one CPU are no faster than one, and have had the CPU time."""
    keys = {
        "traffic": {"rate": "80kpps", "flows": {"from": "65400-65403"}},
        "receive": {"workers": 8, "cpus": "1", "work": "20us", "buffer": "64KiB"},
        "duration": "2s",
    }
    (record,) = conducted(tmp_path / "run", keys)
    result = judge(record)
    assert [] == [text for text in wrong(result) if text.startswith("work")]
    assert 0 == result.unaccounted
    assert result.delivered_pps is not None
    assert 10_000 < result.delivered_pps < 51_000


def test_a_reader_that_stood_still_is_reported(tmp_path: Path) -> None:
    """Stopped for a second under load: told with its time, and every packet has its entry."""

    def stop(agent: int, before: int) -> None:
        while datagrams_read(agent) < before + 500:
            assert threading.main_thread().is_alive()
        (reader,) = [
            child
            for child in psutil.Process(agent).children()
            if "udpbench.agent.workers.process" in child.cmdline()
        ]
        reader.send_signal(signal.SIGSTOP)
        threading.Timer(1.0, reader.send_signal, [signal.SIGCONT]).start()

    def begin(pids: dict[str, int]) -> None:
        agent = pids["receiver"]
        threading.Thread(target=stop, args=(agent, datagrams_read(agent)), daemon=True).start()

    keys = {"traffic": {"rate": "5kpps"}, "receive": {"workers": 1}, "duration": "3s"}
    (record,) = conducted(tmp_path / "run", keys, tell=once_measured(begin))
    counts, result = reading(record).counts, judge(record)
    (use,) = reading(record).threads
    assert use.looks["T"] >= 3
    assert (False, True) == (reading(record).filtered, counts["running_ns"] <= counts["elapsed_ns"])
    assert counts["standstills"] >= 1
    assert counts["standstill_ns"] > SECOND_NS // 2
    assert "the reader stalled while packets waited" in wrong(result, "warning")
    assert ("done", 0) == (result.status, result.unaccounted)


PROGRAM = """
import ctypes, socket, struct, sys, time
how = sys.argv[1]
reader = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if how == "filters":
    take_all = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 2**32 - 1), 8)
    value = struct.pack("HP", 1, ctypes.addressof(take_all))
    reader.setsockopt(socket.SOL_SOCKET, 26, value)  # SO_ATTACH_FILTER
reader.bind(("0.0.0.0", 4321))
reader.setblocking(how != "spins")
while True:
    try:
        reader.recv(2000)
    except BlockingIOError:
        continue
    if how == "sleeps":
        time.sleep(0.001)
"""
"""Reads, and sleeps after each datagram, polls without a pause, or has a filter that takes all."""


@pytest.mark.drawn(2)
@pytest.mark.parametrize("how", ["sleeps", "spins", "filters", "stopped"])
def test_a_program_is_seen_in_what_it_does(tmp_path: Path, how: str) -> None:
    """Its thread's states, calls and times, its queue and drops, and whether it has a filter."""

    def stop(pids: dict[str, int]) -> None:
        (program,) = [
            child
            for child in psutil.Process(pids["receiver"]).children(recursive=True)
            if PROGRAM in child.cmdline()
        ]
        program.send_signal(signal.SIGSTOP)
        threading.Timer(2.0, program.send_signal, [signal.SIGCONT]).start()

    keys = {
        "traffic": {"rate": "2kpps"},
        "receive": {"command": ["python3", "-c", PROGRAM, how]},
        "duration": "2s",
    }
    tell = once_measured(stop if how == "stopped" else lambda _: None)
    (record,) = conducted(tmp_path / "run", keys, tell=tell)
    stats = reading(record)
    (use,) = stats.threads
    assert how == ("filters" if stats.filtered else how)
    assert use.elapsed_ns > SECOND_NS
    assert use.running_ns + use.runnable_ns <= 1.02 * use.elapsed_ns
    most = max(use.looks, key=lambda state: use.looks[state])
    expected = {"sleeps": "S", "spins": "R", "filters": "S", "stopped": "T"}
    assert expected[how] == most, use
    if how == "sleeps":
        assert "clock_nanosleep" == max(use.calls, key=lambda call: use.calls[call])
    if how == "filters":
        assert {"recvfrom": use.looks["S"]} == use.calls
    if how == "spins":
        assert use.running_ns + use.runnable_ns > 0.8 * use.elapsed_ns
    queues = [
        sample.counts["queued_bytes"]
        for sample in record.series
        if sample.worker == stats.worker and "queued_bytes" in sample.counts
    ]
    assert len(queues) > 10
    assert (how in ("sleeps", "stopped")) == (sorted(queues)[len(queues) // 2] > 10_000)
    own = [each.counts for each in record.series if each.worker == stats.worker]
    (last,) = [counts for counts in own if "dropped_packets" in counts][-1:]
    lost = judge(record).ledger
    assert lost is not None
    by_stage = {entry.stage: entry.packets for entry in lost.entries}
    # The last tick may have had no time to read the queues.
    in_all = by_stage["udp_rcvbuf"] or 0
    assert last["dropped_packets"] == in_all or last is not own[-1]
    assert last["dropped_packets"] <= in_all

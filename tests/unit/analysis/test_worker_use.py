"""What processes used, what was logged, and where a packet ended that was not."""

from __future__ import annotations

from dataclasses import replace

from analysis import build
from udpbench.analysis.judge import judge
from udpbench.model.record import LogFiles, Stall, WorkerStats


def processes(role: str, *of: tuple[int | None, int | None, int | None]) -> list[WorkerStats]:
    """Return workers by (pid, CPU time, memory) of their process."""
    counts = build.sender_counts(10) if role == "sender" else build.receiver_counts(10)
    return [
        build.worker(
            role,
            counts,
            pid=pid,
            process_cpu_ns=cpu,
            process_load_ns=2 * 10**9,
            process_memory_bytes=memory,
        )  # type: ignore[arg-type]
        for pid, cpu, memory in of
    ]


def test_a_process_counts_once() -> None:
    """Threads share their process; processes add up; over two seconds within the load."""
    sending = processes("sender", (5, 10**9, 100), (5, 10**9, 100), (6, 10**9, 50))
    result = judge(build.record(30, workers=[*sending, *processes("receiver", (5, 10**8, 7))]))
    assert (1.0, 150) == (result.send_cpu_load, result.send_memory_bytes)
    assert (0.05, 7) == (result.receive_cpu_load, result.receive_memory_bytes)


def test_what_is_not_known_of_one_is_not_known_of_all() -> None:
    """A process that nobody could see leaves the sum unknown, not smaller."""
    sending = processes("sender", (5, 10**9, 100), (6, None, None))
    result = judge(build.record(20, workers=[*sending, *processes("receiver", (None, 1, 1))]))
    assert (None, None) == (result.send_cpu_load, result.send_memory_bytes)
    assert (None, None) == (result.receive_cpu_load, result.receive_memory_bytes)


def test_a_burst_has_no_load() -> None:
    """CPU time without a time within the load would be divided by one that has too much in it."""
    spent = {"pid": 5, "process_cpu_ns": 10**7}
    workers = (
        build.worker("sender", build.sender_counts(10), **spent),
        build.worker("receiver", build.receiver_counts(10), **spent),
    )
    result = judge(build.record(10, workers=workers))
    assert (None, None) == (result.send_cpu_load, result.receive_cpu_load)


def logging(**counts: int) -> WorkerStats:
    """Return a receiver of 1000 packets that logged."""
    plain = {"logged_packets": 1000, "log_first_ns": 10**9, "log_last_ns": 3 * 10**9}
    plain |= {"unlogged_packets": 0, "failed_packets": 0}
    return build.worker(
        "receiver",
        build.receiver_counts(1000, **{**plain, **counts}),
        log=LogFiles("/var/log/udp.right.receiver0", 2, 4096),
    )


def test_what_was_logged() -> None:
    """Packets, their rate by the stamps in the log, and the files as they were found."""
    sender = build.worker("sender", build.sender_counts(1000))
    result = judge(build.record(workers=[sender, logging()]))
    assert (1000, 500.0, 2, 4096) == (
        result.logged_packets,
        result.logged_pps,
        result.log_files,
        result.log_bytes,
    )


def test_what_was_logged_with_the_first_stamp_is_not_in_the_time_after_it() -> None:
    """Only the first of two writers has packets with the first stamp."""
    sender = build.worker("sender", build.sender_counts(2000))
    late = replace(logging(log_first_ns=2 * 10**9, log_first_packets=300), worker="right.receiver1")
    result = judge(build.record(2000, workers=[sender, logging(log_first_packets=200), late]))
    assert (2000, 900.0) == (result.logged_packets, result.logged_pps)


def test_logs_of_two_hosts_share_an_axis() -> None:
    """Clocks of two receivers differ by a day; stamps count from each host's own start."""
    other = build.START_NS + 86_400 * 10**9
    mine = logging(log_first_ns=build.START_NS, log_last_ns=build.START_NS + 10**9)
    far = replace(
        logging(log_first_ns=other + 10**9, log_last_ns=other + 2 * 10**9),
        worker="third.receiver0",
    )
    sender = build.worker("sender", build.sender_counts(2000))
    record = build.record(2000, workers=[sender, mine, far])
    phase = replace(record.phases[0], start_ns={**record.phases[0].start_ns, "third": other})
    assert 1000.0 == judge(replace(record, phases=(phase,))).logged_pps


def test_a_log_of_nothing_has_no_rate() -> None:
    """Files are there, and no packet in them."""
    empty = logging(logged_packets=0, log_first_ns=0, log_last_ns=0, unlogged_packets=1000)
    sender = build.worker("sender", build.sender_counts(1000))
    result = judge(build.record(workers=[sender, empty]))
    assert (0, None, 2) == (result.logged_packets, result.logged_pps, result.log_files)


def test_without_a_log_nothing_is_said_of_one() -> None:
    """No log is not a log of nothing."""
    result = judge(build.record())
    assert (None, None, None) == (result.logged_packets, result.log_files, result.log_bytes)


def test_a_packet_that_was_not_logged_ended_there() -> None:
    """Ring and disk together are stage app_log; logged and not logged are what was received."""
    sender = build.worker("sender", build.sender_counts(1000))
    short = logging(logged_packets=900, unlogged_packets=70, failed_packets=30)
    result = judge(build.record(workers=[sender, short]))
    ledger = result.ledger
    assert ledger is not None
    (entry,) = [entry for entry in ledger.entries if entry.stage == "app_log"]
    assert (100, 900, 0) == (entry.packets, ledger.received_packets, ledger.unaccounted)
    assert (1000, 900, 0) == (result.received_packets, result.logged_packets, result.lost_packets)


def test_stalls_of_all_senders_by_their_time() -> None:
    """What was never offered is listed in the order in which it was due."""
    late, early = Stall(500, 600, 7), Stall(100, 200, 3)
    record = build.record(1000, of=build.paced(1000))
    sender, receiver = record.phases[0].stats
    senders = [
        replace(sender, stalls=(late,)),
        replace(sender, worker="left.sender1", stalls=(early,)),
    ]
    phase = replace(record.phases[0], stats=(*senders, receiver))
    assert (early, late) == judge(replace(record, phases=(phase,))).stalls

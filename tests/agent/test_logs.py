"""The files of a log, and a receiver that writes one, with its delays and milliseconds."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from golden import Golden
from test_workers import count, datagram, give, phase, pool, receiver, until

from udpbench.agent.workers import logs
from udpbench.agent.workers.pool import Pool
from udpbench.errors import WorkerFailed
from udpbench.model.experiment import Log, Receive
from udpbench.model.record import LogFiles

__all__ = ["pool"]


def written(path: Path, *names: str) -> str:
    """Make files, and return what their names begin with."""
    for name in names:
        (path / name).write_text(name)
    return str(path / "log.a")


def test_files_of_a_log_and_no_others(tmp_path: Path) -> None:
    """Only regular files whose names are the log's and a number are of it, in that order."""
    path = written(tmp_path, "log.a.10", "log.a.9", "log.a.x", "log.a", "log.ab.1", "xlog.a.1")
    os.mkfifo(tmp_path / "log.a.0")
    (tmp_path / "log.a.1").symlink_to(tmp_path / "log.a.9")
    assert [("log.a.9", 7), ("log.a.10", 8)] == logs.files(path)
    assert LogFiles(path, 2, 15) == logs.total(path)


def test_names_that_look_like_patterns(tmp_path: Path) -> None:
    """A star in a path is a star."""
    (tmp_path / "l*g[1].0").write_text("1")
    (tmp_path / "log[1].0").write_text("2")
    assert [("l*g[1].0", 1)] == logs.files(str(tmp_path / "l*g[1]"))


def test_removing_leaves_the_others(tmp_path: Path) -> None:
    """What goes is the log's, and a pipe stays where somebody made it."""
    path = written(tmp_path, "log.a.0", "log.b.0")
    os.mkfifo(tmp_path / "log.a.1")
    logs.settle(path, None)
    assert ["log.a.1", "log.b.0"] == sorted(file.name for file in tmp_path.iterdir())


def test_keeping_gives_names_of_their_own(tmp_path: Path) -> None:
    """Kept files are out of the way of the next trial's."""
    path = written(tmp_path, "log.a.0", "log.a.1")
    logs.settle(path, "run-3")
    assert ["log.a.run-3.0", "log.a.run-3.1"] == sorted(file.name for file in tmp_path.iterdir())
    assert [] == logs.files(path)


def test_what_is_there_is_refused(tmp_path: Path, golden: Golden) -> None:
    """A folder that is missing and a file that is somebody's are told before anything is sent."""
    path = written(tmp_path, "log.a.0")
    with golden.raises(OSError) as there:
        logs.refuse_existing(path)
    with golden.raises(OSError) as missing:
        logs.refuse_existing(str(tmp_path / "none" / "log"))
    assert [errno.EEXIST, errno.ENOENT] == [there.value.errno, missing.value.errno]


def test_a_folder_that_went_has_no_files(tmp_path: Path) -> None:
    """Neither to be counted nor to be removed."""
    path = str(tmp_path / "gone" / "log.a")
    logs.settle(path, None)
    assert LogFiles(path, 0, 0) == logs.total(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what is another user's")
@pytest.mark.parametrize("what", ["folder", "link", "pipe"])
def test_root_logs_by_nobody_elses_folder_link_or_pipe(
    tmp_path: Path, what: str, golden: Golden
) -> None:
    """It would write wherever that user leads it, or hand its packets to that user."""
    there = tmp_path / "there"
    (tmp_path / "real").mkdir()
    there.symlink_to("real") if what == "link" else there.mkdir()
    if what == "pipe":
        os.mkfifo(there / "log.a.0")
    os.chown(there / "log.a.0" if what == "pipe" else there, 54321, -1, follow_symlinks=False)
    with golden.raises(OSError):
        logs.refuse_existing(str(there / "log.a"))


def logging(port: int, path: Path, **changed: object) -> Receive:
    """Return how a receiver logs."""
    return replace(Receive(), log=Log(str(path / "log")), **changed)  # type: ignore[arg-type]


def run(pool: Pool, datagrams: list[bytes], port: int) -> None:
    """Let a prepared pool receive datagrams in one phase."""
    pool.start(phase())
    give(port, datagrams)
    until("all read", lambda: count(pool, "read_packets") == len(datagrams))
    pool.stop()
    until("done", lambda: pool.sample(0).state == "done")


def test_a_receiver_logs_what_it_receives(pool: Pool, port: int, tmp_path: Path) -> None:
    """Each phase has files of its own, figures stand in the end, and closing removes them."""
    pool.prepare([receiver(port, receive=logging(port, tmp_path))], "lo")
    for packets in (5, 3):
        run(pool, [datagram(0, sequence) for sequence in range(packets)], port)
        stats = pool.sample(0).stats[0]
        assert packets == stats.counts["logged_packets"]
    assert [0, 0, 1] == [
        stats.counts[name] for name in ("unlogged_packets", "failed_packets", "log_files")
    ]
    assert (None, None) == (stats.process_cpu_ns, stats.process_load_ns), "of a burst"
    size_bytes = 24 + 3 * (16 + 32)
    assert LogFiles(str(tmp_path / "log.right.receiver0"), 1, size_bytes) == stats.log
    assert size_bytes == stats.counts["logged_bytes"]
    assert ["log.right.receiver0.0"] == [file.name for file in tmp_path.iterdir()]
    pool.close()
    assert [] == list(tmp_path.iterdir())


def test_closing_may_keep_the_files(pool: Pool, port: int, tmp_path: Path) -> None:
    """With a label they stay, and the next trial's are not in their way."""
    for label in ("1", "2"):
        pool.prepare([receiver(port, receive=logging(port, tmp_path))], "lo")
        run(pool, [datagram(0, 0)], port)
        pool.close(label)
    kept = sorted(file.name for file in tmp_path.iterdir())
    assert ["log.right.receiver0.1.0", "log.right.receiver0.2.0"] == kept


def test_somebody_elses_file_stays(pool: Pool, port: int, tmp_path: Path, golden: Golden) -> None:
    """A file in the way is refused when workers are prepared, and is not removed."""
    (tmp_path / "log.right.receiver0.4").write_text("mine")
    with golden.raises(WorkerFailed):
        pool.prepare([receiver(port, receive=logging(port, tmp_path))], "lo")
    assert "mine" == (tmp_path / "log.right.receiver0.4").read_text()


def test_a_receiver_tells_delays_milliseconds_and_use(pool: Pool, port: int) -> None:
    """Once a loop has ended its histograms are there, and what its process used."""
    pool.prepare([receiver(port, receive=Receive(timestamps=True))], "lo")
    pool.start(phase())
    for sequence in range(5):
        give(port, [datagram(0, sequence)])
        until("read", lambda: count(pool, "read_packets") == sequence + 1)  # noqa: B023
        pool.tick()
    pool.stop()
    until("done", lambda: pool.sample(0).state == "done")
    reply = pool.sample(0)
    stats = reply.stats[0]
    assert {"delay": 5, "stack": 5, "application": 5} == {
        name: sum(times for _, times in histogram.counts) + histogram.below_zero
        for name, histogram in stats.histograms.items()
    }
    assert 5 == sum(sum(sample.packets_per_ms) for sample in reply.samples)
    assert stats.process_cpu_ns is not None
    assert 0 < stats.process_cpu_ns <= stats.process_load_ns  # type: ignore[operator]
    assert stats.process_memory_bytes
    assert stats.pid


def test_only_the_measured_phase_tells_milliseconds(pool: Pool, port: int) -> None:
    """Nobody draws anything from other phases."""
    pool.prepare([receiver(port)], "lo")
    pool.start(phase(phase="warmup"))
    give(port, [datagram(0, 0)])
    until("read", lambda: count(pool, "read_packets") == 1)
    pool.stop()
    until("done", lambda: pool.sample(0).state == "done")
    assert {None} == {sample.first_ms for sample in pool.sample(0).samples}

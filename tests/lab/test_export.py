"""``udpbench export`` of real losses in namespaces, read as Prometheus reads it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families as families
from test_watch import KERNEL, Holder, holder

pytestmark = [pytest.mark.apart, pytest.mark.lab]
__all__ = ["holder"]

LIMIT_S = 60
DROPPED = "udpbench_socket_dropped_packets_total"
ENTER = "nsenter"
Samples = dict[str, list[tuple[dict[str, str], float]]]


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder."""
    return sorted(file.name for file in folder.iterdir())


def free_port() -> int:
    """Return a port of loopback that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def samples(text: str) -> Samples:
    """Return metric → its labels and numbers."""
    read: Samples = {}
    for family in families(text):
        for sample in family.samples:
            read.setdefault(sample.name, []).append((sample.labels, sample.value))
    return read


@contextmanager
def exporting(*arguments: str, enter: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """Run it, and end it as a user would."""
    command = (*enter, sys.executable, "-m", "udpbench", "export", "--every", "1s", *arguments)
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            assert 0 == process.wait(LIMIT_S)


def until(read: Callable[[], str], enough: Callable[[Samples], bool]) -> Samples:
    """Return the first samples that are enough."""
    end_s = time.monotonic() + LIMIT_S
    while True:
        try:
            seen = samples(read())
        except (URLError, OSError):
            seen = {}
        if enough(seen):
            return seen
        assert time.monotonic() < end_s, seen.get(DROPPED)


def page(port: int) -> Callable[[], str]:
    """Return what reads a page."""

    def read() -> str:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return str(answer.read().decode())

    return read


def lost(seen: Samples, netns: str) -> dict[tuple[str, str], float]:
    """Return stage and port → packets that the sockets of a namespace lost."""
    return {
        (labels["stage"], labels["port"]): number
        for labels, number in seen.get(DROPPED, [])
        if labels["netns"] == netns
    }


def counted(pid: str) -> dict[str, int]:
    """Return port → drops, as the kernel has them for the sockets' owner."""
    lines = Path(f"/proc/{pid}/net/udp").read_text().split("\n")[1:]
    rows = [line.split() for line in lines if line]
    drops = {str(int(row[1].partition(":")[2], 16)): int(row[-1]) for row in rows}
    return {port: number for port, number in drops.items() if number}


def test_losses_in_another_namespace_are_those_of_their_sockets(holder: Holder) -> None:
    """Each with process, port and stage; a page is served to whoever is on this host."""
    port, netns = free_port(), str(Path(f"/proc/{holder.pid}/ns/net").stat().st_ino)
    with exporting("--listen", f"127.0.0.1:{port}"):
        read = page(port)
        until(read, lambda s: ({"netns": netns}, 1.0) in s.get("udpbench_namespace_readable", []))
        holder.do("lose")
        first = until(read, lambda seen: bool(lost(seen, netns)))
        assert {0.0} == {*lost(first, netns).values()}
        drops = counted(holder.pid)
        seen = until(read, lambda seen: sum(lost(seen, netns).values()) >= sum(drops.values()))
        by_port: dict[str, float] = {}
        for (_, number), packets in lost(seen, netns).items():
            by_port[number] = by_port.get(number, 0) + packets
        assert drops == {key: packets for key, packets in by_port.items() if packets}
        (comm,) = {labels["comm"] for labels, _ in seen[DROPPED] if labels["netns"] == netns}
        assert comm.startswith("python")
        stages = {labels["stage"]: n for labels, n in seen["udpbench_stage_dropped_packets_total"]}
        assert stages["udp_filter"] >= 50


@pytest.mark.skipif(KERNEL < (6, 15), reason="--exact needs Linux 6.15")
def test_counted_exactly_each_loss_has_its_reason(holder: Holder) -> None:
    """Also of sockets that no look has listed."""
    port = free_port()
    enter, netns = (ENTER, f"--target={holder.pid}", "--net"), "host"
    with exporting("--exact", "--listen", f"127.0.0.1:{port}", enter=enter):

        def read() -> str:
            command = (*enter, "curl", "-sf", f"http://127.0.0.1:{port}/metrics")
            return subprocess.run(command, capture_output=True, text=True, check=False).stdout

        until(read, lambda s: "udpbench_namespace_readable" in s)
        holder.do("lose")
        own = {"udp_filter", "udp_checksum", "udp_rcvbuf"}
        seen = until(
            read, lambda s: own <= {stage for (stage, _), n in lost(s, netns).items() if n}
        )
    numbers = lost(seen, netns)
    assert (50, 40) == (numbers["udp_filter", "7002"], numbers["udp_checksum", "7003"])
    assert counted(holder.pid)["7001"] == numbers["udp_rcvbuf", "7001"]
    arrived = {labels["port"]: n for labels, n in seen["udpbench_socket_arrived_packets_total"]}
    assert 5 == arrived["7004"]


def test_a_file_is_written_whole_and_removed_at_the_end(holder: Holder, tmp_path: Path) -> None:
    """What a killed one left beside is removed by the next."""
    file = tmp_path / "udpbench.prom"
    (tmp_path / ".udpbench.prom.0123abcd").write_text("torn")
    with exporting("--textfile", str(file)):
        seen = until(file.read_text, lambda s: "udpbench_stage_observable" in s)
        assert 0o644 == file.stat().st_mode & 0o777
    assert {"host"} <= {labels["netns"] for labels, _ in seen["udpbench_namespace_readable"]}
    assert [] == names_in(tmp_path)

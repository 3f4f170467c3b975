"""A process that runs already on a host reached by SSH: measured, and left as it is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ssh_hosts
from controllers import Controllers, controllers
from deaths import PROGRAM
from ssh_hosts import TINY, Pair, pair_of_hosts

from udpbench.analysis.judge import judge
from udpbench.model.limits import SECOND_NS

pytestmark = [*ssh_hosts.needed(), pytest.mark.apart]

LEASE_NS = 4 * SECOND_NS
OTHER = """
import socket
both = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
for each in both:
    each.bind(("127.0.0.1", 0))
    each.settimeout(0.01)
print("listening", flush=True)
while True:
    both[0].sendto(b"not of the traffic", both[1].getsockname())
    try:
        both[1].recv(100)
        both[0].recv(100)
    except TimeoutError:
        pass
"""
Server = subprocess.Popen[str]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Yield two hosts."""
    with pair_of_hosts(tmp_path_factory.mktemp("ssh")) as hosts:
        yield hosts


@pytest.fixture
def server(pair: Pair) -> Iterator[Server]:
    """Run a server on the right host, beside another program that reads UDP all the time."""
    started = []
    for program in (OTHER, PROGRAM):
        command = pair.right.inside(sys.executable, "-c", program, "4321")
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout is not None
        assert "listening\n" == started[-1].stdout.readline()
    yield started[-1]
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Controllers]:
    """Yield a place to start controllers."""
    with controllers(tmp_path) as started:
        yield started


def test_a_process_is_measured_among_others_and_goes_on(
    pair: Pair, server: Server, group: Controllers, tmp_path: Path
) -> None:
    """All that it has read was sent to it, by its own count, too."""
    (tmp_path / "lab.yaml").write_text(pair.lab())
    data = json.dumps({**TINY, "receive": {"attach": {"port": 4321}}})
    arguments = [str(LEASE_NS), data, str(tmp_path / "lab.yaml")]
    controller = group.start(arguments, environment={"HOME": str(pair.home)})
    assert 0 == controller.end(), controller.log.read_text()
    (record,) = controller.run().records
    result = judge(record)
    assert (240, 240, 0) == (result.sent_packets, result.received_packets, result.unaccounted)
    assert None is server.poll()
    server.terminate()
    report = re.fullmatch(r"read (\d+)\n", server.communicate()[0])
    assert report is not None
    sent, counted = (
        sum(
            stats.counts[f"{what}_packets"]
            for phase in record.phases
            for stats in phase.stats
            if stats.role == role
        )
        for role, what in (("sender", "sent"), ("receiver", "read"))
    )
    assert sent == int(report[1])
    # What a busy machine lets it read after the end of a phase belongs to none.
    assert counted <= sent


@pytest.mark.long
def test_a_process_that_ends_under_way_fails_its_trial(
    pair: Pair, server: Server, group: Controllers, tmp_path: Path
) -> None:
    """With one error; the hosts are restored."""
    (tmp_path / "lab.yaml").write_text(pair.lab())
    data = {**TINY, "receive": {"attach": {"pid": server.pid}}, "warmup": "20s"}
    arguments = [str(LEASE_NS), json.dumps(data), str(tmp_path / "lab.yaml")]
    controller = group.start(arguments, environment={"HOME": str(pair.home)})
    controller.await_line("warmup")
    server.kill()
    assert 0 == controller.end(), controller.log.read_text()  # of the run itself
    (record,) = controller.run().records
    assert record.error is not None
    assert "a receiving socket was closed" in record.error.message
    assert [] == list(Path(f"/proc/{pair.right.pid}/root/run/udpbench").glob("*.jsonl"))

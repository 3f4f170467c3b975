"""The process that serves iperf3 clients: what it may do, and what it serves its controller."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from golden import Golden
from iperf3_client import Client
from waiting import wait_until

from udpbench.agent.host.privileges import NOBODY
from udpbench.protocol import PROTOCOL, VERBS, build_id

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root alone has a right to give up")
HELLO = {"host": "right", "run": "run-1", "protocol": PROTOCOL, "lease_ns": 30 * 10**9}


class Started:
    """A server on loopback, and the controller's end of its pipes."""

    def __init__(self, port: int) -> None:
        command = (sys.executable, "-m", "udpbench.agent.clients", str(port), "1", "127.0.0.1")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._number = 0

    def ask(self, verb: str, **args: Any) -> dict[str, Any]:
        """Return the reply to a request."""
        self._number += 1
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"id": self._number, "verb": verb, "args": args}
        self.process.stdin.write(f"{json.dumps(request)}\n")
        self.process.stdin.flush()
        reply: dict[str, Any] = json.loads(self.process.stdout.readline())
        return reply

    def greet(self) -> None:
        """Begin the session."""
        reply = self.ask("hello", build=build_id(), scopes=["namespace"], **HELLO)
        assert self.process.pid == reply["result"]["pid"]

    def end(self) -> tuple[str, int]:
        """Close its stdin; return its last words, and how it ended."""
        _, words = self.process.communicate(timeout=10)
        return words, self.process.returncode


@pytest.fixture
def started(port: int) -> Iterator[Started]:
    """Start a server, and end it."""
    process = Started(port)
    yield process
    process.end()


@as_root
def test_who_reads_what_strangers_send_has_no_right(started: Started) -> None:
    """By the time that it answers anybody: no capability, now or later, and nobody's user."""
    started.greet()
    lines = Path(f"/proc/{started.process.pid}/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert {NOBODY} == set(map(int, (status["Uid"] + "\t" + status["Gid"]).split("\t")))
    assert "" == status["Groups"].strip()
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert 0 == int(status[name], 16), name
    assert "1" == status["NoNewPrivs"].strip()


@as_root
@pytest.mark.parametrize("option", [socket.SO_REUSEADDR, socket.SO_REUSEPORT])
def test_no_other_user_has_the_port_as_streams_come(
    started: Started, port: int, option: int
) -> None:
    """The kernel compares whose sockets are; the server's own are nobody's, which it has become."""
    started.greet()
    client = Client(port)
    assert 10 == client.ask(parallel=2)
    client.greet()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        os.fchown(stranger.fileno(), NOBODY - 1, -1)
        stranger.setsockopt(socket.SOL_SOCKET, option, 1)
        with pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port))
    client.greet()
    client.close()


def test_its_controller_alone_lets_a_test_begin(started: Started, port: int) -> None:
    """And gets all that was counted; nothing of a client is answered before hello."""
    started.greet()
    client = Client(port)
    assert 10 == client.ask(parallel=1)
    client.greet()
    seen: list[dict[str, Any]] = []

    def comes(kind: str) -> bool:
        seen.extend(started.ask("clients", since=len(seen))["result"])
        return any(event["event"] == kind for event in seen)

    wait_until("prepared", lambda: comes("prepared"))
    started.ask("proceed", test=1, output=None)
    assert (1, 2) == (client.state(), client.state())
    client.send(range(1, 101))
    client.say(4)
    assert 13 == client.state()
    client.send_json({"streams": [{"id": 1, "packets": 101}]})
    wait_until("ended", lambda: comes("ended"))
    ended = next(event for event in seen if event["event"] == "ended")
    (stats,) = ended["sampled"]["stats"]
    assert (100, 101, [0]) == (
        stats["counts"]["received_packets"],
        ended["served"]["streams"][0]["sent_packets"],
        list(ended["drops"].values()),
    )
    started.ask("proceed", test=1, output="shown")
    (stream,) = client.read_json()["streams"]
    assert 1 == stream["errors"]
    client.close()


def test_it_serves_no_verb_that_changes_or_reads_a_host(started: Started, golden: Golden) -> None:
    """All others are refused, and so is a second controller."""
    golden.check(started.ask("ping")["error"]["message"])
    started.greet()
    own = {"hello", "take", "release", "leave", "ping", "clients", "proceed"}
    for verb in VERBS.keys() - own:
        assert "does not serve" in started.ask(verb)["error"]["message"]
    golden.check(started.ask("apply")["error"]["message"])
    again = started.ask("hello", build=build_id(), scopes=["namespace"], **HELLO)
    golden.check(again["error"]["message"])


def test_a_port_that_is_taken_ends_it(port: int, golden: Golden) -> None:
    """With the reason, and nothing is served."""
    with socket.create_server(("127.0.0.1", port)):
        words, status = Started(port).end()
    golden.check(words.strip(), port=port)
    assert 3 == status


def test_a_controller_that_leaves_ends_its_tests(port: int) -> None:
    """A client is told."""
    process = Started(port)
    process.greet()
    client = Client(port)
    client.ask()
    process.end()
    assert 11 == client.state()
    client.close()

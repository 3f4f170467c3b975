"""An agent that answers every request with the same bytes, and all that control asks of it.

Not a test.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from typing import IO, Any, cast

from udpbench.control.agent_client import AgentClient
from udpbench.control.connections.channel import Channel, Pipes
from udpbench.errors import HostError
from udpbench.json_lines import LinePipe

HOST = "left"
ASKED: tuple[Callable[[AgentClient], object], ...] = (
    lambda client: client.greet("r", 10**10),
    lambda client: client.take("alone"),
    lambda client: client.others(),
    lambda client: client.facts(),
    lambda client: client.interfaces(),
    lambda client: client.hear_arp(()),
    lambda client: client.inspect(),
    lambda client: client.record(),
    lambda client: client.plan(()),
    lambda client: client.apply(()),
    lambda client: client.verify(),
    lambda client: client.prepare(()),
    lambda client: client.sample(0),
    lambda client: client.snapshot("end"),
    lambda client: client.look(None, None, exact=False),
    lambda client: client.send_losses("rx_ring"),
    lambda client: client.collect_losses(),
    lambda client: client.hear_strangers(listen=False),
    lambda client: client.close(),
    lambda client: client.restore(),
)


class _Answering(io.BytesIO):
    """The agent's stdin: each request is answered at once."""

    def __init__(self, replies_fd: int, body: bytes) -> None:
        super().__init__()
        self._replies_fd = replies_fd
        self._body = body

    def write(self, line: Any) -> int:
        number = json.loads(bytes(line))["id"]
        rest = memoryview(self._body.replace(b"%ID", str(number).encode()) + b"\n")
        while rest:
            rest = rest[os.write(self._replies_fd, rest) :]
        return len(line)

    def close(self) -> None:
        os.close(self._replies_fd)


def answered(body: bytes) -> list[int]:
    """Ask an agent that answers with ``body``; ``%ID`` in it is the request's number."""
    codes = []
    for ask in ASKED:
        reading, writing = os.pipe()
        pipes = Pipes(
            requests=cast(IO[bytes], _Answering(writing, body)),
            replies=LinePipe(reading),
            errors=io.BytesIO(),
            pid=None,
            ended=lambda _: 0,
            kill=lambda: None,
            release=lambda: None,
            next_step=lambda *_: "",
        )
        client = AgentClient(Channel(HOST, pipes), "sender", "send0", ("namespace",))
        try:
            ask(client)
        except HostError as error:
            print(str(error), file=sys.stderr)
            codes.append(error.exit_code)
        else:
            codes.append(0)
        client.channel.close()
        os.close(reading)
    return codes

"""The page for Prometheus: ``python -m udpbench.agent.scrapes FD FRESH_S [CERT KEY CA]``.

Serves the latest text from stdin over HTTP on a socket that is open already, and nothing else: it
gives up every right before it answers. On stdout it says which text a client has, and how much CPU
time it has used. No client waits for another, however slow.

Stdin has each text behind its length, eight bytes in network order.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import ssl
import sys
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Optional

from udpbench.agent.host.privileges import keep_only
from udpbench.agent.host.reading import ReadingHost

LENGTH_BYTES = 8
HEAD_BYTES = 8192
"""The head of a request; Prometheus sends some 300."""
CLIENT_S = 10.0
"""For a client to ask, and to take the answer; Prometheus's own limit is by default the same."""
MOST_CLIENTS = 256
"""At a time; the next makes the oldest leave."""
AGAIN_S = 0.1
"""Until the next is accepted, if one could not be."""
COLLECTED = (200, 2, 2)
"""As gc.set_threshold takes it: TLS that was cut off leaves 0.2 MB each; by default for long."""
TYPE = "text/plain; version=0.0.4; charset=utf-8"
ROOT = b'<a href="/metrics">metrics</a>\n'


class Scrapes:
    """The latest text, and who asks for it."""

    def __init__(self, fresh_s: float) -> None:
        self._fresh_s = fresh_s
        self._text = b""
        self._number = self._delivered = 0
        self._since_s = 0.0
        self._clients: dict[asyncio.Task[None], None] = {}

    def replace(self, text: bytes) -> None:
        """Show this from now on."""
        self._text, self._number, self._since_s = text, self._number + 1, time.monotonic()

    async def accept(self, listener: socket.socket, tls: Optional[ssl.SSLContext]) -> None:
        """Answer everybody who connects, of whom a handshake that does not end is one, too."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError:  # no descriptor is left, or the client has gone
                await asyncio.sleep(AGAIN_S)
                continue
            if len(self._clients) >= MOST_CLIENTS:
                oldest = next(iter(self._clients))
                del self._clients[oldest]
                oldest.cancel()
            self._clients[asyncio.ensure_future(self.answer(client, tls))] = None
            await asyncio.sleep(0)

    async def answer(self, client: socket.socket, tls: Optional[ssl.SSLContext]) -> None:
        """Answer one request, and close the connection."""
        failures = (OSError, EOFError, ValueError, asyncio.LimitOverrunError, asyncio.TimeoutError)
        try:
            with suppress(*failures), client:
                await asyncio.wait_for(self._greet(client, tls), CLIENT_S)
        finally:
            task = asyncio.current_task()
            if task is not None:
                self._clients.pop(task, None)

    async def _greet(self, client: socket.socket, tls: Optional[ssl.SSLContext]) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(HEAD_BYTES, loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, client, ssl=tls)
        try:
            transport.set_write_buffer_limits(0)
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            await self._talk(reader, writer)
            writer.close()
            await writer.wait_closed()
        finally:
            transport.abort()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, *_ = [*head.split(b"\r\n", 1)[0].split(b" "), b"", b""]
        number = self._number
        status, kind, body = self._page(method, target.partition(b"?")[0])
        lines = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{lines}Connection: close\r\n\r\n".encode())
        writer.write(b"" if method == b"HEAD" else body)
        await writer.drain()
        if body is self._text and number > self._delivered:
            self._delivered = number
            os.write(1, b"%d %d\n" % (number, time.process_time_ns()))

    def _page(self, method: bytes, path: bytes) -> tuple[str, str, bytes]:
        if method not in (b"GET", b"HEAD"):
            return "405 Method Not Allowed", "text/plain", b"GET /metrics\n"
        if path == b"/":
            return "200 OK", "text/html", ROOT
        if path != b"/metrics":
            return "404 Not Found", "text/plain", b"GET /metrics\n"
        age_s = time.monotonic() - self._since_s
        if not self._number or age_s > self._fresh_s:
            what = f"the latest look was {age_s:.0f} s ago" if self._number else "no look so far"
            return "503 Service Unavailable", "text/plain", f"{what}\n".encode()
        return "200 OK", TYPE, self._text


async def serve(listener: socket.socket, tls: Optional[ssl.SSLContext], scrapes: Scrapes) -> None:
    """Serve until stdin ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    loop.set_exception_handler(lambda *_: None)  # a client that does not speak TLS is no news
    listener.listen(MOST_CLIENTS)
    listener.setblocking(False)
    accepting = asyncio.ensure_future(scrapes.accept(listener, tls))
    with suppress(asyncio.IncompleteReadError):
        while True:
            size_bytes = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
            scrapes.replace(await reader.readexactly(size_bytes))
    accepting.cancel()


def mutual_tls(certificate: str, key: str, authority: str) -> ssl.SSLContext:
    """Return TLS that takes clients with a certificate of an authority alone; OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(authority)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def main() -> int:
    """Serve what arrives on stdin."""
    number, fresh_s, *files = sys.argv[1:]
    tls = mutual_tls(*files) if files else None
    listener = socket.socket(fileno=int(number))
    working: Coroutine[Any, Any, None] = serve(listener, tls, Scrapes(float(fresh_s)))
    keep_only(ReadingHost(), ())
    gc.freeze()
    gc.set_threshold(*COLLECTED)
    asyncio.run(working)
    return 0


if __name__ == "__main__":
    sys.exit(main())

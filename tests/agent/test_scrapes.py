"""The process that serves the page: what it answers, to how many, and what it may do."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest

from udpbench.agent import scrapes as module
from udpbench.agent.host.privileges import OBSERVER_USER

SERVER = "udpbench.agent.scrapes"
LIMIT_S = 20


class Server:
    """The process, and its end of the pipes."""

    def __init__(self, fresh_s: float, *files: str) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
            self.process = subprocess.Popen(
                (sys.executable, "-m", SERVER, str(listener.fileno()), str(fresh_s), *files),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(listener.fileno(),),
            )
        self.wait()

    def wait(self) -> None:
        """Wait until it listens."""
        end_s = time.monotonic() + LIMIT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                assert time.monotonic() < end_s
                continue
            return

    def show(self, text: bytes) -> None:
        """Have it serve a text, and wait until it does."""
        assert self.process.stdin is not None
        self.process.stdin.write(len(text).to_bytes(8, "big") + text)
        self.process.stdin.flush()
        end_s = time.monotonic() + LIMIT_S
        while text != self.get("/metrics")[1]:
            assert time.monotonic() < end_s

    def get(self, path: str, method: str = "GET") -> tuple[int, bytes]:
        """Return status and body of a request."""
        client = HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        client.request(method, path)
        answer = client.getresponse()
        body = answer.read()
        client.close()
        return answer.status, body

    def close(self) -> int:
        """End its stdin, and return how it ended."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(LIMIT_S)


@pytest.fixture
def server() -> Iterator[Server]:
    """Start it, and end it."""
    started = Server(60)
    yield started
    assert 0 == started.close()
    assert started.process.stdout is not None
    started.process.stdout.close()


def test_it_serves_the_latest_text_and_says_who_has_it(server: Server) -> None:
    """Before the first there is none; other paths and methods get nothing."""
    assert (503, b"no look so far\n") == server.get("/metrics")
    server.show(b"first 1\n")
    server.show(b"second 2\n")
    assert (200, b"second 2\n") == server.get("/metrics?x=1")
    assert (200, b"") == server.get("/metrics", "HEAD")
    assert 200 == server.get("/")[0]
    assert (404, 405) == (server.get("/../etc/passwd")[0], server.get("/metrics", "POST")[0])
    assert server.process.stdout is not None
    lines = [server.process.stdout.readline().split() for _ in range(2)]
    assert [b"1", b"2"] == [number for number, _ in lines]
    assert all(int(cpu_ns) > 0 for _, cpu_ns in lines)


def test_an_old_text_is_none() -> None:
    """So that ``up`` is 0 where no look comes any more."""
    started = Server(0.0)
    assert started.process.stdin is not None
    started.process.stdin.write((2).to_bytes(8, "big") + b"a\n")
    started.process.stdin.flush()
    end_s = time.monotonic() + LIMIT_S
    while b"the latest look was 0 s ago\n" != (answer := started.get("/metrics"))[1]:
        assert time.monotonic() < end_s
    assert 503 == answer[0]
    started.close()


def test_a_hundred_clients_at_once_each_get_it(server: Server) -> None:
    """And those who ask slowly, or never, hold nobody up."""
    text = b"metric 1\n" * 20000
    server.show(text)
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
    for client in silent[::2]:
        client.send(b"GET /metrics HT")
    with ThreadPoolExecutor(100) as pool:
        answers = [*pool.map(lambda _: server.get("/metrics"), range(100))]
    assert {(200, text)} == set(answers)
    for client in silent:
        client.close()


def test_whoever_comes_without_end_makes_the_oldest_leave(server: Server) -> None:
    """There is room for so many."""
    server.show(b"a 1\n")
    silent = [
        socket.create_connection(("127.0.0.1", server.port))
        for _ in range(module.MOST_CLIENTS + 40)
    ]
    assert (200, b"a 1\n") == server.get("/metrics")
    silent[0].settimeout(LIMIT_S)
    with suppress(ConnectionResetError):
        assert b"" == silent[0].recv(1)
    for client in silent:
        client.close()


def test_whoever_asks_and_takes_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if what waits for it is little; nothing of it stays after that."""
    monkeypatch.setattr(module, "CLIENT_S", 0.2)
    scrapes = module.Scrapes(60)
    served, client = socket.socketpair()
    served.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    served.setblocking(False)
    scrapes.replace(b"a 1\n" * 2500)

    async def answered() -> int:
        await scrapes.answer(served, None)
        await asyncio.sleep(0)
        return served.fileno()

    client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert -1 == asyncio.run(answered())
    client.close()


@pytest.mark.parametrize(
    "request_bytes",
    [b"\x00" * 9000, b"GET\r\n\r\n", b"\xff\xfe /metrics\r\n\r\n", b"GET  \r\n\r\n"],
)
def test_what_is_no_request_ends_there(server: Server, request_bytes: bytes) -> None:
    """It is refused, or the connection closed; the next client is served."""
    server.show(b"a 1\n")
    with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as client:
        client.sendall(request_bytes)
        try:
            answer = client.recv(1000)
        except ConnectionResetError:
            answer = b""
        assert not answer.startswith(b"HTTP/1.1 200")
    assert (200, b"a 1\n") == server.get("/metrics")


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone has a right to give up")
def test_it_has_no_right_at_all(server: Server) -> None:
    """A user of its own, without a capability, that can get none."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    lines = dict(line.split(":\t", 1) for line in status.splitlines())
    assert [str(OBSERVER_USER)] * 4 == lines["Uid"].split()
    sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    assert {0} == {int(lines[name], 16) for name in sets}
    assert ("", "1") == (lines["Groups"].strip(), lines["NoNewPrivs"])


def test_whoever_comes_without_a_certificate_takes_no_memory(tmp_path: Path) -> None:
    """Also who does not greet counts among the clients; of those who have gone nothing stays."""
    files = certificates(tmp_path)
    started = Server(60, *(str(files / name) for name in ("server.pem", "server.key", "ca.pem")))
    for _ in range(10):
        silent = [
            socket.create_connection(("127.0.0.1", started.port))
            for _ in range(module.MOST_CLIENTS + 40)
        ]
        silent[0].settimeout(module.CLIENT_S / 2)
        with suppress(ConnectionResetError):
            assert b"" == silent[0].recv(1)
        for each in silent:
            each.close()
    lines = Path(f"/proc/{started.process.pid}/status").read_text().splitlines()
    (peak,) = (int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    assert peak < 256 * 1024
    assert 0 == started.close()


def certificates(folder: Path) -> Path:
    """Make an authority, a server's and a client's certificate, and a stranger's."""
    for name in ("ca", "other"):
        subprocess.run(
            ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
             "-nodes", "-days", "2", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem"),
            cwd=folder, check=True, capture_output=True,
        )  # fmt: skip
    for name, issuer in (("server", "ca"), ("client", "ca"), ("stranger", "other")):
        subprocess.run(
            ("openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-subj", "/CN=localhost", "-keyout", f"{name}.key", "-out", f"{name}.csr"),
            cwd=folder, check=True, capture_output=True,
        )  # fmt: skip
        subprocess.run(
            ("openssl", "x509", "-req", "-in", f"{name}.csr", "-CA", f"{issuer}.pem", "-CAkey",
             f"{issuer}.key", "-CAcreateserial", "-days", "2", "-out", f"{name}.pem"),
            cwd=folder, check=True, capture_output=True,
        )  # fmt: skip
    return folder


def test_with_tls_only_clients_with_a_certificate_are_served(tmp_path: Path) -> None:
    """One of the authority that was named; nobody else gets a byte."""
    files = certificates(tmp_path)
    started = Server(60, *(str(files / name) for name in ("server.pem", "server.key", "ca.pem")))
    assert started.process.stdin is not None
    started.process.stdin.write((4).to_bytes(8, "big") + b"a 1\n")
    started.process.stdin.flush()

    def ask(name: str | None) -> bytes:
        context = ssl.create_default_context(cafile=str(files / "ca.pem"))
        context.check_hostname = False
        if name is not None:
            context.load_cert_chain(files / f"{name}.pem", files / f"{name}.key")
        plain = socket.create_connection(("127.0.0.1", started.port), LIMIT_S)
        with context.wrap_socket(plain) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            answer = b""
            while chunk := client.recv(1000):
                answer += chunk
        return answer

    end_s = time.monotonic() + LIMIT_S
    while not ask("client").endswith(b"a 1\n"):
        assert time.monotonic() < end_s
    for name in (None, "stranger"):
        with suppress(ssl.SSLError, ConnectionError):
            assert b"" == ask(name)
    with socket.create_connection(("127.0.0.1", started.port), LIMIT_S) as plain:
        plain.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        with suppress(ConnectionResetError):
            assert b"a 1" not in plain.recv(1000)
    assert 0 == started.close()

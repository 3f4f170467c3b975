"""Hosts that send without end, a byte now and then or as fast as they can, over real sockets."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest
from golden import Golden

from control.test_channel import Pinged
from udpbench.control.agents import Lease
from udpbench.control.connections.ssh import MARKER, _Login, open_ssh, talk
from udpbench.control.connections.ssh_limits import SshLimits, WholeLimit
from udpbench.control.deployment import deployer
from udpbench.control.deployment.bundle import Bundle
from udpbench.control.deployment.deployer import Conversation, Deployer
from udpbench.errors import AgentLost, ConnectError
from udpbench.model.lab import Connect
from udpbench.model.limits import SECOND_NS

LIMIT_S = 20.0
DRIP_S = 0.02
"""Between two bytes: far less than any limit of a single wait."""
LIMITS = SshLimits(whole_ns=SECOND_NS)
SPACE = b" "
HOST_KEY = paramiko.ECDSAKey.generate()
REPORT = (
    b'{"python": [3, 9], "machine": "m68k", "libc": "musl", "libc_version": "1.2", "uid": 0, '
    b'"executable": "/py", "distrusted": null}\n'
)
MISSING = b'{"state": "missing", "builds": 0}\n'
Send = Callable[[bytes], object]


class Host(paramiko.ServerInterface):
    """A server on loopback that lets everybody in, as far as its parts go."""

    def __init__(self, home: Path) -> None:
        self.over = threading.Event()
        self.raw: bytes | None = None
        """What is sent instead of SSH, before it goes on for ever; None: SSH is spoken."""
        self.key_checked: Callable[[], object] = lambda: None
        self.output = b""
        """What a command prints before it goes on for ever."""
        self.endless = SPACE
        self.pause_s = DRIP_S
        self.deaf = False
        """A command reads nothing."""
        self.obeys = True
        """It sends no more than its window."""
        self.ignores = False
        """It sends messages to ignore."""
        self.window_bytes = 2**21
        """What may be sent to a command that reads nothing."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        names = f"[127.0.0.1]:{self.port}"
        (home / ".ssh").mkdir()
        (home / ".ssh" / "known_hosts").write_text(
            f"{names} {HOST_KEY.get_name()} {HOST_KEY.get_base64()}\n"
        )
        paramiko.ECDSAKey.generate().write_private_key_file(str(home / ".ssh" / "id_ecdsa"))
        self.connect = Connect("ssh", f"me@127.0.0.1:{self.port}")
        self._threads: list[threading.Thread] = []
        self._lines: list[socket.socket] = []
        self._threads.append(self._start(self._accept))

    def _start(self, work: Callable[..., None], *words: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=words, daemon=True)
        thread.start()
        return thread

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self._threads.append(self._start(self._serve, self._listener.accept()[0]))

    def _serve(self, line: socket.socket) -> None:
        self._lines.append(line)
        with line, suppress(OSError, EOFError, paramiko.SSHException):
            if self.raw is not None:
                line.sendall(self.raw)
                self._go_on(line.sendall)
            else:
                self._let_in(line)

    def _let_in(self, line: socket.socket) -> None:
        with paramiko.Transport(line, default_window_size=self.window_bytes) as server:
            server.add_server_key(HOST_KEY)
            server.start_server(threading.Event(), self)
            channel = server.accept(LIMIT_S)
            if channel is None:
                return
            channel.sendall(self.output)
            if self.deaf:
                self.over.wait()
            if self.ignores or not self.obeys:
                channel.recv(1)
                channel.out_window_size = 2**40
            self._go_on((lambda _: server.send_ignore(2**14)) if self.ignores else channel.sendall)

    def _go_on(self, send: Send) -> None:
        """Send on until the other side, or the test, has ended."""
        while not self.over.wait(self.pause_s):
            send(self.endless)

    def close(self) -> None:
        """End all that was begun."""
        self.over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for line in self._lines:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()

    def get_allowed_auths(self, _username: str) -> str:
        """Name the one way."""
        return "publickey"

    def check_auth_publickey(self, _username: str, _key: paramiko.PKey) -> int:
        """Let everybody in, after a while."""
        self.key_checked()
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, _kind: str, _number: int) -> int:
        """Open every channel."""
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, _channel: paramiko.Channel, _command: bytes) -> bool:
        """Run every command."""
        return True


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """Yield a server, and a home that leads to it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    server = Host(tmp_path)
    yield server
    server.close()


def refusal(host: Host, limits: SshLimits = LIMITS) -> str:
    """Return why no agent could be had; in no more time than one limit, and some for a busy CPU."""
    begun = time.monotonic()
    with pytest.raises(ConnectError) as caught:
        open_ssh("left", host.connect, limits)
    assert time.monotonic() - begun < LIMIT_S
    return str(caught.value).replace(str(host.port), "PORT")


BANNER = b"SSH-2.0-odd\r\n"
PACKET = BANNER + struct.pack(">IBB", 30004, 4, 20)
"""The begin of a key exchange that is never complete."""


@pytest.mark.parametrize("raw", [b"", b"Welcome\r\n", PACKET], ids=range(3))
def test_a_host_that_drips_while_one_logs_in_is_given_up(host: Host, raw: bytes) -> None:
    """Before its banner, in it and in the key exchange: the whole has one limit."""
    host.raw = raw
    assert (
        "left: the login at me@127.0.0.1:PORT: the host did not come to an end within 1s; find out "
        "what slows it down, or what runs there instead of sshd; then try again"
    ) == refusal(host)


@pytest.mark.parametrize("raw", [b"", BANNER], ids=["banner", "packets"])
def test_a_host_that_floods_while_one_logs_in_is_given_up(host: Host, raw: bytes) -> None:
    """No more of it is kept than the limit; here without a line's end, or in messages to ignore."""
    host.raw, host.pause_s = raw, 0
    host.endless = bytes(2**16) if not raw else (bytes([0, 0, 1, 4, 4, 2]) + bytes(258)) * 256
    message = refusal(host, replace(LIMITS, whole_ns=60 * SECOND_NS, whole_bytes=2**19))
    assert (
        "left: the login at me@127.0.0.1:PORT: the host sent more than 512KiB; find out what prints "
        "that there, or what runs there instead of sshd"
    ) == message


def test_a_host_that_never_says_whether_a_key_will_do_is_given_up(host: Host) -> None:
    """However many keys there are, each with a time of its own."""
    host.key_checked = host.over.wait
    assert refusal(host).startswith("left: the login at me@127.0.0.1:PORT: the host did not come")


def test_a_login_shell_that_drips_is_given_up(host: Host) -> None:
    """Its line has no end."""
    assert refusal(host).startswith("left: the start of our command: the host did not come to an")


READY = f"{MARKER} at /py\n".encode()


def test_a_login_shell_that_prints_empty_lines_is_given_up(host: Host) -> None:
    """An end of a line is a byte, too."""
    host.output, host.endless = b"Welcome\n", b"\n" * 2**16
    host.pause_s = 0
    expected = (
        "left: logged in, but the login shell prints without end; fix what it starts (~/.bashrc, "
        "a forced command, nologin)"
    )
    assert expected == refusal(host, replace(LIMITS, whole_ns=60 * SECOND_NS))


@pytest.mark.parametrize(
    "output", [READY, READY + REPORT, READY + REPORT + MISSING, READY + b"{"], ids=range(4)
)
def test_a_host_that_drips_while_the_agent_is_deployed_is_given_up(
    host: Host, output: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every answer: to the program, to the question, and to what is sent."""
    monkeypatch.setattr(deployer, "make_bundle", lambda *_: Bundle("key", {"file": b"content"}))
    host.output = output
    login_too = replace(LIMITS, whole_ns=3 * SECOND_NS)  # on a busy machine
    what = "left: the deployment: the host did not come to an end within"
    assert refusal(host, login_too).startswith(what)


def test_a_host_that_takes_nothing_of_what_is_deployed_is_given_up(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its window is full, and never opens."""
    content = bytes(range(256)) * 2**14
    monkeypatch.setattr(deployer, "make_bundle", lambda *_: Bundle("key", {"file": content}))
    monkeypatch.setattr(Bundle, "archive", lambda self: self.files["file"])
    host.output, host.deaf = READY + REPORT + MISSING, True
    assert refusal(host).startswith("left: the deployment: the host did not come to an end within")


def test_an_answer_without_end_is_given_up(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast it comes."""
    monkeypatch.setattr(deployer, "make_bundle", lambda *_: Bundle("key", {"file": b"content"}))
    host.output, host.pause_s = READY + REPORT + MISSING, 0
    host.endless = b"[" * 2**16
    limits = replace(LIMITS, whole_ns=60 * SECOND_NS, whole_bytes=2**19)
    assert ": the host sent more than 512KiB; find out what prints that" in refusal(host, limits)


def test_what_the_controller_does_alone_has_no_limit_of_the_host(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download by pip may take longer; nothing that the host does ends meanwhile."""
    limits = replace(LIMITS, whole_ns=SECOND_NS // 2)

    def bundled(*_: object) -> Bundle:
        assert not host.over.wait(0.7)
        raise ConnectError("no build for it")

    monkeypatch.setattr(deployer, "make_bundle", bundled)
    host.output = READY + REPORT

    def act(line: Conversation) -> str:
        return Deployer().bring(line, False, "deploy", ("x",), None)

    with pytest.raises(ConnectError) as caught:
        talk("left", host.connect, act, limits)
    assert "left: no build for it" == str(caught.value)


def test_an_agent_that_drips_when_it_is_fetched_is_given_up(host: Host) -> None:
    """Its one line has no end; a further attempt may be made."""
    host.output = READY
    with ExitStack() as stack:
        login = _Login("left", replace(host.connect, python="/py"), LIMITS, stack, "run-1")
        with pytest.raises(ConnectError) as caught:
            login.await_announcement()
    assert str(caught.value).startswith("left: the reconnection: the host did not come to an end")


def test_a_request_that_a_host_does_not_take_breaks_the_connection(host: Host) -> None:
    """Else whoever asks would wait for ever, and everybody after."""
    host.output, host.deaf = READY, True
    with ExitStack() as stack:
        login = _Login("left", replace(host.connect, python="/py"), LIMITS, stack)
        with pytest.raises(TimeoutError, match="no answer within 1s"):
            login.requests.write(bytes(2**24))


def test_a_packet_that_ssh_does_not_have_is_not_read(host: Host) -> None:
    """Its length would be taken into memory, which a host may name up to 4 GiB."""
    host.raw, host.endless = BANNER + struct.pack(">IBB", 2**31 - 4, 4, 20), bytes(2**10)
    assert (
        "left: the login at me@127.0.0.1:PORT: the host sent a packet of more than 256KiB; find out "
        "what prints that there, or what runs there instead of sshd"
    ) == refusal(host, replace(LIMITS, whole_ns=60 * SECOND_NS))


def test_a_host_that_sends_more_than_its_window_is_given_up(host: Host) -> None:
    """Nothing is read meanwhile, and paramiko would keep all of it."""
    host.output, host.obeys, host.pause_s, host.endless = READY, False, 0, bytes(2**16)
    limits = replace(LIMITS, whole_ns=60 * SECOND_NS)
    with ExitStack() as stack:
        login = _Login("left", replace(host.connect, python="/py"), limits, stack)
        login.requests.write(b"begin")
        assert login.agent.status_event.wait(LIMIT_S)
        assert len(login.agent.in_buffer) < 2**22
        login.replies.limit_bytes = 2**30
        with pytest.raises(ConnectError) as caught:
            login.replies.next()
    assert (
        "left: the start of our command: the host sent more than the 2MiB that SSH let it send at "
        "once; find out what prints that there, or what runs there instead of sshd"
    ) == str(caught.value)


def test_a_connection_that_ends_while_its_window_is_given_back_has_ended(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is why the host was given up, if it was; else the connection is made anew."""
    host.output, host.deaf = READY, True
    with ExitStack() as stack:
        login = _Login("left", replace(host.connect, python="/py"), LIMITS, stack)

        def recv(_size_bytes: int) -> bytes:
            raise EOFError

        monkeypatch.setattr(login.agent, "recv", recv)
        assert b"" == login._receive(1)
        login._whole.end("sent too much", "stop it")
        with pytest.raises(ConnectError, match="the host sent too much; stop it"):
            login._receive(1)


def test_what_comes_without_an_answer_is_counted_whatever_it_is(host: Host) -> None:
    """Here messages that are to be ignored; the agent is lost and no connection made anew."""
    host.output, host.pause_s, host.ignores = READY, 0, True
    limits = replace(LIMITS, whole_bytes=2**19)
    channel = open_ssh("left", replace(host.connect, python="/py"), limits)
    channel.outlast("run", 60 * SECOND_NS)
    with pytest.raises(AgentLost) as caught:
        channel.request("ping", 20 * SECOND_NS)
    assert (
        "agent lost during ping: its answers: the host sent more than 512KiB; find out what prints "
        "that there, or what runs there instead of sshd"
    ) == caught.value.message
    channel.close(SECOND_NS // 100)


def test_a_host_that_takes_no_ping_costs_no_other_its_lease(host: Host) -> None:
    """Its window has room for one ping, and never opens again."""
    host.output, host.deaf, host.window_bytes = READY, True, 60
    channel = open_ssh("left", replace(host.connect, python="/py"))
    other = Pinged()
    with closing(Lease(30 * 10**6)) as lease:
        lease.keep(channel)
        lease.keep(other)
        for _ in range(3):
            other.three.clear()
            assert other.three.wait(LIMIT_S)
        assert channel._writing.locked()
    channel._pipes.kill()
    channel.close(SECOND_NS // 100)


def test_a_name_with_many_addresses_has_one_limit(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may be silent for its own time, all together for no longer."""
    waits = []

    class Silent:
        def __init__(self, *_: object) -> None:
            self.wait_s = 0.0

        def settimeout(self, wait_s: float) -> None:
            waits.append(wait_s)
            self.wait_s = wait_s

        def connect(self, _address: object) -> None:
            host.over.wait(self.wait_s)
            raise TimeoutError

        def close(self) -> None:
            """Nothing is open."""

    addresses = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("192.0.2.1", 22))] * 50
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
    monkeypatch.setattr("udpbench.control.connections.ssh.socket.socket", Silent)
    limits = replace(LIMITS, connect_ns=SECOND_NS // 4)
    assert refusal(host, limits).startswith("left: the login at me@127.0.0.1:PORT: the host did")
    assert sum(waits) < 2


@contextmanager
def carried() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield both ends of a connection."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_bytes_count_only_while_something_is_done() -> None:
    """Whatever an agent sends later has limits of its own, and each thing begins at 0."""
    whole = WholeLimit("left", SshLimits(whole_bytes=10))
    with carried() as (ours, theirs):
        counted = whole.count(ours)
        for _ in range(3):
            with whole.during("this"):
                theirs.sendall(bytes(10))
                assert bytes(10) == counted.recv(100)
        theirs.sendall(bytes(20))
        assert bytes(20) == counted.recv(100)


def test_what_failed_for_another_reason_is_told_as_that(golden: Golden) -> None:
    """Within the limits nothing is replaced; at the limit everything is, also a good end."""
    whole = WholeLimit("left", SshLimits(whole_bytes=1))
    with pytest.raises(KeyError), whole.during("this"):
        raise KeyError
    with carried() as (ours, theirs):
        counted = whole.count(ours)
        theirs.sendall(bytes(2))
        with golden.raises(ConnectError), whole.during("that"):
            counted.recv(2)
        assert b"" == ours.recv(1)

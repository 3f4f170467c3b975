"""The way to a host over SSH: whom ~/.ssh/config means, the proof of both keys, an agent there.

Owns paramiko, which nothing else imports. Strict: a host whose key is not in known_hosts is never
talked to. Starts one program, the agent, and every failure says what to do about it.
"""

from __future__ import annotations

import io
import logging
import shlex
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any, cast

import paramiko

from udpbench.control.channel import AGENT, Channel, Pipes
from udpbench.control.ssh_proxy import Proxy
from udpbench.control.ssh_streams import Replies, Requests
from udpbench.control.ssh_target import Target, load_known_hosts, read_config, target_of
from udpbench.errors import AgentLost, ConnectError
from udpbench.model import SECOND_NS, Connect
from udpbench.units import format_duration

DEAD_NS = 3 * SECOND_NS
"""Unacknowledged for so long, a connection is dead. A ping goes out each third of the lease, so of
the default one there is enough left to make the connection anew."""
RETURNING = "udpbench.agent.returning"
"""What brings an agent that waits to a new connection."""
MARKER = "udpbench: the agent follows"
"""Ends whatever a login shell prints; no reply of an agent looks like it."""
NOISE_BYTES = 2**18
NOISE_LINE_BYTES = 2**16
NOISE_SHOWN_BYTES = 200
MAX_JUMPS = 8
PYTHON = "python3"
# By sh, because the login shell may be another; from /, so that no folder of the user's shadows a
# module; LC_ALL, so that the messages which `next_step` knows are in English.
SCRIPT = 'cd /; LC_ALL=C; export LC_ALL; echo "$0"; exec "$@"'

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # else it prints tracebacks


@dataclass(frozen=True)
class Limits:
    """How long another host may take."""

    connect_ns: int = 15 * SECOND_NS
    """For each of: the TCP connection, the banner, the key exchange, the login, a channel. A link
    with a round trip of 200 ms takes 2 s for all of them."""
    start_ns: int = 30 * SECOND_NS
    """For a login shell to come to our command; some read a slow network file system first."""

    @property
    def connect_s(self) -> float:
        """The first one, as paramiko takes it."""
        return self.connect_ns / SECOND_NS


def open_ssh(host: str, connect: Connect, limits: Limits = Limits()) -> Channel:
    """Return a channel to an agent on another host; raises ConnectError with what to do."""
    return Channel(host, _open(host, connect, limits))


def _open(host: str, connect: Connect, limits: Limits, run: str | None = None) -> Pipes:
    """Return the pipes of a new agent, or of the one that waits for a run's connection."""
    with ExitStack() as line:
        client = _Dialer(host, line, limits).dial(connect.ssh or host, 0)
        agent = _run(client, command(connect, run), host, limits)
        replies = io.BufferedReader(Replies(agent.recv))
        _skip_noise(agent, replies, host, limits)
        if run is not None:
            _await_found(agent, replies, host, limits)
        kept = line.pop_all()

    def ended(limit_ns: int) -> int | None:
        agent.status_event.wait(limit_ns / SECOND_NS)
        # paramiko has -1 for a status that has not come, or will not: a signal, a lost connection.
        return agent.exit_status if agent.exit_status >= 0 else None

    def again(run: str, limit_ns: int) -> Pipes:
        connect_ns, start_ns = (min(limit_ns, n) for n in (limits.connect_ns, limits.start_ns))
        return _open(host, connect, Limits(connect_ns, start_ns), run)

    return Pipes(
        requests=cast("IO[bytes]", Requests(agent)),
        replies=replies,
        errors=io.BufferedReader(Replies(agent.recv_stderr)),
        pid=None,
        ended=ended,
        # The agent's lease runs out at the latest.
        kill=client.close,
        release=kept.close,
        next_step=lambda status, words: next_step(connect, status, words),
        # An agent that ends has its end told over a connection that lives.
        broken=lambda: not agent.eof_received and agent.exit_status < 0,
        again=again,
    )


def command(connect: Connect, run: str | None = None) -> str:
    """Return the command that starts the agent, or that fetches the one which waits for a run.

    No other one is ever run on a host.
    """
    become = ("sudo", "-n", "--") if connect.become == "sudo" else ()
    module = (AGENT,) if run is None else (RETURNING, run)
    words = ("sh", "-c", SCRIPT, MARKER, *become, connect.python or PYTHON, "-m", *module)
    return f"exec {shlex.join(words)}"


def next_step(connect: Connect, status: int | None, words: str) -> str:
    """Return what to do about an agent that did not start, from its exit status and last words."""
    python = connect.python or PYTHON
    said = words.lower()
    if "sudo:" in said and ("password is required" in said or "terminal is required" in said):
        return f"allow it without a password: in sudoers, NOPASSWD: {python}; or log in as root"
    if "is not in the sudoers file" in said or "is not allowed to" in said:
        return f"allow it in sudoers, NOPASSWD: {python}; or log in as root"
    if any(f"sudo: {what}" in said for what in ("not found", "command not found")):
        return "install sudo there, or log in as root and leave become out"
    if status == 126:
        return f"let the user run {python} there, or name another: connect: {{python: …}}"
    if status == 127 or f"{python.lower()}: command not found" in said:
        return "install Python 3.9 or later there, or name the one to use: connect: {python: …}"
    if "no module named" in said:
        return f"install udpbench there: {python} -m pip install udpbench"
    return f"try it: ssh {connect.ssh} {python} -m {AGENT} </dev/null"


def _run(client: paramiko.SSHClient, line: str, host: str, limits: Limits) -> paramiko.Channel:
    try:
        transport = _transport(client)
        agent = transport.open_session(timeout=limits.connect_s)
        agent.settimeout(limits.connect_s)
        with _answered(transport, limits):
            agent.exec_command(line)
    except (paramiko.SSHException, OSError, EOFError) as error:
        what = f"logged in, but the host runs no command: {_text(error)}"
        raise ConnectError(f"{what}; see the forced command and MaxSessions there", host) from error
    return agent


@contextmanager
def _answered(transport: paramiko.Transport, limits: Limits) -> Iterator[None]:
    """Close a connection over which no answer comes: paramiko waits for one without end (5.1)."""
    silent = threading.Event()

    def end() -> None:
        silent.set()
        transport.close()

    timer = threading.Timer(limits.connect_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (paramiko.SSHException, OSError, EOFError) as error:
        if silent.is_set():
            raise TimeoutError(f"no answer within {format_duration(limits.connect_ns)}") from error
        raise
    finally:
        timer.cancel()


def _transport(client: paramiko.SSHClient) -> paramiko.Transport:
    transport = client.get_transport()
    if transport is None:
        raise paramiko.SSHException("the connection has ended")
    return transport


def _skip_noise(
    agent: paramiko.Channel, replies: io.BufferedIOBase, host: str, limits: Limits
) -> None:
    """Read past what a login shell prints of its own accord, up to the marker."""
    deadline_ns = time.monotonic_ns() + limits.start_ns
    how = f"did not come to our command within {format_duration(limits.start_ns)}"
    last, read_bytes = b"", 0
    while (left_ns := deadline_ns - time.monotonic_ns()) > 0:
        agent.settimeout(left_ns / SECOND_NS)
        try:
            line = replies.readline(NOISE_LINE_BYTES)
        except TimeoutError:
            break
        if line.rstrip(b"\r\n").endswith(MARKER.encode()):
            agent.settimeout(None)
            return
        if not line:
            how = "ended before it came to our command"
            break
        last, read_bytes = (last + line)[-NOISE_SHOWN_BYTES:], read_bytes + len(line)
        if read_bytes > NOISE_BYTES:
            how = "prints without an end"
            break
    said = last.decode(errors="replace").strip()
    said = f"; it printed last: {said!r}" if said else ""
    step = "mend what it starts (~/.bashrc, a forced command, nologin)"
    raise ConnectError(f"logged in, but the login shell {how}{said}; {step}", host)


def _await_found(
    agent: paramiko.Channel, replies: io.BufferedIOBase, host: str, limits: Limits
) -> None:
    """Wait for the line that says that an agent waits; AgentLost where there is none."""
    agent.settimeout(limits.start_ns / SECOND_NS)
    try:
        found = replies.readline(NOISE_LINE_BYTES)
    except TimeoutError as error:
        raise ConnectError("connected again, but nobody there answers", host) from error
    if not found and agent.eof_received:
        raise AgentLost("it does not wait there any more", host)
    if not found:
        raise ConnectError("connected again, and lost again", host)
    agent.settimeout(None)


class _Dialer:
    """Makes the connection to one host, through others where the configuration says so."""

    def __init__(self, host: str, line: ExitStack, limits: Limits) -> None:
        self._host = host
        self._limits = limits
        self._line = line
        self._config = read_config(host)

    def dial(self, spec: str, jumps: int, jump: str | None = None) -> paramiko.SSHClient:
        """Return an authenticated client of ``[user@]host[:port]``; closed with the line."""
        target = target_of(spec, self._config, self._host, jump)
        if jumps > MAX_JUMPS:
            raise ConnectError(f"{target}: more than {MAX_JUMPS} jumps; see ProxyJump", self._host)
        proxy = self._proxy(target)
        keys = _Keys(target)
        try:
            stream = self._stream(target, proxy, jumps)
            # After what carries it, so that it is closed before.
            client = self._line.enter_context(paramiko.SSHClient())
            self._log_in(client, target, stream, keys)
        except ConnectError:
            raise
        except (paramiko.SSHException, OSError, EOFError, UnicodeError) as error:
            text = f"{target}: {why(error, target, keys.tried)}"
            if proxy is not None and not isinstance(error, _TALKED):
                text += f"; {proxy.last_words()}"
            raise ConnectError(text, self._host) from error
        if not _transport(client).is_authenticated():
            text = f"{target}: wants more than a key; allow {target.user} to log in by key alone"
            raise ConnectError(text, self._host)
        return client

    def _log_in(self, client: paramiko.SSHClient, target: Target, stream: Any, keys: _Keys) -> None:
        load_known_hosts(client, target, self._host)
        client.set_missing_host_key_policy(_Refuse())
        client.connect(
            target.key_name,
            port=target.key_port,
            username=target.user,
            sock=stream,
            timeout=self._limits.connect_s,
            banner_timeout=self._limits.connect_s,
            auth_timeout=self._limits.connect_s,
            channel_timeout=self._limits.connect_s,
            auth_strategy=cast("Any", keys),  # whatever has ``authenticate``
        )

    def _proxy(self, target: Target) -> Proxy | None:
        if target.proxy_command is None:
            return None
        try:
            proxy = Proxy(target.proxy_command)
        except OSError as error:
            text = f"{target}: ProxyCommand cannot be started here: {_text(error)}"
            raise ConnectError(text, self._host) from error
        self._line.callback(proxy.close)
        return proxy

    def _stream(self, target: Target, proxy: Proxy | None, jumps: int) -> Any:
        """Return what carries the connection: a proxy's socket, a jump's channel, or TCP."""
        if proxy is not None:
            return proxy.socket
        if target.proxy_jump is not None:
            before, _, last = target.proxy_jump.rpartition(",")
            through = self.dial(last, jumps + 1, before or None)
            to = (target.address, target.port)
            return _Jump(
                _transport(through).open_channel(
                    "direct-tcpip", to, ("127.0.0.1", 0), timeout=self._limits.connect_s
                )
            )
        stream = socket.create_connection((target.address, target.port), self._limits.connect_s)
        self._line.callback(stream.close)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_NS // 10**6)
        return stream


class _Jump:
    """A channel as another connection's socket: closing it after it has broken is no error."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def close(self) -> None:
        """Close it; paramiko calls this in a thread that would print a traceback (5.1)."""
        with suppress(EOFError, OSError, paramiko.SSHException):
            self._channel.close()


class _UnknownKey(paramiko.SSHException):
    """The host showed a key that no known_hosts file has."""


class _Refuse(paramiko.MissingHostKeyPolicy):
    """Takes no unknown key, and keeps its fingerprint for the message."""

    def missing_host_key(self, _client: Any, _hostname: str, key: paramiko.PKey) -> None:
        raise _UnknownKey(f"{key.get_name()} {key.fingerprint}")


_TALKED = (_UnknownKey, paramiko.BadHostKeyException, paramiko.AuthenticationException)
"""What a server answered: then nothing is wrong with whatever leads to it."""


class _Keys:
    """The keys to try: the target's identity files, then those of the running ssh-agent.

    In place of SSHClient's own way, which takes a file for each kind of key in turn and reports the
    last misfit instead of the refusal.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self.tried: list[str] = []

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Log in with the first key that the server takes; raises AuthenticationException."""
        for key in self._keys():
            try:
                transport.auth_publickey(self._target.user, key)
            except paramiko.AuthenticationException:
                if not transport.is_active():  # it has hung up: too many keys
                    raise
                continue
            return
        raise paramiko.AuthenticationException("no key was taken")

    def _keys(self) -> Iterator[paramiko.PKey]:
        """Yield them one by one; a key that cannot be read is passed over, with the reason."""
        for file in self._target.identities:
            try:
                key = paramiko.PKey.from_path(file)
            except FileNotFoundError:
                continue
            except Exception as error:  # noqa: BLE001 - cryptography has its own; the next may do
                self.tried.append(f"{file} (not used: {_text(error)}; ssh-add it)")
                continue
            self.tried.append(file)
            yield key
        if not self._target.use_agent:
            return
        for agent_key in paramiko.Agent().get_keys():
            self.tried.append(f"ssh-agent's {agent_key.fingerprint}")
            yield agent_key


def why(error: Exception, target: Target, tried: Sequence[str]) -> str:
    """Return what went wrong on the way to a target, and what to do about it."""
    if isinstance(error, _UnknownKey):
        files = ", ".join(target.known_hosts)
        return (
            f"its host key is unknown: {error}; {target.known_name} is in none of {files}; compare "
            f"it with the host's own, then accept it: ssh {target.typed}"
        )
    if isinstance(error, paramiko.BadHostKeyException):
        return (
            f"its host key has changed: known is {error.expected_key.fingerprint}, shown is "
            f"{error.key.fingerprint}; someone may sit in between; only if the host was set up "
            f"anew: ssh-keygen -R '{target.known_name}', then accept the new key: "
            f"ssh {target.typed}"
        )
    if isinstance(error, paramiko.AuthenticationException):
        keys = ", ".join(tried) or "no key: none in ~/.ssh, none in ssh-agent"
        step = f"make `ssh {target.typed} true` work without a password (ssh-copy-id, ssh-add)"
        return f"refused to let {target.user} in; tried {keys}; {step}"
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return f"{target.address} is no known name; mend HostName in ~/.ssh/config, or the DNS"
    if isinstance(error, TimeoutError):
        return "no answer in time; is the host up, and the port open in its firewall?"
    if isinstance(error, OSError):
        return f"{_text(error)}; is the host up, and does sshd listen on port {target.port}?"
    return f"no SSH there: {_text(error)}; does sshd listen on port {target.port}?"


def _text(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or "it hung up"

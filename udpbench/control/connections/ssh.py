"""Channels over SSH: connects to a host, verifies its key, logs in by key, starts the agent.

Hosts with unknown keys are refused. Starts no program except the agent and the one that installs it
(``deployer``). Every error names the next step. Long, because the steps from a name to the agent's
pipes share one connection.
"""

from __future__ import annotations

import errno
import io
import logging
import re
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    suppress,
)
from functools import partial
from typing import IO, Any, TypeVar, cast

import paramiko
from paramiko.packet import Packetizer

from udpbench.control.connections.channel import (
    AGENT,
    LOSS_NS,
    OBSERVER,
    STDERR_LINES,
    Channel,
    Pipes,
)
from udpbench.control.connections.known_hosts import HostKeys, Untrusted, load_host_keys
from udpbench.control.connections.ssh_config import (
    Destination,
    our_algorithms,
    read_config,
    target_of,
)
from udpbench.control.connections.ssh_limits import LIMITS, SshLimits, WholeLimit
from udpbench.control.connections.ssh_proxy import Proxy
from udpbench.control.deployment.deployer import (
    BOOT,
    LAUNCHER,
    OBSERVER_LAUNCHER,
    Conversation,
    Deployer,
)
from udpbench.errors import AgentLost, ConnectError
from udpbench.json_lines import BLOCK_BYTES, MOST_LINE_BYTES, LinePipe, LineTooLong
from udpbench.model.lab import INSIDE, Connect
from udpbench.model.limits import SECOND_NS
from udpbench.printable import printable
from udpbench.units import format_bytes, format_duration

DEAD_NS = 3 * SECOND_NS
"""A connection with data unacknowledged for this long is dead. Pings are a third of a lease apart,
so enough of the default lease is left to reconnect."""
RETURNING = "udpbench.agent.reconnect"
"""The module that connects a waiting agent to a new connection."""
MARKER = "udpbench: the agent follows"
"""Marks the end of a login shell's own output; no reply of an agent looks like it."""
LAUNCHER_NOTE = (
    "whoever may use it may change that host's network settings and write files there as root: "
    "treat that account as root"
)
STDERR_BYTES = 2**16
NOISE_BYTES = 2**18
NOISE_SHOWN_BYTES = 200
DEPLOYERS_LINE_BYTES = 2**20
MAX_JUMPS = 8
PACKET_BYTES = 2**18
"""As in OpenSSH (PACKET_MAX_SIZE); RFC 4253, 6.1, asks for 35000 bytes."""
DATA = (94, 95)
"""Messages with the data of a channel, and of its stderr (RFC 4254, 9)."""
PYTHON = "python3"
# sh, because the login shell may be another; cd /, so that no file of the user's shadows a module;
# LC_ALL, because `next_step` matches English messages. $1 is python.
SCRIPT = 'cd /; LC_ALL=C; export LC_ALL; echo "$0 at $(command -v "$1")"; shift; exec "$@"'
READY = re.compile(rf"{MARKER} at (.*)")

T = TypeVar("T")
logging.getLogger("paramiko").addHandler(logging.NullHandler())  # else it prints tracebacks


def open_ssh(
    host: str,
    connect: Connect,
    limits: SshLimits = LIMITS,
    deployer: Deployer | None = None,
    module: Sequence[str] = (AGENT,),
) -> Channel:
    """Return a channel to an agent on another host; raises ConnectError with what to do.

    Without a ``python`` in ``connect`` the agent is brought there if it is missing. ``module`` may
    also be an observer with its words.
    """
    return Channel(host, _open(host, connect, limits, deployer or Deployer(), tuple(module)))


def talk(
    host: str, connect: Connect, act: Callable[[Conversation], T], limits: SshLimits = LIMITS
) -> T:
    """Return what ``act`` does with the program that brings agents; raises ConnectError."""
    with ExitStack() as stack:
        return _Login(host, connect, limits, stack).talk(act)


class _Login:
    """A login at one host, in which a command runs; it ends with the stack."""

    def __init__(
        self,
        host: str,
        connect: Connect,
        limits: SshLimits,
        stack: ExitStack,
        module: tuple[str, ...] = (AGENT,),
    ) -> None:
        self._host, self._connect, self._limits, self._module = host, connect, limits, module[0]
        self._whole = WholeLimit(host, limits)
        with self._whole.during("the login"):
            self.client = _Dialer(host, stack, limits, self._whole).dial(connect.ssh or host, 0)
            self._whole.doing = "the start of our command"
            self.agent = _run(self.client, command(connect, module), host, limits)
            within = partial(_answered, _transport(self.client), limits.whole_ns)
            self.requests = cast("IO[bytes]", RequestPipe(self.agent, within))
            self.replies = LinePipe(self._receive, NOISE_BYTES)
            self.errors = io.BufferedReader(ErrorPipe(self.agent.recv_stderr))
            self.python = _skip_noise(self.agent, self.replies, host, limits)

    @property
    def given_up(self) -> bool:
        """Whether the host sent too much or took too long, so that reconnecting is no use."""
        return bool(self._whole.why)

    def count_answer(self) -> None:
        """Limit from here on what the host sends up to its next answer."""
        self._whole.count_answer()

    def _receive(self, left_s: float | None) -> bytes:
        """Return what has arrived; without a limit of its own as late as the channel has it."""
        data = b""
        if left_s is not None:
            self.agent.settimeout(left_s)
        with suppress(EOFError, paramiko.SSHException):  # ended while it gave back the window
            data = self.agent.recv(BLOCK_BYTES)
        if not data and self.given_up:
            raise ConnectError(self._whole.why, self._host)
        return data

    def talk(self, act: Callable[[Conversation], T]) -> T:
        """Return what ``act`` does with the program that brings agents; raises ConnectError."""
        with self._whole.during("the deployment"):
            return self._talk(act)

    def await_announcement(self) -> None:
        """Wait for the line of a waiting agent; raises AgentLost if there is none."""
        with self._whole.during("the reconnection"):
            _await_announcement(self.agent, self.replies, self._host, self._limits)

    def _talk(self, act: Callable[[Conversation], T]) -> T:
        self.agent.settimeout(self._limits.start_ns / SECOND_NS)
        self.replies.limit_bytes = DEPLOYERS_LINE_BYTES
        line = Conversation(self._host, self.requests, self.replies, self._whole.paused)
        try:
            return act(line)
        except TimeoutError as error:
            raise ConnectError("its Python does not answer; is it busy?", self._host) from error
        except (EOFError, OSError) as error:
            raise ConnectError(self._why_ended(), self._host) from error
        finally:
            self.agent.settimeout(None)

    def _why_ended(self) -> str:
        """Return why the program that brings agents has ended, and the next step."""
        self.agent.status_event.wait(LOSS_NS / SECOND_NS)
        status = self.agent.exit_status
        if status < 0 and not self.agent.eof_received:
            return "connection lost before the agent was installed; nothing was left; try again"
        self.agent.settimeout(LOSS_NS / SECOND_NS)
        output = b""
        with suppress(TimeoutError):
            output = self.errors.read(STDERR_BYTES)
        words = output.decode(errors="replace").strip()
        lines = " | ".join(words.splitlines()[-STDERR_LINES:])
        step = next_step(self._connect, status, words, self.python, self._module)
        lines = printable(lines, keep="")
        return f"the agent did not start: its last output: {lines or 'none'}; {step}"


def _open(
    host: str,
    connect: Connect,
    limits: SshLimits,
    deployer: Deployer,
    module: tuple[str, ...],
    folder: str | None = None,
) -> Pipes:
    """Return the pipes of a new agent or observer, or of an agent that waits for a connection.

    ``folder`` has the build of that agent.
    """
    if connect.name is not None:
        module = (*module, f"{INSIDE}{connect.name}" if module[0] == OBSERVER else connect.name)
    with ExitStack() as stack:
        login = _Login(host, connect, limits, stack, module)
        agent = login.agent
        if connect.python is None:
            become = connect.become is not None
            folder = login.talk(lambda line: deployer.bring(line, become, "start", module, folder))
        if module[0] == RETURNING:
            login.await_announcement()
        login.count_answer()
        login.replies.limit_bytes = MOST_LINE_BYTES
        kept = stack.pop_all()

    def ended(limit_ns: int) -> int | None:
        agent.status_event.wait(limit_ns / SECOND_NS)
        # paramiko has -1 without a status: not yet, killed by a signal, or connection lost.
        return agent.exit_status if agent.exit_status >= 0 else None

    def again(run: str, limit_ns: int) -> Pipes:
        return _open(host, connect, limits.within(limit_ns), deployer, (RETURNING, run), folder)

    return Pipes(
        requests=login.requests,
        replies=login.replies,
        errors=login.errors,
        pid=None,
        ended=ended,
        # At the latest, the agent's lease expires.
        kill=login.client.close,
        release=kept.close,
        next_step=lambda status, words: next_step(connect, status, words, login.python, module[0]),
        # If the agent ends but not the connection, its end is reported.
        broken=lambda: not (agent.eof_received or agent.exit_status >= 0 or login.given_up),
        answered=login.count_answer,
        again=again if module[0] == AGENT else None,
    )


def command(connect: Connect, module: Sequence[str] = (AGENT,)) -> str:
    """Return the command that starts an agent or observer, or reconnects to the agent of a run.

    Without a ``python`` it is the program that brings and starts one. No other command is ever run
    on a host.
    """
    if connect.python is None:
        words: tuple[str, ...] = (PYTHON, PYTHON, "-I", "-S", "-c", BOOT)
    else:
        become = ("sudo", "-n", "--") if connect.become == "sudo" else ()
        words = (connect.python, *become, connect.python, "-m", *module)
    return f"exec {shlex.join(('sh', '-c', SCRIPT, MARKER, *words))}"


def next_step(
    connect: Connect, status: int | None, words: str, path: str = "", module: str = AGENT
) -> str:
    """Return the next step for an agent that did not start, by its exit status and last words.

    ``path`` is the path of python there, if known; ``module`` is what did not start.
    """
    python = connect.python or PYTHON
    text = words.lower()
    asks = "sudo:" in text and ("password is required" in text or "terminal is required" in text)
    if asks or "is not in the sudoers file" in text or "is not allowed to" in text:
        start = AGENT if connect.name is None else f"{AGENT} *"
        needed = (f"{OBSERVER} *",) if module == OBSERVER else (start, f"{RETURNING} *")
        both = ", ".join(f"{path or python} -m {each}" for each in needed)
        rule = f"in sudoers, NOPASSWD: {both} (with that python root's own; this account is root)"
        if connect.python is None:
            rule = f"in sudoers, NOPASSWD: {LAUNCHER} ({LAUNCHER_NOTE})"
            rule += ", once root has deployed it (udpbench deploy with ssh: root@…, become: sudo)"
        if module == OBSERVER and connect.python is None:
            rule = f"in sudoers, NOPASSWD: {OBSERVER_LAUNCHER} (which only looks), once root has"
            rule += " deployed it (udpbench deploy with ssh: root@…, become: sudo)"
        return f"allow it{' without a password' * asks}: {rule}; or log in as root"
    if any(f"sudo: {what}" in text for what in ("not found", "command not found")):
        return "install sudo there, or log in as root and leave become out"
    if status == 126:
        return f"let the user run {python} there, or name another: connect: {{python: …}}"
    if "is too old" in text or "unknown option: -i" in text:
        return (
            "Python 3.9 or later is needed there; name it, if it has another path: connect: "
            "{python: …} (with udpbench installed for it)"
        )
    if status == 127 or f"{python.lower()}: command not found" in text:
        return "install Python 3.9 or later there, or name the one to use: connect: {python: …}"
    if "no module named" in text:
        return f"install udpbench there: {shlex.quote(python)} -m pip install udpbench"
    there = shlex.join((python, "-m", AGENT))
    return f"try it: {shlex.join(('ssh', connect.ssh or '', there))} </dev/null"


def _run(client: paramiko.SSHClient, line: str, host: str, limits: SshLimits) -> paramiko.Channel:
    try:
        transport = _transport(client)
        agent = transport.open_session(timeout=limits.connect_s)
        agent.settimeout(limits.connect_s)
        with _answered(transport, limits.connect_ns):
            agent.exec_command(line)
    except (paramiko.SSHException, OSError, EOFError) as error:
        what = f"logged in, but the host runs no command: {_text(error)}"
        raise ConnectError(f"{what}; check ForceCommand and MaxSessions there", host) from error
    return agent


@contextmanager
def _answered(transport: paramiko.Transport, limit_ns: int) -> Iterator[None]:
    """Close a connection without an answer in time; paramiko (5.1) would wait for ever.

    Also for a host that takes no more of what is sent to it.
    """
    silent = threading.Event()

    def end() -> None:
        silent.set()
        transport.close()

    timer = threading.Timer(limit_ns / SECOND_NS, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (paramiko.SSHException, OSError, EOFError) as error:
        if silent.is_set():
            raise TimeoutError(f"no answer within {format_duration(limit_ns)}") from error
        raise
    finally:
        timer.cancel()


def _transport(client: paramiko.SSHClient) -> paramiko.Transport:
    transport = client.get_transport()
    if transport is None:
        raise paramiko.SSHException("the connection has ended")
    return transport


def _skip_noise(agent: paramiko.Channel, replies: LinePipe, host: str, limits: SshLimits) -> str:
    """Skip a login shell's own output, up to the marker; return the path of python after it."""
    deadline_ns = time.monotonic_ns() + limits.start_ns
    how = "prints without end"
    last, read_bytes = b"", 0
    try:
        while read_bytes <= NOISE_BYTES:
            line = replies.next(deadline_ns)
            ready = READY.search(line.decode(errors="replace"))
            if ready is not None:
                agent.settimeout(None)
                return printable(ready[1].strip(), keep="")
            line += b"\n"
            last, read_bytes = (last + line)[-NOISE_SHOWN_BYTES:], read_bytes + len(line)
    except TimeoutError:
        how = f"did not start our command within {format_duration(limits.start_ns)}"
    except EOFError:
        how = "ended before it started our command"
    except LineTooLong:
        pass
    last_line = (last + replies.rest)[-NOISE_SHOWN_BYTES:].decode(errors="replace").strip()
    last_line = f"; it printed last: {last_line!r}" if last_line else ""
    step = "fix what it starts (~/.bashrc, a forced command, nologin)"
    raise ConnectError(f"logged in, but the login shell {how}{last_line}; {step}", host)


def _await_announcement(
    agent: paramiko.Channel, replies: LinePipe, host: str, limits: SshLimits
) -> None:
    """Wait for the line that announces a waiting agent; raises AgentLost if there is none."""
    try:
        replies.next(time.monotonic_ns() + limits.start_ns)
    except (TimeoutError, LineTooLong) as error:
        raise ConnectError("reconnected, but the agent does not answer", host) from error
    except EOFError as error:
        if agent.eof_received:
            raise AgentLost("it is no longer waiting there", host) from error
        raise ConnectError("reconnected, but lost again", host) from error
    agent.settimeout(None)


class _Dialer:
    """Connects to one host, through jump hosts if the configuration says so."""

    def __init__(self, host: str, line: ExitStack, limits: SshLimits, whole: WholeLimit) -> None:
        self._host = host
        self._limits = limits
        self._whole = whole
        self._line = line
        self._config = read_config(host)

    def dial(self, spec: str, jumps: int, jump: str | None = None) -> paramiko.SSHClient:
        """Return an authenticated client of ``[user@]host[:port]``; closed with the line."""
        target = target_of(spec, self._config, self._host, jump)
        if jumps > MAX_JUMPS:
            raise ConnectError(f"{target}: more than {MAX_JUMPS} jumps; see ProxyJump", self._host)
        self._whole.doing = f"the login at {target}"
        proxy = self._proxy(target)
        keys = _Keys(target)
        try:
            stream = self._stream(target, proxy, jumps)
            # Entered after what carries it, so that it is closed first.
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
            text = f"{target}: requires more than a key; allow {target.user} to log in by key alone"
            raise ConnectError(text, self._host)
        return client

    def _log_in(
        self, client: paramiko.SSHClient, target: Destination, stream: Any, keys: _Keys
    ) -> None:
        host_keys = load_host_keys(target, self._host)
        client.set_missing_host_key_policy(_Verify(host_keys))
        client.connect(
            target.key_name,
            port=target.key_port,
            username=target.user,
            sock=stream,
            timeout=self._limits.connect_s,
            banner_timeout=self._limits.connect_s,
            auth_timeout=self._limits.connect_s,
            channel_timeout=self._limits.connect_s,
            transport_factory=partial(_Transport, host_keys, self._whole),
            auth_strategy=cast("Any", keys),  # anything that has ``authenticate``
        )

    def _proxy(self, target: Destination) -> Proxy | None:
        if target.proxy_command is None:
            return None
        try:
            proxy = Proxy(target.proxy_command)
        except OSError as error:
            text = f"{target}: ProxyCommand cannot be started here: {_text(error)}"
            raise ConnectError(text, self._host) from error
        self._line.callback(proxy.close)
        return proxy

    def _stream(self, target: Destination, proxy: Proxy | None, jumps: int) -> Any:
        """Return what carries the connection: a proxy's socket, a jump's channel, or TCP."""
        if proxy is not None:
            return self._whole.count(proxy.socket)
        if target.proxy_jump is not None:
            before, _, last = target.proxy_jump.rpartition(",")
            through = self.dial(last, jumps + 1, before or None)
            to = (target.address, target.port)
            return _Jump(
                _transport(through).open_channel(
                    "direct-tcpip", to, ("127.0.0.1", 0), timeout=self._limits.connect_s
                )
            )
        stream = self._connect(target)
        self._line.callback(stream.close)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_NS // 10**6)
        return self._whole.count(stream)

    def _connect(self, target: Destination) -> socket.socket:
        """Return a TCP connection to the first address that accepts one."""
        refusal: OSError = OSError(errno.EADDRNOTAVAIL, "no address")
        addresses = socket.getaddrinfo(target.address, target.port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in addresses:
            stream = socket.socket(family, kind, protocol)
            stream.settimeout(min(self._limits.connect_s, self._whole.left_s))
            try:
                stream.connect(address)
            except OSError as error:
                stream.close()
                refusal = error
            else:
                return stream
        raise refusal


class _Jump:
    """A channel as another connection's socket, which may be closed after it has broken."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def close(self) -> None:
        """Close it; paramiko calls this in a thread that would print a traceback (5.1)."""
        with suppress(EOFError, OSError, paramiko.SSHException):
            self._channel.close()


class _Packets(Packetizer):
    """Reads no packet that SSH does not have; paramiko (5.1) would read one of 4 GiB."""

    def __init__(self, whole: WholeLimit, sock: Any) -> None:
        super().__init__(sock)
        self._whole = whole

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        """Return so many bytes."""
        if n > PACKET_BYTES:
            self._whole.end(f"sent a packet of more than {format_bytes(PACKET_BYTES)}")
            raise paramiko.SSHException(self._whole.why)
        return bytes(super().read_all(n, check_rekey))


Feed = Callable[[paramiko.Channel, paramiko.Message], None]


class _Transport(paramiko.Transport):
    """A transport with the algorithms that a target's configuration allows."""

    def __init__(self, host_keys: HostKeys, whole: WholeLimit, sock: Any, **_: Any) -> None:
        allowed = host_keys.target.algorithms
        ours_pubkeys = our_algorithms("pubkeys")
        pubkeys = allowed.get("pubkeys", ours_pubkeys)
        disabled = [name for name in ours_pubkeys if name not in pubkeys]
        super().__init__(
            sock,
            disabled_algorithms={"pubkeys": disabled},
            packetizer_class=cast("Any", partial(_Packets, whole)),
        )
        self._whole = whole
        handlers = cast("Any", paramiko.Transport)._channel_handler_table
        within = {kind: self._within_window(handlers[kind]) for kind in DATA}
        self._channel_handler_table = {**handlers, **within}
        ours = self.get_security_options()
        ours.kex = allowed.get("kex", ours.kex)
        ours.ciphers = allowed.get("ciphers", ours.ciphers)
        ours.digests = allowed.get("macs", ours.digests)
        types = allowed.get("keys", ours.key_types)
        if host_keys.target.known_first:
            first = tuple(name for name in host_keys.types if name in types)
            types = tuple(dict.fromkeys((*first, *types)))
        ours.key_types = types

    def _within_window(self, feed: Feed) -> Feed:
        """Return what feeds a channel, up to its window; paramiko (5.1) feeds it for ever."""

        def feed_within(channel: paramiko.Channel, message: paramiko.Message) -> None:
            feed(channel, message)
            unread_bytes = len(channel.in_buffer) + len(channel.in_stderr_buffer)
            if unread_bytes > channel.in_window_size:
                window = format_bytes(channel.in_window_size)
                self._whole.end(f"sent more than the {window} that SSH let it send at once")
                raise paramiko.SSHException(self._whole.why)

        return feed_within

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        """The types of host keys, without the certificates that paramiko adds (5.1)."""
        return tuple(self.get_security_options().key_types)


class _Verify(paramiko.MissingHostKeyPolicy):
    """Verifies the key of every host: paramiko itself is given none to compare it with."""

    def __init__(self, host_keys: HostKeys) -> None:
        self._host_keys = host_keys

    def missing_host_key(self, _client: Any, _hostname: str, key: paramiko.PKey) -> None:
        self._host_keys.verify(key)


_TALKED = (Untrusted, paramiko.BadHostKeyException, paramiko.AuthenticationException)
"""Errors that prove that the server was reached: nothing is wrong with its proxy."""


class _Keys:
    """The keys to try: the target's identity files, then those of the running ssh-agent.

    Replaces SSHClient's own strategy, which tries each file as every kind of key and reports the
    last mismatch instead of the refusal.
    """

    def __init__(self, target: Destination) -> None:
        self._target = target
        self.tried: list[str] = []

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Log in with the first key that the server accepts; raises AuthenticationException."""
        for key in self._keys():
            try:
                transport.auth_publickey(self._target.user, key)
            except paramiko.AuthenticationException:
                if not transport.is_active():  # the server disconnected: too many keys
                    raise
                continue
            return
        raise paramiko.AuthenticationException("no key was accepted")

    def _keys(self) -> Iterator[paramiko.PKey]:
        """Yield the keys one by one; skip unreadable ones, noting the reason."""
        for file in self._target.identities:
            try:
                key = paramiko.PKey.from_path(file)
            except FileNotFoundError:
                continue
            except Exception as error:  # noqa: BLE001 - cryptography's own errors; try the next key
                self.tried.append(f"{file} (not used: {_text(error)}; ssh-add it)")
                continue
            if self._allowed(key, file):
                yield key
        if not self._target.use_agent:
            return
        for agent_key in paramiko.Agent().get_keys():
            if self._allowed(agent_key, f"ssh-agent's {agent_key.fingerprint}"):
                yield agent_key

    def _allowed(self, key: paramiko.PKey, name: str) -> bool:
        """Return whether a key may be tried, by its type and length; note it."""
        kind, allowed = key.get_name(), self._target.algorithms.get("pubkeys")
        rsa = kind == "ssh-rsa"
        signatures = ("rsa-sha2-512", "rsa-sha2-256") if rsa else (kind,)
        why = ""
        if allowed is not None and not set(signatures) & set(allowed):
            why = f" (not used: PubkeyAcceptedAlgorithms has no {kind})"
        elif rsa and 0 < key.get_bits() < self._target.least_rsa_bits:
            why = f" (not used: RequiredRSASize is {self._target.least_rsa_bits})"
        self.tried.append(f"{name}{why}")
        return not why


def why(error: Exception, target: Destination, tried: Sequence[str]) -> str:
    """Return why a target could not be reached, and what to do about it."""
    if isinstance(error, Untrusted):
        return str(error)
    if isinstance(error, paramiko.BadHostKeyException):
        return (
            f"its host key has changed: expected {error.expected_key.fingerprint}, got "
            f"{error.key.fingerprint}; this may be an attack; only if the host was reinstalled: "
            f"ssh-keygen -R {shlex.quote(target.known_name)}, then accept the new key: "
            f"ssh {target.typed}"
        )
    if isinstance(error, paramiko.AuthenticationException):
        keys = ", ".join(tried) or "no key: none in ~/.ssh, none in ssh-agent"
        step = f"make `ssh {target.typed} true` work without a password (ssh-copy-id, ssh-add)"
        return f"login as {target.user} refused; tried {keys}; {step}"
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return f"{target.address} does not resolve; fix HostName in ~/.ssh/config, or DNS"
    if isinstance(error, TimeoutError):
        return "no answer in time; is the host up, and the port open in its firewall?"
    if isinstance(error, OSError):
        return f"{_text(error)}; is the host up, and does sshd listen on port {target.port}?"
    return f"no SSH there: {_text(error)}; does sshd listen on port {target.port}?"


def _text(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else None
    return printable(text or str(error), keep="") or "connection closed"


class ErrorPipe(io.RawIOBase):
    """The agent's stderr over a channel; paramiko's own files raise in their finalizer (5.1)."""

    def __init__(self, receive: Callable[[int], bytes]) -> None:
        self._receive = receive

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read some bytes; return 0 at the end."""
        data = self._receive(len(buffer))
        buffer[: len(data)] = data
        return len(data)


@contextmanager
def _as_broken_pipe() -> Iterator[None]:
    """Raise BrokenPipeError for paramiko's (5.1) errors if the connection ends in a write."""
    try:
        yield
    except (EOFError, paramiko.SSHException) as error:
        raise BrokenPipeError(errno.EPIPE, str(error) or "connection closed") from error


class RequestPipe(io.RawIOBase):
    """The agent's stdin over a channel."""

    def __init__(
        self,
        agent: paramiko.Channel,
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """``within`` limits how long a host may take nothing."""
        self._agent = agent
        self._within = within

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Send all data; raises OSError if the channel is closed or the connection ends."""
        with _as_broken_pipe(), self._within():
            self._agent.sendall(data)
        return len(data)

    def close(self) -> None:
        """Close the agent's stdin; raises OSError if the connection ends meanwhile.

        As a finalizer it may run at Python's exit, where no thread starts any more.
        """
        try:
            if not self.closed and not self._agent.closed:
                with _as_broken_pipe(), self._within():
                    self._agent.shutdown_write()
        finally:
            super().close()

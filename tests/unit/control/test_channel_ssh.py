"""SSH without a server: whom a name means, the one command, and what each failure is told as."""

from __future__ import annotations

import base64
import errno
import io
import os
import shlex
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, cast

import paramiko
import psutil
import pytest
from golden import Golden

from udpbench.agent.reconnect import FOUND
from udpbench.control.connections import ssh
from udpbench.control.connections.ssh import (
    RequestPipe,
    SshLimits,
    _await_announcement,
    _Keys,
    _run,
    command,
    next_step,
    why,
)
from udpbench.control.connections.ssh_config import (
    Destination,
    load_known_hosts,
    read_config,
    target_of,
)
from udpbench.control.connections.ssh_proxy import Proxy
from udpbench.errors import AgentLost, ConnectError, HostError
from udpbench.model import SECOND_NS, Connect

LIMIT_S = 10.0

LAUNCHED = "NOPASSWD: /var/lib/udpbench/agent/launch"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test a home of its own, and a user."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "me")
    (tmp_path / ".ssh").mkdir()
    return tmp_path


def target(home: Path, spec: str, config: str = "") -> Destination:
    """Return whom a name means under a configuration."""
    (home / ".ssh" / "config").write_text(config)
    return target_of(spec, read_config("left"), "left")


@pytest.mark.parametrize(
    ("spec", "shown", "typed"),
    [
        ("left", "me@left", "left"),
        ("bench@left.example", "bench@left.example", "bench@left.example"),
        ("bench@left:2022", "bench@left:2022", "-p 2022 bench@left"),
        ("ssh://bench@left:2022/", "bench@left:2022", "-p 2022 bench@left"),
        ("[2001:db8::1]:2022", "me@2001:db8::1:2022", "-p 2022 2001:db8::1"),
        ("2001:db8::1", "me@2001:db8::1", "2001:db8::1"),
    ],
)
def test_a_name_may_carry_user_and_port(home: Path, spec: str, shown: str, typed: str) -> None:
    """Without them it is the local user and port 22; the words for ssh are those it takes."""
    destination = target(home, spec)
    assert (shown, typed) == (str(destination), destination.typed)


def test_the_configuration_says_the_rest(home: Path) -> None:
    """HostName, User, Port, IdentityFile and HostKeyAlias of the first section that matches."""
    destination = target(
        home,
        "left",
        "Host left\n  HostName 192.0.2.1\n  User bench\n  Port 2022\n  IdentityFile ~/key\n"
        "  IdentitiesOnly yes\n  UserKnownHostsFile ~/known\n  GlobalKnownHostsFile none\n"
        "Host *\n  User other\n  ProxyJump gate\n",
    )
    expected = Destination(
        typed="left",
        address="192.0.2.1",
        port=2022,
        user="bench",
        identities=(f"{home}/key",),
        use_agent=False,
        known_hosts=(f"{home}/known",),
        key_name="192.0.2.1",
        key_port=2022,
        proxy_command=None,
        proxy_jump="gate",
    )
    assert (expected, "[192.0.2.1]:2022") == (destination, destination.known_name)


def include(home: Path, **files: str) -> None:
    """Write files that a configuration may include."""
    for name, text in files.items():
        (home / ".ssh" / name).write_text(text)


def test_included_files_stand_where_they_are_included(home: Path) -> None:
    """By pattern, by ~, one from another; the first value counts, and what is missing is nothing."""
    include(
        home,
        part1="Host left\n  User one\n  HostName 192.0.2.1",
        part2="Include deeper\nUser two\nPort 2",
        deeper='Host right\n  User wrong\nMatch host "192.0.2.*"\n  Port 2022\n',
    )
    destination = target(
        home,
        "left",
        "Include part[12] ~/.ssh/missing\nPort 3\nHost *\n  HostKeyAlias shelf\n",
    )
    assert ("one@192.0.2.1:2022", "shelf") == (str(destination), destination.key_name)


@pytest.mark.parametrize(
    ("name", "shown"), [("left", "inner@left:2022"), ("right", "outer@right"), ("up", "outer@up:7")]
)
def test_what_a_block_includes_counts_for_its_hosts_alone(
    home: Path, name: str, shown: str
) -> None:
    """A block within it needs both to match; behind the Include the outer one goes on."""
    include(home, inner="Host left right\n  Port 2022\nMatch all\n  User inner\n")
    config = "Host left\n  Include=inner\n  User late\nHost up\n  Port 7\nHost *\n  User outer\n"
    assert shown == str(target(home, name, config))


def test_an_included_secret_is_not_shown(home: Path, golden: Golden) -> None:
    """With root's rights an Include reads every file, whoever wrote the configuration."""
    (home / ".ssh").mkdir(exist_ok=True)
    (home / ".ssh" / "shadow").write_text("root:$6$salt$secret:19000:0:99999:7:::\n")
    with golden.raises(ConnectError) as caught:
        target(home, "left", "Include shadow\n")
    assert "secret" not in str(caught.value)


def test_an_include_of_itself_is_reported(home: Path, golden: Golden) -> None:
    """After as many levels as OpenSSH has."""
    with golden.raises(ConnectError):
        target(home, "left", "Include config\n")


def test_an_included_file_that_cannot_be_read_is_reported(home: Path, golden: Golden) -> None:
    """It is not passed over: a host would be taken for another."""
    (home / ".ssh" / "folder").mkdir()
    with golden.raises(ConnectError):
        target(home, "left", "Include folder\n")


def test_what_the_lab_says_wins(home: Path) -> None:
    """User and port of the name come before those of the configuration."""
    destination = target(home, "you@left:22", "Host left\n  User bench\n  Port 2022\n")
    assert ("you", 22) == (destination.user, destination.port)


@pytest.mark.parametrize(
    ("config", "way"),
    [
        ("ProxyCommand nc %h %p\nProxyJump gate\n", ("nc left 22", None)),
        ("ProxyJump gate\nProxyCommand nc %h %p\n", (None, "gate")),
        ("ProxyJump none\nProxyCommand nc %h %p\n", (None, None)),
    ],
)
def test_of_two_proxies_the_first_counts(
    home: Path, config: str, way: tuple[str | None, str | None]
) -> None:
    """As ssh_config(5) has it, and ``none`` is one, too."""
    destination = target(home, "left", config)
    assert way == (destination.proxy_command, destination.proxy_jump)


@pytest.mark.parametrize(
    ("line", "where"),
    [
        (b"left ssh-ed25519 AAAAC3NzaC1lZ", ", line 3"),
        (b"left ssh-rsa AAAAB3NzaC1yc2EAAAABAA==", ", line 3"),
        (b"l\xe9ft ssh-ed25519 AAAA", ""),
    ],
)
def test_a_line_of_known_hosts_that_is_no_key_is_reported(
    home: Path, line: bytes, where: str
) -> None:
    """By file and line: paramiko has neither. Comments and what it passes over do no harm."""
    file = home / ".ssh" / "known_hosts"
    file.write_bytes(b"# of the left host\nleft ssh-odd AAAA\n" + line + b"\n")
    with pytest.raises(ConnectError) as caught, paramiko.SSHClient() as client:
        load_known_hosts(client, target(home, "left"), "left")
    assert (
        f"me@left: {file}{where} cannot be used: not a host key; fix or remove that line"
    ) == caught.value.message


def test_keys_that_are_known_are_loaded(home: Path) -> None:
    """A file that is not there is none of them."""
    key = paramiko.ECDSAKey.generate()
    file = home / ".ssh" / "known_hosts2"
    file.write_text(f"left {key.get_name()} {key.get_base64()}\n")
    with paramiko.SSHClient() as client:
        load_known_hosts(client, target(home, "left"), "left")
        assert client._system_host_keys.check("left", key)


@pytest.mark.parametrize(
    "spec",
    ["a@b@", "$(x)", "`x`", "a;x", "a|x", "-oX", "a@-oX", "-a@b", "$(x)@b", "a'b", "[a;x]", "[-a]"],
)
def test_a_name_that_is_none_is_refused(home: Path, spec: str) -> None:
    """The form is told; nothing that a shell or ssh would take for more than a name is one."""
    with pytest.raises(ConnectError) as caught:
        target(home, spec)
    assert (
        f"{spec}: not understood; letters, digits and . _ - in user and host, % and : in a host, "
        "no - in front; any other user as User of an alias in ~/.ssh/config; "
        "write [user@]host[:port]"
    ) == caught.value.message


@pytest.mark.parametrize(
    ("spec", "way"),
    [
        ("$(touch${IFS}ran)", "ProxyCommand nc %h %p"),
        ("left", "Host left\n  ProxyJump $(touch${IFS}ran)\nHost *\n  ProxyCommand nc %h"),
    ],
)
def test_no_name_reaches_a_shell(
    home: Path, monkeypatch: pytest.MonkeyPatch, spec: str, way: str, golden: Golden
) -> None:
    """A jump host's name is looked at like the host's own, before anything is started."""
    monkeypatch.chdir(home)
    (home / ".ssh" / "config").write_text(f"{way}\n")
    with golden.raises(ConnectError):
        ssh.open_ssh("left", Connect("ssh", spec))
    assert not (home / "ran").exists()


def test_the_command_stands_alone_whatever_the_shell() -> None:
    """Every word is quoted; sudo never asks; sh, not the login shell, runs it."""
    words = command(Connect("ssh", "left", "sudo", "/opt/my python"))
    assert words.startswith("exec sh -c '")
    assert words.endswith("sudo -n -- '/opt/my python' -m udpbench.agent.serve")


def test_the_command_says_the_marker_before_the_agent_begins() -> None:
    """What runs here is a Python that prints where it is; messages would be in English."""
    words = command(Connect("ssh", "left", python=sys.executable)).replace(
        "-m udpbench.agent.serve", "-c 'import os; print(os.getcwd(), os.environ[\"LC_ALL\"])'"
    )
    done = subprocess.run(("/bin/sh", "-c", words), capture_output=True, text=True, check=True)
    assert f"udpbench: the agent follows at {sys.executable}\n/ C\n" == done.stdout


@pytest.mark.parametrize(
    ("status", "words", "step"),
    [
        (
            1,
            "sudo: a password is required",
            (
                "allow it without a password: in sudoers, NOPASSWD: /opt/py -m udpbench.agent.serve, "
                "/opt/py -m udpbench.agent.reconnect * (with that python root's own; this account is"
            ),
        ),
        (
            1,
            "bench is not in the sudoers file.",
            "allow it: in sudoers, NOPASSWD: /opt/py -m udpbench.agent.serve, /opt/py -m",
        ),
        (127, "sh: 1: exec: sudo: not found", "install sudo there"),
        (1, "sudo: py: command not found", "install Python 3.9 or later there"),
        (127, "sh: 1: exec: py: not found", "install Python 3.9 or later there"),
        (126, "sh: 1: exec: py: Permission denied", "let the user run py there, or name another"),
        (1, "No module named udpbench", "install udpbench there: py -m pip install udpbench"),
        (None, "", "try it: ssh left 'py -m udpbench.agent.serve' </dev/null"),
    ],
)
def test_an_agent_that_did_not_start_has_a_next_step(
    status: int | None, words: str, step: str
) -> None:
    """Each by the words of the program that failed."""
    connect = Connect("ssh", "left", "sudo", "py")
    assert next_step(connect, status, words, "/opt/py").startswith(step)


def test_an_observer_that_did_not_start_asks_for_a_line_of_its_own() -> None:
    """With a Python that the lab names there is none that only looks."""
    words, observer = "sudo: a password is required", "udpbench.agent.observe"
    step = next_step(Connect("ssh", "left", "sudo"), 1, words, "", observer)
    assert "NOPASSWD: /var/lib/udpbench/agent/observe (which only looks)" in step
    step = next_step(Connect("ssh", "left", "sudo", "py"), 1, words, "/opt/py", observer)
    assert "NOPASSWD: /opt/py -m udpbench.agent.observe * (with" in step
    assert "this account is root" in step


@pytest.mark.parametrize(
    ("words", "step"),
    [
        ("Python 3.8.2 is too old", "Python 3.9 or later is needed there"),
        ("Unknown option: -I", "Python 3.9 or later is needed there"),
        ("sudo: not found", "install sudo there"),
        ("sudo: a password is required", f"allow it without a password: in sudoers, {LAUNCHED} ("),
        ("bench is not in the sudoers file.", f"allow it: in sudoers, {LAUNCHED} (whoever may"),
    ],
)
def test_a_deployed_agent_that_did_not_start_has_a_next_step(words: str, step: str) -> None:
    """The line for sudoers names the launcher alone, and nothing is to be installed."""
    assert next_step(Connect("ssh", "left", "sudo"), 1, words).startswith(step)


def test_a_command_to_paste_is_quoted() -> None:
    """For each shell that reads it: a lab file names the interpreter, in whatever characters."""
    connect = Connect("ssh", "left", python="$(x)")
    installs = next_step(connect, 1, "No module named udpbench")
    assert "install udpbench there: '$(x)' -m pip install udpbench" == installs
    here = shlex.split(next_step(connect, 1, "").removeprefix("try it: "))
    assert ["ssh", "left", "'$(x)' -m udpbench.agent.serve", "</dev/null"] == here


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            socket.gaierror(-2, "Name or service not known"),
            "left does not resolve; fix HostName in ~/.ssh/config, or DNS",
        ),
        (UnicodeError("label too long"), "left does not resolve; fix HostName in ~/.ssh/conf"),
        (TimeoutError("timed out"), "no answer in time; is the host up, and the port open in"),
        (OSError(113, "No route to host"), "No route to host; is the host up, and does sshd"),
        (paramiko.SSHException("odd"), "no SSH there: odd; does sshd listen on port 22?"),
        (EOFError(), "no SSH there: connection closed; does sshd listen on port 22?"),
        (
            paramiko.AuthenticationException(),
            "login as me refused; tried a, b; make `ssh left true",
        ),
    ],
)
def test_every_failure_on_the_way_is_reported_as_what_it_is(
    home: Path, error: Exception, text: str
) -> None:
    """With what to do about it."""
    assert why(error, target(home, "left"), ["a", "b"]).startswith(text)


def test_a_proxy_command_carries_bytes_and_ends() -> None:
    """It runs in a session of its own, so that Ctrl-C does not end it."""
    program = "import os; os.write(2, b'words'); print(os.getsid(0), flush=True); os.execvp('cat', ['cat'])"
    proxy = Proxy(f"{shlex.join((sys.executable, '-c', program))}")
    with proxy.socket.makefile("rwb") as stream:
        session = int(stream.readline())
        stream.write(b"there and back\n")
        stream.flush()
        assert b"there and back\n" == stream.readline()
    last_words = proxy.last_words()
    proxy.close()
    assert session != os.getsid(0)
    assert f"ProxyCommand {sys.executable} is running and printed: words" == last_words


def test_a_proxy_command_that_does_not_end_is_killed() -> None:
    """Although it ignores the end of its stdin and SIGTERM."""
    before = psutil.Process().children()
    program = (
        "import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); signal.pause()"
    )
    proxy = Proxy(shlex.join((sys.executable, "-c", program)))
    with proxy.socket.makefile("rb") as stream:
        assert b"1\n" == stream.readline()
    proxy.close(limit_s=0.05)
    assert before == psutil.Process().children()


@pytest.mark.parametrize("error", [EOFError(), paramiko.SSHException("odd")])
def test_a_connection_that_ends_under_a_write_is_a_broken_pipe(error: Exception) -> None:
    """As with any other way to an agent: then the agent is lost, and nothing else is."""

    class Cut:
        def sendall(self, _data: bytes) -> None:
            raise error

        def shutdown_write(self) -> None:
            raise error

    requests = RequestPipe(Cut())  # type: ignore[arg-type]
    for does in (lambda: requests.write(b"x"), requests.close):
        with pytest.raises(BrokenPipeError):
            does()
    assert requests.closed


class Deaf(paramiko.ServerInterface):
    """A server that lets everybody in and does not answer a command."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def check_auth_none(self, _username: str) -> int:
        """Let them in."""
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, _kind: str, _number: int) -> int:
        """Open a channel."""
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, _channel: paramiko.Channel, _command: bytes) -> bool:
        """Say nothing until the test is over."""
        self.over.wait()
        return False


def test_a_host_that_does_not_answer_a_command_is_given_up() -> None:
    """Paramiko alone would wait for it without end."""
    ours, theirs = socket.socketpair()
    deaf, key = Deaf(), paramiko.ECDSAKey.generate()
    with paramiko.Transport(theirs) as server, paramiko.SSHClient() as client:
        server.add_server_key(key)
        server.start_server(threading.Event(), deaf)
        client._transport = paramiko.Transport(ours)
        client._transport.start_client(timeout=LIMIT_S)
        client._transport.auth_none("me")
        with pytest.raises(ConnectError) as caught:
            _run(client, "x", "left", SshLimits(connect_ns=SECOND_NS // 5))
        deaf.over.set()
    assert (
        "logged in, but the host runs no command: no answer within 200ms; "
        "check ForceCommand and MaxSessions there"
    ) == caught.value.message


def test_a_proxy_command_that_cannot_be_started_is_reported(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As what this machine lacks, not the host."""

    def no_more(command: str) -> Proxy:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(ssh, "Proxy", no_more)
    target(home, "left", "ProxyCommand nc %h %p\n")
    with pytest.raises(ConnectError) as caught:
        ssh.open_ssh("left", Connect("ssh", "left"))
    assert (
        "me@left: ProxyCommand cannot be started here: Too many open files"
    ) == caught.value.message


def security_key(path: Path) -> None:
    """Write a private key that lies in a security key, as ssh-keygen -t ed25519-sk does."""

    def words(*parts: bytes) -> bytes:
        return b"".join(struct.pack(">I", len(part)) + part for part in parts)

    public = words(b"sk-ssh-ed25519@openssh.com", bytes(32), b"ssh:")
    private = bytes(8) + public + b"\1" + words(b"handle", b"", b"name")
    private += bytes(range(1, 1 + -len(private) % 8))
    text = words(b"none", b"none", b"") + struct.pack(">I", 1) + words(public, private)
    body = base64.encodebytes(b"openssh-key-v1\0" + text).decode()
    path.write_text(
        f"-----BEGIN OPENSSH PRIVATE KEY-----\n{body}-----END OPENSSH PRIVATE KEY-----\n"
    )


def test_a_key_that_cannot_be_used_is_passed_over(home: Path) -> None:
    """Whatever the libraries below raise; it is told with the others that were tried."""
    file = home / ".ssh" / "id_ed25519"
    security_key(file)
    keys = _Keys(target(home, "left", "IdentityFile ~/.ssh/id_ed25519\nIdentitiesOnly yes\n"))
    assert [] == list(keys._keys())
    (attempt,) = keys.tried
    assert attempt.startswith(f"{file} (not used: ")
    assert attempt.endswith("; ssh-add it)")


class BareChannel:
    """What is left of a paramiko channel where only its replies matter."""

    def __init__(self, eof_received: bool) -> None:
        self.eof_received = eof_received
        self.timeouts: list[float | None] = []

    def settimeout(self, timeout: float | None) -> None:
        """Note it."""
        self.timeouts.append(timeout)


class Silent(io.BytesIO):
    """Replies that do not come."""

    def readline(self, _size: int | None = -1) -> bytes:
        """Wait in vain."""
        raise TimeoutError


@pytest.mark.parametrize(
    ("replies", "eof", "kind"),
    [
        (io.BytesIO(), True, AgentLost),
        (io.BytesIO(), False, ConnectError),
        (Silent(), False, ConnectError),
    ],
)
def test_an_agent_that_is_not_fetched_is_told_apart(
    replies: io.BytesIO, eof: bool, kind: type[HostError], golden: Golden
) -> None:
    """Gone for good, or worth another attempt."""
    with golden.raises(kind):
        _await_announcement(cast("Any", BareChannel(eof)), replies, "left", SshLimits())


def test_an_agent_that_is_fetched_is_waited_for_no_longer() -> None:
    """Its line is taken, and what follows may take its time."""
    agent, replies = BareChannel(False), io.BytesIO(FOUND + b"more")
    _await_announcement(cast("Any", agent), replies, "left", SshLimits())
    assert ([30.0, None], b"more") == (agent.timeouts, replies.read())


def test_an_agent_is_fetched_as_it_was_started() -> None:
    """By the same user and interpreter; the module and the run are the difference."""
    connect = Connect("ssh", "left", "sudo", "/opt/python")
    start, fetch = (
        shlex.split(command(connect, module))
        for module in (
            ("udpbench.agent.serve",),
            ("udpbench.agent.reconnect", "run-1"),
        )
    )
    assert [*start[:-1], "udpbench.agent.reconnect", "run-1"] == fetch

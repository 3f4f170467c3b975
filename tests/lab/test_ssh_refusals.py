"""What can go wrong on the way to an agent over real OpenSSH: for each its own error, and a way out."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import ssh_hosts
from ssh_hosts import (
    PYTHON,
    SUDO_RULE,
    USER,
    Pair,
    allow_sudo,
    configured,
    greeted,
    pair_of_hosts,
    write_key,
)

import udpbench
from udpbench.control.connections.ssh import SshLimits, open_ssh
from udpbench.control.lab_lock import Surroundings, Terms, take_lab
from udpbench.definition.load import load_lab
from udpbench.errors import ConnectError, HelloRefused
from udpbench.model.lab import Connect
from udpbench.model.limits import SECOND_NS

pytestmark = [*ssh_hosts.needed(), pytest.mark.apart]

LEFT = Connect("ssh", "left", python=PYTHON)
PATIENT = SshLimits(connect_ns=20 * SECOND_NS, start_ns=20 * SECOND_NS)
"""A busy machine may take its time."""
NOISY = "ForceCommand sh -c 'echo Welcome to left; printf $; eval \"$SSH_ORIGINAL_COMMAND\"'"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Yield two hosts with sshd."""
    with pair_of_hosts(tmp_path_factory.mktemp("ssh")) as pair:
        yield pair


@pytest.fixture
def pair(hosts: Pair, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """Yield them with a home of the controller in which all is well."""
    hosts.write_home()
    monkeypatch.setenv("HOME", str(hosts.home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    children = {child.pid for child in psutil.Process().children()}
    yield hosts
    assert children == {child.pid for child in psutil.Process().children()}, "a proxy was left"


def refusal(connect: Connect = LEFT, limits: SshLimits = PATIENT) -> str:
    """Return why no agent could be had."""
    channel = None
    try:
        channel = open_ssh("left", connect, limits)
        greeted(channel)
    except (ConnectError, HelloRefused) as error:
        return str(error)
    finally:
        if channel is not None:
            channel.close()
    pytest.fail("it was let in")


@contextmanager
def without_key(pair: Pair) -> Iterator[Path]:
    """Take the key away from the home for a while; yield where it is."""
    key, away = pair.home / ".ssh" / "id_ed25519", pair.home / "away"
    key.rename(away)
    try:
        yield away
    finally:
        away.rename(key)


def script(path: Path, *lines: str) -> Connect:
    """Return the way to a host whose Python is a script."""
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)
    return Connect("ssh", "left", python=str(path))


# --- the host's key ------------------------------------------------------------------------------


def test_a_host_with_an_unknown_key_is_never_talked_to(pair: Pair) -> None:
    """The fingerprint is told, to be compared, and the command that accepts it."""
    known = pair.home / ".ssh" / "known_hosts"
    known.write_text("")
    message = refusal()
    assert message.startswith("left: root@left: its host key is unknown: ssh-ed25519 SHA256:")
    assert message.endswith(
        f"left is in none of {known}, {known}2, /etc/ssh/ssh_known_hosts, "
        "/etc/ssh/ssh_known_hosts2; compare it with the host's own, then accept it: ssh left"
    )


def test_a_host_with_another_key_is_never_talked_to(pair: Pair) -> None:
    """Both fingerprints are told; the key of another host stands in for the impostor's."""
    (pair.home / ".ssh" / "known_hosts").write_text(f"left {pair.right.public_key}\n")
    message = refusal()
    assert message.startswith("left: root@left: its host key has changed: expected SHA256:")
    assert "this may be an attack" in message
    assert message.endswith("ssh-keygen -R left, then accept the new key: ssh left")


def test_the_key_is_looked_up_under_its_alias(pair: Pair) -> None:
    """HostKeyAlias names it, whatever the address is."""
    pair.write_home(HostKeyAlias="shelf")
    (pair.home / ".ssh" / "known_hosts").write_text(f"shelf {pair.left.public_key}\n")
    channel = open_ssh("left", LEFT)
    greeted(channel)
    assert 0 == channel.close()


@pytest.mark.parametrize("form", ["known_hosts", "keys", "krl"])
def test_a_host_whose_key_is_revoked_is_never_talked_to(pair: Pair, form: str) -> None:
    """Although it is known: ``ssh`` itself refuses it, too."""
    known, revoked = pair.home / ".ssh" / "known_hosts", pair.home / "revoked"
    by = f"{revoked} (RevokedHostKeys)"
    if form == "known_hosts":
        known.write_text(f"{known.read_text()}@revoked * {pair.left.public_key}\n")
        by = f"{known}:3 (@revoked)"
    elif form == "keys":
        revoked.write_text(f"{pair.left.public_key}\n")
        by = f"{revoked}:1 (RevokedHostKeys)"
    else:
        keys = pair.left.folder / "host_key.pub"
        subprocess.run(("ssh-keygen", "-q", "-k", "-f", str(revoked), str(keys)), check=True)
    if form != "known_hosts":
        pair.write_home(RevokedHostKeys=str(revoked))
    options = ("-F", str(pair.home / ".ssh" / "config"), "-o", f"UserKnownHostsFile={known}")
    key = ("-i", str(pair.home / ".ssh" / "id_ed25519"), "-o", "BatchMode=yes")
    typed = subprocess.run(
        ("ssh", *options, *key, "left", "true"), capture_output=True, text=True, check=False
    )
    assert (255, True) == (typed.returncode, "revoked" in typed.stderr.lower()), typed.stderr
    message = refusal()
    assert message.startswith("left: root@left: its host key is revoked: ssh-ed25519 SHA256:")
    assert f", by {by}; do not connect to it before it has a new key" in message


def test_a_list_of_revoked_keys_that_is_missing_lets_nobody_in(pair: Pair) -> None:
    """As ``ssh`` has it: nobody knows whom it would have revoked."""
    pair.write_home(RevokedHostKeys="/no/such/list")
    assert "root@left: /no/such/list cannot be read: No such file or directory" in refusal()


def test_authorities_and_lists_of_algorithms_are_no_hindrance(pair: Pair) -> None:
    """What a server and paramiko have in common is used; the key that is known decides."""
    pair.write_home(
        KexAlgorithms="curve25519-sha256",
        Ciphers="^aes256-gcm@openssh.com",
        MACs="-hmac-md5*,hmac-sha1*",
        HostKeyAlgorithms="-ecdsa-*",
        PubkeyAcceptedAlgorithms="ssh-ed25519",
    )
    known = pair.home / ".ssh" / "known_hosts"
    known.write_text(f"@cert-authority * {pair.right.public_key}\n{known.read_text()}")
    channel = open_ssh("left", LEFT)
    greeted(channel)
    assert 0 == channel.close()


def test_algorithms_that_a_server_lacks_are_not_used(pair: Pair) -> None:
    """The configuration is followed, not what would do as well."""
    pair.write_home(Ciphers="aes128-ctr")
    with configured(pair.left, "Ciphers aes256-ctr"):
        assert "left: root@left: no SSH there: Incompatible ssh server" in refusal()


# --- one's own key -------------------------------------------------------------------------------


def test_a_key_that_the_host_does_not_know_is_refused(pair: Pair, tmp_path: Path) -> None:
    """The keys that were tried are named."""
    write_key(tmp_path / "other")
    pair.write_home(IdentityFile=str(tmp_path / "other"), IdentitiesOnly="yes")
    expected = (
        f"left: root@left: login as root refused; tried {tmp_path}/other; make `ssh left true` "
        "work without a password (ssh-copy-id, ssh-add)"
    )
    assert refusal().startswith(expected)


def test_without_any_key_nobody_gets_in(pair: Pair) -> None:
    """The error says where keys were looked for."""
    with without_key(pair):
        assert "tried no key: none in ~/.ssh, none in ssh-agent" in refusal()


def test_a_key_with_a_passphrase_is_asked_for_nothing(pair: Pair, tmp_path: Path) -> None:
    """The error names the file and says that ssh-agent would help."""
    subprocess.run(
        ("ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(tmp_path / "locked")),
        check=True,
    )
    pair.write_home(IdentityFile=str(tmp_path / "locked"))
    message = refusal()
    assert f"{tmp_path}/locked (not used: " in message
    assert "password" in message
    assert "; ssh-add it)" in message


def test_a_key_in_the_ssh_agent_gets_in(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file of it is in the home."""
    path = tmp_path / "agent"
    agent = subprocess.Popen(("ssh-agent", "-D", "-a", str(path)), stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while not path.exists():
            assert time.monotonic() < deadline, "ssh-agent did not come up"
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        with without_key(pair) as key:
            subprocess.run(("ssh-add", "-q", str(key)), check=True)
            channel = open_ssh("left", LEFT)
            greeted(channel)
            assert 0 == channel.close()
    finally:
        agent.kill()
        agent.wait()


def test_a_server_that_wants_more_than_a_key_is_reported(pair: Pair) -> None:
    """A second factor cannot be given."""
    with configured(pair.left, "AuthenticationMethods publickey,publickey"):
        assert "requires more than a key; allow root to log in by key alone" in refusal()


# --- reaching it ---------------------------------------------------------------------------------


def test_a_host_on_which_nobody_listens_is_reported(pair: Pair) -> None:
    """The port is named."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    (pair.home / ".ssh" / "config").write_text(
        f"Host left\n  HostName 127.0.0.1\n  Port {port}\n  User me\n"
    )
    expected = (
        f"left: me@127.0.0.1:{port}: Connection refused; is the host up, and does sshd listen on "
        f"port {port}?"
    )
    assert expected == refusal()


def test_a_host_that_never_speaks_is_given_up(pair: Pair) -> None:
    """After the deadline, and not for ever."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        message = refusal(
            Connect("ssh", f"me@127.0.0.1:{port}"), SshLimits(connect_ns=SECOND_NS // 5)
        )
    assert message.startswith(f"left: me@127.0.0.1:{port}: no SSH there: ")
    assert f"does sshd listen on port {port}?" in message


def test_a_proxy_command_that_fails_tells_its_last_words(pair: Pair) -> None:
    """Its exit status, too."""
    pair.write_home({"left": "sh -c 'echo no way >&2; exit 9'; : {}"})
    message = refusal()
    assert "ended with status 9 and printed: no way" in message


def test_a_configuration_that_cannot_be_read_is_reported(pair: Pair) -> None:
    """It is named, and nothing is connected to."""
    (pair.home / ".ssh" / "config").write_text("Host left\n  Port many\n")
    assert refusal().startswith("left: left: ~/.ssh/config cannot be used: ")
    (pair.home / ".ssh" / "config").write_text("nonsense\n")
    assert refusal().startswith("left: ~/.ssh/config cannot be used: ")


def test_jumps_that_go_in_a_circle_end(pair: Pair) -> None:
    """After eight, with a word where to look."""
    (pair.home / ".ssh" / "config").write_text("Host left\n  ProxyJump left\n")
    assert "more than 8 jumps; see ProxyJump" in refusal()


def test_what_is_wrong_with_both_hosts_is_reported_at_once(pair: Pair, tmp_path: Path) -> None:
    """One error, a line for each."""
    (pair.home / ".ssh" / "known_hosts").write_text(f"right {pair.left.public_key}\n")
    file = tmp_path / "lab.yaml"
    file.write_text(pair.lab())
    with (
        pytest.raises(ConnectError) as caught,
        take_lab([load_lab(str(file))], "test-1", 10 * SECOND_NS, Surroundings(), Terms()),
    ):
        pass
    first, second = str(caught.value).splitlines()
    assert first.startswith("left: root@left: its host key is unknown")
    assert second.startswith("right: root@right: its host key has changed")


# --- the login -----------------------------------------------------------------------------------


def test_a_noisy_login_shell_is_read_past(pair: Pair) -> None:
    """A greeting without an end of its last line is no reply of the agent."""
    with configured(pair.left, NOISY):
        channel = open_ssh("left", LEFT)
        assert "left" == greeted(channel).facts().host
        assert 0 == channel.close()


@pytest.mark.parametrize(
    ("forced", "message"),
    [
        ("sh -c 'echo not available; exit 1'", "ended before it started our command; it printed"),
        ("sleep 30", "did not start our command within 500ms; fix what it starts"),
        ("sh -c 'exec yes'", "prints without end; it printed last: 'y"),
    ],
)
def test_a_login_that_leads_nowhere_is_reported(pair: Pair, forced: str, message: str) -> None:
    """It says how far it came, and what it printed last."""
    limits = SshLimits(start_ns=SECOND_NS // 2) if "sleep" in forced else PATIENT
    with configured(pair.left, f"ForceCommand {forced}"):
        assert f"left: logged in, but the login shell {message}" in refusal(limits=limits)


def test_a_host_that_runs_no_command_is_reported(pair: Pair) -> None:
    """MaxSessions 0 lets one in, and no further."""
    with configured(pair.left, "MaxSessions 0"):
        assert "left: logged in, but the host runs no command: " in refusal()


# --- the agent -----------------------------------------------------------------------------------


def test_a_missing_python_is_reported(pair: Pair) -> None:
    """The key of the lab that names one is told."""
    message = refusal(Connect("ssh", "left", python="/no/such/python"))
    assert (
        "/no/such/python: not found; install Python 3.9 or later there, or name the one" in message
    )


def test_a_python_without_udpbench_is_reported(pair: Pair, tmp_path: Path) -> None:
    """With the command that installs it for this very Python."""
    bare = script(tmp_path / "bare", f'exec {sys.executable} -I -S "$@"')
    assert f"install udpbench there: {bare.python} -m pip install udpbench" in refusal(bare)


def test_another_version_there_is_reported(pair: Pair, tmp_path: Path) -> None:
    """Both builds are named; one line of the agent's code is enough."""
    shutil.copytree(Path(udpbench.__file__).parent, tmp_path / "udpbench")
    with (tmp_path / "udpbench" / "agent" / "locks.py").open("a") as file:
        file.write("# another\n")
    other = script(tmp_path / "py", f'PYTHONPATH={tmp_path} exec {sys.executable} "$@"')
    message = refusal(other)
    assert "the controller's build is " in message
    assert message.endswith("; install the same udpbench on both")


def test_an_agent_that_fails_for_another_reason_tells_its_last_words(
    pair: Pair, tmp_path: Path
) -> None:
    """And the command with which to look further."""
    odd = script(tmp_path / "odd", "echo out of luck >&2; exit 7")
    message = refusal(odd)
    assert "the agent did not start: " in message
    assert "(exit 7); its last output: out of luck; try it: ssh left " in message


@pytest.fixture
def bench(pair: Pair) -> Pair:
    """Return the hosts with a user who is not root."""
    if shutil.which("sudo") is None:
        pytest.skip("needs sudo: apt install sudo")
    pair.write_home(User=USER)
    return pair


def test_a_user_who_is_not_root_becomes_root_by_sudo(bench: Pair) -> None:
    """Without a password; the agent is root's."""
    allow_sudo(bench.left, "NOPASSWD: ALL")
    channel = open_ssh("left", Connect("ssh", "left", "sudo", PYTHON))
    assert greeted(channel).facts().capabilities["net_admin"]
    assert 0 == channel.close()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("ALL", f"a password is required; allow it without a password: in sudoers, {SUDO_RULE} ("),
        (
            "NOPASSWD: /bin/true",
            f"{SUDO_RULE} (with that python root's own; this account is root); or",
        ),
    ],
)
def test_a_sudo_that_asks_or_refuses_is_reported(bench: Pair, rule: str, message: str) -> None:
    """Nobody is prompted, and the line for sudoers is told: it is enough."""
    allow_sudo(bench.left, rule)
    assert message in refusal(Connect("ssh", "left", "sudo", PYTHON))
    allow_sudo(bench.left, SUDO_RULE)
    assert 0 == open_ssh("left", Connect("ssh", "left", "sudo", PYTHON)).close()


def test_a_host_without_sudo_is_reported(bench: Pair) -> None:
    """It is what the shell does not find."""
    bench.left.run("sh", "-c", "mkdir /run/bin && ln -s /bin/sh /run/bin/sh")
    with configured(bench.left, "SetEnv PATH=/run/bin"):
        message = refusal(Connect("ssh", "left", "sudo", PYTHON))
    assert "install sudo there, or log in as root and leave become out" in message

"""SSH without a server: whom a name means, the one command, and what each failure is told as."""

from __future__ import annotations

import base64
import errno
import os
import shlex
import shutil
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
from udpbench.control.connections.known_hosts import Untrusted, load_host_keys
from udpbench.control.connections.ssh import (
    RequestPipe,
    SshLimits,
    _await_announcement,
    _Keys,
    _run,
    _Transport,
    command,
    next_step,
    why,
)
from udpbench.control.connections.ssh_config import Destination, chosen, read_config, target_of
from udpbench.control.connections.ssh_limits import WholeLimit
from udpbench.control.connections.ssh_proxy import Proxy
from udpbench.errors import AgentLost, ConnectError, HostError
from udpbench.json_lines import LinePipe, Source
from udpbench.model.lab import Connect
from udpbench.model.limits import SECOND_NS

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
        (b"l\xe9ft ssh-ed25519 AAAA", ", line 3"),
    ],
)
def test_a_line_of_known_hosts_that_is_no_key_is_reported(
    home: Path, line: bytes, where: str
) -> None:
    """By file and line: paramiko has neither. Comments and what it passes over do no harm."""
    file = home / ".ssh" / "known_hosts"
    file.write_bytes(b"# of the left host\nleft ssh-odd AAAA\n" + line + b"\n")
    with pytest.raises(ConnectError) as caught:
        load_host_keys(target(home, "left"), "left")
    assert (
        f"me@left: {file}{where} cannot be used: not a host key; fix or remove that line"
    ) == caught.value.message


def public(key: paramiko.PKey) -> str:
    """Return a key as files have it."""
    return f"{key.get_name()} {key.get_base64()}"


def trust(home: Path, key: paramiko.PKey, spec: str = "left", config: str = "") -> None:
    """Verify the key that a host presents."""
    load_host_keys(target(home, spec, config), "left").verify(key)


@pytest.mark.parametrize(
    ("names", "spec"),
    [
        ("left", "left"),
        ("right,*.example,!odd.example", "left.example"),
        ("LEFT?", "left1"),
        ("[left]:2022", "left:2022"),
        (paramiko.HostKeys.hash_host("left", "|1|MDAwMDAwMDAwMDAwMDAwMDAwMDA=|"), "left"),
    ],
)
def test_keys_that_are_known_are_trusted(home: Path, names: str, spec: str) -> None:
    """By name, pattern, port or hash; a file that is not there is none of them."""
    key, other = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
    (home / ".ssh" / "known_hosts2").write_text(f"{names}  {public(key)} a comment\n")
    trust(home, key, spec)
    with pytest.raises(paramiko.BadHostKeyException):
        trust(home, other, spec)


@pytest.mark.parametrize(
    ("names", "spec"),
    [
        ("*.example,!odd.example", "odd.example"),
        ("left", "left:2022"),
        ("l[e]ft", "left"),
        ("|1|odd|", "left"),
        ("|1|!", "left"),
        ("@cert-authority left", "left"),
        ("@cert-authority *", "left"),
    ],
)
def test_a_key_of_others_is_unknown(home: Path, names: str, spec: str, golden: Golden) -> None:
    """Also that of an authority, which signs certificates: it breaks no connection, either."""
    key = paramiko.ECDSAKey.generate()
    (home / ".ssh" / "known_hosts").write_text(f"{names} {public(key)}\n")
    with pytest.raises(Untrusted) as caught:
        trust(home, key, spec)
    assert str(caught.value).startswith("its host key is unknown: ecdsa-sha2-nistp256 SHA256:")


@pytest.mark.parametrize(
    ("marked", "config"),
    [
        ("@revoked left", ""),
        ("@revoked *", ""),
        ("@revoked\tleft", "Port 2022\nHost *\n"),
        ("@revoked shelf", "HostKeyAlias shelf\n"),
    ],
)
def test_a_key_that_known_hosts_revokes_is_refused(home: Path, marked: str, config: str) -> None:
    """Although another line, or another file, has it as known; the line is named."""
    key = paramiko.ECDSAKey.generate()
    (home / ".ssh" / "known_hosts").write_text(f"left,[left]:2022,shelf {public(key)}\n")
    trust(home, key, config=config)
    (home / ".ssh" / "known_hosts2").write_text(f"# revoked\n{marked} {public(key)}\n")
    with pytest.raises(Untrusted) as caught:
        trust(home, key, config=config)
    assert (
        f"its host key is revoked: {key.get_name()} {key.fingerprint}, by {home}/.ssh/known_hosts2:2 "
        "(@revoked); do not connect to it before it has a new key (ssh-keygen, there)"
    ) == str(caught.value)


def test_a_key_that_is_revoked_elsewhere_is_trusted(home: Path) -> None:
    """A line of another host, or of another key, revokes nothing here."""
    key, other = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
    (home / ".ssh" / "known_hosts").write_text(
        f"left {public(key)}\n@revoked right {public(key)}\n@revoked * {public(other)}\n"
    )
    trust(home, key)


REVOKED = "RevokedHostKeys ~/revoked\n"


def krl(home: Path, *specification: str) -> None:
    """Have ssh-keygen write a list of revoked keys."""
    (home / "specification").write_text("".join(f"{line}\n" for line in specification))
    words = ("ssh-keygen", "-q", "-k", "-f", str(home / "revoked"), str(home / "specification"))
    subprocess.run(words, check=True)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
@pytest.mark.parametrize("form", ["key", "sha1", "sha256", "hash", "lines"])
def test_a_key_in_a_list_of_revoked_keys_is_refused(home: Path, form: str) -> None:
    """A KRL as ssh-keygen writes it, with each kind of entry, or public keys."""
    key, other = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
    (home / ".ssh" / "known_hosts").write_text(f"left {public(key)}\nup {public(other)}\n")
    if form == "lines":
        (home / "revoked").write_text(f"# odd\n\n{public(key)} John's\n")
    else:
        named = key.fingerprint if form == "hash" else public(key)
        krl(home, f"{form}: {named}")
    with pytest.raises(Untrusted, match=r"is revoked: .*, by .*/revoked.* \(RevokedHostKeys\); do"):
        trust(home, key, config=REVOKED)
    trust(home, other, "up", REVOKED)


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"left ssh-ed25519\n",
        b"ssh-ed25519-cert-v01@openssh.com AAAAIHNzaC1lZDI1NTE5LWNlcnQtdjAxQG9wZW5zc2guY29t\n",
        b"ssh-rsa AAAAC3NzaC1lZDI1NTE5\n",
        b"SSHKRL\n\0",
        b"SSHKRL\n\0" + struct.pack(">IQQQII", 2, 0, 0, 0, 0, 0),
        b"SSHKRL\n\0" + struct.pack(">IQQQIIBI", 1, 0, 0, 0, 0, 0, 2, 9) + b"short",
        b"SSHKRL\n\0" + struct.pack(">IQQQIIBI", 1, 0, 0, 0, 0, 0, 99, 0),
        b"SSHKRL\n\0" + struct.pack(">IQQQIIBII", 1, 0, 0, 0, 0, 0, 2, 4, 8),
        b"\xff\xfe",
    ],
    ids=[
        "missing",
        "none",
        "certificate",
        "type",
        "head",
        "format",
        "cut",
        "section",
        "key",
        "odd",
    ],
)
def test_a_list_of_revoked_keys_that_cannot_be_read_trusts_nobody(
    home: Path, content: bytes | None, golden: Golden
) -> None:
    """Missing, cut off, of another format, or with what is not understood: it is named."""
    if content is not None:
        (home / "revoked").write_bytes(content)
    with golden.raises(ConnectError):
        load_host_keys(target(home, "left", REVOKED), "left")


@pytest.mark.parametrize(
    "line", ["@revoked left", "@revoked left ssh-ed25519 AAAA*", "@odd left ssh-ed25519 AAAA"]
)
def test_a_marked_line_that_is_not_understood_is_never_to_be_removed(
    home: Path, line: str, golden: Golden
) -> None:
    """It may revoke a key: it is to be corrected."""
    (home / ".ssh" / "known_hosts").write_text(f"{line}\n")
    with golden.raises(ConnectError):
        load_host_keys(target(home, "left"), "left")


def test_known_hosts_that_cannot_be_read_trusts_nobody(home: Path, golden: Golden) -> None:
    """It may revoke a key."""
    (home / ".ssh" / "known_hosts").mkdir()
    with golden.raises(ConnectError):
        load_host_keys(target(home, "left"), "left")


def test_a_short_key_is_refused(home: Path, golden: Golden) -> None:
    """RequiredRSASize counts for hosts and for the keys with which one logs in."""
    key, config = paramiko.RSAKey.generate(2048), "RequiredRSASize 3072\nIdentityFile ~/key\n"
    (home / ".ssh" / "known_hosts").write_text(f"left {public(key)}\n")
    trust(home, key)
    with pytest.raises(Untrusted, match="has 2048 bits; RequiredRSASize is 3072; give the host a"):
        trust(home, key, config=config)
    key.write_private_key_file(str(home / "key"))
    keys = _Keys(target(home, "left", f"{config}IdentitiesOnly yes\n"))
    assert [] == list(keys._keys())
    assert [f"{home}/key (not used: RequiredRSASize is 3072)"] == keys.tried


@pytest.mark.parametrize(
    "line",
    [
        "CanonicalizeHostname yes",
        "CanonicalizeHostname always",
        "CheckHostIP yes",
        "KnownHostsCommand /bin/keys %H",
        "NoHostAuthenticationForLocalhost yes",
        "StrictHostKeyChecking no",
        "StrictHostKeyChecking accept-new",
        "VerifyHostKeyDNS ask",
        "UserKnownHostsFile known",
        "GlobalKnownHostsFile /etc/%k",
        "RevokedHostKeys ${HOME}/revoked",
        "RequiredRSASize many",
        "Ciphers odd",
        "HostKeyAlgorithms ssh-dss",
        "KexAlgorithms -*",
    ],
)
def test_what_decides_whom_to_trust_is_followed_or_refused(
    home: Path, line: str, golden: Golden
) -> None:
    """By its name and value, whatever else the configuration says of other hosts."""
    config = f"Host left\n  {line} # so\n"
    assert "me@right" == str(target(home, "right", config))
    with golden.raises(ConnectError):
        target(home, "left", config)


@pytest.mark.parametrize(
    "line",
    [
        "CanonicalizeHostname no",
        "StrictHostKeyChecking ask # always",
        'StrictHostKeyChecking "yes"',
        "KnownHostsCommand none",
        "UpdateHostKeys yes",
        "CASignatureAlgorithms ssh-ed25519",
        "HashKnownHosts yes",
    ],
)
def test_what_changes_nothing_is_passed_over(home: Path, line: str) -> None:
    """What udpbench does anyway, and what is about certificates, files or words."""
    assert "me@left" == str(target(home, "left", f"{line}\n"))


def test_names_of_files_may_be_quoted(home: Path) -> None:
    """Each of a list: none is taken for another, which might revoke a key."""
    config = (
        'UserKnownHostsFile "/a b" "~/c" # d\nRevokedHostKeys "/e f"\nGlobalKnownHostsFile none\n'
    )
    destination = target(home, "left", config)
    assert (("/a b", f"{home}/c"), ("/e f",)) == (
        destination.known_hosts,
        destination.revoked_hosts,
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("c,a", ("c", "a")),
        ("b*,odd", ("b1", "b2")),
        ("+odd", ("a", "b1", "b2", "c")),
        ("-b?,c", ("a",)),
        ("^c,b2", ("c", "b2", "a", "b1")),
        ("odd", ()),
    ],
)
def test_a_list_of_algorithms_means_what_it_does_for_ssh(
    value: str, expected: tuple[str, ...]
) -> None:
    """All of it, more, less, or in front (ssh_config(5))."""
    assert expected == chosen(value, ("a", "b1", "b2", "c"))


def test_algorithms_are_those_that_are_allowed(home: Path) -> None:
    """Types of keys that are known come first, unless the order is given; no certificate is asked for."""
    key = paramiko.RSAKey.generate(2048)
    (home / ".ssh" / "known_hosts").write_text(f"left {public(key)}\n")
    config = (
        "KexAlgorithms curve25519-sha256\nCiphers aes256-gcm@openssh.com,aes256-ctr\n"
        "MACs -*sha1*,*md5*\nHostKeyAlgorithms -ecdsa*\nPubkeyAcceptedKeyTypes rsa-sha2-512\n"
    )
    ours, theirs = socket.socketpair()
    with theirs, paramiko_transport(home, ours, config) as transport:
        security = transport.get_security_options()
        assert (
            ("curve25519-sha256@libssh.org",),
            ("aes256-gcm@openssh.com", "aes256-ctr"),
            ("rsa-sha2-512", "rsa-sha2-256", "ssh-ed25519"),
            ("rsa-sha2-512",),
        ) == (
            security.kex,
            security.ciphers,
            transport.preferred_keys,
            transport.preferred_pubkeys,
        )
        assert not any("sha1" in name or "md5" in name for name in security.digests)
    ours, theirs = socket.socketpair()
    config = "HostKeyAlgorithms ssh-ed25519,rsa-sha2-256\n"
    with theirs, paramiko_transport(home, ours, config) as transport:
        assert ("ssh-ed25519", "rsa-sha2-256") == transport.preferred_keys


def paramiko_transport(home: Path, sock: socket.socket, config: str) -> paramiko.Transport:
    """Return a transport to the left host under a configuration."""
    whole = WholeLimit("left", SshLimits())
    return _Transport(load_host_keys(target(home, "left", config), "left"), whole, sock)


def test_a_key_of_a_type_that_is_not_accepted_is_not_tried(home: Path) -> None:
    """PubkeyAcceptedAlgorithms; it is told with those that were."""
    file = home / ".ssh" / "id_ecdsa"
    paramiko.ECDSAKey.generate().write_private_key_file(str(file))
    keys = _Keys(target(home, "left", "PubkeyAcceptedAlgorithms ssh-ed25519\nIdentitiesOnly yes\n"))
    assert [] == list(keys._keys())
    assert [f"{file} (not used: PubkeyAcceptedAlgorithms has no ecdsa-sha2-nistp256)"] == keys.tried


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
    program = "import os; os.write(2, b'words\\nudpbench: fine\\n'); print(os.getsid(0), flush=True); os.execvp('cat', ['cat'])"
    proxy = Proxy(f"{shlex.join((sys.executable, '-c', program))}")
    with proxy.socket.makefile("rwb") as stream:
        session = int(stream.readline())
        stream.write(b"there and back\n")
        stream.flush()
        assert b"there and back\n" == stream.readline()
    last_words = proxy.last_words()
    proxy.close()
    assert session != os.getsid(0)
    assert (
        f"ProxyCommand {sys.executable} is running and printed: words | udpbench: fine"
        == last_words
    )


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
        closed = False

        def sendall(self, _data: bytes) -> None:
            raise error

        def shutdown_write(self) -> None:
            raise error

    requests = RequestPipe(Cut())  # type: ignore[arg-type]
    for does in (lambda: requests.write(b"x"), requests.close):
        with pytest.raises(BrokenPipeError):
            does()
    assert requests.closed


def test_the_pipe_of_a_connection_that_has_ended_closes_without_a_thread() -> None:
    """Python's exit may close it, and would wait for that thread for ever."""

    class Ended:
        closed = True

    def within() -> Any:
        raise AssertionError("a thread is started")

    requests = RequestPipe(cast("Any", Ended()), within)
    requests.close()
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


def silent(_left_s: float | None) -> bytes:
    """Wait in vain."""
    raise TimeoutError


@pytest.mark.parametrize(
    ("source", "eof", "kind"),
    [
        (lambda _: b"", True, AgentLost),
        (lambda _: b"", False, ConnectError),
        (silent, False, ConnectError),
        (lambda _: b"x" * 9, False, ConnectError),
    ],
    ids=["gone", "lost", "silent", "endless"],
)
def test_an_agent_that_is_not_fetched_is_told_apart(
    source: Source, eof: bool, kind: type[HostError], golden: Golden
) -> None:
    """Gone for good, or worth another attempt."""
    replies = LinePipe(source, 8)
    with golden.raises(kind):
        _await_announcement(cast("Any", BareChannel(eof)), replies, "left", SshLimits())


def test_an_agent_that_is_fetched_is_waited_for_no_longer() -> None:
    """Its line is taken, and what follows may take its time."""
    limits: list[float | None] = []
    agent, replies = BareChannel(False), LinePipe(lambda left_s: limits.append(left_s) or content)
    content = FOUND + b"more"
    _await_announcement(cast("Any", agent), replies, "left", SshLimits())
    assert ([None], b"more") == (agent.timeouts, replies.rest)
    assert [30] == [round(limit_s or 0) for limit_s in limits]


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

"""Agents brought over real OpenSSH to hosts with a bare Python: what works, what is said, what stays."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import ssh_hosts
from ssh_hosts import (
    BARE,
    TINY,
    USER,
    Pair,
    SshHost,
    allow_sudo,
    configured,
    greeted,
    pair_of_hosts,
    tree,
)

from udpbench.agent import install
from udpbench.agent.host.privileges import OBSERVER_USER
from udpbench.analysis.judge import judge
from udpbench.control.agent_client import AgentClient
from udpbench.control.connections.channel import AGENT, OBSERVER
from udpbench.control.connections.ssh import LAUNCHER_NOTE, open_ssh
from udpbench.control.deployment import deploy
from udpbench.control.deployment.deployer import LAUNCHER, OBSERVER_LAUNCHER, Deployer
from udpbench.definition.load import load_lab
from udpbench.errors import AgentError, ConnectError
from udpbench.model.lab import Connect, Lab
from udpbench.model.limits import SECOND_NS
from udpbench.records.reader import read_run

pytestmark = [*ssh_hosts.needed(), pytest.mark.apart]

LEFT = Connect("ssh", "left")
EMPTY = f"""
find /home/root /home/{USER} /var/lib /var/tmp /dev/shm -mindepth 1 -delete
rm -f /etc/sudoers.d/udpbench
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Yield two hosts with nothing but sshd and the system's Python."""
    if not Path("/usr/bin/python3").exists():
        pytest.skip("needs a Python of the system's: apt install python3")
    with pair_of_hosts(tmp_path_factory.mktemp("deploy")) as pair:
        for host in pair.hosts:
            host.run("sh", "-ec", BARE)
        yield pair


@pytest.fixture
def pair(hosts: Pair, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Return them as they were at first, with their controller's home."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(ssh_hosts.ROOT / ".nox" / "cache"))
    monkeypatch.setenv("HOME", str(hosts.home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    hosts.write_home()
    for host in hosts.hosts:
        host.run("sh", "-ec", EMPTY)
    return hosts


def lab(pair: Pair, **connect: str) -> Lab:
    """Return the lab of these hosts, which names no Python."""
    file = pair.home / "lab.yaml"
    text = pair.lab(**connect)
    for named in (f"python: {ssh_hosts.PYTHON}, ", f", python: {ssh_hosts.PYTHON}"):
        text = text.replace(named, "")
    file.write_text(text)
    return load_lab(str(file))


class Dialog:
    """What a deployer told."""

    def __init__(self, refusal: str | None = None) -> None:
        self.lines: list[str] = []
        self.deployer = Deployer(lambda _, text: self.lines.append(text), refusal=refusal)

    def sent(self) -> int:
        """Return how often an agent was sent."""
        return sum("sending" in line for line in self.lines)


def used(dialog: Dialog, connect: Connect = LEFT) -> str:
    """Use an agent for a moment; return the folder it ran from."""
    channel = open_ssh("left", connect, deployer=dialog.deployer)
    try:
        assert "left" == greeted(channel).facts().host
    finally:
        assert 0 == channel.close()
    return dialog.lines[-1].partition("agent installed in ")[2] if dialog.lines else ""


def refusal(dialog: Dialog, connect: Connect = LEFT) -> str:
    """Return why no agent could be brought."""
    with pytest.raises(ConnectError) as caught:
        used(dialog, connect)
    return str(caught.value)


def test_two_bare_hosts_measure_and_are_as_before_once_it_is_removed(
    pair: Pair, tmp_path: Path
) -> None:
    """Nothing but the cache folder is written; a balanced ledger is the result."""
    chosen = lab(pair)
    before = [tree(host) for host in pair.hosts]
    program = str(Path(__file__).with_name("controller.py"))
    words = [sys.executable, program, str(tmp_path / "run"), str(10 * SECOND_NS), json.dumps(TINY)]
    done = subprocess.run(
        [*words, chosen.path], capture_output=True, text=True, check=False, timeout=120
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    (record,) = read_run(tmp_path / "run").records
    result = judge(record)
    assert (240, 240, 0) == (
        result.sent_packets,
        result.received_packets,
        result.unaccounted,
    )
    for was, host in zip(before, pair.hosts, strict=True):
        new = set(tree(host).splitlines()) - set(was.splitlines())
        assert new
        assert {line for line in new if not line.startswith("/home/root/.cache")} == set()
    dialog = Dialog()
    assert deploy.remove(chosen, dialog.deployer)
    assert ["removed /home/root/.cache/udpbench/agent"] * 2 == dialog.lines
    assert before == [tree(host) for host in pair.hosts]


@pytest.mark.long
def test_what_is_there_is_not_sent_again_and_what_is_damaged_is(pair: Pair) -> None:
    """By this controller or the next one; a build of another version stays beside it."""
    dialog = Dialog()
    folder = used(dialog)
    assert folder.startswith("/home/root/.cache/udpbench/agent/")
    used(dialog)
    used(again := Dialog())
    assert (1, 0) == (dialog.sent(), again.sent())
    pair.left.run("rm", f"{folder}/udpbench/model/record.py")
    pair.left.run("mkdir", f"{folder}/../0123456789abcdef")
    used(again)
    assert "only other builds of the agent installed" in again.lines[0]


def bench_user(pair: Pair) -> Connect:
    """Log in as a user who is not root; return the way that becomes root by sudo."""
    if shutil.which("sudo") is None:
        pytest.skip("needs sudo: apt install sudo")
    pair.write_home(User=USER)
    return Connect("ssh", "left", "sudo")


def test_by_sudo_the_build_is_roots_and_its_launcher_is_enough(pair: Pair) -> None:
    """Nothing that the user can write is run as root; afterwards the host is as it was."""
    connect = bench_user(pair)
    before = tree(pair.left)
    allow_sudo(pair.left, "NOPASSWD: ALL")
    dialog = Dialog()
    used(dialog, connect)
    new = set(tree(pair.left).splitlines()) - set(before.splitlines())
    assert {"/var/lib/udpbench"} == {"/".join(line.split()[0].split("/")[:4]) for line in new}
    assert {"root"} == {line.split()[2] for line in new}
    assert not [line for line in new if int(line.split()[1], 8) & 0o022]
    allow_sudo(pair.left, f"NOPASSWD: {LAUNCHER}")
    used(again := Dialog(), connect)
    assert (1, 0) == (dialog.sent(), again.sent())
    for host in pair.hosts:
        allow_sudo(host, "NOPASSWD: ALL")
    assert deploy.remove(lab(pair, become="sudo"), dialog.deployer)
    assert before == tree(pair.left)


@pytest.mark.long
def test_root_may_deploy_for_a_user_who_may_only_launch(pair: Pair) -> None:
    """Without sudo, into the same place; nothing has to be sent for the user."""
    used(Dialog(), Connect("ssh", "left", "sudo"))
    connect = bench_user(pair)
    allow_sudo(pair.left, f"NOPASSWD: {LAUNCHER}")
    used(Dialog("nothing is sent"), connect)


def test_who_may_only_observe_watches_with_every_right_and_can_start_nothing_else(
    pair: Pair,
) -> None:
    """By sudoers' line of docs/hosts.md; the process has no account, and no agent can be started."""
    used(Dialog(), Connect("ssh", "left", "sudo"))
    connect = bench_user(pair)
    allow_sudo(pair.left, f"NOPASSWD: {OBSERVER_LAUNCHER}")
    pair.left.run("visudo", "-c", "-f", "/etc/sudoers.d/udpbench")
    channel = open_ssh(
        "left", connect, deployer=Dialog("nothing is sent").deployer, module=(OBSERVER, "firewall")
    )
    try:
        client = AgentClient(channel, "receiver", "test0", ("namespace", "machine"))
        hello = client.greet("test-1", 10 * SECOND_NS)
        status = Path(f"/proc/{client.pid}/status").read_text().split("\n")
        users = [each.split()[1:] for each in status if "Uid" in each]
        assert [[str(OBSERVER_USER)] * 4] == users
        assert (True, None) == (hello.capabilities["net_admin"], client.take("none").held_by)
        assert "snmp.Udp.NoPorts" in client.look(None, None, False).snapshot.counters
        assert client.inspect().firewall is not None
        with pytest.raises(AgentError, match="it only looks"):
            client.apply(())
    finally:
        assert 0 == channel.close()
    channel = open_ssh("left", connect, deployer=Dialog("nothing is sent").deployer)
    with pytest.raises(ConnectError, match="a password is required"):
        greeted(channel)
    assert 1 == channel.close()
    allow_sudo(pair.left, f"NOPASSWD: {LAUNCHER}")
    for module in (OBSERVER, AGENT):
        channel = open_ssh("left", connect, deployer=Dialog("-").deployer, module=(module,))
        AgentClient(channel, "receiver", "test0", ()).greet("test-1", 10 * SECOND_NS)
        assert 0 == channel.close()


@pytest.mark.long
@pytest.mark.parametrize("rule", ["ALL", "NOPASSWD: /bin/true"])
def test_a_sudo_that_refuses_is_reported_with_the_line_for_sudoers(pair: Pair, rule: str) -> None:
    """It names the launcher alone, and says what whoever may use it can do."""
    connect = bench_user(pair)
    before = tree(pair.left)
    allow_sudo(pair.left, rule)
    message = refusal(Dialog(), connect)
    assert f"NOPASSWD: {LAUNCHER} " in message
    assert LAUNCHER_NOTE in message
    assert before == tree(pair.left)


@pytest.mark.long
def test_a_user_without_sudo_has_an_agent_of_its_own(pair: Pair) -> None:
    """In its own cache; without become nothing asks for root."""
    bench_user(pair)
    assert used(Dialog()).startswith(f"/home/{USER}/.cache/udpbench/agent/")


PYTHONS = {
    "too old": (
        "#!/bin/sh\necho 'Python 3.8.2 is too old' >&2; exit 1\n",
        "3.9 or later is needed",
    ),
    "two": ("#!/bin/sh\necho 'Unknown option: -I' >&2; exit 2\n", "3.9 or later is needed"),
    "noise": ("#!/bin/sh\necho hello\n", "instead of an answer; find out what prints"),
    "silent": ("#!/bin/sh\nexit 3\n", "its last output: none; try it: ssh left "),
}


@contextmanager
def first_in_path(host: SshHost, text: str) -> Iterator[None]:
    """Put a python3 in front of the system's."""
    host.run(
        "sh",
        "-c",
        f"mkdir -p /run/bin; cat > /run/bin/python3 <<'END'\n{text}END\nchmod 755 /run/bin/*",
    )
    with configured(host, "SetEnv PATH=/run/bin:/usr/bin:/bin"):
        yield


@pytest.mark.long
def test_a_python_that_is_none_is_reported(pair: Pair) -> None:
    """Missing, too old, or a program of another kind: nothing is left of the attempt."""
    before = tree(pair.left)
    for text, message in PYTHONS.values():
        with first_in_path(pair.left, text):
            assert message in refusal(Dialog())
    with configured(pair.left, "SetEnv PATH=/run/empty"):
        pair.left.run("sh", "-c", "mkdir /run/empty; ln -s /bin/sh /run/empty/sh")
        assert "install Python 3.9 or later there" in refusal(Dialog())
    assert before == tree(pair.left)


LOGIN_SHELL = """#!/usr/bin/python3 -IS
import os, sys
print("Welcome, and do not touch")
assert sys.argv[1] == "-c" and "\\n" not in sys.argv[2] and "$(" not in sys.argv[2].split("'")[0]
os.execv("/bin/sh", ["sh", "-c", sys.argv[2]])
"""
"""Greets, and takes one simple command."""


def shells() -> dict[str, str]:
    """Return the login shells that are here, by name."""
    paths = {name: shutil.which(name) for name in ("fish", "tcsh", "csh", "zsh", "bash")}
    return {"odd": "/run/shell", **{name: path for name, path in paths.items() if path}}


@pytest.mark.long
def test_any_login_shell_will_do(pair: Pair) -> None:
    """Also one that greets, and with a start-up file that prints."""
    pair.left.run("sh", "-c", f"cat > /run/shell <<'END'\n{LOGIN_SHELL}END\nchmod 755 /run/shell")
    for name in (".bashrc", ".cshrc", ".zshenv", ".config/fish/config.fish"):
        pair.left.run(
            "sh", "-c", f"mkdir -p /home/root/.config/fish; echo 'echo noise' > /home/root/{name}"
        )
    for shell in shells().values():
        pair.left.run("sed", "-i", f"s|^\\(root:.*:\\).*|\\1{shell}|", "/etc/passwd")
        used(Dialog())


@pytest.mark.long
def test_where_home_cannot_hold_it_another_folder_does(pair: Pair) -> None:
    """Read-only, noexec or full: a fresh folder, said where; the next one is fresh again."""
    for options, why in (
        ("ro", "Read-only file system"),
        ("noexec", "mounted noexec"),
        ("size=64k", "No space left on device"),
    ):
        pair.left.run("mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "tmpfs", "/home/root")
        before = tree(pair.left)
        dialog = Dialog()
        used(dialog)
        assert f"not in /home/root/.cache/udpbench/agent: {why}" == dialog.lines[-2]
        assert dialog.lines[-1].startswith(f"agent installed in /var/tmp/{install.FALLBACK_PREFIX}")
        used(dialog)
        assert 2 == dialog.sent()
        assert deploy.remove(lab(pair), dialog.deployer)
        assert before == tree(pair.left)
        pair.left.run("umount", "/home/root")


@pytest.mark.long
def test_two_controllers_at_once_bring_one_build(pair: Pair) -> None:
    """Neither waits for the other's connection, and both agents run."""
    dialogs = [Dialog(), Dialog()]
    threads = [threading.Thread(target=used, args=(dialog,)) for dialog in dialogs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    place = "/home/root/.cache/udpbench/agent"
    assert 1 == len(pair.left.run("ls", place).split())
    used(again := Dialog())
    assert 0 == again.sent()


DROPPING = """
import os, select
left = 200_000
while select.select([0], [], []) and left > 0 and (data := os.read(0, min(left, 65536))):
    os.write(1, data)
    left -= len(data)
"""
"""Carries a connection to the host for so many bytes."""


@pytest.mark.long
def test_a_connection_that_drops_meanwhile_leaves_nothing(pair: Pair) -> None:
    """It is said; the next controller brings it whole."""
    before = tree(pair.left)
    program = pair.home / "drop.py"
    program.write_text(DROPPING)
    pair.write_home({"left": f"sh -c '{sys.executable} {program} | {{}}'"})
    message = refusal(Dialog())
    assert "connection lost before the agent was installed; nothing was left" in message
    pair.write_home()
    assert before == tree(pair.left)
    dialog = Dialog()
    used(dialog)
    assert 1 == dialog.sent()


@pytest.mark.long
def test_a_host_whose_clock_is_years_off_makes_no_difference(pair: Pair) -> None:
    """A build that seems to be of the future, or long past, is used as it is."""
    dialog = Dialog()
    folder = used(dialog)
    for year in ("1971", "2199"):
        pair.left.run("sh", "-c", f"find {folder} -exec touch -d {year}-01-01 {{}} +")
        used(dialog)
    assert 1 == dialog.sent()


@pytest.mark.long
def test_without_deployment_the_line_to_type_is_reported(pair: Pair) -> None:
    """And nothing is sent, to a user or by sudo."""
    before = tree(pair.left)
    assert refusal(Dialog("type this")).endswith("no agent installed; type this")
    assert refusal(Dialog("type this"), bench_user(pair)).endswith("no agent installed; type this")
    assert before == tree(pair.left)


@pytest.mark.long
@pytest.mark.parametrize("become", [False, True])
def test_a_lost_connection_comes_back_to_a_deployed_agent(pair: Pair, become: bool) -> None:
    """By the build that it runs from, also where sudo lets its user start nothing else."""
    connect = LEFT
    if become:
        connect = bench_user(pair)
        allow_sudo(pair.left, "NOPASSWD: ALL")
        used(Dialog(), connect)
        allow_sudo(pair.left, f"NOPASSWD: {LAUNCHER}")
    before = {child.pid for child in psutil.Process().children()}
    channel = open_ssh("left", connect, deployer=Dialog().deployer)
    remote = greeted(channel)
    (proxy,) = [child for child in psutil.Process().children() if child.pid not in before]
    for process in (*proxy.children(recursive=True), proxy):  # sshd has a process for its user, too
        if process.name().startswith("sshd"):
            process.kill()
    assert "left" == remote.facts().host
    assert 1 == len(channel.absences_ns)
    assert 0 == channel.close()

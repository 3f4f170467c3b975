"""Two hosts for the tests of SSH: namespaces with a cable between them, and a real sshd in each.

Whatever is made here is inside the two namespaces and their own mounts, and ends with their
holders; the controller's HOME is a folder of the test.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from waiting import DEADLINE_S

from udpbench.control.agent_client import AgentClient
from udpbench.control.connections.channel import Channel
from udpbench.errors import AgentLost
from udpbench.model.limits import SECOND_NS

SSHD = "/usr/sbin/sshd"
NETWORK = "192.168.254"
HOLD_S = 600
USER = "bench"
USER_ID = 23456
PYTHON = "/run/python"
"""On each host: the interpreter of the tests, with the very udpbench that is tested."""
SUDO_RULE = f"NOPASSWD: {PYTHON} -m udpbench.agent.serve, {PYTHON} -m udpbench.agent.reconnect *"
"""As docs/hosts.md advises it."""
TINY = {
    "question": "Does it run?",
    "traffic": {"rate": "800pps"},
    "send": {"pace": "sleep", "bucket": "10s"},
    "duration": "300ms",
    "warmup": "100ms",
    "repetitions": 1,
}
ROOT = Path(__file__).parents[2]
HOLDER = f"""
set -e
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
printf '#!/bin/sh\\nPYTHONPATH={ROOT} exec {sys.executable} "$@"\\n' > {PYTHON}
chmod 755 {PYTHON}
mkdir -m 755 /run/sshd /run/keys
cp -a /etc /run/etc
mount --bind /run/etc /etc
echo '{USER}:x:{USER_ID}:{USER_ID}::/run:/bin/sh' >> /etc/passwd
echo '{USER}:*:20000:0:99999:7:::' >> /etc/shadow
echo '{USER}:x:{USER_ID}:' >> /etc/group
echo ready
exec sleep {HOLD_S}
"""
"""A user of its own is in an /etc of its own: the machine's stays as it is."""
BARE = f"""
sed -i -e 's|:/root:|:/home/root:|' -e 's|^{USER}:.*|{USER}:x:23456:23456::/home/{USER}:/bin/sh|' /etc/passwd
for folder in /home /var/lib /var/tmp /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs $folder; done
chmod 755 /home /var/lib
mkdir -m 700 /home/root /home/{USER}
chown {USER}:{USER} /home/{USER}
"""
"""Homes and shared folders of the host's own, all empty."""
TREE = "find /home /var/lib /var/tmp /dev/shm /opt /usr/local -printf '%p %m %u %l\\n' | sort"
CABLE = """
import sys
from pyroute2 import IPRoute
with IPRoute() as netlink:
    peer = {"ifname": sys.argv[2], "net_ns_pid": int(sys.argv[3])}
    netlink.link("add", kind="veth", ifname=sys.argv[1], peer=peer)
"""
UP = """
import sys
from pyroute2 import IPRoute
with IPRoute() as netlink:
    for name in ("lo", *sys.argv[1:]):
        name, _, address = name.partition("=")
        index = netlink.link_lookup(ifname=name)[0]
        netlink.link("set", index=index, state="up")
        if address:
            netlink.addr("add", index=index, address=address, prefixlen=24)
"""


def needed() -> list[pytest.MarkDecorator]:
    """Return the marks of tests that need all this."""
    return [
        pytest.mark.lab,
        pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
        pytest.mark.skipif(
            not Path(SSHD).exists(), reason="needs sshd: apt install openssh-server"
        ),
    ]


@dataclass
class SshHost:
    """One namespace that plays a host."""

    name: str
    pid: int
    """The process that holds the namespaces."""
    folder: Path

    def inside(self, *command: str) -> tuple[str, ...]:
        """Return a command that runs another one on this host."""
        return ("nsenter", f"--target={self.pid}", "--net", "--mount", *command)

    def run(self, *command: str) -> str:
        """Return what a command prints on this host."""
        done = subprocess.run(self.inside(*command), capture_output=True, text=True, check=False)
        assert 0 == done.returncode, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def python(self, program: str, *words: str) -> str:
        """Return what a Python program prints on this host."""
        return self.run(sys.executable, "-c", program, *words)

    @property
    def sshd_config(self) -> Path:
        """The file that this host's sshd reads."""
        return self.folder / "sshd_config"

    @property
    def public_key(self) -> str:
        """The host's own key, as known_hosts files have it."""
        return " ".join((self.folder / "host_key.pub").read_text().split()[:2])


def tree(host: SshHost) -> str:
    """Return every path below where something could be left."""
    return host.run("sh", "-c", TREE)


@contextmanager
def configured(host: SshHost, line: str) -> Iterator[None]:
    """Give sshd one more line for a while."""
    before = host.sshd_config.read_text()
    host.sshd_config.write_text(f"{before}{line}\n")
    try:
        yield
    finally:
        host.sshd_config.write_text(before)


@dataclass
class Pair:
    """Both hosts, and the home folder of whoever controls them."""

    left: SshHost
    right: SshHost
    home: Path

    @property
    def hosts(self) -> tuple[SshHost, SshHost]:
        """Both."""
        return self.left, self.right

    def write_home(self, proxies: dict[str, str] | None = None, **keys: str) -> None:
        """Write ~/.ssh: every host by a ProxyCommand, every key known; ``keys`` go on top."""
        lines = [f"{key} {value}" for key, value in keys.items()]
        for host in self.hosts:
            command = shlex.join(host.inside(SSHD, "-i", "-e", "-f", str(host.sshd_config)))
            command = (proxies or {}).get(host.name, "{}").format(command)
            lines += [f"Host {host.name}", "  User root", f"  ProxyCommand {command}"]
        ssh = self.home / ".ssh"
        (ssh / "config").write_text("\n".join(lines) + "\n")
        known = [f"{host.name} {host.public_key}\n" for host in self.hosts]
        (ssh / "known_hosts").write_text("".join(known))

    def write_home_tcp(self, addresses: dict[str, str]) -> None:
        """Write ~/.ssh: every host at an address of its own, every key known."""
        lines = [f"Host {name}\n  HostName {to}\n  User root\n" for name, to in addresses.items()]
        known = [f"{addresses[host.name]} {host.public_key}\n" for host in self.hosts]
        (self.home / ".ssh" / "config").write_text("".join(lines))
        (self.home / ".ssh" / "known_hosts").write_text("".join(known))

    def lab(self, **connect: str) -> str:
        """Return the lab file of this pair."""
        words = {"python": PYTHON, **connect}
        listed = ", ".join(f"{key}: {value}" for key, value in words.items())
        cpus = sorted(os.sched_getaffinity(0))
        return (
            "sender:\n"
            f"  - {{name: left, connect: {{ssh: left, {listed}}}, interface: test0, "
            f"addresses: [{NETWORK}.30/24], cpus: {cpus[-1]}}}\n"
            "receiver:\n"
            f"  - {{name: right, connect: {{ssh: right, {listed}}}, interface: test0, "
            f"addresses: [{NETWORK}.1-2/24], cpus: {cpus[0]}}}\n"
        )


def write_key(path: Path, *words: str) -> None:
    """Make a pair of keys without a passphrase."""
    command = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path), *words)
    subprocess.run(command, check=True)


def _host(name: str, folder: Path, process: subprocess.Popen[str]) -> SshHost:
    assert process.stdout is not None
    assert "ready\n" == process.stdout.readline(), f"{name} did not come up"
    folder.mkdir()
    write_key(folder / "host_key")
    host = SshHost(name, process.pid, folder)
    host.sshd_config.write_text(
        f"HostKey {folder}/host_key\n"
        "AuthorizedKeysFile /run/keys/%u\n"
        "PidFile none\n"
        "StrictModes no\n"
        "PasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\n"
        "PermitRootLogin prohibit-password\n"
        "LogLevel ERROR\n"
    )
    return host


@contextmanager
def pair_of_hosts(folder: Path, cable: tuple[str, str] = ("test0", "test0")) -> Iterator[Pair]:
    """Yield two hosts with a cable between these interfaces, and a home that leads to them."""
    home = folder / "home"
    (home / ".ssh").mkdir(parents=True)
    write_key(home / ".ssh" / "id_ed25519")
    holders = [
        subprocess.Popen(
            ("unshare", "--net", "--mount", "sh", "-c", HOLDER), stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        left, right = (
            _host(name, folder / name, holder)
            for name, holder in zip(("left", "right"), holders, strict=True)
        )
        left.python(CABLE, *cable, str(right.pid))
        key = (home / ".ssh" / "id_ed25519.pub").read_text()
        for host in (left, right):
            host.python(UP)
            for user in ("root", USER):
                host.run("sh", "-c", f"echo {shlex.quote(key)} > /run/keys/{user}")
        pair = Pair(left, right, home)
        pair.write_home()
        yield pair
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()


@contextmanager
def management(pair: Pair) -> Iterator[SshHost]:
    """Yield a third host, 10.7.n.1, joined to each of a pair by the pair's control0, 10.7.n.2."""
    holder = subprocess.Popen(
        ("unshare", "--net", "--mount", "sh", "-c", HOLDER), stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert "ready\n" == holder.stdout.readline()
        control = SshHost("control", holder.pid, pair.home)
        for n, host in enumerate(pair.hosts):
            control.python(CABLE, f"to{n}", "control0", str(host.pid))
            control.python(UP, f"to{n}=10.7.{n}.1")
            host.python(UP, f"control0=10.7.{n}.2")
        yield control
    finally:
        holder.kill()
        holder.wait()


def allow_sudo(host: SshHost, rule: str) -> None:
    """Let the user of the pair become root by a rule; the machine's own sudoers stay untouched."""
    assert shutil.which("sudo") is not None
    line = f"{USER} ALL=(root) {rule}"
    text = (
        f"echo {shlex.quote(line)} > /etc/sudoers.d/udpbench && chmod 440 /etc/sudoers.d/udpbench"
    )
    host.run("sh", "-c", text)


@contextmanager
def listening(*servers: tuple[SshHost, str]) -> Iterator[None]:
    """Run sshd as a daemon on an address of each host; ended with the block."""
    started = []
    try:
        for host, address in servers:
            options = ("-D", "-e", "-f", str(host.sshd_config), "-o", f"ListenAddress={address}")
            log = (host.folder / "log").open("wb")
            started.append(subprocess.Popen(host.inside(SSHD, *options), stderr=log))
            log.close()
        for host, address in servers:
            await_port(host, address)
        yield
    finally:
        for daemon in started:
            daemon.terminate()
            daemon.wait()


def greeted(channel: Channel) -> AgentClient:
    """Return an agent that answered, as ``LabAgents`` has it."""
    client = AgentClient(channel, "sender", "test0", ("namespace",))
    try:
        client.greet("test-1", 10 * SECOND_NS)
    except AgentLost as loss:
        raise channel.not_started(loss) from loss
    client.take("alone")
    return client


def await_port(host: SshHost, address: str) -> None:
    """Wait until somebody listens on port 22 of an address."""
    program = "import socket, sys; socket.create_connection((sys.argv[1], 22), 5).close()"
    command = host.inside(sys.executable, "-c", program, address)
    deadline = time.monotonic() + DEADLINE_S
    while subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode != 0:
        assert time.monotonic() < deadline, (host.folder / "log").read_text()

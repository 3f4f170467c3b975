"""``udpbench export --install`` over real OpenSSH: it serves, stays, and goes without a trace."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ssh_hosts
from program_forks import completed
from ssh_hosts import Pair, SshHost
from test_deploy import LEFT, Dialog, hosts, pair, used
from test_deploy import tree as shared_tree

from udpbench.agent import install

pytestmark = [*ssh_hosts.needed(), pytest.mark.apart]
__all__ = ["hosts", "pair"]

LIMIT_S = 60
PAGE = "http://127.0.0.1:10717/metrics"
RECORD = "/var/lib/udpbench-flight"
FILE = "/var/lib/node/udpbench.prom"
OLDEST = [path for path in Path("/root/.pyenv/versions").glob("3.9.*/bin/python3") if path.exists()]


def tree(host: SshHost) -> str:
    """Return every path below where something could be left."""
    return shared_tree(host) + host.run("find", "/etc/systemd/system", "-printf", "%p %m %u %l\n")


def udpbench(*words: str) -> subprocess.CompletedProcess[str]:
    """Return what a command does."""
    return completed(words, LIMIT_S)


def command_of(host: SshHost) -> list[str]:
    """Return what the unit starts."""
    unit = host.run("cat", f"{install.UNITS}/{install.UNIT}")
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    return line.partition("=")[2].split()


def until_served(host: SshHost) -> str:
    """Return the page, once there is one."""
    end_s = time.monotonic() + LIMIT_S
    command = host.inside("curl", "-sf", PAGE)
    while not (text := subprocess.run(command, capture_output=True, text=True, check=False).stdout):
        assert time.monotonic() < end_s
    return text


def test_an_exporter_is_brought_serves_and_goes_without_a_trace(pair: Pair) -> None:
    """By a bare Python there; what cleans agents away leaves it."""
    pair.left.run("mkdir", "/var/lib/node")
    before = tree(pair.left)
    words = ("--listen", "127.0.0.1:10717", "--textfile", FILE, "--record", RECORD)
    done = udpbench("export", "--install", "left", *words, "--every", "1s")
    assert 3 == done.returncode, done.stderr
    assert "installed, but it does not run: systemd does not run there" in done.stderr
    build = command_of(pair.left)[3]
    link = f"{install.UNITS}/{install.WANTS}/{install.UNIT}"
    stays = ", ".join([build, f"{install.UNITS}/{install.UNIT}", link, FILE, RECORD])
    assert f"left: what stays there until --remove: {stays}\n" == done.stdout
    pair.left.run("systemd-analyze", "verify", "--man=no", f"{install.UNITS}/{install.UNIT}")
    pair.left.run("touch", "-d", "2001-01-01", f"{build}/{install.MANIFEST}")
    used(Dialog(), LEFT)
    with subprocess.Popen(pair.left.inside(*command_of(pair.left))) as process:
        assert "udpbench_exporter_build_info" in until_served(pair.left)
        assert "looks-" in pair.left.run("ls", RECORD)
        process.send_signal(signal.SIGKILL)
    assert "udpbench.prom" in pair.left.run("ls", "/var/lib/node")
    done = udpbench("export", "--remove", "left")
    assert (0, "") == (done.returncode, done.stdout), done.stderr
    pair.left.run("rm", "-r", "/home/root/.cache")  # of the agent
    assert before == tree(pair.left)
    assert "left: no exporter installed\n" == udpbench("export", "--remove", "left").stderr


def test_a_connection_that_drops_while_it_is_installed_leaves_what_the_next_completes(
    pair: Pair,
) -> None:
    """Wherever it drops, or what is removed without a trace."""
    before = tree(pair.left)
    for bytes_left in (60_000, 700_000):
        program = pair.home / "drop.py"
        program.write_text(DROPPING.format(bytes_left))
        pair.write_home({"left": f"sh -c '{sys.executable} {program} | {{}}'"})
        done = udpbench("export", "--install", "left")
        assert 3 == done.returncode
        assert "Traceback" not in done.stderr
        pair.write_home()
        udpbench("export", "--remove", "left")
        assert before == tree(pair.left)
    assert "does not run" in udpbench("export", "--install", "left").stderr
    with subprocess.Popen(pair.left.inside(*command_of(pair.left))) as process:
        until_served(pair.left)
        process.send_signal(signal.SIGINT)
        assert 0 == process.wait(LIMIT_S)
    udpbench("export", "--remove", "left")
    assert before == tree(pair.left)


DROPPING = """
import os, select
left = {}
while select.select([0], [], []) and left > 0 and (data := os.read(0, min(left, 65536))):
    os.write(1, data)
    left -= len(data)
"""

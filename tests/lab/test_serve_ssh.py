"""``udpbench serve HOST``: a server on another host, over real OpenSSH, with Debian's iperf3."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import ssh_hosts
from served_hosts import LIMIT_S, Serving
from ssh_hosts import BARE, NETWORK, UP, USER, Pair, SshHost, pair_of_hosts, tree
from waiting import wait_until

from udpbench.analysis.judge import judge
from udpbench.records.reader import read_run

pytestmark = [
    *ssh_hosts.needed(),
    pytest.mark.apart,
    pytest.mark.skipif(shutil.which("iperf3") is None, reason="apt-get install iperf3"),
]

SERVER = f"{NETWORK}.1"
PACKETS, EVERY = 500, 10
DROPPING = f"""
add table ip plant
add counter ip plant dropped
add chain ip plant c {{ type filter hook input priority 0; }}
add rule ip plant c udp dport 5201 udp length > 100 numgen inc mod {EVERY} == 0 counter name dropped drop
"""
"""Greetings are shorter."""


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """Yield two hosts with addresses, and nothing but sshd and the system's Python."""
    if not Path("/usr/bin/python3").exists():
        pytest.skip("needs a Python of the system's: apt install python3")
    monkeypatch.setenv("XDG_CACHE_HOME", str(ssh_hosts.ROOT / ".nox" / "cache"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with pair_of_hosts(tmp_path / "hosts") as hosts:
        monkeypatch.setenv("HOME", str(hosts.home))
        for host, number in zip(hosts.hosts, (30, 1), strict=True):
            host.run("sh", "-ec", BARE)
            host.python(UP, f"test0={NETWORK}.{number}")
        yield hosts


def serving(folder: Path, *words: str) -> Serving:
    """Serve on the right host, from this one."""
    command = (sys.executable, "-m", "udpbench", "serve", "right", "--listen", SERVER, *words)
    return Serving(command, folder, dict(os.environ))


def sent(pair: Pair) -> Any:
    """Return what a client at the left host says."""
    words = ("-u", "-J", "-b", "5M", "-k", str(PACKETS), "-l", "200", "--get-server-output")
    command = pair.left.inside("iperf3", "-c", SERVER, *words)
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return json.loads(done.stdout)


def processes(host: SshHost) -> list[str]:
    """Return the commands of a host, but for the one that holds it."""
    net = Path(f"/proc/{host.pid}/ns/net").readlink()
    commands = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.name != str(host.pid) and (process / "ns/net").readlink() == net:
                commands.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it has ended
    return commands


@pytest.mark.drawn(1)
@pytest.mark.parametrize("user", ["root", USER])
def test_a_host_is_served_over_ssh_and_left_as_it_was(
    pair: Pair, user: str, tmp_path: Path
) -> None:
    """What its firewall dropped is exact for root; for who is not, at most all that is missing."""
    pair.write_home(User=user)
    before = tree(pair.right)
    pair.right.run("nft", DROPPING)
    with closing(serving(tmp_path, "--once", "--no-report", "--out", "run")) as server:
        client = sent(pair)
        printed = server.wait()
    assert "error" not in client, client
    listed = json.loads(pair.right.run("nft", "--json", "list", "counters"))["nftables"]
    (lost,) = (entry["counter"]["packets"] for entry in listed if "counter" in entry)
    assert PACKETS // EVERY <= lost <= PACKETS // EVERY + 1
    total = client["end"]["sum"]
    assert (PACKETS, lost) == (total["packets"], total["lost_packets"])
    assert f"lost {lost} of {PACKETS}" in client["server_output_text"]
    assert 1 == server.process.returncode, printed
    (record,) = read_run(tmp_path / "run").records
    result = judge(record)
    assert result.ledger is not None
    spans = {entry.stage: (entry.packets or 0, entry.at_most) for entry in result.ledger.entries}
    least = lost if user == "root" else 0
    assert spans["rx_netfilter"] in {(least, None), (least, lost)}
    assert (True, 0) == (result.valid, result.ledger.unaccounted)
    assert (["right"], "test0") == ([*record.facts], record.facts["right"].interface)
    wait_until("the agents have ended", lambda: not processes(pair.right))
    new = set(tree(pair.right).splitlines()) - set(before.splitlines())
    home = "/home/root" if user == "root" else f"/home/{USER}"
    assert new
    assert [] == [line for line in new if not line.startswith(f"{home}/.cache")]


def test_a_server_whose_controller_dies_is_gone(pair: Pair, tmp_path: Path) -> None:
    """Another one has the port; and Ctrl-C ends that at once."""
    with closing(serving(tmp_path)) as server:
        server.process.kill()
        server.process.wait()
        wait_until("the agents have ended", lambda: not processes(pair.right))
    with closing(serving(tmp_path)) as server:
        client = sent(pair)
        assert "error" not in client
        server.close()
    assert int(client["end"]["sum"]["lost_packets"] > 0) == server.process.returncode
    assert [] == processes(pair.right)


def test_a_port_that_is_taken_there_is_said_of_that_host(pair: Pair, tmp_path: Path) -> None:
    """With who has it, and where."""
    holder = subprocess.Popen(
        pair.right.inside("iperf3", "-s", "-p", "5201"), stdout=subprocess.DEVNULL
    )
    try:
        wait_until(
            "somebody listens",
            lambda: ":1451 " in Path(f"/proc/{holder.pid}/net/tcp6").read_text(),
        )
        with pytest.raises(AssertionError, match=r"right: .*5201: Address already in use"):
            serving(tmp_path)
    finally:
        holder.kill()
        holder.wait()

"""From two hosts with sshd to a ledger: ``init`` over real OpenSSH, and what it writes is run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ssh_hosts
from busy import ended_well, run_of
from program_forks import completed
from sampled import sampled
from ssh_hosts import PYTHON, SSHD, UP, Pair, SshHost, listening, management, pair_of_hosts
from test_deploy import BARE, tree

from udpbench.analysis.judge import judge
from udpbench.definition.load import load_lab
from udpbench.records.reader import read_run

pytestmark = [*ssh_hosts.needed(), pytest.mark.apart]

README = Path(__file__).resolve().parents[2] / "README.md"
CABLE = ("eth3", "eth2")
CACHE = str(ssh_hosts.ROOT / ".nox" / "cache")
"""Keeps what pip downloaded from one test to the next."""
UNPRIVILEGED = "/run/unprivileged"
LIMIT_S = 120


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Yield the README's two hosts with sshd and a bare Python, and a cable that is up."""
    with pair_of_hosts(tmp_path, cable=CABLE) as hosts:
        lines, known = [], []
        for host, interface in zip(hosts.hosts, CABLE, strict=True):
            host.run("sh", "-ec", BARE)
            host.python(UP, interface)
            name = f"{host.name}.example"
            command = shlex.join(host.inside(SSHD, "-i", "-e", "-f", str(host.sshd_config)))
            lines.append(f"Host {name}\n  ProxyCommand {command}\n")
            known.append(f"{name} {host.public_key}\n")
        (hosts.home / ".ssh" / "config").write_text("".join(lines))
        (hosts.home / ".ssh" / "known_hosts").write_text("".join(known))
        yield hosts


def udpbench(
    pair: Pair, *words: str, control: SshHost | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command of this controller, or of one on another host."""
    own = {
        "HOME": str(pair.home),
        "PYTHONPATH": str(ssh_hosts.ROOT),
        "XDG_CACHE_HOME": CACHE,
    }
    how: dict[str, Any] = {
        "cwd": pair.home,
        "env": {**os.environ, **own},
        "stdin": subprocess.DEVNULL,
    }
    if control is None:
        return completed(words, LIMIT_S, **how)
    command = control.inside(sys.executable, "-m", "udpbench", *words)
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, **how
    )


@pytest.mark.parametrize("count", sampled([1, None], [1]))
def test_the_readmes_commands_end_with_a_balanced_ledger(count: int | None, pair: Pair) -> None:
    """As they stand: the agent is brought, the cable found by ARP, and every packet has an entry.

    Once the agent is removed, each host is as it was.
    """
    before = [tree(host) for host in pair.hosts]
    section = README.read_text().partition("## On your own hosts")[2].partition("\n## ")[0]
    commands = re.findall(r"^    udpbench (.*?)(?:\s+#.*)?$", section, re.MULTILINE)
    assert ["init", "doctor", "run"] == [command.split()[0] for command in commands]
    for command in commands[:count]:
        words = shlex.split(command)
        done = udpbench(pair, *words)
        # 1: it has findings.
        well = done.returncode in ((0, 1) if words[0] == "doctor" else (0,))
        well = well or (
            words[0] == "run" and ended_well(done.returncode, run_of(done.stdout, pair.home))
        )
        assert well, f"{command}\n{done.stdout}\n{done.stderr}"
    lab = load_lab(str(pair.home / "lab.yaml"))
    assert ["eth3", "eth2"] == [host.interface for host in lab.hosts]
    if count is not None:
        return
    (folder,) = (pair.home / "results").iterdir()
    (record,) = read_run(folder).records
    ledger = judge(record).ledger
    assert ledger is not None
    assert 0 == ledger.unaccounted
    done = udpbench(pair, "deploy", "--lab", "lab.yaml", "--remove")
    assert 0 == done.returncode, f"{done.stdout}\n{done.stderr}"
    assert before == [tree(host) for host in pair.hosts]


@pytest.mark.long
def test_what_carries_ssh_is_neither_probed_nor_chosen(pair: Pair) -> None:
    """Over TCP; without CAP_NET_RAW the link is not proven, and nothing is written."""
    with management(pair) as control:
        addresses = {"left": "10.7.0.2", "right": "10.7.1.2"}
        pair.write_home_tcp(addresses)
        with listening(*((host, addresses[host.name]) for host in pair.hosts)):
            for host in pair.hosts:
                text = f'exec setpriv --bounding-set=-net_raw --inh-caps=-net_raw {PYTHON} "$@"'
                host.run("sh", "-c", f"echo {shlex.quote(text)} > {UNPRIVILEGED}")
                host.run("sed", "-i", "1i #!/bin/sh", UNPRIVILEGED)
                host.run("chmod", "755", UNPRIVILEGED)
            out = str(pair.home / "lab.yaml")
            init = ("init", "left", "right", "--probe", "--out", out, "--python")
            refused = udpbench(pair, *init, UNPRIVILEGED, control=control)
            assert (2, False) == (refused.returncode, (pair.home / "lab.yaml").exists())
            assert "CAP_NET_RAW" in refused.stdout
            done = udpbench(pair, *init, PYTHON, control=control)
            assert 0 == done.returncode, f"{done.stdout}\n{done.stderr}"
            assert 2 == len(re.findall(r"control0: .*carries SSH", done.stdout))
    lab = load_lab(str(pair.home / "lab.yaml"))
    assert ["eth3", "eth2"] == [host.interface for host in lab.hosts]


@pytest.mark.long
def test_the_experiment_to_start_from_runs_in_the_built_in_lab(tmp_path: Path) -> None:
    """Here with one short trial of each point; every packet has an entry."""
    quick = ("--set", "repetitions=1", "--set", "duration=200ms", "--no-report")
    for words in (("init", "--experiment", "mine"), ("run", "mine.yaml", *quick)):
        done = subprocess.run(
            (sys.executable, "-m", "udpbench", *words),
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ssh_hosts.ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        well = done.returncode == 0
        well = well or (
            words[0] == "run" and ended_well(done.returncode, run_of(done.stdout, tmp_path))
        )
        assert well, f"{done.stdout}\n{done.stderr}"
    (folder,) = (tmp_path / "results").iterdir()
    ledgers = [judge(record).ledger for record in read_run(folder).records]
    assert [0, 0] == [ledger.unaccounted for ledger in ledgers if ledger is not None]

"""The page on one's own hosts, executed against two hosts that are as it says."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ssh_hosts
from ssh_hosts import SSHD, Pair, pair_of_hosts
from test_deploy import BARE, tree

from udpbench.definition.load import load_lab

pytestmark = [
    pytest.mark.long,
    *ssh_hosts.needed(),
    pytest.mark.skipif(shutil.which("sudo") is None, reason="needs sudo: apt install sudo"),
]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "hosts.md"


def blocks(kind: str) -> list[str]:
    """Return the text of every block of a kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Yield two hosts that are set up as the page says, under its names."""
    with pair_of_hosts(tmp_path, cable=("eth3", "eth2")) as hosts:
        lines, known = [], []
        (sudoers,) = blocks("sh")[0].splitlines()
        for host in hosts.hosts:
            name = f"{host.name}.example"
            command = shlex.join(host.inside(SSHD, "-i", "-e", "-f", str(host.sshd_config)))
            lines.append(f"Host {name}\n  ProxyCommand {command}\n")
            known.append(f"{name} {host.public_key}\n")
            host.run("sh", "-ec", BARE)
            host.run("sh", "-ec", f"{sudoers}; chmod 440 /etc/sudoers.d/udpbench")
        (hosts.home / ".ssh" / "config").write_text("".join(lines))
        (hosts.home / ".ssh" / "known_hosts").write_text("".join(known))
        yield hosts


def test_the_page_on_own_hosts_works_as_it_stands(pair: Pair, tmp_path: Path) -> None:
    """Its lab loads and is the shipped one; its commands end well, in their order."""
    (lab_text,) = blocks("yaml")
    (tmp_path / "my-hosts.yaml").write_text(lab_text)
    own, shipped = load_lab(str(tmp_path / "my-hosts.yaml")), load_lab("two-hosts")
    assert [(host.name, host.interface, host.addresses) for host in shipped.hosts] == [
        (host.name, host.interface, host.addresses) for host in own.hosts
    ]
    before = [tree(host) for host in pair.hosts]
    lines = [line for block in blocks("sh")[1:] for line in block.splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines]
    assert ["plan", "run", "restore", "deploy", "deploy"] == [words[1] for words in commands]
    *commands, removal = commands
    for words in commands:
        execute(words, pair, tmp_path)
    (narrow,) = re.findall(r"^    (bench ALL=.*/launch)$", PAGE.read_text(), re.MULTILINE)
    for host in pair.hosts:
        host.run(
            "sh", "-ec", f"cd /etc/sudoers.d; mv udpbench /run/rule; echo '{narrow}' > udpbench"
        )
    execute([*commands[0], "--no-deploy"], pair, tmp_path)
    for host in pair.hosts:
        host.run("mv", "/run/rule", "/etc/sudoers.d/udpbench")
    execute(removal, pair, tmp_path)
    assert before == [tree(host) for host in pair.hosts]


def execute(words: list[str], pair: Pair, folder: Path) -> None:
    """Run a command of the page as its reader would."""
    cache = str(ssh_hosts.ROOT / ".nox" / "cache")
    done = subprocess.run(
        (sys.executable, "-m", *words),
        cwd=folder,
        env={**os.environ, "HOME": str(pair.home), "XDG_CACHE_HOME": cache},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert 0 == done.returncode, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"

"""The README's section on one's own hosts, executed against two hosts that are as it says."""

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

from udpbench.definition.load import load_lab

pytestmark = [
    *ssh_hosts.needed(),
    pytest.mark.skipif(shutil.which("sudo") is None, reason="needs sudo: apt install sudo"),
]

README = Path(__file__).resolve().parents[2] / "README.md"
INSTALLED = f"""
mount -t tmpfs tmpfs /srv
mkdir -p /srv/udpbench/bin
printf '#!/bin/sh\\nPYTHONPATH={ssh_hosts.ROOT} exec {sys.executable} "$@"\\n' > /srv/udpbench/bin/python
chmod 755 /srv/udpbench/bin/python
"""
"""In place of the virtual environment that the first line of the section makes."""


def section() -> str:
    """Return the section."""
    return README.read_text().partition("## On your own hosts\n")[2].partition("\n## ")[0]


def blocks(kind: str) -> list[str]:
    """Return the text of every block of a kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```", section(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Yield two hosts that are set up as the section says, under its names."""
    with pair_of_hosts(tmp_path, cable=("eth3", "eth2")) as hosts:
        lines, known = [], []
        (_, sudoers) = blocks("sh")[0].splitlines()
        for host in hosts.hosts:
            name = f"{host.name}.example"
            command = shlex.join(host.inside(SSHD, "-i", "-e", "-f", str(host.sshd_config)))
            lines.append(f"Host {name}\n  ProxyCommand {command}\n")
            known.append(f"{name} {host.public_key}\n")
            host.run("sh", "-ec", INSTALLED)
            host.run("sh", "-ec", f"{sudoers}; chmod 440 /etc/sudoers.d/udpbench")
        (hosts.home / ".ssh" / "config").write_text("".join(lines))
        (hosts.home / ".ssh" / "known_hosts").write_text("".join(known))
        yield hosts


def test_the_section_on_own_hosts_works_as_it_stands(pair: Pair, tmp_path: Path) -> None:
    """Its lab loads and is the shipped one; its commands end well, in their order."""
    (lab_text,) = blocks("yaml")
    (tmp_path / "my-hosts.yaml").write_text(lab_text)
    own, shipped = load_lab(str(tmp_path / "my-hosts.yaml")), load_lab("two-hosts")
    assert [(one.name, one.interface, one.addresses) for one in shipped.hosts] == [
        (one.name, one.interface, one.addresses) for one in own.hosts
    ]
    commands = [shlex.split(line, comments=True) for line in blocks("sh")[1].splitlines()]
    assert ["plan", "run", "restore"] == [words[1] for words in commands]
    for words in commands:
        done = subprocess.run(
            (sys.executable, "-m", *words),
            cwd=tmp_path,
            env={**os.environ, "HOME": str(pair.home)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert 0 == done.returncode, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"

"""Who may make a built-in lab, and what those are told who may not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from golden import Golden

from udpbench.control.connections import namespaces
from udpbench.control.connections.namespaces import (
    SWITCHES,
    available_means,
    forbidden,
    open_inside,
    owner_of,
)
from udpbench.errors import ConnectError, NotPermitted
from udpbench.model.lab import Connect

REFUSAL = (
    "a built-in lab needs network namespaces, which this user may not create "
    "({why}); run udpbench as root{remedy}"
)


def program(folder: Path, text: str, name: str = "unshare") -> None:
    """Write a program in place of another."""
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


@pytest.mark.parametrize("path", SWITCHES)
def test_a_switch_that_forbids_it_is_named_with_its_remedy(path: str) -> None:
    """The message names the sysctl as it is and the command that changes it."""
    value, remedy = SWITCHES[path]
    name = remedy.split()[-1].partition("=")[0]
    refusal = forbidden("unshare: failed", {path: value}.get)
    assert (
        REFUSAL.format(why=f"{name} is {value}", remedy=f", or once as root: {remedy}") == refusal
    )


def test_every_switch_that_forbids_it_is_named() -> None:
    """Whoever turns one knows that there is another."""
    refusal = forbidden(
        "unshare: failed", {path: value for path, (value, _) in SWITCHES.items()}.get
    )
    assert [] == [remedy for _, remedy in SWITCHES.values() if remedy not in refusal]


def test_without_a_switch_the_programs_own_words_are_the_reason() -> None:
    """A container's filter says nothing that could be read."""
    remedy = " (a container must be privileged)"
    expected = REFUSAL.format(why="unshare: no", remedy=remedy)
    assert expected == forbidden("unshare: no", lambda _: None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("exit 0", "root"), ('[ "$1" = --user ] || exit 1', "user")],
)
def test_the_way_is_found_out_by_trying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: str
) -> None:
    """Root's way where it works, else a user namespace."""
    program(tmp_path, text)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert expected == available_means()


def test_who_may_not_make_any_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """One error, of the kind for which a test is skipped; it exits with 3."""
    program(tmp_path, "echo 'unshare: not you' >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with golden.raises(NotPermitted) as raised:
        available_means()
    assert 3 == raised.value.exit_code


def test_a_missing_unshare_is_reported_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """It is another thing than a refusal."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with golden.raises(ConnectError):
        available_means()


@pytest.mark.parametrize("own", [("/proc/self/ns/net",), ("/nowhere", "/proc/self/ns/net")])
def test_a_container_without_a_network_of_its_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: tuple[str, ...]
) -> None:
    """Whatever an engine says: else the machine's own interfaces would be set."""
    program(tmp_path, f"echo {os.getpid()}", "docker")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(namespaces, "OWN_NETWORKS", own)
    with pytest.raises(ConnectError, match=r"web uses this machine's own network; write connect"):
        open_inside("left", Connect("container", name="web"), ("true",))


def test_the_engine_of_a_user_leads_to_namespaces_of_that_user_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Root's may lead to any; what is no namespace is nobody's."""
    with Path("/dev/null").open("rb") as file:
        assert owner_of(file.fileno()) is None
        namespaces._prove_its_own(file.fileno(), 0, "web", "left")
        with pytest.raises(ConnectError, match="web: its network is not of user 1234"):
            namespaces._prove_its_own(file.fileno(), 1234, "web", "left")
        monkeypatch.setattr(namespaces, "owner_of", lambda _: 1234)
        namespaces._prove_its_own(file.fileno(), 1234, "web", "left")


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone makes one of root's")
def test_a_namespace_of_roots_is_not_a_users() -> None:
    """As the kernel says."""
    command = ("unshare", "--net", "sh", "-c", "echo; exec cat")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with Path(f"/proc/{process.pid}/ns/net").open("rb") as namespace:
            assert 0 == owner_of(namespace.fileno())
            with pytest.raises(ConnectError, match="not of user 65534"):
                namespaces._prove_its_own(namespace.fileno(), 65534, "web", "left")
        process.communicate()

"""Who may make a built-in lab, and what those are told who may not."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden import Golden

from udpbench.control.connections.namespaces import SWITCHES, available_means, forbidden
from udpbench.errors import ConnectError, NotPermitted

REFUSAL = (
    "a built-in lab needs network namespaces, which this user may not create "
    "({why}); run udpbench as root{remedy}"
)


def program(folder: Path, text: str) -> None:
    """Write a program in place of unshare."""
    file = folder / "unshare"
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

"""``udpbench export`` as a service: its options, its unit, and that systemd takes it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from dataclasses import fields, replace
from inspect import signature
from pathlib import Path

import pytest
from golden import Golden

from export.test_exporter import LOOK
from udpbench.agent import install
from udpbench.commands.verbs.export import export, shipped
from udpbench.errors import InputError
from udpbench.export import service
from udpbench.export.run import Options, announced
from udpbench.export.service import check_service, options_of, unit_of, words_of

PAGE = Options("127.0.0.1:10717")
TLS = Options("192.0.2.7:1", tls_cert="/a/c.pem", tls_key="/a/k.pem", tls_client_ca="/a/ca.pem")
ALL = Options(
    "[::1]:10717", "/var/n/a.prom", "/var/lib/udpbench-flight", "2s", "1GiB", True, ("address",)
)
FLIGHT = Options(record="/var/lib/flight", cpu_time=True)
CASES = {
    "page": PAGE,
    "tls": TLS,
    "all": ALL,
    "file": Options(textfile="/var/n/a.prom"),
    "flight": FLIGHT,
}
ANALYZE = shutil.which("systemd-analyze")


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_options_are_typed_as_those_of_the_command(options: Options) -> None:
    """By the same names, with the same defaults."""
    assert options == options_of(words_of(options))
    given = signature(export).parameters
    for each in fields(Options):
        assert (given[each.name].default or None) == (each.default or None)


def test_what_a_service_cannot_do_is_said_before_anything_is_sent(golden: Golden) -> None:
    """Paths, which are the host's, and other words of the unit by their form; and who could read."""
    check_service(ALL)
    check_service(TLS)
    for options in (
        Options(),
        Options("127.0.0.1:1", textfile="a b.prom", record="/srv/flight"),
        Options(textfile="/var/%n.txt", tls_cert="c", tls_key="/a/../k", tls_client_ca="/ca"),
        Options("0.0.0.0:10717"),
        Options("[::1%x\nUser=root\nX=]:1", every="5 s", at_most="2\nGiB"),
        replace(TLS, listen="[fe80::1%eth0]:1"),
    ):
        with golden.raises(InputError):
            check_service(options)


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_a_unit_has_what_its_options_need_and_no_more(options: Options, golden: Golden) -> None:
    """All of it, as systemd reads it."""
    golden.check(unit_of(shipped("unit"), options, "/usr/bin/python3", "/var/lib/x/0123"))


@pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze: apt install systemd")
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_systemd_takes_the_unit(options: Options, tmp_path: Path) -> None:
    """Without a word."""
    file = tmp_path / install.UNIT
    text = unit_of(shipped("unit"), options, "/usr/bin/python3", str(tmp_path))
    text = text.replace(service.FOLDERS_OWNER, "root")
    file.write_text(text.replace(service.ROOTS_RIGHTS, install.LEAVING))
    command = (str(ANALYZE), "verify", "--man=no", str(file))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stdout + done.stderr)


def test_both_ends_know_the_unit_alike() -> None:
    """The program on the host imports nothing of this."""
    assert install.FOLDERS_OWNER == service.FOLDERS_OWNER
    assert install.ROOTS_RIGHTS == service.ROOTS_RIGHTS
    assert install.HEAD in unit_of(shipped("unit"), ALL, "python3", "/x")
    written = install.WRITTEN.findall(unit_of(shipped("unit"), ALL, "python3", "/x"))
    assert [("Textfile", ALL.textfile), ("Recording", ALL.record)] == written


def test_a_service_manager_that_waits_hears_of_the_first_look(tmp_path: Path) -> None:
    """Once it is shown, and only then; one that has gone is no error."""
    place = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(place)
        manager.setblocking(False)
        looks = announced(iter([LOOK, LOOK]), place)
        next(looks)
        with pytest.raises(BlockingIOError):
            manager.recv(64)
        next(looks)
        assert b"READY=1" == manager.recv(64)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0udpbench-test-{os.getpid()}")
        assert 2 == len([*announced([LOOK, LOOK], f"@udpbench-test-{os.getpid()}")])
        assert b"READY=1" == manager.recv(64)
    assert 2 == len([*announced([LOOK, LOOK], "/no/such")])


def test_it_starts_in_no_folder_of_others_and_ends_as_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the exit code of its error, in words."""
    monkeypatch.setattr(service.sys, "argv", ["-", "--every", "2h", "--listen", "127.0.0.1:1"])
    monkeypatch.setattr(service.os, "chdir", lambda path: print(path))
    with pytest.raises(SystemExit) as ended:
        service.main("1")
    assert 2 == ended.value.code
    printed = capsys.readouterr()
    assert "/\n" == printed.out
    assert "--every: 2h: out of range" in printed.err

"""``udpbench export``: what it refuses, where it writes, and what it says of failures."""

from __future__ import annotations

import gc
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from analysis.test_sums import DNS, FACTS, look, survey
from analysis.test_watch import RCVBUF, counted
from golden import Golden

from udpbench.commands.verbs import export as verb
from udpbench.errors import AgentError, AgentLost, InputError
from udpbench.export import exporter as module
from udpbench.export.exporter import Exporter, ServedPage, TextFile, listener
from udpbench.export.run import Options, check, run
from udpbench.export.surveys import Own, Surveyed
from udpbench.flight import LEAST_BYTES, Recorder
from udpbench.heap import TIDIED_LOOKS
from udpbench.model.limits import SECOND_NS
from udpbench.model.survey import MachineLook

OWN = Own("0.2.0", "abc")
LOOK = Surveyed(survey(look(0)), FACTS, SECOND_NS // 10)


def test_options_that_mean_nothing_are_refused(golden: Golden) -> None:
    """All at once, each with what would do."""
    check(Options(listen="127.0.0.1:1", label=["address"]))
    wrong = (
        Options(),
        Options(textfile="a.prom", every="5", at_most="much", label=["pid"]),
        Options(record="a", every="2min", at_most="1MiB", tls_key="key.pem"),
        Options(listen="127.0.0.1:1", cpu_time=True),
    )
    for options in wrong:
        with golden.raises(InputError):
            check(options)
    with golden.raises(InputError):
        verb.shipped("panels")
    assert "alert:" in verb.shipped("rules")


def test_a_page_is_on_loopback_or_behind_tls(golden: Golden) -> None:
    """And an address is one."""
    for text in (
        "127.0.0.1",
        "localhost:80",
        "0.0.0.0:10717",
        "[2001:db8::1]:10717",
        "127.0.0.1:70000",
    ):
        with golden.raises(InputError):
            listener(text, None)
    with listener("127.0.0.1:0", None) as opened:
        port = opened.getsockname()[1]
        with pytest.raises(InputError, match="choose another port"):
            listener(f"127.0.0.1:{port}", None)  # although SO_REUSEADDR is set on both
    with listener("[::1]:0", None) as opened:
        assert socket.AF_INET6 == opened.family


def test_what_it_needs_is_said_before_anything_starts(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of TLS, a folder to record into, and the package, which only a page and a file need."""
    with golden.raises(InputError):
        run(
            Options("127.0.0.1:1", tls_cert="/no/a", tls_key="/no/b", tls_client_ca="/no/c"),
            "1",
            print,
        )
    with golden.raises(InputError):
        run(Options(record="/proc/no"), "1", print)
    monkeypatch.setattr("udpbench.export.run.find_spec", lambda _: None)
    monkeypatch.setattr("udpbench.export.run.how_to_add", "add {}".format)
    with golden.raises(InputError):
        run(Options("127.0.0.1:1"), "1", print)


def test_a_file_has_the_name_that_node_exporter_reads(golden: Golden, tmp_path: Path) -> None:
    """In a folder that is there."""
    with golden.raises(InputError):
        TextFile(tmp_path / "udpbench.txt")
    with golden.raises(InputError):
        TextFile(Path("/no/such/udpbench.prom"))


def test_what_a_killed_exporter_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    """Each text replaces the file; the end removes it."""
    for name in (".a.prom.0123abcd", ".b.prom.0123abcd", "b.prom"):
        (tmp_path / name).write_text("x")
    file = TextFile(tmp_path / "a.prom")
    before = os.umask(0o077)
    file.replace(b"one 1\n")
    os.umask(before)
    assert 0o644 == (tmp_path / "a.prom").stat().st_mode & 0o777
    file.replace(b"two 2\n")
    assert [".b.prom.0123abcd", "a.prom", "b.prom"] == sorted(p.name for p in tmp_path.iterdir())
    assert "two 2\n" == (tmp_path / "a.prom").read_text()
    file.remove()
    assert not (tmp_path / "a.prom").exists()


def test_whoever_writes_the_folder_opens_no_file_of_anothers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that a group's member puts in the place of the new file leads the mode nowhere."""
    secret, moved = tmp_path / "secret", os.replace
    secret.touch(0o600)
    file = TextFile(tmp_path / "a.prom")

    def swapped(*names: str, **folders: int) -> None:
        moved(*names, **folders)
        (tmp_path / "a.prom").unlink()
        (tmp_path / "a.prom").symlink_to(secret)

    monkeypatch.setattr(os, "replace", swapped)
    file.replace(b"one 1\n")
    assert 0o600 == secret.stat().st_mode & 0o777


@pytest.mark.skipif(os.geteuid() != 0, reason="gives folders to another user")
def test_a_folder_of_roots_own_may_lie_in_one_of_another_user(tmp_path: Path) -> None:
    """As Debian's node_exporter has it; not by a link, nor one that others may write."""
    parent = tmp_path / "prometheus"
    folder, link = parent / "node-exporter", parent / "link"
    folder.mkdir(parents=True)
    link.symlink_to(folder)
    os.chown(parent, 23456, 23456)
    file = TextFile(folder / "a.prom")
    file.replace(b"one 1\n")
    assert "one 1\n" == (folder / "a.prom").read_text()
    file.remove()
    with pytest.raises(InputError, match="belongs to user 23456"):
        TextFile(link / "a.prom")
    for harm in (lambda: folder.chmod(0o777), lambda: os.chown(folder, 23456, 23456)):
        harm()
        with pytest.raises(InputError, match="belongs to user 23456"):
            TextFile(folder / "a.prom")


class Broken(TextFile):
    """A file on a disk that is full."""

    def __init__(self) -> None:
        pass

    def replace(self, _text: bytes) -> None:
        """Fail."""
        raise OSError(28, "No space left on device", "/x/a.prom")

    def remove(self) -> None:
        """Do nothing."""


def passing_by(second: int) -> MachineLook:
    """Return a look at 50 sockets of as many new processes, each of which lives for a second."""
    cookies = [50 * second + number for number in range(50)]
    sockets = [
        replace(DNS, cookie=each, port=7000 + each % 50, drops=2, processes=(f"dns {each}",))
        for each in cookies
    ]
    ended = tuple(each - 50 for each in cookies)
    return survey(look(second, *sockets, moved=counted(100 * second, *RCVBUF), ended=ended))


def test_what_comes_and_goes_leaves_nothing(tmp_path: Path) -> None:
    """Nothing of 5,000 sockets that have lost packets; nor a cycle, which is collected late."""
    recorder = Recorder(tmp_path / "flight", LEAST_BYTES, {})
    file, kept = TextFile(tmp_path / "a.prom"), []
    gc.collect()
    gc.disable()
    try:
        with Exporter(OWN, False, None, file, print, recorder=recorder) as exporter:
            for second in range(1, 101):
                exporter.show(Surveyed(passing_by(second), FACTS, 0))
                kept.append(len(gc.get_objects()))
    finally:
        gc.enable()
    assert max(kept[75:]) <= max(kept[25:75])


def test_what_is_free_goes_back_every_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after each, which would take more time."""
    times: list[int] = []
    monkeypatch.setattr(module, "tidy", lambda: times.append(1))
    with Exporter(OWN, False, None, None, print) as exporter:
        exporter.run([LOOK] * (2 * TIDIED_LOOKS + 1))
    assert 2 == len(times)


def test_a_failure_is_counted_and_said_once(golden: Golden) -> None:
    """As long as it lasts; the next look goes on."""
    lines: list[str] = []
    failed = replace(LOOK, survey=None, error=AgentError("no answer", "here"))
    with Exporter(OWN, False, None, Broken(), lines.append) as exporter:
        exporter.run([failed, failed, LOOK, LOOK])
        assert {"look": 2, "file": 2, "record": 0} == exporter._errors
    golden.check(lines)


def test_why_cpu_time_is_not_recorded_is_said_once(golden: Golden) -> None:
    """At the first look."""
    lines: list[str] = []
    assert LOOK.survey is not None
    hidden = replace(LOOK, survey=replace(LOOK.survey, cpu_time_why="addresses are hidden"))
    with Exporter(OWN, False, None, None, lines.append) as exporter:
        exporter.run([hidden, hidden])
    golden.check(lines)


def test_a_page_whose_process_ended_ends_the_exporter(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service manager then starts both again."""
    monkeypatch.setattr(module, "SERVER", "udpbench.no_such_module")
    page = ServedPage(listener("127.0.0.1:0", None), None, SECOND_NS)
    page._process.wait()
    with Exporter(OWN, False, page, None, print) as exporter, golden.raises(AgentLost):
        exporter.run([LOOK, LOOK])


def test_a_page_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some seconds."""
    monkeypatch.setattr(module, "END_S", 0.1)
    monkeypatch.setattr(
        module.subprocess,
        "Popen",
        lambda _, real=module.subprocess.Popen, **given: real(("sleep", "60"), **given),
    )
    page = ServedPage(listener("127.0.0.1:0", None), None, SECOND_NS)
    page.close()
    assert -9 == page._process.returncode

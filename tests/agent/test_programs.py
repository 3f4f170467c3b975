"""Programs of the host: found under its root, bounded in time, and their words as errors."""

from __future__ import annotations

import errno
import os
import sys
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import psutil
import pytest
from golden import Golden
from proc_files import OF_ROOT, stat

from udpbench.agent.host import programs
from udpbench.agent.host import reading as host_module
from udpbench.agent.host.system import Done, Host
from udpbench.agent.settings import queue_polling
from udpbench.agent.settings.addresses import arp_claim, arp_probe, nd_claim, nd_probe


def install(root: Path, name: str, script: str) -> Host:
    """Put a program into a root."""
    path = root / "usr/sbin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Host(root)


def test_a_program_is_run_where_the_root_has_it(tmp_path: Path) -> None:
    """Its input, output, errors and status pass; its language is English."""
    host = install(tmp_path, "tool", 'cat; echo "$1 $LC_ALL" >&2; exit 3')
    assert Done(3, "in", "arg C\n") == host.run("tool", "arg", stdin="in")


def test_a_program_outside_the_root_is_not_there(tmp_path: Path, golden: Golden) -> None:
    """Nothing of the real machine is run for a host that is a folder; ENOENT would mean restored."""
    with golden.raises(OSError) as refused:
        Host(tmp_path).run("sh")
    assert errno.ENOPKG == refused.value.errno


def test_a_program_that_hangs_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """The error says how long was waited."""
    monkeypatch.setattr(host_module, "PROGRAM_TIMEOUT_S", 0.2)
    with golden.raises(OSError):
        install(tmp_path, "tool", "exec sleep 20").run("tool")


def test_a_program_that_hangs_ends_without_its_agent_too(tmp_path: Path) -> None:
    """The kernel keeps the time; an agent that was killed ends nothing, and its guardian waits."""
    code = "import signal; print(signal.getitimer(signal.ITIMER_REAL)[0])"
    host = install(tmp_path, "tool", f"exec {sys.executable} -c '{code}'")
    with Path(os.devnull).open() as lent, host.lending(lent.fileno()):
        assert 0 < float(host.run("tool").out) <= host_module.PROGRAM_TIMEOUT_S + 1
    assert 0 == float(host.run("tool").out)


def test_only_while_it_is_lent_a_program_has_a_file(tmp_path: Path) -> None:
    """So that a lock on it lasts as long as what is under way, and no longer."""
    host = install(tmp_path, "tool", "readlink /proc/self/fd/$1; exit 0")
    file = os.open(tmp_path, os.O_RDONLY)
    try:
        with host.lending(file):
            assert f"{tmp_path}\n" == host.run("tool", str(file)).out
        assert "" == host.run("tool", str(file)).out
        with host.lending(None):
            assert "" == host.run("tool", str(file)).out
    finally:
        os.close(file)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("echo netlink error: No such device >&2; exit 1", errno.ENODEV),
        ("echo Cannot get it: Operation not supported; exit 76", errno.EOPNOTSUPP),
        ("echo odd >&2; exit 1", errno.EIO),
        ("exit 4", errno.EIO),
    ],
)
def test_a_refusal_is_the_error_that_its_words_stand_for(
    tmp_path: Path, script: str, code: int, golden: Golden
) -> None:
    """So that a device that is gone is told from a refusal."""
    with golden.raises(OSError) as refused:
        programs.output(install(tmp_path, "tool", script), "tool")
    assert code == refused.value.errno


def test_a_condition_that_does_not_come_true_is_named(tmp_path: Path, golden: Golden) -> None:
    """With its deadline."""
    host = Host(tmp_path)
    looks: list[int] = []
    host.wait_for("the third look", lambda: looks.append(1) or len(looks) == 3, 5.0)
    assert 3 == len(looks)
    with golden.raises(OSError):
        host.wait_for("rain", lambda: False, 0.02)


class Stopping(Host):
    """A root whose processes take signals, or not."""

    deaf = False

    def signal(self, pid: int, number: int) -> None:
        """Change the state as the kernel does."""
        if not self.deaf:
            state = {19: "T", 18: "S"}[number]
            self.path(f"/proc/{pid}/stat").write_text(stat(pid, "irqbalance", state=state))


def daemon(root: Path, pid: int, status: str = OF_ROOT) -> Stopping:
    """Write a process of that name."""
    (root / f"proc/{pid}").mkdir(parents=True)
    (root / f"proc/{pid}/stat").write_text(stat(pid, "irqbalance"))
    (root / f"proc/{pid}/status").write_text(status)
    return Stopping(root)


def test_irqbalance_is_paused_and_goes_on(tmp_path: Path) -> None:
    """All of root's processes of that name; each that ran runs again, and no other one."""
    for pid in (41, 42):
        host = daemon(tmp_path, pid)
    daemon(tmp_path, 43, "Uid:\t65534\t0\t0\t0\nNSpid:\t43\n")
    daemon(tmp_path, 44, "Uid:\t0\t0\t0\t0\nNSpid:\t44\t1\n")
    host.signal(42, 19)
    kind, name = queue_polling.Irqbalance(), queue_polling.IRQBALANCE
    before = kind.read(host, name)
    assert before == {"41/5": True, "42/5": False}
    kind.write(host, name, False)
    assert [True, True, False, False] == [host.is_stopped(pid) for pid in host.process_names()]
    assert psutil.pid_exists(os.getpid()), "psutil was left at another root"
    assert kind.same(False, kind.read(host, name))
    daemon(tmp_path, 45)
    assert not kind.same(before, kind.read(host, name))
    kind.write(host, name, before)
    assert {"41/5": True, "42/5": False, "45/5": True} == kind.read(host, name)
    assert kind.same(before, kind.read(host, name))
    assert not kind.same(True, kind.read(host, name))
    assert not kind.same(True, None)
    assert kind.same(False, None)
    assert ["kill", "-CONT", "41"] == kind.by_hand(name, before)


def test_an_irqbalance_that_goes_on_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """The signal was sent and it is not paused."""
    monkeypatch.setattr(queue_polling, "DEADLINE_S", 0.05)
    host = daemon(tmp_path, 41)
    host.deaf = True
    with golden.raises(OSError):
        queue_polling.Irqbalance().write(host, queue_polling.IRQBALANCE, False)


def test_no_irqbalance_is_gone(tmp_path: Path) -> None:
    """Nothing to pause, and nothing left to let go on."""
    (tmp_path / "proc").mkdir()
    host = Host(tmp_path)
    assert queue_polling.Irqbalance().read(host, queue_polling.IRQBALANCE) is None
    with pytest.raises(ProcessLookupError):
        queue_polling.Irqbalance().write(host, queue_polling.IRQBALANCE, True)


MAC = bytes.fromhex("020000000007")
ANSWER = bytes.fromhex("0001080006040002") + MAC + bytes([10, 0, 0, 7]) + bytes(10)


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (ANSWER, (IPv4Address("10.0.0.7"), "02:00:00:00:00:07")),
        (ANSWER + bytes(18), (IPv4Address("10.0.0.7"), "02:00:00:00:00:07")),
        (arp_probe(MAC, bytes([10, 0, 0, 7]))[1], None),
        (ANSWER[:20], None),
        (b"\0\6" + ANSWER[2:], None),
    ],
)
def test_what_an_arp_packet_claims(frame: bytes, expected: object) -> None:
    """Its sender's address, padded or not; a probe claims nothing, nor does another medium."""
    assert expected == arp_claim(frame)


SOLICITATION = bytes.fromhex(
    "6000000000183aff 00000000000000000000000000000000 ff0200000000000000000001ff000007"
    "87007d99 00000000 fd000000000000000000000000000007"
)
ADVERTISEMENT = bytes.fromhex(
    "6000000000203aff fd000000000000000000000000000007 ff020000000000000000000000000001"
    "8800ffff 20000000 fd000000000000000000000000000007 0201020000000007"
)


def test_a_neighbour_solicitation_goes_to_the_group_of_its_target() -> None:
    """As RFC 4862 has it: from ::, to ff02::1:ff and the last three bytes, with its checksum."""
    assert (bytes.fromhex("3333ff000007"), SOLICITATION) == nd_probe(
        MAC, IPv6Address("fd00::7").packed
    )


@pytest.mark.parametrize(
    ("packet", "expected"),
    [
        (ADVERTISEMENT, (IPv6Address("fd00::7"), "02:00:00:00:00:07")),
        (SOLICITATION, None),
        (ADVERTISEMENT[:63], None),
        (ADVERTISEMENT[:-8], None),
        (ADVERTISEMENT[:7] + b"\x40" + ADVERTISEMENT[8:], None),
    ],
    ids=["claims", "asks", "cut", "without a MAC", "through a router"],
)
def test_what_a_neighbour_advertisement_claims(packet: bytes, expected: object) -> None:
    """Its target, by the MAC in its option; nothing where it may have come from elsewhere."""
    assert expected == nd_claim(packet)


def test_of_what_a_program_prints_so_much_is_read(tmp_path: Path) -> None:
    """Root of a container decides how many rules it lists; errors count, too."""
    for script in ("exec yes", "exec yes >&2"):
        with pytest.raises(OSError, match="tool lists more than the 16 MiB that are r"):
            install(tmp_path, "tool", script).run("tool")


def test_a_program_has_so_much_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program nft takes 8 kB for each rule before it prints the first, and gives up in either way."""
    limits = install(tmp_path, "tool", "read word; ulimit -d; ulimit -c").run("tool", stdin="x\n")
    assert f"{host_module.PROGRAM_BYTES // 1024}\n0\n" == limits.out
    for script in ("echo 'utils.c:38: Memory allocation failure' >&2; exit 2", "kill -ABRT $$"):
        with pytest.raises(OSError, match="tool needs more memory than its 256 MiB"):
            install(tmp_path, "tool", script).run("tool")
    monkeypatch.setattr(host_module.resource, "prlimit", refused)
    assert Done(0, "", "") == install(tmp_path, "tool", "exit 0").run("tool")


def refused(*_: object) -> None:
    """Refuse, as for a program with rights of its own."""
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def test_a_program_need_not_read_what_it_is_given(tmp_path: Path) -> None:
    """It may have ended before; and what it is given may be more than a pipe holds."""
    text = "x" * 2**20
    assert 0 == install(tmp_path, "tool", "exec <&-; exit 0").run("tool", stdin=text).status
    assert text == install(tmp_path, "tool", "exec cat").run("tool", stdin=text).out


def test_a_program_that_closes_its_pipes_and_hangs_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing more can come from it."""
    monkeypatch.setattr(host_module, "PROGRAM_TIMEOUT_S", 0.2)
    with pytest.raises(OSError, match=r"timed out after 0\.2 s: tool still running"):
        install(tmp_path, "tool", "exec sleep 20 <&- >&- 2>&-").run("tool")


def test_more_rules_than_are_read_are_called_so(tmp_path: Path) -> None:
    """Other errors keep their words."""
    for script, words in (("exec yes", "more rules than are read"), ("echo no >&2; exit 1", "no")):
        with pytest.raises(OSError, match=words):
            programs.ruleset(install(tmp_path, "nft", script))

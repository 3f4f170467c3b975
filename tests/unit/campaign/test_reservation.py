"""A reservation: real commands that lend a lab, refuse it, take it back, and die with their run."""

from __future__ import annotations

import os
import pwd
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from golden import Golden
from waiting import wait_until

from udpbench.__main__ import run_command_line
from udpbench.campaign.reservation import reserved
from udpbench.control import agents
from udpbench.control.wait import Clock, Interrupt
from udpbench.definition.load import lab_of, load_lab
from udpbench.errors import DeadlineExceeded, InputError, Interrupted, NotReserved
from udpbench.model.lab import Lab, Reserve
from udpbench.model.limits import SECOND_NS
from udpbench.model.result import Progress

HOLD = "echo $$ > pid; echo ours; cat; echo given back > end"


def lab(script: str, within_ns: int | None = None) -> Lab:
    """Return a lab that a shell's script lends."""
    command = ("sh", "-c", script)
    return replace(load_lab("local"), name="rack1", reserve=Reserve(command, within_ns))


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the test's own folder the working folder."""
    monkeypatch.chdir(tmp_path)


def silent(_: Progress) -> None:
    """Show nothing."""


def running(pid: int) -> bool:
    """Return whether a process lives."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_lab_is_ours_from_the_first_line_to_the_end_of_the_block(golden: Golden) -> None:
    """The end of the run ends the command."""
    events: list[Progress] = []
    with reserved(lab(HOLD), events.append, Interrupt(), Clock()):
        pid = int(Path("pid").read_text())
        assert running(pid)
    assert not running(pid)
    golden.check([progress.text for progress in events])


@pytest.mark.skipif(os.geteuid() != 0, reason="sudo makes a controller root's")
def test_under_sudo_its_the_callers_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not root's, whatever a lab file of others says, and it cannot become root again."""
    daemon = pwd.getpwnam("daemon")
    monkeypatch.setenv("SUDO_UID", f"{daemon.pw_uid}")
    monkeypatch.setenv("SUDO_COMMAND", "/usr/bin/udpbench")
    look = (
        "grep -E '^(Uid|Groups|Cap...|NoNewPrivs)' /proc/self/status; env; echo sudo: $(sudo -n id)"
    )
    script = f"({look}) 2>&1 | tr '\\n' '|'; echo; cat"
    shown: list[Progress] = []
    with reserved(lab(script), shown.append, Interrupt(), Clock()):
        pass
    rows = shown[-1].text.partition("reserved: ")[2].split("|")
    known = dict(re.split(r"[:=]\s*", row, maxsplit=1) for row in rows if re.match(r"\w+[:=]", row))
    assert f"{daemon.pw_uid} " * 4 == re.sub(r"\s+", " ", known["Uid"] + " ")
    assert {"0" * 16} == {text for name, text in known.items() if name.startswith("Cap")}
    assert ("", "1", "") == (known["Groups"].strip(), known["NoNewPrivs"], known["sudo"])
    assert (daemon.pw_name, daemon.pw_dir) == (known["USER"], known["HOME"])
    assert "SUDO_COMMAND" not in known


@pytest.mark.skipif(os.geteuid() != 0, reason="sudo makes a controller root's")
def test_a_caller_who_is_not_known_reserves_nothing(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Its command is not started as anybody else."""
    monkeypatch.setenv("SUDO_UID", "54321")
    with golden.raises(NotReserved), reserved(lab("echo ours"), silent, Interrupt(), Clock()):
        pytest.fail("started")


def test_a_lab_without_one_needs_none() -> None:
    """Nothing is shown, and no handler changed."""
    before = signal.getsignal(signal.SIGTERM)
    with reserved(load_lab("local"), silent, Interrupt(), Clock()):
        assert before == signal.getsignal(signal.SIGTERM)


@pytest.mark.parametrize(
    "script", ["echo rack1 is booked until noon >&2; exit 7", "exit 0", "kill -9 $$"]
)
def test_an_end_before_the_first_line_is_a_refusal(script: str, golden: Golden) -> None:
    """With the exit code, and the last that the command complained of; 0 is no exception."""
    with golden.raises(NotReserved), reserved(lab(script), silent, Interrupt(), Clock()):
        pytest.fail("nobody lent it")


def test_a_command_that_cannot_be_started_is_a_refusal(golden: Golden) -> None:
    """It is named."""
    missing = replace(lab(""), reserve=Reserve(("/nowhere/book",)))
    with golden.raises(NotReserved), reserved(missing, silent, Interrupt(), Clock()):
        pytest.fail("nobody lent it")


def test_a_wait_has_an_end(golden: Golden) -> None:
    """``within``; the command is ended, however stubborn its shell."""

    class Fast(Clock):
        at_ns = 0

        def now_ns(self) -> int:
            self.at_ns += SECOND_NS if Path("pid").exists() else 0
            return self.at_ns

    waits = lab("echo $$ > pid; sleep 600", 30 * SECOND_NS)
    with golden.raises(DeadlineExceeded), reserved(waits, silent, Interrupt(), Fast()):
        pytest.fail("nobody lent it")
    assert not running(int(Path("pid").read_text()))


def test_a_wait_can_be_interrupted() -> None:
    """The command ends with it."""
    interrupt = Interrupt()

    def stop(_: Progress) -> None:
        wait_until("it runs", lambda: Path("pid").exists() and Path("pid").read_text() != "")
        interrupt.requested = True

    with (
        pytest.raises(Interrupted),
        reserved(lab("echo $$ > pid; sleep 600"), stop, interrupt, Clock()),
    ):
        pytest.fail("nobody lent it")
    assert not running(int(Path("pid").read_text()))


def test_an_end_during_the_run_interrupts_it(golden: Golden) -> None:
    """The hosts are restored, for they are another's now."""
    interrupt = Interrupt()
    with (
        golden.raises(NotReserved),
        reserved(lab("echo ours; read back; exit 4"), silent, interrupt, Clock()),
    ):
        (command,) = children()
        os.kill(command, signal.SIGTERM)
        wait_until("the run is interrupted", lambda: interrupt.requested)


def children() -> list[int]:
    """Return the processes that this one has started and that go on."""
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [pid for pid in map(int, text.split()) if running(pid)]


def test_a_run_that_is_killed_releases_the_lab(tmp_path: Path) -> None:
    """The kernel ends the command, and its stdin ends."""
    code = (
        "import sys, time\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from test_reservation import HOLD, lab, silent\n"
        "from udpbench.campaign.reservation import reserved\n"
        "from udpbench.control.wait import Clock, Interrupt\n"
        "with reserved(lab(HOLD), silent, Interrupt(), Clock()):\n"
        "    open('held', 'w').close()\n"
        "    time.sleep(600)\n"
    )
    fixtures = Path(__file__).parents[2] / "fixtures"
    run = subprocess.Popen(
        [sys.executable, "-c", code, str(Path(__file__).parent)],
        env={**os.environ, "PYTHONPATH": str(fixtures)},
    )
    try:
        wait_until("it is held", Path("held").exists)
        pid = int(Path("pid").read_text())
        assert running(pid)
    finally:
        run.kill()
        run.wait()
    wait_until("the command has ended", lambda: not running(pid))


LAB = """\
sender: [{connect: namespace, interface: send0, addresses: [192.168.254.30/24]}]
receiver: [{connect: namespace, interface: receive0, addresses: [192.168.254.1/24]}]
reserve: {command: [./book, rack1], within: 1h}
"""


def test_a_run_asks_no_host_before_its_lab_is_lent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """It ends with 3, and can be resumed."""
    Path("rack1.yaml").write_text(LAB.replace("./book, rack1", "sh, -c, exit 7"))
    asked = lambda *_: pytest.fail("a host is asked")  # noqa: E731
    monkeypatch.setattr(agents.LocalAgents, "open_machine", asked)
    words = ("run", "smoke", "--lab", "rack1.yaml", "--out", "run", "--quiet")
    monkeypatch.setattr(sys, "argv", ["udpbench", *words])
    assert 3 == run_command_line()
    golden.check(capsys.readouterr().err.splitlines())
    assert (Path("run") / "run.jsonl").exists()


def test_a_lab_file_says_how_it_is_lent(golden: Golden) -> None:
    """And what is wrong with it, with the line."""
    written = lab_of(LAB, Path("rack1.yaml")).reserve
    assert Reserve(("./book", "rack1"), 3600 * SECOND_NS) == written
    for wrong in ("{within: 1h}", "{command: ./book}", "{command: [./book], within: 0s}"):
        text = LAB.replace("{command: [./book, rack1], within: 1h}", wrong)
        with golden.raises(InputError):
            lab_of(text, Path("rack1.yaml"))

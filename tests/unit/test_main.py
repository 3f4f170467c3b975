"""The command line: every exit code, every failure in words, and no traceback ever."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from analysis.build import expectation, experiment, failed, paced, record, series, trial
from control.fake import World, lab
from golden import Golden
from report.stored import stored

from udpbench.__main__ import main
from udpbench.analysis.doctor import Readiness
from udpbench.commands.selftest import THIS_MACHINE
from udpbench.commands.verbs.output import read_stored, try_report
from udpbench.commands.verbs.run import _read_back, finish_run
from udpbench.control import agents
from udpbench.control.deployment import deploy as deployment
from udpbench.control.deployment import deployer
from udpbench.control.run import Outcome
from udpbench.definition.load import load_lab
from udpbench.errors import ConnectError, RecordError, RestoreError, SettingRefused, StoreError
from udpbench.folder import Folder
from udpbench.model.experiment import Experiment, PointPair
from udpbench.model.record import (
    Finding,
    RecordedError,
    SelfTest,
    StageProof,
    TrialRecord,
)
from udpbench.records.reader import read_run
from udpbench.records.run import Ending

COMPARING = experiment(
    points=[trial(""), trial("b")], compare=(PointPair("", "b", "delivered_pps", 0.03),)
)
"""Its second point is not run yet."""
NO = experiment(expectation("received_packets", ">", "5000"))
SHORT = record(900, of=paced())
LOST_HOST = RecordedError("RestoreError", "sysctl stays", "right")


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Give pytest its own handler back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Return the exit code of a command line."""
    monkeypatch.setattr(sys, "argv", ["udpbench", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def ending(status: str, **changes: object) -> Ending:
    """Return how a run ended."""
    return Ending("2026-11-21T08:00:09+00:00", status, **changes)  # type: ignore[arg-type]


UNREACHABLE = """\
sender: [{name: left, connect: {ssh: "127.0.0.1:1"}, interface: eth3, addresses: existing}]
receiver: [{name: right, connect: {ssh: "127.0.0.1:1"}, interface: eth2, addresses: existing}]
"""


def test_doctor_ends_with_3_where_a_host_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every such host is named, and nothing is said of the others."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "far.yaml").write_text(UNREACHABLE)
    assert 3 == run(monkeypatch, "doctor", "--lab", str(tmp_path / "far.yaml"))
    out, err = capsys.readouterr()
    assert "" == out
    assert ["left", "right"] == [line.split(":")[0] for line in err.splitlines()]


@pytest.mark.parametrize(
    ("ready", "code"),
    [("ready", 0), ("unknown", 1), ("spoils", 1)],
)
def test_doctor_ends_with_0_only_if_all_is_ready(
    monkeypatch: pytest.MonkeyPatch, ready: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is unknown is not ready."""
    readiness = Readiness("xdp", "left", ready, "warning", "an XDP program")  # type: ignore[arg-type]
    monkeypatch.setattr("udpbench.control.doctor.examine", lambda *_: ())
    monkeypatch.setattr("udpbench.analysis.doctor.assess", lambda *_: (readiness,))
    assert code == run(monkeypatch, "doctor", "--json")
    assert (code == 0) == json.loads(capsys.readouterr().out)["ready"]


@pytest.mark.parametrize(("counted", "code"), [(100, 0), (50, 1), (None, 1)])
def test_selftest_ends_with_0_where_the_ledger_may_be_believed(
    monkeypatch: pytest.MonkeyPatch,
    counted: int | None,
    code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And keeps a complete proof in either case."""
    proof = StageProof("udp_no_port", 4, 100, counted, 0)
    proven = SelfTest("6.18.0", "", "", "", (proof,))
    kept: list[SelfTest] = []
    monkeypatch.setattr("udpbench.commands.selftest.try_ledger", lambda *_: proven)
    monkeypatch.setattr("udpbench.proven_kernels.keep", kept.append)
    assert code == run(monkeypatch, "selftest", "--json")
    assert (code == 0) == json.loads(capsys.readouterr().out)["believable"]
    assert code == run(monkeypatch, "selftest")
    assert "reliable on this kernel" in capsys.readouterr().out
    assert [proven] * 2 == kept


def test_selftest_cannot_tell_where_a_trial_fails_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It ends with 5, names what is missing and why, and an earlier result stays as it was."""
    # The receiver's counter has moved by 5 steps when it is read last.
    world = World(drop_counters={"snmp.Udp.NoPorts": 20})
    losing, tries = "send_losses sender rx_netfilter", []

    def fail() -> None:
        tries.append(losing)
        world.hooks[losing] = fail
        raise SettingRefused("napi_cpus: No such file or directory", "receiver")

    world.hooks[losing] = fail
    labs = [(THIS_MACHINE, lab(), world.surroundings())]
    monkeypatch.setattr("udpbench.commands.selftest.private_labs", lambda *_: iter(labs))
    monkeypatch.setattr("udpbench.commands.selftest.NAMES", ("drops/one-by-one",))
    monkeypatch.setattr("udpbench.commands.selftest.AT_NODES", {})
    monkeypatch.setattr("udpbench.proven_kernels.place", lambda: tmp_path)
    points = "udpbench.commands.selftest.POINTS"
    monkeypatch.setattr(points, {"one-by-one": ("udp_no_port",)})
    assert 0 == run(monkeypatch, "selftest"), capsys.readouterr().out
    (earlier,) = tmp_path.iterdir()
    before = earlier.read_bytes()
    monkeypatch.setattr(points, {"one-by-one": ("udp_no_port", "rx_netfilter")})
    capsys.readouterr()
    assert (5, 2) == (run(monkeypatch, "selftest", "--json"), len(tries))
    out, err = capsys.readouterr()
    (missing,) = json.loads(out)["missing"]
    assert ("rx_netfilter", 4) == (missing["stage"], missing["family"])
    assert "napi_cpus: No such file or directory" in missing["why"]
    assert "not kept for later runs" in err
    assert 5 == run(monkeypatch, "selftest")
    assert "cannot tell whether the ledger is reliable" in " ".join(capsys.readouterr().out.split())
    assert [(earlier, before)] == [(path, path.read_bytes()) for path in tmp_path.iterdir()]


def test_each_host_is_judged_alone_and_the_worst_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A complete result is kept whatever the others are; of a host without one there is the error."""
    good = SelfTest("6.18.0", "", "", "", (StageProof("udp_no_port", 4, 100, 100, 0),))
    lacking = replace(good, proofs=(*good.proofs, StageProof("rx_tc", 4, None, failed=True)))
    wrong = replace(good, proofs=(StageProof("udp_no_port", 4, 100, 50, 50),))
    refused = ConnectError("refused", "third")
    kept: list[SelfTest] = []
    monkeypatch.setattr("udpbench.proven_kernels.keep", kept.append)
    for answers, code, complete in (
        ((lacking, good), 5, [good]),
        ((lacking, wrong), 1, [wrong]),
        ((lacking, good, refused), 3, [good]),
    ):
        capsys.readouterr()
        tried = list(zip(("first", "second", "third"), answers, strict=False))
        monkeypatch.setattr(
            "udpbench.commands.selftest.try_hosts", lambda *_, tried=tried: iter(tried)
        )
        assert code == run(monkeypatch, "selftest", "--json")
        shown = json.loads(capsys.readouterr().out)
        assert [name for name, _ in tried] == list(shown)
        assert ["rx_tc"] == [each["stage"] for each in shown["first"]["missing"]]
        assert complete == kept
        assert code == run(monkeypatch, "selftest")
        assert complete * 2 == kept
        kept.clear()
    assert ["third: refused"] == [
        line for line in capsys.readouterr().err.splitlines() if "third" in line
    ]


def test_a_host_that_cannot_be_tested_costs_no_other_hosts_proof(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was proven before it is shown and kept."""
    proven = SelfTest("6.18.0", "", "", "", (StageProof("udp_no_port", 4, 100, 100, 0),))
    answers: list[SelfTest | Exception] = [proven, ConnectError("refused", "right")]

    def tried(*_: object) -> SelfTest:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    kept: list[SelfTest] = []
    hosts = [(host, None, None) for host in ("left", "right")]
    monkeypatch.setattr("udpbench.commands.selftest.private_labs", lambda *_: iter(hosts))
    monkeypatch.setattr("udpbench.commands.selftest.try_ledger", tried)
    monkeypatch.setattr("udpbench.proven_kernels.keep", kept.append)
    assert run(monkeypatch, "selftest") != 0
    assert (True, [proven]) == ("reliable on this kernel" in capsys.readouterr().out, kept)


def test_facts_are_written_where_they_are_to_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the user is told to look through them."""
    paths: list[Path] = []

    def write(_lab: object, out: Path, *_: object) -> Path:
        paths.append(out)
        return out

    monkeypatch.setattr("udpbench.commands.recorded_hosts.write_recorded", write)
    monkeypatch.setattr(sys, "argv", ["udpbench", "facts", "--out", str(tmp_path / "x")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (0, [tmp_path / "x"]) == (ended.value.code or 0, paths)
    assert "read it before you send it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("code", "records", "definition", "end"),
    [
        (0, [record()], experiment(), ending("complete")),
        (0, [failed("skipped", "no such CPU")], experiment(), ending("complete")),
        (1, [record()], NO, ending("complete")),
        (3, [failed()], NO, ending("complete")),
        (3, [record()], NO, ending("failed", error=replace(LOST_HOST, kind="AgentLost"))),
        (4, [record()], NO, ending("failed", error=LOST_HOST)),
        (4, [record()], NO, ending("interrupted", restore_errors=(LOST_HOST,))),
        (5, [SHORT], experiment(), ending("complete")),
        (5, [record()], COMPARING, ending("complete")),
        (5, [failed("unavailable", "no such CPU")], experiment(), ending("complete")),
        (
            2,
            [],
            experiment(),
            ending("failed", error=RecordedError("InputError", "")),
        ),
        (
            5,
            [],
            experiment(),
            ending("failed", error=RecordedError("HostLacks", "")),
        ),
        (5, [record()], experiment(), None),
        (130, [record()], NO, ending("interrupted")),
    ],
)
def test_the_exit_code_of_a_stored_run(
    code: int,
    records: list[TrialRecord],
    definition: Experiment,
    end: Ending | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """0 yes, 1 no, 3 failed, 4 not restored, 5 cannot tell, 130 interrupted; JSON says the same."""
    stored(tmp_path / "run", records, definition, ending=end)
    assert code == run(monkeypatch, "show", str(tmp_path / "run"))
    assert code == run(monkeypatch, "show", "--json", str(tmp_path / "run"))
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "records"),
    [
        (0, [record(), record()]),
        (0, [record(), failed("skipped", "no such CPU")]),
        (5, [record(), failed("unavailable", "no such CPU")]),
        (5, [SHORT, record()]),
        (3, [SHORT, failed()]),
    ],
)
def test_the_exit_code_of_a_campaign_is_that_of_its_worst_trial(
    code: int, records: list[TrialRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of its experiments that is of."""
    named = ("first", "second")
    definitions = [
        replace(experiment(points=[replace(trial(), experiment=name)]), name=name) for name in named
    ]
    renamed = [
        replace(record, trial=replace(record.trial, experiment=name))
        for record, name in zip(records, named, strict=True)
    ]
    stored(tmp_path / "run", renamed, *definitions)
    assert code == run(monkeypatch, "show", str(tmp_path / "run"))


@pytest.mark.parametrize(("words", "shown"), [([], False), (["--all"], True)])
def test_show_all_shows_every_stage(
    words: list[str],
    shown: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Left out, a stage that lost nothing is not there."""
    stored(tmp_path / "run", [record()])
    assert 0 == run(monkeypatch, "show", *words, str(tmp_path / "run"))
    assert shown == ("tx_qdisc" in capsys.readouterr().out)


@pytest.mark.parametrize(
    ("end", "line"),
    [
        (None, "the run did not end: it was killed, or is still running"),
        (ending("interrupted"), "the run was interrupted"),
        (ending("failed", error=LOST_HOST), "the run failed: right: sysctl stays"),
        (
            ending("complete", restore_errors=(LOST_HOST,)),
            "not restored: right: sysctl stays",
        ),
    ],
)
def test_show_says_how_a_run_ended(
    end: Ending | None,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whoever reads half a run knows that it is half."""
    stored(tmp_path / "run", [record()], ending=end)
    run(monkeypatch, "show", str(tmp_path / "run"))
    assert line == capsys.readouterr().out.splitlines()[0]


def test_a_folder_of_runs_is_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As that of ``serve --out``: a run in it is named."""
    for name in ("0001", "0002"):
        stored(tmp_path / "sv" / name, [record()])
    assert 2 <= run(monkeypatch, "show", str(tmp_path / "sv"))
    text = f"it holds runs: name one, such as {tmp_path / 'sv' / '0002'}"
    assert text in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "nowhere"], "nowhere/run.jsonl: no such file; is this a run folder?"),
        (["report", "nowhere"], "nowhere/run.jsonl: no such file; is this a run folder?"),
        (
            ["show"],
            "results: contains no run; name a run folder, or run an experiment first",
        ),
        (["dance"], "udpbench: No such command 'dance'; see udpbench --help"),
        (["show", "--loud"], "udpbench: No such option: --loud; see udpbench show --help"),
        (["run", "smoke", "--lease", "soon"], "--lease: soon: not a quantity"),
        (["run", "smoke", "--lease", "1ms"], "--lease: 1ms: out of range; expected: 1s to 1h"),
        (["tune"], "X: missing; expected: one; name an experiment, or resume a tune with --resume"),
        (["tune", "smoke", "--within", "soon"], "--within: soon: not a quantity"),
        (["tune", "smoke", "--within", "1s"], "--within: 1s: out of range; expected: 10s to a day"),
        (["tune", "smoke", "--only", "app"], "--only: app: no such scope"),
        (["run", "smoke", "--seed", "x"], "udpbench: Invalid value for '--seed'"),
        (["restore", "--lab", "atlantis"], "atlantis: neither a file nor a shipped lab"),
        (["watch", "--cpu-time", "3"], "--cpu-time: 3: the unit is missing"),
        (["watch", "--cpu-time", "0s"], "--cpu-time: 0s: out of range; expected: above 0, at most"),
        (
            ["watch", "--cpu-time", "3", "--for", "3s", "--pid", "1", "--unit", "x"],
            (
                "--pid, --unit: both are given; omit one\n"
                "--for, --cpu-time: both say how long to watch; omit --for\n"
                "--cpu-time: 3: the unit is missing"
            ),
        ),
    ],
)
def test_bad_input_is_reported_in_a_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit 2, and what is wrong with which word."""
    monkeypatch.chdir(tmp_path)
    assert 2 == run(monkeypatch, *words)
    assert capsys.readouterr().err.startswith(message)


def test_everything_wrong_is_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bad file and a bad lab are two lines, with file, line and key."""
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("question: Why?\nsend: {batch: 4096}\n")
    assert 2 == run(monkeypatch, "run", "mine.yaml", "--lab", "atlantis")
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("mine.yaml:2: send.batch: 4096: ")
    assert second.startswith("atlantis: ")


def test_the_version_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both ends of a lab need the same; a bug report needs the commit, too."""
    assert 0 == run(monkeypatch, "--version")
    assert re.match(r"udpbench \d+\.\d+\.\d+( \([0-9a-f]{7,}\))?\n\Z", capsys.readouterr().out)


def test_a_run_named_twice_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its trials would count twice."""
    stored(tmp_path / "run")
    both = (str(tmp_path / "run"), str(tmp_path / "x" / ".." / "run"))
    (tmp_path / "x").mkdir()
    words = ("--format", "csv", "--out", str(tmp_path / "out"))
    assert 0 == run(monkeypatch, "report", *both, *words)
    capsys.readouterr()
    assert 2 == len((tmp_path / "out" / "trials.csv").read_text().splitlines())


def test_a_bug_is_one_line_and_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What nobody expected exits with 3; its traceback lies where the line says."""

    def fail(*_: object) -> None:
        raise KeyError("nobody expected this")

    stored(tmp_path / "run")
    monkeypatch.setattr("udpbench.judged_run.chapters_of", fail)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert 3 == run(monkeypatch, "show", str(tmp_path / "run"))
    output = capsys.readouterr().err
    match = re.search(r"^udpbench: this is a bug: .*; traceback: (.*)\n\Z", output)
    assert match is not None, output
    assert "Traceback" in Path(match[1]).read_text()


def test_what_the_system_refuses_is_reported_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that can't be written exits with 3 and is named."""
    stored(tmp_path / "run")
    (tmp_path / "run" / "trials.csv").mkdir()
    assert 3 == run(monkeypatch, "report", str(tmp_path / "run"), "--format", "csv")
    where = tmp_path / "run" / "trials.csv"
    message = f"udpbench: {where}: Is a directory; it is a folder: choose another path\n"
    assert message == capsys.readouterr().err


def test_a_report_is_not_left_where_others_write(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    golden: Golden,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Unless the folder is named: they could read what is private, or have chosen what is in it."""
    from store.runs import run_of

    from udpbench import write_runs

    private = run_of(tmp_path / "run", 1000)
    write_runs([private.folder], tmp_path / "store", campaign="c", pair="p")
    for name in ("run", "store"):
        (tmp_path / name).chmod(0o777)
        assert 2 == run(monkeypatch, "report", str(tmp_path / name), "--format", "csv")
        golden.check(capsys.readouterr().err.splitlines())
    words = ("report", str(tmp_path / "run"), "--format", "csv", "--out", str(tmp_path / "run"))
    assert 0 == run(monkeypatch, *words)


def test_a_report_into_the_place_of_a_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It exits with 2, names the file and says what to do."""
    stored(tmp_path / "run")
    (tmp_path / "file").touch()
    words = ("report", str(tmp_path / "run"), "--out", str(tmp_path / "file"))
    assert 2 == run(monkeypatch, *words)
    reason = "cannot create the folder: Not a directory; name another with --out"
    assert f"--out: {tmp_path / 'file'}: {reason}\n" == capsys.readouterr().err


def test_ctrl_c_that_nobody_could_take_comes_again() -> None:
    """Where Python must ignore it, as in a finalizer, it is sent anew and leaves no traceback."""
    code = (
        "import signal, threading\n"
        "from udpbench.__main__ import CtrlC\n"
        "ended = CtrlC()\n"
        "class Late:\n"
        "    def __del__(self): signal.raise_signal(signal.SIGINT)\n"
        "late = Late()\n"
        "try:\n"
        "    del late\n"
        "    threading.Event().wait(10)\n"
        "except KeyboardInterrupt:\n"
        "    print('ended', ended.pressed)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ("ended True\n", "") == (done.stdout, done.stderr)


def test_ctrl_c_within_code_that_is_made_of_text_ends_with_130(tmp_path: Path) -> None:
    """As dataclasses are while modules are loaded: not by the signal, which CPython would choose."""
    (tmp_path / "late.py").write_text(
        "import udpbench.__main__ as program\n"
        "text = 'import signal; signal.raise_signal(signal.SIGINT)'\n"
        "program.run_command_line = lambda: exec(text)\n"
        "program.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "late"], cwd=tmp_path, capture_output=True, text=True
    )
    assert ("", "", 130) == (done.stdout, done.stderr, done.returncode)


def test_what_else_python_must_ignore_is_still_shown() -> None:
    """Only Ctrl-C is ours."""
    code = (
        "from udpbench.__main__ import CtrlC\n"
        "CtrlC()\n"
        "class Late:\n"
        "    def __del__(self): raise ValueError('lost')\n"
        "Late()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ValueError: lost" in done.stderr


def test_show_json_can_be_read_by_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing but JSON comes on stdout."""
    stored(tmp_path / "run")
    run(monkeypatch, "show", "--json", str(tmp_path / "run"))
    assert 1 == json.loads(capsys.readouterr().out)["schema"]


# --- as a process --------------------------------------------------------------------------------


def process(*words: str, **options: object) -> subprocess.Popen[str]:
    """Return udpbench, started."""
    return subprocess.Popen(
        [sys.executable, "-m", "udpbench", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )


def test_help_imports_nothing_heavy() -> None:
    """``udpbench --help`` answers at once: no library that takes its time is touched."""
    code = (
        "import sys; sys.argv = ['udpbench', '--help']\n"
        "from udpbench.__main__ import main\n"
        "try: main()\n"
        "finally: print(sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = ("numpy", "pandas", "matplotlib", "pydantic", "scipy", "paramiko", "yaml", "rich")
    heavy += ("importlib.metadata", "secrets")
    assert [] == [name for name in heavy if f"'{name}'" in done.stderr]
    assert "Usage" in done.stdout


@pytest.mark.parametrize("how", [["--json"], []])
def test_a_reader_who_leaves_is_no_failure(how: list[str], tmp_path: Path) -> None:
    """The exit code stays the verb's, and nothing is said about the pipe."""
    # More than a pipe holds (64 KiB), so that it is noticed.
    findings = tuple(Finding("note", f"{n} " + "x" * 200, "left") for n in range(400))
    stored(tmp_path / "run", [record(findings=findings)], NO)
    program = process("show", *how, str(tmp_path / "run"))
    assert program.stdout is not None
    assert program.stderr is not None
    program.stdout.readline()
    program.stdout.close()
    assert ("", 1) == (program.stderr.read(), program.wait())


WAITING = """
import os, sys

def wait(event, args):
    if event == "open" and str(args[0]).endswith("experiment.yaml"):
        os.read(os.open(os.environ["PIPE"], os.O_RDONLY), 1)

sys.addaudithook(wait)
"""
"""What waits for us as the program reads its experiment."""


def test_ctrl_c_prints_no_traceback(tmp_path: Path) -> None:
    """Whenever it comes, be it while modules are loaded, the program ends with 130 and no word."""
    pipe, experiment_file = tmp_path / "pipe", tmp_path / "experiment.yaml"
    os.mkfifo(pipe)
    experiment_file.touch()
    (tmp_path / "sitecustomize.py").write_text(WAITING)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "PIPE": str(pipe)}
    program = process("plan", str(experiment_file), env=env)
    try:
        deadline = time.monotonic() + 20
        while (fd := _opened(pipe)) is None:
            assert time.monotonic() < deadline, "udpbench never read the experiment"
            time.sleep(0.01)
        program.send_signal(signal.SIGINT)
        os.close(fd)  # a signal just before it read would be seen only once it has read
        out, err = program.communicate(timeout=20)
    finally:
        program.kill()
    assert ("", "", 130) == (out, err, program.returncode)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_during_the_report_prints_no_traceback(
    tmp_path: Path, number: signal.Signals
) -> None:
    """While it draws and lays out its pages, the program ends with 130 and leaves no scraps."""
    points = [paced(point=f"size={n}") for n in range(40)]
    records = [record(of=point, series=series([1000])) for point in points]
    stored(tmp_path / "run", records, experiment(points=points))
    scraps = tmp_path / "scraps"
    scraps.mkdir()
    program = process("report", str(tmp_path / "run"), env={**os.environ, "TMPDIR": str(scraps)})
    try:
        deadline = time.monotonic() + 20
        while not list(scraps.glob("udpbench-report-*/*/*")):
            assert time.monotonic() < deadline, "udpbench never drew a figure"
            time.sleep(0.01)
        program.send_signal(number)
        out, err = program.communicate(timeout=20)
    finally:
        program.kill()
    assert ("", "", 130, []) == (out, err, program.returncode, list(scraps.iterdir()))


def test_a_report_obeys_no_matplotlibrc_of_the_working_folder(tmp_path: Path) -> None:
    """It would start LaTeX, and show on stderr what it is a link to."""
    stored(tmp_path / "run")
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nroot:$6$secret\n")
    program = process("report", "--format", "html", "--out", "out", "run", cwd=tmp_path)
    assert ("report: out/report.html\n", "") == program.communicate(timeout=60)
    assert 0 == program.returncode


def _opened(fifo: Path) -> int | None:
    """Return a descriptor to write to a pipe that somebody reads; None before that."""
    try:
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


def test_a_report_that_cannot_be_written_takes_no_answer_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run's own code stays, and is 3 where it was 0; the file is named."""
    (tmp_path / "run" / "report.pdf").mkdir(parents=True)
    kept = read_run(stored(tmp_path / "run", [record()]).folder)
    assert [3, 4] == [try_report(kept, code) for code in (0, 4)]
    assert f"no report: {tmp_path}/run/report.pdf: Is a directory; " in capsys.readouterr().err


def test_a_plan_names_what_would_run_and_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A definition is code: before anything runs, its commands and root's files are seen."""
    monkeypatch.setattr("udpbench.control.plan.rehearse", lambda *_: [])
    head = "question: what?\ntraffic: {rate: 10kpps}\n"
    for receive in ("log: {path: /var/log/x}", "command: [sh, -c, 'a; b']"):
        (tmp_path / "e.yaml").write_text(f"{head}receive: {{{receive}}}\n")
        assert 0 == run(monkeypatch, "plan", str(tmp_path / "e.yaml"))
    printed = " ".join(capsys.readouterr().out.split())
    assert "would write on receiver: /var/log/x.*" in printed
    assert "would run on receiver, as you; if that is root, nobody" in printed
    assert "sh -c 'a; b'" in printed


def test_a_run_whose_folder_is_gone_says_what_is_graver_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """A host that was not restored, then what is lost; without either it is a missing folder."""
    lost = StoreError("smoke#1 ran and could not be stored: run: deleted")
    outcome = Outcome(0, lost, (RestoreError("sysctl stays", "right"),))
    held = Folder.open(tmp_path / "run", make=True)
    with pytest.raises(typer.Exit) as ended:
        _read_back(held, outcome)
    assert 4 == ended.value.exit_code
    expected = (
        "not restored: right: sysctl stays\nsmoke#1 ran and could not be stored: run: deleted\n"
    )
    assert expected == capsys.readouterr().err
    with golden.raises(RecordError):
        _read_back(held, Outcome(1))


def test_what_takes_a_runs_place_is_not_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where others may rename what they do not own; that they may is said."""
    (tmp_path / "shared").mkdir()
    folder = tmp_path / "shared" / "run"
    run = stored(folder)
    (tmp_path / "shared").chmod(0o777)
    with Folder.open(folder) as held:
        folder.rename(tmp_path / "aside")
        stored(folder, [])
        kept = _read_back(held, Outcome(1))
    assert run.records == kept.records
    finish_run(kept, load_lab("local"), Outcome(1), report=False, everything=False)
    warned = f"others may put another in its place: {tmp_path}/shared can be written by everybody"
    assert warned in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    "changes", [{"status": "failed", "error": {}}, {"restore_errors": ({"host": "h"},)}]
)
def test_an_ending_that_gives_no_reason_is_shown(
    changes: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Somebody else may have written it."""
    ending = replace(Ending("then", "complete"), **changes)
    run(monkeypatch, "show", str(stored(tmp_path / "run", ending=ending).folder))
    printed = capsys.readouterr()
    assert "no reason known" in printed.out + printed.err
    assert "bug" not in printed.err


def test_whose_run_is_shown_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If no run is named and the last is of somebody else."""
    monkeypatch.chdir(tmp_path)
    folder = stored(Path("results/x")).folder
    for mode, warned in (
        (0o755, ""),
        (0o777, "the last run is results/x, which can be written by "),
    ):
        folder.chmod(mode)
        read_stored(None)
        err = capsys.readouterr().err
        assert (err.startswith(warned), bool(err)) == (True, bool(warned))


BARE_LAB = """
sender: [{name: left, connect: {ssh: left.example}, interface: eth1, addresses: existing}]
receiver: [{name: right, connect: {ssh: right.example}, interface: eth1, addresses: existing}]
"""


class Deployments:
    """In place of what deploys: what the command line asks it for."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lab = folder / "lab.yaml"
        self.lab.write_text(BARE_LAB)
        self.deployers: list[tuple[Path | None, str | None]] = []
        self.done: list[str] = []
        self.removes_all = True
        monkeypatch.chdir(folder)
        monkeypatch.setattr(deployer, "Deployer", self.deployer)
        monkeypatch.setattr(deployment, "deploy", lambda *_: self.done.append("deploy"))
        monkeypatch.setattr(deployment, "remove", self.remove)

    def deployer(
        self, say: Callable[[str, str], None], wheels: Path | None, refusal: str | None = None
    ) -> None:
        """Note what one is made with."""
        say("left", "agent installed in /somewhere")
        self.deployers.append((wheels, refusal))

    def remove(self, *_: object) -> bool:
        """Say whether no agent is in use."""
        self.done.append("remove")
        return self.removes_all


@pytest.fixture
def deployments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployments:
    """Return what deploys, in a folder with ``lab.yaml``."""
    return Deployments(tmp_path, monkeypatch)


def test_deploy_brings_the_agent_or_takes_it_away(
    deployments: Deployments, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With wheels from a folder where one is named; what happens is said on stderr."""
    for words in ([], ["--wheels", "."], ["--remove"]):
        assert 0 == run(monkeypatch, "deploy", "--lab", "lab.yaml", *words)
    assert ["deploy", "deploy", "remove"] == deployments.done
    assert [(None, None), (Path(), None), (None, None)] == deployments.deployers
    output = capsys.readouterr()
    assert ["left: agent installed in /somewhere"] * 3 == output.err.splitlines()
    assert ["deployed: left, right"] * 2 == output.out.splitlines()


def test_deploy_says_what_it_cannot_do(
    deployments: Deployments,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Golden,
) -> None:
    """No lab, one whose hosts get no agent, no such folder, an agent in use."""
    deployments.removes_all = False
    assert 2 == run(monkeypatch, "deploy")
    assert 2 == run(monkeypatch, "deploy", "--lab", "local")
    assert 2 == run(monkeypatch, "deploy", "--lab", "lab.yaml", "--wheels", "nowhere")
    assert 3 == run(monkeypatch, "deploy", "--lab", "lab.yaml", "--remove")
    golden.check(capsys.readouterr().err)


@pytest.mark.parametrize(
    "words",
    [["plan", "smoke"], ["doctor"], ["facts"], ["run", "smoke"], ["tune", "smoke"], ["restore"]],
)
def test_every_verb_with_a_lab_may_be_kept_from_deploying(
    words: list[str],
    deployments: Deployments,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Golden,
) -> None:
    """And be given wheels; each says what it brings."""

    def unreachable(_: object) -> None:
        raise ConnectError("no host here")

    monkeypatch.setattr(agents, "real", unreachable)
    assert 3 == run(monkeypatch, *words, "--lab", "lab.yaml")
    assert 3 == run(monkeypatch, *words, "--lab", "lab.yaml", "--no-deploy", "--wheels", ".")
    (freely, step), (wheels, refusal) = deployments.deployers
    assert (None, None, Path()) == (freely, step, wheels)
    golden.check(refusal)
    output = capsys.readouterr()
    assert 2 == (output.out + output.err).splitlines().count("left: agent installed in /somewhere")

"""Whether a run may go on: its definitions are as they were, and what is refused touches nothing."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from analysis.build import failed, record
from golden import Golden
from report.stored import COMPLETE, stored

import udpbench
from udpbench import folder
from udpbench.__main__ import main
from udpbench.commands import resume
from udpbench.commands.resume import ResumedRun, ResumeOptions, reopen_run
from udpbench.definition.load import load_experiments, load_lab
from udpbench.definition.point_pairs import against_itself
from udpbench.errors import InputError, RecordError
from udpbench.model.experiment import Search
from udpbench.model.record import (
    RecordedError,
    TrialRecord,
)
from udpbench.records import folders
from udpbench.records.run import RUN_FILE, SERIES_FILE, Ending, Run
from udpbench.records.writer import RunWriter

TEXT = "question: What?\nsend: {batch: 4}\nrepetitions: 2\n"
LAB = Path(udpbench.__file__).parents[1] / "experiments" / "labs" / "local.yaml"
STEP = "restore it, or start a new run"
INTERRUPTED = Ending("2026-11-21T08:00:09+00:00", "interrupted")
NOT_RESTORED = (RecordedError("RestoreError", "mtu stays", "left"),)


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Give pytest its own handler back."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Return what leaves a run of ``mine.yaml`` in ``run``; its files are in this folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(TEXT)
    shutil.copy(LAB, tmp_path / "lab.yaml")

    def left(records: int = 1, ending: Ending | None = None, sets: tuple[str, ...] = ()) -> Run:
        experiments, lab = load_experiments(["mine.yaml"], sets), load_lab("lab.yaml")
        trial_records = [
            of_trial(n, experiments[0].points[0].experiment) for n in range(1, records + 1)
        ]
        return stored(
            tmp_path / "run",
            trial_records,
            *experiments,
            ending=ending,
            sets=sets,
            lab_name=lab.name,
            lab_text=lab.text,
            lab_path=lab.path,
            working_folder=str(tmp_path),
        )

    return left


def of_trial(repetition: int, experiment: str = "mine", status: str = "done") -> TrialRecord:
    """Return a record of a repetition of an experiment."""
    plain = record() if status == "done" else failed()
    trial = replace(plain.trial, experiment=experiment, point="", repetition=repetition)
    return replace(plain, trial=trial)


def refusal(options: ResumeOptions | None = None) -> list[str]:
    """Return what is said of a run that may not go on; nothing of it was touched, nobody holds it."""
    files = [Path("run") / name for name in (RUN_FILE, SERIES_FILE)]
    before = [file.read_bytes() for file in files]
    with pytest.raises(InputError) as refused:
        reopen_run(Path("run"), options or ResumeOptions())
    assert before == [file.read_bytes() for file in files]
    RunWriter.reopen(Path("run")).close()
    return str(refused.value).splitlines()


def going_on(options: ResumeOptions | None = None) -> ResumedRun:
    """Return a run that may go on, its folder let go again."""
    resumed = reopen_run(Path("run"), options or ResumeOptions())
    resumed.writer.close()
    return resumed


def exit_code(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Return the exit code of a command line."""
    monkeypatch.setattr(sys, "argv", ["udpbench", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_what_is_left_comes_from_the_folder(begun: Callable[..., Run]) -> None:
    """Experiments, lab and --set need not be given again."""
    run = begun(sets=("send.batch=8",))
    resumed = going_on()
    assert [("mine#2", 8)] == [(trial.name, trial.send.batch) for trial in resumed.left]
    assert (run.header.lab_text, "lab") == (resumed.lab.text, resumed.lab.name)
    assert ("run: 1 of 2 trials are stored", ()) == (resumed.summary("0.1.0"), resumed.notes)
    assert "run: 1 of 2 trials are stored, started by udpbench 0.1.0" == resumed.summary("0.2.0")


def test_of_a_run_of_searches_whole_searches_are_counted(begun: Callable[..., Run]) -> None:
    """As at the end of the run: what a resumed run does next is a search, whatever was tried."""
    resumed = going_on() if begun() else None
    assert resumed is not None
    (of,) = resumed.run.header.experiments
    points = tuple(replace(each, search=Search()) for each in of.points)
    header = replace(resumed.run.header, experiments=(replace(of, points=points),))
    left = tuple(replace(each, search=Search()) for each in resumed.left)
    searched = replace(resumed, run=replace(resumed.run, header=header), left=left)
    assert "run: 1 of 2 searches are complete" == searched.summary("0.1.0")


def test_a_stored_lab_is_checked_like_a_file(
    begun: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's folder may say anything; a host's name in it must not reach a shell."""
    begun()
    file = Path("run") / RUN_FILE
    file.write_text(file.read_text().replace("connect: namespace", "connect: {ssh: a$(b)}"))
    assert "run: " not in refusal()[0]
    assert "connect: ssh is not [user@]host[:port]; " in refusal()[0]


def test_what_is_given_again_must_be_the_same(begun: Callable[..., Run]) -> None:
    """Then it changes nothing."""
    begun(sets=("send.batch=8", "send.pace=sleep"))
    sets = ("send.pace=sleep", "send.batch=8")
    assert 1 == len(going_on(ResumeOptions(["mine.yaml"], "lab.yaml", sets, 7)).left)


def test_another_working_folder_finds_the_same_files(
    begun: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths are those of where the run began."""
    begun()
    monkeypatch.chdir("/")
    resumed = reopen_run(tmp_path / "run", ResumeOptions())
    resumed.writer.close()
    assert () == resumed.notes


def test_a_comment_changes_nothing(begun: Callable[..., Run]) -> None:
    """Only what is measured counts."""
    begun()
    Path("mine.yaml").write_text(f"# mine\n{TEXT}")
    assert 1 == len(going_on().left)


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        ("batch: 4", "batch: 5", "send.batch: 4 → 5"),
        ("repetitions: 2", "repetitions: 3", "repetitions: 2 → 3"),
    ],
)
def test_an_experiment_that_changed_is_refused(
    old: str, new: str, change: str, begun: Callable[..., Run]
) -> None:
    """File, key, was → is, and what to do."""
    begun()
    Path("mine.yaml").write_text(TEXT.replace(old, new))
    line = f"mine.yaml: {change}: changed since the run began; {STEP}"
    assert [line] == refusal()


def test_what_an_experiment_extends_is_looked_at_too(begun: Callable[..., Run]) -> None:
    """The file itself is as it was, and what it means is not."""
    Path("base.yaml").write_text("question: Base?\ntraffic: {size: 32B}\n")
    Path("mine.yaml").write_text(TEXT + "extends: base.yaml\n")
    begun()
    Path("base.yaml").write_text("question: Base?\ntraffic: {size: 64B}\n")
    line = "traffic.size: 32B → 64B: changed since the run began"
    assert [f"mine.yaml: {line}; {STEP}"] == refusal()


def test_everything_that_changed_is_reported_at_once(begun: Callable[..., Run]) -> None:
    """Seed, --set, experiment and lab."""
    begun()
    Path("mine.yaml").write_text(TEXT.replace("batch: 4", "batch: 5"))
    lab = Path("lab.yaml").read_text()
    Path("lab.yaml").write_text(lab.replace("254.30", "254.31"))
    step = "omit it, or start a new run"
    change = "192.168.254.30/24 → 192.168.254.31/24"
    assert [
        f"--seed: 7 → 8: the seed of a run cannot change; {step}",
        f"--set: none → send.pace=sleep: changed since the run began; {step}",
        f"mine.yaml: send.batch: 4 → 5: changed since the run began; {STEP}",
        f"lab.yaml: sender[1].addresses[1]: {change}: changed since the run began; {STEP}",
    ] == refusal(ResumeOptions(seed=8, sets=["send.pace=sleep"]))


def test_a_file_that_is_no_definition_any_more_is_refused(begun: Callable[..., Run]) -> None:
    """With its own problems, and those of the other file."""
    begun()
    Path("mine.yaml").write_text("question: What?\nsend: {batches: 4}\n")
    Path("lab.yaml").write_text("sender: {}\n")
    lines = refusal()
    assert any("send.batches: 4: unknown key" in line for line in lines)
    assert any(line.startswith("lab.yaml") for line in lines)


def test_a_file_that_is_gone_is_reported_and_not_needed(begun: Callable[..., Run]) -> None:
    """The run folder has all that it says, if it is trusted."""
    begun()
    Path("mine.yaml").unlink()
    Path("lab.yaml").unlink()
    assert (
        "mine.yaml: deleted; the run continues with its stored copy",
        "lab.yaml: deleted; the run continues with its stored copy",
    ) == going_on(ResumeOptions(trust=True)).notes


def test_other_experiments_are_refused(begun: Callable[..., Run]) -> None:
    """One too many, or one too few: a run is as it began."""
    begun()
    Path("other.yaml").write_text(TEXT)
    step = "omit it; the run has mine"
    assert [f"other.yaml: other: not an experiment of this run; {step}"] == refusal(
        ResumeOptions(["mine.yaml", "other.yaml"])
    )
    step = "name all of them, or none"
    assert [f"other.yaml: mine: experiments of this run are missing; {step}"] == refusal(
        ResumeOptions(["other.yaml"])
    )


def test_another_lab_is_refused(begun: Callable[..., Run]) -> None:
    """Also one of the same hosts with another setting."""
    begun()
    Path("else.yaml").write_text(Path("lab.yaml").read_text().replace("254.30", "254.31"))
    (line,) = refusal(ResumeOptions(lab="else.yaml"))
    assert line.startswith("else.yaml: sender[1].addresses[1]: 192.168.254.30/24 → ")


def test_a_record_of_another_form_is_refused(begun: Callable[..., Run], golden: Golden) -> None:
    """Its own udpbench is named, which can go on with it."""
    begun()
    file = Path("run") / RUN_FILE
    before = file.read_bytes().replace(b'"schema":2', b'"schema":9')
    file.write_bytes(before)
    with golden.raises(RecordError):
        reopen_run(Path("run"), ResumeOptions())
    assert before == file.read_bytes()


@pytest.mark.parametrize(
    ("records", "end", "complete"),
    [
        (2, COMPLETE, True),
        (1, COMPLETE, False),
        (2, None, False),
        (2, INTERRUPTED, False),
        (2, replace(COMPLETE, restore_errors=NOT_RESTORED), False),
    ],
)
def test_a_run_is_complete_with_all_trials_and_a_good_end(
    records: int, end: Ending | None, complete: bool, begun: Callable[..., Run]
) -> None:
    """Without an end nobody knows how the hosts are, so they are looked at once more."""
    begun(records, end)
    assert complete == going_on().complete


def test_a_complete_run_is_shown_and_not_touched(
    begun: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is that of its trials."""
    begun(2, COMPLETE)
    before = {file: file.read_bytes() for file in Path("run").iterdir()}
    assert 0 == exit_code(monkeypatch, "run", "--resume", "run")
    out = capsys.readouterr().out.splitlines()
    assert "run: complete: all 2 trials are stored, nothing to run" == out[0]
    assert "What?" in out
    assert before == {file: file.read_bytes() for file in Path("run").iterdir()}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["run"],
            "X...: missing; expected: at least one; name an experiment, or resume a run with --resume",
        ),
        (
            ["run", "--resume", "run", "--out", "else"],
            "--out: else: a run is resumed in its own folder; expected: run; omit --out",
        ),
        (
            ["run", "--resume", "nowhere"],
            "nowhere/run.jsonl: no such file; is this a run folder?",
        ),
    ],
)
def test_what_cannot_be_resumed_is_reported_in_a_line(
    words: list[str],
    line: str,
    begun: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit 2, and what to do."""
    begun()
    assert 2 == exit_code(monkeypatch, *words)
    assert f"{line}\n" == capsys.readouterr().err


@pytest.mark.parametrize(
    ("records", "hint"),
    [
        (0, "to run the 2 trials that failed or are missing: udpbench run --resume run"),
        (1, "to run the 1 trial that failed or is missing: udpbench run --resume run"),
        (2, None),
    ],
)
def test_show_says_how_to_go_on(
    records: int,
    hint: str | None,
    begun: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whoever finds half a run has the command for the other half; a whole one says nothing."""
    begun(records, COMPLETE)
    exit_code(monkeypatch, "show", "run")
    hints = [line for line in capsys.readouterr().out.splitlines() if "--resume" in line]
    assert ([hint] if hint is not None else []) == hints


def test_a_run_in_use_is_refused(
    begun: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A living run and one that goes on would write into one file."""
    begun()
    writer = RunWriter.reopen(Path("run"))
    assert 2 == exit_code(monkeypatch, "run", "--resume", "run")
    writer.close()
    assert capsys.readouterr().err.startswith("run: in use by a run that is still going on; wait")


def test_a_point_against_itself_goes_on(begun: Callable[..., Run]) -> None:
    """The stored run has two copies of the point, and so has what its file is compared with."""
    experiments = against_itself(load_experiments(["mine.yaml"]), "all")
    lab = load_lab("lab.yaml")
    stored(
        Path("run"),
        [],
        *experiments,
        ending=None,
        lab_name=lab.name,
        lab_text=lab.text,
        lab_path=lab.path,
        working_folder=str(Path.cwd()),
        same="all",
    )
    assert {"all", "all again"} == {trial.point for trial in going_on().left}


# --- a folder that somebody else may have written ------------------------------------------------

EVIL_LAB = """\
sender: [{connect: {ssh: "root@10.9.8.7:2222", become: sudo, python: /tmp/py}, interface: eth0, addresses: existing}]
receiver: [{name: here, connect: local, interface: eth0, addresses: existing}]
reserve: {command: [/tmp/evil, "a b"]}
"""
EVIL = """\
question: What?
repetitions: 2
receive: {command: [./evil, "x\\ny"], user: daemon}
"""


ALONE = "only --set says so, which has to be typed again"


def doubts(options: ResumeOptions | None = None) -> list[str]:
    """Return why a run is not continued without trust; with it, it is."""
    lines = refusal(options)
    given = options or ResumeOptions()
    assert lines[0].startswith("--resume: ")
    assert lines[0].endswith("then add --trust")
    going_on(replace(given, trust=True))
    return [line for line in lines[1:] if ": would " not in line]


def rewrite(old: str, new: str) -> None:
    """Change the header of the run, as whoever made its folder could."""
    file = Path("run") / RUN_FILE
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_without_definitions_it_says_what_it_would_run(
    begun: Callable[..., Run], golden: Golden
) -> None:
    """Where and as whom, each once and on one line; nothing is run."""
    Path("lab.yaml").write_text(EVIL_LAB)
    Path("mine.yaml").write_text(EVIL)
    begun()
    Path("mine.yaml").unlink()
    Path("lab.yaml").unlink()
    golden.check(refusal(), root="user 0")


def test_it_says_what_is_written_and_attached(begun: Callable[..., Run], golden: Golden) -> None:
    """By udpbench's own receivers."""
    log = "{path: /var/log/udp, max_file: 1MiB, keep: 2}"
    keys = "sockets: reuseport-ebpf, steering: /sys/fs/bpf/x"
    Path("mine.yaml").write_text(
        f"question: What?\nvariants:\n  a: {{receive: {{log: {log}}}}}\n  b: {{receive: {{{keys}}}}}\n"
    )
    begun(0)
    Path("mine.yaml").unlink()
    golden.check([line for line in refusal() if " on receiver: " in line])


def test_a_folder_of_somebody_else_is_not_trusted(
    begun: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though every definition is as it was."""
    begun()
    owner = Path("run").stat().st_uid
    whose = [f"belongs to user {owner}"]
    monkeypatch.setattr(folders, "other_writers", lambda *_, **__: whose)
    assert [f"run: belongs to user {owner}"] == doubts()


@pytest.mark.parametrize("name", [".", RUN_FILE, SERIES_FILE])
def test_a_folder_that_anybody_writes_is_not_trusted(name: str, begun: Callable[..., Run]) -> None:
    """Nor one of its files."""
    begun()
    path = Path("run") / name
    path.chmod(path.stat().st_mode | 0o002)
    assert ["run: can be written by everybody"] == doubts()


@pytest.mark.parametrize("name", ["run", f"run/{RUN_FILE}", "mine.yaml", "."])
def test_what_a_group_writes_is_not_trusted(
    name: str, begun: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what an ACL lets others write; but what a group of the user alone does is."""
    begun()
    path = Path(name)
    path.chmod(path.stat().st_mode | 0o020)
    group = path.stat().st_gid
    me = pwd.getpwuid(path.stat().st_uid)
    monkeypatch.setattr(folder.pwd, "getpwuid", lambda _: me)
    for members, others in (([], False), ([me.pw_name], False), ([me.pw_name, "else"], True)):
        known = grp.struct_group((me.pw_name, "x", group, members))
        monkeypatch.setattr(folder.grp, "getgrgid", lambda _, known=known: known)
        if not others:
            assert () == going_on().notes
    assert all(doubt.endswith(f"can be written by group {group}") for doubt in doubts())
    known = grp.struct_group(("users", "x", group, []))
    monkeypatch.setattr(folder.grp, "getgrgid", lambda _: known)
    assert doubts()
    monkeypatch.setattr(folder.grp, "getgrgid", {}.__getitem__)
    assert doubts()
    own = grp.struct_group((me.pw_name, "x", group, []))
    monkeypatch.setattr(folder.grp, "getgrgid", lambda _: own)
    entries = ((1, 7, -1), (2, 7, 12345), (4, 5, -1), (16, 7, -1), (32, 5, -1))
    acl = b"".join([struct.pack("<I", 2), *(struct.pack("<HHi", *entry) for entry in entries)])
    os.setxattr(path, "system.posix_acl_access", acl)  # xattr(7), linux/posix_acl_xattr.h
    assert all(
        doubt.endswith("can be written by whom its ACL names (getfacl(1))") for doubt in doubts()
    )
    os.removexattr(path, "system.posix_acl_access")
    path.chmod(path.stat().st_mode | 0o020)
    assert not any("can be written" in note for note in going_on().notes)
    mate = pwd.struct_passwd(("mate", "x", 12345, group, "", "/", ""))
    monkeypatch.setattr(folder.pwd, "getpwall", lambda: [me, mate])  # gr_mem lacks it
    assert all(doubt.endswith(f"can be written by group {group}") for doubt in doubts())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("of_stranger", ["file", "folder", "link between"])
def test_an_own_link_to_a_strangers_file_does_not_vouch(
    of_stranger: str, begun: Callable[..., Run], tmp_path: Path
) -> None:
    """Neither if the file, nor if a folder or another link on the way is the stranger's."""
    begun()
    there = tmp_path / "there"
    there.mkdir()
    Path("mine.yaml").rename(there / "mine.yaml")
    Path("between").symlink_to("there")
    Path("mine.yaml").symlink_to("between/mine.yaml")
    assert () == going_on().notes
    its = {"file": there / "mine.yaml", "folder": there, "link between": tmp_path / "between"}
    os.chown(its[of_stranger], 1234, -1, follow_symlinks=False)
    assert [f"mine.yaml: {its[of_stranger]} belongs to user 1234"] == doubts()


def test_a_base_that_others_write_does_not_vouch(begun: Callable[..., Run]) -> None:
    """Nor one that the base extends; it is what the definition says."""
    Path("mine.yaml").write_text("question: What?\nextends: base.yaml\n")
    Path("base.yaml").write_text("question: What?\nextends: lowest.yaml\n")
    Path("lowest.yaml").write_text(TEXT)
    begun()
    assert () == going_on().notes
    Path("lowest.yaml").chmod(0o666)
    assert [f"mine.yaml: {Path.cwd()}/lowest.yaml can be written by everybody"] == doubts()


def test_definitions_that_came_with_the_folder_do_not_vouch_for_it(
    begun: Callable[..., Run],
) -> None:
    """Whoever packed the folder packed them, too."""
    begun()
    shutil.copy("mine.yaml", "run/mine.yaml")
    rewrite('"path":"mine.yaml"', '"path":"run/mine.yaml"')
    why = "lies in the run folder, and may have come with it"
    assert [f"run/mine.yaml: {why}"] == doubts()
    Path("link.yaml").symlink_to("run/mine.yaml")
    rewrite('"path":"run/mine.yaml"', '"path":"link.yaml"')
    assert [f"link.yaml: {why}"] == doubts()


def test_definitions_are_not_looked_for_where_one_stands(begun: Callable[..., Run]) -> None:
    """A packed folder cannot know where it is unpacked."""
    begun()
    rewrite(f'"working_folder":"{Path.cwd()}"', '"working_folder":""')
    assert ["mine.yaml: deleted", "lab.yaml: deleted"] == doubts()
    rewrite('"working_folder":""', '"working_folder":"/proc/self/cwd"')
    assert ["mine.yaml: deleted", "lab.yaml: deleted"] == doubts()
    Path("loop").symlink_to("loop")
    rewrite('"working_folder":"/proc/self/cwd"', f'"working_folder":"{Path.cwd()}/loop"')
    assert ["mine.yaml: deleted", "lab.yaml: deleted"] == doubts()
    long = f"/{'x' * 500}"
    rewrite(f'"working_folder":"{Path.cwd()}/loop"', f'"working_folder":"{long}"')
    why = "cannot be looked at: File name too long"
    assert [f"mine.yaml: {why}", f"lab.yaml: {why}"] == doubts()


@pytest.mark.parametrize("way", ["/proc/self/cwd", "/dev/fd/../cwd"])
def test_no_path_leads_to_where_one_stands(way: str, begun: Callable[..., Run]) -> None:
    """Nor by the links of the kernel."""
    begun()
    rewrite('"path":"mine.yaml"', f'"path":"{way}/mine.yaml"')
    assert [f"{way}/mine.yaml: /proc leads elsewhere for each process"] == doubts()


def test_what_a_program_printed_does_not_vouch(begun: Callable[..., Run]) -> None:
    """Neither by its name nor by its place, though it is the user's and says the same."""
    begun()
    older = Path("results/older")
    older.mkdir(parents=True)
    (older / RUN_FILE).touch()
    for name, why in (
        ("mine.output", "is not named .yaml or .yml, and may be another program's"),
        ("results/older/mine.yaml", "lies in another run folder, which holds what was measured"),
    ):
        Path("mine.yaml").rename(name)
        Path("mine.yaml").symlink_to(name)
        assert [f"mine.yaml: {why}"] == doubts()
        Path(name).rename("mine.yaml")


def test_a_complete_run_needs_no_trust(begun: Callable[..., Run]) -> None:
    """It runs nothing."""
    begun(2, COMPLETE)
    Path("mine.yaml").unlink()
    assert going_on().complete


def test_a_definition_of_somebody_else_does_not_vouch(
    begun: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who wrote the folder also wrote which file that is; what is named by the user does."""
    begun()
    owner = Path("run").stat().st_uid
    whose = [f"belongs to user {owner}"]
    monkeypatch.setattr(resume, "other_writers", lambda _, passed: [] if passed else whose)
    where = f"{Path.cwd()}/mine.yaml belongs to user {owner}"
    assert [f"mine.yaml: {where}", f"lab.yaml: {where.replace('mine', 'lab')}"] == doubts()
    assert () == going_on(ResumeOptions(["mine.yaml"], "lab.yaml")).notes


def test_a_definition_that_anybody_writes_does_not_vouch(begun: Callable[..., Run]) -> None:
    """In its folder, too; /tmp, where nobody replaces the files of others, may be above it."""
    begun()
    Path("mine.yaml").chmod(0o666)
    assert [f"mine.yaml: {Path.cwd()}/mine.yaml can be written by everybody"] == doubts()
    Path("mine.yaml").chmod(0o644)
    Path.cwd().chmod(0o777)
    why = f"{Path.cwd()} can be written by everybody"
    assert [f"mine.yaml: {why}", f"lab.yaml: {why}"] == doubts()


def test_a_command_that_only_a_stored_set_says_is_not_trusted(begun: Callable[..., Run]) -> None:
    """A shipped definition is on every disk; what --set made of it is in the folder alone."""
    Path("mine.yaml").write_text("question: What?\nrepetitions: 2\nreceive: {command: [./a]}\n")
    begun(sets=("receive.user=daemon",))
    assert [f"mine.yaml: receive.user: none → daemon: {ALONE}"] == doubts()
    assert () == going_on(ResumeOptions(sets=["receive.user=daemon"])).notes


def test_a_folder_that_only_a_stored_set_says_is_not_trusted(begun: Callable[..., Run]) -> None:
    """The program of that name is another there; without a program it does not matter."""
    begun(sets=("send.batch=8",))
    assert () == going_on().notes
    Path("mine.yaml").write_text("question: What?\nrepetitions: 2\nreceive: {command: [./a]}\n")
    shutil.rmtree("run")
    begun(sets=("receive.folder=/tmp",))
    assert [f"mine.yaml: receive.folder: {Path.cwd()} → /tmp: {ALONE}"] == doubts()


def test_another_host_is_refused(begun: Callable[..., Run]) -> None:
    """The stored lab leads elsewhere than its file."""
    begun()
    Path("lab.yaml").write_text(LAB.read_text().replace("connect: namespace", "connect: {ssh: a}"))
    assert any("connect" in line and "changed since" in line for line in refusal())


def test_a_definition_that_needs_the_stored_set_is_not_trusted(begun: Callable[..., Run]) -> None:
    """Without it the definition says nothing."""
    Path("mine.yaml").write_text(TEXT.replace("batch: 4", "batch: 0"))
    begun(sets=("send.batch=8",))
    what = "says nothing without --set, which has to be typed again"
    assert [f"mine.yaml: {what}"] == doubts()
    assert () == going_on(ResumeOptions(sets=["send.batch=8"])).notes


SYSCTL = "settings.receiver.sysctl.net.ipv4.conf.all.accept_local"


@pytest.mark.parametrize(
    ("sets", "changes"),
    [
        ([f"{SYSCTL}=1"], [f"{SYSCTL}: none → 1"]),
        (
            ["settings.sender.firewall.udp=53", "settings.sender.firewall.accept=true"],
            [
                "settings.sender.firewall.udp: none → 53",
                "settings.sender.firewall.accept: none → true",
            ],
        ),
        (
            ["traffic.flows.to=receiver.addresses[1]:53"],
            ["traffic.flows.to: receiver.addresses[1]:4321 → receiver.addresses[1]:53"],
        ),
        (["traffic.flows.from=53"], ["traffic.flows.from: 65400 → 53"]),
        (["traffic.family=6"], ["traffic.family: 4 → 6"]),
        (["traffic.ttl=64"], ["traffic.ttl: none → 64"]),
        (["send.priority=fifo 99"], ["send.priority: normal → fifo 99"]),
        (["receive.attach.port=4321"], ["receive.attach.port: none → 4321"]),
        (["needs.lab=false"], ["needs.lab: none → false"]),
        (["path_check=explained"], ["path_check: arrive → explained"]),
    ],
    ids=lambda value: value[0].partition("=")[0] if "=" in value[0] else "",
)
def test_what_only_a_stored_set_does_to_hosts_is_not_trusted(
    sets: list[str], changes: list[str], begun: Callable[..., Run]
) -> None:
    """It names what that is; typed again, it is the user's."""
    begun(sets=tuple(sets))
    assert [f"mine.yaml: {change}: {ALONE}" for change in changes] == doubts()
    assert () == going_on(ResumeOptions(sets=sets)).notes


def test_it_says_what_would_be_set_and_where_packets_go(
    begun: Callable[..., Run], golden: Golden
) -> None:
    """By the experiment, by the lab and by each host."""
    Path("lab.yaml").write_text(
        "sender: [{connect: namespace, interface: eth0, addresses: [192.168.254.30/24]}]\n"
        "receiver: [{connect: namespace, interface: eth0, addresses: [192.168.254.1/24],"
        " settings: {mtu: 1400}}]\nsettings: {sender: {txqueuelen: 7}}\n"
    )
    begun(sets=("settings.receiver.firewall.udp=53", "traffic.flows.to=receiver.addresses[1]:53"))
    golden.check([line for line in refusal() if ": would se" in line])


@pytest.mark.parametrize("same", [None, "all"])
def test_a_load_that_only_a_stored_set_says_is_resumed(
    same: str | None, begun: Callable[..., Run]
) -> None:
    """Any folder may name a shipped experiment, and those send without limit."""
    sets = (
        *("traffic.rate=2kpps", "traffic.size=64B", "duration=3s", "warmup=2s", "repetitions=3"),
        *("send.batch=8", "send.pace=sleep", "send.bucket=1ms", "receive.batch=16"),
    )
    run = begun(sets=sets)
    if same is not None:
        shutil.rmtree("run")
        stored(
            Path("run"),
            [],
            *against_itself(run.header.experiments, same),
            ending=None,
            same=same,
            sets=sets,
            **{
                key: getattr(run.header, key)
                for key in ("lab_name", "lab_text", "lab_path", "working_folder")
            },
        )
    resumed = going_on()
    assert () == resumed.notes
    assert {2000} == {trial.traffic.rate.pps(64) for trial in resumed.left if trial.traffic.rate}


def test_a_stored_set_of_a_foreign_folder_is_not_obeyed_with_shipped_definitions(
    begun: Callable[..., Run],
) -> None:
    """They lie on every disk, so that whoever made the folder knows what they say."""
    experiments, lab = load_experiments(["smoke"], [f"{SYSCTL}=1"]), load_lab("local")
    begun()
    shutil.rmtree("run")
    stored(
        Path("run"),
        [],
        *experiments,
        ending=None,
        sets=(f"{SYSCTL}=1",),
        lab_name=lab.name,
        lab_text=lab.text,
        lab_path=lab.path,
        working_folder="/",
    )
    (doubt,) = doubts()
    assert doubt.endswith(f"smoke.yaml: {SYSCTL}: none → 1: {ALONE}")


def test_a_reservation_that_only_the_folder_says_is_not_trusted(begun: Callable[..., Run]) -> None:
    """It runs on this machine; that the lab's file has one no longer matters to nobody."""
    begun()
    lab = Path("lab.yaml").read_text()
    Path("lab.yaml").write_text(f"{lab}\nreserve: {{command: [/tmp/evil]}}\n")
    Path("run").rename("before")
    begun()
    Path("lab.yaml").write_text(lab)
    assert ["lab.yaml: it reserves the lab by another command"] == doubts()


def test_a_name_that_stands_for_two_is_refused(begun: Callable[..., Run]) -> None:
    """Only the last of them would be compared with a file."""
    run = begun()
    (mine,) = run.header.experiments
    shutil.rmtree("run")
    evil = replace(mine.points[0], receive=replace(mine.points[0].receive, command=("./evil",)))
    options = {
        key: getattr(run.header, key)
        for key in ("lab_name", "lab_text", "lab_path", "working_folder")
    }
    stored(
        Path("run"), [], replace(mine, points=(evil, *mine.points)), mine, ending=None, **options
    )
    lines = refusal()
    assert {
        "--resume: mine: two of this name; the file is damaged",
        "--resume: mine::: two of this name; the file is damaged",
    } <= set(lines)


def test_an_experiment_that_no_file_holds_is_not_trusted(begun: Callable[..., Run]) -> None:
    """Its path leads to another, which is as it was."""
    run = begun()
    (mine,) = run.header.experiments
    shutil.rmtree("run")
    evil = replace(mine, name="evil")
    options = {
        key: getattr(run.header, key)
        for key in ("lab_name", "lab_text", "lab_path", "working_folder")
    }
    stored(Path("run"), [], evil, mine, ending=None, **options)
    assert ["mine.yaml: does not hold evil"] == doubts()


def test_a_lab_whose_file_is_not_known_is_not_trusted(begun: Callable[..., Run]) -> None:
    """Old runs do not say."""
    begun()
    rewrite('"lab_path":"lab.yaml"', '"lab_path":""')
    assert ["lab: its file is not known"] == doubts()


def test_a_shipped_definition_vouches_whoever_installed_it(
    begun: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the program's own."""
    begun()
    rewrite('"lab_path":"lab.yaml"', f'"lab_path":"{LAB}"')
    owner = LAB.stat().st_uid
    whose = [f"belongs to user {owner}"]
    monkeypatch.setattr(resume, "other_writers", lambda _, passed: [] if passed else whose)
    assert ["mine.yaml"] == [line.partition(":")[0] for line in doubts()]


def test_a_run_is_read_from_the_folder_that_was_judged(
    begun: Callable[..., Run], tmp_path: Path
) -> None:
    """What takes its place meanwhile is somebody else's."""
    begun()
    writer = RunWriter.reopen(Path("run"))
    Path("run").rename("aside")
    begun(2)
    assert 1 == len(writer.read().records)
    writer.close()


def test_show_does_not_suggest_what_would_be_refused(
    begun: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Golden,
) -> None:
    """A command to copy would run what a stranger wrote; also where a definition has changed."""
    begun(1, COMPLETE)
    mine = Path("mine.yaml").read_text()
    changes: list[Callable[[], object]] = [
        lambda: Path("mine.yaml").write_text(mine.replace("batch: 4", "batch: 5")),
        lambda: Path("mine.yaml").unlink(),
        lambda: rewrite("sender:", "senders:"),
    ]
    for change in changes:
        change()
        exit_code(monkeypatch, "show", "run")
        golden.check([line for line in capsys.readouterr().out.splitlines() if "--resume" in line])


def test_a_folder_is_trusted_only_to_be_resumed(
    begun: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else it would be ignored without a word."""
    begun()
    for verb in ("run", "tune"):
        assert 2 == exit_code(monkeypatch, verb, "mine.yaml", "--lab", "lab.yaml", "--trust")
        assert "--trust: needs --resume; omit it\n" == capsys.readouterr().err

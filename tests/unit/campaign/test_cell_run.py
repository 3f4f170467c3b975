"""A cell on its worker: a program in the place of ``udpbench run`` says what it was given."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from campaign_fixture import cells
from golden import Golden
from waiting import wait_until

from udpbench.campaign import cell_run
from udpbench.campaign.cell_run import run_cell
from udpbench.campaign.cells import CampaignFolder, task_of
from udpbench.errors import BAD_INPUT, FAILED, INTERRUPTED
from udpbench.folder import Folder, lock_file

PROGRAM = cell_run.PROGRAM
STAND_IN = """\
import os, signal, sys, time
from pathlib import Path
words = sys.argv[3:]
assert os.getcwd() == "/"
os.chdir(words[words.index("--out" if "--out" in words else "--resume") + 1])
with open("words", "a") as file:
    print(*words, file=file)
Path("run.jsonl").touch()
print("trial 1 of 1", flush=True)
code = Path("code")
if code.exists():
    print("left: the cable is out", file=sys.stderr)
    sys.exit(int(code.read_text()))
if Path("long").exists():
    def end(*_):
        sys.exit(130)
    signal.signal(signal.SIGINT, end)
    Path("ready").touch()
    while True:
        time.sleep(1)
"""


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the task of a cell whose campaign is in ``out``, and stand in for its run."""
    Path("stand_in.py").write_text(STAND_IN)
    monkeypatch.setattr(cell_run, "PROGRAM", (sys.executable, str(Path("stand_in.py").absolute())))
    monkeypatch.setattr(cell_run, "read_run", lambda *_: type("Run", (), {"records": ()}))
    with CampaignFolder.open(Path("out")) as campaign:
        return task_of(cells()[0], campaign, share=False)


def run(task: dict[str, Any], unwanted: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Run a cell; return its result and what it said."""
    messages: list[str] = []
    return run_cell(task, messages.append, lambda: unwanted), messages


def test_a_cell_is_a_run_of_the_texts_in_its_folder(task: dict[str, Any]) -> None:
    """Once: a cell that is done is not run again."""
    folder = Path("out", task["folder"]).absolute()
    result, messages = run({**task, "share": True, "sets": ["a=1"]})
    assert ({"exit_code": 0, "reason": "", "chosen": True, "files": {}}, ["trial 1 of 1"]) == (
        result,
        messages,
    )
    assert task["lab_text"] == (folder / "lab" / "rack1.yaml").read_text()
    assert task["experiment_text"] == (folder / "first.yaml").read_text()
    run(task)
    named = f"{folder}/first.yaml --lab {folder}/lab/rack1.yaml"
    words = f"{named} --out {folder} --set a=1 --no-report --share"
    assert [words] == (folder / "words").read_text().splitlines()


def test_a_run_that_has_begun_is_resumed(task: dict[str, Any]) -> None:
    """What the worker wrote vouches for it; one killed before its header was whole begins anew."""
    folder = Path("out", task["folder"])
    folder.mkdir(parents=True)
    for begun in ("{}\n", "{"):
        (folder / "run.jsonl").write_text(begun)
        (folder / "cell.json").unlink(missing_ok=True)
        run(task)
    own = folder.absolute()
    named = f"{own}/first.yaml --lab {own}/lab/rack1.yaml"
    assert [f"--resume {own} {named} --no-report", f"{named} --out {own} --no-report"] == (
        (folder / "words").read_text().splitlines()
    )


@pytest.mark.parametrize("python_path", ["", ":", "."])
def test_what_lies_in_a_cells_folder_is_not_imported(
    python_path: str, task: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The run that ends with what is wrong in its definition is this udpbench's."""
    monkeypatch.setattr(cell_run, "PROGRAM", PROGRAM)
    monkeypatch.setenv("PYTHONPATH", python_path)
    planted = Path("out", task["folder"], "udpbench", "__init__.py")
    planted.parent.mkdir(parents=True)
    planted.write_text(f"open({str(tmp_path / 'planted')!r}, 'w')\n")
    result, _ = run({**task, "experiment_text": "nonsense: 1\n"})
    assert (BAD_INPUT, False) == (result["exit_code"], (tmp_path / "planted").exists())


@pytest.mark.parametrize("level", range(3))
def test_a_folder_that_everybody_may_write_runs_nothing(
    level: int, task: dict[str, Any], golden: Golden
) -> None:
    """The cell's, its pair's, or the campaign's."""
    folder = Path("out", task["folder"])
    folder.mkdir(parents=True)
    (folder, *folder.parents)[level].chmod(0o777)
    result, _ = run(task)
    assert (FAILED, False) == (result["exit_code"], (folder / "words").exists())
    golden.check(result["reason"].replace(task["folder"], "CELL"))


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5])
def test_only_an_answer_is_stored(code: int, task: dict[str, Any], golden: Golden) -> None:
    """A failure has its reason, and the cell is run again by the same command."""
    folder = Path("out", task["folder"])
    folder.mkdir(parents=True)
    (folder / "code").write_text(str(code))
    result, _ = run(task)
    assert code == result["exit_code"]
    assert (code in (1, 5)) == (folder / "cell.json").exists()
    golden.check(result["reason"])


def test_a_cell_whose_campaign_has_left_is_interrupted(task: dict[str, Any]) -> None:
    """As by Ctrl-C; it is not done."""
    folder = Path("out", task["folder"])
    folder.mkdir(parents=True)
    (folder / "long").touch()
    result = run_cell(task, lambda _: None, (folder / "ready").exists)
    assert INTERRUPTED == result["exit_code"]
    assert not (folder / "cell.json").exists()


def test_who_takes_a_cell_over_waits_for_the_run_before(
    task: dict[str, Any], golden: Golden
) -> None:
    """Until it lets the folder go, or the cell is unwanted."""
    messages: list[str] = []
    results: list[dict[str, Any]] = []
    with (
        Folder.open(Path("out", task["folder"]), make=True) as other,
        os.fdopen(other.lock()) as lock,
    ):
        assert lock_file(lock.fileno())
        assert INTERRUPTED == run(task, unwanted=True)[0]["exit_code"]
        waiting = threading.Thread(
            target=lambda: results.append(run_cell(task, messages.append, lambda: False))
        )
        waiting.start()
        wait_until("it says what it waits for", lambda: bool(messages))
    waiting.join()
    assert [0] == [result["exit_code"] for result in results]
    golden.check(messages[0])


def test_who_keeps_a_cell_for_too_long_is_named(
    task: dict[str, Any], monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """It fails; whoever only locks what they may read holds nothing up."""
    monkeypatch.setattr(cell_run, "LOCK_S", 0.0)
    with Folder.open(Path("out", task["folder"]), make=True) as other:
        assert lock_file(other.fd)
        with os.fdopen(other.lock()) as lock:
            assert lock_file(lock.fileno())
            result, _ = run(task)
        assert FAILED == result["exit_code"]
        why = result["reason"].replace(str(os.getpid()), "PID").replace(task["folder"], "CELL")
        golden.check(why.replace(str(Path.cwd()), ""))
        assert 0 == run(task)[0]["exit_code"]


def test_a_run_ends_with_its_worker(task: dict[str, Any], tmp_path: Path) -> None:
    """The kernel ends it (PR_SET_PDEATHSIG); until then it keeps the folder's lock."""
    folder = tmp_path / "out" / task["folder"]
    folder.mkdir(parents=True)
    code = (
        "import os, subprocess, sys, time; from pathlib import Path; "
        "from udpbench.campaign import bound_run; "
        "import udpbench.__main__ as program; "
        "program.main = lambda: (Path('pid').write_text(str(os.getpid())), time.sleep(600)); "
        "sys.argv = ['', str(os.getppid())]; bound_run.main()"
    )
    parent = (
        "import subprocess, sys, time; "
        "subprocess.Popen([sys.executable, '-c', sys.argv[1]]); time.sleep(600)"
    )
    worker = subprocess.Popen([sys.executable, "-c", parent, code], cwd=folder)
    try:
        pid = folder / "pid"
        wait_until("the run is bound", lambda: pid.exists() and pid.read_text() != "")
        child = int(pid.read_text())
    finally:
        worker.kill()
        worker.wait()
    wait_until("the run has ended", lambda: ended(child))


def ended(pid: int) -> bool:
    """Return whether a process is gone, or a zombie that nobody has read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_run_whose_worker_died_first_is_none(golden: Golden) -> None:
    """It is not bound to whoever inherits it."""
    command = (sys.executable, "-m", "udpbench.campaign.bound_run", "1", "schema")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (1, "") == (done.returncode, done.stdout)
    golden.check(done.stderr.strip())


def test_a_worker_that_does_not_see_the_folder_brings_the_files(
    task: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It keeps the run in its own cache, where it would be gone on with."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    result, _ = run({**task, "campaign": "of another disk"})
    assert {"run.jsonl", "cell.json", "first.yaml", "words"} == set(result["files"])
    assert b"" == result["files"]["run.jsonl"]
    assert not Path("out", task["folder"]).exists()
    own = tmp_path / "home" / ".cache" / "udpbench" / "campaigns" / "of another disk"
    assert (own / task["folder"] / "cell.json").exists()


def test_another_build_is_refused(task: dict[str, Any], golden: Golden) -> None:
    """Before anything is written."""
    result, _ = run({**task, "build": "other"})
    assert (FAILED, False) == (result["exit_code"], Path("out", task["folder"]).exists())
    golden.check(result["reason"], build=cell_run.build_id())


def test_a_folder_that_cannot_be_written_is_a_reason(task: dict[str, Any], golden: Golden) -> None:
    """Not the end of the worker."""
    Path("out", "rack1").write_text("")
    result, _ = run(task)
    assert FAILED == result["exit_code"]
    golden.check(result["reason"].replace(task["folder"], "CELL"))


def test_a_run_that_is_killed_is_no_answer(
    task: dict[str, Any], monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """A signal is no exit code of udpbench's."""
    killed = (sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})")
    monkeypatch.setattr(cell_run, "PROGRAM", killed)
    result, _ = run(task)
    assert FAILED == result["exit_code"]
    golden.check(result["reason"])
    assert os.getpid()

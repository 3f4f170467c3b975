"""What a newcomer types to find out more: help, man pages, completion; the texts are the same."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from golden import Golden
from typer.testing import CliRunner

from udpbench.commands.command_line import app

VARIABLE = "_UDPBENCH_COMPLETE"


def typed(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Return what the program prints in a folder of its own, as a user starts it."""
    return subprocess.run(
        [sys.executable, "-m", "udpbench", *words],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def printed(*words: str) -> str:
    """Return what the command line prints; it must succeed."""
    done = CliRunner().invoke(app, [*words], catch_exceptions=False)
    assert 0 == done.exit_code
    return done.output


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["-h"], ["--help"]),
        (["help"], ["--help"]),
        ([], ["--help"]),
        (["run", "-h"], ["run", "--help"]),
        (["help", "run"], ["run", "--help"]),
        (["help", "store", "add"], ["store", "add", "--help"]),
        (["help", "run", "smoke"], ["run", "--help"]),
    ],
)
def test_help_is_found_by_every_name(words: list[str], same: list[str]) -> None:
    """Whichever a user tries first."""
    assert printed(*same) == printed(*words)


def test_an_unknown_verb_has_no_help(golden: Golden) -> None:
    """The error says what may be meant."""
    done = typed("help", "rnu")
    assert 2 == done.returncode
    golden.check(done.stderr.strip())


def test_no_verb_is_cut_short_in_the_list() -> None:
    """Each is described in the line that it has."""
    assert "..." not in printed("--help").partition("Commands:")[2]


def test_man_pages_have_the_texts_of_the_help(tmp_path: Path) -> None:
    """One for each verb, also for one below another, and none that roff misreads."""
    printed("help", "--man", str(tmp_path))
    pages = {page.name: page.read_text() for page in tmp_path.iterdir()}
    assert {"udpbench.1", "udpbench-run.1", "udpbench-store-add.1"} <= set(pages)
    run = pages["udpbench-run.1"]
    assert ".SH NAME\nudpbench\\-run \\- Run experiments; print results and ledger" in run
    assert ".B \\-\\-lease <str>\nhosts restore themselves after this long without contact" in run
    for page in pages.values():
        heads = [line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))]
        assert {".TH", ".SH", ".TP", ".B"} >= set(heads)


def test_a_man_page_is_not_written_through_a_link(tmp_path: Path) -> None:
    """Root may write into a folder in which others have put one."""
    (tmp_path / "elsewhere").write_text("kept")
    (tmp_path / "udpbench.1").symlink_to(tmp_path / "elsewhere")
    os.link(tmp_path / "elsewhere", tmp_path / "udpbench-run.1")
    printed("help", "--man", str(tmp_path))
    assert "kept" == (tmp_path / "elsewhere").read_text()
    assert not (tmp_path / "udpbench.1").is_symlink()
    assert ".SH NAME" in (tmp_path / "udpbench-run.1").read_text()


def test_a_folder_of_man_pages_is_written_by_its_owner_alone(tmp_path: Path) -> None:
    """Whatever the umask; everybody may read it."""
    before = os.umask(0)
    try:
        printed("help", "--man", str(tmp_path / "share" / "man1"))
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode for name in ("share", "share/man1/udpbench.1")]
    assert [0o755, 0o644] == [stat.S_IMODE(mode) for mode in modes]


@pytest.mark.skipif(os.getuid() != 0, reason="gives a link to another user")
def test_root_writes_man_pages_to_no_folder_of_strangers(tmp_path: Path) -> None:
    """They could put a link there."""
    (tmp_path / "real").mkdir()
    (tmp_path / "man").symlink_to(tmp_path / "real")
    os.chown(tmp_path / "man", 1234, 1234, follow_symlinks=False)
    done = typed("help", "--man", str(tmp_path / "man"))
    assert 3 == done.returncode
    assert "belongs to user 1234" in done.stderr
    assert [] == [*(tmp_path / "real").iterdir()]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("udpbench re", ["report", "restore"]),
        ("udpbench run sm", ["smoke"]),
        ("udpbench run --lab two-h", ["two-hosts"]),
        ("udpbench run mi", ["million/00-preparation", "mine.yaml"]),
        ("udpbench run inside/", ["inside/deep.yaml"]),
        ("udpbench show ", ["results/b", "results/a"]),
        ("udpbench show results/", ["results/b", "results/a"]),
        ("udpbench run nowhere/", [""]),
    ],
)
def test_the_shell_completes_verbs_options_and_names(
    words: str, offered: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the variable that its script sets; what ships, and what is in the folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("mine.yaml", ".hidden.yaml", "inside/deep.yaml", "results/a/x", "results/b/x"):
        Path(name).parent.mkdir(exist_ok=True, parents=True)
        Path(name).touch()
    place = str(words.count(" "))
    done = typed(**{VARIABLE: "complete_bash", "COMP_WORDS": words, "COMP_CWORD": place})
    assert (0, "") == (done.returncode, done.stderr)
    assert set(offered) <= set(done.stdout.split("\n"))
    assert ".hidden.yaml" not in done.stdout


@pytest.mark.parametrize("words", ["udpbench run ", "udpbench show ", "udpbench show results/"])
def test_no_path_is_offered_that_a_shell_would_obey(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zsh evaluates what is offered, and in a shared folder anybody may name a file."""
    monkeypatch.chdir(tmp_path)
    for name in ("x\\$(touch y).yaml", "a`b`.yaml", "c;d.yaml", "e\nf.yaml"):
        Path(name).touch()
        (Path("results") / name).mkdir(parents=True)
    Path("plain.yaml").touch()
    (Path("results") / "plain").mkdir()
    place = {"COMP_WORDS": words, "COMP_CWORD": "2", "_TYPER_COMPLETE_ARGS": words}
    for shell in ("bash", "zsh", "fish"):
        action = {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
        done = typed(**{VARIABLE: f"complete_{shell}"}, **place, **action)
        assert "plain" in done.stdout
        assert not [text for text in ("touch", "`", ";", "e\nf") if text in done.stdout]


@pytest.mark.parametrize("order", ["source_bash", "bash_source"])
def test_the_script_of_completion_is_printed(order: str) -> None:
    """In the words of typer and of click; the exit code is that of success."""
    done = typed(**{VARIABLE: order})
    assert (0, "") == (done.returncode, done.stderr)
    assert "complete -o default -F _udpbench_completion udpbench" in done.stdout


def test_completion_is_installed_into_the_home(tmp_path: Path) -> None:
    """For the shell that runs the program."""
    line = f"{sys.executable} -m udpbench --install-completion; echo exit $?"
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True)
    assert "" == done.stderr
    assert done.stdout.endswith("exit 0\n")
    script = tmp_path / ".bash_completions" / "udpbench.sh"
    assert f"source '{script}'" in (tmp_path / ".bashrc").read_text()
    assert VARIABLE in script.read_text()

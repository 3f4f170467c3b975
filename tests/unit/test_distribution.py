"""What the distributions hold: the source to build, test and demonstrate all, the wheel its types."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import tomllib
from ast import literal_eval
from importlib import import_module
from pathlib import Path

import pytest
from setuptools.command.editable_wheel import editable_wheel

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "docs", "experiments", "native", "tests", "udpbench")
FILES = (
    ".clang-format",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "MANIFEST.in",
    "README.md",
    "mkdocs.yml",
    "noxfile.py",
    "pyproject.toml",
    "setup.py",
)
BUILT = (".pyc", ".so")
SETTING_UP = f"""
import os, subprocess, sys
commands = []
def run(command, **_):
    commands.append([str(word) for word in command])
    return subprocess.CompletedProcess(command, len(commands) == 1)
def execv(program, words):
    sys.exit(print(commands))
subprocess.run, os.execv, sys.modules["nox"] = run, execv, None
text = open({str(ROOT / "noxfile.py")!r}).read()
text = text.replace("    install_system_packages()\\n    home", "    home")
exec(compile(text, "noxfile.py", "exec"), {{"__file__": "noxfile.py", "__name__": "noxfile"}})
"""
INSTALLING = f"""
import sys, unittest.mock
from pathlib import Path
sys.modules["nox"] = unittest.mock.MagicMock()
sys.path.insert(0, {str(ROOT)!r})
import noxfile
noxfile.os.geteuid = lambda: 0
noxfile.SERVICE_POLICY = Path("policy-rc.d")
noxfile.install_system_packages({{"x": lambda: False}})
"""
WITHOUT_UV = f"""
import subprocess, sys, unittest.mock
from pathlib import Path
sys.modules["nox"] = unittest.mock.MagicMock()
sys.path.insert(0, {str(ROOT)!r})
import noxfile
noxfile.subprocess.run = lambda command, **_: subprocess.CompletedProcess(command, %d)
session = unittest.mock.Mock()
noxfile.make_environment(session, "python3", Path("home"))
noxfile.install(session, Path("home"), "cffi")
print([*map(str, (word for call in session.run.call_args_list for word in call.args))])
"""
GIVING_WAY = f"""
import os, subprocess, sys, unittest.mock
sys.modules["nox"] = unittest.mock.MagicMock()
sys.path.insert(0, {str(ROOT)!r})
import noxfile
noxfile.pytest_beside = lambda name, *words: ("true",)
noxfile.runs_lab_tests, noxfile.install_system_packages = lambda: True, lambda packages: None
os.environ[noxfile.BESIDE] = "1"
behind = subprocess.Popen(["nice", "-n19", "sleep", "60"])
while os.getpriority(os.PRIO_PROCESS, behind.pid) != 19:
    os.sched_yield()
noxfile.begin_lab_tests()
noxfile.BESIDES.shutdown()
print(*(os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, behind.pid)))
behind.kill()
behind.wait()
"""
APT_GET = """#!/bin/sh
test "$2" = update || { echo begun >&2; exec sleep 60; }
"""
"""Apt that goes on for ever, and says when it has begun."""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return the files of a source distribution, relative to its folder."""
    folder = tmp_path_factory.mktemp("sdist")
    build = (sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(folder))
    command = (*build, "sdist", "--dist-dir", str(folder))
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (archive,) = folder.glob("udpbench-*.tar.gz")
    with tarfile.open(archive) as tar:
        return {member.name.partition("/")[2] for member in tar if member.isfile()}


def sources() -> set[str]:
    """Return every source file of the project."""
    files = (file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.is_file())
    return {str(file.relative_to(ROOT)) for file in files if file.suffix not in BUILT}


def test_the_source_distribution_has_every_source_file(packed: set[str]) -> None:
    """``noxfile.py demo`` and ``test`` run from it as they do from a checkout."""
    assert set() == {*sources(), *FILES} - packed


def test_the_source_distribution_has_nothing_that_was_built(packed: set[str]) -> None:
    """Extension modules and bytecode stay behind."""
    assert [] == [name for name in sorted(packed) if name.endswith(BUILT)]


def test_the_package_ships_its_types() -> None:
    """A type checker believes annotations only of a package that has py.typed (PEP 561)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "py.typed" in project["tool"]["setuptools"]["package-data"]["udpbench"]
    assert (ROOT / "udpbench" / "py.typed").is_file()


def test_an_editable_installation_imports_nothing_from_the_current_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For a package without __init__.py setuptools would put a relative folder into sys.path."""
    installed: list[str] = []
    install = lambda command: installed.extend(command.distribution.packages)  # noqa: E731
    monkeypatch.setattr(editable_wheel, "run", install)
    monkeypatch.chdir(ROOT)
    run_setup = import_module("distutils.core").run_setup  # setuptools' own
    project = run_setup("setup.py", stop_after="config")
    project.get_command_obj("editable_wheel").run()
    assert {"udpbench", "udpbench.agent"} <= {*installed}
    folders = [ROOT.joinpath(*name.split(".")) for name in installed]
    assert [] == [folder for folder in folders if not (folder / "__init__.py").is_file()]


def test_what_sets_up_a_checkout_imports_nothing_from_the_current_folder(tmp_path: Path) -> None:
    """Root may be in a folder that others write."""
    (tmp_path / ".nox/bootstrap/bin").mkdir(parents=True)
    (tmp_path / ".nox/bootstrap/bin/python").touch()
    command = [sys.executable, "-P", "-c", SETTING_UP]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    commands = literal_eval(done.stdout.splitlines()[-1])
    assert 4 == len(commands)
    assert ["-P"] * 4 == [words[1] for words in commands]


@pytest.mark.parametrize(
    ("status", "commands"),
    [
        (0, []),
        (
            2,
            [
                "python3",
                "-m",
                "venv",
                "--clear",
                "home",
                "home/bin/pip",
                "install",
                "--quiet",
                "cffi",
            ],
        ),
    ],
)
def test_where_uv_fails_pip_installs(status: int, commands: list[str]) -> None:
    """It may be missing, or know no way to an index that pip knows."""
    command = [sys.executable, "-P", "-c", WITHOUT_UV % status]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert commands == literal_eval(done.stdout.splitlines()[-1])


def test_whoever_ends_the_installation_of_packages_leaves_no_policy(tmp_path: Path) -> None:
    """With it no package would start its services any more."""
    apt = tmp_path / "apt-get"
    apt.write_text(APT_GET)
    apt.chmod(0o755)
    installing = subprocess.Popen(
        [sys.executable, "-P", "-c", INSTALLING],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert installing.stderr is not None
    with installing, installing.stderr as errors:
        assert "begun\n" == errors.readline()
        assert (tmp_path / "policy-rc.d").exists()
        os.killpg(installing.pid, signal.SIGTERM)
    assert 143 == installing.returncode
    assert not (tmp_path / "policy-rc.d").exists()


def test_what_gives_way_to_lab_tests_does_so_until_these_have_ended() -> None:
    """Four busy programs would leave a program of the lowest priority a fiftieth of a CPU."""
    if os.geteuid() != 0:
        pytest.skip("root alone may raise a priority again")
    command = [sys.executable, "-c", GIVING_WAY]
    after = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
    own, raised = after.stdout.split()
    assert own == raised, after.stderr

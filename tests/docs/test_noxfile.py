"""The last line of `noxfile.py`: which sessions failed, and the command that repeats just that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = next(
    (
        python
        for python in (ROOT / ".nox/bootstrap/bin/python", Path(sys.executable))
        if python.exists()
        and subprocess.run([python, "-c", "import nox"], stderr=subprocess.DEVNULL).returncode == 0
    ),
    None,
)
NOXFILE = f"""
own_name, __name__ = __name__, "sessions"
exec(compile(open({str(ROOT / "noxfile.py")!r}).read(), __file__, "exec"))
__name__ = own_name
HOME = Path({str(ROOT / ".nox/udpbench")!r})
prepare = install_system_packages = lambda *_: None

for name, fails in dict(quick=True, agent=False, native=False, docs=False).items():
    def session(session, fails=fails):
        if fails:
            begin_lab_tests()
            session.error("style")
    nox.session(session, name=name)

if __name__ == "__main__":
    main()
"""
TESTS = """
import pytest

@pytest.mark.parametrize("what", ["well", "not well"])
def test_it(what):
    assert what == "well"

@pytest.mark.apart
def test_beside():
    assert not %s
"""
MEETING = """
import contextlib, os

def test_way():
    sanitized = "UDPBENCH_SANITIZE" in os.environ
    with contextlib.suppress(FileExistsError):
        os.mkfifo("meeting")
    with open("meeting", "w" if sanitized else "r"):
        assert not sanitized
"""
"""An end of a FIFO is opened once the other is."""

pytestmark = pytest.mark.skipif(PYTHON is None, reason="needs nox, which noxfile.py installs")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a project whose style is bad, and one of whose lab tests fails."""
    return make_project(tmp_path, beside_fails=False)


def make_project(folder: Path, beside_fails: bool) -> Path:
    """Make such a project; the lab test that runs beside the others may fail, too."""
    (folder / "noxfile.py").write_text(NOXFILE)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = apart\n")
    (folder / "tests/lab").mkdir(parents=True)
    (folder / "tests/lab/test_x.py").write_text(TESTS % beside_fails)
    return folder


def lines(project: Path, *words: str) -> list[str]:
    """Return what noxfile.py prints, with a lab that needs no root."""
    without = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [str(PYTHON), "noxfile.py", *words],
        cwd=project,
        env={**without, "UDPBENCH_REQUIRE_LAB": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert 1 == done.returncode, done.stdout
    return done.stdout.splitlines()


def test_the_last_line_repeats_just_what_failed(project: Path) -> None:
    """The session whose test failed with that test alone; no session is a success by itself."""
    failed = "tests/lab/test_x.py::test_it[not well]"
    printed = lines(project, "test")
    assert (
        "failed: quick, lab; to repeat: "
        f"python3 noxfile.py quick && python3 noxfile.py lab -- '{failed}'" == printed[-1]
    )
    assert not [line for line in printed if "test: success" in line]

    again = lines(project, "lab", "--", failed)
    assert f"failed: lab; to repeat: python3 noxfile.py lab -- '{failed}'" == again[-1]
    assert [line for line in again if "1 failed in" in line]


def test_lab_tests_that_run_beside_others_are_named_too(tmp_path: Path) -> None:
    """They have ended before the lab's others begin, and their output stands there."""
    printed = lines(make_project(tmp_path, beside_fails=True), "test")
    tests = "'tests/lab/test_x.py::test_it[not well]' tests/lab/test_x.py::test_beside"
    assert printed[-1].endswith(f"noxfile.py lab -- {tests}")
    (waits,) = (n for n, line in enumerate(printed) if line.startswith("waiting for the lab tests"))
    assert [line for line in printed[waits:] if "test_beside - assert not True" in line]


def test_native_tests_that_fail_sanitized_alone_are_named_once(project: Path) -> None:
    """Both ways run at the same time: neither ends before the other has begun."""
    (project / "noxfile.py").write_text(NOXFILE.replace(" native=False,", ""))
    (project / "setup.py").touch()
    (project / "tests/native").mkdir()
    (project / "tests/native/test_x.py").write_text(MEETING)
    printed = lines(project, "native")
    (failed,) = (line for line in printed if line.startswith("FAILED"))
    assert "test_way - " in failed
    assert printed[-1].endswith("noxfile.py native -- tests/native/test_x.py::test_way")


def test_documentation_that_fails_beside_others_is_named(project: Path) -> None:
    """Its tests have begun before; the session waits for them, and begins none itself."""
    text = NOXFILE.replace(", docs=False", "").replace("begin_lab_tests()", "begin_docs_tests()")
    (project / "noxfile.py").write_text(text)
    (project / "tests/docs").mkdir()
    (project / "tests/docs/test_x.py").write_text("def test_it():\n    assert False\n")
    printed = lines(project, "test")
    assert "noxfile.py docs -- tests/docs/test_x.py::test_it" in printed[-1]
    assert 1 == len([line for line in printed if line.startswith("FAILED tests/docs/test_x.py")])

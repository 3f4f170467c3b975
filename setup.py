"""What pyproject.toml cannot say: the C extension, the commit, and the man pages of a build."""

import contextlib
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
COMMIT = Path("udpbench") / "commit"
MAN = Path("build") / "man"


def commit() -> str:
    """Return the commit that is built: git's, or what a source distribution has of it."""
    if (ROOT / COMMIT).is_file():
        return (ROOT / COMMIT).read_text().strip()
    if not (ROOT / ".git").exists():
        return ""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, check=True, text=True)
        return done.stdout.strip()
    return ""


class BuildWithCommit(build_py):
    """Builds the package with a file that names its commit."""

    def run(self) -> None:
        """Build, unless nothing is copied: an editable installation asks git."""
        super().run()
        if commit() and not self.editable_mode:
            (Path(self.build_lib) / COMMIT).write_text(f"{commit()}\n")


class EditableWithoutShipped(editable_wheel):
    """Leaves out the folder without modules, which is read from the checkout.

    For a namespace package setuptools (80) puts a relative folder into ``sys.path``: of whoever
    writes the current folder.
    """

    def run(self) -> None:
        """Install."""
        self.distribution.packages.remove("udpbench.shipped")
        super().run()


class SourceWithCommit(sdist):
    """Packs the source with the same file."""

    def make_release_tree(self, base_dir: str, files: list) -> None:
        """Pack, and write the file into what is packed."""
        super().make_release_tree(base_dir, files)
        if commit():
            (Path(base_dir) / COMMIT).write_text(f"{commit()}\n")


def man_pages() -> list:
    """Return the man pages, written anew; none without typer, as on a host of Python 3.9."""
    program = (
        "import sys; from udpbench.commands.command_line import app; "
        f"app(['help', '--man', {str(MAN)!r}], standalone_mode=False)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=False)
    return sorted(map(str, MAN.glob("*.1")))


setup(
    cffi_modules=["native/build.py:ffibuilder"],
    cmdclass={
        "build_py": BuildWithCommit,
        "editable_wheel": EditableWithoutShipped,
        "sdist": SourceWithCommit,
    },
    data_files=[("share/man/man1", man_pages())] if "bdist_wheel" in sys.argv else [],
)

"""What is written into a folder goes nowhere else, whatever others put in the way."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from golden import Golden

from udpbench import folder
from udpbench.folder import Folder, calling_user

STRANGER = 54321


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Be root, called by whoever owns the test's folder, and return the folder.

    What is ``strange`` is of somebody else by its number, so that no test needs to be root.
    """
    fstat = os.fstat

    def owned(fd: int) -> os.stat_result:
        status = fstat(fd)
        strange = "strange" in Path(os.readlink(f"/proc/self/fd/{fd}")).name  # noqa: PTH115
        return os.stat_result((*status[:4], STRANGER if strange else status[4], *status[5:]))

    monkeypatch.setenv("SUDO_UID", str(os.geteuid()))
    monkeypatch.setattr(folder.os, "geteuid", lambda: 0)
    monkeypatch.setattr(folder.os, "fstat", owned)
    return tmp_path


def content(path: Path) -> dict[str, str]:
    """Return the files of a folder with what they hold."""
    return {file.name: file.read_text() for file in sorted(path.iterdir()) if not file.is_symlink()}


def names(path: Path) -> list[str]:
    """Return the names in a folder."""
    return sorted(file.name for file in path.iterdir())


def test_a_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    """Also where some are there, and where the path goes by a link of one's own."""
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    with Folder.open(tmp_path / "link" / ".." / "a" / "b" / "c", make=True) as nested:
        nested.write("x", b"1")
    assert {"x": "1"} == content(tmp_path / "a" / "b" / "c")


def test_what_is_mounted_on_demand_is_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Autofs waits for a folder to be opened as one; by O_PATH alone its mount point stays bare."""
    flags: dict[str, int] = {}
    real = os.open

    def noted(name: str, how: int, *mode: int, dir_fd: int | None = None) -> int:
        fd = real(name, how, *mode, dir_fd=dir_fd)
        flags[name] = how
        return fd

    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    monkeypatch.setattr(folder.os, "open", noted)
    Folder.open(tmp_path / "link" / "out", make=True).close()
    assert all(flags[name] & os.O_DIRECTORY for name in ("data", "out", tmp_path.name))


@pytest.mark.parametrize(
    ("name", "code"), [("gone", errno.ENOENT), ("file", errno.ENOTDIR), ("loop", errno.ELOOP)]
)
def test_what_leads_to_no_folder_is_reported(
    tmp_path: Path, name: str, code: int, golden: Golden
) -> None:
    """With the path as it was given."""
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with golden.raises(OSError) as caught:
        Folder.open(tmp_path / name)
    assert (code, str(tmp_path / name)) == (caught.value.errno, caught.value.filename)


def test_a_file_replaces_a_link_and_not_what_it_leads_to(tmp_path: Path) -> None:
    """Whoever put the link there gets nothing overwritten."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    out = tmp_path / "out"
    out.mkdir()
    (out / "report.pdf").symlink_to(victim)
    with Folder.open(out) as held:
        assert out / "report.pdf" == held.write("report.pdf", b"new")
    assert ("mine", {"report.pdf": "new"}) == (victim.read_text(), content(out))


def test_a_link_is_not_opened(tmp_path: Path, golden: Golden) -> None:
    """Neither to be written nor to be made by way of it."""
    (tmp_path / "run.jsonl").symlink_to(tmp_path / "victim")
    for flags in (os.O_WRONLY, os.O_WRONLY | os.O_CREAT):
        with Folder.open(tmp_path) as held, golden.raises(OSError):
            held.file("run.jsonl", flags)
    assert not (tmp_path / "victim").exists()


def test_a_folder_is_held_wherever_its_path_leads_later(tmp_path: Path) -> None:
    """What is put in its place meanwhile gets nothing."""
    with Folder.open(tmp_path / "out", make=True) as held:
        (tmp_path / "out").rename(tmp_path / "aside")
        (tmp_path / "trap").mkdir()
        (tmp_path / "out").symlink_to("trap")
        held.write("x", b"1")
        held.make("y").close()
    assert (["x", "y"], []) == (names(tmp_path / "aside"), names(tmp_path / "trap"))


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path: Path, golden: Golden) -> None:
    """And the error names the file that was meant."""
    (tmp_path / "x").mkdir()
    with Folder.open(tmp_path) as held, golden.raises(OSError) as caught:
        held.write("x", b"1")
    assert (str(tmp_path / "x"), ["x"]) == (caught.value.filename, names(tmp_path))


def test_removing_takes_the_name_alone(tmp_path: Path) -> None:
    """A link goes and what it leads to stays; of a folder everything goes; nothing is no error."""
    (tmp_path / "kept" / "in").mkdir(parents=True)
    (tmp_path / "link").symlink_to("kept")
    (tmp_path / "tree" / "in").mkdir(parents=True)
    with Folder.open(tmp_path) as held:
        for name in ("link", "tree", "none"):
            held.remove(name)
        assert ["kept"] == held.names()
    assert (tmp_path / "kept" / "in").is_dir()


@pytest.mark.parametrize("path", ["strange", "strange/mine", "strange-link", "to/../strange-link"])
def test_root_goes_by_nobody_elses_way(root: Path, path: str, golden: Golden) -> None:
    """A folder or a link of another user's is refused wherever on the way it is, and named."""
    (root / "strange" / "mine").mkdir(parents=True)
    (root / "to").mkdir()
    (root / "strange-link").symlink_to("to")
    with golden.raises(PermissionError):
        Folder.open(root / path, make=True)


def test_where_one_stands_is_of_no_account_to_a_whole_path(
    root: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Another user's folder leads a path that begins there, and no other."""
    (root / "strange").mkdir()
    monkeypatch.chdir(root / "strange")
    with golden.raises(PermissionError):
        Folder.open(Path("out"), make=True)
    Folder.open(root / "out", make=True).close()


def test_root_takes_what_is_the_callers(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is whom sudo names; what is not a number is nobody."""
    Folder.open(root / "a", make=True).close()
    assert root.stat().st_uid == calling_user()
    monkeypatch.setenv("SUDO_UID", "nobody")
    assert 0 == calling_user()


def test_without_root_the_kernel_decides(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared folder is as good as any; sudo is of no account."""
    monkeypatch.setattr(folder.os, "geteuid", lambda: 77)
    Folder.open(root / "strange", make=True).close()
    assert 77 == calling_user()

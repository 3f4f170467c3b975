"""What is written into a folder goes nowhere else, whatever others put in the way."""

from __future__ import annotations

import errno
import os
import struct
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


def modes(path: Path) -> dict[str, int]:
    """Return the permissions of everything below a folder."""
    return {str(each.relative_to(path)): each.stat().st_mode & 0o777 for each in path.rglob("*")}


@pytest.fixture
def given(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Return what is given away by root, whom sudo has called for user 1234."""
    gifts: list[tuple[str, int, int]] = []
    own = os.stat(root).st_uid  # noqa: PTH116

    def noted(fd: int, user: int, group: int) -> None:
        gifts.append((str(folder.real_path(fd).relative_to(root)), user, group))

    monkeypatch.setenv("SUDO_UID", "1234")
    monkeypatch.setenv("SUDO_GID", "5678")
    monkeypatch.setattr(folder, "trusted_owners", lambda: frozenset((0, own, 1234)))
    monkeypatch.setattr(folder.os, "fchown", noted)
    if own != 0:  # what the test creates is as if it were root's
        monkeypatch.setattr(folder.os, "geteuid", lambda: 0)
        fstat = folder.os.fstat

        def owned(fd: int) -> os.stat_result:
            status = fstat(fd)
            return os.stat_result((*status[:4], 0 if status[4] == own else status[4], *status[5:]))

        monkeypatch.setattr(folder.os, "fstat", owned)
    return gifts


def test_what_root_creates_is_the_callers_alone(
    root: Path, given: list[tuple[str, int, int]]
) -> None:
    """Folders 0700 and files 0600, whatever the umask, each of whoever typed sudo; no link of it."""
    before = os.umask(0)
    try:
        with Folder.open(root / "a" / "b", make=True) as held:
            os.close(held.file("run.jsonl", os.O_RDWR | os.O_CREAT | os.O_EXCL))
            os.close(held.file("series.jsonl", os.O_RDWR | os.O_CREAT))
            held.write("report.html", b"1")
            held.make("figures").close()
    finally:
        os.umask(before)
    files = {f"a/b/{name}": 0o600 for name in ("run.jsonl", "series.jsonl", "report.html")}
    assert {"a": 0o700, "a/b": 0o700, "a/b/figures": 0o700, **files} == modes(root)
    assert {(1234, 5678)} == {(user, group) for _, user, group in given}
    names = [name.replace("/.report", "/report").split(".html")[0] for name, _, _ in given]
    assert ["a", "a/b", "a/b/run.jsonl", "a/b/series.jsonl", "a/b/report", "a/b/figures"] == names


def test_what_is_there_keeps_its_owner(root: Path, given: list[tuple[str, int, int]]) -> None:
    """Only what is created is given away: an old folder and file are as they were."""
    (root / "old").mkdir(mode=0o755)
    (root / "old" / "x").touch(0o644)
    with Folder.open(root / "old", make=True) as held:
        os.close(held.file("x", os.O_RDWR | os.O_CREAT))
    assert [] == given
    assert 0o644 == (root / "old" / "x").stat().st_mode & 0o777


def test_what_root_relies_on_stays_roots(root: Path, given: list[tuple[str, int, int]]) -> None:
    """A result of ``selftest`` that a user could change would prove nothing to root."""
    with Folder.open(root / "state", make=True, give=False) as held:
        held.write("x", b"1")
        held.make("y").close()
    assert [] == given


def test_another_folder_in_its_place_is_not_given_away(
    root: Path, given: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever owns the folder around it may be faster; what holds something is of somebody."""
    mkdir = os.mkdir

    def swapped(name: str, mode: int, dir_fd: int | None = None) -> None:
        mkdir(name, mode, dir_fd=dir_fd)
        (root / name / "precious").touch()

    monkeypatch.setattr(folder.os, "mkdir", swapped)
    Folder.open(root / "out", make=True).close()
    assert [] == given


def test_a_disk_without_owners_is_no_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be given away stays root's, and private."""

    def refused(*_: int) -> None:
        raise PermissionError(errno.EPERM, "no owners here")

    monkeypatch.setenv("SUDO_UID", str(os.stat(root).st_uid or 1234))  # noqa: PTH116
    monkeypatch.setattr(folder.os, "fchown", refused)
    with Folder.open(root, make=True) as held:
        held.write("x", b"1")
    assert {"x": 0o600} == modes(root)


@pytest.mark.parametrize("text", ["", "-1", "4294967295", "9" * 30, "٣", " 5", "0x5", "+5"])
def test_what_is_no_user_is_nobody(text: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """-1 would leave the owner as it is; the group stays as it is."""
    monkeypatch.setenv("SUDO_UID", text)
    assert 0 == calling_user()
    groups: list[int] = []
    monkeypatch.setattr(folder.os, "fchown", lambda *owner: groups.append(owner[-1]))
    monkeypatch.setenv("SUDO_UID", str(os.stat(root).st_uid or 1234))  # noqa: PTH116
    monkeypatch.setenv("SUDO_GID", text)
    with Folder.open(root, make=True) as held:
        held.write("x", b"1")
    assert [-1] == groups


def test_root_writes_to_no_file_of_two_names(root: Path, golden: Golden) -> None:
    """The other may be one of the system, where links to others' files are not forbidden."""
    (root / "passwd").touch()
    (root / "run").mkdir()
    os.link(root / "passwd", root / "run" / "run.jsonl")
    with Folder.open(root / "run") as held:
        for flags in (os.O_RDWR, os.O_RDWR | os.O_CREAT):
            with golden.raises(PermissionError):
                held.file("run.jsonl", flags)
        os.close(held.file("run.jsonl", os.O_RDONLY))


def test_without_root_the_umask_decides_who_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with any program; but no group or ACL writes what it makes."""
    monkeypatch.setattr(folder.os, "geteuid", lambda: 77)
    given = {"a": (0o002, 0o755, 0o644), "b": (0o027, 0o750, 0o640), "c": (0, 0o755, 0o644)}
    for name, (mask, of_folder, of_file) in given.items():
        before = os.umask(mask)
        try:
            with Folder.open(tmp_path / name, make=True) as held:
                held.write("x", b"1")
        finally:
            os.umask(before)
        assert {name: of_folder, f"{name}/x": of_file}.items() <= modes(tmp_path).items()


def test_an_own_folder_is_written_by_no_acl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor by one that cannot be read."""
    Folder.open_own(tmp_path).close()
    entries = ((1, 7, -1), (2, 7, STRANGER), (4, 5, -1), (16, 7, -1), (32, 5, -1))
    acl = b"".join([struct.pack("<I", 2), *(struct.pack("<HHi", *entry) for entry in entries)])
    os.setxattr(tmp_path, "system.posix_acl_access", acl)  # xattr(7), linux/posix_acl_xattr.h
    with pytest.raises(PermissionError, match="can be written by whom its ACL names"):
        Folder.open_own(tmp_path)

    def refuse(*_: object) -> bytes:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(folder.os, "getxattr", refuse)
    with pytest.raises(OSError, match="Bad file descriptor"):
        Folder.open_own(tmp_path)

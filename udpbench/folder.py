"""A folder held by its descriptor, so that nothing can redirect what is written to it.

Owns how a path is walked and how a file is created: under another name, then renamed, so that no
link is followed. As root, every folder and link on the path has to belong to root or to the
calling user, because the owner of a folder or link decides where it leads.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from contextlib import suppress
from pathlib import Path

MAX_STEPS = 4096
"""Limit of names on one path, links included: PATH_MAX has no room for more."""
_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def calling_user() -> int:
    """Return the calling user: the user of sudo(8) if there is one, else this process's."""
    given = os.environ.get("SUDO_UID", "")
    return int(given) if os.geteuid() == 0 and given.isdecimal() else os.geteuid()


class Folder:
    """An open folder: files go into it even if ``path`` later leads elsewhere."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd

    @classmethod
    def open(cls, path: Path, make: bool = False) -> Folder:
        """Return the folder at a path, created with its parents if asked.

        Raises OSError with the name; as root, EPERM if something on the path belongs to another
        user.
        """
        at = os.open("/" if path.is_absolute() else ".", _STEP)
        try:
            _refuse_stranger(at)
            left = [*reversed(path.parts)]
            steps = 0
            while left:
                at = _step(at, left, make, steps)
                steps += 1
            return cls(path, os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=at))
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
        finally:
            os.close(at)

    def file(self, name: str, flags: int, mode: int = 0o644) -> int:
        """Return the descriptor of a file in the folder, as by open(2); follow no link."""
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=self.fd)

    def write(self, name: str, content: bytes) -> Path:
        """Write a whole file, replacing any of its name; the OSError names it."""
        beside = f".{name}.{secrets.token_hex(4)}"
        try:
            with open(self.file(beside, _NEW), "wb") as file:  # noqa: PTH123 - a descriptor
                file.write(content)
            os.replace(beside, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except OSError as error:
            with suppress(OSError):
                os.unlink(beside, dir_fd=self.fd)
            raise OSError(error.errno, error.strerror, str(self.path / name)) from error
        return self.path / name

    def make(self, name: str) -> Folder:
        """Return a new subfolder; raises FileExistsError if the name is taken."""
        os.mkdir(name, dir_fd=self.fd)
        return Folder(self.path / name, self.file(name, os.O_RDONLY | os.O_DIRECTORY))

    def remove(self, name: str) -> None:
        """Remove a file, a link, or a folder with its contents, if it exists."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return
        except IsADirectoryError:
            shutil.rmtree(name, dir_fd=self.fd)

    def rename(self, name: str, to: str) -> None:
        """Rename an entry."""
        os.rename(name, to, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def status(self, name: str) -> os.stat_result:
        """Return the state of an entry; of a link, the link's own."""
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False)

    def names(self) -> list[str]:
        """Return the sorted names of its entries."""
        return sorted(os.listdir(self.fd))  # noqa: PTH208 - Path has no descriptors

    def close(self) -> None:
        """Close its descriptor."""
        os.close(self.fd)

    def __enter__(self) -> Folder:  # noqa: PYI034 - Self is of Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _step(at: int, left: list[str], make: bool, steps: int) -> int:
    """Step from a folder to the next and close it; a link only changes the remaining path."""
    step = _opened(at, left.pop(), make)
    try:
        kind = _refuse_stranger(step)
        if stat.S_ISLNK(kind):
            _refuse(steps > MAX_STEPS, errno.ELOOP)
            left += reversed(Path(os.readlink("", dir_fd=step)).parts)
            at, step = step, at
        else:
            _refuse(not stat.S_ISDIR(kind), errno.ENOTDIR)
    except BaseException:
        os.close(step)
        raise
    os.close(at)
    return step


def _refuse(wrong: bool, code: int) -> None:
    if wrong:
        raise OSError(code, os.strerror(code))


def _opened(at: int, name: str, make: bool) -> int:
    try:
        return _reached(at, name)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=at)
    return _reached(at, name)


def _reached(at: int, name: str) -> int:
    try:  # opened as a folder, or autofs would not mount it (open(2), O_PATH)
        return os.open(name, _STEP | os.O_DIRECTORY, dir_fd=at)
    except NotADirectoryError:  # a link, or not a folder
        return os.open(name, _STEP, dir_fd=at)


def _refuse_stranger(fd: int) -> int:
    """Return the mode of what was opened; as root, EPERM if another user could redirect us.

    The owner of ``/`` counts as root, whatever number it has in a user namespace.
    """
    state = os.fstat(fd)
    if os.geteuid() != 0 or state.st_uid in (0, calling_user(), os.stat("/").st_uid):  # noqa: PTH116
        return state.st_mode
    where = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115
    what = f"{where} belongs to user {state.st_uid}; root writes only to folders of root"
    raise PermissionError(errno.EPERM, f"{what} or of the calling user")

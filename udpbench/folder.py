"""A folder held by its descriptor: what is written there goes nowhere else, whatever lies there.

Owns the way to a folder and how a file comes into it: made beside and renamed, so that no link is
followed. As root nothing on the way may belong to anybody but root and the user who called: whose
folder or link it is decides where it leads.
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
"""On one way, links among them: PATH_MAX has no room for more names."""
_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def calling_user() -> int:
    """Return the user who called: behind sudo(8) whoever typed it, else this process's own."""
    given = os.environ.get("SUDO_UID", "")
    return int(given) if os.geteuid() == 0 and given.isdecimal() else os.geteuid()


class Folder:
    """A folder; wherever ``path`` leads later, files go into what it led to when it was opened."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd

    @classmethod
    def open(cls, path: Path, make: bool = False) -> Folder:
        """Return the folder that a path leads to, made with its parents where asked.

        OSError with its name; as root EPERM where something on the way is another user's.
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
        """Return the descriptor of a file in it, as open(2) does; a link is not followed."""
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=self.fd)

    def write(self, name: str, content: bytes) -> Path:
        """Put a whole file there, in place of what has its name; OSError names it."""
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
        """Return a new folder in it; FileExistsError where something has its name."""
        os.mkdir(name, dir_fd=self.fd)
        return Folder(self.path / name, self.file(name, os.O_RDONLY | os.O_DIRECTORY))

    def remove(self, name: str) -> None:
        """Remove a file, a link or a folder with all that is in it, if it is there."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return
        except IsADirectoryError:
            shutil.rmtree(name, dir_fd=self.fd)

    def rename(self, name: str, to: str) -> None:
        """Give what is in it another name."""
        os.rename(name, to, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def status(self, name: str) -> os.stat_result:
        """Return what a name stands for, of a link the link itself."""
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False)

    def names(self) -> list[str]:
        """Return the sorted names of what is in it."""
        return sorted(os.listdir(self.fd))  # noqa: PTH208 - Path has no descriptors

    def close(self) -> None:
        """Let go of it."""
        os.close(self.fd)

    def __enter__(self) -> Folder:  # noqa: PYI034 - Self is of Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _step(at: int, left: list[str], make: bool, steps: int) -> int:
    """Go from a folder to the next one, and close it; of a link only what is left to go changes."""
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
    try:  # as a folder, for else autofs mounts nothing there (open(2), O_PATH)
        return os.open(name, _STEP | os.O_DIRECTORY, dir_fd=at)
    except NotADirectoryError:  # a link, or what leads nowhere
        return os.open(name, _STEP, dir_fd=at)


def _refuse_stranger(fd: int) -> int:
    """Return the mode of what is opened; as root EPERM where another user may lead us elsewhere.

    Whoever owns ``/`` is root, by whatever number a user namespace shows it.
    """
    state = os.fstat(fd)
    if os.geteuid() != 0 or state.st_uid in (0, calling_user(), os.stat("/").st_uid):  # noqa: PTH116
        return state.st_mode
    where = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115
    what = f"{where} is of user {state.st_uid}, and root writes only where it is root's"
    raise PermissionError(errno.EPERM, f"{what} or of the user who called")

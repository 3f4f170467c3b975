"""A folder held by its descriptor, so that nothing can redirect what is written to it.

Owns how a path is walked and how a file is created: under another name, then renamed, so that no
link is followed. As root, every folder and link on the path has to belong to root or to the
calling user, because the owner of a folder or link decides where it leads; and what is created is
private, and the calling user's. And exclusive locks on open files (flock(2)), which the kernel
frees when their last holder ends.
"""

from __future__ import annotations

import errno
import fcntl
import grp
import os
import pwd
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

MAX_STEPS = 4096
"""Limit of names on one path, links included: PATH_MAX has no room for more."""
LOCK_FILE = ".lock"
_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
LARGEST_ID = 2**32 - 2
"""(uid_t)-1 is no user: chown(2) takes it for "leave as it is"."""


def calling_user() -> int:
    """Return the calling user: the user of sudo(8) if there is one, else this process's."""
    given = _id_of_sudo("SUDO_UID")
    return given if given is not None and os.geteuid() == 0 else os.geteuid()


def trusted_owners() -> frozenset[int]:
    """Return whose files this user may rely on: root's, the calling user's, and the own.

    The owner of ``/`` counts as root, whatever number it has in a user namespace.
    """
    as_root = (os.stat("/").st_uid,) if os.geteuid() == 0 else ()  # noqa: PTH116
    return frozenset((0, calling_user(), os.geteuid(), *as_root))


def other_writers(at: int | Path, passed: bool = False) -> Iterator[str]:
    """Yield how others than root and the calling user may write a file, in words.

    A folder may be ``passed`` if nobody can replace what others have there, as in /tmp.
    """
    state = os.fstat(at) if isinstance(at, int) else at.lstat()
    if state.st_uid not in trusted_owners():
        yield f"belongs to user {state.st_uid}"
    if stat.S_ISLNK(state.st_mode) or (passed and state.st_mode & stat.S_ISVTX):
        return
    if state.st_mode & stat.S_IWOTH:
        yield "can be written by everybody"
    elif state.st_mode & stat.S_IWGRP and _has_acl(at):  # whose mask shows as the group's right
        yield "can be written by whom its ACL names (getfacl(1))"
    elif state.st_mode & stat.S_IWGRP and not _is_private(state.st_gid):
        yield f"can be written by group {state.st_gid}"


def _has_acl(at: int | Path) -> bool:
    # By its path: what is open as a mere step (O_PATH) cannot be asked.
    path = f"/proc/self/fd/{at}" if isinstance(at, int) else at
    try:
        return bool(os.getxattr(path, "system.posix_acl_access"))
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return False
        raise


def path_writers(path: Path) -> Iterator[str]:
    """Yield how others could replace or add to what a path leads to, there or not, in words."""
    known: list[Path] = []
    with suppress(OSError):
        known += takewhile(os.path.lexists, steps(path))
    for place, step in enumerate(known, start=1):
        passed = stat.S_ISDIR(step.lstat().st_mode) and place < len(known)
        yield from (f"{step} {how}" for how in other_writers(step, passed))


def steps(path: Path) -> Iterator[Path]:
    """Yield every folder and link by which an absolute path leads to its file, and the file."""
    at, left = Path("/"), [*reversed(path.parts)]
    for _ in range(MAX_STEPS):
        if not left:
            return
        name = left.pop()
        at = at.parent if name == ".." else at / name
        yield at
        if at.is_symlink():
            left += reversed(at.readlink().parts)
            at = at.parent


def _is_private(group: int) -> bool:
    """Return whether a group is that of root or of the calling user alone, as most systems make.

    The group lists no user who has it as the primary one: the user's own entry does.
    """
    with suppress(KeyError):
        known = grp.getgrgid(group)
        names = {user.pw_name for user in pwd.getpwall() if user.pw_gid == group}
        mine = {pwd.getpwuid(user).pw_name for user in {0, calling_user()}}
        return names == {known.gr_name} <= mine and {*known.gr_mem} <= names
    return False


def real_path(fd: int) -> Path:
    """Return the path of what is open, without links, wherever its name leads by now."""
    return Path(os.readlink(f"/proc/self/fd/{fd}"))  # noqa: PTH115


def _id_of_sudo(name: str) -> int | None:
    given = os.environ.get(name, "")
    if not (given.isascii() and given.isdecimal() and int(given) <= LARGEST_ID):
        return None
    return int(given)


class Folder:
    """An open folder: files go into it even if ``path`` later leads elsewhere."""

    def __init__(self, path: Path, fd: int, give: bool = True) -> None:
        self.path = path
        self.fd = fd
        self._give = give

    @classmethod
    def open(cls, path: Path, make: bool = False, give: bool = True) -> Folder:
        """Return the folder at a path, created with its parents if asked.

        As root, what is created is the calling user's alone; not with ``give=False``, for what
        root itself relies on later. Raises OSError with the name; as root, EPERM if something on
        the path belongs to another user.
        """
        at = os.open("/" if path.is_absolute() else ".", _STEP)
        try:
            _refuse_stranger(at)
            left = [*reversed(path.parts)]
            steps = 0
            while left:
                at = _step(at, left, make, give, steps)
                steps += 1
            return cls(path, os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=at), give)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
        finally:
            os.close(at)

    @classmethod
    def open_own(cls, path: Path) -> Folder:
        """Return a folder that this user alone may write, on a path through others' without links.

        Nobody else can have put it there: another name for a folder takes the right to write it.
        OSError.
        """
        at = os.open("/", _STEP)
        try:
            for name in path.parts[1:]:
                step = os.open(name, _STEP | os.O_DIRECTORY, dir_fd=at)
                os.close(at)
                at = step
            for how in other_writers(at):
                raise PermissionError(errno.EPERM, how, str(path))
            _refuse(os.fstat(at).st_uid != os.geteuid(), errno.EPERM)
            return cls(path, os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=at), give=False)
        finally:
            os.close(at)

    def file(self, name: str, flags: int, private: bool = False) -> int:
        """Return the descriptor of a file in the folder, as by open(2); follow no link.

        ``private``: a new one is its owner's alone.
        """
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC
        if flags & os.O_CREAT:
            try:
                return self._new(name, flags, private)
            except FileExistsError:
                if flags & os.O_EXCL:
                    raise
        fd = os.open(name, flags & ~os.O_CREAT, dir_fd=self.fd)
        if flags & (os.O_WRONLY | os.O_RDWR) and os.geteuid() == 0 and os.fstat(fd).st_nlink > 1:
            os.close(fd)
            what = "has another name, which may be a file of the system; copy it"
            raise PermissionError(errno.EPERM, what, str(self.path / name))
        return fd

    def lock(self) -> int:
        """Return an open file in the folder to be locked, which others can neither open nor lock.

        Whoever may read a folder could hold a lock of the folder itself. PermissionError if the
        file is somebody else's.
        """
        fd = self.file(LOCK_FILE, os.O_RDWR | os.O_CREAT, private=True)
        for how in other_writers(fd):
            os.close(fd)
            raise PermissionError(errno.EPERM, how, str(self.path / LOCK_FILE))
        return fd

    def _new(self, name: str, flags: int, private: bool) -> int:
        private |= self._give and os.geteuid() == 0
        fd = os.open(name, flags | os.O_EXCL, 0o600 if private else 0o644, dir_fd=self.fd)
        if self._give:
            _give_to_caller(fd)
        return fd

    def write(self, name: str, content: bytes, mode: int | None = None) -> Path:
        """Write a whole file, replacing any of its name; the OSError names it.

        With a mode whatever the umask is. By its name it could be another file, which whoever
        else writes the folder put there.
        """
        beside = f".{name}.{os.urandom(4).hex()}"
        try:
            with open(self.file(beside, _NEW), "wb") as file:  # noqa: PTH123 - a descriptor
                file.write(content)
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
            os.replace(beside, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except OSError as error:
            with suppress(OSError):
                os.unlink(beside, dir_fd=self.fd)
            raise OSError(error.errno, error.strerror, str(self.path / name)) from error
        return self.path / name

    def make(self, name: str) -> Folder:
        """Return a new subfolder; raises FileExistsError if the name is taken."""
        _make(name, self.fd, self._give)
        fd = self.file(name, os.O_RDONLY | os.O_DIRECTORY)
        return Folder(self.path / name, fd, self._give)

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

    def other_writers(self) -> list[str]:
        """Return how others than root and the calling user may write it, in words."""
        return list(other_writers(self.fd))

    def close_to_others(self) -> None:
        """Let nobody but its owner write it, if that is this user."""
        with suppress(PermissionError):
            os.fchmod(self.fd, stat.S_IMODE(os.fstat(self.fd).st_mode) & ~0o022)

    def close(self) -> None:
        """Close its descriptor."""
        os.close(self.fd)

    def __enter__(self) -> Folder:  # noqa: PYI034 - Self is of Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _step(at: int, left: list[str], make: bool, give: bool, steps: int) -> int:
    """Step from a folder to the next and close it; a link only changes the remaining path."""
    step = _opened(at, left.pop(), make, give)
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


def _opened(at: int, name: str, make: bool, give: bool) -> int:
    try:
        return _reached(at, name)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):
        _make(name, at, give)
    return _reached(at, name)


def _make(name: str, at: int, give: bool) -> None:
    """Make a folder that its owner alone writes; as root, the calling user's alone if asked.

    Whatever the umask: of a default ACL, which replaces that, the mode is the mask (acl(5)).
    """
    private = give and os.geteuid() == 0
    os.mkdir(name, 0o700 if private else 0o755, dir_fd=at)
    if not private:
        return
    # The owner of the folder around it may have put another there meanwhile. An empty one they
    # could have removed anyway; anything else is not given away.
    with suppress(FileNotFoundError, NotADirectoryError):
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        try:
            if os.fstat(fd).st_uid == os.geteuid() and not os.listdir(fd):  # noqa: PTH208
                _give_to_caller(fd)
        finally:
            os.close(fd)


def _give_to_caller(fd: int) -> None:
    """Make the calling user the owner of what root has created.

    A disk without owners, one of another machine, or a user namespace may refuse; then it stays
    root's, and as private.
    """
    if os.geteuid() == 0 and calling_user() != 0:
        group = _id_of_sudo("SUDO_GID")
        with suppress(OSError):
            os.fchown(fd, calling_user(), -1 if group is None else group)


def _reached(at: int, name: str) -> int:
    try:  # opened as a folder, or autofs would not mount it (open(2), O_PATH)
        return os.open(name, _STEP | os.O_DIRECTORY, dir_fd=at)
    except NotADirectoryError:  # a link, or not a folder
        return os.open(name, _STEP, dir_fd=at)


def _refuse_stranger(fd: int) -> int:
    """Return the mode of what was opened; as root, EPERM if another user could redirect us."""
    state = os.fstat(fd)
    if os.geteuid() != 0 or state.st_uid in trusted_owners():
        return state.st_mode
    what = f"{real_path(fd)} belongs to user {state.st_uid}; root writes only to folders of root"
    raise PermissionError(errno.EPERM, f"{what} or of the calling user")


def holders_of(fd: int) -> list[str]:
    """Return the processes that hold the lock of an open file, as far as this user sees them."""
    holders, lock = set(), f":{os.fstat(fd).st_ino} "
    for file in Path("/proc").glob("[0-9]*/fdinfo/*"):
        with suppress(OSError):  # it is somebody else's, or has ended
            lines = file.read_text().splitlines()
            if any(line.startswith("lock:") and lock in line for line in lines):
                holders.add(f"process {file.parents[1].name}")
    return sorted(holders)


def lock_file(fd: int, wait: bool = False) -> bool:
    """Lock an open file or folder; return False if it is held and ``wait`` is not set.

    Raises OSError if the disk has no locks.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

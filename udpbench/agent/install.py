"""The program that installs an agent on a host: sent as text, run there by ``python3 -I -S``.

Self-contained: imports no other file of udpbench. Owns the folder of builds and writes nothing
else. Speaks one JSON object per line on descriptors 0 and 1, the report first; then each request
gets one answer, preceded by progress lines while an archive arrives:

    start, deploy   {"do": …, "key": …, "place": "cache" or "system", "folder": …, "run": […]}
    archive         {"do": …, "sha256": …, "bytes": …, …}, followed by that many bytes
    remove, become  {"do": "remove", "place": …}, {"do": "become", "words": […]}
    enable          {"do": "enable", "key": …, "unit": …}

The third place, ``export``, is that of ``udpbench export`` as a service, with its unit of systemd.

A build is ``<place>/<key>``. Its files are verified one by one before it is started, so a folder
damaged by a crash or a full disk is replaced. After ``ready``, ``start`` becomes the agent. Long,
because it is sent as one file.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import mmap
import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Optional

SYSTEM = "/var/lib/udpbench/agent"
"""Root's builds, for agents started by sudo."""
LAUNCHER = "launch"
"""In SYSTEM: starts one of its builds and does nothing else."""
OBSERVER_LAUNCHER = "observe"
"""In SYSTEM: starts the observer of one of its builds, which only looks."""
LAUNCHERS = {LAUNCHER: "launch()", OBSERVER_LAUNCHER: "launch_observer()"}
OBSERVER = "udpbench.agent.observe"
SERVICE = "/var/lib/udpbench/export"
"""Root's build of the exporter, in a place of its own: no cleaning of agents reaches it."""
UNITS = "/etc/systemd/system"
UNIT = "udpbench-export.service"
WANTS = "multi-user.target.wants"
WRITTEN = re.compile(r"^(Textfile|Recording)=(/\S+)$", re.MULTILINE)
"""In the unit: what the exporter writes, and what goes with it."""
HEAD = "[X-Udpbench]"
STEP, MOST_LINKS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, 40
SEGMENT = re.compile(r"\.lock|(looks|loss)-[0-9]{10}-[0-9]{13}\.jsonl")
"""What is in the folder of a recording."""
FOLDERS_OWNER, ROOTS_RIGHTS = "@owner of the folder@", " @rights of root@"
"""In the unit: the user who may write the folder of the text file, and what that takes of root."""
LEAVING = " CAP_SETPCAP CAP_SETUID CAP_SETGID"
"""By which observer and page leave root and its rights (agent/host/privileges)."""
NO_SYSTEMD = "systemd does not run there: it begins when the host is started"
NOT_LOADED = ("stop", 5)
"""An order to end what has not begun, and the exit code of systemctl for it."""
FALLBACKS = ("/var/tmp", "/dev/shm", "/tmp")  # noqa: S108 - only new folders in them are used
FALLBACK_PREFIX = "udpbench-agent-"
FRESH_S = 3600
"""A fallback folder younger than this may be in use by another controller."""
KEEP_S = 14 * 86400
UNFINISHED = ".new-"
LOCK = ".lock"
CALLER = ("SUDO_UID", "SUDO_GID", "SUDO_USER")
"""The only environment variables that root's agent takes from the user who starts it."""
HELD = "UDPBENCH_BUILD_LOCK"
"""Environment variable of an agent: the descriptor that holds the lock of its build."""
MADE = ".made"
"""Lists the folders that were created for a place and are removed with it."""
MANIFEST = "files.sha256"
"""In the format of sha256sum(1), with the number of files in the last line."""
KEY = re.compile(r"[0-9a-f]{8,64}")
MODULE = re.compile(r"udpbench\.agent\.\w+")
WORD = re.compile(r"[\w.:+@-]+", re.ASCII)
NETWORK = re.compile(r"nfs|cifs|smb|9p|afs|ceph|lustre|gpfs|beegfs|sshfs|glusterfs")
"""Network file systems: several hosts would share one folder and its locks."""
RUN = (
    "import runpy,sys;sys.path[:0]=sys.argv.pop(1).split(':');"
    "runpy.run_module(sys.argv.pop(1),run_name='__main__',alter_sys=True)"
)
"""Runs a module; its arguments are the folders to import from, then the module's name."""
READ_BYTES = 2**16


class Refused(Exception):
    """A request that cannot be served; the text gives the reason."""

    step = ""
    """What to do about it, where that is not the same for each."""


class NoService(Refused):
    """A host that cannot run the exporter as a service."""

    step = "start udpbench export there by what starts its other services"


class WrongFolder(Refused):
    """A folder that the exporter must not write to."""

    step = "name another"


class NotEnded(Refused):
    """A service that systemd does not end, so that nothing of it can be removed."""

    step = f"end it there (systemctl stop {UNIT}), then remove it again"


def hear() -> Optional[dict[str, Any]]:
    """Return the next request, None at the end of stdin; reads no byte beyond its line."""
    line = b"".join(iter(lambda: os.read(0, 1).strip(b"\n"), b""))
    return json.loads(line) if line else None


def say(**answer: Any) -> None:
    """Write one line."""
    os.write(1, json.dumps(answer).encode() + b"\n")


def report() -> dict[str, Any]:
    """Return what the controller needs to choose a build and to describe the host."""
    user = pwd.getpwuid(os.getuid()).pw_name if _has_name() else str(os.getuid())
    executable = os.path.realpath(sys.executable)
    libc, version = libc_version()
    return {
        "python": list(sys.version_info[:2]),
        "machine": os.uname().machine,
        "libc": libc,
        "libc_version": version,
        "home": home(),
        "user": user,
        "uid": os.getuid(),
        "clock_ns": time.time_ns(),
        "executable": executable,
        "distrusted": distrust_python(executable),
    }


def distrust_python(executable: str) -> Optional[str]:
    """Return why root must not run this Python (another user could change it); None if it may."""
    for path in (executable, *sys.path):
        if os.path.exists(path):
            why = distrust(os.path.realpath(path), 0)
            if why is not None:
                return why
    return None


def _has_name() -> bool:
    with suppress(KeyError):
        return bool(pwd.getpwuid(os.getuid()))
    return False


def home() -> str:
    """Return the user's home folder; empty if the host has none for this user."""
    if os.environ.get("HOME", "").startswith("/"):
        return os.environ["HOME"]
    return pwd.getpwuid(os.getuid()).pw_dir if _has_name() else "/"


def libc_version() -> tuple[str, str]:
    """Return ``glibc`` or ``musl`` and its version; the version is empty if it cannot be read."""
    with suppress(ValueError, OSError):
        return "glibc", (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")[2]
    loader = f"/lib/ld-musl-{os.uname().machine}.so.1"
    with suppress(OSError):
        done = subprocess.run((loader,), capture_output=True, text=True, check=False)
        return "musl", "".join(re.findall(r"Version (\S+)", done.stderr)[:1])
    return "musl", ""


# --- places ---------------------------------------------------------------------------------------


def cache_place() -> str:
    """Return the folder of this user's builds (XDG Base Directory Specification)."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not cache.startswith("/"):
        cache = os.path.join(home(), ".cache")
    return os.path.join(cache, "udpbench", "agent")


def is_roots(place: str) -> bool:
    """Return whether a place is root's, which all may read."""
    return place in (SYSTEM, SERVICE)


def distrust(path: str, uid: int) -> Optional[str]:
    """Return why another user could change a path; None if only ``uid`` and root can.

    The path itself must not be a symbolic link; a parent may be one, owned by root or the user.
    """
    path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    part = path
    while True:
        state = os.lstat(part)
        if state.st_uid not in (0, uid):
            return f"{part} belongs to user {state.st_uid}"
        if stat.S_ISLNK(state.st_mode):
            return f"{part} is a symbolic link"
        shared = part != path and state.st_mode & stat.S_ISVTX
        if state.st_mode & 0o022 and not shared:
            return f"{part} is writable by others (mode {stat.S_IMODE(state.st_mode):o})"
        if part == "/":
            return None
        part = os.path.dirname(part)


def file_system(path: str) -> str:
    """Return the file system type of a path; empty if /proc does not list it."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", errors="replace") as mounts:
        for fields in map(str.split, mounts):
            if fields[2] == number:
                return fields[fields.index("-") + 1]
    return ""


def make_place(place: str) -> None:
    """Create a folder for builds with its parents; Refused or OSError if it cannot be used."""
    missing = []
    part = place
    while not os.path.lexists(part):
        missing.append(part)
        part = os.path.dirname(part)
    try:
        for part in reversed(missing):
            with suppress(FileExistsError):  # another controller may create it at the same time
                os.mkdir(part, 0o700)
                if is_roots(place):  # regardless of umask; others may write the parents elsewhere
                    os.chmod(part, 0o755)  # noqa: S103 - for who starts its launchers
        _refuse_shared(os.path.dirname(place))
        _prove(place)
        if missing:
            with suppress(FileExistsError):
                _write(place, MADE, json.dumps(missing).encode())
    except (OSError, Refused):
        for part in missing:
            with suppress(OSError):
                os.rmdir(part)
        raise


def _refuse_shared(folder: str) -> None:
    why = distrust(folder, os.getuid())
    if why is not None:
        raise Refused(why)
    if not os.path.isdir(folder):
        raise Refused(f"{folder} is not a folder")


def _prove(place: str) -> None:
    """Raise Refused or OSError unless a place is safe for this user and allows executables."""
    _refuse_shared(place)
    if NETWORK.search(file_system(place)):
        raise Refused(f"on a network file system ({file_system(place)})")
    os.chmod(place, 0o755 if is_roots(place) else 0o700)
    fd, name = tempfile.mkstemp(prefix=UNFINISHED, dir=place)
    os.unlink(name)
    try:
        os.write(fd, bytes(mmap.PAGESIZE))
        fcntl.flock(fd, fcntl.LOCK_EX)
        mmap.mmap(fd, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
    except PermissionError:
        raise Refused("mounted noexec") from None
    finally:
        os.close(fd)


@contextmanager
def exclusive(place: str) -> Iterator[None]:
    """Hold the lock of a place; only root can open root's lock."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(os.path.join(place, LOCK), flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink == 0:
            raise Refused(f"{place} was removed in the meantime; try again")
        yield
    finally:
        os.close(fd)


# --- builds ---------------------------------------------------------------------------------------


def is_whole(folder: str, uid: int) -> bool:
    """Return whether a build exists, belongs to its owner alone and has every file as sent."""
    try:
        if distrust(folder, uid) is not None:
            return False
        *lines, last = _read(folder, MANIFEST).decode().rstrip("\n").split("\n")
        files = [line.split("  ", 1) for line in lines]
        if last != f"# {len(files)} files":
            return False
        return all(hashlib.sha256(_read(folder, name)).hexdigest() == sha for sha, name in files)
    except (OSError, ValueError):
        return False


def _read(folder: str, name: str) -> bytes:
    fd = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        return file.read()


def _write(folder: str, name: str, content: bytes, mode: int = 0o644) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)


def install(place: str, key: str, archive: bytes) -> str:
    """Install a build in a place (temporary name, then rename) and return its folder.

    The first installation wins; a damaged build is replaced. Removes unfinished ones.
    """
    folder = os.path.join(place, key)
    with exclusive(place):
        clean(place, key)
        if place == SYSTEM:  # before the build, which needs it
            for name in LAUNCHERS:
                write_launcher(place, name)
        if not is_whole(folder, os.getuid()):
            fresh = tempfile.mkdtemp(prefix=UNFINISHED, dir=place)
            try:
                unpack(archive, fresh)
                os.chmod(fresh, stat.S_IMODE(os.stat(place).st_mode))
                if os.path.lexists(folder):
                    os.rename(folder, fresh + "-damaged")
                os.rename(fresh, folder)
            finally:
                for rest in (fresh, fresh + "-damaged"):
                    _discard(rest)
    return folder


def unpack(archive: bytes, folder: str) -> None:
    """Unpack an archive and write its manifest; Refused if a member is outside the folder."""
    lines = []
    import tarfile  # takes 4 ms, and agents import this module

    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        for member in tar:
            parts = member.name.split("/")
            if not member.isfile() or not {"", ".", ".."}.isdisjoint(parts):
                raise Refused(f"unsafe archive member {member.name!r}: not a file inside the build")
            content = tar.extractfile(member)
            data = content.read() if content is not None else b""
            _write(folder, member.name, data)
            lines.append(f"{hashlib.sha256(data).hexdigest()}  {member.name}\n")
    _write(folder, LOCK, b"", 0o600)
    _write(folder, MANIFEST, "".join([*lines, f"# {len(lines)} files\n"]).encode())
    for path, _, _ in os.walk(folder):
        os.chmod(path, 0o755)  # noqa: S103 - the build's own folder above keeps others out


def clean(place: str, key: str = "") -> None:
    """Remove unfinished builds, and builds of other keys that have not been started recently."""
    for name in os.listdir(place):
        path = os.path.join(place, name)
        if name.startswith(UNFINISHED):
            _discard(path)
        elif KEY.fullmatch(name) and name != key and _age_s(path) > KEEP_S:
            with held([path]) as used:
                if not used:
                    _discard(path)


def _discard(path: str) -> None:
    """Remove a folder with its contents (its lock first), a file or a link, if it exists."""
    if os.path.isdir(path) and not os.path.islink(path):
        with suppress(OSError):
            os.unlink(os.path.join(path, LOCK))
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            os.unlink(path)


def _age_s(folder: str) -> float:
    """Return seconds since a build was last started, also if the clock was set back since."""
    with suppress(OSError):
        return abs(time.time() - os.lstat(os.path.join(folder, MANIFEST)).st_mtime)
    return float("inf")


@contextmanager
def held(folders: list[str]) -> Iterator[list[str]]:
    """Keep agents from starting from builds; yield the builds that are already in use."""
    fds, used = [], []
    try:
        for folder in folders:
            with suppress(OSError):
                path = os.path.join(folder, LOCK)
                fds.append(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC))
                try:
                    fcntl.flock(fds[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    used.append(folder)
        yield used
    finally:
        for fd in fds:
            os.close(fd)


def settle(key: str, archive: bytes, place: str) -> tuple[str, list[str]]:
    """Install a build in the first usable place; return its folder and why others were refused."""
    notes: list[str] = []
    try:
        make_place(place)
        return install(place, key, archive), notes
    except (OSError, Refused) as error:
        notes.append(f"{place}: {_words(error)}")
    for parent in _fallbacks() if not is_roots(place) else ():
        fresh = ""
        try:
            fresh = tempfile.mkdtemp(prefix=FALLBACK_PREFIX, dir=parent)
            _prove(fresh)
            return install(fresh, key, archive), notes
        except (OSError, Refused) as error:
            shutil.rmtree(fresh, ignore_errors=True)
            notes.append(f"{parent}: {_words(error)}")
    raise Refused("; ".join(notes))


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _fallbacks() -> list[str]:
    """Return parents for a new fallback folder, after removing those of earlier controllers."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    parents = [runtime] if runtime.startswith("/") else []
    parents += FALLBACKS
    for parent in parents:
        for path in own_fallbacks(parent):
            with suppress(OSError), held(_builds(path)) as used:
                if time.time() - os.lstat(path).st_mtime > FRESH_S and not used:
                    _discard(path)
    return parents


def own_fallbacks(parent: str) -> list[str]:
    """Return the fallback folders that this user created in a shared folder."""
    fallbacks = []
    with suppress(OSError):
        for name in os.listdir(parent):
            path = os.path.join(parent, name)
            if name.startswith(FALLBACK_PREFIX):
                state = os.lstat(path)
                if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid():
                    continue
                if strange(path) is None:
                    fallbacks.append(path)
    return fallbacks


def _builds(place: str) -> list[str]:
    return [os.path.join(place, name) for name in os.listdir(place) if KEY.fullmatch(name)]


def strange(place: str) -> Optional[str]:
    """Return a name in a place that is not from udpbench; None if all of it may be removed."""
    launchers = [*LAUNCHERS, *(name + UNFINISHED for name in LAUNCHERS)]
    files = {LOCK, MADE, *(launchers if place == SYSTEM else ())}
    for name in sorted(os.listdir(place)):
        path = os.path.join(place, name)
        build = KEY.fullmatch(name) and os.path.isdir(path) and not os.path.islink(path)
        if not build and name not in files and not name.startswith(UNFINISHED):
            return path
    return None


def remove(place: str) -> dict[str, list[Any]]:
    """Remove every build of this user that is not in use, and the folders created for them.

    ``kept`` lists [place, reason] where a place is unsafe or has files of something else.
    """
    answer: dict[str, list[Any]] = {"removed": [], "busy": [], "kept": []}
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    places = [path for parent in (runtime, *FALLBACKS) if parent for path in own_fallbacks(parent)]
    places = [] if is_roots(place) else places
    for path in [place, *places]:
        if not os.path.isdir(path):
            if is_roots(path):  # whoever made it may have died before
                with suppress(OSError):
                    os.rmdir(os.path.dirname(path))
            continue
        why = distrust(path, os.getuid())
        alien = strange(path) if why is None else None
        if alien is not None:
            why = f"{alien} does not belong to udpbench"
        if why is not None:
            answer["kept"].append([path, why])
            continue
        with exclusive(path), held(_builds(path)) as used:
            answer["busy"] += used
            if not used:
                _remove_place(path)
                answer["removed"].append(path)
    return answer


def _remove_place(place: str) -> None:
    """Remove a place whose locks are held, and the parents that were created for it."""
    # Agents and exporter share the parent, whoever came first.
    parents = [*_made(place), *([os.path.dirname(place)] if is_roots(place) else [])]
    for build in _builds(place):
        _discard(build)
    os.unlink(os.path.join(place, LOCK))
    shutil.rmtree(place)
    for part in parents:
        with suppress(OSError):  # another program may use it by now
            os.rmdir(part)


def _made(place: str) -> list[str]:
    """Return the parents that were created for a place, innermost first."""
    with suppress(OSError, ValueError):
        parents = json.loads(_read(place, MADE))
        return [part for part in parents if place.startswith(part + "/")]
    return []


# --- the exporter ---------------------------------------------------------------------------------


def enable(key: str, unit: str) -> list[str]:
    """Run the exporter of a build, now and from each start of the host on; return what failed.

    Builds that it ran from before are removed.
    """
    folder, link = os.path.join(SERVICE, key), os.path.join(UNITS, WANTS, UNIT)
    with exclusive(SERVICE):
        if not is_whole(folder, os.getuid()):
            raise Refused(f"{folder} was removed in the meantime; try again")
        for path in (path for kind, path in WRITTEN.findall(unit) if kind == "Recording"):
            _refuse_shared_recording(path)
        _write_unit(_owned(_with_earlier(unit)))
        os.makedirs(os.path.dirname(link), 0o755, exist_ok=True)
        with suppress(FileExistsError):
            os.symlink(os.path.join(UNITS, UNIT), link)
        failed = systemd(("daemon-reload",), ("restart", UNIT))
        for build in _builds(SERVICE):
            if build != folder:
                _discard(build)
    return failed


def prove_service(python: str) -> None:
    """Raise NoService where systemd, or a Python for a user who is not root, is missing."""
    if not os.path.isdir(UNITS):
        raise NoService(f"there is no systemd ({UNITS} is missing)")
    part = os.path.realpath(python)
    while part != "/":
        if not os.stat(part).st_mode & 0o001:
            error = NoService(f"a service's own user may not run {python}: {part} is closed to it")
            error.step = "put the system's own Python first in PATH there"
            raise error
        part = os.path.dirname(part)


def _with_earlier(unit: str) -> str:
    """Return a unit that also names what the one before it wrote, so that it goes with this one."""
    with suppress(OSError):
        for kind, path in WRITTEN.findall(_read(UNITS, UNIT).decode()):
            if (kind, path) not in WRITTEN.findall(unit):
                unit += f"{kind}={path}\n" if HEAD in unit else f"\n{HEAD}\n{kind}={path}\n"
    return unit


def _owned(unit: str) -> str:
    """Return a unit whose user may write the folder of its text file, the first that it names."""
    folders = [os.path.dirname(path) for kind, path in WRITTEN.findall(unit) if kind == "Textfile"]
    if FOLDERS_OWNER not in unit or not folders:
        return unit
    fd = _open_folder(folders[0])
    owner = os.fstat(fd).st_uid
    os.close(fd)
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        raise WrongFolder(f"{folders[0]} belongs to user {owner}, who has no name") from None
    rights = LEAVING if owner == 0 else ""
    return unit.replace(FOLDERS_OWNER, name).replace(ROOTS_RIGHTS, rights)


def _open_folder(path: str) -> int:
    """Return the descriptor of a folder; WrongFolder at a link that another user made, or OSError.

    A folder may be another user's, who then decides what is in its place: but not what of others is
    behind it.
    """
    mine, links = {0, os.getuid()}, 0
    at, left = os.open("/", STEP), path.split("/")[::-1]
    try:
        while left:
            name = left.pop() or "."
            try:
                at, before = os.open(name, STEP, dir_fd=at), at
            except NotADirectoryError:
                to = os.readlink(name, dir_fd=at)
                link = os.stat(name, dir_fd=at, follow_symlinks=False)
                links += 1
                if not {os.fstat(at).st_uid, link.st_uid} <= mine or links > MOST_LINKS:
                    raise WrongFolder(f"{path}: {name} is a link of another user") from None
                left += to.split("/")[::-1]
                at, before = os.open("/" if to[0] == "/" else ".", STEP, dir_fd=at), at
            os.close(before)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)


def _refuse_shared_recording(path: str) -> None:
    """Raise WrongFolder for a folder with files of others: systemd gives all to the service."""
    with suppress(FileNotFoundError):
        for name in sorted(os.listdir(path)):
            if not SEGMENT.fullmatch(name):
                raise WrongFolder(f"{path} has what is no recording: {name}")


def _write_unit(unit: str) -> None:
    fresh = os.path.join(UNITS, UNIT + UNFINISHED)
    with suppress(FileNotFoundError):
        os.unlink(fresh)
    _write(UNITS, UNIT + UNFINISHED, unit.encode())
    os.rename(fresh, os.path.join(UNITS, UNIT))


def disable() -> tuple[list[str], list[list[str]]]:
    """End the exporter, and remove what it wrote and its unit; return the paths.

    And what was left, each with the reason. NotEnded, and nothing is removed, if it may still run.
    """
    unit, link = os.path.join(UNITS, UNIT), os.path.join(UNITS, WANTS, UNIT)
    removed: list[str] = []
    kept: list[list[str]] = []
    if os.path.lexists(unit):
        failed = [why for why in systemd(("stop", UNIT)) if why != NO_SYSTEMD]
        if failed:
            raise NotEnded(f"the exporter may still run: {'; '.join(failed)}")
        for kind, path in WRITTEN.findall(_read(UNITS, UNIT).decode()):
            there = os.path.lexists(path)
            try:
                left = (_remove_textfile if kind == "Textfile" else _remove_recording)(path)
            except FileNotFoundError:
                left = []
            except (OSError, Refused) as error:
                left = [[path, _words(error)]]
            kept += left
            removed += [path] if there and not left else []
    for path in (link, unit + UNFINISHED, unit):
        with suppress(FileNotFoundError):
            os.unlink(path)
            removed.append(path)
    with suppress(OSError):  # it has other units
        os.rmdir(os.path.dirname(link))
    if unit in removed:
        systemd(("daemon-reload",), ("reset-failed", UNIT))
    return removed, kept


def _remove_textfile(path: str) -> list[list[str]]:
    """Remove a file of metrics, and what a killed exporter left beside it; return what was left."""
    folder, name = os.path.split(path)
    beside = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{8}}")
    return _remove_files(folder, lambda each: each == name or beside.fullmatch(each) is not None)


def _remove_recording(path: str) -> list[list[str]]:
    """Remove the segments of a recording, and its folder (behind a link, if the user changes).

    Returns what was left.
    """
    real = os.path.realpath(path)
    if os.path.lexists(real):
        left = _remove_files(real, lambda each: SEGMENT.fullmatch(each) is not None)
        if left:
            return left
        os.rmdir(real)
    if os.path.islink(path):
        os.unlink(path)
    return []


def _remove_files(folder: str, is_own: Callable[[str], bool]) -> list[list[str]]:
    """Remove files of a folder; return each that could not be, with the reason."""
    left = []
    fd = _open_folder(folder)
    try:
        for name in sorted(filter(is_own, os.listdir(fd))):
            try:
                os.unlink(name, dir_fd=fd)
            except OSError as error:
                left.append([os.path.join(folder, name), _words(error)])
    finally:
        os.close(fd)
    return left


def systemd(*orders: tuple[str, ...]) -> list[str]:
    """Give systemd orders; return what it refused, or that it does not run."""
    if not os.path.isdir("/run/systemd/system"):
        return [NO_SYSTEMD]
    failed = []
    for words in orders:
        done = subprocess.run(["systemctl", *words], capture_output=True, text=True, check=False)
        if done.returncode != 0 and (words[0], done.returncode) != NOT_LOADED:
            failed.append(f"systemctl {' '.join(words)}: {' '.join(done.stderr.split())}")
    return failed


# --- agents ---------------------------------------------------------------------------------------


def agent_words(run: list[str]) -> list[str]:
    """Return an agent module and its arguments; Refused for any other module."""
    if not run or not MODULE.fullmatch(run[0]) or not all(map(WORD.fullmatch, run[1:])):
        raise Refused("not a module of the agent: {}".format(" ".join(run)))
    return run


def start(folder: str, run: list[str]) -> None:
    """Replace this process by a module of a build; the agent inherits the build's lock."""
    fd = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_NOFOLLOW)
    fcntl.flock(fd, fcntl.LOCK_SH)
    if os.fstat(fd).st_nlink == 0:
        raise Refused(f"{folder} was removed in the meantime; try again")
    os.utime(os.path.join(folder, MANIFEST))
    os.set_inheritable(fd, True)
    os.environ[HELD] = str(fd)
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", RUN, folder, *agent_words(run)])


def write_launcher(place: str, name: str) -> None:
    """Write one of root's launchers: this program's own source, which makes a single call."""
    path = os.path.join(place, name)
    fresh = path + UNFINISHED
    with suppress(FileNotFoundError):
        os.unlink(fresh)
    _write(place, name + UNFINISHED, launcher_text(name), 0o755)
    fd = os.open(fresh, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(fresh, path)


def launcher_text(name: str) -> bytes:
    """Return the source of one of root's launchers; it runs under this program's Python."""
    source: str = globals()["SOURCE"]
    return f"#!{os.path.realpath(sys.executable)} -IS\n{source}\n{LAUNCHERS[name]}\n".encode()


def launch_observer() -> None:
    """Start the observer of one of root's builds: ``observe KEY [WORD]...``."""
    sys.argv[2:2] = [OBSERVER]
    launch()


def launch() -> None:
    """Start one of root's builds: ``launch KEY MODULE [RUN]``, as permitted by sudoers."""
    os.chdir("/")
    caller = {name: os.environ[name] for name in CALLER if name in os.environ}
    os.environ.clear()
    os.environ.update(caller, PATH="/usr/sbin:/usr/bin:/sbin:/bin", LC_ALL="C")
    key, *run = sys.argv[1:] or [""]
    folder = os.path.join(SYSTEM, key)
    if not KEY.fullmatch(key) or not is_whole(folder, 0):
        sys.exit(f"udpbench: no build {key} in {SYSTEM}")
    try:
        start(folder, run)
    except (OSError, Refused) as error:
        sys.exit(f"udpbench: {_words(error)}")


def find(request: dict[str, Any]) -> Optional[str]:
    """Return the folder of a complete build; None if there is none."""
    key = request["key"]
    if request["place"] == "system":
        folder = os.path.join(SYSTEM, key)
        return folder if is_whole(folder, 0) and _launches() else None
    if request["place"] == "export":
        folder = os.path.join(SERVICE, key)
        return folder if is_whole(folder, os.getuid()) else None
    folders = [
        os.path.join(cache_place(), key),
        *([request["folder"]] if request["folder"] else []),
    ]
    return next((folder for folder in folders if is_whole(folder, os.getuid())), None)


def _launches() -> bool:
    with suppress(OSError):
        return all(_read(SYSTEM, name) == launcher_text(name) for name in LAUNCHERS)
    return False


def builds(place: str) -> int:
    """Return the number of builds in a place."""
    with suppress(OSError):
        return sum(KEY.fullmatch(name) is not None for name in os.listdir(place))
    return 0


def bring(request: dict[str, Any], place: str) -> tuple[Optional[str], list[str]]:
    """Return (folder or None if missing, notes); receives the build first if it is being sent."""
    if "bytes" not in request:
        return find(request), []
    archive = bytearray()
    while len(archive) < request["bytes"]:
        chunk = os.read(0, min(READ_BYTES, request["bytes"] - len(archive)))
        if not chunk:
            raise Refused(f"the connection ended after {len(archive)} bytes of the archive")
        archive += chunk
        say(state="receiving", bytes=len(archive))
    if hashlib.sha256(archive).hexdigest() != request["sha256"]:
        raise Refused("the archive arrived damaged: its SHA-256 differs")
    return settle(request["key"], bytes(archive), place)


def become(words: list[str]) -> None:
    """Replace this process by another program; exit as a shell does if it is missing."""
    try:
        os.execvp(words[0], words)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        sys.stderr.write(f"{words[0]}: {'not found' if missing else _words(error)}\n")
        sys.exit(127)


def answer(request: dict[str, Any]) -> None:
    """Serve one request; ``start`` and ``become`` do not return."""
    if request["do"] == "become":
        become(request["words"])
    system, exports = request["place"] == "system", request["place"] == "export"
    place = SYSTEM if system else SERVICE if exports else cache_place()
    if request["do"] == "remove":
        gone, left = disable() if exports else ([], [])
        known = remove(place)
        removed, kept = [*gone, *known["removed"]], [*left, *known["kept"]]
        say(state="removed", **{**known, "removed": removed, "kept": kept})
        return
    if exports:
        prove_service(sys.executable)
    if request["do"] == "enable":
        say(state="enabled", failed=enable(request["key"], request["unit"]))
        return
    if not KEY.fullmatch(request["key"]):
        raise Refused(f"not the key of a build: {request['key']}")
    run = agent_words(request["run"])
    folder, notes = bring(request, place)
    if folder is None:
        say(state="missing", builds=builds(place))
        return
    say(state="ready", folder=folder, notes=notes)
    if request["do"] == "start" and system and os.getuid() != 0:
        become(["sudo", "-n", "--", *_launcher(request["key"], run)])
    if request["do"] == "start":
        start(folder, run)


def _launcher(key: str, run: list[str]) -> list[str]:
    """Return the launcher to run by sudo: the observer's own, unless it is not allowed."""
    launcher = os.path.join(SYSTEM, LAUNCHER)
    if run[0] != OBSERVER:
        return [launcher, key, *run]
    own = [os.path.join(SYSTEM, OBSERVER_LAUNCHER), key, *run[1:]]
    asked = subprocess.run(
        ["sudo", "-n", "-l", "--", launcher, key, *run], capture_output=True, check=False
    )
    allowed = subprocess.run(["sudo", "-n", "-l", "--", *own], capture_output=True, check=False)
    return [launcher, key, *run] if asked.returncode == 0 != allowed.returncode else own


def serve() -> None:
    """Report, then answer requests until stdin ends."""
    say(**report())
    while (request := hear()) is not None:
        try:
            answer(request)
        except (OSError, Refused) as error:
            say(state="failed", why=_words(error), step=getattr(error, "step", ""))

"""The program that brings an agent to a host: sent as text, run there by ``python3 -I -S``.

Stands alone: imports no other file of udpbench. Owns the folder of builds and writes nothing else.
One JSON object a line on descriptors 0 and 1, the report first; then each request has one answer,
after lines that say how much of an archive has arrived:

    start, deploy   {"do": …, "key": …, "place": "cache" or "system", "folder": …, "run": […]}
    archive         {"do": …, "sha256": …, "bytes": …, …}, followed by that many bytes
    remove, become  {"do": "remove", "place": …}, {"do": "become", "words": […]}

A build is ``<place>/<key>``; one that is started is verified first, file by file, so a folder that
a crash or a full disk left damaged is replaced. After ``ready``, ``start`` becomes the agent.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import mmap
import os
import platform
import pwd
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Optional

SYSTEM = "/var/lib/udpbench/agent"
"""Root's builds, for agents that sudo starts."""
LAUNCHER = "launch"
"""In SYSTEM: starts one of its builds, and can do nothing else."""
FALLBACKS = ("/var/tmp", "/dev/shm", "/tmp")  # noqa: S108 - only fresh folders in them are used
FALLBACK_PREFIX = "udpbench-agent-"
FRESH_S = 3600
"""A fallback folder that another controller may be filling."""
KEEP_S = 14 * 86400
UNFINISHED = ".new-"
LOCK = ".lock"
CALLER = ("SUDO_UID", "SUDO_GID", "SUDO_USER")
"""All that root's agent takes from the environment of who starts it."""
HELD = "UDPBENCH_BUILD_LOCK"
"""Environment variable of an agent: the descriptor by which it holds the lock of its build."""
MADE = ".made"
"""The folders that were made for a place, which go with it."""
MANIFEST = "files.sha256"
"""As sha256sum(1) has it, with the number of files last."""
KEY = re.compile(r"[0-9a-f]{8,64}")
MODULE = re.compile(r"udpbench\.agent\.\w+")
WORD = re.compile(r"[\w.:+-]+", re.ASCII)
NETWORK = re.compile(r"nfs|cifs|smb|9p|afs|ceph|lustre|gpfs|beegfs|sshfs|glusterfs")
"""File systems of other hosts: several hosts would share one folder and its locks."""
RUN = (
    "import runpy,sys;sys.path[:0]=sys.argv.pop(1).split(':');"
    "runpy.run_module(sys.argv.pop(1),run_name='__main__',alter_sys=True)"
)
"""Runs a module, named after the folders to import from."""
READ_BYTES = 2**16


class Refused(Exception):
    """A request that cannot be met; the text says why."""


def hear() -> Optional[dict[str, Any]]:
    """Return the next request; None at the end of stdin. Reads not a byte beyond its line."""
    line = b"".join(iter(lambda: os.read(0, 1).strip(b"\n"), b""))
    return json.loads(line) if line else None


def say(**answer: Any) -> None:
    """Write one line."""
    os.write(1, json.dumps(answer).encode() + b"\n")


def report() -> dict[str, Any]:
    """Return what the controller needs to choose a build, and what it shows about the host."""
    user = pwd.getpwuid(os.getuid()).pw_name if _has_name() else str(os.getuid())
    executable = os.path.realpath(sys.executable)
    libc, version = libc_version()
    return {
        "python": list(sys.version_info[:2]),
        "machine": platform.machine(),
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
    """Return why root must not run this Python: another user could change it or its modules."""
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
    """Return the user's home folder, if the host names one."""
    if os.environ.get("HOME", "").startswith("/"):
        return os.environ["HOME"]
    return pwd.getpwuid(os.getuid()).pw_dir if _has_name() else "/"


def libc_version() -> tuple[str, str]:
    """Return ``glibc`` or ``musl`` and its version; an empty one if it cannot be read."""
    with suppress(ValueError, OSError):
        return "glibc", (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")[2]
    loader = f"/lib/ld-musl-{platform.machine()}.so.1"
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


def distrust(path: str, uid: int) -> Optional[str]:
    """Return why another user could change a path; None if only ``uid`` and root can.

    The path itself may be no link; a folder above it may be one, of root or the user.
    """
    path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    part = path
    while True:
        state = os.lstat(part)
        if state.st_uid not in (0, uid):
            return f"{part} belongs to user {state.st_uid}"
        if stat.S_ISLNK(state.st_mode):
            return f"{part} is a link"
        shared = part != path and state.st_mode & stat.S_ISVTX
        if state.st_mode & 0o022 and not shared:
            return f"{part} can be written by others (mode {stat.S_IMODE(state.st_mode):o})"
        if part == "/":
            return None
        part = os.path.dirname(part)


def file_system(path: str) -> str:
    """Return the type of the file system that holds a path; empty if it is not listed."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", errors="replace") as mounts:
        for fields in map(str.split, mounts):
            if fields[2] == number:
                return fields[fields.index("-") + 1]
    return ""


def make_place(place: str) -> None:
    """Make a folder for builds, and its path; Refused or OSError if it cannot be used."""
    missing = []
    part = place
    while not os.path.lexists(part):
        missing.append(part)
        part = os.path.dirname(part)
    try:
        for part in reversed(missing):
            with suppress(FileExistsError):  # another controller's program makes it, too
                os.mkdir(part, 0o700)
                os.chmod(part, 0o755 if place == SYSTEM else 0o700)  # whatever the umask is
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
        raise Refused(f"{folder} is no folder")


def _prove(place: str) -> None:
    """Raise Refused or OSError unless a place is this user's own and can hold a program."""
    _refuse_shared(place)
    if NETWORK.search(file_system(place)):
        raise Refused(f"on a network file system ({file_system(place)})")
    os.chmod(place, 0o755 if place == SYSTEM else 0o700)
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
    """Hold a place for this process; root's lock can be opened by root alone."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(os.path.join(place, LOCK), flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink == 0:
            raise Refused(f"{place} was removed meanwhile; try again")
        yield
    finally:
        os.close(fd)


# --- builds ---------------------------------------------------------------------------------------


def is_whole(folder: str, uid: int) -> bool:
    """Say whether a build is there, its owner's alone, with every file as it was sent."""
    try:
        if distrust(folder, uid) is not None:
            return False
        *lines, last = _read(folder, MANIFEST).decode().splitlines()
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
    """Put a build into a place under a temporary name, rename it, and return its folder.

    Whoever installs it first wins; a damaged one is replaced. Removes what interrupted ones left.
    """
    folder = os.path.join(place, key)
    with exclusive(place):
        clean(place, key)
        if place == SYSTEM:  # before the build, which is of no use without it
            write_launcher(place)
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
    """Write the files of an archive and their manifest; Refused if one would lie elsewhere."""
    lines = []
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        for member in tar:
            parts = member.name.split("/")
            if not member.isfile() or not {"", ".", ".."}.isdisjoint(parts):
                raise Refused(f"the archive has {member.name!r}, which is no file within it")
            content = tar.extractfile(member)
            data = content.read() if content is not None else b""
            _write(folder, member.name, data)
            lines.append(f"{hashlib.sha256(data).hexdigest()}  {member.name}\n")
    _write(folder, LOCK, b"", 0o600)
    _write(folder, MANIFEST, "".join([*lines, f"# {len(lines)} files\n"]).encode())
    for path, _, _ in os.walk(folder):
        os.chmod(path, 0o755)  # noqa: S103 - the build's own folder, above it, keeps others out


def clean(place: str, key: str = "") -> None:
    """Remove unfinished builds, and those of other keys that nobody has started for long."""
    for name in os.listdir(place):
        path = os.path.join(place, name)
        if name.startswith(UNFINISHED):
            _discard(path)
        elif KEY.fullmatch(name) and name != key and _age_s(path) > KEEP_S:
            with held([path]) as used:
                if not used:
                    _discard(path)


def _discard(path: str) -> None:
    """Remove a folder with all in it, its lock first, or a file or link, if it is there."""
    if os.path.isdir(path) and not os.path.islink(path):
        with suppress(OSError):
            os.unlink(os.path.join(path, LOCK))
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            os.unlink(path)


def _age_s(folder: str) -> float:
    """Return the time since a build was last started; a clock that was set back counts as well."""
    with suppress(OSError):
        return abs(time.time() - os.lstat(os.path.join(folder, MANIFEST)).st_mtime)
    return float("inf")


@contextmanager
def held(folders: list[str]) -> Iterator[list[str]]:
    """Keep agents from starting from builds; yield those from which one runs already."""
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
    """Install a build where it can be; return its folder and why not in the places before."""
    notes: list[str] = []
    try:
        make_place(place)
        return install(place, key, archive), notes
    except (OSError, Refused) as error:
        notes.append(f"{place}: {_words(error)}")
    for parent in _fallbacks() if place != SYSTEM else ():
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
    """Return the folders for a fresh one, without what earlier controllers left in them."""
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
    """Return the fallback folders that this user made in a shared folder."""
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
    """Return what is in a place and not of udpbench; None if all of it may be removed."""
    files = {LOCK, MADE, *((LAUNCHER, LAUNCHER + UNFINISHED) if place == SYSTEM else ())}
    for name in sorted(os.listdir(place)):
        path = os.path.join(place, name)
        build = KEY.fullmatch(name) and os.path.isdir(path) and not os.path.islink(path)
        if not build and name not in files and not name.startswith(UNFINISHED):
            return path
    return None


def remove(place: str) -> dict[str, list[Any]]:
    """Remove every build of this user but those in use, and the folders made for them.

    ``kept`` has place and reason of those with something that is not of udpbench or not safe.
    """
    answer: dict[str, list[Any]] = {"removed": [], "busy": [], "kept": []}
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    places = [path for parent in (runtime, *FALLBACKS) if parent for path in own_fallbacks(parent)]
    places = [] if place == SYSTEM else places
    for path in [place, *places]:
        if not os.path.isdir(path):
            continue
        why = distrust(path, os.getuid())
        alien = strange(path) if why is None else None
        if alien is not None:
            why = f"{alien} is not of udpbench"
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
    """Remove a place whose locks are held, and the folders above it that were made for it."""
    parents = _made(place)
    for build in _builds(place):
        _discard(build)
    os.unlink(os.path.join(place, LOCK))
    shutil.rmtree(place)
    for part in parents:
        with suppress(OSError):  # another program uses it by now
            os.rmdir(part)


def _made(place: str) -> list[str]:
    """Return the folders above a place that were made for it, the innermost first."""
    with suppress(OSError, ValueError):
        parents = json.loads(_read(place, MADE))
        return [part for part in parents if place.startswith(part + "/")]
    return []


# --- agents ---------------------------------------------------------------------------------------


def agent_words(run: list[str]) -> list[str]:
    """Return a module of the agent and its arguments; Refused if it is anything else."""
    if not run or not MODULE.fullmatch(run[0]) or not all(map(WORD.fullmatch, run[1:])):
        raise Refused("not a module of the agent: {}".format(" ".join(run)))
    return run


def start(folder: str, run: list[str]) -> None:
    """Become a module of a build; its lock is held by this process, and so by the agent."""
    fd = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_NOFOLLOW)
    fcntl.flock(fd, fcntl.LOCK_SH)
    if os.fstat(fd).st_nlink == 0:
        raise Refused(f"{folder} was removed meanwhile; try again")
    os.utime(os.path.join(folder, MANIFEST))
    os.set_inheritable(fd, True)
    os.environ[HELD] = str(fd)
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", RUN, folder, *agent_words(run)])


def write_launcher(place: str) -> None:
    """Write root's launcher: this program's own text, which then does nothing but ``launch``."""
    path = os.path.join(place, LAUNCHER)
    fresh = path + UNFINISHED
    with suppress(FileNotFoundError):
        os.unlink(fresh)
    _write(place, LAUNCHER + UNFINISHED, launcher_text(), 0o755)
    fd = os.open(fresh, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(fresh, path)


def launcher_text() -> bytes:
    """Return what this program writes as launcher; it names this program's Python."""
    source: str = globals()["SOURCE"]
    return f"#!{os.path.realpath(sys.executable)} -IS\n{source}\nlaunch()\n".encode()


def launch() -> None:
    """Start a build of root's by ``launch KEY MODULE [RUN]``, as sudo lets a user."""
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
    """Return the folder of a build that is there and whole."""
    key = request["key"]
    if request["place"] == "system":
        folder = os.path.join(SYSTEM, key)
        return folder if is_whole(folder, 0) and _launches() else None
    folders = [
        os.path.join(cache_place(), key),
        *([request["folder"]] if request["folder"] else []),
    ]
    return next((folder for folder in folders if is_whole(folder, os.getuid())), None)


def _launches() -> bool:
    with suppress(OSError):
        return _read(SYSTEM, LAUNCHER) == launcher_text()
    return False


def builds(place: str) -> int:
    """Return how many builds are in a place."""
    with suppress(OSError):
        return sum(KEY.fullmatch(name) is not None for name in os.listdir(place))
    return 0


def bring(request: dict[str, Any], place: str) -> tuple[Optional[str], list[str]]:
    """Return a build's folder, None if it is missing, and notes; receive one that is sent."""
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
    """Become another program; end as a shell does if it is not there."""
    try:
        os.execvp(words[0], words)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        sys.stderr.write(f"{words[0]}: {'not found' if missing else _words(error)}\n")
        sys.exit(127)


def answer(request: dict[str, Any]) -> None:
    """Do what one request asks for; ``start`` and ``become`` do not return."""
    if request["do"] == "become":
        become(request["words"])
    system = request["place"] == "system"
    place = SYSTEM if system else cache_place()
    if request["do"] == "remove":
        say(state="removed", **remove(place))
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
        launcher = os.path.join(SYSTEM, LAUNCHER)
        become(["sudo", "-n", "--", launcher, request["key"], *run])
    if request["do"] == "start":
        start(folder, run)


def serve() -> None:
    """Report, then answer requests until stdin ends."""
    say(**report())
    while (request := hear()) is not None:
        try:
            answer(request)
        except (OSError, Refused) as error:
            say(state="failed", why=_words(error))

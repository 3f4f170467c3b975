"""The wheels that agents and exporters import, for one kind of host: fetched by pip, then cached.

Owns the cache of wheels. pip alone selects the wheels, among the files whose digests are in the
lock: they may run as root on hosts. Must never change this machine's own packages.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from packaging.requirements import Requirement

from udpbench.errors import ConnectError, InputError, Problem, in_words
from udpbench.folder import Folder

KEPT = "udpbench/wheels"
"""Below the user's cache folder."""
LOCK = Path(__file__).with_name("wheels.lock")
"""Projects, versions and digests, as pip reads them; ``noxfile.py lock`` writes it."""
EXPORTERS = "prometheus-client"
"""The project of the lock that no agent imports."""
DIFFERS = re.compile(r"DO NOT MATCH THE HASHES.*?^ +(\S+) from (\S+)", re.DOTALL | re.MULTILINE)
"""What pip says of a file that is not in the lock."""
QUIETLY = ("--quiet", "--disable-pip-version-check", "--retries", "1")
MANYLINUX_MINORS = (28, 34)
"""glibc 2.x beyond manylinux2014 (2.17): for what wheels are built (PEP 600, pypa/manylinux)."""


@dataclass(frozen=True)
class Target:
    """What a host's Python is: what a wheel must fit."""

    python: tuple[int, int]
    machine: str
    """As ``platform.machine()`` has it, such as ``x86_64``."""
    libc: str
    """``glibc`` or ``musl``."""
    libc_version: str
    """Such as ``2.31``."""
    exports: bool = False
    """An exporter runs there, too."""

    def __str__(self) -> str:
        """Return it for a message."""
        python = ".".join(map(str, self.python))
        return f"Python {python} on {self.machine} with {self.libc} {self.libc_version}"

    @property
    def libc_numbers(self) -> tuple[int, int]:
        """The first two numbers of the C library's version; ValueError if it has none."""
        major, minor = self.libc_version.split(".")[:2]
        return int(major), int(minor)

    @property
    def platforms(self) -> tuple[str, ...]:
        """The tags of wheels that run there."""
        if self.libc == "musl":
            return (f"musllinux_1_2_{self.machine}",)
        newer = [minor for minor in MANYLINUX_MINORS if (2, minor) <= self.libc_numbers]
        tags = ("manylinux2014", *(f"manylinux_2_{minor}" for minor in newer))
        return tuple(f"{tag}_{self.machine}" for tag in tags)


def locked(target: Target) -> dict[str, str]:
    """Return requirement → its line of the lock with all digests, for a target's Python."""
    python = ".".join(map(str, target.python))
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    lines = {}
    for line in LOCK.read_text().replace("\\\n", "").splitlines():
        if line.startswith("#"):
            continue
        text, *digests = line.split("--hash=")
        requirement = Requirement(text)
        if requirement.name == EXPORTERS and not target.exports:
            continue
        if requirement.marker is None or requirement.marker.evaluate(environment):
            pinned = f"{requirement.name}{requirement.specifier}"
            lines[pinned] = " --hash=".join([pinned, *map(str.strip, digests)])
    return lines


def obtain(
    target: Target, folder: Path | None, progress: Callable[[str], None]
) -> dict[str, bytes]:
    """Return the wheels for a target by file name, from ``folder`` if there is one.

    Raises InputError if that folder lacks one, ConnectError if pip cannot download one.
    """
    if folder is not None:
        return _download(target, folder)
    try:
        with _open_kept(target) as kept:
            wheels = _read_kept(kept, target)
            if not wheels:
                progress(f"fetching {', '.join(locked(target))} for {target}")
                wheels = _download(target, None)
                _keep(kept, wheels)
            return wheels
    except OSError as error:
        progress(f"wheels not cached: {in_words(error)}")
        return _download(target, None)


def pip_arguments(target: Target, into: str) -> list[str]:
    """Return the arguments of pip that download a target's wheels into a folder, but for what."""
    platforms = [word for tag in target.platforms for word in ("--platform", tag)]
    python = ("--implementation", "cp", "--python-version", ".".join(map(str, target.python)))
    only = ("download", "--only-binary=:all:", "--no-deps", *python, *platforms)
    return [*only, "--dest", into]


def _download(target: Target, folder: Path | None) -> dict[str, bytes]:
    """Return what pip downloads, or takes from a folder and nowhere else."""
    source = ["--isolated", "--no-index", "--find-links", str(folder)] if folder is not None else []
    with tempfile.TemporaryDirectory(prefix="udpbench-wheels-") as own:
        into, lock = Path(own) / "wheels", Path(own) / LOCK.name
        into.mkdir()
        lock.write_text("\n".join(locked(target).values()))
        only = ("--require-hashes", "--requirement", str(lock))
        arguments = [*pip_arguments(target, str(into)), *only, *QUIETLY, *source]
        command = [sys.executable, "-P", "-m", "pip", *arguments]
        # A session of its own: Ctrl-C in the terminal is the controller's to answer.
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, start_new_session=True
        )
        if ended.returncode == 0:
            return {file.name: file.read_bytes() for file in sorted(into.iterdir())}
    if (other := DIFFERS.search(ended.stderr)) is not None:
        raise _differs(target, folder, *other.groups())
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    reason = lines[-1].removeprefix("ERROR: ") if lines else f"exit status {ended.returncode}"
    raise _not_obtained(target, folder, reason)


def _differs(target: Target, folder: Path | None, project: str, source: str) -> Exception:
    """Return the error for a file that is not in the lock."""
    where = urlsplit(source).path.rpartition("/")[2]
    what = f"{where} is not the {project} for {target} that this release of udpbench knows"
    why = "its SHA-256 differs, so it is sent to no host"
    if folder is not None:
        step = f"{why}: replace it by the file of that name on pypi.org"
        return InputError([Problem(what, "--wheels", str(folder), next_step=step)])
    return ConnectError(str(Problem(what, next_step=f"{why}: check from where pip downloads")))


def _not_obtained(target: Target, folder: Path | None, reason: str) -> Exception:
    into = str(folder) if folder is not None else "wheels"
    command = shlex.join(["python3", "-m", "pip", *pip_arguments(target, into), *locked(target)])
    where = "" if folder is not None else f", copy that folder here, and pass --wheels {into}"
    step = f"on a machine with internet access, type: {command}{where}"
    if folder is not None:
        what = f"lacks a wheel for {target}: {reason}"
        return InputError([Problem(what, "--wheels", into, next_step=step)])
    return ConnectError(str(Problem(f"pip cannot download the wheels: {reason}", next_step=step)))


def _open_kept(target: Target) -> Folder:
    """Return the folder for a target's wheels, this user's alone; OSError if it cannot be."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(given) if given.startswith("/") else Path.home() / ".cache"
    asked = " ".join([*pip_arguments(target, ""), *locked(target).values()])
    name = hashlib.sha256(asked.encode()).hexdigest()[:16]
    folder = Folder.open(cache / KEPT / name, make=True, give=False)
    try:
        os.fchmod(folder.fd, 0o700)  # EPERM unless it is this user's
    except OSError as error:
        folder.close()
        raise OSError(error.errno, error.strerror, str(folder.path)) from error
    return folder


def _keep(kept: Folder, wheels: dict[str, bytes]) -> None:
    """Write wheels, instead of what was in the folder."""
    for name in set(kept.names()) - set(wheels):
        kept.remove(name)
    for name, content in wheels.items():
        kept.write(name, content)


def _read_kept(kept: Folder, target: Target) -> dict[str, bytes]:
    """Return the wheels of the folder; none if one is missing, not locked, or not the user's."""
    lines = locked(target).values()
    try:
        wheels = {name: _read(kept, name) for name in kept.names()}
    except (OSError, ValueError):
        return {}
    digests = [hashlib.sha256(content).hexdigest() for content in wheels.values()]
    complete = len(digests) == len(lines) and all(any(d in line for d in digests) for line in lines)
    return wheels if complete else {}


def _read(kept: Folder, name: str) -> bytes:
    with open(kept.file(name, os.O_RDONLY), "rb") as file:  # noqa: PTH123 - a descriptor
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise ValueError(f"{name} is not this user's own")
        return file.read()

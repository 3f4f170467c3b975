"""What is sent to a host: the agent, or the exporter, with everything that it imports.

Owns the choice of files and the key that identifies them. Must never depend on the time, the
folder, or other installed packages: the same content has the same key and bytes.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import io
import re
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import udpbench
from udpbench.control.deployment.elf import Requirements, requirements
from udpbench.control.deployment.wheels import Target, obtain
from udpbench.errors import ConnectError, Problem
from udpbench.protocol import agent_files

__all__ = ["Bundle", "Target", "make_bundle"]

PACKAGE = Path(udpbench.__file__).parent
EXPORTER = "udpbench.export.service"
EXTENSION = "_native.abi3.so"
PORTABLE = PACKAGE / "portable"
"""Extensions for other machines and C libraries, if some were built (``noxfile.py portable``)."""
LEFT_OUT = re.compile(
    r"cffi/|psutil/(_ps(aix|bsd|osx|sunos|windows)\.py|tests/)|[^/]*\.(dist-info|data)/|.*/$"
)
"""Parts of wheels that an agent does not import: cffi's compiler, other systems, metadata."""


@dataclass(frozen=True)
class Bundle:
    """The files of one agent; their common folder is to be in ``sys.path``."""

    key: str
    """Hex digest of all paths and contents."""
    files: Mapping[str, bytes]
    """Relative path → content."""

    def archive(self) -> bytes:
        """Return them as a tar.gz, always of the same bytes."""
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for path, content in self.files.items():
                member = tarfile.TarInfo(path)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        return gzip.compress(plain.getvalue(), mtime=0)


def make_bundle(target: Target, wheels: Path | None, progress: Callable[[str], None]) -> Bundle:
    """Return what a host of this kind needs, with wheels from a folder or by pip.

    Raises ConnectError if udpbench cannot run there or a wheel cannot be had, InputError if the
    folder lacks a wheel.
    """
    files = {**_own_files(), f"udpbench/{EXTENSION}": _extension(target)}
    for content in obtain(target, wheels, progress).values():
        with zipfile.ZipFile(io.BytesIO(content)) as wheel:
            names = [name for name in wheel.namelist() if not LEFT_OUT.match(name)]
            files.update({name: wheel.read(name) for name in names})
    files = dict(sorted(files.items()))
    return Bundle(key_of(files), files)


def make_exporter(
    target: Target, wheels: Path | None, progress: Callable[[str], None], version: str
) -> Bundle:
    """Return what ``export`` as a service needs there; raises as ``make_bundle``."""
    agent = make_bundle(replace(target, exports=True), wheels, progress)
    start = f"from {EXPORTER} import main\n\nmain({version!r})\n"
    files = {**agent.files, **exporter_files(), "__main__.py": start.encode()}
    files = dict(sorted(files.items()))
    return Bundle(key_of(files), files)


def exporter_files() -> dict[str, bytes]:
    """Return the modules that the exporter imports of the package, at once or later."""
    files: dict[str, bytes] = {}
    left = [EXPORTER]
    while left:
        base = PACKAGE.parent.joinpath(*left.pop().split("."))
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            path = file.relative_to(PACKAGE.parent).as_posix()
            if path in files or not file.is_file():
                continue
            files[path] = file.read_bytes()
            if file.parent != PACKAGE or file.name != "__init__.py":  # which imports when asked
                left += [path.rpartition("/")[0].replace("/", "."), *_imported(files[path])]
    return files


def _imported(source: bytes) -> list[str]:
    """Return what a module imports of the package by dotted names, which may name what it has."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [node.module or "", *(f"{node.module}.{each.name}" for each in node.names)]
    return [name for name in names if name.split(".")[0] == PACKAGE.name]


def key_of(files: Mapping[str, bytes]) -> str:
    """Return a digest of all paths and contents, whatever their order."""
    digest = hashlib.sha256()
    for path, content in sorted(files.items()):
        digest.update(f"{path}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:32]


def _own_files() -> dict[str, bytes]:
    """Return the package as far as an agent imports it, but for the extension."""
    files = [PACKAGE / "__init__.py", *agent_files()]
    return {file.relative_to(PACKAGE.parent).as_posix(): file.read_bytes() for file in files}


def _extension(target: Target) -> bytes:
    """Return the first build of the C extension that the target can load, this machine's first."""
    needs: list[Requirements] = []
    for build in (PACKAGE / EXTENSION, *sorted(PORTABLE.glob("*.so"))):
        content = build.read_bytes()
        with suppress(ValueError):
            needs.append(requirements(content))
            if _loads(needs[-1], target):
                return content
    what = "this controller has no build of the C extension for it"
    limit = ", ".join(map(str, needs)) or "one for it"
    step = (
        "build more here, in a checkout (python3 noxfile.py portable), or install udpbench there "
    )
    step += (
        "with a compiler (python3 -m pip install udpbench) and name that Python in connect: python"
    )
    raise ConnectError(str(Problem(what, value=str(target), limit=limit, next_step=step)))


def _loads(needed: Requirements, target: Target) -> bool:
    """Return whether a host can load it; ValueError if its C library has no version."""
    if needed.machine != target.machine:
        return False
    if target.libc == "glibc":
        return needed.glibc is not None and needed.glibc <= target.libc_numbers
    return target.libc == "musl" and needed.glibc is None

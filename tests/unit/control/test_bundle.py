"""What is sent to a host, made by the real pip from wheels that this test writes."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import platform
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import requires
from itertools import product
from pathlib import Path

import pytest
from golden import Golden
from packaging.requirements import Requirement

import udpbench
from udpbench.control.deployment import bundle, wheels
from udpbench.control.deployment.bundle import (
    Bundle,
    Target,
    key_of,
    make_bundle,
    make_exporter,
)
from udpbench.control.deployment.elf import Requirements
from udpbench.errors import ConnectError, InputError

PACKAGE = Path(udpbench.__file__).parent
RELEASED_LOCK = wheels.LOCK
HERE = Target((3, 9), platform.machine(), "glibc", "2.31")
CONTENTS = {
    "cffi": ("_cffi_backend.so", "cffi/api.py", "cffi.libs/libffi.so"),
    "psutil": ("psutil/__init__.py", "psutil/_pslinux.py", "psutil/_pswindows.py"),
    "pyroute2": ("pyroute2/__init__.py", "pyroute2/netlink/__init__.py"),
    "prometheus_client": ("prometheus_client/__init__.py",),
}
"""Project → files of its wheel."""
OF_AGENTS = [name for name in CONTENTS if name != "prometheus_client"]
SENT = {name for project in OF_AGENTS for name in CONTENTS[project]} - {
    "cffi/api.py",
    "psutil/_pswindows.py",
}


def write_wheels(folder: Path, *names: str) -> Path:
    """Write a wheel of each project for Python 3.9 here, as pip reads it."""
    folder.mkdir()
    tag = f"cp39-cp39-manylinux2014_{HERE.machine}"
    for name in names:
        about = f"{name}-99.0.dist-info"
        files = {
            **{file: f"# {file}\n" for file in CONTENTS[name]},
            f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 99.0\n",
            f"{about}/WHEEL": f"Wheel-Version: 1.0\nTag: {tag}\n",
            f"{about}/RECORD": "",
        }
        with zipfile.ZipFile(folder / f"{name}-99.0-{tag}.whl", "w") as wheel:
            for file, text in files.items():
                wheel.writestr(zipfile.ZipInfo(file), text)  # of 1980: the same bytes each time
    return folder


def project_of(name: str) -> str:
    """Return the project of a wheel, as a lock has it."""
    return name.partition("-")[0].replace("_", "-")


def write_lock(file: Path, wheels_by_name: dict[str, bytes]) -> Path:
    """Write a lock of version 99.0 of each wheel's project."""
    lines = [
        f"{project_of(name)}==99.0 --hash=sha256:{hashlib.sha256(content).hexdigest()}\n"
        for name, content in sorted(wheels_by_name.items())
    ]
    file.write_text("".join(lines))
    return file


@pytest.fixture(scope="module", autouse=True)
def lock(offered: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Lock the wheels that this test writes."""
    content = {file.name: file.read_bytes() for file in offered.iterdir()}
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("lock")
        patch.setattr(wheels, "LOCK", write_lock(folder / wheels.LOCK.name, content))
        yield


@pytest.fixture(scope="module")
def offered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a wheel of each project."""
    return write_wheels(tmp_path_factory.mktemp("offered") / "wheels", *CONTENTS)


@pytest.fixture(scope="module")
def agent_bundle(offered: Path, lock: None) -> Bundle:
    """Return a bundle with those."""
    return make_bundle(HERE, offered, print)


@pytest.fixture
def cache(tmp_path: Path, offered: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the cache folder of a user whose only index is the folder of wheels."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(offered))
    return tmp_path / "cache"


def test_a_bundle_holds_what_an_agent_imports_and_no_more(agent_bundle: Bundle) -> None:
    """The agent, the leaves, the extension, and of the wheels what Linux needs."""
    own = {name for name in agent_bundle.files if name.startswith("udpbench/")}
    assert SENT == set(agent_bundle.files) - own
    assert (PACKAGE / "_native.abi3.so").read_bytes() == agent_bundle.files[
        "udpbench/_native.abi3.so"
    ]
    assert {"udpbench/__init__.py", "udpbench/protocol.py", "udpbench/agent/serve.py"} <= own
    assert not any(name.startswith(("udpbench/control", "udpbench/report")) for name in own)


def test_an_exporter_gets_a_library_of_the_lock(
    offered: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever is installed here: it comes from a wheel as all others do."""
    (tmp_path / "prometheus_client").mkdir()
    (tmp_path / "prometheus_client" / "__init__.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "prometheus_client", raising=False)
    files = make_exporter(HERE, offered, print, "1").files
    assert {"prometheus_client/__init__.py", "udpbench/export/service.py"} < files.keys()
    assert b"# prometheus_client/__init__.py\n" == files["prometheus_client/__init__.py"]


def test_the_same_content_has_the_same_key_and_bytes(
    agent_bundle: Bundle, offered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever order it comes: a host that has it needs nothing."""
    obtained = reversed(wheels.obtain(HERE, offered, print).items())
    monkeypatch.setattr(bundle, "obtain", lambda *_, again=dict(obtained): again)
    again = make_bundle(HERE, None, print)
    assert (agent_bundle.key, agent_bundle.archive()) == (again.key, again.archive())


def test_one_byte_makes_another_key(agent_bundle: Bundle) -> None:
    """Any content, or any path."""
    files = agent_bundle.files
    keys = {key_of({**files, name: files[name] + b"\n"}) for name in files}
    keys |= {key_of({**files, "more.py": b""}), key_of({**files, "mor.py": b"e"}), agent_bundle.key}
    assert len(files) + 3 == len(keys)
    assert agent_bundle.key == key_of(dict(reversed(files.items())))


def test_the_archive_holds_the_files(agent_bundle: Bundle) -> None:
    """And nothing else: no owner, no time, no folder."""
    with tarfile.open(fileobj=io.BytesIO(agent_bundle.archive())) as tar:
        files = {}
        for member in tar:
            content = tar.extractfile(member)
            assert content is not None
            files[member.name] = content.read()
            assert (0o644, 0, 0) == (member.mode, member.uid, member.mtime)
    assert agent_bundle.files == files


def test_wheels_are_fetched_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then kept where no other user may write."""
    messages: list[str] = []
    fetched = wheels.obtain(HERE, None, messages.append)
    monkeypatch.setenv("PIP_FIND_LINKS", str(cache))
    assert fetched == wheels.obtain(HERE, None, messages.append)
    pinned = ", ".join(f"{name}==99.0" for name in OF_AGENTS)
    assert [f"fetching {pinned} for {HERE}"] == messages
    (kept,) = (cache / wheels.KEPT).iterdir()
    assert 0o700 == kept.stat().st_mode & 0o777
    assert sorted(fetched) == sorted(file.name for file in kept.iterdir())


@pytest.mark.parametrize("harm", ["a changed byte", "a missing wheel", "others may write"])
def test_a_kept_wheel_that_cannot_be_trusted_is_fetched_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    """It is verified each time."""
    content = {"a.whl": b"a", "b.whl": b"b"}
    monkeypatch.setattr(wheels, "LOCK", write_lock(cache.parent / "own.lock", content))
    monkeypatch.setattr(wheels, "_download", lambda *_: content)
    wheels.obtain(HERE, None, print)
    (wheel,) = (cache / wheels.KEPT).glob("*/b.whl")
    if harm == "a changed byte":
        wheel.write_bytes(b"c")
    elif harm == "a missing wheel":
        wheel.unlink()
    else:
        wheel.chmod(0o666)
    messages: list[str] = []
    assert content == wheels.obtain(HERE, None, messages.append)
    assert 1 == len(messages)
    assert content == wheels.obtain(HERE, None, messages.append)
    assert 1 == len(messages)


@pytest.mark.parametrize("why", ["a file is there", "it is another user's"])
def test_without_a_cache_folder_wheels_are_fetched_each_time(
    why: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """A full or read-only disk is no reason to stop."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    content = {"a.whl": b"a"}
    monkeypatch.setattr(wheels, "LOCK", write_lock(tmp_path / "own.lock", content))
    if why == "a file is there":
        cache.write_text("not a folder")
    else:
        monkeypatch.setattr(os, "fchmod", refuse)
    monkeypatch.setattr(wheels, "_download", lambda *_: content)
    messages: list[str] = []
    assert content == wheels.obtain(HERE, None, messages.append)
    golden.check(messages)


@pytest.mark.parametrize(
    ("libc", "version", "platforms"),
    [
        ("glibc", "2.17", ["manylinux2014_x"]),
        ("glibc", "2.28", ["manylinux2014_x", "manylinux_2_28_x"]),
        ("glibc", "2.41", ["manylinux2014_x", "manylinux_2_28_x", "manylinux_2_34_x"]),
        ("musl", "1.2.4", ["musllinux_1_2_x"]),
    ],
)
def test_pip_is_asked_for_what_runs_there(libc: str, version: str, platforms: list[str]) -> None:
    """By the platforms for which projects build wheels."""
    assert platforms == list(Target((3, 9), "x", libc, version).platforms)


def test_a_folder_without_a_wheel_names_the_command(tmp_path: Path, golden: Golden) -> None:
    """To be typed where there is internet."""
    folder = write_wheels(tmp_path / "some", "cffi", "psutil")
    target = Target((3, 9), "x86_64", "glibc", "2.31")
    with golden.raises(InputError) as caught:
        wheels.obtain(target, folder, print)
    assert ["--wheels"] == [problem.where for problem in caught.value.problems]


@pytest.mark.parametrize("where", ["a folder", "an index"])
def test_a_wheel_that_differs_from_the_lock_is_refused(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """It would run as root on hosts; no wheel is kept, whoever offers it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = write_wheels(tmp_path / "some", *CONTENTS)
    wheel = next(folder.glob("psutil-*"))
    with zipfile.ZipFile(wheel, "a") as changed:
        changed.writestr("psutil/more.py", "")
    if where == "a folder":
        with golden.raises(InputError, psutil=wheel.name, target=HERE) as caught:
            wheels.obtain(HERE, folder, print)
        assert ["--wheels"] == [problem.where for problem in caught.value.problems]
        return
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    with golden.raises(ConnectError, psutil=wheel.name, target=HERE):
        wheels.obtain(HERE, None, lambda _: None)
    assert [] == [*(tmp_path / "cache").rglob("*.whl")]


@pytest.mark.parametrize("minor", range(9, 16))
def test_the_lock_has_what_an_agent_requires(minor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One version of each project that pyproject.toml requires without a marker, and that fits.

    And of the exporter's, where one is sent.
    """
    monkeypatch.setattr(wheels, "LOCK", RELEASED_LOCK)
    texts = requires("udpbench") or ()
    required = [Requirement(text) for text in texts if ";" not in text]
    target = Target((3, minor), HERE.machine, "glibc", "2.31")
    more = [Requirement(text) for text in texts if 'extra == "export"' in text]
    assert [wheels.EXPORTERS] == [each.name for each in more]
    fits(required, wheels.locked(target))
    fits([*required, *more], wheels.locked(replace(target, exports=True)))


def fits(required: list[Requirement], lines: dict[str, str]) -> None:
    """Assert that the lines of a lock are what is required."""
    pinned = [Requirement(text) for text in lines]
    assert sorted(r.name for r in required) == sorted(r.name for r in pinned)
    for requirement, pin in product(required, pinned):
        (specifier,) = pin.specifier
        assert requirement.name != pin.name or specifier.version in requirement.specifier
    assert all("--hash=sha256:" in line for line in lines.values())


def test_a_failed_download_names_the_command(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """And where to give what it brings."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with golden.raises(ConnectError):
        wheels.obtain(Target((3, 9), "x86_64", "glibc", "2.31"), None, lambda _: None)
    assert [] == [*cache.rglob("*.whl")]


def test_a_controller_without_pip_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Its environment may have been made by another installer."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with golden.raises(ConnectError, python=os.fspath(python)):
        wheels._download(Target((3, 9), "x86_64", "glibc", "2.31"), None)


@pytest.mark.parametrize(
    ("target", "fits"),
    [
        (Target((3, 9), "x86_64", "glibc", "2.17"), True),
        (Target((3, 9), "x86_64", "glibc", "2.12"), False),
        (Target((3, 9), "x86_64", "musl", "1.2.4"), False),
        (Target((3, 9), "x86_64", "", ""), False),
        (Target((3, 9), "x86_64", "glibc", "new"), False),
        (Target((3, 9), "aarch64", "glibc", "2.31"), False),
    ],
)
def test_a_host_that_cannot_load_the_extension_is_refused(
    target: Target, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Before a wheel is fetched."""
    monkeypatch.setattr(bundle, "PORTABLE", tmp_path)
    monkeypatch.setattr(bundle, "requirements", lambda _: Requirements("x86_64", (2, 17)))
    monkeypatch.setattr(bundle, "obtain", lambda *_: {})
    if fits:
        assert "udpbench/_native.abi3.so" in make_bundle(target, None, print).files
        return
    with golden.raises(ConnectError):
        make_bundle(target, None, print)


def test_a_build_for_musl_is_taken_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a file that is no ELF file is passed over."""
    (tmp_path / "a.so").write_bytes(b"text")
    (tmp_path / "b.so").write_bytes(
        (PACKAGE / "_native.abi3.so").read_bytes().replace(b"GLIBC_", b"OTHER_")
    )
    monkeypatch.setattr(bundle, "PORTABLE", tmp_path)
    monkeypatch.setattr(bundle, "obtain", lambda *_: {})
    target = Target((3, 12), platform.machine(), "musl", "1.2.4")
    files = make_bundle(target, None, print).files
    assert (tmp_path / "b.so").read_bytes() == files["udpbench/_native.abi3.so"]

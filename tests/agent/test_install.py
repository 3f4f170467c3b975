"""What is done on a host to bring an agent there: no folder, file or lock is taken on trust."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any, Optional

import pytest

from udpbench.agent import install

KEY, OTHER = "0123456789abcdef", "fedcba9876543210"
MODULE = "udpbench.agent.serve"
FILES = {"udpbench/agent/serve.py": b"print('served')\n", "data": bytes(70_000)}


def archive(files: Optional[dict[str, bytes]] = None, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Return files as the controller sends them."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for name, content in (FILES if files is None else files).items():
            member = tarfile.TarInfo(name)
            member.size, member.type, member.linkname = len(content), kind, "/etc/passwd"
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(plain.getvalue())


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return path → mode and content of all below a folder."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(folder.rglob("*"))
    }


def builds(place: Path) -> set[str]:
    """Return the names of all builds in a place."""
    return {path.name for path in place.iterdir() if not path.name.startswith(".")}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty home of this user; folders that users share are inside the test's own."""
    for name in ("home", "shared", "shared2"):
        (tmp_path / name).mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(install, "FALLBACKS", (str(tmp_path / "shared"), str(tmp_path / "shared2")))
    monkeypatch.setattr(install, "SYSTEM", str(tmp_path / "system" / "udpbench" / "agent"))
    return tmp_path / "home"


def settled(key: str = KEY, place: Optional[str] = None) -> tuple[str, list[str]]:
    """Install the build."""
    return install.settle(key, archive(), place or install.cache_place())


def test_a_build_lies_in_the_cache_alone_and_goes_without_a_trace(home: Path) -> None:
    """Every folder that was made for it is 0700, and is removed with it."""
    before = tree(home)
    folder, notes = settled()
    assert (str(home / ".cache/udpbench/agent" / KEY), []) == (folder, notes)
    assert install.is_whole(folder, os.getuid())
    assert {0o700} == {path.stat().st_mode & 0o777 for path in (home / ".cache", Path(folder))}
    assert FILES == {name: (Path(folder) / name).read_bytes() for name in FILES}
    assert install.find({"key": KEY, "place": "cache", "folder": None}) == folder
    removed = install.remove(install.cache_place())
    assert {"removed": [str(home / ".cache/udpbench/agent")], "busy": [], "kept": []} == removed
    assert before == tree(home)


def test_what_others_keep_in_the_cache_stays(home: Path) -> None:
    """A folder that was there, or is used by now, is not removed."""
    (home / ".cache").mkdir()
    settled()
    (home / ".cache" / "udpbench" / "wheels").mkdir()
    install.remove(install.cache_place())
    assert [".cache", ".cache/udpbench", ".cache/udpbench/wheels"] == list(tree(home))


def test_the_cache_may_be_elsewhere(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As XDG_CACHE_HOME says, if it is a path; without HOME the user's entry counts."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/scratch")
    assert "/scratch/udpbench/agent" == install.cache_place()
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert f"{home}/.cache/udpbench/agent" == install.cache_place()
    monkeypatch.delenv("HOME")
    assert install.home().startswith("/")


@pytest.mark.parametrize("harm", ["content", "missing", "manifest", "link", "mode"])
def test_a_damaged_build_is_replaced(home: Path, harm: str) -> None:
    """Whatever a crash, a full disk or a user has left."""
    folder = Path(settled()[0])
    if harm == "content":
        (folder / "data").write_bytes(b"x")
    elif harm == "missing":
        (folder / "data").unlink()
    elif harm == "manifest":
        (folder / install.MANIFEST).write_text("")
    elif harm == "link":
        folder.rename(home / "moved")
        folder.symlink_to(home / "moved")
    else:
        folder.chmod(0o777)
    assert not install.is_whole(str(folder), os.getuid())
    assert None is install.find({"key": KEY, "place": "cache", "folder": None})
    assert (str(folder), []) == settled()
    assert install.is_whole(str(folder), os.getuid())
    assert [] == list(folder.parent.glob(f"{install.UNFINISHED}*"))


def test_who_installs_second_takes_what_is_there(home: Path) -> None:
    """Two controllers at once: the file of the first stays the same file."""
    folder = Path(settled()[0])
    number = (folder / "data").stat().st_ino
    settled()
    assert number == (folder / "data").stat().st_ino


def test_what_an_interrupted_one_left_is_removed(home: Path) -> None:
    """With the next installation."""
    place = Path(settled()[0]).parent
    (place / f"{install.UNFINISHED}x").mkdir()
    settled()
    assert not (place / f"{install.UNFINISHED}x").exists()


def test_old_builds_go_but_never_one_in_use(home: Path) -> None:
    """Old is what was not started for 14 days, or in a future that a wrong clock had."""
    place = Path(settled()[0]).parent
    ages_s = {"a" * 8: 15 * 86400, "b" * 8: 13 * 86400, "c" * 8: -20 * 86400, "d" * 8: 99 * 86400}
    for key, age_s in ages_s.items():
        folder = Path(settled(key)[0])
        os.utime(folder / install.MANIFEST, (time.time() - age_s,) * 2)
    with (place / ("d" * 8) / install.LOCK).open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        install.clean(str(place), KEY)
        assert {KEY, "b" * 8, "d" * 8} == builds(place)
        removed = install.remove(str(place))
        assert {"removed": [], "busy": [str(place / ("d" * 8))], "kept": []} == removed
    (place / ("b" * 8) / install.MANIFEST).unlink()
    install.clean(str(place), KEY)
    assert {KEY} == builds(place)


def test_what_is_not_of_udpbench_is_never_removed(home: Path) -> None:
    """In a shared folder it is passed over, in the cache the folder is kept with the reason."""
    thesis = home.parent / "shared" / f"{install.FALLBACK_PREFIX}notes" / "thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("")
    os.utime(thesis.parent, (0, 0))
    (home / ".cache").write_text("")
    settled()
    assert [] == install.remove(install.cache_place())["kept"]
    assert [thesis] == list((home.parent / "shared").rglob("*.txt"))
    (home / ".cache").unlink()
    place = Path(settled()[0]).parent
    (place / "mine").mkdir()
    removed = install.remove(str(place))
    kept = [[str(place), f"{place}/mine does not belong to udpbench"]]
    assert {"removed": [], "busy": [], "kept": kept} == removed
    (place / "mine").rmdir()
    place.chmod(0o777)
    assert "is writable by others" in install.remove(str(place))["kept"][0][1]
    assert (place / KEY).exists()


def test_a_place_is_locked_until_it_is_gone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent or a controller that waited for a lock sees that it is no longer there."""
    settled()
    real, removals = install.shutil.rmtree, []

    def look(path: str, **options: Any) -> None:
        removals.append((path, os.path.exists(os.path.join(path, install.LOCK))))  # noqa: PTH110, PTH118
        real(path, **options)

    monkeypatch.setattr(install.shutil, "rmtree", look)
    settled_place = install.cache_place()
    fd = os.open(f"{settled_place}/{install.LOCK}", os.O_RDWR)
    install.remove(settled_place)
    monkeypatch.setattr(install.os, "open", lambda *_: fd)
    with (
        pytest.raises(install.Refused, match="removed in the meantime"),
        install.exclusive("place"),
    ):
        pass
    assert [False, False] == [there for _, there in removals]


# --- places that cannot be used -------------------------------------------------------------------


def fallback(home: Path) -> Path:
    """Return the only folder in the first shared one."""
    (path,) = (home.parent / "shared").iterdir()
    return path


def test_a_home_that_is_a_file_system_of_others_is_left(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was made to look at it is removed again."""
    real = install.file_system
    monkeypatch.setattr(
        install, "file_system", lambda path: "nfs4" if path.startswith(str(home)) else real(path)
    )
    folder, (note,) = settled()
    assert str(fallback(home) / KEY) == folder
    assert note == f"{home}/.cache/udpbench/agent: on a network file system (nfs4)"
    assert {} == tree(home)


def test_a_home_without_execution_is_left(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mmap(2) with PROT_EXEC is what loading the C extension needs."""

    def refuse(*_: Any, **__: Any) -> None:
        monkeypatch.undo()
        raise PermissionError

    shared = install.FALLBACKS
    monkeypatch.setattr(install.mmap, "mmap", refuse)
    with pytest.raises(install.Refused, match="mounted noexec"):
        install.make_place(install.cache_place())
    assert {} == tree(home)
    assert shared


def test_a_link_in_the_place_of_a_new_folder_changes_no_mode(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who writes the folder above may put it there between two calls; it is not gone by."""
    own, make = home / "own", os.mkdir
    own.mkdir(0o750)

    def swapped(path: str, mode: int) -> None:
        make(path, mode)
        os.rmdir(path)  # noqa: PTH106
        os.symlink(own, path)  # noqa: PTH211

    monkeypatch.setattr(install.os, "mkdir", swapped)
    with pytest.raises((OSError, install.Refused)):
        install.make_place(str(home / "agent"))
    assert 0o750 == own.stat().st_mode & 0o777


@pytest.mark.parametrize("harm", ["file", "link", "mode"])
def test_a_folder_that_others_could_change_is_left(home: Path, harm: str) -> None:
    """A file or a link in its place, or a mode that lets others write; nothing in it is touched."""
    agent = home / ".cache" / "udpbench" / "agent"
    agent.parent.mkdir(parents=True)
    if harm == "file":
        agent.write_text("")
    elif harm == "link":
        (home / "elsewhere").mkdir()
        agent.symlink_to(home / "elsewhere")
    else:
        agent.parent.chmod(0o777)
    before = tree(home)
    folder, notes = settled()
    assert str(fallback(home) / KEY) == folder
    assert 1 == len(notes)
    assert notes[0].startswith(str(agent))
    assert before == tree(home)


def test_a_folder_of_another_user_is_left(home: Path) -> None:
    """Whoever owns a folder can replace what is in it."""
    why = install.distrust(str(home), os.getuid() + 1)
    if os.getuid() == 0:
        os.chown(home, 12345, 12345)
        why = install.distrust(str(home), 0)
    assert why is not None
    assert "belongs to user" in why


def test_a_folder_in_a_shared_one_is_made_fresh_and_never_adopted(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that earlier controllers left are removed, unless used or younger than an hour."""
    (home / ".cache").write_text("")
    paths = [Path(settled()[0]).parent for _ in range(3)]
    assert 3 == len(set(paths))
    assert {0o700} == {path.stat().st_mode & 0o777 for path in paths}
    for path in paths[:2]:
        os.utime(path, (time.time() - 2 * install.FRESH_S,) * 2)
    (paths[0].parent / f"{install.FALLBACK_PREFIX}link").symlink_to(home)
    with (paths[1] / KEY / install.LOCK).open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        paths.append(Path(settled()[0]).parent)
    assert [False, True, True, True] == [path.exists() for path in paths]
    assert None is install.find({"key": KEY, "place": "cache", "folder": None})
    folder = install.find({"key": KEY, "place": "cache", "folder": str(paths[1] / KEY)})
    assert str(paths[1] / KEY) == folder
    removed = install.remove(install.cache_place())
    assert ({str(path) for path in paths[1:]}, []) == (set(removed["removed"]), removed["busy"])
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home.parent / "shared2"))
    assert settled()[0].startswith(str(home.parent / "shared2"))


def test_without_any_place_all_are_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its reason."""
    (home / ".cache").write_text("")
    monkeypatch.setattr(install, "FALLBACKS", ("/nowhere",))
    with pytest.raises(install.Refused) as caught:
        settled()
    first, second = str(caught.value).split("; ")
    assert (first.startswith(str(home)), second.startswith("/nowhere: ")) == (True, True)


def test_root_has_a_place_of_its_own_or_none(home: Path) -> None:
    """Readable by all, so that a user can see what is there; its launcher starts builds alone."""
    install.SOURCE = "SOURCE"  # type: ignore[attr-defined]
    folder, _ = settled(place=install.SYSTEM)
    assert 0o755 == Path(folder).stat().st_mode & 0o777
    launcher = Path(install.SYSTEM) / install.LAUNCHER
    assert 0o755 == launcher.stat().st_mode & 0o777
    assert launcher.read_text().endswith("SOURCE\nlaunch()\n")
    settled(place=install.SYSTEM)
    if os.getuid() == 0:
        request = {"key": KEY, "place": "system", "folder": None}
        assert folder == install.find(request)
        launcher.write_text("another version's")
        assert None is install.find(request)
    Path(install.SYSTEM).parent.chmod(0o777)
    with pytest.raises(install.Refused, match="is writable by others"):
        settled(place=install.SYSTEM)


def test_every_user_can_look_into_roots_place(home: Path) -> None:
    """Whatever umask root has."""
    install.SOURCE = "SOURCE"  # type: ignore[attr-defined]
    before = os.umask(0o077)
    try:
        settled(place=install.SYSTEM)
    finally:
        os.umask(before)
    folders = (Path(install.SYSTEM), *list(Path(install.SYSTEM).parents)[:2])
    assert {0o755} == {folder.stat().st_mode & 0o777 for folder in folders}


def test_a_build_without_its_launcher_is_not_there(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher is written first: after a crash between the two there is none of them."""

    def crash(_place: str, _name: str) -> None:
        raise OSError

    monkeypatch.setattr(install, "write_launcher", crash)
    with pytest.raises(install.Refused):
        settled(place=install.SYSTEM)
    assert not (Path(install.SYSTEM) / KEY).exists()


def test_root_runs_no_python_that_others_can_change(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the program nor a folder of its modules."""
    monkeypatch.setattr(sys, "path", ["/nowhere"])
    assert None is install.distrust_python("/")
    (home / "modules").mkdir()
    (home / "modules").chmod(0o777)
    (home / "link").symlink_to(home / "modules")
    monkeypatch.setattr(sys, "path", ["/nowhere", str(home / "link")])
    why = install.distrust_python("/")
    assert why is not None
    assert why.startswith(f"{home}/modules is writable")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ({"../up": b""}, tarfile.REGTYPE),
        ({"/up": b""}, tarfile.REGTYPE),
        ({"up": b""}, tarfile.SYMTYPE),
    ],
)
def test_an_archive_writes_nowhere_else(home: Path, content: dict[str, bytes], kind: bytes) -> None:
    """Only plain files within the build; nothing stays of another."""
    with pytest.raises(install.Refused, match="unsafe archive member"):
        install.settle(KEY, archive(content, kind), install.cache_place())
    assert [] == list(home.rglob("up"))


# --- requests -------------------------------------------------------------------------------------


def served(home: Path, *parts: Any, **environ: str) -> tuple[list[dict[str, Any]], str]:
    """Return answers of the program after its report, and stderr; requests are dicts or bytes."""
    stdin = b"".join(
        part if isinstance(part, bytes) else json.dumps(part).encode() + b"\n" for part in parts
    )
    source = Path(install.__file__).read_text()
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"{source}\nSOURCE=''\nserve()"],
        input=stdin,
        capture_output=True,
        cwd="/",
        env={"HOME": str(home), **environ},
        check=False,
        timeout=20,
    )
    report, *rest = done.stdout.decode().splitlines()
    assert list(sys.version_info[:2]) == json.loads(report)["python"]
    rest = [line for line in rest if '"receiving"' not in line]
    answers = [json.loads(line) for line in rest if line.startswith("{")]
    return answers, "".join(rest[len(answers) :]) + done.stderr.decode()


def sent(do: str, content: bytes, **keys: Any) -> dict[str, Any]:
    """Return a request with an archive."""
    digest = hashlib.sha256(content).hexdigest()
    return {**request(do), "sha256": digest, "bytes": len(content), **keys}


def request(do: str, **keys: Any) -> dict[str, Any]:
    """Return a request."""
    return {"do": do, "key": KEY, "place": "cache", "folder": None, "run": [MODULE], **keys}


def test_a_build_is_asked_for_received_and_started(home: Path) -> None:
    """The agent runs from its folder alone; the second time, nothing is received."""
    content = archive()
    answers, ending = served(home, request("start"), sent("start", content), content)
    folder = f"{home}/.cache/udpbench/agent/{KEY}"
    ready = {"state": "ready", "folder": folder, "notes": []}
    assert ([{"state": "missing", "builds": 0}, ready], "served") == (answers, ending)
    assert ([ready], "served") == served(home, request("start"))
    assert [{"state": "missing", "builds": 1}] == served(home, request("start", key=OTHER))[0]
    assert [ready] == served(home, request("deploy"))[0]


@pytest.mark.parametrize(
    ("request_keys", "why"),
    [
        ({"key": "../up"}, "not the key of a build: ../up"),
        ({"run": ["os", "x"]}, "not a module of the agent: os x"),
        ({"run": [MODULE, "-c evil"]}, f"not a module of the agent: {MODULE} -c evil"),
        ({"sha256": "0" * 64}, "the archive arrived damaged: its SHA-256 differs"),
        ({"bytes": 10**6}, "the connection ended after"),
    ],
)
def test_a_request_that_cannot_be_met_is_answered(
    home: Path, request_keys: dict[str, Any], why: str
) -> None:
    """In words; a connection that ends during the archive leaves nothing."""
    content = archive()
    answers, _ = served(home, {**sent("start", content), **request_keys}, content)
    assert answers[-1]["state"] == "failed" or "bytes" not in request_keys
    assert why in answers[-1]["why"]
    if {"sha256", "bytes"} & set(request_keys):
        assert {} == tree(home)


def test_remove_and_become_are_requests_too(home: Path) -> None:
    """What becomes another program has read no byte of what is that one's."""
    content = archive()
    answers, _ = served(home, sent("deploy", content), content, {"do": "remove", "place": "cache"})
    assert [f"{home}/.cache/udpbench/agent"] == answers[-1]["removed"]
    assert {} == tree(home)
    assert ([], "the rest") == served(home, {"do": "become", "words": ["cat"]}, b"the rest")
    result = served(home, {"do": "become", "words": ["sudo"]}, PATH="/nowhere")
    assert ([], "sudo: not found\n") == result


def test_the_launcher_starts_a_build_and_nothing_else(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither another folder, nor a damaged build, nor another module."""
    own = f'SYSTEM = "{install.SYSTEM}"'
    source = Path(install.__file__).read_text()
    install.SOURCE = source.replace('SYSTEM = "/var/lib/udpbench/agent"', own)  # type: ignore[attr-defined]
    folder, _ = settled(place=install.SYSTEM)
    launcher = str(Path(install.SYSTEM) / install.LAUNCHER)

    def launched(*words: str) -> tuple[int, str]:
        done = subprocess.run([launcher, *words], capture_output=True, text=True, check=False)
        return done.returncode, (done.stdout + done.stderr).strip()

    if os.getuid() != 0:
        pytest.skip("builds of root are root's")
    assert (0, "served") == launched(KEY, MODULE)
    assert (1, f"udpbench: no build {OTHER} in {install.SYSTEM}") == launched(OTHER, MODULE)
    assert (1, f"udpbench: no build ../up in {install.SYSTEM}") == launched("../up", MODULE)
    assert (1, "udpbench: not a module of the agent: os") == launched(KEY, "os")
    assert (1, "udpbench: not a module of the agent:") == launched(KEY)
    monkeypatch.setenv("SUDO_UID", "7")
    monkeypatch.setenv("LD_SOMETHING", "/home/bench")
    shown = {"udpbench/agent/serve.py": b"import os; print(sorted(os.environ), os.environ['PATH'])"}
    install.settle(OTHER, archive(shown), install.SYSTEM)
    names = ["LC_ALL", "PATH", "SUDO_UID", "UDPBENCH_BUILD_LOCK"]
    assert (0, f"{names} /usr/sbin:/usr/bin:/sbin:/bin") == launched(OTHER, MODULE)
    (Path(folder) / "data").write_bytes(b"")
    assert (1, f"udpbench: no build {KEY} in {install.SYSTEM}") == launched(KEY, MODULE)

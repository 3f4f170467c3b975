"""The exporter as a service of a host: what it leaves, whoever dies when, and what goes with it."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from test_install import KEY, OTHER, archive, builds, home, tree

from udpbench.agent import install

__all__ = ["home"]

SEGMENT = "looks-0000000001-1764115200000.jsonl"
STEPS = ("chmod", "makedirs", "mkdir", "rename", "rmdir", "symlink", "unlink")
Host = Path
"""A folder that stands for a host's root."""


@pytest.fixture
def host(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a host with systemd's folder, and one that node_exporter reads."""
    root = tmp_path / "system"
    for name in ("units", "node"):
        (root / name).mkdir(parents=True)
    root.chmod(0o755)
    monkeypatch.setattr(install, "SERVICE", str(root / "udpbench" / "export"))
    monkeypatch.setattr(install, "UNITS", str(root / "units"))
    monkeypatch.setattr(install, "systemd", lambda *_orders: [])
    monkeypatch.setattr(install, "SOURCE", "", raising=False)
    monkeypatch.setattr(install.sys, "executable", "/")
    return root


def unit(host: Path) -> str:
    """Return a unit that names what the exporter writes."""
    names = f"Textfile={host}/node/a.prom\nRecording={host}/flight\n"
    rights = f"AmbientCapabilities=CAP_X{install.ROOTS_RIGHTS}\n"
    return f"[Service]\nUser={install.FOLDERS_OWNER}\n{rights}\n{install.HEAD}\n{names}"


def installed(host: Path, key: str = KEY) -> None:
    """Bring a build and run it."""
    install.settle(key, archive(), install.SERVICE)
    install.enable(key, unit(host))


def names(host: Path) -> set[str]:
    """Return what is there; but for the list of folders that were made, which a death shortens."""
    return {name for name in tree(host) if not name.endswith(install.MADE)}


def removed() -> list[str]:
    """Remove all of it; return the paths."""
    gone, _ = install.disable()
    return [*gone, *install.remove(install.SERVICE)["removed"]]


def written(host: Path) -> None:
    """Write what an exporter that was killed leaves."""
    (host / "flight").mkdir(exist_ok=True)
    for name in (f"flight/{SEGMENT}", "flight/.lock", "node/a.prom", "node/.a.prom.0123abcd"):
        (host / name).write_text("x")


def test_what_is_installed_goes_without_a_trace(host: Path) -> None:
    """With what it wrote, and with the folder that agents share with it."""
    before = tree(host)
    installed(host)
    link = host / "units" / install.WANTS / install.UNIT
    owner = pwd.getpwuid(os.getuid()).pw_name
    rights = install.LEAVING if os.getuid() == 0 else ""
    assert f"[Service]\nUser={owner}\nAmbientCapabilities=CAP_X{rights}\n" in link.read_text()
    written(host)
    assert [f"{host}/{name}" for name in (
        *("node/a.prom", "flight", f"units/{install.WANTS}/{install.UNIT}"),
        *(f"units/{install.UNIT}", "udpbench/export"),
    )] == removed()  # fmt: skip
    assert before == tree(host)
    assert [] == removed()


def test_agents_and_exporter_leave_each_other_alone(host: Path) -> None:
    """Neither's cleaning reaches the other, and who goes last takes the folder of both."""
    before = tree(host)
    for order in ((install.SERVICE, install.SYSTEM), (install.SYSTEM, install.SERVICE)):
        installed(host)
        for name in (KEY, OTHER):
            install.settle(name, archive(), install.SYSTEM)
        manifest = Path(install.SERVICE) / KEY / install.MANIFEST
        os.utime(manifest, (0, 0))
        install.clean(install.SYSTEM)
        assert install.is_whole(str(manifest.parent), os.getuid())
        install.disable()
        for place in order:
            assert install.remove(place)["removed"]
        assert before == tree(host)


def test_the_next_version_takes_the_place_of_the_one_before(host: Path) -> None:
    """Its build alone is kept, and its unit."""
    installed(host)
    installed(host, OTHER)
    assert {OTHER} == builds(Path(install.SERVICE))


def test_what_an_earlier_version_wrote_goes_with_the_next(host: Path) -> None:
    """Which may write elsewhere, or nothing."""
    before = tree(host)
    for later in ("[Service]\n", f"[Service]\n{install.HEAD}\nTextfile={host}/node/b.prom\n"):
        installed(host)
        written(host)
        install.enable(KEY, later)
        install.enable(KEY, later)
        assert {f"{host}/flight", f"{host}/node/a.prom"} <= {*removed()}
        assert before == tree(host)


def test_a_python_that_only_root_may_run_is_no_services(
    host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service has a user of its own."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "python3").touch(0o755)
    tmp_path.chmod(0o755)
    with pytest.raises(install.NoService, match=f"{closed} is closed to it") as caught:
        install.prove_service(str(closed / "python3"))
    assert "first in PATH" in caught.value.step


def test_what_others_have_there_stays(host: Path) -> None:
    """Another service's unit, a file beside the recording, and what is in the place."""
    (host / "units" / install.WANTS).mkdir()
    (host / "units" / install.WANTS / "other.service").touch()
    installed(host)
    written(host)
    (host / "flight" / "notes").touch()
    (Path(install.SERVICE) / "mine").touch()
    assert [[f"{host}/flight", "Directory not empty"]] == install.disable()[1]
    assert [[install.SERVICE]] == [kept[:1] for kept in install.remove(install.SERVICE)["kept"]]
    assert (host / "flight" / "notes").exists()
    assert (host / "units" / install.WANTS / "other.service").exists()


def test_what_cannot_be_removed_is_named_and_keeps_nothing_else(host: Path) -> None:
    """A folder that is called like a segment, or like a file of metrics that is not whole yet."""
    installed(host)
    written(host)
    mine = {f"{host}/flight/loss-0000000009-0000000000001.jsonl", f"{host}/node/.a.prom.00000000"}
    for each in mine:
        Path(each).mkdir()
    gone, kept = install.disable()
    assert {(each, "Is a directory") for each in mine} == {(path, why) for path, why in kept}
    assert {*map(str, (host / "flight").iterdir()), *map(str, (host / "node").iterdir())} == mine
    assert not {f"{host}/flight", f"{host}/node/a.prom"} & {*gone}


def test_nothing_is_removed_of_what_may_still_run(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would write it again; where systemd does not run, nothing of it does."""
    installed(host)
    written(host)
    before = tree(host)
    monkeypatch.setattr(install, "systemd", lambda *orders: [f"systemctl {orders[0][0]}: no"])
    (answer,) = answers(host, {"do": "remove", "place": "export"}, monkeypatch)
    assert ("failed", "the exporter may still run: systemctl stop: no") == (
        answer["state"],
        answer["why"],
    )
    assert f"systemctl stop {install.UNIT}" in answer["step"]
    assert before == tree(host)
    monkeypatch.setattr(install, "systemd", lambda *_orders: [install.NO_SYSTEMD])
    assert f"{host}/flight" in removed()


def test_a_recording_behind_a_link_goes_with_the_link(host: Path) -> None:
    """As systemd makes it for a user of the service's own."""
    installed(host)
    (host / "private").mkdir()
    for name in (SEGMENT, ".lock"):
        (host / "private" / name).write_text("x")
    (host / "flight").symlink_to(host / "private")
    assert f"{host}/flight" in removed()
    assert [] == [name for name in ("flight", "private") if os.path.lexists(host / name)]


@pytest.mark.skipif(os.getuid() != 0, reason="gives a link to another user")
def test_what_is_behind_a_link_of_another_user_stays_and_is_named(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be anybody's file; whoever removes the exporter learns that one was left."""
    installed(host)
    (host / "node").rename(host / "theirs")
    (host / "theirs" / "a.prom").write_text("x")
    (host / "node").symlink_to("theirs")
    os.chown(host / "node", 4242, 4242, follow_symlinks=False)
    replies: list[dict[str, Any]] = []
    monkeypatch.setattr(install, "say", lambda **words: replies.append(words))
    install.answer({"do": "remove", "place": "export"})
    (reply,) = replies
    why = f"{host}/node: node is a link of another user"
    assert [[f"{host}/node/a.prom", why]] == reply["kept"]
    assert (host / "theirs" / "a.prom").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="gives a folder to another user")
def test_the_owner_of_a_folder_above_chooses_no_file_of_anothers(host: Path) -> None:
    """Debian's folder for node_exporter is in one of prometheus', who may put a link there."""
    own = unit(host).replace("node/a.prom", "node/own/a.prom")
    (host / "node" / "own").mkdir()
    installed(host)
    install.enable(KEY, own)
    (host / "root").mkdir()
    for name in ("root/a.prom", "root/.a.prom.0123abcd"):
        (host / name).write_text("root's")
    os.chown(host / "node", 1234, 1234)
    (host / "node" / "own").rmdir()
    (host / "node" / "own").symlink_to(host / "root")
    with pytest.raises(install.WrongFolder, match="own is a link of another user"):
        install.enable(KEY, own)
    assert f"{host}/node/own/a.prom" not in removed()
    assert {".a.prom.0123abcd", "a.prom"} == {file.name for file in (host / "root").iterdir()}


def test_a_link_of_the_administrators_leads_to_the_folder(host: Path) -> None:
    """An absolute one, or one beside it; at a loop it ends."""
    (host / "disk").mkdir()
    (host / "node").rename(host / "disk" / "node")
    (host / "node").symlink_to("link")
    (host / "link").symlink_to(host / "disk" / ".." / "disk" / "node")
    installed(host)
    written_to = host / "disk" / "node" / "a.prom"
    written_to.write_text("x")
    assert f"{host}/node/a.prom" in removed()
    assert not written_to.exists()
    (host / "link").unlink()
    (host / "link").symlink_to("node")
    with pytest.raises(install.WrongFolder):
        installed(host)


@pytest.mark.skipif(os.getuid() != 0, reason="gives a folder to another user")
def test_the_owner_of_the_folder_needs_a_name(host: Path) -> None:
    """As systemd's User= takes it."""
    os.chown(host / "node", 4242, 4242)
    with pytest.raises(install.WrongFolder, match="belongs to user 4242, who has no name"):
        installed(host)


def test_a_recording_is_in_a_folder_of_its_own(host: Path) -> None:
    """For systemd gives the user of the service all that is in it, such as root's agents."""
    (host / "flight").mkdir()
    (host / "flight" / "agent").mkdir()
    with pytest.raises(install.WrongFolder, match="flight has what is no recording: agent"):
        installed(host)
    assert not (host / "units" / install.UNIT).exists()


def dying(act: Callable[[], object], step: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Do it in a process that is killed before a step; return whether it was."""
    pid = os.fork()
    if pid == 0:
        left = [step]

        def counted(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*words: Any, **given: Any) -> Any:
                left[0] -= 1
                if left[0] == 0:
                    os._exit(9)
                return real(*words, **given)

            return call

        for name in STEPS:
            setattr(os, name, counted(getattr(os, name)))
        with suppress(BaseException):
            act()
            os._exit(0)
        os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, 9)
    return status == 9


def test_whoever_dies_while_it_is_installed_leaves_what_the_next_completes(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or what is removed without a trace: at each step that changes a folder."""
    before = tree(host)
    installed(host)
    whole = names(host)
    removed()
    step = 1
    while dying(lambda: installed(host), step, monkeypatch):
        if step % 2:
            installed(host)
            assert whole == names(host)
        removed()
        assert before == tree(host), step
        step += 1
    assert step > len(STEPS)


def test_whoever_dies_while_it_is_removed_leaves_what_the_next_removes(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each step."""
    before = tree(host)
    step, died = 1, True
    while died:
        installed(host)
        written(host)
        died = dying(removed, step, monkeypatch)
        removed()
        assert before == tree(host), step
        step += 1
    assert step > len(STEPS)


def answers(host: Path, request: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what one request is answered."""
    lines: list[Any] = []
    requests = iter((request, None))
    monkeypatch.setattr(install, "hear", lambda: next(requests))
    monkeypatch.setattr(install, "say", lambda **answer: lines.append(answer))
    install.serve()
    return lines[1:]


def test_a_service_is_a_request(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused where its build is gone, or where there is no systemd; what systemd refuses is said."""
    install.settle(KEY, archive(), install.SERVICE)
    monkeypatch.setattr(install, "systemd", lambda *_orders: ["restart: no"])
    request = {"do": "enable", "place": "export", "key": KEY, "unit": unit(host)}
    assert [{"state": "enabled", "failed": ["restart: no"]}] == answers(host, request, monkeypatch)
    (answer,) = answers(host, {**request, "key": OTHER}, monkeypatch)
    assert "was removed in the meantime" in answer["why"]
    monkeypatch.setattr(install, "systemd", lambda *_orders: [])
    (answer,) = answers(host, {"do": "remove", "place": "export"}, monkeypatch)
    assert f"{host}/units/{install.UNIT}" in answer["removed"]
    monkeypatch.setattr(install, "UNITS", "/no/such")
    (answer,) = answers(host, request, monkeypatch)
    assert ("there is no systemd (/no/such is missing)", True) == (
        answer["why"],
        "what starts its other services" in answer["step"],
    )


def test_a_build_of_the_exporter_is_looked_for_in_its_place(host: Path) -> None:
    """And nowhere else."""
    request = {"key": KEY, "place": "export", "folder": None}
    assert install.find(request) is None
    installed(host)
    assert f"{install.SERVICE}/{KEY}" == install.find(request)


def test_what_systemd_refuses_is_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its own words, but for what has not begun; and that it does not run."""
    program = tmp_path / "systemctl"
    program.write_text('#!/bin/sh\necho "$1: no" >&2; exit 5\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(install.os.path, "isdir", lambda path: path == "/run/systemd/system")
    assert ["systemctl restart x: restart: no"] == install.systemd(("stop", "x"), ("restart", "x"))
    monkeypatch.setattr(install.os.path, "isdir", lambda _path: False)
    (line,) = install.systemd(("stop", "x"))
    assert "systemd does not run there" in line

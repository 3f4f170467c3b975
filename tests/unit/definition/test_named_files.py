"""Which files a definition may have read: those below its folder, and none that show a secret."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

import pytest
from definition_fixture import loaded, refused, write
from golden import Golden

from udpbench import folder
from udpbench.definition import load, named_files, payloads, shipped
from udpbench.definition.problems import Tree
from udpbench.errors import InputError, Problem

SECRET = "root:$6$salt$secret:19000:0:99999:7:::\n"  # noqa: S105 - as in shadow(5)
COMMAND = "receive: {command: [./a]}"
STRANGER = 54321


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a secret and a definition, beside the one that the test works in."""
    other = tmp_path / "elsewhere"
    write(other, SECRET, "secret")
    write(other, "question: Base?\nsend: {batch: 8}\n", "base.yaml")
    write(tmp_path, "", "work/empty")
    monkeypatch.chdir(tmp_path / "work")
    return other


@pytest.fixture
def _as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be root, called by whoever runs the test; what is ``strange`` belongs to somebody else."""
    fstat = os.fstat

    def owned(fd: int) -> os.stat_result:
        status = fstat(fd)
        strange = "strange" in folder.real_path(fd).name
        return os.stat_result((*status[:4], STRANGER if strange else status[4], *status[5:]))

    monkeypatch.setenv("SUDO_UID", str(os.geteuid()))
    monkeypatch.setattr(folder.os, "geteuid", lambda: 0)
    monkeypatch.setattr(named_files.os, "fstat", owned)


def payload(name: str) -> tuple[str, str]:
    """Return an experiment that sends a file."""
    return f"traffic: {{payload: {{file: {name}}}}}", COMMAND


def lay_links(other: Path) -> None:
    """Put links to a folder elsewhere beside the definition."""
    Path("secret").symlink_to(other / "secret")
    Path("base.yaml").symlink_to(other / "base.yaml")
    Path("out").symlink_to(other)
    Path("nothing").symlink_to(other / "none")


@pytest.mark.parametrize(
    "name",
    [
        "../elsewhere/secret",
        "secret",
        "out/secret",
        "out/../secret",
        "nothing",
        "../elsewhere/none",
    ],
)
def test_a_payload_outside_is_not_read(name: str, elsewhere: Path, golden: Golden) -> None:
    """By whatever way it is reached; one that does not exist is refused in the same words."""
    lay_links(elsewhere)
    golden.check(refused(*payload(name)))


def test_a_whole_path_may_lead_inside_only(elsewhere: Path, golden: Golden) -> None:
    """It is where the file is that counts, not how it is written."""
    write(Path.cwd(), "a", "query.bin")
    (point,) = loaded(*payload(str(Path("query.bin").resolve()))).points
    assert ("61",) == point.traffic.payload
    golden.check(refused(*payload(str(elsewhere / "secret"))))


def test_a_link_that_stays_inside_is_followed(elsewhere: Path) -> None:
    """Also through a folder."""
    write(Path.cwd(), "a", "data/query.bin")
    Path("link").symlink_to("data")
    (point,) = loaded(*payload("link/query.bin")).points
    assert ("61",) == point.traffic.payload


@pytest.mark.parametrize("name", ["../elsewhere/base.yaml", "base.yaml", "out/base.yaml"])
def test_a_base_outside_is_not_read(name: str, elsewhere: Path, golden: Golden) -> None:
    """What is extended is named by the definition, too."""
    lay_links(elsewhere)
    golden.check(refused(f"extends: {name}"))


def test_a_base_may_name_what_the_definition_may(elsewhere: Path, golden: Golden) -> None:
    """Relative to itself, and never more than whoever extends it."""
    write(Path.cwd(), "a", "query.bin")
    text = "traffic: {payload: {file: ../query.bin}}\n"
    write(Path.cwd(), f"question: Why?\n{text}{COMMAND}\n", "below/base.yaml")
    assert ("61",) == loaded("extends: below/base.yaml").points[0].traffic.payload
    write(Path.cwd(), f"question: Why?\n{text.replace('..', '../../elsewhere')}", "below/base.yaml")
    golden.check(refused("extends: below/base.yaml"))


def test_another_folder_is_opened_by_the_user(elsewhere: Path) -> None:
    """For what lies there, and for what a definition there extends."""
    write(Path.cwd(), f"question: Why?\n{payload('../elsewhere/secret')[0]}\n{COMMAND}\n", "p.yaml")
    write(Path.cwd(), "question: Why?\nextends: ../elsewhere/base.yaml\n", "e.yaml")
    experiments = load.load_experiments(["p.yaml", "e.yaml"], allow_read=[elsewhere])
    first, second = (experiment.points[0] for experiment in experiments)
    assert ((SECRET.encode().hex(),), 8) == (first.traffic.payload, second.send.batch)


@pytest.mark.parametrize(
    "text",
    [
        SECRET,
        "password: hunter2 secret\n",
        "- secret\n",
        "a: *secret\n",
        "&secret a: b\n",
        "!secret a\n",
        "secret: 1\nsecret: 2\n",
        "secret" * 1000,
        '"\\secret"\n',
    ],
)
def test_what_is_no_definition_is_not_shown(text: str, golden: Golden) -> None:
    """As a base, an experiment or a lab: nothing of it is in the error."""
    write(Path.cwd(), text, "other")
    lines = refused("extends: other")
    for load_it in (lambda: load.load_experiments(["other"]), lambda: load.load_lab("other")):
        with pytest.raises(InputError) as caught:
            load_it()
        lines += str(caught.value).splitlines()
    assert not any("secret" in line for line in lines)
    golden.check(lines)


def test_bytes_are_not_shown_either(golden: Golden) -> None:
    """Nor how they would be written."""
    Path("other").write_bytes(b"\xfe")
    golden.check(refused("extends: other"))


@pytest.mark.parametrize("lines", [*map(payload, ("pipe", "folder"))])
def test_only_regular_files_are_read(lines: tuple[str, ...], golden: Golden) -> None:
    """A pipe, which nobody may ever write to, makes nothing wait."""
    os.mkfifo("pipe")
    Path("folder").mkdir()
    golden.check(refused(*lines))


def test_a_base_that_has_become_a_pipe_is_not_read(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """It was a file when it was looked for; one that is a pipe by then is no base."""
    os.mkfifo("pipe")
    assert "neither a file in this folder nor a shipped" in refused("extends: pipe")[0]
    monkeypatch.setattr(shipped, "find_base", lambda *names: Path(names[0]))
    golden.check(refused("extends: pipe"))


@pytest.mark.usefixtures("_as_root")
@pytest.mark.parametrize("lines", [payload("strange.bin"), ("extends: strange.yaml",)])
def test_root_reads_no_strangers_file(lines: tuple[str, ...], golden: Golden) -> None:
    """Unless the user opens its folder; the calling user's files, and what ships, are read."""
    write(Path.cwd(), "a", "mine.bin")
    write(Path.cwd(), "a", "strange.bin")
    write(Path.cwd(), "question: Base?\n", "strange.yaml")
    assert ("61",) == loaded(*payload("mine.bin")).points[0].traffic.payload
    assert 1 == loaded("extends: smoke").repetitions
    golden.check(refused(*lines))
    assert 1 == len(load.load_experiments(["x.yaml"], allow_read=[Path.cwd()]))


@pytest.mark.usefixtures("_as_root")
def test_what_the_user_names_may_be_anybodys() -> None:
    """It is the user's choice, and not the definition's."""
    write(Path.cwd(), "question: Why?\n", "strange.yaml")
    assert 1 == len(load.load_experiments(["strange.yaml"]))


def test_a_file_that_is_not_there_is_reported(golden: Golden) -> None:
    """Also a name that no file can have."""
    golden.check(refused(*payload('"a\\0"')))
    golden.check(refused(*payload("a" * 300)))
    with golden.raises(ValueError):
        named_files.scope_of(Path.cwd()).open("a\0")


def test_a_folder_replaced_meanwhile_opens_nothing(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Its owner puts a link to a folder of secrets in its place once the definition is read."""
    work, inlined = Path.cwd(), payloads.inlined

    def swapped(tree: Tree, scope: named_files.ReadScope) -> tuple[Tree, list[Problem]]:
        work.rename(work.with_name("aside"))
        work.symlink_to(elsewhere)
        return inlined(tree, scope)

    file = write(work, f"question: Why?\n{payload('secret')[0]}\n{COMMAND}\n")
    monkeypatch.setattr(payloads, "inlined", swapped)
    with golden.raises(InputError):
        load.load_experiments([file])


def test_a_file_replaced_meanwhile_is_not_read(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was judged is read, whatever has its name by now."""
    write(Path.cwd(), "a", "query.bin")
    judge = named_files.ReadScope._refuse

    def swapped(scope: named_files.ReadScope, held: int) -> None:
        judge(scope, held)
        Path("query.bin").unlink()
        Path("query.bin").symlink_to(elsewhere / "secret")

    monkeypatch.setattr(named_files.ReadScope, "_refuse", swapped)
    assert ("61",) == loaded(*payload("query.bin")).points[0].traffic.payload


def test_no_more_is_read_than_can_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of names of one large file do not fill the memory."""
    Path("half.bin").write_bytes(bytes(40_000))
    opened: list[str] = []
    real = named_files.ReadScope.open

    def noted(scope: named_files.ReadScope, name: str) -> IO[bytes]:
        opened.append(name)
        return real(scope, name)

    monkeypatch.setattr(named_files.ReadScope, "open", noted)
    refused(f"traffic: {{payload: [{', '.join(['{file: half.bin}'] * 1000)}]}}", COMMAND)
    assert ["half.bin"] * 2 == opened

"""The controller's end of bringing an agent: with the real program on pipes, and with one that errs."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import pytest
from golden import Golden

from udpbench.agent import install
from udpbench.control.connections.channel import AGENT
from udpbench.control.deployment import deployer
from udpbench.control.deployment.bundle import Bundle, Target
from udpbench.control.deployment.deployer import BOOT, END, PROGRAM, Conversation, Deployer
from udpbench.errors import AgentLost, ConnectError
from udpbench.json_lines import LinePipe

KEY = "0123456789abcdef"
FILES = {"udpbench/agent/serve.py": b"print('served', __file__)\n", "data": bytes(200_000)}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home; every host gets the same small build."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(deployer, "make_bundle", lambda *_: Bundle(KEY, FILES))
    return tmp_path


@contextmanager
def connected(boot: str = BOOT) -> Iterator[tuple[Conversation, subprocess.Popen[bytes]]]:
    """Yield a conversation with the real program, which ends with the block."""
    command = [sys.executable, "-I", "-S", "-c", boot]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        requests, replies = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
        yield Conversation("left", requests, LinePipe(replies.fileno())), process


def brought(teller: Deployer, folder: str | None = None) -> tuple[str, str]:
    """Bring the agent; return its folder and what it printed."""
    with connected() as (line, process):
        place = teller.bring(line, False, "start", (AGENT,), folder)
        out, err = process.communicate(timeout=20)
    assert b"" == err
    return place, out.decode().strip()


def test_an_agent_is_sent_once_and_started_from_its_folder(home: Path) -> None:
    """What is sent is told; when it is there, nothing is."""
    messages: list[str] = []
    teller = Deployer(lambda host, text: messages.append(f"{host}: {text}"))
    folder = f"{home}/.cache/udpbench/agent/{KEY}"
    served = f"served {folder}/udpbench/agent/serve.py"
    assert (folder, served) == brought(teller)
    assert f"left: agent installed in {folder}" == messages[-1]
    assert "left: no agent installed; sending it " in messages[0]
    messages.clear()
    assert (folder, served) == brought(teller, folder)
    assert (folder, served) == brought(Deployer(refusal="type this"))
    assert [] == messages


def test_what_has_arrived_is_reported_while_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow connection, in lines that are seconds apart."""
    monkeypatch.setattr(deployer, "PROGRESS_NS", -1)
    messages: list[str] = []
    brought(Deployer(lambda _, text: messages.append(text)))
    assert "100 % transferred" == messages[-2]


def test_what_is_typed_suits_every_shell() -> None:
    """One line in single quotes: without what csh, fish or sh would take as their own."""
    assert set(BOOT).isdisjoint("'\\!\n`")
    assert f"'{BOOT}'" == shlex.quote(BOOT)
    assert END not in PROGRAM[:-1]
    compile(BOOT, "boot", "exec")


def test_an_older_python_says_so_itself() -> None:
    """Before it reads a program that it could not parse."""
    with connected(BOOT.replace("(3, 9)", "(9, 9)")) as (_, process):
        _, err = process.communicate(timeout=20)
    assert (1, True) == (process.returncode, err.startswith(b"Python 3."))
    assert err.endswith(b" is too old\n")


def test_a_connection_that_ends_in_the_program_ends_it() -> None:
    """Half of it is nothing that runs on."""
    with connected() as (_, process):
        out, _ = process.communicate(PROGRAM[:1000], timeout=20)
    assert (1, b"") == (process.returncode, out)


def saying(*answers: object) -> Conversation:
    """Return a conversation with a program whose answers are known."""
    lines = [
        answer if isinstance(answer, bytes) else json.dumps(answer).encode() for answer in answers
    ]
    content = io.BytesIO(b"\n".join(lines))
    return Conversation("left", io.BytesIO(), LinePipe(lambda _: content.read(), 2**20))


def reported(**keys: Any) -> dict[str, Any]:
    """Return a report of a user who is not root."""
    target = {"python": [3, 9], "machine": "m68k", "libc": "musl", "libc_version": "1.2"}
    return {**target, "uid": 1000, "executable": "/opt/python3", "distrusted": None, **keys}


MISSING = {"state": "missing", "builds": 0}


@pytest.mark.parametrize(
    "answers",
    [
        (b"Welcome to left",),
        (reported(), {"state": "failed", "why": "no\x1bspace"}),
        (reported(distrusted="/opt/python3 belongs to user 7"),),
        (reported(distrusted="/opt/python3 belongs to user 7", uid=0),),
        (b"[" + b"1," * 2**20,),
    ],
)
def test_what_a_host_cannot_do_is_reported(answers: tuple[object, ...], golden: Golden) -> None:
    """Noise instead of an answer, no place, and a Python that root must not run."""
    with golden.raises(ConnectError):
        Deployer().bring(saying(*answers), True, "start", (AGENT,), None)


@pytest.mark.parametrize(
    "answers",
    [
        ([1],),
        (7,),
        (None,),
        ({},),
        ({"python": [3]},),
        (reported(python=[3]),),
        (reported(python=[3, "9"]),),
        (reported(python=[3, 100]),),
        (reported(python=[2, 10]),),
        (reported(uid=True),),
        (reported(), {"state": []}),
        (reported(), {"state": "receiving", "bytes": 1}),
        (reported(), {"state": "ready", "folder": "/x", "notes": [1]}),
        (reported(), MISSING, {"state": "receiving", "bytes": 0}),
        (reported(), MISSING, *[{"state": "receiving", "bytes": 1}] * 2),
        (reported(), MISSING, {"state": "receiving", "bytes": 10**9}),
    ],
)
def test_an_answer_that_is_not_the_programs_is_refused(answers: tuple[object, ...]) -> None:
    """Whatever a host sends, and if it would go on receiving for ever."""
    with pytest.raises(ConnectError, match="its answer is not udpbench's"):
        Deployer().bring(saying(*answers), False, "start", (AGENT,), None)
    with pytest.raises(ConnectError, match="not udpbench's"):
        Deployer().remove(saying(reported(), {"state": "removed", "removed": 1}), False)


def test_an_answer_too_deep_to_be_read_is_noise() -> None:
    """It ends no controller."""
    with pytest.raises(ConnectError, match="instead of an answer"):
        Deployer().bring(saying(b"[" * 10**5), False, "start", (AGENT,), None)


def test_a_kind_of_host_that_nothing_fits_is_named(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """The error of its bundle is that host's."""

    def refuse(target: Target, *_: object) -> Bundle:
        raise ConnectError(f"{target}: no build for it")

    monkeypatch.setattr(deployer, "make_bundle", refuse)
    with golden.raises(ConnectError):
        Deployer().bring(saying(reported()), False, "start", (AGENT,), None)


def test_a_running_agent_whose_build_is_gone_is_lost() -> None:
    """A controller that reconnects sends nothing."""
    with pytest.raises(AgentLost):
        Deployer().bring(saying(reported(), MISSING), False, "start", (AGENT,), "/gone")


def test_a_program_that_ended_is_not_an_answer() -> None:
    """Why it ended is for the connection to say."""
    with pytest.raises(EOFError):
        Deployer().bring(saying(), False, "start", (AGENT,), None)


def test_builds_are_removed_but_not_in_use(home: Path) -> None:
    """What was and was not removed is told."""
    messages: list[str] = []
    teller = Deployer(lambda _, text: messages.append(text))
    folder, _ = brought(teller)
    messages.clear()
    with open(f"{folder}/{install.LOCK}") as held:  # noqa: PTH123
        install.fcntl.flock(held, install.fcntl.LOCK_SH)
        with connected() as (line, _):
            assert not teller.remove(line, False)
    with connected() as (line, _):
        assert teller.remove(line, False)
    with connected() as (line, _):
        assert teller.remove(line, False)
    kept = f"kept {folder}: a running agent uses it"
    assert [kept, f"removed {home}/.cache/udpbench/agent", "no agent installed"] == messages
    assert [] == os.listdir(home)  # noqa: PTH208

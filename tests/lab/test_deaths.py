"""Any death: whoever dies, whenever and wherever, the hosts end as they began, and it is told.

A matrix of who, when and where. ``deaths`` runs all of it, ``lab`` five of those that have each
victim, each moment and each place once.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import json
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest
import ssh_hosts
from deaths import (
    HELD,
    LEASE_S,
    PATIENT_LEASE_S,
    PROGRAM,
    BuiltIn,
    BySsh,
    OnPath,
    Place,
    Scene,
    Victim,
    When,
    running,
    typed,
)
from sampled import sampled
from ssh_hosts import Pair, pair_of_hosts
from waiting import DEADLINE_S, wait_until

from udpbench.commands.command_line import app

pytestmark = ssh_hosts.needed()

WHERE = ("lab", "ssh")
OVER_SSH = ("connection", "way")
"""Who is met only there: nothing but pipes leads to the agents of a built-in lab."""
MEANINGLESS = {
    ("worker", "apply"): "the workers are made after it",
    ("worker", "between"): "the workers end with their trial",
    ("worker", "restore"): "the workers end with their trial",
    **{(who, "lab"): "nothing but pipes leads to its agents" for who in OVER_SSH},
}
"""Who and when, or who and where → why there is no such case."""


@dataclass(frozen=True)
class Case:
    """One cell of the matrix."""

    who: Victim
    when: When
    where: str
    way: str = "sockets"

    @property
    def meaningless(self) -> bool:
        """Say whether there is nothing to hit."""
        return bool({(self.who, self.when), (self.who, self.where)} & set(MEANINGLESS))

    @property
    def repetitions(self) -> int:
        """Two where a trial has to be finished before, or has to end well after."""
        return 2 if self.who == "worker" or self.when in ("measured", "between") else 1

    @property
    def lease_s(self) -> int:
        """Short where the end of the lease is what restores."""
        survives = self.who in ("guardian", "worker", "connection", "link")
        return PATIENT_LEASE_S if survives else LEASE_S

    @property
    def apart(self) -> bool:
        """Say whether it changes nothing of the machine: a built-in lab's agent does."""
        return self.where == "ssh"

    def __str__(self) -> str:
        return f"{self.who}-{self.when}-{self.where}" + f"-{self.way}" * (self.way != "sockets")


MATRIX = [
    case
    for who in get_args(Victim)
    for when in get_args(When)
    for where in WHERE
    if not (case := Case(who, when, where)).meaningless
]
PROGRAMS = [
    Case(who, when, where, "command")
    for who in ("controller", "stopped", "agent", "guardian", "worker")
    for when in ("path", "warmup", "measured")
    for where in WHERE
]
"""The same with a receiver of the user's: of it, too, nothing is left."""
OTHER_WAYS = [
    Case(who, when, "ssh", way)
    for way in HELD
    for who in ("controller", "stopped", "agent", "guardian", "worker")
    for when in ("path", "warmup", "measured")
]
"""And with workers that have more than sockets: a program, a queue, a ring."""

SAMPLE = {
    Case("controller", "measured", "ssh"),
    Case("stopped", "restore", "ssh"),
    Case("agent", "between", "lab"),
    Case("guardian", "apply", "ssh"),
    Case("connection", "path", "ssh"),
    Case("link", "measured", "ssh"),
    Case("way", "warmup", "ssh"),
    Case("agent", "warmup", "ssh", "command"),
    Case("worker", "warmup", "ssh", "af_xdp"),
    Case("controller", "measured", "ssh", "io_uring"),
}
"""Each victim once, each moment and each way."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Yield two hosts with sshd."""
    with pair_of_hosts(tmp_path_factory.mktemp("ssh")) as hosts:
        yield hosts


@pytest.fixture
def place(case: Case, tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    """Return the place of a case."""
    if case.where == "lab":
        return BuiltIn(tmp_path)
    pair: Pair = request.getfixturevalue("pair")
    pair.write_home()
    return BySsh(pair, tmp_path)


@pytest.fixture
def allowed_s(request: pytest.FixtureRequest) -> float:
    """Return how long a restoration may take: what is promised, unless tests of CI's sample are run.

    A machine on which a CPU stands still for seconds is as late, whatever it runs.
    """
    promised_s = LEASE_S + 1
    return DEADLINE_S if "not long" in request.config.getoption("markexpr") else promised_s


def shown(folder: Path) -> list[str]:
    """Return the status of every trial that ``udpbench show --json`` tells of."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        app(["show", str(folder), "--json"], standalone_mode=False)
    return [trial["status"] for trial in json.loads(out.getvalue())["trials"]]


FINISHED = {"measured": ["done"], "between": ["done"], "restore": ["done"]}
"""When → the trials that were finished before."""


LEASE_RAN_OUT = "udpbench agent: the lease of 2 s expired; restored"


VICTIM = {"lab": BuiltIn.victim, "ssh": BySsh.victim}


def outcome(case: Case, message: str) -> tuple[int, list[str], str]:
    """Return the exit status, the trials' states, and what is said."""
    finished = FINISHED.get(case.when, [])
    failed = finished if case.when == "restore" else [*finished, "failed"]
    if case.who == "controller":
        return -signal.SIGKILL, finished, ""
    if case.who in ("guardian", "connection") or (case.who == "link" and case.when == "restore"):
        return 0, ["done"] * case.repetitions, ""
    if case.who == "stopped" and case.when == "restore" and LEASE_RAN_OUT not in message:
        return 0, finished, ""  # its last request had been sent already
    if case.who == "link" and case.when in ("warmup", "measured"):
        return 5, [*finished, "done"], "the link went down during the trial"
    if case.who == "link":
        why = (
            "no packet of the path check arrived" if case.when == "path" else "0 is down, although"
        )
        return 3, failed, why
    if case.who == "worker" and case.when != "measured":
        failed = ["failed", "done"]  # the next one has a new worker
    words = {
        "stopped": LEASE_RAN_OUT,
        "agent": f"{VICTIM[case.where]}: lost, and then seen restored",
        "way": "not restored: right: lost, and not seen restored: ",
        "worker": "ended unexpectedly (killed by signal 9)",
    }
    # A host that cannot be reached any more is not known to be restored.
    return 4 if case.who == "way" else 3, failed, words[case.who]


def differences(
    before: dict[str, dict[str, str]], after: dict[str, dict[str, str]]
) -> Iterator[str]:
    """Yield host, command and every line that is not as it was."""
    for host, state in before.items():
        for name, text in state.items():
            # Some are one long line of JSON.
            lines = [
                content.replace("},{", "},\n{").split("\n") for content in (text, after[host][name])
            ]
            for line in difflib.unified_diff(*lines, lineterm="", n=0):
                if not line.startswith(("---", "+++", "@@")):
                    yield f"{host}: {name}: {line}"


@pytest.mark.drawn(5)
@pytest.mark.parametrize(
    "case", sampled([*MATRIX, *PROGRAMS, *OTHER_WAYS], SAMPLE, lambda case: case.apart), ids=str
)
def test_whoever_dies_the_hosts_end_as_they_began(
    case: Case, place: Place, tmp_path: Path, allowed_s: float
) -> None:
    """Within a lease and a second; what was finished is readable, and what happened is said."""
    before = place.visible()
    # A trial whose workers are kept begins before anybody can be stopped.
    fresh = case.when == "between"
    with running(place, tmp_path, case.repetitions, case.lease_s, case.way, fresh) as run:
        scene = Scene(place, run)
        scene.reach(case.when, case.who)
        if case.way == "command":
            assert any(PROGRAM in kin.command for kin in scene.kin)
        if case.way in HELD and case.when != "path":  # before which its workers may not be there
            assert HELD[case.way] == scene.held(case.way)
        scene.hit(case.who)
        hit_at = time.monotonic()
        run.let_go()
        left_s = allowed_s - (time.monotonic() - hit_at)
        if case.who in ("controller", "stopped"):
            scene.await_journals_gone(place.sender, place.receiver, place.victim, limit_s=left_s)
        elif case.who in ("agent", "way"):
            scene.await_journals_gone(place.victim, limit_s=left_s)
        if case.who == "stopped":
            run.process.send_signal(signal.SIGCONT)
        code = run.end()
        scene.await_nobody(allowed_s - LEASE_S)
        if case.way in HELD:
            nothing: dict[str, list[str]] = {host: [] for host in HELD[case.way]}
            wait_until("nothing is held", lambda: nothing == scene.held(case.way), allowed_s)
        after = place.visible()
        text = " ".join(run.output.split())
        expected_code, statuses, words = outcome(case, text)
        assert (expected_code, statuses) == (code, shown(run.folder)), run.output
        assert words in text, run.output
    assert [] == list(differences(before, after))


ON_PATH: list[tuple[str, Victim, When]] = [
    (host, who, when)
    for host in OnPath.hosts
    for who in ("agent", "guardian", "controller", "stopped")
    for when in get_args(When)
    # There is one controller; a guardian comes with its host's first setting.
    if who == "agent"
    or (who == "guardian" and (when != "apply" or host == OnPath.receiver))
    or (who in ("controller", "stopped") and host == OnPath.sender)
]


@pytest.mark.apart
@pytest.mark.drawn(2)
@pytest.mark.parametrize(("host", "who", "when"), ON_PATH)
def test_whoever_dies_of_four_hosts_all_end_as_they_began(
    host: str, who: Victim, when: When, tmp_path: Path, allowed_s: float
) -> None:
    """Two routers of which each is changed; and nothing gets where the lab does not lead."""
    place = OnPath(tmp_path, host)
    place.open()
    try:
        before, strays = place.visible(), place.strays()
        case = Case(who, when, "path")
        with running(place, tmp_path, case.repetitions, case.lease_s, fresh=True) as run:
            scene = Scene(place, run)
            scene.reach(when, who)
            changed = [name for name in place.hosts if scene.journal(name).exists()]
            assert changed, "nothing was changed before"
            scene.gather()
            scene.hit(who)
            run.let_go()
            if who != "guardian":
                scene.await_journals_gone(*changed, limit_s=allowed_s)
            if who == "stopped":
                run.process.send_signal(signal.SIGCONT)
            code = run.end()
            scene.await_nobody(allowed_s)
            assert {"controller": -signal.SIGKILL, "guardian": 0}.get(who, 3) == code, run.output
            assert not [name for name in place.hosts if scene.journal(name).exists()]
        assert [] == list(differences(before, place.visible()))
        assert strays == place.strays()
    finally:
        place.close()


@pytest.mark.long
def test_a_connection_that_falls_silent_is_given_up(
    pair: Pair, tmp_path: Path, allowed_s: float
) -> None:
    """Nothing comes over it, not even its end: the lease restores the host, and exit is 3."""
    relay = f"{sys.executable} {Path(__file__).with_name('slow_link.py')} 0 {{}}"
    pair.write_home(dict.fromkeys(("left", "right"), relay))
    place = BySsh(pair, tmp_path)
    before = place.visible()
    with running(place, tmp_path, 1) as run:
        scene = Scene(place, run)
        scene.reach("warmup", "connection")
        agent = scene.kin_of("right", "serve").process
        (carrier,) = [
            parent for parent in agent.parents() if "slow_link.py" in " ".join(parent.cmdline())
        ]
        carrier.suspend()
        scene.await_journals_gone("right", limit_s=allowed_s)
        code = run.end()
        assert (3, ["failed"]) == (code, shown(run.folder)), run.output
        assert "right: the agent does not answer: " in " ".join(run.output.split()), run.output
        scene.await_nobody(1.0)
    pair.write_home()
    assert [] == list(differences(before, place.visible()))


LEFT_BEHIND = [Case("agent", "warmup", where) for where in WHERE]


@pytest.mark.parametrize(
    "case", sampled(LEFT_BEHIND, LEFT_BEHIND[1:2], lambda case: case.apart), ids=str
)
def test_what_an_agent_left_that_died_with_its_guardian_is_restored(
    case: Case, place: Place, tmp_path: Path
) -> None:
    """By a second look after the lease; the trial has failed, and nothing is left to restore."""
    before = place.visible()
    with running(place, tmp_path, 1) as run:
        scene = Scene(place, run)
        scene.reach(case.when, case.who)
        scene.hold(place.victim)  # else it would start another guardian
        scene.hit("guardian")
        scene.hit("agent")
        assert 3 == run.end(), run.output
        assert not scene.journal(place.victim).exists()
        assert f"{place.victim}: lost, and then seen restored" in run.output
    assert [] == list(differences(before, place.visible()))
    again = typed(place, "restore", "--lab", place.lab)
    assert (0, "nothing was left behind\n") == (again.returncode, again.stdout), again.stderr


@pytest.mark.apart
def test_restore_mends_what_was_not_seen_restored(pair: Pair, tmp_path: Path) -> None:
    """The host cannot be reached again: exit code 4, and no run begins there before."""
    pair.write_home()
    place = BySsh(pair, tmp_path)
    before = place.visible()
    with running(place, tmp_path, 1) as run:
        scene = Scene(place, run)
        scene.reach("warmup", "agent")
        scene.hold(place.victim)
        scene.hit("guardian")
        pair.write_home({place.victim: "false {}"})
        scene.hit("agent")
        assert 4 == run.end(), run.output
        assert scene.journal(place.victim).exists()
        text = " ".join(run.output.split())
        command = f"udpbench restore --lab {place.lab}"
        assert f"as soon as it can be reached, type: {command}" in text
        assert "seen restored" not in text.replace("not seen restored", "")
    pair.write_home()
    (tmp_path / "again").mkdir()
    with running(place, tmp_path / "again", 1) as again:
        assert 3 == again.end(), again.output
        expected = f"run {run.name} died here and left settings; undo them: {command}"
        assert f"{place.victim}: {expected}" in again.output
    restored = typed(place, "restore", "--lab", place.lab)
    assert 0 == restored.returncode, restored.stderr
    assert f"{place.victim}: sysctl net." in restored.stdout
    assert [] == list(differences(before, place.visible()))
    twice = typed(place, "restore", "--lab", place.lab)
    assert (0, "nothing was left behind\n") == (twice.returncode, twice.stdout), twice.stderr

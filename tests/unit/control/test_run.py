"""The way of a run as one literal list of words: when all is well, and for every failure."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from golden import Golden

from control.fake import World, experiment, facts, go, header, lab, only
from udpbench.analysis.comparison.comparisons import EXTRA_BLOCKS
from udpbench.control import lost_hosts
from udpbench.control.run import RunOptions, restore_lab, run
from udpbench.control.setting_findings import altered, refused, rounded, rules_changed
from udpbench.errors import (
    AgentError,
    AgentLost,
    ConnectError,
    DeadlineExceeded,
    HelloRefused,
    HostError,
    RestoreError,
    SafetyError,
    SettingRefused,
    UdpbenchError,
    Unseen,
    WorkerFailed,
)
from udpbench.judged_run import ending_code
from udpbench.model.experiment import planned_text
from udpbench.model.host import Change, Setting
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import (
    RecordedError,
    SelfTest,
    StageProof,
)
from udpbench.model.result import Progress
from udpbench.protocol import Taken
from udpbench.records.reader import read_run
from udpbench.records.writer import RunWriter

BEGIN = [
    "open machine",
    "hello machine",
    "take machine",
    "open sender",
    "open receiver",
    "hello sender",
    "hello receiver",
    "take sender",
    "take receiver",
]
SNAPSHOTS = ["snapshot sender", "snapshot receiver", "snapshot machine"]
FACTS = ["facts sender", "facts receiver"]
APPLY = ["apply machine nothing", "apply receiver", "apply sender"]
PREPARE = ["prepare receiver", "prepare sender"]
SET_UP = [*FACTS, *APPLY, *FACTS, *PREPARE]
PATH = [*SNAPSHOTS, "start receiver path", "start sender path", "stop receiver", *SNAPSHOTS]
WARMUP = [*SNAPSHOTS, "start receiver warmup", "start sender warmup", "stop receiver", *SNAPSHOTS]
MEASURED = [
    *SNAPSHOTS,
    "start receiver measured",
    "start sender measured",
    "stop receiver",
    *SNAPSHOTS,
]
TOGETHER = [
    SNAPSHOTS,
    FACTS,
    APPLY[:2],
    PREPARE,
    ["close receiver", "close sender"],
    ["verify receiver", "verify sender"],
    *(
        [f"start receiver {phase}", f"start sender {phase}"]
        for phase in ("path", "warmup", "measured")
    ),
]
"""Requests that are made at the same time: all are, whichever fails."""
VERIFY = ["verify receiver", "verify sender", "facts sender", "facts receiver", "others machine"]
CLOSE = ["close receiver", "close sender"]
TRIAL = [*SET_UP, *PATH, *WARMUP, *MEASURED, *VERIFY, *CLOSE]
CLEAN_UP = ["others machine", "close sender", "close receiver"]
RESTORE = ["restore sender", "restore receiver", "restore machine"]
END = ["end sender", "end receiver", "end machine"]


def test_a_good_trial_takes_every_step_in_order(tmp_path: Path) -> None:
    """From the first agent to the last one, in one list."""
    world = World()
    outcome, run = go(world, tmp_path)
    assert [
        "open machine",
        "hello machine",
        "take machine",
        "open sender",
        "open receiver",
        "hello sender",
        "hello receiver",
        "take sender",
        "take receiver",
        "facts sender",
        "facts receiver",
        "apply machine nothing",
        "apply receiver",
        "apply sender",
        "facts sender",
        "facts receiver",
        "prepare receiver",
        "prepare sender",
        "snapshot sender",
        "snapshot receiver",
        "snapshot machine",
        "start receiver path",
        "start sender path",
        "stop receiver",
        "snapshot sender",
        "snapshot receiver",
        "snapshot machine",
        "snapshot sender",
        "snapshot receiver",
        "snapshot machine",
        "start receiver warmup",
        "start sender warmup",
        "stop receiver",
        "snapshot sender",
        "snapshot receiver",
        "snapshot machine",
        "snapshot sender",
        "snapshot receiver",
        "snapshot machine",
        "start receiver measured",
        "start sender measured",
        "stop receiver",
        "snapshot sender",
        "snapshot receiver",
        "snapshot machine",
        "verify receiver",
        "verify sender",
        "facts sender",
        "facts receiver",
        "others machine",
        "close receiver",
        "close sender",
        "restore sender",
        "restore receiver",
        "restore machine",
        "end sender",
        "end receiver",
        "end machine",
    ] == world.words
    assert (1, 0, False) == (outcome.records, outcome.exit_code, outcome.interrupted)
    assert ("done", None) == (run.records[0].status, run.records[0].error)
    assert run.ending is not None
    assert "complete" == run.ending.status


def test_a_good_record_holds_what_was_seen(tmp_path: Path) -> None:
    """Facts, changes, workers, phases with their own tags, series and the cost of every step."""
    _, run = go(World(), tmp_path)
    record = run.records[0]
    assert ["path", "warmup", "measured"] == [phase.name for phase in record.phases]
    tags = {phase.tag for phase in record.phases}
    assert (3, True) == (len(tags), all(0 < tag < 2**32 for tag in tags))
    assert ["sender", "receiver"] == [spec.role for spec in record.workers]
    assert {"sender", "receiver", "machine"} == set(record.changes)
    assert {"sender", "receiver"} == set(record.facts)
    assert {"sender.sender0", "receiver.receiver0"} == {sample.worker for sample in record.series}
    assert [
        "facts",
        "offers",
        "apply",
        "facts again",
        "link",
        "needs",
        "safety",
        "prepare",
        "path",
        "place",
        "warmup",
        "measured",
        "verify",
        "close",
    ] == list(record.overhead_ns)


def test_a_link_that_comes_up_late_is_waited_for(tmp_path: Path) -> None:
    """Only the host that has no carrier yet is asked again, and what it says then is recorded."""
    world = World(links={"sender": ["no carrier", "no carrier", "up"], "receiver": ["up"]})
    outcome, run = go(world, tmp_path)
    again = TRIAL.index("facts receiver", TRIAL.index("apply sender")) + 1
    retries = ["facts sender", "facts sender"]
    assert [*BEGIN, *TRIAL[:again], *retries, *TRIAL[again:], *RESTORE, *END] == world.words
    assert (0, "up") == (outcome.exit_code, run.records[0].facts["sender"].link)


@pytest.mark.parametrize(
    ("link", "kind", "text"),
    [
        (
            "no carrier",
            "DeadlineExceeded",
            "timed out after 10s: receive0 still without a carrier (check the cable)",
        ),
        ("down", "HostError", "receive0 is down, although it was taken up: find out what did it"),
    ],
)
def test_a_trial_without_a_link_fails_before_a_worker_is_made(
    tmp_path: Path, link: str, kind: str, text: str
) -> None:
    """The error names host and interface."""
    world = World(
        links={"sender": ["no carrier"] if link == "down" else ["up"], "receiver": [link]}
    )
    _, run = go(world, tmp_path)
    (record,) = run.records
    assert ("failed", RecordedError(kind, text, "receiver")) == (
        record.status,
        record.error,
    )
    assert not any(word.startswith("prepare") for word in world.words)


def test_a_trial_costs_little_beyond_its_phases(tmp_path: Path) -> None:
    """What control itself waits for is the quiet of three phases and the starts."""
    _, run = go(World(), tmp_path)
    spent_ns = sum(run.records[0].overhead_ns.values()) - 1_200_000_000
    assert spent_ns < 900_000_000


def test_a_warm_up_of_nothing_is_skipped(tmp_path: Path) -> None:
    """Without a warm-up there are two phases."""
    world = World()
    go(world, tmp_path, experiment(warmup="0s"))
    assert [*BEGIN, *SET_UP, *PATH, *MEASURED, *VERIFY, *CLOSE, *RESTORE, *END] == world.words


def test_a_count_is_reported_with_its_deadline(tmp_path: Path) -> None:
    """Nobody shall believe that a burst takes a minute."""
    world = World()
    go(world, tmp_path, experiment(warmup="0s", traffic={"count": 200}))
    lines = [
        progress.text
        for progress in world.progress
        if progress.phase == "measured" and progress.event == "phase"
    ]
    assert ["one#1 measured 200 packets, at most 1s"] == lines


def test_between_trials_settings_stay(tmp_path: Path) -> None:
    """The next trial applies the same settings, the sender undoes nothing, and facts are known."""
    world = World()
    go(world, tmp_path, experiment(repetitions=2, fresh=True))
    second = [*APPLY, *PREPARE, *PATH, *WARMUP, *MEASURED, *VERIFY, *CLOSE]
    assert [*BEGIN, *TRIAL, *second, *RESTORE, *END] == world.words


def test_before_a_link_changes_the_sender_lets_go_of_it(tmp_path: Path) -> None:
    """A pair that is made anew takes the sender's end along, so its settings are undone first."""
    world = World()
    variants = {
        "one": {"settings.receiver.link": {"queues": 1}},
        "two": {"settings.receiver.link": {"queues": 2}},
    }
    go(world, tmp_path, experiment(variants=variants, warmup="0s"))
    second = world.words[len(BEGIN) + len(TRIAL) - len(WARMUP) :]
    assert ["apply sender nothing", *APPLY, *FACTS] == second[:6]


SALVAGE = ["stop receiver", "stop sender", *SNAPSHOTS]
FAILURES = [
    ("facts sender", AgentError("x", "sender"), []),
    ("apply machine nothing", SettingRefused("x", "machine"), []),
    ("apply receiver", SettingRefused("x", "receiver"), []),
    ("apply sender", SettingRefused("x", "sender"), []),
    ("prepare receiver", WorkerFailed("x", "receiver"), []),
    ("prepare sender", SafetyError("x", "sender"), []),
    ("snapshot sender", AgentError("x", "sender"), []),
    ("start receiver path", WorkerFailed("x", "receiver"), SALVAGE),
    ("start sender path", WorkerFailed("x", "sender"), SALVAGE),
    ("start sender warmup", DeadlineExceeded("x", "sender"), SALVAGE),
    ("start sender measured", WorkerFailed("x", "sender"), SALVAGE),
    ("stop receiver", DeadlineExceeded("x", "receiver"), SALVAGE),
    ("close receiver", AgentError("x", "receiver"), []),
]


def until(word: str) -> list[str]:
    """Return what is asked of a trial until the answer to a request is known."""
    at = TRIAL.index(word)
    group = next((each for each in TOGETHER if word in each), [word])
    return TRIAL[: at - group.index(word) + len(group)]


@pytest.mark.parametrize(
    ("word", "error", "then"), FAILURES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_failure_ends_its_trial_and_not_the_run(
    tmp_path: Path, word: str, error: HostError, then: list[str]
) -> None:
    """The trial stops where it failed, its workers are closed, and the next trial runs."""
    world = World()
    world.raises(word, error)
    outcome, run = go(world, tmp_path, experiment(repetitions=2, fresh=True))
    unsure = word.startswith("apply")
    unset = unsure or word.startswith("facts")
    again = [*(["apply sender nothing"] if unsure else []), *APPLY, *(FACTS if unset else [])]
    rest = TRIAL[len(SET_UP) - len(PREPARE) :]
    second = [*FACTS, *again, *rest]
    assert [*BEGIN, *until(word), *then, *CLEAN_UP, *second, *RESTORE, *END] == world.words
    assert ["failed", "done"] == [record.status for record in run.records]
    expected = RecordedError(type(error).__name__, "x", error.host)
    assert expected == run.records[0].error
    assert (0, None) == (outcome.exit_code, outcome.error)


@pytest.mark.parametrize("word", dict.fromkeys(TRIAL))
def test_a_lost_agent_ends_the_run_with_the_others_restored(tmp_path: Path, word: str) -> None:
    """No further trial begins; whoever is left restores; the lost trial is recorded."""
    world = World()
    world.raises(word, AgentLost("gone", "sender"))
    outcome, run = go(world, tmp_path, experiment(repetitions=2, fresh=True))
    assert [*BEGIN, *until(word), *CLEAN_UP, *RESTORE, *END] == world.words
    assert ["failed"] == [record.status for record in run.records]
    assert (3, "AgentLost") == (outcome.exit_code, type(outcome.error).__name__)
    assert run.ending is not None
    assert "failed" == run.ending.status
    assert RecordedError("AgentLost", "gone", "sender") == run.ending.error


def test_an_agent_that_is_lost_at_restore_keeps_no_other_from_it(tmp_path: Path) -> None:
    """Its guardian restores in its place: the run has failed, and nothing is known to remain."""
    world = World()
    world.raises("restore sender", AgentLost("gone", "sender"))
    outcome, run = go(world, tmp_path)
    assert [*BEGIN, *TRIAL, *RESTORE, *END] == world.words
    assert (3, (), "sender: gone") == (
        outcome.exit_code,
        outcome.restore_errors,
        str(outcome.error),
    )
    assert run.ending is not None
    assert (["done"], "failed") == ([record.status for record in run.records], run.ending.status)
    assert ["sender"] == [error.host for error in run.ending.lost]


def test_a_lost_host_that_is_seen_restored_is_called_so(tmp_path: Path) -> None:
    """A built-in lab: its namespace has ended, and all that was set in it."""
    world = World()
    world.raises("restore sender", AgentLost("gone", "sender"))
    begun_ns = world.clock.now_ns()
    _, run = go(world, tmp_path)
    texts = [progress.text for progress in world.progress if progress.event == "restore"]
    assert [
        "restoring sender, receiver, machine",
        "sender: lost; looking again after the lease, within 70s",
        "sender: lost, and then seen restored",
    ] == texts
    assert run.ending is not None
    assert (("sender",), ()) == (run.ending.seen_restored, run.ending.restore_errors)
    assert world.clock.now_ns() - begun_ns >= 10 * SECOND_NS


def test_a_namespace_that_has_not_ended_is_not_called_restored(
    tmp_path: Path, golden: Golden
) -> None:
    """Somebody is in it still: the run ends with 4, and says what to type."""
    world = World(netns={"sender": Path("/proc/self/ns/net").stat().st_ino})
    world.raises("restore sender", AgentLost("gone", "sender"))
    outcome, run = go(world, tmp_path)
    (error,) = outcome.restore_errors
    golden.check(str(error))
    assert (4, ()) == (outcome.exit_code, run.ending.seen_restored if run.ending else None)


@pytest.mark.parametrize(
    ("taken", "code", "words"),
    [
        ([Taken()], 3, ["take machine"]),
        (
            [Taken(in_use=("RUN",)), Taken(left_behind=("RUN",)), Taken()],
            3,
            ["take machine", "take machine", "restore machine", "take machine"],
        ),
        ([Taken(left_behind=("other",), in_use=("another",))], 3, ["take machine"]),
        ([Taken(in_use=("RUN",))] * 500, 4, ["take machine"] * 121),
    ],
)
def test_a_lost_machine_is_looked_at_until_nothing_is_left(
    tmp_path: Path, taken: list[Taken], code: int, words: list[str]
) -> None:
    """Its guardian may still restore; what nobody does any more, the new agent undoes."""
    world = World()

    def lost() -> None:
        run = world.agents["machine"].run
        world.held["machine"] = [
            replace(
                answer,
                **{
                    key: tuple(run if name == "RUN" else name for name in getattr(answer, key))
                    for key in ("left_behind", "in_use")
                },
            )
            for answer in taken
        ]
        raise AgentLost("gone", "machine")

    world.hooks["restore machine"] = lost
    outcome, run = go(world, tmp_path)
    at = world.words.index("open machine", 1)
    until = world.words.index("end machine")
    assert ["open machine", "hello machine", *words] == world.words[at:until]
    assert code == outcome.exit_code
    assert run.ending is not None
    assert (("machine",) if code == 3 else ()) == run.ending.seen_restored


@pytest.mark.parametrize(
    ("word", "error"),
    [
        ("open machine", ConnectError("no route", "machine")),
        ("hello machine", AgentLost("it ended", "machine")),
        ("restore machine", RestoreError("eth3 mtu stays 9000", "machine")),
        ("open machine", KeyError("odd")),
    ],
)
def test_a_lost_machine_that_is_not_seen_restored_ends_with_4(
    tmp_path: Path, word: str, error: Exception, golden: Golden
) -> None:
    """Whatever keeps it from being seen is told, and how to go on."""
    world = World()

    def lost() -> None:
        run = world.agents["machine"].run
        world.held["machine"] = [Taken(left_behind=(run,)), Taken()]
        world.raises(word, error)
        raise AgentLost("gone", "machine")

    world.hooks["restore machine"] = lost
    outcome, _ = go(world, tmp_path)
    (why,) = outcome.restore_errors
    golden.check(str(why).replace(world.agents["sender"].run, "RUN"))
    assert 4 == outcome.exit_code


def test_a_host_that_answers_no_look_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the limit it is not known to be restored."""
    monkeypatch.setattr(lost_hosts, "CHECK_NS", SECOND_NS // 20)
    world, over = World(), threading.Event()
    world.raises("restore machine", AgentLost("gone", "machine"))
    world.hooks["restore receiver"] = lambda: world.hooks.update({"open machine": over.wait})
    outcome, _ = go(world, tmp_path)
    over.set()
    (why,) = outcome.restore_errors
    assert "machine: lost, and not seen restored: no answer within 50ms; as soon as" in str(why)


def test_an_agent_that_is_lost_after_an_interrupt_is_recorded(tmp_path: Path) -> None:
    """The error that ended the run does not tell it."""
    world = World()
    world.hooks["start receiver measured"] = world.interrupt.note
    world.raises("restore sender", AgentLost("gone", "sender"))
    _, run = go(world, tmp_path)
    assert run.ending is not None
    assert ("interrupted", None) == (run.ending.status, run.ending.error)
    assert (RecordedError("AgentLost", "gone", "sender"),) == run.ending.lost


@pytest.mark.parametrize(
    "error", [RestoreError("eth3 mtu stays 9000", "receiver"), DeadlineExceeded("x", "receiver")]
)
def test_a_bug_hides_no_host_that_is_not_restored(tmp_path: Path, error: HostError) -> None:
    """Such as what a host says that nobody foresaw."""
    world = World()
    world.raises("snapshot machine", ValueError("invalid literal"))
    world.raises("restore receiver", error)
    outcome, run = go(world, tmp_path)
    assert (4, ["receiver"]) == (outcome.exit_code, [each.host for each in outcome.restore_errors])
    assert run.ending is not None
    assert "this is a bug: ValueError: invalid literal; traceback: " in str(run.ending.error)
    Path(str(outcome.error).rpartition(": ")[2]).unlink()


@pytest.mark.parametrize(
    "error", [RestoreError("eth3 mtu stays 9000", "receiver"), DeadlineExceeded("x", "receiver")]
)
def test_a_failed_restore_is_reported_and_ends_with_4(tmp_path: Path, error: HostError) -> None:
    """Every other agent is restored all the same."""
    world = World()
    world.raises("restore receiver", error)
    outcome, run = go(world, tmp_path)
    assert [*BEGIN, *TRIAL, *RESTORE, *END] == world.words
    assert (4, ["receiver"]) == (
        outcome.exit_code,
        [error.host for error in outcome.restore_errors],
    )
    assert run.ending is not None
    assert ["RestoreError"] == [error.kind for error in run.ending.restore_errors]


def test_a_host_that_cannot_undo_at_apply_gets_no_further_trial(tmp_path: Path) -> None:
    """RestoreError in the middle of a run brands the host: the run ends with 4."""
    world = World()
    world.raises("apply receiver", RestoreError("mtu stays", "receiver"))
    outcome, run = go(world, tmp_path, experiment(repetitions=2))
    until = TRIAL[: TRIAL.index("apply receiver") + 1]
    assert [*BEGIN, *until, *CLEAN_UP, *RESTORE, *END] == world.words
    assert (4, 1) == (outcome.exit_code, len(run.records))


def test_an_agent_that_does_not_answer_the_clean_up_is_lost(tmp_path: Path) -> None:
    """What cannot even close its workers would fail every later trial after a long wait."""
    world = World()
    world.raises("prepare sender", WorkerFailed("x", "sender"))
    world.raises("close sender", DeadlineExceeded("close: no reply", "sender"))
    outcome, run = go(world, tmp_path, experiment(repetitions=2))
    assert (3, "AgentLost") == (outcome.exit_code, type(outcome.error).__name__)
    assert "it does not answer" == world.agents["sender"].lost  # nobody waits for it at restore
    assert ["WorkerFailed"] == [(record.error or RecordedError()).kind for record in run.records]


def test_a_clean_up_that_fails_is_a_finding(tmp_path: Path) -> None:
    """The reason of the failed trial stays; that its workers remained stands beside it."""
    world = World()
    world.raises("prepare sender", WorkerFailed("x", "sender"))
    world.raises("close receiver", AgentError("busy", "receiver"))
    _, run = go(world, tmp_path)
    assert ["workers were not closed: busy"] == [
        finding.what for finding in run.records[0].findings
    ]


@pytest.mark.parametrize("worked", [False, True])
def test_a_program_that_cannot_start_is_started_once(tmp_path: Path, worked: bool) -> None:
    """The run ends with its error; one that ran before, or ran at all, ends its trial alone."""
    world = World()
    died = WorkerFailed("./server: it ended", "receiver")
    world.raises("start receiver path" if worked else "prepare receiver", died)
    mine = experiment(receive={"command": ["./server"]}, repetitions=3)
    outcome, run = go(world, tmp_path, mine)
    text = "receiver: ./server: it ended; no further trial was run, as each would start it again"
    assert (None if worked else text) == (str(outcome.error) if outcome.error else None)
    assert (["failed"] if not worked else ["failed", "done", "done"]) == [
        record.status for record in run.records
    ]


def test_beside_a_program_that_cannot_start_another_is_tried(tmp_path: Path) -> None:
    """Each trial fails or not by itself."""
    world = World()
    world.raises("prepare receiver", WorkerFailed("./server: it ended", "receiver"))
    two = {"a": {"receive.command": ["./server"]}, "b": {"receive.command": ["./other"]}}
    outcome, run = go(world, tmp_path, experiment(variants=two, repetitions=1))
    assert None is outcome.error
    assert ["done", "failed"] == sorted(record.status for record in run.records)


def test_what_a_failed_phase_saw_is_kept(tmp_path: Path) -> None:
    """Snapshots and counts of the phase in which a worker died are in the record."""
    world = World()
    world.raises("start sender measured", WorkerFailed("x", "sender"))
    _, run = go(world, tmp_path)
    phase = run.records[0].phases[-1]
    assert ("measured", {"sender", "receiver", "machine"}) == (phase.name, set(phase.after))


def test_a_salvage_that_fails_leaves_the_first_reason(tmp_path: Path) -> None:
    """What cannot be saved is left; the trial failed for what failed first."""
    world = World()
    world.raises("start sender path", WorkerFailed("first", "sender"))
    world.raises("stop receiver", AgentError("second", "receiver"))
    _, run = go(world, tmp_path)
    assert (RecordedError("WorkerFailed", "first", "sender"), ()) == (
        run.records[0].error,
        run.records[0].phases,
    )


@pytest.mark.parametrize("word", dict.fromkeys([*BEGIN, *TRIAL[:-2]]))
def test_an_interrupt_restores_and_ends_with_130(tmp_path: Path, word: str) -> None:
    """Wherever it comes, nothing is cut in its middle: workers closed, all restored, 130."""
    world = World()
    world.hooks[word] = world.interrupt.note
    outcome, run = go(world, tmp_path)
    # Every trial is cleaned up, also one that was interrupted before its first step.
    assert [*CLEAN_UP, *RESTORE, *END] == world.words[-9:]
    assert (130, 0, True) == (outcome.exit_code, outcome.records, outcome.interrupted)
    assert run.ending is not None
    assert "interrupted" == run.ending.status
    assert all(agent.in_force == [] for agent in world.agents.values())


def test_an_interrupt_while_packets_flow_ends_the_phase_at_once(tmp_path: Path) -> None:
    """The literal list: after the start nothing but the clean-up and the restore follows."""
    world = World()
    world.hooks["start sender measured"] = world.interrupt.note
    go(world, tmp_path)
    until = TRIAL[: TRIAL.index("start sender measured") + 1]
    assert [*BEGIN, *until, *CLEAN_UP, *RESTORE, *END] == world.words


def test_trials_that_ended_before_an_interrupt_are_kept(tmp_path: Path) -> None:
    """The run folder has the first trial, whole, and says that the run was interrupted."""
    world = World()
    world.hooks["close sender"] = world.interrupt.note
    outcome, run = go(world, tmp_path, experiment(repetitions=2, fresh=True))
    assert ["done"] == [record.status for record in run.records]
    assert 130 == outcome.exit_code
    assert [*BEGIN, *TRIAL, *RESTORE, *END] == world.words


def test_an_interrupt_in_the_last_trial_counts_although_nothing_was_left_to_run(
    tmp_path: Path,
) -> None:
    """Whoever pressed Ctrl-C sees 130, also where the trial failed before it could be ended."""
    world = World()

    def held_up() -> None:
        world.interrupt.note()
        raise DeadlineExceeded("snapshot: no reply within 5s", "receiver")

    world.hooks["prepare receiver"] = held_up
    outcome, run = go(world, tmp_path)
    assert (["failed"], 130) == ([record.status for record in run.records], outcome.exit_code)


def test_a_bug_restores_before_it_is_raised(tmp_path: Path) -> None:
    """An error that is none of ours passes through, and leaves the hosts as they were."""
    world = World()
    world.raises("prepare sender", ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        go(world, tmp_path)
    assert [*RESTORE, *END] == world.words[-6:]


def test_what_a_dead_run_left_refuses_the_next(tmp_path: Path) -> None:
    """Its settings may move every number, so nothing is changed or sent on top of them."""
    world = World(left_behind=("20261121T080000-17",))
    outcome, _ = go(world, tmp_path)
    expected = (
        "machine: run 20261121T080000-17 died here and left settings; undo them: udpbench restore"
    )
    assert expected == str(outcome.error)
    assert 3 == outcome.exit_code
    assert not [word for word in world.words if word.startswith(("apply", "start"))]


def test_a_run_of_which_kernels_leave_nothing_ends_before_its_first_trial(tmp_path: Path) -> None:
    """Everything that any trial lacks is told at once, before anything is changed or sent."""
    world = World(capabilities={"udp_gso": False, "udp_gro": False})
    elsewhere = experiment("two", needs={"lab": False})
    outcome, run = go(
        world, tmp_path, experiment(send={"gso": 8}, receive={"gro": True}), elsewhere
    )
    assert (
        "no trial can run here: sender: send.gso: this kernel has no segmentation of UDP messages (UDP_SEGMENT); "
        "available since Linux 4.18; receiver: receive.gro: this kernel has no merged datagrams "
        "(UDP_GRO); available since Linux 5.0"
    ) == str(outcome.error)
    assert (5, "HostLacks") == (outcome.exit_code, type(outcome.error).__name__)
    assert (5, ()) == (ending_code(run), run.records)
    assert not [word for word in world.words if word.startswith(("apply", "start"))]


def test_a_need_that_is_not_met_comes_before_what_a_kernel_lacks(tmp_path: Path) -> None:
    """It is the experiment's own word that it is not for this machine, so it is no answer of 5."""
    world = World(capabilities={"udp_gso": False})
    unmet = {"send.gso": 8, "needs": {"receiver": {"cpus": 64}}}
    definition = experiment(variants={"with": unmet, "out": {"needs": {"sender": {"cpus": 64}}}})
    outcome, run = go(world, tmp_path, definition)
    assert ["skipped", "skipped"] == [
        (record.error or RecordedError()).kind for record in run.records
    ]
    assert (0, 0) == (outcome.exit_code, ending_code(run))
    outcome, run = go(
        World(capabilities={"udp_gso": False}),
        tmp_path / "alone",
        experiment(variants={"with": unmet}),
    )
    assert ["skipped"] == [(record.error or RecordedError()).kind for record in run.records]


def test_what_a_kernel_lacks_skips_the_points_that_need_it(tmp_path: Path) -> None:
    """The others run; nothing is set for those."""
    world = World(capabilities={"udp_gso": False})
    definition = experiment(
        variants={"with": {"send.gso": 8, "settings.receiver.mtu": 9000}, "out": {}}
    )
    outcome, run = go(world, tmp_path, definition)
    by_point = {record.trial.point: (record.status, record.error) for record in run.records}
    assert ("done", None) == by_point["out"]
    status, error = by_point["with"]
    assert ("skipped", "unavailable") == (status, (error or RecordedError()).kind)
    assert "send.gso: this kernel has no segmentation" in (error or RecordedError()).message
    assert 0 == outcome.exit_code
    assert 1 == sum(word == "apply receiver" for word in world.words)


def test_mending_asks_every_agent_and_says_what_was_undone() -> None:
    """Namespaces of a built-in lab have nothing; the machine may."""
    world = World(left_behind=("20261121T080000-17",))
    restored = restore_lab(lab(), False, world.surroundings())
    assert ({"sender": (), "receiver": (), "machine": ()}, ()) == (restored.undone, restored.unseen)
    assert RESTORE == [word for word in world.words if word.startswith("restore")]


def test_mending_goes_on_where_a_host_fails(golden: Golden) -> None:
    """What remains anywhere is said at the end."""
    world = World()
    world.raises("restore sender", RestoreError("mtu send0: gone wrong", "sender"))
    with golden.raises(RestoreError):
        restore_lab(lab(), False, world.surroundings())
    assert RESTORE == [word for word in world.words if word.startswith("restore")]


def test_mending_does_not_fail_for_what_a_user_cannot_see() -> None:
    """Root may have left something; that is a note, and the others are restored."""
    world = World()
    world.raises("restore sender", Unseen("/run/udpbench: not for this user to see", "sender"))
    restored = restore_lab(lab(), False, world.surroundings())
    assert (
        {"receiver": (), "machine": ()},
        ["sender: /run/udpbench: not for this user to see"],
    ) == (
        restored.undone,
        [str(error) for error in restored.unseen],
    )


class ClosedPipe(list[Progress]):
    """Progress that cannot be drawn from the first trial's end on."""

    def append(self, progress: Progress) -> None:
        """Fail as a terminal does that has gone."""
        if progress.event in ("trial", "restore"):
            raise BrokenPipeError
        super().append(progress)


def test_progress_that_cannot_be_drawn_still_restores(tmp_path: Path) -> None:
    """Hosts are restored before the error of whoever draws goes on; the trial is stored."""
    world = World(progress=ClosedPipe())
    with pytest.raises(BrokenPipeError):
        go(world, tmp_path)
    assert [*BEGIN, *TRIAL, *RESTORE, *END] == world.words
    assert ["done"] == [record.status for record in read_run(tmp_path).records]


def test_a_run_folder_that_cannot_be_written_ends_the_run_restored(tmp_path: Path) -> None:
    """A full disk is told with exit code 3, after the hosts were restored."""
    world = World()
    fresh = experiment(fresh=True)
    writer = RunWriter.create(tmp_path, header(fresh))
    full = os.open("/dev/full", os.O_WRONLY)
    world.hooks["close sender"] = lambda: os.dup2(full, writer._series_fd)
    options = RunOptions(seed=1)
    outcome = run([fresh], lab(), writer, world.progress.append, options, world.surroundings())
    os.close(full)
    assert [*BEGIN, *TRIAL, *RESTORE, *END] == world.words
    assert (3, "StoreError") == (outcome.exit_code, type(outcome.error).__name__)


def test_what_a_host_lacks_skips_the_trial_with_the_reason(tmp_path: Path) -> None:
    """A need that is not met is no failure; the next trial runs."""
    world = World()
    outcome, run = go(
        world, tmp_path, experiment(needs={"receiver": {"cpus": 64}}), experiment("two")
    )
    assert ["skipped", "done"] == [record.status for record in run.records]
    error = run.records[0].error or RecordedError()
    assert ("skipped", True) == (error.kind, "CPUs" in error.message)
    assert 0 == outcome.exit_code


def test_an_address_that_is_not_the_receivers_stops_before_a_packet(tmp_path: Path) -> None:
    """Nothing is prepared for a destination that the receiver does not report."""
    world = World(addresses=("192.168.254.9/24",))
    _, run = go(world, tmp_path)
    assert "prepare sender" not in world.words
    error = run.records[0].error or RecordedError()
    assert ("SafetyError", "sender") == (error.kind, error.host)
    assert (
        "sender.sender0: destination 192.168.254.1 is not an address of a lab receiver; "
        "addresses found there: 192.168.254.9; nothing was sent"
    ) == error.message


def test_a_sender_that_may_read_no_rules_is_said_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without root: there may be some that lead packets elsewhere."""
    monkeypatch.setattr("control.fake.CAPABILITIES", {"net_admin": False})
    _, run = go(World(), tmp_path)
    (record,) = run.records
    what = "rules that may lead packets elsewhere could not be read"
    assert [("note", "sender")] == [
        (f.severity, f.where) for f in record.findings if f.what == what
    ]


def test_sender_and_receiver_in_one_namespace_are_refused(tmp_path: Path) -> None:
    """The kernel would send by lo, so not even a fact is asked for."""
    world = World(netns={"sender": 7, "receiver": 7})
    outcome, _ = go(world, tmp_path)
    assert [*BEGIN[:-2], *END] == world.words
    assert (3, "SafetyError") == (outcome.exit_code, type(outcome.error).__name__)


@pytest.mark.parametrize(
    ("word", "error", "kind"),
    [
        ("hello receiver", HelloRefused("build differs", "receiver"), "HelloRefused"),
        ("hello receiver", AgentLost("exit 1", "receiver"), "ConnectError"),
    ],
)
def test_an_agent_that_does_not_come_up_ends_the_run(
    tmp_path: Path, word: str, error: UdpbenchError, kind: str
) -> None:
    """Whatever was started is ended, and a run killed before its first trial is readable."""
    world = World()
    world.raises(word, error)
    outcome, run = go(world, tmp_path)
    assert [*BEGIN[:-2], *END] == world.words  # whatever else is wrong is said at once
    assert (3, kind, ()) == (outcome.exit_code, type(outcome.error).__name__, run.records)


def test_a_path_on_which_nothing_arrives_fails_before_load(tmp_path: Path) -> None:
    """Only the few packets of the path phase were sent."""
    world = World(arriving=0)
    error = only(tmp_path, world).error or RecordedError()
    again = ("facts sender", "facts receiver")  # is a link down?
    assert [*BEGIN, *SET_UP, *PATH, *again, *CLEAN_UP, *RESTORE, *END] == world.words
    assert ("PathError", "") == (error.kind, error.host)


def test_an_explained_path_needs_a_ledger_that_explains_it(tmp_path: Path) -> None:
    """Packets that nobody can place fail the trial although drops were expected."""
    error = only(tmp_path, World(arriving=0), path_check="explained").error or RecordedError()
    expected = "no packet of the path check arrived, and the ledger does not show why"
    assert expected == error.message


def test_an_explained_path_goes_on_where_the_ledger_places_every_packet(tmp_path: Path) -> None:
    """All packets of the path check were dropped at the socket, and the trial runs."""
    world = World(arriving=0, drop_counters={"snmp.Udp.RcvbufErrors": 100})
    assert "done" == only(tmp_path, world, path_check="explained").status


def test_an_optional_setting_that_is_refused_becomes_a_finding() -> None:
    """An optional change that left the value as it was is told with what was asked for."""
    setting = Setting("feature", "eth0/rx-gro", True, path="ethtool.features.gro", optional=True)
    assert [] == refused("right", (Change(setting, False, True),))
    assert [] == refused("right", (Change(setting, True, True),))
    (finding,) = refused("right", (Change(setting, False, False, "Operation not supported"),))
    assert (
        "right: optional setting ethtool.features.gro was refused (eth0/rx-gro stays off; "
        "Operation not supported); compare only with trials that also ran without it"
    ) == str(finding)


def test_facts_of_the_fake_are_none_before_its_link(tmp_path: Path) -> None:
    """What the fake does not have yet is missing, as on a real host, not zero."""
    assert (None, None) == (facts("a", "send0", ()).mtu, facts("a", "send0", ()).rx_queues)


def test_a_value_that_was_rounded_is_reported_as_asked_and_got() -> None:
    """Those of a group of values that were asked for."""
    setting = Setting("rings", "eth3", {"rx": 4000}, path="settings.receiver.ethtool.rings")
    before, after = {"rx": 512, "tx": 512}, {"rx": 4096, "tx": 512}
    (finding,) = rounded("right", (Change(setting, before, after, rounded=True),))
    assert (
        "right: settings.receiver.ethtool.rings was rounded (eth3: asked for rx=4000 → got rx=4096)"
    ) == str(finding)
    assert "note" == finding.severity
    assert [] == rounded("right", (Change(setting, before, after),))


def test_what_befalls_many_settings_alike_is_a_single_finding() -> None:
    """Twenty neighbours that another process removed, or a host refused; another value is another."""
    mac = "02:00:00:00:00:02"
    removed = [
        Change(Setting("neighbour", f"send0/10.0.0.{n}", mac, path="neighbours"), mac, None)
        for n in range(1, 21)
    ]
    other = Change(Setting("neighbour", "send0/10.0.0.30", mac, path="neighbours"), mac, "02:0")
    named = "send0/10.0.0.1, send0/10.0.0.2, send0/10.0.0.3 and 17 more"
    assert [
        f"neighbour {named}: {mac} → none",
        f"neighbour send0/10.0.0.30: {mac} → 02:0",
    ] == [finding.value for finding in altered("left", (*removed, other))]
    refusals = tuple(replace(change, refusal="no") for change in removed)
    assert [f"{named}; no"] == [finding.value for finding in refused("left", refusals)]
    sizes = tuple(replace(change, after="x", rounded=True) for change in removed)
    assert [f"{named}: asked for {mac} → got x"] == [f.value for f in rounded("left", sizes)]


def test_a_firewall_with_other_rules_after_a_trial_is_a_finding() -> None:
    """As many again, or an agent that cannot count them, say nothing."""
    none, some, unknown = (
        replace(facts("right", "receive0", ()), firewall_rules=n) for n in (0, 3000, None)
    )
    (finding,) = rules_changed(none, some)
    assert ("struck", "0 → 3000 rules") == (finding.severity, finding.value)
    assert [] == rules_changed(some, some) + rules_changed(none, unknown)


def test_a_setting_that_somebody_changed_under_way_makes_the_trial_invalid(tmp_path: Path) -> None:
    """It is looked at after the measured phase; the value that was in force and the new one."""
    world = World()
    change = Change(Setting("mtu", "receive0", 9000), 9000, 1500)
    world.altered["receiver"] = (change,)
    _, run = go(world, tmp_path)
    assert (
        "receiver: a setting was changed by another process during the trial (mtu receive0: 9000 → 1500); "
        "expected: as udpbench set it; find out which service or "
        "administrator configures that host"
    ) == str(run.records[0].findings[-1])
    assert ("done", "invalid") == (run.records[0].status, run.records[0].findings[-1].severity)
    assert altered("receiver", (change,)) == [run.records[0].findings[-1]]


def test_what_was_proven_of_a_hosts_kernel_is_in_its_record(tmp_path: Path) -> None:
    """Each host by itself; a host whose kernel was never tried has nothing."""
    proven = SelfTest("6.18.0", "", "", "", (StageProof("udp_no_port", 4, 100, 0, 100),))
    world, chosen = World(), experiment()
    writer = RunWriter.create(tmp_path, header(chosen))
    options = RunOptions(1, proven=lambda host: proven if host.host == "receiver" else None)
    run([chosen], lab(), writer, world.progress.append, options, world.surroundings())
    assert [{"receiver": proven}] == [record.selftests for record in read_run(tmp_path).records]


def test_the_run_promises_as_many_trials_as_its_plan(tmp_path: Path) -> None:
    """With the blocks that may be run in place of those that are left out."""
    variants = {"a": {}, "b": {"send.batch": 8}}
    compared = experiment(variants=variants, compare={"a": "a", "b": "b"}, duration="100ms")
    world = World()
    go(world, tmp_path, compared)
    (text,) = (each.text for each in world.progress if each.event == "run" and "lab" in each.text)
    assert planned_text([compared], EXTRA_BLOCKS) in text
    assert "14–40 trials" in text

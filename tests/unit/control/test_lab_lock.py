"""Taking a lab: all of its hosts or none, in one order, and the wait for whoever has one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from golden import Golden

from control.fake import World, experiment, go, header, lab, only
from control.test_lab import far
from udpbench.control.agents import Reach
from udpbench.control.lab_lock import POLL_NS, Surroundings, Terms, take_lab
from udpbench.control.run import RunOptions, restore_lab, run
from udpbench.errors import DeadlineExceeded, HelloRefused, Interrupted
from udpbench.model.lab import Lab
from udpbench.model.limits import SECOND_NS
from udpbench.protocol import Taken
from udpbench.records.writer import RunWriter

HELD = Taken("run 1-17 (pid 18)", "machine")
OTHER = Taken("run 2-19 (pid 20)", "machine")
NAMESPACE = Taken("run 1-17 (pid 18)", "namespace")


@contextmanager
def free(world: World, labs: Sequence[Lab], terms: Terms) -> Iterator[Lab]:
    """Take the first lab that is free."""
    reach = Reach({"ssh": world.open, "namespace": world.open}, world.open)
    around = Surroundings(reach, world.clock, world.interrupt)
    with take_lab(labs, "run", SECOND_NS, around, terms, world.progress.append) as (taken_lab, _):
        yield taken_lab


def takes(world: World) -> list[str]:
    """Return what was said of taking."""
    return [word for word in world.words if word.startswith(("take ", "release "))]


def test_all_hosts_are_taken_or_none() -> None:
    """One that another run has sets the others free, until all of them are."""
    world = World(held={"receiver": [HELD]})
    with free(world, [far()], Terms(wait_ns=None)):
        pass
    once = ["take sender", "take receiver"]
    assert [*once, "release sender", *once] == takes(world)
    assert ["waiting until run 1-17 (pid 18) no longer uses receiver"] == [
        progress.text for progress in world.progress
    ]


def test_every_run_goes_in_one_order() -> None:
    """That of machines and namespaces, whatever a lab calls them and whoever sends."""
    world = World(netns={"sender": 9, "receiver": 8})
    with free(world, [far()], Terms()):
        pass
    assert ["take receiver", "take sender"] == takes(world)


def test_a_wait_is_reported_once_for_each_that_is_waited_for(tmp_path: Path) -> None:
    """With an attempt in each interval; the rest of a built-in lab is not started before."""
    world = World(held={"machine": [HELD, HELD, OTHER]})
    begun_ns = world.clock.now_ns()
    waited_ns: list[int] = []
    world.hooks["open sender"] = lambda: waited_ns.append(world.clock.now_ns() - begun_ns)
    outcome, _ = go(world, tmp_path)
    assert (0, [3 * POLL_NS]) == (outcome.exit_code, waited_ns)
    assert [
        "waiting until run 1-17 (pid 18) no longer uses this machine",
        "waiting until run 2-19 (pid 20) no longer uses this machine",
    ] == [progress.text for progress in world.progress if progress.event == "wait"]


def test_who_does_not_wait_is_refused_with_3(tmp_path: Path) -> None:
    """The other run and its process are named, and what the user may do."""
    world = World(held={"machine": [HELD]})
    writer = RunWriter.create(tmp_path, header(experiment()))
    options = RunOptions(seed=1, terms=Terms(next_step="or else"))
    outcome = run([experiment()], lab(), writer, print, options, world.surroundings())
    assert (3, HelloRefused) == (outcome.exit_code, type(outcome.error))
    expected = "not started until run 1-17 (pid 18) no longer uses this machine; or else"
    assert expected == str(outcome.error)


def test_a_wait_ends_at_its_limit(golden: Golden) -> None:
    """It is told how long it was, and what may be done."""
    world = World(held={"machine": [HELD] * 9})
    terms = Terms(wait_ns=3 * SECOND_NS, next_step="raise udpbench_wait")
    with golden.raises(DeadlineExceeded), free(world, [lab()], terms):
        pass
    assert 4 == len(takes(world))


def test_an_interrupt_ends_a_wait(tmp_path: Path) -> None:
    """With nothing taken, and 130."""
    world = World(held={"machine": [HELD] * 9})
    world.hooks["take machine"] = world.interrupt.note
    outcome, _ = go(world, tmp_path)
    assert (130, True) == (outcome.exit_code, outcome.interrupted)
    assert ["open machine", "hello machine", "take machine", "end machine"] == world.words


def test_the_first_free_lab_is_taken() -> None:
    """The agents of the others are ended before; several that are not free are all named."""
    away, near = replace(far(), name="away"), lab()
    world = World(held={"sender": [HELD, HELD], "machine": [OTHER]})
    with free(world, [away, near], Terms(wait_ns=None)) as taken_lab:
        assert near is taken_lab
        assert ["end sender", "end receiver"] == [w for w in world.words if w.startswith("end")]
    (waiting,) = world.progress
    assert waiting.text == (
        "waiting until run 1-17 (pid 18) no longer uses sender or "
        "run 2-19 (pid 20) no longer uses this machine"
    )


def test_a_namespace_is_waited_for_even_by_who_shares(golden: Golden) -> None:
    """Ports, addresses and settings of two runs would meet in it."""
    world = World(held={"sender": [NAMESPACE]})
    with golden.raises(HelloRefused), free(world, [far()], Terms("shared")):
        pass


def test_a_lab_that_is_gone_before_it_is_whole_is_refused(golden: Golden) -> None:
    """No other run can take a namespace that was just made; if one has, nothing is begun."""
    world = World(held={"sender": [NAMESPACE]})
    with (
        golden.raises(HelloRefused),
        free(world, [lab()], Terms(wait_ns=None)),
    ):
        pass


def test_who_shares_says_so_to_every_agent(tmp_path: Path) -> None:
    """Everything else does not."""
    world = World()
    options = RunOptions(seed=1, terms=Terms("shared"))
    writer = RunWriter.create(tmp_path, header(experiment()))
    run([experiment()], lab(), writer, print, options, world.surroundings())
    assert {"shared"} == {use for agent in world.agents.values() for use in agent.uses}
    world = World()
    with free(world, [lab()], Terms()):
        pass
    assert {"alone"} == {use for agent in world.agents.values() for use in agent.uses}


def test_a_restore_waits_for_a_dead_runs_agents_and_no_longer(golden: Golden) -> None:
    """They live as long as their lease."""
    world = World(held={"machine": [HELD] * 99})
    with golden.raises(DeadlineExceeded):
        restore_lab(lab(), False, world.surroundings(), world.progress.append)
    assert ["wait"] == [progress.event for progress in world.progress]


@pytest.mark.parametrize("failing", ["", "prepare sender"])
def test_every_trial_names_whoever_was_there(tmp_path: Path, failing: str) -> None:
    """Also one that fails, perhaps because of it."""
    world = World(others=("run 1-17 (pid 18)",))
    if failing:
        world.raises(failing, HelloRefused("no", "sender"))
    record = only(tmp_path, world)
    assert bool(failing) is (record.status == "failed")
    (finding,) = record.findings
    assert (
        "machine: another run used this machine (run 1-17 (pid 18)); expected: no other run; the results include the load of both; "
        "run one after the other: a run waits for others that were started without --share"
    ) == str(finding)


def test_who_was_there_and_cannot_be_asked_leaves_the_first_reason(tmp_path: Path) -> None:
    """A failed trial says why it failed."""
    world = World()
    world.raises("prepare sender", HelloRefused("first", "sender"))
    world.raises("others machine", HelloRefused("second", "machine"))
    record = only(tmp_path, world)
    assert record.error is not None
    assert "first" == record.error.message


def test_an_interrupt_before_the_first_attempt_is_seen() -> None:
    """No interval passes after it."""
    world = World(held={"machine": [HELD]})
    world.interrupt.note()
    begun_ns = world.clock.now_ns()
    with pytest.raises(Interrupted), free(world, [lab()], Terms(wait_ns=None)):
        pass
    assert begun_ns == world.clock.now_ns()

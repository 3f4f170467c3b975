"""A run that goes on: what is stored is not run again, and its hosts are what they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from control.fake import FakeAgent, World, experiment, go, header, lab
from udpbench.control.host_changes import compared
from udpbench.control.run import Outcome, RunOptions, run
from udpbench.control.schedule import remaining, trial_order
from udpbench.errors import AgentLost, WorkerFailed
from udpbench.model.experiment import Experiment
from udpbench.model.host import Change, Facts, Setting
from udpbench.model.record import Finding, TrialRecord
from udpbench.records.reader import read_run
from udpbench.records.run import Begin, Run
from udpbench.records.writer import RunWriter

THREE = {"repetitions": 3}
BEGIN = Begin("2026-11-22T00:00:00", "0.1.0", ("udpbench", "run", "--resume", "r"))


def again(world: World, folder: Path, *experiments: Experiment) -> tuple[Outcome, Run]:
    """Go on with the run in a folder; return how it ended and what the folder holds."""
    writer = RunWriter.reopen(folder)
    before = read_run(folder)
    writer.resume(before, BEGIN)
    options, around = RunOptions(seed=1), world.surroundings()
    tell = world.progress.append
    outcome = run(experiments, lab(), writer, tell, options, around, before.records)
    return outcome, read_run(folder)


def killed(folder: Path, records: Sequence[TrialRecord], *experiments: Experiment) -> None:
    """Leave a run as a death leaves it."""
    writer = RunWriter.create(folder, header(*experiments))
    for record in records:
        writer.write(record)
    writer.close()


def names(run_: Run) -> list[tuple[str, str]]:
    """Return name and status of every record."""
    return [(record.trial.name, record.status) for record in run_.records]


def measured(world: World) -> int:
    """Return how many trials were measured."""
    return world.words.count("start sender measured")


def test_what_is_stored_is_not_run_again(tmp_path: Path) -> None:
    """The trial that is stored stays as it is, and the two others follow it."""
    definition = experiment(**THREE)
    _, first = go(World(), tmp_path / "first", definition)
    killed(tmp_path / "run", first.records[:1], definition)
    world = World()
    outcome, now = again(world, tmp_path / "run", definition)
    assert (0, 2, 2) == (outcome.exit_code, measured(world), outcome.records)
    assert [("one#1", "done"), ("one#2", "done"), ("one#3", "done")] == names(now)
    assert first.records[0] == now.records[0]


def test_progress_counts_what_is_done_already(tmp_path: Path) -> None:
    """The first trial that is run is the second of three, and the run says so."""
    definition = experiment(**THREE)
    _, first = go(World(), tmp_path / "first", definition)
    killed(tmp_path / "run", first.records[:1], definition)
    world = World()
    again(world, tmp_path / "run", definition)
    steps = [progress for progress in world.progress if progress.event == "trial"]
    assert [(2, 3), (3, 3)] == [(step.index, step.total) for step in steps]
    assert "3 trials, 1 already done, lab local" in world.progress[0].text


def test_the_order_is_the_one_that_the_run_began_with(tmp_path: Path) -> None:
    """Over both sessions the trials came in the order of the seed."""
    definition = experiment(sweep={"send.batch": [1, 2, 3, 4]}, repetitions=2)
    whole = [trial.name for trial in trial_order([definition], 1)]
    _, first = go(World(), tmp_path / "first", definition)
    killed(tmp_path / "run", first.records[:3], definition)
    _, now = again(World(), tmp_path / "run", definition)
    assert whole == [record.trial.name for record in now.records]


def test_a_failed_trial_is_run_again_and_the_newer_record_wins(tmp_path: Path) -> None:
    """A run that was complete but for it goes on, and has every trial once."""
    definition = experiment(**THREE)
    world = World()
    world.raises("prepare sender", WorkerFailed("signal 9", "sender"))
    outcome, first = go(world, tmp_path, definition)
    assert ("one#1", "failed") == names(first)[0]
    world = World()
    outcome, now = again(world, tmp_path, definition)
    assert (0, 1) == (outcome.exit_code, measured(world))
    assert [("one#2", "done"), ("one#3", "done"), ("one#1", "done")] == names(now)
    assert [("one#1", "failed")] == [(record.trial.name, record.status) for record in now.replaced]


def test_invalid_and_skipped_trials_stay(tmp_path: Path) -> None:
    """They are results: only what failed, or never ran, is left."""
    definition = experiment(**THREE)
    _, first = go(World(), tmp_path, definition)
    first_trial, second_trial, third_trial = first.records
    changed = [
        replace(first_trial, status="skipped"),
        replace(second_trial, status="failed"),
        third_trial,
    ]
    assert ["one#2"] == [trial.name for trial in remaining([definition], 1, changed)]


def test_a_host_that_died_ends_a_campaign_that_can_go_on(tmp_path: Path) -> None:
    """Its trial is recorded as failed, the run ends with 3, and goes on with exactly that trial."""
    chosen = [experiment("one"), experiment("two"), experiment("three")]
    world = World()
    count = 0

    def second() -> None:
        nonlocal count
        count += 1
        if count == 2:
            raise AgentLost("gone", "sender")
        world.hooks["start sender measured"] = second

    world.hooks["start sender measured"] = second
    outcome, first = go(world, tmp_path, *chosen)
    assert (3, [("one#1", "done"), ("two#1", "failed")]) == (outcome.exit_code, names(first))
    outcome, now = again(World(), tmp_path, *chosen)
    assert (0, [(f"{name}#1", "done") for name in ("one", "two", "three")]) == (
        outcome.exit_code,
        names(now),
    )
    assert ["failed", "complete"] == [
        session.ending.status for session in now.sessions if session.ending
    ]


def test_a_campaign_goes_on_after_a_failed_and_an_invalid_trial(tmp_path: Path) -> None:
    """Every file of it is run; the folder holds what each trial came to."""
    chosen = [experiment("one"), experiment("two"), experiment("three")]
    world = World()

    def once() -> None:
        """Let somebody change a setting in the second trial alone."""
        change = Change(Setting("mtu", "receive0", 1500), 1500, 9000)
        world.altered["receiver"] = (change,)
        world.hooks["verify sender"] = world.altered.clear

    def fail() -> None:
        world.hooks["prepare sender"] = once
        raise WorkerFailed("signal 9", "sender")

    world.hooks["prepare sender"] = fail
    outcome, first = go(world, tmp_path, *chosen)
    assert 0 == outcome.exit_code
    assert [("one#1", "failed"), ("two#1", "done"), ("three#1", "done")] == names(first)
    findings = [[finding.severity for finding in record.findings] for record in first.records]
    assert [[], ["invalid"], []] == findings


def test_a_run_that_died_after_its_last_trial_only_looks_at_its_hosts(tmp_path: Path) -> None:
    """Nothing is measured; the agents come up, find nothing left behind, and the run has an end."""
    definition = experiment()
    _, first = go(World(), tmp_path / "first", definition)
    killed(tmp_path / "run", first.records, definition)
    world = World()
    outcome, now = again(world, tmp_path / "run", definition)
    assert (0, 0, "complete") == (
        outcome.exit_code,
        measured(world),
        now.ending.status if now.ending else None,
    )
    assert not any(word.startswith(("apply", "prepare")) for word in world.words)


def facts_as(world: World, **changes: object) -> None:
    """Let every agent have other facts."""
    usual: Callable[[FakeAgent, str], Facts] = FakeAgent._facts

    class Changed(FakeAgent):
        def _facts(self, interface: str) -> Facts:
            return replace(usual(self, interface), **changes)  # type: ignore[arg-type]

    def opened(host: str, _connect: object = None) -> FakeAgent:
        world.say(f"open {host}")
        world.agents[host] = Changed(host, world)
        return world.agents[host]

    world.open = opened  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("was", "now", "change"),
    [
        ({}, {"kernel": "6.19"}, "kernel: 6.18 → 6.19"),
        ({}, {"cpus": (0,)}, "cpus: 0-1 → 0"),
        ({"cpu_model": "A"}, {"cpu_model": "B"}, "cpu_model: A → B"),
        ({"driver": "mlx5"}, {"driver": "ice"}, "driver: mlx5 → ice"),
        ({"siblings": {"0": (0,)}}, {"siblings": {"0": (0, 1)}}, "siblings: 0 → 0-1"),
        (
            {"environment": {"mitigations": "on"}},
            {"environment": {"mitigations": "off"}},
            "mitigations: on → off",
        ),
        (
            {"capabilities": {"real_time": True}},
            {"capabilities": {"real_time": False}},
            "real_time: true → false",
        ),
    ],
)
def test_another_host_is_refused_before_anything_is_changed(
    was: dict[str, object], now: dict[str, object], change: str, tmp_path: Path
) -> None:
    """It is told host by host as was → is; nothing was applied, and the trials stay as they were."""
    world = World()
    facts_as(world, **was)
    definition = experiment(**THREE)
    _, first = go(world, tmp_path / "first", definition)
    killed(tmp_path / "run", first.records[:1], definition)
    world = World()
    facts_as(world, **now)
    outcome, after = again(world, tmp_path / "run", definition)
    assert (3, "HostChanged") == (outcome.exit_code, type(outcome.error).__name__)
    text = f"sender: {change}; receiver: {change}; undo the change, or start a new run"
    assert f"the host has changed since this run began: {text}" == str(outcome.error)
    assert not any(word.startswith("apply") for word in world.words)
    assert first.records[:1] == after.records


def test_a_reboot_of_the_same_host_is_no_change(tmp_path: Path) -> None:
    """Another boot id, and a fact that is not known yet, refuse nothing."""
    world = World()
    facts_as(world, driver="veth")
    definition = experiment(**THREE)
    _, first = go(world, tmp_path / "first", definition)
    killed(tmp_path / "run", first.records[:1], definition)
    world = World()
    facts_as(world, boot_id="another", driver=None)
    assert 0 == again(world, tmp_path / "run", definition)[0].exit_code


def test_an_environment_that_is_another_for_the_same_point_is_a_finding(tmp_path: Path) -> None:
    """A governor is moved by settings, too, so it is compared where it was in force."""
    world = World()
    facts_as(world, environment={"governor": "performance", "turbo": "on"})
    definition = experiment(**THREE)
    _, first = go(world, tmp_path / "first", definition)
    killed(tmp_path / "run", first.records[:1], definition)
    world = World()
    facts_as(world, environment={"governor": "powersave", "turbo": "on"})
    _, now = again(world, tmp_path / "run", definition)
    text = (
        "the environment differs from before the run was resumed "
        "(governor: performance → powersave); expected: as in one#1; restore it, or start a new run"
    )
    assert [
        [],
        [f"sender: {text}", f"receiver: {text}"],
        [f"sender: {text}", f"receiver: {text}"],
    ] == [
        [str(finding) for finding in record.findings if "environment" in finding.what]
        for record in now.records
    ]


def test_a_sysctl_that_a_reboot_took_back_is_a_finding(tmp_path: Path) -> None:
    """As is another MTU or ring; what was not known before is none."""
    _, first = go(World(), tmp_path, experiment())
    (record,) = first.records
    usual = record.facts["receiver"]

    def having(**changes: object) -> TrialRecord:
        changed = replace(usual, **changes)  # type: ignore[arg-type]
        return replace(record, facts={"receiver": changed}, findings=())

    was = having(limits={"net.core.rmem_max": 1}, rings={"rx": 8}, mtu=9000)
    limits = {"net.core.rmem_max": 2, "net.core.wmem_max": 3}
    now = having(limits=limits, rings={"rx": 9}, mtu=1500)
    assert ["mtu: 9000 → 1500", "rings rx: 8 → 9", "net.core.rmem_max: 1 → 2"] == [
        finding.value for finding in compared(now, [was]).findings
    ]


def test_a_point_that_was_not_run_before_is_compared_with_nothing(tmp_path: Path) -> None:
    """Nor is a trial that failed: neither gets a finding."""
    _, first = go(World(), tmp_path, experiment())
    (record,) = first.records
    other = replace(record, trial=replace(record.trial, point="else"))
    bad = replace(record, status="failed")
    assert (other, bad, record) == (
        compared(other, [record]),
        compared(bad, [record]),
        compared(record, ()),
    )


def test_an_invalid_trial_stays_and_a_block_is_added(tmp_path: Path) -> None:
    """Seven blocks are stored and one is invalid: the eighth is run, and no other."""
    pair = {"a": "batch=1", "b": "batch=2", "metric": "received_packets"}
    definition = experiment(sweep={"send.batch": [1, 2]}, compare=pair)
    _, first = go(World(), tmp_path / "first", definition)
    assert 14 == len(first.records)
    spoilt = replace(first.records[3], findings=(Finding("invalid", "too slow"),))
    records = [*first.records[:3], spoilt, *first.records[4:]]
    left = remaining([definition], 1, records)
    assert [8, 8] == [trial.repetition for trial in left]
    killed(tmp_path / "run", records, definition)
    world = World()
    _, now = again(world, tmp_path / "run", definition)
    assert (2, 16) == (measured(world), len(now.records))
    assert spoilt == now.records[3]
    assert [] == remaining([definition], 1, now.records)
    steps = [progress for progress in world.progress if progress.event == "trial"]
    assert [(15, 16), (16, 16)] == [(step.index, step.total) for step in steps]


def test_a_killed_run_has_at_least_the_first_look_before_it(tmp_path: Path) -> None:
    """Trials four to seven of three blocks are missing; what follows depends on them."""
    definition = experiment(sweep={"send.batch": [1, 2]}, compare={"a": "batch=1", "b": "batch=2"})
    _, first = go(World(), tmp_path / "first", definition)
    assert 8 == len(remaining([definition], 1, first.records[:6]))

"""The engine: order, undoing, refusals and what is left after each of them."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from golden import Golden
from hypothesis import given, settings
from hypothesis import strategies as st
from settings_world import World, fake

from udpbench.agent.host.system import Host
from udpbench.agent.settings.engine import Engine
from udpbench.errors import RestoreError, SettingRefused
from udpbench.model.host import Change, Planned, Setting

START = {"a": 1, "b": 2, "c": 3}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Return a world of three values."""
    return World(tmp_path, START)


def test_settings_are_applied_in_order_and_restored_in_reverse(world: World) -> None:
    """Each is written once, restored to what was read, newest first; then the journal is gone."""
    engine = world.engine()
    changes = engine.apply([fake("a", 10), fake("b", 20), fake("a", 11)])
    assert [(1, 10), (2, 20), (10, 11)] == [(c.before, c.after) for c in changes]
    undone = engine.restore()
    assert ["a=10", "b=20", "a=11", "a=10", "b=2", "a=1"] == world.events
    assert [(11, 10), (20, 2), (10, 1)] == [(c.before, c.after) for c in undone]
    assert (START, False) == (world.values, world.journal.path.exists())


def test_restoring_twice_does_nothing_more(world: World) -> None:
    """The second time there is nothing to undo."""
    engine = world.engine()
    engine.apply([fake("a", 10)])
    engine.restore()
    events = list(world.events)
    assert () == engine.restore()
    assert events == world.events


def test_a_value_that_is_there_already_is_not_written(world: World) -> None:
    """Nothing is journalled either, and it is in force with before == after."""
    engine = world.engine()
    assert (Change(fake("a", 1), 1, 1),) == engine.apply([fake("a", 1)])
    assert ([], False, ()) == (world.events, world.journal.path.exists(), engine.restore())


def test_the_common_prefix_is_kept(world: World) -> None:
    """The rest is undone backwards before the remainder is applied."""
    engine = world.engine()
    engine.apply([fake("a", 10), fake("b", 20), fake("c", 30)])
    world.events.clear()
    changes = engine.apply([fake("a", 10, path="new.path"), fake("c", 31)])
    assert ["c=3", "b=2", "c=31"] == world.events
    assert ["new.path", ""] == [change.setting.path for change in changes]
    engine.apply([])
    assert START == world.values


def test_what_is_apart_is_changed_by_itself(world: World) -> None:
    """Nothing else is touched, whatever its place; the answer has the order that was asked for."""
    world.apart = {"a", "b"}
    engine = world.engine()
    engine.apply([fake("a", 10), fake("c", 30)])
    world.events.clear()
    changes = engine.apply([fake("a", 11), fake("b", 20), fake("c", 30)])
    assert ["a=1", "a=11", "b=20"] == world.events
    assert [(1, 11), (2, 20), (3, 30)] == [(change.before, change.after) for change in changes]
    world.events.clear()
    engine.apply([fake("c", 30)])
    assert ["b=2", "a=1"] == world.events
    engine.restore()
    assert (START, False) == (world.values, world.journal.path.exists())


def test_what_depends_on_others_takes_along_what_is_apart(world: World) -> None:
    """If anything else differs, all that follows it is undone and applied again."""
    world.apart = {"b", "c"}
    engine = world.engine()
    engine.apply([fake("a", 10), fake("b", 20), fake("c", 30)])
    engine.apply([fake("a", 10), fake("b", 21), fake("c", 30)])
    world.events.clear()
    engine.apply([fake("a", 11), fake("b", 21), fake("c", 30)])
    assert ["b=2", "c=3", "a=1", "a=11", "b=21", "c=30"] == world.events
    world.events.clear()
    engine.apply([fake("a", 11), fake("b", 22), fake("b", 23)])
    assert ["c=3", "b=2", "b=22", "b=23"] == world.events
    engine.restore()
    assert START == world.values


def test_a_refusal_leaves_what_is_apart_as_it_was(world: World) -> None:
    """What stayed in force stays; what its call applied is undone."""
    world.apart = {"a", "b"}
    world.refused.add(("b", 20))
    engine = world.engine()
    engine.apply([fake("c", 30)])
    with pytest.raises(SettingRefused):
        engine.apply([fake("a", 10), fake("b", 20), fake("c", 30)])
    assert {"a": 1, "b": 2, "c": 30} == world.values
    assert [fake("c", 30)] == [change.setting for change in engine.in_force]
    assert world.reopened().restore()
    assert START == world.values


def test_an_optional_setting_is_no_prefix_of_a_required_one(world: World) -> None:
    """What was skipped because it was optional is tried again once it is required."""
    world.refused.add(("a", 10))
    engine = world.engine()
    engine.apply([fake("a", 10, optional=True)])
    with pytest.raises(SettingRefused):
        engine.apply([fake("a", 10)])


def test_a_refused_setting_undoes_what_its_call_applied(world: World) -> None:
    """The prefix that was in force before the call stays."""
    world.refused.add(("c", 30))
    engine = world.engine()
    engine.apply([fake("a", 10)])
    with pytest.raises(SettingRefused) as refused:
        engine.apply([fake("a", 10), fake("b", 20), fake("c", 30, path="s.c")])
    assert (
        "s.c: fake c: asked for 30: the kernel says: Operation not permitted; "
        "run as root, or leave it out" == refused.value.message
    )
    assert ["a=10", "b=20", "c=30", "b=2"] == world.events
    assert {"a": 10, "b": 2, "c": 3} == world.values
    engine.restore()
    assert START == world.values


def test_a_value_that_is_not_kept_is_refused(world: World, golden: Golden) -> None:
    """Only reading back tells, and the message has both values."""
    world.kept.add(("a", 10))
    with golden.raises(SettingRefused):
        world.engine().apply([fake("a", 10)])


def test_a_write_that_fails_half_way_is_undone(world: World, golden: Golden) -> None:
    """The error came, but the value had changed: it is put back."""
    world.half_done.add(("a", 10))
    with golden.raises(SettingRefused):
        world.engine().apply([fake("a", 10)])
    assert (START, False) == (world.values, world.journal.path.exists())


def test_an_optional_setting_is_skipped_and_reported(world: World) -> None:
    """Its change has before == after, which is not what was asked for; the rest is applied."""
    world.refused.add(("a", 10))
    world.kept.add(("b", 20))
    requested = [
        fake("a", 10, optional=True),
        fake("b", 20, optional=True),
        fake("gone", 1, optional=True),
        fake("c", 30, scope="machine", optional=True),
        fake("c", 30),
    ]
    changes = world.engine().apply(requested)
    assert [(1, 1), (2, 2), (None, None), (None, None), (3, 30)] == [
        (change.before, change.after) for change in changes
    ]
    assert {"a": 1, "b": 2, "c": 30} == world.values


@pytest.mark.parametrize(
    "setting",
    [
        fake("a", 10, scope="machine"),
        Setting("colour", "a", 10),
        fake("gone", 10),
    ],
)
def test_what_the_agent_may_not_touch_is_refused(
    world: World, setting: Setting, golden: Golden
) -> None:
    """A scope it was not given, a kind it does not know, a thing that is not there."""
    with golden.raises(SettingRefused):
        world.engine().apply([setting])
    (planned,) = world.engine().plan([setting])
    assert planned.refusal is not None
    assert [] == world.events


def test_without_a_journal_nothing_is_changed(world: World, golden: Golden) -> None:
    """Where it cannot be written, the setting is refused before it is touched."""
    world.journal.path.parent.parent.mkdir(parents=True)
    world.journal.path.parent.write_text("in the way")
    with golden.raises(SettingRefused):
        world.engine().apply([fake("a", 10)])
    assert [] == world.events


def test_a_dry_run_changes_nothing(world: World) -> None:
    """It reads; what an earlier setting will make is not refused for being absent."""
    world.values["link"] = None
    requested = [fake("a", 10), fake("link", "new"), fake("link/address", 1), fake("x.link.y", 1)]
    planned = world.engine().plan(requested)
    assert (Planned(fake("a", 1), 1, as_wanted=True),) == world.engine().plan([fake("a", 1)])
    assert [
        Planned(requested[0], 1),
        Planned(requested[1], None),
        Planned(requested[2], None),
        Planned(requested[3], None),
    ] == list(planned)
    assert ([], False) == (world.events, world.journal.path.exists())


def test_what_an_interface_refuses_because_it_is_down_is_not_known_in_a_dry_run(
    world: World,
) -> None:
    """It is taken up by an earlier setting; of one that is up already a refusal is one."""
    world.values.update(down=False, up=True)
    planned = world.engine().plan(
        [fake("down", True), fake("down/address", 1), fake("up", True), fake("up/address", 1)]
    )
    assert [None, None, None, "the kernel says: No such device"] == [
        entry.refusal for entry in planned
    ]


def test_a_dry_run_does_not_refuse_what_another_setting_may_bring(world: World) -> None:
    """A queue that channels will make is unknown; one that nothing will make is refused."""
    world.values = {"eth3": 2}
    queue = fake("eth3/rx-3", 1)
    assert (None, None) == _now_and_refusal(world.engine().plan([fake("eth3", 4), queue])[1])
    now, why = _now_and_refusal(world.engine().plan([fake("eth3", 2), queue])[1])
    assert (None, True) == (now, "No such device" in str(why))
    assert _now_and_refusal(
        world.engine().plan([fake("eth3", 4), Setting("colour", "eth3/a", 1)])[1]
    )[1]


def test_a_dry_run_does_not_refuse_what_cannot_even_be_read_before(world: World) -> None:
    """A kind that needs another first, as rules for a card need its feature switched on."""
    world.values = {"eth3": 0}
    rules = copy(world)
    rules.needs = "fake"
    world.kinds["rule"] = rules
    rule = Setting("rule", "eth3/udp4/4321", 1)
    planned = world.engine().plan([fake("eth3", 1), rule])
    assert [None, None] == [entry.refusal for entry in planned]
    (alone,) = world.engine().plan([rule])
    assert "the kernel says: No such device" == alone.refusal


def _now_and_refusal(planned: Any) -> tuple[Any, Any]:
    return planned.now, planned.refusal


def test_what_somebody_else_changed_is_left_alone(world: World) -> None:
    """It is reported with the command to mend it; everything else is restored; force overwrites."""
    engine = world.engine()
    engine.apply([fake("a", 10), fake("b", 20), fake("c", 30)])
    world.values["b"] = 99
    with pytest.raises(RestoreError) as error:
        engine.restore()
    assert (
        "fake b: another process changed it: udpbench set it from 2 to 20, now it is 99; left as is "
        "(udpbench restore --force overwrites it); by hand: change fake b back to 2"
        == error.value.message
    )
    assert {"a": 1, "b": 99, "c": 3} == world.values
    with pytest.raises(RestoreError):
        engine.restore()
    engine.restore(force=True)
    assert (START, False) == (world.values, world.journal.path.exists())


def test_what_somebody_else_changed_under_way_is_seen(world: World) -> None:
    """The last of several settings of one thing counts; one that was refused is nobody's."""
    engine = world.engine()
    world.refused.add(("c", 30))
    engine.apply([fake("a", 9), fake("a", 10), fake("b", 20), fake("c", 30, optional=True)])
    assert () == engine.altered()
    world.values["c"] = 31
    world.values["a"] = 11
    assert [("a", 10, 11)] == [(c.setting.target, c.before, c.after) for c in engine.altered()]
    del world.values["b"]
    assert [("a", 11), ("b", None)] == [(c.setting.target, c.after) for c in engine.altered()]


def test_what_was_found_and_not_set_is_not_looked_at_again(world: World) -> None:
    """That nobody else has an address is asked once, before it is taken."""
    world.stays = False
    engine = world.engine()
    engine.apply([fake("a", 10)])
    world.values["a"] = 11
    assert () == engine.altered()


def test_what_somebody_else_restored_is_restored(world: World) -> None:
    """A value that is as it was before needs no write."""
    engine = world.engine()
    engine.apply([fake("a", 10)])
    world.values["a"] = 1
    assert (Change(fake("a", 10), 1, 1),) == engine.restore()
    assert ["a=10"] == world.events


def test_what_is_gone_is_restored(world: World) -> None:
    """A device that went with its namespace needs nothing more."""
    engine = world.engine()
    engine.apply([fake("a", 10), fake("b", 20)])
    del world.values["a"]
    assert [(20, 2), (None, None)] == [(c.before, c.after) for c in engine.restore()]
    assert {"b": 2, "c": 3} == world.values


def named(world: World, monkeypatch: pytest.MonkeyPatch, names: dict[int, str]) -> None:
    """Let the host's interfaces have these names, which a test may change."""

    def index(interface: str) -> int:
        numbers = [number for number, name in names.items() if name == interface]
        return numbers[0] if numbers else Host.index(world.host, interface)

    monkeypatch.setattr(world.host, "index", index)
    monkeypatch.setattr(world.host, "name_of", names.get)


def test_an_interface_is_restored_by_its_new_name(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renamed under way, also in the eyes of another process, it is still the one that was set."""
    names = {7: "a"}
    named(world, monkeypatch, names)
    world.engine().apply([fake("a", 10)])
    names[7] = "new"
    world.values["new"] = world.values.pop("a")
    assert [Change(fake("new", 10), 10, 1)] == list(world.reopened().restore())
    assert {"b": 2, "c": 3, "new": 1} == world.values


def test_what_remains_of_a_renamed_interface_is_reported_by_its_new_name(
    world: World, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """The command by hand must find it."""
    names = {7: "a"}
    named(world, monkeypatch, names)
    engine = world.engine()
    engine.apply([fake("a", 10)])
    names[7] = "new"
    world.values["new"] = world.values.pop("a")
    world.refused.add(("new", 1))
    with golden.raises(RestoreError):
        engine.restore()


def test_another_interface_of_the_same_name_is_left_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was set went with the interface that had the name before."""
    names = {7: "a"}
    named(world, monkeypatch, names)
    engine = world.engine()
    engine.apply([fake("a", 10)])
    names.clear()
    names[8] = "a"
    world.values["a"] = 5
    assert [Change(fake("a", 10), None, None)] == list(engine.restore())
    assert (5, ()) == (world.values["a"], world.journal.pending)


def test_a_card_that_does_not_answer_is_not_taken_for_gone(
    world: World, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """A driver says ENODEV of a card that sleeps, while its interface is there."""
    named(world, monkeypatch, {7: "a"})
    engine = world.engine()
    engine.apply([fake("a", 10)])
    del world.values["a"]
    with golden.raises(RestoreError):
        engine.restore()
    assert ["a"] == [entry.setting.target for entry in world.journal.pending]


@pytest.mark.parametrize(
    "fault",
    [
        "refused",
        "kept",
        "unforeseen",
    ],
)
def test_restoring_goes_on_after_a_failure(world: World, fault: str, golden: Golden) -> None:
    """What can be restored is; what cannot is named; a later attempt does the rest."""
    engine = world.engine()
    engine.apply([fake("a", 10), fake("b", 20), fake("c", 30)])
    getattr(world, fault).add(("b", 2))
    with golden.raises(RestoreError):
        engine.restore()
    assert {"a": 1, "b": 20, "c": 3} == world.values
    # What is older than the failure was restored, and is looked at again after it.
    assert ["a", "b"] == [entry.setting.target for entry in world.journal.pending]
    getattr(world, fault).clear()
    assert [("b", 20, 2), ("a", 1, 1)] == [
        (change.setting.target, change.before, change.after) for change in engine.restore()
    ]


def test_what_cannot_be_read_keeps_nothing_else_in_force(world: World, golden: Golden) -> None:
    """Whatever a kind raises, what is older is put back; that a thing is gone it does not mean."""
    engine = world.engine()
    engine.apply([fake("a", 10), fake("b", 20), fake("c", 30)])
    world.unreadable.add("b")
    with golden.raises(RestoreError):
        engine.restore()
    assert {"a": 1, "b": 20, "c": 3} == world.values
    world.unreadable.clear()
    engine.restore()
    assert START == world.values


def test_a_command_that_cannot_be_told_stops_no_restoring(world: World, golden: Golden) -> None:
    """A value of which no command can be made is told as it is."""
    world.kinds["firewall"] = world.kinds["fake"]
    engine = world.engine()
    engine.apply([fake("a", 10), Setting("firewall", "b", 20)])
    world.refused.add(("b", 2))
    with golden.raises(RestoreError):
        engine.restore()
    assert {"a": 1, "b": 20, "c": 3} == world.values


def test_what_fails_and_then_goes_with_what_it_hung_on_is_restored(world: World) -> None:
    """A queue that could not be set back is no failure once its interface has been taken away."""
    engine = world.engine()
    engine.apply([fake("a", 10), fake("b", 20), fake("c", 30)])
    world.refused.add(("b", 2))
    world.takes_along["a", 1] = "b"
    assert [("c", 3), ("a", 1)] == [
        (change.setting.target, change.after) for change in engine.restore()
    ]
    assert ({"a": 1, "c": 3}, ()) == (world.values, world.journal.pending)
    assert not world.journal.path.exists()


def test_a_rounded_value_is_in_force_as_it_is(world: World) -> None:
    """What was asked and what was got are both kept; undoing must be exact."""
    engine = world.engine()
    world.rounds_up = True
    (change,) = engine.apply([fake("a", 10)])
    assert (10, 11, True) == (change.setting.value, change.after, change.rounded)
    world.rounds_up = False
    assert () == engine.altered()
    world.values["a"] = 12
    assert [(11, 12)] == [(c.before, c.after) for c in engine.altered()]
    world.values["a"] = 11
    engine.restore()
    assert START == world.values


def test_a_write_that_finds_nothing_is_no_restoring(world: World, golden: Golden) -> None:
    """The thing is still there with the new value: that is said, not taken for gone."""
    engine = world.engine()
    engine.apply([fake("a", 10)])
    world.gone_to_writes.add(("a", 1))
    with golden.raises(RestoreError):
        engine.restore()
    world.gone_to_writes.clear()
    engine.restore()
    assert START == world.values


def test_a_refusal_that_cannot_be_undone_is_both(world: World) -> None:
    """The error says what was refused and what remains."""
    world.refused |= {("b", 20), ("a", 1)}
    with pytest.raises(RestoreError) as error:
        world.engine().apply([fake("a", 10), fake("b", 20)])
    first, second = error.value.message.splitlines()
    assert first.startswith("fake b: asked for 20")
    assert second.endswith("by hand: change fake a back to 1")


def test_another_process_restores_from_the_journal_alone(world: World) -> None:
    """After a SIGKILL a new engine knows everything that is needed."""
    world.engine().apply([fake("a", 10), fake("b", 20)])
    assert ["b", "a"] == [change.setting.target for change in world.reopened().restore()]
    assert (START, False) == (world.values, world.journal.path.exists())


def test_a_change_that_was_never_read_back_is_undone(world: World) -> None:
    """Killed between write and read-back: whatever the value is now, it is this run's."""
    world.journal.begin(fake("a", 10), 1)
    world.values["a"] = 9
    world.reopened().restore()
    assert START == world.values


def test_a_kind_that_this_agent_does_not_know_is_reported(world: World, golden: Golden) -> None:
    """A journal of another version names it; the rest is restored."""
    world.engine().apply([fake("a", 10)])
    world.journal.begin(Setting("colour", "c", 1), 0)
    with golden.raises(RestoreError):
        world.engine().restore()
    assert START == world.values


TARGETS = st.sampled_from(sorted(START))
SETTINGS = st.lists(st.builds(fake, TARGETS, st.integers(0, 4), optional=st.booleans()), max_size=5)
FAULTS = st.sets(st.tuples(TARGETS, st.integers(4, 6)))


@settings(max_examples=150)
@given(st.lists(SETTINGS, max_size=4), FAULTS, FAULTS, FAULTS, st.booleans())
def test_the_state_is_always_restored(
    rounds: list[list[Setting]],
    refused: set[tuple[str, Any]],
    kept: set[tuple[str, Any]],
    half_done: set[tuple[str, Any]],
    killed: bool,
) -> None:
    """Whatever is applied and whatever fails under way, restoring gives the first state back.

    Only writes of new values fail here: the values to go back to (1 to 3) can be written.
    """
    with TemporaryDirectory() as folder:
        world = World(Path(folder), START)
        world.refused, world.kept, world.half_done = refused, kept, half_done
        engine = world.engine()
        for requested in rounds:
            _apply(world, engine, requested)
        if killed and world.journal.pending:
            engine = world.reopened()
        engine.restore()
        assert (START, False) == (world.values, world.journal.path.exists())


def _apply(world: World, engine: Engine, requested: list[Setting]) -> None:
    """Apply; if it went well, every required setting that nothing later overrides holds."""
    try:
        engine.apply(requested)
    except SettingRefused:
        return
    last = {setting.target: setting for setting in requested}
    assert {target: setting.value for target, setting in last.items() if not setting.optional} == {
        target: world.values[target] for target, setting in last.items() if not setting.optional
    }

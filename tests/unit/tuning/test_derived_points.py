"""What a user may ask to be tuned, and the points that steps make."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
import yaml
from analysis.build import facts as host
from golden import Golden

from tuning.bench import PROGRAM_WORDS, WORDS, limit, to_tune
from udpbench.analysis.remedies import (
    BEYOND_SETTINGS,
    REMEDIES,
    REMEDY_STEPS,
    SCOPES,
    TuningStep,
)
from udpbench.definition import yaml_reader
from udpbench.definition.load import derived_trial, load_experiment_data
from udpbench.definition.problems import Tree
from udpbench.errors import InputError
from udpbench.model.experiment import Experiment, Tune
from udpbench.model.host import Facts
from udpbench.model.limits import Role
from udpbench.tuning.derived_points import asked, derivation
from udpbench.tuning.recipe import as_yaml, instructions
from udpbench.tuning.steps import is_part, steps_against

EVERY = [
    step
    for name in REMEDY_STEPS
    for step in steps_against(
        [limit(name, **WORDS, **PROGRAM_WORDS)], Tune("", "delivered_pps", 0), ()
    )
]
"""All steps, with words."""
MEASURED = (
    *("traffic", "losses", "search", "receive.work", "receive.read", "receive.room"),
    *("settings.receiver.link.rate", "settings.sender.link.rate"),
)
"""Keys that say what is measured, or what the cable is."""


def plain(**keys: Any) -> Experiment:
    """Return an experiment as a user has it."""
    return load_experiment_data({"question": "x", **keys}, "one")


def test_steps_are_of_known_bottlenecks_and_scopes() -> None:
    """One table of remedies serves all who recommend."""
    by_another_name = {"others_cpu", "small_backlog", "remote_node"}
    assert set(REMEDY_STEPS) | set(BEYOND_SETTINGS) <= set(REMEDIES) | by_another_name
    steps = [step for steps in REMEDY_STEPS.values() for step in steps]
    assert {step.scope for step in steps} <= set(SCOPES)
    assert len(EVERY) == len(steps)


@pytest.mark.parametrize("step", EVERY, ids=lambda step: f"{step.against} {step.name}")
def test_no_step_touches_what_is_measured(step: TuningStep) -> None:
    """Traffic, work, read, room, losses, search and the cable stay as they are."""
    assert [] == [path for path in step.paths for key in MEASURED if is_part(key, path)]
    assert all(path.split(".")[0] in ("send", "receive", "settings") for path in step.paths)


@pytest.mark.parametrize("step", EVERY, ids=lambda step: f"{step.against} {step.name}")
def test_each_step_makes_a_point_and_a_recipe(step: TuningStep, golden: Golden) -> None:
    """Its keys are those of an experiment, and it says what to type."""
    traffic = {"rate": "10kpps", "flows": {"from": "65400-65401"}}
    single = {"call": {"recvmmsg": "recv"}.get(step.name, "recvmmsg"), "workers": 3}
    calls = {"call": {"sendmmsg": "send"}.get(step.name, "sendmmsg")}
    experiment = to_tune(traffic=traffic, receive=single, send=calls)
    trial = derived_trial(experiment, "", step.name, step.sets)
    assert trial != replace(experiment.points[0], point=step.name, variant=step.name)
    nested = yaml.safe_load(as_yaml(step.sets))
    assert {path.split(".")[0] for path in step.paths} == set(nested)
    again = load_experiment_data(
        {**yaml.safe_load(experiment.text), **_joined(experiment, nested)}, "one"
    )
    (point,) = again.points
    assert (trial.send, trial.receive, trial.settings) == (
        point.send,
        point.receive,
        point.settings,
    )
    typed = instructions(step.sets, trial, facts(), {})
    assert typed
    golden.check([f"{line.form}: {line.text}" for line in typed])


def _joined(experiment: Experiment, nested: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe's blocks on top of an experiment's."""
    own = yaml.safe_load(experiment.text)
    return {key: {**own.get(key, {}), **block} for key, block in nested.items()}


def facts() -> dict[Role, Facts]:
    """Return a host of each role with an interface."""
    return {
        "sender": host("left", "eth1", "10.0.0.1"),
        "receiver": host("right", "eth2", "10.0.0.2"),
    }


@pytest.mark.parametrize("step", EVERY, ids=lambda step: f"{step.against} {step.name}")
def test_what_is_typed_holds_no_command_of_who_named_an_interface(step: TuningStep) -> None:
    """A run folder may have come from anybody, and Linux allows almost any name."""
    trial = derived_trial(to_tune(traffic={"flows": {"from": "65400-65401"}}), "", "x", ())
    evil = "x;reboot;#\n[Service]"
    named = {role: replace(each, interface=evil) for role, each in facts().items()}
    for form, text in instructions(step.sets, trial, named, {"x\nreboot": (evil, evil)}):
        assert "\n" not in text
        if form == "shell":
            assert "reboot" not in shlex.split(text.replace(";", " ; "), comments=True)


def test_what_is_set_of_nodes_is_typed_at_each() -> None:
    """By its own interface: where packets come in, or where they leave."""
    sets = ("settings.middle.rps.cpus=1", "settings.middle.qdisc={pfifo: {limit: 9}}")
    trial = derived_trial(to_tune(), "", "x", sets)
    nodes = {"r": ("in0", "out0"), "s": ("in1", "out1")}
    assert [
        "for queue in /sys/class/net/in0/queues/rx-*; do echo 2 > $queue/rps_cpus; done  # r",
        "for queue in /sys/class/net/in1/queues/rx-*; do echo 2 > $queue/rps_cpus; done  # s",
        "tc qdisc replace dev out0 root pfifo limit 9  # r",
        "tc qdisc replace dev out1 root pfifo limit 9  # s",
    ] == [line.text for line in instructions(sets, trial, facts(), nodes)]


def test_a_step_that_contradicts_the_experiment_is_none() -> None:
    """As if it stood in the file: a single message a call has no batch."""
    derive = derivation(to_tune(receive={"call": "recv"}))
    assert None is derive("batch", ("receive.batch=8",))
    trial = derive("gro", ("receive.gro=true", "receive.call=recvmmsg"))
    assert trial is not None
    assert ("gro", "gro", True) == (trial.point, trial.variant, trial.receive.gro)


def test_a_text_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that cannot be read: a tune asks for dozens of points."""
    parse, parsed = yaml_reader.parse, []

    def counted(text: str, file: str) -> Tree:
        parsed.append(text)
        return parse(text, file)

    experiments = to_tune(), replace(to_tune(), text="question: [")
    monkeypatch.setattr(yaml_reader, "parse", counted)
    for experiment in experiments:
        derive = derivation(experiment)
        known = [derive(f"b{n}", (f"receive.batch={n}",)) for n in (8, 16)]
        assert (known[0] is None) == (experiment is experiments[1])
    assert [1, 1] == [parsed.count(experiment.text) for experiment in experiments]


def test_a_point_that_is_not_there_is_refused(golden: Golden) -> None:
    """With those that are."""
    with golden.raises(InputError):
        derived_trial(plain(sweep={"send.batch": [1, 2]}), "batch=3", "x", ())


def test_a_step_lacks_a_word() -> None:
    """Nothing is known to be larger, so that nothing is tried."""
    tune = Tune("", "delivered_pps", 0)
    assert [] == list(steps_against([limit("short_ring", port="1")], tune, ()))
    few = {key: WORDS[key] for key in ("buffer", "port")}
    names = [step.name for step in steps_against([limit("small_buffer", **few)], tune, ())]
    assert ["buffer=8MiB"] == names


@pytest.mark.parametrize(
    ("keys", "metric"),
    [
        ({}, "delivered_pps"),
        ({"traffic": {"count": 100}}, "lost_packets"),
        ({"search": "quick"}, "throughput_pps"),
    ],
)
def test_what_is_made_better_if_nothing_is_named(keys: dict[str, Any], metric: str) -> None:
    """The rate; of a burst what is lost of it, and of a search what it finds."""
    assert metric == asked([plain(**keys)], None, None).metric


@pytest.mark.parametrize(
    ("keys", "options"),
    [
        ({}, {"metric": "delivered_ps"}),
        ({}, {"metric": "log_bytes"}),
        ({}, {"metric": "throughput_pps"}),
        ({}, {"metric": "lost_packets"}),
        ({"search": "quick"}, {"metric": "delivered_pps"}),
        ({}, {"only": ["app"], "never": ["irqs"]}),
        ({}, {"point": "batch=1"}),
        ({"sweep": {"send.batch": [1, 2]}}, {}),
        ({"sweep": {"send.batch": [1, 2]}}, {"point": "batch=3"}),
    ],
)
def test_what_cannot_be_tuned_is_refused(
    keys: dict[str, Any], options: dict[str, Any], golden: Golden
) -> None:
    """Before any host is asked."""
    with golden.raises(InputError):
        asked([plain(**keys)], options.pop("point", None), options.pop("metric", None), **options)


def test_two_experiments_are_one_too_many(golden: Golden) -> None:
    """A tune has one question."""
    with golden.raises(InputError):
        asked([plain(), plain()], None, None)


def test_a_point_of_several() -> None:
    """Its own keys are the base's, and what steps are put on."""
    experiment = plain(sweep={"send.batch": [1, 2]}, traffic={"rate": "1kpps"})
    tune = asked([experiment], "batch=2", "lost_packets")
    assert ("batch=2", "lost_packets") == (tune.point, tune.metric)
    trial = derived_trial(experiment, tune.point, "gro", ("receive.gro=true",))
    assert (2, True, {}) == (trial.send.batch, trial.receive.gro, trial.values)

"""What differs between two definitions is said key by key, as was → is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from golden import Golden

from udpbench.definition.definition_changes import experiment_changes, lab_changes
from udpbench.definition.load import lab_of, load_experiment_data, load_lab
from udpbench.model.experiment import Experiment

BASE = {"question": "What?", "sweep": {"traffic.size": ["32B", "64B"]}}
STEP = "; restore it, or start a new run"


def experiment(**keys: Any) -> Experiment:
    """Return an experiment of two points; keys as in YAML."""
    return load_experiment_data({**BASE, **keys}, "mine.yaml")


def test_a_definition_is_what_it_is() -> None:
    """Text and path do not count: a comment or a file that moved changes no measurement."""
    now = replace(experiment(), text="# another\n", path="elsewhere.yaml")
    assert [] == list(experiment_changes(experiment(), now))
    assert [] == list(lab_changes(load_lab("local"), replace(load_lab("local"), text="")))


@pytest.mark.parametrize(
    ("keys", "changes"),
    [
        ({"question": "Why?"}, ["question: What? → Why?"]),
        ({"repetitions": 2}, ["repetitions: 7 → 2"]),
        ({"expect": ["unaccounted == 0"]}, ["expect: none → unaccounted == 0"]),
        (
            {"compare": {"a": "size=32B", "b": "size=64B", "blocks": 6}},
            [
                "compare[1].a: none → size=32B",
                "compare[1].b: none → size=64B",
                "compare[1].metric: none → delivered_pps",
                "compare[1].margin: none → 0.03",
                "compare[1].blocks[1]: none → 6",
            ],
        ),
        ({"duration": "500ms"}, ["duration: 5s → 500ms"]),
        ({"traffic": {"rate": "40kpps"}}, ["traffic.rate: none → 40kpps"]),
        ({"traffic": {"flows": {"from": 7}}}, ["traffic.flows.from: 65400 → 7"]),
        ({"send": {"zerocopy": True}}, ["send.zerocopy: false → true"]),
        ({"receive": {"buffer": "1MiB"}}, ["receive.buffer: 4MiB → 1MiB"]),
        (
            {"settings": {"receiver": {"mtu": 9000}}},
            ["settings.receiver.mtu: none → 9000B"],
        ),
        ({"needs": {"receiver": {"cpus": 3}}}, ["needs.receiver.cpus: none → 3"]),
        (
            {"sweep": {"traffic.size": ["32B", "1KiB"]}},
            ["size=64B: a point → none", "size=1KiB: none → a point"],
        ),
    ],
)
def test_each_key_that_changed_is_named_once(keys: dict[str, Any], changes: list[str]) -> None:
    """With the point where it is not all of them, and the values in words of the file."""
    messages = [str(change) for change in experiment_changes(experiment(), experiment(**keys))]
    assert [
        f"mine.yaml: {change}: changed since the run began{STEP}" for change in changes
    ] == messages


def test_points_that_changed_are_named_while_they_are_few(golden: Golden) -> None:
    """A key that changed at one variant alone says so."""

    def varied(batches: list[int]) -> Experiment:
        variants = {f"v{n}": {"send.batch": batch} for n, batch in enumerate(batches)}
        return load_experiment_data({"question": "What?", "variants": variants}, "mine.yaml")

    messages = [str(change) for change in experiment_changes(varied([1, 2]), varied([1, 3]))]
    golden.check(messages)
    (many,) = experiment_changes(varied([1, 1, 1, 1, 1, 9]), varied([2, 2, 2, 2, 2, 9]))
    golden.check(many.where)


def test_a_lab_that_changed_is_reported_by_its_keys(golden: Golden) -> None:
    """Each host by its place."""
    was = load_lab("local")
    now = lab_of(was.text.replace("192.168.254.30", "192.168.254.31"), Path("mine.yaml"))
    (change,) = lab_changes(was, now)
    golden.check(str(change))

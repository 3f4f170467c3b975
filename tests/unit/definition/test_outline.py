"""What settings and bindings depend on: an outline has all of it, or a plan would not be true."""

from __future__ import annotations

from functools import cache

import pytest
from definition_fixture import facts, trial

from udpbench.definition import lab_rules
from udpbench.definition.binding.bind import (
    LabContext,
    Unavailable,
    bind,
    machine_settings_for,
    settings_for,
)
from udpbench.definition.binding.outline import bindable, filled, outline
from udpbench.definition.load import load_experiments, load_lab
from udpbench.definition.shipped import shipped_labs, shipped_names
from udpbench.errors import InputError
from udpbench.model.experiment import Experiment, Trial
from udpbench.model.host import GSO_SEGMENTS, Facts, Setting
from udpbench.model.lab import Lab

SYSCTL = "net/ipv4/udp_rmem_min"


def in_lab(lab: Lab) -> dict[str, Facts]:
    """Return facts of every host of a lab, with all that a trial may ask for."""
    limits = {GSO_SEGMENTS: 128}
    return {
        host.name: facts(
            host.name, tuple(range(16)), interface=host.interface, limits=limits, tx_queues=16
        )
        for host in lab.hosts
    }


@cache
def labs() -> list[tuple[Lab, dict[str, Facts]]]:
    """Return every shipped lab, with its hosts."""
    return [(lab, in_lab(lab)) for lab in map(load_lab, shipped_labs())]


def layout(lab: Lab, known: dict[str, Facts], seen: Trial, shown: Trial) -> str:
    """Return the settings of each node and of the machine, or why there are none."""
    pids = {host.name: number for number, host in enumerate(lab.nodes)}
    context = LabContext(pids, known, {node.name: "key" for node in lab.middle})
    try:
        own = [settings_for(lab, seen, node, context) for node in lab.nodes]
        own.append(machine_settings_for(lab, seen, context))
    except Unavailable as why:
        return str(why)
    return repr([filled(each, shown) for each in own])


def answer_of(lab: Lab, known: dict[str, Facts], chosen: Trial) -> str:
    """Return why a trial cannot be bound; empty if it can."""
    try:
        bind(chosen, lab, known)
    except Unavailable as why:
        return str(why)
    return ""


def possible(experiments: list[Experiment], lab: Lab) -> bool:
    """Return whether experiments do not contradict a lab."""
    try:
        lab_rules.refuse_together(experiments, lab)
    except InputError:
        return False
    return True


@pytest.mark.parametrize("name", shipped_names())
def test_an_outline_has_the_settings_of_its_trial(name: str) -> None:
    """At every point of every shipped experiment, in every shipped lab that it fits."""
    experiments, checked = load_experiments([name]), 0
    for lab, known in labs():
        for point in experiments[0].points if possible(experiments, lab) else ():
            assert layout(lab, known, point, point) == layout(lab, known, outline(point), point)
            assert answer_of(lab, known, point) == answer_of(lab, known, bindable(point))
            checked += 1
    assert checked


def test_points_that_differ_in_values_of_parameters_have_one_outline() -> None:
    """And in what is sent and received, which no setting depends on."""
    points = [
        trial(
            settings={"receiver": {"sysctl": {SYSCTL: value}}},
            traffic={"size": f"{value}B"},
            receive={"workers": value},
        )
        for value in (100, 101)
    ]
    assert points[0] != points[1]
    assert outline(points[0]) == outline(points[1])


def test_an_outline_shows_losses_ports_and_family() -> None:
    """What drops are counted of, and what is lost on purpose, are settings."""
    plain = trial()
    for keys in (
        {"explain": True},
        {"losses": {"rx_tc": 3}},
        {"traffic": {"family": 6}},
        {"settings": {"receiver": {"mtu": 1400}}},
        {"settings": {"receiver": {"sysctl": {SYSCTL: 1}}}},
    ):
        assert outline(trial(**keys)) != outline(plain)
    ports = [{"explain": True, "traffic": {"flows": {"from": each}}} for each in ("9", "10")]
    assert outline(trial(**ports[0])) != outline(trial(**ports[1]))


def test_settings_without_blanks_are_the_very_same() -> None:
    """Thousands of points have them in common."""
    settings = (Setting("mtu", "x0", 1400),)
    assert filled(settings, trial()) is settings

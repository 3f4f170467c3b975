"""What settings and bindings depend on: an outline has all of it, or a plan would not be true."""

from __future__ import annotations

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


def layout(lab: Lab, seen: Trial, shown: Trial) -> str:
    """Return the settings of each node and of the machine, or why there are none."""
    pids = {host.name: number for number, host in enumerate(lab.nodes)}
    context = LabContext(pids, in_lab(lab), {node.name: "key" for node in lab.middle})
    try:
        own = [settings_for(lab, seen, node, context) for node in lab.nodes]
        own.append(machine_settings_for(lab, seen, context))
    except Unavailable as why:
        return str(why)
    return repr([filled(each, shown) for each in own])


def answer_of(lab: Lab, chosen: Trial) -> str:
    """Return why a trial cannot be bound; empty if it can."""
    try:
        bind(chosen, lab, in_lab(lab))
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
    """Of every point of every shipped experiment, in every shipped lab that it fits."""
    experiments, checked = load_experiments([name]), 0
    for lab in (load_lab(each) for each in shipped_labs()):
        for point in experiments[0].points if possible(experiments, lab) else ():
            assert layout(lab, point, point) == layout(lab, outline(point), point)
            assert answer_of(lab, point) == answer_of(lab, bindable(point))
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

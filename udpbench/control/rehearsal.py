"""What a run would change on each host, found out without changing a host.

A built-in lab's namespaces are thrown away afterwards, so there every setting is really tried; on
the machine, as on any real host, the agent only reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from udpbench.control.configured import desired
from udpbench.control.lab import MACHINE, Agents, Reach, real, refuse_lacking, started
from udpbench.control.remote import Remote
from udpbench.control.run import RunOptions, run_name
from udpbench.definition import faults
from udpbench.model import Experiment, Lab, Planned, Setting, Trial


@dataclass(frozen=True)
class Rehearsed:
    """The settings that some trials share, host by host."""

    trials: tuple[str, ...]
    hosts: dict[str, tuple[Planned, ...]]


def rehearse(
    experiments: Sequence[Experiment], lab: Lab, reach: Reach | None = None
) -> tuple[Rehearsed, ...]:
    """Return for each distinct set of settings what it would change, and what would be refused.

    Raises InputError for faults that this lab can't do, ConnectError or HelloRefused where a host
    does not answer, HostLacks where its kernel cannot do what is asked.
    """
    faults.impossible(experiments, lab)
    points = [trial for experiment in experiments for trial in experiment.points]
    found: list[tuple[dict[str, tuple[Setting, ...]], Rehearsed]] = []
    with started(lab, run_name(), RunOptions.lease_ns, reach or real()) as agents:
        refuse_lacking(points, lab, agents)
        for trial in points:
            facts = {remote.name: remote.facts() for remote in agents.hosts}
            wanted = desired(trial, lab, agents, facts)
            known = next((i for i, (other, _) in enumerate(found) if other == wanted), None)
            if known is None:
                found.append((wanted, Rehearsed((_name(trial),), _try(wanted, lab, agents))))
            else:
                before = found[known][1]
                found[known] = (wanted, replace(before, trials=(*before.trials, _name(trial))))
    return tuple(rehearsed for _, rehearsed in found)


def _name(trial: Trial) -> str:
    return trial.name.rpartition("#")[0]


def _try(
    wanted: dict[str, tuple[Setting, ...]], lab: Lab, agents: Agents
) -> dict[str, tuple[Planned, ...]]:
    """Ask every agent; those that make the pairs of a built-in lab first."""
    for remote in agents.hanging:
        if lab.built_in:
            remote.apply(())
    return {
        remote.name: (
            _throw_away(remote, wanted[remote.name])
            if lab.built_in and remote.name != MACHINE
            else remote.plan(wanted[remote.name])
        )
        for remote in agents.setting_up
    }


def _throw_away(remote: Remote, settings: tuple[Setting, ...]) -> tuple[Planned, ...]:
    """Apply in a namespace that nobody keeps, and find every refusal: there each one may be."""
    changes = remote.apply([replace(one, optional=True) for one in settings])
    return tuple(
        Planned(setting, one.before, one.refusal, one.before == one.after)
        for setting, one in zip(settings, changes, strict=True)
    )

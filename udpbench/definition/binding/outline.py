"""What the settings of a trial depend on, so that points that differ elsewhere are laid out once.

Pure. Values of parameters are only passed on: a blank stands for each until it is filled in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from udpbench.host_settings import NOTHING, Settings
from udpbench.model.experiment import Needs, Receive, Send, Traffic, Trial
from udpbench.model.host import Setting
from udpbench.model.limits import Part

UNSEEN: dict[str, Any] = {
    "question": "",
    "point": "",
    "variant": None,
    "values": {},
    "repetition": 1,
    "send": Send(),
    "receive": Receive(),
    "needs": Needs(),
    "duration_ns": 0,
    "warmup_ns": 0,
}


class Blank(NamedTuple):
    """Stands for the value of a kernel parameter."""

    part: Part
    name: str


def outline(trial: Trial) -> Trial:
    """Return a trial with nothing but what its settings depend on; others may have the same."""
    traffic = trial.traffic
    seen = Traffic(
        family=traffic.family, flows=traffic.flows, echo=traffic.echo, answers=traffic.answers
    )
    return _bare(
        trial,
        traffic=seen if trial.explain or trial.losses else Traffic(family=traffic.family),
        settings={part: _blank(part, block) for part, block in trial.settings.items()},
        explain=trial.explain,
        losses=trial.losses,
    )


def bindable(trial: Trial) -> Trial:
    """Return a trial with nothing but what binding depends on; others may have the same."""
    return _bare(
        trial,
        traffic=trial.traffic,
        send=trial.send,
        receive=trial.receive,
        needs=trial.needs,
        settings=dict.fromkeys(trial.settings, NOTHING),
    )


def _bare(trial: Trial, **seen: Any) -> Trial:
    """Return a trial of the same experiment, of which nothing else is known."""
    return Trial(experiment=trial.experiment, **{**UNSEEN, **seen})


def _blank(part: Part, block: Settings) -> Settings:
    if not block.sysctl:
        return block
    return replace(block, sysctl={name: Blank(part, name) for name in block.sysctl})


def filled(settings: tuple[Setting, ...], trial: Trial) -> tuple[Setting, ...]:
    """Return settings of an outline with the values of a trial; without blanks the very same."""
    if not any(type(setting.value) is Blank for setting in settings):
        return settings
    return tuple(_filled(settings, trial))


def _filled(settings: Iterable[Setting], trial: Trial) -> Iterable[Setting]:
    for setting in settings:
        blank: Any = setting.value
        if type(blank) is Blank:
            values = trial.settings[blank.part].sysctl or {}
            setting = replace(setting, value=values[blank.name])
        yield setting

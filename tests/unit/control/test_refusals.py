"""What hosts of their own would refuse: the run ends before its first trial, and nothing is set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from control.fake import World, experiment, header
from udpbench.control.agents import Reach
from udpbench.control.lab_lock import Surroundings
from udpbench.control.run import RunOptions, run
from udpbench.definition.load import load_lab
from udpbench.errors import SettingRefused
from udpbench.model.experiment import Experiment
from udpbench.records.reader import read_run
from udpbench.records.writer import RunWriter

LAB = """\
sender:
  - {name: sender, connect: {ssh: left}, interface: eth3, addresses: [192.168.254.30/24]}
receiver:
  - {name: receiver, connect: {ssh: right}, interface: eth2, addresses: [192.168.254.1/24]}
"""


def go(world: World, folder: Path, *experiments: Experiment) -> tuple[Any, tuple[str, ...]]:
    """Run on two hosts; return how it ended and the status of each trial."""
    path = folder / "lab.yaml"
    path.write_text(LAB)
    lab = load_lab(str(path))
    writer = RunWriter.create(folder / "run", header(*experiments))
    around = Surroundings(Reach({"ssh": world.open}, world.open), world.clock, world.interrupt)
    outcome = run(experiments, lab, writer, world.progress.append, RunOptions(1), around)
    return outcome, tuple(record.status for record in read_run(folder / "run").records)


def test_a_required_setting_that_is_refused_ends_the_run_before_its_first_trial(
    tmp_path: Path,
) -> None:
    """Each host, setting and reason is named once, whatever the number of points."""
    world = World(refusing="mtu")
    swept = experiment(
        settings={"receiver": {"mtu": 9000}, "sender": {"mtu": 1400}}, sweep={"send.batch": [1, 2]}
    )
    outcome, statuses = go(world, tmp_path, swept)
    assert (3, ()) == (outcome.exit_code, statuses)
    assert isinstance(outcome.error, SettingRefused)
    assert [
        "receiver: settings.receiver.mtu: mtu eth2: asked for 9000: not here",
        "sender: settings.sender.mtu: mtu eth3: asked for 1400: not here",
    ] == str(outcome.error).splitlines()
    assert [] == [word for word in world.words if word.split()[0] in ("prepare", "start")]
    assert [[], []] == [agent.in_force for agent in world.agents.values()]


@pytest.mark.parametrize(
    "keys",
    [
        {"settings": {"receiver": {"mtu": 9000, "optional": ["mtu"]}}},
        {"settings": {"receiver": {"mtu": 9000, "link": {"queues": 2}}}},
    ],
    ids=["optional", "skipped anyway"],
)
def test_what_does_not_keep_a_trial_from_its_end_does_not_end_the_run(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    """An optional setting is a finding of its trials; a trial for a built-in lab is skipped."""
    outcome, statuses = go(World(refusing="mtu"), tmp_path, experiment(**keys))
    assert not isinstance(outcome.error, SettingRefused)
    assert 1 == len(statuses)

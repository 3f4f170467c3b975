"""The packets that a trial loses on purpose: when something waits for them and when they are sent.

Owns the moment for which the machine is set to lose them. What is sent is the definition's, how is
the agent's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from udpbench.control.lab import Agents
from udpbench.control.remote import Remote
from udpbench.definition import faults
from udpbench.definition.bind import Unavailable
from udpbench.model import Facts, FaultSpec, Setting, Trial, WorkerSpec, WorkerStats


@dataclass(frozen=True)
class Losses:
    """The faults of one trial, in the packet's order."""

    sender: Remote
    receiver: Remote
    machine: Remote | None
    in_force: tuple[Setting, ...]
    """Of the machine, for the whole trial."""
    specs: Sequence[FaultSpec]

    def prepare(self) -> None:
        """Have something wait for every packet; Unavailable where the machine can't do it."""
        for spec in self.specs:
            setting = faults.momentary(spec.stage)
            if setting is not None:
                self._prove(setting)
        for remote in (self.receiver, self.sender):
            remote.expect_faults(self.specs)

    def _prove(self, setting: Setting) -> None:
        why: str | None = "nobody may change what all of this machine shares"
        if self.machine is not None:
            (planned,) = self.machine.plan([setting])
            why = planned.refusal
        if why is not None:
            raise Unavailable(f"{setting.path}: {why}")

    def send(self) -> tuple[WorkerStats, ...]:
        """Send every fault's packets, one stage after the other."""
        return tuple(self._send(spec.stage) for spec in self.specs)

    def _send(self, stage: str) -> WorkerStats:
        setting = faults.momentary(stage)
        if setting is None or self.machine is None:
            return self.sender.send_faults(stage)
        self.machine.apply((*self.in_force, setting))
        try:
            return self.sender.send_faults(stage)
        finally:
            self.machine.apply(self.in_force)

    def take(self) -> tuple[WorkerStats, ...]:
        """Return what arrived all the same."""
        return self.receiver.take_faults()


def losses(
    trial: Trial,
    workers: Sequence[WorkerSpec],
    facts: Mapping[str, Facts],
    agents: Agents,
    in_force: tuple[Setting, ...],
) -> Losses | None:
    """Return the faults of a trial, along the addresses of its first flow; None if it has none."""
    if not trial.faults:
        return None
    sender, receiver = agents.senders[0], agents.receivers[0]
    worker = next(spec for spec in workers if spec.host == sender.name)
    specs = faults.specs(trial, worker, facts[sender.name], facts[receiver.name])
    return Losses(sender, receiver, agents.machine, in_force, specs)

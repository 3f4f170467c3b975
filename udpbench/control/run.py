"""The door of control: ``run`` takes experiments through a lab and leaves the hosts as they were.

Owns the frame around the trials: signals, agents, lease, record, restore. Derives no number, but
asks ``judge`` for what the schedule needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Literal

from udpbench.analysis.judge import judge
from udpbench.control.attempt import Attempt, Bench
from udpbench.control.foreseen import refuse_foreseen
from udpbench.control.lab import (
    Agents,
    Reach,
    real,
    refuse_lacking,
    refuse_left_behind,
    restore,
    restore_command,
    restore_left_behind,
    started,
)
from udpbench.control.lease import kept
from udpbench.control.same_hosts import compared, refuse_changed
from udpbench.control.schedule import fixed_sweep, lasting, trial_count
from udpbench.control.trial import described, run_trial
from udpbench.control.waiting import Clock, Interrupt, Waiter
from udpbench.definition import faults
from udpbench.errors import AgentLost, Interrupted, RecordError, RestoreError, UdpbenchError
from udpbench.model import SECOND_NS, Change, Experiment, Lab, Progress, TrialRecord
from udpbench.records import Ending, RunWriter, now_utc


@dataclass(frozen=True)
class RunOptions:
    """What a user may choose for a whole run."""

    seed: int
    """Of the order of trials; the header records it."""
    lease_ns: int = 10 * SECOND_NS
    """After so long without a sign of the controller an agent restores by itself."""
    keep_logs: bool = False
    """Leave the files of ``receive.log`` on the hosts, under names of their own."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended; what it measured is in the run folder."""

    records: int
    error: UdpbenchError | None = None
    """What ended the run early."""
    restore_errors: tuple[RestoreError, ...] = ()
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """4 not restored, else 130 interrupted, else the error's own, else 0."""
        if self.restore_errors:
            return RestoreError.exit_code
        if self.interrupted:
            return Interrupted.exit_code
        return self.error.exit_code if self.error is not None else 0


@dataclass(frozen=True)
class Surroundings:
    """What a run touches beside its folder; tests replace it whole."""

    reach: Reach = field(default_factory=real)
    clock: Clock = field(default_factory=Clock)
    interrupt: Interrupt = field(default_factory=Interrupt)


def run(
    experiments: Sequence[Experiment],
    lab: Lab,
    writer: RunWriter,
    progress: Callable[[Progress], None],
    options: RunOptions,
    surroundings: Surroundings | None = None,
    stored: Sequence[TrialRecord] = (),
) -> Outcome:
    """Run every trial, record each, restore the hosts, finish the run folder.

    ``stored`` are records of earlier sessions of this run: what did not fail is not run again.
    Failures of trials are in their records, failures of the run in the Outcome. Nothing is raised
    but a bug, and before that the hosts are restored.
    """
    around = surroundings or Surroundings()
    return _Run(experiments, lab, writer, progress, options, around, stored).whole()


def mend(
    lab: Lab, force: bool = False, surroundings: Surroundings | None = None
) -> dict[str, tuple[Change, ...]]:
    """Undo what runs that died have left on a lab's machines; return host → what was undone.

    What somebody else has changed since is left alone unless ``force``. Raises RestoreError naming
    what remains, ConnectError, HelloRefused.
    """
    reach = (surroundings or Surroundings()).reach
    with started(lab, run_name(), RunOptions.lease_ns, reach) as agents:
        return restore_left_behind(agents, force)


class _Run:
    """One run while it happens."""

    def __init__(
        self,
        experiments: Sequence[Experiment],
        lab: Lab,
        writer: RunWriter,
        progress: Callable[[Progress], None],
        options: RunOptions,
        around: Surroundings,
        stored: Sequence[TrialRecord],
    ) -> None:
        self.experiments = experiments
        self.lab = lab
        self.writer = writer
        self.progress = progress
        self.options = options
        self.around = around
        self.stored = stored
        self.lasting = lasting(stored)
        self.error: UdpbenchError | None = None
        self.restore_errors: tuple[RestoreError, ...] = ()
        self.lost: tuple[AgentLost, ...] = ()
        self.status: Literal["complete", "interrupted", "failed"] = "failed"
        self.total = trial_count(experiments)

    def whole(self) -> Outcome:
        """Go from signals to the last line of the run folder."""
        with self.around.interrupt.caught():
            try:
                self._with_agents()
                self.status = "complete"
            except Interrupted:
                self.status = "interrupted"
            except UdpbenchError as error:
                self.error = error
            finally:
                self._finish()
        interrupted = self.status == "interrupted"
        return Outcome(self.writer.written, self.error, self.restore_errors, interrupted)

    def _with_agents(self) -> None:
        faults.impossible(self.experiments, self.lab)
        name, lease_ns = run_name(), self.options.lease_ns
        before = f", {len(self.lasting)} of them done before" if self.stored else ""
        self._tell("run", f"run {name}: {self.total} trials{before}, lab {self.lab.name}")
        with started(self.lab, name, lease_ns, self.around.reach) as agents:
            for remote in agents.everyone:
                remote.channel.notice = partial(self._tell_of, remote.name)
                pid = remote.channel.pid
                agent = "agent" if pid is None else f"agent {pid}"
                self._tell("host", f"{remote.name}: {agent} is up")
            if self.lab.built_in and agents.lacking:
                lacking = "; ".join(agents.lacking)
                self._tell("run", f"the lab is degraded, run as root for all it can do: {lacking}")
            refuse_left_behind(agents, self.lab)
            points = [trial for experiment in self.experiments for trial in experiment.points]
            refuse_lacking(points, self.lab, agents)
            refuse_changed(agents, self.stored)
            with kept([remote.channel for remote in agents.everyone], lease_ns):
                try:
                    refuse_foreseen(points, self.lab, agents)
                    self._trials(agents)
                finally:
                    self._restore(agents)
            if self.lost:  # at the very end: whatever came before has been raised by now
                raise self.lost[0]

    def _trials(self, agents: Agents) -> None:
        waiter = Waiter(self.around.clock, self.around.interrupt)
        label = run_name() if self.options.keep_logs else ""
        bench = Bench(self.lab, agents, waiter, self.progress, self.writer, label)
        schedule = fixed_sweep(self.experiments, self.options.seed)
        index = 0
        trial = next(schedule, None)
        while trial is not None:
            index += 1
            record = self.lasting.get(trial.name)
            if record is None:
                record = self._measured(Attempt(bench, trial, index, self.total))
            try:
                trial = schedule.send(judge(record))
            except StopIteration:
                trial = None

    def _measured(self, attempt: Attempt) -> TrialRecord:
        """Run one trial, and record and tell it; raises what must end the run."""
        end = run_trial(attempt)
        record = compared(end.record, self.stored)
        self.writer.write(record)
        self._tell_trial(record, attempt.index)
        if end.fatal is not None:
            raise end.fatal
        self.around.interrupt.check()
        return record

    def _restore(self, agents: Agents) -> None:
        """Restore every host, and note who was lost meanwhile or before."""
        names = ", ".join(remote.name for remote in agents.everyone)
        self.around.interrupt.doing = f"restoring {names}"
        try:
            self._tell("restore", f"restoring {names}")
        finally:  # Whoever draws the progress may fail, for one on a closed pipe.
            restored = restore(agents)
            self.restore_errors, self.lost = restored.failed, restored.lost
        for error in restored.failed:
            self._tell("restore", f"not restored: {error}")
        for loss in restored.lost:
            sure = f"to make sure: {restore_command(self.lab)}"
            self._tell("restore", f"{loss.host}: lost, so it restores by itself; {sure}")

    def _finish(self) -> None:
        """Write the run folder's last line; a folder that cannot be written keeps what it has."""
        error = described(self.error) if self.error is not None else None
        failed = tuple(described(one) for one in self.restore_errors)
        lost = tuple(described(one) for one in self.lost)
        try:
            self.writer.finish(Ending(now_utc(), self.status, error, failed, lost))
        except RecordError as record_error:
            self.error = self.error or record_error

    def _tell(self, event: Literal["run", "host", "restore"], text: str) -> None:
        self.progress(Progress(event=event, text=text))

    def _tell_of(self, host: str, text: str) -> None:
        self._tell("host", f"{host}: {text}")

    def _tell_trial(self, record: TrialRecord, index: int) -> None:
        why = f": {record.error['message']}" if record.error is not None else ""
        self.progress(
            Progress(
                event="trial",
                text=f"{record.trial.name}: {record.status}{why}",
                trial=record.trial,
                index=index,
                total=self.total,
                record=record,
            )
        )


def run_name() -> str:
    """Return what agents call this run: whoever finds a namespace held can find its controller."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}"

"""Entry point of control: ``run`` runs experiments in a lab and restores the hosts.

Owns what surrounds the trials: signals, agents, lease, record, restore. Derives no number; the
results that the schedule needs come from ``judge``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import Literal

from udpbench.analysis.comparison.comparisons import EXTRA_BLOCKS
from udpbench.analysis.judge import judge
from udpbench.analysis.result_tables import with_tables
from udpbench.control.agents import (
    Agents,
    RestoredLeftovers,
    refuse_lacking,
    refuse_left_behind,
    restore,
    restore_left_behind,
)
from udpbench.control.host_changes import compared, refuse_changed
from udpbench.control.lab_lock import Surroundings, Terms, take_lab
from udpbench.control.lost_hosts import CHECK_NS, check_again
from udpbench.control.schedule import (
    SearchProgress,
    Total,
    lasting,
    next_trial,
    stored_as,
    trial_order,
)
from udpbench.control.setting_findings import refuse_foreseen
from udpbench.control.trial import described, release_warm, run_trial
from udpbench.control.trial_state import Attempt, Bench
from udpbench.control.wait import Waiter
from udpbench.definition import lab_rules
from udpbench.errors import (
    INTERRUPTED,
    YES,
    AgentLost,
    HostError,
    Interrupted,
    RecordError,
    RestoreError,
    UdpbenchError,
    WorkerFailed,
    unforeseen,
    worst_code,
)
from udpbench.model.experiment import Experiment, planned_text
from udpbench.model.host import Facts
from udpbench.model.lab import Lab
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import SelfTest, TrialRecord
from udpbench.model.result import Progress, Result
from udpbench.records.run import Ending, now_utc
from udpbench.records.writer import RunWriter
from udpbench.units import format_duration


@dataclass(frozen=True)
class RunOptions:
    """The options of a run."""

    seed: int
    """Seed of the trial order; stored in the header."""
    lease_ns: int = 10 * SECOND_NS
    """An agent restores its host after this long without contact."""
    keep_logs: bool = False
    """Keep the files of ``receive.log`` on the hosts, renamed per trial."""
    terms: Terms = field(default_factory=partial(Terms, wait_ns=None))
    """What to do while other runs use a host."""
    proven: Callable[[Facts], SelfTest | None] = lambda _: None
    """Results of ``selftest`` by kernel, to be copied into each record."""


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
        """Return the most serious code of the run's error and its restore errors."""
        errors = (*self.restore_errors, self.error)
        codes = [error.exit_code for error in errors if error is not None]
        return worst_code([*codes, INTERRUPTED if self.interrupted else YES])


def run(
    experiments: Sequence[Experiment],
    lab: Lab,
    writer: RunWriter,
    progress: Callable[[Progress], None],
    options: RunOptions,
    surroundings: Surroundings | None = None,
    stored: Sequence[TrialRecord] = (),
    agents: Agents | None = None,
) -> Outcome:
    """Run and record every trial, restore the hosts, finish the run folder.

    ``stored`` are the records of this run's earlier sessions; only failed trials are run again.
    ``agents`` are those of a lab that was taken already; without them it is taken here.

    A trial's failure is in its record, a failure of the run in the Outcome. Nothing is raised
    except for a bug, and then the hosts are restored first.
    """
    around = surroundings or Surroundings()
    return _Run(experiments, lab, writer, progress, options, around, stored, agents).execute()


def restore_lab(
    lab: Lab,
    force: bool = False,
    surroundings: Surroundings | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> RestoredLeftovers:
    """Undo, and return, what dead runs left changed on a lab's machines.

    Keeps what another process has changed since, unless ``force``. Waits twice the default
    lease for hosts in use. Raises RestoreError naming what remains, ConnectError, HelloRefused,
    DeadlineExceeded.
    """
    around = surroundings or Surroundings()
    name, lease_ns = run_name(), RunOptions.lease_ns
    terms = Terms(wait_ns=2 * lease_ns)
    with take_lab([lab], name, lease_ns, around, terms, progress) as (_, agents):
        return restore_left_behind(agents, force)


class _Run:
    """One run in progress."""

    def __init__(
        self,
        experiments: Sequence[Experiment],
        lab: Lab,
        writer: RunWriter,
        progress: Callable[[Progress], None],
        options: RunOptions,
        around: Surroundings,
        stored: Sequence[TrialRecord],
        agents: Agents | None,
    ) -> None:
        self.agents = agents
        self.experiments = experiments
        self.lab = lab
        self.writer = writer
        self.progress = progress
        self.options = options
        self.around = around
        self.stored = stored
        self.lasting = lasting(stored, experiments)
        self.error: UdpbenchError | None = None
        self.restore_errors: tuple[RestoreError, ...] = ()
        self.lost: tuple[AgentLost, ...] = ()
        self.seen: tuple[str, ...] = ()
        """Hosts of lost agents that were then seen restored."""
        self.status: Literal["complete", "interrupted", "failed"] = "failed"
        self.started = {each.trial.receive.command for each in self.lasting.values()}
        """The programs that have run."""
        self.total = Total(experiments)
        self.searches = SearchProgress(experiments)

    def execute(self) -> Outcome:
        """Do everything from the signal handlers to the last line of the run folder."""
        with self.around.interrupt.caught():
            try:
                self._with_agents()
                self.status = "complete"
            except Interrupted:
                self.status = "interrupted"
            except UdpbenchError as error:
                self.error = error
            except Exception as error:
                if not self.restore_errors:
                    raise
                # A host that is not restored is graver, and is said in any case.
                if not isinstance(error, BrokenPipeError):
                    self.error = unforeseen(error)
            finally:
                self._finish()
        interrupted = self.status == "interrupted"
        return Outcome(self.writer.written, self.error, self.restore_errors, interrupted)

    def _with_agents(self) -> None:
        lab_rules.refuse_together(self.experiments, self.lab)
        name, lease_ns = run_name(), self.options.lease_ns
        before = f", {len(self.lasting)} already done" if self.stored else ""
        planned = planned_text(self.experiments, EXTRA_BLOCKS)
        self._tell("run", f"run {name}: {planned}{before}, lab {self.lab.name}")
        terms, labs = self.options.terms, [self.lab]
        with (
            take_lab(labs, name, lease_ns, self.around, terms, self.progress)
            if self.agents is None
            else nullcontext((self.lab, self.agents))
        ) as (_, agents):
            for client in agents.everyone:
                client.channel.notice = partial(self._tell_of, client.name)
                pid = client.channel.pid
                agent = "agent" if pid is None else f"agent {pid}"
                self._tell("host", f"{client.name}: {agent} is up")
            if self.lab.built_in and agents.lacking:
                lacking = "; ".join(agents.lacking)
                self._tell("run", f"the lab is degraded, run as root for the full lab: {lacking}")
            refuse_left_behind(agents, self.lab)
            points = [trial for experiment in self.experiments for trial in experiment.points]
            refuse_lacking(points, self.lab, agents)
            refuse_changed(agents, self.stored)
            try:
                refuse_foreseen(points, self.lab, agents)
                self._trials(agents)
            finally:
                self._restore(agents)
            if self.lost:  # last, so that an earlier error is raised instead
                raise self.lost[0]

    def _trials(self, agents: Agents) -> None:
        waiter = Waiter(self.around.clock, self.around.interrupt)
        label = run_name() if self.options.keep_logs else ""
        proven = self.options.proven
        bench = Bench(self.lab, agents, waiter, self.progress, self.writer, label, proven)
        try:
            self._run_trials(bench)
        finally:
            with suppress(HostError):  # the agents end them anyway
                release_warm(bench)

    def _run_trials(self, bench: Bench) -> None:
        schedule = trial_order(self.experiments, self.options.seed)
        index, result = 0, None
        while (trial := next_trial(schedule, result)) is not None:
            index += 1
            self.total.count(trial)
            record = stored_as(self.lasting, trial)
            if record is None:
                total = self.total.fewest, self.total.most
                result = self._measure(Attempt(bench, trial, index, *total))
            else:
                result = judge(record)
            progress = self.searches.add(result)
            if progress is not None:
                self.progress(progress)

    def _measure(self, attempt: Attempt) -> Result:
        """Run, record, judge and report one trial; raises an error that must end the run."""
        end = run_trial(attempt)
        record = compared(end.record, self.stored)
        self.writer.write(record)
        result = judge(record)
        self.writer.keep_result(record, with_tables(result, record))
        if attempt.trial.search is None and not result.valid:
            with suppress(HostError):  # the next trial, or restoring, finds what is wrong
                release_warm(attempt.bench)
        self._tell_trial(record, result, attempt.index)
        if end.fatal is not None:
            raise end.fatal
        self._refuse_again(record)
        self.around.interrupt.check()
        return result

    def _refuse_again(self, record: TrialRecord) -> None:
        """Raise WorkerFailed if a user's program could not be started, and never was in this run.

        Each further trial would start it in vain, and wait for it as long; unless others of the run
        have another receiver.
        """
        command, error = record.trial.receive.command, record.error
        if command is None or error is None or record.phases:
            self.started.add(command)
        elif error.kind == WorkerFailed.__name__ and command not in self.started:
            points = chain.from_iterable(each.points for each in self.experiments)
            if any(point.receive.command != command for point in points):
                return
            text = f"{error.message}; no further trial was run, as each would start it again"
            raise WorkerFailed(text, error.host)

    def _restore(self, agents: Agents) -> None:
        """Restore every host, and note the agents that were lost."""
        names = ", ".join(client.name for client in agents.everyone)
        self.around.interrupt.doing = f"restoring {names}"
        try:
            self._tell("restore", f"restoring {names}")
        finally:  # The progress display may fail, for example on a closed pipe.
            restored = restore(agents)
            self.restore_errors, self.lost = restored.failed, restored.lost
            if restored.lost:
                self._check_again(agents, restored.lost)
        for error in self.restore_errors:
            self._tell("restore", f"not restored: {error}")
        for name in self.seen:
            self._tell("restore", f"{name}: lost, and then seen restored")

    def _check_again(self, agents: Agents, lost: Sequence[AgentLost]) -> None:
        names = ", ".join(loss.host for loss in lost)
        lease_ns = self.options.lease_ns
        limit = format_duration(lease_ns + CHECK_NS)
        self.around.interrupt.doing = f"looking at {names}, lost, for at most {limit}"
        try:
            self._tell("restore", f"{names}: lost; looking again after the lease, within {limit}")
        finally:
            around = self.around
            look = check_again(agents, lost, self.lab, around.reach, around.clock, lease_ns)
            self.seen = look.restored
            self.restore_errors += look.failed

    def _finish(self) -> None:
        """Write the run folder's last line, if it can be written."""
        error = described(self.error) if self.error is not None else None
        failed = tuple(map(described, self.restore_errors))
        lost = tuple(map(described, self.lost))
        try:
            self.writer.finish(Ending(now_utc(), self.status, error, failed, lost, self.seen))
        except RecordError as record_error:
            self.error = self.error or record_error

    def _tell(self, event: Literal["run", "host", "restore"], text: str) -> None:
        self.progress(Progress(event=event, text=text))

    def _tell_of(self, host: str, text: str) -> None:
        self._tell("host", f"{host}: {text}")

    def _tell_trial(self, record: TrialRecord, result: Result, index: int) -> None:
        why = f": {record.error.message}" if record.error is not None else ""
        self.progress(
            Progress(
                event="trial",
                text=f"{record.trial.name}: {record.status}{why}",
                trial=record.trial,
                index=index,
                total=self.total.fewest,
                total_at_most=self.total.most,
                record=record,
                result=result,
            )
        )


def run_name() -> str:
    """Return the agents' name for this run, from which another run can find its controller."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}"

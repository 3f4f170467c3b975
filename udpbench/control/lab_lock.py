"""Taking a lab for one run, and waiting while another run uses one of its hosts.

Owns the wait: for which run, how long, and its messages. Each host's agent says which run uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field

from udpbench.control.agents import Agents, LabAgents, Reach, real
from udpbench.control.wait import Clock, Interrupt
from udpbench.errors import DeadlineExceeded, HelloRefused
from udpbench.model.lab import Lab
from udpbench.model.limits import SECOND_NS
from udpbench.model.result import Progress
from udpbench.protocol import Use
from udpbench.units import format_duration

POLL_NS = SECOND_NS
"""Between two attempts: each is a request to a host on which another run may be measuring."""


@dataclass(frozen=True)
class Surroundings:
    """What a run touches besides its folder; tests replace all of it."""

    reach: Reach = field(default_factory=real)
    clock: Clock = field(default_factory=Clock)
    interrupt: Interrupt = field(default_factory=Interrupt)


@dataclass(frozen=True)
class Terms:
    """How to take a lab that other runs may use."""

    use: Use = "alone"
    wait_ns: int | None = 0
    """Limit of the wait for other runs; None: no limit."""
    next_step: str = "let that run end first"
    """What a user may do after the limit."""
    looks: bool = False
    """By observers, which change nothing."""


@contextmanager
def take_lab(
    labs: Sequence[Lab],
    run: str,
    lease_ns: int,
    around: Surroundings,
    terms: Terms,
    tell: Callable[[Progress], None] = lambda _: None,
) -> Iterator[tuple[Lab, Agents]]:
    """Yield the first lab that no other run uses, with its agents; they end with the block.

    Raises HelloRefused or DeadlineExceeded, naming the runs that use the labs, Interrupted,
    ConnectError, SafetyError.
    """
    with ExitStack() as started:
        parties: list[LabAgents] = []
        wait = _Wait(around, terms, tell)
        while True:
            users: list[str] = []
            for number, lab in enumerate(labs):
                if number == len(parties):
                    parties.append(LabAgents(lab, run, lease_ns, around.reach, around.clock))
                    started.enter_context(closing(parties[-1]))
                    parties[-1].begin()
                held = parties[number].take(terms.use)
                if held is None:
                    for other in parties:
                        if other is not parties[number]:
                            other.close()
                    yield lab, parties[number].complete(terms.use, terms.looks)
                    return
                where = "this machine" if lab.built_in else held[0].name
                if held[1].lock == "namespace" and terms.use == "shared":
                    where = f"the network namespace of {where}, which is never shared"
                users.append(f"{held[1].held_by} no longer uses {where}")
            wait.pause(" or ".join(dict.fromkeys(users)))


class _Wait:
    """One run's wait for others."""

    def __init__(
        self, around: Surroundings, terms: Terms, tell: Callable[[Progress], None]
    ) -> None:
        self._around = around
        self._terms = terms
        self._tell = tell
        self._start_ns = around.clock.now_ns()
        self._shown_condition = ""

    def pause(self, condition: str) -> None:
        """Sleep for one interval, having printed the condition if it is new."""
        wait_ns = self._terms.wait_ns
        if wait_ns == 0:
            raise HelloRefused(f"not started until {condition}; {self._terms.next_step}")
        if wait_ns is not None and self._around.clock.now_ns() - self._start_ns >= wait_ns:
            raise DeadlineExceeded(
                f"timed out after {format_duration(wait_ns)} waiting until {condition}; "
                f"{self._terms.next_step}"
            )
        if condition != self._shown_condition:
            self._tell(Progress(event="wait", text=f"waiting until {condition}"))
            self._shown_condition = condition
        self._around.interrupt.check()
        self._around.clock.sleep_ns(POLL_NS)
        self._around.interrupt.check()

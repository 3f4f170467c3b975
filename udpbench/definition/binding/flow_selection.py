"""The flows to keep so that they load RX queues evenly, once the queue of each flow is known.

Pure; knows neither counters nor CPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from random import Random

from udpbench.definition.binding.cpu_placement import Unavailable
from udpbench.model.limits import QUEUES_EVEN_WITHIN
from udpbench.model.work import WorkerSpec
from udpbench.units import plural, show_percent

MAX_FLOWS = 64
"""Each flow is probed separately, which takes 0.1 s (benchmarks/overhead.py)."""
STEPS = 300
"""Limit of the search near all flows, a second or two, before every choice is considered."""
KICKS = 3
"""Random steps away from a choice that no single flow can improve."""
SOLVER_S = 20
"""Limit of the search over every choice; 64 flows of 8 workers on 8 queues can take 10 s."""

Queue = tuple[str, int]
"""A receiver, and the number of one of its RX queues."""
Choice = list[Counter[Queue]]
"""For each worker, the number of its flows by the queue on which they land."""


def keep(
    landing: Mapping[int, Queue], senders: Iterable[WorkerSpec], queues: int
) -> frozenset[int]:
    """Return the flows to keep so that ``queues`` RX queues of each receiver get the same load.

    ``landing`` is by flow number. All workers send the same amount, each over its flows in turn,
    and each keeps at least one. Raises Unavailable with the shares if no choice is even within
    ``QUEUES_EVEN_WITHIN``.
    """
    workers = [[flow.flow for flow in spec.flows if flow.flow in landing] for spec in senders]
    every = [Counter(landing[flow] for flow in flows) for flows in workers]
    chosen = (_nearby(every, queues) or _anywhere(every, queues)) if all(every) else []
    if not chosen:
        raise Unavailable(
            f"traffic.flows.queues: no choice of {plural(len(landing), 'flow')} of "
            f"{plural(len(workers), 'worker')} loads {plural(queues, 'RX queue')} evenly, "
            f"within {show_percent(QUEUES_EVEN_WITHIN)}: {_arrived(every)}; "
            "widen traffic.flows.from or to"
        )
    return frozenset(
        flow
        for flows, kept in zip(workers, chosen, strict=True)
        for queue, count in kept.items()
        for flow in [flow for flow in flows if landing[flow] == queue][:count]
    )


def loads(choice: Choice) -> dict[Queue, float]:
    """Return the load of each queue, where each worker contributes 1."""
    load: dict[Queue, float] = {}
    for kept in choice:
        for queue, count in kept.items():
            load[queue] = load.get(queue, 0) + count / kept.total()
    return load


def _arrived(choice: Choice) -> str:
    load, flows = loads(choice), sum(choice, Counter[Queue]())
    several = len({host for host, _ in flows}) > 1
    shares = [
        f"{flows[queue]} on queue {queue[1]}{f' of {queue[0]}' if several else ''} "
        f"({show_percent(load[queue] / sum(load.values()), '.1f')} of the load)"
        for queue in sorted(flows)
    ]
    return f"all of them are {', '.join(shares)}" if shares else "no flow arrived"


# --- near the choice of all flows ----------------------------------------------------------------


def _nearby(every: Choice, queues: int) -> Choice:
    """Return an even choice close to all flows of the fullest queues; empty if none is found.

    Flows are dropped or taken back one at a time, always the one that helps most.
    """
    used = _fullest(every, queues)
    most = [Counter({queue: own[queue] for queue in used if own[queue]}) for own in every]
    if not used or not all(most):
        return []
    unevenness = partial(_unevenness, used)
    choice, kicks = most, 0
    random = Random(0)  # noqa: S311 - the same flows give the same choice
    for _ in range(STEPS):
        if _is_even(choice, used):
            return choice
        near = list(_neighbours(choice, most)) or [choice]
        best = min(near, key=unevenness)
        if kicks == 0 and unevenness(best) >= unevenness(choice):
            kicks = KICKS
        choice = random.choice(near) if kicks else best
        kicks = max(kicks - 1, 0)
    return []


def _fullest(every: Choice, queues: int) -> list[Queue]:
    """Return the ``queues`` fullest queues of each host; empty if a host has fewer."""
    load = loads(every)
    ordered = sorted(load, key=lambda queue: (-load[queue], queue))
    hosts = {host for host, _ in load}
    fullest = [q for host in hosts for q in [q for q in ordered if q[0] == host][:queues]]
    return fullest if len(fullest) == queues * len(hosts) else []


def _neighbours(choice: Choice, most: Choice) -> Iterator[Choice]:
    """Yield each choice that has one flow more or one less."""
    for w, kept in enumerate(choice):
        for queue in most[w]:
            for change in (-1, 1):
                other = kept.copy()
                other[queue] += change
                if 0 <= other[queue] <= most[w][queue] and other.total():
                    yield [*choice[:w], other, *choice[w + 1 :]]


def _deviations(used: Sequence[Queue], choice: Choice) -> Iterator[float]:
    """Yield the relative deviation of each queue from its even share."""
    load = loads(choice)
    for host in {host for host, _ in used}:
        parts = [load.get(queue, 0) for queue in used if queue[0] == host]
        yield from (part * len(parts) / sum(parts) - 1 if sum(parts) else 1 for part in parts)


def _unevenness(used: Sequence[Queue], choice: Choice) -> float:
    return sum(deviation**2 for deviation in _deviations(used, choice))


def _is_even(choice: Choice, used: Sequence[Queue]) -> bool:
    return all(abs(deviation) <= QUEUES_EVEN_WITHIN for deviation in _deviations(used, choice))


# --- every choice --------------------------------------------------------------------------------


def _anywhere(every: Choice, queues: int) -> Choice:
    """Return any even choice, by an integer linear program; empty if there is none."""
    program = _Program()
    used = {place: program.column() for place in sorted(loads(every))}
    workers = [_Kept(program, own, used) for own in every]
    scale = 2 * len(every) * queues
    for host in {host for host, _ in used}:
        own = [place for place in used if place[0] == host]
        program.row(dict.fromkeys((used[place] for place in own), 1), queues, queues)
        load = {place: _joined(worker.shares.get(place, {}) for worker in workers) for place in own}
        whole = _joined(load.values())
        for place in own:
            program.row({**dict.fromkeys(load[place], 1), used[place]: -1}, 0, MAX_FLOWS)
            scaled = {column: queues * load[place].get(column, 0) for column in whole}
            over, under = (
                {column: scaled[column] - part * (1 + within) for column, part in whole.items()}
                for within in (QUEUES_EVEN_WITHIN, -QUEUES_EVEN_WITHIN)
            )
            program.row(over, -scale, 0)
            program.row({**under, used[place]: -scale}, -scale, scale)
    values = program.solved()
    choice = [worker.kept(values) for worker in workers] if values else []
    # The solver's numbers are only close to integers, so check the rounded choice.
    return choice if choice and _is_even(choice, list(loads(choice))) else []


def _joined(parts: Iterable[Mapping[int, float]]) -> dict[int, float]:
    return {column: part for terms in parts for column, part in terms.items()}


class _Kept:
    """One worker's part of the program: how many flows it keeps, and how many on each queue.

    Shares are fractions of the number of kept flows, so each possible number has its own variables,
    and one variable that says whether that number is chosen.
    """

    def __init__(self, program: _Program, own: Counter[Queue], used: Mapping[Queue, int]) -> None:
        self.shares: dict[Queue, dict[int, float]] = {place: {} for place in own}
        sizes = {program.column(): size for size in range(1, own.total() + 1)}
        program.row(dict.fromkeys(sizes, 1), 1, 1)
        for is_size, size in sizes.items():
            kept = {place: program.column(most) for place, most in own.items()}
            program.row({**dict.fromkeys(kept.values(), 1), is_size: -size}, 0, 0)
            for place, column in kept.items():
                program.row({column: 1, is_size: -own[place]}, -MAX_FLOWS, 0)
                self.shares[place][column] = 1 / size
        for place, share in self.shares.items():
            program.row({**dict.fromkeys(share, 1), used[place]: -own[place]}, -MAX_FLOWS, 0)

    def kept(self, values: Sequence[float]) -> Counter[Queue]:
        """Return queue → number of flows to keep, for queues that have any."""
        return +Counter(
            {
                place: sum(round(values[column]) for column in share)
                for place, share in self.shares.items()
            }
        )


class _Program:
    """An integer linear program, built row by row; all variables are integers from 0."""

    def __init__(self) -> None:
        self.most: list[float] = []
        self.rows: list[tuple[Mapping[int, float], float, float]] = []

    def column(self, most: float = 1) -> int:
        """Add a variable and return its number."""
        self.most.append(most)
        return len(self.most) - 1

    def row(self, terms: Mapping[int, float], low: float, high: float) -> None:
        """Require that the sum of variables × factors lies between two numbers."""
        self.rows.append((terms, low, high))

    def solved(self) -> list[float]:
        """Return the value of each variable; empty if there is no solution."""
        # Imported here because it takes a second and few trials need it.
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import lil_array

        factors = lil_array((len(self.rows), len(self.most)))
        for i, (terms, _, _) in enumerate(self.rows):
            for column, factor in terms.items():
                factors[i, column] = factor
        lows, highs = [low for _, low, _ in self.rows], [high for *_, high in self.rows]
        solution = milp(
            [0] * len(self.most),
            integrality=[1] * len(self.most),
            bounds=Bounds(0, self.most),
            constraints=LinearConstraint(factors.tocsr(), lows, highs),
            options={"time_limit": SOLVER_S},
        )
        return [] if solution.x is None else list(solution.x)

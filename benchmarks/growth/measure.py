"""How cost grows: doubles one thing at a time, and fits the slope of its cost on a log–log scale.

A slope of 1 is cost in proportion to the thing, 0 is no cost at all, 2 is what nobody waits for.
Costs are CPU time, which other programs lengthen least, the peak of resident memory, or of trials
what they take beyond their phases. What a program takes to start makes a slope flatter, so that
only the larger numbers count: each is fitted over the last three doublings.
``measure.py [THING...]`` prints the table and leaves with 1 where a bar is missed. Needs root; a
quiet machine makes it shorter, not different.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from overhead import measure as run_in_lab
from overhead import requested_ns
from report import measured, multiplied
from slope import doubled, slope

from udpbench.agent.counters.snapshot import snapshot
from udpbench.agent.host.facts import facts
from udpbench.agent.host.namespace import enter_own
from udpbench.agent.host.processes import Processes
from udpbench.agent.host.system import Host
from udpbench.agent.watch import Looks
from udpbench.analysis.judge import judge
from udpbench.definition.binding.bind import bind
from udpbench.definition.load import load_experiment_data, load_lab
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import TrialRecord
from udpbench.parent_death import end_with_parent
from udpbench.records.run import Run

INHERENT, NONE = 1.1, 0.1
"""Bars: in proportion, with what is measured wrongly; and not at all."""
TIMES = 3
"""The least of them counts."""
LEAST_S = 0.3
"""CPU time of all turns together, at least."""
ROUNDS = 2
"""A heap that has just held thousands of sockets takes longer for whatever is first."""
FITTED = 4
"""Numbers over which the slope is fitted."""
HOST = "sender"
LINK = "grown0"
SOCKETS_EACH = 8192
"""For a process, whose limit of descriptors may be fixed."""
WATCHED_FOR, WATCHED_TIMES = "2s", 2


class Growth(NamedTuple):
    """A thing that is doubled, what it costs, and how that may grow."""

    thing: str
    cost: str
    numbers: tuple[int, ...]
    bar: float
    measure: Callable[[int], float]
    """Number → seconds of CPU, or bytes."""


# --- commands ------------------------------------------------------------------------------------


class Used(NamedTuple):
    """What a command and all that it started took."""

    cpu_s: float
    peak_bytes: int


def used(*words: str) -> Used:
    """Return what a command took."""
    command = [sys.executable, "-m", "udpbench", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, taken = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1, 5):
        raise SystemExit(f"growth: {' '.join(words)} ended with {process.returncode}")
    return Used(taken.ru_utime + taken.ru_stime, taken.ru_maxrss * 1024)


@cache
def folder() -> Path:
    """Return a folder for everything that is written."""
    return Path(tempfile.mkdtemp(prefix="udpbench-growth-"))


@cache
def planned(points: int) -> Used:
    """Return what a plan of so many points takes, each with a setting of its own."""
    file = folder() / f"{points}.yaml"
    values = [200_000 + 64 * n for n in range(points)]
    sweep = {"settings.receiver.sysctl.net/ipv4/udp_rmem_min": values}
    file.write_text(json.dumps({"question": "How long?", "repetitions": 1, "sweep": sweep}))
    return used("plan", str(file))


@cache
def at_ends(part: str, number: int) -> Used:
    """Return what a plan takes in a lab of so many senders, or receivers, beside one other."""
    numbers = {"sender": 1, "receiver": 1, part: number}
    lab = {
        name: [
            {
                "name": f"{name}{n}",
                "connect": "namespace",
                "interface": "port0",
                "addresses": [f"192.168.254.{first + n}/24"],
            }
            for n in range(numbers[name])
        ]
        for name, first in (("sender", 1), ("receiver", 101))
    }
    file, lab_file = folder() / "alone.yaml", folder() / f"{part}-{number}.yaml"
    file.write_text(json.dumps({"question": "How long?"}))
    lab_file.write_text(json.dumps(lab))
    return used("plan", str(file), "--lab", str(lab_file))


@cache
def a_run() -> Run:
    """Return a short run in the built-in lab."""
    return measured(folder() / "run", "500ms")


@cache
def stored(points: int, repetitions: int) -> Path:
    """Return a stored run of so many trials."""
    place = folder() / f"run-{points}-{repetitions}"
    multiplied(a_run(), place, points, repetitions)
    return place


@cache
def used_on(run: Path, *words: str) -> Used:
    """Return what a command on a run takes: the least of several turns."""
    return min(used(words[0], str(run), *words[1:]) for _ in range(TIMES))


def of_trials(*words: str) -> Callable[[int], Used]:
    """Return what measures a command on a run of so many trials, seven at each point."""
    return lambda trials: used_on(stored(trials // 7, 7), *words)


def of_repetitions(*words: str) -> Callable[[int], Used]:
    """Return what measures a command on a run of so many trials of one point."""
    return lambda repetitions: used_on(stored(1, repetitions), *words)


def growths_of(
    thing: str, numbers: tuple[int, ...], command: str, measure: Callable[[int], Used]
) -> tuple[Growth, Growth]:
    """Return how CPU time and memory of a command grow."""
    return (
        Growth(thing, command, numbers, INHERENT, lambda n: measure(n).cpu_s),
        Growth(thing, f"memory of {command}", numbers, INHERENT, lambda n: measure(n).peak_bytes),
    )


@cache
def planned_again(repetitions: int) -> Used:
    """Return what a plan of one point with so many repetitions takes."""
    file = folder() / f"again-{repetitions}.yaml"
    file.write_text(json.dumps({"question": "How long?", "repetitions": repetitions}))
    return used("plan", str(file))


# --- pure code -----------------------------------------------------------------------------------


def least_s(work: Callable[[], object], times: int = TIMES) -> float:
    """Return the least CPU time of several turns, of many where they are short."""
    taken: list[float] = []
    while len(taken) < times or sum(taken) < LEAST_S:
        begun = time.process_time()
        work()
        taken.append(time.process_time() - begun)
    return min(taken)


def record_of_workers(record: TrialRecord, workers: int) -> TrialRecord:
    """Return a record in which each worker was there so many times."""
    names = {spec.name: [f"{spec.name[:-1]}{n}" for n in range(workers)] for spec in record.workers}
    phases = [
        replace(
            phase,
            stats=tuple(
                replace(each, worker=name) for each in phase.stats for name in names[each.worker]
            ),
        )
        for phase in record.phases
    ]
    specs = tuple(replace(spec, index=n) for spec in record.workers for n in range(workers))
    return replace(record, workers=specs, phases=tuple(phases))


def judged(workers: int) -> float:
    """Return the CPU time of judging a trial of so many workers at each end."""
    record = record_of_workers(a_run().records[0], workers)
    return least_s(lambda: judge(record))


def bound(flows: int) -> float:
    """Return the CPU time of binding a trial of so many flows."""
    ports = f"{65536 - flows}-65535"
    data = {"question": "How long?", "traffic": {"flows": {"from": ports}}}
    (trial,) = load_experiment_data(data, "flows").points
    lab, known = load_lab("local"), a_run().records[0].facts
    return least_s(lambda: bind(trial, lab, known))


def bound_on_cpus(cpus: int) -> float:
    """Return the CPU time of binding a trial of as many workers as the hosts have CPUs."""
    numbers = tuple(range(cpus))
    known = {
        name: replace(
            own,
            cpus=numbers,
            siblings={str(n): (n & ~1, n | 1) for n in numbers},
            numa_nodes={"0": numbers[: cpus // 2], "1": numbers[cpus // 2 :]},
            rx_queues=cpus,
            queue_cpus={str(n): (n,) for n in numbers},
        )
        for name, own in a_run().records[0].facts.items()
    }
    data = {"question": "How long?", "receive": {"workers": cpus // 2}}
    (trial,) = load_experiment_data(data, "cpus").points
    lab = load_lab("local")
    return least_s(lambda: bind(trial, lab, known))


# --- hosts ---------------------------------------------------------------------------------------


@cache
def costs_on(prepare: Callable[[int], object], number: int) -> dict[str, float]:
    """Return each work's cost on a host with so many of a thing, in its own namespace.

    And the most resident memory of a process that does all of an agent's.
    """
    return _in_process(partial(_costs, prepare, number))


def _costs(prepare: Callable[[int], object], number: int) -> dict[str, float]:
    host = Host()
    enter_own(host)
    _add_pair(host)
    prepare(number)
    of_agent = _in_process(partial(_agents_costs, host))
    watch = min(used("watch", "--for", WATCHED_FOR) for _ in range(WATCHED_TIMES))
    return {**of_agent, WATCHED: watch.cpu_s, WATCHED_MEMORY: watch.peak_bytes}


def _agents_costs(host: Host) -> dict[str, float]:
    works = {name: prepare(host) for name, prepare in WORKS.items()}
    rounds = [{name: least_s(work) for name, work in works.items()} for _ in range(ROUNDS)]
    costs = {name: min(each[name] for each in rounds) for name in works}
    return {**costs, AGENTS_MEMORY: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def _in_process(work: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Return what a process of its own returns."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            end_with_parent(signal.SIGKILL)
            os.write(writing, json.dumps(work()).encode())
        except (Exception, SystemExit):  # noqa: BLE001 - of the process
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    if not text:
        raise SystemExit("growth: a host could not be made, or read")
    costs: dict[str, float] = json.loads(text)
    return costs


def on_host(
    thing: str,
    numbers: tuple[int, ...],
    prepare: Callable[[int], object],
    inherent: Sequence[str],
) -> tuple[Growth, ...]:
    """Return how everything that is done on a host grows with a thing; what is not listed, not."""
    return tuple(
        Growth(
            thing,
            cost,
            numbers,
            INHERENT if cost in inherent else NONE,
            lambda number, cost=cost: costs_on(prepare, number)[cost],
        )
        for cost in (*WORKS, WATCHED, WATCHED_MEMORY, AGENTS_MEMORY)
        if cost != EDGES or cost in inherent  # those of a machine come and go
    )


def _add_pair(host: Host) -> None:
    host.rtnl("link", "add", kind="veth", ifname=LINK, peer={"ifname": "far0"})


def open_sockets(number: int) -> None:
    """Open so many UDP sockets, each at a port and an address of loopback."""
    subprocess.run(("ip", "link", "set", "lo", "up"), check=True)

    def opened(first: int) -> list[socket.socket]:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        kept = []
        for n in range(first, min(first + SOCKETS_EACH, number)):
            kept.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            kept[-1].bind((f"127.0.{n // 16384}.1", 20000 + n % 16384))
        return kept

    for first in range(0, number, SOCKETS_EACH):
        start_process(partial(opened, first))


def add_pairs(number: int) -> None:
    """Make so many interfaces that are up, two at a time."""
    lines = "".join(
        f"link add v{n} up type veth peer name w{n}\nlink set w{n} up\n" for n in range(number // 2)
    )
    subprocess.run(("ip", "-batch", "-"), input=lines, text=True, check=True)


def add_rules(number: int) -> None:
    """Make so many firewall rules."""
    rules = "".join(f"add rule ip t c udp dport {n % 60000 + 1} accept\n" for n in range(number))
    text = f"add table ip t\nadd chain ip t c {{ type filter hook input priority 0; }}\n{rules}"
    subprocess.run(("nft", "-f", "-"), input=text, text=True, check=True)


def start_processes(number: int) -> None:
    """Start so many processes; they end with this one."""
    program = folder() / "crowd"
    source = Path(__file__).with_name("crowd.c")
    command = ("gcc", "-O2", "-Wall", "-Wextra", "-Werror", str(source), "-o", str(program))
    subprocess.run(command, check=True)
    crowd = subprocess.Popen((str(program), str(number)), stdout=subprocess.PIPE)
    assert crowd.stdout is not None
    if crowd.stdout.read(1) != b".":
        raise OSError(f"only some of {number} processes could be started")


def start_process(prepare: Callable[[], object]) -> None:
    """Start a process, and wait until it has prepared something; it ends with this one."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        end_with_parent(signal.SIGKILL)
        kept = [prepare()]
        os.close(writing)
        while kept:
            signal.pause()
    os.close(writing)
    os.read(reading, 1)
    os.close(reading)


def taken(host: Host) -> Callable[[], object]:
    """Return what takes a snapshot of a host with a socket of the agent's own."""
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.bind(("127.0.0.1", 0))
    inodes = (os.fstat(own.fileno()).st_ino,)
    kept = [own]  # until the last snapshot
    return lambda: kept and snapshot(host, HOST, LINK, ("namespace", "machine"), inodes, dict)


def asked(host: Host) -> Callable[[], object]:
    """Return what reads the facts."""
    return lambda: facts(host, HOST, LINK, {})


def looked(host: Host) -> Callable[[], object]:
    """Return a further look of ``watch``."""
    looks = Looks(host, HOST)
    looks.look(None, None, False)
    return lambda: looks.look(None, None, False)


def scanned(host: Host) -> Callable[[], object]:
    """Return what reads every process at both edges of a phase."""
    processes = Processes(host, all_of_machine=True)

    def scan() -> None:
        processes.begin({})
        processes.end({})

    return scan


EDGES = "edges of a phase"
WORKS = {
    "a snapshot": taken,
    "facts": asked,
    "a look": looked,
    EDGES: scanned,
}
"""What an agent does, by its name."""
WATCHED, WATCHED_MEMORY, AGENTS_MEMORY = "watch", "memory of watch", "memory of an agent"


# --- trials --------------------------------------------------------------------------------------


def overhead_s(definition: dict[str, Any]) -> list[float]:
    """Return what each trial of a run cost beyond its phases."""
    data = {
        "question": "What does it cost?",
        "traffic": {"rate": "10kpps"},
        "duration": "200ms",
        "warmup": "0s",
        "repetitions": 3,
        **definition,
    }
    name = f"overhead-{abs(hash(json.dumps(data)))}"
    records = run_in_lab(folder() / name, data, "growth")
    return [
        sum(time_ns - requested_ns(record, step) for step, time_ns in record.overhead_ns.items())
        / SECOND_NS
        for record in records
    ]


def with_workers(number: int) -> float:
    """Return what a trial of so many receiving workers costs."""
    return min(overhead_s({"receive": {"workers": number, "cpus": "any"}}))


def with_flows(number: int) -> float:
    """Return what a trial of so many flows costs."""
    ports = f"10000-{10000 + number - 1}"
    return min(overhead_s({"traffic": {"rate": "10kpps", "flows": {"from": ports}}}))


@cache
def repeated() -> list[float]:
    """Return what each of many trials cost."""
    return overhead_s({"repetitions": 64})


def after_others(number: int) -> float:
    """Return what a trial costs after so many others: the least of five."""
    return min(repeated()[number - 5 : number])


TRIALS, REPETITIONS = doubled(112, 896), doubled(64, 512)
GROWTHS = (
    Growth("points", "plan", doubled(128, 1024), INHERENT, lambda n: planned(n).cpu_s),
    Growth("points", "memory of plan", doubled(128, 1024), 0.5, lambda n: planned(n).peak_bytes),
    Growth("senders", "plan", (5, 10, 20), INHERENT, lambda n: at_ends("sender", n).cpu_s),
    Growth("receivers", "plan", (5, 10, 20), INHERENT, lambda n: at_ends("receiver", n).cpu_s),
    *growths_of("trials", TRIALS, "show", of_trials("show")),
    *growths_of("trials", TRIALS, "show --json", of_trials("show", "--json")),
    *growths_of("trials", TRIALS, "report, HTML", of_trials("report", "--format", "html")),
    *growths_of("trials", TRIALS, "report, PDF", of_trials("report", "--format", "pdf")),
    *growths_of("trials", TRIALS, "report, CSV", of_trials("report", "--format", "csv")),
    Growth("repetitions", "plan", REPETITIONS, NONE, lambda n: planned_again(n).cpu_s),
    *growths_of("repetitions", REPETITIONS, "show", of_repetitions("show")),
    *growths_of(
        "repetitions", REPETITIONS, "report, HTML", of_repetitions("report", "--format", "html")
    ),
    Growth("repetitions", "a further trial", (8, 16, 32, 64), NONE, after_others),
    Growth("workers", "judging", doubled(128, 1024), INHERENT, judged),
    Growth("workers", "a trial", doubled(128, 1024), INHERENT, with_workers),
    Growth("flows", "binding", doubled(4032, 64512), INHERENT, bound),
    Growth("flows", "a trial", doubled(512, 4096), INHERENT, with_flows),
    Growth("CPUs and queues", "binding", doubled(32, 256), INHERENT, bound_on_cpus),
    *on_host(
        "sockets",
        doubled(12_500, 100_000),
        open_sockets,
        ("a look", WATCHED, WATCHED_MEMORY, AGENTS_MEMORY),
    ),
    *on_host(
        "interfaces",
        doubled(625, 5000),
        add_pairs,
        ("a snapshot", "facts", "a look", WATCHED),  # the kernel dumps the qdiscs of all
    ),
    *on_host("rules", doubled(1250, 10_000), add_rules, ("facts",)),
    *on_host(
        "processes",
        doubled(2500, 20_000),
        start_processes,
        ("facts", "a look", EDGES, WATCHED, AGENTS_MEMORY),
    ),
)


def shown(cost: float) -> str:
    """Return a cost: memory in MiB, time in ms."""
    return f"{cost / 2**20:.0f} MiB" if cost > 2**20 else f"{cost * 1e3:.1f} ms"


def main(things: Sequence[str]) -> None:
    """Print the table, and leave with 1 where a bar is missed."""
    chosen = [growth for growth in GROWTHS if not things or growth.thing in things]
    if not chosen:
        names = dict.fromkeys(growth.thing for growth in GROWTHS)
        raise SystemExit(f"growth: {', '.join(things)}: unknown; choose of {', '.join(names)}")
    missed = 0
    print("| thing | from–to | cost | first | last | slope | bar | met |")
    print("|---|---|---|---|---|---|---|---|")
    for growth in chosen:
        costs = [growth.measure(number) for number in growth.numbers]
        fitted = slope(growth.numbers[-FITTED:], costs[-FITTED:])
        met = fitted <= growth.bar
        missed += not met
        first, last = growth.numbers[0], growth.numbers[-1]
        print(
            f"| {growth.thing} | {first}–{last} | {growth.cost} | {shown(costs[0])} | "
            f"{shown(costs[-1])} | {fitted:.2f} | ≤ {growth.bar} | {'yes' if met else '**no**'} |",
            flush=True,
        )
    if missed:
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Runs one udpbench trial and meddles with it from outside.

Owns the judged run and where its processes are; only ``actions.py`` says what is done to them. Never
imports udpbench: the referee sees what a user sees.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

UDPBENCH = Path(sys.executable).with_name("udpbench")
WITH_PHASES = Path(__file__).parents[1] / "fixtures/with_phases.py"
TICKS = os.sysconf("SC_CLK_TCK")
INTERFACES = {"sender": "send0", "receiver": "receive0"}
"""In the lab ``local``."""
WORKERS = b"udpbench.agent.workers.process"
POLL_S = 0.01
"""A look costs 0.1 ms: 1 % of a CPU."""
FLOWING_PACKETS = 3
"""More than ARP and neighbour discovery send at the start of the measured phase."""
DEADLINE_S = 60.0
WAITING_S = 900.0
"""For a run to begin: another run may have to be waited for."""
REFUSED = 2
"""udpbench's exit code for a definition that it does not accept."""

Action = Callable[["Site"], AbstractContextManager[None]]


@dataclass(frozen=True)
class Step:
    """When something is done, and for how long."""

    action: Action
    at_s: float | None = 0.0
    """After traffic flows in the measured phase; None: once the path check is over.

    That is before the warm-up, if there is one.
    """
    for_s: float | None = None
    """None: until the run has ended."""


@dataclass(frozen=True)
class Plan:
    """An experiment, and what is done to it from outside."""

    data: Mapping[str, Any]
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Site:
    """The processes of a run."""

    agents: Mapping[str, int]
    """Role → PID, in whose network namespace that role's host is."""
    program: Path
    """What ``program.c`` became."""

    def within(self, role: str, *words: str) -> tuple[str, ...]:
        """Return a command that runs in a host's network namespace."""
        return ("nsenter", "-t", str(self.agents[role]), "-n", *words)

    def do(self, role: str, text: str) -> None:
        """Run a line of shell in a host's network namespace."""
        # By stdin: thousands of rules are longer than an argument may be.
        words = self.within(role, "sh", "-s")
        done = subprocess.run(words, input=text, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{role}: {text[:200]}: {done.stderr.strip()[:300]}")

    def workers(self, role: str) -> list[int]:
        """Return the processes that move packets: udpbench's, or the user's program."""
        tree = list(descendants(self.agents[role]))
        ours = [pid for pid in tree if WORKERS in command_line(pid)]
        theirs = [pid for pid in tree if str(self.program).encode() in command_line(pid)]
        return theirs if role == "receiver" and theirs else ours


def command_line(pid: int) -> bytes:
    """Return a process's arguments; empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes below one, parents first."""
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        try:
            children = [int(text) for text in (task / "children").read_text().split()]
        except OSError:
            continue
        for child in children:
            yield child
            yield from descendants(child)


def sent_frames(pid: int) -> int:
    """Return how many frames the sender's interface sent, as seen in a process's namespace."""
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == INTERFACES["sender"]:
            return int(numbers.split()[9]) + int(numbers.split()[11])
    return 0


def hosts(pid: int) -> dict[str, int]:
    """Return role → PID of a process in that host's namespace, as far as they are there."""
    places: dict[str, int] = {}
    for child in descendants(pid):
        try:
            devices = Path(f"/proc/{child}/net/dev").read_text()
        except OSError:
            continue
        for role, interface in INTERFACES.items():
            if f"{interface}:" in devices:
                places.setdefault(role, child)
    return places


def user_seconds(pid: int) -> float:
    """Return the CPU time in user mode of a process and its ended children; 0 once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[13])) / TICKS


@dataclass(frozen=True)
class Clock:
    """What all programs, and those of the referee, have used of the CPUs in user mode by now."""

    time_s: float
    everybody_s: float
    ours_s: float

    @classmethod
    def read(cls, run: int | None = None) -> Clock:
        """Read it; a run that has not ended counts with all its processes.

        Kernel threads, such as the one that polls the lab's queue, have no user mode.
        """
        user, nice = Path("/proc/stat").read_text().split(maxsplit=3)[1:3]
        kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        ours_s = sum(resource.getrusage(kind).ru_utime for kind in kinds)
        tree = () if run is None else (run, *descendants(run))
        ours_s += sum(user_seconds(pid) for pid in tree)
        return cls(time.monotonic(), (int(user) + int(nice)) / TICKS, ours_s)

    def others_share(self, end: Clock) -> float:
        """Return the CPU time that others used until then, as a share of all CPUs."""
        others_s = (end.everybody_s - self.everybody_s) - (end.ours_s - self.ours_s)
        return others_s / (end.time_s - self.time_s) / (os.cpu_count() or 1)


class Ended(Exception):
    """The run ended before what was awaited."""


def wait_for(
    what: str,
    run: subprocess.Popen[bytes],
    condition: Callable[[], bool],
    limit_s: float = DEADLINE_S,
) -> None:
    """Wait until a condition holds while the run goes on."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if run.poll() is not None:
            raise Ended(what)
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {limit_s:g} s: {what}")
        time.sleep(POLL_S)


@contextmanager
def running(words: Sequence[str], output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run udpbench; if the referee is interrupted, let it restore what it changed."""
    with output.open("wb") as file:
        run = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, cwd=output.parent)
        try:
            yield run
        finally:
            if run.poll() is None:
                run.terminate()
                try:
                    run.wait(timeout=30)
                except subprocess.TimeoutExpired:
                    run.kill()
                    run.wait()


def meddle(plan: Plan, run: subprocess.Popen[bytes], output: Path, program: Path) -> dict[str, Any]:
    """Do a plan's steps while the run goes on; return whether all were done, and how disturbed.

    Every step is undone here, whatever happens; what is left of a namespace ends with it.
    """

    def past(word: str) -> bool:
        return f"#1 {word}" in output.read_text(errors="replace")

    start_clock: Clock | None = None
    done = not plan.steps
    with ExitStack() as rest_of_run:
        try:
            wait_for("path check", run, lambda: past("path"), WAITING_S)
            start_clock = Clock.read(run.pid)
            wait_for("hosts", run, lambda: len(hosts(run.pid)) == len(INTERFACES))
            site = Site(hosts(run.pid), program)
            wait_for("end of path check", run, lambda: past("warmup") or past("measured"))
            steps = [(step, rest_of_run.enter_context(ExitStack())) for step in plan.steps]
            for step, own in steps:
                if step.at_s is None:
                    own.enter_context(step.action(site))
            wait_for("measured phase", run, lambda: past("measured"))
            flows = sent_frames(site.agents["sender"]) + FLOWING_PACKETS
            wait_for("traffic", run, lambda: sent_frames(site.agents["sender"]) >= flows)
            follow(steps, site, run, time.monotonic())
            done = True
        except Ended:
            pass
        run.wait(timeout=DEADLINE_S)
    # Hogs are among ours once they have been waited for.
    others = None if start_clock is None else round(start_clock.others_share(Clock.read()), 3)
    return {"planted": done, "others_share": others}


def follow(
    steps: Sequence[tuple[Step, ExitStack]],
    site: Site,
    run: subprocess.Popen[bytes],
    start_s: float,
) -> None:
    """Do and undo steps, each in its own context, at their times after the start."""
    events: list[tuple[float, int, Callable[[], None]]] = []
    for index, (step, own) in enumerate(steps):

        def begin(step: Step = step, own: ExitStack = own) -> None:
            own.enter_context(step.action(site))

        if step.at_s is not None:
            events.append((start_s + step.at_s, index, begin))
        if step.for_s is not None:
            events.append((start_s + (step.at_s or 0.0) + step.for_s, index, own.close))
    for due_s, _, event in sorted(events, key=lambda event: event[:2]):
        # The length of a plant is its size, so here the clock itself is the condition.
        wait_for("a step", run, lambda due_s=due_s: time.monotonic() >= due_s)  # type: ignore[misc]
        event()


def answer(plan: Plan, folder: Path, program: Path, sets: Sequence[str] = ()) -> dict[str, Any]:
    """Run a plan once and return what udpbench says of it, as plain data for a JSON line.

    ``code`` is that of ``run``; ``planted`` says whether every step was done.
    """
    folder.mkdir(parents=True)
    definition, output, stored = folder / "case.yaml", folder / "output", folder / "run"
    text = yaml.safe_dump(dict(plan.data), sort_keys=False).replace("PROGRAM", str(program))
    definition.write_text(text)
    changes = [word for text in sets for word in ("--set", text)]
    words = [sys.executable, str(WITH_PHASES), "run", str(definition), "--out", str(stored)]
    words += ["--no-report", *changes]
    start_s = time.monotonic()
    with running(words, output) as run:
        done: dict[str, Any]
        try:
            done = meddle(plan, run, output, program)
        except (OSError, IndexError, RuntimeError, subprocess.SubprocessError) as error:
            # What the plant needs is missing here, or nothing came of it: no case, but no end.
            done = {"planted": False, "error": repr(error)}
    answered = {"code": run.returncode, **done, "output": output.read_text()[-2000:]}
    if not stored.exists():
        return {**answered, "took_s": round(time.monotonic() - start_s, 1)}
    shown = subprocess.run([UDPBENCH, "show", stored, "--json"], capture_output=True, text=True)
    answered["took_s"] = round(time.monotonic() - start_s, 1)
    try:
        (trial,) = json.loads(shown.stdout)["trials"]
    except (ValueError, KeyError) as error:
        return {"error": f"{error!r}: {shown.stderr[-500:]}", **answered}
    return {**answered, **gist(trial)}


KEPT = ("name", "certainty", "stage", "packets", "share", "remedy", "sets", "sentence")


def gist(trial: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the referee needs of a trial in ``show --json``."""
    intended, received = trial["intended_packets"], trial["received_packets"]
    known = intended and received is not None
    return {
        "status": trial["status"],
        "valid": trial["valid"],
        "reason": trial["reason"],
        "invalid": [item["what"] for item in trial["findings"] if item["severity"] == "invalid"],
        "intended": intended,
        "sent": trial["sent_packets"],
        "received": received,
        "loss": (intended - received) / intended if known else None,
        "ledger": {
            entry["stage"]: entry["packets"] for entry in trial["ledger"] or () if entry["packets"]
        },
        "unaccounted": trial.get("unaccounted"),
        "answers": [
            {key: entry[key] for key in KEPT if key in entry} for entry in trial["diagnosis"] or ()
        ],
    }


def build(folder: Path) -> Path:
    """Build the user's program where any user may run it; return its path."""
    folder.chmod(0o755)
    built = folder / "program"
    source = Path(__file__).with_name("program.c")
    subprocess.run(["gcc", "-O1", "-o", str(built), str(source), "-lpthread"], check=True)
    built.chmod(0o755)
    return built

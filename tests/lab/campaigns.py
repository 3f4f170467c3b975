"""Campaigns over real Dask workers, whose processes are killed; and what the engine adds.

``campaigns.py [PART]... [--times N] [--out FOLDER]``, as root. The parts, all of them if none is named:

``local``     eight built-in labs without a scheduler, interrupted once by Ctrl-C
``deaths``    the same over two workers: each is killed once, then the scheduler, then the controller
``overhead``  N times eight cells, one after the other by ``udpbench run``, and at the same time by a
              campaign with one worker: it takes at most 15 % longer (N is 25: 200 cells)

The first two check that no cell is missing, none stands twice, and every host is restored; they
judge no rate. Prints a line for each step and part. Exits 1 if a part does not hold.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import product
from pathlib import Path

from own_namespaces import own_namespaces
from test_reading_only import state
from waiting import wait_until

from udpbench.campaign.open_ports import scheduler_command, worker_command
from udpbench.records.reader import read_run
from udpbench.records.run import RUN_FILE

PAIRS = [f"rack{number}" for number in range(1, 9)]
LIMIT_S = 1800.0
"""For what depends on how busy the machine is."""
ALLOWED = 1.15
CELL = """\
question: {question}
traffic: {{size: 32B, count: 200, rate: 2kpps}}
duration: 10s
warmup: 0s
repetitions: {repetitions}
"""
ANSWERED = (0, 1, 5)
UDPBENCH = (sys.executable, "-m", "udpbench")
DASK = f"{sys.executable} -m dask"


def write_files(folder: Path, experiments: int, repetitions: int) -> None:
    """Write experiments, and a lab file for each pair."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "racks").mkdir(parents=True)
    shipped = Path(__file__).parents[2] / "experiments" / "labs" / "local.yaml"
    for pair in PAIRS:
        shutil.copy(shipped, folder / "racks" / f"{pair}.yaml")
    for number in range(1, experiments + 1):
        text = CELL.format(question=f"Number {number}?", repetitions=repetitions)
        (folder / f"cell{number}.yaml").write_text(text)


def start(folder: Path, log: str, *words: str) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own."""
    with (folder / log).open("ab") as out:
        return subprocess.Popen(
            words, cwd=folder, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )


def campaign(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start the campaign of a folder, which is the same command each time."""
    experiments = sorted(file.name for file in folder.glob("cell*.yaml"))
    labs = sorted(f"racks/{file.name}" for file in folder.glob("racks/*.yaml"))
    arguments = ("campaign", *experiments, "--labs", *labs, "--share", "--out", "out", *words)
    return start(folder, "campaign.log", *UDPBENCH, *arguments)


class Cluster:
    """A scheduler on loopback and its workers, each a process to kill."""

    def __init__(self, folder: Path, workers: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.folder = folder
        self.address = f"tcp://127.0.0.1:{port}"
        self.scheduler = self._scheduler()
        self.workers = [self._worker() for _ in range(workers)]

    def _scheduler(self) -> subprocess.Popen[bytes]:
        return self._dask("scheduler.log", scheduler_command(self.address))

    def _worker(self) -> subprocess.Popen[bytes]:
        command = worker_command(self.address, secrets.token_hex(4))
        return self._dask("worker.log", f"{command} --no-nanny")

    def _dask(self, log: str, command: str) -> subprocess.Popen[bytes]:
        """Start a line of a shell, which becomes Dask."""
        ours = f"export TMPDIR='{self.folder}'; {command.replace('dask ', f'exec {DASK} ', 1)}"
        return start(self.folder, log, "sh", "-c", ours)

    def kill_worker(self, number: int) -> None:
        """Kill a worker and start another."""
        kill(self.workers[number])
        self.workers[number] = self._worker()

    def kill_scheduler(self) -> None:
        """Kill the scheduler, and start all anew, for its workers end with it or are ended."""
        kill(self.scheduler)
        self.scheduler = self._scheduler()
        for number, worker in enumerate(self.workers):
            kill(worker)
            self.workers[number] = self._worker()

    def end(self) -> None:
        """End all."""
        for process in (*self.workers, self.scheduler):
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process by its pid, and nobody else."""
    process.kill()
    process.wait()


@contextmanager
def cluster(folder: Path, workers: int) -> Iterator[Cluster]:
    """Yield a cluster; its processes end with the block."""
    running = Cluster(folder, workers)
    try:
        yield running
    finally:
        running.end()


@contextmanager
def restored() -> Iterator[None]:
    """See that the machine is afterwards as it was."""
    before, spaces = state(), own_namespaces()
    yield
    wait_until("no namespace is left", lambda: own_namespaces() <= spaces)
    after = state()
    changed = {
        name: (before.get(name), after[name]) for name in after if after[name] != before.get(name)
    }
    if changed:
        raise AssertionError(f"not restored: {changed}")


def trials_stored(folder: Path) -> int:
    """Return how many trials all runs have stored."""
    return sum(
        file.read_bytes().count(b'"kind":"trial"') for file in folder.glob(f"out/*/*/{RUN_FILE}")
    )


def wait_for_trials(folder: Path, process: subprocess.Popen[bytes], further: int) -> None:
    """Wait until so many further trials are stored, while the campaign goes on."""
    until = trials_stored(folder) + further

    def reached() -> bool:
        if process.poll() is not None:
            raise AssertionError(f"the campaign ended with {process.returncode}")
        return trials_stored(folder) >= until

    wait_until(f"{further} further trials", reached, LIMIT_S)


def check_complete(folder: Path, experiments: int, repetitions: int) -> None:
    """See that every cell is there once, and each of its trials."""
    cells = sorted(folder.glob("out/*/*/cell.json"))
    names = Counter((file.parts[-3], file.parts[-2].rpartition("-")[0]) for file in cells)
    expected = {(pair, f"cell{number}") for pair in PAIRS for number in range(1, experiments + 1)}
    assert expected == set(names), f"missing: {expected - set(names)}"
    assert {1} == set(names.values()), "a cell stands twice"
    assert len(cells) == len(list(folder.glob(f"out/*/*/{RUN_FILE}"))), "a run that is no cell's"
    for cell in cells:
        run = read_run(cell.parent)
        trials = Counter(record.trial.name for record in run.records)
        assert {1} == set(trials.values()), f"{cell.parent}: {trials}"
        assert repetitions == len(trials), f"{cell.parent}: {trials}"
        assert run.ending is not None, cell.parent
        assert ("complete", ()) == (run.ending.status, run.ending.restore_errors), cell.parent
        assert json.loads(cell.read_text())["exit_code"] in ANSWERED


def end(process: subprocess.Popen[bytes], *codes: int) -> None:
    """Wait for the end of a campaign; it must be one of these."""
    code = process.wait(LIMIT_S)
    assert code in codes, f"the campaign ended with {code}, not {codes}"


def local(folder: Path, times: int) -> bool:
    """Interrupt a campaign without a scheduler, and go on."""
    write_files(folder, experiments=2, repetitions=3)
    with restored():
        first = campaign(folder)
        wait_for_trials(folder, first, 5)
        first.send_signal(signal.SIGINT)
        end(first, 130)
        print(f"local: interrupted after {trials_stored(folder)} trials", flush=True)
        end(campaign(folder), *ANSWERED)
    check_complete(folder, 2, 3)
    print("local: 16 cells are complete, each once, and the machine is as before")
    return True


def deaths(folder: Path, times: int) -> bool:
    """Kill each process once at a random moment."""
    write_files(folder, experiments=3, repetitions=4)
    dice = random.Random()
    with restored(), cluster(folder, 2) as dask:
        process = campaign(folder, "--scheduler", dask.address)
        for number in dice.sample(range(2), 2):
            wait_for_trials(folder, process, dice.randint(2, 6))
            dask.kill_worker(number)
            print(f"deaths: worker {number + 1} killed, {trials_stored(folder)} trials", flush=True)
        wait_for_trials(folder, process, dice.randint(2, 6))
        dask.kill_scheduler()
        end(process, 3)
        print(f"deaths: scheduler killed, {trials_stored(folder)} trials", flush=True)
        process = campaign(folder, "--scheduler", dask.address)
        wait_for_trials(folder, process, dice.randint(2, 6))
        kill(process)
        print(f"deaths: controller killed, {trials_stored(folder)} trials", flush=True)
        end(campaign(folder, "--scheduler", dask.address), *ANSWERED)
    check_complete(folder, 3, 4)
    print("deaths: 24 cells of 4 trials are complete, each once, and the machine is as before")
    return True


def overhead(folder: Path, times: int) -> bool:
    """Run the same cells by hand and by a campaign, at the same time: each has half of the CPUs."""
    write_files(folder, experiments=times, repetitions=1)
    with restored(), cluster(folder, 1) as dask, ThreadPoolExecutor(2) as side_by_side:
        ways = {
            "by hand": side_by_side.submit(taken_s, lambda: by_hand(folder, times)),
            "campaign": side_by_side.submit(
                taken_s,
                lambda: end(campaign(folder, "--scheduler", dask.address), *ANSWERED),
            ),
        }
        taken = {way: each.result() for way, each in ways.items()}
    check_complete(folder, times, 1)
    ratio = taken["campaign"] / taken["by hand"]
    print(
        f"overhead: {8 * times} cells one after the other: by hand {taken['by hand']:.1f} s, "
        f"campaign {taken['campaign']:.1f} s: {ratio - 1:+.1%}"
    )
    return ratio <= ALLOWED


def taken_s(work: Callable[[], None]) -> float:
    """Return how long a work takes."""
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def by_hand(folder: Path, experiments: int) -> None:
    """Run the same cells one after the other."""
    for pair, number in product(PAIRS, range(1, experiments + 1)):
        lab = ("--lab", f"racks/{pair}.yaml", "--share", "--no-report")
        words = ("run", f"cell{number}.yaml", *lab, "--out", f"hand/{pair}-{number}")
        end(start(folder, "hand.log", *UDPBENCH, *words), *ANSWERED)


PARTS = {"local": local, "deaths": deaths, "overhead": overhead}


def main(words: Sequence[str]) -> int:
    """Run the parts that are named, and return 1 if any does not hold."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--times", type=int, default=25, metavar="N")
    parser.add_argument("--out", type=Path, default=Path("results/campaigns"), metavar="FOLDER")
    options = parser.parse_args(words)
    if not set(options.parts) <= PARTS.keys():
        parser.error(f"the parts are {', '.join(PARTS)}")
    held = True
    for name in options.parts or PARTS:
        try:
            holds = PARTS[name](options.out.absolute() / name, options.times)
        except AssertionError as error:
            print(f"{name}: {error}")
            holds = False
        print(f"{name}: {'holds' if holds else 'does not hold'}", flush=True)
        held &= holds
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

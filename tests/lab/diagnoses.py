"""Plant a bottleneck, measure, and see that the first diagnosis names it.

``diagnoses.py [PLANT]... [--times N] [--seed N] [--minutes N] [--out FOLDER]``, as root. Without
names, all plants of ``PLANTS``; their numbers are drawn from a range by a seed that each run makes
new and prints. Prints a line for each trial and one for each plant. With ``--store`` a record of each plant
becomes what the unit tests read. Exits 1 if a plant was named
in fewer than 8 of 10 trials or all of them in fewer than 95 %, 5 if the minutes did not suffice.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from udpbench.analysis.judge import judge
from udpbench.control.run import RunOptions, run
from udpbench.definition.load import load_experiment_data, load_lab
from udpbench.model.record import Snapshot, TrialRecord
from udpbench.model.result import Progress
from udpbench.records.reader import read_run
from udpbench.records.run import new_header
from udpbench.records.writer import RunWriter

OVERALL, EACH = 0.95, 0.8
READER_CPU, SENDER_CPU = 0, 1
"""For the built-in lab on two CPUs."""
Data = dict[str, Any]
STORED = Path(__file__).parents[1] / "fixtures" / "diagnoses.json.xz"
RECORDS: TypeAdapter[TrialRecord] = TypeAdapter(TrialRecord)


@dataclass(frozen=True)
class Plant:
    """A bottleneck that is planted."""

    expected: str
    """Name of the diagnosis."""
    draw: Callable[[random.Random], Data]
    """Return keys of an experiment, with numbers from a range."""
    busy_cpu: int | None = None
    """A program does nothing there meanwhile, as fast as it can."""
    rules: int = 0
    """Firewall rules of somebody else that each packet passes."""


def slow_work(chance: random.Random) -> Data:
    """Return a reader that takes longer for a datagram than there is between two."""
    work_us = chance.randint(20, 60)
    rate = round(10**6 / work_us * chance.uniform(1.5, 2.5))
    keys = {"work": f"{work_us}us", "batch": 32, "buffer": "256KiB"}
    return {"traffic.rate": f"{rate}pps", "receive": keys}


def burst(chance: random.Random) -> Data:
    """Return a burst larger than the buffer, and nothing afterwards."""
    work_us, buffer_kib = chance.randint(30, 60), chance.choice((8, 16, 32))
    return {
        "traffic": {"count": chance.randint(200, 800), "rate": f"{chance.randint(50, 100)}kpps"},
        "send.bucket": "200ms",
        "receive": {"work": f"{work_us}us", "buffer": f"{buffer_kib}KiB"},
    }


def lasting(chance: random.Random) -> Data:
    """Return a small buffer, and a load that no buffer would hold."""
    keys = slow_work(chance)
    keys["receive"]["buffer"] = f"{chance.choice((8, 16, 32))}KiB"
    return keys


def inline(chance: random.Random) -> Data:
    """Return receive work on the sender's CPU, of fragments, for which there is no GSO."""
    return {
        "traffic": {"size": f"{chance.randint(1600, 9000)}B", "fragment": True},
        "settings.receiver.link.receive": "inline",
    }


def unmerged(chance: random.Random) -> Data:
    """Return messages of many datagrams, which the receiver reads one by one."""
    return {
        "traffic.size": f"{chance.randint(100, 1000)}B",
        "send": {"gso": chance.randint(16, 60), "batch": 16},
        "receive.gro": False,
    }


def busy_sender(chance: random.Random) -> Data:
    """Return a rate for which the sender needs its CPU."""
    return {"traffic.rate": f"{chance.randint(100, 400)}kpps"}


def shaped(chance: random.Random) -> Data:
    """Return a queueing discipline that lets through less than is sent."""
    tbf = {"rate": f"{chance.randint(3, 12)}Mbps", "burst": "4KiB", "limit": "16KiB"}
    return {"traffic.rate": "40kpps", "settings.sender.qdisc.tbf": tbf}


def little_memory(chance: random.Random) -> Data:
    """Return a bound on UDP's memory below what the socket may hold.

    Each CPU keeps up to 256 pages of it in reserve, which count (SK_MEMORY_PCPU_RESERVE, 6.18).
    """
    pages = chance.randint(768, 1280)
    return {
        "traffic": {
            "count": chance.randint(20_000, 30_000),
            "rate": f"{chance.randint(60, 80)}kpps",
        },
        "send.bucket": "200ms",
        "receive": {"work": f"{chance.randint(40, 60)}us", "buffer": "32MiB"},
        "settings.receiver.sysctl": {"net.ipv4.udp_mem": f"{pages // 2} {pages} {pages}"},
    }


def small_backlog(chance: random.Random) -> Data:
    """Return bursts that a CPU's backlog does not hold, of a load that the CPU could take."""
    return {
        "traffic.rate": f"{chance.randint(10, 40)}kpps",
        "send": {"gso": 60, "batch": 1, "bucket": "200ms"},
        "settings.sender.ethtool.features.tx-udp-segmentation": False,
        "settings.receiver.link.receive": "rps",
        "settings.receiver.sysctl": {"net.core.netdev_max_backlog": chance.randint(4, 24)},
    }


def flood(chance: random.Random) -> Data:
    """Return all that the sender can."""
    return {"traffic.size": f"{chance.randint(18, 300)}B"}


def robbed_reader(chance: random.Random) -> Data:
    """Return a load that the reader's CPU could take, if it had it for itself."""
    work_us = chance.randint(10, 20)
    rate = round(10**6 / work_us * chance.uniform(0.6, 0.7))
    return {
        "traffic.rate": f"{rate}pps",
        "receive": {"work": f"{work_us}us", "buffer": "256KiB"},
    }


def many_readers(chance: random.Random) -> Data:
    """Return twenty threads on one socket, all of which a datagram wakes.

    Measured on 2 CPUs (6.18): 0.77 of one thread's rate; with ``wait: block``, 0.93. In soft
    interrupts nothing merges datagrams, by which either would gain more.
    """
    return {
        "traffic.size": f"{chance.randint(18, 300)}B",
        "receive": {"workers": 20, "wait": "epoll", "batch": chance.choice((1, 2, 4))},
        "settings.receiver.link.receive": "rps",
    }


def healthy(chance: random.Random) -> Data:
    """Return a load that all of it takes easily."""
    return {"traffic": {"rate": f"{chance.randint(5, 30)}kpps"}, "send.bucket": "200ms"}


PLANTS = {
    "slow-work": Plant("reader_work", slow_work),
    "burst": Plant("small_buffer", burst),
    "lasting-load": Plant("reader_work", lasting),
    "inline": Plant("inline", inline),
    "gro-off": Plant("unmerged", unmerged),
    "busy-sender": Plant("others_cpu", busy_sender, busy_cpu=SENDER_CPU),
    "tbf": Plant("sender_queue", shaped),
    "udp-mem": Plant("udp_memory", little_memory),
    "backlog": Plant("small_backlog", small_backlog),
    "firewall": Plant("firewall", flood, rules=1000),
    "busy-reader": Plant("others_cpu", robbed_reader, busy_cpu=READER_CPU),
    "twenty-threads": Plant("shared_socket", many_readers),
    "healthy": Plant("nothing", healthy),
}


@contextmanager
def busy(cpu: int | None) -> Iterator[None]:
    """Let a program use a CPU as long as this lasts."""
    if cpu is None:
        yield
        return
    loop = "print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", loop], stdout=subprocess.PIPE) as process:
        try:
            os.sched_setaffinity(process.pid, {cpu})
            assert process.stdout is not None
            process.stdout.readline()
            yield
        finally:
            process.kill()


def adding_rules(number: int) -> Callable[[Progress], None]:
    """Return a listener that adds rules to the receiver's firewall once its namespace is there."""

    def tell(progress: Progress) -> None:
        name, _, rest = progress.text.partition(": agent ")
        if number and progress.event == "host" and name == "receiver":
            ports = (
                f"add rule inet theirs in udp dport {n} drop"
                for n in range(10_000, 10_000 + number)
            )
            chain = "add chain inet theirs in { type filter hook input priority 0; }"
            enter = ["nsenter", f"--target={rest.partition(' ')[0]}", "--net", "nft", "-f", "-"]
            text = "\n".join(["add table inet theirs", chain, *ports])
            subprocess.run(enter, input=text, text=True, check=True, timeout=30)

    return tell


def planted(name: str, seed: int, folder: Path) -> TrialRecord:
    """Return the record of one trial with a bottleneck; ``seed`` draws its numbers."""
    plant = PLANTS[name]
    data = {
        "question": "What limits it?",
        "variants": {name: plant.draw(random.Random(seed))},
        "duration": "1s",
        "warmup": "0s",
        "repetitions": 1,
    }
    experiment, lab = load_experiment_data(data, "planted"), load_lab("local")
    writer = RunWriter.create(folder, new_header([experiment], lab, ("diagnoses.py",)))
    with busy(plant.busy_cpu):
        outcome = run([experiment], lab, writer, adding_rules(plant.rules), RunOptions(seed=seed))
    if outcome.error is not None:
        raise outcome.error
    if outcome.interrupted:
        raise KeyboardInterrupt
    (record,) = read_run(folder).records
    return record


def small(record: TrialRecord) -> TrialRecord:
    """Return what a diagnosis reads of a record, and nothing that says where it was made."""
    (measured,) = [phase for phase in record.phases if phase.name == "measured"]
    stats = tuple(replace(stats, histograms={}, stalls=()) for stats in measured.stats)
    facts = {
        name: replace(
            each,
            hostname="bench",
            boot_id="b",
            cpu_model=None,
            environment={
                k: v for k, v in each.environment.items() if k in ("offloads", "xdp", "tcx")
            },
        )
        for name, each in record.facts.items()
    }
    after = {name: _small_snapshot(snapshot) for name, snapshot in measured.after.items()}
    phase = replace(measured, after=after, stats=stats, flows={}, clocks={})
    return replace(record, phases=(phase,), facts=facts, series=(), motion=(), environment_after={})


def _small_snapshot(snapshot: Snapshot) -> Snapshot:
    used = (process for process in snapshot.processes if process.cpu_ns or process.children_cpu_ns)
    processes = [
        replace(process, name="theirs") if process.whose == "other" else process for process in used
    ]
    return replace(snapshot, processes=tuple(processes))


def store(records: Mapping[str, TrialRecord]) -> None:
    """Write records by plant, where the unit tests read them."""
    plain = {
        name: RECORDS.dump_python(small(record), mode="json") for name, record in records.items()
    }
    STORED.write_bytes(lzma.compress(json.dumps(plain).encode()))


def is_disturbed(name: str, names: Sequence[str]) -> bool:
    """Return whether programs that nobody planted took so much of a CPU that they are the reason."""
    return PLANTS[name].busy_cpu is None and names[:1] in (["others_cpu"], ["steal"])


def planted_often(
    name: str, seeds: Sequence[int], folder: Path, until_s: float
) -> tuple[list[bool], TrialRecord | None]:
    """Return for each seed whether its bottleneck was named, and the latest record that was right.

    A trial that is disturbed is made twice more.
    """
    right: list[bool] = []
    latest = None
    for seed in seeds:
        for attempt in range(3):
            if time.monotonic() > until_s:
                return right, latest
            record = planted(name, seed, folder / f"{name}-{seed}-{attempt}")
            names = [bottleneck.name for bottleneck in judge(record).diagnosis]
            if not is_disturbed(name, names):
                break
        else:
            print(f"{name} {seed}: other programs were in the way three times", flush=True)
            continue
        right.append(names[:1] == [PLANTS[name].expected])
        latest = record if right[-1] else latest
        print(f"{name} {seed}: {'right' if right[-1] else 'WRONG'}: {', '.join(names)}", flush=True)
    return right, latest


def plant_parser(about: str | None, plants: Collection[str]) -> argparse.ArgumentParser:
    """Return the options of a program that plants bottlenecks again and again."""
    parser = argparse.ArgumentParser(description=about.split("\n")[0] if about else "")
    parser.add_argument("plants", nargs="*", metavar="PLANT", help=", ".join(plants))
    parser.add_argument("--times", type=int, default=10, metavar="N", help="times of each plant")
    parser.add_argument("--seed", type=int, help="draws the numbers; new for each run if left out")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin none after these")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keeps the runs; else removed")
    return parser


def chosen(
    parser: argparse.ArgumentParser, plants: Collection[str], words: Sequence[str] | None
) -> tuple[argparse.Namespace, random.Random, float]:
    """Return the options of a command line, what draws its numbers, and until when it begins any."""
    options = parser.parse_args(words)
    if not set(options.plants) <= set(plants):
        parser.error(f"the plants are {', '.join(plants)}")
    seed = options.seed if options.seed is not None else random.randrange(2**32)
    print(f"seed {seed}", flush=True)
    return options, random.Random(seed), time.monotonic() + 60 * options.minutes


def main(words: Sequence[str] | None = None) -> int:
    """Plant, measure, and return the exit code of all plants."""
    parser = plant_parser(__doc__, PLANTS)
    parser.add_argument("--store", action="store_true", help="for the unit tests")
    options, chance, until_s = chosen(parser, PLANTS, words)
    right: dict[str, list[bool]] = {}
    records: dict[str, TrialRecord] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.plants or PLANTS:
            seeds = [chance.randrange(2**32) for _ in range(options.times)]
            place = options.out or Path(scratch)
            right[name], record = planted_often(name, seeds, place, until_s)
            records |= {name: record} if record is not None else {}
    if options.store:
        store(records)
    for name, named in right.items():
        print(f"{name}: {sum(named)} of {len(named)} named {PLANTS[name].expected}")
    every = [each for named in right.values() for each in named]
    print(f"in all: {sum(every)} of {len(every)}")
    if len(every) < options.times * len(right):
        return 5
    enough = all(sum(named) >= EACH * len(named) for named in right.values())
    return 0 if enough and sum(every) >= OVERALL * len(every) else 1


if __name__ == "__main__":
    sys.exit(main())

"""A long run in the built-in lab: whether it ends well, and whether anybody's memory grows.

``hold.py 20m`` (two hours where left out) sends 20 kpps with echoes, stamps and a rotating log, and
looks at the resident memory of the controller and of every agent and worker once a second. It
leaves with 1 where the trial failed, packets are unaccounted, or a process of the last tenth of the
time has more than GROWTH more than it had in the second tenth. Needs root, as the lab does.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from pathlib import Path
from statistics import median

import psutil

from udpbench.analysis.judge import judge
from udpbench.control.run import RunOptions, run
from udpbench.definition.load import load_experiment_data, load_lab
from udpbench.model.result import Progress
from udpbench.records.reader import read_run
from udpbench.records.run import RunHeader, now_utc
from udpbench.records.writer import RunWriter
from udpbench.units import format_duration, parse_duration

GROWTH = 0.05
POLL_S = 1.0


class Watch:
    """The memory of this process and its children while packets flow."""

    def __init__(self) -> None:
        self.resident_bytes: dict[str, list[int]] = {}
        self._ended = threading.Event()
        self._measuring = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def tell(self, progress: Progress) -> None:
        """Take what control reports: between measured phase and its end it is looked at."""
        if progress.event == "phase":
            print(progress.text, flush=True)
            if progress.phase == "measured":
                self._measuring.set()
        if progress.event == "trial":
            self._measuring.clear()

    def end(self) -> None:
        """Look no more."""
        self._ended.set()
        self._measuring.set()
        self._thread.join()

    def _look(self) -> None:
        own = psutil.Process()
        while not self._ended.wait(POLL_S):
            self._measuring.wait()
            for process in (own, *own.children(recursive=True)):
                try:
                    name = f"{Path(process.cmdline()[-1]).name} {process.pid}"
                    memory_bytes = process.memory_info().rss
                except (psutil.Error, IndexError):
                    continue
                self.resident_bytes.setdefault(name, []).append(memory_bytes)


def growth(looks: list[int]) -> float:
    """Return by which part the last tenth of the looks is above the second one."""
    tenth = max(len(looks) // 10, 1)
    return median(looks[-tenth:]) / median(looks[tenth : 2 * tenth]) - 1


def main() -> None:
    """Hold, print each process's memory, and leave with 1 where a bar is missed."""
    duration = format_duration(parse_duration(sys.argv[1] if len(sys.argv) > 1 else "2h"))
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        data = {
            "question": "Does it hold?",
            "traffic": {"size": "256B", "rate": "20kpps", "echo": 100},
            "send": {"pace": "sleep", "bucket": "1s"},
            "receive": {
                "timestamps": True,
                "log": {"path": f"{folder}/log", "max_file": "64MiB", "keep": 2},
            },
            "duration": duration,
            "repetitions": 1,
        }
        experiment, lab = load_experiment_data(data, "soak"), load_lab("local")
        header = RunHeader("", now_utc(), ("hold.py",), 1, lab.name, lab.text, (experiment,))
        writer = RunWriter.create(Path(folder) / "run", header)
        outcome = run([experiment], lab, writer, watch.tell, RunOptions(seed=1))
        watch.end()
        if outcome.error is not None:
            raise SystemExit(f"soak: {outcome.error}")
        result = judge(read_run(Path(folder) / "run").records[0])
        written_bytes = sum(file.stat().st_size for file in (Path(folder) / "run").iterdir())
    looks = max(map(len, watch.resident_bytes.values()))
    # Whoever was there all the time; others are programs that an agent ran for a moment.
    lasting = {
        name: sizes for name, sizes in watch.resident_bytes.items() if len(sizes) >= 0.9 * looks
    }
    for name, sizes in lasting.items():
        print(f"{name:<40} {median(sizes) / 2**20:>8.1f} MiB {growth(sizes):>+8.2%}")
    print(f"record {written_bytes / 2**20:.1f} MiB; {result.received_packets} received", end="")
    print(f", {result.unaccounted} unaccounted, {len(result.stalls)} stalls")
    failures = [
        f"{name} grew by {growth(s):.1%}" for name, s in lasting.items() if growth(s) > GROWTH
    ]
    if result.status != "done" or result.unaccounted:
        failures.append(f"{result.status}, {result.unaccounted} unaccounted: {result.findings}")
    if failures:
        raise SystemExit("\n".join(failures))


if __name__ == "__main__":
    os.chdir("/")
    main()

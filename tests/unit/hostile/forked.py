"""Work in a forked process that has everything imported: what it says, and what memory it took.

Not a test. Starting a process for each case would take a second more.
"""

from __future__ import annotations

import os
import pickle
import resource
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pyarrow.parquet
import scipy.stats
import typst
from pyarrow import dataset

import udpbench.commands.compare
import udpbench.control.plan
import udpbench.definition.load
import udpbench.report.campaign.history_output
import udpbench.report.document
import udpbench.report.html_page
import udpbench.report.plan
import udpbench.report.tables
import udpbench.store.history
from udpbench.__main__ import main

IMPORTED = (plt, pd, pyarrow.parquet, scipy.stats, typst, dataset, udpbench)
SPARE_BYTES = 2**30
"""Beyond the bound; a case that takes more fails in its process, and ends nothing else."""


@dataclass(frozen=True)
class Ended:
    """How a case ended."""

    codes: tuple[int, ...]
    stderr: str
    """On stderr."""
    grown_bytes: int
    """Peak of the memory beyond that at the start."""
    took_s: float
    """CPU time: others use the machine, too."""


def _status_bytes() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = (line.split() for line in lines if line.endswith(" kB"))
    return {name.rstrip(":"): int(number) * 1024 for name, number, _ in fields}


def ended(work: Callable[[], list[int]], folder: Path, bound_bytes: int) -> Ended:
    """Return how work ended in a process of its own, which works in a folder."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            with os.fdopen(writing, "wb") as out:
                pickle.dump(_measured(work, folder, bound_bytes), out)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as result:
        data = result.read()
    os.waitpid(pid, 0)
    assert data, "its process died"
    known: Ended = pickle.loads(data)  # noqa: S301 - of our own process
    return known


def _measured(work: Callable[[], list[int]], folder: Path, bound_bytes: int) -> Ended:
    os.chdir(folder)
    for fd, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - descriptors
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew (proc(5))
    before = _status_bytes()
    limit = before["VmData"] + bound_bytes + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    began_s = time.process_time()
    codes: list[int] = []
    try:
        codes = work()
    except BaseException:  # noqa: BLE001 - it is what the test looks for
        traceback.print_exc()
    took_s = time.process_time() - began_s
    sys.stdout.flush()
    sys.stderr.flush()
    after = _status_bytes()
    grown_bytes = after["VmHWM"] - after["RssFile"] - before["RssAnon"]
    stderr = Path("stderr").read_text(errors="replace")
    return Ended(tuple(codes), stderr, grown_bytes, took_s)


def commands(*lines: tuple[str, ...]) -> Callable[[], list[int]]:
    """Return work that runs command lines one after the other and returns their exit codes."""

    def work() -> list[int]:
        codes = []
        for words in lines:
            sys.argv = ["udpbench", *words]
            try:
                main()
            except SystemExit as end:
                codes.append(int(end.code or 0))
        return codes

    return work

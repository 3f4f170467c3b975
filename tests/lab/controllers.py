"""A controller of a lab test in a process of its own: started, read, and killed by pid if left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from program_forks import CONTROLLER, Forked
from waiting import DEADLINE_S, wait_until

from udpbench.records.reader import read_run
from udpbench.records.run import Run


@dataclass
class Controller:
    """A running ``controller.py`` with its run folder and all that it prints."""

    folder: Path
    process: subprocess.Popen[bytes]
    log: Path

    def has_printed(self, text: str) -> bool:
        """Return whether a text was printed."""
        return text in self.log.read_text()

    def await_line(self, text: str) -> None:
        """Wait until it has printed a text, or fail with all it printed."""
        wait_until(
            f"{text!r} in {self.log}",
            lambda: self.has_printed(text) or self.process.poll() is not None,
        )
        assert self.has_printed(text), self.log.read_text()

    def family(self) -> list[psutil.Process]:
        """Return agents, guardians and workers."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self) -> int:
        """Wait for its end and return the exit status."""
        return self.process.wait(DEADLINE_S)

    def run(self) -> Run:
        """Return what is in the run folder."""
        return read_run(self.folder)


@dataclass
class Controllers:
    """Controllers with folders of their own below one folder."""

    below: Path
    started: list[Controller] = field(default_factory=list)

    def start(
        self,
        arguments: Sequence[str],
        *,
        within: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> Controller:
        """Start one with a run folder and further arguments; ``within`` is a command in front."""
        folder, log = (self.below / f"{name}{len(self.started)}" for name in ("run", "log"))
        with log.open("wb") as out:
            how: dict[str, Any] = {
                "stdout": out,
                "stderr": subprocess.STDOUT,
                "env": {**os.environ, **(environment or {})},
            }
            words = (CONTROLLER, str(folder), *arguments)
            if within:
                command = (*within, sys.executable, *words)
                process = subprocess.Popen(command, start_new_session=True, **how)
            else:
                process = Forked(words, **how)
        self.started.append(Controller(folder, process, log))
        return self.started[-1]


@contextmanager
def controllers(below: Path) -> Iterator[Controllers]:
    """Yield a place to start controllers; what is left of any is killed by pid."""
    group = Controllers(below)
    yield group
    for controller in group.started:
        if controller.process.poll() is None:
            controller.process.kill()
            controller.process.wait()

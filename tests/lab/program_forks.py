"""Starts our programs for lab tests as forks of a process that has imported them.

A start of Python and its imports take 0.4 s of CPU time, and lab tests start hundreds. From ``main``
on everything is the same; how Python starts it, ``tests/unit/test_main.py`` and the documented
commands show. The process ends with the tests; what it forked stays until somebody ends it.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

UDPBENCH = "udpbench"
WITH_PHASES = str(Path(__file__).parents[1] / "fixtures/with_phases.py")
CONTROLLER = str(Path(__file__).with_name("controller.py"))
EARLY = (
    *("udpbench.__main__", "udpbench.commands.command_line", "udpbench.commands.resume"),
    *("udpbench.control.run", "udpbench.judged_run", "udpbench.records.writer"),
    *("udpbench.report.live", "udpbench.report.tables", "udpbench.report.summary"),
)
ORDER_BYTES = 2**18
OPEN_FILES = 1024


class Forked(subprocess.Popen[Any]):
    """A program with words, started like any other, in a session of its own."""

    def _execute_child(self, args: Any, *how: Any) -> None:
        """Have it forked, in place of subprocess's own fork; the order of ``how`` is its."""
        _, _, _, _, cwd, env, _, _, _, *ends = how
        p2cread, _, _, c2pwrite, _, errwrite = ends[:6]
        order = {
            "words": [*args],
            "folder": os.fspath(cwd or os.getcwd()),  # noqa: PTH109 - as a text
            "environment": {**(os.environ if env is None else env)},
        }
        files = [
            own if own >= 0 else usual
            for own, usual in zip((p2cread, c2pwrite, errwrite), range(3), strict=True)
        ]
        self.pid = int(_asked(order, files))
        self._child_created = True
        self._close_pipe_fds(*ends[:6])  # type: ignore[attr-defined]

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if not flags & os.WNOHANG and self.returncode is None:
            ended = os.pidfd_open(self.pid)
            select.select([ended], [], [])
            os.close(ended)
        pid, status = _asked({"waited": self.pid})
        return pid, status

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid == self.pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def completed(words: Sequence[str], limit_s: float, **how: Any) -> subprocess.CompletedProcess[str]:
    """Return how ``udpbench`` with words ended, and what it printed."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Forked((UDPBENCH, *words), text=True, **pipes, **how) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        subprocess.Popen((sys.executable, "-P", __file__), stdin=theirs.fileno())
    return ours


def _asked(order: dict[str, Any], files: Sequence[int] = ()) -> Any:
    socket.send_fds(_server(), [json.dumps(order).encode()], files)
    return json.loads(_server().recv(ORDER_BYTES))


def serve(orders: socket.socket) -> None:
    """Fork a program for each order, or say whether that has ended, until nobody orders."""
    while True:
        data, files, _, _ = socket.recv_fds(orders, ORDER_BYTES, 3)
        if not data:
            return
        order = json.loads(data)
        if "waited" in order:
            answer: Any = os.waitpid(order["waited"], os.WNOHANG)
        else:
            answer = os.fork()
            if answer == 0:
                become(order, files)
            for each in files:
                os.close(each)
        orders.send(json.dumps(answer).encode())


def become(order: dict[str, Any], files: Sequence[int]) -> None:
    """Be a program; its exit ends this process."""
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, OPEN_FILES)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    program, *words = order["words"]
    sys.argv = [program, *words]
    if program == UDPBENCH:
        import_module("udpbench.__main__").main()
    else:
        runpy.run_path(program, run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    for module in EARLY:
        import_module(module)
    load = import_module("udpbench.definition.load")
    load.load_experiments(["smoke"])
    load.load_lab("local")
    gc.freeze()
    serve(socket.socket(fileno=os.dup(0)))

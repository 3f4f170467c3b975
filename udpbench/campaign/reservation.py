"""The reservation of a shared lab: held by a command from its first line of output to its end.

Owns the command's process and nothing of the lab. It runs on the controller's machine, in its own
session, so that Ctrl-C in the terminal does not release hosts before they are restored; under sudo
as the user who typed it. The kernel ends it when this process dies.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO, Any

from udpbench import confinement
from udpbench.control.wait import Clock, Interrupt, Waiter
from udpbench.errors import DeadlineExceeded, NotReserved, in_words
from udpbench.folder import calling_user
from udpbench.model.lab import Lab, Reserve
from udpbench.model.result import Progress
from udpbench.parent_death import end_with_parent
from udpbench.printable import printable
from udpbench.units import format_duration

ENDS_S = 10.0
"""From SIGTERM to SIGKILL: releasing a booking may involve a server."""
SHOWN_CHARACTERS = 300


@contextmanager
def reserved(
    lab: Lab, tell: Callable[[Progress], None], interrupt: Interrupt, clock: Clock
) -> Iterator[None]:
    """Hold the reservation of a lab, if it needs one, during the block.

    If the command ends within the block, ``interrupt`` is set. Raises NotReserved in that case and
    for a refusal, DeadlineExceeded after ``within``, Interrupted.
    """
    if lab.reserve is None:
        yield
        return
    with interrupt.caught():
        booking = _Booking(lab.name, lab.reserve, interrupt)
        try:
            command = " ".join(lab.reserve.command)
            tell(Progress("wait", f"waiting until {lab.name} is reserved: {command}"))
            booking.wait(Waiter(clock, interrupt))
            tell(Progress("host", f"{lab.name}: reserved: {booking.first_line}"))
            yield
            booking.refuse_ended()
        finally:
            booking.release()


class _Booking:
    """One running command."""

    def __init__(self, name: str, reserve: Reserve, interrupt: Interrupt) -> None:
        self.first_line = ""
        self._name = name
        self._reserve = reserve
        self._interrupt = interrupt
        self._releasing = False
        self._granted, self._ended = threading.Event(), threading.Event()
        self._complaints: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - held
        try:
            self._process = _started(name, reserve.command, self._complaints)
        except OSError as error:
            raise NotReserved(f"reserve: {in_words(error)}", name) from error
        threading.Thread(target=self._follow, name="reservation", daemon=True).start()

    def wait(self, waiter: Waiter) -> None:
        """Wait for the first line of output."""
        within_ns = self._reserve.within_ns
        begun_ns = waiter.clock.now_ns()
        while not self._granted.is_set():
            if self._ended.is_set():
                raise NotReserved(f"not reserved: {self._how_it_ended()}", self._name)
            if within_ns is not None and waiter.clock.now_ns() - begun_ns >= within_ns:
                what = f"timed out after {format_duration(within_ns)}: not reserved"
                raise DeadlineExceeded(f"{what}; raise reserve.within, or try later", self._name)
            waiter.pause()

    def refuse_ended(self) -> None:
        """Raise NotReserved if the command ended by itself."""
        if self._ended.is_set():
            what = f"the reservation ended during the run: {self._how_it_ended()}"
            raise NotReserved(f"{what}; finished trials are in the run folder", self._name)

    def release(self) -> None:
        """End the command and everything that it started, and wait for it."""
        self._releasing = True
        for stream in (self._process.stdin, self._complaints):
            with suppress(OSError):
                if stream is not None:
                    stream.close()
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _follow(self) -> None:
        """Read the command's output until it ends; lines after the first are discarded."""
        assert self._process.stdout is not None  # noqa: S101 - as asked for above
        with self._process.stdout as out:
            self.first_line = out.readline().decode(errors="replace").strip()
            if self.first_line:
                self._granted.set()
            while out.read(4096):
                pass
        self._process.wait()
        self._ended.set()
        if self._granted.is_set() and not self._releasing:
            self._interrupt.requested = True

    def _how_it_ended(self) -> str:
        """Return the command's exit code, and the last line of its stderr."""
        code = self._process.returncode
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        self._complaints.seek(0)
        *_, last = self._complaints.read().decode(errors="replace").strip().split("\n")
        detail = f": {printable(last)[:SHOWN_CHARACTERS]}" if last else ""
        return f"{self._reserve.command[0]} ended with {how}{detail}"

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def _started(name: str, command: Sequence[str], complaints: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start it without a way to more rights; only root itself, without sudo, reserves as root."""
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": complaints,
    }
    if os.geteuid() != 0:
        return confinement.start(command, None, signal.SIGTERM, **pipes)
    if calling_user() == 0:
        by_root = partial(end_with_parent, signal.SIGTERM)
        return subprocess.Popen(command, start_new_session=True, preexec_fn=by_root, **pipes)
    try:
        known = pwd.getpwuid(calling_user())
    except KeyError:
        who = f"this machine has no user {calling_user()}, who typed sudo"
        raise NotReserved(f"reserve: {who}; run it as another user", name) from None
    kept = {key: text for key, text in os.environ.items() if not key.startswith("SUDO_")}
    own = {"HOME": known.pw_dir, "USER": known.pw_name, "LOGNAME": known.pw_name}
    user = confinement.ProgramUser(known.pw_uid, known.pw_gid)
    return confinement.start(command, user, signal.SIGTERM, env={**kept, **own}, **pipes)

"""Every error that udpbench raises on purpose; any other exception is a bug.

    UdpbenchError                 exit code 3
    ├── Unforeseen                3   a bug, with what it left behind
    ├── InputError                2   definitions, options, paths: every problem at once
    ├── RecordError               2   a run folder is missing, foreign or damaged
    │   └── StoreError            3   a running run can store nothing more
    ├── HostError                 3   something failed on, or on the way to, one host
    │   ├── ConnectError              the host could not be reached or the agent not started
    │   │   ├── NotPermitted          this user may not create a built-in lab on this machine
    │   │   └── NotReserved           the site did not grant the lab, or revoked it
    │   ├── HelloRefused              protocol or build differs, or a run holds the namespace
    │   ├── AgentLost                 the connection to a running agent broke
    │   ├── HostLacks             5   the hosts' kernels can run no trial
    │   ├── HostChanged               a host has changed since the resumed run began
    │   ├── SettingRefused            the host refused a setting, or did not keep it
    │   ├── Unseen                    this user cannot see what root's runs left
    │   ├── NothingToWatch        2   what to watch does not exist or is not visible to this user
    │   ├── SafetyError               a destination is not proven to be a lab receiver
    │   ├── WorkerFailed              a worker process ended or reported an error
    │   ├── DeadlineExceeded          a condition was not met in time
    │   └── AgentError                the agent failed in some other way
    ├── CannotTell                5   whether a point is worse, or the ledger reliable
    ├── PathError                 3   no packet arrived in the path phase
    ├── RestoreError              4   a host could not be restored
    └── Interrupted             130   SIGINT or SIGTERM; hosts were restored

An error crosses the wire as ``{kind, message, host}`` and is raised there as the same class. Exit
codes and their precedence are defined here alone.
"""

from __future__ import annotations

import errno
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Optional

from udpbench.printable import printable

YES, NO, BAD_INPUT, FAILED, NOT_RESTORED, CANNOT_TELL, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
SHOWN_PROBLEMS = 50
"""Most problems of one input; a broken file may have one in each of its thousands of lines."""
PRECEDENCE = (NOT_RESTORED, INTERRUPTED, FAILED, BAD_INPUT, NO, CANNOT_TELL)


def worst_code(codes: Iterable[int]) -> int:
    """Return the exit code that outranks the others; 0 if there is none."""
    present = set(codes)
    return next((code for code in PRECEDENCE if code in present), YES)


MESSAGE_CHARACTERS = 4096
"""Limit of a host's message; the longest of ours list what could not be restored."""


def rest_of_message(limit: str, next_step: str) -> str:
    """Return how a message ends: what would be right, and what to do; each may be empty."""
    expected = f"expected: {limit}" if limit else ""
    return "".join(f"; {part}" for part in (expected, next_step) if part)


@dataclass(frozen=True)
class Problem:
    """One problem in the input, with everything needed to fix it."""

    what: str
    where: str = ""
    value: Optional[str] = None
    limit: str = ""
    next_step: str = ""

    def __str__(self) -> str:
        head = f"{self.where}: " if self.where else ""
        value = f"{self.value}: " if self.value not in (None, "") else ""
        return f"{head}{value}{self.what}{rest_of_message(self.limit, self.next_step)}"


class UdpbenchError(Exception):
    """The root of every error that udpbench raises on purpose."""

    exit_code = FAILED


class Unforeseen(UdpbenchError):
    """An error that nobody foresaw; the message says where its traceback is."""


class InputError(UdpbenchError):
    """The user's input is invalid; holds every problem, not just the first."""

    exit_code = BAD_INPUT

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = tuple(problems)
        shown = [str(problem) for problem in problems[:SHOWN_PROBLEMS]]
        if len(problems) > SHOWN_PROBLEMS:
            shown.append(f"and {len(problems) - SHOWN_PROBLEMS} more problems")
        super().__init__("\n".join(shown))


class RecordError(UdpbenchError):
    """A run folder cannot be read or written."""

    exit_code = BAD_INPUT


class StoreError(RecordError):
    """Measurements of a running run cannot be stored; the message says what is lost."""

    exit_code = FAILED


class HostError(UdpbenchError):
    """Something failed on one host; ``host`` names it if known."""

    def __init__(self, message: str, host: str = "") -> None:
        self.message = message
        self.host = host
        super().__init__(f"{host}: {message}" if host else message)


class ConnectError(HostError):
    """The host could not be reached, or its agent could not be started."""


class NotPermitted(ConnectError):
    """The user may not create a built-in lab on this machine; the lab itself is fine."""


class NotReserved(ConnectError):
    """The command that reserves a lab refused, or ended while the lab was in use."""


class HelloRefused(HostError):
    """The agent answered, but this run must not use it."""


class AgentLost(HostError):
    """The connection to a running agent broke; the agent, if it lives, restores after its lease."""


class HostLacks(HostError):
    """The hosts' kernels can run no trial; nothing was changed or sent."""

    exit_code = CANNOT_TELL


class HostChanged(HostError):
    """A host has changed since the resumed run began; nothing was changed or sent."""


class SettingRefused(HostError):
    """The host refused a setting, or read back another value than was written."""


class Unseen(HostError):
    """The user cannot see what root's runs left; the user's own runs left nothing."""


class NothingToWatch(HostError):
    """What to watch is not on the host, or this user may not see it."""

    exit_code = BAD_INPUT


class SafetyError(HostError):
    """A packet might have gone to an unproven destination; nothing was sent."""


class WorkerFailed(HostError):
    """A worker process ended early or reported an error."""


class DeadlineExceeded(HostError):
    """A condition was not met before its deadline."""


class AgentError(HostError):
    """The agent failed in a way that no other class describes."""


class PathError(UdpbenchError):
    """No packet arrived in the path phase; nothing was measured."""


class CannotTell(UdpbenchError):
    """Cannot tell whether a point is worse than another, or whether the ledger is reliable."""

    exit_code = CANNOT_TELL


class RestoreError(HostError):
    """A host could not be restored; the message names what remains."""

    exit_code = NOT_RESTORED


class Interrupted(UdpbenchError):
    """SIGINT or SIGTERM ended the run, and hosts were restored."""

    exit_code = INTERRUPTED


def _with_subclasses(cls: type[UdpbenchError]) -> Iterator[type[UdpbenchError]]:
    yield cls
    for below in cls.__subclasses__():
        yield from _with_subclasses(below)


ERRORS = {cls.__name__: cls for cls in _with_subclasses(UdpbenchError)}


def code_of(kind: str) -> int:
    """Return the exit code of an error from the name of its class, as stored in a run folder."""
    return ERRORS.get(kind, UdpbenchError).exit_code


_NEXT_STEPS = {
    errno.ENODEV: "it was removed or renamed: check `ip link` there, and what changed it",
    errno.ENXIO: "it was removed or renamed: check `ip link` there, and what changed it",
    errno.ENETDOWN: "it was taken down: check `ip link` there, and what took it down",
    errno.ENOENT: "it was removed, or this kernel does not have it: check that it exists",
    errno.ESRCH: "the process has ended: find out why",
    errno.EISDIR: "it is a folder: choose another path",
    errno.EADDRINUSE: "find what uses it (`ss -nap`), or choose another port",
    errno.EADDRNOTAVAIL: "check `ip address` there",
    errno.ENOSPC: "free space on that disk",
    errno.EDQUOT: "free space within the quota",
    errno.EROFS: "choose a writable path",
    errno.EACCES: "give this user the permission, or run as root",
    errno.EPERM: "give this user the permission, or run as root",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENOMEM: "find out what uses the memory",
    errno.ENOBUFS: "find out what uses the memory",
}


def next_step(code: Optional[int]) -> str:
    """Return what to do about an error of the system, by its errno."""
    return _NEXT_STEPS.get(code or 0, "check what changed there, and run again")


def in_words(error: BaseException, doing: str = "", where: str = "") -> str:
    """Return what an exception not of our own reports: what failed, where, and the next step.

    ``where`` is used if the exception does not name a file. Anything but an OSError is a bug of
    udpbench, and shown with its class for a bug report.
    """
    during = f", while {doing}" if doing else ""
    if not isinstance(error, OSError):
        what = f"a bug of udpbench{during}: {type(error).__name__}: {error}"
        return f"{what}; its traceback is on stderr; report it"
    where = str(error.filename) if error.filename is not None else where
    what = error.strerror or str(error)
    step = "" if ";" in what else f"; {next_step(error.errno)}"  # our own messages have a step
    return f"{f'{where}: ' if where else ''}{what}{during}{step}"


def to_wire(
    error: BaseException, host: str = "", doing: str = "", where: str = ""
) -> dict[str, str]:
    """Return ``{kind, message, host}``; any other exception becomes an AgentError."""
    if isinstance(error, HostError):
        return {"kind": type(error).__name__, "message": error.message, "host": error.host or host}
    message = in_words(error, doing, where)
    return {"kind": AgentError.__name__, "message": message, "host": host}


def unforeseen(error: BaseException) -> Unforeseen:
    """Return a bug as an error, with its traceback in a file."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="udpbench-bug-", suffix=".txt", delete=False
    ) as file:
        traceback.print_exception(error, file=file)
    what = printable(f"{type(error).__name__}: {error}", keep="")[:MESSAGE_CHARACTERS]
    return Unforeseen(f"udpbench: this is a bug: {what}; traceback: {file.name}")


def from_wire(error: dict[str, str], host: str = "") -> HostError:
    """Return the error that ``to_wire`` described, of the same class, named after ``host``."""
    cls = ERRORS.get(error.get("kind", ""), AgentError)
    if not issubclass(cls, HostError):
        cls = AgentError
    # A message with line breaks could imitate output of udpbench, and another's name another host.
    message = printable(error.get("message", "no message")[:MESSAGE_CHARACTERS], keep="")
    return cls(message, host or printable(error.get("host", ""), keep=""))

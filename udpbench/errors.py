"""Every error udpbench raises on purpose; anything else that escapes is a bug.

    UdpbenchError                 exit code 3
    ├── InputError                2   definitions, options, paths: everything wrong at once
    ├── RecordError               2   a run folder that is missing, foreign or damaged
    ├── HostError                 3   something failed on, or on the way to, one host
    │   ├── ConnectError              the host could not be reached or the agent not started
    │   │   └── NotPermitted          this machine does not let this user make a built-in lab
    │   ├── HelloRefused              protocol or build differ, or the namespace is held by a run
    │   ├── AgentLost                 the channel to a running agent broke
    │   ├── HostLacks                 a host's kernel has not what an experiment asks for
    │   ├── HostChanged               a host is not what it was when the resumed run began
    │   ├── SettingRefused            the host would not take a setting, or did not keep it
    │   ├── SafetyError               a destination is not proven to be a lab receiver
    │   ├── WorkerFailed              a worker process ended or reported an error
    │   ├── DeadlineExceeded          a named condition did not come true in time
    │   └── AgentError                the agent failed in a way that is none of the above
    ├── PathError                 3   the path phase found that nothing arrives
    ├── RestoreError              4   a host could not be put back as it was
    └── Interrupted             130   SIGINT or SIGTERM; hosts were restored

An error crosses the wire as ``{kind, message, host}`` and is raised as the same class again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class Problem:
    """One thing wrong with the input, with all that is needed to mend it."""

    what: str
    where: str = ""
    value: Optional[str] = None
    limit: str = ""
    next_step: str = ""

    def __str__(self) -> str:
        head = f"{self.where}: " if self.where else ""
        value = f"{self.value}: " if self.value is not None else ""
        tail = "; ".join(part for part in (self.what, self.limit, self.next_step) if part)
        return f"{head}{value}{tail}"


class UdpbenchError(Exception):
    """The root: whatever udpbench raises on purpose."""

    exit_code = 3


class InputError(UdpbenchError):
    """The user's input cannot be run; holds every problem found, not just the first."""

    exit_code = 2

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in problems))


class RecordError(UdpbenchError):
    """A run folder cannot be read or written as asked."""

    exit_code = 2


class HostError(UdpbenchError):
    """Something failed on one host; ``host`` names it where it is known."""

    def __init__(self, message: str, host: str = "") -> None:
        self.message = message
        self.host = host
        super().__init__(f"{host}: {message}" if host else message)


class ConnectError(HostError):
    """The host could not be reached, or its agent could not be started there."""


class NotPermitted(ConnectError):
    """The machine does not let the user make a built-in lab; nothing is wrong with the lab."""


class HelloRefused(HostError):
    """The agent answered, but must not be used by this run."""


class AgentLost(HostError):
    """The channel to a running agent broke; its lease makes it restore by itself."""


class HostLacks(HostError):
    """A host's kernel has not what an experiment asks for; nothing was changed or sent."""


class HostChanged(HostError):
    """A host is not what it was when the resumed run began; nothing was changed or sent."""


class SettingRefused(HostError):
    """The host refused a setting, or read back something else than was written."""


class SafetyError(HostError):
    """A packet might have gone somewhere it was not meant to; nothing was sent."""


class WorkerFailed(HostError):
    """A worker process ended early or reported an error."""


class DeadlineExceeded(HostError):
    """A named condition did not come true before its deadline."""


class AgentError(HostError):
    """The agent failed in a way it has no better word for."""


class PathError(UdpbenchError):
    """The path phase found that packets do not arrive; nothing was measured."""


class RestoreError(HostError):
    """A host could not be put back as it was; the message names what remains."""

    exit_code = 4


class Interrupted(UdpbenchError):
    """The run was asked to end by SIGINT or SIGTERM and has restored its hosts."""

    exit_code = 130


HOST_ERRORS: dict[str, type[HostError]] = {
    cls.__name__: cls
    for cls in (
        HostError,
        ConnectError,
        NotPermitted,
        HelloRefused,
        AgentLost,
        HostLacks,
        HostChanged,
        SettingRefused,
        SafetyError,
        WorkerFailed,
        DeadlineExceeded,
        AgentError,
        RestoreError,
    )
}


def to_wire(error: BaseException, host: str = "") -> dict[str, str]:
    """Return ``{kind, message, host}``; an error that is not ours becomes an AgentError."""
    if isinstance(error, HostError):
        return {"kind": type(error).__name__, "message": error.message, "host": error.host or host}
    message = f"{type(error).__name__}: {error}"
    return {"kind": AgentError.__name__, "message": message, "host": host}


def from_wire(error: dict[str, str], host: str = "") -> HostError:
    """Return the error that ``to_wire`` described, of the same class, named after ``host``."""
    cls = HOST_ERRORS.get(error.get("kind", ""), AgentError)
    return cls(error.get("message", "no message"), error.get("host") or host)

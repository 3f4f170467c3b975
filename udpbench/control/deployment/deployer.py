"""Installs agents on hosts: the controller's end of the conversation with ``agent/install``.

Owns which build a host gets and the progress messages. Independent of SSH: a connection is a pair
of pipes whose other end is ``python3 -I -S -c BOOT``. A host that has the build is sent nothing.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

from udpbench.agent import install
from udpbench.control.deployment.bundle import Bundle, Target, make_bundle, make_exporter
from udpbench.errors import AgentLost, ConnectError
from udpbench.json_lines import LinePipe
from udpbench.model.limits import SECOND_NS
from udpbench.printable import all_printable
from udpbench.units import format_bytes

OLDEST = (3, 9)
"""Python that an agent runs on."""
NEWEST = (3, 99)
"""Each has a folder of wheels here, and what pip is asked for."""
END = b"~"
"""Marks the end of the program that is sent; does not occur in it."""
PROGRAM = Path(install.__file__).read_bytes() + END
# One line without shell quotes, backslashes or !, which csh and fish treat differently.
# It checks the version itself, because an older Python cannot even parse the program.
BOOT = (
    f"import os,sys;sys.version_info<{OLDEST}and "
    'sys.exit("Python "+sys.version.split()[0]+" is too old");'
    's=b"".join(iter(lambda:os.read(0,1).strip(b"~"),b""));'
    'g={"__name__":"udpbench","SOURCE":s.decode()};exec(s,g);g["serve"]()'
)
PROGRESS_NS = 2 * SECOND_NS
"""Interval between progress lines."""
LAUNCHER = f"{install.SYSTEM}/{install.LAUNCHER}"
OBSERVER_LAUNCHER = f"{install.SYSTEM}/{install.OBSERVER_LAUNCHER}"
FORMS: dict[str, dict[str, Any]] = {
    "report": {
        "python": (int, int),
        **dict.fromkeys(("machine", "libc", "libc_version", "executable"), str),
        "uid": int,
        "distrusted": {str, type(None)},
    },
    "missing": {"builds": int},
    "receiving": {"bytes": int},
    "ready": {"folder": str, "notes": [str]},
    "removed": {"removed": [str], "busy": [str], "kept": [(str, str)]},
    "enabled": {"failed": [str]},
}
"""State of an answer → key → type, types, list of a type, or types of a list's items."""
Doing = Literal["start", "deploy"]
Make = Callable[[Target, Path | None, Callable[[str], None]], Bundle]
OBSERVER = install.OBSERVER


@dataclass(frozen=True)
class Conversation:
    """A connection to the program on one host."""

    host: str
    requests: IO[bytes]
    replies: LinePipe
    paused: Callable[[], AbstractContextManager[None]] = nullcontext
    """Stops the clock of the host's limit for what the controller does alone."""

    def send(self, request: dict[str, Any], content: bytes = b"") -> None:
        """Send one request and its content; raises OSError if the connection ended."""
        self.requests.write(json.dumps(request).encode() + b"\n" + content)
        self.requests.flush()

    def hear(self, *states: str) -> dict[str, Any]:
        """Return one answer with one of these states, verified by form.

        Raises EOFError at the end, ConnectError if the program refuses or is not udpbench's.
        """
        text = b"a line without end"
        try:
            text = self.replies.next()
            answer = all_printable(json.loads(text), keep="")
        except (ValueError, RecursionError) as error:
            what = f"its Python wrote {text[:80]!r} instead of an answer"
            raise ConnectError(f"{what}; find out what prints that", self.host) from error
        state = answer.get("state", "report") if isinstance(answer, dict) else None
        if state == "failed":
            why, step = answer.get("why"), answer.get("step")
            if step:
                raise ConnectError(f"{why}; {step}", self.host)
            step = "make room in one of them, or install it there: connect: {python: …}"
            raise ConnectError(f"the agent cannot be stored there: {why}; {step}", self.host)
        fits = state in states and all(
            _fits(answer.get(key), form) for key, form in FORMS[state].items()
        )
        if not fits:
            raise self.refusal(text)
        return dict(answer)

    def refusal(self, text: bytes) -> ConnectError:
        """Return the error for an answer that is not the program's."""
        what = f"its answer is not udpbench's: {text[:80]!r}"
        return ConnectError(f"{what}; find out what runs as python3 there", self.host)

    def begin(self) -> dict[str, Any]:
        """Send the program and return its report."""
        self.requests.write(PROGRAM)
        self.requests.flush()
        report = self.hear("report")
        if not OLDEST <= tuple(report["python"]) <= NEWEST:
            raise self.refusal(json.dumps({"python": report["python"]}).encode())
        return report


class Deployer:
    """Installs agents on the hosts of one lab."""

    def __init__(
        self,
        tell: Callable[[str, str], None] = lambda _host, _text: None,
        wheels: Path | None = None,
        refusal: str | None = None,
    ) -> None:
        """``tell`` gets host and text; ``refusal`` is the next step if nothing may be sent."""
        self._tell = tell
        self._wheels = wheels
        self._refusal = refusal
        self._bundles: dict[Target, Bundle] = {}
        self._bundling = threading.Lock()

    def bring(
        self,
        line: Conversation,
        become: bool,
        doing: Doing,
        run: tuple[str, ...],
        folder: str | None,
    ) -> str:
        """Install the agent if it is missing and start its module; return the folder of its build.

        ``folder`` is where this controller installed it before: then nothing is sent. Raises
        ConnectError, AgentLost if that build is gone, EOFError and OSError if the connection or a
        program that carries it ended.
        """
        report = _greet(line, become)
        with line.paused():  # pip may download
            bundle = self._bundle(line.host, report, make_bundle)
        request = {"do": doing, "key": bundle.key, "run": run, "folder": folder}
        request["place"] = "system" if become else "cache"
        line.send(request)
        reply = line.hear("missing", "ready")
        if reply["state"] == "missing":
            if folder is not None:
                raise AgentLost(f"its build {folder} is gone", line.host)
            reply = self._send(line, report, request, bundle, reply["builds"])
        return str(reply["folder"])

    def bring_exporter(
        self, line: Conversation, version: str, unit: Callable[[str, str], str]
    ) -> tuple[str, list[str]]:
        """Install the exporter and run it; return the folder of its build, and what failed.

        ``unit`` makes systemd's unit of the host's Python and that folder. Raises as ``bring``.
        """
        report = _greet(line, become=True)
        with line.paused():
            bundle = self._bundle(line.host, report, partial(make_exporter, version=version))
        self._become(line, report)
        request = {"do": "deploy", "key": bundle.key, "run": (OBSERVER,), "folder": None}
        request["place"] = "export"
        line.send(request)
        reply = line.hear("missing", "ready")
        if reply["state"] == "missing":
            reply = self._send(line, report, request, bundle, reply["builds"])
        folder = str(reply["folder"])
        text = unit(report["executable"], folder)
        line.send({"do": "enable", "place": "export", "key": bundle.key, "unit": text})
        return folder, list(line.hear("enabled")["failed"])

    def _bundle(self, host: str, report: dict[str, Any], make: Make) -> Bundle:
        major, minor = report["python"]
        target = Target((major, minor), report["machine"], report["libc"], report["libc_version"])
        with self._bundling:  # hosts are logged in at together, and most are alike
            if target not in self._bundles:
                try:
                    bundle = make(target, self._wheels, lambda text: self._tell(host, text))
                except ConnectError as error:
                    raise ConnectError(error.message, host) from error
                self._bundles[target] = bundle
            return self._bundles[target]

    def _send(
        self,
        line: Conversation,
        report: dict[str, Any],
        request: dict[str, Any],
        bundle: Bundle,
        others: int,
    ) -> dict[str, Any]:
        noun = "exporter" if request["place"] == "export" else "agent"
        what = f"only other builds of the {noun} installed" if others else f"no {noun} installed"
        if self._refusal is not None:
            raise ConnectError(f"{what}; {self._refusal}", line.host)
        archive = bundle.archive()
        if request["place"] == "system":
            self._become(line, report)
        self._tell(line.host, f"{what}; sending it ({format_bytes(len(archive))})")
        digest = hashlib.sha256(archive).hexdigest()
        line.send({**request, "sha256": digest, "bytes": len(archive)}, archive)
        told_ns, arrived = time.monotonic_ns(), 0
        while (reply := line.hear("receiving", "ready"))["state"] == "receiving":
            if not arrived < reply["bytes"] <= len(archive):
                raise line.refusal(json.dumps(reply).encode())
            arrived = reply["bytes"]
            if time.monotonic_ns() - told_ns > PROGRESS_NS:
                told_ns = time.monotonic_ns()
                self._tell(line.host, f"{arrived * 100 // len(archive)} % transferred")
        for note in reply["notes"]:
            self._tell(line.host, f"not in {note}")
        self._tell(line.host, f"{noun} installed in {reply['folder']}")
        return reply

    def _become(self, line: Conversation, report: dict[str, Any]) -> None:
        if report["uid"] == 0:
            return
        words = ["sudo", "-n", "--", report["executable"], "-I", "-S", "-c", BOOT]
        line.send({"do": "become", "words": words})
        line.begin()

    def remove(self, line: Conversation, become: bool) -> bool:
        """Remove every build of the agent that is not in use; return whether none is left."""
        return self._remove(line, become, "system" if become else "cache", "agent")

    def remove_exporter(self, line: Conversation) -> bool:
        """End the exporter and remove all of it; return whether nothing is left."""
        return self._remove(line, True, "export", "exporter")

    def _remove(self, line: Conversation, become: bool, place: str, noun: str) -> bool:
        report = _greet(line, become)
        if become:
            self._become(line, report)
        line.send({"do": "remove", "place": place})
        reply = line.hear("removed")
        for folder in reply["removed"]:
            self._tell(line.host, f"removed {folder}")
        for folder in reply["busy"]:
            self._tell(line.host, f"kept {folder}: a running {noun} uses it")
        for folder, why in reply["kept"]:
            self._tell(line.host, f"kept {folder}: {why}")
        if not any(reply[key] for key in ("removed", "busy", "kept")):
            self._tell(line.host, f"no {noun} installed")
        return not reply["busy"] and not reply["kept"]


def _greet(line: Conversation, become: bool) -> dict[str, Any]:
    """Return a host's report; a Python that another user can change is never run as root."""
    report = line.begin()
    if become and report["distrusted"] is not None:
        what = f"its Python {report['executable']} must not be run by root: {report['distrusted']}"
        step = "put root's own Python first in PATH there, or name it: connect: {python: …}"
        raise ConnectError(f"{what}; {step}", line.host)
    return report


def _fits(value: Any, form: Any) -> bool:
    if isinstance(form, tuple):
        same = isinstance(value, list) and len(value) == len(form)
        return same and all(map(_fits, value, form))
    if isinstance(form, list):
        return isinstance(value, list) and all(_fits(item, form[0]) for item in value)
    return type(value) in (form if isinstance(form, set) else {form})

"""An exporter from its options to its end.

Checks all options before anything is started.
"""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from udpbench.control.wait import Clock, Interrupt
from udpbench.errors import InputError, Problem, in_words
from udpbench.export.exporter import Exporter, ServedPage, TextFile, Tls, listener, mutual_tls
from udpbench.export.surveys import Own, Surveyed, observer, surveys
from udpbench.flight import LEAST_BYTES, Recorder
from udpbench.installation import how_to_add
from udpbench.model.limits import SECOND_NS
from udpbench.protocol import build_id
from udpbench.units import format_bytes, parse_bytes, parse_duration

COLLECTED = 50_000
"""Objects made before cycles are looked for: each look makes thousands, hardly one in a cycle."""
LABELS = ("address",)
"""Those that are left out unless asked for."""


@dataclass(frozen=True)
class Options:
    """Options of ``export`` as they are typed; what is not given is None."""

    listen: str | None = None
    textfile: str | None = None
    record: str | None = None
    every: str = "5s"
    at_most: str = "2GiB"
    exact: bool = False
    label: Sequence[str] = ()
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    cpu_time: bool = False

    @property
    def every_ns(self) -> int:
        """Between two looks."""
        return parse_duration(self.every)

    @property
    def tls(self) -> Tls | None:
        """The files of TLS, if it is asked for."""
        if self.tls_cert is None or self.tls_key is None or self.tls_client_ca is None:
            return None
        return Tls(Path(self.tls_cert), Path(self.tls_key), Path(self.tls_client_ca))


def check(options: Options) -> None:
    """Raise InputError with everything wrong in options, but for files and addresses."""
    problems = [*_wrong_values(options), *_wrong_tls(options)]
    if options.listen is None and options.textfile is None and options.record is None:
        step = "udpbench export --listen 127.0.0.1:10717"
        where = "--listen, --textfile, --record"
        problems.append(Problem("nothing to export to", where, next_step=step))
    if options.cpu_time and options.record is None:
        problems.append(Problem("CPU time is only recorded", "--cpu-time", "", "", "add --record"))
    problems += [
        Problem("not a label", "--label", name, ", ".join(LABELS))
        for name in options.label
        if name not in LABELS
    ]
    if problems:
        raise InputError(problems)


def _wrong_values(options: Options) -> list[Problem]:
    problems = []
    try:
        if not SECOND_NS <= options.every_ns <= 60 * SECOND_NS:
            problems.append(Problem("out of range", "--every", options.every, "1s to 60s"))
    except ValueError as error:
        problems.append(Problem(str(error), "--every", options.every))
    try:
        if parse_bytes(options.at_most) < LEAST_BYTES:
            limit = f"at least {format_bytes(LEAST_BYTES)}"
            problems.append(Problem("out of range", "--at-most", options.at_most, limit))
    except ValueError as error:
        problems.append(Problem(str(error), "--at-most", options.at_most))
    return problems


def _wrong_tls(options: Options) -> list[Problem]:
    files = {
        "--tls-cert": options.tls_cert,
        "--tls-key": options.tls_key,
        "--tls-client-ca": options.tls_client_ca,
    }
    missing = [name for name, file in files.items() if file is None]
    if len(missing) in (0, len(files)):
        return []
    what = "TLS needs all three files"
    return [Problem(what, ", ".join(missing), next_step="name them, too")]


def require_library() -> None:
    """Raise InputError where prometheus_client is not installed."""
    if find_spec("prometheus_client") is None:
        what, step = "needs the package prometheus_client", how_to_add("export")
        raise InputError([Problem(what, "export", next_step=step)])


def run(options: Options, version: str, say: Callable[[str], None]) -> None:
    """Export until SIGINT or SIGTERM; raises InputError, ConnectError, AgentLost."""
    check(options)
    if options.listen is not None or options.textfile is not None:
        require_library()
    gc.set_threshold(COLLECTED)
    records = options.record is not None
    asked = {"exact": options.exact, "cpu-time": options.cpu_time, "changes": records}
    words = [word for word, is_asked in asked.items() if is_asked]
    with _exporter(options, version, say) as exporter, observer(words) as client:
        if options.listen is not None:
            way = "http" if options.tls is None else "https"
            say(f"metrics: {way}://{options.listen}/metrics")
        every_ns = SECOND_NS if records else options.every_ns
        looks = surveys(client, options.exact, every_ns, Clock(), Interrupt(), records)
        exporter.run(announced(looks, os.environ.get("NOTIFY_SOCKET", "")))


def announced(looks: Iterable[Surveyed], place: str) -> Iterator[Surveyed]:
    """Yield looks; once the first is shown, tell a service manager that waits for it."""
    for number, each in enumerate(looks):
        yield each
        if number == 0 and place:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line, suppress(OSError):
                line.sendto(b"READY=1", f"\0{place[1:]}" if place[0] == "@" else place)


def _exporter(options: Options, version: str, say: Callable[[str], None]) -> Exporter:
    tls, every_ns = options.tls, options.every_ns
    if tls is not None:
        try:
            mutual_tls(tls)
        except OSError as error:
            where = "--tls-cert, --tls-key, --tls-client-ca"
            raise InputError([Problem(in_words(error), where, str(tls.certificate))]) from error
    file = TextFile(Path(options.textfile)) if options.textfile is not None else None
    recorder = _recorder(options, version) if options.record is not None else None
    opened = listener(options.listen, tls) if options.listen is not None else None
    return Exporter(
        Own(version, build_id()),
        bool(options.label),
        ServedPage(opened, tls, every_ns) if opened is not None else None,
        file,
        say,
        every_ns,
        recorder,
    )


def _recorder(options: Options, version: str) -> Recorder:
    folder = Path(options.record or "")
    about = {"version": version, "build": build_id()}
    try:
        return Recorder(folder, parse_bytes(options.at_most), about)
    except OSError as error:
        raise InputError([Problem(in_words(error, where=str(folder)), "--record")]) from error

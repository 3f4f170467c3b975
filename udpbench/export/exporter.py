"""``udpbench export``: what surveys of this machine say, for Prometheus to read.

Owns where it goes: a page, which a process without any right serves, and a file.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import IO, cast

from udpbench.agent import scrapes
from udpbench.analysis.watch.sums import Sums
from udpbench.control.connections.local_agent import MODULE, own_environment
from udpbench.errors import AgentLost, InputError, Problem, in_words
from udpbench.export.surveys import Own, Surveyed
from udpbench.flight import Recorder
from udpbench.folder import Folder
from udpbench.heap import TIDIED_LOOKS, tidy
from udpbench.model.limits import SECOND_NS

SERVER = scrapes.__name__
FRESH_LOOKS = 3
"""Missed before the page says that there is nothing new."""
END_S = 5.0
LISTEN = re.compile(r"(?:\[(?P<v6>[^\]]+)\]|(?P<v4>[^:]+)):(?P<port>[0-9]{1,5})")
ADDRESS_LIMIT = "ADDRESS:PORT, as 127.0.0.1:10717 or [::1]:10717"
BESIDE = r"\.{}\.[0-9a-f]{{8}}"
"""Files that a killed exporter may have left (``Folder.write``)."""


@dataclass(frozen=True)
class Tls:
    """The files of a page that takes clients with a certificate alone."""

    certificate: Path
    key: Path
    authority: Path


def mutual_tls(files: Tls) -> ssl.SSLContext:
    """Return TLS that takes clients with a certificate of the authority alone; OSError."""
    return scrapes.mutual_tls(str(files.certificate), str(files.key), str(files.authority))


def place_of(text: str, tls: Tls | None) -> tuple[str, int]:
    """Return the address and port of a page; raises InputError."""
    match = LISTEN.fullmatch(text)
    try:
        address = ip_address((match["v6"] or match["v4"]) if match is not None else "")
        port = int(match["port"]) if match is not None else 0
    except ValueError:
        raise InputError([Problem("not an address", "--listen", text, ADDRESS_LIMIT)]) from None
    if not address.is_loopback and tls is None:
        step = "name --tls-cert, --tls-key and --tls-client-ca, or listen at 127.0.0.1"
        what = "others could read who uses this host"
        raise InputError([Problem(what, "--listen", text, "an address of loopback", step)])
    return str(address), port


def listener(text: str, tls: Tls | None) -> socket.socket:
    """Return the socket of the page; raises InputError."""
    address, port = place_of(text, tls)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((address, port))
        # At once: until then another user's socket could listen there in its place (socket(7)).
        opened.listen(scrapes.MOST_CLIENTS)
    except (OSError, OverflowError) as error:
        opened.close()
        what = in_words(error) if isinstance(error, OSError) else "not a port"
        limit = "" if isinstance(error, OSError) else "a port from 1 to 65535"
        raise InputError([Problem(what, "--listen", text, limit)]) from error
    return opened


class ServedPage:
    """The process that serves the latest text."""

    def __init__(self, opened: socket.socket, tls: Tls | None, every_ns: int) -> None:
        fresh_s = FRESH_LOOKS * every_ns / SECOND_NS
        files = (tls.certificate, tls.key, tls.authority) if tls is not None else ()
        command = (*MODULE, SERVER, str(opened.fileno()), f"{fresh_s:g}")
        self._process = subprocess.Popen(
            (*command, *map(str, files)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=(opened.fileno(),),
            env=own_environment(),
        )
        opened.close()
        self._texts = cast("IO[bytes]", self._process.stdin)
        self._replies = cast("IO[bytes]", self._process.stdout).fileno()
        os.set_blocking(self._replies, False)
        self._rest = b""
        self.delivered = self.cpu_ns = 0
        """The latest text that a client has, and what the process has used."""

    def replace(self, text: bytes) -> None:
        """Show a text from now on; raises AgentLost."""
        try:
            self._texts.write(len(text).to_bytes(scrapes.LENGTH_BYTES, "big") + text)
            self._texts.flush()
        except OSError as error:
            status = self._process.wait(END_S)
            what = f"the process that serves the page ended (status {status}); see its last words"
            raise AgentLost(what) from error

    def hear(self) -> None:
        """Learn which text a client has."""
        with contextlib.suppress(BlockingIOError):
            self._rest += os.read(self._replies, 2**16)
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines[-1:]:
            number, cpu_ns = line.split()
            self.delivered, self.cpu_ns = int(number), int(cpu_ns)

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            self._texts.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _folder_at(path: Path) -> Folder:
    """Return a folder, also Debian's for node_exporter: root's, in another user's; OSError."""
    try:
        return Folder.open(path, give=False)
    except PermissionError:
        with contextlib.suppress(OSError):
            return Folder.open_own(path)
        raise


class TextFile:
    """A file that node_exporter's textfile collector reads; each text replaces it whole."""

    def __init__(self, path: Path) -> None:
        """Raise InputError if it cannot be written."""
        problem = Problem(
            "node_exporter reads files of this name alone", "--textfile", str(path), "*.prom"
        )
        if path.suffix != ".prom":
            raise InputError([problem])
        self._name = path.name
        try:
            self._folder = _folder_at(path.parent)
            beside = re.compile(BESIDE.format(re.escape(self._name)))
            for name in filter(beside.fullmatch, self._folder.names()):
                self._folder.remove(name)
        except OSError as error:
            raise InputError([Problem(in_words(error), "--textfile", str(path))]) from error

    def replace(self, text: bytes) -> None:
        """Write a text, which node_exporter may read whatever the umask is; OSError."""
        self._folder.write(self._name, text, 0o644)

    def remove(self) -> None:
        """Leave nothing that node_exporter would take for news."""
        with contextlib.suppress(OSError):
            self._folder.remove(self._name)
        self._folder.close()


class Exporter:
    """One host's sums and where they go."""

    def __init__(
        self,
        own: Own,
        with_address: bool,
        page: ServedPage | None,
        file: TextFile | None,
        say: Callable[[str], None],
        every_ns: int = 0,
        recorder: Recorder | None = None,
    ) -> None:
        """``every_ns``: between two texts, whatever there is between two looks."""
        self._own = own
        self._every_ns, self._shown_ns = every_ns, 0
        self._recorder = recorder
        self._sums = Sums(with_address)
        self._page, self._file, self._say = page, file, say
        self._text = None
        if page is not None or file is not None:
            from udpbench.export.exposition import Page  # what only records needs no package

            self._text = Page(with_address, served=page is not None, stored=file is not None)
        self._errors = dict(own.errors)
        self._lasting: dict[str, str] = {}
        """What fails → why, since it last worked."""

    def show(self, each: Surveyed) -> None:
        """Count a survey, and show it; raises AgentLost."""
        if each.survey is None:
            self._fail("look", str(each.error))
            return
        self._lasting.pop("look", None)
        if each.survey.cpu_time_why and "cpu" not in self._lasting:
            self._lasting["cpu"] = each.survey.cpu_time_why
            self._say(f"CPU time is not recorded: {each.survey.cpu_time_why}")
        before = self._sums.lost_packets
        self._sums.add(each.survey, each.facts)
        if self._recorder is not None:
            lost = self._sums.lost_packets - before
            self._try("record", partial(self._recorder.add, each.survey, each.facts, lost))
        wall_ns = each.survey.wall_ns
        if self._text is None or 0 <= wall_ns - self._shown_ns < self._every_ns - SECOND_NS // 2:
            return
        self._shown_ns = wall_ns
        cpu_seconds = time.process_time()
        if self._page is not None:
            self._page.hear()
            self._text.delivered = self._page.delivered
            cpu_seconds += self._page.cpu_ns / SECOND_NS
        own = Own(
            self._own.version,
            self._own.build,
            cpu_seconds,
            each.took_ns / SECOND_NS,
            wall_ns,
            self._errors,
        )
        text = self._text.text(self._sums, own)
        if self._page is not None:
            self._page.replace(text)
        if self._file is not None:
            self._try("file", partial(self._file.replace, text))

    def _try(self, what: str, act: Callable[[], None]) -> None:
        try:
            act()
        except OSError as error:
            self._fail(what, in_words(error))
        else:
            self._lasting.pop(what, None)

    def _fail(self, what: str, why: str) -> None:
        """Count a failure, and say it once as long as it lasts."""
        self._errors[what] = self._errors.get(what, 0) + 1
        if why != self._lasting.get(what):
            self._say(why)
        self._lasting[what] = why

    def run(self, each: Iterable[Surveyed]) -> None:
        """Show every survey until there are no more."""
        for number, surveyed in enumerate(each, 1):
            self.show(surveyed)
            if number % TIDIED_LOOKS == 0:
                tidy()

    def __enter__(self) -> Exporter:  # noqa: PYI034 - Self is of Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        if self._page is not None:
            self._page.close()
        if self._file is not None:
            self._file.remove()
        if self._recorder is not None:
            self._recorder.close()

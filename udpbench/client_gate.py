"""An iperf3 client's test as a gate: a server beside a test, and what its clients lost."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Self

from udpbench.analysis.comparison.point_results import PointResult
from udpbench.analysis.judge import judge
from udpbench.analysis.served import answer
from udpbench.control.agents import observing, serving
from udpbench.control.lab_lock import Surroundings
from udpbench.control.serve import (
    LISTENING,
    ServeTerms,
    ServeView,
    addresses_of,
    next_folder,
    serve,
    store_test,
)
from udpbench.control.wait import Interrupt
from udpbench.control.watch import lab_to_watch
from udpbench.errors import InputError, Problem, UdpbenchError
from udpbench.gate import stored_results
from udpbench.model.record import TrialRecord


class _Beside(Interrupt):
    """The end of a server in a thread, where no signal is caught."""

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catch nothing: the test's own thread has the signals."""
        yield


class ClientGate:
    """A server for iperf3 clients beside a test: each of their tests is stored, and judged.

    A context manager: it listens within the block. ``note`` is called with the run folder of each
    test whose result is asked for. Raises what ``control.serve`` does, and InputError.
    """

    def __init__(
        self,
        folder: Path,
        command: tuple[str, ...],
        note: Callable[[Path], None],
        host: str | None = None,
        listen: str | None = None,
        port: int = 5201,
    ) -> None:
        if not 0 < port < 2**16:
            raise InputError([Problem("out of range", "port", str(port), "1 to 65535")])
        self.port = port
        self._folder = folder
        self._command = command
        self._note = note
        self._lab = lab_to_watch(host, None)
        self._terms = ServeTerms(addresses_of(listen), port)
        self._interrupt = _Beside()
        self._listening = threading.Event()
        self._stored: queue.SimpleQueue[Path] = queue.SimpleQueue()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._serve, name="serve", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._listening.wait()
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        self._interrupt.requested = True
        self._thread.join()

    def result(self, within_s: float = 60.0) -> PointResult:
        """Return the result of the next test that ends; raises TimeoutError."""
        try:
            folder = self._stored.get(timeout=within_s)
        except queue.Empty:
            why = self._error or f"no iperf3 client ended a test within {within_s:g} s"
            raise TimeoutError(str(why)) from None
        (result,) = stored_results(folder).values()
        self._note(folder)
        return result

    def _serve(self) -> None:
        around = Surroundings(observing(self._terms.observed), interrupt=self._interrupt)
        screen = ServeView(self._say, lambda: nullcontext(lambda _: None), _answered, self._keep)
        try:
            serve(self._lab, self._terms, around, serving(self._terms.words), screen)
        except UdpbenchError as error:
            self._error = error
        finally:
            self._listening.set()

    def _say(self, text: str) -> None:
        if text.startswith(LISTENING):
            self._listening.set()

    def _keep(self, record: TrialRecord) -> None:
        folder = next_folder(self._folder)
        store_test(record, self._lab, folder, self._command)
        self._stored.put(folder)


def _answered(record: TrialRecord) -> str:
    return answer(record, judge(record))

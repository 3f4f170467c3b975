"""The engine that is Dask: cells as tasks of ``distributed``, one at a time on each worker.

The only module that imports Dask. A task is the name of ``run_placed`` with plain texts; pickle
writes a module's function as its name, so no code travels. Dask keeps no state that is needed.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import queue
import secrets
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dask
from distributed import Client, Future, LocalCluster, get_worker
from distributed.security import Security

from udpbench.campaign.cell_run import refused, run_cell
from udpbench.campaign.conduct import News
from udpbench.campaign.open_ports import RESOURCE, open_ports, scheduler_command, worker_command
from udpbench.errors import ConnectError, InputError, Problem, in_words
from udpbench.folder import path_writers
from udpbench.printable import printable

RESTORED_S = 60.0
"""The longest wait for hosts after an interruption: twice the agents' lease, and slow settings."""
POLL_S = 1.0
"""Between two questions which workers there are."""
OTHER_BUILD = (ImportError, AttributeError)
"""Raised there by the name of a function that it lacks."""
ANSWER_S = 10.0
"""For workers and scheduler to say which of their ports are open."""
WHERE = "--scheduler"
SAFE = (
    "beyond loopback a port must demand certificates (TLS), "
    "and nobody but its user and root may write what it imports"
)
HTTP_SERVERS = ("scheduler", "worker")
NOWHERE = "127.0.0.1:0"
UNWANTED = ("cancelled", "resumed", "released", "forgotten")
"""States of a task on its worker after its client has left or withdrawn it."""


def run_placed(task: Mapping[str, Any]) -> dict[str, Any]:
    """Run a cell in a worker's thread; its output goes to the campaign that placed it."""
    worker = get_worker()
    key = worker.get_current_task()

    def say(line: str, ended: bool = False) -> None:
        news = {"cell": task["folder"], "line": line, "ended": ended}
        worker.log_event(task["topic"], news)

    def unwanted() -> bool:
        state = worker.state.tasks.get(key)
        return state is None or state.state in UNWANTED

    say("")
    try:
        # The campaign looks at workers about once a second: this one may be newer.
        unsafe = complaints()
        return refused(f"the worker {unsafe}") if unsafe else run_cell(task, say, unwanted)
    finally:
        say("", ended=True)


def complaints() -> str:
    """Return why nobody should use this process or, if it is a worker, its nanny; "" if safe."""
    # Not getppid(), which may be multiprocessing's fork server.
    nanny = multiprocessing.parent_process()
    try:
        processes = [os.getpid(), *([] if nanny is None or nanny.pid is None else [nanny.pid])]
        ports = [port for process in processes for port in open_ports(process)]
    except OSError as error:
        return f"cannot see which of its ports are open: {in_words(error)}"
    if ports:
        return f"accepts commands from the network on {', '.join(ports)}"
    # A worker's nanny has passed on its own sys.path, which Dask adds its folder to.
    writers = (how for entry in sys.path for how in path_writers(Path(entry).absolute()))
    return next((f"imports what others may write: {how}" for how in writers), "")


async def look() -> str:
    """Return the complaints about a scheduler or worker; its loop still answers meanwhile."""
    return await asyncio.to_thread(complaints)


class DaskEngine:
    """One client of one scheduler."""

    def __init__(self, address: str | None, pairs: int, warn: Callable[[str], None]) -> None:
        # Dask reports lost connections as tracebacks; we report them as messages.
        for name in [*logging.root.manager.loggerDict]:
            if name.partition(".")[0] == "distributed":
                logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        warnings.filterwarnings("ignore", module="distributed")  # such as: no route to 8.8.8.8
        self.address = address
        self._topic = f"udpbench-{secrets.token_hex(8)}"
        self._heard: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._placed: dict[str, Future] = {}
        self._begun: set[str] = set()
        self._served: tuple[float, frozenset[str]] | None = None
        self._safe: set[str] = set()
        """Workers that were looked at."""
        self._own = ExitStack()
        """What ends with it."""
        try:
            self._client = self._connected(address, pairs)
            self._own.callback(self._client.close, timeout=2)
            self._client.subscribe_topic(self._topic, self._hear)
            if address is None:
                return
            self._refuse_open_scheduler(address)
            self._resources()
        except BaseException:
            self.close()
            raise
        if address.startswith("tcp:"):
            warn(f"{address} accepts commands from every user of this machine; if unsafe, use TLS")

    def serves(self, pair: str) -> bool:
        """Return whether any worker would run the cells of a pair."""
        return bool({RESOURCE, f"{RESOURCE}-{pair}"} & self._resources())

    def how_to_serve(self, pair: str) -> str:
        """Return the command that starts a worker for any pair, named after this pair."""
        return worker_command(str(self.address), pair)

    def place(self, pair: str, task: Mapping[str, Any]) -> None:
        """Run a cell on a worker that serves its pair, preferably a worker of that pair only."""
        own = f"{RESOURCE}-{pair}"
        resource = own if own in self._resources() else RESOURCE
        cell = task["folder"]
        future = self._client.submit(
            run_placed,
            {**task, "topic": self._topic},
            key=f"{self._topic}-{cell}-{secrets.token_hex(4)}",
            pure=False,
            resources={resource: 1},
        )
        self._placed[cell] = future
        future.add_done_callback(lambda done: self._heard.put((cell, done)))

    def news(self, wait_s: float) -> Sequence[News]:
        """Return news of cells; ConnectError if the scheduler is lost."""
        news = []
        try:
            cell, heard = self._heard.get(timeout=wait_s)
            while True:
                news += self._news_of(cell, heard)
                cell, heard = self._heard.get_nowait()
        except queue.Empty:
            pass
        if self._client.status != "running":
            raise self._lost()
        return news

    def forget(self, cell: str) -> None:
        """Withdraw a cell."""
        future = self._placed.pop(cell, None)
        if future is not None:
            self._client.cancel([future])

    def withdraw(self) -> None:
        """Interrupt every running cell, and wait until its hosts are restored."""
        if self._client.status != "running":
            return
        self._client.cancel(list(self._placed.values()))
        self._placed.clear()
        deadline = time.monotonic() + RESTORED_S
        while self._begun and time.monotonic() < deadline:
            try:
                self._news_of(*self._heard.get(timeout=0.1))
            except queue.Empty:
                continue

    def close(self) -> None:
        """Disconnect from the scheduler; end our own."""
        self._own.close()

    def _connected(self, address: str | None, pairs: int) -> Client:
        security = Security()
        if address is not None and address.startswith("tls:"):
            if security.tls_ca_file is None or security.tls_client_cert is None:
                step = "see docs/campaigns.md#over-a-network"
                what = "no certificates: distributed.comm.tls has no ca-file, or no client.cert"
                raise InputError([Problem(what, WHERE, address, "", step)])
            security = Security(require_encryption=True)
        try:
            return Client(
                self._own.enter_context(_own_cluster(pairs)) if address is None else address,
                security=None if address is None else security,
                set_as_default=False,
            )
        except (OSError, TimeoutError) as error:
            step = f"start it: {scheduler_command(str(address))}, or correct --scheduler {address}"
            raise ConnectError(f"no scheduler answers at {address}: {error}; {step}") from error

    def _hear(self, event: tuple[float, Mapping[str, Any]]) -> None:
        self._heard.put((event[1]["cell"], event[1]))

    def _news_of(self, cell: str, heard: Any) -> list[News]:
        if not isinstance(heard, Future):
            (self._begun.discard if heard["ended"] else self._begun.add)(cell)
            return [News(cell, line=heard["line"])] if heard["line"] else []
        future = self._placed.get(cell)
        if future is None or future is not heard:
            return []
        if future.status in ("cancelled", "lost"):
            raise self._lost()
        del self._placed[cell]
        self._begun.discard(cell)
        if future.status == "finished":
            return [News(cell, result=future.result())]
        error = future.exception()
        return [News(cell, lost=f"its worker failed: {type(error).__name__}: {error}")]

    def _lost(self) -> ConnectError:
        what = f"scheduler {self.address} lost; running cells end and restore their hosts"
        return ConnectError(f"{what}; type the same command to continue")

    def _resources(self) -> frozenset[str]:
        """Return the names of the workers' resources, as of the latest update."""
        now = time.monotonic()
        if self._served is None or now - self._served[0] > POLL_S:
            workers = self._client.scheduler_info(n_workers=-1)["workers"]
            if self.address is not None:
                self._refuse_open_workers(self.address, workers)
                workers = {at: workers[at] for at in self._safe & workers.keys()}
            names = frozenset(name for worker in workers.values() for name in worker["resources"])
            self._served = now, names
        return self._served[1]

    def _refuse_open_scheduler(self, address: str) -> None:
        """Raise InputError if the scheduler takes orders of anyone on the network."""
        why: object
        try:
            why = self._client.run_on_scheduler(look, callback_timeout=ANSWER_S)
        except OSError as error:
            raise self._lost() from error
        except Exception as error:  # noqa: BLE001 - whatever it has instead of this udpbench
            why = error
        if why:
            what = printable(f"the scheduler {_in_words(why)}", keep="")
            step = f"end it, then start it: {scheduler_command(address)}"
            raise InputError([Problem(what, WHERE, address, SAFE, step)])

    def _refuse_open_workers(self, address: str, workers: Mapping[str, Any]) -> None:
        """Look at workers that are new; InputError if any takes orders of anyone on the network."""
        self._safe &= workers.keys()
        new = sorted(workers.keys() - self._safe)
        answers = self._client.sync(self._open_ports_of, new) if new else []
        problems = []
        for worker, why in zip(new, answers, strict=True):
            # Gone, stuck, or the client has lost the scheduler: it serves no pair until it answers.
            if isinstance(why, (OSError, asyncio.CancelledError)):
                continue
            self._safe.add(worker)
            if why:
                what = f"worker {workers[worker]['name']} {_in_words(why)}"
                step = f"end it, then start it: {worker_command(address, 'NAME')}"
                problems.append(Problem(printable(what, keep=""), WHERE, address, SAFE, step))
        if problems:
            raise InputError(problems)

    async def _open_ports_of(self, workers: Sequence[str]) -> list[Any]:
        """Return the complaints about each worker, or an error; a stuck one delays no other."""

        async def answer(worker: str) -> Any:
            asked = self._client.run(look, workers=[worker], on_error="return", asynchronous=True)
            return (await asyncio.wait_for(asked, ANSWER_S))[worker]

        return await asyncio.gather(*map(answer, workers), return_exceptions=True)


def _in_words(why: object) -> str:
    """Return complaints as they are, and an error as what is to be done about it."""
    if isinstance(why, str):
        return why
    step = "; install the same udpbench there" if isinstance(why, OTHER_BUILD) else ""
    return f"cannot be asked which of its ports are open: {type(why).__name__}: {why}{step}"


@contextmanager
def _own_cluster(pairs: int) -> Iterator[LocalCluster]:
    """Yield a scheduler and a worker with a thread for each pair, in this process.

    They communicate in memory only: any user of this machine could send commands to a port. Their
    HTTP servers cannot be disabled, so they have no page, listen on loopback only, and end at once:
    they keep all that anybody sends. Both import from a folder of their own, which no other user
    may have made before them.
    """
    nothing: dict[str, Any] = {f"distributed.{who}.http.routes": [] for who in HTTP_SERVERS}
    with TemporaryDirectory(prefix="udpbench-campaign-") as folder:
        with dask.config.set({**nothing, "temporary-directory": folder}):
            cluster = LocalCluster(
                n_workers=1,
                threads_per_worker=pairs,
                processes=False,
                dashboard_address=NOWHERE,
                worker_dashboard_address=NOWHERE,
                scheduler_kwargs={"dashboard": False},
                memory_limit=0,
                resources={RESOURCE: pairs},
            )
        try:
            cluster.sync(_end_pages, cluster)
            yield cluster
        finally:
            cluster.close(timeout=2)


async def _end_pages(cluster: LocalCluster) -> None:
    for process in (cluster.scheduler, *cluster.workers.values()):
        process.http_server.stop()
        await process.http_server.close_all_connections()

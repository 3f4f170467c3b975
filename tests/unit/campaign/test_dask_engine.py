"""The engine that is Dask, where it is installed: ``python3 noxfile.py campaigns`` installs it."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import pickle
import pickletools
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from campaign_fixture import cells
from golden import Golden

pytest.importorskip("distributed", reason="python3 noxfile.py campaigns")

import dask
from distributed import LocalCluster
from distributed.security import Security
from test_cell_run import STAND_IN

from udpbench.campaign import cell_run, dask_engine
from udpbench.campaign.cells import CampaignFolder, task_of
from udpbench.campaign.conduct import conduct
from udpbench.campaign.dask_engine import DaskEngine, complaints, run_placed
from udpbench.campaign.engines import open_engine
from udpbench.control.wait import Interrupt
from udpbench.errors import ConnectError, InputError, Interrupted


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a program stand in for ``udpbench run``."""
    Path("stand_in.py").write_text(STAND_IN)
    monkeypatch.setattr(cell_run, "PROGRAM", (sys.executable, str(Path("stand_in.py").absolute())))
    monkeypatch.setattr(cell_run, "read_run", lambda *_: type("Run", (), {"records": ()}))


def test_a_campaign_in_this_process_takes_orders_of_nobody() -> None:
    """Every cell is run once, by threads of one worker; nothing listens, on loopback neither."""
    before = listening()
    with open_engine(None, 2, print) as engine, CampaignFolder.open(Path("out")) as folder:
        assert before == listening()
        states = conduct(cells(), folder, engine, lambda *_: None, Interrupt())
    assert [(2, ""), (2, "")] == [(state.done, state.aside) for state in states]
    assert 4 == len(list(Path("out").glob("*/*/cell.json")))


def test_a_campaign_in_this_process_imports_from_a_folder_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not from Dask's, which whoever made it first may write; and it is removed, failed or not."""
    place = tmp_path / "tmp"
    (place / "dask-scratch-space").mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(place))
    before = [*sys.path]
    engine = DaskEngine(None, 1, print)
    added = [Path(entry).relative_to(place).parts[0] for entry in {*sys.path} - {*before}]
    assert 0o700 == stat.S_IMODE((place / added[0]).stat().st_mode)
    assert 1 == len(set(added))
    assert not list((place / "dask-scratch-space").iterdir())
    engine.close()
    monkeypatch.setattr(dask_engine, "Client", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        DaskEngine(None, 1, print)
    assert (before, ["dask-scratch-space"]) == (
        sys.path,
        [each.name for each in place.iterdir()],
    )


@pytest.mark.parametrize(
    ("folder_mode", "mode", "name", "safe"),
    [
        (0o755, 0o700, "", True),
        (0o1777, 0o755, "", True),
        (0o777, 0o755, "", False),
        (0o755, 0o777, "", False),
        (0o755, 0o1777, "", False),
        (0o755, 0o1777, "not there", False),
        (0o755, 0o755, "not there", True),
    ],
)
def test_a_process_that_imports_what_others_may_write_is_not_safe(
    folder_mode: int,
    mode: int,
    name: str,
    safe: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """By a folder or one around it, save as in /tmp; or one that they may yet make."""
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    inner.chmod(mode)
    inner.parent.chmod(folder_mode)
    monkeypatch.setattr(sys, "path", [*sys.path, str(inner / name)])
    wrong = inner.parent if folder_mode == 0o777 else inner
    why = f"imports what others may write: {wrong} can be written by everybody"
    assert ("" if safe else why) == complaints()


def test_whoever_connects_before_it_is_up_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What connected to a server that has ended is closed, too."""
    early: list[socket.socket] = []
    cluster = LocalCluster

    def late(**given: Any) -> LocalCluster:
        before = listening()
        up = cluster(**given)
        for address in listening() - before:
            place = ("127.0.0.1", int(address.partition(":")[2], 16))
            early.append(socket.create_connection(place, timeout=10))
            early[-1].sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999\r\n\r\n")
        return up

    monkeypatch.setattr(dask_engine, "LocalCluster", late)
    with open_engine(None, 1, print):
        assert 2 == len(early)
        for line in early:
            with line, suppress(ConnectionResetError):  # what it sent was not read
                assert b"" == line.recv(1)


def listening() -> set[str]:
    """Return the addresses and ports on which this process listens for TCP, as hexadecimal."""
    inodes = {str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()}
    files = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
    rows = [row.split() for file in files for row in file.read_text().split("\n")[1:-1]]
    return {row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes}


def test_a_task_carries_no_code() -> None:
    """Pickle names the function, and the rest is plain."""
    with CampaignFolder.open(Path("out")) as campaign:
        task = task_of(cells()[0], campaign, share=False)
    pickled = pickle.dumps((run_placed, task))
    known = {
        opcode.name
        for opcode, _, _ in pickletools.genops(pickled)
        if "REDUCE" in opcode.name or "BUILD" in opcode.name
    }
    named = [text for opcode, text, _ in pickletools.genops(pickled) if "run_placed" == text]
    assert (set(), ["run_placed"]) == (known, named)


def test_an_interrupted_campaign_waits_for_its_runs() -> None:
    """Each is interrupted, as by Ctrl-C, and has ended when the campaign has."""
    for cell in cells():
        folder = Path("out", cell.folder)
        folder.mkdir(parents=True)
        (folder / "long").touch()
    interrupt = Interrupt()

    def tell(pairs: object, text: str) -> None:
        interrupt.requested = len(list(Path("out").glob("*/*/ready"))) == 2

    with open_engine(None, 2, print) as engine, CampaignFolder.open(Path("out")) as campaign:
        with pytest.raises(Interrupted):
            conduct(cells(), campaign, engine, tell, interrupt)
        assert set() == engine._begun  # type: ignore[attr-defined]
    assert not list(Path("out").glob("*/*/cell.json"))


def test_a_scheduler_that_is_not_there(golden: Golden) -> None:
    """With what to type; by TLS only with certificates."""
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}), pytest.raises(ConnectError):
        DaskEngine("tcp://127.0.0.1:1", 1, print)
    with golden.raises(InputError):
        DaskEngine("tls://control.example:8786", 1, print)


def test_a_pair_is_served_by_what_its_workers_have(golden: Golden) -> None:
    """A worker of one pair alone serves no other; on loopback a user is warned of others."""
    messages: list[str] = []
    with LocalCluster(
        n_workers=1,
        processes=False,
        protocol="tcp",
        dashboard_address=None,
        resources={"pair-rack1": 1},
    ) as cluster:
        engine = DaskEngine(cluster.scheduler_address, 1, messages.append)
        try:
            assert [True, False] == [engine.serves("rack1"), engine.serves("rack2")]
            port = cluster.scheduler_address.rpartition(":")[2]
            golden.check(engine.how_to_serve("rack2"), port=port)
            golden.check(messages, port=port)
        finally:
            engine.close()


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """Yield a scheduler and a worker in this process, on loopback."""
    with LocalCluster(
        n_workers=1,
        processes=False,
        protocol="tcp",
        dashboard_address=None,
        resources={"pair": 1},
    ) as running:
        yield running


@pytest.mark.parametrize("safe_before", [0, 1], ids=["scheduler", "worker"])
def test_a_cluster_with_an_open_port_is_refused(
    safe_before: int, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """The scheduler is asked first, then each worker; tests/lab opens real ones."""
    looks = iter([()] * safe_before)
    monkeypatch.setattr(dask_engine, "open_ports", lambda _: next(looks, ("0.0.0.0:1", "[::]:1")))
    address = cluster.scheduler_address
    with golden.raises(InputError, port=address.rpartition(":")[2]):
        DaskEngine(address, 1, pytest.fail)


def test_a_worker_that_has_opened_a_port_since_runs_nothing(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """It looks at itself before each cell."""
    engine = DaskEngine(cluster.scheduler_address, 1, lambda _: None)
    monkeypatch.setattr(dask_engine, "open_ports", lambda _: ("0.0.0.0:1",))
    try:
        with CampaignFolder.open(Path("out")) as folder:
            states = conduct(cells(), folder, engine, lambda *_: None, Interrupt())
    finally:
        engine.close()
    golden.check([state.aside for state in states])
    assert not list(Path("out").glob("*/*"))


def test_a_process_whose_sockets_cannot_be_read_is_not_safe(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Such as a nanny of another user."""
    asked = []

    def refuse(pid: int) -> tuple[str, ...]:
        asked.append(pid)
        if pid == 1:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/proc/1/fd")
        return ()

    monkeypatch.setattr(dask_engine, "open_ports", refuse)
    assert "" == complaints()
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: SimpleNamespace(pid=1))
    golden.check(complaints())
    assert [os.getpid(), os.getpid(), 1] == asked


@pytest.mark.parametrize(
    "error",
    [ModuleNotFoundError("No module named 'udpbench'"), AttributeError("look"), ValueError("no")],
    ids=["missing", "other", "forbidden"],
)
def test_a_process_that_cannot_be_asked_is_not_safe(
    error: Exception, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """It has no udpbench, or another; or the site forbids the question."""

    def fail(_: int) -> tuple[str, ...]:
        raise error

    monkeypatch.setattr(dask_engine, "open_ports", fail)
    with golden.raises(InputError, port=cluster.scheduler_address.rpartition(":")[2]):
        DaskEngine(cluster.scheduler_address, 1, pytest.fail)


def test_a_stuck_worker_serves_nothing_and_delays_no_other(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it answers."""
    engine = DaskEngine(cluster.scheduler_address, 1, lambda _: None)
    try:
        assert engine.serves("rack1")
        monkeypatch.setattr(dask_engine, "ANSWER_S", 0.2)
        released = threading.Event()
        monkeypatch.setattr(
            dask_engine, "open_ports", lambda _: () if released.wait(60) else ("late",)
        )
        monkeypatch.setattr(dask_engine, "POLL_S", 0.0)
        engine._safe.clear()
        assert not engine.serves("rack1")
        released.set()
        monkeypatch.setattr(dask_engine, "ANSWER_S", 60.0)
        assert engine.serves("rack1")
    finally:
        engine.close()


def test_a_lost_scheduler_ends_the_campaign(golden: Golden) -> None:
    """In words, and not in Dask's, which are tracebacks; the same command goes on."""
    cluster = LocalCluster(n_workers=0, processes=False, protocol="tcp", dashboard_address=None)
    port = cluster.scheduler_address.rpartition(":")[2]
    engine = DaskEngine(cluster.scheduler_address, 1, lambda _: None)
    try:
        with CampaignFolder.open(Path("out")) as campaign:
            engine.place("rack1", task_of(cells()[0], campaign, share=False))
        cluster.close()
        with golden.raises(ConnectError, port=port):
            for _ in range(300):
                engine.news(0.1)
        engine.withdraw()
        assert not logging.getLogger("distributed.client").isEnabledFor(logging.ERROR)
    finally:
        engine.close()


def test_both_ends_prove_who_they_are() -> None:
    """With certificates of one authority cells are run; with another's there is no scheduler."""
    ours, others = Security.temporary(), Security.temporary()
    with LocalCluster(
        n_workers=1,
        processes=False,
        protocol="tls",
        security=ours,
        dashboard_address=None,
        resources={"pair": 1},
    ) as cluster:
        with dask.config.set(certificates(ours)):
            engine = DaskEngine(cluster.scheduler_address, 1, pytest.fail)
        try:
            with CampaignFolder.open(Path("out")) as folder:
                states = conduct(cells(), folder, engine, lambda *_: None, Interrupt())
        finally:
            engine.close()
        assert [2, 2] == [state.done for state in states]
        soon = {**certificates(others), "distributed.comm.timeouts.connect": "1s"}
        with dask.config.set(soon), pytest.raises(ConnectError):
            DaskEngine(cluster.scheduler_address, 1, pytest.fail)


def certificates(security: Security) -> dict[str, str]:
    """Return what a controller's configuration of Dask has."""
    tls = "distributed.comm.tls"
    return {
        f"{tls}.ca-file": security.tls_ca_file,
        f"{tls}.client.cert": security.tls_client_cert,
        f"{tls}.client.key": security.tls_client_key,
    }

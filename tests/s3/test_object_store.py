"""A store in S3, on a server of its own: runs arrive whole, also where an upload is torn.

Run by ``python3 noxfile.py s3``, which installs moto, a server that speaks S3.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from store.runs import run_of
from waiting import wait_until

from udpbench import read_runs, write_runs
from udpbench.errors import RecordError
from udpbench.store import dataset

pytest.importorskip("moto", reason="noxfile.py s3 installs it")
WAIT_S = 60
WRITE = (
    "import sys, udpbench; udpbench.write_runs([sys.argv[1]], sys.argv[2], campaign='c', pair='p')"
)


class Gate:
    """Passes connections on to a server, until it is told to cut them, or to pass no more."""

    def __init__(self, to: int) -> None:
        self.most: int | None = None
        """Bytes of each connection to the server that are passed on; None: all."""
        self.hold = False
        """Whether a connection that has sent so many stays open instead of being cut."""
        self.full = threading.Event()
        """Set once a connection has sent so many."""
        self._to = to
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            here, _ = self._listening.accept()
            there = socket.create_connection(("127.0.0.1", self._to))
            for source, to, counted in ((here, there, True), (there, here, False)):
                threading.Thread(target=self._pass, args=(source, to, counted), daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket, counted: bool) -> None:
        sent = 0
        try:
            while data := source.recv(4096):
                sent += len(data)
                if counted and self.most is not None and sent > self.most:
                    self.full.set()
                    if self.hold:
                        return
                    break
                to.sendall(data)
        except OSError:
            pass
        for end in (source, to):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """Start moto in a process of its own; return its port."""
    port = free_port()
    program = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as started:

        def listens() -> bool:
            assert started.poll() is None, "moto has ended"
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                return True
            return False

        wait_until("moto listens", listens)
        yield port
        started.terminate()


def at(port: int, name: str) -> str:
    """Return the address of a store."""
    return f"s3://bucket/{name}?scheme=http&endpoint_override=127.0.0.1:{port}&region=us-east-1"


@pytest.fixture
def bucket(server: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Make the bucket, with keys that the server takes; return the server's port."""
    from pyarrow import fs

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    filesystem, _ = fs.FileSystem.from_uri(at(server, "") + "&allow_bucket_creation=true")
    filesystem.create_dir("bucket")
    return server


def test_runs_are_written_and_read(bucket: int, tmp_path: Path) -> None:
    """Twice the same run is there once; partitions are chosen as on a disk."""
    store = at(bucket, "plain")
    runs = [run_of(tmp_path / day, 1000, day) for day in ("2026-11-21", "2026-11-22")]
    for _ in range(2):
        write_runs([run.folder for run in runs], store, campaign="a b", pair="rack=1")
    frame = read_runs(store)
    assert (12, {"2026-11-21", "2026-11-22"}) == (len(frame), set(frame.day))
    assert ({"a b"}, {"rack=1"}) == (set(frame.campaign), set(frame.pair))
    assert read_runs(store, pair="other").empty


@pytest.mark.parametrize("size_bytes", [None, 12 * 2**20], ids=["one put", "several parts"])
def test_a_torn_upload_leaves_what_was_there(
    bucket: int, tmp_path: Path, size_bytes: int | None
) -> None:
    """The connection breaks in its middle: an error, the old file, and the next attempt is whole."""
    name = f"torn-{size_bytes}"
    gate = Gate(bucket)
    run = run_of(tmp_path / "run", 1000)
    (file,) = write_runs([run.folder], at(bucket, name), campaign="c", pair="p")
    filesystem, base = dataset._place(at(bucket, name))
    before = filesystem.open_input_stream(f"{base}/{file}").read()
    gate.most = 3000 if size_bytes is None else 7 * 2**20
    if size_bytes is None:
        with pytest.raises(RecordError, match="cannot be written"):
            write_runs([run.folder], at(gate.port, name), campaign="c", pair="p")
    else:
        torn, _ = dataset._place(at(gate.port, name))
        with pytest.raises(OSError, match=r"\w"):
            dataset._put(torn, base, file, os.urandom(size_bytes))
    assert gate.full.is_set()
    assert before == filesystem.open_input_stream(f"{base}/{file}").read()
    assert 6 == len(read_runs(at(bucket, name)))
    gate.most = None
    write_runs([run.folder], at(gate.port, name), campaign="c", pair="p")
    assert 6 == len(read_runs(at(gate.port, name)))


def test_a_writer_that_is_killed_leaves_nothing(bucket: int, tmp_path: Path) -> None:
    """In the middle of its upload; the same call by another process then writes the run."""
    gate = Gate(bucket)
    gate.most, gate.hold = 3000, True
    run = run_of(tmp_path / "run", 1000)
    program = [sys.executable, "-c", WRITE, str(run.folder), at(gate.port, "killed")]
    with subprocess.Popen(program) as writing:
        assert gate.full.wait(WAIT_S)
        writing.send_signal(signal.SIGKILL)
    filesystem, base = dataset._place(at(bucket, "killed"))
    from pyarrow import fs

    selector = fs.FileSelector(base, recursive=True, allow_not_found=True)
    assert [] == [info for info in filesystem.get_file_info(selector) if info.is_file]
    gate.most = None
    subprocess.run(program, check=True, timeout=WAIT_S)
    assert 6 == len(read_runs(at(bucket, "killed")))


def test_a_server_that_is_not_there_is_an_error(bucket: int, tmp_path: Path) -> None:
    """In one line, of a writer and of a reader."""
    gone = at(free_port(), "gone")
    run = run_of(tmp_path / "run", 1000)
    with pytest.raises(RecordError, match=r"\A.*cannot be written to s3://[^\n]*\Z"):
        write_runs([run.folder], gone, campaign="c", pair="p")
    with pytest.raises(RecordError, match=r"\As3://.*the store cannot be read: [^\n]*\Z"):
        read_runs(gone)

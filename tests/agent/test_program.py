"""A program of the user's in place of the loops: started, waited for, counted, ended with all of it."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import pytest
from golden import Golden
from test_workers import give, gone, phase, receiver, until

from udpbench import confinement
from udpbench.agent.host.system import Host
from udpbench.agent.workers import keeper, process_client, program, reads
from udpbench.agent.workers.keeper import Output
from udpbench.agent.workers.pool import Pool
from udpbench.agent.workers.process_client import Limits
from udpbench.errors import WorkerFailed
from udpbench.model.experiment import Receive
from udpbench.model.limits import SECOND_NS
from udpbench.model.work import WorkerSpec

SERVER = """
import os, signal, socket, sys
def end(*_):
    print("ended")
    sys.exit()
signal.signal(signal.SIGTERM, end)
opened = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in sys.argv[1:]]
for each, place in zip(opened, sys.argv[1:]):
    each.bind((place.split(":")[0], int(place.split(":")[1])))
print("user", os.getuid(), flush=True)
print("listening", flush=True)
while True:
    opened[0].recv(2000)
"""
TUNNEL = SERVER.replace(
    'print("listening"', 'opened[0].setsockopt(17, 100, 2)  # UDP_ENCAP_ESPINUDP\nprint("listening"'
)
DAEMON = """
import os, signal, socket, sys
kept = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
kept.bind(("0.0.0.0", int(sys.argv[1])))
if os.fork() == 0:
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("away", flush=True)
signal.pause()
"""
STUBBORN = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    signal.pause()
"""


PROBE = """
import ctypes, json, os, signal, socket, subprocess, sys
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
ids = {name: status[name].split() for name in ("Uid", "Gid", "Groups")}
caps = {name: int(status[name], 16) for name in status if name.startswith("Cap")}
def first_line(*command):
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        return done.stdout.strip()
    except OSError as error:
        return error.strerror
def opened(path):
    try:
        return bool(os.close(os.open(path, os.O_RDWR)))
    except OSError as error:
        return error.strerror
mask = os.umask(0)
print(json.dumps({
    **ids, **caps, "no_new_privs": status["NoNewPrivs"].strip(), "folder": os.getcwd(),
    "open": sorted(os.readlink("/proc/self/fd/" + n).split(":")[0] for n in os.listdir("/proc/self/fd")[:-1]),
    "names": sorted(os.environ), "mask": mask, "terminal": opened("/dev/tty"),
    "session": os.getsid(0) == os.getpid(), "setuid": first_line(sys.argv[2], "-u"),
    "sudo": first_line("sudo", "-n", "id", "-u"), "pids": [int(n) for n in os.listdir("/proc") if n.isdigit()],
    "self": os.getpid() == int(os.readlink("/proc/self")),
    "key": ctypes.CDLL(None).syscall(int(sys.argv[3]), 10, -3, b"user", b"udpbench-test", 0) if int(sys.argv[3]) else -1,
}), flush=True)
bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
bound.bind(("0.0.0.0", int(sys.argv[1])))
signal.pause()
"""


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Pool]:
    """Make a pool that leaves no process behind; only where it should it gives up soon."""
    monkeypatch.setattr(keeper, "GRACE_S", 0.3)
    prepare_s = 3 if "case" in request.fixturenames else 20
    pool = Pool(Host(), "right", Limits(prepare_ns=prepare_s * SECOND_NS))
    yield pool
    pool.close()


def spec(port: int, *command: str, **receive: Any) -> WorkerSpec:
    """Return a program that is to receive what is sent to a port of this host."""
    known = Receive(command=command, **receive)
    return replace(receiver(port), receive=known, cpus=())


def server(port: int, *places: str, **receive: Any) -> WorkerSpec:
    """Return a server that binds some places, by default the port on every address."""
    return spec(port, "python3", "-c", SERVER, *(places or (f"0.0.0.0:{port}",)), **receive)


def user() -> int:
    """Return who runs programs here: root's are nobody's."""
    return os.geteuid() or 65534


def family(pool: Pool) -> set[int]:
    """Return the processes of a program that runs."""
    return set(pool.pids())


def programs(pool: Pool) -> frozenset[int]:
    """Return those of its processes that are the user's."""
    assert pool._group is not None
    return pool._group.programs()


def test_a_program_is_bound_once_it_is_prepared(pool: Pool, port: int) -> None:
    """Its process and its socket are known; it ends by SIGTERM, and what it printed is returned."""
    (prepared,) = pool.prepare([server(port, ready="listening")], "lo")
    processes = family(pool)
    assert ("right.receiver0", None, 1) == (
        prepared.worker,
        prepared.cpu,
        len(prepared.socket_inodes),
    )
    assert prepared.pid in processes
    assert {prepared.pid} == programs(pool)
    assert prepared.socket_inodes == pool.inodes()
    assert f"user {user()}\nlistening\nended\n" == pool.close()
    assert all(gone(pid) for pid in processes)


def test_nothing_of_a_program_is_left(pool: Pool, port: int) -> None:
    """Neither what ignores SIGTERM nor what left its session."""
    pool.prepare([spec(port, "python3", "-c", STUBBORN + SERVER, f"0.0.0.0:{port}")], "lo")
    processes = family(pool)
    assert (4, 2) == (len(processes), len(programs(pool)))
    pool.close()
    assert all(gone(pid) for pid in processes)


def test_what_a_program_starts_before_the_measured_phase_is_of_it(pool: Pool, port: int) -> None:
    """Listed at the end of a phase, since a start must not be late; not after the measured one."""
    forks = SERVER + "    os.fork() or signal.pause()\n"
    pool.prepare([spec(port, "python3", "-c", forks, f"0.0.0.0:{port}")], "lo")
    for name, expected in (("warmup", 2), ("measured", 2)):
        running = len(family(pool))
        pool.start(phase(phase=name))
        give(port, [b""])
        until("forked", lambda before=running: len(family(pool)) == before + 1)
        pool.stop()
        assert expected == len(programs(pool))


WRONG: dict[str, Callable[[int, int], WorkerSpec]] = {
    "exits": lambda port, _: spec(port, "sh", "-c", "echo no config >&2; exit 3"),
    "no-program": lambda port, _: spec(port, "./there-is-none", folder="/"),
    "not-executable": lambda port, _: spec(port, "/etc/passwd", folder="/"),
    "never-binds": lambda port, _: spec(port, "sleep", "60"),
    "another-port": lambda port, other: server(port, f"0.0.0.0:{other}"),
    "another-address": lambda port, _: server(port, f"127.0.0.2:{port}"),
    "no-such-address": lambda port, _: server(port, f"192.0.2.9:{port}"),
    "leaves": lambda port, _: spec(port, "sh", "-c", "sleep 60 & exit 0"),
    "says-nothing": lambda port, _: server(port, ready="at your service"),
    "no-user": lambda port, _: server(port, user="nobody-of-that-name"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_keeps_a_program_from_serving_is_one_error(
    pool: Pool, free_port: Callable[[], int], case: str, golden: Golden
) -> None:
    """It names the program and what to do, and nothing is left running."""
    if case == "no-user" and os.geteuid() != 0:
        pytest.skip("only root can start it as another user")
    port, other = free_port(), free_port()
    with pytest.raises(WorkerFailed) as caught:
        pool.prepare([WRONG[case](port, other)], "lo")
    message = str(caught.value).replace("as nobody ", "")
    golden.check(message, port=port, other=other, user=user())
    assert pool.pids() == frozenset()


def test_a_program_is_never_run_as_root(
    pool: Pool, port: int, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Whoever called runs it; root's own are nobody's, and root is refused by any name."""
    own = Host()
    if os.geteuid() != 0:
        with golden.raises(WorkerFailed):
            pool.prepare([server(port, user="nobody")], "lo")
        return
    monkeypatch.setenv("SUDO_UID", "1")
    known = program.Program(own, "right", [server(port)], Limits())
    assert 1 == known._user().pw_uid  # type: ignore[union-attr]
    known.close()
    monkeypatch.setattr(program, "NOBODY", "root")
    monkeypatch.delenv("SUDO_UID")
    with pytest.raises(WorkerFailed) as caught:
        pool.prepare([server(port)], "lo")
    golden.check(caught.value)


ADD_KEY = {"x86_64": 248, "aarch64": 217}
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start it as another user")


@pytest.fixture
def _root_has_keys() -> None:
    """Give root's processes a session keyring with a key in it, a terminal's variables, and sudo."""
    number = confinement._SYS_KEYCTL.get(os.uname().machine)
    if number is not None and os.uname().machine in ADD_KEY:
        libc = ctypes.CDLL(None)
        libc.syscall(number, 1, None)
        libc.syscall(ADD_KEY[os.uname().machine], b"user", b"udpbench-test", b"secret", 6, -3)


def low_port() -> int:
    """Return a port that only CAP_NET_BIND_SERVICE opens, and nothing uses."""
    for number in range(600, 1024):
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tried:
            tried.bind(("0.0.0.0", number))  # noqa: S104
            return number
    pytest.fail("no port below 1024 is free")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Yield a folder that every user enters: pytest closes its own whenever it starts again."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@ROOT_ONLY
@pytest.mark.usefixtures("_root_has_keys")
@pytest.mark.parametrize("isolated", [True, False])
@pytest.mark.parametrize("case", ["root", "sudo", "user", "low port"])
def test_a_program_has_no_rights_but_its_users(
    pool: Pool,
    port: int,
    case: str,
    isolated: bool,
    monkeypatch: pytest.MonkeyPatch,
    open_folder: Path,
) -> None:
    """It says so itself; neither a setuid program nor sudo gives it more, whoever started it."""
    if not isolated:
        monkeypatch.setattr(process_client, "own_command", _without_namespace)
    as_root = open_folder / "id"
    shutil.copy(shutil.which("id") or "", as_root)
    as_root.chmod(0o4755)
    for name in ("SSH_AUTH_SOCK", "SUDO_COMMAND", "UDPBENCH_SECRET"):
        monkeypatch.setenv(name, "/run/secret")
    number = port if case != "low port" else low_port()
    who = {"sudo": "daemon", "user": "www-data"}.get(case, "nobody")
    known = pwd.getpwnam(who)
    if case == "sudo":
        monkeypatch.setenv("SUDO_UID", f"{known.pw_uid}")
    key = confinement._SYS_KEYCTL.get(os.uname().machine, 0)
    command = ("python3", "-c", PROBE, f"{number}", str(as_root), f"{key}")
    named = {"user": "www-data"} if case == "user" else {}
    pool.prepare([spec(number, *command, folder="/", **named)], "lo")
    seen = json.loads(pool.close() or "")
    caps = 1 << 10 if case == "low port" else 0
    pids = seen.pop("pids")
    assert {
        "Uid": [f"{known.pw_uid}"] * 4,
        "Gid": [f"{known.pw_gid}"] * 4,
        "Groups": [],
        **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), caps),
        "no_new_privs": "1",
        "folder": "/",
        "open": ["/dev/null", "pipe", "pipe"],
        "names": ["HOME", "LANG", "LOGNAME", "PATH", "USER"],
        "mask": 0o022,
        "terminal": os.strerror(errno.ENXIO),
        "session": True,
        "setuid": f"{known.pw_uid}",
        "sudo": "" if shutil.which("sudo") else os.strerror(errno.ENOENT),
        "self": True,
        "key": -1,
    } == seen
    assert isolated == (os.getpid() not in pids)


@ROOT_ONLY
def test_a_program_is_not_led_past_a_closed_folder(pool: Pool, port: int, tmp_path: Path) -> None:
    """Root could enter it; its user starts in a folder that it can reach itself."""
    closed = tmp_path / "closed"
    (closed / "open").mkdir(parents=True)
    closed.chmod(0o700)
    place = str(closed / "open")
    command = ("sh", "-c", "pwd; exec sleep 60")
    known = program.Program(Host(), "right", [spec(port, *command, folder=place)], Limits(1))
    with pytest.raises(WorkerFailed):
        known.prepare()
    until("printed", lambda: known._printed())
    assert "/\n" == known.close()


def test_a_program_of_the_agents_own_user_gets_no_agents_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only where programs and its home are, its language and its name."""
    for name in ("SSH_AUTH_SOCK", "SUDO_UID", "XDG_RUNTIME_DIR", "UDPBENCH_BUILD_LOCK"):
        monkeypatch.setenv(name, "/run/secret")
    monkeypatch.setenv("HOME", "/home/bench")
    known = program.environment(None)
    assert set(known) <= {"PATH", "LANG", "HOME", "USER", "LOGNAME"}
    assert "/home/bench" == known["HOME"]


@ROOT_ONLY
def test_a_right_that_cannot_be_given_up_starts_nothing() -> None:
    """Root's identity is refused at the last door, too, and the error says what failed."""
    with pytest.raises(OSError, match="cannot be given up: user root") as caught:
        confinement.start(["true"], confinement.ProgramUser(0, 0), signal.SIGKILL)
    assert errno.EPERM == caught.value.errno


HOLDER = """
import os, signal, socket, sys
held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
held.setsockopt(socket.SOL_SOCKET, int(sys.argv[2]), 1)
held.bind(("0.0.0.0", int(sys.argv[1])))
print("held", flush=True)
signal.pause()
"""


@contextmanager
def left_over(port: int, option: int) -> Iterator[int]:
    """Yield the pid of a process that a killed trial might have left on a port."""
    file = Path("holder.py")
    file.write_text(HOLDER)
    command = ["python3", str(file), f"{port}", f"{option}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


class FullOutput:
    """Takes output up to a limit that ends the test."""

    taken = 0

    def append(self, _chunk: bytes) -> None:
        """Count a chunk."""
        self.taken += 1
        assert self.taken <= keeper.CHUNKS


def test_a_program_that_never_stops_printing_holds_nothing_up() -> None:
    """Its output is read for a while, then it is the turn of what ends it."""
    own = object.__new__(keeper.Keeper)
    own._output = output = FullOutput()  # type: ignore[assignment]
    own._pipe = os.open("/dev/zero", os.O_RDONLY)
    own._copy()
    os.close(own._pipe)
    assert keeper.CHUNKS == output.taken


@pytest.mark.parametrize("case", ["program", "loops", "sharing"])
def test_who_still_holds_the_port_is_named(
    pool: Pool,
    port: int,
    case: str,
    golden: Golden,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With its number and its user, not its command: also if it would only take a part."""
    option = socket.SO_REUSEADDR if case == "sharing" else socket.SO_BROADCAST
    monkeypatch.chdir(tmp_path)
    sharing = spec(port, "python3", "-c", HOLDER, f"{port}", f"{option}")
    tried = {"program": server(port), "loops": receiver(port), "sharing": sharing}[case]
    with left_over(port, option) as pid, pytest.raises(WorkerFailed) as caught:
        pool.prepare([tried], "lo")
    text = str(caught.value).replace(f" {pid} ", " PID ")
    message = re.sub(r"python[\d.]* PID \(user \d+\)", "python PID (user OWNER)", text)
    assert "holder.py" not in message
    golden.check(message, port=port, user=user())


def test_a_program_that_ends_under_way_fails_its_phase(
    pool: Pool, port: int, golden: Golden
) -> None:
    """With what it said last."""
    (prepared,) = pool.prepare([server(port)], "lo")
    pool.start(phase())
    os.kill(prepared.pid, signal.SIGKILL)
    until("failed", lambda: pool.sample(0).state == "failed")
    golden.check((pool.sample(0).error or {})["message"], user=user())


WITHOUT_NAMESPACE = """
import sys
import tempfile
from udpbench.agent.workers import keeper
keeper.can_isolate = lambda: False
sys.exit(keeper.main(int(sys.argv[1])))
"""


def _without_namespace(_: str, output: str) -> list[str]:
    """Return the command of a keeper that may not make a PID namespace."""
    return [sys.executable, "-c", WITHOUT_NAMESPACE, output]


@pytest.fixture(params=["namespace", "subreaper"])
def _held_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernel end what a keeper leaves, or where that is forbidden the keeper's parent."""
    if request.param == "subreaper":
        monkeypatch.setattr(process_client, "own_command", _without_namespace)
    elif not keeper.can_isolate():
        pytest.skip("needs CAP_SYS_ADMIN, to make a PID namespace")


def keeper_of(pid: int) -> int:
    """Return the parent of a program."""
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - one line
        return int(file.read().rpartition(")")[2].split()[1])


@pytest.mark.usefixtures("_held_by")
@pytest.mark.parametrize("victim", ["keeper", "its parent"])
def test_all_of_a_program_goes_with_its_keeper(pool: Pool, port: int, victim: str) -> None:
    """Also what left its session and ignores SIGTERM: then the port is free, and the agent knows."""
    (prepared,) = pool.prepare([spec(port, "python3", "-c", DAEMON, f"{port}", ready="away")], "lo")
    processes = family(pool)
    parent = keeper_of(prepared.pid)
    os.kill(parent if victim == "keeper" else keeper_of(parent), signal.SIGKILL)
    until("failed", lambda: pool.sample(0).state == "failed")
    until("gone", lambda: all(gone(pid) for pid in processes))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mine:
        mine.bind(("0.0.0.0", port))  # noqa: S104


AGENT = """
import json, os, signal, sys
from udpbench.agent.host.system import Host
from udpbench.agent.workers.pool import Pool
from udpbench.model.work import WorkerSpec
from udpbench.protocol import decode
pool = Pool(Host(), "right")
pool.prepare([decode(WorkerSpec, json.loads(sys.argv[1]))], "lo")
print(*pool.pids(), flush=True)
signal.pause()
"""


def test_a_program_goes_with_its_agent(port: int) -> None:
    """However the agent dies."""
    from udpbench.protocol import encode

    command = [sys.executable, "-c", AGENT, json.dumps(encode(server(port)))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        processes = [int(pid) for pid in agent.stdout.readline().split()]
        agent.kill()
        assert len(processes) == 3
    until("gone", lambda: all(gone(pid) for pid in processes))


@pytest.mark.parametrize(
    ("asked", "counted"),
    [(None, {"tunnel_sockets": 1}), ((False, None), {"unknown_tunnels": 1}), ((False, False), {})],
)
def test_what_the_kernel_takes_for_itself_is_seen(
    pool: Pool, port: int, asked: Any, counted: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """InDatagrams counts it as read; that a socket could not be asked is said."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no BPF")

    monkeypatch.setattr(reads, "SocketCounts", refuse)
    if asked is not None:
        monkeypatch.setattr(reads, "ask_sockets", lambda *_: asked)
    pool.prepare([spec(port, "python3", "-c", TUNNEL, f"0.0.0.0:{port}", ready="listening")], "lo")
    pool.start(phase())
    give(port, [b"\1" * 32] * 20)
    until("all counted", lambda: pool.sample(0).stats[0].counts["read_packets"] >= 20)
    pool.stop()
    counts = pool.sample(0).stats[0].counts
    assert counted == {name: n for name, n in counts.items() if "tunnel" in name}


def test_a_rate_spans_two_looks_under_load(
    pool: Pool, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came outside of them is left out, as the packets of a first read are."""
    order = phase()
    counted = chain((50, 50, 50, 150, 350, 550), repeat(600))
    clocks = count(0, SECOND_NS)
    monkeypatch.setattr(reads, "in_datagrams", lambda *_: next(counted))
    known = program.Program(Host(), "right", [server(port)], Limits())
    monkeypatch.setattr(reads.time, "monotonic_ns", lambda: next(clocks))
    known.start(order)
    assert {"read_packets": 0, "received_packets": 0} == known.counts(0)
    for _ in range(5):
        known.counts(0)
    known.stop()
    counts = known.counts(0)
    monkeypatch.undo()
    known.close()
    # 100 at 2 s and 500 at 4 s; the last 50 came before 5 s.
    assert (550, 2 * SECOND_NS, 4 * SECOND_NS, 150) == (
        counts["received_packets"],
        counts["first_ns"],
        counts["last_ns"],
        counts["first_packets"],
    )
    assert 550 * 32 == counts["received_bytes"]


def test_the_beginning_and_the_end_of_an_output_are_kept() -> None:
    """A program that prints without end fills no memory."""
    fd = os.memfd_create("test")
    output = Output(fd)
    for number in range(30_000):
        output.append(f"line {number:5d}\n".encode())
    output.finish()
    kept = os.pread(fd, 2**20, 0).decode()
    os.close(fd)
    assert kept.startswith("line     0\nline     1\n")
    assert kept.endswith("line 29998\nline 29999\n")
    left_out = 30_000 * 11 - keeper.HEAD_BYTES - keeper.TAIL_BYTES
    assert f"\n[{left_out} B omitted]\n" in kept

"""A process inside network namespaces of its own that applies settings as an agent does.

``Inside`` starts this very file there and talks to it in JSON lines; whatever it changes is in
namespaces that end with it. ``settings_fixture.py visible`` prints the state and ends. Kept apart from the real agent so that settings can fail on their own.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests/fixtures"))  # it is started without pytest, too

from waiting import wait_until  # noqa: E402

DEADLINE_S = 20.0
COUNTED = re.compile(r"\[\d+:\d+\]|packets \d+ bytes \d+|-c \d+ \d+")
"""Counters of rules, which move with foreign packets."""
ENTER = ["unshare", "--net", "--mount"]
MAC, PEER_MAC = "02:00:00:00:00:01", "02:00:00:00:00:02"


def await_taken_up(sender: socket.socket) -> None:
    """Wait until no packet is charged to its sender: each is dropped, or in a receiver's queue."""
    wait_until(
        "no packet is on its way",
        lambda: not any(fcntl.ioctl(sender, termios.TIOCOUTQ, bytes(4))),
        DEADLINE_S,
    )


class Refused(Exception):
    """What the process inside answered instead of a result: the error's class and its message."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


class Forked:
    """A process of ``Forks``, with what ``Inside`` needs of a ``Popen``."""

    def __init__(self, line: socket.socket) -> None:
        (reads, stdin), (stdout, writes) = os.pipe(), os.pipe()
        self._line = line
        socket.send_fds(line, [b"start"], [reads, writes])
        os.close(reads)
        os.close(writes)
        self.pid = int(line.recv(32))
        self.stdin, self.stdout = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb")

    def kill(self) -> None:
        """End it by SIGKILL; it stays to be waited for."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait for its end."""
        self._line.send(str(self.pid).encode())
        self._line.recv(32)


class Forks:
    """A process that has everything imported, and starts others by fork, each in 10 ms."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, __file__, "fork", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        theirs.close()

    def start(self) -> Forked:
        """Return a further process, in namespaces of its own."""
        return Forked(self._line)


@cache
def forks() -> Forks:
    """Return the one of this process, which ends with it."""
    return Forks()


class Inside:
    """One process in a network and mount namespace, with its own /sys and an empty /run."""

    def __init__(self, enter: list[str] | None = None, env: dict[str, str] | None = None) -> None:
        self.process = (
            forks().start()
            if enter is None and env is None
            else subprocess.Popen(
                [*(enter or ENTER), sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
                start_new_session=True,
            )
        )
        self.pid = self.call("pid", mount=enter is None)

    def call(self, verb: str, deadline_s: float = DEADLINE_S, **args: Any) -> Any:
        """Return the result of one call, within the deadline; Refused where it raised."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"verb": verb, **args}).encode() + b"\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], deadline_s)
        assert ready, f"no answer to {verb} within {deadline_s:g} s"
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise Refused(answer["error"], answer["message"])
        return answer["result"]

    def apply(self, *settings: dict[str, Any]) -> list[dict[str, Any]]:
        """Apply settings and return the changes."""
        return self.call("apply", settings=list(settings))

    def shell(self, command: str) -> str:
        """Return what a command prints inside; Refused where it fails."""
        return self.call("shell", command=command)

    def kill(self) -> None:
        """End the process by SIGKILL."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End the process and its pipes."""
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def setting(kind: str, target: str, value: Any, **more: Any) -> dict[str, Any]:
    """Return one setting as it crosses the wire."""
    return {"kind": kind, "target": target, "value": value, **more}


def link(peer_pid: int, queues: int = 2) -> dict[str, Any]:
    """Return the setting of the lab's veth pair."""
    value = {
        "peer": "send0",
        "peer_pid": peer_pid,
        "peer_mac": PEER_MAC,
        "mac": MAC,
        "queues": queues,
    }
    return setting("link", "receive0", value)


def wire(sender: Inside, receiver: Inside) -> None:
    """Make a veth pair of four queues that stands for a network card; receive0 is down."""
    receiver.shell(
        "ip link add receive0 address 02:00:00:00:00:01 numtxqueues 4 numrxqueues 4 type veth "
        f"peer name send0 address 02:00:00:00:00:02 netns {sender.pid} numtxqueues 4 numrxqueues 4"
    )
    sender.shell("ip link set send0 up")
    # Without a link-local address, whose duplicate detection would change the state by itself;
    # once up and down again, because the first time up turns the qdisc noop into noqueue.
    receiver.shell("ip link set receive0 addrgenmode none")
    receiver.shell("ip link set receive0 up && ip link set receive0 down")


# --- inside --------------------------------------------------------------------------------------

QUEUE_FILES = (
    "/sys/class/net/*/queues/*/*_cpus /sys/class/net/*/queues/*/*_rxqs /sys/class/net/*/queues/*/rps_flow_cnt "
    "/sys/class/net/*/threaded"
)
DEVICE_FILES = "/sys/class/net/*/napi_defer_hard_irqs /sys/class/net/*/gro_flush_timeout"
STATE = {
    "links": "ip -d -j link",
    "addresses": "ip -j address",
    "routes": "ip -j route show table all; ip -6 -j route show table all",
    "neighbours": "ip -j neighbour show nud permanent",
    "qdiscs": "tc qdisc",
    "queues": f"grep . {QUEUE_FILES} 2>/dev/null; true",
    "devices": f"grep . {DEVICE_FILES}",
    # As sysctl -a, in a third of its time; some keys cannot be read. What a namespace may not write
    # is the machine's, which other tests change meanwhile.
    "sysctls": "find /proc/sys/net -type f -perm -200 -exec grep -asH . '{}' +; true",
    "features": "for i in $(ls /sys/class/net); do ethtool -k $i; done",
    "channels": "for i in $(ls /sys/class/net); do ethtool -l $i; ethtool -g $i; done 2>&1; true",
    "iptables": "iptables-save | grep -v '^#'; ip6tables-save | grep -v '^#'; true",
    "nft": "nft list ruleset",
}
NEEDS = {"features": "ethtool", "channels": "ethtool", "iptables": "iptables", "nft": "nft"}
"""Program that a part of the state is read by, where its text does not begin with it."""


def shell(command: str) -> str:
    """Return what a command prints; RuntimeError where it fails."""
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr or done.stdout}")
    return done.stdout


def visible() -> dict[str, str]:
    """Return everything an administrator would look at, word by word."""
    asked = {
        name: command
        for name, command in STATE.items()
        if shutil.which(NEEDS.get(name, command.split()[0]))
    }
    ends = "printf '\\0'"
    together = "\n".join(f"{{ {command}; }} || exit\n{ends}" for command in asked.values())
    texts = COUNTED.sub("", shell(together)).split("\0")[:-1]
    return dict(zip(asked, texts, strict=True)) | {"threads": threads()}


def threads() -> str:
    """Return how this namespace's NAPI instances and their threads are set.

    Threads of other namespaces are listed beside these.
    """
    from udpbench.agent.host.system import Host

    host = Host()
    napis = [napi for name in host.listdir("/sys/class/net") for napi in host.napis(name)]
    of_threads = (
        (os.sched_getaffinity, os.sched_getscheduler, os.sched_getparam),
        (lambda pid: os.getpriority(os.PRIO_PROCESS, pid),),
    )
    return str(
        [
            (napi.numbers, [ask(napi.pid) for asks in of_threads for ask in asks if napi.pid])
            for napi in napis
        ]
    )


class Server:
    """The calls of the process inside."""

    def __init__(self) -> None:
        self.engine: Any = None
        self.guardian: Any = None

    def pid(self, mount: bool) -> int:
        """Get a /sys and a /run of its own."""
        if mount:
            shell("mount --make-rprivate / && mount -t sysfs sysfs /sys && mount -t tmpfs t /run")
        return os.getpid()

    def open(
        self, run: str, guarded: bool = False, scopes: Sequence[str] = ("namespace",)
    ) -> dict[str, Any]:
        """Make an engine, and a guardian if asked."""
        from udpbench.agent.host.system import Host
        from udpbench.agent.settings.engine import Engine
        from udpbench.agent.settings.guardian import Guardian
        from udpbench.agent.settings.journal import Journal

        host = Host()
        journal = Journal(host, run)
        if guarded:
            self.guardian = Guardian.start(host, journal)
        self.engine = Engine(host, journal, scopes)
        pid = self.guardian.process.pid if guarded else None
        return {"journal": str(journal.path), "guardian": pid}

    def apply(self, settings: list[dict[str, Any]]) -> Any:
        """Apply."""
        from udpbench.model.host import Setting
        from udpbench.protocol import encode

        if self.engine is None:
            self.open("test")
        return encode(self.engine.apply([Setting(**plain) for plain in settings]))

    def plan(self, settings: list[dict[str, Any]]) -> Any:
        """Say what would change."""
        from udpbench.model.host import Setting
        from udpbench.protocol import encode

        if self.engine is None:
            self.open("test")
        return encode(self.engine.plan([Setting(**plain) for plain in settings]))

    def restore(self, force: bool = False) -> Any:
        """Restore."""
        from udpbench.protocol import encode

        return encode(self.engine.restore(force))

    def counted(self) -> dict[str, int]:
        """Return the packets of the rules of udpbench."""
        from udpbench.agent.host.system import Host
        from udpbench.agent.settings.firewall import rule_packets

        return rule_packets(Host())

    def programs(self, **links: str) -> None:
        """Have only these programs for rules, each the one that its path names."""
        folder = Path(tempfile.mkdtemp(dir="/run"))  # this process's own tmpfs
        for name in ("ip", "tc", "ethtool", "sh"):
            (folder / name).symlink_to(str(shutil.which(name)))
        for name, path in links.items():
            (folder / name.replace("_", "-")).symlink_to(path)
        from udpbench.agent.host import reading

        reading.PROGRAM_FOLDERS = ()
        os.environ["PATH"] = str(folder)

    def flap(self, interface: str) -> None:
        """Take a link down and up, as a driver does that sets its rings."""
        from udpbench.agent.host.system import Host
        from udpbench.agent.settings.link_flap import check_flap, restored_link

        check_flap(Host(), interface)
        with restored_link(Host(), interface):
            shell(f"ip link set {interface} down && ip link set {interface} up")

    def unplugged(self, interface: str, peer_pid: int) -> None:
        """Lose the other end under way, with a short patience."""
        from udpbench.agent.host.system import Host
        from udpbench.agent.settings import link_flap

        link_flap.CARRIER_DEADLINE_S = 0.3
        with link_flap.restored_link(Host(), interface):
            shell(f"nsenter --target={peer_pid} --net ip link set send0 down")

    def arriving(self, ports: list[int]) -> list[int]:
        """Send one packet to each port over loopback, and return the ports at which one arrived."""
        results = []
        for port in ports:
            with (
                socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
                socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
            ):
                receiver.bind(("127.0.0.1", port))
                receiver.setblocking(False)
                sender.sendto(b"x", ("127.0.0.1", port))
                await_taken_up(sender)
                if select.select([receiver], [], [], 0)[0]:
                    results.append(port)
        return results

    def random(self, seed: int, rounds: int) -> list[str]:
        """Apply random settings with failures injected, and return every round that left a trace."""
        from settings_random import rounds_that_left_a_trace

        return rounds_that_left_a_trace(seed, rounds)

    def sweep(self) -> tuple[int, list[str]]:
        """Set and restore every sysctl, and return how many and what differs afterwards."""
        from settings_sweep import differences_after_restoring

        return differences_after_restoring()

    def by_hand(self, settings: list[dict[str, Any]], values: list[Any]) -> list[str]:
        """Return the commands that would set values by hand."""
        from udpbench.agent.host.system import Host
        from udpbench.agent.settings import refusal
        from udpbench.model.host import Setting

        pairs = zip(settings, values, strict=True)
        return [refusal.by_hand(Host(), Setting(**plain), value) for plain, value in pairs]

    def set_napis(self, interface: str) -> None:
        """Give the NAPI instances and threads of an interface what an administrator might."""
        from udpbench.agent.host.system import Host

        host = Host()
        for napi in host.napis(interface):
            assert napi.pid
            os.sched_setaffinity(napi.pid, [max(os.sched_getaffinity(0))])
            os.setpriority(os.PRIO_PROCESS, napi.pid, -5)
            os.sched_setscheduler(napi.pid, os.SCHED_FIFO, os.sched_param(10))
        numbers = {"defer-hard-irqs": 7, "gro-flush-timeout": 2**33, "irq-suspend-timeout": 999}
        if "irq-suspend-timeout" in host.napis(interface)[0].numbers:
            host.set_napi(host.napis(interface)[0].id, numbers)

    def settled(self, interface: str) -> None:
        """Wait until the kernel has made what it makes by itself when a carrier is there."""
        from udpbench.agent.host.system import Host

        def is_made() -> bool:
            local = shell(f"ip -6 route show table local dev {interface}")
            own = re.findall(r"inet6 (\S+)/", shell(f"ip -6 address show dev {interface}"))
            return "ff00::/8" in local and all(f"local {address} " in local for address in own)

        Host().wait_for("the routes of addresses and multicast", is_made, 30.0)

    def shell(self, command: str) -> str:
        """Run a command."""
        return shell(command)

    def visible(self) -> dict[str, str]:
        """Return the whole visible state."""
        return visible()


def serve() -> None:
    """Answer calls until stdin ends."""
    server = Server()
    for line in sys.stdin:
        call = json.loads(line)
        try:
            answer = {"result": getattr(server, call.pop("verb"))(**call)}
        except Exception as error:  # noqa: BLE001 - every error is the test's to judge
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer), flush=True)


CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000  # include/uapi/linux/sched.h


def fork(line: socket.socket) -> None:
    """Start a process, or wait for the end of one, whenever asked, until nobody can ask any more."""
    from udpbench.agent.host.reading import ReadingHost
    from udpbench.agent.settings import engine, guardian

    ReadingHost().netlink.close()
    assert engine, guardian
    while True:
        word, fds, _, _ = socket.recv_fds(line, 32, 2)
        if not word:
            return
        if word != b"start":
            os.waitpid(int(word), 0)
            line.send(b"ended")
            continue
        pid = os.fork()
        if pid == 0:
            line.close()
            for own, fd in enumerate(fds):
                os.dup2(fd, own)
                os.close(fd)
            os.setsid()
            assert ctypes.CDLL(None).unshare(CLONE_NEWNS | CLONE_NEWNET) == 0
            sys.stdin = open(0)  # noqa: SIM115 - a descriptor
            serve()
            os._exit(0)
        for fd in fds:
            os.close(fd)
        line.send(str(pid).encode())


if __name__ == "__main__":
    if sys.argv[1:2] == ["fork"]:
        fork(socket.socket(fileno=int(sys.argv[2])))
    elif sys.argv[1:] == ["visible"]:
        print(json.dumps(visible()))
    else:
        serve()

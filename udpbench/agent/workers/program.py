"""A user's program as the receiver, in place of the loops: starts it, awaits its bind, ends it.

``reads`` counts what it has read; what it does with that is not known here. Its parent,
``keeper``, ends it with this agent.
"""

from __future__ import annotations

import os
import pwd
import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Optional, cast

from udpbench.agent.host.files import lines_of, read
from udpbench.agent.host.own_python import build_lock
from udpbench.agent.host.processes import descendants, lineage
from udpbench.agent.host.socket_owners import all_held, holders_in_words, port_inodes
from udpbench.agent.host.system import PROGRAM_FOLDERS, Host
from udpbench.agent.host.udp_sockets import SocketQueue, udp_sockets
from udpbench.agent.workers.keeper import GRACE_S, KILL_S, ProgramEvent, ProgramOrder
from udpbench.agent.workers.process_client import STDERR_LINES, Child, Limits, started
from udpbench.agent.workers.reads import CountedReader
from udpbench.confinement import CAP_NET_BIND_SERVICE
from udpbench.errors import WorkerFailed
from udpbench.folder import calling_user
from udpbench.model.experiment import Receive
from udpbench.model.limits import SECOND_NS
from udpbench.model.work import WorkerSpec
from udpbench.printable import printable
from udpbench.protocol import Prepared

NOBODY = "nobody"
ENVIRONMENT = ("PATH", "LANG", "HOME", "USER", "LOGNAME")
SHOWN = 60
"""Maximum characters of the command in a message."""
NO_SUCH_ADDRESS = ("assign requested address", "eaddrnotavail", "addrnotavailable")
"""What programs print of that error, in lower case: most of them its text, others its name."""
END_IT = "end that, or choose another port"


class Program(CountedReader):
    """A ``WorkerGroup`` for ``pool`` that runs a user's program."""

    def __init__(self, host: Host, name: str, specs: Sequence[WorkerSpec], limits: Limits) -> None:
        receive = cast("Receive", specs[0].receive)
        command = printable(shlex.join(receive.command or ()), keep="")
        label = command if len(command) <= SHOWN else f"{command[:SHOWN]}…"
        super().__init__(host, name, specs, label)
        self._limits = limits
        self._pid: Optional[int] = None
        self._keepers: frozenset[int] = frozenset()
        self._programs: frozenset[int] = frozenset()
        self._output = os.memfd_create("udpbench-output")
        fds = (self._output, *build_lock())
        self._keeper = Child(started("udpbench.agent.workers.keeper", str(self._output), fds=fds))

    # --- its start and its end -------------------------------------------------------------------

    @property
    def fileno(self) -> Optional[int]:
        """Descriptor that is readable when ``read`` has something to do; None after the end."""
        return self._keeper.fileno

    def prepare(self) -> None:
        """Start the program and wait until it is bound; WorkerFailed names what is missing."""
        user = self._user()
        order = ProgramOrder(
            command=list(self._receive.command or ()),
            folders=self._folders(user),
            env=environment(user),
            user=[user.pw_uid, user.pw_gid] if user is not None else None,
            kept=self._kept(),
            cpus=list(self._spec.own_cpus),
            priority=self._receive.priority,
        )
        with suppress(BrokenPipeError):  # its exit status is read below
            self._keeper.order(order)
        inodes = self._await_bound()
        self._tell_apart()
        self._keepers = frozenset(lineage(self._host, cast("int", self._pid))) - {self._pid}
        self._programs = self.pids() - self._keepers
        worker, pid = self._spec.name, cast("int", self._pid)
        self.prepared = (Prepared(worker, pid, self._spec.cpu, inodes, None),)
        self.state = "ready"

    def _user(self) -> Optional[pwd.struct_passwd]:
        """Return the user who runs the program; None: the agent's user, who is not root."""
        named = self._receive.user
        if os.geteuid() != 0 or not _can_change_user(self._host):
            if named is not None:
                text = "only an agent that runs as root can start a program as another user"
                raise WorkerFailed(f"receive.user: {named}: {text}; leave it out", self._name)
            return None
        caller = calling_user()
        try:
            if named is None and caller != 0:
                return pwd.getpwuid(caller)
            user = pwd.getpwnam(named or NOBODY)
        except KeyError:
            who = named or NOBODY if named or caller == 0 else str(caller)
            text = f"receive.user: this host has no user {who}; name another"
            raise WorkerFailed(text, self._name) from None
        if user.pw_uid == 0:
            text = f"receive.user: {user.pw_name} is root, but programs are never run as root"
            raise WorkerFailed(f"{text}; name an ordinary user", self._name)
        return user

    def _folders(self, user: Optional[pwd.struct_passwd]) -> list[str]:
        home = user.pw_dir if user is not None else os.environ.get("HOME", "/")
        return [self._receive.folder or home, home, "/"]

    def _kept(self) -> list[int]:
        """Return CAP_NET_BIND_SERVICE if a port of the traffic requires it, else nothing."""
        first = read(self._host, "/proc/sys/net/ipv4/ip_unprivileged_port_start")
        privileged = first is not None and min(self._spec.bind_ports) < int(first)
        return [CAP_NET_BIND_SERVICE] if privileged else []

    def _await_bound(self) -> tuple[int, ...]:
        """Return its sockets' inodes once it is bound to every port of the traffic."""
        missing = ""

        def bound() -> tuple[int, ...]:
            nonlocal missing
            self.read()
            if self.error is not None:
                raise self.error
            if self._pid is None or not self._said_ready():
                return ()
            sockets = self._sockets()
            missing = self._unbound(list(sockets.values()))
            if missing:
                return ()
            self._refuse_sharing(sockets)
            ports = self._spec.bind_ports
            return tuple(i for i, known in sockets.items() if known.port in ports)

        try:
            return self._host.wait_for("not bound", bound, self._limits.prepare_ns / SECOND_NS)
        except TimeoutError as error:
            raise WorkerFailed(self._late(missing), self._name) from error

    def _refuse_sharing(self, own: Collection[int]) -> None:
        """Raise WorkerFailed if the kernel gives the traffic to others' sockets, too."""
        known = udp_sockets(self._host)
        taking = [each for own_ in self._taking(known.values()).values() for each in own_]
        others = {i for i, s in known.items() if i not in own and any(s is t for t in taking)}
        if others:
            who = holders_in_words(self._host, others)
            text = f"{self._label}: not alone at the traffic's ports: {who}"
            raise WorkerFailed(f"{text} would receive its packets; {END_IT}", self._name)

    def _said_ready(self) -> bool:
        marker = self._receive.ready
        return marker is None or any(marker in line for line in lines_of(self._printed()))

    def _sockets(self) -> dict[int, SocketQueue]:
        """Return the program's UDP sockets in this namespace, by inode."""
        own = {inode for _, inode in all_held(self._host, self._family())}
        return {i: known for i, known in udp_sockets(self._host).items() if i in own}

    def _unbound(self, sockets: Sequence[SocketQueue]) -> str:
        """Return a destination that no socket is bound to; empty if all are covered."""
        missing = [where for where, taking in self._taking(sockets).items() if not taking]
        return "{} port {}".format(*missing[0]) if missing else ""

    def _late(self, missing: str) -> str:
        seconds = f"{self._limits.prepare_ns / SECOND_NS:g} s"
        if not missing:
            text = f"timed out after {seconds}: it has not printed {self._receive.ready!r}"
            step = (
                "omit receive.ready, since its sockets are bound, or correct it"
                if not self._unbound(list(self._sockets().values()))
                else "check receive.ready"
            )
            step += "; output to a pipe is buffered until the program flushes it "
            step += "(fflush in C, python3 -u)"
            return f"{self._label}: {text}: {self._last_words()}; {step}"
        bound = sorted({f"{s.address} port {s.port}" for s in self._sockets().values()})
        has = f"it is bound to {', '.join(bound)}" if bound else "it has no UDP socket"
        step = "bind it to that port on all addresses (0.0.0.0 or ::), or change traffic.flows.to"
        text = f"timed out after {seconds}: not bound to {missing}"
        return f"{self._label}: {text}; {has}{self._obstacle()}; {step}"

    def _printed(self) -> str:
        size_bytes = os.fstat(self._output).st_size
        return os.pread(self._output, size_bytes, 0).decode(errors="replace")

    def _last_words(self) -> str:
        lines = [line.strip() for line in lines_of(self._printed()) if line.strip()]
        return printable(" | ".join(lines[-STDERR_LINES:]), keep="") or "it printed nothing"

    def read(self) -> None:
        """Process the keeper's events."""
        try:
            for event in self._keeper.read(ProgramEvent):
                self._act(event)
        except ValueError as error:
            self._fail(f"its keeper wrote what is {error}; report this bug")
        if self._keeper.ended:
            self._fail(f"its keeper exited with status {self._keeper.process.wait()}")

    def _act(self, event: ProgramEvent) -> None:
        if event.event == "started":
            self._pid = self._pid_here(event.pid)
        elif event.event == "failed":
            user = self._user()
            who = f"as {user.pw_name} " if user is not None else ""
            first = self._folders(user)[0]
            aside = "" if event.folder == first else f" (it may not enter {first})"
            text = f"cannot be started {who}in {event.folder}{aside}: {event.problem}"
            self._fail(f"{text}; name a program that this user can run there")
        elif event.left:
            text = "it exited, but processes that it started are still running"
            self._fail(f"{text}; run it in the foreground")
        else:
            status = event.status
            how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
            why = self._no_such_address() or self._obstacle()
            self._fail(f"it ended unexpectedly ({how}): {self._last_words()}{why}")

    def _no_such_address(self) -> str:
        """Return what to bind if it printed that this host lacks the address; else empty."""
        words = self._last_words()
        if not any(each in words.casefold() for each in NO_SUCH_ADDRESS):
            return ""
        own = " or ".join(sorted({address for address, _ in self._taking(())}))
        return f"; bind it to 0.0.0.0 (or ::), or to {own}, where the traffic goes"

    def _obstacle(self) -> str:
        """Return who else holds a port of the traffic, which may be why it ended; else empty."""
        inodes = port_inodes(self._host, self._spec.bind_ports)
        who = holders_in_words(self._host, inodes.difference(self._sockets()))
        return f"; the traffic's ports are held by {who}: {END_IT}" if who else ""

    def close(self, _keep_logs: Optional[str] = None) -> Optional[str]:
        """End the program and everything that it started; return its output."""
        self._stop_counting()
        self._keeper.end(GRACE_S + KILL_S + self._limits.close_ns / SECOND_NS)
        printed = self._printed()
        os.close(self._output)
        return printed

    def pids(self) -> frozenset[int]:
        """Return the keeper, the program and everything that it started."""
        return frozenset(self._family())

    def programs(self) -> frozenset[int]:
        """Return the program and everything that it had started before the measured phase."""
        return self._programs

    def stop(self) -> None:
        """End the phase; the program continues."""
        super().stop()
        # Not at a start, which must not be late: of a thousand processes it takes 30 ms.
        if self._phase != "measured":
            self._programs = self.pids() - self._keepers

    def _pid_here(self, pid: int) -> Optional[int]:
        """Return what a process of the keeper's PID namespace is called here; None if it ended."""
        for own in self._family():
            status = read(self._host, f"/proc/{own}/status") or ""
            names = next((row for row in lines_of(status) if row.startswith("NSpid:")), "")
            if (names.split() or [f"{own}"])[-1] == f"{pid}":
                return own
        return None

    def _family(self) -> Iterator[int]:
        yield self._keeper.process.pid
        yield from descendants(self._host, self._keeper.process.pid)


def environment(user: Optional[pwd.struct_passwd]) -> dict[str, str]:
    """Return the program's whole environment: of the agent's, nothing that leads to keys."""
    if user is None:
        return {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    return {
        "PATH": os.pathsep.join(PROGRAM_FOLDERS),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
    }


def _can_change_user(host: Host) -> bool:
    """Return whether this root can switch users: in a user namespace of one user it cannot."""
    rows = lines_of(read(host, "/proc/self/uid_map"))
    return sum(int(row.split()[2]) for row in rows) != 1

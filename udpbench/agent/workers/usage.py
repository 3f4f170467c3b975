"""Resource use of workers: processes and threads, read from outside, and of a thread, by itself."""

from __future__ import annotations

import os
import re
import resource
import struct
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import islice
from typing import NamedTuple, Optional

from udpbench.agent.host.cpu_clocks import EVENTS, HARDWARE, close_counter, cpu_ns, open_counter
from udpbench.agent.host.files import read
from udpbench.agent.host.reading import ReadingHost as Host
from udpbench.model.limits import SECOND_NS, THREADS_MAX
from udpbench.model.record import OTHER_CALL, ThreadUse

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PAUSE = 49
"""Pause between looks at threads, as a multiple of the CPU time of a look: at most 2 % of a CPU."""
SAMPLED_MAX = 64
"""Threads in one look; each takes 80 us."""
LISTED_MAX = 1024
"""Threads of which those are chosen, of each process the oldest; 10,000 would take 0.13 s."""
LIST_NS = SECOND_NS
"""Interval of listing a program's threads."""
CALLS = {
    "x86_64": "0 read 1 write 7 poll 19 readv 20 writev 23 select 35 nanosleep 44 sendto"
    " 45 recvfrom 46 sendmsg 47 recvmsg 61 wait4 72 fcntl 73 flock 74 fsync 75 fdatasync"
    " 202 futex 230 clock_nanosleep 232 epoll_wait 247 waitid 270 pselect6 271 ppoll"
    " 281 epoll_pwait 299 recvmmsg 307 sendmmsg 426 io_uring_enter 441 epoll_pwait2",
    "aarch64": "22 epoll_pwait 25 fcntl 32 flock 63 read 64 write 65 readv 66 writev"
    " 72 pselect6 73 ppoll 82 fsync 83 fdatasync 95 waitid 98 futex 101 nanosleep"
    " 115 clock_nanosleep 206 sendto 207 recvfrom 211 sendmsg 212 recvmsg 243 recvmmsg"
    " 260 wait4 269 sendmmsg 426 io_uring_enter 441 epoll_pwait2",
}
"""Machine (uname(2)) → number and name of the system calls in which a reader may sleep, from
asm/unistd_64.h and asm-generic/unistd.h."""
DESCRIPTORS = {"select": 0, "pselect6": 0, "poll": 1, "ppoll": 1}
"""Call → which argument says of how many descriptors. Of none it only sleeps: Python's time.sleep
before 3.11."""
AT_PAGESZ = 6
"""From linux/auxvec.h: an entry that each program has."""
AUXV = struct.Struct("=QQ")
"""An entry of a program of 64 bits: type and value (getauxval(3))."""
AUXV_BYTES = 4096
"""More than the kernel keeps of it (AT_VECTOR_SIZE)."""


@dataclass
class _Memory:
    total_bytes: int = 0
    samples: int = 0


@dataclass(frozen=True)
class _Reading:
    """CPU time of all processes at a point in time."""

    clock_ns: int
    packets: int
    cpu_ns: dict[int, Optional[int]]


class Usage:
    """Resource use of the workers' processes over one phase."""

    def __init__(self, host: Host, pids: Iterable[int]) -> None:
        self._host = host
        self._memory = {pid: _Memory() for pid in sorted(set(pids))}
        self._begin: Optional[_Reading] = None
        self._end: Optional[_Reading] = None
        """The first and the last reading under load: with packets before and after it."""
        self._latest: Optional[_Reading] = None

    def read_cpu(self, packets: int) -> None:
        """Record each process's CPU time, and the total packets so far."""
        before = self._latest
        if before is not None and 0 < before.packets < packets:
            self._begin = self._begin or before
            self._end = before
        spent = {pid: cpu_ns(pid) for pid in self._memory}
        self._latest = _Reading(time.monotonic_ns(), packets, spent)

    def read_memory(self) -> None:
        """Sample the memory of each running process."""
        for pid, memory in self._memory.items():
            size_bytes = resident_bytes(self._host, pid)
            if size_bytes is not None:
                memory.total_bytes += size_bytes
                memory.samples += 1

    def under_load(self, pid: int) -> tuple[Optional[int], Optional[int]]:
        """Return CPU time and duration in ns of an interval under load.

        None without two readings under load, or if the process had ended at one of them.
        """
        begin, end = self._begin, self._end
        if begin is None or end is None or end.clock_ns <= begin.clock_ns:
            return None, None
        first_ns, last_ns = begin.cpu_ns.get(pid), end.cpu_ns.get(pid)
        if first_ns is None or last_ns is None:
            return None, None
        return last_ns - first_ns, end.clock_ns - begin.clock_ns

    def memory_bytes(self, pid: int) -> Optional[int]:
        """Return the mean of the memory samples; None without any."""
        memory = self._memory.get(pid)
        if memory is None or memory.samples == 0:
            return None
        return memory.total_bytes // memory.samples


def resident_bytes(host: Host, pid: int) -> Optional[int]:
    """Return a process's resident memory; None if it has ended."""
    try:
        return int(host.read_text(f"/proc/{pid}/statm").split()[1]) * PAGE_BYTES
    except (OSError, IndexError):
        return None


def shared_bytes(host: Host, pid: int) -> Optional[int]:
    """Return a process's proportional set size (PSS), which divides shared pages among users.

    None if the process has ended, or before Linux 4.14.
    """
    try:
        text = host.read_text(f"/proc/{pid}/smaps_rollup")
    except OSError:
        return None
    match = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(match.group(1)) * 1024 if match is not None else None


class _Times(NamedTuple):
    """A thread's times at a look, as totals."""

    clock_ns: int
    running_ns: int
    runnable_ns: int


@dataclass
class _Thread:
    worker: str
    name: str = ""
    begin: Optional[_Times] = None
    end: Optional[_Times] = None
    """At the first and the latest look."""
    ready: Optional[tuple[tuple[object, ...], int]] = None
    """What the kernel had counted of it when it was first seen ready to run with that, and when."""
    looks: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    gone: bool = False

    def waits_ns(self, counted: tuple[object, ...], state: str, clock_ns: int) -> int:
        """Return for how long it has been waiting: the kernel counts that once it runs again."""
        if state != "R":
            self.ready = None
        elif self.ready is None or self.ready[0] != counted:
            self.ready = counted, clock_ns
        return clock_ns - self.ready[1] if self.ready is not None else 0

    @property
    def ran_ns(self) -> int:
        """How long it ran between its looks; in all before there are two."""
        if self.begin is None or self.end is None:
            return 0
        before_ns = self.begin.running_ns if self.begin is not self.end else 0
        return self.end.running_ns - before_ns


def _of_nothing(call: str, arguments: list[str]) -> str:
    """Return `` of nothing`` for a call that waits for descriptors and was given none."""
    place = DESCRIPTORS.get(call)
    if place is None or len(arguments) <= place:
        return ""
    return "" if int(arguments[place], 16) % 2**32 else " of nothing"


class ThreadSampler:
    """Looks at the workers' threads during a phase: their times, states and system calls.

    Each look takes at most ``SAMPLED_MAX`` threads: of more, half are those that ran most, the
    others have their turns.
    """

    def __init__(
        self,
        host: Host,
        threads: Mapping[tuple[int, int], str],
        programs: Mapping[int, str],
        during: tuple[int, Optional[int]],
    ) -> None:
        """Take single threads by (pid, tid), and programs' processes → their worker."""
        self._host = host
        self._threads = {key: _Thread(worker) for key, worker in threads.items()}
        self._programs = programs
        self.due_ns, self._until_ns = during
        self._list_ns = 0
        self._turn = 0
        words = CALLS.get(os.uname().machine, "").split()
        own = dict(zip(map(int, words[::2]), words[1::2]))
        pids = {*programs, *(pid for pid, _ in threads)}
        self._calls = {pid: own if _is_64_bit(host, pid) else {} for pid in pids}

    def sample(self) -> None:
        """Look at the threads if the phase has begun and the pause is over."""
        now_ns, begun_ns = self._host.clock_ns(), time.thread_time_ns()
        if now_ns < self.due_ns or (self._until_ns is not None and now_ns > self._until_ns):
            return
        if now_ns >= self._list_ns:
            self._list()
            self._list_ns = now_ns + LIST_NS
        for pid, tid in self._chosen():
            self._sample(pid, tid)
        self.due_ns = now_ns + PAUSE * (time.thread_time_ns() - begun_ns)

    def _list(self) -> None:
        if len(self._threads) >= LISTED_MAX:
            self._threads = {key: each for key, each in self._threads.items() if not each.gone}
        for pid, worker in self._programs.items():
            room = LISTED_MAX - len(self._threads)
            for tid in _tids(self._host, pid, LISTED_MAX) if room > 0 else ():
                if len(self._threads) < LISTED_MAX:
                    self._threads.setdefault((pid, tid), _Thread(worker))

    def _chosen(self) -> Collection[tuple[int, int]]:
        living = [key for key, each in self._threads.items() if not each.gone]
        if len(living) <= SAMPLED_MAX:
            return living
        known = (key for key in living if self._threads[key].end is not None)
        most = nlargest(SAMPLED_MAX // 2, known, key=lambda key: self._threads[key].ran_ns)
        places = range(self._turn, self._turn + SAMPLED_MAX - len(most))
        self._turn = places.stop % len(living)
        return dict.fromkeys((*most, *(living[place % len(living)] for place in places)))

    def _sample(self, pid: int, tid: int) -> None:
        thread, folder = self._threads[pid, tid], f"/proc/{pid}/task/{tid}"
        stat = read(self._host, f"{folder}/stat")
        if stat is None:
            thread.gone = True
            return
        times = _scheduled(read(self._host, f"{folder}/schedstat"))
        if times is None:
            return
        head, _, rest = stat.rpartition(") ")
        thread.name, state = head.partition(" (")[2], rest[:1]
        running_ns, runnable_ns = times
        clock_ns = self._host.clock_ns()
        # On a CPU without ticks (nohz_full) the ticks of stat alone say that it runs.
        runnable_ns += thread.waits_ns((times, rest.split()[11:13]), state, clock_ns)
        thread.end = _Times(clock_ns, running_ns, runnable_ns)
        thread.begin = thread.begin or thread.end
        thread.looks[state] += 1
        if state in ("S", "D"):
            number, *arguments = (read(self._host, f"{folder}/syscall") or "-").split()
            if number.isdigit():
                name = self._calls[pid].get(int(number), OTHER_CALL)
                thread.calls[name + _of_nothing(name, arguments)] += 1

    def restart(self) -> None:
        """Let what threads do from now on be another phase."""
        for thread in self._threads.values():
            thread.begin, thread.looks, thread.calls = thread.end, Counter(), Counter()

    def uses(self) -> dict[str, tuple[ThreadUse, ...]]:
        """Return worker → its threads that were looked at twice or more, those that ran most."""
        uses: dict[str, list[ThreadUse]] = {}
        for thread in self._threads.values():
            begin, end = thread.begin, thread.end
            if begin is not None and end is not None and end.clock_ns > begin.clock_ns:
                use = ThreadUse(
                    thread.name,
                    end.running_ns - begin.running_ns,
                    max(end.runnable_ns - begin.runnable_ns, 0),
                    end.clock_ns - begin.clock_ns,
                    dict(thread.looks),
                    dict(thread.calls),
                )
                uses.setdefault(thread.worker, []).append(use)
        return {
            worker: tuple(nlargest(THREADS_MAX, own, key=lambda use: use.running_ns))
            for worker, own in uses.items()
        }


def _is_64_bit(host: Host, pid: int) -> bool:
    """Return whether a program is of 64 bits: others number their calls differently.

    By the entries of its auxiliary vector, which are twice as long. Not by its file: of another's
    filesystem (FUSE) it may be read for ever.
    """
    with suppress(OSError), open(f"{host.root}/proc/{pid}/auxv", "rb") as file:  # noqa: PTH123
        vector = file.read(AUXV_BYTES)
        whole = vector[: len(vector) // AUXV.size * AUXV.size]
        return (AT_PAGESZ, PAGE_BYTES) in AUXV.iter_unpack(whole)
    return False


def _tids(host: Host, pid: int, most: int) -> Iterator[int]:
    """Yield the first threads of a process, which the kernel lists from the oldest on."""
    with suppress(OSError), os.scandir(host.path(f"/proc/{pid}/task")) as entries:
        yield from (int(entry.name) for entry in islice(entries, most))


def _scheduled(schedstat: Optional[str]) -> Optional[tuple[int, int]]:
    """Return how long a thread ran, and waited for a CPU; None if the kernel does not count it.

    Without sched_info all numbers are 0, the third one too: how often it ran.
    """
    running_ns, runnable_ns, times = map(int, (schedstat or "0 0 0").split())
    return (running_ns, runnable_ns) if times else None


class Cost:
    """What the calling thread uses from now on: CPU time, context switches, cycles if available.

    Softirq time belongs to no thread; the snapshot has it per CPU.
    """

    def __init__(self) -> None:
        self._counters = {name: open_counter(HARDWARE, event) for name, event in EVENTS.items()}
        self._before = _usage()

    def end(self) -> dict[str, int]:
        """Return the use by name; values that this machine does not count are missing."""
        after = _usage()
        spent = {name: after[name] - self._before[name] for name in after.keys() & self._before}
        for name, counter in self._counters.items():
            count = close_counter(counter) if counter is not None else None
            if count is not None:
                spent[name] = count
        return spent


def _usage() -> dict[str, int]:
    used = resource.getrusage(resource.RUSAGE_THREAD)
    # Not the first number of schedstat, which lacks the time since the latest tick.
    times = {"running_ns": time.thread_time_ns(), "elapsed_ns": time.monotonic_ns()}
    scheduled = _scheduled(read(Host(), "/proc/thread-self/schedstat"))
    if scheduled is not None:
        times["runnable_ns"] = scheduled[1]
    return {
        **times,
        "user_ns": round(used.ru_utime * 10**9),
        "system_ns": round(used.ru_stime * 10**9),
        "voluntary_switches": used.ru_nvcsw,
        "involuntary_switches": used.ru_nivcsw,
    }

"""Samples what each CPU of the machine does, with the kernel's call chains: perf_event_open(2).

Owns the events, their rings and the names of functions; says nothing of stages. Rings are read
after the phase, or when half full. The events end with their descriptors, so with this process.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import struct
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from typing import Optional

from udpbench.agent.host import native
from udpbench.agent.host.files import lines_of, read
from udpbench.agent.host.processes import SOFTIRQ, parse_process, unmasked
from udpbench.agent.host.reading import KTHREADD
from udpbench.agent.host.reading import ReadingHost as Host
from udpbench.cpu_lists import parse_cpu_list
from udpbench.cpu_stages import IDLE, INTERRUPT, anchor_of, missing_anchors, stage_below
from udpbench.model.limits import SECOND_NS, STACKS_MAX, Edge
from udpbench.model.record import CpuSamples

# include/uapi/linux/perf_event.h
SOFTWARE, CPU_CLOCK = 1, 0
SAMPLED = 1 | 2 | 4 | 256 | 32
"""PERF_SAMPLE_IP, TID, TIME, PERIOD, CALLCHAIN: in this order in each sample."""
DISABLED, COMM, WATERMARK = 1 << 0, 1 << 9, 1 << 14
KERNEL_CHAINS, OWN_CLOCK = 1 << 22, 1 << 25
"""exclude_callchain_user; use_clockid, as snapshots are stamped."""
ATTRIBUTES = "=IIQQQQQIIQQQQIi"
ATTRIBUTES_BYTES = 96
"""PERF_ATTR_SIZE_VER3, Linux 4.1."""
CLOCK_MONOTONIC = 1
ENABLE, DISABLE, SET_OUTPUT = 0x2400, 0x2401, 0x2405
DATA_HEAD, DATA_TAIL = 1024, 1032
"""Places in struct perf_event_mmap_page."""
LOST, NAMED, SAMPLE = 2, 3, 9
CONTEXTS = 2**64 - 4095
"""Addresses from here on are marks in a chain (PERF_CONTEXT_MAX)."""
MODES = 7
"""PERF_RECORD_MISC_CPUMODE_MASK."""
IN_KERNEL, IN_USER = 1, 2
HEADER, HEAD = struct.Struct("=IHH"), struct.Struct("=QIIQQQ")
TIMERS_A_CPU = 3
"""Events of a CPU. A timer's interrupt also wakes who sleeps until about then (timer slack). With a
single timer and one period, samples come at the same moment of a load whose time they set: a
program that ran for 0.55 of the time was in 0.02 of the samples, with three of them in 0.45."""
MANY_CPUS = 128
"""Beyond them a CPU has one timer: an agent may have 1024 files open (RLIMIT_NOFILE)."""
SPREAD, GOLDEN = 0.06, 0.618034
"""Part by which the longest of their periods is longer than the shortest; multiples of the golden
ratio are all different, so their fractions say where each is in between."""
RING_BYTES = 4 * 2**20
"""The ring of each CPU: 13 s of samples of 300 B at 999 Hz."""
RINGS_BYTES = 256 * 2**20
"""The rings of all CPUs together; with more than 64 of them each has less."""
LEAST_RING_BYTES = 2**18
NODES_MAX = 2**16
"""Nodes of the tree of functions: 2 CPUs under load have some thousand. Chains beyond it keep their
anchors alone, which are few."""
LEAST_SEEN = 2**13
"""Different samples kept of a CPU, however many share STACKS_MAX: some 0.6 kB each."""
NAMES_SPARE = 2**12
"""Names of processes that were not sampled, beside as many as were."""
LEAST_NS = 5 * 10**6
"""What took less of a CPU's time between two looks is left out."""
USER, GUEST = -1, -2
"""Nodes of samples outside of the kernel: of a program, and of a virtual machine."""
ROOT = -1
NOBODY = 2**22
"""In place of a process that had just ended, whose number is -1: above all (PID_MAX_LIMIT)."""
NAME_BYTES = 128
SYMBOLS = "/proc/kallsyms"
CODE = "tTwW"
"""Types of symbols that are functions."""
PARANOID = "/proc/sys/kernel/perf_event_paranoid"
HIDDEN = "/proc/sys/kernel/kptr_restrict"
TIMERS = "/proc/timer_list"
LOCKED = "/proc/sys/kernel/perf_event_mlock_kb"
STEP = "run as root, or give udpbench's agent CAP_PERFMON (Linux 5.8), CAP_SYSLOG and CAP_IPC_LOCK"
_EXACT_IDLE = re.compile(r"\.nohz(?:_mode)?\s*: ([0-9]+)")


@dataclass
class _Ring:
    """One CPU's events and what was read of them."""

    files: tuple[int, ...]
    memory: mmap.mmap
    size_bytes: int
    most: int
    """Different samples that are kept; what else comes is lost."""
    tail: int = 0
    lost: int = 0
    seen: dict[tuple[int, int, bytes], list[int]] = field(default_factory=dict)
    """Process, mode and chain → how many samples, and their time in ns."""

    def count(self, key: tuple[int, int, bytes], period_ns: int) -> None:
        """Count a sample: anybody can make ever more processes, which have ever other chains."""
        if key not in self.seen and len(self.seen) >= self.most:
            self.lost += 1
            return
        counts = self.seen.setdefault(key, [0, 0])
        counts[0] += 1
        counts[1] += period_ns

    def waiting(self) -> int:
        """Return how many bytes wait to be read."""
        (head,) = struct.unpack_from("=Q", self.memory, DATA_HEAD)
        return int(head) - self.tail

    def take(self) -> bytes:
        """Return what waits, and free its room."""
        waiting, begin = self.waiting(), self.tail % self.size_bytes
        page, end = mmap.PAGESIZE, begin + waiting
        first = self.memory[page + begin : page + min(end, self.size_bytes)]
        rest = self.memory[page : page + max(end - self.size_bytes, 0)]
        self.tail += waiting
        struct.pack_into("=Q", self.memory, DATA_TAIL, self.tail)
        return bytes(first + rest)

    def close(self) -> None:
        """End the events."""
        self.memory.close()
        for file in self.files:
            os.close(file)

    def order(self, request: int) -> None:
        """Ask something of each event."""
        for file in self.files:
            fcntl.ioctl(file, request, 0)


class CpuSampler:
    """Samples of all CPUs between the edges of one phase."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._rings: dict[int, _Ring] = {}
        self._programs: dict[int, str] = {}
        self._names_max = 0
        self._from_ns = 0
        self._to_ns: Optional[int] = None
        self._period_ns = 0
        self._why = "it was not begun"
        self._symbols: Optional[str] = None
        self._work: Optional[_Work] = None

    @property
    def why(self) -> str:
        """Why nothing is sampled; empty if it is."""
        return self._why

    def begin_early(self, frequency: int, refusal: Optional[OSError] = None) -> None:
        """Begin to sample, and read the kernel's symbols now, while that is permitted."""
        if refusal is not None:
            self._why = f"{refusal.strerror}; end one of them"
            return
        self.begin(frequency)
        self._symbols = self._host.read_text(SYMBOLS) if self._rings else None

    def begin(self, frequency: int) -> None:
        """Begin to sample every CPU so many times a second, if that is permitted here."""
        self.close()
        self._from_ns, self._to_ns, self._why = 0, None, ""
        self._period_ns = SECOND_NS // frequency
        self._programs = self._host.process_names()
        self._names_max = 2 * len(self._programs) + NAMES_SPARE
        cpus = parse_cpu_list(read(self._host, "/sys/devices/system/cpu/online") or "")
        try:
            self._why = self._hidden()
            for cpu in () if self._why else cpus:
                self._rings[cpu] = _opened(cpu, self._period_ns, len(cpus))
        except OSError as error:
            self.close()
            self._why = self._refusal(error)
        for ring in self._rings.values():
            ring.order(ENABLE)
        self._symbols = None

    def mark(self, edge: Optional[Edge], clock_ns: int) -> None:
        """Take the time of the snapshot at an edge of the phase; make room in full rings."""
        if edge == "begin":
            self._from_ns = clock_ns
        elif edge == "end":
            self._to_ns = clock_ns
        for ring in self._rings.values():
            if ring.waiting() > ring.size_bytes // 2:
                self._read(ring)

    def lately(self) -> dict[str, int]:
        """Return what each CPU did since this was asked before, in ns, without idle time.

        ``0 rx_udp`` is CPU 0 in a soft interrupt, by stage, ``0 unbound`` a program.
        """
        times_ns: Counter[str] = Counter()
        for cpu, ring in self._rings.items():
            self._read(ring)
            if self._work is None:
                self._work = _Work(_Symbols(self._symbols or self._host.read_text(SYMBOLS)))
            for (pid, mode, chain), (_, time_ns) in ring.seen.items():
                stage = self._work.stage_of(chain) if mode == IN_KERNEL else None
                name = stage or (self._program(pid) if pid else IDLE)
                if name != IDLE:
                    times_ns[f"{cpu} {name}"] += time_ns
            ring.seen.clear()
        return {name: time_ns for name, time_ns in times_ns.items() if time_ns >= LEAST_NS}

    def end(self) -> CpuSamples:
        """End sampling; return what was seen between the first edge and the last."""
        for ring in self._rings.values():
            ring.order(DISABLE)
            self._read(ring)
        rings, self._rings = self._rings, {}
        try:
            if not rings:
                return CpuSamples(why=self._why)
            return self._samples(rings)
        finally:
            for ring in rings.values():
                ring.close()

    def close(self) -> None:
        """End sampling and forget it."""
        for ring in self._rings.values():
            ring.close()
        self._rings = {}

    def _hidden(self) -> str:
        """Return why functions have no addresses here; empty if they have."""
        try:
            with self._host.path(SYMBOLS).open() as file:
                # Variables of each CPU come first, at 0, on x86 before Linux 6.15.
                first = next((line for line in file if line.split()[1] in CODE), "")
        except OSError as error:
            return f"{SYMBOLS}: {error.strerror}: the kernel has no symbols to read"
        if first and int(first.split()[0], 16) == 0:
            restricted = read(self._host, HIDDEN) or "?"
            return f"the kernel hides its addresses (kernel.kptr_restrict is {restricted}); {STEP}"
        return ""

    def _refusal(self, error: OSError) -> str:
        if error.errno == errno.ENOMEM:
            locked = read(self._host, LOCKED) or "?"
            return f"{error.strerror} (kernel.perf_event_mlock_kb is {locked}); {STEP}"
        if error.errno in (errno.EACCES, errno.EPERM):
            paranoid = read(self._host, PARANOID) or "?"
            what = f"perf_event_open is not permitted (kernel.perf_event_paranoid is {paranoid})"
            return f"{what}; {STEP}"
        return f"perf_event_open: {error.strerror}"

    def _read(self, ring: _Ring) -> None:
        """Count what waits in a ring."""
        data, at = ring.take(), 0
        from_ns, to_ns = self._from_ns, self._to_ns
        while at + HEADER.size <= len(data):
            kind, bits, size = HEADER.unpack_from(data, at)
            if kind == SAMPLE:
                place = at + HEADER.size
                address, pid, _, time_ns, period, length = HEAD.unpack_from(data, place)
                pid = min(pid, NOBODY)
                if from_ns <= time_ns and (to_ns is None or time_ns < to_ns):
                    place += HEAD.size
                    chain = data[place : place + 8 * length] or struct.pack("=Q", address)
                    ring.count((pid, bits & MODES, chain), period // len(ring.files))
            elif kind == LOST:
                ring.lost += struct.unpack_from("=QQ", data, at + HEADER.size)[1]
            elif kind == NAMED:
                pid, thread = struct.unpack_from("=II", data, at + HEADER.size)
                if pid == thread:
                    name = data[at + HEADER.size + 8 : at + size].partition(b"\0")[0]
                    self._programs[pid] = name.decode("utf-8", "replace")
            at += max(size, HEADER.size)
        if len(self._programs) > self._names_max:
            sampled = {pid for each in self._rings.values() for pid, _, _ in each.seen}
            self._programs = {p: name for p, name in self._programs.items() if p in sampled}
            self._names_max = 2 * len(self._programs) + NAMES_SPARE

    def _samples(self, rings: dict[int, _Ring]) -> CpuSamples:
        tree = _Tree(_Symbols(self._symbols or self._host.read_text(SYMBOLS)))
        rows: Counter[tuple[int, int, int]] = Counter()
        times_ns: Counter[tuple[int, int, int]] = Counter()
        for cpu, ring in rings.items():
            for (pid, mode, chain), (number, time_ns) in ring.seen.items():
                node = USER if mode == IN_USER else GUEST
                node = tree.node_of(chain) if mode == IN_KERNEL else node
                rows[cpu, pid, node] += number
                times_ns[cpu, pid, node] += time_ns
        lost = Counter({cpu: ring.lost for cpu, ring in rings.items()})
        for (cpu, _, _), number in rows.most_common()[STACKS_MAX:]:
            lost[cpu] += number
        keys = sorted(key for key, _ in rows.most_common(STACKS_MAX))
        names = {pid: self._program(pid) for _, pid, _ in keys}
        return CpuSamples(
            clock="cpu-clock",
            period_ns=self._period_ns,
            functions=tuple(tree.functions),
            callers=tuple(tree.callers),
            called=tuple(tree.called),
            sampled_cpus=tuple(cpu for cpu, _, _ in keys),
            sampled_pids=tuple(pid for _, pid, _ in keys),
            sampled_nodes=tuple(node for _, _, node in keys),
            sampled_counts=tuple(rows[key] for key in keys),
            sampled_ns=tuple(times_ns[key] for key in keys),
            programs={str(pid): name for pid, name in names.items()},
            lost_samples={str(cpu): number for cpu, number in lost.items()},
            missing_anchors=missing_anchors(tree.symbols.names),
            exact_idle=self._exact_idle(),
        )

    def _program(self, pid: int) -> str:
        if pid not in self._programs:
            self._programs[pid] = read(self._host, f"/proc/{pid}/comm") or ""
        name = "".join(c if c.isprintable() else "?" for c in self._programs[pid])
        stat = read(self._host, f"/proc/{pid}/stat") if name.startswith(SOFTIRQ) else None
        is_kernels = stat is not None and parse_process(stat, 0).parent == KTHREADD
        return name if is_kernels else unmasked(name)

    def _exact_idle(self) -> Optional[bool]:
        """Return whether the kernel counts idle time in nanoseconds, not in ticks.

        It does where it may stop its tick (kernel/time/tick-sched.c: get_cpu_idle_time_us).
        """
        match = _EXACT_IDLE.search(read(self._host, TIMERS) or "")
        return match.group(1) != "0" if match is not None else None


def _ring_bytes(cpus: int) -> int:
    share = min(RING_BYTES, RINGS_BYTES // max(cpus, 1))
    return max(1 << (share.bit_length() - 1), LEAST_RING_BYTES)


def periods_ns(cpu: int, period_ns: int, cpus: int) -> tuple[int, ...]:
    """Return the periods of a CPU's timers, which together take about one sample a period."""
    timers = TIMERS_A_CPU if cpus <= MANY_CPUS else 1
    parts = (1 + SPREAD * (GOLDEN * (timers * cpu + n) % 1 - 0.5) for n in range(timers))
    return tuple(round(timers * period_ns * part) for part in parts)


def _opened(cpu: int, period_ns: int, cpus: int) -> _Ring:
    """Return the events of one of so many CPUs, not yet enabled; they share a ring."""
    size_bytes, most = _ring_bytes(cpus), max(STACKS_MAX // cpus, LEAST_SEEN)
    first_ns, *others_ns = periods_ns(cpu, period_ns, cpus)
    files = [_event(cpu, first_ns, size_bytes, COMM)]
    try:
        memory = _ring_of(files[0], size_bytes, cpu)
        for other_ns in others_ns:
            files.append(_event(cpu, other_ns, size_bytes))
            fcntl.ioctl(files[-1], SET_OUTPUT, files[0])
    except OSError:
        for file in files:
            os.close(file)
        raise
    return _Ring(tuple(files), memory, size_bytes, most)


def _event(cpu: int, period_ns: int, size_bytes: int, flags: int = 0) -> int:
    flags |= DISABLED | WATERMARK | KERNEL_CHAINS | OWN_CLOCK
    attributes = struct.pack(
        ATTRIBUTES,
        *(SOFTWARE, ATTRIBUTES_BYTES, CPU_CLOCK, period_ns, SAMPLED, 0, flags),
        *(size_bytes // 2, 0, 0, 0, 0, 0, 0, CLOCK_MONOTONIC),
    )
    return native.perf_event_open(bytearray(attributes), -1, cpu)


def _ring_of(file: int, size_bytes: int, cpu: int) -> mmap.mmap:
    try:
        return mmap.mmap(file, mmap.PAGESIZE + size_bytes)
    except OSError as error:
        # Of another cause than the same refusal of the event: RLIMIT_MEMLOCK, from 3 CPUs on.
        what = f"no memory for the samples of CPU {cpu}: {error.strerror}"
        raise OSError(errno.ENOMEM, what) from error


class _Symbols:
    """The kernel's functions by address."""

    def __init__(self, text: str) -> None:
        known = []
        for line in lines_of(text):
            words = line.split(None, 3)
            if len(words) > 2 and words[1] in CODE:
                known.append((int(words[0], 16), words[2].partition(".")[0][:NAME_BYTES]))
        known.sort()
        self._addresses = [address for address, _ in known]
        self._names = [name for _, name in known]
        self.names = frozenset(self._names)

    def name_of(self, address: int) -> str:
        """Return the function at an address; ``?`` below the first."""
        place = bisect_right(self._addresses, address) - 1
        return self._names[place] if place >= 0 else "?"

    def names_in(self, chain: bytes) -> list[str]:
        """Return the functions of a chain, the innermost first."""
        addresses = [a for a in struct.unpack(f"={len(chain) // 8}Q", chain) if a < CONTEXTS]
        # A return address may be behind the last instruction of the function that called.
        return [self.name_of(a - (place > 0)) for place, a in enumerate(addresses)]


class _Work:
    """What the kernel works at, by chains of functions."""

    def __init__(self, symbols: _Symbols) -> None:
        self._symbols = symbols
        self._known: dict[bytes, Optional[str]] = {}

    def stage_of(self, chain: bytes) -> Optional[str]:
        """Return the stage of a soft interrupt, or that it is idle; None for what a task does."""
        if chain not in self._known:
            if len(self._known) >= NODES_MAX:
                self._known.clear()
            self._known[chain] = self._stage(chain)
        return self._known[chain]

    def _stage(self, chain: bytes) -> Optional[str]:
        stage, interrupts = None, False
        for name in reversed(self._symbols.names_in(chain)):
            stage, anchor = stage_below(name, stage), anchor_of(name)
            interrupts |= anchor is not None and anchor.kind == INTERRUPT
        is_known = stage is not None and stage[0] != "?"
        return stage if is_known and (interrupts or stage == IDLE) else None


class _Tree:
    """Chains of functions that share their callers."""

    def __init__(self, symbols: _Symbols) -> None:
        self.symbols = symbols
        self.functions: list[str] = []
        self.callers: list[int] = []
        self.called: list[int] = []
        self._numbers: dict[str, int] = {}
        self._known: dict[int, int] = {}
        self._nodes: dict[tuple[int, int], int] = {}

    def node_of(self, chain: bytes) -> int:
        """Return the node of a chain's innermost function."""
        addresses = [a for a in struct.unpack(f"={len(chain) // 8}Q", chain) if a < CONTEXTS]
        # A return address may be behind the last instruction of the function that called.
        called = [a - 1 for a in addresses[1:]]
        functions = [self._function(address) for address in reversed(addresses[:1] + called)]
        if len(self.callers) > NODES_MAX:
            functions = [f for f in functions if anchor_of(self.functions[f]) is not None]
        node = ROOT
        for function in functions or [self._number("?")]:
            key = node, function
            if key not in self._nodes:
                self._nodes[key] = len(self.callers)
                self.callers.append(node)
                self.called.append(function)
            node = self._nodes[key]
        return node

    def _function(self, address: int) -> int:
        if address not in self._known:
            self._known[address] = self._number(self.symbols.name_of(address))
        return self._known[address]

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self.functions)
            self.functions.append(name)
        return self._numbers[name]

"""Looks at threads: what they count, and that no program makes them dear."""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any, Optional

import pytest
from proc_files import stat

from udpbench.agent.host.system import Host
from udpbench.agent.workers import usage
from udpbench.agent.workers.usage import LISTED_MAX, PAUSE, SAMPLED_MAX, ThreadSampler
from udpbench.model.limits import SECOND_NS, THREADS_MAX
from udpbench.model.record import ThreadUse

PID = 7
VECTOR = (33, 0x7FFE0000, 16, 0x1F8BFBFF, 6, usage.PAGE_BYTES, 17, 100, 0, 0)
"""What the kernel tells a program: AT_SYSINFO_EHDR, AT_HWCAP, AT_PAGESZ, AT_CLKTCK, AT_NULL."""
OF_64_BITS, OF_32_BITS = struct.pack("=10Q", *VECTOR), struct.pack("=10I", *VECTOR)
RECVMMSG = {"x86_64": 299, "aarch64": 243}
ANY_TIME = (0, None)


class Machine:
    """A /proc with one program; nothing that is done there takes CPU time."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.host = Host(root)
        self.now_ns = self.cpu_ns = 0
        self.paths: list[str] = []
        read = self.host.read_text

        def note(path: str) -> str:
            self.paths.append(path)
            return read(path)

        monkeypatch.setattr(self.host, "clock_ns", lambda: self.now_ns)
        monkeypatch.setattr(self.host, "read_text", note)
        monkeypatch.setattr(time, "thread_time_ns", lambda: self.cpu_ns)

    def put(self, path: str, content: bytes) -> None:
        """Write a file of /proc."""
        file = self.root / "proc" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    def thread(
        self,
        tid: int,
        times: str,
        state: str = "S",
        call: Optional[str] = None,
        name: str = "reader",
    ) -> None:
        """Write a thread as it is now."""
        folder = f"{PID}/task/{tid}"
        self.put(f"{folder}/stat", stat(tid, name, state=state).encode())
        self.put(f"{folder}/schedstat", times.encode())
        if call is not None:
            self.put(f"{folder}/syscall", call.encode())

    def program(self, *, vector: bytes = OF_64_BITS, during: Any = ANY_TIME) -> ThreadSampler:
        """Begin to look at the program."""
        self.put(f"{PID}/auxv", vector)
        return ThreadSampler(self.host, {}, {PID: "reader0"}, during)

    def looked(self) -> list[int]:
        """Return the threads that were looked at since the last time."""
        tids = [int(path.split("/")[4]) for path in self.paths if path.endswith("/stat")]
        self.paths.clear()
        return tids


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Make an empty /proc."""
    monkeypatch.setattr(usage.os, "uname", lambda: _Uname())
    return Machine(tmp_path, monkeypatch)


class _Uname:
    machine = "x86_64"


def test_a_thread_is_known_by_what_changed_between_two_looks(machine: Machine) -> None:
    """Its states and calls are those of each look; a call counts only while it sleeps."""
    sampler = machine.program()
    steps = [
        ("100 20 1", "S", f"{RECVMMSG['x86_64']} 0x3 0x0"),
        ("150 20 2", "R", "running"),
        ("150 25 2", "T", f"{RECVMMSG['x86_64']} 0x3 0x0"),
        ("190 30 3", "D", "9999 0x3"),
        ("190 30 3", "S", "-1 0x7ffe 0x7f00"),
    ]
    for number, (times, state, call) in enumerate(steps):
        machine.now_ns = number * 1000
        machine.thread(8, times, state, call, "a) S (b")
        sampler.sample()
    use = ThreadUse(
        *("a) S (b", 90, 10, 4000),
        {"S": 2, "R": 1, "T": 1, "D": 1},
        {"recvmmsg": 1, "other": 1},
    )
    assert {"reader0": (use,)} == sampler.uses()


def test_a_wait_for_a_cpu_that_has_not_ended_is_counted(machine: Machine) -> None:
    """The kernel counts it once the thread runs: one that gets no CPU for long does not sleep."""
    sampler = machine.program()
    steps = [
        (0, "100 20 1", "S"),
        (1000, "100 20 1", "R"),  # it may have slept until now
        (3000, "100 20 1", "R"),
        (6000, "100 20 1", "R"),
        (8000, "150 6950 2", "R"),  # it has run meanwhile
    ]
    waited = []
    for machine.now_ns, times, state in steps:
        machine.thread(8, times, state)
        sampler.sample()
        waited += [use.runnable_ns for use in sampler.uses().get("reader0", ())]
        sampler.restart()
    assert [0, 2000, 3000, 6930 - 5000] == waited


def test_a_phase_begins_where_the_one_before_it_ended(machine: Machine) -> None:
    """Without what was seen in it; a thread that nobody sampler at again has no part in it."""
    sampler = machine.program()
    for tid in (8, 9):
        machine.thread(tid, "100 20 1", "R")
    for machine.now_ns in (0, 1000):
        sampler.sample()
    sampler.restart()
    assert {} == sampler.uses()
    machine.now_ns = 3000
    machine.thread(8, "400 20 2", "S", "230 0x0")
    (machine.root / f"proc/{PID}/task/9/stat").unlink()
    sampler.sample()
    use = ThreadUse("reader", 300, 0, 2000, {"S": 1}, {"clock_nanosleep": 1})
    assert {"reader0": (use,)} == sampler.uses()


def test_what_is_not_counted_or_seen_is_missing(machine: Machine) -> None:
    """No times without sched_info, or after one look; no call without the rights to see it."""
    sampler = machine.program()
    machine.thread(8, "0 0 0")
    machine.thread(9, "5 0 1")
    machine.thread(10, "5 0 1")
    (machine.root / f"proc/{PID}/task/10/schedstat").unlink()
    sampler.sample()
    machine.now_ns = 50
    machine.thread(11, "5 0 1")
    sampler.sample()
    machine.now_ns = 100 + SECOND_NS
    (machine.root / f"proc/{PID}/task/9/stat").unlink()
    sampler.sample()
    assert {"reader0": (ThreadUse("reader", 0, 0, 50, {"S": 2}),)} == sampler.uses()
    machine.looked()
    sampler.sample()
    assert [8, 10, 11] == sorted(machine.looked())


def test_a_program_for_other_machines_has_no_call_by_name(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of 32 bits numbers its calls differently, and so does an unknown machine."""
    programs = ((OF_64_BITS, "x86_64"), (OF_32_BITS, "x86_64"), (OF_64_BITS, "riscv64"))
    for vector, name in (*programs, (b"", "x86_64")):
        monkeypatch.setattr(_Uname, "machine", name)
        sampler = machine.program(vector=vector)
        for machine.now_ns in (1, 2):
            machine.thread(8, "5 0 1", "S", f"{RECVMMSG['x86_64']} 0x3")
            sampler.sample()
        known = (vector, name) == (OF_64_BITS, "x86_64")
        (use,) = sampler.uses()["reader0"]
        assert {"recvmmsg" if known else "other": 2} == use.calls


def test_no_file_of_a_program_is_opened(machine: Machine) -> None:
    """A filesystem of its own (FUSE) need never answer, as this pipe."""
    program = machine.root / f"proc/{PID}/exe"
    program.parent.mkdir(parents=True)
    os.mkfifo(program)
    waits = threading.Thread(target=machine.program)
    waits.start()
    waits.join(10)
    hung = waits.is_alive()
    if hung:
        program.open("r+b").write(b"any program")
        waits.join()
    assert not hung


def test_a_real_program_is_known_by_what_the_kernel_gave_it() -> None:
    """It has 64 bits, as the interpreter has."""
    assert (sys.maxsize > 2**32) == usage._is_64_bit(Host(), os.getpid())


def test_only_the_phase_is_looked_at(machine: Machine) -> None:
    """Neither the wait for its start nor the rest after its end."""
    sampler = machine.program(during=(10, 20))
    machine.thread(8, "5 0 1")
    for machine.now_ns in (9, 10, 20, 21):
        sampler.sample()
    assert [8, 8] == machine.looked()


def test_a_look_at_many_threads_takes_the_busy_ones_and_others_in_turn(machine: Machine) -> None:
    """Each is seen in the end, those that run are seen every time."""
    sampler, tids, busy = machine.program(), range(100, 100 + 3 * SAMPLED_MAX), 150
    for tid in tids:
        machine.thread(tid, "5 0 1")
    seen = set()
    for number in range(10):
        machine.now_ns += 100
        machine.thread(busy, f"{5 + 10 * number} 0 1", "R")
        sampler.sample()
        looked = machine.looked()
        assert len(looked) <= SAMPLED_MAX
        assert busy in looked or number < 4
        seen |= {*looked}
    assert {*tids} == seen
    uses = sampler.uses()["reader0"]
    assert (THREADS_MAX, True) == (len(uses), uses[0].running_ns >= 50)


def test_a_program_of_ten_thousand_threads_is_listed_in_part(machine: Machine) -> None:
    """Once a second; threads that have ended make room."""
    sampler = machine.program()
    for tid in range(10_000):
        (machine.root / f"proc/{PID}/task/{tid}").mkdir(parents=True)
    seen = set()
    for number in range(LISTED_MAX // SAMPLED_MAX):
        machine.now_ns = number
        sampler.sample()
        seen |= {*machine.looked()}
    assert LISTED_MAX == len(seen)
    (machine.root / f"proc/{PID}/task").rename(machine.root / "before")
    machine.thread(20_000, "5 0 1")
    sampler.sample()
    assert [] == machine.looked()
    machine.now_ns += SECOND_NS
    sampler.sample()
    assert [20_000] == machine.looked()


def test_a_dear_look_is_followed_by_a_pause(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that sampler take a small share of a CPU, whatever they cost."""
    sampler = machine.program()
    machine.thread(8, "5 0 1")
    read = machine.host.read_text

    def slow(path: str) -> str:
        machine.cpu_ns += 10
        return read(path)

    monkeypatch.setattr(machine.host, "read_text", slow)
    took_ns = 3 * 10  # stat, schedstat, syscall
    for machine.now_ns in (0, PAUSE * took_ns - 1, PAUSE * took_ns):
        sampler.sample()
    assert [8, 8] == machine.looked()


def test_real_threads_are_read_as_the_kernel_writes_them() -> None:
    """The test's own runs while it sampler at itself."""
    key = (os.getpid(), os.getpid())
    sampler = ThreadSampler(Host(), {key: "reader0"}, {}, ANY_TIME)
    end_ns = time.monotonic_ns() + 5 * SECOND_NS
    while sum(use.looks["R"] for use in sampler.uses().get("reader0", ())) < 3:
        assert time.monotonic_ns() < end_ns
        sampler.sample()
    (use,) = sampler.uses()["reader0"]
    assert (True, {}) == (use.elapsed_ns > 0, use.calls)

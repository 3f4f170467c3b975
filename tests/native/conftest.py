"""Builds what the native tests load besides the extension: the loops over a kernel of our own."""

from __future__ import annotations

import fcntl
import os
import subprocess
from contextlib import chdir
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from cffi import FFI

NATIVE = Path(__file__).parents[2] / "native"
HERE = Path(__file__).parent

RINGS = ("open", "close", "give_buffers", "take_buffers", "enter")
INSIDE = """
struct fake_step { int32_t takes; uint32_t delay_ms; };
struct fake_call { int32_t socket; uint32_t offered; uint64_t first_sequence; uint64_t place;
                   uint64_t bytes; int32_t flags; uint64_t at_ns; };
struct fake_completion { uint32_t first; uint32_t last; uint32_t code; uint32_t silent_reads;
                         uint32_t after_calls; };
void fake_completions(const struct fake_completion *list, uint32_t count);
uint32_t fake_completions_left(void);
void fake_script(const struct fake_step *script, uint32_t count, int repeat_last);
uint32_t fake_calls(struct fake_call *to);
void fake_kick(int (*kick)(void));
void fake_wake(int (*wake)(void), int (*look)(void));
void fake_receive_failures(const int32_t *list, uint32_t count);
void fake_memory(uint32_t allocations);
void fake_way(int32_t error);
uint32_t fake_way_prepared(void);
uint32_t fake_way_released(void);
void fake_card(int32_t socket, uint32_t zerocopy, int32_t option, int32_t error);
uint32_t fake_card_flags(void);
void fake_late_readings(uint32_t count);
void fake_oversleep(uint32_t each_ms);
uint32_t fake_late_readings_left(void);
struct fake_chain { int32_t accepts; uint32_t takes; int32_t error; };
void fake_uring_real(uint32_t at_most);
void fake_uring_refuse(int32_t opening, int32_t giving);
void fake_uring_chains(const struct fake_chain *script, uint32_t count);
uint32_t fake_uring_taken(uint64_t *to);
void fake_uring_events(const int32_t *script, uint32_t count);
uint64_t ub_realtime_ahead_ns(uint64_t now_ns);
uint64_t ub_pacer_packets(uint64_t elapsed_ns, uint64_t rate_pps);
uint64_t ub_pacer_elapsed_ns(uint64_t packets, uint64_t rate_pps);
uint64_t ub_due_after(uint64_t packet, uint64_t rate_pps, uint32_t steps);
void ub_milliseconds_add(struct ub_milliseconds *milliseconds, uint64_t since_start_ns,
                         uint32_t packets);
void ub_stalls_add(struct ub_stalls *stalls, struct ub_stall stall);
"""


@pytest.fixture(scope="session")
def strict_flags() -> list[str]:
    """Return how test programs are compiled: as strictly as the project's own checks."""
    return ["-O2", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}"]


@pytest.fixture(scope="session")
def plain_environment() -> dict[str, str]:
    """Return the environment without a sanitizer's preload, which is meant for Python alone."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


@pytest.fixture(scope="session")
def scripted(
    tmp_path_factory: pytest.TempPathFactory,
    strict_flags: list[str],
    plain_environment: dict[str, str],
) -> tuple[Any, Any]:
    """Return (ffi, lib) of the same loops, with calls and memory as fake_kernel.c plays them."""
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent  # of all workers
    library = place / "scripted.so"
    sanitizers = os.environ.get("UDPBENCH_SANITIZE")
    wrapped = ("send", "sendto", "sendmsg", "sendmmsg", "recvmsg", "aligned_alloc")
    wrapped += ("recv", "recvmmsg", "recvfrom", "poll")
    wrapped += ("clock_gettime", "clock_nanosleep", "setsockopt", "getsockopt", "bind", "mmap")
    wrapped += ("ub_receive_way_of",)
    wrapped += tuple(f"ub_uring_{name}" for name in RINGS)
    flags = [*strict_flags, "-shared", "-fPIC", *(f"-Wl,--wrap={name}" for name in wrapped)]
    if sanitizers:
        flags += [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    fakes = [str(HERE / "fake_kernel.c"), str(HERE / "fake_uring.c"), str(HERE / "fake_xsk.c")]
    sources = [*sorted(str(file) for file in NATIVE.rglob("*.c")), *fakes]
    build = ["gcc", *flags, "-o", str(library), *sources]
    with library.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            subprocess.run(build, check=True, env=plain_environment)
    ffi = FFI()
    with chdir(NATIVE.parent):
        ffi.cdef(run_path(str(NATIVE / "build.py"))["DECLARATIONS"] + INSIDE)
    return ffi, ffi.dlopen(str(library))

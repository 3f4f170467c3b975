"""Builds the C extension for hosts of other machines and C libraries, with zig's C compiler.

Writes udpbench/portable/TARGET.so, which udpbench sends to a host that cannot load its own build.
Needs cffi, ziglang and an installed udpbench; run by ``python3 noxfile.py portable``.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from build import COMPILED, NATIVE, OPTIONS, ffibuilder
from udpbench.control.deployment.elf import Requirements, requirements

TARGETS = {
    f"{machine}-linux-{libc}": Requirements(machine, glibc)
    for machine in ("aarch64", "x86_64")
    for libc, glibc in (("gnu.2.17", (2, 17)), ("musl", None))
}
"""As zig names it → what the build may need of a host."""
PORTABLE = Path("udpbench/portable")


def build(target: str, generated: Path) -> None:
    """Build for one target; SystemExit if that fails or needs more of a host than it may."""
    built = PORTABLE / f"{target}.so"
    # The headers of Python's limited API are the same for all 64-bit Linux.
    headers = (
        "-I",
        str(NATIVE),
        "-I",
        sysconfig.get_path("include"),
        "-DPy_LIMITED_API=0x03090000",
    )
    files = (*COMPILED, str(generated), "-o", str(built))
    command = [sys.executable, "-m", "ziglang", "cc", "-target", target, *OPTIONS, *headers]
    subprocess.run([*command, "-shared", "-fPIC", "-s", *files], check=True)
    needed = requirements(built.read_bytes())
    if needed != TARGETS[target]:
        built.unlink()
        raise SystemExit(f"{built}: needs {needed}; at most {TARGETS[target]}")
    print(f"{built}: {needed}", flush=True)


def main() -> None:
    """Build for every target."""
    PORTABLE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        generated = Path(folder) / "_native.c"
        ffibuilder.emit_c_code(str(generated))
        for target in TARGETS:
            build(target, generated)


if __name__ == "__main__":
    main()

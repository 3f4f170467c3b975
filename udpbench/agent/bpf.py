"""bpf(2) by ctypes: load a small program, and ask what is attached; no toolchain, no library.

Owns the layout of ``union bpf_attr`` (include/uapi/linux/bpf.h). Attaches nothing. OSError with the
kernel's own reason where it refuses.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from typing import Optional

SYSCALL = {"x86_64": 321, "aarch64": 280, "ppc64le": 361, "s390x": 351, "riscv64": 280}
"""Number of bpf(2) by machine (arch/*/kernel/syscalls)."""
ATTR_BYTES = 144
PROG_QUERY = 16
TCX_INGRESS = 46  # enum bpf_attach_type, Linux 6.6


def _bpf(command: int, attr: bytes) -> tuple[int, bytes]:
    """Return the result and the attributes as the kernel left them."""
    number = SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"no bpf(2) known on {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(attr, ATTR_BYTES)
    result: int = libc.syscall(number, command, buffer, ATTR_BYTES)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result, buffer.raw


def tcx_programs(index: int) -> Optional[int]:
    """Return how many programs are attached before the IP layer of an interface, without a qdisc.

    0 on kernels before 6.6, which have no such place; None where the agent may not ask.
    """
    try:
        _, answer = _bpf(PROG_QUERY, struct.pack("=IIIIQI", index, TCX_INGRESS, 0, 0, 0, 0))
    except OSError as error:
        return 0 if error.errno in (errno.EINVAL, errno.ENOENT) else None
    return int(struct.unpack_from("=I", answer, 24)[0])

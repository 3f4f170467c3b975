"""The start of a program that a user names: with that user's rights, and no way to more.

Everything is given up between fork and exec, so no instruction of the program runs before. Owns how
such a program is started, wherever it is named: ``receive.command`` and ``reserve.command``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Optional

from udpbench.parent_death import end_with_parent

# include/uapi/linux/prctl.h
PR_SET_KEEPCAPS, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 8, 24, 38, 47
PR_CAP_AMBIENT_RAISE, PR_CAP_AMBIENT_CLEAR_ALL = 2, 4
# include/uapi/linux/capability.h
CAPABILITY_VERSION_3 = 0x20080522
CAP_NET_BIND_SERVICE = 10
CAPABILITIES = 64
"""Room for them in two words; the kernel has 41, and refuses the next with EINVAL."""
KEYCTL_JOIN_SESSION_KEYRING = 1  # include/uapi/linux/keyctl.h
_SYS_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}
REPORT_BYTES = 200


class ProgramUser(NamedTuple):
    """Who runs a program, with no other group."""

    uid: int
    gid: int


def start(
    command: Sequence[str],
    user: Optional[ProgramUser],
    ended_by: signal.Signals,
    kept: Collection[int] = (),
    **how: Any,
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own; it gets a signal when this thread ends.

    ``kept`` are capabilities that it has if this process has them. OSError if the program cannot be
    started or a right cannot be given up; then nothing of it has run.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def enter() -> None:
        try:
            confine(user, kept)
            end_with_parent(ended_by)
        except OSError as error:
            os.write(writing, f"{error.errno} {error.filename or ''}".encode()[:REPORT_BYTES])
            raise

    try:
        return subprocess.Popen(command, start_new_session=True, preexec_fn=enter, **how)
    except subprocess.SubprocessError as error:
        with suppress(BlockingIOError):
            code, _, what = os.read(reading, REPORT_BYTES).decode().partition(" ")
            where = f"its rights cannot be given up: {what or 'user'}"
            raise OSError(int(code), os.strerror(int(code)), where) from error
        raise
    finally:
        os.close(reading)
        os.close(writing)


def confine(user: Optional[ProgramUser], kept: Collection[int] = ()) -> None:
    """Become a user, if one is given, with no capability but ``kept``, for good.

    First of all no_new_privs: from then on no program gets rights from setuid bits, file
    capabilities or sudo(8) (Documentation/userspace-api/no_new_privs.rst).
    """
    _prctl("no_new_privs", PR_SET_NO_NEW_PRIVS, 1)
    _leave_keyring()
    _drop_bounds(kept)
    allowed = _permitted() & sum(1 << number for number in kept)
    if user is not None:
        if user.uid == 0:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), "user root")
        if allowed:
            _prctl("keepcaps", PR_SET_KEEPCAPS, 1)
        os.setgroups([])
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)
    _set_capabilities(allowed)
    _prctl("ambient capabilities", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    for number in range(CAPABILITIES):
        if allowed >> number & 1:
            _prctl("ambient capabilities", PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, number)


def _drop_bounds(kept: Collection[int]) -> None:
    """Empty the bounding set; a process without CAP_SETPCAP cannot, and no_new_privs suffices."""
    for number in range(CAPABILITIES):
        if number in kept:
            continue
        try:
            _prctl("capability bounding set", PR_CAPBSET_DROP, number)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EPERM):
                return
            raise


def _leave_keyring() -> None:
    """Join a new, empty session keyring: whoever has one of root's may read keys in it.

    Where the kernel has no keyrings, or a container forbids them, the program cannot use any.
    """
    number = _SYS_KEYCTL.get(os.uname().machine) if sys.maxsize > 2**32 else None
    if number is not None:
        _libc().syscall(number, KEYCTL_JOIN_SESSION_KEYRING, None, None, None, None)


def _permitted() -> int:
    """Return the permitted capabilities of this process, as bits."""
    data = ctypes.create_string_buffer(24)
    _checked("capabilities", _libc().capget(_header(), data))
    _, low, _, _, high, _ = struct.unpack("=6I", data.raw)
    return int(high << 32 | low)


def _set_capabilities(bits: int) -> None:
    """Have exactly these, also inheritable: what is ambient has to be."""
    data = struct.pack("=6I", *(bits & 0xFFFFFFFF,) * 3, *(bits >> 32,) * 3)
    _checked("capabilities", _libc().capset(_header(), data))


def _header() -> bytes:
    return struct.pack("=Ii", CAPABILITY_VERSION_3, 0)


def _prctl(what: str, option: int, *arguments: int) -> None:
    words = (ctypes.c_ulong(n) for n in (*arguments, 0, 0, 0, 0)[:4])
    _checked(what, _libc().prctl(option, *words))


def _checked(what: str, result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)

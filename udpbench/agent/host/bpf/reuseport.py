"""A pinned program of the user's that chooses among the sockets of a reuseport group.

Owns what is asked of it: type sk_reuseport, with one array of sockets, whose places are free. It is
never changed; what is put there leaves with its socket. OSError with what to do.
"""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from udpbench.agent.host.bpf import bpf
from udpbench.agent.host.socket_options import SO_ATTACH_REUSEPORT_EBPF
from udpbench.errors import in_words


def join(path: str, sock: socket.socket, number: int, members: int) -> None:
    """Put the member with a number, counted from 0, of so many into the program's array.

    The last one has the program choose from then on.
    """
    try:
        program = bpf.open_pinned(path)
        try:
            sockets = _array(program)
            try:
                _put(sockets, sock, number, members)
            finally:
                os.close(sockets)
            if number == members - 1:
                sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF, program)
        finally:
            os.close(program)
    except OSError as error:
        raise OSError(error.errno, f"receive.steering: {path}: {in_words(error)}") from error


def _array(program: int) -> int:
    """Return the descriptor of the array of sockets that the program uses."""
    # A map may be pinned by that name, too.
    pinned = str(Path(f"/proc/self/fd/{program}").readlink())
    kind, numbers = bpf.program_maps(program) if pinned.endswith("bpf-prog") else (None, ())
    if kind != bpf.SK_REUSEPORT:
        text = "no program of type sk_reuseport; load one: bpftool prog load FILE.o PATH"
        raise OSError(errno.EINVAL, text)
    arrays = []
    for number in numbers:
        table = bpf.open_map(number)
        if bpf.map_shape(table)[0] == bpf.REUSEPORT_SOCKARRAY:
            arrays.append(table)
        else:
            os.close(table)
    if len(arrays) == 1:
        return arrays[0]
    for table in arrays:
        os.close(table)
    text = f"its program uses {len(arrays)} arrays of sockets (BPF_MAP_TYPE_REUSEPORT_SOCKARRAY)"
    raise OSError(errno.EINVAL, f"{text}; it must use one, which is filled")


def _put(sockets: int, sock: socket.socket, number: int, members: int) -> None:
    _, value_bytes, places = bpf.map_shape(sockets)
    if members > places:
        text = f"its array has {places} places for {members} workers; lower receive.workers"
        raise OSError(errno.E2BIG, text)
    try:
        bpf.take_place(sockets, number, sock.fileno(), value_bytes)
    except FileExistsError as error:
        text = f"place {number} of its array has a socket of a program in use; pin another program"
        raise OSError(error.errno, text) from error

"""A user's pinned program that selects among the sockets of a reuseport group.

Owns its requirements: type sk_reuseport, with exactly one array of sockets, with free places. The
program is never changed; a socket leaves the array when it closes. OSError names the next step.
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
    """Insert member ``number`` (from 0) of ``members`` into the program's array.

    The last member attaches the program.
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
    """Return the descriptor of the program's array of sockets."""
    # The path may be a pinned map.
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
    raise OSError(errno.EINVAL, f"{text}; it must use exactly one")


def _put(sockets: int, sock: socket.socket, number: int, members: int) -> None:
    _, value_bytes, places = bpf.map_shape(sockets)
    if members > places:
        text = f"its array has {places} places for {members} workers; lower receive.workers"
        raise OSError(errno.E2BIG, text)
    try:
        bpf.insert_socket(sockets, number, sock.fileno(), value_bytes)
    except FileExistsError as error:
        text = f"place {number} of its array already holds a socket; pin another program"
        raise OSError(error.errno, text) from error

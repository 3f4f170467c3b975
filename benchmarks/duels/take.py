"""Loads the program that takes frames, as udpbench's receivers do, and becomes a bare receiver.

Hands it the descriptors of the map of sockets and of the program, as its last two words:
``take.py ADDRESS PORT PROGRAM WORDS…``. The program attaches it; its end is the undo.
"""

from __future__ import annotations

import os
import sys

from udpbench.agent.host.bpf import bpf
from udpbench.agent.host.bpf.port_taker import takes


def main(address: str, port: str, *words: str) -> None:
    """Become the program."""
    sockets = bpf.create_sockets(1)
    program = bpf.load(bpf.XDP, takes(sockets, 4, [int(port)], [address]), "bench_take")
    for descriptor in (sockets, program):
        os.set_inheritable(descriptor, True)
    os.execv(words[0], [*words, str(sockets), str(program)])  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(*sys.argv[1:])

"""An interpreter of the BPF instructions that udpbench uses, and a memory to run them on."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from udpbench.agent.host.bpf.instructions import FRAME, LOOK_UP, READ_KERNEL
from udpbench.agent.host.bpf.port_taker import REDIRECT_MAP

XDP_REDIRECT = 4
STACK = 2**40
"""Where the stack ends."""
WIDTHS = {0x71: "=B", 0x69: "=H", 0x61: "=I", 0x79: "=Q"}
ARITHMETIC = {
    0xB7: lambda _, value: value,
    0xBF: lambda _, value: value,
    0x07: lambda to, value: to + value,
    0x0F: lambda to, value: to + value,
    0x27: lambda to, value: to * value,
    0x57: lambda to, value: to & value,
    0x67: lambda to, value: to << value,
    0x77: lambda to, value: to >> value,
}
JUMPS = {
    0x05: lambda _, __: True,
    0x15: lambda to, value: to == value,
    0x55: lambda to, value: to != value,
    0x56: lambda to, value: to & 0xFFFFFFFF != value & 0xFFFFFFFF,
    0x2D: lambda to, value: to > value,
    0x45: lambda to, value: to & value != 0,
}


class Machine:
    """Memory at addresses, and maps by their number: key → count."""

    def __init__(self, memory: Mapping[int, bytes], maps: Sequence[Mapping[int, int]] = ()) -> None:
        self.memory = {STACK - 64: bytearray(64), **{at: bytearray(b) for at, b in memory.items()}}
        self.maps = [dict(table) for table in maps]
        self._values: list[tuple[int, int]] = []

    def run(self, program: bytes, context: int) -> int:
        """Return what a program returns; AssertionError where it reads what is not there."""
        registers = [0] * 11
        registers[1], registers[FRAME] = context, STACK
        at = 0
        while True:
            code, both, offset, value = struct.unpack_from("=BBhi", program, 8 * at)
            to, source = both & 15, both >> 4
            operand = registers[source] if code & 8 else value
            at += 1
            if code == 0x95:
                return registers[0]
            if code == 0x18:  # of two instructions, the second of which is empty here
                registers[to], at = value, at + 1
            elif code in WIDTHS:
                data = self.read(registers[source] + offset, struct.calcsize(WIDTHS[code]))
                assert data is not None, "read beyond what is there"
                (registers[to],) = struct.unpack(WIDTHS[code], data)
            elif code in ARITHMETIC:
                registers[to] = ARITHMETIC[code](registers[to], operand)
            elif code in JUMPS:
                at += offset if JUMPS[code](registers[to], operand) else 0
            elif code == 0x63:
                self.write(registers[to] + offset, struct.pack("=I", registers[source] % 2**32))
            elif code == 0x7A:
                self.write(registers[to] + offset, struct.pack("=q", value))
            elif code == 0xDB:
                number, key = self._values[registers[to] - 1]
                self.maps[number][key] += registers[source]
            else:
                assert 0x85 == code
                registers[0] = self.call(value, *registers[1:4])
                registers[1:6] = [-(2**50)] * 5  # a call leaves nothing in them

    def read(self, at: int, size: int) -> bytes | None:
        """Return what lies at an address; None if nothing does."""
        for start, data in self.memory.items():
            if start <= at and at + size <= start + len(data):
                return bytes(data[at - start : at - start + size])
        return None

    def write(self, at: int, data: bytes) -> None:
        """Write on the stack."""
        place = at - (STACK - 64)
        assert 0 <= place <= 64 - len(data), "written beyond the stack"
        self.memory[STACK - 64][place : place + len(data)] = data

    def call(self, function: int, first: int, second: int, third: int) -> int:
        """Do what a helper of the kernel does."""
        if function == REDIRECT_MAP:
            return XDP_REDIRECT if second in self.maps[first] else third
        if function == READ_KERNEL:
            self.write(first, self.read(third, second) or bytes(second))
            return 0
        assert LOOK_UP == function
        (key,) = struct.unpack("=I", self.read(second, 4) or b"")
        if key not in self.maps[first]:
            return 0
        self._values.append((first, key))
        return len(self._values)

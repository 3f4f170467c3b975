"""Files that an experiment sends as datagrams, read into it: ``{file: query.bin}`` → ``{hex: …}``.

This makes the stored text of an experiment enough to repeat it. Reads only these files, of those
that ``named_files`` opens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from udpbench.definition.elsewhere import elsewhere
from udpbench.definition.named_files import ReadScope
from udpbench.definition.problems import KeyPath, Tree
from udpbench.definition.values import refusal_parts
from udpbench.errors import Problem
from udpbench.model.limits import MAX_PAYLOAD_BYTES

MOST_BYTES = 2**16
"""Limit for all datagrams of an experiment together, which in hexadecimal must fit into one
definition."""


def inlined(tree: Tree, scope: ReadScope) -> tuple[Tree, list[Problem]]:
    """Return a tree with the contents of its payload files, as far as they may be read."""
    problems: list[Problem] = []
    sizes_bytes: list[int] = []
    data = _walked(tree, tree.data, (), (scope, problems, sizes_bytes))
    if sum(sizes_bytes) > MOST_BYTES:
        limit = f"at most {MOST_BYTES} B of one experiment"
        what = f"its payload files hold at least {sum(sizes_bytes)} B"
        problems.append(tree.problem(("traffic", "payload"), what, limit, "send fewer datagrams"))
    return replace(tree, data=data), problems


CAPTURES = tuple(map(bytes.fromhex, ("d4c3b2a1", "a1b2c3d4", "4d3cb2a1", "a1b23c4d", "0a0d0d0a")))
"""How files of tcpdump begin: pcap in either byte order, in µs or ns (pcap-savefile(5)), pcapng."""
Reading = tuple[ReadScope, list[Problem], list[int]]


def _walked(tree: Tree, data: Any, path: KeyPath, reading: Reading) -> Any:
    if isinstance(data, list):
        return [_walked(tree, item, (*path, i), reading) for i, item in enumerate(data)]
    if not isinstance(data, dict):
        return data
    in_payload = any(str(part).rpartition(".")[2] == "payload" for part in path[-2:])
    if in_payload and list(data) == ["file"]:
        return _read(tree, data["file"], (*path, "file"), reading)
    return {key: _walked(tree, value, (*path, key), reading) for key, value in data.items()}


def _read(tree: Tree, name: Any, path: KeyPath, reading: Reading) -> dict[str, str]:
    scope, problems, sizes_bytes = reading
    if sum(sizes_bytes) > MOST_BYTES:  # refused anyway, however many files there are
        return {"hex": "00"}
    try:
        with scope.open(str(name)) as file:
            content = file.read(MAX_PAYLOAD_BYTES + 1)
    except ValueError as error:
        problems.append(tree.problem(path, *refusal_parts(error)))
        return {"hex": "00"}
    sizes_bytes.append(len(content))
    if not 1 <= len(content) <= MAX_PAYLOAD_BYTES:
        limit = f"1 B to {MAX_PAYLOAD_BYTES} B"
        size = "no bytes" if not content else "more than fits into a datagram"
        step = elsewhere("pcap") if content[:4] in CAPTURES else "name another file"
        problems.append(tree.problem(path, f"it holds {size}", limit, step))
        return {"hex": "00"}
    return {"hex": content.hex()}

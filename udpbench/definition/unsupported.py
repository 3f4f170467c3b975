"""What the grammar knows and nothing obeys yet: refused, never ignored.

One table; whoever builds an effect removes its line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel

from udpbench.definition.grammar import key_of, sorted_fields
from udpbench.definition.problems import KeyPath, Tree
from udpbench.errors import Problem


def only(*values: Any) -> Callable[[Any], bool]:
    """Supported are these values alone."""
    return lambda value: value in values


# Path → whether the value has an effect today.
NOT_YET: dict[str, Callable[[Any], bool]] = {
    "explain": only(False),
}


def refused(tree: Tree, model: BaseModel) -> Iterator[Problem]:
    """Yield every value of a validated tree that has no effect yet."""
    for path, value in _walk(model, ()):
        supported = NOT_YET.get(".".join(str(part) for part in path))
        if supported is not None and not supported(value):
            step = "leave it out, or wait for a later version"
            yield tree.problem(path, "not yet supported", "", step)


def _walk(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Yield every key that the user set with its value, depth first."""
    if path:
        yield path, value
    if isinstance(value, BaseModel):
        for name in sorted_fields(value):
            yield from _walk(getattr(value, name), (*path, key_of(name)))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _walk(item, (*path, i))

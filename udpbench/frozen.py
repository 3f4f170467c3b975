"""Frozen dataclasses that import soon: methods are shared, or written at their first use.

``dataclasses`` writes and compiles six methods for each class, which takes 1 ms; an agent imports a
hundred classes, and makes instances of a few. To type checkers, and to all functions of
``dataclasses``, these are ordinary ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen: bool) -> Callable[[type], type]:
        """Return a decorator of classes, as ``dataclasses.dataclass(frozen=True)`` does."""
        if not frozen:
            raise TypeError("only for frozen classes; take that of dataclasses")
        return _freeze


C = TypeVar("C")
_INCOMPLETE: list[type] = []


def _freeze(cls: type[C]) -> type[C]:
    """Return a class as a frozen dataclass."""
    complete = dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    complete.__dataclass_params__.frozen = True  # type: ignore[attr-defined]
    fields = dataclasses.fields(complete)  # type: ignore[arg-type]
    compared = _values([item.name for item in fields if item.compare])
    hashed = _values([item.name for item in fields if item.compare and item.hash is not False])
    shown = [item.name for item in fields if item.repr]

    def initialise(self: C, *values: Any, **named: Any) -> None:
        complete.__init__ = _initialiser(complete)  # type: ignore[method-assign]
        complete.__init__(self, *values, **named)

    def equal(self: C, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return compared(self) == compared(other)

    def represent(self: C) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{self.__class__.__qualname__}({values})"

    methods = {
        "__init__": initialise,
        "__eq__": equal,
        "__hash__": lambda self: hash(hashed(self)),
        "__repr__": represent,
        "__setattr__": _refuse_assignment,
        "__delattr__": _refuse_deletion,
    }
    for name, method in methods.items():
        setattr(complete, name, method)
    _INCOMPLETE.append(complete)
    return complete


def complete_all() -> None:
    """Write methods of all frozen dataclasses that exist: time is dear once they are used."""
    for each in _INCOMPLETE:
        if each.__init__.__name__ == "initialise":  # type: ignore[misc]
            each.__init__ = _initialiser(each)  # type: ignore[misc]
    _INCOMPLETE.clear()


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what returns the values of some attributes; attrgetter returns a single one bare."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda item: tuple(getattr(item, name) for name in names)


def _initialiser(cls: type) -> Callable[..., None]:
    """Return the ``__init__`` that ``dataclasses`` writes for a class of these fields."""
    body: dict[str, Any] = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    body["__doc__"] = "-"  # else dataclasses writes its signature there, a third of the time
    body["__annotations__"] = {}
    for item in dataclasses.fields(cls):
        body["__annotations__"][item.name] = item.type
        if item.default is not MISSING:
            body[item.name] = item.default
        elif item.default_factory is not MISSING:
            body[item.name] = dataclasses.field(default_factory=item.default_factory)
    if hasattr(cls, "__post_init__"):
        body["__post_init__"] = cls.__post_init__
    bare: Any = type(cls.__name__, (), body)
    alike = dataclasses.dataclass(frozen=True, repr=False, eq=False)(bare)
    initialise: Callable[..., None] = alike.__init__
    return initialise


def _refuse_assignment(_self: object, name: str, _value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(_self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")

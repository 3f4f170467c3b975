"""Frozen dataclasses are what ``dataclasses`` makes of the same classes."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, field, fields, is_dataclass, replace
from typing import Any

import pytest

from udpbench import frozen


class Fields:
    """Fields of every kind that is used."""

    number: int
    words: tuple[str, ...] = ("a",)
    kept: dict[str, int] = field(default_factory=dict)
    note: str | None = field(default=None, compare=False, repr=False)


SLOTS = ("__dict__", "__weakref__")
"""What each class has of its own."""


def made(decorator: Any) -> Any:
    """Return a class of these fields."""
    body = {name: value for name, value in vars(Fields).items() if name not in SLOTS}
    return decorator(type("Example", (), body))


OWN: Any = made(frozen.dataclass(frozen=True))
RIVAL: Any = made(dataclasses.dataclass(frozen=True))


@frozen.dataclass(frozen=True)
class Place:
    """A point, which knows its distance."""

    x: int = 0
    y: int = 0

    def __post_init__(self) -> None:
        """Refuse what is nowhere."""
        if self.x < 0:
            raise ValueError("nowhere")


@dataclasses.dataclass(frozen=True)
class High(Place):
    """With a field more, by the standard library."""

    z: int = 0


@pytest.mark.parametrize(
    ("values", "named"),
    [((1,), {}), ((1, ("b",)), {"kept": {"c": 2}}), ((), {"number": 3, "note": "x"})],
)
def test_instances_are_alike(values: tuple[Any, ...], named: dict[str, Any]) -> None:
    """In what they hold and show, in what replaces them, and in what they equal."""
    own, rival = OWN(*values, **named), RIVAL(*values, **named)
    assert vars(rival) == vars(own)
    assert repr(rival) == repr(own)
    assert own == OWN(*values, **{**named, "note": "not compared"})
    assert own != replace(own, number=77)
    assert own != rival
    assert vars(replace(rival, number=7)) == vars(replace(own, number=7))
    assert own.kept is not OWN(1).kept


@pytest.mark.parametrize(("values", "named"), [((), {}), ((1, 2, 3, 4, 5), {}), ((1,), {"x": 2})])
def test_wrong_arguments_are_refused_in_the_same_words(
    values: tuple[Any, ...], named: dict[str, Any]
) -> None:
    """Also before the first instance was made."""
    texts = []
    for cls in (made(frozen.dataclass(frozen=True)), RIVAL):
        with pytest.raises(TypeError) as caught:
            cls(*values, **named)
        texts.append(str(caught.value))
    assert texts[1] == texts[0]


def test_nothing_is_assigned_or_deleted() -> None:
    """In the words of the standard library."""
    for cls in (OWN, RIVAL):
        item = cls(1)
        with pytest.raises(FrozenInstanceError, match="cannot assign to field 'number'"):
            item.number = 2
        with pytest.raises(FrozenInstanceError, match="cannot delete field 'number'"):
            del item.number


def test_they_are_hashed_by_what_is_compared() -> None:
    """Lists and maps have no hash."""
    assert hash(Place(1, 2)) == hash(Place(1, 2))
    assert {Place(1, 2): 1}[Place(1, 2)] == 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(OWN(1))


def test_the_standard_library_knows_them() -> None:
    """Its functions, its subclasses, copies and pickles."""
    assert [item.name for item in fields(RIVAL)] == [item.name for item in fields(OWN)]
    assert is_dataclass(OWN)
    assert RIVAL.__match_args__ == OWN.__match_args__
    assert dataclasses.asdict(OWN(1)) == dataclasses.asdict(RIVAL(1))
    assert (1, 2, 3) == (High(1, 2, 3).x, High(1, 2, 3).y, High(1, 2, 3).z)
    place = Place(3)
    assert place == copy.deepcopy(place) == pickle.loads(pickle.dumps(place))  # noqa: S301
    with pytest.raises(ValueError, match="nowhere"):
        Place(-1)


def test_methods_are_written_at_once_where_time_will_be_dear() -> None:
    """Those of every class that exists, which is the same before and after."""

    @frozen.dataclass(frozen=True)
    class Later:
        number: int
        other: int = 2

    shared = Later.__init__
    frozen.complete_all()
    written = Later.__init__
    assert shared is not written
    assert Later(1) == Later(1, other=2)
    frozen.complete_all()
    assert written is Later.__init__


def test_only_frozen_classes_are_made() -> None:
    """Others have methods that are not shared."""
    with pytest.raises(TypeError, match="only for frozen classes"):
        frozen.dataclass(frozen=False)

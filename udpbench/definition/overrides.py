"""Changing a tree by dotted paths: extends, --set, sweeps and variants.

Pure functions from trees to trees; ``file_schema`` validates the result.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from udpbench.definition.file_keys import PRESETS
from udpbench.definition.problems import KeyPath, Place, Tree, as_yaml, at, dotted
from udpbench.definition.yaml_reader import parse_value
from udpbench.errors import Problem

WHOLE = ("sweep", "variants", "expect", "compare")
BLOCKS = "compare.blocks"
"""The one value in those that ``--set`` changes: of every comparison, as they have it in common."""
NOT_IN_POINTS = ("question", "extends", "repetitions", *WHOLE)
MAX_POINTS = 4096
MAX_SET = 64
"""Most keys of the sweep, and of a variant; each pair of keys is looked at."""
MAX_PLACES = 2**19
"""Most keys of all points together: the place of each is kept, for messages, and takes 80 bytes."""
MAX_NAMES_CHARACTERS = 2**22
"""Limit of the names of all points together: with 60 keys of 3,000 characters they took 2.2 GiB."""
_Sets = tuple[str, KeyPath]
"""A dotted path that a sweep or variant sets, and where that is written."""

_VARIANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+-]*\Z")


@dataclass(frozen=True)
class PointTree:
    """One point of an experiment: its name and the tree that describes it."""

    name: str
    variant: str | None
    values: dict[str, Any]
    tree: Tree
    parts: tuple[str, ...] = ()
    """Variant and ``key=value`` of each key of the sweep: the name, part by part."""


@dataclass(frozen=True)
class Override:
    """A value for a path, and where it was written: a key path of the tree, or another place."""

    path: str
    value: Any
    source: KeyPath | Place


def split(path: str) -> KeyPath:
    """Return the keys of a dotted path; below ``sysctl`` the rest is one key."""
    parts = path.split(".")
    if "sysctl" in parts:
        end = parts.index("sysctl") + 1
        parts = [*parts[:end], *filter(None, [".".join(parts[end:])])]
    return tuple(parts)


def merge(base: Tree, over: Tree) -> Tree:
    """Return ``over`` on top of ``base``: maps merge, lists, scalars and WHOLE keys replace."""
    places = dict(base.places)
    data = _merged(base.data, over.data, (), places)
    places.update(over.places)
    return Tree(data, over.origin, places)


def _merged(base: Any, over: Any, path: KeyPath, places: dict[KeyPath, Place]) -> Any:
    both_maps = isinstance(base, dict) and isinstance(over, dict)
    if not both_maps or (len(path) == 1 and path[0] in WHOLE):
        _forget(places, path)
        return over
    result = dict(base)
    for key, value in over.items():
        below = (*path, key)
        result[key] = _merged(base[key], value, below, places) if key in base else value
    return result


def _forget(places: dict[KeyPath, Place], path: KeyPath) -> None:
    for known in [p for p in places if p[: len(path)] == path]:
        del places[known]


def apply(
    tree: Tree, overrides: Iterable[Override], sources: Mapping[KeyPath, Tree] | None = None
) -> Tree:
    """Return the tree with every path set; a scalar in the way of a path is replaced by a map.

    A word for a map is replaced by the keys that it means.

    ``sources`` has the places below each override's source, if the tree has not.
    """
    data, places = tree.data, dict(tree.places)
    for override in overrides:
        path = split(override.path)
        data = _with(data, path, override.value)
        _forget(places, path)
        where = override.source
        from_tree = sources.get(where, tree) if sources and isinstance(where, tuple) else tree
        places |= _moved(from_tree, where, path)
    return Tree(data, tree.origin, places)


def _with(data: Any, path: KeyPath, value: Any) -> Any:
    if not path:
        return value
    if isinstance(data, list) and path == split(BLOCKS)[1:]:
        return [_with(each, path, value) for each in data]
    below = data if isinstance(data, dict) else {}
    held = below.get(path[0])
    if path[1:] and isinstance(held, str):
        held = PRESETS.get(str(path[0]), {}).get(held, held)
    return {**below, path[0]: _with(held, path[1:], value)}


def _moved(tree: Tree, source: KeyPath | Place, to: KeyPath) -> dict[KeyPath, Place]:
    if isinstance(source, Place):
        return {to: source}
    size = len(source)
    moved = {(*to, *p[size:]): place for p, place in tree.places.items() if p[:size] == source}
    return moved or {to: tree.place(source)}


def parse_sets(sets: Iterable[str]) -> tuple[list[Override], list[Problem]]:
    """Return the overrides of ``--set path=value``, and every problem with them."""
    overrides, problems = [], []
    place = Place("--set")
    for text in sets:
        path, equals, value = text.partition("=")
        path = path.strip()
        problem = _bad_path(path)
        if not equals or not value.strip():
            what, step = "not path=value", "write for example send.batch=64"
            problems.append(at(place, "", what, "", step, as_yaml(text)))
        elif problem:
            problems.append(at(place, path, problem, "", "write for example send.batch=64"))
        elif (split(path)[0] in WHOLE and path != BLOCKS) or path == "extends":
            step = "edit the file instead"
            problems.append(at(place, path, "--set changes single values only", "", step))
        else:
            overrides.append(Override(path, parse_value(value, place, path), place))
    return overrides, problems


def _bad_path(path: str) -> str | None:
    if not path or "" in path.split("."):
        return "not a dotted path"
    return None


def conflicts(tree: Tree, sets: Iterable[Override]) -> Iterator[Problem]:
    """Yield every problem with sweep and variants, and every path that is set twice."""
    swept: list[_Sets] = [(path, ("sweep", path)) for path in _map(tree, "sweep")]
    varied: list[_Sets] = [
        (path, ("variants", name, path))
        for name, changes in _map(tree, "variants").items()
        if isinstance(changes, dict)
        for path in changes
    ]
    many = [(("sweep",), swept), *((group[0][1][:2], group) for group in _by_variant(varied))]
    if crowded := [(where, group) for where, group in many if len(group) > MAX_SET]:
        for where, group in crowded:
            what, limit = f"{len(group)} keys are too many", f"at most {MAX_SET}"
            yield tree.problem(where, what, limit, "set the others for every point")
        return
    for key in ("sweep", "variants"):
        if tree.data.get(key) == {}:
            yield tree.problem((key,), "the map is empty", "", "name at least one, or remove it")
    for path, where in [*swept, *varied]:
        yield from _unusable(tree, path, where)
    for path, values in _map(tree, "sweep").items():
        yield from _bad_values(tree, path, values)
    for name in _map(tree, "variants"):
        if not _VARIANT.match(name):
            step = "use letters, digits and . _ + -"
            yield tree.problem(("variants", name), "not a name for a variant", "", step)
    for (in_sweep, _), (in_variant, where) in itertools.product(swept, varied):
        if _overlap(in_sweep, in_variant):
            what = f"sweep also sets {in_sweep}"
            yield tree.problem(where, what, "", "set it in one of the two")
    for group in [swept, *_by_variant(varied)]:
        for (first, _), (second, where) in itertools.combinations(group, 2):
            if _overlap(first, second):
                yield tree.problem(where, f"overlaps {first}", "", "set each path once")
    for override in sets:
        for path, where in [*swept, *varied]:
            if _overlap(override.path, path):
                by = dotted(where[: len(where) - 1])
                what = f"{by} sets {path} ({tree.place(where)}), so this value has no effect"
                yield at(Place("--set"), override.path, what, "", "edit the file")


def _map(tree: Tree, key: str) -> dict[str, Any]:
    value = tree.data.get(key)
    return value if isinstance(value, dict) else {}


def _by_variant(varied: list[_Sets]) -> list[list[_Sets]]:
    return [list(g) for _, g in itertools.groupby(varied, key=lambda item: item[1][1])]


def _unusable(tree: Tree, path: str, where: KeyPath) -> Iterator[Problem]:
    if _bad_path(path):
        yield tree.problem(where, "not a dotted path", "", "write for example send.batch")
    elif split(path)[0] in NOT_IN_POINTS:
        step = "it belongs to the whole experiment"
        yield tree.problem(where, f"{split(path)[0]} is the same at every point", "", step)


def _bad_values(tree: Tree, path: str, values: Any) -> Iterator[Problem]:
    where: KeyPath = ("sweep", path)
    if not isinstance(values, list):
        return  # file_schema reports it
    if not values:
        yield tree.problem(where, "the list is empty", "", "name at least one value")
    seen: set[str] = set()
    for i, value in enumerate(values):
        if isinstance(value, (dict, list)):
            step = "use a variant for maps and lists"
            yield tree.problem((*where, i), "a sweep lists single values", "", step)
        elif as_yaml(value) in seen:
            yield tree.problem((*where, i), "duplicate value", "", "name it once")
        else:
            seen.add(as_yaml(value))


def _overlap(path: str, other: str) -> bool:
    a, b = split(path), split(other)
    size = min(len(a), len(b))
    return a[:size] == b[:size]


def points(tree: Tree) -> tuple[list[PointTree], list[Problem]]:
    """Return every point in declared order: each variant with the cross product of the sweep.

    Expects a tree in which ``conflicts`` and ``file_schema`` found no problem.
    """
    sweep = _map(tree, "sweep")
    variants: dict[str | None, Any] = dict(_map(tree, "variants").items()) or {None: {}}
    size = len(variants)
    for values in sweep.values():
        size *= len(values)
    if size > MAX_POINTS:
        limit = f"at most {MAX_POINTS}"
        return [], [tree.problem(("sweep",), f"{size} points are too many", limit, "sweep less")]
    places = {path: place for path, place in tree.places.items() if path[0] not in WHOLE}
    if size * len(places) > MAX_PLACES:
        what = f"{size} points with {len(places)} keys each are too many"
        return [], [tree.problem(("sweep",), what, f"at most {MAX_PLACES} keys", "sweep less")]
    base = Tree({k: v for k, v in tree.data.items() if k not in WHOLE}, tree.origin, places)
    sources = _by_source(tree)
    tails = shortest_tails(list(sweep))
    named = {path: [f"{tails[path]}={as_yaml(v)}" for v in sweep[path]] for path in sweep}
    name_characters = sum(1 + max(map(len, each)) for each in named.values())
    name_characters += max(len(variant or "") for variant in variants)
    if size * name_characters > MAX_NAMES_CHARACTERS:
        what = f"{size} points with names of {name_characters} characters are too many"
        limit = f"at most {MAX_NAMES_CHARACTERS} characters"
        return [], [tree.problem(("sweep",), what, limit, "sweep less, or shorten their names")]
    trees = []
    for variant, changes in variants.items():
        for chosen in itertools.product(*(range(len(values)) for values in sweep.values())):
            values = {path: sweep[path][i] for path, i in zip(sweep, chosen, strict=True)}
            words = [named[path][i] for path, i in zip(sweep, chosen, strict=True)]
            over = [Override(p, v, ("variants", variant or "", p)) for p, v in changes.items()]
            over += [
                Override(path, values[path], ("sweep", path, i))
                for path, i in zip(sweep, chosen, strict=True)
            ]
            parts = (variant, *words) if variant is not None else tuple(words)
            point = apply(base, over, sources)
            trees.append(PointTree(",".join(parts), variant, values, point, parts))
    return trees, []


def _by_source(tree: Tree) -> dict[KeyPath, Tree]:
    """Return each value of the sweep and of the variants → a tree with its places alone.

    With those of all variants in each point, 4,000 variants took 2.4 GiB.
    """
    below: dict[KeyPath, dict[KeyPath, Place]] = {}
    for path, place in tree.places.items():
        if path[0] in ("sweep", "variants") and len(path) >= 3:
            below.setdefault(path[:3], {})[path] = place
    return {source: Tree({}, tree.origin, places) for source, places in below.items()}


def shortest_tails(paths: list[str]) -> dict[str, str]:
    """Return for each dotted path its shortest suffix that no other path ends with."""
    tails = {}
    for path in paths:
        parts = path.split(".")
        for start in range(len(parts) - 1, -1, -1):
            tail = ".".join(parts[start:])
            if not any(f".{other}".endswith(f".{tail}") for other in paths if other != path):
                break
        else:
            tail = path
        tails[path] = tail
    return tails

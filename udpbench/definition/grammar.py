"""The grammar of the files: pydantic models derived from dataclasses, never listing a key again.

A key is a field's name without its unit; its type, range and default are the field's. ``check``
validates a tree against it and says everything that is wrong; ``schema`` is its JSON Schema.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    create_model,
)
from pydantic.json_schema import models_json_schema

from udpbench.definition.blocks import ExperimentFile, LabFile
from udpbench.definition.leaves import BOOLEAN, NAMED, Leaf, Named, quantity
from udpbench.definition.problems import KeyPath, Tree, did_you_mean
from udpbench.errors import Problem
from udpbench.units import Bytes, Count, Nanoseconds, Rate

_UNIT = re.compile(r"_(bytes|ns|packets|bps|flows)\Z")
# Keys that a Python name cannot spell, or that read better than the field.
_SPELLED = {
    "source_ports": "from",
    "rx_flow_hash": "rx-flow-hash",
    "defer_hard_irqs": "defer-hard-irqs",
    "gro_flush_timeout_ns": "gro-flush-timeout",
}
# What None is called, for the fields that can be set back to it.
_NONE_WORD = {
    "rate": "unlimited",
    "rate_bps": "none",
    "count_packets": "none",
    "echo": "off",
    "tail_bytes": "none",
    "buffer_bytes": "default",
    "fault": "none",
    "log": "none",
}


def key_of(name: str) -> str:
    """Return the YAML key of a field."""
    return _SPELLED.get(name) or _UNIT.sub("", name)


@functools.cache
def model_for(cls: type) -> type[BaseModel]:
    """Return the pydantic model of a dataclass: same fields, YAML keys, strict."""
    hints = get_type_hints(cls, include_extras=True)
    definitions: dict[str, Any] = {}
    for item in dataclasses.fields(cls):
        default = item.default
        if item.default_factory is not dataclasses.MISSING:
            default = item.default_factory()
        kind = _annotation(item.name, hints[item.name], default)
        if default is dataclasses.MISSING:
            definitions[item.name] = (kind, Field(alias=key_of(item.name)))
        else:
            # A factory, because the schema would show a plain default as it is inside.
            factory = functools.partial(lambda value: value, default)
            definitions[item.name] = (
                kind,
                Field(default_factory=factory, alias=key_of(item.name)),
            )
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    model: type[BaseModel] = create_model(
        cls.__name__, __config__=config, __doc__=cls.__doc__, **definitions
    )
    return model


def _annotation(name: str, hint: Any, default: Any) -> Any:
    """Return what pydantic validates for one field."""
    bare, optional = _without_none(hint)
    word = _NONE_WORD.get(name) if optional else None
    if isinstance(bare, type) and dataclasses.is_dataclass(bare) and bare is not Rate:
        inner = model_for(bare)
        if word is None:
            return inner
        as_none = BeforeValidator(lambda value: None if value == word else value)
        return Annotated[inner | None, as_none]
    if get_origin(bare) is dict:
        return dict[_entry(name, get_args(bare)[0]), _entry(name, get_args(bare)[1])]  # type: ignore[misc]
    if get_origin(bare) is list:
        return list[_entry(name, get_args(bare)[0])]  # type: ignore[misc]
    leaf = leaf_for(name, bare)
    if word is not None:
        leaf = dataclasses.replace(leaf, words={**leaf.words, word: None})
    schema = leaf.json_schema()
    if default is not dataclasses.MISSING and (default is not None or word is not None):
        schema["default"] = leaf.written(default)
    return Annotated[Any, PlainValidator(leaf.read), WithJsonSchema(schema)]


def _entry(name: str, hint: Any) -> Any:
    """Return what pydantic validates for a list's item or a map's key or value."""
    if hint in (Any, str):
        return hint
    return _annotation(f"{name}[]", hint, dataclasses.MISSING)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) not in (Union, types.UnionType):
        return hint, False
    kept = [option for option in get_args(hint) if option is not type(None)]
    bare: Any = functools.reduce(operator.or_, kept)
    return bare, len(kept) < len(get_args(hint))


def leaf_for(name: str, hint: Any) -> Leaf:
    """Return the leaf that a field's name and type stand for; TypeError where there is none."""
    if hint is bool:
        return BOOLEAN
    if hint is Rate:
        return NAMED["rate"]
    if hint is str:
        return NAMED[name]
    if get_origin(hint) is Literal:
        words = {word: word for word in get_args(hint)}
        return Leaf({}, words=words)
    if get_origin(hint) is Annotated:
        marker = get_args(hint)[1]
        if isinstance(marker, Named):
            return NAMED[marker.leaf]
        if isinstance(marker, (Bytes, Nanoseconds, Count)):
            return quantity(marker)
    if get_origin(hint) is Union:
        return _either(name, get_args(hint))
    raise TypeError(f"{name}: no grammar for {hint}")


def _either(name: str, options: tuple[Any, ...]) -> Leaf:
    """Return the leaf of a literal or one other form."""
    words = leaf_for(name, next(o for o in options if get_origin(o) is Literal)).words
    other = next(o for o in options if get_origin(o) is not Literal)
    if get_origin(other) is list:
        return _leaf_list(leaf_for(name, get_args(other)[0]), dict(words))
    return dataclasses.replace(leaf_for(name, other), words=words)


def _leaf_list(item: Leaf, words: dict[str, Any]) -> Leaf:
    def read(value: Any) -> list[Any]:
        return [item.read(part) for part in (value if isinstance(value, list) else [value])]

    one_or_more = {"anyOf": [item.schema, {"type": "array", "items": item.schema}]}
    return Leaf(one_or_more, read, words=words)


def check(tree: Tree, cls: type) -> tuple[BaseModel | None, list[Problem]]:
    """Return the validated model of a tree, or None and every problem with it."""
    try:
        return model_for(cls).model_validate(tree.data), []
    except ValidationError as error:
        return None, [_problem(tree, cls, dict(item)) for item in error.errors(include_url=False)]


def _problem(tree: Tree, cls: type, error: dict[str, Any]) -> Problem:
    path: KeyPath = tuple(part for part in error["loc"] if part != "[key]")
    kind, context = error["type"], error.get("ctx", {})
    if kind == "refused":
        return tree.problem(path, context["what"], context["limit"], context["next_step"])
    if kind == "missing":
        above = "" if len(path) > 1 else "every such file has one"
        return tree.problem(path, "the key is missing", above, f"add {path[-1]}: …")
    if kind == "extra_forbidden":
        known = keys_at(cls, path[:-1])
        return tree.problem(path, "unknown key", "", did_you_mean(str(path[-1]), known))
    expected = {
        "dict_type": "a map of keys is expected",
        "model_type": "a map of keys is expected",
        "model_attributes_type": "a map of keys is expected",
        "list_type": "a list is expected",
        "string_type": "a text is expected",
    }
    return tree.problem(path, expected.get(kind, error["msg"]))


def keys_at(cls: type, path: KeyPath) -> list[str]:
    """Return the keys that the map at ``path`` may have; none where it is no map of fixed keys."""
    model: Any = model_for(cls)
    for part in path:
        if isinstance(part, int):
            continue
        below = next((f for f in model.model_fields.values() if f.alias == part), None)
        found = list(_models_in(below.annotation)) if below is not None else []
        if not found:
            return []
        model = found[0]
    return [str(f.alias) for f in model.model_fields.values()]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def instance(cls: type, model: BaseModel) -> Any:
    """Return the dataclass that a validated model holds the values of."""
    values = {}
    for item in dataclasses.fields(cls):
        value = getattr(model, item.name)
        if isinstance(value, BaseModel):
            bare, _ = _without_none(get_type_hints(cls)[item.name])
            value = instance(bare, value)
        values[item.name] = value
    return cls(**values)


def plain(model: Any) -> Any:
    """Return a validated block as plain data by field name: only what the user set."""
    if isinstance(model, BaseModel):
        return {name: plain(getattr(model, name)) for name in sorted_fields(model)}
    if isinstance(model, dict):
        return {key: plain(value) for key, value in model.items()}
    return [plain(item) for item in model] if isinstance(model, list) else model


def sorted_fields(model: BaseModel) -> list[str]:
    """Return the fields that the user set, in the grammar's order."""
    return [name for name in type(model).model_fields if name in model.model_fields_set]


def schema() -> dict[str, Any]:
    """Return the JSON Schema of both files: an experiment has a question, a lab has hosts."""
    pairs, definitions = models_json_schema(
        [(model_for(ExperimentFile), "validation"), (model_for(LabFile), "validation")],
        title="udpbench experiment or lab",
    )
    either = [pairs[model_for(cls), "validation"] for cls in (ExperimentFile, LabFile)]
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "anyOf": either,
        **definitions,
    }
    # A key without a value is refused; what pydantic calls null is written ``none``.
    cleaned: dict[str, Any] = _null_is_none(document)
    return cleaned


def _null_is_none(part: Any) -> Any:
    if part == {"type": "null"}:
        return {"const": "none"}
    if isinstance(part, dict):
        return {key: _null_is_none(value) for key, value in part.items()}
    return [_null_is_none(item) for item in part] if isinstance(part, list) else part

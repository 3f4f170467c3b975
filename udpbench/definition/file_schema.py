"""Validation of the files, and their JSON Schema: pydantic models derived from dataclasses.

Keys are not listed again here: a key is a field's name without its unit, and type, range and
default are the field's. ``check`` validates a tree and returns every problem; ``schema`` is the
JSON Schema.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
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

from udpbench.definition.elsewhere import elsewhere
from udpbench.definition.file_keys import (
    FIRST_PORT,
    FLOWS_SHOWN,
    MAPS,
    PRESETS,
    RENAMED,
    ExperimentFile,
    LabFile,
)
from udpbench.definition.overrides import NOT_IN_POINTS
from udpbench.definition.problems import (
    KeyPath,
    Place,
    Tree,
    as_yaml,
    at,
    did_you_mean,
    dotted,
    joined,
)
from udpbench.definition.values import BOOLEAN, NAMED, Leaf, quantity, steps_of
from udpbench.differences import key_of
from udpbench.errors import InputError, Problem
from udpbench.units import Bytes, Count, Named, Nanoseconds, Rate, plural

T = TypeVar("T")

# How None is written, for the fields that can be set back to it.
_NONE_WORD = {
    "rate": "unlimited",
    "count_packets": "none",
    "echo": "off",
    "answers": "off",
    "tail_bytes": "none",
    "buffer_bytes": "default",
    "fault": "none",
    "log": "none",
}


_ONE_OR_MORE = ("compare",)
"""Lists of maps for which a single map may be written."""


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
            # A factory, because the schema would show a plain default in its stored form.
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
    """Return the pydantic type of one field."""
    bare, optional = _without_none(hint)
    word = _NONE_WORD.get(name) if optional else None
    if isinstance(bare, type) and dataclasses.is_dataclass(bare) and bare is not Rate:
        inner: Any = Annotated[model_for(bare), AfterValidator(functools.partial(_instance, bare))]
        if name in PRESETS:
            words = Literal[tuple(PRESETS[name])]  # type: ignore[valid-type]
            read = functools.partial(_preset, PRESETS[name])
            return Annotated[
                inner, BeforeValidator(read, json_schema_input_type=model_for(bare) | words)
            ]
        if word is None:
            return inner
        as_none = BeforeValidator(lambda value: None if value == word else value)
        return Annotated[inner | None, as_none]
    if get_origin(bare) is dict:
        return dict[_entry(name, get_args(bare)[0]), _entry(name, get_args(bare)[1])]  # type: ignore[misc]
    if get_origin(bare) is list:
        entry: Any = _entry(name, get_args(bare)[0])
        items: Any = list[entry]
        if name not in _ONE_OR_MORE:
            return items
        as_list = BeforeValidator(_as_list, json_schema_input_type=entry | items)
        return Annotated[items, as_list]
    leaf = leaf_for(name, bare)
    if word is not None:
        leaf = dataclasses.replace(leaf, words={**leaf.words, word: None})
    schema = leaf.json_schema()
    if default is not dataclasses.MISSING and (default is not None or word is not None):
        schema["default"] = leaf.written(default)
    return Annotated[Any, PlainValidator(leaf.read), WithJsonSchema(schema)]


def _entry(name: str, hint: Any) -> Any:
    """Return the pydantic type of a list's item or of a map's key or value."""
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
    """Return the leaf for a field's name and type; TypeError if there is none."""
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


def _preset(presets: Mapping[str, Any], value: Any) -> Any:
    """Return the map that a word means; a map is returned unchanged."""
    if isinstance(value, dict):
        return value
    return Leaf({}, words=presets).read(value)


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


def _instance(cls: Callable[..., T], model: BaseModel) -> T:
    """Return the dataclass with the values of a validated model."""
    return cls(**{item: getattr(model, item) for item in type(model).model_fields})


def check(tree: Tree, cls: type[T]) -> tuple[T | None, list[Problem]]:
    """Return a tree as a dataclass, or None and every problem with it."""
    keys: type = cls  # mypy would bind T twice
    try:
        return _instance(cls, model_for(keys).model_validate(tree.data)), []
    except ValidationError as error:
        return None, [_problem(tree, cls, dict(item)) for item in error.errors(include_url=False)]


def _problem(tree: Tree, cls: type, error: dict[str, Any]) -> Problem:
    path: KeyPath = tuple(part for part in error["loc"] if part != "[key]")
    if path[1:2] == (0,) and isinstance(tree.value(path[:1]), dict):
        path = (path[0], *path[2:])  # a single map in place of a list of maps
    kind, context = error["type"], error.get("ctx", {})
    if kind == "refused":
        step = context["next_step"] or _instead(cls, path, tree.value(path))
        return tree.problem(path, context["what"], context["limit"], step)
    if kind == "missing":
        limit = "" if len(path) > 1 else "in every such file"
        return tree.problem(path, "the key is missing", limit, f"add {path[-1]}: …")
    if kind == "extra_forbidden":
        key, known = str(path[-1]), keys_at(cls, path[:-1])
        if RENAMED.get(key) in known:
            what = f"this key is now called {RENAMED[key]}"
            return tree.problem(path, what, "", f"rename it to {RENAMED[key]}")
        step = elsewhere(key) or did_you_mean(key, known)
        return tree.problem(path, "unknown key", "", step)
    expected = {
        **dict.fromkeys(NO_MAP, "not a map of keys"),
        "list_type": "not a list",
        "string_type": "not text",
    }
    value = tree.value(path)
    is_single = kind == "list_type" and not isinstance(value, dict)
    step = f"write [{', '.join(steps_of(as_yaml(value)))}]" if is_single else ""
    limit = ""
    if kind in NO_MAP:
        limit, step = joined(keys_at(cls, path)), _as_map(str(path[-1]), value)
    return tree.problem(path, expected.get(kind, error["msg"]), limit, step)


NO_MAP = ("dict_type", "model_type", "model_attributes_type")


def _as_map(key: str, value: Any) -> str:
    """Return an example of a map in place of a value; empty if the names of its keys suffice."""
    if key == "flows" and str(value).isdigit() and 0 < int(value) <= FLOWS_SHOWN:
        ports = f"{FIRST_PORT}-{FIRST_PORT + int(value) - 1}"
        return f"for {plural(int(value), 'flow')} write flows: {{from: {ports}}}"
    return f"write for example {key}: {MAPS[key]}" if key in MAPS else ""


def _instead(cls: type, path: KeyPath, value: Any) -> str:
    """Return what to write instead of a list or map of values; empty for a single value."""
    if not isinstance(value, (list, dict)):
        return ""
    values = list(value.values()) if isinstance(value, dict) else value
    if any(isinstance(item, (list, dict)) for item in values):
        return "write a single value"
    if len(values) == 1:
        return f"write {path[-1]}: {as_yaml(values[0])}"
    can_vary = cls is ExperimentFile and path[0] not in NOT_IN_POINTS
    if isinstance(value, dict) or not can_vary or any(isinstance(part, int) for part in path):
        return "write a single value"
    return f"to try each, write sweep: {{{dotted(path)}: [{', '.join(map(as_yaml, values))}]}}"


def keys_at(cls: type, path: KeyPath) -> list[str]:
    """Return the keys that the map at ``path`` may have; none if its keys are not fixed."""
    model: Any = model_for(cls)
    for part in path:
        if isinstance(part, int):
            continue
        below = next((f for f in model.model_fields.values() if f.alias == part), None)
        models = list(_models_in(below.annotation)) if below is not None else []
        if not models:
            return []
        model = models[0]
    return [str(f.alias) for f in model.model_fields.values()]


@functools.cache
def _top_key() -> re.Pattern[str]:
    names = {*keys_at(ExperimentFile, ()), *keys_at(LabFile, ()), *RENAMED}
    key = f"[\"']?(?:{'|'.join(map(re.escape, sorted(names)))})[\"']?\\s*:"
    return re.compile(rf"^(?:\{{\s*)?{key}(?=\s|$|[\"'\[{{])", re.MULTILINE)


def refuse_foreign(text: str, file: str) -> None:
    """Raise InputError if a text has no key of an experiment or a lab; nothing of it is shown.

    Other errors show what they are about, and root may have been led to a file of secrets.
    """
    if text.strip() and _top_key().search(text) is None:
        what = "neither an experiment nor a lab: no line begins with a key of one"
        raise InputError([at(Place(file), "", what, "", "write question: … for example")])


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


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
    # An empty value is refused; what pydantic calls null is written ``none``.
    cleaned: dict[str, Any] = _null_is_none(document)
    return cleaned


def _null_is_none(part: Any) -> Any:
    if part == {"type": "null"}:
        return {"const": "none"}
    if isinstance(part, dict):
        return {key: _null_is_none(value) for key, value in part.items()}
    return [_null_is_none(item) for item in part] if isinstance(part, list) else part

"""Values from JSON as what they should be: text is no number, and no number means endless work."""

from __future__ import annotations

import json
from functools import cache
from math import isfinite
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator
from pydantic_core.core_schema import no_info_after_validator_function

from udpbench.errors import RecordError
from udpbench.json_lines import MOST_LEVELS
from udpbench.judged_trials import JudgedTrial
from udpbench.model.limits import INTEGERS, LENGTHS, LIMITS, NUMBER, NUMBERED
from udpbench.printable import printable
from udpbench.protocol import encode

T = TypeVar("T")


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return what reads and writes a type; made when needed: that of a record takes 0.1 s."""
    return TypeAdapter(kind)


def validated(kind: type[T], plain: Any, where: str) -> T:
    """Return what a file's JSON means; raises RecordError, which begins with ``where``."""
    validator: Any = exactly
    try:
        value: T = validator(kind).validate_python(plain)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = printable(".".join(str(part)[:60] for part in first["loc"]), keep="")
        raise RecordError(f"{where}: {key}: {first['msg']}; the file is damaged") from error
    return value


@cache
def exactly(kind: Any) -> SchemaValidator:
    """Return a validator that refuses text as numbers, and numbers that mean endless work."""
    return SchemaValidator(_exact(adapter(kind).core_schema))


@cache
def as_judged() -> SchemaValidator:
    """Return a validator of judged trials, whose numbers are counts as well as rates."""
    return SchemaValidator(_exact(_with_counts(adapter(JudgedTrial).core_schema)))


def _with_counts(schema: Any) -> Any:
    """Return a schema that leaves an integer what it is, where a float is expected."""
    if isinstance(schema, (list, tuple)):
        return type(schema)(map(_with_counts, schema))
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "float":
        return {"type": "union", "mode": "left_to_right", "choices": [{"type": "int"}, schema]}
    return {key: _with_counts(part) for key, part in schema.items()}


def judged_text(judged: JudgedTrial) -> bytes:
    """Return a judged trial as JSON; ValueError if that does not read back as it is."""
    text = _compact(judged)
    if _compact(as_judged().validate_json(text)) != text:
        raise ValueError("not the same when it is read back")
    return text


def _compact(judged: JudgedTrial) -> bytes:
    plain = encode(judged)
    return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode()


def _plain_value(value: Any, levels: int = MOST_LEVELS // 2) -> Any:
    """Return a value of any kind; ValueError if it is absurd: infinite, or nested deeply."""
    if levels < 0 or (isinstance(value, float) and not isfinite(value)):
        raise ValueError("absurd")
    inner = value.values() if isinstance(value, dict) else value
    for item in inner if isinstance(value, (dict, list)) else ():
        _plain_value(item, levels - 1)
    return value


def _exact(schema: Any, field: str = "") -> Any:
    """Return a schema whose scalars are exact and within LIMITS; a list still makes a tuple."""
    if isinstance(schema, (list, tuple)):
        return type(schema)(_exact(part, field) for part in schema)
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    field = schema["name"] if kind == "dataclass-field" else field
    exact = {
        key: part if key in ("default", "keys_schema") else _exact(part, field)
        for key, part in schema.items()
    }
    if kind in ("int", "str", "bool", "float"):
        exact["strict"] = True
    if kind == "any":
        return no_info_after_validator_function(_plain_value, exact)
    if kind == "int":
        exact["ge"], exact["le"] = LIMITS.get(field, INTEGERS)
    if kind == "float":
        exact["allow_inf_nan"] = False
    if kind in ("list", "tuple", "dict") and field in LENGTHS:
        exact["max_length"] = LENGTHS[field]
    if kind == "dict" and field in NUMBERED:
        exact["keys_schema"] = {"type": "str", "strict": True, "pattern": f"^{NUMBER}$"}
    if kind in ("list", "tuple", "dict"):
        exact["fail_fast"] = True  # an error for each item took a hundred times the file
    return exact

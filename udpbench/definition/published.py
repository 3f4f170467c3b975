"""Published figures for what our experiments measure; shown for comparison.

Reads only experiments/published.yaml, strictly; never judges anything by it.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError, model_validator

from udpbench.definition import shipped, yaml_reader
from udpbench.definition.problems import Tree, raise_all

FILE = "published.yaml"
NEAR = 3
"""Names suggested for an unknown one."""


@dataclass(frozen=True)
class Bar:
    """One published number of a figure, ready to be drawn.

    ``low`` and ``high`` are equal for a single number. ``runs`` has every run that the source
    gives; if it gives none, ``n`` is 1 for a single number and None for a range.
    """

    metric: str
    unit: str
    low: float
    high: float
    runs: tuple[float, ...]
    n: int | None


@dataclass(frozen=True)
class Published:
    """One figure with the conditions of its study."""

    study: str
    figure: str
    title: str
    source: str
    conditions: str
    bars: tuple[Bar, ...]
    note: str | None
    correction: str | None

    def bar(self, metric: str) -> Bar | None:
        """Return the bar of one metric, such as ``pps``; None where it was not published."""
        return next((bar for bar in self.bars if bar.metric == metric), None)


def published(source: str) -> Published | None:
    """Return the published figure of ``study/figure``; None if there is none."""
    return _known().get(source)


def unknown(source: str) -> str | None:
    """Return the next step for an unknown source, with similar ones; None for a known one."""
    if source in _known():
        return None
    study, _, figure = source.partition("/")
    figures: dict[str, list[str]] = {}
    for known in _known().values():
        figures.setdefault(known.study, []).append(known.figure)
    if study not in figures:
        same = [f"{other}/{figure}" for other, names in figures.items() if figure in names]
        near = same or difflib.get_close_matches(study[:200], figures, n=NEAR)
        return f"did you mean {' or '.join(near)}?" if near else f"studies: {', '.join(figures)}"
    near = difflib.get_close_matches(figure[:200], figures[study], n=NEAR)
    if near:
        return f"did you mean {' or '.join(f'{study}/{name}' for name in near)}?"
    return f"figures of {study}: {', '.join(figures[study])}"


# --- the file ------------------------------------------------------------------------------------


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Range(_Strict):
    lowest: float
    highest: float

    @model_validator(mode="after")
    def _upwards(self) -> _Range:
        if self.lowest >= self.highest:
            raise ValueError("lowest must be below highest")
        return self


_Number = Annotated[float, Field(ge=0)]
_Value = _Number | _Range | Annotated[list[_Number], Field(min_length=2)]


def _in(unit: str) -> Any:
    """Return a field that may be left out, with the unit of its number."""
    return Field(default=None, json_schema_extra={"unit": unit})


class _Figure(_Strict):
    """Every published metric, by name."""

    pps: _Value | None = _in("pps")
    """Datagrams per second that the application received."""
    offered_pps: _Value | None = _in("pps")
    sent_packets: _Value | None = _in("packets")
    received_packets: _Value | None = _in("packets")
    lost_packets: _Value | None = _in("packets")
    logged_packets: _Value | None = _in("packets")
    log_files: _Value | None = _in("files")
    log_gb: _Value | None = _in("GB")
    duration_s: _Value | None = _in("s")
    sender_cpu_percent: _Value | None = _in("%")
    receiver_cpu_percent: _Value | None = _in("%")
    sender_memory_percent: _Value | None = _in("%")
    receiver_memory_percent: _Value | None = _in("%")
    mib_s: _Value | None = _in("MiB/s")
    calls_s: _Value | None = _in("calls/s")
    messages_s: _Value | None = _in("messages/s")
    user_s: _Value | None = _in("s")
    system_s: _Value | None = _in("s")
    cycles: _Value | None = _in("cycles")
    mcycles_s: _Value | None = _in("Mcycles/s")
    speedup_percent: _Value | None = _in("%")
    note: str | None = None
    correction: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> _Figure:
        if not list(_bars(self)):
            raise ValueError("no number is given; add one of " + ", ".join(_UNITS))
        return self


_UNITS: dict[str, str] = {
    name: field.json_schema_extra["unit"]  # type: ignore[misc, index]
    for name, field in _Figure.model_fields.items()
    if field.json_schema_extra is not None
}


class _Study(_Strict):
    title: str
    source: str
    conditions: str
    figures: Annotated[dict[str, _Figure], Field(min_length=1)]


class _Studies(RootModel[dict[str, _Study]]):
    """The whole file."""


def _bars(figure: _Figure) -> Iterator[Bar]:
    for metric, unit in _UNITS.items():
        value = getattr(figure, metric)
        if isinstance(value, _Range):
            yield Bar(metric, unit, value.lowest, value.highest, (), None)
        elif isinstance(value, list):
            yield Bar(metric, unit, min(value), max(value), tuple(value), len(value))
        elif value is not None:
            yield Bar(metric, unit, value, value, (), 1)


def read(text: str, file: str) -> dict[str, Published]:
    """Return every figure of a text by ``study/figure``; InputError with all problems."""
    tree = yaml_reader.parse(text, file)
    try:
        studies = _Studies.model_validate(tree.data).root
    except ValidationError as error:
        raise_all(_problem(tree, dict(item)) for item in error.errors(include_url=False))
        raise
    return {
        f"{study}/{name}": Published(
            study,
            name,
            known.title.strip(),
            known.source.strip(),
            known.conditions.strip(),
            tuple(_bars(figure)),
            _text(figure.note),
            _text(figure.correction),
        )
        for study, known in studies.items()
        for name, figure in known.figures.items()
    }


def _text(value: str | None) -> str | None:
    return None if value is None else value.strip()


def _problem(tree: Tree, error: dict[str, Any]) -> Any:
    # pydantic extends the path with the alternatives of a value, which are not keys of the file.
    path = error["loc"]
    while len(path) > 1 and path not in tree.places:
        path = path[:-1]
    what = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        what = "unknown key"
    elif error["type"] == "missing":
        what = f"{error['loc'][-1]} is missing"
    return tree.problem(path, what[0].lower() + what[1:])


@functools.cache
def _known() -> dict[str, Published]:
    path = shipped.folder() / FILE
    shown_as = shipped.shown_as(path)
    return read(yaml_reader.read_text(path, shown_as), shown_as)

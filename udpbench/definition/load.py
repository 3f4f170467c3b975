"""The door of this room: from names and YAML files to experiments and labs.

Touches no host and reads nothing but the definitions themselves. Everything that is wrong is said
at once, in one InputError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel

from udpbench.definition import (
    contradictions,
    document,
    expect,
    grammar,
    override,
    shipped,
)
from udpbench.definition.blocks import (
    DURATION_NS,
    DURATION_WITH_COUNT_NS,
    ExperimentFile,
    HostFile,
    LabFile,
    WholeKeys,
)
from udpbench.definition.leaves import NAMED, refusal_parts
from udpbench.definition.override import Override, Point
from udpbench.definition.problems import KeyPath, Place, Tree, at, raise_all
from udpbench.errors import InputError, Problem
from udpbench.model import (
    Expectation,
    Experiment,
    Host,
    Lab,
    Needs,
    Receive,
    Role,
    Send,
    Traffic,
    Trial,
)

_QUESTION = re.compile(r"^(question|'question'|\"question\")\s*:", re.MULTILINE)
MAX_EXTENDS = 8
T = TypeVar("T")


class _PlainDumper(yaml.SafeDumper):
    """Writes a value that stands twice out twice, since our reader refuses aliases."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def schema() -> dict[str, Any]:
    """Return the JSON Schema of experiment and lab files."""
    return grammar.schema()


def load_experiments(names: Sequence[str], sets: Sequence[str] = ()) -> list[Experiment]:
    """Return the experiments of files, folders and shipped names, each file once.

    ``sets`` are ``path=value`` for the base of each. Raises InputError with every problem of all.
    """
    problems: list[Problem] = []
    overrides = _collect(problems, lambda: _sets(sets)) or []
    files = _files(names, problems)
    found = [
        _collect(problems, lambda file=path: _load_file(file, overrides))  # type: ignore[misc]
        for path, is_named in files
        if is_named or is_experiment(path)
    ]
    experiments = [experiment for experiment in found if experiment is not None]
    if not found and not problems:
        place = Place(", ".join(names) or "no name")
        problems.append(at(place, "", "no experiment found", "", "name a file with a question"))
    problems += _same_names(experiments)
    raise_all(problems)
    return experiments


def left_alone(names: Sequence[str]) -> list[Path]:
    """Return the YAML files in the named folders that are no experiments."""
    files = _files(names, [])
    return [path for path, is_named in files if not is_named and not is_experiment(path)]


def is_experiment(path: Path) -> bool:
    """Return whether a file claims to be one, by its text alone: it is not parsed."""
    try:
        return _QUESTION.search(document.read_text(path, "")) is not None
    except InputError:
        return False


def load_experiment_data(data: dict[str, Any], name: str, sets: Sequence[str] = ()) -> Experiment:
    """Return the experiment that plain data describes; ``name`` stands for its file in messages."""
    try:
        text = yaml.dump(data, Dumper=_PlainDumper, sort_keys=False)
    except yaml.YAMLError as error:
        raise InputError([at(Place(name), "", f"no plain data: {error}")]) from error
    tree = Tree(document.parse(text, name).data, Place(name))
    return _experiment(_extended(tree, Path(name), ()), name, name, text, _sets(sets))


def load_lab(name: str) -> Lab:
    """Return the lab of a file or a shipped name; InputError with every problem."""
    path = shipped.find_lab(name)
    return lab_of(document.read_text(path, shipped.shown_as(path)), path)


def lab_of(text: str, path: Path) -> Lab:
    """Return the lab of a text, which ``path`` holds or once held; InputError as ``load_lab``."""
    tree, problems = document.survey(text, shipped.shown_as(path))
    model, wrong = grammar.check(tree, LabFile)
    raise_all([*problems, *wrong])
    lab = _lab(model, path.stem, str(path), text)
    problems = list(contradictions.in_lab(tree, lab))
    problems += _lab_settings(tree, model)
    raise_all(problems)
    return lab


def _collect(problems: list[Problem], work: Callable[[], T]) -> T | None:
    try:
        return work()
    except InputError as error:
        problems.extend(error.problems)
        return None


def _sets(sets: Sequence[str]) -> list[Override]:
    overrides, problems = override.parse_sets(sets)
    raise_all(problems)
    return overrides


def _files(names: Sequence[str], problems: list[Problem]) -> list[tuple[Path, bool]]:
    """Return each file once, with whether it was named itself rather than found in a folder.

    A name that leads nowhere adds to ``problems``.
    """
    found: dict[Path, tuple[Path, bool]] = {}
    for name in names:
        path = _collect(problems, lambda name=name: shipped.find_experiment(name))  # type: ignore[misc]
        if path is None:
            continue
        listed = shipped.files_in(path) if path.is_dir() else [path]
        for file in listed:
            found.setdefault(file.resolve(), (file, not path.is_dir()))
    return list(found.values())


def _same_names(experiments: Iterable[Experiment]) -> list[Problem]:
    seen: dict[str, Experiment] = {}
    problems = []
    for experiment in experiments:
        other = seen.setdefault(experiment.name, experiment)
        if other is not experiment:
            what = f"{experiment.name} is the name of {shipped.shown_as(Path(other.path))} too"
            place = Place(shipped.shown_as(Path(experiment.path)))
            problems.append(at(place, "", what, "", "rename one, or run them apart"))
    return problems


def _load_file(path: Path, overrides: list[Override]) -> Experiment | None:
    shown_as = shipped.shown_as(path)
    text = document.read_text(path, shown_as)
    tree, problems = document.survey(text, shown_as)
    experiment = _collect(problems, lambda: _read(tree, path, text, overrides))
    raise_all(problems)
    return experiment


def _read(tree: Tree, path: Path, text: str, overrides: list[Override]) -> Experiment:
    shown_as = str(tree.origin)
    if ("question",) not in tree.places:
        what = "no experiment: it has no question"
        step = "add question: …; a lab goes behind --lab"
        raise_all([at(Place(shown_as), "", what, "", step)])
    tree = _extended(tree, path, (path.resolve(),))
    if overrides or "extends" in tree.data:
        # The record must repeat the run without the other file and the command line.
        data = override.apply(tree, overrides).data
        text = yaml.safe_dump({k: v for k, v in data.items() if k != "extends"}, sort_keys=False)
    return _experiment(tree, path.stem, str(path), text, overrides)


def _extended(tree: Tree, path: Path, chain: tuple[Path, ...]) -> Tree:
    """Return the tree on top of all it extends."""
    name = tree.data.get("extends")
    if not isinstance(name, str):
        return tree
    base = shipped.find_base(name, path)
    if base is None:
        what = "neither a file beside this one nor a shipped experiment"
        step = f"known: {', '.join(shipped.shipped_names())}"
        raise InputError([tree.problem(("extends",), what, "", step)])
    if base.resolve() in chain:
        names = " → ".join(file.name for file in (*chain, base.resolve()))
        raise_all([tree.problem(("extends",), "extends itself", names, "break the circle")])
    if len(chain) >= MAX_EXTENDS:
        raise_all([tree.problem(("extends",), "extends too deeply", f"{MAX_EXTENDS} files")])
    shown_as = shipped.shown_as(base)
    below = document.parse(document.read_text(base, shown_as), shown_as)
    return override.merge(_extended(below, base, (*chain, base.resolve())), tree)


def _experiment(
    tree: Tree, name: str, path: str, text: str, overrides: list[Override]
) -> Experiment:
    problems = list(override.conflicts(tree, overrides))
    tree = override.apply(tree, overrides)
    whole = {key: tree.data[key] for key in override.WHOLE if key in tree.data}
    problems += grammar.check(Tree(whole, tree.origin, tree.places), WholeKeys)[1]
    if problems:
        raise_all([*problems, *grammar.check(tree, ExperimentFile)[1]])
    points, problems = override.points(tree)
    trials, heads = [], []
    for point in points:
        model, wrong = grammar.check(point.tree, ExperimentFile)
        problems += wrong
        if model is not None:
            trial = _trial(model, point, name)
            trials.append(trial)
            heads.append(model)
            problems += contradictions.in_point(point.tree, trial, model)
    problems += _base_source(tree)
    expectations, wrong = _expectations(tree, [point.name for point in points])
    raise_all([*problems, *wrong])
    named = {side.metric for one in expectations for side in (one.left, one.right)}
    trials = [replace(trial, expects_unsent="unsent" in named) for trial in trials]
    head: Any = heads[0]
    source = head.source if "variants" not in tree.data else tree.data.get("source")
    return Experiment(
        name,
        path,
        text,
        head.question,
        source,
        tuple(trials),
        head.repetitions,
        expectations,
    )


def _base_source(tree: Tree) -> Iterator[Problem]:
    """Yield what is wrong with the source of the whole, which every variant may have replaced."""
    if "source" in tree.data:
        try:
            NAMED["source"].read(tree.data["source"])
        except ValueError as error:
            yield tree.problem(("source",), *refusal_parts(error))


def _trial(model: Any, point: Point, experiment: str) -> Trial:
    traffic = _instance(Traffic, model.traffic)
    duration_ns = model.duration_ns
    if duration_ns is None:
        counted = traffic.count_packets is not None
        duration_ns = DURATION_WITH_COUNT_NS if counted else DURATION_NS
    return Trial(
        experiment=experiment,
        question=model.question,
        point=point.name,
        variant=point.variant,
        values=point.values,
        repetition=1,
        traffic=traffic,
        send=_instance(Send, model.send),
        receive=_instance(Receive, model.receive),
        settings=_settings(model.settings),
        needs=_instance(Needs, model.needs),
        duration_ns=duration_ns,
        warmup_ns=model.warmup_ns,
        path_check=model.path_check,
        explain=model.explain,
        faults=dict(model.faults),
        source=model.source,
    )


def _set(value: Any) -> bool:
    return isinstance(value, BaseModel)


def _instance(cls: type, value: Any) -> Any:
    """Return the dataclass of a block; a block that was left out is one already."""
    return grammar.instance(cls, value) if _set(value) else value


def _settings(block: Any) -> dict[str, dict[str, Any]]:
    """Return role → what the user set there."""
    return grammar.plain(block) if _set(block) else {}


def _expectations(tree: Tree, points: list[str]) -> tuple[tuple[Expectation, ...], list[Problem]]:
    found, problems = [], []
    texts = tree.data.get("expect", [])
    for i, text in enumerate(texts if isinstance(texts, list) else []):
        try:
            found.append(expect.parse(str(text), points))
        except ValueError as error:
            problems.append(tree.problem(("expect", i), *refusal_parts(error)))
    return tuple(found), problems


def _lab(model: Any, name: str, path: str, text: str) -> Lab:
    senders, receivers = _hosts(model.sender, "sender"), _hosts(model.receiver, "receiver")
    return Lab(name, path, text, senders, receivers, _settings(model.settings))


def _hosts(models: list[Any], role: Role) -> tuple[Host, ...]:
    """Return the hosts of a role; without a name they are called after it, numbered if several."""
    hosts = []
    for i, item in enumerate(models, 1):
        file = grammar.instance(HostFile, item)
        existing = file.addresses == "existing"
        hosts.append(
            Host(
                name=file.name or (role if len(models) == 1 else f"{role}{i}"),
                role=role,
                connect=file.connect,
                interface=file.interface,
                addresses=() if existing else contradictions.spelled_out(file.addresses),
                existing=existing,
                cpus=file.cpus,
                settings=_settings(item.settings),
            )
        )
    return tuple(hosts)


def _lab_settings(tree: Tree, model: Any) -> list[Problem]:
    problems: list[Problem] = []
    for role in ("sender", "receiver"):
        places: list[tuple[KeyPath, Any]] = [(("settings", role), getattr(model.settings, role))]
        for i, host in enumerate(getattr(model, role)):
            places.append(((role, i, "settings"), host.settings))
        for path, block in places:
            if _set(block):
                problems += contradictions.in_settings(tree, block, path, role)
    return problems

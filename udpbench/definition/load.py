"""The door of this room: from names and YAML files to experiments and labs.

Touches no host and reads only the definitions. One InputError has all problems at once. Long,
because all problems of a file are gathered on one way through it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml

from udpbench.definition import (
    expectations as expect,
)
from udpbench.definition import (
    file_schema,
    lab_rules,
    payloads,
    point_pairs,
    search_rules,
    shipped,
    yaml_reader,
)
from udpbench.definition import (
    overrides as override,
)
from udpbench.definition.file_keys import (
    DURATION_NS,
    DURATION_WITH_COUNT_NS,
    ExperimentFile,
    HostFile,
    LabFile,
    NodeFile,
    RoleSettings,
    WholeKeys,
)
from udpbench.definition.named_files import ReadScope, scope_of, text_scope
from udpbench.definition.overrides import Override, PointTree
from udpbench.definition.problems import Place, Tree, at, did_you_mean, raise_all
from udpbench.definition.values import NAMED, refusal_parts
from udpbench.errors import SHOWN_PROBLEMS, InputError, Problem
from udpbench.folder import real_path
from udpbench.host_settings import Settings
from udpbench.model.experiment import (
    AUTO_WARMUP_NS,
    Expectation,
    Experiment,
    PointPair,
    Receive,
    Traffic,
    Trial,
    trial_count,
)
from udpbench.model.lab import Lab, Node
from udpbench.model.limits import ANSWERS_MAX, EXPECT_MAX, PAIRS_MAX, TRIALS_MAX, Part

_QUESTION = re.compile(r"^(question|'question'|\"question\")\s*:", re.MULTILINE)
MAX_EXTENDS = 8
MOST_CHARACTERS = 2**26
"""Limit of payloads and commands of all points together, each of which a run folder repeats."""
MANY_PROBLEMS = 1000
"""Beyond it no further point is looked at: each may have thousands, of which few are shown."""
T = TypeVar("T")


class _PlainDumper(yaml.SafeDumper):
    """Writes repeated values in full, because our reader refuses aliases."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def schema() -> dict[str, Any]:
    """Return the JSON Schema of experiment and lab files."""
    return file_schema.schema()


def load_experiments(
    names: Sequence[str], sets: Sequence[str] = (), allow_read: Sequence[Path] = ()
) -> list[Experiment]:
    """Return the experiments of files, folders and shipped names, each file once.

    ``sets`` are ``path=value``, applied to the base of each; the files that they name may also be
    in the folders ``allow_read``. InputError has the problems of all of them.
    """
    problems: list[Problem] = []
    overrides = _collect(problems, lambda: _sets(sets)) or []
    files = _files(names, problems)
    loaded = [
        _collect(problems, lambda file=path: _load_file(file, overrides, allow_read))  # type: ignore[misc]
        for path, is_named in files
        if is_named or is_experiment(path)
    ]
    experiments = [experiment for experiment in loaded if experiment is not None]
    if not loaded and not problems:
        place = Place(", ".join(names) or "no name")
        problems.append(at(place, "", "no experiment found", "", "name a file with a question"))
    problems += _same_names(experiments)
    raise_all(problems)
    raise_all(_too_many(experiments, Place(", ".join(names))))
    return experiments


def is_experiment(path: Path) -> bool:
    """Return whether a file looks like an experiment, judged by its text without parsing."""
    try:
        return _QUESTION.search(yaml_reader.read_text(path, "")) is not None
    except InputError:
        return False


def load_experiment_data(data: dict[str, Any], name: str, sets: Sequence[str] = ()) -> Experiment:
    """Return the experiment that plain data describes; messages use ``name`` as its file."""
    try:
        text = yaml.dump(data, Dumper=_PlainDumper, sort_keys=False)
    except yaml.YAMLError as error:
        raise InputError([at(Place(name), "", f"not plain data: {error}")]) from error
    scope = text_scope(Path(name))
    tree = _with_payloads(Tree(yaml_reader.parse(text, name).data, Place(name)), scope)
    return _experiment(_extended(tree, Path(name), (), scope), name, name, text, _sets(sets))


def bases_of(path: Path) -> Iterator[Path]:
    """Yield the file that a definition extends, then what that one extends, unread until asked."""
    for _ in range(MAX_EXTENDS):
        try:
            name = yaml_reader.parse(yaml_reader.read_text(path, path.name), path.name).data.get(
                "extends"
            )
        except InputError:
            return  # loading it says why
        base = shipped.find_base(name, path) if isinstance(name, str) else None
        if base is None:
            return
        yield base
        path = base


def experiment_of(stored: Experiment) -> Experiment:
    """Return what the text of a stored experiment says; InputError with every problem."""
    tree = Tree(yaml_reader.parse(stored.text, stored.path).data, Place(stored.path))
    return _experiment(tree, stored.name, stored.path, stored.text, [])


def derived_trial(experiment: Experiment, point: str, name: str, sets: Sequence[str]) -> Trial:
    """Return a point of an experiment's text under another name, with some keys overridden.

    InputError with every problem if that contradicts itself, or if there is no such point.
    """
    points, problems = _points_of(experiment.text, experiment.path)
    raise_all(problems)
    named = [each for each in points if each.name == point]
    if not named:
        step = did_you_mean(point, [each.name or "all" for each in points])
        raise_all([at(Place(experiment.path), "", "no such point", "", step, point)])
    changed = override.apply(named[0].tree, _sets(sets))
    file, problems = file_schema.check(changed, ExperimentFile)
    raise_all(problems)
    plain = PointTree(name, name, {}, changed)
    trial = _trial(cast(ExperimentFile, file), plain, experiment.name, experiment.path)
    raise_all(lab_rules.point_contradictions(changed, trial))
    return trial


@lru_cache(maxsize=1)
def _points_of(text: str, path: str) -> tuple[list[PointTree], list[Problem]]:
    """Return the points of a text and every problem; a tune derives dozens from the same."""
    try:
        return override.points(Tree(yaml_reader.parse(text, path).data, Place(path)))
    except InputError as error:
        return [], [*error.problems]


def load_lab(name: str) -> Lab:
    """Return the lab of a file or a shipped name; InputError with every problem."""
    path = shipped.find_lab(name)
    return lab_of(yaml_reader.read_text(path, shipped.shown_as(path)), path)


def lab_of(text: str, path: Path) -> Lab:
    """Return the lab in a text that ``path`` has or had; InputError with every problem."""
    file_schema.refuse_foreign(text, shipped.shown_as(path))
    tree, problems = yaml_reader.survey(text, shipped.shown_as(path))
    file, wrong = file_schema.check(tree, LabFile)
    raise_all([*problems, *wrong])
    raise_all(lab_rules.too_many_addresses(tree, cast(LabFile, file)))
    lab = _lab(cast(LabFile, file), path.stem, str(path), text)
    raise_all(lab_rules.lab_contradictions(tree, lab))
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
    """Return each file once, and whether it was named itself rather than found in a folder.

    Unknown names are added to ``problems``.
    """
    once: dict[Path, tuple[Path, bool]] = {}
    for name in names:
        path = _collect(problems, lambda name=name: shipped.find_experiment(name))  # type: ignore[misc]
        if path is None:
            continue
        listed = shipped.files_in(path) if path.is_dir() else [path]
        for file in listed:
            once.setdefault(file.resolve(), (file, not path.is_dir()))
    return list(once.values())


def _same_names(experiments: Iterable[Experiment]) -> list[Problem]:
    seen: dict[str, Experiment] = {}
    problems = []
    for experiment in experiments:
        other = seen.setdefault(experiment.name, experiment)
        if other is not experiment:
            what = f"{experiment.name} is also the name of {shipped.shown_as(Path(other.path))}"
            place = Place(shipped.shown_as(Path(experiment.path)))
            problems.append(at(place, "", what, "", "rename one, or run them separately"))
    return problems


def _load_file(
    path: Path, overrides: list[Override], allow_read: Sequence[Path]
) -> Experiment | None:
    shown_as = shipped.shown_as(path)
    text, scope = _text_of(path, shown_as, allow_read)
    file_schema.refuse_foreign(text, shown_as)
    tree, problems = yaml_reader.survey(text, shown_as)
    experiment = _collect(problems, lambda: _read(tree, path, text, overrides, scope))
    raise_all(problems)
    return experiment


def _text_of(path: Path, shown_as: str, allow_read: Sequence[Path]) -> tuple[str, ReadScope]:
    """Return a file's text, and the scope of what it names: the very folder it was read from."""
    try:
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return yaml_reader.read_text(path, shown_as), text_scope(path, allow_read)
    try:
        text = yaml_reader.read_text(path, shown_as, folder)
        return text, scope_of(real_path(folder), allow_read)
    finally:
        os.close(folder)


def _read(
    tree: Tree, path: Path, text: str, overrides: list[Override], scope: ReadScope
) -> Experiment:
    problems = list(_no_question(tree))
    if problems and _is_lab(tree):
        raise_all(problems)
    written = tree
    read, wrong = payloads.inlined(tree, scope)
    tree = tree if read.data == tree.data else read
    problems += wrong
    extended = _collect(problems, lambda: _extended(tree, path, (path.resolve(),), scope))
    tree = tree if extended is None else extended
    if problems:
        raise_all([*problems, *islice(_of_keys(tree, overrides), MANY_PROBLEMS)])
    if overrides or tree is not written:
        # The record must be enough to repeat the run without the other file and the command line.
        data = override.apply(tree, overrides).data
        text = yaml.safe_dump({k: v for k, v in data.items() if k != "extends"}, sort_keys=False)
    return _experiment(tree, path.stem, str(path), text, overrides)


def _no_question(tree: Tree) -> Iterator[Problem]:
    if ("question",) not in tree.places:
        what = "not an experiment: it has no question"
        yield at(tree.origin, "", what, "", "add question: …; name a lab with --lab")


def _is_lab(tree: Tree) -> bool:
    """Return whether a file looks like a lab: it has a key of labs alone."""
    of_labs = {*file_schema.keys_at(LabFile, ())} - {*file_schema.keys_at(ExperimentFile, ())}
    return not of_labs.isdisjoint(tree.data)


def _of_keys(tree: Tree, overrides: list[Override]) -> Iterator[Problem]:
    """Yield what is wrong with keys and values, of a file that lacks another file.

    Contradictions are left out: what is missing might resolve them.
    """
    yield from override.conflicts(tree, overrides)
    tree = override.apply(replace(tree, data={"question": "?", **tree.data}), overrides)
    whole, wrong = _whole(tree)
    yield from wrong
    points, wrong = _of_points(tree)
    yield from wrong
    if whole is not None:
        yield from _expectations(tree, [point.name for point in points])[1]


def _of_points(tree: Tree) -> tuple[list[PointTree], list[Problem]]:
    """Return the points, as far as sweep and variants are well-formed, and what is wrong in each.

    A comparison or an expectation that is wrong hides no misspelt key.
    """
    if _whole(tree, ("sweep", "variants"))[0] is None:
        return [], file_schema.check(tree, ExperimentFile)[1]
    points, wrong = override.points(tree)
    checked = (file_schema.check(point.tree, ExperimentFile)[1] for point in points)
    return points, [*wrong, *(problem for each in checked for problem in each)]


def _whole(
    tree: Tree, names: Iterable[str] = override.WHOLE
) -> tuple[WholeKeys | None, list[Problem]]:
    """Return the keys that apply to all points at once, or None and what is wrong with them."""
    keys = {key: tree.data[key] for key in names if key in tree.data}
    return file_schema.check(Tree(keys, tree.origin, tree.places), WholeKeys)


def _with_payloads(tree: Tree, scope: ReadScope) -> Tree:
    """Return the tree with the contents of its payload files; unchanged if it names none."""
    read, problems = payloads.inlined(tree, scope)
    raise_all(problems)
    return tree if read.data == tree.data else read


def _extended(tree: Tree, path: Path, chain: tuple[Path, ...], scope: ReadScope) -> Tree:
    """Return the tree merged onto everything that it extends."""
    name = tree.data.get("extends")
    if not isinstance(name, str):
        return tree
    base = shipped.find_base(name, path)
    if base is None:
        what = "neither a file in this folder nor a shipped experiment"
        step = did_you_mean(name, shipped.shipped_names())
        raise InputError([tree.problem(("extends",), what, "", step)])
    if base.resolve() in chain:
        names = " → ".join(file.name for file in (*chain, base.resolve()))
        raise_all([tree.problem(("extends",), f"extends itself: {names}", "", "break the cycle")])
    if len(chain) >= MAX_EXTENDS:
        raise_all(
            [tree.problem(("extends",), "extends too deeply", f"at most {MAX_EXTENDS} files")]
        )
    below, scope = _base(tree, base, scope)
    below = _with_payloads(below, scope)
    return override.merge(_extended(below, base, (*chain, base.resolve()), scope), tree)


def _base(tree: Tree, base: Path, scope: ReadScope) -> tuple[Tree, ReadScope]:
    """Return the tree of a file that a tree extends, and the scope of what that file names."""
    shown_as = shipped.shown_as(base)
    try:
        with scope.open(str(base.absolute())) as file:
            text, scope = yaml_reader.decoded(file, shown_as), scope.of(file)
    except ValueError as error:
        raise InputError([tree.problem(("extends",), *refusal_parts(error))]) from error
    file_schema.refuse_foreign(text, shown_as)
    return yaml_reader.parse(text, shown_as), scope


def _experiment(
    tree: Tree, name: str, path: str, text: str, overrides: list[Override]
) -> Experiment:
    crossed = list(override.conflicts(tree, overrides))
    tree = override.apply(tree, overrides)
    whole_file, wrong = _whole(tree)
    if crossed or wrong:
        rest = file_schema.check(tree, ExperimentFile)[1] if crossed else _of_points(tree)[1]
        raise_all([*crossed, *wrong, *rest])
    points, problems = override.points(tree)
    specs = whole_file.compare if whole_file is not None else []
    raise_all([*problems, *_too_many_answers(tree, len(points), len(specs))])
    head, trials, problems = _checked(points, name, path)
    problems += _base_source(tree)
    expectations, wrong = _expectations(tree, [point.name for point in points])
    problems += wrong
    problems += search_rules.in_whole(tree, trials)
    search = trials[0].search if trials else None
    goals = search.goals if search is not None else None
    if trials:
        problems += search_rules.named_goals(tree, goals, expectations)
        problems += search_rules.sampled(tree, trials, expectations)
        specs, wrong = search_rules.with_metric(tree, goals, specs)
        problems += wrong
    pairs, wrong = point_pairs.resolve(tree, specs, points)
    raise_all([*problems, *wrong])
    head = cast(ExperimentFile, head)
    named = {side.metric for expected in expectations for side in (expected.left, expected.right)}
    trials = [replace(trial, expects_unsent="unsent" in named) for trial in trials]
    source = head.source if "variants" not in tree.data else tree.data.get("source")
    experiment = Experiment(
        name,
        path,
        text,
        head.question,
        source,
        tuple(trials),
        1 if goals is not None and "repetitions" not in tree.data else head.repetitions,
        expectations,
        pairs,
    )
    raise_all([*_too_many_pairs(tree, pairs), *_undecidable(tree, experiment)])
    raise_all(_too_long(tree, trials))
    raise_all(_too_many([experiment], tree.place(("repetitions",))))
    return experiment


def _checked(
    points: Sequence[PointTree], name: str, path: str
) -> tuple[ExperimentFile | None, list[Trial], list[Problem]]:
    """Return what the first valid point says of them all, each valid point, and every problem."""
    trials: list[Trial] = []
    problems: list[Problem] = []
    head: ExperimentFile | None = None
    known: dict[Any, Any] = {}
    for point in points:
        file, wrong = file_schema.check(point.tree, ExperimentFile)
        problems += wrong
        if file is not None:
            trial = _sharing(_trial(file, point, name, path), known)
            trials.append(trial)
            head = head or file
            problems += lab_rules.point_contradictions(point.tree, trial)
        if len(problems) > 2 * MANY_PROBLEMS:
            problems = list(dict.fromkeys(problems))
            if len(problems) > MANY_PROBLEMS:
                raise_all(problems)
    return head, trials, problems


def _too_many_answers(tree: Tree, points: int, specs: int) -> Iterator[Problem]:
    """Yield a problem if there is more to answer than can be; each point has most answers."""
    texts = tree.data.get("expect", [])
    expected = len(texts) if isinstance(texts, list) else 0
    answers = specs + expected
    if expected > EXPECT_MAX:
        what, limit = f"{expected} expectations are too many", f"at most {EXPECT_MAX}"
        yield tree.problem(("expect",), what, limit, "expect less")
    if points * answers > ANSWERS_MAX:
        what = f"{answers} expectations and comparisons at {points} points are too many"
        limit = f"at most {ANSWERS_MAX} for all points"
        yield tree.problem(("expect" if texts else "compare",), what, limit, "sweep or expect less")


def _too_many_pairs(tree: Tree, pairs: Sequence[PointPair]) -> Iterator[Problem]:
    if len(pairs) > PAIRS_MAX:
        what, limit = f"{len(pairs)} pairs of points are too many", f"at most {PAIRS_MAX}"
        yield tree.problem(("compare",), what, limit, "compare or sweep less")


def _undecidable(tree: Tree, experiment: Experiment) -> Iterator[Problem]:
    """Yield each expectation between two points that its blocks could not decide."""
    for i, expectation in enumerate(experiment.expect):
        try:
            expect.refuse_undecidable(expectation, experiment)
        except ValueError as error:
            yield tree.problem(("expect", i), *refusal_parts(error))


def _too_many(experiments: Sequence[Experiment], place: Place) -> Iterator[Problem]:
    """Yield a problem if there are more trials than a run may have."""
    most = trial_count(experiments)[1]
    if most > TRIALS_MAX:
        what, limit = f"{most} trials are too many", f"at most {TRIALS_MAX}"
        yield at(place, "repetitions", what, limit, "repeat or sweep less, or run them in parts")


def _too_long(tree: Tree, trials: Sequence[Trial]) -> Iterator[Problem]:
    """Yield a problem if the head of the run, which holds every point, would be too long."""
    texts = [(*(each.traffic.payload or ()), *(each.receive.command or ())) for each in trials]
    characters = sum(len(text) for each in texts for text in each)
    if characters > MOST_CHARACTERS:
        what = f"payloads and commands of {len(trials)} points take {characters} characters"
        step = "sweep less, or send fewer datagrams"
        yield tree.problem(("sweep",), what, f"at most {MOST_CHARACTERS}", step)


def _base_source(tree: Tree) -> Iterator[Problem]:
    """Yield a problem with the experiment's own source, which every variant may replace."""
    if "source" in tree.data:
        try:
            NAMED["source"].read(tree.data["source"])
        except ValueError as error:
            yield tree.problem(("source",), *refusal_parts(error))


def _trial(file: ExperimentFile, point: PointTree, experiment: str, path: str) -> Trial:
    duration_ns = file.duration_ns
    if file.search is not None:
        duration_ns = file.search.trial_ns
    elif duration_ns is None:
        counted = file.traffic.count_packets is not None
        duration_ns = DURATION_WITH_COUNT_NS if counted else DURATION_NS
    return Trial(
        experiment=experiment,
        question=file.question,
        point=point.name,
        variant=point.variant,
        values=point.values,
        repetition=1,
        traffic=_sized(file.traffic),
        send=file.send,
        receive=_in_folder(file.receive, path),
        settings=_settings(file.settings),
        needs=file.needs,
        duration_ns=duration_ns,
        warmup_ns=AUTO_WARMUP_NS if file.warmup_ns == "auto" else file.warmup_ns,
        warmup_auto=file.warmup_ns == "auto",
        path_check=file.path_check,
        explain=file.explain,
        cpu_time=file.cpu_time,
        search=file.search,
        losses=dict(file.losses),
        source=file.source,
        fresh=file.fresh,
    )


def _sharing(trial: Trial, known: dict[Any, Any]) -> Trial:
    """Return a trial that has in common with others what may be long; 4,096 points took 600 MiB."""
    payload, command, folder = (
        known.setdefault(each, each)
        for each in (trial.traffic.payload, trial.receive.command, trial.receive.folder)
    )
    traffic = replace(trial.traffic, payload=payload)
    return replace(
        trial, traffic=traffic, receive=replace(trial.receive, command=command, folder=folder)
    )


def _sized(traffic: Traffic) -> Traffic:
    """Return traffic with the size of its largest datagram, if the user supplies datagrams."""
    return replace(traffic, size_bytes=traffic.datagrams.longest_bytes)


def _in_folder(receive: Receive, path: str) -> Receive:
    """Return a program with its working folder: that of the experiment's file."""
    if receive.command is None or receive.folder is not None:
        return receive
    return replace(receive, folder=str(Path(path).resolve().parent))


def _settings(block: RoleSettings) -> dict[Part, Settings]:
    """Return the settings of each role that has any."""
    blocks: dict[Part, Settings] = {
        "sender": block.sender,
        "middle": block.middle,
        "receiver": block.receiver,
    }
    return {part: own for part, own in blocks.items() if own != Settings()}


def _expectations(tree: Tree, points: list[str]) -> tuple[tuple[Expectation, ...], list[Problem]]:
    expectations: list[Expectation] = []
    problems: list[Problem] = []
    known = dict.fromkeys(points)
    texts = tree.data.get("expect", [])
    for i, text in enumerate(texts if isinstance(texts, list) else []):
        try:
            expectations.append(expect.parse(str(text), known, len(problems) < SHOWN_PROBLEMS))
        except ValueError as error:
            problems.append(tree.problem(("expect", i), *refusal_parts(error)))
    return tuple(expectations), problems


def _lab(file: LabFile, name: str, path: str, text: str) -> Lab:
    ends = {part: tuple(_hosts(files, part)) for part, files in file.ends.items()}
    hosts = (*ends["sender"], *map(_node, file.middle), *ends["receiver"])
    return Lab(name, path, text, hosts, _settings(file.settings), file.reserve)


def _hosts(files: list[HostFile], part: Part) -> Iterator[Node]:
    """Yield the hosts of a part; unnamed ones get the part's name, numbered if several."""
    for i, file in enumerate(files, 1):
        yield Node(
            name=file.name or (part if len(files) == 1 else f"{part}{i}"),
            part=part,
            connect=file.connect,
            interface=file.interface,
            addresses=lab_rules.expanded_addresses(file.addresses),
            existing=file.addresses == "existing",
            cpus=file.cpus,
            settings=file.settings,
        )


def _node(file: NodeFile) -> Node:
    """Return a host in the middle; a namespace made for the run may be changed."""
    come, leave = file.interfaces
    addresses, out_addresses = file.addresses or ((), ())
    return Node(
        name=file.name,
        part="middle",
        connect=file.connect,
        interface=come,
        addresses=addresses,
        existing=not addresses,
        cpus=file.cpus,
        settings=file.settings,
        out=leave,
        out_addresses=out_addresses,
        change=file.change or file.connect.by == "namespace",
        bridge=file.bridge or "",
        bridged=file.bridged,
        tunnel=file.tunnel or "",
    )

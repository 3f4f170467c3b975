"""The pytest plugin: collects experiment files, an item per point; a fixture; a summary.

Running and judging are in ``gate``. pytest loads this wherever udpbench is installed, so it reads
only the files that the configuration names, and imports the controller only when needed. Long,
because pytest looks for the hooks and fixtures of a plugin in one module.
"""

from __future__ import annotations

import datetime
import logging
import os
import warnings
from collections.abc import Callable, Generator, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

import pytest

from udpbench.printable import printable

if TYPE_CHECKING:
    from udpbench.analysis.comparison.point_results import PointResult, PointResults
    from udpbench.client_gate import ClientGate
    from udpbench.control.lab_lock import Surroundings
    from udpbench.gate import Answer, Baseline, Gate
    from udpbench.model.experiment import Experiment
    from udpbench.model.result import Progress
    from udpbench.records.run import Run

SUFFIXES = (".yaml", ".yml")
DEFAULT_FILES = ("*.udpbench.yaml",)
CANNOT_TELL = ("udpbench.outcome", "cannot tell")
"""Property of an item that fails because nobody can tell, not because of what was measured."""
SUMMARY = "udpbench"
"""Name of the property that holds the line of the summary; the numbers are ``udpbench.<name>``."""
FAILING = ("failed", "cannot tell")
"""Outcomes without a proof; the graver first."""
SHOWN_EVENTS = ("wait", "run", "phase", "trial", "restore")
SURROUNDINGS: pytest.StashKey[Surroundings] = pytest.StashKey()
"""What a run uses besides its folder; our own tests put fakes here."""
_GATE: pytest.StashKey[Gate] = pytest.StashKey()
_SESSION: pytest.StashKey[str] = pytest.StashKey()
_log = logging.getLogger("udpbench")


# --- options -------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our options and ini keys."""
    group = parser.getgroup("udpbench", "UDP packets per second, and where the rest are lost")
    group.addoption(
        "--udpbench-lab",
        action="append",
        metavar="LAB",
        help="a lab file or a shipped lab; if repeated, the first that is free (local)",
    )
    group.addoption(
        "--udpbench-out",
        metavar="DIR",
        help="the folder for run folders (pytest's temporary folder)",
    )
    group.addoption(
        "--udpbench-baseline",
        action="append",
        metavar="RUN",
        help="a stored run that no point may be worse than; several are pooled",
    )
    group.addoption(
        "--udpbench-margin",
        metavar="RATIO",
        help="how much worse than the baseline a point may be, for example 3%%",
    )
    parser.addini("udpbench_baseline", type="args", default=[], help="as --udpbench-baseline")
    parser.addini("udpbench_margin", default="", help="as --udpbench-margin")
    parser.addini(
        "udpbench_files",
        type="args",
        default=list(DEFAULT_FILES),
        help="globs of experiment files, relative to the root folder; without a slash they match "
        "file names (*.udpbench.yaml)",
    )
    parser.addini(
        "udpbench_wait", default="1h", help="how long to wait for a lab that is in use (1h)"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and name the session, in every process."""
    config.addinivalue_line(
        "markers", "udpbench: runs an experiment or a server; every item that does has it"
    )
    given = getattr(config, "workerinput", {}).get("udpbench_session")
    now = datetime.datetime.now(datetime.timezone.utc)
    config.stash[_SESSION] = given or f"{now:%Y%m%dT%H%M%S}-{os.getpid()}"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist the session's name: its runs are shared by all workers."""
    node.workerinput["udpbench_session"] = node.config.stash[_SESSION]


def _gate(config: pytest.Config, folders: pytest.TempPathFactory) -> Gate:
    """Return the gate, created on first use; udpbench's errors become usage errors."""
    from udpbench.errors import UdpbenchError
    from udpbench.gate import Gate
    from udpbench.units import parse_duration, parse_ratio

    if _GATE in config.stash:
        return config.stash[_GATE]
    out = config.getoption("--udpbench-out")
    margin = config.getoption("--udpbench-margin") or config.getini("udpbench_margin")
    bases = config.getoption("--udpbench-baseline") or [
        config.rootpath / folder for folder in config.getini("udpbench_baseline")
    ]
    try:
        gate = Gate(
            lab_names=tuple(config.getoption("--udpbench-lab") or ("local",)),
            folder=Path(out) if out else _temporary(config, folders),
            session=config.stash[_SESSION],
            wait_ns=parse_duration(config.getini("udpbench_wait")),
            surroundings=config.stash.get(SURROUNDINGS, None),
            baselines=tuple(Path(folder) for folder in bases),
            margin=parse_ratio(margin) if margin else None,
        )
        _ = gate.labs, gate.baseline  # read now, so that errors in them are reported immediately
    except (UdpbenchError, ValueError) as error:
        raise _in_words(error) from None
    for folder in gate.baselines:
        _warn_of_writers("--udpbench-baseline", folder)
    config.stash[_GATE] = gate
    return gate


def _warn_of_writers(what: str, folder: Path) -> None:
    """Warn of everybody else who could have written a stored run."""
    from udpbench.records.folders import writers_of

    for how in writers_of(folder):
        forged = f"{what} {folder}: {how}, so it may be forged"
        warnings.warn(pytest.PytestWarning(printable(forged)), stacklevel=3)


def _in_words(error: Exception) -> BaseException:
    """Return a failure to raise ``from None``, because pytest would print the cause as well."""
    return pytest.fail.Exception(printable(str(error)), pytrace=False)


def _temporary(config: pytest.Config, folders: pytest.TempPathFactory) -> Path:
    """Return a folder that all processes of the session share; pytest keeps the last three."""
    base = folders.getbasetemp()
    return (base.parent if hasattr(config, "workerinput") else base) / "udpbench"


# --- experiments as items ------------------------------------------------------------------------


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Optional[CollectedFile]:
    """Collect a YAML file that matches the ini, or that the user names and that has a question."""
    if file_path.suffix not in SUFFIXES:
        return None
    if not (parent.session.isinitpath(file_path) or _is_named(parent.config, file_path)):
        return None
    if _missing() is None:
        from udpbench.definition.load import is_experiment

        if not is_experiment(file_path):
            return None
    collected: CollectedFile = CollectedFile.from_parent(parent, path=file_path)
    return collected


def _missing() -> Optional[str]:
    """Return why no experiment can run here: a host under test has only the agent's packages."""
    try:
        import udpbench.gate  # noqa: F401
    except ImportError as error:
        return (
            f"udpbench's controller is not installed here: {error}; "
            "install udpbench with its dependencies, on Python 3.11 or later"
        )
    return None


def _is_named(config: pytest.Config, path: Path) -> bool:
    try:
        parts = path.relative_to(config.rootpath).parts
    except ValueError:
        parts = path.parts[-1:]
    return any(
        matches(parts if "/" in glob else parts[-1:], tuple(glob.split("/")))
        for glob in config.getini("udpbench_files")
    )


def matches(parts: tuple[str, ...], glob: tuple[str, ...]) -> bool:
    """Return whether a path matches a glob, part by part; ``**`` stands for any folders."""
    if not glob:
        return not parts
    if glob[0] == "**":
        return any(matches(parts[i:], glob[1:]) for i in range(len(parts) + 1))
    return bool(parts) and fnmatch(parts[0], glob[0]) and matches(parts[1:], glob[1:])


class CollectedFile(pytest.File):
    """One experiment; its selected points share one run, so that they interleave."""

    experiment: Experiment
    _stored: Optional[Run] = None

    def collect(self) -> Iterator[PointItem]:
        """Yield one item per point, in the order of the file."""
        missing = _missing()
        if missing is not None:
            raise self.CollectError(missing)
        from udpbench.definition.load import load_experiments
        from udpbench.errors import InputError

        try:
            (self.experiment,) = load_experiments([str(self.path)])
        except InputError as error:
            raise self.CollectError(printable(str(error))) from None
        for trial in self.experiment.points:
            item: PointItem = PointItem.from_parent(self, name=trial.point or "all")
            item.file, item.point = self, trial.point
            yield item

    def stored(self, gate: Gate) -> Run:
        """Return the run of the selected points and of the points they are compared with."""
        from udpbench.gate import restricted

        if self._stored is None:
            items = [item for item in self.session.items if isinstance(item, PointItem)]
            chosen = {item.point: item.nodeid for item in items if item.file is self}
            experiment = restricted(self.experiment, chosen)
            node_ids = tuple(chosen.values())
            self._stored = _run(gate, experiment, self.nodeid, node_ids, self.session)
        return self._stored


class PointItem(pytest.Item):
    """One point of an experiment: passes if its trials are valid and its expectations hold."""

    file: CollectedFile
    point: str

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_marker("udpbench")

    def runtest(self) -> None:
        """Judge the point; the first item of an experiment runs it."""
        # What the fixture tmp_path_factory returns; an item that is no function has no fixtures.
        gate = _gate(self.config, self.config._tmp_path_factory)  # type: ignore[attr-defined]
        point_answer = _judge(self, self.file.stored(gate), self.point, gate.baseline)
        if point_answer.outcome in FAILING:
            _fail(self, point_answer.outcome, f"{point_answer.why}\n{point_answer.shown}")
        if point_answer.outcome == "skipped":
            pytest.skip(point_answer.why)

    def reportinfo(self) -> tuple[Path, Optional[int], str]:
        """Return the location and the name of the item."""
        return self.path, None, f"{self.path.name}::{self.name}"


# --- experiments in tests ------------------------------------------------------------------------


class UdpbenchFixture:
    """Calls run an experiment; see docs/pytest.md."""

    def __init__(self, request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> None:
        self._request = request
        self._folders = folders
        self._calls = 0

    def __call__(
        self, experiment: Union[str, os.PathLike[str], dict[str, Any]]
    ) -> Any:  # PointResult | PointResults, depending on the experiment
        """Run an experiment and return its ``PointResult``, or ``PointResults`` for several points.

        A path is relative to the test's folder; anything else is a shipped name. A dict has the
        keys of an experiment file, without ``question`` if you like. The test fails if a trial is
        not valid or an expectation is not met, and is skipped if the experiment cannot be run.
        """
        missing = _missing()
        if missing is not None:
            pytest.fail(missing, pytrace=False)
        from udpbench.gate import full_text

        gate = _gate(self._request.config, self._folders)
        self._calls += 1
        node = self._request.node
        name = node.nodeid if self._calls == 1 else f"{node.nodeid}-{self._calls}"
        stored = _run(gate, self._load(experiment), name, (node.nodeid,), node.session)
        points = [trial.point for trial in stored.header.experiments[0].points]
        answers = {point: _judge(node, stored, point) for point in points}
        # Look at all points first: a skipped one must not hide a failed one.
        for outcome in FAILING:
            if any(answer.outcome == outcome for answer in answers.values()):
                _fail(node, outcome, f"{_why(answers, outcome)}\n{full_text(stored, _width())}")
        if any(answer.outcome == "skipped" for answer in answers.values()):
            pytest.skip(_why(answers, "skipped"))
        # Shown if the test fails, beside the numbers that it asserts on.
        node.add_report_section("call", "udpbench", full_text(stored, _width()))
        results = {point: answer.result for point, answer in answers.items()}
        return results[points[0]] if len(points) == 1 else _mapping(results)

    def baseline(self, folder: Union[str, os.PathLike[str]]) -> Any:
        """Return the results of a stored run of one experiment, in the form that a call returns.

        A path is relative to the root folder of the tests.
        """
        from udpbench.errors import UdpbenchError
        from udpbench.gate import stored_results

        path = self._request.config.rootpath / folder
        try:
            results = stored_results(path)
        except UdpbenchError as error:
            raise _in_words(error) from None
        _warn_of_writers("udpbench.baseline", path)
        return next(iter(results.values())) if len(results) == 1 else _mapping(results)

    def _load(self, experiment: Union[str, os.PathLike[str], dict[str, Any]]) -> Experiment:
        from udpbench.definition.load import load_experiment_data, load_experiments
        from udpbench.errors import InputError

        node = self._request.node
        try:
            if isinstance(experiment, dict):
                return load_experiment_data({"question": f"{node.name}?", **experiment}, node.name)
            beside = node.path.parent / experiment
            experiments = load_experiments([str(beside if beside.exists() else experiment)])
        except InputError as error:
            raise _in_words(error) from None
        if len(experiments) != 1:
            names = ", ".join(each.name for each in experiments)
            pytest.fail(f"{experiment}: holds {names}; name one of them", pytrace=False)
        return experiments[0]


def _mapping(results: dict[str, PointResult]) -> PointResults:
    from udpbench.analysis.comparison.point_results import PointResults

    return PointResults(results)


@pytest.fixture
def udpbench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> UdpbenchFixture:
    """Run an experiment, a file or a dict, and return its result; several points: by name."""
    return UdpbenchFixture(request, tmp_path_factory)


@pytest.fixture
def udpbench_serve(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., ClientGate]:
    """Return what serves iperf3 clients within a block; see docs/pytest.md."""
    from functools import partial

    from udpbench.client_gate import ClientGate

    gate = _gate(request.config, tmp_path_factory)
    name = request.node.nodeid
    note = partial(_note_test, request.node)
    return partial(ClientGate, gate.folder_of(f"{name}-served"), ("pytest", name), note)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail a test whose question the trials cannot answer as such; show the messages of errors.

    Skipped it would be green for ever, on a machine that is never quiet.
    """
    if item.get_closest_marker("udpbench") is None or _missing() is not None:
        return (yield)
    from udpbench.errors import CannotTell, UdpbenchError
    from udpbench.gate import UNJUDGED

    try:
        return (yield)
    except CannotTell as error:
        item.user_properties.append(CANNOT_TELL)
        text = printable(f"{UNJUDGED}: {error}")
        raise pytest.fail.Exception(text, pytrace=False) from None
    except UdpbenchError as error:
        raise _in_words(error) from None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Sum a failure up by its first line: where CI is set, pytest prints all lines as summary."""
    report = yield
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None and item.get_closest_marker("udpbench") is not None:
        crash.message = crash.message.split("\n", 1)[0]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: Any) -> Optional[tuple[str, str, str]]:
    """Call a test that nobody can judge so; it fails all the same."""
    unjudged = report.failed and CANNOT_TELL in getattr(report, "user_properties", ())
    return ("failed", "?", "CANNOT TELL") if unjudged else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use a fixture of udpbench, before ``-m`` selects."""
    for item in items:
        if {"udpbench", "udpbench_serve"}.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("udpbench")


# --- running and telling -------------------------------------------------------------------------


def _run(
    gate: Gate,
    experiment: Experiment,
    name: str,
    node_ids: tuple[str, ...],
    session: pytest.Session,
) -> Run:
    """Run an experiment; an error of udpbench fails the item with its message."""
    from udpbench.errors import Interrupted, UdpbenchError

    try:  # record only node IDs of pytest's arguments: others may contain secrets
        stored = gate.run(experiment, name, ("pytest", *node_ids), _tell)
    except Interrupted:
        raise KeyboardInterrupt from None
    except UdpbenchError as error:
        raise _in_words(error) from None
    if stored.ending is not None and stored.ending.restore_errors:
        left = "; ".join(f"{error.host}: {error.message}" for error in stored.ending.restore_errors)
        session.shouldstop = f"a host was not restored: {left}"
        pytest.fail(printable(f"not restored: {left}"), pytrace=False)
    if stored.ending is not None and stored.ending.status == "interrupted":
        raise KeyboardInterrupt
    return stored


def _tell(progress: Progress) -> None:
    """Log the progress of a run; ``--log-cli-level=INFO`` shows it."""
    if progress.event in SHOWN_EVENTS:
        _log.info("%s", printable(f"{progress.place} {progress.text}".lstrip(), keep=""))


def _judge(node: Any, stored: Run, point: str, baseline: Optional[Baseline] = None) -> Answer:
    """Return the outcome of a point, and record it at the item."""
    from udpbench.gate import answer

    point_answer = answer(stored, point, _width(), baseline)
    _note(node, point_answer, stored)
    return point_answer


def _fail(node: Any, outcome: str, text: str) -> None:
    """Fail a test; its report says whether that is what was measured, or nobody can tell."""
    if outcome != "failed":
        node.user_properties.append(CANNOT_TELL)
    pytest.fail(text, pytrace=False)


def _why(answers: dict[str, Answer], outcome: str) -> str:
    """Return the reasons of all points with an outcome; several are headed by their names."""
    chosen = {point: answer.why for point, answer in answers.items() if answer.outcome == outcome}
    if len(answers) == 1:
        return "\n".join(chosen.values())
    return "\n".join(f"{name}: {line}" for name, why in chosen.items() for line in why.split("\n"))


def _width() -> int:
    """Return the width of the terminal in columns, up to that of a report."""
    import shutil

    return max(80, min(shutil.get_terminal_size().columns, 140))


def _note(node: Any, point_answer: Answer, stored: Run) -> None:
    """Add the measured values to the item's properties, which JUnit files contain."""
    from udpbench.analysis.comparison.point_results import numbers

    # The name of an item has the point; a test may have several.
    named = "" if isinstance(node, PointItem) else f"{point_answer.result.point or 'all'}: "
    node.user_properties.append((SUMMARY, named + point_answer.summary))
    node.user_properties.append(("udpbench.run", str(stored.folder)))
    head = (
        "udpbench"
        if isinstance(node, PointItem)
        else f"udpbench.{point_answer.result.point}".strip(".")
    )
    for name, value in numbers(point_answer.result).items():
        node.user_properties.append((f"{head}.{name}", value))


def _note_test(node: Any, folder: Path) -> None:
    """Add what a client's test measured to the item; its results are shown if the item fails."""
    from udpbench.gate import full_text
    from udpbench.records.reader import read_run

    stored = read_run(folder)
    for trial in stored.header.experiments[0].points:
        _judge(node, stored, trial.point)
    node.add_report_section("call", "udpbench", full_text(stored, _width()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write one line per point, and the run folders."""
    lines: list[str] = []
    folders: dict[str, None] = {}
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.getreports(outcome):
            for name, value in getattr(report, "user_properties", ()):
                if name == SUMMARY:
                    word = CANNOT_TELL[1] if CANNOT_TELL in report.user_properties else outcome
                    lines.append(f"{report.nodeid}  {word}  {value}")
                elif name == "udpbench.run":
                    folders[str(value)] = None
    if not lines:
        return
    terminalreporter.section("udpbench")
    for line in sorted(lines):
        terminalreporter.line(line)
    for folder in folders:
        terminalreporter.line(printable(f"run folder: {folder}"))

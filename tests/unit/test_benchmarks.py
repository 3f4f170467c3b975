"""The statistics of the benchmarks, and that what they use of udpbench is there."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType

import pytest

from udpbench.definition.load import load_experiment_data
from udpbench.model.limits import CPU_FREQUENCY, SECOND_NS
from udpbench.model.result import CpuLoad

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def ways() -> Iterator[ModuleType]:
    """Yield benchmarks/ways.py as a module."""
    yield from benchmark("ways")


@pytest.fixture(scope="module")
def waiting() -> Iterator[ModuleType]:
    """Yield benchmarks/waiting.py as a module."""
    yield from benchmark("waiting")


@pytest.fixture(scope="module")
def whole() -> Iterator[ModuleType]:
    """Yield benchmarks/trials.py as a module."""
    yield from benchmark("trials")


def benchmark(name: str) -> Iterator[ModuleType]:
    """Yield a program as a module; as a program it finds what lies beside it."""
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(FOLDER))
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(FOLDER))


@pytest.mark.parametrize(
    ("count", "expected"), [(1, (1, 1)), (5, (1, 5)), (6, (1, 6)), (9, (2, 8)), (15, (4, 12))]
)
def test_the_interval_of_a_median_is_of_order_statistics(
    ways: ModuleType, count: int, expected: tuple[int, int]
) -> None:
    """With 95 %, as tables of the sign test have it; few values have their range."""
    assert expected == ways.interval(list(range(count, 0, -1)))


def test_a_bar_is_reached_by_the_lower_bound(ways: ModuleType) -> None:
    """A median above it is not enough."""
    own, other = [1800.0, 2000.0, 2200.0], [2000.0] * 3
    rows = [ways.ratio_row("x", own, other, bar, 2) for bar in (0.9, 0.95)]
    assert [True, False] == [row.met for row in rows]
    assert "1.00 (0.90–1.10); 4 against 4 kpps" == rows[0].value


def test_a_ratio_without_a_bar_is_shown(ways: ModuleType) -> None:
    """However small it is."""
    row = ways.ratio_row("x", [1000.0], [4000.0], None)
    assert ("0.25 (0.25–0.25); 1 against 4 kpps", "shown", True) == (row.value, row.bar, row.met)


def test_every_ratio_is_of_sides_that_run(ways: ModuleType) -> None:
    """Each side has a name of its own, and is compared."""
    sides = [name for group in ways.GROUPS for name in group.sides]
    sides += [name for duel in ways.DUELS for name in (duel, f"{duel} rival")]
    assert sorted(set(sides)) == sorted(sides)
    compared = {name for ratio in ways.RATIOS for name in (ratio.own, ratio.other)}
    assert set(sides) == compared


def test_every_side_is_an_experiment(ways: ModuleType) -> None:
    """Its keys are those of a file, and it has one point."""
    sides = [side for group in ways.GROUPS for side in group.sides.values()]
    sides += [own for own, _ in ways.DUELS.values()]
    for side in sides:
        own = getattr(side, "beside", side)
        if own is not None:
            experiment = load_experiment_data({"question": "Which?", **own.keys}, "ways")
            assert 1 == len(experiment.points)


def test_the_table_has_a_line_for_each_ratio(ways: ModuleType) -> None:
    """With the cost of accounting behind the first, and memory last."""
    names = {name for ratio in ways.RATIOS for name in (ratio.own, ratio.other)}
    side = ways.Side([], user_ns=600, messages=20)
    rows = list(ways.rows({name: [1000.0] for name in names}, (side, side), 2**26))
    assert len(ways.RATIOS) + 2 == len(rows)
    assert ["1.00 (1.00–1.00); 1 against 1 kpps", "30 against 30 ns"] == [
        row.value for row in rows[:2]
    ]
    assert [True, "64 MiB"] == [rows[-1].met, rows[-1].value]
    assert [ratio.bar is None or ratio.bar <= 1 for ratio in ways.RATIOS] == [
        rows[0].met,
        *(row.met for row in rows[2:-1]),
    ]


def test_a_table_with_a_missed_bar_ends_the_program(
    ways: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """After all its lines are printed."""
    ways.show([ways.Row("x", "1.00", "≥ 1", True)])
    with pytest.raises(SystemExit) as ended:
        ways.show([ways.Row("x", "0.90", "≥ 1", False), ways.Row("y", "1.00", "≥ 1", True)])
    assert 1 == ended.value.code
    lines = [line for line in capsys.readouterr().out.splitlines() if "≥" in line]
    assert [
        "| x | 1.00 | ≥ 1 | yes |",
        "| x | 0.90 | ≥ 1 | **no** |",
        "| y | 1.00 | ≥ 1 | yes |",
    ] == lines


def test_a_device_is_read_from_the_kernels_table(ways: ModuleType) -> None:
    """By its whole name: receive0 is not receive01."""
    from duels.stage import RX_DROPPED, RX_PACKETS, device_counts

    text = "Inter-|\nreceive01: 0 1 2 3\n  receive0: 90 1000 0 200 0\n"
    assert (1000, 200) == device_counts(text, "receive0", RX_PACKETS, RX_DROPPED)


# --- whole trials --------------------------------------------------------------------------------


def test_a_trial_is_judged_by_the_median_of_its_pairs(whole: ModuleType) -> None:
    """One slow round is none; beside it stands what udpbench took of the receiver's CPU."""
    pair = whole.Pair
    good = [pair(2000.0, 2000.0, 0.01), pair(1000.0, 2000.0, 0.03), pair(2200.0, 2000.0, 0.02)]
    bad = [pair(1800.0, 2000.0, 0.02)] * 2 + [pair(2400.0, 2000.0, 0.02)]
    pairs = {(kind.what, name): good for kind in whole.KINDS for name in whole.MANNERS}
    pairs[whole.KINDS[0].what, "live view"] = bad
    rows = list(whole.rows(pairs))
    assert [False, True, True, True, True, True] == [row.met for row in rows]
    assert "1.00 (0.50–1.10); 2 against 2 kpps; 2.0%" == rows[1].value


def test_only_what_udpbench_takes_beside_its_workers_counts(whole: ModuleType) -> None:
    """The CPUs that receive."""
    uses = {"udpbench": 0.02, "NAPI thread": 0.5, "receiver.0": 0.4}
    cpus = (CpuLoad("here", 0, 1.0, False, uses), CpuLoad("here", 1, 1.0, True, uses))
    assert 0.02 == whole.share_of(cpus)


@pytest.mark.parametrize(
    ("own_first", "expected"), [(True, ["own", "own", "bare"]), (False, ["bare", "own"] * 2)]
)
def test_a_spoilt_trial_is_repeated_with_its_pair(
    whole: ModuleType, monkeypatch: pytest.MonkeyPatch, own_first: bool, expected: list[str]
) -> None:
    """Both in the order of the pair; the bare loops are not measured beside a spoilt one."""
    sides, trials = [], [None, (3000.0, 0.01)]

    def trial_of(*_: object) -> tuple[float, float] | None:
        sides.append("own")
        return trials.pop(0)

    def bare_pps(*_: object) -> float:
        sides.append("bare")
        return 1000.0

    monkeypatch.setattr(whole, "trial_of", trial_of)
    monkeypatch.setattr(whole, "bare_pps", bare_pps)
    assert whole.Pair(3000.0, 1000.0, 0.01) == whole.pair_of(None, None, None, own_first)
    assert expected == sides


def test_trials_that_are_all_spoilt_end_the_program(
    whole: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instead of waiting for a quiet machine."""
    monkeypatch.setattr(whole, "trial_of", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        whole.pair_of(None, None, None, True)
    assert "trials: 3 trials in a row were spoilt by other programs" == ended.value.code


def test_a_run_without_its_trial_ends_the_program(whole: ModuleType, tmp_path: Path) -> None:
    """With what the run has printed."""
    manner = ((), lambda command: f"refused: {command[4]}")
    with pytest.raises(SystemExit) as ended:
        whole.trial_of(tmp_path, whole.KINDS[0], manner)
    assert f"trials: no trial:\nrefused: {tmp_path}/trials.yaml" == ended.value.code


def test_the_trials_are_experiments(whole: ModuleType) -> None:
    """One trial each, as long as the bare loops run beside it."""
    for kind in whole.KINDS:
        data = {**whole.DEFINITION, **kind.own.keys}
        (trial,) = load_experiment_data(data, "trials").points
        assert whole.MEASURED_S * SECOND_NS == trial.duration_ns


SEEN = "import os, sys; print(os.isatty(1) and os.get_terminal_size(), os.environ.get('TERM'))"


def test_the_live_view_has_a_terminal_and_lines_have_none(whole: ModuleType) -> None:
    """What is written is read until the program ends, more than a terminal holds, too."""
    command = [sys.executable, "-c", f"{SEEN}; print('x' * 10**5)"]
    screen, lines = (start(command) for start in (whole.on_terminal, whole.in_lines))
    first, rest = screen.split("\r\n", 1)
    assert "os.terminal_size(columns=120, lines=40) xterm-256color" == first
    assert "x" * 10**5 == rest.strip()
    assert lines.startswith("False ")


# --- ways of waiting -----------------------------------------------------------------------------


def trials(module: ModuleType, *numbers: tuple[float, float, float]) -> list[object]:
    """Return trials of delivered, CPU time and delay."""
    return [module.Trial(*each) for each in numbers]


@pytest.mark.parametrize(
    ("own", "again", "expected"),
    [
        ((98, 11, 140), 140, [True, True, True]),
        ((96, 12, 160), 160, [False, False, False]),
        ((98, 11, 160), 320, [True, True, True]),
    ],
    ids=["met", "missed", "a delay that itself again does not resolve"],
)
def test_auto_is_held_against_the_best_that_keeps_up(
    waiting: ModuleType, own: tuple[int, int, int], again: int, expected: list[bool]
) -> None:
    """A way that delivers less is neither the cheapest nor the soonest."""
    ways = {name: trials(waiting, *[(100, 20, 200)] * 6) for name in waiting.WAYS}
    ways |= {
        "epoll": trials(waiting, *[(90, 1, 1)] * 6),
        "nap": trials(waiting, *[(99, 10, 150)] * 6),
    }
    ways |= {"spin": trials(waiting, *[(100, 90, 100)] * 6)}
    ways |= {
        "auto": trials(waiting, *[own] * 6),
        "again": trials(waiting, *[(*own[:2], again)] * 6),
    }
    rows = list(waiting.rows("overload", ways))
    assert ["block", "nap", "spin"] == [row.best for row in rows]
    assert expected == [row.met for row in rows]
    delivered = next(waiting.rows("unlimited", ways))
    assert (delivered.bar, delivered.met) == ("sender's limit", True)
    assert waiting.shown("unlimited", delivered).endswith("| sender's limit | – |")


# --- a server for iperf3 -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def serving() -> Iterator[ModuleType]:
    """Yield benchmarks/serving.py as a module."""
    yield from benchmark("serving")


@pytest.mark.parametrize(
    ("packets", "used_ns", "met"), [(1300, 1000, True), (1000, 770, True), (1200, 1000, False)]
)
def test_a_server_meets_its_bar_by_what_arrives_or_by_its_cpu_time(
    serving: ModuleType, packets: int, used_ns: float, met: bool
) -> None:
    """Where the client limits, more can not arrive."""
    whole_ns = used_ns * packets / 1000
    own = serving.Side(2000, packets, 1.0, whole_ns / 2, whole_ns)
    other = serving.Side(2000, 1000, 1.0, 500.0, 1000.0)
    arrived, cost, whole = serving.rows("a load", [(own, other)] * 3)
    assert (met, met) == (cost.met, whole.met)
    assert f"lost {3 * (2000 - packets)} against 3000" in arrived.value


# --- sampling ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sampling() -> Iterator[ModuleType]:
    """Yield benchmarks/sampling.py as a module."""
    yield from benchmark("sampling")


def test_a_block_counts_if_both_of_its_trials_do(
    sampling: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without one such block nothing can be told."""

    def delivered(folder: Path, load: str, sampled: bool) -> float | None:
        plain = load.startswith("plain")
        block = int(folder.name.split("-")[1])
        return None if block == 1 and sampled else 990.0 if sampled and plain else 1000.0

    monkeypatch.setattr(sampling, "delivered_pps", delivered)
    plain, merged = sampling.rows(tmp_path, 3)
    assert ("plain 32 B, 2 pairs of trials", True) == (plain.what, plain.met)
    assert plain.value.startswith("0.99 (0.99–0.99)")
    assert merged.value.startswith("1.00 (1.00–1.00)")
    monkeypatch.setattr(sampling, "delivered_pps", lambda *_: None)
    with pytest.raises(SystemExit, match="plain 32 B: every block has a trial that others"):
        list(sampling.rows(tmp_path, 3))


class Sampler:
    """Samples, or says why not, and slows what is measured."""

    def __init__(self, _host: object = None, why: str = "") -> None:
        self.why = why
        self.on = False

    def begin(self, frequency: int) -> None:
        """Begin."""
        assert frequency == CPU_FREQUENCY
        self.on = True

    def close(self) -> None:
        """End."""
        self.on = False


def test_slices_of_a_load_are_with_and_without_the_sampler(
    sampling: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on in a third of them, and off at the end; in a third there are its timers alone."""
    sampler, timers = Sampler(), Sampler()

    @contextmanager
    def timers_alone() -> Iterator[None]:
        timers.on = True
        yield
        timers.on = False

    monkeypatch.setattr(sampling, "timers_alone", timers_alone)
    monkeypatch.setattr(sampling, "CpuSampler", lambda _: sampler)
    for name in ("stage", "running"):
        monkeypatch.setattr(sampling, name, lambda *_: nullcontext())
    monkeypatch.setattr(sampling, "await_packets", lambda _: None)
    rates = {(False, False): 1000.0, (True, False): 970.0, (False, True): 980.0}
    monkeypatch.setattr(sampling, "rate", lambda *_: rates[sampler.on, timers.on])
    plain, alone, merged, _ = sampling.slices(9)
    assert ("plain 32 B, slices", "≥ 0.98", False) == (plain.what, plain.bar, plain.met)
    assert plain.value.startswith("0.97 (0.97–0.97)")
    assert ("plain 32 B, its timers alone", "shown", True) == (alone.what, alone.bar, alone.met)
    assert alone.value.startswith("0.98 (0.98–0.98)")
    assert not merged.met
    assert not sampler.on
    sampler.why = "perf_event_open is not permitted"
    with pytest.raises(SystemExit, match="sampling: perf_event_open is not permitted"):
        list(sampling.slices(9))


def test_timers_alone_are_those_of_the_sampler(
    sampling: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many, of the same periods, on each CPU; nothing is sampled, and all are closed."""
    opened: list[tuple[int, int]] = []

    def event(attributes: bytearray, _: int, cpu: int) -> int:
        opened.append((cpu, int.from_bytes(attributes[16:24], sys.byteorder)))
        return os.open(os.devnull, os.O_RDONLY)

    monkeypatch.setattr(sampling.native, "perf_event_open", event)
    monkeypatch.setattr(sampling.fcntl, "ioctl", lambda *_: 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    before = {*Path("/proc/self/fd").iterdir()}
    with sampling.timers_alone():
        pass
    periods_ns = sampling.cpu_sampler.periods_ns
    expected = [
        (cpu, ns) for cpu in (0, 1) for ns in periods_ns(cpu, SECOND_NS // CPU_FREQUENCY, 2)
    ]
    assert expected == opened
    assert before == {*Path("/proc/self/fd").iterdir()}

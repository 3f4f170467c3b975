"""Points over the days: medians, levels, and what is printed of them."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from analysis.build import LOAD_MS, experiment, hog, paced, record, shared, trial
from control.fake import World, go
from golden import Golden
from report.stored import printed, stored

from store.runs import POINTS, fill, run_of
from udpbench.__main__ import main
from udpbench.definition.load import load_experiment_data
from udpbench.errors import InputError
from udpbench.model.result import Estimate
from udpbench.report.campaign.history_output import day_rows, history_json, shown
from udpbench.store import history as history_module
from udpbench.store.dataset import read_runs, write_runs
from udpbench.store.history import LevelChange, histories, level_changes
from udpbench.store.pairs import beside

pytest.importorskip("pyarrow", reason="pip install 'udpbench[store]'")
pytest.importorskip("jumpavg", reason="pip install 'udpbench[store]'")
RATES = (1000, 1004, 998, 1002, 800, 804, 799)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fill a store: two pairs for a week, one of which gets slower on its fifth day."""
    folder = tmp_path_factory.mktemp("history")
    fill(folder / "store", folder, "rack1", RATES)
    fill(folder / "store", folder, "rack2", [1000] * 7, kernel="6.19.0")
    return folder / "store"


def test_a_day_is_the_median_of_its_valid_trials(store: Path) -> None:
    """With its interval, pair by pair and point by point."""
    slower, other, *_ = histories(read_runs(store))
    assert [("rack1", POINTS[0]), ("rack1", POINTS[1])] == [
        (each.pair, each.point) for each in (slower, other)
    ]
    assert [f"2026-11-{day:02d}" for day in range(1, 8)] == [each.day for each in slower.days]
    first = slower.days[0].rate
    assert (1002, 1001, 1003, 3) == tuple(
        round(number or 0) for number in (first.median, first.low, first.high, first.n)
    )


def test_a_change_of_level_has_its_first_day(store: Path) -> None:
    """On the pair that changed, and on no other."""
    slower, other, *steady = histories(read_runs(store))
    for each, share in ((slower, 1), (other, 2)):
        (change,) = each.changes
        assert "2026-11-05" == change.day
        assert change.before == pytest.approx(1003 / share, rel=0.01)
        assert change.ratio == pytest.approx(0.8, rel=0.01)
    assert [(), ()] == [each.changes for each in steady]


@pytest.mark.parametrize(
    ("values", "days"),
    [
        ([[5.0, 5.1], [5.05, 5.0]], []),
        ([[5.0]], []),
        ([], []),
        ([[0.0], [0.0], [0.0]], []),
        ([[1000.0, 1001.0, 1002.0]] * 3 + [[2000.0, 2001.0, 2002.0]] * 3, ["3"]),
        ([[1000.0, 1001.0]] * 4 + [[500.0, 501.0]] * 4 + [[1000.0, 1001.0]] * 4, ["4", "8"]),
        ([[0.0, 0.0]] * 4 + [[100.0, 101.0]] * 4, ["4"]),
    ],
)
def test_levels_are_found(values: list[list[float]], days: list[str]) -> None:
    """None in a steady series, in one day and where nothing ever came; from 0, too."""
    changes = level_changes([(str(number), each) for number, each in enumerate(values)])
    assert days == [change.day for change in changes]


def test_a_level_after_none_has_no_ratio() -> None:
    """0 has none."""
    assert None is LevelChange("2026-11-01", 0.0, 5.0).ratio


def test_a_search_counts_once_and_an_invalid_trial_never(tmp_path: Path) -> None:
    """What a search found answers its point, not the rates of its trials."""
    plain = {"question": "How many?", "search": "quick", "warmup": "0s"}
    _, run = go(World(capacity_pps=300_000), tmp_path / "run", load_experiment_data(plain, "one"))
    short = stored(tmp_path / "short", [record(900, of=paced())])
    write_runs([run.folder, short.folder], tmp_path / "store", campaign="c", pair="p")
    (history,) = (each for each in histories(read_runs(tmp_path / "store")) if each.days)
    assert ("one", "throughput_pps", 1) == (
        history.experiment,
        history.metric,
        history.days[0].rate.n,
    )


def test_a_day_without_a_number_says_why(tmp_path: Path, golden: Golden) -> None:
    """An empty table would say nothing."""
    busy = [
        replace(shared(LOAD_MS + 400, hog(400)), trial=trial(repetition=number))
        for number in (1, 2)
    ]
    run = stored(tmp_path / "struck", busy, experiment(repetitions=2))
    write_runs([run.folder], tmp_path / "store", campaign="c", pair="p")
    (history,) = histories(read_runs(tmp_path / "store"))
    assert () == history.days
    ((_, median, trials, why),) = day_rows(history)
    golden.check(f"{history.experiment}: {median}, {trials}: {why}")
    (without,) = history_json("store", [history])["points"][0]["without"]
    assert why == without["why"]


def many(points: int, days: int = 1) -> pd.DataFrame:
    """Return the trials of many points, one a day."""
    rows = [
        (f"size={n}B", f"2026-{1 + day // 28:02d}-{1 + day % 28:02d}")
        for n in range(points)
        for day in range(days)
    ]
    trials = pd.DataFrame(rows, columns=["point", "day"])
    same = {"campaign": "c", "pair": "p", "experiment": "e", "run": "r", "repetition": 1}
    same |= {"struck": False, "reason": None}
    known = {"valid": True, "search_trial": None, "throughput_pps": None, "delivered_pps": 1000.0}
    return trials.assign(**same, **known, hosts="{}", built_in_lab=True)


def test_points_take_little_time_each() -> None:
    """They took 5 ms each, and a million of them fit into a small file."""
    began_s = time.process_time()
    assert 4000 == len(histories(many(4000)))
    assert 4000 == len(beside(many(4000)))
    assert time.process_time() - began_s < 5


def test_more_points_than_can_be_shown_are_refused(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """With how to read some of them; also of few points over very many days."""
    monkeypatch.setattr(history_module, "MOST_POINTS", 3)
    monkeypatch.setattr(history_module, "MOST_STEPS", 12)
    assert 3 == len(histories(many(3, 2)))
    for too_many in (many(4), many(3, 3)):
        with golden.raises(InputError):
            histories(too_many)
    with golden.raises(InputError):
        beside(many(4))


def test_days_whose_levels_would_take_minutes_are_refused() -> None:
    """As 300 days of 90 points, which are 403 KB, took 78 s of CPU."""
    with pytest.raises(InputError, match="33 points over so many days"):
        histories(many(33, 365))


def test_a_table_says_what_changed(store: Path) -> None:
    """At the first day of the new level, in words of the metric."""
    slower, *_ = histories(read_runs(store))
    rows = day_rows(slower)
    assert ["", "", "", "", "19.9 % slower: 1.0 kpps → 803 pps", "", ""] == [row[3] for row in rows]
    assert ["2026-11-01", "1.0 kpps [1.0 – 1.0]", "3"] == rows[0][:3]


def test_json_has_days_and_changes(store: Path) -> None:
    """With documented keys, and none else."""
    data = history_json("s", histories(read_runs(store)))
    assert ["schema", "store", "points"] == list(data)
    point = data["points"][0]
    assert ["pair", "experiment", "point", "metric", "unit", "days", "without", "changes"] == list(
        point
    )
    assert ["day", "median", "low", "high", "trials"] == list(point["days"][0])
    assert ["day", "before", "after", "ratio"] == list(point["changes"][0])
    json.dumps(data, allow_nan=False)


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Return the exit code of a command line."""
    monkeypatch.setattr(sys, "argv", ["udpbench", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_verb(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table for each point, or data; of one point, or of another metric."""
    assert 0 == run(monkeypatch, "history", str(store), "--point", POINTS[0])
    out = capsys.readouterr().out
    assert f"rack1 · example::{POINTS[0]} · delivered_pps" in out
    assert POINTS[1] not in out
    assert 0 == run(monkeypatch, "history", str(store), "--metric", "loss_ratio", "--json")
    data = json.loads(capsys.readouterr().out)
    assert {"loss_ratio"} == {point["metric"] for point in data["points"]}
    assert 0 == run(monkeypatch, "history", str(store), "--metric", "udp_rcvbuf", "--json")
    (first, *_) = json.loads(capsys.readouterr().out)["points"]
    assert ("udp_rcvbuf", 7) == (first["metric"], len(first["days"])), "as compare takes it"
    assert 2 == run(monkeypatch, "history", str(store), "--metric", "delivered")
    assert "did you mean delivered_pps?" in capsys.readouterr().err
    assert 2 == run(monkeypatch, "history", str(store.parent / "nothing"))
    assert "neither a store nor a folder with run folders" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ends", "unit", "text"),
    [
        ((18_641, 17_223, 20_617), "packets", "18 641 packets [17 223 – 20 617]"),
        ((9e5, 8e5, 12e5), "ns", "900 µs [800 µs – 1.2 ms]"),
    ],
)
def test_the_unit_of_an_interval_is_said_once(
    ends: tuple[float, float, float], unit: str, text: str
) -> None:
    """Unless its ends have another one."""
    median, low, high = ends
    assert text == shown(Estimate(median, low, high, 9, unit))


def test_nothing_is_printed_as_markup(tmp_path: Path) -> None:
    """A pair may be called anything."""
    stored_run = run_of(tmp_path / "run", 1000)
    write_runs([stored_run.folder], tmp_path / "store", campaign="c", pair="[bold]x[/bold]")
    from udpbench.report.campaign.history_output import print_histories
    from udpbench.report.terminal import Terminal

    console = Terminal(width=100, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    print_histories(console, histories(read_runs(tmp_path / "store")))
    assert "[bold]x[/bold] · example" in console.export_text()
    assert printed("x")

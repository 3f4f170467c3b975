"""The report of a campaign: pairs beside each other, what they differ in, and the days."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd
import pytest
from golden import Golden
from report.test_html_page import Page

from store.runs import POINTS, fill, run_of
from udpbench.__main__ import main
from udpbench.errors import InputError
from udpbench.report.campaign import campaign_page as page_module
from udpbench.report.campaign.campaign_answer import answer, question
from udpbench.report.campaign.campaign_figures import draw_days, draw_pairs, over_days
from udpbench.report.campaign.campaign_page import campaign_page, write_campaign
from udpbench.store import pairs
from udpbench.store.dataset import read_runs, write_runs
from udpbench.store.history import histories
from udpbench.store.pairs import beside, differing_facts, holm

pytest.importorskip("pyarrow", reason="pip install 'udpbench[store]'")
pytest.importorskip("jumpavg", reason="pip install 'udpbench[store]'")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fill a store: one pair is faster and has a newer kernel; the other gets slower in time."""
    folder = tmp_path_factory.mktemp("pairs")
    fill(folder / "store", folder, "rack1", (1000, 1001, 1002, 800, 801, 802))
    fill(folder / "store", folder, "rack2", [1500] * 6, kernel="6.19.0")
    return folder / "store"


@pytest.fixture(scope="module")
def trials(store: Path) -> pd.DataFrame:
    """Read it once for all who only look."""
    return read_runs(store)


def test_a_point_has_each_pair_and_whether_it_matters(trials: pd.DataFrame) -> None:
    """Medians with intervals, in the order of the pairs' names."""
    points = beside(trials)
    assert [*POINTS] == [point.point for point in points]
    for point in points:
        assert (["rack1", "rack2"], True) == (list(point.pairs), point.differ)
        assert ("rack1", "rack2") == point.span[:2]
        assert 18 == point.pairs["rack1"].n
        assert (point.p or 1) < 1e-5


def test_few_trials_or_one_pair_tell_nothing(tmp_path: Path) -> None:
    """Nor do equal numbers."""
    fill(tmp_path / "store", tmp_path, "alone", [1000])
    (point, _) = beside(read_runs(tmp_path / "store"))
    assert (None, None) == (point.p, point.differ)
    fill(tmp_path / "store", tmp_path, "same", [1000])
    (point, _) = beside(read_runs(tmp_path / "store"))
    assert False is point.differ
    pairs = read_runs(tmp_path / "store")
    few = beside(pairs[pairs.repetition < 3])
    assert {None} == {point.differ for point in few}
    constant = pairs.assign(delivered_pps=5.0)
    assert {1.0} == {point.p for point in beside(constant)}
    assert "The hosts of all pairs have no known differences" in campaign_page(pairs, "s")


@pytest.mark.parametrize(
    ("chances", "falls"),
    [
        ([], []),
        ([None, 0.04], [None, True]),
        ([0.04, 0.03], [False, False]),
        ([0.04, 0.01, None], [True, True, None]),
        ([0.001, 0.6, 0.02], [True, False, True]),
    ],
)
def test_many_points_are_asked_together(
    chances: list[float | None], falls: list[bool | None]
) -> None:
    """The least chance first; after one that stands, all stand."""
    assert falls == holm(chances)


def test_what_hosts_differ_in_is_listed(trials: pd.DataFrame, tmp_path: Path) -> None:
    """But for what any two hosts differ in; hosts of other names are compared by their place."""
    ((row,), more) = differing_facts(trials)
    assert 0 == more
    assert ("right: kernel", {"rack1": "6.18.0", "rack2": "6.19.0"}) == (row.name, row.values)
    renamed = trials.assign(
        hosts=trials.hosts.where(
            trials.pair == "rack1", trials.hosts.str.replace('"right": {', '"dns1": {')
        )
    )
    assert ["host 2: kernel"] == [row.name for row in differing_facts(renamed)[0]]


def test_of_many_differences_the_first_are_listed(
    trials: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 100 pairs may have thousands of its own: 3.3 MB of them took 1.2 GB."""
    crowd = pd.DataFrame(
        {
            "pair": [f"p{n}" for n in range(50)],
            "hosts": [
                json.dumps({"left": {f"f{n}.{k}": k for k in range(300)}}) for n in range(50)
            ],
        }
    )
    spelled: list[str] = []
    known = pairs.written
    monkeypatch.setattr(
        pairs, "written", lambda name, value: (spelled.append(name), known(name, value))[1]
    )
    rows, more = differing_facts(crowd)
    assert (512, 50 * 300 - 512) == (len(rows), more)
    assert {"p0": "0", "p1": "none"}.items() <= rows[0].values.items()
    assert len(spelled) < 50 * 300 * 2
    monkeypatch.setattr(pairs, "FACTS_MAX", 700)
    assert 700 - 512 == differing_facts(crowd)[1]
    monkeypatch.setattr(pairs, "FACTS_SHOWN", 0)
    page = Page(campaign_page(trials, "s"))
    assert [["", "rack1", "rack2"], ["and 1 more", "…", "…"]] == page.tables[0]


def test_figures_show_medians_and_changes(trials: pd.DataFrame) -> None:
    """A panel for each point, with a dot for each pair, or for each day of each pair."""
    points = beside(trials)
    panels = draw_pairs(points).axes
    assert 2 == len(panels)
    places = panels[0].collections[0].get_offsets()
    assert [0, 1] == [y for _, y in places]
    assert "rack2" in panels[0].get_yticklabels()[1].get_text()
    changed = over_days(histories(trials))
    assert [2, 2] == [len(each) for each in changed]
    (first, _) = draw_days(changed).axes
    assert [6, 6] == [len(each.get_offsets()) for each in first.collections]
    upright = [line for line in first.lines if len(set(line.get_xdata())) == 1 and line.get_url()]
    assert ["rack1, 2026-11-04: 19.9 % slower: 1.0 kpps → 803 pps"] == [
        line.get_url() for line in upright
    ]


def test_the_page_says_it_all(store: Path, trials: pd.DataFrame, tmp_path: Path) -> None:
    """The pairs first, then what differs, then the days; nothing is fetched, all is escaped."""
    file = write_campaign(trials, str(store), tmp_path)
    assert "campaign.html" == file.name
    page = Page(file.read_text())
    heads = ["Does it arrive?", "Pairs side by side", "What to type next"]
    heads += [
        "What differs between the pairs",
        "Does the pair matter?",
        "Changes of level",
        "Over the days",
    ]
    assert heads == page.heads[: len(heads)]
    assert "by 40\u00a0%" in page.text
    text = " ".join(page.text.split())
    assert "rack2 is best, rack1 is behind by 40 %. size=1472B: rack2 1.5 kpps" in text
    assert "Pairs differ at 2 of 2 points." in text
    assert "Their hosts differ: right's kernel is 6.19.0 on rack2, 6.18.0 on rack1." in text
    assert (
        "2 of 4 histories changed level. Measured: 72 trials on 2 pairs of hosts, in 12 runs on"
        in text
    )
    assert 3 == len([tag for tag, _ in page.elements if tag == "svg"])
    facts, factor, changes, *days = page.tables
    assert [["", "rack1", "rack2"], ["right: kernel", "6.18.0", "6.19.0"]] == facts
    assert ["yes", "yes"] == [row[-1] for row in factor[1:]]
    assert ["2026-11-04", "2026-11-04"] == [row[1] for row in changes[1:]]
    assert 4 == len(days)
    assert not [each for _, each in page.elements if each.get("href", "#")[0] != "#"]


def test_the_answer_says_how_certain_it_is(trials: pd.DataFrame) -> None:
    """Too few trials, no difference, one pair, and what each lost."""

    def said(some: pd.DataFrame) -> str:
        return answer(some, beside(some))

    newest = trials[trials.day == trials.day.max()]
    assert said(newest[newest.repetition < 3]).startswith(
        "Cannot tell which pair is best (fewer than 3 valid trials a pair). size="
    )
    alike = said(newest.assign(delivered_pps=5.0))
    assert alike.startswith("No pair is best: no difference is shown at 2 points. size=")
    alone = said(newest[newest.pair == "rack1"])
    assert alone.startswith("size=1472B: 804 pps [803 – 805] on rack1.")
    struck = newest.assign(delivered_pps=newest.delivered_pps.where(newest.pair == "rack1"))
    assert said(struck).startswith(
        "Cannot tell which pair is best: no rate on rack2 counts. size=1472B: 804 pps"
    )
    lossy = newest.assign(
        ledger=[{"udp_rcvbuf": 10 if pair == "rack1" else 0} for pair in newest.pair],
        intended_packets=100,
    )
    assert "Lost: nothing on rack2; 10.00 % on rack1, most at udp_rcvbuf." in said(lossy)
    slow = newest.assign(limits=["Too slow. Hurry." if p == "rack1" else "" for p in newest.pair])
    assert "What limits rack1: Too slow. Hurry. Their hosts differ: " in said(slow)
    assert "Their hosts differ: right's kernel is" in said(lossy)
    same = newest.assign(hosts=newest.hosts.iloc[0])
    assert "Nothing that their hosts report differs; their labs, such as" in said(same)
    away = (newest.pair == "rack1") & (newest.repetition == 2)
    busy = "machine: CPU 0: others ran; rates, delays and CPU numbers are struck out (9 %)"
    for lacks, expected in (
        ({"struck": away, "reason": busy}, "The rates of 2 of 12 trials are not counted (struck"),
        (
            {"valid": ~away, "reason": "sender: bound: it was slow (9 %)"},
            "2 of 12 trials are not counted (invalid), because it was slow.",
        ),
    ):
        text = said(newest.assign(**lacks))
        assert expected in text
        assert text.count("because others ran.") + text.count("because it was slow.") == 1
    nothing = newest.assign(valid=False)
    assert said(nothing).startswith(
        "No answer: no trial counts. All 12 trials are not counted (invalid)."
    )
    many = pd.concat([newest.assign(question=text) for text in ("A?", "B?", "C?", "D?")])
    assert "A? B? And 2 more questions" == question(many)


def test_a_page_draws_so_many_points(
    store: Path, trials: pd.DataFrame, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """A page of more would take hours; and none has nothing to say."""
    monkeypatch.setattr(page_module, "MOST_DRAWN", 3)
    with golden.raises(InputError):
        campaign_page(trials, "s")
    with golden.raises(InputError):
        campaign_page(read_runs(store, point="none"), "s")


def test_a_campaign_of_one_day_and_pair_is_a_page(tmp_path: Path) -> None:
    """Without figures, comparing it with no other, and with whatever its names hold."""
    run = run_of(tmp_path / "run", 1000)
    write_runs([run.folder], tmp_path / "store", campaign="</script><b>", pair="<i>")
    text = campaign_page(read_runs(tmp_path / "store"), "s")
    page = Page(text)
    assert "<i>" not in text
    assert "The hosts of all pairs have no known differences" not in page.text
    assert "Does the pair matter?" not in page.text
    assert "No point changed its level." in page.text
    assert "svg" not in {tag for tag, _ in page.elements}


def test_the_verb_writes_the_page_of_a_store(
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Beside the store, or where it is told; an address has no place of its own."""
    for words, code in (
        ([str(store), "--out", str(tmp_path)], 0),
        ([str(store)], 0),
        (["s3://bucket/store"], 2),
    ):
        monkeypatch.setattr(sys, "argv", ["udpbench", "report", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert code == (ended.value.code or 0)
    assert (tmp_path / "campaign.html").exists()
    assert (store / "campaign.html").exists()
    assert "--out: missing" in capsys.readouterr().err
    assert 72 == len(read_runs(store))


def test_a_folder_that_cannot_be_made_is_refused(
    store: Path, trials: pd.DataFrame, tmp_path: Path
) -> None:
    """In one line."""
    (tmp_path / "file").write_text("")
    from udpbench.errors import InputError

    with pytest.raises(InputError, match="--out"):
        write_campaign(trials, str(store), tmp_path / "file" / "below")

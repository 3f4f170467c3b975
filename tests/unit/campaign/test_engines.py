"""Which scheduler is used, what is refused, and what to type; and a command line of many labs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from campaign_fixture import ListEngine, answered
from golden import Golden

from udpbench.__main__ import run_command_line
from udpbench.campaign import engines
from udpbench.campaign.conduct import News
from udpbench.campaign.engines import open_engine, scheduler_address
from udpbench.commands.verbs.campaign import spread
from udpbench.errors import InputError
from udpbench.store import dataset


@pytest.mark.parametrize(
    ("scheduler", "address"),
    [
        ("127.0.0.1", "tcp://127.0.0.1:8786"),
        ("tcp://localhost:1", "tcp://localhost:1"),
        ("tcp://[::1]:8786", "tcp://[::1]:8786"),
        ("tls://control.example", "tls://control.example:8786"),
        ("tls://[2001:db8::1]:9000", "tls://[2001:db8::1]:9000"),
    ],
)
def test_a_scheduler_is_used_on_loopback_or_by_tls(scheduler: str, address: str) -> None:
    """Its port is Dask's own where none is named."""
    assert address == scheduler_address(scheduler)


@pytest.mark.parametrize(
    "scheduler",
    ["tcp://10.0.0.1:8786", "control.example", "tcp://127.0.0.1.example", "ws://[::1]", "a b"],
)
def test_any_other_is_refused_with_the_line_to_type(scheduler: str, golden: Golden) -> None:
    """Before anything is sent to it."""
    with golden.raises(InputError):
        scheduler_address(scheduler)


def test_the_base_install_says_what_campaigns_need(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """One line, and what to install."""
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.delitem(sys.modules, "udpbench.campaign.dask_engine", raising=False)
    with golden.raises(InputError), open_engine(None, 1, print):
        pytest.fail("there is no engine")


@pytest.mark.parametrize(
    ("words", "spelled"),
    [
        ("x --labs a", "x --labs a"),
        ("x y --labs a b c --share", "x y --labs a --labs b --labs c --share"),
        ("x --labs a --labs b c --out d e", "x --labs a --labs b --labs c --out d e"),
        ("x --labs", "x --labs"),
    ],
)
def test_an_option_takes_all_words_up_to_the_next(words: str, spelled: str) -> None:
    """As a shell writes a pattern."""
    assert spelled.split() == spread(words.split(), "--labs")


def test_the_verb_says_what_became_of_each_pair(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Golden,
    tmp_path: Path,
) -> None:
    """And ends with the most serious code; a shell has expanded the pattern."""

    @contextmanager
    def fake(*_: object) -> Iterator[ListEngine]:
        yield ListEngine(lambda cell: News(cell, result=answered(int("rack2/first" in cell))))

    monkeypatch.setattr(engines, "open_engine", fake)
    labs = ("racks/rack1.yaml", "racks/rack2.yaml")
    words = ("campaign", "first.yaml", "second.yaml", "--labs", *labs, "--share", "--out", "out")
    monkeypatch.setattr(sys, "argv", ["udpbench", *words])
    assert 1 == run_command_line()
    output = capsys.readouterr()
    assert "" == output.err
    golden.check(output.out.splitlines())


def test_a_campaign_ends_in_a_store(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pair by pair, all runs that are complete, also those of an earlier session."""
    done = {"run.jsonl": b"", "cell.json": b'{"exit_code": 0, "reason": "", "chosen": true}'}

    @contextmanager
    def fake(*_: object) -> Iterator[ListEngine]:
        failed = {"rack2/first": answered(3, "left: the cable is out")}
        ends = failed.get
        yield ListEngine(
            lambda cell: News(cell, result=ends(cell.rpartition("-")[0], answered(**done)))
        )

    stored: dict[str, list[str]] = {}

    def write_runs(folders: list[Path], path: str, *, campaign: str, pair: str) -> None:
        assert ("s3://bucket/store", "cards") == (path, campaign)
        stored[pair] = [folder.name.rpartition("-")[0] for folder in folders]

    monkeypatch.setattr(engines, "open_engine", fake)
    monkeypatch.setattr(dataset, "write_runs", write_runs)
    words = ("campaign", "first.yaml", "second.yaml", "--labs", "racks/*.yaml", "--out", "cards")
    monkeypatch.setattr(sys, "argv", ["udpbench", *words, "--store", "s3://bucket/store"])
    assert 3 == run_command_line()
    assert {"rack1": ["first", "second"], "rack2": []} == stored
    assert "store: s3://bucket/store" in capsys.readouterr().out

"""No text of a host, a local user, a file or a record is obeyed by the operator's terminal."""

from __future__ import annotations

import ast
import logging
import re
import sys
import tracemalloc
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pypdf
import pytest
from analysis.build import expectation, experiment, facts, failed, paced, record, series
from report.progress import measuring
from report.stored import ODD, stored
from test_architecture import modules, tree_of

from udpbench import pytest_plugin
from udpbench.__main__ import main
from udpbench.gate import answer
from udpbench.model.experiment import Experiment
from udpbench.model.host import Planned, Setting
from udpbench.model.record import Process, TrialRecord
from udpbench.model.result import Progress
from udpbench.printable import all_printable, printable
from udpbench.records.run import Ending
from udpbench.report.document import write
from udpbench.report.live import LiveLines
from udpbench.report.live_rates import Watch
from udpbench.report.plan import print_rehearsal
from udpbench.report.screen import Screen
from udpbench.report.terminal import Terminal

EVIL = "a\x1b]0;owned\x07\x1b[2J\r\x9b31m\x7fb\u202egnp\u2066c\u200bd\udc80"
SHOWN = r"a\x1b]0;owned\x07\x1b[2J\r\x9b31m\x7fb\u202egnp\u2066c\u200bd\udc80"
OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\udc80]"
)
UTF_8 = EVIL.removesuffix("\udc80")


def hostile() -> tuple[Experiment, list[TrialRecord]]:
    """Return an experiment and trials of somebody else, each text as bad as it can be."""
    definition = experiment(
        expectation("received_packets", ">", "5000"), points=[paced()], question=f"{UTF_8}{ODD}"
    )
    lossy_facts = {"right": facts("right", "receive0", "10.0.0.1", kernel=UTF_8, hostname=UTF_8)}
    good = record(900, of=definition.points[0], series=series([900]))
    good = replace(good, facts={**good.facts, **lossy_facts})
    bad = failed("WorkerFailed", f"last words: {UTF_8}{ODD}", of=replace(paced(), repetition=2))
    return definition, [good, bad]


def test_a_long_text_takes_no_more_than_a_few_times_its_size() -> None:
    """However many different characters it has, beside those that a terminal obeys."""
    text = "\x1b" + "中文字節碼" * 200_000
    tracemalloc.start()
    shown = printable(text)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert shown == rf"\x1b{text[1:]}"
    assert peak_bytes < 3 * 2 * len(text)


def test_what_a_terminal_obeys_becomes_its_escape() -> None:
    """Nothing is lost, all is shown; line ends and tabs stay where they are lines and tabs."""
    assert SHOWN == printable(EVIL)
    assert printable(SHOWN) == SHOWN
    assert "ä µ → 200 000 ☃" == printable("ä µ → 200 000 ☃")
    assert "a\tb\n" == printable("a\tb\n")
    assert r"a\tb\n" == printable("a\tb\n", keep="")
    assert r"a\ufffe\uffff" == printable("a\ufffe\uffff")  # no figure could hold them
    assert {"a": [SHOWN, 1, None]} == all_printable({"a": (EVIL, 1, None)})
    assert {SHOWN: SHOWN, 2: []} == all_printable({EVIL: EVIL, 2: []})


def test_a_stored_run_of_somebody_else_is_shown_and_not_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Question, findings and errors, and what rich would take for its markup."""
    definition, records = hostile()
    error = {"kind": "HostError", "message": UTF_8, "host": "right"}
    run = stored(tmp_path / "run", records, definition, ending=Ending("then", "failed", error))
    monkeypatch.setattr(sys, "argv", ["udpbench", "show", str(run.folder)])
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit):
        main()
    shown = capsys.readouterr().out
    assert [] == OBEYED.findall(shown)
    assert 3 <= shown.count(r"\x9b31m\x7fb\u202egnp\u2066c\u200bd")
    assert ODD in shown
    assert "delivered [interval]" in shown


def test_an_error_is_shown_and_not_obeyed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What an error quotes is of whoever made it."""
    monkeypatch.setattr(sys, "argv", ["udpbench", "show", EVIL])
    with pytest.raises(SystemExit):
        main()
    shown = capsys.readouterr().err
    assert [] == OBEYED.findall(shown)
    assert SHOWN in shown


def test_the_live_views_obey_nothing() -> None:
    """On a terminal and elsewhere; no text begins a line of its own."""
    lines, terminal = StringIO(), StringIO()
    console = Terminal(file=terminal, width=200, color_system=None)
    with Screen(console, Watch()) as screen:
        for tell in (LiveLines(lines), screen):
            tell(Progress("host", f"held by {UTF_8}\nrestored: all", None))
            tell(measuring(text=UTF_8))
    for shown in (lines.getvalue(), terminal.getvalue()):
        assert [] == OBEYED.findall(shown)
        assert r"\nrestored: all" in shown


def test_the_plan_obeys_nothing() -> None:
    """What a host says of its settings is the host's."""
    out = StringIO()
    planned = Planned(Setting("sysctl", UTF_8, UTF_8), UTF_8, refusal=None)
    rehearsed = SimpleNamespace(trials=(UTF_8,), hosts={UTF_8: (planned,)})
    print_rehearsal(Terminal(file=out, width=200), [rehearsed])
    assert [] == OBEYED.findall(out.getvalue())


def test_a_gate_obeys_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The reasons of a failed item, its tables, what it logs, and errors in words."""
    definition, records = hostile()
    reply = answer(stored(tmp_path / "run", records, definition), "", 400)
    words = pytest_plugin._in_words(ValueError(EVIL))
    with caplog.at_level(logging.INFO):
        pytest_plugin._tell(Progress("trial", EVIL, None))
    for shown in (reply.why, reply.shown, reply.summary, str(words), caplog.text):
        assert [] == OBEYED.findall(shown)
    assert SHOWN in caplog.text


def test_the_document_obeys_nothing(tmp_path: Path) -> None:
    """A reader sees what is there, in its order."""
    definition, records = hostile()
    (pdf,) = write([stored(tmp_path / "run", records, definition)], tmp_path, ["pdf"])
    text = "".join(page.extract_text() for page in pypdf.PdfReader(pdf).pages).replace("\0", "")
    assert [] == OBEYED.findall(text)
    assert r"\u202egnp" in text


@pytest.mark.parametrize("key", ["point", "experiment", "variant"])
def test_a_name_of_a_record_is_read_as_it_is_shown(tmp_path: Path, key: str) -> None:
    """It would be drawn into a figure."""
    run = stored(tmp_path / "run", [record(of=paced(**{key: f"x{UTF_8}\n"}))])
    shown = SHOWN.removesuffix(r"\udc80")
    assert rf"x{shown}\n" == getattr(run.records[0].trial, key)


def test_a_process_of_any_name_costs_no_record(tmp_path: Path) -> None:
    """Any user of a host names processes, and its agent may send what UTF-8 has not."""
    good = record()
    last = good.phases[-1]
    names = (f"{UTF_8}\nrestored: all", "\udc80")
    busy = tuple(Process(pid, name, 10**9, "other") for pid, name in enumerate(names, start=2))
    after = {host: replace(snapshot, processes=busy) for host, snapshot in last.after.items()}
    good = replace(good, phases=(*good.phases[:-1], replace(last, after=after)))
    run = stored(tmp_path / "run", [good], working_folder="/caf\udce9")
    processes = next(iter(run.records[0].phases[-1].after.values())).processes
    shown = SHOWN.removesuffix(r"\udc80")
    assert [rf"{shown}\nrestored: all", "?"] == [process.name for process in processes]
    assert "/caf?" == run.header.working_folder


def test_every_door_is_the_one_that_shows() -> None:
    """No console of rich but ours, and no print of what may be somebody else's."""
    consoles, prints = [], []
    for module in modules():
        for node in ast.walk(tree_of(module)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            consoles += [module] if node.func.id == "Console" else []
            if node.func.id == "print" and not module.startswith("agent"):
                text = ast.unparse(node)
                prints += [f"{module}: {text}"] if "printable" not in text else []
    assert [] == consoles
    assert [] == [
        line
        for line in prints
        if not re.search("json.dumps|indented|_version|nothing|{message}|{what}", line)
    ]

"""The plugin as pytest's users meet it, with agents of paper: items, fixture, options, summary."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from pathlib import Path
from xml.etree import ElementTree

import pytest
from control import fake  # noqa: F401

import udpbench.gate  # noqa: F401 - what is imported only inside, pytester makes forgotten
from udpbench.pytest_plugin import matches

pytest_plugins = ["pytester"]

PLUGIN = [] if "udpbench" in entry_points(group="pytest11").names else ["-pudpbench.pytest_plugin"]
"""An environment that was made before the plugin was has no entry point for it."""
CONFTEST = """
from control.fake import World
from udpbench.errors import *
from udpbench.pytest_plugin import SURROUNDINGS

world = World({world})
{more}

def pytest_configure(config):
    config.stash[SURROUNDINGS] = world.surroundings()
"""
ONE = """
question: What?
duration: 100ms
warmup: 0s
repetitions: 2
expect: [unaccounted == 0]
"""
TWO = """
question: What?
variants:
  one: {traffic.size: 32B}
  two: {traffic.size: 64B}
duration: 100ms
warmup: 0s
repetitions: 2
expect:
  - unaccounted == 0
  - received_packets[two] >= received_packets[one]
"""
ONE_SKIPPED = TWO.replace("one: {traffic.size: 32B}", "one: {needs: {receiver: {cpus: 4096}}}")
SWEEP = TWO.partition("expect:")[0] + "sweep: {send.batch: [1, 64]}\n"


class Project:
    """A user's project with experiments, and pytest in it."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pytester = pytester
        self.path = pytester.path
        monkeypatch.syspath_prepend(str(Path(__file__).parent))
        monkeypatch.setenv("COLUMNS", "120")
        monkeypatch.setenv("NO_COLOR", "1")
        self.world()

    def world(self, world: str = "", more: str = "") -> None:
        """Let the fake agents behave."""
        (self.path / "conftest.py").write_text(CONFTEST.format(world=world, more=more))

    def file(self, name: str, text: str) -> None:
        """Write a file."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, *args: str) -> pytest.RunResult:
        """Run pytest in this process, where the fakes are."""
        # hypothesis would be loaded anew in every inner session, which takes half a second.
        options = [*PLUGIN, "-pno:hypothesispytest", "-ra", *args]
        return self.pytester.runpytest_inprocess(*options, no_reraise_ctrlc=True)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return an empty project whose lab is of paper."""
    return Project(pytester, monkeypatch)


def lines(result: pytest.RunResult, start: str) -> list[str]:
    """Return what was written from a section's title to the next."""
    output = result.outlines
    begin = next(i for i, line in enumerate(output) if line.strip("= ") == start)
    rest = output[begin + 1 :]
    end = next((i for i, line in enumerate(rest) if line.startswith("==")), len(rest))
    return rest[:end]


# --- what is collected ---------------------------------------------------------------------------


def test_an_experiment_is_an_item_per_point_in_the_order_of_the_file(project: Project) -> None:
    """Names are those that tables and expectations use; an experiment of one point is all."""
    project.file("two.udpbench.yaml", SWEEP)
    project.file("one.udpbench.yaml", ONE)
    result = project.run("--collect-only", "-q")
    assert [
        "one.udpbench.yaml::all",
        "two.udpbench.yaml::one,batch=1",
        "two.udpbench.yaml::one,batch=64",
        "two.udpbench.yaml::two,batch=1",
        "two.udpbench.yaml::two,batch=64",
    ] == [line for line in result.outlines if "::" in line]


def test_other_yaml_is_never_read(project: Project) -> None:
    """Neither a file that no glob names nor one without a question is parsed, broken or not."""
    project.file("compose.yaml", "question: [unclosed")
    project.file("experiments/lab.yaml", "sender: [unclosed")
    project.file("experiments/deep/gate.yaml", ONE)
    project.file("elsewhere/gate.yaml", ONE)
    project.pytester.makeini("[pytest]\nudpbench_files = experiments/**/*.yaml\n")
    result = project.run("--collect-only", "-q")
    assert ["experiments/deep/gate.yaml::all"] == [o for o in result.outlines if "::" in o]
    assert pytest.ExitCode.OK == result.ret


def test_a_file_that_is_named_itself_needs_no_glob(project: Project) -> None:
    """As the user names it, it is meant."""
    project.file("mine.yaml", ONE)
    result = project.run("mine.yaml")
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("glob", "path", "expected"),
    [
        ("experiments/**/*.yaml", "experiments/a.yaml", True),
        ("experiments/**/*.yaml", "experiments/b/c/a.yaml", True),
        ("experiments/*.yaml", "experiments/b/a.yaml", False),
        ("**/gate.yaml", "gate.yaml", True),
        ("gate.yaml", "b/gate.yaml", False),
    ],
)
def test_a_glob_matches_part_by_part(glob: str, path: str, expected: bool) -> None:
    """A star stays within a folder, two stars are any number of folders."""
    assert expected == matches(tuple(path.split("/")), tuple(glob.split("/")))


def test_a_wrong_file_is_reported_with_every_problem(project: Project) -> None:
    """What the file says wrong is a collection error of words, without a traceback."""
    project.file("bad.udpbench.yaml", "question: What?\ntraffic: {size: 64, ttl: 300}\n")
    result = project.run()
    assert pytest.ExitCode.INTERRUPTED == result.ret
    text = "\n".join(result.outlines)
    assert "bad.udpbench.yaml:2: traffic.size" in text
    assert "bad.udpbench.yaml:2: traffic.ttl" in text
    assert "Traceback" not in text


def test_where_only_the_agent_is_installed_other_tests_run(project: Project) -> None:
    """What an experiment would need is said in words; nothing else is in its way."""
    project.file("conftest.py", "import sys\nsys.modules['pydantic'] = None\n")
    project.file("one.udpbench.yaml", ONE)
    project.file("test_it.py", "def test_a(udpbench): udpbench('smoke')\ndef test_b(): pass\n")
    result = project.pytester.runpytest_subprocess(*PLUGIN, "--continue-on-collection-errors")
    result.assert_outcomes(passed=1, failed=1, errors=1)
    text = "\n".join(result.outlines)
    why = "udpbench's controller is not installed here: import of pydantic"
    assert 2 == sum(line.startswith(why) for line in result.outlines)
    assert "Traceback" not in text
    assert "pytest_plugin.py" not in text


# --- what passes, fails and is skipped -----------------------------------------------------------


def test_points_of_one_file_share_one_run(project: Project) -> None:
    """The trials of both points are of one run, so that they interleave."""
    project.file("two.udpbench.yaml", TWO)
    result = project.run("--udpbench-out", "out")
    result.assert_outcomes(passed=2)
    (run,) = (project.path / "out").glob("*/run.jsonl")
    kinds = [json.loads(line)["kind"] for line in run.read_text().splitlines()]
    assert ["header", "trial", "trial", "trial", "trial", "ending"] == kinds


@pytest.mark.parametrize(
    ("chosen", "node_ids"),
    [
        ("two.udpbench.yaml::one", ["two.udpbench.yaml::one"]),
        ("two.udpbench.yaml", ["two.udpbench.yaml::one", "two.udpbench.yaml::two"]),
        ("test_it.py", ["test_it.py::test_one"]),
    ],
)
def test_a_record_has_no_argument_of_pytest_but_node_ids(
    project: Project, chosen: str, node_ids: list[str]
) -> None:
    """Others may hold a password; each call of a test has the test's own id."""
    project.file("two.udpbench.yaml", TWO)
    call = "udpbench({'warmup': '0s', 'duration': '100ms', 'repetitions': 1})"
    project.file("test_it.py", f"def test_one(udpbench):\n    {call}\n    {call}\n")
    project.run("--udpbench-out", "out", "--override-ini=password=secret", chosen)
    runs = [*(project.path / "out").glob("*/run.jsonl")]
    headers = [json.loads(run.read_text().splitlines()[0]) for run in runs]
    assert [["pytest", *node_ids]] * (2 if "test_it" in chosen else 1) == [
        header["command"] for header in headers
    ]


@pytest.mark.parametrize(("chosen", "trials"), [("one", 2), ("two", 4)])
def test_a_selected_point_runs_with_those_it_is_compared_with(
    project: Project, chosen: str, trials: int
) -> None:
    """The comparison belongs to the point that is declared last; the first one runs alone."""
    project.file("two.udpbench.yaml", TWO)
    result = project.run("--udpbench-out", "out", f"two.udpbench.yaml::{chosen}")
    result.assert_outcomes(passed=1)
    (run,) = (project.path / "out").glob("*/run.jsonl")
    assert trials == run.read_text().count('"kind":"trial"')


def test_a_missed_expectation_explains_itself(project: Project) -> None:
    """Expected, measured, ledger, findings and the run folder, and no traceback."""
    counters = {"snmp.Udp.RcvbufErrors": 5, "snmp.Udp.InErrors": 5}
    project.world(f"arriving=990, drop_counters={counters}")
    project.file("gate.udpbench.yaml", ONE.replace("unaccounted == 0", "udp_rcvbuf == 0"))
    result = project.run()
    result.assert_outcomes(failed=1)
    output = lines(result, "FAILURES")
    assert "expected: udp_rcvbuf == 0" in output
    assert "measured: 5 is not == 0, in #1 of 2 trials" in output
    text = "\n".join(output)
    for part in ("results", "ledger (packets of", "udp_rcvbuf", "built-in lab", "run folder: "):
        assert part in text, part
    assert "pytest_plugin.py" not in text


@pytest.mark.parametrize("ci", [False, True])
def test_what_nobody_can_judge_fails_in_other_words(
    project: Project, monkeypatch: pytest.MonkeyPatch, ci: bool
) -> None:
    """As an item and through the fixture: no pass without proof, and no verdict of the program."""
    monkeypatch.delenv("BUILD_NUMBER", raising=False)
    monkeypatch.setenv("CI", "1" if ci else "")
    project.world("arriving=990")
    held = ONE.replace("unaccounted == 0", "received_packets > 0")
    project.file("gate.udpbench.yaml", held)
    project.file("held.yaml", held)
    project.pytester.makepyfile("def test_it(udpbench): udpbench('held.yaml')")
    result = project.run()
    result.assert_outcomes(failed=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    why = "could not be judged on this machine: "
    assert 2 == sum(line.startswith(why) for line in lines(result, "FAILURES"))
    short = lines(result, "short test summary info")
    assert ["CANNOT TELL"] * 2 == [line[: len("CANNOT TELL")] for line in short[:2]]
    assert all("  cannot tell  " in line for line in lines(result, "udpbench")[:2])


def test_a_failed_trial_fails_its_item(project: Project) -> None:
    """The reason is the host's own."""
    project.world(
        more="world.raises('start receiver measured', WorkerFailed('it died', 'receiver'))"
    )
    project.file("gate.udpbench.yaml", ONE)
    result = project.run()
    result.assert_outcomes(failed=1)
    assert any(line.startswith("receiver: failed: it died") for line in lines(result, "FAILURES"))


def test_a_run_that_ends_early_fails_what_it_did_not_reach(project: Project) -> None:
    """An agent that is lost ends the run; the error is that of each item without its trials."""
    project.world(more="world.raises('start receiver measured', AgentLost('gone', 'receiver'))")
    project.file("two.udpbench.yaml", TWO)
    result = project.run()
    result.assert_outcomes(failed=2)
    assert 2 == lines(result, "FAILURES").count("the run ended early: receiver: gone")


def test_a_run_whose_process_died_fails(project: Project) -> None:
    """A folder without an end is what a killed worker of pytest-xdist leaves."""
    project.file("gate.udpbench.yaml", ONE)
    project.world(
        more="import udpbench.records.writer, os\n"
        "def die(*_): raise SystemError\n"
        "world.hooks['start receiver measured'] = die"
    )
    project.run("--udpbench-out", "out")
    (run,) = (project.path / "out").glob("*/run.jsonl")
    session = run.parent.name.partition("-gate")[0]
    run.write_text("".join(line for line in run.open() if '"kind":"ending"' not in line))
    project.world(
        more=f"import udpbench.pytest_plugin as p\ndef pytest_sessionstart(session):\n"
        f"    session.config.stash[p._SESSION] = {session!r}"
    )
    result = project.run("--udpbench-out", "out")
    result.assert_outcomes(failed=1)
    assert "the run ended early: its process died" in lines(result, "FAILURES")


def test_without_permission_the_item_is_skipped_with_the_reason(project: Project) -> None:
    """A user who may not make a lab has not missed an expectation."""
    project.world(more="world.raises('open sender', NotPermitted('needs root', 'sender'))")
    project.file("gate.udpbench.yaml", ONE)
    result = project.run()
    result.assert_outcomes(skipped=1)
    assert any("sender: needs root" in line for line in result.outlines)


def test_what_a_host_lacks_skips_the_item(project: Project) -> None:
    """A need that is not met is not a no."""
    project.file("gate.udpbench.yaml", ONE + "needs: {receiver: {cpus: 4096}}\n")
    result = project.run()
    result.assert_outcomes(skipped=1)
    assert any("4096" in line for line in result.outlines if line.startswith("SKIPPED"))


def test_a_comparison_with_a_skipped_point_is_skipped(project: Project) -> None:
    """What cannot be compared here is neither held nor missed, whatever else holds."""
    project.file("two.udpbench.yaml", ONE_SKIPPED)
    result = project.run()
    result.assert_outcomes(skipped=2)
    assert any("cannot be compared with one: skipped: " in line for line in result.outlines)


def test_a_host_that_is_not_restored_stops_the_session(project: Project) -> None:
    """Nothing more is measured on a host that is not as it was."""
    project.world(more="world.raises('restore receiver', RestoreError('mtu', 'receiver'))")
    project.file("a.udpbench.yaml", ONE)
    project.file("b.udpbench.yaml", ONE)
    result = project.run()
    result.assert_outcomes(failed=1)
    assert any("a host was not restored: receiver: mtu" in line for line in result.outlines)


def test_an_interrupted_run_interrupts_pytest(project: Project) -> None:
    """Ctrl-C during a run ends the session, with the hosts restored."""
    project.world(more="world.hooks['start receiver measured'] = world.interrupt.note")
    project.file("gate.udpbench.yaml", ONE)
    assert pytest.ExitCode.INTERRUPTED == project.run().ret


TWO_LABS = ("--udpbench-lab", "local", "--udpbench-lab", "local")
BUSY = "from udpbench.protocol import Taken\nworld.held = {{'machine': [Taken('run 1-17', 'machine')] * {0}}}\n"


def test_a_gate_takes_the_first_lab_that_is_free(project: Project) -> None:
    """One that another run uses is passed over, and its agent is ended."""
    project.world(more=BUSY.format(1))
    project.file("gate.udpbench.yaml", ONE)
    result = project.run(*TWO_LABS, "--log-cli-level=INFO")
    result.assert_outcomes(passed=1)
    assert not [line for line in result.outlines if "waiting until" in line]


@pytest.mark.parametrize("labs", [(), TWO_LABS])
def test_a_gate_waits_as_long_as_its_ini_says(project: Project, labs: tuple[str, ...]) -> None:
    """And then fails, naming whom it waited for and the option."""
    project.world(more=BUSY.format(99))
    project.file("gate.udpbench.yaml", ONE)
    result = project.run(*labs, "-o", "udpbench_wait=3s", "--log-cli-level=INFO")
    result.assert_outcomes(failed=1)
    text = "\n".join(result.outlines)
    condition = "until run 1-17 no longer uses this machine"
    assert f"waiting {condition}\n" in text
    assert f"timed out after 3s waiting {condition}; let it end, or raise udpbench_wait" in text


@pytest.mark.parametrize("labs", [(), TWO_LABS])
def test_an_interrupted_wait_interrupts_pytest(project: Project, labs: tuple[str, ...]) -> None:
    """Nothing has run."""
    more = BUSY.format(99) + "world.hooks['take machine'] = world.interrupt.note"
    project.world(more=more)
    project.file("gate.udpbench.yaml", ONE)
    assert pytest.ExitCode.INTERRUPTED == project.run(*labs).ret


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--udpbench-lab", "nowhere"], "neither a file nor a shipped lab"),
        (["-o", "udpbench_wait=1"], "missing"),
    ],
)
def test_a_wrong_option_is_reported_in_words(project: Project, args: list[str], text: str) -> None:
    """No traceback for what the user wrote."""
    project.file("gate.udpbench.yaml", ONE)
    result = project.run(*args)
    result.assert_outcomes(failed=1)
    output = "\n".join(lines(result, "FAILURES"))
    assert text in output
    assert "pytest_plugin.py" not in output


# --- the fixture ---------------------------------------------------------------------------------


def test_the_fixture_returns_medians(project: Project) -> None:
    """Numbers, ledger stages and trials of a dict, within an ordinary test."""
    project.world("drop_counters={'snmp.Udp.RcvbufErrors': 0}")
    project.pytester.makepyfile(
        """
        def test_it(udpbench):
            result = udpbench({"duration": "100ms", "warmup": "0s", "repetitions": 3})
            assert (1000, 1000, 0) == (
                result.received_packets, result.sent_packets, result.loss_ratio)
            assert (0, 0, 3, 3) == (
                result.ledger["udp_rcvbuf"], result.unaccounted, len(result.trials),
                result.valid_trials)
        """
    )
    project.run().assert_outcomes(passed=1)


def test_an_assertion_on_a_result_that_fails_is_explained(project: Project) -> None:
    """The numbers that were asserted on, the ledger and the run folder stand below the assertion."""
    project.pytester.makepyfile(
        """
        def test_it(udpbench):
            result = udpbench({"duration": "100ms", "warmup": "0s", "repetitions": 1})
            assert result.sent_packets == 1
        """
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    text = "\n".join(lines(result, "FAILURES"))
    for part in (
        "assert 1000 == 1",
        "Captured udpbench call",
        "ledger (packets of",
        "run folder: ",
    ):
        assert part in text, part
    assert "Trial(" not in text


def test_the_fixture_knows_every_number_of_a_result(project: Project) -> None:
    """Those without a field, too; a slip of the pen is told with what may be meant."""
    project.pytester.makepyfile(
        """
        import pytest

        def test_it(udpbench):
            result = udpbench({"duration": "100ms", "warmup": "0s", "repetitions": 1})
            assert result.logged_packets is None
            with pytest.raises(AttributeError, match="did you mean received_packets?"):
                result.recieved_packets
            with pytest.raises(AttributeError, match="docs/records.md has every number"):
                result.zzzz
            with pytest.raises(KeyError, match="did you mean udp_rcvbuf?"):
                result.ledger["udp_rcbuf"]
        """
    )
    project.run().assert_outcomes(passed=1)


def test_a_wrong_key_is_reported_once(project: Project) -> None:
    """In words, without the exception that it came from."""
    project.pytester.makepyfile("def test_it(udpbench): udpbench({'trafic': {}})")
    result = project.run()
    result.assert_outcomes(failed=1)
    text = lines(result, "FAILURES")
    assert 1 == sum("trafic: unknown key; did you mean traffic?" in line for line in text)
    assert "During handling" not in "\n".join(text)


def test_the_fixture_names_several_points(project: Project) -> None:
    """A mapping by name, which says so where one number is asked for."""
    project.file("two.yaml", TWO)
    project.pytester.makepyfile(
        """
        import pytest

        def test_it(udpbench):
            result = udpbench("two.yaml")
            assert ["one", "two"] == list(result)
            assert 2 == len(result)
            assert 1000 == result["one"].received_packets
            with pytest.raises(AttributeError, match="of which point. Known: one, two; write"):
                result.loss_ratio
            with pytest.raises(AttributeError, match="lost"):
                result.lost
            with pytest.raises(KeyError, match="unknown point three; known: one, two"):
                result["three"]
        """
    )
    project.run().assert_outcomes(passed=1)


def test_the_fixture_fails_in_words(project: Project) -> None:
    """A missed expectation, a wrong key, a name that leads nowhere and a folder of several."""
    project.file("several/a.yaml", ONE)
    project.file("several/b.yaml", ONE)
    project.pytester.makepyfile(
        """
        BRIEF = {"duration": "100ms", "warmup": "0s", "repetitions": 1}

        def test_missed(udpbench):
            udpbench({**BRIEF, "expect": ["received_packets > 5000"]})

        def test_wrong(udpbench):
            udpbench({**BRIEF, "trafic": {}})

        def test_nowhere(udpbench):
            udpbench("nowhere")

        def test_several(udpbench):
            udpbench("several")
        """
    )
    result = project.run()
    result.assert_outcomes(failed=4)
    text = lines(result, "FAILURES")
    assert "measured: 1 000 is not > 5 000" in text
    assert any("trafic" in line and "unknown key" in line for line in text)
    assert any("neither a file, a folder nor a shipped experiment" in line for line in text)
    assert "several: holds a, b; name one of them" in text


def test_a_skipped_point_hides_no_failure_of_another_one(project: Project) -> None:
    """All points are looked at before the test is failed, or skipped where none failed."""
    died = "world.raises('start receiver measured', WorkerFailed('it died', 'receiver'))"
    project.world(more=died)
    project.file("two.yaml", ONE_SKIPPED)
    project.pytester.makepyfile("def test_it(udpbench): udpbench('two.yaml')")
    result = project.run()
    result.assert_outcomes(failed=1)
    text = lines(result, "FAILURES")
    assert any(line.startswith("two: receiver: failed: it died") for line in text)
    assert any("results" in line for line in text)
    text = lines(result, "udpbench")
    assert ["one", "two"] == [line.split()[2].rstrip(":") for line in text[:2]]


def test_a_test_of_several_points_is_skipped_with_every_reason(project: Project) -> None:
    """Under the name of the point that could not be tried."""
    project.file("two.yaml", ONE_SKIPPED)
    project.pytester.makepyfile("def test_it(udpbench): udpbench('two.yaml')")
    result = project.run()
    result.assert_outcomes(skipped=1)
    text = "\n".join(result.outlines)
    assert "one: " in text
    assert "two: cannot be compared with one: skipped: " in text


def test_calls_of_one_test_have_folders_of_their_own(project: Project) -> None:
    """The second run is not the first one's."""
    project.pytester.makepyfile(
        """
        def test_it(udpbench):
            brief = {"duration": "100ms", "warmup": "0s"}
            assert 1 == len(udpbench({**brief, "repetitions": 1}).trials)
            assert 2 == len(udpbench({**brief, "repetitions": 2}).trials)
        """
    )
    project.run("--udpbench-out", "out").assert_outcomes(passed=1)
    assert 2 == len(list((project.path / "out").glob("*/run.jsonl")))


# --- what is told --------------------------------------------------------------------------------


def test_the_summary_has_a_line_per_point(project: Project) -> None:
    """Rate, loss, validity and the label of the lab, and where the run is."""
    project.file("two.udpbench.yaml", TWO)
    project.file(
        "test_it.py",
        "def test_it(udpbench):\n"
        '    udpbench({"duration": "100ms", "warmup": "0s", "repetitions": 1})\n',
    )
    text = lines(project.run(), "udpbench")
    assert [
        "test_it.py::test_it  passed  all: – delivered, 0.00 % lost, 1/1 valid, built-in lab",
        "two.udpbench.yaml::one  passed  – delivered, 0.00 % lost, 2/2 valid, built-in lab",
        "two.udpbench.yaml::two  passed  – delivered, 0.00 % lost, 2/2 valid, built-in lab",
    ] == text[:3]
    assert 2 == sum(line.startswith("run folder: ") for line in text)


def test_no_experiment_no_summary(project: Project) -> None:
    """Whoever does not use udpbench does not hear of it."""
    project.pytester.makepyfile("def test_it(): pass")
    assert "udpbench ==" not in "\n".join(project.run().outlines)


def test_junit_has_the_numbers(project: Project) -> None:
    """Properties of the test case, those of a test's points by their names."""
    project.world("drop_counters={'snmp.Udp.RcvbufErrors': 0}")
    project.file("two.udpbench.yaml", TWO)
    project.pytester.makepyfile(
        """
        def test_it(udpbench):
            udpbench("two.udpbench.yaml")
        """
    )
    project.run("--junit-xml", "junit.xml")
    root = ElementTree.fromstring((project.path / "junit.xml").read_text())  # noqa: S314 - our own
    properties = {
        case.get("name"): {p.get("name"): p.get("value") for p in case.iter("property")}
        for case in root.iter("testcase")
    }
    assert {"one", "two", "test_it"} == set(properties)
    assert "1000.0" == properties["two"]["udpbench.received_packets"]
    assert "0.0" == properties["two"]["udpbench.ledger.udp_rcvbuf"]
    assert "1000.0" == properties["test_it"]["udpbench.one.received_packets"]


def test_what_runs_an_experiment_has_the_marker(project: Project) -> None:
    """``-m "not udpbench"`` leaves both kinds out, also where markers are strict."""
    project.file("one.udpbench.yaml", ONE)
    project.pytester.makepyfile("def test_a(udpbench): pass\ndef test_b(): pass")
    result = project.run("--strict-markers", "-m", "not udpbench")
    result.assert_outcomes(passed=1, deselected=2)


def test_a_run_is_logged_as_it_goes(project: Project) -> None:
    """``--log-cli-level=INFO`` shows phases and trials."""
    project.file("one.udpbench.yaml", ONE)
    text = "\n".join(project.run("--log-cli-level=INFO").outlines)
    assert "[1/2] one.udpbench#1: done" in text


# --- baselines -----------------------------------------------------------------------------------


def test_a_baseline_is_compared_with_every_point(project: Project) -> None:
    """What the agents of paper measure is no worse than itself, but two trials prove nothing."""
    project.file("one.udpbench.yaml", ONE)
    project.run("--udpbench-out", "first")
    (folder,) = (project.path / "first").glob("*-one-*/")
    result = project.run("--udpbench-baseline", str(folder), "--udpbench-margin", "3%")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*could not be judged on this machine: whether it is worse by more than 3 %*"]
    )
    assert "may be forged" not in result.stdout.str()
    folder.chmod(0o777)
    result = project.run("--udpbench-baseline", str(folder), "--udpbench-margin", "3%")
    result.stdout.fnmatch_lines(["*can be written by everybody, so it may be forged*"])
    project.file(
        "pytest.ini", f"[pytest]\nudpbench_baseline = {folder.relative_to(project.path)}\n"
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*--udpbench-margin: missing*"])


def test_a_test_may_ask_whether_a_result_is_worse(project: Project) -> None:
    """Where that cannot be told it fails as a test that nobody could judge, and not as skipped."""
    project.file("one.yaml", ONE)
    project.file(
        "test_it.py",
        "def test_it(udpbench):\n"
        "    result = udpbench('one.yaml')\n"
        "    base = udpbench.baseline(result.run)\n"
        "    assert not result.worse_than(base, margin='3%')\n",
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*could not be judged on this machine: all against all*"])
    result.stdout.fnmatch_lines(["*CANNOT TELL*"])
    assert "may be forged" not in result.stdout.str()
    project.file(
        "test_it.py",
        "import pathlib\n"
        "def test_it(udpbench):\n"
        "    run = udpbench('one.yaml').run\n"
        "    pathlib.Path(run).chmod(0o777)\n"
        "    udpbench.baseline(run)\n",
    )
    project.run().stdout.fnmatch_lines(["*udpbench.baseline*written by everybody*forged*"])
    project.file("test_it.py", "def test_it(udpbench):\n    udpbench.baseline('none')\n")
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*run.jsonl: no such file*"])

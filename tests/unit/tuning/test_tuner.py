"""The way of a tune: which rounds, which points, what is kept, and when it ends."""

from __future__ import annotations

import re
from dataclasses import replace

from analysis.test_search import Change, late, results_of
from golden import Golden

from tuning.bench import NOTHING, PROGRAM_WORDS, WORDS, limit, play, to_tune
from udpbench.analysis.points import points
from udpbench.analysis.search import folded
from udpbench.errors import CANNOT_TELL, YES
from udpbench.judged_run import Chapter
from udpbench.model.experiment import Trial
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import Finding
from udpbench.model.result import Bottleneck, Result
from udpbench.report.answers import _to_decide, answer, proven_pair
from udpbench.tuning.derived_points import derivation
from udpbench.tuning.outcome import TuningAnswer, answer_of, exit_code
from udpbench.tuning.tuner import Tuning, tuning_of

MIB = 2**20
SMALL, UNMERGED, SLOW = (limit(name) for name in ("small_buffer", "unmerged", "reader_work"))


def plain_answer(tuning: Tuning) -> TuningAnswer:
    """Return what a tune says, of hosts of which nothing is known."""
    return answer_of(tuning, {}, built_in_lab=True, nodes={})


def kinds(tuning: Tuning) -> list[str]:
    """Return the rounds."""
    return [each.planned.kind for each in tuning.rounds]


def names(tuning: Tuning, number: int) -> list[str]:
    """Return the points of a round."""
    return [trial.point for trial in tuning.rounds[number].planned.points]


def buffer_alone(trial: Trial) -> tuple[float, tuple[Bottleneck, ...]]:
    """Return a point that a buffer of 8 MiB repairs."""
    large = (trial.receive.buffer_bytes or 0) >= 8 * MIB
    return (10_000.0, NOTHING) if large else (5_000.0, (SMALL,))


def searched(change: Change) -> Tuning:
    """Return the tune of a search after the searches of its base, whose receiver takes all."""
    experiment = to_tune(search="quick", traffic={})
    results = folded(experiment, results_of(experiment, lambda _: 10**7, change))
    return tuning_of(experiment, results, derivation(experiment))


def test_a_search_whose_sender_is_the_limit_needs_help(golden: Golden) -> None:
    """No rate of the receiver is known to compare; the sender's trials say what to do first."""

    def offers(result: Result) -> Result:
        own = result.trial.traffic.rate is None
        sending = replace(limit("sender_cpu"), stage="unsent")
        return replace(result, diagnosis=(sending if own else limit("nothing"),))

    tuning = searched(offers)
    assert (["look"], CANNOT_TELL) == (kinds(tuning), exit_code(tuning))
    golden.check(plain_answer(tuning).sentence)


def test_a_search_that_found_a_limit_needs_help(golden: Golden) -> None:
    """Readers that are late without loss are one, though each trial says that nothing limits it."""
    tuning = searched(late(limit("nothing")))
    assert (["look"], CANNOT_TELL) == (kinds(tuning), exit_code(tuning))
    golden.check(plain_answer(tuning).sentence)


def test_what_needs_no_help_is_left_alone(golden: Golden) -> None:
    """Three trials of the base, and an answer in words."""
    tuning, results = play(to_tune(), lambda _: (10_000.0, NOTHING))
    assert (["look"], 3, YES) == (kinds(tuning), len(results), exit_code(tuning))
    golden.check(plain_answer(tuning).sentence)


def test_what_most_trials_say_does_not_hide_the_loss_of_another() -> None:
    """Nothing needs help by the majority, and that one lost packets is said."""
    experiment = to_tune()
    results = [
        Result(
            replace(experiment.points[0], repetition=n),
            "done",
            True,
            (),
            numbers={"delivered_pps": 1e4, "lost_packets": lost, "loss_ratio": lost / 1000},
            diagnosis=(SMALL,) if lost else NOTHING,
        )
        for n, lost in ((1, 0), (2, 179), (3, 0))
    ]
    sentence = plain_answer(tuning_of(experiment, results, derivation(experiment))).sentence
    assert sentence.startswith("Nothing needs help. Nothing was lost")
    assert sentence.endswith(" But 1 of 3 trials lost packets, up to 17.90 %.")


def test_a_loss_that_is_only_bounded_may_need_help(golden: Golden) -> None:
    """Not known where, so no step is tried against it; one against what else was lost is."""
    shared = replace(limit("bounded_loss"), stage="link or rx_ring")
    tuning, _ = play(to_tune(), lambda _: (1e4, (shared,)))
    assert (["look"], CANNOT_TELL) == (kinds(tuning), exit_code(tuning))
    golden.check(plain_answer(tuning).sentence)
    both, _ = play(to_tune(), lambda _: (1e4, (shared, SMALL)))
    assert ["look", "try"] == kinds(both)[:2]


def test_one_disturbed_trial_decides_nothing() -> None:
    """What most trials of the base say is believed."""
    tuning, _ = play(to_tune(), lambda t: (1e4, (SMALL,) if t.repetition == 2 else NOTHING))
    assert ["look"] == kinds(tuning)


def test_a_buffer_that_helps_is_kept_and_proven(golden: Golden) -> None:
    """By blocks of the base and its candidates, then anew of base and recipe alone."""
    tuning, results = play(to_tune(), buffer_alone)
    assert ["look", "try", "prove"] == kinds(tuning)
    assert ["base", "buffer=8MiB", "buffer=32MiB"] == names(tuning, 1)
    assert ["before", "after"] == names(tuning, 2)
    assert YES == exit_code(tuning)
    assert tuning.proven is not None
    assert ("before", "after") == (tuning.proven.a, tuning.proven.b)
    assert 1.9 < (tuning.proven.low or 0) < 2 < (tuning.proven.high or 0) < 2.1
    answer = plain_answer(tuning)
    golden.check([answer.sentence, answer.recipe, answer.commands, *answer.notes])
    golden.check(["; ".join(rung) for rung in answer.rungs])
    blocks = {result.trial.repetition for result in results}
    assert set(range(1, 1 + len(blocks))) == blocks


def test_a_proven_recipe_is_answered_with_before_and_after() -> None:
    """With the old value and why, and what is left; both of them are the picture."""
    tuning, results = play(to_tune(), buffer_alone)
    every = tuple(points(results))
    chapter = Chapter(to_tune(), (), every, (), tuning=tuning, tuned=plain_answer(tuning))
    text = answer(chapter)
    assert text.startswith(plain_answer(tuning).sentence)
    assert re.search(r" Before: 5\.\d kpps \[.*\] delivered.* After: 1\d\.\d kpps \[", text)
    assert f" {SMALL.place}{SMALL.why} After: " in text
    assert ["before", "after"] == [point.name for point in proven_pair(chapter)]
    unproven = replace(chapter, points=every[:1])
    assert () == proven_pair(unproven)
    assert "Before: " not in answer(unproven)


def test_it_goes_on_with_the_diagnosis_of_what_was_kept() -> None:
    """Until nothing limits; each step of the recipe is then taken away once."""

    def model(trial: Trial) -> tuple[float, tuple[Bottleneck, ...]]:
        large = (trial.receive.buffer_bytes or 0) >= 8 * MIB
        pps = 5_000.0 * (1.5 if large else 1) * (1.5 if trial.receive.gro else 1)
        return pps, NOTHING if large and trial.receive.gro else (UNMERGED,) if large else (SMALL,)

    tuning, _ = play(to_tune(), model)
    assert ["look", "try", "try", "minimise", "prove"] == kinds(tuning)
    assert tuning.ending is not None
    assert ["small_buffer", "unmerged"] == [step.against for step in tuning.ending.steps]
    assert ("nothing limits", YES) == (tuning.ending.why, exit_code(tuning))
    kept = "+".join(step.name for step in tuning.ending.steps)
    assert [kept, *reversed([step.name for step in tuning.ending.steps])] == names(tuning, 3)


def test_a_step_that_is_not_needed_in_the_end_is_taken_away(golden: Golden) -> None:
    """The recipe is minimal."""

    def model(trial: Trial) -> tuple[float, tuple[Bottleneck, ...]]:
        large = (trial.receive.buffer_bytes or 0) >= 8 * MIB
        if trial.receive.gro:
            return 10_000.0, NOTHING
        return (7_000.0, (UNMERGED,)) if large else (5_000.0, (SMALL,))

    tuning, _ = play(to_tune(), model)
    assert tuning.ending is not None
    assert ["gro"] == [step.name for step in tuning.ending.steps]
    golden.check(["; ".join(rung) for rung in plain_answer(tuning).rungs])


def test_where_only_a_forbidden_key_would_help(golden: Golden) -> None:
    """It says so, and cannot tell."""
    slow = limit("reader_work", port="4321")
    tuning, _ = play(to_tune(), lambda _: (5_000.0, (slow,)))
    assert (["look"], CANNOT_TELL) == (kinds(tuning), exit_code(tuning))
    golden.check(plain_answer(tuning).sentence)


def test_a_tune_of_a_burst_is_answered_with_what_was_lost(golden: Golden) -> None:
    """Before and after, as shares; how fast its buffer was emptied afterwards is no answer."""
    tuning, results = play(to_tune(traffic={"count": 1000}), buffer_alone)
    of, every = to_tune(traffic={"count": 1000}), tuple(points(results))
    chapter = Chapter(of, (), every, (), tuning=tuning, tuned=plain_answer(tuning))
    golden.check(answer(chapter))


def test_a_diagnosis_that_its_own_remedy_refutes(golden: Golden) -> None:
    """All steps against it change nothing, each within its margin."""
    tuning, _ = play(to_tune(), lambda _: (5_000.0, (UNMERGED,)))
    assert ["unmerged"] == list(tuning.refuted)
    assert CANNOT_TELL == exit_code(tuning)
    golden.check([plain_answer(tuning).sentence, *plain_answer(tuning).notes])


def test_a_step_that_a_host_refuses_is_left_out(golden: Golden) -> None:
    """After its first trial; the others go on, and it is said."""
    tuning, results = play(to_tune(), buffer_alone, refused="32MiB")
    assert 1 == sum("32MiB" in result.trial.point for result in results)
    assert (YES, "buffer=8MiB") == (exit_code(tuning), tuning.rounds[1].comparisons[0].b)
    golden.check(plain_answer(tuning).notes)


def test_a_trial_of_the_base_that_fails_ends_it(golden: Golden) -> None:
    """Nothing can be compared with it."""
    tuning, results = play(to_tune(), buffer_alone, refused="base")
    assert (3, CANNOT_TELL) == (len(results), exit_code(tuning))
    golden.check(plain_answer(tuning).sentence)


def test_a_trial_that_fails_once_loses_its_block() -> None:
    """A block of base, candidate or proof; another is measured in its place if still needed."""
    undisturbed, _ = play(to_tune(), buffer_alone)
    for name, blocks in (("base#6", 8), ("32MiB#6", 7), ("before#12", 8), ("after#12", 8)):
        tuning, results = play(to_tune(), buffer_alone, refused=name)
        assert (1, YES) == (sum(r.status == "failed" for r in results), exit_code(tuning))
        assert tuning.ending is not None
        assert undisturbed.ending is not None
        assert undisturbed.ending.steps == tuning.ending.steps
        (lost,) = (each for each in tuning.rounds if any(c.lost for c in each.comparisons))
        assert blocks == lost.blocks
        assert not any(note.startswith("not tried") for note in plain_answer(tuning).notes)


def test_a_base_without_the_number_ends_it(golden: Golden) -> None:
    """Nothing could be compared with it, as where other programs use its CPUs."""
    experiment = to_tune()
    robbed = Finding("struck", "other programs used CPUs of the load", "cpu", "90 %")
    results = [
        Result(trial, "done", True, (robbed,), diagnosis=(SMALL,))
        for n in (1, 2, 3)
        for trial in [replace(experiment.points[0], repetition=n)]
    ]
    tuning = tuning_of(experiment, results, derivation(experiment))
    assert ((), CANNOT_TELL) == (tuning.block, exit_code(tuning))
    golden.check(plain_answer(tuning).sentence)


def test_the_time_ends_it(golden: Golden) -> None:
    """Between blocks; what was not decided is not kept, and nothing is proven."""
    tuning, results = play(to_tune(within_ns=20 * SECOND_NS), buffer_alone)
    assert 20 * SECOND_NS >= sum(result.took_ns or 0 for result in results)
    assert tuning.ending is not None
    assert ("time", CANNOT_TELL) == (tuning.ending.why, exit_code(tuning))
    assert {"undecided"} == {note.partition(":")[0] for note in plain_answer(tuning).notes}
    golden.check(plain_answer(tuning).sentence)


def test_what_cannot_be_told_is_undecided_and_not_without_help() -> None:
    """One step is known not to help; of the other nobody knows after fifteen blocks."""

    def model(trial: Trial) -> tuple[float, tuple[Bottleneck, ...]]:
        huge = (trial.receive.buffer_bytes or 0) >= 32 * MIB
        wild = (0.6, 1.8)[trial.repetition % 2] if huge else 1
        return 5_000.0 * wild, (SMALL,)

    tuning, _ = play(to_tune(), model)
    assert tuning.ending is not None
    assert ("undecided", CANNOT_TELL) == (tuning.ending.why, exit_code(tuning))
    answer = plain_answer(tuning)
    assert answer.sentence.startswith("Undecided whether buffer=32MiB would help. ")
    heads = [note.partition(":")[0] for note in answer.notes]
    assert ["did not help", "undecided"] == heads
    assert ["buffer=32MiB"] == [each.b for each in tuning.undecided]


def to_type(tuning: Tuning) -> list[str]:
    """Return what the end of a tune says would decide it, with its command."""
    words = ["udpbench", "tune", "x.yaml", "--within", "20s", "--point=a"]
    chapter = Chapter(to_tune(), (), (), (), tuning=tuning)
    return [f"{does} {line}" for does, line in _to_decide([chapter], words)]


def _wild(trial: Trial) -> float:
    """Return by how much a large buffer, and nothing else, changes a trial: now more, now less."""
    large = (trial.receive.buffer_bytes or 0) >= 8 * MIB
    return (0.6, 1.8)[trial.repetition % 2] if large else 1.0


def test_a_tune_that_decides_nothing_names_the_command_that_may(golden: Golden) -> None:
    """With more time, or longer trials; a burst, and a search, have no length to set."""
    late_tune, _ = play(to_tune(within_ns=20 * SECOND_NS), buffer_alone)
    far, _ = play(to_tune(), lambda trial: (5_000.0 * _wild(trial), (SMALL,)))
    rounds = [
        replace(each, comparisons=tuple(replace(c, blocks_more=22) for c in each.comparisons))
        for each in far.rounds
    ]
    undecided = replace(far, rounds=tuple(rounds))
    burst = replace(undecided.base, traffic=replace(undecided.base.traffic, count_packets=9))
    each = (late_tune, undecided, far, replace(undecided, base=burst))
    golden.check([line for tuning in each for line in to_type(tuning)])
    proven, _ = play(to_tune(), buffer_alone)
    useless, _ = play(to_tune(), lambda _: (5_000.0, (SMALL,)))
    assert [[], [], []] == [
        to_type(each) for each in (proven, useless, replace(undecided, ending=None))
    ]
    assert [] == list(_to_decide([Chapter(to_tune(), (), (), ())], []))


def test_after_a_step_that_helps_another_may_be_undecided() -> None:
    """The answer does not say of it that it does not help."""

    def model(trial: Trial) -> tuple[float, tuple[Bottleneck, ...]]:
        large = (trial.receive.buffer_bytes or 0) >= 8 * MIB
        wild = (0.6, 1.8)[trial.repetition % 2] if trial.receive.gro else 1
        return (10_000.0 if large else 5_000.0) * wild, (UNMERGED,) if large else (SMALL,)

    tuning, _ = play(to_tune(), model)
    sentence = plain_answer(tuning).sentence
    assert sentence.startswith("Proven: with buffer=")
    assert "No further step was tried: whether a tried step helps is undecided. " in sentence


def test_where_the_time_suffices_for_no_try_it_says_how_long_one_takes(golden: Golden) -> None:
    """And which option to raise: nothing was tried, so nothing is known of any setting."""
    tuning, results = play(to_tune(within_ns=11 * SECOND_NS), buffer_alone)
    assert (["look", "try"], 3, CANNOT_TELL) == (kinds(tuning), len(results), exit_code(tuning))
    assert tuning.ending is not None
    assert ("time", 7 * 3 * 2 * SECOND_NS) == (tuning.ending.why, tuning.rounds[1].needs_ns)
    golden.check(plain_answer(tuning).sentence)


def test_a_try_is_begun_by_what_trials_took() -> None:
    """Not by what they may take at most: a search usually ends long before its limit."""
    tuning, _ = play(to_tune(within_ns=60 * SECOND_NS, duration="50s"), buffer_alone)
    assert (["look", "try", "prove"], YES) == (kinds(tuning), exit_code(tuning))


def test_what_is_kept_when_the_time_ends_is_proven() -> None:
    """The proof comes on top of the time."""

    def model(trial: Trial) -> tuple[float, tuple[Bottleneck, ...]]:
        pps, _ = buffer_alone(trial)
        return pps, (SMALL, UNMERGED)

    tuning, _ = play(to_tune(within_ns=75 * SECOND_NS), model)
    assert tuning.ending is not None
    assert ("time", "prove", YES) == (tuning.ending.why, kinds(tuning)[-1], exit_code(tuning))


def test_the_best_of_several_is_kept_as_soon_as_it_is_known() -> None:
    """Whether the others help, too, is not waited for."""

    def model(trial: Trial) -> tuple[float, tuple[Bottleneck, ...]]:
        size = trial.receive.buffer_bytes or 0
        pps = 9_000.0 if size >= 32 * MIB else 5_050.0 if size >= 8 * MIB else 5_000.0
        return pps, NOTHING if size >= 32 * MIB else (SMALL,)

    tuning, _ = play(to_tune(), model, scatter=0.03)
    assert tuning.ending is not None
    assert ["buffer=32MiB"] == [step.name for step in tuning.ending.steps]
    assert 7 <= tuning.rounds[1].blocks <= 11


def test_of_two_buffers_the_one_that_always_holds_a_burst_is_kept() -> None:
    """Though both hold it in most trials; and where some of the recipe's lost, that is said."""

    def model(trial: Trial, holds: int = 32 * MIB) -> tuple[float, tuple[Bottleneck, ...]]:
        size = trial.receive.buffer_bytes or 0
        if size < 8 * MIB:
            return 5_000.0, (SMALL,)
        spills = size < holds and trial.repetition % 4 == 0
        return (9_500.0, (SMALL,)) if spills else (10_100.0, NOTHING)

    burst = to_tune(traffic={"count": 1000})
    tuning, _ = play(burst, model)
    assert tuning.ending is not None
    assert ["buffer=32MiB"] == [step.name for step in tuning.ending.steps]
    tuning, results = play(burst, lambda trial: model(trial, 64 * MIB))
    every = tuple(points(results))
    text = answer(Chapter(burst, (), every, (), tuning=tuning, tuned=plain_answer(tuning)))
    assert re.search(r" After: 0\.00 % .*lost\. But \d of \d+ trials lost packets, up to ", text)


def test_only_and_never() -> None:
    """Steps of other scopes, or that touch a key, are not tried."""
    limits = tuple(limit(name) for name in ("small_buffer", "udp_memory", "governor"))

    def tried(only: tuple[str, ...], never: tuple[str, ...]) -> list[str]:
        tuning, _ = play(to_tune(only=only, never=never), lambda _: (5_000.0, limits))
        return names(tuning, 1)[1:] if len(tuning.rounds) > 1 else []

    buffers, machine = ["buffer=8MiB", "buffer=32MiB"], ["udp_mem=65536", "governor"]
    assert buffers + machine == tried((), ())
    assert buffers == tried(("application",), ())
    assert machine == tried((), ("receive.buffer",))
    assert [*buffers, "governor"] == tried((), ("sysctl",))
    assert [] == tried(("host",), ())


def test_steps_that_the_user_excluded_are_named(golden: Golden) -> None:
    """No setting could be tried, but some might help; of a point that has them all, none is left."""
    for only, never in ((("host",), ()), ((), ("receive.buffer",))):
        tuning, _ = play(to_tune(only=only, never=never), lambda _: (5_000.0, (SMALL,)))
        assert CANNOT_TELL == exit_code(tuning)
        golden.check(plain_answer(tuning).sentence)
    others = (limit("others_cpu", late="receive"), SMALL)
    tuning, _ = play(to_tune(only=("machine",)), lambda _: (5_000.0, others))
    golden.check(plain_answer(tuning).sentence)
    tuning, _ = play(to_tune(receive={"gro": True}), lambda _: (5_000.0, (UNMERGED,)))
    golden.check(plain_answer(tuning).sentence)


def test_a_step_says_what_it_sets(golden: Golden) -> None:
    """A name that is no setting can neither be tried by hand nor excluded."""
    others = (limit("others_cpu", late="receive"),)
    tuning, _ = play(to_tune(), lambda _: (5_000.0, others))
    golden.check(plain_answer(tuning).sentence)
    tuning, _ = play(to_tune(never=("receive.priority",)), lambda _: (5_000.0, others))
    golden.check(plain_answer(tuning).sentence)


def test_a_program_gets_the_buffer_that_its_host_can_give() -> None:
    """It has no key of ours; what others delay may wait in a larger buffer, too."""
    program = {"command": ["./server"]}
    default = {key: PROGRAM_WORDS[key] for key in ("default", "large_default")}

    def tried(name: str, **words: str) -> list[str]:
        limits = (limit(name, **WORDS, **words),)
        tuning, _ = play(to_tune(receive=program), lambda _: (5_000.0, limits))
        return names(tuning, 1)[1:] if len(tuning.rounds) > 1 else []

    both = ["rmem_default=16777216", "rmem_default=67108864"]
    assert both == tried("small_buffer", **default)
    assert ["nice", "fifo", both[1]] == tried("others_cpu", **default)
    limits = {key: PROGRAM_WORDS[key] for key in ("limit", "large_limit")}
    assert ["rmem_max=8388608", "rmem_max=33554432"] == tried("small_buffer", **limits)
    assert [] == tried("small_buffer")


def test_a_step_that_changes_nothing_is_not_tried() -> None:
    """The point has what it would set."""
    tuning, _ = play(to_tune(receive={"gro": True}), lambda _: (5_000.0, (UNMERGED,)))
    assert ["look"] == kinds(tuning)


def test_at_most_five_at_once() -> None:
    """In the order of the diagnosis."""
    every = ("small_buffer", "udp_memory", "small_backlog", "unmerged", "governor")
    tuning, _ = play(to_tune(), lambda _: (5_000.0, tuple(map(limit, every))))
    assert 6 == len(names(tuning, 1))
    assert "backlog=32768" == names(tuning, 1)[-1]


def test_it_is_replayed_from_its_results() -> None:
    """At any block the same trials come next, in whatever order those of a block are stored."""
    experiment = to_tune()
    tuning, results = play(experiment, buffer_alone)
    derive = derivation(experiment)
    for blocks in range(max(result.trial.repetition for result in results)):
        so_far = [result for result in results if result.trial.repetition <= blocks]
        block = tuning_of(experiment, so_far[::-1], derive).block
        after = {r.trial.point for r in results if r.trial.repetition == blocks + 1}
        assert after == {trial.point for trial in block}
        assert {blocks + 1} == {trial.repetition for trial in block}
    assert () == tuning.block


def test_half_a_block_is_asked_for_again() -> None:
    """Its comparisons count what is there."""
    experiment = to_tune()
    _, results = play(experiment, buffer_alone)
    cut = tuning_of(experiment, results[:8], derivation(experiment))
    assert {5} == {trial.repetition for trial in cut.block}
    assert (None, CANNOT_TELL) == (cut.ending, exit_code(cut))

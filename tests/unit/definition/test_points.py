"""Sweeps, variants, --set and expectations."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import pytest
from definition_fixture import loaded, refused

from udpbench.definition import load, overrides, problems
from udpbench.errors import SHOWN_PROBLEMS
from udpbench.model.experiment import LOOKS, Expectation, PointPair, Side
from udpbench.model.limits import EXPECT_MAX


def test_every_variant_meets_every_point_of_the_sweep_in_declared_order() -> None:
    """Names are ``variant,key=value`` with the shortest unique tail of each path."""
    experiment = loaded(
        "sweep: {traffic.size: [64B, 32B], receive.batch: [1, 8]}",
        "variants:",
        "  one: {send.batch: 1}",
        "  all: {source: cloudflare-2015/naive, needs: {receiver: {cpus: 2}}}",
    )
    assert [
        "one,size=64B,batch=1",
        "one,size=64B,batch=8",
        "one,size=32B,batch=1",
        "one,size=32B,batch=8",
        "all,size=64B,batch=1",
        "all,size=64B,batch=8",
        "all,size=32B,batch=1",
        "all,size=32B,batch=8",
    ] == [trial.point for trial in experiment.points]
    last = experiment.points[-1]
    assert {"traffic.size": "32B", "receive.batch": 8} == last.values
    assert ("all", 32, 8, "auto") == (
        last.variant,
        last.traffic.size_bytes,
        last.receive.batch,
        last.send.batch,
    )
    assert (None, 2) == (experiment.source, last.needs.receiver.cpus)
    assert "cloudflare-2015/naive" == last.source


def test_a_swept_word_keeps_its_spelling_in_the_name() -> None:
    """``off`` is not false."""
    experiment = loaded("sweep: {send.gso: [off]}")
    assert "gso=off" == experiment.points[0].point


@pytest.mark.parametrize(
    ("paths", "tails"),
    [
        (["send.batch", "receive.batch"], ["send.batch", "receive.batch"]),
        (["traffic.size"], ["size"]),
        (["settings.receiver.sysctl.net.core.rmem_max"], ["rmem_max"]),
        (["duration", "x.duration"], ["duration", "x.duration"]),
    ],
)
def test_the_key_of_a_point_is_the_shortest_unique_tail(paths: list[str], tails: list[str]) -> None:
    """A tail that another swept path ends in, too, is no name."""
    assert tails == list(overrides.shortest_tails(paths).values())


def test_below_sysctl_the_rest_of_a_path_is_one_key() -> None:
    """A sysctl's dots do not nest."""
    experiment = loaded("sweep: {settings.receiver.sysctl.net.core.rmem_max: [1MiB, 2MiB]}")
    assert [2**20, 2**21] == [
        (trial.settings["receiver"].sysctl or {})["net.core.rmem_max"]
        for trial in experiment.points
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "sweep:\n  send.batch: [1,\n    4096]",
            "x.yaml:4: send.batch: 4096: above the range; expected: 1 to 1024, or auto",
        ),
        (
            "variants:\n  a: {send.bach: 1}",
            "x.yaml:3: send.bach: 1: unknown key; did you mean batch?",
        ),
        (
            "variants:\n  a:\n    settings.sender:\n      mtu: 1",
            "x.yaml:5: settings.sender.mtu: 1: below the range; expected: 68 to 65535",
        ),
        (
            "variants:\n  a: {send.batch.x: 1}",
            "x.yaml:3: send.batch: a map instead of a single value; expected: 1 to 1024, or auto; write batch: 1",
        ),
        ("sweep: {send.batch: 1}", "x.yaml:2: sweep.send.batch: 1: not a list"),
        ("sweep: {send.batch: []}", "x.yaml:2: sweep.send.batch: the list is empty; name at least"),
        ("sweep: {}", "x.yaml:2: sweep: the map is empty; name at least one, or remove it"),
        ("variants: {}", "x.yaml:2: variants: the map is empty; name at least one, or remove it"),
        (
            "sweep: {traffic.flows: [{from: 1}]}",
            (
                "x.yaml:2: sweep.traffic.flows[1]: a sweep lists single values; "
                "use a variant for maps and lists"
            ),
        ),
        (
            "sweep: {send.batch: [1, 2, 1]}",
            "x.yaml:2: sweep.send.batch[3]: 1: duplicate value; name it once",
        ),
        (
            "sweep: {send..batch: [1]}",
            "x.yaml:2: sweep.send..batch: not a dotted path; write for exam",
        ),
        (
            "sweep: {repetitions: [1, 2]}",
            (
                "x.yaml:2: sweep.repetitions: repetitions is the same at every point; "
                "it belongs to the whole experiment"
            ),
        ),
        (
            "variants: {a: {expect: []}}",
            (
                "x.yaml:2: variants.a.expect: expect is the same at every point; "
                "it belongs to the whole experiment"
            ),
        ),
        (
            "variants: {'a,b': {}}",
            "x.yaml:2: variants.a,b: not a name for a variant; use letters, digits and . _ + -",
        ),
        (
            "sweep: {send.batch: [1]}\nvariants: {a: {send.batch: 2}}",
            (
                "x.yaml:3: variants.a.send.batch: 2: sweep also sets send.batch; "
                "set it in one of the two"
            ),
        ),
        (
            "variants: {a: {traffic.flows: {from: 1}, traffic.flows.from: 2}}",
            (
                "x.yaml:2: variants.a.traffic.flows.from: 2: overlaps traffic.flows; "
                "set each path once"
            ),
        ),
        (
            "sweep: {send.batch: [1], send: [2]}",
            "x.yaml:2: sweep.send: overlaps send.batch; set each path once",
        ),
        (
            "sweep: {traffic.ttl: [" + ", ".join(str(i) for i in range(1, 101)) + "],\n"
            "  send.batch: [" + ", ".join(str(i) for i in range(1, 101)) + "]}",
            "x.yaml:2: sweep: 10000 points are too many; expected: at most 4096; sweep less",
        ),
        (
            "sweep: {"
            + ", ".join(f"settings.sender.sysctl.net.a.b{i}: [1]" for i in range(65))
            + "}",
            "x.yaml:2: sweep: 65 keys are too many; expected: at most 64; set the others for every point",
        ),
        (
            "variants: {v: {" + ", ".join(f"a.b{i}: 1" for i in range(65)) + "}}",
            "x.yaml:2: variants.v: 65 keys are too many; expected: at most 64; set the others for every point",
        ),
        (
            "settings: {sender: {sysctl: {"
            + ", ".join(f"net.a.b{i}: 1" for i in range(1100))
            + "}}}\n"
            "sweep: {send.batch: [" + ", ".join(str(i) for i in range(1, 1001)) + "]}",
            "x.yaml:3: sweep: 1000 points with 1104 keys each are too many; expected: at most 524288 keys; sweep less",
        ),
        (
            "variants:\n  ? " + "v" * 4096 + "\n  : {send.workers: 1}\n"
            "sweep: {send.batch: [" + ", ".join(str(i) for i in range(1, 1025)) + "]}",
            "x.yaml:5: sweep: 1024 points with names of 4107 characters are too many; expected: at most 4194304",
        ),
    ],
)
def test_a_sweep_or_variant_that_cannot_be_is_refused_on_its_line(text: str, message: str) -> None:
    """What a point gets wrong is reported where the sweep or the variant says it."""
    messages = refused(text)
    assert messages[0].startswith(message)
    assert 1 == len(messages)


def test_set_changes_the_base() -> None:
    """A value on the command line replaces the file's."""
    experiment = loaded("send: {batch: 8}", sets=("send.batch=64", "repetitions=2"))
    assert (64, 2) == (experiment.points[0].send.batch, experiment.repetitions)


@pytest.mark.parametrize("several", [False, True])
def test_the_blocks_of_comparisons_are_set_for_all_of_them(several: bool) -> None:
    """They are the same in all, and what an undecided run needs more of."""
    pairs = ["{a: x, b: y}", "{a: x, b: y, metric: loss_ratio}"][: 1 + several]
    written = f"[{', '.join(pairs)}]" if several else pairs[0]
    text = f"variants: {{x: {{}}, y: {{send.batch: 8}}}}\ncompare: {written}"
    experiment = loaded(text, sets=("compare.blocks=31",))
    assert [(31,)] * len(pairs) == [pair.blocks for pair in experiment.compare]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("send.batch", "--set: send.batch: not path=value; write for example send.batch=64"),
        ("send.batch=", "--set: send.batch=: not path=value; write for example send.batch=64"),
        ("=3", "--set: not a dotted path; write for example send.batch=64"),
        ("a..b=3", "--set: a..b: not a dotted path; write for example send.batch=64"),
        ("expect=[]", "--set: expect: --set changes single values only; edit the file instead"),
        ("extends=x", "--set: extends: --set changes single values only; edit the file instead"),
        (
            "send.batch=9999",
            "--set: send.batch: 9999: above the range; expected: 1 to 1024, or auto",
        ),
        ("send.bach=9", "--set: send.bach: 9: unknown key; did you mean batch?"),
        ("send.batch=[", "--set:1: invalid YAML: while parsing"),
        (
            "traffic.size=64B",
            (
                "--set: traffic.size: sweep sets traffic.size (x.yaml:2), so this value has no "
                "effect; edit the file"
            ),
        ),
        (
            "receive.work=1us",
            (
                "--set: receive.work: variants.a sets receive.work (x.yaml:3), so this value "
                "has no effect; edit the file"
            ),
        ),
        (
            "receive={}",
            "--set: receive: variants.a sets receive.work (x.yaml:3), so this value has no effect",
        ),
    ],
)
def test_a_set_that_cannot_work_is_refused(override: str, message: str) -> None:
    """A bad path, a bad value and a path that a sweep or variant sets are errors."""
    text = ("sweep: {traffic.size: [32B]}", "variants: {a: {receive.work: 2us}}")
    refusal = refused(*text, sets=(override,))[0]
    assert refusal.startswith(message) or ("invalid YAML" in message and "invalid YAML" in refusal)


@pytest.mark.parametrize(
    ("text", "left", "op", "right"),
    [
        ("unaccounted == 0", Side(1.0, "unaccounted"), "==", Side(0.0)),
        ("delivered_pps[two] > 1.5 * delivered_pps[one]", None, ">", None),
        ("0.5*udp_rcvbuf<=10k", Side(0.5, "udp_rcvbuf"), "<=", Side(10000.0)),
        ("loss_ratio < 1%", Side(1.0, "loss_ratio"), "<", Side(0.01)),
        ("300kpps <= delivered_pps", Side(300000.0), "<=", Side(1.0, "delivered_pps")),
        ("send_cpu_ns_per_packet < 2us", Side(1.0, "send_cpu_ns_per_packet"), "<", Side(2000.0)),
        ("loss_ratio < 0.5%", Side(1.0, "loss_ratio"), "<", Side(0.005)),
        ("loss_ratio < 0.01", Side(1.0, "loss_ratio"), "<", Side(0.01)),
        ("delay_p50_ns < 1ms", Side(1.0, "delay_p50_ns"), "<", Side(10**6)),
        ("delay_p50_ns < 10µs", Side(1.0, "delay_p50_ns"), "<", Side(10**4)),
        ("log_bytes > 4MiB", Side(1.0, "log_bytes"), ">", Side(4 * 2**20)),
        ("log_files == 1k", Side(1.0, "log_files"), "==", Side(1000)),
        ("delivered_pps_spread < 5%", Side(1.0, "delivered_pps_spread"), "<", Side(0.05)),
        ("application_delay_p99_ns < 2us", Side(1.0, "application_delay_p99_ns"), "<", Side(2000)),
        ("ledger_received_packets > 1k", Side(1.0, "ledger_received_packets"), ">", Side(1000)),
        ("unaccounted >= -5", Side(1.0, "unaccounted"), ">=", Side(-5.0)),
    ],
)
def test_expectations_are_read(text: str, left: Side | None, op: str, right: Side | None) -> None:
    """Numbers come in the metric's base unit, points by name."""
    left = left or Side(1.0, "delivered_pps", "two")
    right = right or Side(1.5, "delivered_pps", "one")
    experiment = loaded("variants: {one: {}, two: {}}", f"expect: ['{text}']")
    assert (Expectation(text, left, op, right),) == experiment.expect  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "unaccounted",
            "not an expectation; expected: side op side, op one of < <= == != >= >; write one",
        ),
        ("1 < unaccounted < 3", "more than one comparison; expected: side op side"),
        ("unaccounted = 0", "not an expectation; expected: side op side"),
        ("delivered_pps > " + "9" * 400, "a number is too long; expected: at most 40 digits"),
        ("delivered_pps > " + "9" * 400 + "kpps", "a number is too long; expected: at most"),
        ("3 > 2", "compares two numbers; name a metric, for example delivered_pps"),
        ("delivered_ps > 2", "unknown metric delivered_ps; did you mean delivered_pps?"),
        ("loss < 1%", "unknown metric loss; did you mean loss_ratio?"),
        (
            "delivered_pps_spread < 3k",
            "unit 'k' is unknown for delivered_pps_spread; known: none or %",
        ),
        ("delivered_pps < 3%", "unit '%' is unknown for delivered_pps; known: pps"),
        ("name == 2", "unknown metric name; "),
        ("delivered_pps[too] > 2", "no point is called too; did you mean two?"),
        ("delivered_pps[two] > 1.2.3 * delivered_pps[two]", "1.2.3 is not a number; write for"),
        ("delivered_pps > 3ms", "unit 'ms' is unknown for delivered_pps; known: pps"),
        ("delivered_pps > 3Mbps", "delivered_pps is in packets; write for example 300kpps"),
        ("delivered_mib_s > 3MiB", "delivered_mib_s takes no unit MiB; write a bare number"),
        ("send_cpu_load < 50%", "send_cpu_load takes no unit %; write a bare number"),
        ("log_bytes > 3ms", "unit 'ms' is unknown for log_bytes; known: B"),
        ("unaccounted == 3pps", "unit 'pps' is unknown for unaccounted"),
        (
            "unaccounted == __import__('os')",
            "__import__('os') is not a side of an expectation; expected: number",
        ),
        ("unaccounted ==", "nothing is not a side of an expectation; expected: number[unit]"),
    ],
)
def test_an_expectation_that_cannot_be_judged_is_refused(text: str, message: str) -> None:
    """Nothing is evaluated; what is not understood says why."""
    messages = refused("variants: {one: {}, two: {}}", "expect:", f'  - "{text}"')
    shown = text if len(text) <= 60 else text[:59] + "…"
    assert messages[0].startswith(f"x.yaml:4: expect[1]: {shown}: {message}")


BOTH = ("sweep: {traffic.size: [32B, 64B]}", "variants: {one: {}, two: {}}")


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("{a: one, b: two}", [("one,size=32B", "two,size=32B"), ("one,size=64B", "two,size=64B")]),
        ("{a: size=64B, b: size=32B}", [("one,size=64B", "one,size=32B"),
                                        ("two,size=64B", "two,size=32B")]),
        ("{a: 'one,size=32B', b: 'two,size=64B'}", [("one,size=32B", "two,size=64B")]),
        ("[{a: 'one,size=32B', b: 'one,size=64B'}, {a: 'one,size=32B', b: 'two,size=32B'}]",
         [("one,size=32B", "one,size=64B"), ("one,size=32B", "two,size=32B")]),
    ],
)  # fmt: skip
def test_a_comparison_is_made_for_each_combination_that_is_left_open(
    text: str, pairs: list[tuple[str, str]]
) -> None:
    """``a`` is the base; a map may stand alone, and what is left out has a default."""
    experiment = loaded(*BOTH, f"compare: {text}")
    assert [PointPair(a, b, "delivered_pps", 0.03, LOOKS) for a, b in pairs] == list(
        experiment.compare
    )


def test_few_misspelt_names_are_compared_with_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of 500 long names was meant took 4 s for each error."""
    compared: list[int] = []
    near = difflib.get_close_matches

    def counted(word: str, names: Sequence[str], n: int) -> list[str]:
        compared.append(len(word) * sum(map(len, names)))
        return near(word, names, n)

    monkeypatch.setattr(problems.difflib, "get_close_matches", counted)
    for key, count, wrong in (("b" * 185, 300, "x" * 200), ("batch", 120, "bacth"), ("a", 50, "b")):
        swept = f"sweep: {{settings.receiver.sysctl.net.core.{key}: {[*range(count)]}}}"
        pairs = [f"{{a: {wrong}={n}, b: {wrong}={n + 1}}}" for n in range(60)]
        expected = [f"'received_packets[{wrong}={n}] > 1'" for n in range(100)]
        for asked in (f"expect: [{', '.join(expected)}]", f"compare: [{', '.join(pairs)}]"):
            compared.clear()
            problems._closest.cache_clear()
            messages = refused(swept, asked)
            assert SHOWN_PROBLEMS + 1 == len(messages)
            assert max(map(len, messages)) < 2000
            named = [each for each in compared if each]
            assert len(named) <= SHOWN_PROBLEMS + 1
            assert max(compared) <= 64 * 64 * 128


def test_more_answers_than_can_be_are_refused(golden: Any) -> None:
    """Half a million took 150 s and 428 MB of whoever showed them."""
    swept = f"sweep: {{send.batch: {[*range(1, 501)]}}}"
    expected = ", ".join(f"delivered_pps > {n}" for n in range(66))
    pairs = ", ".join(["{a: batch=1, b: batch=2}"] * 66)
    halves = f"sweep: {{send.batch: {[*range(1, 751)]}, receive.batch: [1, 2]}}"
    open_pairs = ", ".join(["{a: receive.batch=1, b: receive.batch=2}"] * 6)
    golden.check(
        [
            *refused(halves, f"compare: [{open_pairs}]"),
            *refused(swept, f"expect: [{expected}]"),
            *refused(swept, f"compare: [{pairs}]"),
            *refused(
                f"expect: [{', '.join(f'delivered_pps > {n}' for n in range(EXPECT_MAX + 1))}]"
            ),
        ]
    )
    fewer = expected.rpartition(",")[0]
    assert 65 == len(loaded(swept, f"expect: [{fewer}]").expect)


def test_where_each_point_has_many_problems_the_first_points_are_looked_at() -> None:
    """Those of thousands of points are not shown anyway."""
    keys = [f"key{n}: 1" for n in range(100)]
    looked: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        check = load.file_schema.check
        patch.setattr(load.file_schema, "check", lambda *of: (looked.append(of), check(*of))[1])
        varied = [f"  v{n}: {{wrong{n}: 1}}" for n in range(2000)]
        messages = refused(*keys, "variants:", *varied)
    assert SHOWN_PROBLEMS + 1 == len(messages)
    assert len(looked) < 1500


def test_a_point_of_many_keys_is_looked_up_by_its_name() -> None:
    """All combinations of 64 keys would take longer than the universe has."""
    keys = ", ".join(f"settings.receiver.sysctl.net.core.a{n}: [1]" for n in range(63))
    swept = f"sweep: {{send.batch: [1, 2], {keys}}}"
    experiment = loaded(swept, "compare: {a: batch=1, b: batch=2}")
    first, last = (trial.point for trial in experiment.points)
    assert [(first, last)] == [(pair.a, pair.b) for pair in experiment.compare]
    long = ",".join(f"a{n}=1" for n in range(62))
    experiment = loaded(swept, f"compare: {{a: 'batch=1,{long}', b: 'batch=2,{long}'}}")
    assert [(first, last)] == [(pair.a, pair.b) for pair in experiment.compare]


def test_a_comparison_has_a_metric_a_margin_and_blocks() -> None:
    """A loss has a smaller margin of its own."""
    experiment = loaded(*BOTH, "compare: {a: one, b: two, margin: 0.05, blocks: 9}")
    assert {(0.05, (9,))} == {(pair.margin, pair.blocks) for pair in experiment.compare}
    for metric in ("loss_ratio", "udp_rcvbuf"):
        (pair, _) = loaded(*BOTH, f"compare: {{a: one, b: two, metric: {metric}}}").compare
        assert (metric, 0.001) == (pair.metric, pair.margin)


@pytest.mark.parametrize(
    "text",
    [
        "{a: one, b: too}",
        "{a: one}",
        "{a: one, b: two, margin: 3}",
        "{a: one, b: two, margin: 0%}",
        "{a: one, b: two, margin: 3ms}",
        "{a: one, b: two, blocks: 5}",
        "{a: one, b: two, blocks: 201}",
        "{a: one, b: two, blocks: 3-9}",
        "{a: one, b: two, metric: delivered}",
        "{a: one, b: one}",
        "{a: one, b: 'two,size=32B'}",
        "[{a: one, b: two}, {a: size=32B, b: size=64B, blocks: 9}]",
        "one",
    ],
)
def test_a_comparison_that_cannot_be_made_is_refused(text: str, golden: Any) -> None:
    """Each on its line, with what there is instead."""
    messages = refused(*BOTH, f"compare: {text}")
    assert messages
    golden.check(messages)


def test_nothing_to_compare_without_points() -> None:
    """An experiment of one point has no other."""
    assert refused("compare: {a: one, b: two}")


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("delivered_pps[two] == delivered_pps[one]", ()),
        ("loss_ratio[two] != loss_ratio[one]", ()),
        ("delivered_pps[two] > delivered_pps[one]", ("repetitions: 5",)),
        ("delivered_pps >= delivered_pps[one]", ("repetitions: 1",)),
        ("delivered_pps[two] > delivered_pps[one]", ("repetitions: 201",)),
    ],
)
def test_two_points_that_no_blocks_decide_are_refused(
    text: str, keys: tuple[str, ...], golden: Any
) -> None:
    """Equality of two rates cannot be proven, nor anything by fewer than six blocks."""
    messages = refused("variants: {one: {}, two: {}}", *keys, f"expect: ['{text}']")
    assert messages
    golden.check(messages)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("lost_packets[two] == lost_packets[one]", ("repetitions: 1",)),
        ("delivered_pps[two] > 0.9 * offered_pps[two]", ("repetitions: 1",)),
        ("delivered_pps > 1", ("repetitions: 1",)),
        ("delivered_pps[two] > delivered_pps[one]", ("repetitions: 6",)),
        (
            "delivered_pps[two] > delivered_pps[one]",
            ("repetitions: 1", "compare: {a: one, b: two}"),
        ),
    ],
)
def test_counts_and_numbers_of_one_point_take_any_repetitions(
    text: str, keys: tuple[str, ...]
) -> None:
    """Counts must hold in each trial; compared points have blocks in place of repetitions."""
    assert loaded("variants: {one: {}, two: {}}", *keys, f"expect: ['{text}']").expect

"""The YAML reader: strict, with lines, and never anything but InputError."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from golden import Golden
from hypothesis import given, settings
from hypothesis import strategies as st

from udpbench.definition import load, yaml_reader
from udpbench.definition.problems import Place
from udpbench.definition.yaml_reader import read_text
from udpbench.errors import SHOWN_PROBLEMS, InputError


def refusal(text: str) -> str:
    """Return the message by which a text is refused."""
    with pytest.raises(InputError) as caught:
        yaml_reader.parse(text, "x.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.yaml: the file is empty; see docs/experiments.md"),
        ("# only this\n", "x.yaml: the file is empty; see docs/experiments.md"),
        ("- 1\n", "x.yaml:1: not a map of keys; write question: … for example"),
        (
            "a: 1\n---\nb: 2\n",
            "x.yaml:2: a second document begins; expected: one per file; split it",
        ),
        (
            "a: &x 1\nb: *x\n",
            (
                "x.yaml:1: &x: an anchor is refused; "
                "write the value in full, or use extends or variants\n"
                "x.yaml:2: *x: an alias is refused; write the value in full, or use extends or "
                "variants"
            ),
        ),
        (
            "a: !!python/object/apply:os.system [x]\n",
            (
                "x.yaml:1: tag:yaml.org,2002:python/object/apply:os.system: a tag is refused; "
                "write plain YAML"
            ),
        ),
        ("a: 1\nb: 2\na: 3\n", "x.yaml:3: a: duplicate key, first on line 1; remove one"),
        ("a:\n  b:\n", "x.yaml:2: a.b: the key has no value; give one, or remove the key"),
        ("a: ~\n", "x.yaml:1: a: the key has no value; give one, or remove the key"),
        ("a: [1,\n  null]\n", "x.yaml:2: a[2]: no value; give one, or remove the key"),
        ("? [1, 2]\n: 3\n", "x.yaml:1: a key must be text"),
        (
            "a:\n\tb: 1\n",
            (
                "x.yaml:2: invalid YAML: found character '\\t' that cannot start any token; "
                "indent with spaces"
            ),
        ),
        ("a: [1\n", "x.yaml:2: invalid YAML: expected ',' or ']', but got '<stream end>'"),
        ("a: \x07\n", "x.yaml: invalid YAML: unacceptable character #x0007: special characters"),
        ("a: " + "[" * 30 + "]" * 30, "x.yaml:1: nested too deeply; expected: at most 24 levels"),
        ("<<: {a: 1}\n<<: {a: 2}\n", "x.yaml:2: <<: duplicate key, first on line 1; remove"),
    ],
)
def test_what_is_no_plain_document_is_refused_with_its_line(text: str, message: str) -> None:
    """Each kind of unwanted YAML has a message with file, line, limit and next step."""
    assert refusal(text).startswith(message)


def test_a_value_beyond_the_limit_is_refused() -> None:
    """A scalar of more than 4096 characters is refused and shown shortened, a key, too."""
    message = refusal("a: " + "9" * 5000)
    assert message.startswith("x.yaml:1: a: 999")
    assert message.endswith("…: too long; expected: at most 4096 characters")
    assert refusal("? " + "k" * 5000 + "\n: 1").startswith("x.yaml:1: kkk")


def test_every_problem_of_a_document_is_reported_at_once() -> None:
    """Two duplicates and an empty value are three lines."""
    assert 3 == len(refusal("a: 1\na: 2\nb:\nc: 1\nc: 2\n").splitlines())


def test_scalars_are_those_of_yaml_1_2() -> None:
    """``off`` and ``yes`` stay text, ``1:30`` is not 90, keys are always text."""
    text = "off: off\n010: yes\na: 1:30\nb: true\nc: 12\nd: 1.5\ne: 2015-06-16\nf: 0x10\n"
    assert yaml_reader.parse(text, "x").data == {
        "off": "off",
        "010": "yes",
        "a": "1:30",
        "b": True,
        "c": 12,
        "d": 1.5,
        "e": "2015-06-16",
        "f": "0x10",
    }


@pytest.mark.parametrize("newline", ["\r\n", "\r", "\n"])
def test_line_ends_of_any_kind_count_alike(newline: str) -> None:
    """The third line is line 3, whichever way lines end."""
    tree = yaml_reader.parse(newline.join(["a: 1", "b:", "  c: 3", ""]), "x")
    assert Place("x", 3) == tree.place(("b", "c"))


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    """An editor's BOM is no part of the first key."""
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert yaml_reader.parse(yaml_reader.read_text(path, "x"), "x").data == {"a": 1}


def test_a_file_that_is_no_text_is_refused(tmp_path: Path, golden: Golden) -> None:
    """Invalid UTF-8 is reported with its line."""
    path = tmp_path / "x.yaml"
    path.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(InputError) as caught:
        yaml_reader.read_text(path, "x.yaml")
    golden.check(str(caught.value))


def test_a_file_that_is_too_large_is_refused(tmp_path: Path, golden: Golden) -> None:
    """Nothing beyond 256 KiB is parsed."""
    path = tmp_path / "x.yaml"
    path.write_bytes(b"#" * (yaml_reader.MAX_FILE_BYTES + 1))
    with pytest.raises(InputError) as caught:
        yaml_reader.read_text(path, "x.yaml")
    golden.check(str(caught.value))


@pytest.mark.parametrize(
    "text",
    ["a: [" + "1," * yaml_reader.MAX_VALUES + "]", "#" * (yaml_reader.MAX_TEXT_CHARACTERS + 1)],
)
def test_a_text_of_more_than_is_read_is_refused(text: str, golden: Golden) -> None:
    """A text in a run folder has no file's size."""
    with golden.raises(InputError):
        yaml_reader.parse(text, "x")


def test_a_folder_is_no_file(tmp_path: Path, golden: Golden) -> None:
    """Reading a folder says so."""
    with pytest.raises(InputError) as caught:
        yaml_reader.read_text(tmp_path, "x")
    golden.check(str(caught.value))


def test_a_value_given_on_the_command_line_is_one_value(golden: Golden) -> None:
    """A second key cannot be smuggled in behind ``--set``."""
    with pytest.raises(InputError) as caught:
        yaml_reader.parse_value("1\nb: 2", Place("--set"), "a")
    golden.check(str(caught.value))


YAML_BITS = st.sampled_from(
    [
        *("question", "traffic", "send", "sweep", "variants", "expect", "settings", "receiver"),
        *(":", ": ", "\n", "\n  ", "- ", "[", "]", "{", "}", ",", "&a", "*a", "!!x", "'", '"'),
        *("off", "null", "~", "1", "64B", "1e999", "-", "|", ">", "%", "@", "`", "?", "#", "---"),
        *("to", "cpus", "3-1", "é", "\t", "\x00", "\ufeff", "\u2028", "send.batch", "size"),
    ]
)


@settings(max_examples=40)
@given(st.one_of(st.text(max_size=60), st.lists(YAML_BITS, max_size=25).map("".join)))
def test_junk_is_refused_and_never_crashes(text: str) -> None:
    """Whatever a file holds, reading and validating it raises InputError or nothing."""
    try:
        tree = yaml_reader.parse(f"question: x\n{text}", "junk.yaml")
        load.load_experiment_data(tree.data, "junk.yaml")
    except InputError as error:
        assert error.problems  # noqa: PT017 - an error without a problem would be silent


KEYS = st.sampled_from(
    [
        *("question", "traffic", "send", "receive", "sweep", "variants", "expect", "settings"),
        *("receiver", "size", "rate", "count", "cpus", "flows", "to", "from", "sysctl", "ethtool"),
        *("features", "qdisc", "tbf", "napi", "optional", "fault", "log", "needs", "extends"),
        *("send.batch", "traffic.size", "settings.receiver.sysctl.net.core.rmem_max", "x"),
    ]
)
PLAIN = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=8),
        st.sampled_from(
            ["64B", "off", "none", "0-3", "receiver.addresses[1]:1", "1kpps", "9" * 99]
        ),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)


@settings(max_examples=40)
@given(st.dictionaries(KEYS, PLAIN, max_size=6))
def test_data_of_any_shape_is_refused_and_never_crashes(data: dict[str, object]) -> None:
    """Plain data of the wrong shapes raises InputError or nothing."""
    try:
        load.load_experiment_data({"question": "x", **data}, "junk")
    except InputError as error:
        assert error.problems  # noqa: PT017 - as above


def test_only_so_many_problems_are_shown() -> None:
    """A broken file has one on each line."""
    lines = refusal(
        "\n".join(f"a{number}: &a 1" for number in range(SHOWN_PROBLEMS + 7))
    ).splitlines()
    assert (SHOWN_PROBLEMS + 1, "and 7 more problems") == (len(lines), lines[-1])


def test_an_escape_that_is_no_character_is_refused() -> None:
    """Python has none either."""
    assert "x.yaml: invalid YAML: an escape that is no character of Unicode" == refusal(
        'a: "\\UFFFFFFFF"'
    )


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Nobody may ever write into it."""
    os.mkfifo(tmp_path / "x.yaml")
    with pytest.raises(InputError) as caught:
        read_text(tmp_path / "x.yaml", "x.yaml")
    assert "x.yaml: cannot be read: not a regular file; name a YAML file" == str(caught.value)

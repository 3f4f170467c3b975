"""Tables of the terminal: long ones are laid out here, as rich lays out short ones."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from udpbench.report import terminal
from udpbench.report.terminal import Terminal, drawn, listed

CELLS = st.text("abc é界-.", max_size=30)


def printed(rows: list[tuple[str | Text, ...]], width: int, colours: bool = False) -> str:
    """Return a table as it is printed."""
    out = StringIO()
    console = Terminal(file=out, width=width, force_terminal=colours)
    console.print(drawn(("name", "what it is", "n"), rows, "a title", numbers=(2,)))
    return out.getvalue()


def long_and_short(
    rows: list[tuple[str | Text, ...]], width: int, colours: bool = False
) -> list[str]:
    """Return a table as laid out here, and by rich."""
    texts = []
    for threshold in (0, len(rows) + 1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(terminal, "LONG", threshold)
            texts.append(printed(rows, width, colours))
    return texts


@given(st.lists(st.tuples(CELLS, CELLS, st.integers(0, 10**12)), min_size=1, max_size=6))
def test_a_table_with_room_is_laid_out_as_by_rich(rows: list[tuple[str, str, int]]) -> None:
    """To the last blank."""
    here, rich = long_and_short([(a, b, str(n)) for a, b, n in rows], 200)
    assert rich == here


def test_a_table_without_room_wraps_what_may_wrap() -> None:
    """Nothing is cut, no line is longer than the terminal, and numbers stay whole."""
    rows = [(f"name{n} " * 6, "word" * 20, f"{n}000000") for n in range(5)]
    here, _ = long_and_short(rows, 60)
    assert max(map(len, here.splitlines())) <= 60
    letters = "".join(here.split())
    assert 1 + 5 * 6 == letters.count("name")
    assert all(f"{n}000000" in here for n in range(5))


@pytest.mark.parametrize("width", [30, 60, 80])
def test_a_word_is_whole_where_other_columns_have_room(width: int) -> None:
    """Their lines break between words; no word takes more than two thirds of the table."""
    rows: list[tuple[str | Text, ...]] = [("a.long.name.of.24.letters", "of many words " * 9, "7")]
    for text in long_and_short(rows, width):
        assert max(map(len, text.splitlines())) <= width
        assert ("a.long.name.of.24.letters" in text) is (width > 30)


def test_the_style_of_a_cell_stays() -> None:
    """The whole text, and a part of it."""
    part = Text("red and plain")
    part.stylize("red", 0, 3)
    rows: list[tuple[str | Text, ...]] = [(Text("gone", style="strike"), part, "1")]
    here, rich = long_and_short(rows, 80, colours=True)
    for escape in ("\x1b[9m", "\x1b[31mred", "\x1b[1m"):
        assert escape in here
        assert escape in rich


@pytest.mark.parametrize("cell", ["\x1b[31m", "two\nlines", "a\tb", "\u202egnp"])
def test_what_is_not_printable_is_left_to_rich(cell: str) -> None:
    """It is escaped before it is laid out."""
    here, rich = long_and_short([(cell, "x", "1")], 80)
    assert rich == here


@pytest.mark.parametrize("width", [11, 12, 15, 17, 20, 40])
def test_a_line_never_ends_within_a_number(width: int) -> None:
    """Nor before its unit, of a text alone and of one in a table; nothing else is joined."""
    text = "up to 1 312 456 packets did 2 runs, 95 % of 80 kpps"
    out = StringIO()
    console = Terminal(file=out, width=width)
    console.print(Text(text))
    console.print(text)
    console.print(listed([("", Text(text, style="red"))]))
    lines = [line.strip() for line in out.getvalue().splitlines()]
    assert " ".join(filter(None, lines)).split() == (3 * f"{text} ").split()
    assert not [line for line in lines if re.search(r"\b(1|312|1 312|95|80)$", line)]

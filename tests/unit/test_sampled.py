"""Samples of families: so many are drawn, the same again by the same draw, others by another."""

from __future__ import annotations

import pytest
import sampled

pytest_plugins = ["pytester"]

FAMILY = """
import pytest

@pytest.mark.drawn(3)
@pytest.mark.parametrize("number", range(100))
def test_a_family(number):
    pass

def test_alone():
    pass
"""
MARKERS = "[pytest]\nmarkers = drawn\n  long\n"
NO_OTHER = [f"-pno:{name}" for name in ("udpbench", "hypothesispytest")]


def run(pytester: pytest.Pytester, draw: str, *options: str) -> list[str]:
    """Return the tests that ran, as a draw selects them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(sampled.DRAW, draw)
        sampled.draw.cache_clear()
        done = pytester.inline_run(*NO_OTHER, *options, plugins=[sampled])
    sampled.draw.cache_clear()
    passed, skipped, failed = done.listoutcomes()
    assert ([], []) == (skipped, failed)
    return [report.nodeid.split("::")[1] for report in passed]


def test_of_a_family_so_many_are_drawn(pytester: pytest.Pytester) -> None:
    """What is in no family runs always, and by another draw others run; unselected, all do."""
    pytester.makepyfile(test_it=FAMILY)
    pytester.makeini(MARKERS)
    sample = run(pytester, "a", "-mnot long")
    assert (4, "test_alone") == (len(sample), sample[-1])
    assert sample == run(pytester, "a", "-mnot long")
    assert sample != run(pytester, "b", "-mnot long")
    assert 101 == len(run(pytester, "a"))


def test_the_draw_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what a commit drew can be drawn again; without git it is always the same."""
    sampled.draw.cache_clear()
    assert 12 == len(sampled.draw())
    assert f"sample: UDPBENCH_DRAW={sampled.draw()}" == sampled.pytest_report_header()
    sampled.draw.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    assert "0" == sampled.draw()
    sampled.draw.cache_clear()

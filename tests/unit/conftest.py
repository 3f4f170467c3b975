"""What the unit tests share: the command line, which is parsed from its functions once; a key."""

from __future__ import annotations

from functools import cache

import pytest
import typer.main

from udpbench import judged_trials

typer.main.get_command = cache(typer.main.get_command)  # 25 ms for each of hundreds of calls


@pytest.fixture(autouse=True)
def _key_of_the_tests(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seal what runs judged with a key of the tests, not with the user's own."""
    place = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setattr(judged_trials, "_place", lambda: place)

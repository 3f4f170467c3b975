"""What every room of the tests shares: golden messages, and no deadline for an example."""

from __future__ import annotations

import gc

import pytest
import sampled
from hypothesis import settings

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")
pytest.register_assert_rewrite("golden")
gc.set_threshold(200_000)  # the garbage collector takes a tenth of the unit tests' time otherwise

from golden import (  # noqa: E402  its assertions explain themselves only from here on
    golden,
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_pyfunc_call,
)

__all__ = ["golden", "pytest_addoption", "pytest_collection_modifyitems", "pytest_pyfunc_call"]


def pytest_configure(config: pytest.Config) -> None:
    """Let samples be drawn."""
    config.pluginmanager.register(sampled)

"""What the session ``monitoring`` does for half an hour, in a minute."""

from __future__ import annotations

import monitoring
import pytest

pytestmark = [pytest.mark.apart, pytest.mark.lab]


def test_each_planted_loss_has_its_start_its_socket_and_its_cause() -> None:
    """A buffer made smaller, more packets than before, a reader that is stopped."""
    assert [] == monitoring.incidents(0.75)


@pytest.mark.long
def test_a_quiet_minute_fires_no_alert() -> None:
    """Under Debian's Prometheus, with a burst that is lost."""
    if monitoring.shutil.which("prometheus") is None:
        pytest.skip("needs prometheus: apt install prometheus")
    assert [] == monitoring.quiet(1)


@pytest.mark.long
def test_an_exporter_is_held() -> None:
    """A minute says that it can be, not that memory stays."""
    assert [] == monitoring.soak(0.5, 10)

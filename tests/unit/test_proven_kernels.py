"""Where proofs of the ledger are kept: by kernel build, and where only root and the user write."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from analysis.build import facts

from udpbench import proven_kernels
from udpbench.errors import RecordError
from udpbench.model.host import Facts
from udpbench.model.record import SelfTest, StageProof
from udpbench.proven_kernels import file_name, keep, kept, place

PROOF = StageProof("udp_no_port", 4, 100, 100, 0, ("receiver snmp.Udp.NoPorts",), "veth")
SELFTEST = SelfTest("6.18.0", "#1 SMP x86_64", "2026-11-22T16:00:00.000+00:00", "0.2.0", (PROOF,))


def host(kernel: str = "6.18.0", build: str = "#1 SMP x86_64") -> Facts:
    """Return the facts of a host with a kernel."""
    return facts("left", "eth2", "10.0.0.1/24", kernel=kernel, environment={"kernel_build": build})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of results, as root's and as a user's."""
    monkeypatch.setattr(proven_kernels, "SYSTEM", str(tmp_path / "udpbench/selftest"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "udpbench/selftest"


def test_a_result_is_read_back_for_the_same_build_alone(folder: Path) -> None:
    """A kernel built anew is one that was never tried."""
    assert None is kept(host())
    assert folder == keep(SELFTEST).parent
    assert SELFTEST == kept(host())
    assert [None] * 2 == [kept(host(kernel="6.18.1")), kept(host(build="#2 SMP x86_64"))]


def test_a_later_result_takes_the_place_of_an_earlier_one(folder: Path) -> None:
    """One file for each build."""
    keep(SELFTEST)
    later = replace(SELFTEST, tested_at="2026-11-23T16:00:00.000+00:00")
    keep(later)
    assert (later, 1) == (kept(host()), len(list(folder.iterdir())))


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"kernel": "6.18.0"', "\x00", "{" * 5000])
def test_a_damaged_result_is_none(text: str) -> None:
    """The next run suggests to try again, and that replaces it."""
    path = keep(SELFTEST)
    path.write_text(text)
    assert None is kept(host())
    assert SELFTEST == (keep(SELFTEST) and kept(host()))


def test_a_result_under_the_name_of_another_build_is_none() -> None:
    """What it says counts, not where it lies."""
    keep(SELFTEST).rename(place() / file_name("6.18.1", "#1 SMP x86_64"))
    assert None is kept(host(kernel="6.18.1"))


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_what_others_could_have_written_is_not_believed(mode: int) -> None:
    """Neither a file that they may write, nor one in a folder that they may."""
    path = keep(SELFTEST)
    path.chmod(mode)
    assert None is kept(host())
    path.chmod(0o644)
    assert SELFTEST == kept(host())
    path.parent.chmod(mode | 0o111)
    assert None is kept(host())


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """It may lead to what somebody else writes."""
    path = keep(SELFTEST)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert None is kept(host())


def test_what_cannot_be_kept_says_why(folder: Path, golden: Any) -> None:
    """A folder that others may write, or a file in its way."""
    keep(SELFTEST)
    folder.chmod(0o777)
    with golden.raises(RecordError):
        keep(SELFTEST)
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    folder.touch()
    with golden.raises(RecordError):
        keep(SELFTEST)


def test_root_and_users_have_places_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """By sudo root's, though HOME and the cache are still the user's."""
    monkeypatch.setenv("HOME", "/home/user")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    monkeypatch.setattr(proven_kernels, "SYSTEM", "/var/lib/udpbench/selftest")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert Path("/var/lib/udpbench/selftest") == place()
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert Path("/cache/udpbench/selftest") == place()
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert Path("/home/user/.cache/udpbench/selftest") == place()


def test_a_name_of_a_kernel_never_leads_out_of_the_folder() -> None:
    """A host that says what it likes."""
    names = [file_name(kernel, "") for kernel in ("../../etc/x", "", ".hidden", "a" * 999, "6.1/2")]
    assert all("/" not in name and not name.startswith(".") for name in names)
    assert [True] * 5 == [len(name) < 130 for name in names]
    assert file_name("6.1", "a") != file_name("6.1", "b")

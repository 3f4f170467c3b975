"""Which cells a campaign has, how each is known, and what of it is done."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaign_fixture import LAB, cells
from golden import Golden

from udpbench.campaign import cells as rules
from udpbench.campaign.cells import (
    CampaignFolder,
    CellResult,
    cells_of,
    identity_of,
    load_labs,
    store_result,
    stored_result,
    task_of,
)
from udpbench.definition.load import load_experiments
from udpbench.errors import InputError, RecordError
from udpbench.folder import Folder
from udpbench.protocol import build_id


def test_a_cell_is_each_experiment_on_each_pair() -> None:
    """Pair by pair, with a run folder that no other has."""
    names = [cell.folder.rpartition("-")[0] for cell in cells()]
    assert ["rack1/first", "rack1/second", "rack2/first", "rack2/second"] == names
    assert 4 == len({cell.folder for cell in cells()})


def test_a_cell_is_known_by_what_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comment is no other measurement; a value, the lab and the build are."""
    before = cells()[0].key
    Path("first.yaml").write_text("# A comment.\nquestion: First?\nduration: 5s\n")
    assert before == cells()[0].key
    keys = {before, cells("send.batch=64")[0].key}
    Path("racks/rack1.yaml").write_text(LAB.replace(".30/24", ".31/24"))
    keys.add(cells()[0].key)
    monkeypatch.setattr(rules, "build_id", lambda: "another")
    keys.add(cells()[0].key)
    assert 4 == len(keys)


def test_labs_are_named_by_patterns_too() -> None:
    """A shell that was told not to expand one leaves it to us; a file named twice is one pair."""
    named = load_labs(["racks/*.yaml", "racks/rack1.yaml", "local"])
    assert ["rack1", "rack2", "local"] == [lab.name for lab in named]


@pytest.mark.parametrize(
    "names", [["nowhere/*.yaml", "racks/rack9.yaml"], ["racks/rack1.yaml", "rack1.yaml"]]
)
def test_wrong_labs_are_all_named_at_once(names: list[str], golden: Golden) -> None:
    """A pattern without a file, a file that is not there, two pairs of one name."""
    Path("rack1.yaml").write_text(LAB)
    with golden.raises(InputError):
        load_labs(names)


def test_a_name_is_that_of_a_folder(golden: Golden) -> None:
    """And what contradicts a lab is said before any host is asked."""
    Path("racks/rack 3.yaml").write_text(LAB.replace("send0,", "send0, cpus: 0,"))
    with golden.raises(InputError):
        cells_of(
            load_experiments(["first.yaml"], ["send.cpus=7"]), load_labs(["racks/rack 3.yaml"])
        )


def test_a_task_is_texts_and_names() -> None:
    """Whatever a worker needs, and nothing that is executed."""
    with CampaignFolder.open(Path("out")) as campaign:
        cell = cells()[0]
        task = task_of(cell, campaign, share=True)
    assert {str, bool, list} == {type(value) for value in task.values()}
    assert ("question: First?\n", LAB) == (task["experiment_text"], task["lab_text"])
    assert (build_id(), [], True) == (task["build"], task["sets"], task["share"])


def test_a_program_starts_beside_the_file_that_names_it(tmp_path: Path) -> None:
    """Not beside the copy that the worker makes; a folder that the file names stays."""
    command = "receive: {command: [./server]"
    tasks = []
    with CampaignFolder.open(Path("out")) as campaign:
        for rest in ("}", ", folder: /opt}"):
            Path("first.yaml").write_text(f"question: First?\n{command}{rest}\n")
            tasks.append(task_of(cells()[0], campaign, share=False))
    assert [[f"receive.folder={tmp_path}"], []] == [task["sets"] for task in tasks]


def test_a_folder_belongs_to_one_controller(golden: Golden) -> None:
    """The other is refused; afterwards the folder is the same campaign's."""
    with CampaignFolder.open(Path("out")) as campaign:
        identity = campaign.identity
        with golden.raises(RecordError):
            CampaignFolder.open(Path("out"))
    with CampaignFolder.open(Path("out")) as again:
        assert identity == again.identity == identity_of(Path("out"))


def test_a_folder_that_cannot_be_made_is_refused(golden: Golden) -> None:
    """With the reason, and what to do."""
    Path("out").write_text("")
    with golden.raises(RecordError):
        CampaignFolder.open(Path("out"))


def test_a_folder_of_another_user_is_refused(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For users other than root too: what is in it would count as done, or be run."""
    Path("out").mkdir()
    monkeypatch.setattr(Folder, "other_writers", lambda _: ["belongs to user 12345"])
    with golden.raises(RecordError):
        CampaignFolder.open(Path("out"))
    assert [] == [*Path("out").iterdir()]


def test_a_cell_is_done_when_its_result_is_stored() -> None:
    """Beside its run: without that, or damaged, it is none."""
    cell = cells()[0]
    with CampaignFolder.open(Path("out")) as campaign:
        assert campaign.result_of(cell) is None
        campaign.keep(cell, {"run.jsonl": b"{}\n"})
        folder = Path("out") / cell.folder
        with Folder.open(folder) as held:
            store_result(held, CellResult(1))
        assert CellResult(1) == campaign.result_of(cell)
        for damaged in ("{}", "[]", "{"):
            (folder / "cell.json").write_text(damaged)
            assert stored_result(folder) is None
        (folder / "cell.json").unlink()
        campaign.keep(cell, {"cell.json": b'{"exit_code": 0, "reason": "", "chosen": true}'})
        (folder / "run.jsonl").unlink()
        assert campaign.result_of(cell) is None


def test_what_cannot_be_stored_says_so(golden: Golden) -> None:
    """A cell's folder in whose place there is a file."""
    cell = cells()[0]
    with CampaignFolder.open(Path("out")) as campaign:
        Path("out", cell.folder).parent.write_text("")
        with golden.raises(RecordError, key=cell.key):
            campaign.keep(cell, {"run.jsonl": b""})

"""What udpbench does not do: whoever looks for it by a key is led to the page with alternatives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from definition_fixture import refused
from golden import Golden

from udpbench.definition.elsewhere import SUBJECTS, elsewhere
from udpbench.definition.file_keys import ExperimentFile
from udpbench.definition.file_schema import keys_at

PAGE = Path(__file__).parents[3] / "docs" / "limits.md"


def test_every_subject_is_a_heading_of_the_page() -> None:
    """A link into the page leads to the paragraph."""
    headings = re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE)
    anchors = [heading.lower().replace(" ", "-") for heading in headings]
    assert [] == [subject.heading for subject in SUBJECTS if subject.heading not in anchors]


def test_a_word_stands_for_a_single_subject() -> None:
    """And is no key, which would never be unknown at its place."""
    words = [word for subject in SUBJECTS for word in subject.words.split()]
    assert len(words) == len(set(words))
    assert [] == [word for word in words if word in keys_at(ExperimentFile, ())]


@pytest.mark.parametrize(
    "text",
    [
        "traffic: {pcap: trace.pcap}",
        "traffic: {imix: true}",
        "traffic: {sizes: [64B, 1400B]}",
        "traffic: {flows: {group: 239.1.1.1}}",
        "traffic: {flows: {to: '239.1.1.1:5000'}}",
        "traffic: {flows: {to: '[ff02::1]:5000'}}",
        "traffic: {flows: {to: '10.0.0.2:5000'}}",
        "traffic: {protocol: quic}",
        "settings: {receiver: {link: {delay: 20ms}}}",
    ],
)
def test_the_error_points_to_the_page(text: str, golden: Golden) -> None:
    """The user need not hunt for it in the documentation."""
    golden.check(refused(text))


def test_other_words_have_no_subject() -> None:
    """They are misspelt, or unknown."""
    assert "" == elsewhere("bach")
    assert elsewhere("Source-IP").endswith("docs/limits.md#addresses-outside-the-lab")

"""The list of deliberate differences, as far as it can be held without FlashInfer: our side of it, and its page."""

from __future__ import annotations

import json

import pytest

from tests.oracle.differences import DOCUMENT, LIST, listed, ours, render
from tests.oracle.mutations import mutations

VERSIONS = ("0.6.13", "0.7.4")


def test_the_page_is_the_list() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == render(), "run python -m tests.oracle.differences"


@pytest.mark.parametrize("version", VERSIONS)
def test_mutations_have_names_of_their_own_and_are_many(version: str) -> None:
    names = [mutation.name for mutation in mutations(version)]
    assert len(names) == len(set(names)) > 200
    assert len({mutation.data for mutation in mutations(version)}) == len(names)


@pytest.mark.parametrize("version", VERSIONS)
def test_our_side_of_every_listed_difference_is_as_listed(version: str) -> None:
    by_name = {mutation.name: mutation for mutation in mutations(version)}
    rows = listed(version)
    assert rows.keys() <= by_name.keys()
    assert {name: ours(by_name[name], version).text() for name in rows} == {
        name: row.ours for name, row in rows.items()
    }


def test_every_row_is_on_the_page_once_under_a_reason_that_is_used() -> None:
    page, content = render(), json.loads(LIST.read_text(encoding="utf-8"))
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| document ")]
    assert len(rows) == len(content["differences"])
    assert {row["reason"] for row in content["differences"]} == set(content["reasons"])

from __future__ import annotations

from harness.plans.rendering import aligned, fields, printable, tactic_table


def test_columns_are_as_wide_as_their_widest_cell_and_lines_end_without_blanks() -> None:
    found = aligned(("name", "n"), [("a", 1), ("longer", 1000)], left=(0,))
    assert found == ["name       n", "a          1", "longer  1000"]
    assert fields([("a", 1), ("bcd", "")]) == ["a    1", "bcd"]


def test_a_missing_plan_is_a_dash() -> None:
    found = tactic_table({(1, 64, 32): 3, (256, 64, 32): 11, (1, 128, 32): 0})
    assert [line.split() for line in found[1:]] == [["1", "3", "0"], ["256", "11", "-"]]
    assert found[0].split()[3:] == ["64,32", "128,32"]


def test_many_shapes_become_several_tables_with_their_own_buckets() -> None:
    found = tactic_table({(m, n * 64, 32): n for n in range(1, 6) for m in ((1, 2) if n < 3 else (4,))}, columns=2)
    tables = "\n".join(found).split("\n\n")
    assert [[line.split()[0] for line in table.splitlines()[1:]] for table in tables] == [["1", "2"], ["4"], ["4"]]
    assert tables[2].splitlines()[0].split()[3:] == ["320,32"]


def test_what_would_steer_a_terminal_is_escaped() -> None:
    assert printable("a\x1b[31m\u202e\nb é") == "a\\x1b[31m\\u202e\\nb é"

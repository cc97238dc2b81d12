from __future__ import annotations

from harness.telemetry.procfs import ProcessId, Stat
from harness.telemetry.tree import descendants, related

ROOT = ProcessId(100, 50)


def row(pid: int, ppid: int, start: int, session: int | None = None, state: str = "S") -> Stat:
    leader = 1 if session is None else session
    return Stat(pid, "x", state, ppid, leader, leader, 1, start)


def table(*rows: Stat) -> dict[int, Stat]:
    return {stat.pid: stat for stat in rows}


def found(*rows: Stat, known: tuple[ProcessId, ...] = (), reaper: int | None = None) -> list[int]:
    return [process.pid for process in related(table(*rows), ROOT, known, reaper)]


def test_children_and_their_children_belong_to_it() -> None:
    assert found(row(100, 9, 50, 100), row(7, 100, 60), row(8, 7, 61), row(9, 1, 40)) == [7, 8, 100]


def test_a_member_of_the_session_belongs_to_it_when_its_parent_has_gone() -> None:
    assert found(row(101, 1, 55, session=100)) == [101]


def test_a_session_inside_the_tree_is_followed_when_its_leader_has_gone() -> None:
    worker = ProcessId(120, 60)
    assert found(row(100, 9, 50, 100), row(130, 1, 70, session=120), known=(worker,)) == [100, 130]


def test_a_known_daemon_stays_known() -> None:
    assert found(row(100, 9, 50, 100), row(140, 1, 70, session=140), known=(ProcessId(140, 70),)) == [100, 140]


def test_an_unknown_daemon_is_found_at_the_reaper() -> None:
    assert found(row(100, 9, 50, 100), row(140, 5, 70, session=140), reaper=5) == [100, 140]


def test_what_the_reaper_had_before_does_not_belong_to_it() -> None:
    assert found(row(100, 9, 50, 100), row(9, 5, 40, session=9), row(5, 1, 30), reaper=5) == [100]


def test_a_reused_root_pid_is_a_stranger_with_all_it_started() -> None:
    assert found(row(100, 9, 5000, 100), row(101, 100, 5001, session=100)) == []


def test_a_reused_pid_of_a_member_is_a_stranger() -> None:
    assert found(row(100, 9, 50, 100), row(140, 1, 9000, session=140), known=(ProcessId(140, 70),)) == [100]


def test_a_member_may_have_the_pid_of_an_earlier_member() -> None:
    assert found(row(100, 9, 50, 100), row(140, 100, 9000), known=(ProcessId(140, 70),)) == [100, 140]


def test_a_zombie_is_gone_but_its_children_are_not() -> None:
    assert found(row(100, 9, 50, 100, state="Z"), row(101, 100, 60, session=100)) == [101]


def test_descendants_leave_out_the_ancestor_and_zombies() -> None:
    rows = table(row(5, 1, 1), row(6, 5, 2), row(7, 6, 3), row(8, 7, 4, state="Z"), row(9, 8, 4), row(4, 1, 2))
    assert [process.pid for process in descendants(rows, 5)] == [6, 7, 9]

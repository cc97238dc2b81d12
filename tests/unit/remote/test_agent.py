"""What the agent answers, in process: versions, names, runs that are not there, and errors that stay what they were."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from harness import _onhost, canonical, keeper
from harness.agent.commands import answer
from harness.agent.values import PROTOCOL, FileRow, Packed, RunLine, Seen, pack_document, reply, unpack_document
from harness.config import HostConfig
from harness.errors import HarnessError, UsageError
from harness.holder import HolderRecord
from harness.runs import line
from harness.transport import framing


def ask(command: str, tmp_path: Path, **request: Any) -> dict[str, Any]:
    host = HostConfig(name="here", state_dir=str(tmp_path / "state"), lease_path=str(tmp_path / "lock"))
    return reply(answer(command, {"protocol": PROTOCOL, "host": asdict(host), **request}))


def started(tmp_path: Path, name: str, **changes: Any) -> Path:
    """A run's folder as its keeper leaves it. By default the keeper is this process, so it is alive."""
    me = HolderRecord.mine(name)
    state = keeper.KeeperState(me.pid, me.start_ticks, me.boot_id, name, "held", "2026-01-01T00:00:00Z")
    folder = tmp_path / "state" / name
    (folder / "bundle").mkdir(parents=True)
    (folder / keeper.STATE).write_bytes(canonical.dumps({**asdict(state), "supervisor": [1, 1], **changes}))
    return folder


def test_another_protocol_is_refused_at_both_ends() -> None:
    with pytest.raises(HarnessError, match="protocol 99"):
        reply(answer("list", {"protocol": 99}))
    with pytest.raises(UsageError, match="host prepare"):
        reply({"protocol": 99, "answer": {}})
    with pytest.raises(UsageError, match="protocol None"):
        reply("login banner")


def test_an_unknown_command_is_named_with_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=r"'dance'.*forget"):
        ask("dance", tmp_path)


def test_a_bug_of_the_agent_stays_a_bug_here(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="KeyError"):
        ask("poll", tmp_path)


@pytest.mark.parametrize("name", ["g4-none-there", "../etc", ".hidden", "a/b"])
def test_a_run_that_is_not_there_is_a_usage_error(tmp_path: Path, name: str) -> None:
    for command in ("poll", "stop", "pack"):
        with pytest.raises(UsageError) as caught:
            ask(command, tmp_path, run=name, since="", wait_s=0, how="now")
        assert caught.value.code == "no-such-run"


def test_forgetting_never_leaves_the_state_folder(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "state").mkdir()
    with pytest.raises(UsageError, match="not the name of a run"):
        ask("forget", tmp_path, run="../precious")
    assert (tmp_path / "precious").is_dir()


def test_a_run_that_goes_on_is_neither_packed_nor_forgotten(tmp_path: Path) -> None:
    folder = started(tmp_path, "g4-abc-1")
    for command in ("pack", "forget"):
        with pytest.raises(HarnessError, match="goes on") as caught:
            ask(command, tmp_path, run="g4-abc-1")
        assert caught.value.code == "still-running"
    assert folder.is_dir()


def test_an_ended_run_is_packed_with_sizes_and_digests_and_then_forgotten(tmp_path: Path) -> None:
    folder = started(tmp_path, "g4-abc-1", boot_id="another boot", phase="released")
    (folder / "bundle" / "legs").mkdir()
    (folder / "bundle" / "legs" / "a.json").write_bytes(b"{}\n")
    packed = Packed.from_json(ask("pack", tmp_path, run="g4-abc-1"))
    assert packed.files == [FileRow("legs/a.json", 3, canonical.sha256_bytes(b"{}\n"))]
    assert packed.keeper["phase"] == "released"
    ask("forget", tmp_path, run="g4-abc-1")
    ask("forget", tmp_path, run="g4-abc-1")
    assert not folder.exists()


def test_a_poll_answers_at_once_when_something_changed_and_else_waits_no_longer_than_asked(tmp_path: Path) -> None:
    folder = started(tmp_path, "g4-abc-1")
    first = Seen.from_json(ask("poll", tmp_path, run="g4-abc-1", since="", wait_s=3600))
    assert first.alive
    same = Seen.from_json(ask("poll", tmp_path, run="g4-abc-1", since=first.stamp, wait_s=0))
    assert same.stamp == first.stamp
    (folder / "progress.json").write_text('{"leg": 2, "phase": "load"}')
    moved = Seen.from_json(ask("poll", tmp_path, run="g4-abc-1", since=first.stamp, wait_s=3600))
    assert moved.progress == {"leg": 2, "phase": "load"}


def test_a_run_without_its_lease_is_refused_with_the_keepers_reason(tmp_path: Path) -> None:
    started(tmp_path, "g4-abc-1", phase="failed", code="lease-held", message="by somebody", supervisor=None)
    seen = Seen.from_json(ask("poll", tmp_path, run="g4-abc-1", since="", wait_s=0))
    assert seen.refused == ("lease-held", "by somebody")


def test_find_removes_what_was_never_started_and_keeps_the_rest(tmp_path: Path) -> None:
    started(tmp_path, "g4-abc-1")
    (tmp_path / "state" / "g4-abc-2").mkdir()
    (tmp_path / "state" / "g4-xyz-3").mkdir()
    assert ask("find", tmp_path, prefix="g4-abc") == {"runs": ["g4-abc-1"]}
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["g4-abc-1", "g4-xyz-3"]


@pytest.mark.parametrize(
    ("phase", "changes"),
    [("lost", {"start_ticks": 1}), ("lost", {"boot_id": None}), ("rebooted", {"boot_id": "another boot"})],
)
def test_a_keeper_that_vanished_is_listed_as_lost_or_as_of_another_boot(
    tmp_path: Path, phase: str, changes: dict[str, Any]
) -> None:
    started(tmp_path, "g4-abc-1", **changes)
    rows = [RunLine.from_json(row) for row in ask("list", tmp_path)["runs"]]
    assert [(row.run, row.phase, row.alive) for row in rows] == [("g4-abc-1", phase, False)]
    assert "attach" in line(rows[0])


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "legs/../../up", ""])
def test_a_file_outside_the_bundle_is_never_fetched(path: str) -> None:
    with pytest.raises(HarnessError, match="outside"):
        FileRow(path, 1, "a").checked()


def test_an_answer_with_other_fields_is_named() -> None:
    with pytest.raises(HarnessError, match="colour"):
        FileRow.from_json({"path": "a", "size": 1, "sha256": "b", "colour": "red"})


def test_a_plan_document_travels_unchanged() -> None:
    data = bytes(range(256)) * 10
    assert unpack_document(pack_document(data)) == data


def test_the_first_script_frames_as_the_agent_does() -> None:
    marker = framing.new_marker()
    for document in ({"b": [1, 2.5, None], "a": "grün \u2028"}, {}):
        assert _onhost.framed(document, marker) == framing.frame(document, marker)

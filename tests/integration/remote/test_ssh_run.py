"""Whole runs on a host behind a real sshd: as on this machine, and also when the link or the controller is lost."""

from __future__ import annotations

import ast
import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import canonical, lease, ports
from harness.errors import EXIT_FAIL, EXIT_PASS, EXIT_USAGE, EXIT_VOID, UsageError
from harness.holder import HolderRecord
from harness.transport.remote import Remote
from harness.verify import verify
from tests.integration.remote.conftest import LIMIT_S, TINY, Host, believe, prepare, prepare_again

CUT_SHORT = {"interrupted", "internal-error", "lease-released", "nothing-left", "run-ended", "supervisor-died"}
QUICK = ("gate.model_gate=false", "gate.sequential_requests=0")
SLOW = (*QUICK, "workload.points={2: 40}", "workload.output_tokens=64")


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


def bundle(folder: Path) -> Path:
    found = sorted((folder / "evidence").glob("g4-*"))
    assert len(found) == 1, found
    return found[0]


def under_load(host: Host, running: subprocess.Popen[str]) -> bool:
    if running.poll() is not None:
        raise AssertionError(running.communicate()[0])
    return bool(host.mine("harness.client"))


def assert_whole(code: int, said: str, folder: Path) -> None:
    """Sealed, and ended by itself with every leg. Whether a machine that others use gave valid numbers is not asked."""
    found = verify(bundle(folder))
    assert found.faults == ()
    assert found.verdict is not None
    assert not set(found.verdict["void"]) & CUT_SHORT, said
    assert code in (EXIT_PASS, EXIT_FAIL, EXIT_VOID), said


def assert_nothing_left(host: Host) -> None:
    until(lambda: not host.mine("harness.keeper"), "the keeper's end")
    for word in ("kernels.serve", "harness.supervisor", "harness.client", "harness.telemetry.sampler"):
        assert host.mine(word) == [], word
    assert not ports.listening(host.engine_port)
    assert list(host.state.iterdir()) == []
    with lease.acquire(host.lease, 1.0, HolderRecord.mine("test"), lambda _: None):
        pass


def layout(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def differing_fields(one: Any, two: Any, path: str = "") -> list[str]:
    """Where two documents differ in the names of their fields. Null and an empty list fit all: one run may be void."""
    if isinstance(one, dict) and isinstance(two, dict):
        names = [f"{path}.{name}" for name in sorted(one.keys() ^ two.keys())]
        common = sorted(one.keys() & two.keys())
        return names + [found for name in common for found in differing_fields(one[name], two[name], f"{path}.{name}")]
    if isinstance(one, list) and isinstance(two, list):
        return differing_fields(one[0], two[0], f"{path}[0]") if one and two else []
    same = type(one) is type(two) or one is None or two is None
    return [] if same else [path]


def test_a_remote_run_gives_the_bundle_of_a_local_one_and_the_same_plan(host: Host, tmp_path: Path) -> None:
    local, far = tmp_path / "local", tmp_path / "far"
    local.mkdir()
    far.mkdir()
    places = [f"host.port={host.engine_port}", f"host.lease_path={host.lease}", f"host.name={host.name}"]
    waits = "host.memory_return_timeout_s=60"  # both must be valid to have the same fields
    here = host.python("-m", "harness", "run", *TINY, waits, *places, f"host.state_dir={tmp_path / 'state'}", cwd=local)
    there = host.run("run", *TINY, waits, cwd=far)
    assert_whole(here.returncode, here.stdout + here.stderr, local)
    assert_whole(there.returncode, there.stdout + there.stderr, far)
    assert layout(bundle(far)) == layout(bundle(local))
    plans = [canonical.loads((bundle(folder) / "plan.json").read_bytes()) for folder in (local, far)]
    assert plans[0] == plans[1]
    verdicts = [json.loads((bundle(folder) / "verdict.json").read_bytes()) for folder in (local, far)]
    said = f"void here: {verdicts[0]['void']}, there: {verdicts[1]['void']}; bundles kept below {tmp_path}"
    assert differing_fields(*verdicts) == [], said
    codes = [
        [(check["code"], check["where"]) for check in verdict["checks"] if check["ok"] or check["code"] != "axis-null"]
        for verdict in verdicts
    ]
    assert codes[0] == codes[1], said
    assert str(host.home) not in (bundle(far) / "plan.json").read_text()
    assert str(host.home) in (bundle(far) / "command.json").read_text()
    assert_nothing_left(host)


@pytest.mark.slow
def test_a_link_that_is_cut_in_the_middle_is_opened_again_and_the_run_is_sealed(host: Host, tmp_path: Path) -> None:
    running = host.spawn("run", *TINY, *SLOW, cwd=tmp_path)
    until(lambda: under_load(host, running), "load")
    cut = host.connections()
    assert cut, "the controller has a connection"
    for process in cut:
        process.kill()
    said, _ = running.communicate(timeout=LIMIT_S)
    assert_whole(running.returncode, said, tmp_path)
    assert len(re.findall("lost the link to bench", said)) == 1, said
    assert "the link to bench is back" in said
    assert_nothing_left(host)


@pytest.mark.slow
def test_a_host_that_is_away_for_a_while_is_waited_for(host: Host, tmp_path: Path) -> None:
    running = host.spawn("run", *TINY, *SLOW, "host.connect_timeout_s=2", cwd=tmp_path)
    until(lambda: under_load(host, running), "load")
    host.stop()
    assert running.stdout is not None
    until(lambda: "lost the link" in (running.stdout.readline() if running.stdout else ""), "the loss")
    until(lambda: not host.mine("harness.keeper"), "the run's end without anybody to look")
    assert running.poll() is None
    host.start()
    said, _ = running.communicate(timeout=LIMIT_S)
    assert_whole(running.returncode, said, tmp_path)
    assert_nothing_left(host)


@pytest.mark.slow
def test_a_dead_controller_stops_nothing_and_the_same_command_attaches(host: Host, tmp_path: Path) -> None:
    first = host.spawn("run", *TINY, *SLOW, cwd=tmp_path)
    until(lambda: under_load(host, first), "load")
    first.kill()
    first.communicate()
    listed = host.run("status", cwd=tmp_path)
    assert re.search(r"g4-\S+  held since \S+: holds the lease, leg \d of \d", listed.stdout), listed.stdout
    assert "is held by" in listed.stdout
    second = host.run("run", *TINY, *SLOW, cwd=tmp_path)
    assert "attaching to the unfinished run" in second.stdout, second.stdout + second.stderr
    assert_whole(second.returncode, second.stdout + second.stderr, tmp_path)
    assert_nothing_left(host)


@pytest.mark.slow
def test_stop_and_attach_by_name_leave_a_sealed_void_bundle(host: Host, tmp_path: Path) -> None:
    first = host.spawn("run", *TINY, *SLOW, "workload.points={2: 400}", cwd=tmp_path)
    until(lambda: under_load(host, first), "load")
    first.kill()
    first.communicate()
    name = next(host.state.glob("g4-*")).name
    asked = host.run("stop", name[:16], "--now", cwd=tmp_path)
    assert asked.stdout.startswith(f"{name} stops now"), asked.stdout + asked.stderr
    done = host.run("attach", name, cwd=tmp_path)
    assert done.returncode == EXIT_VOID, done.stdout + done.stderr
    found = verify(bundle(tmp_path))
    assert found.outcome == "VOID"
    assert found.verdict is not None
    assert "interrupted" in found.verdict["void"]
    assert_nothing_left(host)
    again = host.run("attach", name, cwd=tmp_path)
    assert again.returncode == EXIT_USAGE
    assert "no-such-run" in again.stderr


@pytest.mark.slow
def test_ctrl_c_twice_stops_the_remote_run_now_and_seals_it_void(host: Host, tmp_path: Path) -> None:
    running = host.spawn("run", *TINY, *SLOW, "workload.points={2: 400}", cwd=tmp_path)
    until(lambda: under_load(host, running), "load")
    running.send_signal(signal.SIGINT)
    assert running.stdout is not None
    until(lambda: "Ctrl-C again" in (running.stdout.readline() if running.stdout else ""), "the question")
    running.send_signal(signal.SIGINT)
    said, _ = running.communicate(timeout=LIMIT_S)
    assert running.returncode == EXIT_VOID, said
    found = verify(bundle(tmp_path))
    assert found.verdict is not None
    assert "interrupted" in found.verdict["void"]
    assert_nothing_left(host)


def test_a_lease_that_somebody_holds_there_is_named_and_nothing_is_kept(host: Host, tmp_path: Path) -> None:
    with lease.acquire(host.lease, 1.0, HolderRecord.mine("another-run"), lambda _: None):
        done = host.run("run", *TINY, *QUICK, cwd=tmp_path)
    assert done.returncode == EXIT_USAGE, done.stdout + done.stderr
    for word in ("lease-held", "another-run", "since"):
        assert word in done.stderr, done.stderr
    assert list(host.state.iterdir()) == []
    assert not (tmp_path / "evidence").exists()


@pytest.mark.slow
def test_a_plan_document_of_this_machine_is_frozen_there(host: Host, tmp_path: Path) -> None:
    (tmp_path / "plans.json").write_text('{"_metadata": {"format": "other"}, "plans": []}')
    done = host.run("run", *TINY, *QUICK, "engine.plan=plans.json", cwd=tmp_path)
    assert done.returncode == EXIT_VOID, done.stdout + done.stderr
    kept = bundle(tmp_path) / "frozen-plans.json"
    assert kept.read_bytes() == (tmp_path / "plans.json").read_bytes()
    plan = json.loads((bundle(tmp_path) / "plan.json").read_bytes())
    assert plan["frozen_plan_sha256"] == canonical.sha256_file(kept)
    assert_nothing_left(host)


def test_a_host_that_was_not_prepared_is_refused_with_the_command_that_mends_it(bare: Host, tmp_path: Path) -> None:
    done = bare.run("run", *TINY, cwd=tmp_path)
    assert done.returncode == EXIT_USAGE, done.stdout + done.stderr
    assert "host-not-prepared" in done.stderr
    assert "python -m harness host prepare host=bench" in done.stderr


def test_a_host_with_other_sources_is_refused(bare: Host, tmp_path: Path) -> None:
    record = bare.home / ".local/share/nvfp4-gates/prepared/0123456789abcdef.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    done = bare.run("run", *TINY, cwd=tmp_path)
    assert done.returncode == EXIT_USAGE, done.stdout + done.stderr
    assert "host-other-sources" in done.stderr


def test_a_changed_host_key_is_refused_before_anything_is_sent(bare: Host, tmp_path: Path) -> None:
    (bare.root / "host_key").rename(bare.root / "old_key")
    believe(bare)
    bare.stop()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(bare.root / "host_key")], check=True)
    bare.start()
    done = bare.run("run", *TINY, cwd=tmp_path)
    assert done.returncode == EXIT_USAGE, done.stdout + done.stderr
    assert "ssh-host-key-changed" in done.stderr
    assert "SHA256:" in done.stderr


def test_an_unreachable_host_is_a_sentence_and_64(bare: Host, tmp_path: Path) -> None:
    bare.stop()
    done = bare.run("status", cwd=tmp_path)
    bare.start()
    assert done.returncode == EXIT_USAGE, done.stdout + done.stderr
    assert "unreachable" in done.stderr


def test_preparing_twice_sends_nothing_and_says_so(host: Host) -> None:
    again = prepare_again(host)
    assert again.returncode == 0, again.stderr
    assert "is prepared already" in again.stdout
    assert "sending" not in again.stdout
    record = ast.literal_eval(again.stdout.splitlines()[-1])
    assert Path(record["interpreter"]).is_file()
    assert (Path(record["sources_folder"]) / "harness" / "agent" / "__main__.py").is_file()


def test_where_a_start_file_spoils_sftp_files_go_through_the_shell(noisy: Host, tmp_path: Path) -> None:
    prepare(noisy)
    remote = Remote(noisy.config())
    data = bytes(range(256)) * 400
    try:
        with pytest.raises(UsageError, match="SFTP"), remote.connection() as connection:
            connection.put(data, str(noisy.home / "plain"))
        remote.put(data, str(noisy.home / "there"))
        assert (noisy.home / "there").read_bytes() == data
        digest = canonical.sha256_bytes(data)
        remote.get(str(noisy.home / "there"), tmp_path / "here", sha256=digest, size=len(data))
        assert (tmp_path / "here").read_bytes() == data
        with pytest.raises(UsageError, match="did not arrive whole"):
            remote.get(str(noisy.home / "there"), tmp_path / "other", sha256="0" * 64, size=len(data))
        with pytest.raises(UsageError, match="cannot be copied"):
            remote.get(str(noisy.home / "absent"), tmp_path / "other", sha256=digest, size=len(data))
    finally:
        remote.close()
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["here"]

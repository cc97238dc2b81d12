"""G3 against the real reference engine at rehearsal size: it passes, and fails where an arm selects other plans."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

from harness import ports
from harness.errors import EXIT_FAIL, EXIT_PASS, EXIT_USAGE
from harness.verify import verify

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300.0
TINY = (
    "gate=g3",
    "workload=rehearsal",
    "workload.input_tokens=32",
    "workload.output_tokens=4",
    "gate.sequential_requests=2",
    "engine.options.max_num_batched_tokens=32",
)


def command(root: Path, *overrides: str) -> list[str]:
    places = [f"host.{name}={root / name}" for name in ("lease_path", "state_dir", "cache_dir")]
    return [sys.executable, "-m", "harness", "run", *TINY, f"host.port={ports.free_port()}", *places, *overrides]


def run(root: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(root, *overrides), cwd=root, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def test_both_arms_select_the_frozen_map_and_launch_eight_gemms_a_forward(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == EXIT_PASS, done.stdout + done.stderr
    assert "kernel trace: the engine computes on the CPU" in done.stdout
    (root,) = (tmp_path / "evidence").glob("g3-*")
    found = verify(root)
    assert (found.outcome, found.faults) == ("PASS", ())
    assert found.verdict is not None
    held = {check["where"]: check for check in found.verdict["checks"] if check["code"] == "gemms-per-forward"}
    assert len(held) == 4
    for check in held.values():
        gemms, forwards = map(int, re.findall(r"(\d+) GEMMs in (\d+) forwards$", check["seen"])[0])
        assert gemms == 8 * forwards > 16
    alone = subprocess.run(
        [sys.executable, "-I", str(ROOT / "evidence" / "verify.py"), str(root)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (alone.returncode, alone.stdout.split(":")[0]) == (EXIT_PASS, "PASS"), alone.stdout + alone.stderr


def test_an_arm_that_selects_another_tactic_fails_the_gate_by_its_key(tmp_path: Path) -> None:
    """Somebody changes one tactic of the frozen document while the run goes on; it stays a valid document."""
    running = subprocess.Popen(
        command(tmp_path), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    deadline = time.monotonic() + LIMIT_S
    while not list((tmp_path / "state_dir").glob("g3-*/bundle/frozen-plans.json")):
        assert running.poll() is None, running.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (frozen,) = (tmp_path / "state_dir").glob("g3-*/plans/frozen.json")
    document = json.loads(frozen.read_bytes())
    plan = document["plans"][0]
    plan["tactic_id"] = 1 - plan["tactic_id"] if plan["tactic_id"] in (0, 1) else 0
    other = frozen.with_name("other.json")
    other.write_text(json.dumps(document))
    other.replace(frozen)
    said, _ = running.communicate(timeout=LIMIT_S)
    assert running.returncode == EXIT_FAIL, said
    (root,) = (tmp_path / "evidence").glob("g3-*")
    found = verify(root)
    assert found.verdict is not None
    assert (
        {"plan-oracle"}
        <= set(found.verdict["failed"])
        <= {
            *("plan-oracle", "plan-map", "plan-document", "plan-same-document"),
        }
    )
    key = f"1 with another tactic (M={plan['m_bucket']} N={plan['n']} K={plan['k']})"
    told = [check for check in found.verdict["checks"] if check["code"] == "plan-oracle" and not check["ok"]]
    assert {"structure-c2-A", "structure-c2-B"} <= {check["where"][3:] for check in told}
    assert all(check["seen"].endswith(f"0 extra, 0 missing, {key}") for check in told)
    assert found.verdict["plan_control"] == "FAIL"


def test_what_g3_cannot_look_at_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    urls = [f"engine.{arm}.flags.url=http://127.0.0.1:{port}" for arm, port in (("candidate", 9), ("baseline", 10))]
    elsewhere = subprocess.run(
        [sys.executable, "-m", "harness", "run", "gate=g3", "engine=openai", "engine.options.model=m", *urls],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert elsewhere.returncode == EXIT_USAGE, elsewhere.stdout + elsewhere.stderr
    assert "those of openai run elsewhere" in elsewhere.stderr
    (tmp_path / "x.json").write_text("{}")
    bad = run(tmp_path, "gate.traces.candidate.path=x.json", "gate.traces.candidate.forwards=1")
    assert bad.returncode == EXIT_USAGE
    assert "give the trace of a torch profiler" in bad.stderr
    assert not (tmp_path / "state_dir").exists()

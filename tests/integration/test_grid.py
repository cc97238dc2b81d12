"""A small grid against the real reference engine: refused, then overridden, sealed, verified, and still not binding."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness import canonical, ports
from harness.errors import EXIT_FAIL, EXIT_PASS, EXIT_USAGE
from harness.verify import verify

LIMIT_S = 900.0
TINY = (
    "gate=g5",
    "workload=rehearsal",
    "workload.input_tokens=32",
    "workload.output_tokens=4",
    "gate.concurrencies=[1,2]",
    "workload.points={1: 1, 2: 2}",
    "gate.repetitions=1",
    "gate.model_gate=false",
    "gate.sequential_requests=0",
    "engine.options.max_num_batched_tokens=32",
    "host.memory_return_timeout_s=180",  # others on the machine may hold memory for a while
)


def run(root: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    places = [f"host.{name}={root / name}" for name in ("lease_path", "state_dir", "cache_dir")]
    command = [sys.executable, "-m", "harness", "run", *TINY, f"host.port={ports.free_port()}", *places, *overrides]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_a_grid_without_its_gates_is_refused_and_with_an_override_never_binds(tmp_path: Path) -> None:
    refused = run(tmp_path)
    assert refused.returncode == EXIT_USAGE, refused.stdout
    assert "no sealed PASS bundle of G1, G2, G3, G4" in refused.stderr
    assert list(tmp_path.iterdir()) == []
    done = run(tmp_path, "gate.override=true")
    assert done.returncode in (EXIT_PASS, EXIT_FAIL), done.stdout + done.stderr
    said = "gate.override=true: started without a sealed PASS of G1, G2, G3, G4"
    assert said in done.stdout
    (root,) = (tmp_path / "evidence").glob("g5-*")
    found = verify(root)
    assert found.outcome in ("PASS", "FAIL"), found
    assert found.verdict is not None
    assert said in found.verdict["not_binding_because"]
    counts = found.verdict["counts"]
    assert (counts["timing"]["of"], counts["memory"]["of"]) == (40, 3)
    assert found.verdict["totals"]["legs"] == 4
    assert found.verdict["plan_control"] == "PASS"
    assert canonical.loads((root / "plan.json").read_bytes())["prerequisites"] == {"gates": {}, "overridden": said}
    assert f"**Never binding: {said}.**" in (root / "report.md").read_text()

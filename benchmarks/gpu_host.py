"""NVML on a real GPU host: does the sampler see what a process takes, and is the GPU idle again afterwards?

`python -m benchmarks.gpu_host [MIB]` needs PyTorch with a GPU. A child takes MIB of device memory and says so; the
sampler watches it as it watches an engine. Writes results/gpu_host.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness.telemetry import probe, procfs

RESULTS = Path(__file__).resolve().parent / "results"
TAKE = """
import sys, torch
kept = torch.empty(int(sys.argv[1]) << 20, dtype=torch.uint8, device="cuda")
kept.fill_(1)
torch.cuda.synchronize()
print("taken", flush=True)
sys.stdin.read()
"""


def watched(mib: int, folder: Path) -> dict[str, Any]:
    child = subprocess.Popen(
        [sys.executable, "-c", TAKE, str(mib)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    identity = procfs.identify(child.pid)
    assert identity is not None
    assert child.stdin is not None
    assert child.stdout is not None
    argv = [sys.executable, "-m", "harness.telemetry.sampler", "--pid", str(identity.pid)]
    argv += ["--start", str(identity.start_ticks), "--out", str(folder / "memory.jsonl")]
    argv += ["--gpu", str(folder / "gpu.jsonl"), "--summary", str(folder / "summary.json")]
    sampler = subprocess.Popen(argv)
    assert child.stdout.readline() == "taken\n"
    time.sleep(1.0)  # ten rows with the memory taken
    busy = probe.ask()
    child.stdin.close()
    child.wait()
    sampler.wait()
    rows = [json.loads(line) for line in (folder / "memory.jsonl").read_text().splitlines()]
    return {
        "asked_mib": mib,
        "peak_gpu_mib": max((row["gpu_mib"] for row in rows if row["gpu_mib"] is not None), default=None),
        "reasons": sorted({row["gpu_reason"] for row in rows if row["gpu_reason"]}),
        "rows": len(rows),
        "last_row_alive": rows[-1]["alive"],
        "summary": json.loads((folder / "summary.json").read_text()),
        "listed_while_busy": None if busy.processes is None else [list(one) for one in busy.processes],
        "child_pid": identity.pid,
    }


def seconds_until_idle(limit_s: float = 30.0) -> float | None:
    began = time.monotonic()
    while time.monotonic() - began < limit_s:
        if probe.ask().processes == ():
            return time.monotonic() - began
    return None


def main() -> int:
    before = probe.ask()
    with tempfile.TemporaryDirectory() as folder:
        found = watched(int(sys.argv[1]) if sys.argv[1:] else 4096, Path(folder))
    found |= {"device": before.identity, "idle_before": before.processes == (), "idle_again_s": seconds_until_idle()}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "gpu_host.json").write_text(json.dumps(found, indent=2, default=list) + "\n")
    print(json.dumps(found, indent=2, default=list))
    return 0


if __name__ == "__main__":
    sys.exit(main())

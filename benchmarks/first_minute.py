"""A newcomer's first minutes, measured: set-up of an empty environment, the default run, `verify` of its bundle.

`python -m benchmarks.first_minute [OVERRIDE…]` writes results/first_minute.{json,md}. Peak memory is the largest RSS
that any single process of the run had, looked at ten times a second from outside.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MIB = 1 << 20
TARGETS = {"set-up": "90 s, 500 MB", "default run": "300 s", "largest process": "1024 MiB", "verify": "5 s"}


def timed(argv: list[str], **options: Any) -> tuple[float, subprocess.CompletedProcess[str]]:
    began = time.monotonic()
    done = subprocess.run(argv, text=True, capture_output=True, check=False, **options)
    return time.monotonic() - began, done


def folder_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()) / 1e6


def run_watched(argv: list[str], cwd: Path, env: dict[str, str]) -> tuple[float, int, dict[str, float]]:
    """Wall seconds, exit code, and the largest RSS in MiB by module, of the run with its detached supervisor."""
    began = time.monotonic()
    peaks: dict[str, float] = {}
    with (cwd / "run.log").open("w") as log:
        running = subprocess.Popen(argv, cwd=cwd, env=env, stdout=log, stderr=log)
        while running.poll() is None:
            for process in psutil.process_iter(["cmdline", "memory_info"]):
                words = process.info["cmdline"] or []
                if "-m" in words and words[0].startswith(str(cwd)):
                    module = words[words.index("-m") + 1]
                    rss = process.info["memory_info"].rss / MIB
                    peaks[module] = max(peaks.get(module, 0.0), rss)
            time.sleep(0.1)
    return time.monotonic() - began, running.returncode, peaks


def measure(overrides: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = str(folder / "venv" / "bin" / "python")
        made_s, _ = timed([sys.executable, "-m", "venv", str(folder / "venv")])
        install_s, done = timed([python, "-m", "pip", "install", "-q", "-e", str(ROOT)])
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "XDG_STATE_HOME": str(folder / "state")}
        run_s, code, peaks = run_watched([python, "-m", "harness", "run", "gate=g4", *overrides], folder, env)
        print((folder / "run.log").read_text())
        bundle = next((folder / "evidence").glob("g4-*"))
        verify_s, checked = timed([python, "-m", "harness", "verify", str(bundle)], cwd=folder)
        verdict = json.loads((bundle / "verdict.json").read_text())
        return {
            "setup_s": made_s + install_s,
            "setup_mb": folder_mb(folder / "venv"),
            "run_s": run_s,
            "run_exit": code,
            "outcome": verdict["outcome"],
            "counts": verdict["counts"],
            "peak_rss_mib": dict(sorted(peaks.items())),
            "verify_s": verify_s,
            "verify_exit": checked.returncode,
            "bundle_kb": folder_mb(bundle) * 1000,
        }


def machine() -> str:
    model = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return f"{model[0] if model else platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def table(found: dict[str, Any]) -> str:
    worst = max(found["peak_rss_mib"].values())
    rows = [
        ("set-up", f"{found['setup_s']:.1f} s, {found['setup_mb']:.0f} MB"),
        ("default run", f"{found['run_s']:.0f} s"),
        ("largest process", f"{worst:.0f} MiB"),
        ("verify", f"{found['verify_s']:.2f} s"),
    ]
    counts = ", ".join(f"{kind} {item['pass']}/{item['of']}" for kind, item in found["counts"].items())
    peaks = ", ".join(f"{module} {peak:.0f}" for module, peak in found["peak_rss_mib"].items())
    lines = ["# The first minutes", "", f"{found['machine']}. One run; pip's cache was warm.", ""]
    lines += ["| what | measured | target |", "|---|---|---|"]
    lines += [f"| {name} | {value} | {TARGETS[name]} |" for name, value in rows]
    lines += [
        "",
        f"Outcome {found['outcome']} ({counts}); `verify` gave exit {found['verify_exit']} as the run had "
        f"{found['run_exit']}; the bundle has {found['bundle_kb']:.0f} kB.",
        f"Largest RSS in MiB by module: {peaks}.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    found = {"machine": machine(), **measure(sys.argv[1:])}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "first_minute.json").write_text(json.dumps(found, indent=2) + "\n")
    (RESULTS / "first_minute.md").write_text(table(found))
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

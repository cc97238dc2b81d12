"""Restarts: the same document gives the same tactics, in fresh interpreters and not only in fresh objects."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kernels.plans import oracle
from kernels.plans.log import parse_log
from kernels.plans.selected import map_sha256

PROGRAM = """
import os, sys
from kernels.plans import oracle
from kernels.plans.flashinfer import GB10_ORACLE
from kernels.plans.metadata import Metadata
from kernels.plans.settings import Settings
from kernels.tactics import CUTLASS_TACTICS
from kernels.warmup import PlanRuntime

def never(key):
    raise SystemExit(f"tuned {key}")

metadata = Metadata(
    architecture=121, build_id="b", cuda_driver="1", cuda_runtime="1", cutlass_version="1", delay_microseconds=5000,
    device_ordinal=0, gpu="NVIDIA GB10", tactic_descriptor_digest=CUTLASS_TACTICS.digest, tactic_set_version=2,
)
log = lambda line: print(line, file=sys.stderr)
settings = Settings.from_env(os.environ)
runtime = PlanRuntime(settings, metadata, CUTLASS_TACTICS, never, log, flashinfer_environment=GB10_ORACLE)
shapes = sorted({(n, k) for _, n, k in oracle.plans()})
with runtime.warmup(2048, shapes) as scope:
    for n, k in shapes:
        runtime.tactic(2048, n, k)
    scope.complete()
"""


def log_of_a_fresh_process(**variables: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("VT_")} | variables
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_six_fresh_frozen_processes_select_the_same_64_plans_and_leave_nothing_behind(tmp_path: Path) -> None:
    source, native = tmp_path / "flashinfer.json", tmp_path / "native" / "plans.json"
    source.write_bytes(oracle.document_bytes())
    paths = {"VT_FP4_FLASHINFER_CACHE_PATH": str(source), "VT_FP4_AUTOTUNE_CACHE_PATH": str(native)}
    logs = {log_of_a_fresh_process(VT_FP4_AUTOTUNE_CACHE_READONLY="1", **paths) for _ in range(6)}
    assert len(logs) == 1
    read = parse_log(logs.pop())
    assert map_sha256(read.selected) == oracle.manifest()["selected_map_sha256"]
    assert (read.loaded, read.tuned, read.saved, read.unexpected) == (64, 0, 0, ())
    assert [file.name for file in tmp_path.iterdir()] == ["flashinfer.json"]


def test_a_fresh_process_publishes_what_the_next_one_reads_without_the_source(tmp_path: Path) -> None:
    source, native = tmp_path / "flashinfer.json", tmp_path / "native" / "plans.json"
    source.write_bytes(oracle.document_bytes())
    log_of_a_fresh_process(VT_FP4_FLASHINFER_CACHE_PATH=str(source), VT_FP4_AUTOTUNE_CACHE_PATH=str(native))
    source.unlink()
    frozen = {"VT_FP4_AUTOTUNE_CACHE_PATH": str(native), "VT_FP4_AUTOTUNE_CACHE_READONLY": "1"}
    read = parse_log(log_of_a_fresh_process(**frozen))
    assert (read.mode, read.loaded_native, read.loaded_flashinfer, read.tuned) == ("read-only", 64, 0, 0)
    assert map_sha256(read.selected) == oracle.manifest()["selected_map_sha256"]

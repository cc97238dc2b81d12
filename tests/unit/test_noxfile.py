"""A green session means that something ran."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_a_missing_interpreter_fails_and_is_not_skipped() -> None:
    other = next(version for version in ("3.12", "3.13") if not sys.version.startswith(version))
    command = [sys.executable, "-m", "nox", "-f", str(ROOT / "noxfile.py"), "-s", f"tests_all-{other}"]
    done = subprocess.run(
        command, env={"PATH": "/nonexistent", "HOME": "/nonexistent"}, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0, done.stderr
    assert "not found" in done.stderr


def test_the_callers_switches_do_not_reach_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("noxfile_under_test", ROOT / "noxfile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("PYTHONPATH", "PYTHONHOME", "CUDA_VISIBLE_DEVICES", "VT_FP4_DIRECT_SF"):
        monkeypatch.setenv(name, "x")
    said: list[str] = []
    cleaned = module._clean(SimpleNamespace(log=said.append))
    assert {"PYTHONPATH", "PYTHONHOME", "CUDA_VISIBLE_DEVICES", "VT_FP4_DIRECT_SF"} <= cleaned.keys()
    assert set(cleaned.values()) == {None}
    assert "VT_FP4_DIRECT_SF" in said[0]

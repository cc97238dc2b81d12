"""Failures that people reported of autotune caches, as small files with the right behaviour."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kernels.errors import PlanDocumentError
from kernels.plans import oracle
from kernels.plans.flashinfer import GB10_ORACLE, match, read_upstream
from kernels.plans.flashinfer_key import RUNNER, Shape, key_text

SHAPE: Shape = (16, 4096, 2560)
KEY = key_text(*SHAPE)
THREE_PARTS = KEY[: -len(", ())")] + ")"
VARIANT = KEY[: -len("())")] + "(True,))"


def write(path: Path, entries: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"_metadata": GB10_ORACLE.stated(), **entries}))
    return path


def outcome(path: Path) -> object:
    """The plans, or why there are none."""
    try:
        return match(read_upstream(path), GB10_ORACLE, str(path))
    except PlanDocumentError as error:
        return error


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ([THREE_PARTS], "3 parts"),
        ([VARIANT], "extras (True,)"),
        ([KEY, VARIANT], "extras (True,)"),
        ([VARIANT, KEY], "extras (True,)"),
        ([KEY, "('fp4_gemm', " + "(" * 3000], "512 are allowed"),
        ([KEY, "('fp4_gemm', __import__('os').getcwd())"], "is required"),
    ],
)
def test_a01_keys_of_another_schema_or_variant_are_never_merged(tmp_path: Path, keys: list[str], reason: str) -> None:
    error = outcome(write(tmp_path / "x.json", {key: [RUNNER, 5] for key in keys}))
    assert isinstance(error, PlanDocumentError) and reason in error.message
    assert outcome(write(tmp_path / "x.json", {KEY: [RUNNER, 5]})) == {SHAPE: 5}


@pytest.mark.parametrize(
    "value", [["CutlassFp4GemmRunnerX", 7], [RUNNER, 32], [0, 7], [RUNNER, [7, 1]], [RUNNER, True], [RUNNER, -1]]
)
def test_a03_a_runner_is_a_name_and_never_the_first_there_is(tmp_path: Path, value: list[Any]) -> None:
    assert isinstance(outcome(write(tmp_path / "x.json", {KEY: value})), PlanDocumentError)


def test_a09_every_kind_of_damage_has_a_reason_of_its_own_and_leaves_the_file(tmp_path: Path) -> None:
    good = oracle.document_bytes()
    first = good.index(b'  "(')
    entry = good[first : good.index(b'  "(', first + 1)]
    damaged = {
        "empty": b"",
        "brace": b"{",
        "list": b"[]",
        "null": b"null",
        "trailing": good + b"{}",
        "twice": good[:first] + entry.replace(b"4\n", b"6\n") + good[first:],
        "flipped": good.replace(b"((1, 2560)", b"((1, 2561)"),
        "deep": b"[" * 1_000_000,
        "half": good[: len(good) // 2],
        "utf16": good.decode().encode("utf-16"),
        "bom": b"\xef\xbb\xbf" + good,
    }
    reasons = []
    for name, data in damaged.items():
        path = tmp_path / name
        path.write_bytes(data)
        error = outcome(path)
        assert isinstance(error, PlanDocumentError), name
        assert path.read_bytes() == data
        reasons.append(error.message.replace(str(path), "FILE"))
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "directory").mkdir()
    reasons += [str(outcome(tmp_path / name)) for name in ("fifo", "directory")]
    assert len(set(reasons)) == len(reasons) == 13


def test_a11_plans_of_another_gpu_are_refused_with_both_names(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(oracle.document_bytes().replace(b"NVIDIA GB10", b"NVIDIA RTX PRO 6000"))
    error = outcome(path)
    assert isinstance(error, PlanDocumentError)
    assert "gpu ('NVIDIA RTX PRO 6000' in the document, 'NVIDIA GB10' here)" in error.message

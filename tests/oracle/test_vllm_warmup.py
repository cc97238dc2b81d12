"""The real vLLM 0.25.0 warm-up over the real FlashInfer 0.6.13: where it keeps a document, when it publishes it, and
what it does with one that it cannot use. This is the life of the files that are read here."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from kernels.plans import flashinfer, oracle
from tests.oracle.flashinfer_env import FIRST, Sources, decode, encode
from tests.oracle.mutations import metadata

COLUMNS = sorted({(n, k) for _, n, k in oracle.plans()})
SAVED = oracle.document_bytes()[:-1]  # as saved there: without the final newline
WARM_UP: dict[str, Any] = {
    "do": "warm_up",
    "metadata": metadata(FIRST),
    "columns": COLUMNS,
    "max_m": 2048,
    "winners": [[*shape, tactic] for shape, tactic in oracle.plans().items()],
}


def warm_up(sources: Sources, document: bytes | None = None, **changes: Any) -> dict[str, Any]:
    given = {} if document is None else {"document": encode(document)}
    (answer,) = sources.ask(FIRST, [{**WARM_UP, **given, **changes}], "run_vllm_warmup.py")
    found: dict[str, Any] = answer
    return found


def said(answer: dict[str, Any], words: str) -> bool:
    return any(words in line for line in answer["log"])


def test_a_first_start_publishes_the_document_of_the_oracle(sources: Sources) -> None:
    answer = warm_up(sources)
    assert answer["outcome"] is None
    assert answer["timed"] == 2048
    assert decode(answer["document"]) == SAVED
    assert answer["beside"] == []
    assert answer["mode"] == 0o600  # whatever the umask: another user's server cannot read it
    factors = hashlib.sha256(str(["environment", "configuration"]).encode()).hexdigest()
    assert answer["path"] == f"flashinfer_autotune_cache/0.6.13/121a/{factors}/autotune_configs.json"


def test_a_second_start_times_nothing_and_still_replaces_the_file(sources: Sources) -> None:
    answer = warm_up(sources, SAVED)
    assert answer["timed"] == 0
    assert (answer["from_file"], answer["in_memory"]) == (64, 0)
    assert decode(answer["document"]) == SAVED
    assert answer["replaced"] is True


def test_a_missing_plan_alone_is_timed_and_added(sources: Sources) -> None:
    document = json.loads(SAVED)
    del document[list(document)[5]]
    answer = warm_up(sources, json.dumps(document, indent=2).encode())
    assert answer["timed"] == 32
    assert decode(answer["document"]) == SAVED


def test_another_machines_file_is_kept_and_called_loaded_though_nothing_of_it_is(sources: Sources) -> None:
    other = SAVED.replace(b"NVIDIA GB10", b"NVIDIA B200")
    answer = warm_up(sources, other)
    assert answer["timed"] == 2048
    assert (answer["from_file"], answer["in_memory"]) == (0, 64)
    assert decode(answer["document"]) == other
    assert said(answer, "created in a different environment")
    assert said(answer, "autotune cache loaded")


def test_a_malformed_file_ends_the_start_and_stays(sources: Sources) -> None:
    answer = warm_up(sources, SAVED[:500])
    assert answer["outcome"] == "JSONDecodeError"
    assert answer["timed"] == 0
    assert decode(answer["document"]) == SAVED[:500]


def test_a_warm_up_that_dies_half_way_leaves_half_a_document(sources: Sources) -> None:
    """Which imports as what it is, 32 plans: completeness is checked against the declared profiles, not the file."""
    answer = warm_up(sources, fail_after=2)
    assert answer["outcome"] == "RuntimeError"
    half = flashinfer.parse(decode(answer["document"]), flashinfer.GB10_ORACLE, "half").plans
    assert half == {shape: tactic for shape, tactic in oracle.plans().items() if shape[1:] in COLUMNS[:2]}
    assert len(half) == 32


def test_several_ranks_tune_in_memory_only(sources: Sources) -> None:
    answer = warm_up(sources, world_size=2)
    assert answer["timed"] == 2048
    assert answer["document"] is None


@pytest.mark.parametrize("change", [{"enabled": False}, {"capability": 80}])
def test_where_tuning_is_off_or_the_gpu_is_older_nothing_is_tuned_or_written(
    sources: Sources, change: dict[str, Any]
) -> None:
    answer = warm_up(sources, **change)
    assert answer["outcome"] is None
    assert answer["timed"] == 0
    assert answer["document"] is None


def test_an_override_names_the_root_and_our_reader_finds_the_document_there(sources: Sources, tmp_path: Path) -> None:
    answer = warm_up(sources, override=str(tmp_path))
    assert Path(answer["path"]).parent.parent == tmp_path
    read = flashinfer.read_upstream(Path(answer["path"]).parent)
    assert read.layout == "vllm-0.25"
    assert dict(flashinfer.match(read, flashinfer.GB10_ORACLE, "directory")) == oracle.plans()
    assert flashinfer.read_upstream(Path(answer["path"])).plans == read.plans

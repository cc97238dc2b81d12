"""The real tuner against ours over the 64 plans of the oracle: look-ups, round trips, the order of measurement."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from kernels.buckets import hybrid_m_bucket, tuning_buckets
from kernels.plans import flashinfer, oracle
from kernels.plans.metadata import Metadata
from kernels.plans.settings import DEFAULT_DELAY_US
from tests.oracle.flashinfer_env import FIRST, LATER, Sources, decode, encode
from tests.oracle.mutations import metadata

MAX_M = 10_000
TUNED_M = 2048
VERSIONS = (FIRST, LATER)
COLUMNS = sorted({(n, k) for _, n, k in oracle.plans()})
WINNERS = [[*shape, tactic] for shape, tactic in oracle.plans().items()]
CITED = {
    ("flashinfer", "flashinfer/autotuner.py"): "adaaabe452bc3a4d2aca72551d17093a0096aae761db73bfd3e643042420f692",
    (
        "vllm",
        "vllm/model_executor/warmup/kernel_warmup.py",
    ): "e5918ce5b2378e61e4507dffe332031237fd2f0a9fd8571d625d5b28d0682c17",
    (
        "vllm",
        "vllm/model_executor/warmup/flashinfer_autotune_cache.py",
    ): "fcdaf1135e3d9e2be619f423c80c3288397470e85823fc6315b36598ad3297b7",
}


def environment(version: str) -> flashinfer.Environment:
    return flashinfer.Environment(**metadata(version))


def exported(version: str) -> bytes:
    return flashinfer.export_flashinfer(oracle.plans(), environment(version), version)


def imported(document: bytes, version: str) -> dict[tuple[int, int, int], int]:
    return dict(flashinfer.parse(document, environment(version), "document").plans)


def tuned(sources: Sources, version: str) -> dict[str, Any]:
    """The answer to a warm-up of 2,048 rows, on a clock by which the oracle's plans win."""
    request = {"do": "tune", "metadata": metadata(version), "winners": WINNERS, "columns": COLUMNS, "max_m": TUNED_M}
    (answer,) = sources.ask(version, [request])
    found: dict[str, Any] = answer
    return found


@pytest.mark.parametrize(("owner", "path"), CITED)
def test_the_code_that_runs_is_the_code_that_was_read(sources: Sources, owner: str, path: str) -> None:
    root = sources.vllm if owner == "vllm" else sources.flashinfer(FIRST)
    assert hashlib.sha256((root / path).read_bytes()).hexdigest() == CITED[owner, path]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_m_up_to_ten_thousand_finds_what_our_bucket_and_plan_say(sources: Sources, version: str) -> None:
    request = {"do": "lookups", "document": encode(exported(version)), "metadata": metadata(version)}
    (answer,) = sources.ask(version, [{**request, "columns": COLUMNS, "max_m": MAX_M}])
    plans = imported(exported(version), version)
    for (n, k), found in zip(COLUMNS, answer, strict=True):
        assert found == [plans.get((hybrid_m_bucket(m), n, k)) for m in range(MAX_M + 1)]
        assert None not in found[: TUNED_M + 1]
        assert set(found[TUNED_M + 1 :]) == {None}


def test_the_oracle_is_our_export_is_what_the_real_tuner_saves_after_tuning(sources: Sources) -> None:
    saved = decode(tuned(sources, FIRST)["document"])
    assert saved == exported(FIRST)
    assert saved + b"\n" == oracle.document_bytes()


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_real_tuner_saves_is_imported_as_the_same_plans(sources: Sources, version: str) -> None:
    assert imported(decode(tuned(sources, version)["document"]), version) == oracle.plans()


def test_what_0_7_tuned_is_exported_again_with_how_it_was_measured(sources: Sources, tmp_path: Path) -> None:
    """Byte for byte but for the selection records, which say how the plans won and are not plans."""
    path = tmp_path / "autotune_configs.json"
    path.write_bytes(decode(tuned(sources, LATER)["document"]))
    read = flashinfer.read_upstream(path)
    again = flashinfer.export_flashinfer(read.plans, environment(LATER), LATER, policies=read.policies)
    saved, ours = json.loads(path.read_bytes()), json.loads(again)
    assert {key: value[:3] for key, value in saved.items() if key[0] == "("} == {
        key: value for key, value in ours.items() if key[0] == "("
    }
    probe = {"do": "probe", "document": encode(again), "metadata": metadata(LATER), "shapes": [*oracle.plans()]}
    (answer,) = sources.ask(LATER, [probe])
    assert len(answer["alone"]) == 64
    assert answer["timed"] == 0  # tuning mode trusts them, because they say that they were measured cold


def test_plans_that_do_not_say_how_they_were_measured_serve_in_0_7_and_are_timed_again_by_tuning(
    sources: Sources,
) -> None:
    document = encode(exported(LATER))
    probe = {"do": "probe", "document": document, "metadata": metadata(LATER), "shapes": [*oracle.plans()]}
    (answer,) = sources.ask(LATER, [probe])
    assert len(answer["alone"]) == 64
    assert answer["timed"] == 32


def test_a_managed_store_that_0_7_wrote_is_read_as_the_same_plans(sources: Sources, tmp_path: Path) -> None:
    request = {"do": "manage", "metadata": metadata(LATER), "winners": WINNERS, "columns": COLUMNS, "max_m": TUNED_M}
    (answer,) = sources.ask(LATER, [{**request, "root": str(tmp_path)}])
    first, second = answer["timed"]
    assert first == 64 * 33  # in this mode the default configuration, -1, is timed beside the 32
    assert second == 0
    read = flashinfer.read_upstream(tmp_path)
    assert read.layout == "managed-store"
    assert dict(flashinfer.match(read, environment(LATER), "store")) == oracle.plans()


@pytest.mark.parametrize("version", VERSIONS)
def test_tuning_times_every_tactic_of_every_bucket_in_ascending_order(sources: Sources, version: str) -> None:
    request = {"do": "tune", "metadata": metadata(version), "winners": [], "columns": COLUMNS, "max_m": TUNED_M}
    (answer,) = sources.ask(version, [request])
    order = [[m, n, k, tactic] for n, k in COLUMNS for m in tuning_buckets(TUNED_M) for tactic in range(32)]
    assert answer["timed"] == order
    assert len(order) == 2048


def test_of_equally_fast_tactics_the_lowest_id_is_kept(sources: Sources) -> None:
    request = {"do": "tune", "metadata": metadata(FIRST), "winners": [], "columns": COLUMNS[:1], "max_m": 4}
    (answer,) = sources.ask(FIRST, [request])
    assert set(imported(decode(answer["document"]), FIRST).values()) == {0}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_real_tuner_loads_our_export_and_saves_it_again_byte_for_byte(sources: Sources, version: str) -> None:
    document = exported(version)
    (answer,) = sources.ask(version, [{"do": "resave", "document": encode(document), "metadata": metadata(version)}])
    assert answer["loaded"] is True
    assert decode(answer["document"]) == document


def test_one_measurement_is_three_warm_ups_then_ten_calls_behind_a_delay(sources: Sources) -> None:
    """In this order exactly, with the delay that VT_FP4_AUTOTUNE_DELAY_US overrides and the counts that are written."""
    defaults: dict[str, Any] = {field: Metadata.__dataclass_fields__[field].default for field in ("warmups", "repeats")}
    (calls,) = sources.ask(FIRST, [{"do": "trace", "shape": [16, 5120, 6144], "tactic": 7}])
    warm_ups, timed = ["gemm 7"] * defaults["warmups"], ["gemm 7"] * defaults["repeats"]
    prologue = ["synchronise", f"delay {DEFAULT_DELAY_US}", "record"]
    # 20 ms between the events, shared by ten calls.
    assert calls == [*warm_ups, *prologue, *timed, "record", "synchronise", "elapsed", "returns 2.0"]


def test_a_save_onto_another_machines_file_mixes_both_under_its_metadata(sources: Sources) -> None:
    """Why a document is never merged here by what lies on disk alone."""
    other = json.loads(oracle.document_bytes())
    other["_metadata"]["gpu"] = "NVIDIA B200"
    kept = list(other)[-1]
    other = {key: other[key] for key in ("_metadata", kept)}
    request = {"do": "resave", "document": encode(oracle.document_bytes()), "onto": encode(json.dumps(other).encode())}
    (first,) = sources.ask(FIRST, [{**request, "metadata": metadata(FIRST)}])
    mixed = json.loads(decode(first["document"]))
    assert mixed["_metadata"]["gpu"] == "NVIDIA B200"
    assert len(mixed) == 65

"""The life of a plan runtime, with documents on disk and a tuner that records what it was asked."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.buckets import MAX_M, hybrid_m_bucket, tuning_buckets
from kernels.errors import CaptureMissError, FrozenMissError, KernelError, PlanDocumentError, SettingsError, TuningError
from kernels.plans import document, oracle, store
from kernels.plans.flashinfer import GB10_ORACLE
from kernels.plans.key import PlanKey
from kernels.plans.log import LazyMiss, PlanLog, parse_log
from kernels.plans.metadata import Metadata
from kernels.plans.selected import map_sha256
from kernels.plans.settings import Settings
from kernels.tactics import CUTLASS_TACTICS
from kernels.warmup import PlanRuntime

METADATA = Metadata(
    architecture=121,
    build_id="build-1",
    cuda_driver="13000",
    cuda_runtime="13000",
    cutlass_version="4.5.0",
    delay_microseconds=5000,
    device_ordinal=0,
    gpu="NVIDIA GB10",
    tactic_descriptor_digest=CUTLASS_TACTICS.digest,
    tactic_set_version=2,
)
SHAPES = ((5120, 6144), (14336, 5120))
ORACLE_SHAPES = ((5120, 6144), (5120, 17408), (14336, 5120), (34816, 5120))
TUNED = 11


class Process:
    """One process's runtime with its log and the keys that were tuned."""

    def __init__(self, env: dict[str, str], metadata: Metadata = METADATA, answer: object = TUNED) -> None:
        self.lines: list[str] = []
        self.tuned: list[PlanKey] = []
        self._answer = answer
        self.runtime = PlanRuntime(
            Settings.from_env(env),
            metadata,
            CUTLASS_TACTICS,
            self._tune,
            self.lines.append,
            env=env,
            flashinfer_environment=GB10_ORACLE,
        )

    def _tune(self, key: PlanKey) -> int:
        self.tuned.append(key)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer  # type: ignore[return-value]

    def serve(self, max_tokens: int = 8, shapes: tuple[tuple[int, int], ...] = SHAPES) -> Process:
        with self.runtime.warmup(max_tokens, shapes) as scope:
            for n, k in shapes:
                self.runtime.tactic(max_tokens, n, k)
            scope.complete()
        return self

    @property
    def log(self) -> PlanLog:
        return parse_log("".join(f"{line}\n" for line in self.lines))


@pytest.fixture
def native(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "plans.json"


@pytest.fixture
def oracle_path(tmp_path: Path) -> Path:
    path = tmp_path / "flashinfer.json"
    path.write_bytes(oracle.document_bytes())
    return path


def at(native: Path, **more: str) -> dict[str, str]:
    return {"VT_FP4_AUTOTUNE_CACHE_PATH": str(native), **more}


def frozen(native: Path, **more: str) -> dict[str, str]:
    return at(native, VT_FP4_AUTOTUNE_CACHE_READONLY="1", **more)


def plans_in(path: Path, metadata: Metadata = METADATA) -> dict[PlanKey, int]:
    return document.parse(path.read_bytes(), metadata, CUTLASS_TACTICS, "x")


def test_a_first_process_tunes_every_profile_once_and_publishes(native: Path) -> None:
    process = Process(at(native)).serve()
    assert len(process.tuned) == len(set(process.tuned)) == 8
    assert set(plans_in(native)) == set(process.tuned)
    log = process.log
    assert (log.mode, log.loaded, log.tuned, log.saved, log.rejected) == ("read-write", 0, 8, 8, 0)
    assert (log.max_tokens, log.profiles_requested, log.profiles_tuned, log.cached_plans) == (8, 8, 8, 8)
    assert log.native == str(native) and log.flashinfer == "" and log.unexpected == ()


def test_a_frozen_process_loads_what_was_published_and_tunes_nothing(native: Path) -> None:
    first = Process(at(native)).serve()
    before = native.read_bytes()
    processes = [Process(frozen(native)).serve() for _ in range(6)]
    for process in processes:
        assert process.tuned == []
        assert process.lines == processes[0].lines
        assert (process.log.mode, process.log.loaded_native, process.log.saved) == ("read-only", 8, 0)
        assert process.log.unexpected == process.log.lazy == ()
        assert process.log.selected == first.log.selected
    assert native.read_bytes() == before


def test_the_frozen_flashinfer_document_reads_as_64_64_0_0_and_the_published_map(
    native: Path, oracle_path: Path
) -> None:
    env = frozen(native, VT_FP4_FLASHINFER_CACHE_PATH=str(oracle_path))
    process = Process(env).serve(2048, ORACLE_SHAPES)
    log = process.log
    assert (log.loaded, log.loaded_flashinfer, log.loaded_native, log.rejected) == (64, 64, 0, 0)
    assert (log.tuned, log.saved, log.profiles_requested, log.cached_plans, log.max_tokens) == (0, 0, 0, 64, 2048)
    assert (log.delay_us, log.metadata) == (5000, METADATA.fingerprint())
    assert log.unexpected == log.lazy == ()
    assert map_sha256(log.selected) == oracle.manifest()["selected_map_sha256"]
    assert process.runtime.tactic(16, 5120, 6144) == 0
    assert process.tuned == [] and not native.exists()
    assert oracle_path.read_bytes() == oracle.document_bytes()


def test_flashinfer_plans_win_over_native_ones_and_are_published_with_them(native: Path, oracle_path: Path) -> None:
    old = {document.key_for(METADATA, 1, 5120, 6144): 31, document.key_for(METADATA, 1, 16, 16): 30}
    native.parent.mkdir()
    native.write_bytes(document.serialise(METADATA, CUTLASS_TACTICS, old))
    process = Process(at(native, VT_FP4_FLASHINFER_CACHE_PATH=str(oracle_path))).serve(2048, ORACLE_SHAPES)
    assert (process.log.loaded_flashinfer, process.log.loaded_native, process.log.saved) == (64, 1, 65)
    assert process.runtime.tactic(1, 5120, 6144) == oracle.plans()[1, 5120, 6144]
    assert process.tuned == []
    published = plans_in(native)
    assert published[document.key_for(METADATA, 1, 5120, 6144)] == oracle.plans()[1, 5120, 6144]
    assert published[document.key_for(METADATA, 1, 16, 16)] == 30


def test_a_frozen_process_with_a_gap_fails_at_the_opening_naming_shape_and_documents(native: Path) -> None:
    Process(at(native)).serve(4)
    process = Process(frozen(native))
    ran = False
    with pytest.raises(FrozenMissError) as caught, process.runtime.warmup(8, SHAPES):
        ran = True
    text = "NVFP4 frozen persistent cache miss before readiness: M=8 bucket=8 N=5120 K=6144 device=0 sm=121"
    assert caught.value.message.startswith(text) and str(native) in caught.value.message
    assert not ran and process.tuned == []


def test_a_frozen_process_never_tunes_before_within_or_after_its_warmup(native: Path) -> None:
    Process(at(native)).serve()
    process = Process(frozen(native))
    text = "NVFP4 frozen persistent cache miss before readiness: M=9 bucket=16 N=5120 K=6144 device=0 sm=121"
    with pytest.raises(FrozenMissError):
        process.runtime.tactic(1, 5120, 6144)
    with process.runtime.warmup(8, SHAPES) as scope:
        with pytest.raises(FrozenMissError):
            process.runtime.tactic(9, 5120, 6144)
        process.runtime.tactic(8, 5120, 6144)
        scope.complete()
    with pytest.raises(FrozenMissError) as caught:
        process.runtime.tactic(9, 5120, 6144)
    assert caught.value.message == text
    assert process.tuned == [] and process.log.lazy == ()
    assert process.runtime.stats.profiles_requested == process.runtime.stats.lazy_misses == 0


def test_a_gap_after_the_warmup_is_tuned_counted_and_told(native: Path) -> None:
    process = Process(at(native)).serve()
    assert process.runtime.tactic(9, 5120, 6144) == TUNED
    assert process.runtime.tactic(10, 5120, 6144) == TUNED
    assert process.log.lazy == (LazyMiss(9, 16, 5120, 6144, 0, 121),)
    assert process.runtime.stats.lazy_misses == 1
    assert process.log.unexpected == ()
    assert len(plans_in(native)) == 8


def test_a_gap_before_any_warmup_is_tuned_and_is_no_lazy_miss(native: Path) -> None:
    process = Process(at(native))
    process.runtime.tactic(3, 5120, 6144)
    assert process.lines == [] and process.runtime.stats.mode == "not-prepared"
    assert (process.runtime.stats.profiles_tuned, process.runtime.stats.lazy_misses) == (1, 0)


@pytest.mark.parametrize("error", [RuntimeError("engine died"), KeyboardInterrupt()])
def test_a_warmup_that_dies_publishes_nothing(native: Path, error: BaseException) -> None:
    process = Process(at(native))
    with pytest.raises(type(error)), process.runtime.warmup(8, SHAPES):
        process.runtime.tactic(8, 5120, 6144)
        raise error
    assert len(process.tuned) == 1 and not native.parent.exists()
    assert process.runtime.stats.scopes_completed == 0
    process.serve()
    assert len(plans_in(native)) == 8


def test_a_warmup_left_without_complete_publishes_nothing(native: Path) -> None:
    process = Process(at(native))
    with process.runtime.warmup(8, SHAPES) as scope:
        process.runtime.tactic(8, 5120, 6144)
    assert not native.parent.exists()
    with pytest.raises(KernelError) as caught:
        scope.complete()
    assert caught.value.code == "warmup-closed"


@pytest.mark.parametrize("rows", [None, 7])
def test_completing_without_a_gemm_of_the_maximum_rows_is_an_error(native: Path, rows: int | None) -> None:
    process = Process(at(native))
    with process.runtime.warmup(8, SHAPES) as scope:
        if rows is not None:
            process.runtime.tactic(rows, 5120, 6144)
        with pytest.raises(KernelError, match="8 were announced") as caught:
            scope.complete()
    assert caught.value.code == "warmup-incomplete"
    assert not native.parent.exists()


def test_a_warmup_inside_a_warmup_is_an_error_and_leaves_the_outer_one_usable(native: Path) -> None:
    process = Process(at(native))
    with process.runtime.warmup(8, SHAPES) as scope:
        with pytest.raises(KernelError) as caught, process.runtime.warmup(8, SHAPES):
            pass
        assert caught.value.code == "nested-warmup"
        process.runtime.tactic(8, 5120, 6144)
        scope.complete()
    assert len(plans_in(native)) == 8
    process.serve()
    assert process.runtime.stats.scopes_started == process.runtime.stats.scopes_completed == 2


def test_a_tuning_that_fails_at_completion_publishes_nothing(native: Path) -> None:
    process = Process(at(native), answer=RuntimeError("no tactic runs"))
    with process.runtime.warmup(8, SHAPES) as scope:
        with pytest.raises(TuningError, match=r"M=8 N=5120 K=6144.*no tactic runs"):
            process.runtime.tactic(8, 5120, 6144)
        with pytest.raises(TuningError):
            scope.complete()
    assert not native.parent.exists()
    assert process.runtime.stats.profiles_tuned == 0


@pytest.mark.parametrize("answer", [32, -1, True, None, 4.0])
def test_a_tuner_that_names_no_tactic_of_the_set_is_an_error(native: Path, answer: object) -> None:
    process = Process(at(native), answer=answer)
    with pytest.raises(TuningError) as caught:
        process.runtime.tactic(1, 5120, 6144)
    assert caught.value.code == "unknown-tactic"
    assert process.runtime.stats.selected_plans == ()


OTHER_GPU = replace(METADATA, gpu="NVIDIA RTX PRO 6000", architecture=120)


def test_a_document_of_another_gpu_is_left_alone_and_nothing_is_saved_beside_it(native: Path) -> None:
    Process(at(native), OTHER_GPU).serve()
    before = native.read_bytes()
    process = Process(at(native)).serve()
    assert process.log.mode == "read-write-native-rejected"
    assert (process.log.loaded, process.log.rejected, process.log.tuned, process.log.saved) == (0, 1, 8, 0)
    assert len(process.log.unexpected) == 1 and "metadata mismatch for architecture" in process.log.unexpected[0]
    assert native.read_bytes() == before
    assert process.runtime.stats.cache_documents_rejected == 1


def test_a_frozen_process_refuses_a_document_of_another_gpu(native: Path) -> None:
    Process(at(native), OTHER_GPU).serve()
    process = Process(frozen(native))
    with pytest.raises(PlanDocumentError) as caught:
        process.serve()
    assert caught.value.code == "metadata-mismatch" and process.tuned == []


def test_a_frozen_process_with_a_flashinfer_document_does_without_a_bad_native_one(
    native: Path, oracle_path: Path
) -> None:
    native.parent.mkdir()
    native.write_bytes(b"{")
    process = Process(frozen(native, VT_FP4_FLASHINFER_CACHE_PATH=str(oracle_path))).serve(2048, ORACLE_SHAPES)
    assert (process.log.mode, process.log.rejected) == ("read-only-native-rejected", 1)
    assert process.tuned == [] and native.read_bytes() == b"{"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"{}x", b"[" * 300_000])
def test_an_unusable_native_document_is_a_miss_for_a_writer_and_an_error_for_a_frozen_process(
    native: Path, data: bytes
) -> None:
    native.parent.mkdir()
    native.write_bytes(data)
    assert len(Process(at(native)).serve().tuned) == 8
    with pytest.raises(PlanDocumentError):
        Process(frozen(native)).serve()
    assert native.read_bytes() == data


def test_a_directory_at_the_native_path_is_a_miss_and_stays(native: Path) -> None:
    native.mkdir(parents=True)
    process = Process(at(native)).serve()
    assert process.log.mode == "read-write-native-rejected" and "is a directory" in process.log.unexpected[0]
    assert native.is_dir() and list(native.parent.iterdir()) == [native]


def test_a_faulty_flashinfer_document_stops_any_process_and_installs_nothing(native: Path, oracle_path: Path) -> None:
    broken = json.loads(oracle.document_bytes())
    broken[list(broken)[40]][1] = 32
    oracle_path.write_text(json.dumps(broken))
    for env in (at(native), frozen(native)):
        process = Process({**env, "VT_FP4_FLASHINFER_CACHE_PATH": str(oracle_path)})
        with pytest.raises(PlanDocumentError):
            process.serve()
        assert process.runtime.stats.selected_plans == () and process.tuned == []


def test_a_missing_flashinfer_document_is_named(native: Path, tmp_path: Path) -> None:
    absent = tmp_path / "absent.json"
    with pytest.raises(PlanDocumentError, match=r"absent\.json") as caught:
        Process(at(native, VT_FP4_FLASHINFER_CACHE_PATH=str(absent))).serve()
    assert caught.value.code == "absent"


def test_a_backend_without_a_flashinfer_environment_refuses_the_variable_at_once(native: Path) -> None:
    settings = Settings.from_env(at(native, VT_FP4_FLASHINFER_CACHE_PATH="/f"))
    with pytest.raises(SettingsError) as caught:
        PlanRuntime(settings, METADATA, CUTLASS_TACTICS, lambda key: 0, print, env={})
    assert caught.value.code == "no-flashinfer-environment"


def test_a_directory_that_cannot_be_made_costs_one_line_and_no_plan(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    target = tmp_path / "link" / "plans.json"
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    process = Process(at(target)).serve()
    assert (process.log.mode, process.log.saved, process.log.tuned) == ("read-write-save-failed", 0, 8)
    assert len(process.log.unexpected) == 1 and "could not publish native cache path=" in process.log.unexpected[0]
    assert process.runtime.tactic(3, 5120, 6144) == TUNED and len(process.tuned) == 8


def test_without_a_cache_root_there_is_one_warning_and_plans_stay_in_the_process() -> None:
    process = Process({}).serve()
    assert (process.log.mode, process.log.native, process.log.tuned, process.log.saved) == ("disabled", "", 8, 0)
    assert len(process.log.unexpected) == 1 and "HOME" in process.log.unexpected[0]


def test_the_default_document_lies_under_the_cache_root(tmp_path: Path) -> None:
    Process({"XDG_CACHE_HOME": str(tmp_path)}).serve()
    path = tmp_path / "vllm.cpp" / "nvfp4_autotune" / METADATA.namespace()
    assert len(plans_in(path)) == 8


def test_without_persistence_plans_are_tuned_once_and_no_file_is_touched(native: Path) -> None:
    process = Process(at(native, VT_FP4_PERSISTENT_CACHE="0")).serve()
    assert (process.log.mode, process.log.tuned, process.log.saved) == ("disabled", 8, 0)
    assert process.log.unexpected == ()
    assert not native.parent.exists() and not process.runtime.stats.persistent_cache_enabled


def test_without_the_plan_cache_every_gemm_runs_the_default_tactic_and_nothing_is_tuned(native: Path) -> None:
    process = Process(at(native, VT_FP4_PLAN_CACHE="0")).serve()
    assert {process.runtime.tactic(m, 5120, 6144) for m in (1, 8, 9000)} == {21}
    assert process.tuned == [] and process.runtime.stats.selected_plans == ()
    assert (process.log.mode, process.log.tuned, process.log.cached_plans) == ("disabled", 0, 0)
    assert not native.parent.exists()


def test_plans_that_others_published_meanwhile_are_kept_and_ours_win(native: Path) -> None:
    process = Process(at(native))
    with process.runtime.warmup(8, SHAPES) as scope:
        process.runtime.tactic(8, 5120, 6144)
        Process(at(native), answer=3).serve(16)
        scope.complete()
    published = plans_in(native)
    assert process.log.saved == len(published) == 10
    assert {key.m_bucket for key, tactic in published.items() if tactic == 3} == {16}


def test_a_miss_during_capture_is_refused_and_a_loaded_plan_is_served(native: Path) -> None:
    process = Process(at(native))
    with pytest.raises(CaptureMissError):
        process.runtime.tactic(8, 5120, 6144, capturing=True)
    process.serve()
    assert process.runtime.tactic(8, 5120, 6144, capturing=True) == TUNED


def test_threads_that_need_the_same_plan_tune_it_once(native: Path) -> None:
    process = Process(at(native)).serve()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda m: process.runtime.tactic(m, 5120, 6144), range(9, 17)))
    assert found == [TUNED] * 8
    assert process.runtime.stats.lazy_misses == len(process.log.lazy) == 1


def test_verbose_tuning_prints_one_line_a_profile(native: Path) -> None:
    process = Process(at(native, VT_FP4_AUTOTUNE_VERBOSE="1")).serve()
    assert sum(line.startswith("[VT_FP4_AUTOTUNE] set=full M=") for line in process.lines) == 8


def test_stats_tell_the_whole_state_and_do_not_change_afterwards(native: Path) -> None:
    process = Process(at(native))
    early = process.runtime.stats
    process.serve()
    stats = process.runtime.stats
    assert (early.scopes_started, early.selected_plans, early.mode) == (0, (), "not-prepared")
    assert (stats.scopes_started, stats.scopes_completed) == (1, 1)
    assert (stats.profiles_requested, stats.profiles_tuned, stats.profiles_saved) == (8, 8, 8)
    assert (stats.mode, stats.native_path, stats.flashinfer_path) == ("read-write", str(native), None)
    assert (stats.delay_microseconds, stats.read_only) == (5000, False)
    assert stats.metadata_fingerprint == METADATA.fingerprint()
    assert stats.selected_plans == process.log.selected


@pytest.mark.parametrize("shapes", [((5120, 6140),), ((0, 6144),)])
def test_a_declared_shape_that_no_plan_can_have_is_refused_before_the_warmup(
    native: Path, shapes: tuple[tuple[int, int], ...]
) -> None:
    with pytest.raises(PlanDocumentError, match="list of profiles"):
        Process(at(native)).runtime.warmup(8, shapes)


def test_metadata_that_is_not_of_the_tactics_in_use_is_refused_at_once(native: Path) -> None:
    with pytest.raises(SettingsError, match="tactic_descriptor_digest"):
        Process(at(native), replace(METADATA, tactic_descriptor_digest="0" * 16))


def test_a_document_that_turned_bad_during_the_warmup_is_not_overwritten(native: Path) -> None:
    process = Process(at(native))
    with process.runtime.warmup(8, SHAPES) as scope:
        process.runtime.tactic(8, 5120, 6144)
        native.parent.mkdir()
        native.write_bytes(b"{")
        scope.complete()
    assert (process.log.mode, process.log.saved) == ("read-write-save-failed", 0)
    assert native.read_bytes() == b"{"


def test_a_hit_takes_no_lock_and_looks_up_nothing_but_the_plan(native: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(at(native)).serve()
    monkeypatch.delattr(process.runtime, "cache")
    monkeypatch.delattr(process.runtime, "_lock")
    assert process.runtime.tactic(7, 5120, 6144) == process.runtime.tactic(8, 5120, 6144, capturing=True) == TUNED


@given(st.integers(-1, 12_000) | st.integers(-(2**40), 2**40))
def test_a_look_up_finds_for_any_row_count_what_its_bucket_has(m: int) -> None:
    process = Process({})
    buckets = tuning_buckets(MAX_M)
    process.runtime.cache.install({process.runtime.key(b, 5120, 6144): i % 32 for i, b in enumerate(buckets)})
    if not 0 <= m <= MAX_M:
        for ask in (partial(process.runtime.lookup, 0), process.runtime.tactic):
            with pytest.raises(KernelError) as caught:
                ask(m, 5120, 6144)
            assert caught.value.code == "m-out-of-range"
        return
    tactic = buckets.index(hybrid_m_bucket(m)) % 32
    assert process.runtime.lookup(0, m, 5120, 6144) == process.runtime.tactic(m, 5120, 6144) == tactic


def test_a_look_up_only_looks(native: Path) -> None:
    process = Process(at(native))
    assert process.runtime.lookup(0, 8, 5120, 6144) is None
    process.serve()
    assert process.runtime.lookup(0, 8, 5120, 6144) == TUNED
    assert process.runtime.lookup(1, 8, 5120, 6144) is None
    assert process.runtime.lookup(0, 9, 5120, 6144) is None
    assert process.runtime.lookup(0, 9000, 5120, 6144) is None
    assert len(process.tuned) == 8 and process.log.lazy == ()


def test_a_coroutine_gets_the_plan_and_an_open_warmup_sees_its_rows(native: Path) -> None:
    process = Process(at(native))
    with process.runtime.warmup(8, SHAPES) as scope:
        assert asyncio.run(process.runtime.tactic_async(8, 5120, 6144)) == TUNED
        scope.complete()
    assert len(plans_in(native)) == 8
    assert asyncio.run(process.runtime.tactic_async(9, 5120, 6144)) == TUNED
    assert len(process.log.lazy) == 1


def test_a_coroutine_gets_the_default_tactic_where_plans_are_bypassed(native: Path) -> None:
    process = Process(at(native, VT_FP4_PLAN_CACHE="0"))
    assert asyncio.run(process.runtime.tactic_async(8, 5120, 6144)) == 21
    assert process.runtime.lookup(0, 8, 5120, 6144) is None


@pytest.mark.parametrize("world_size", [2, 8, 0])
def test_tensor_parallelism_is_refused_with_a_sentence(world_size: int) -> None:
    with pytest.raises(SettingsError, match="serve with tensor parallelism 1") as caught:
        PlanRuntime(Settings(), METADATA, CUTLASS_TACTICS, lambda key: 0, print, env={}, world_size=world_size)
    assert caught.value.code == "tensor-parallel"


@pytest.mark.skip(reason="plans of several tensor-parallel ranks are refused; this is what they would have to prove")
def test_tensor_parallel_ranks_agree_on_every_tactic_and_publish_one_document() -> None:
    raise NotImplementedError


OTHER_ORDINAL = replace(METADATA, device_ordinal=1)


@pytest.mark.parametrize("other", [OTHER_GPU, OTHER_ORDINAL], ids=["another gpu", "another ordinal"])
def test_plans_of_another_device_never_end_up_under_this_ones_metadata(
    native: Path, other: Metadata, tmp_path: Path
) -> None:
    assert other.namespace() != METADATA.namespace()
    process = Process(at(native))
    with process.runtime.warmup(8, SHAPES) as scope:
        process.runtime.tactic(8, 5120, 6144)
        Process(at(native), other).serve()  # between our loading and our saving
        before = native.read_bytes()
        scope.complete()
    assert (process.log.mode, process.log.saved) == ("read-write-save-failed", 0)
    assert native.read_bytes() == before
    late = Process(at(native)).serve()
    assert (late.log.mode, late.log.saved, late.log.rejected) == ("read-write-native-rejected", 0, 1)
    assert native.read_bytes() == before


def test_a_complete_document_in_a_folder_nobody_can_write_is_no_failure(
    native: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Process(at(native)).serve()
    monkeypatch.setattr(store, "side_lock", None)
    process = Process(at(native)).serve()
    assert (process.log.mode, process.log.loaded, process.log.tuned, process.log.saved) == ("read-write", 8, 0, 8)


def test_what_a_later_version_added_survives_our_saving(native: Path) -> None:
    Process(at(native)).serve(4)
    later = json.loads(native.read_bytes())
    later["provenance"] = {"by": "2.0"}
    later["plans"][0]["time_us"] = 20.5
    native.write_text(json.dumps(later))
    assert Process(at(native)).serve(8).log.saved == 8
    published = json.loads(native.read_bytes())
    assert published["provenance"] == {"by": "2.0"} and published["plans"][0]["time_us"] == 20.5


def unusable_files(folder: Path) -> Iterator[Path]:
    """A complete document damaged in each of the ways that a disk, a copy or a hand can damage it."""
    good = folder / "good"
    Process(at(good)).serve()
    data = good.read_bytes()
    doubled = json.loads(data)
    doubled["plans"].append({**doubled["plans"][0], "tactic_id": 6})
    for name, content in {
        "empty": b"",
        "half": data[: len(data) // 2],
        "list": b"[]",
        "null": b"null",
        "trailing": data + b"x",
        "doubled field": data.replace(b'"plans":', b'"plans": [], "plans":'),
        "doubled plan": json.dumps(doubled).encode(),
        "flipped": data.replace(b'"CutlassFp4GemmRunner"', b'"CutlassFp4GemmRunnes"', 1),
        "deep": b"[" * 300_000,
    }.items():
        (folder / name).write_bytes(content)
        yield folder / name
    (folder / "directory").mkdir()
    os.mkfifo(folder / "fifo")
    with (folder / "200 MB").open("wb") as file:
        file.truncate(200_000_000)
    yield from (folder / "directory", folder / "fifo", folder / "200 MB")


def test_each_unusable_file_has_a_reason_of_its_own_and_stops_a_frozen_process_before_readiness(
    tmp_path: Path,
) -> None:
    reasons = {}
    for path in unusable_files(tmp_path):
        before = path.stat()
        frozen_process, writer = Process(frozen(path)), Process(at(path))
        with pytest.raises(PlanDocumentError) as caught:
            frozen_process.serve()
        reasons[path.name] = caught.value.message.replace(str(path), "")
        assert frozen_process.tuned == [] and frozen_process.runtime.stats.selected_plans == ()
        assert writer.serve().log.mode == "read-write-native-rejected" and len(writer.tuned) == 8
        assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert len(set(reasons.values())) == len(reasons) == 12, reasons

"""The plan runtime of one process: which tactic a GEMM runs, and the warm-up that settles it before serving.

Opening a warm-up loads the documents, its body runs one request of the maximum token count, `complete()` tunes what
is missing and publishes. A read-only process is frozen from the opening on: a missing plan is an error, never a tuning.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any

from kernels.buckets import hybrid_m_bucket, tuning_buckets
from kernels.errors import FrozenMissError, KernelError, SettingsError, TuningError, shown
from kernels.plans import log
from kernels.plans.cache import PlanCache, frozen_miss
from kernels.plans.document import check_shape, key_for
from kernels.plans.flashinfer import Environment
from kernels.plans.key import PlanKey
from kernels.plans.metadata import Metadata
from kernels.plans.selected import SelectedPlan, selected, selected_lines
from kernels.plans.session import Documents, Loaded
from kernels.plans.settings import Settings
from kernels.plans.table import ABSENT, PLACE_OF, Rows
from kernels.tactics import TacticSet

__all__ = ["PlanRuntime", "Stats", "WarmupScope"]
_NOTHING: Rows = {}


def _require_one_rank(world_size: int) -> None:
    if world_size != 1:
        raise SettingsError(
            "tensor-parallel",
            f"world_size={shown(world_size)}: plans are kept for one rank only. Tensor-parallel ranks would tune apart "
            "and run different tactics on shards of one GEMM; serve with tensor parallelism 1",
        )


@dataclass(frozen=True)
class _Counts:
    scopes_started: int = 0
    scopes_completed: int = 0
    profiles_requested: int = 0
    profiles_tuned: int = 0
    profiles_loaded: int = 0
    profiles_saved: int = 0
    lazy_misses: int = 0
    cache_documents_rejected: int = 0


@dataclass(frozen=True)
class Stats(_Counts):
    """Counters since the process began, and the plans it has. `profiles_requested` counts tunings begun,
    `profiles_tuned` those that chose a tactic (lazy ones included), `profiles_saved` plans in published documents,
    `documents_parsed` plan documents parsed, at whatever time."""

    documents_parsed: int = 0
    delay_microseconds: int = 0
    persistent_cache_enabled: bool = False
    read_only: bool = False
    mode: str = "not-prepared"
    native_path: str | None = None
    flashinfer_path: str | None = None
    metadata_fingerprint: str = ""
    selected_plans: tuple[SelectedPlan, ...] = ()


class PlanRuntime:
    """Chooses tactics for one device. `tune` times the tactics of a key and returns the winner's id; `log_line` prints
    one line to stderr; `env` gives XDG_CACHE_HOME and HOME; `world_size` is the number of tensor-parallel ranks;
    `plan_fields` is what a document shall say of a plan that was tuned here, beside the tactic.

    SettingsError when metadata does not describe `tactics`, the settings name no usable document, or there are several
    ranks (`tensor-parallel`).
    """

    def __init__(
        self,
        settings: Settings,
        metadata: Metadata,
        tactics: TacticSet,
        tune: Callable[[PlanKey], int],
        log: Callable[[str], None],
        *,
        env: Mapping[str, str] = os.environ,
        flashinfer_environment: Environment | None = None,
        world_size: int = 1,
        plan_fields: Callable[[PlanKey], Mapping[str, Any]] | None = None,
    ) -> None:
        _require_one_rank(world_size)
        metadata.check_tactics(tactics)
        self.settings = settings
        self.metadata = metadata
        self.tactics = tactics
        self.cache = PlanCache()
        self._tune = tune
        self._log = log
        self._documents = Documents(
            settings, metadata, tactics, log, env=env, environment=flashinfer_environment, plan_fields=plan_fields
        )
        self._lock = threading.Lock()
        self._counts = _Counts()
        self._device = metadata.device_ordinal
        self._identity = key_for(metadata, 1, 1, 16)[3:]
        self._bypass = None if settings.plan_cache else tactics.bypass_id
        table = self.cache.table(self._identity)
        self._plans, self._rows = table.plans, table.rows
        # What `tactic` may answer from without a further look: nothing while a warm-up watches or plans are bypassed.
        self._hot = self._rows if self._bypass is None else _NOTHING
        self._scope: WarmupScope | None = None
        self._served = False
        if settings.read_only:
            self.cache.freeze()

    def tactic(self, m: int, n: int, k: int, *, capturing: bool = False) -> int:
        """The tactic for `m` rows, `n` columns and reduction length `k`.

        A missing plan is tuned on the spot (a lazy miss once a warm-up has completed, with a log line), unless the
        process is frozen (FrozenMissError) or a graph is being captured (CaptureMissError). With VT_FP4_PLAN_CACHE=0
        it is always the set's default tactic, the fixed one that FlashInfer falls back to: nothing is tuned or kept.
        A hit takes no lock.
        """
        try:
            if m >= 0:  # -1 would be the last place
                tactic = self._hot[n][k][PLACE_OF[m]]
                if tactic != ABSENT:
                    return tactic
        except LookupError:
            pass
        at_once, key = self._watched(m, n, k)
        if at_once is not None:
            return at_once
        return self.cache.get(key, partial(self._tuned, key, m), capturing=capturing, m=m)

    async def tactic_async(self, m: int, n: int, k: int, *, capturing: bool = False) -> int:
        """`tactic` for a coroutine: a missing plan is tuned in a worker thread while the event loop goes on."""
        at_once, key = self._watched(m, n, k)
        if at_once is not None:
            return at_once
        return await self.cache.get_async(key, partial(self._tuned, key, m), capturing=capturing, m=m)

    def lookup(self, device: int, m: int, n: int, k: int) -> int | None:
        """The ready plan's tactic; None where there is none or `device` is not this runtime's ordinal.

        Only looks: never tunes, counts, locks or raises for a miss. KernelError `m-out-of-range` outside 0..2^31.
        """
        try:
            if device == self._device and m >= 0:
                tactic = self._rows[n][k][PLACE_OF[m]]
                if tactic != ABSENT:
                    return tactic
        except LookupError:
            pass
        return self._plans.get((hybrid_m_bucket(m), n, k)) if device == self._device else None

    def _watched(self, m: int, n: int, k: int) -> tuple[int | None, PlanKey]:
        """Tell an open warm-up of the GEMM; the bypass's tactic, if there is a bypass, and the key."""
        scope = self._scope
        if scope is not None:
            scope.observe(m)
        return self._bypass, self.key(m, n, k)

    def key(self, m: int, n: int, k: int) -> PlanKey:
        """The plan key under which `m` rows are tuned and looked up."""
        return PlanKey(hybrid_m_bucket(m), n, k, *self._identity)

    def warmup(self, max_tokens: int, shapes: Iterable[tuple[int, int]]) -> WarmupScope:
        """A scope for the profiles of batches up to `max_tokens` rows and these (N, K); open it with `with`."""
        return WarmupScope(self, max_tokens, shapes)

    @property
    def stats(self) -> Stats:
        documents = self._documents
        return Stats(
            **vars(self._counts),
            documents_parsed=documents.parsed,
            delay_microseconds=self.metadata.delay_microseconds,
            persistent_cache_enabled=self.settings.persistent,
            read_only=self.settings.read_only,
            mode=documents.mode,
            native_path=None if documents.native_path is None else str(documents.native_path),
            flashinfer_path=documents.flashinfer_path,
            metadata_fingerprint=self.metadata.fingerprint(),
            selected_plans=selected(self.cache.snapshot()),
        )

    def _count(self, **more: int) -> None:
        with self._lock:
            self._counts = replace(
                self._counts, **{name: getattr(self._counts, name) + by for name, by in more.items()}
            )

    def _tuned(self, key: PlanKey, m: int) -> int:
        check_shape(key.m_bucket, key.n, key.k, "a GEMM of the engine")
        lazy = self._served
        self._count(profiles_requested=1, lazy_misses=int(lazy))
        if lazy:
            self._log(log.lazy_miss_line(m, key))
        tactic = self._timed(key)
        self._count(profiles_tuned=1)
        if self.settings.autotune_verbose:
            self._log(log.tuned_line(key, tactic))
        return tactic

    def _timed(self, key: PlanKey) -> int:
        shape = f"M={key.m_bucket} N={key.n} K={key.k}"
        try:
            tactic = self._tune(key)
        except KernelError:
            raise
        except Exception as error:
            raise TuningError("tuning-failed", f"no tactic could be timed for {shape}: {error!r}") from error
        if tactic not in self.tactics:
            known = f"{self.tactics.runner} has {len(self.tactics)} tactics"
            raise TuningError("unknown-tactic", f"tuning {shape} chose {shown(tactic)}, but {known} and not that one")
        return tactic

    def _open(self, scope: WarmupScope) -> Loaded:
        with self._lock:
            if self._scope is not None:
                raise KernelError("nested-warmup", "a warm-up is already open on this runtime; close it first")
            self._scope = scope
            self._hot = _NOTHING
        try:
            self._count(scopes_started=1)
            loaded = self._documents.load(self.cache)
            self._count(profiles_loaded=loaded.plans, cache_documents_rejected=loaded.rejected)
            self._log(self._prepared(loaded))
            if self.settings.read_only:
                self._require(scope.declared)
        except BaseException:
            self._close()
            raise
        return loaded

    def _require(self, declared: tuple[PlanKey, ...]) -> None:
        for key in declared:
            if key not in self.cache:
                miss = frozen_miss(key)
                paths = f"native={self._documents.native_path or ''} flashinfer={self._documents.flashinfer_path or ''}"
                mend = "run once with VT_FP4_AUTOTUNE_CACHE_READONLY=0 to tune it, or give the complete document"
                raise FrozenMissError(miss.code, f"{miss.message}; absent from {paths}: {mend}")

    def _prepared(self, loaded: Loaded) -> str:
        return log.prepared_line(
            mode=self._documents.mode,
            native=self._documents.native_path,
            flashinfer=self._documents.flashinfer_path,
            loaded=(loaded.flashinfer, loaded.native),
            rejected=loaded.rejected,
            delay_us=self.metadata.delay_microseconds,
            metadata=self.metadata.fingerprint(),
            selected=len(self.cache),
        )

    def _finish(self, scope: WarmupScope, loaded: Loaded, before: Stats) -> None:
        if self.settings.plan_cache:
            for key in scope.declared:
                self.cache.get(key, partial(self._tuned, key, key.m_bucket))
        saved = self._documents.save(self.cache)
        self._count(scopes_completed=1, profiles_saved=saved)
        self._served = True
        stats = self.stats
        tuned = stats.profiles_tuned - before.profiles_tuned
        requested = stats.profiles_requested - before.profiles_requested
        plans = stats.selected_plans
        self._log(
            log.complete_line(
                mode=stats.mode,
                loaded=loaded.plans,
                tuned=tuned,
                rejected=loaded.rejected,
                saved=saved,
                selected=len(plans),
                metadata=stats.metadata_fingerprint,
            )
        )
        for line in selected_lines(plans).splitlines():
            self._log(line)
        self._log(log.warmup_line(scope.max_tokens, requested, tuned, len(plans)))

    def _close(self) -> None:
        with self._lock:
            self._scope = None
            self._hot = self._rows if self._bypass is None else _NOTHING


class WarmupScope:
    """One warm-up. Nothing is published unless `complete()` ran to its end."""

    def __init__(self, runtime: PlanRuntime, max_tokens: int, shapes: Iterable[tuple[int, int]]) -> None:
        self.max_tokens = max_tokens
        self.declared = tuple(sorted({runtime.key(m, n, k) for n, k in shapes for m in tuning_buckets(max_tokens)}))
        for key in self.declared:
            check_shape(key.m_bucket, key.n, key.k, "the warm-up's list of profiles")
        self._runtime = runtime
        self._loaded: Loaded | None = None
        self._before = runtime.stats
        self._state = "new"
        self._largest: int | None = None

    def observe(self, m: int) -> None:
        """Called for each GEMM while the scope is open."""
        if self._largest is None or m > self._largest:
            self._largest = m

    def __enter__(self) -> WarmupScope:
        if self._state != "new":
            raise KernelError("warmup-reused", "a warm-up scope opens once; ask the runtime for another")
        self._before = self._runtime.stats
        self._loaded = self._runtime._open(self)
        self._state = "open"
        return self

    def complete(self) -> None:
        """Tune or verify every declared profile, publish, and print the closing lines.

        KernelError `warmup-incomplete` when the body ran no GEMM of `max_tokens` rows, `warmup-closed` when the scope
        is not open or was completed; whatever tuning raises.
        """
        if self._state != "open" or self._loaded is None:
            raise KernelError("warmup-closed", f"complete() needs an open warm-up, this one is {self._state}")
        if self._largest is None or self._largest < self.max_tokens:
            seen = "no GEMM at all" if self._largest is None else f"at most {self._largest} rows"
            text = f"the warm-up request ran {seen}, {self.max_tokens} were announced; nothing is published"
            raise KernelError("warmup-incomplete", text)
        self._runtime._finish(self, self._loaded, self._before)
        self._state = "completed"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runtime._close()
        if self._state == "open":
            self._state = "cancelled"

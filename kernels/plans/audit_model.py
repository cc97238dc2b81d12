"""What the real FlashInfer would do with an autotune file, entry by entry: a model of its loader and its look-up.

Read from the sources of 0.6.13, 0.6.18 and 0.7.4. The oracle tests compare it with the real 0.6.13 and 0.7.4; 0.6.18
was compared once, over the mutated documents of both: 447, no difference. It models mm_fp4 on SM120/SM121 with the
runner lists a caller can pass, the hybrid buckets and no `tuning_buckets` of the caller's own. Nothing here decides
what this project accepts; `kernels.plans.flashinfer` does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernels.buckets import hybrid_m_bucket
from kernels.errors import KernelError, shown
from kernels.plans.flashinfer_key import OPERATION, RUNNER, claims_fp4, profile
from kernels.plans.upstream_tactics import UPSTREAM

__all__ = [
    "METADATA_FIELDS",
    "VERSIONS",
    "Entry",
    "Lookup",
    "Prediction",
    "assumed_environment",
    "lookup_key",
    "predict",
    "stated_metadata",
]

VERSIONS = ("0.6.13", "0.6.18", "0.7.4")
_FIELDS = ("flashinfer_version", "cuda_version", "cublas_version", "cudnn_version", "cudnn_frontend_version", "gpu")
METADATA_FIELDS: Mapping[str, tuple[str, ...]] = {
    "0.6.13": _FIELDS,
    "0.6.18": _FIELDS,
    "0.7.4": (*_FIELDS[:-1], "cutlass_dsl_version", "gpu"),
}
# Saved values after which 0.6.18 and later replace the file at their next save, instead of never touching it.
_INDETERMINATE = (None, "unknown", "None")
# How mm_fp4 of 0.7 times its tactics, and how it takes an entry that does not say how it was timed.
_TIMED = ("cuda_graph_profile_replays", 1, "l2_cache_policy", "cold")
_UNSAID = ("cuda_graph_profile_replays", 1, "l2_cache_policy", "hot")
_KEY = re.compile(
    r"\('fp4_gemm', '([^'\\]*)', \(\((\d+), (\d+)\), \((\d+), (\d+)\), \(-1, (\d+)\), \((\d+), (\d+)\), "
    r"(\(\)|\(0,\)|\(1,\)|\(-1,\)), \(0,\), \(-1, (\d+)\), \(0,\), \(0,\), \(-1,\)\), \(\)\)",
    re.ASCII,
)
_OTHER_RUNNER = re.compile(r"\( *'fp4_gemm' *, *'([^'\\]*)'")


@dataclass(frozen=True)
class Lookup:
    """What `search_cache` answers: a miss is `Lookup(False, 0, -1)`, which runs the first runner's fixed default."""

    hit: bool
    runner_index: int
    tactic: Any


MISS = Lookup(False, 0, -1)


@dataclass(frozen=True)
class Entry:
    """One entry of the file, in the file's order. `fate` is what becomes of it, `detail` a sentence about it.

    Fates: `hit`; `re-profiled` (a hit while serving, timed again while tuning); `wrong-runner` (another runner or
    another runner's number runs, silently); `default-config` (a negative id: a hit that runs the fixed default and
    keeps the shape from being tuned); `wrong-tactic` (true and false run as 1 and 0); `crash-at-gemm`; `skipped` (not
    used, without an error); `never-matched`; `other-runner` (of an FP4 runner that this model does not know);
    `crash-at-load`; `not-loaded` (after the entry at which loading stopped); `ignored` (the whole file is);
    `foreign` (another operation's).
    """

    key: str
    value: Any
    shape: tuple[int, int, int] | None
    fate: str
    detail: str = ""

    @property
    def fp4(self) -> bool:
        return claims_fp4(self.key)


@dataclass(frozen=True)
class Prediction:
    """`load`: `loaded`, `ignored` (metadata differs) or `raises`; `error` is then the exception's name.

    `detail` says why. `installed` is the tuner's map afterwards, also when loading raised half way. `duplicates` are
    keys that the file has twice: the last value counts, without a word.
    """

    version: str
    runners: tuple[str, ...]
    load: str
    error: str | None
    detail: str
    installed: Mapping[str, tuple[Any, Any]]
    entries: tuple[Entry, ...] = ()
    duplicates: tuple[str, ...] = ()
    policies: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def lookup(self, m: int, n: int, k: int, *, tuning: bool = False) -> Lookup:
        """What a GEMM of `m` rows is answered, its scales allocated as vLLM does (padded), alpha of 0 dimensions."""
        return _search(self, [lookup_key(runner, m, n, k) for runner in self.runners], tuning)[1]


def lookup_key(runner: str, m: int, n: int, k: int) -> str:
    """The text that mm_fp4's look-up builds for NVFP4; `k` in values. Scales are padded to 4 blocks and 128 columns."""
    return repr((OPERATION, runner, profile(hybrid_m_bucket(max(m, 0)), n, k), ()))


def assumed_environment(data: bytes, version: str) -> dict[str, str]:
    """The machine that wrote `data`, with FlashInfer `version` on it; a field the file leaves open is some text of its
    own, which only `*` matches."""
    stated = stated_metadata(data)
    wanted = {name: stated.get(name) for name in METADATA_FIELDS[version]}
    usable = {name: value for name, value in wanted.items() if isinstance(value, str) and value != "*"}
    return {**{name: f"(this machine's {name})" for name in wanted}, **usable, "flashinfer_version": version}


def stated_metadata(data: bytes) -> Mapping[str, Any]:
    """The file's `_metadata`; empty where there is none or the file cannot be decoded."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    saved = document.get("_metadata") if isinstance(document, dict) else None
    return saved if isinstance(saved, dict) else {}


def predict(
    data: bytes, version: str, environment: Mapping[str, str], runners: Sequence[str] = (RUNNER,)
) -> Prediction:
    """What FlashInfer `version` does with the file `data` where its own metadata is `environment`.

    `runners` are the class names that the caller offers, in order. KernelError `unknown-version` names those known.
    """
    if version not in VERSIONS:
        raise KernelError(
            "unknown-version", f"FlashInfer {shown(version)} is not modelled; known: {', '.join(VERSIONS)}"
        )
    duplicates: dict[str, None] = {}
    try:
        document = _decode(data, duplicates)
    except (ValueError, RecursionError) as error:
        return _stopped(version, runners, error, "the file cannot be decoded")
    try:
        verdict = _open(document, version, environment)
    except (TypeError, AttributeError, ValueError) as error:
        return _stopped(version, runners, error, "what FlashInfer takes for metadata or records is of the wrong type")
    if verdict:
        entries = tuple(Entry(key, value, _shape(key), "ignored") for key, value in document.items())
        return Prediction(version, tuple(runners), "ignored", None, verdict, {}, _foreign(entries), tuple(duplicates))
    return _install(document, version, tuple(runners), tuple(duplicates))


def _decode(data: bytes, duplicates: dict[str, None]) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in items:
            if key in found:
                duplicates[key] = None
            found[key] = value
        return found

    return json.loads(data.decode("utf-8"), object_pairs_hook=pairs)


def _stopped(version: str, runners: Sequence[str], error: Exception, detail: str) -> Prediction:
    return Prediction(version, tuple(runners), "raises", type(error).__name__, f"{detail}: {error}", {})


def _open(document: Any, version: str, environment: Mapping[str, str]) -> str:
    """Takes what is no entry out of `document`. The reason why the whole file is ignored, or nothing."""
    if not isinstance(document, dict):
        kind = TypeError if isinstance(document, list) else AttributeError
        raise kind(f"{type(document).__name__} where an object is required")
    saved, records = document.pop("_metadata", None), {}
    if version != "0.6.13":
        document.pop("_generation", None)
        records = document.pop("_records", {})
    if saved is not None:
        reason = _mismatch(saved, version, environment)
        if reason:
            return reason
    if not isinstance(records, dict):
        raise ValueError("_records is no object")
    return ""


def _mismatch(saved: Any, version: str, environment: Mapping[str, str]) -> str:
    if not isinstance(saved, dict):
        if version == "0.6.13":
            raise AttributeError(f"_metadata is {shown(saved)}")
        saved = {}
    differing = {
        name: saved.get(name)
        for name in METADATA_FIELDS[version]
        if saved.get(name) not in (environment.get(name), "*")
    }
    if not differing:
        return ""
    listed = ", ".join(
        f"{name} ({shown(value) if name in saved else 'absent'} in the file, {shown(environment.get(name))} there)"
        for name, value in differing.items()
    )
    if version == "0.6.13":
        return f"metadata differs: {listed}; nothing is loaded and nothing tuned is saved to this file"
    if all(value in _INDETERMINATE for value in differing.values()):
        return f"metadata is not definite: {listed}; nothing is loaded and the next save replaces the file"
    return f"metadata differs: {listed}; nothing is loaded and the file is never overwritten"


def _install(
    document: Mapping[str, Any], version: str, runners: tuple[str, ...], duplicates: tuple[str, ...]
) -> Prediction:
    installed: dict[str, tuple[Any, Any]] = {}
    policies: dict[str, tuple[Any, ...]] = {}
    skipped: set[str] = set()
    stop: tuple[str, Exception] | None = None
    for key, value in document.items():
        try:
            if not _take(key, value, version, installed, policies):
                skipped.add(key)
        except (IndexError, KeyError, TypeError, AttributeError) as error:
            stop = (key, error)
            break
    load, error_name, detail = "loaded", None, f"{len(installed)} entries"
    if stop is not None:
        load, error_name = "raises", type(stop[1]).__name__
        detail = f"loading stops at {shown(stop[0])}: {len(installed)} of {len(document)} entries stay installed"
    bare = Prediction(version, runners, load, error_name, detail, installed, (), duplicates, policies)
    entries = tuple(_entries(document, bare, skipped, stop))
    return Prediction(version, runners, load, error_name, detail, installed, entries, duplicates, policies)


def _take(
    key: str,
    value: Any,
    version: str,
    installed: dict[str, tuple[Any, Any]],
    policies: dict[str, tuple[Any, ...]],
) -> bool:
    """Install one entry as the loader does; False where it is skipped. Raises what the loader raises."""
    runner, tactic = value[0], value[1]
    if version != "0.6.13" and runner.startswith("Cudnn") and isinstance(tactic, int) and tactic >= 0:
        return False
    installed[key] = (runner, tactic)
    if version == "0.7.4" and len(value) > 2:
        # The entry is in already when a policy that is no sequence stops the loading.
        policies[key] = tuple(value[2])
    return True


def _entries(
    document: Mapping[str, Any], loaded: Prediction, skipped: set[str], stop: tuple[str, Exception] | None
) -> Iterable[Entry]:
    reached = True
    for key, value in document.items():
        shape = _shape(key)
        if stop is not None and key == stop[0]:
            reached = False
            yield Entry(key, value, shape, "crash-at-load", f"{type(stop[1]).__name__}: the value is {shown(value)}")
        elif not claims_fp4(key):
            yield Entry(key, value, None, "foreign")
        elif not reached:
            yield Entry(key, value, shape, "not-loaded")
        elif key in skipped:
            yield Entry(key, value, shape, "skipped", "integer tactics of cuDNN runners are dropped")
        else:
            yield Entry(key, value, shape, *_fate(key, loaded))


def _foreign(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    return tuple(entry if entry.fp4 else Entry(entry.key, entry.value, None, "foreign") for entry in entries)


def _fate(key: str, loaded: Prediction) -> tuple[str, str]:
    """Fate and detail of an installed FP4 entry, from the look-ups whose key it could answer."""
    parts = _KEY.fullmatch(key)
    named = _OTHER_RUNNER.match(key)
    if named is not None and named[1] != RUNNER:
        return "other-runner", f"it answers only calls that offer {named[1]}"
    if parts is None or (_shape(key) is None):
        return "never-matched", "keys are compared as text, and no NVFP4 call builds this one"
    if parts[9] == "(-1,)" and loaded.version != "0.7.4":
        return "never-matched", "alpha (-1,) is a key of 0.7"
    if RUNNER not in loaded.runners:
        return "never-matched", f"the caller does not offer {RUNNER}"
    keys = [key.replace(f"'{RUNNER}'", f"'{runner}'", 1) for runner in loaded.runners]
    answered, serving = _search(loaded, keys, tuning=False)
    _, tuning = _search(loaded, keys, tuning=True)
    value_runner, tactic = loaded.installed[key]
    if answered is not None and answered != key:
        return "never-matched", f"an entry of an earlier runner answers first: {shown(answered)}"
    if not serving.hit:
        return "skipped", f"the value names {shown(value_runner)}, the key {RUNNER}"
    if value_runner != RUNNER:
        ran = loaded.runners[serving.runner_index]
        return "wrong-runner", f"tactic {shown(tactic)} of {shown(value_runner)} runs on {ran}"
    fate, detail = _tactic_fate(tactic)
    if fate != "hit":
        return fate, detail
    if not tuning.hit:
        return "re-profiled", f"it does not say that it was timed {_TIMED[3]}-L2; used only while serving"
    return "hit", "" if parts[9] == "()" else f"only for calls whose alpha has the shape {parts[9]}"


def _tactic_fate(tactic: Any) -> tuple[str, str]:
    if isinstance(tactic, bool):
        return "wrong-tactic", f"{str(tactic).lower()} runs as tactic {int(tactic)}"
    # The kernel takes an int64: TVM FFI converts no float, text or null to it, and nothing beyond its range.
    if not isinstance(tactic, int) or not -(2**63) <= tactic < len(UPSTREAM):
        return "crash-at-gemm", f"tactic {shown(tactic)} is refused by the kernel at the first GEMM of this shape"
    if tactic < 0:
        return "default-config", f"tactic {tactic} runs the fixed default and the shape is never tuned"
    return "hit", ""


def _search(loaded: Prediction, keys: Sequence[str], tuning: bool) -> tuple[str | None, Lookup]:
    """The key that answers, and the answer. Before 0.6.18 a runner that is not offered is taken for the first one."""
    for index, key in enumerate(keys):
        if key not in loaded.installed:
            continue
        runner, tactic = loaded.installed[key]
        if loaded.version == "0.6.13":
            offered = list(loaded.runners)
            return key, Lookup(True, offered.index(runner) if runner in offered else 0, _tuples(tactic))
        if loaded.version == "0.7.4" and tuning and loaded.policies.get(key, _UNSAID) != _TIMED:
            continue
        if runner == loaded.runners[index]:
            return key, Lookup(True, index, _tuples(tactic))
    return None, MISS


def _shape(key: str) -> tuple[int, int, int] | None:
    """M bucket, N and K of a key that some NVFP4 call builds."""
    parts = _KEY.fullmatch(key)
    if parts is None or len(key) > 512 or re.search(r"[( ]0\d", key):
        return None
    m, packed, packed_b, n, scales_a, scales_b, columns, n_out = (int(parts[i]) for i in (2, 3, 4, 5, 6, 7, 8, 10))
    blocks = packed // 8
    good = (
        m >= 1
        and m <= 2**31
        and hybrid_m_bucket(m) == m
        and packed == packed_b > 0
        and packed % 8 == 0
        and n == n_out > 0
        and scales_a in (blocks, _padded(blocks, 4))
        and scales_b in (blocks, _padded(blocks, 4))
        and columns in (n, _padded(n, 128))
    )
    return (m, n, 2 * packed) if good else None


def _padded(size: int, step: int) -> int:
    return -(-size // step) * step


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value

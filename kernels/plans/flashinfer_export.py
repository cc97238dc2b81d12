"""Plans as a file that FlashInfer loads, finds and saves again byte for byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from kernels.errors import PlanDocumentError, shown
from kernels.plans.document import check_shape
from kernels.plans.flashinfer_file import GENERATION, METADATA, generation
from kernels.plans.flashinfer_key import RUNNER, Shape, key_text
from kernels.plans.upstream import Environment, Policy
from kernels.plans.upstream_tactics import FIRST_OF_07, KNOWN_VERSIONS, check_descriptors, release
from kernels.tactics import CUTLASS_TACTICS, TacticSet

__all__ = ["EXPORT_VERSIONS", "export_flashinfer"]

EXPORT_VERSIONS = KNOWN_VERSIONS
_Key = TypeVar("_Key", bound=tuple[int, ...])


def export_flashinfer(
    plans: Mapping[_Key, int],
    environment: Environment,
    version: str,
    *,
    tactics: TacticSet = CUTLASS_TACTICS,
    policies: Mapping[Shape, Policy] | None = None,
) -> bytes:
    """The file FlashInfer `version` would save in `environment`; no final newline, keys in text order.

    `plans`: keys that start with (M bucket, N, K), to ids of `tactics`. Keys are those of a 0-d alpha and of scales as
    swizzled buffers are allocated. `policies` (0.7 only) says how plans were measured, as in a document that was read.
    A plan without a policy is used by FlashInfer 0.7 as it is, except in tuning mode, which takes it for one measured
    with a hot L2 cache and times mm_fp4 again: no policy is invented for a plan that was measured elsewhere.

    PlanDocumentError: `unknown-version`, `version-mismatch`, `no-dsl-version` (0.7 ignores a file without it),
    `foreign-tactic` and `unknown-runner` (not tactics of FlashInfer's CUTLASS runner), `unknown-tactic`, `bad-shape`,
    `duplicate-plan`, `no-policy` (policies for 0.6, or for no plan).
    """
    newer = _check_target(environment, version)
    found = _shapes(plans)
    if tactics.runner != RUNNER:
        text = f"plans of {tactics.runner} mean nothing to FlashInfer: only those of {RUNNER} can be exported"
        raise PlanDocumentError("unknown-runner", text)
    check_descriptors(found, tactics, "export")
    measured = policies or {}
    if measured and (not newer or not measured.keys() <= found.keys()):
        text = f"policies are part of 0.7 entries and of plans that are exported; {version} got {shown(dict(measured))}"
        raise PlanDocumentError("no-policy", text)
    entries: dict[str, list[Any]] = {}
    for shape, tactic in found.items():
        how = [list(measured[shape])] if shape in measured else []
        entries[key_text(*shape)] = [RUNNER, tactic, *how]
    document: dict[str, Any] = {METADATA: _metadata(environment, newer), **dict(sorted(entries.items()))}
    if version != "0.6.13":
        document[GENERATION] = generation(document)
    return json.dumps(document, indent=2).encode()


def _check_target(environment: Environment, version: str) -> bool:
    if version not in EXPORT_VERSIONS:
        text = f"FlashInfer {shown(version)} cannot be written: its tactic list is not known to be ours"
        raise PlanDocumentError("unknown-version", f"{text}; known are {', '.join(EXPORT_VERSIONS)}")
    if environment.flashinfer_version not in (version, "*"):
        text = f"an environment of FlashInfer {environment.flashinfer_version} would ignore a file of {version}"
        raise PlanDocumentError("version-mismatch", f"{text}; export for the version that will read it")
    newer = (release(version) or (0, 0)) >= FIRST_OF_07
    if newer and environment.cutlass_dsl_version is None:
        text = f"FlashInfer {version} ignores a file without cutlass_dsl_version; state it, or * for any"
        raise PlanDocumentError("no-dsl-version", text)
    return newer


def _metadata(environment: Environment, newer: bool) -> dict[str, str]:
    stated = environment.stated()
    if not newer:
        stated.pop("cutlass_dsl_version", None)
    return stated


def _shapes(plans: Mapping[_Key, int]) -> dict[Shape, int]:
    found: dict[Shape, int] = {}
    for key, tactic in sorted(plans.items()):
        m, n, k = key[:3]
        check_shape(m, n, k, "export")
        if (m, n, k) in found:
            text = f"duplicate NVFP4 persistent plan key: export has M={m} N={n} K={k} twice, of two runtimes"
            raise PlanDocumentError("duplicate-plan", text)
        found[m, n, k] = tactic
    return found

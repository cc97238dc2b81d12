"""`plans import` and `plans export`: a document checked for a target, and written in another format."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from harness.errors import EXIT_PASS, UsageError
from harness.plans import targets
from harness.plans.loading import PlanFile, Shape, load, rows, shapes
from harness.plans.output import refuse_existing, refuse_source, write
from harness.plans.rendering import emit, fields
from kernels.plans import document as native
from kernels.plans import flashinfer
from kernels.plans.metadata import Metadata
from kernels.plans.selected import map_sha256
from kernels.tactics import CUTLASS_TACTICS, TacticSet

__all__ = ["export", "import_"]


def import_(options: argparse.Namespace) -> int:
    """The match with the target is demanded before anything is written; the whole map is converted, never a part."""
    if options.out is not None:
        refuse_existing(options.out, options.force)
        refuse_source(options.out, options.file)
    found = load(options.file)
    plans, metadata, tactics = (
        _for_this_machine(options, found) if options.target == "this" else _for_gb10(options, found)
    )
    if options.out is not None and metadata is not None:
        keyed = {native.key_for(metadata, *shape): tactic for shape, tactic in plans.items()}
        write(options.out, native.serialise(metadata, tactics, keyed), force=options.force)
    fingerprint = None if metadata is None else metadata.fingerprint()
    document = {
        "file": str(options.file),
        "fingerprint": fingerprint,
        "foreign": found.foreign,
        "format": found.format,
        "map_sha256": found.map_sha256,
        "metadata": None if metadata is None else metadata.to_json(),
        "out": None if options.out is None else str(options.out),
        "plan_count": len(plans),
        "plans": rows(plans),
        "target": options.target,
    }
    lines = [
        ("file", f"{options.file}: {found.title}"),
        ("target", f"{options.target}: every plan means there what it meant where it was tuned"),
        ("plans", len(plans)),
        ("foreign entries", f"{found.foreign} (not imported)"),
        ("selected-map SHA-256", found.map_sha256),
        ("metadata fingerprint", fingerprint or "none: give --out for a native document"),
        ("written", options.out or "nothing: give --out to write the native document"),
    ]
    emit(options, document, fields(lines))
    return EXIT_PASS


def export(options: argparse.Namespace) -> int:
    refuse_existing(options.out, options.force)
    refuse_source(options.out, options.file)
    found = load(options.file)
    environment = _export_environment(options, found)
    version = _export_version(options.to, environment)
    # Policies are part of 0.7 entries alone; 0.6 has no place for them.
    policies = found.upstream.policies if found.upstream is not None and options.to == "0.7" else {}
    tactics = CUTLASS_TACTICS if found.native is None else found.native.tactics
    data = flashinfer.export_flashinfer(
        dict(found.plans), environment, version, tactics=tactics, policies=dict(policies) or None
    )
    write(options.out, data, force=options.force)
    untimed = len(found.plans) - len(policies) if options.to == "0.7" else 0
    document = {
        "file": str(options.file),
        "foreign": found.foreign,
        "format": found.format,
        "map_sha256": _digest(found.plans),
        "metadata": environment.stated(),
        "out": str(options.out),
        "plan_count": len(found.plans),
        "version": version,
        "without_policy": untimed,
    }
    lines = [
        ("written", f"{options.out} for FlashInfer {version}"),
        ("plans", len(found.plans)),
        ("foreign entries", f"{found.foreign} (not exported)"),
        ("selected-map SHA-256", _digest(found.plans)),
    ]
    if untimed:
        lines.append(
            ("note", f"{untimed} plans do not say how they were timed: 0.7 uses them, but times them when tuning")
        )
    emit(options, document, fields(lines))
    return EXIT_PASS


def _for_this_machine(
    options: argparse.Namespace, found: PlanFile
) -> tuple[Mapping[Shape, int], Metadata | None, TacticSet]:
    meant = [name for name in ("env", "like", "cuda", "driver", "cutlass", "build_id") if getattr(options, name)]
    if meant:
        text = f"--{meant[0].replace('_', '-')} describes a target, and this machine describes itself"
        raise UsageError("usage", f"{text}; add --target gb10")
    metadata, tactics = targets.this_machine()
    if found.upstream is not None:
        text = f"{options.file} has plans of {flashinfer.RUNNER}; this machine's backend runs {tactics.runner}"
        raise UsageError("no-flashinfer-environment", f"{text} ({metadata.gpu}); name the target: --target gb10")
    parsed = native.parse(found.data or b"", metadata, tactics, str(options.file))
    return shapes(parsed), metadata, tactics


def _for_gb10(options: argparse.Namespace, found: PlanFile) -> tuple[Mapping[Shape, int], Metadata | None, TacticSet]:
    environment = targets.gb10_environment(options.env)
    if "*" in environment.stated().values():
        raise UsageError("bad-value", "--env …='*': a target has definite values; only files may leave a field open")
    name = str(options.file)
    if found.upstream is None:
        metadata = targets.gb10_metadata(options, environment)
        return shapes(native.parse(found.data or b"", metadata, CUTLASS_TACTICS, name)), metadata, CUTLASS_TACTICS
    plans = flashinfer.match(found.upstream, environment, name, CUTLASS_TACTICS)
    asked = options.out is not None or options.like is not None
    return plans, targets.gb10_metadata(options, environment) if asked else None, CUTLASS_TACTICS


def _export_environment(options: argparse.Namespace, found: PlanFile) -> flashinfer.Environment:
    """The target's or the document's own, with the version it is exported for and --env on top.

    An upstream document must be usable where it says it was tuned: what its ids mean has to be known.
    """
    stated: Mapping[str, Any] = {}
    if found.native is not None:
        stated = {"gpu": found.native.metadata.gpu}
    elif found.upstream is not None:
        stated = found.upstream.metadata or {}
        own = targets.gb10_environment(()) if options.target == "gb10" else targets.from_settings(stated, ())
        flashinfer.match(found.upstream, own, str(options.file), CUTLASS_TACTICS)
    settings = [*_version_default(options.to), *options.env]
    if options.target == "gb10":
        environment = targets.gb10_environment(settings)
    else:
        environment = targets.from_settings(stated, settings)
    if options.to == "0.7" and environment.cutlass_dsl_version is None:
        text = "FlashInfer 0.7 ignores a file without cutlass_dsl_version and nothing states it"
        raise UsageError("missing-field", f"{text}; give --env cutlass_dsl_version=…, or '*' for any")
    return environment


def _version_default(to: str) -> list[tuple[str, str]]:
    return [("flashinfer_version", "0.6.13" if to == "0.6.13" else "0.7.4")]


def _export_version(to: str, environment: flashinfer.Environment) -> str:
    version = environment.flashinfer_version
    if version == "*":
        return dict(_version_default(to))["flashinfer_version"]
    if to == "0.6.13" and version != "0.6.13":
        raise UsageError("version-mismatch", f"--to {to} with --env flashinfer_version={version}; drop one of them")
    if to == "0.7" and not version.startswith("0.7."):
        raise UsageError("version-mismatch", f"--to {to} with --env flashinfer_version={version}; drop one of them")
    return version


def _digest(plans: Mapping[Shape, int]) -> str:
    return map_sha256((*shape, tactic) for shape, tactic in plans.items())

"""Which environment a document is to fit: this machine's backend, or a target named on the command line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace

from harness.errors import UsageError
from harness.plans.loading import load_native
from kernels.plans.flashinfer import GB10_ORACLE, Environment
from kernels.plans.metadata import Metadata
from kernels.plans.settings import Settings
from kernels.tactics import CUTLASS_TACTICS, TacticSet

__all__ = ["changed", "from_settings", "gb10_environment", "gb10_metadata", "this_machine"]

GB10_ARCHITECTURE = 121
_NAMES = tuple(entry.name for entry in fields(Environment))
_STATED = (
    ("cuda", "cuda_runtime"),
    ("driver", "cuda_driver"),
    ("cutlass", "cutlass_version"),
    ("build_id", "build_id"),
)


def this_machine() -> tuple[Metadata, TacticSet]:
    """What this machine's backend binds native documents to, with the switches of this shell. It is the CPU's."""
    from kernels.backends import cpu

    return cpu.metadata(Settings.from_env(os.environ)), cpu.CPU_TACTICS


def changed(environment: Environment, settings: Iterable[tuple[str, str]]) -> Environment:
    """`environment` with the fields of --env. UsageError `unknown-field` names those there are."""
    return replace(environment, **_checked(settings))


def from_settings(stated: Mapping[str, object], settings: Iterable[tuple[str, str]]) -> Environment:
    """An environment of stated metadata and --env. UsageError `missing-field` where both leave a field open."""
    found = {name: value for name, value in stated.items() if name in _NAMES and isinstance(value, str)}
    found |= _checked(settings)
    missing = [name for name in _NAMES if name not in found and name != "cutlass_dsl_version"]
    if missing:
        text = f"nothing states {', '.join(missing)} of FlashInfer's metadata"
        raise UsageError("missing-field", f"{text}; give {' '.join(f'--env {name}=…' for name in missing)}")
    return Environment(**found)


def gb10_environment(settings: Iterable[tuple[str, str]]) -> Environment:
    """The environment in which vLLM 0.25.0 served on a GB10, with the fields of --env."""
    return changed(GB10_ORACLE, settings)


def gb10_metadata(options: argparse.Namespace, environment: Environment) -> Metadata:
    """Native metadata of a GB10 process: from --like, or from the options that state what no FlashInfer file says.

    UsageError `missing-metadata` names every option that is needed and was not given; nothing is invented.
    """
    if options.like is not None:
        found = load_native(options.like)
        if found.tactics is not CUTLASS_TACTICS or found.metadata.gpu != environment.gpu:
            text = f"{options.like} is of {found.metadata.gpu} with {found.tactics.runner}"
            raise UsageError("wrong-target", f"{text}, the target is {environment.gpu} with {CUTLASS_TACTICS.runner}")
        return found.metadata
    stated = {name: getattr(options, option) for option, name in _STATED}
    missing = [f"--{option.replace('_', '-')}" for option, name in _STATED if not stated[name]]
    if missing:
        text = f"a native document for {environment.gpu} also states its build: give {', '.join(missing)}"
        mend = "--like NATIVE, any native document that the target process wrote"
        raise UsageError("missing-metadata", f"{text}, or {mend}; a FlashInfer file does not know them")
    return Metadata(
        architecture=GB10_ARCHITECTURE,
        delay_microseconds=options.delay_us,
        device_ordinal=options.device,
        gpu=environment.gpu,
        tactic_descriptor_digest=CUTLASS_TACTICS.digest,
        tactic_set_version=CUTLASS_TACTICS.version,
        **stated,
    )


def _checked(settings: Iterable[tuple[str, str]]) -> dict[str, str]:
    given = dict(settings)
    unknown = sorted(given.keys() - set(_NAMES))
    if unknown:
        raise UsageError("unknown-field", f"--env {unknown[0]}: FlashInfer's metadata has {', '.join(_NAMES)}")
    return given

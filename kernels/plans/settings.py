"""The `VT_FP4_…` environment, and where the native document lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernels.errors import SettingsError, shown
from kernels.plans.metadata import Metadata

__all__ = ["DEFAULT_DELAY_US", "MAX_DELAY_US", "NativeTarget", "Settings", "native_path"]

DEFAULT_DELAY_US = 5_000
MAX_DELAY_US = 1_000_000
_WORDS = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
_READ_ONLY = "VT_FP4_AUTOTUNE_CACHE_READONLY"
_NATIVE = "VT_FP4_AUTOTUNE_CACHE_PATH"
_FLASHINFER = "VT_FP4_FLASHINFER_CACHE_PATH"


@dataclass(frozen=True)
class Settings:
    """One process's switches. Empty variables mean the default.

    `plan_cache` False is the stronger bypass: no plan is kept, loaded or tuned, every GEMM runs the backend's default
    tactic. `persistent_cache` False keeps plans in the process only. Either one leaves the paths, the read-only switch
    and the delay at their defaults without looking at the variables. `direct_sf` and `autotune_verbose` always count.
    """

    persistent_cache: bool = True
    plan_cache: bool = True
    autotune_cache_path: str | None = None
    flashinfer_cache_path: str | None = None
    read_only: bool = False
    delay_us: int = DEFAULT_DELAY_US
    direct_sf: bool = True
    autotune_verbose: bool = False

    @property
    def persistent(self) -> bool:
        """Whether plan documents are read or written at all."""
        return self.persistent_cache and self.plan_cache

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Settings:
        """SettingsError `bad-switch`, `bad-delay` or `bad-path` names the variable, its value and what is accepted."""
        always = cls(
            persistent_cache=_switch(env, "VT_FP4_PERSISTENT_CACHE", True),
            plan_cache=_switch(env, "VT_FP4_PLAN_CACHE", True),
            direct_sf=_switch(env, "VT_FP4_DIRECT_SF", True),
            autotune_verbose=_switch(env, "VT_FP4_AUTOTUNE_VERBOSE", False),
        )
        if not always.persistent:
            return always
        return cls(
            autotune_cache_path=_path(env, _NATIVE),
            flashinfer_cache_path=_path(env, _FLASHINFER),
            read_only=_switch(env, _READ_ONLY, False),
            delay_us=_delay(env, "VT_FP4_AUTOTUNE_DELAY_US"),
            direct_sf=always.direct_sf,
            autotune_verbose=always.autotune_verbose,
        )


@dataclass(frozen=True)
class NativeTarget:
    """Where the native document is read and published; `path` None means nowhere, and `reason` says why."""

    path: Path | None
    reason: str | None = None


def native_path(settings: Settings, metadata: Metadata, env: Mapping[str, str]) -> NativeTarget:
    """VT_FP4_AUTOTUNE_CACHE_PATH, else `${XDG_CACHE_HOME:-$HOME/.cache}/vllm.cpp/nvfp4_autotune/<namespace>`.

    A relative root counts as unset (XDG base directory rule). SettingsError `no-plan-source` for a read-only process
    that has neither a native path nor a FlashInfer one.
    """
    if not settings.persistent:
        switch = "VT_FP4_PERSISTENT_CACHE=0" if settings.plan_cache else "VT_FP4_PLAN_CACHE=0"
        return NativeTarget(None, switch)
    if settings.autotune_cache_path is not None:
        return NativeTarget(Path(settings.autotune_cache_path))
    root = _cache_root(env)
    if root is not None:
        return NativeTarget(root / "vllm.cpp" / "nvfp4_autotune" / metadata.namespace())
    reason = f"neither XDG_CACHE_HOME nor HOME is a usable absolute path; set one of them or {_NATIVE}"
    if settings.read_only and settings.flashinfer_cache_path is None:
        raise SettingsError(
            "no-plan-source", f"{_READ_ONLY}=1 but there is no plan document: {reason} or {_FLASHINFER}"
        )
    return NativeTarget(None, reason)


def _cache_root(env: Mapping[str, str]) -> Path | None:
    for name, below in (("XDG_CACHE_HOME", ""), ("HOME", ".cache")):
        value = env.get(name, "")
        if value.startswith("/") and _fits_a_line(value):
            return Path(value) / below
    return None


def _switch(env: Mapping[str, str], name: str, default: bool) -> bool:
    value = env.get(name, "")
    if value == "":
        return default
    if value not in _WORDS:
        raise SettingsError("bad-switch", f"{name}={shown(value)} is no switch; write 1, true, on, 0, false or off")
    return _WORDS[value]


def _delay(env: Mapping[str, str], name: str) -> int:
    value = env.get(name, "")
    if value == "":
        return DEFAULT_DELAY_US
    # Length first: int() of a very long text is slow, then refused with an error of its own.
    if not (value.isascii() and value.isdigit()) or len(value) > 20 or int(value) > MAX_DELAY_US:
        raise SettingsError("bad-delay", f"{name}={shown(value)} must be a decimal in 0..{MAX_DELAY_US} microseconds")
    return int(value)


def _path(env: Mapping[str, str], name: str) -> str | None:
    value = env.get(name, "")
    if not _fits_a_line(value):
        raise SettingsError("bad-path", f"{name}={shown(value)} holds control characters, which log lines cannot carry")
    return value or None


def _fits_a_line(value: str) -> bool:
    return not any(ord(character) < 32 or ord(character) == 127 for character in value)

"""Loads the real FlashInfer autotuner out of an unpacked wheel, in a process that does nothing else.

Its own code runs untouched: the autotuner and its cache as whole modules, and, cut out of modules that would import
every kernel, the bucket functions and the tuning configuration and CUTLASS runner of mm_fp4. Stood in for: torch unless
the real one is asked for, the package's own initialisation, its build system, and helpers that need a GPU.
"""

from __future__ import annotations

import ast
import functools
import importlib
import logging
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

__all__ = ["TACTICS", "Upstream", "load", "stand_in"]

TACTICS = 32
_UTILITIES = ("next_positive_power_of_2",)
_BUCKETS = (
    *("_PHASE1_END", "_PHASE2_STEP", "_PHASE2_END", "_PHASE3_STEP", "_PHASE3_END", "_ceil_to_step"),
    *("get_hybrid_num_tokens_buckets", "map_to_hybrid_bucket_uncapped", "next_positive_power_of_2"),
)
_GEMM = ("_pad_up", "_MM_FP4_TUNING_CONFIG_128x4", "_create_cutlass_fp4_gemm_module")


@dataclass(frozen=True)
class Upstream:
    """One version's tuner. `core` is the module whose functions call each other by global name."""

    package: ModuleType
    core: ModuleType
    config: Any
    create_runner: Callable[[Any], Any]
    torch: Any

    def fresh(self, metadata: Mapping[str, str]) -> Any:
        """A new tuner, as a new process would have it, on a machine that `metadata` describes."""
        for module in (self.core, self.package):
            vars(module)["_collect_metadata"] = lambda: dict(metadata)
        self.core.AutoTuner._instance = None
        return self.core.AutoTuner.get()

    def runner(self, gemm: Callable[..., Any] = lambda *_: None) -> Any:
        """The real CutlassFp4GemmRunner over a module of 32 tactics whose kernel is `gemm`."""
        module = SimpleNamespace(fp4_gemm=gemm, fp4_gemm_tactic_num=lambda: TACTICS)
        return self.create_runner(module)

    def other_runner(self) -> Any:
        """A runner of another class, which a caller may list before the CUTLASS one."""
        forward = lambda self, inputs, tactic=-1, do_preparation=False, **_: None  # noqa: E731
        tactics = lambda self, inputs, profile: [0, 1]  # noqa: E731
        parts = {"forward": forward, "get_valid_tactics": tactics}
        return type("CudnnFp4GemmRunner", (self.core.TunableRunner,), parts)()

    def inputs(self, m: int, n: int, k: int) -> list[Any]:
        """The ten inputs of mm_fp4 as vLLM passes them: alpha without a dimension, scales as swizzled ones are stored,
        rows padded to 128 and blocks of 16 to 4."""

        def empty(shape: Sequence[int], dtype: Any = None) -> Any:
            return self.torch.empty(tuple(shape), dtype=dtype or self.torch.uint8, device="meta")

        def scales(rows: int) -> Any:
            return empty((_padded(rows, 128), _padded(k // 16, 4)))

        operands = [empty((m, k // 2)), empty((n, k // 2)).t(), scales(m), scales(n).t()]
        alpha = empty((), self.torch.float32)
        out = empty((m, n), self.torch.bfloat16)
        return [*operands, alpha, self.torch.bfloat16, out, 16, True, empty((32 << 20,))]


def stand_in(name: str, **attributes: Any) -> ModuleType:
    """An empty module under that name, with these attributes."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)  # the real torch asks for the specifications of some modules, tqdm's too
    vars(module).update(attributes)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, module)
    return module


def load(source: Path, real_torch: bool) -> Upstream:
    """The autotuner of the wheel unpacked at `source`."""
    if not real_torch:
        importlib.import_module("light_torch").install()
    torch = importlib.import_module("torch")
    root = source / "flashinfer"
    # A search path makes a package of each, without its own initialisation.
    for name, path in {"flashinfer": [str(root)], "flashinfer.fused_moe": [], "flashinfer.jit": []}.items():
        stand_in(name, __path__=path)
    stand_in("flashinfer.jit.core", logger=logging.getLogger("flashinfer"))
    stand_in("flashinfer.tllm_utils", delay_kernel=lambda _: None, get_trtllm_utils_module=lambda: None)
    stand_in("tqdm", tqdm=lambda *_, **__: SimpleNamespace(update=lambda _: None, close=lambda: None))
    utilities = stand_in("flashinfer.utils", is_confidential_compute=lambda: False, get_globaltimer_kernel=lambda: None)
    _cut(root / "utils.py", _UTILITIES, vars(utilities))
    package = importlib.import_module("flashinfer.autotuner")
    core = sys.modules.get("flashinfer.autotuner.autotuner", package)
    gemm = _gemm(root, core, torch)
    create = functools.partial(_runner, gemm["_create_cutlass_fp4_gemm_module"])
    return Upstream(package, core, gemm["_MM_FP4_TUNING_CONFIG_128x4"], create, torch)


def _gemm(root: Path, core: ModuleType, torch: Any) -> dict[str, Any]:
    typed = {name: getattr(typing, name) for name in ("List", "Sequence", "Tuple")}
    power = vars(sys.modules["flashinfer.utils"]).get("next_positive_power_of_2")  # there since 0.7
    buckets = stand_in("flashinfer.fused_moe.utils", next_positive_power_of_2=power, **typed)
    _cut(root / "fused_moe" / "utils.py", _BUCKETS, vars(buckets))
    tuning = ("ConstraintSpec", "DynamicTensorSpec", "OptimizationProfile", "TunableRunner", "TuningConfig")
    names = {name: getattr(core, name) for name in tuning} | typed
    names |= {name: getattr(buckets, name) for name in _BUCKETS}
    names |= {"torch": torch, "functools": functools, "SimpleNamespace": SimpleNamespace}
    _cut(root / "gemm" / "gemm_base.py", _GEMM, names)
    return names


def _runner(create_module: Any, module: Any) -> Any:
    return create_module(module, "", "").cutlass_fp4_gemm_runner()


def _padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _cut(path: Path, wanted: Sequence[str], names: dict[str, Any]) -> None:
    """Execute only these top-level definitions of the file, in its order."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else node
        name = getattr(target, "id", None) or getattr(target, "name", None)
        if name in wanted:
            exec(compile(ast.Module([node], []), str(path), "exec"), names)

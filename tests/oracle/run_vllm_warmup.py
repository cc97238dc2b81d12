"""Runs vLLM's own FlashInfer warm-up over the real FlashInfer autotuner.

usage: run_vllm_warmup.py FLASHINFER_SOURCE light|real VLLM_SOURCE, with a JSON list of requests on standard input

kernel_warmup.py and flashinfer_autotune_cache.py are vLLM's own and are imported untouched. Stood in for: the warm-ups
of other kernels, which do nothing here, and a model whose dummy run chooses a tactic for each of its GEMMs.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import run_flashinfer
from real_flashinfer import Upstream, stand_in

FACTORS = ["environment", "configuration"]
WORKSPACE = Path("/home/.cache/flashinfer/0.6.13/121a")
_OTHER_WARMUPS = {
    "cutedsl_warmup": ("cutedsl_warmup",),
    "deep_gemm_warmup": ("deep_gemm_warmup",),
    "deepseek_v4_mhc_warmup": ("deepseek_v4_mhc_warmup",),
    "flashinfer_sparse_mla_warmup": (
        "deepseek_v4_sparse_mla_attention_warmup",
        "flashinfer_sparse_mla_decode_autotune_warmup",
    ),
    "minimax_m3_msa_warmup": ("minimax_m3_msa_warmup",),
    "qwen_triton_warmup": ("qwen_triton_warmup",),
    "sparse_mla_triton_warmup": ("sparse_mla_triton_warmup_if_needed",),
    "v1_block_table_warmup": ("warm_v1_block_table_kernels",),
}


class WarmUps(run_flashinfer.Answers):
    def __init__(self, upstream: Upstream, folder: Path, source: Path) -> None:
        super().__init__(upstream, folder)
        self._root = folder / "cache"
        self._lines: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: self._lines.append(record.getMessage())  # type: ignore[method-assign]
        self._world = SimpleNamespace(
            world_size=1, rank_in_group=0, barrier=lambda: None, broadcast_object=lambda value, src: value
        )
        self._kernel_warmup = self._load(source)
        for name in ("flashinfer", "vllm"):
            logging.getLogger(name).setLevel(logging.INFO)
            logging.getLogger(name).addHandler(handler)
            logging.getLogger(name).propagate = False

    def warm_up(
        self,
        *,
        metadata: dict[str, str],
        columns: Sequence[Sequence[int]],
        max_m: int,
        document: str | None = None,
        winners: Sequence[Sequence[int]] = (),
        fail_after: int | None = None,
        enabled: bool | None = True,
        world_size: int = 1,
        capability: int = 120,
        override: str | None = None,
    ) -> dict[str, Any]:
        """One server's warm-up with `document` in its cache beforehand; `fail_after` GEMMs the dummy run raises."""
        self._world.world_size = world_size
        self._capability, self._envs.VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR = capability, override
        tuner = self._upstream.fresh(metadata)
        path = self._cache.resolve_flashinfer_autotune_file(SimpleNamespace(vllm_config=None))
        path.unlink(missing_ok=True)
        if document is not None:
            path.write_bytes(run_flashinfer.decode(document))
        inode = path.stat().st_ino if document is not None else None
        self._lines.clear()

        def dummy_run(num_tokens: int, **_: Any) -> None:
            for index, column in enumerate(columns):
                if index == fail_after:
                    raise RuntimeError("the dummy run died")
                self.choose(self._upstream.core.AutoTuner.get(), num_tokens, *column)

        with self.clock(winners) as timed:
            outcome = run_flashinfer.outcome(lambda: self._kernel_warmup(_worker(max_m, enabled, dummy_run)))
        return {
            "path": str(path.relative_to(self._root)) if override is None else str(path),
            "outcome": outcome,
            "timed": len(timed),
            "document": run_flashinfer.read(path),
            "replaced": path.exists() and path.stat().st_ino != inode,
            "mode": path.stat().st_mode & 0o777 if path.exists() else None,
            "beside": sorted(entry.name for entry in path.parent.iterdir() if entry != path),
            "from_file": len(tuner._file_configs),
            "in_memory": len(tuner.profiling_cache),
            "log": list(self._lines),
        }

    def _load(self, source: Path) -> Any:
        names = ("", ".compilation", ".distributed", ".model_executor", ".utils")
        for name in names:
            stand_in(f"vllm{name}", __path__=[])
        warmup = source / "vllm" / "model_executor" / "warmup"
        stand_in("vllm.model_executor.warmup", __path__=[str(warmup)])
        for module, functions in _OTHER_WARMUPS.items():
            stand_in(f"vllm.model_executor.warmup.{module}", **dict.fromkeys(functions, lambda *_, **__: None))
        self._envs = stand_in("vllm.envs", VLLM_CACHE_ROOT=str(self._root), VLLM_USE_DEEP_GEMM=False)
        stand_in("vllm.logger", init_logger=logging.getLogger)
        stand_in("vllm.compilation.caching", aot_compile_hash_factors=lambda _: FACTORS)
        stand_in("vllm.distributed.parallel_state", get_world_group=lambda: self._world)
        platform = SimpleNamespace(has_device_capability=lambda least: self._capability >= least)
        stand_in("vllm.platforms", current_platform=platform)
        stand_in("vllm.utils.deep_gemm", is_deep_gemm_supported=lambda: False)
        stand_in("vllm.utils.flashinfer", has_flashinfer=lambda: True, autotune=self._upstream.core.autotune)
        stand_in("flashinfer.jit.env", FLASHINFER_WORKSPACE_DIR=WORKSPACE)
        self._upstream.torch.inference_mode = contextlib.nullcontext  # it raises without a device on some builds
        self._cache = importlib.import_module("vllm.model_executor.warmup.flashinfer_autotune_cache")
        return importlib.import_module("vllm.model_executor.warmup.kernel_warmup").kernel_warmup


def _worker(max_m: int, enabled: bool | None, dummy_run: Any) -> Any:
    scheduler = SimpleNamespace(max_num_batched_tokens=max_m)
    config = SimpleNamespace(
        compilation_config=SimpleNamespace(cudagraph_capture_sizes=None),
        kernel_config=SimpleNamespace(enable_flashinfer_autotune=enabled, enable_cutedsl_warmup=False),
        model_config=None,
    )
    runner = SimpleNamespace(
        vllm_config=config, scheduler_config=scheduler, is_pooling_model=True, _dummy_run=dummy_run
    )
    return SimpleNamespace(
        use_v2_model_runner=True,
        model_runner=runner,
        scheduler_config=scheduler,
        vllm_config=config,
        get_model=lambda: None,
    )


if __name__ == "__main__":
    vllm = Path(sys.argv[3])
    run_flashinfer.main(sys.argv[1:], lambda upstream, folder: WarmUps(upstream, folder, vllm))

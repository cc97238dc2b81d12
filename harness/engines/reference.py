"""The reference engine in `kernels/serve`: the only place where the harness knows the kernels package."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import canonical, process, pytest_log, tools
from harness.engines import flags as flag
from harness.engines import served
from harness.engines.base import Address, Launch, Said, Suite
from harness.errors import UsageError
from harness.records import ArmProof, ModelGate, PlanReport, ServerReport, SuiteReport

__all__ = ["MODEL_GATE_SAID", "Reference", "plans_said", "read_model_gate", "read_oracle", "read_plans"]

MODEL = "gate"
DIRECT = "VT_FP4_DIRECT_SF"
GATE_SEED = 0
LIMITS = ("max_num_seqs", "max_num_batched_tokens")
DEFAULTS = {"seed": 0, "max_num_seqs": 32, "max_num_batched_tokens": 2048}
BACKENDS = ("cpu", "cuda")
ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests" / "unit" / "kernels" / "plans"  # the suite of the plan cache
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-rsfE", "--no-fold-skipped")
SANITIZER = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
SANITIZED = ("1", "3", "5", "18", "23", "31")  # tactics: each schedule and side, small and large tiles
MODES = {"tests": (), "tests-dev": ("-X", "dev", "-W", "error")}
COUNTERS = {
    "forwards": "nvfp4_forwards_total",
    "gemms": "nvfp4_gemms_total",
    "misses": "nvfp4_lazy_misses_total",
    "parses": "nvfp4_plan_documents_parsed_total",
}
GEMM_KERNEL = r"cutlass::device_kernel<.*[gG]emm|\bfused<|^nvjet_|_xmma_gemm_"  # Hopper: fused ones and cuBLASLt's
NO_NATIVE = "the reference engine's own code on the CPU backend is Python; the native code that it runs is NumPy's"
NOT_SANITIZED = "the host code of its CUDA library is compiled with warnings as errors, not under a sanitizer"
MODEL_GATE_SAID = """[doctest] test cases: 4 | 4 passed | 0 failed | 0 skipped
[doctest] assertions: 20 | 20 passed | 0 failed
stream 16/16 token-exact
"""
SUITES_SAID = {
    "collect": "5 tests collected in 0.01s\n",
    "suite": "5 passed in 0.01s\n",
    "build": "compiled\n",
    "sanitizer": "========= ERROR SUMMARY: 0 errors\n",
}
WRITTEN_BY = ("nvfp4.py", "serve/tokenizer.py", "serve/weights.py")  # an edit of these makes other weights


class Reference:
    """`engine.options`: seed of the weights, max_num_seqs, max_num_batched_tokens, backend (cpu or cuda)."""

    name = "reference"
    vocabulary = 1024
    running_usage = False
    first_token = 256  # the two-letter pieces: prompts are printable

    def __init__(self, options: Mapping[str, Any], cache_dir: Path) -> None:
        unknown = sorted(options.keys() - DEFAULTS.keys() - {"backend"})
        if unknown:
            known = ", ".join((*DEFAULTS, "backend"))
            raise UsageError("bad-value", f"engine.options.{unknown[0]}: the reference engine takes {known}")
        self._backend = options.get("backend", "cpu")
        if self._backend not in BACKENDS:
            raise UsageError("bad-value", f"engine.options.backend={self._backend!r}: must be {' or '.join(BACKENDS)}")
        self._options = {name: _number(options, name, DEFAULTS[name], "engine.options.") for name in DEFAULTS}
        capabilities = {"fp4_plans", "arm_counters", "sequential_proof", "server_arguments", "token_ids"}
        gate = {"model_gate"} if self._options["seed"] == GATE_SEED else set()  # its stream was kept for these weights
        gpu = {"gpu"} if self._backend == "cuda" else set()
        self.capabilities = frozenset(capabilities | gate | gpu)
        sources = [canonical.sha256_file(ROOT / "kernels" / name) for name in WRITTEN_BY]
        made_by = canonical.sha256_bytes(canonical.dumps({"seed": self._options["seed"], "sources": sources}))
        self._weights = cache_dir / "reference" / f"weights-{made_by[:12]}.bin"

    def identity(self) -> Mapping[str, Any]:
        import numpy

        if self._backend == "cuda":
            return {**_gpu_identity(), "numpy": numpy.__version__, "weights_sha256": self._digest()}

        from kernels.backends import cpu
        from kernels.plans.settings import Settings

        metadata = cpu.metadata(Settings.from_env({}))
        return {
            "build_id": metadata.build_id,
            "numpy": numpy.__version__,
            "tactics": cpu.CPU_TACTICS.digest,
            "weights_sha256": self._digest(),
        }

    def _digest(self) -> str:
        return canonical.sha256_file(self._weights)

    def prepare(self) -> None:
        from kernels.serve import weights

        if not self._weights.is_file():
            self._weights.parent.mkdir(parents=True, exist_ok=True)
            weights.save(weights.draw(self._options["seed"], weights.Config()), self._weights)

    def cache_roots(self) -> Sequence[Path]:
        return (self._weights,)

    def launch(self, arm: Mapping[str, Any], port: int, plan: Path | None, read_only: bool) -> Launch:
        argv = self._python("kernels.serve")
        argv += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", MODEL]
        return Launch([*argv, *self._limits(arm)], self._environment(arm, plan, read_only), ROOT)

    def attached(self, arm: Mapping[str, Any]) -> Address | None:
        return None

    def served_model(self) -> str:
        return MODEL

    def model_gate_argv(self, arm: Mapping[str, Any], plan: Path | None) -> Launch | None:
        argv = [*self._python("kernels.serve.gate"), *self._limits(arm)]
        return Launch(argv, self._environment(arm, plan, True), ROOT)

    def _limits(self, arm: Mapping[str, Any]) -> list[str]:
        """Both limits as flags; an arm may have its own. UsageError for a flag that the engine does not know."""
        values = self._resolved(arm)
        unknown = sorted(arm["flags"].keys() - set(LIMITS))
        if unknown:
            raise UsageError("bad-value", f"arm flag {unknown[0]}: the reference engine takes {', '.join(LIMITS)}")
        return [item for name, value in values.items() for item in (f"--{name.replace('_', '-')}", str(value))]

    def _resolved(self, arm: Mapping[str, Any]) -> dict[str, int]:
        """Both limits: the arm's flag, else the option."""
        return {name: _number(arm["flags"], name, self._options[name], "arm flag ") for name in LIMITS}

    def _python(self, module: str) -> list[str]:
        backend = [] if self._backend == "cpu" else ["--backend", self._backend]
        return [sys.executable, "-m", module, "--model", str(self._weights), *backend]

    def _environment(self, arm: Mapping[str, Any], plan: Path | None, read_only: bool) -> dict[str, str]:
        """Every plan setting is named, so that nothing is left to a default or to somebody's shell."""
        env = {
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "VT_FP4_PLAN_CACHE": "1",
            "VT_FP4_PERSISTENT_CACHE": "1",
            "VT_FP4_AUTOTUNE_CACHE_READONLY": "1" if read_only else "0",
            **_inherited(self._backend),
            **{str(name): str(value) for name, value in arm["env"].items()},
        }
        return env if plan is None else {**env, "VT_FP4_AUTOTUNE_CACHE_PATH": str(plan)}

    def plan_report(self, log: str, metrics: str) -> PlanReport | None:
        return read_plans(log, metrics)

    def proof_paths(self) -> Sequence[str]:
        return ("/server_info",)

    def arm_proof(self, arm: Mapping[str, Any], log: str, metrics: str) -> ArmProof | None:
        """Composed producers swizzle every activation apart; direct ones only lay out the weights, once."""
        swizzles, gemms = _counter(metrics, "nvfp4_standalone_swizzles_total"), _counter(metrics, "nvfp4_gemms_total")
        if swizzles is None or gemms is None:
            return ArmProof(False, "no counters in /metrics", "nvfp4_standalone_swizzles_total and nvfp4_gemms_total")
        direct = _direct(arm)
        seen = f"{swizzles:.0f} standalone swizzles, {gemms:.0f} GEMMs"
        required = "fewer swizzles than GEMMs (direct)" if direct else "a swizzle for every GEMM (composed)"
        active = swizzles < gemms if direct else swizzles >= gemms > 0
        return ArmProof(active, seen, required, {"standalone_swizzles": swizzles, "gemms": gemms})

    def tokenizer(self) -> Path | None:
        return None

    def server_report(self, arm: Mapping[str, Any], log: str, metrics: str) -> ServerReport | None:
        """What /server_info says (the last line after the /metrics text), beside the options and the arm."""
        said = json.loads(metrics.splitlines()[-1]) if metrics.rstrip().endswith("}") else {}
        return served.report(
            {"backend": self._backend, "direct_sf": _direct(arm), **self._resolved(arm)},
            said.get("arguments", {}),
            {name: flag.as_text(value) for name, value in said.get("configuration", {}).items()},
            "/server_info",
        )

    def model_gate_report(self, log: str) -> ModelGate | None:
        return read_model_gate(log)

    def suites(self, architectures: Sequence[str]) -> Sequence[Suite]:
        """The suite of the plan cache, collected, run, run with every warning an error; then one tile an architecture.

        One tile is compiled, not all eight: each takes 6.5 GB of memory and its flags and headers are those of all.
        """
        if not any(TESTS.glob("test_*.py")):
            text = "this installation has no tests/unit/kernels/plans; run from a checkout: pip install -e '.[dev]'"
            raise UsageError("no-tests", f"gate=g1: {text}")
        if importlib.util.find_spec("pytest") is None:
            raise UsageError("no-pytest", "gate=g1: pytest is not installed; pip install -e '.[dev]' brings it")
        folder = str(TESTS.relative_to(ROOT))
        found = [Suite("collect", "collect", self._command(*PYTEST, "--collect-only", "-q", folder))]
        found += [Suite(name, "suite", self._command(*mode, *PYTEST, folder)) for name, mode in MODES.items()]
        return found + [self._build(architecture) for architecture in architectures]

    def _build(self, architecture: str) -> Suite:
        from kernels.cuda import toolchain, units
        from kernels.errors import BuildError

        known = ", ".join(units.ARCHITECTURES.values())
        if architecture not in units.ARCHITECTURES.values():
            raise UsageError("bad-value", f"gate.architectures: {architecture!r} is none of {known}")
        try:
            toolchain.find_compiler(process.clean_environment({}))  # as the command will see it
        except BuildError as error:
            raise UsageError(error.code, f"gate.architectures={architecture}: {error.message}") from error
        command = self._command("-m", "kernels.build", "--arch", architecture, "--tiles", "0", "--jobs", "1")
        return Suite(f"build-{architecture}", "build", command)

    def _command(self, *arguments: str) -> Launch:
        env = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "240"}
        return Launch([sys.executable, *arguments], env, ROOT)

    def not_tested(self, architectures: Sequence[str]) -> Mapping[str, str]:
        reason = NO_NATIVE if self._backend == "cpu" else NOT_SANITIZED
        found = {"host code under ASan, UBSan and TSan": reason}
        if not architectures:
            found["CUDA build"] = "gate.architectures names none; gate.architectures=[120a,121a] compiles for both"
        return found

    def sanitizers(self) -> Sequence[Suite]:
        """Edge shapes through a few tactics of each kind, under every tool; a checkout brings the program."""
        tool = tools.find(SANITIZER)
        if self._backend != "cuda" or tool is None:
            return []
        words = ["--error-exitcode", "9", sys.executable, "-m", "benchmarks.gpu_edges", *SANITIZED]
        env = {"PYTHONDONTWRITEBYTECODE": "1", **_inherited(self._backend)}
        return [Suite(name, "sanitizer", Launch([tool, "--tool", name, *words], env, ROOT)) for name in TOOLS]

    def not_sanitized(self) -> Mapping[str, str]:
        if self._backend != "cuda" or tools.find(SANITIZER) is not None:
            return {}
        return {SANITIZER: "not on this host: neither on PATH nor below /usr/local/cuda*/bin"}

    def structure(self) -> Mapping[str, Any]:
        """GEMMs a forward by the sizes in the weights file, or those that one would get: each layer multiplies once by
        each of its projections."""
        from kernels.serve import weights

        sizes = weights.load(self._weights).config if self._weights.is_file() else weights.Config()
        layers, projections = sizes.layers, len(weights.PROJECTIONS)
        gemms = layers * projections
        found = {
            "counters": COUNTERS,
            "documents": 1,
            "gemms_per_forward": gemms,
            "gemms_because": f"{layers} layers x {projections} projections",
            "runners": "nvfp4_runner_first_tactic",
        }
        if self._backend == "cpu":
            return found
        family = {"name": "fp4_gemm", "pattern": GEMM_KERNEL, "per_forward": gemms}
        return {**found, "families": [family]}

    def suite_report(self, log: str) -> SuiteReport | None:
        return pytest_log.parse(log)

    def rehearsed(self, kind: str, arm: Mapping[str, Any], plan: Path | None) -> Said:
        if kind in SUITES_SAID:
            return Said(SUITES_SAID[kind])
        said = plans_said(kind, plan)
        if kind == "model-gate":
            return Said(said.log + MODEL_GATE_SAID)
        ready, after = (said.answers["/metrics"] + self._counted(arm, forwards) for forwards in (2, 8))
        arguments = {"backend": self._backend, "direct_sf": _direct(arm), **self._resolved(arm)}
        page = json.dumps({"arguments": arguments, "configuration": {"dtype": "nvfp4"}})
        return Said(said.log, {"/metrics": ready, "/server_info": page}, {"/metrics": after}, said.document)

    def _counted(self, arm: Mapping[str, Any], forwards: int) -> str:
        """Counters of a rehearsed process after so many forwards."""
        gemms = forwards * int(self.structure()["gemms_per_forward"])
        swizzles = 4 if _direct(arm) else gemms
        values = {COUNTERS["forwards"]: forwards, COUNTERS["gemms"]: gemms, COUNTERS["parses"]: 1}
        lines = {**values, "nvfp4_standalone_swizzles_total": swizzles}
        return "".join(f"{name} {value}\n" for name, value in lines.items())


def _given(plan: Path) -> dict[tuple[int, int, int], int] | None:
    """The plans of a document; None for what is none: whether it fits is for the engine to say, not for a rehearsal."""
    try:
        rows = json.loads(plan.read_bytes())["plans"]
        return {(int(row["m_bucket"]), int(row["n"]), int(row["k"])): int(row["tactic_id"]) for row in rows}
    except (OSError, ValueError, LookupError, TypeError):
        return None


def plans_said(kind: str, plan: Path | None, delay_us: int = 0, *, cutlass: bool = False) -> Said:
    """Plan lines, plan counters and a seed's document for a rehearsal: the plans of `plan`, or the oracle's shapes, and
    with `cutlass` its tactics, too."""
    from kernels.backends import cpu
    from kernels.plans import document, log, oracle
    from kernels.plans.selected import selected_lines
    from kernels.plans.settings import Settings
    from kernels.tactics import CUTLASS_TACTICS

    tactics = CUTLASS_TACTICS if cutlass else cpu.CPU_TACTICS
    metadata, ids = cpu.metadata(Settings.from_env({})), sorted(tactic.id for tactic in tactics)
    made = {shape: ids[tactic % len(ids)] for shape, tactic in oracle.plans().items()}
    chosen = (None if plan is None else _given(plan)) or made
    seed, count = kind == "seed", len(chosen)
    mode, loaded, tuned = ("read-write", 0, count) if seed else ("read-only", count, 0)
    common: dict[str, Any] = {"mode": mode, "rejected": 0, "selected": count, "metadata": metadata.fingerprint()}
    lines = (
        log.prepared_line(**common, native=plan, flashinfer=None, loaded=(0, loaded), delay_us=delay_us),
        log.complete_line(**common, loaded=loaded, tuned=tuned, saved=tuned),
        selected_lines((*shape, tactic) for shape, tactic in chosen.items()).rstrip("\n"),
        log.warmup_line(2048, count, tuned, count),
    )
    candidates = len(ids) * tuned
    timed = {"candidates": 1, "warmups": metadata.warmups, "delays": int(delay_us > 0), "timed": metadata.repeats}
    counters = {"lazy_misses": 0, **{f"tuning_{name}": candidates * factor for name, factor in timed.items()}}
    metrics = "".join(f"nvfp4_{name}_total {value}\n" for name, value in counters.items())
    keys = {document.key_for(metadata, *shape): tactic for shape, tactic in chosen.items()}
    saved = document.serialise(metadata, tactics, keys) if seed else None
    return Said("\n".join(lines) + "\n", {"/metrics": metrics}, document=saved)


def read_plans(log: str, metrics: str) -> PlanReport | None:
    """The plan state that a log (vllm.cpp writes the same lines) and /metrics tell. None: no warm-up was completed."""
    from kernels.plans.log import parse_log
    from kernels.plans.selected import map_sha256

    found = parse_log(log)
    numbers = (found.loaded, found.tuned, found.rejected, found.saved, found.delay_us)
    if found.metadata is None or None in numbers:
        return None
    loaded, tuned, rejected, saved, delay_us = (number or 0 for number in numbers)
    return PlanReport(
        mode=found.mode,
        loaded=loaded,
        tuned=tuned,
        rejected=rejected,
        saved=saved,
        lazy_misses=max(len(found.lazy), int(_counter(metrics, "nvfp4_lazy_misses_total") or 0)),
        delay_us=delay_us,
        metadata=found.metadata,
        selected=tuple(sorted(found.selected)),
        map_sha256=map_sha256(found.selected),
        faults=tuple(found.unexpected),
        tuning=_tuning(metrics),
    )


def read_model_gate(log: str) -> ModelGate | None:
    """Counts out of a correctness program's output, doctest's summary among them; None where they are not there."""
    tokens = re.search(r"stream (\d+)/(\d+) token-exact", log)
    cases, asserted = _counts(log, "cases"), _counts(log, "assertions")
    if tokens is None or cases is None or asserted is None:
        return None
    skipped = cases["skipped"] + asserted["skipped"] + log.lower().count("skipping")
    failed = cases["failed"] + asserted["failed"]
    return ModelGate(cases["total"], asserted["total"], failed, skipped, int(tokens[1]), int(tokens[2]))


def _direct(arm: Mapping[str, Any]) -> bool:
    """Whether the arm's producers write swizzled scales at once."""
    return str(arm["env"].get(DIRECT, "1")).lower() not in ("0", "false", "off")


def _inherited(backend: str) -> dict[str, str]:
    """Where a GPU process finds its libraries, which is this machine's affair and no setting of a plan."""
    wanted = ("NVFP4_GATES_LIBRARIES", "NVFP4_GATES_EXPAND", "LD_LIBRARY_PATH", "CUDA_PATH")
    names = wanted if backend == "cuda" else ()
    return {name: os.environ[name] for name in names if name in os.environ}


def _gpu_identity() -> dict[str, str]:
    """The card, the library's build and CuPy's version. No CUDA context is made: this process stays off the GPU."""
    from importlib.metadata import distributions

    from kernels.cuda.library import load
    from kernels.errors import KernelError

    try:
        library = load()
    except KernelError as error:
        raise UsageError(error.code, f"engine.options.backend=cuda: {error.message}") from error
    cupy = {item.version for item in distributions() if (item.name or "").startswith("cupy")}
    return {
        "build_id": library.facts["build_id"],
        "cupy": " ".join(sorted(cupy)) or "none",
        "cutlass": library.facts["cutlass_version"],
        "gpu": library.device.name,
    }


def read_oracle() -> tuple[list[list[int]], str]:
    """Rows (M bucket, N, K, tactic) of the 64 plans that are known for a GB10, and what they are."""
    from kernels.plans import oracle

    rows = [[*shape, tactic] for shape, tactic in oracle.plans().items()]
    return rows, "vLLM 0.25.0 on a GB10, for a 27B model at 2,048 tokens a batch"


def _number(values: Mapping[str, Any], name: str, default: int, where: str) -> int:
    value = values.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UsageError("bad-value", f"{where}{name}={value!r}: must be a whole number, such as {DEFAULTS[name]}")
    return value


def _counter(metrics: str, name: str) -> float | None:
    found = re.search(rf"^{name}(?:\{{[^}}]*\}})? ([0-9.e+]+)$", metrics, re.MULTILINE)
    return float(found[1]) if found else None


def _tuning(metrics: str) -> dict[str, int] | None:
    """What timing candidates took in the whole process; None where /metrics does not count it."""
    names = ("candidates", "warmups", "delays", "timed")
    found = {name: _counter(metrics, f"nvfp4_tuning_{name}_total") for name in names}
    return {name: int(value) for name, value in found.items() if value is not None} or None


def _counts(log: str, what: str) -> dict[str, int] | None:
    """`cases: 4 | 4 passed | 0 failed | 0 skipped`."""
    line = re.search(rf"^.*\b{what}: *(\d+)(.*)$", log, re.MULTILINE)
    if line is None:
        return None
    counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
    counts.update({word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped)", line[2])})
    return {"total": int(line[1]), **counts}

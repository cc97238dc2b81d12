"""llama.cpp's own HTTP server, out of the `xllamacpp` wheel, on a small GGUF made on this machine.

A second engine that nobody here wrote. The lever is how many requests are decoded together: 16 slots against 1. It has
no FP4 plans and no correctness program of its own, so a run against it is non-binding.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import canonical
from harness.engines import served
from harness.engines.base import Address, Launch, Said
from harness.engines.environment import Environment, Installed
from harness.errors import UsageError
from harness.records import ArmProof, ModelGate, PlanReport, ServerReport

__all__ = ["LlamaCpp"]

MODEL = "tiny"
MEND = "python -m harness prepare engine=llama_cpp"
REQUIREMENTS = ("xllamacpp==2026.10.11549", "gguf==0.19.0", "numpy==2.4.6")
HERE = Path(__file__).resolve().parent
FIRST_TOKEN = 260  # 4 specials and 256 bytes come before the merged, printable tokens
MOST_TOKENS = FIRST_TOKEN + 62**2 + 62**3  # every pair and triple of ASCII letters and digits
CONTEXT = 8192  # what the file claims to be trained for: the bound of slot_context


@dataclass(frozen=True)
class Range:
    """A whole number's default and bounds."""

    default: int
    least: int
    most: int


# One wide layer under a large head: prefill skips the head for all but the last token, decoding streams its 42 MB once
# a step. So batching gains much (the weights leave the L2 cache) while 1,024-token prompts stay cheap on one thread.
SHAPE: Mapping[str, Range] = {
    "layers": Range(1, 1, 128),
    "hidden": Range(640, 32, 8192),
    "heads": Range(5, 1, 128),
    "kv_heads": Range(1, 1, 128),
    "intermediate": Range(640, 32, 32768),
    "vocabulary": Range(16384, FIRST_TOKEN + 64, MOST_TOKENS),
    "seed": Range(0, 0, 2**32 - 1),
}
# 1,024 in and 128 out need 1,152 places of a slot. More than one thread loses on a shared machine: 440 to 65 tokens/s.
SERVING: Mapping[str, Range] = {
    "threads": Range(1, 1, 1024),
    "slot_context": Range(1280, 64, CONTEXT),
    "batch": Range(2048, 32, 65536),
    "ubatch": Range(512, 32, 65536),
}
SLOTS = Range(16, 1, 256)
FLAGS: Mapping[str, Range] = {"slots": SLOTS, **{name: SERVING[name] for name in ("threads", "batch", "ubatch")}}


class LlamaCpp:
    """`engine.options`: the model's shape and seed (SHAPE) and what both arms serve with (SERVING).

    An arm's flags may name slots, threads, batch and ubatch; slots has no other place and is 16 where it is absent.
    """

    name = "llama_cpp"
    capabilities = frozenset({"arm_counters", "sequential_proof", "server_arguments", "token_ids"})
    first_token = FIRST_TOKEN
    running_usage = False

    def __init__(self, options: Mapping[str, Any], cache_dir: Path) -> None:
        known = {**SHAPE, **SERVING}
        values = _checked("engine.options", options, known)
        _check_shape(values)
        self._shape = {name: values[name] for name in SHAPE}
        self._serving = {name: values[name] for name in SERVING}
        self.vocabulary = values["vocabulary"]
        self._folder = cache_dir / "llama_cpp"
        self._environment = Environment(self._folder, "env", REQUIREMENTS, ("xllamacpp", "gguf", "numpy"), MEND)
        made_by = {"shape": self._shape, "program": canonical.sha256_file(HERE / "tiny_gguf.py"), "pins": REQUIREMENTS}
        self._weights = self._folder / f"tiny-{canonical.sha256_bytes(canonical.dumps(made_by))[:12]}.gguf"

    def install(self) -> Installed:
        """Make the engine's own environment from the package index: about 210 MB, once. UsageError says the mend."""
        return self._environment.install()

    def identity(self) -> Mapping[str, Any]:
        installed = self._require_environment()
        return {
            "environment_sha256": installed.sha256,
            "gguf": installed.version("gguf"),
            "model": dict(self._shape),
            "numpy": installed.version("numpy"),
            "python": installed.python,
            "serving": dict(self._serving),
            "weights_sha256": canonical.sha256_file(self._weights),
            "xllamacpp": installed.version("xllamacpp"),
        }

    def prepare(self) -> None:
        """Write the model once; a file that no longer has its recorded SHA-256 is written anew."""
        self._require_environment()
        record = self._weights.with_suffix(".sha256")
        if self._weights.is_file() and record.is_file():
            if canonical.sha256_file(self._weights) == record.read_text(encoding="ascii").strip():
                return
            record.unlink()
        shape = [item for name, value in self._shape.items() for item in (f"--{name.replace('_', '-')}", str(value))]
        argv = [*self._program("tiny_gguf.py"), str(self._weights), *shape, "--context", str(CONTEXT)]
        done = subprocess.run(argv, capture_output=True, text=True, env=_quiet(1), check=False)
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or ["no word"])[-1]
            raise UsageError(
                "weights-failed",
                f"cannot write {self._weights.name} in {self._folder}: {said}; free some space there or choose another "
                "folder with host.cache_dir, then run again",
            )
        record.write_text(f"{canonical.sha256_file(self._weights)}\n", encoding="ascii")

    def cache_roots(self) -> Sequence[Path]:
        return (self._weights,)

    def launch(self, arm: Mapping[str, Any], port: int, plan: Path | None, read_only: bool) -> Launch:
        """`plan` and `read_only` have no meaning here. UsageError for a flag that this engine does not know."""
        flags = {"slots": SLOTS.default, **self._serving, **_flags(arm)}
        argv = [*self._program("llama_cpp_server.py"), str(self._weights), "--port", str(port), "--alias", MODEL]
        for name, value in flags.items():
            argv += [f"--{name.replace('_', '-')}", str(value)]
        extra = {str(name): str(value) for name, value in arm.get("env", {}).items()}
        return Launch(argv, {**_quiet(flags["threads"]), **extra}, self._folder)

    def attached(self, arm: Mapping[str, Any]) -> Address | None:
        return None

    def served_model(self) -> str:
        return MODEL

    def plan_report(self, log: str, metrics: str) -> PlanReport | None:
        return None

    def proof_paths(self) -> Sequence[str]:
        """/props says the number of slots outright; /metrics only how many were busy, which is 1 for lone requests."""
        return ("/props",)

    def rehearsed(self, kind: str, arm: Mapping[str, Any], plan: Path | None) -> Said:
        slots, context = _flags(arm).get("slots", SLOTS.default), self._serving["slot_context"]
        props = {"total_slots": slots, "default_generation_settings": {"n_ctx": context}}
        return Said(answers={"/props": json.dumps(props)})

    def arm_proof(self, arm: Mapping[str, Any], log: str, metrics: str) -> ArmProof | None:
        """Slots from /props where its body follows the /metrics text, else from the mean of busy slots a decode."""
        slots = _flags(arm).get("slots", SLOTS.default)
        total, busy = _total_slots(metrics), _gauge(metrics, "llamacpp:n_busy_slots_per_decode")
        if total is not None:
            values = {"total_slots": float(total), **({} if busy is None else {"busy_slots_per_decode": busy})}
            return ArmProof(total == slots, f"total_slots {total} in /props", f"total_slots {slots}", values)
        if busy is None:
            return ArmProof(False, "neither total_slots nor n_busy_slots_per_decode", f"total_slots {slots} in /props")
        active = busy == 1 if slots == 1 else 1 < busy <= slots
        required = "exactly 1 busy slot a decode" if slots == 1 else f"over 1, at most {slots} busy slots a decode"
        return ArmProof(active, f"{busy:g} busy slots a decode", required, {"busy_slots_per_decode": busy})

    def tokenizer(self) -> Path | None:
        return None

    def server_report(self, arm: Mapping[str, Any], log: str, metrics: str) -> ServerReport | None:
        """Slots and the context of each, from /props. Threads and batch sizes are said nowhere."""
        said = _props(metrics)
        settings = said.get("default_generation_settings", {})
        resolved = {"slots": said.get("total_slots"), "slot_context": settings.get("n_ctx")}
        planned = {"slots": _flags(arm).get("slots", SLOTS.default), "slot_context": self._serving["slot_context"]}
        return served.report(planned, resolved, {"capacity": "slots x slot_context"}, "/props")

    def model_gate_argv(self, arm: Mapping[str, Any], plan: Path | None) -> Launch | None:
        return None

    def model_gate_report(self, log: str) -> ModelGate | None:
        return None

    def _require_environment(self) -> Installed:
        installed = self._environment.installed()
        if installed is None:
            raise UsageError(
                "engine-not-installed",
                f"engine=llama_cpp needs {' '.join(REQUIREMENTS)} in an environment of its own under {self._folder}, "
                f"and there is none for this Python; make it with: {MEND}",
            )
        return installed

    def _program(self, file: str) -> list[str]:
        """Isolated: else the program's own folder, full of this package's modules, would come first on its path."""
        return [str(self._environment.python), "-I", "-B", str(HERE / file)]


def _quiet(threads: int) -> dict[str, str]:
    """No OpenMP thread spins while it waits: on two contended cores that cost six sevenths of the speed."""
    return {
        "GOMP_SPINCOUNT": "0",
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "OPENBLAS_NUM_THREADS": "1",
    }


def _checked(where: str, given: Mapping[str, Any], known: Mapping[str, Range]) -> dict[str, int]:
    """Defaults overlaid with `given`. UsageError `bad-value` names the key, the value and the mend."""
    for name, value in given.items():
        if name not in known:
            raise UsageError(
                "bad-value", f"{where}.{name}={value!r}: llama_cpp takes only {', '.join(known)}; remove it"
            )
        limits = known[name]
        if isinstance(value, bool) or not isinstance(value, int) or not limits.least <= value <= limits.most:
            bounds = f"a whole number from {limits.least} to {limits.most}"
            raise UsageError("bad-value", f"{where}.{name}={value!r}: must be {bounds}, such as {limits.default}")
    return {name: given.get(name, limits.default) for name, limits in known.items()}


def _flags(arm: Mapping[str, Any]) -> dict[str, int]:
    given = arm.get("flags", {})
    checked = _checked("arm.flags", given, FLAGS)
    return {name: checked[name] for name in given}


def _check_shape(values: Mapping[str, int]) -> None:
    """The head size must be whole and even (rotary pairs), and query heads must share key-value heads evenly."""
    hidden, heads, kv_heads = values["hidden"], values["heads"], values["kv_heads"]
    if hidden % (2 * heads):
        mend = f"make hidden a multiple of {2 * heads}"
        raise UsageError(
            "bad-value", f"engine.options.heads={heads} does not cut hidden={hidden} into even heads; {mend}"
        )
    if heads % kv_heads:
        mend = f"make it a divisor of {heads}"
        raise UsageError("bad-value", f"engine.options.kv_heads={kv_heads} does not divide heads={heads}; {mend}")


def _total_slots(text: str) -> int | None:
    total = _props(text).get("total_slots")
    return total if isinstance(total, int) and not isinstance(total, bool) else None


def _props(text: str) -> dict[str, Any]:
    """The JSON object of /props, which stands on a line of its own; empty where there is none."""
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if "total_slots" in found:
                return dict(found)
    return {}


def _gauge(metrics: str, name: str) -> float | None:
    found = re.search(rf"^{re.escape(name)} ([0-9.e+-]+)$", metrics, re.MULTILINE)
    return float(found[1]) if found else None

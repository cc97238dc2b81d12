"""What a trace of the kernels must show, and that no profiler was at work where something was timed.

Pure predicates over what `harness.traces` reads from a profiler's file; durations are never looked at, since those of
two profilers cannot be compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.records import Check, Trace

__all__ = ["FORBIDDEN", "SEED_27B", "Family", "checks", "family_counts", "profilers", "untraced"]

# Kernels a forward of the seed's 27B model (64 layers: 48 linear attention, 16 full attention), by family.
SEED_27B: Mapping[str, int] = {
    "fp4_gemm": 208,
    "normal_producer": 144,
    "fused_producer": 64,
    "gdn_recurrence": 48,
    "attention_main": 16,
    "attention_combine": 16,
}
FORBIDDEN = r"(?i)(naive|wmma).*fp4|fp4.*(naive|wmma)"
TRACES = re.compile(r"\.(nsys-rep|qdrep|qdstrm|sqlite|ncu-rep)$|\.pt\.trace\.json(\.gz)?$", re.IGNORECASE)
PROGRAMS = ("compute-sanitizer", "ncu", "nsys", "nvprof")
FLAGS = re.compile(r"--(cuda-profile|profiler-config|enable-layerwise-nvtx|torch-profiler)")
# Nsight Systems and NVTX inject themselves by the first three; the others switch an engine's own profiler on.
VARIABLES = re.compile(
    r"(NSYS_|NVTX_INJECTION|CUDA_INJECTION|KINETO_|VLLM_TORCH_PROFILER|VLLM_TORCH_CUDA_PROFILE|VLLM_NVTX"
    r"|SGLANG_TORCH_PROFILER|TLLM_PROFILE|TLLM_NVTX|TLLM_TORCH_PROFILE)"
)
INJECTED = re.compile(r"(?i)nsys|cupti|nvtx")
OFF = ("", "0", "false", "off")


@dataclass(frozen=True)
class Family:
    """Kernels that do the same work: a regular expression over their names, and how many a forward launches."""

    name: str
    pattern: str
    per_forward: int


def family_counts(kernels: Mapping[str, int], families: Sequence[Family]) -> dict[str, int]:
    """Launches by family."""
    return {
        family.name: sum(count for name, count in kernels.items() if re.search(family.pattern, name))
        for family in families
    }


def checks(trace: Trace, families: Sequence[Family], forwards: int, where: str) -> list[Check]:
    """Every predicate on one trace of `forwards` whole forwards."""
    return [*_whole(trace, where), *_families(trace, families, forwards, where), _forbidden(trace, where)]


def _whole(trace: Trace, where: str) -> Iterator[Check]:
    total = sum(trace.kernels.values())
    yield Check("trace-kernels", where, f"{total} launches", "at least 1 launch", total > 0)
    hidden = bool(trace.graph_launches) and trace.graph_nodes == 0
    seen = f"{trace.graph_launches or 0} graph launches, {trace.graph_nodes} kernels in them"
    yield Check("trace-nodes", where, seen, "the kernels inside graphs, traced by node", not hidden)
    lost = "; ".join(trace.faults) or "nothing lost"
    yield Check("trace-whole", where, lost, "no event lost", not trace.faults)


def _families(trace: Trace, families: Sequence[Family], forwards: int, where: str) -> Iterator[Check]:
    counts = family_counts(trace.kernels, families)
    for family in families:
        wanted = family.per_forward * forwards
        seen, required = f"{counts[family.name]}", f"{wanted} = {family.per_forward} x {forwards} forwards"
        yield Check(f"kernels-{family.name}", where, seen, required, forwards > 0 and counts[family.name] == wanted)


def _forbidden(trace: Trace, where: str) -> Check:
    found = sorted(name for name in trace.kernels if re.search(FORBIDDEN, name))
    return Check("kernels-forbidden", where, ", ".join(found) or "none", "no naive or WMMA FP4 kernel", not found)


def untraced(paths: Iterable[str], where: str) -> Check:
    """`paths` are the files of a timed root: a trace among them means that what was timed had been instrumented."""
    found = sorted(path for path in paths if TRACES.search(path))
    return Check("untraced", where, ", ".join(found) or "no trace file", "no trace file in a timed root", not found)


def profilers(argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """What in a process's command or environment puts a profiler to work, each by its word or variable."""
    words = [word for word in argv if word.rpartition("/")[2] in PROGRAMS or FLAGS.match(word)]
    names = [name for name, value in sorted(env.items()) if VARIABLES.match(name) and value.lower() not in OFF]
    loaded = [f"LD_PRELOAD={env['LD_PRELOAD']}"] if INJECTED.search(env.get("LD_PRELOAD", "")) else []
    return [*words, *names, *loaded]

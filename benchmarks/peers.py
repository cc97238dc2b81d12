"""The public 4-bit GEMMs beside ours, in one run on one GPU: `python -m benchmarks.peers [--marlin FILE] [--out DIR]`.

Humming (`pip install humming-kernels==0.1.19`; vLLM 0.33 picks it on Hopper) and vLLM's Marlin NVFP4
(`_C_stable_libtorch.abi3.so` of the wheel vllm==0.25.1, for PyTorch 2.11) multiply bfloat16 activations by FP4 weights;
cuBLAS multiplies resident bfloat16 weights. All times are L2-cold, as `gpu_table` takes them: the median of nine
replays of a graph over rotated weight copies of 180 MB and more. Ours start from quantised activations. Errors are
relative (Frobenius) to float64 of the same operands. A peer that is absent or fails is null; `reasons` says why.

`--tuned COUNT` times that many of Humming's own sampled configurations besides its heuristic's one and keeps the best
that is right. One of them may bring the GPU context down: what was measured before is then already written.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from benchmarks.gpu_table import ROTATION, cold_times, floor_us, torch_replays
from benchmarks.hopper_gemm import SHAPES, operand, values
from kernels.backends.cuda import CudaBackend

_PEERS = ("cublas", "humming", "humming_tuned", "marlin")
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_TOLERANCE = 5e-3  # Humming's stock kernels reach 3.9e-3, for they add partial sums in bfloat16
_FLOAT4_E2M1F = 562949953487106  # vLLM's number for the type
Launch = Callable[[], object]


class Weight(NamedTuple):
    """Packed codes (n, k / 2) and scale bytes (n, k / 16)."""

    codes: torch.Tensor
    scales: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1] * 2


class Peer(Protocol):
    version: str

    def prepare(self, weight: Weight) -> Any:
        """The weight in the peer's own form."""

    def launch(self, a: torch.Tensor, prepared: Any, out: torch.Tensor) -> torch.Tensor:
        """a (m, k) times the weight, (m, n); in `out` where the peer can."""


class Cublas:
    def __init__(self) -> None:
        self.version = f"torch {torch.__version__}"

    def prepare(self, weight: Weight) -> torch.Tensor:
        return values(*weight).to(torch.bfloat16)  # exact

    def launch(self, a: torch.Tensor, prepared: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return torch.matmul(a, prepared.T, out=out)


class Humming:
    """`configuration` None lets its heuristic choose."""

    def __init__(self, configuration: Any = None) -> None:
        self.version = importlib.metadata.version("humming-kernels")
        self._layer = importlib.import_module("humming.layer").HummingLayer
        self.configuration = configuration

    def prepare(self, weight: Weight) -> Any:
        n, k = weight.shape
        chosen = {"quant_method": "modelopt", "quant_algo": "nvfp4"}
        layer = self._layer(shape_n=n, shape_k=k, weight_config=chosen, torch_dtype=torch.bfloat16).cuda()
        scales = weight.scales.view(torch.float8_e4m3fn)
        one = torch.ones(1, device="cuda")
        layer.load_from_tensors({"weight": weight.codes, "weight_scale": scales, "weight_scale_2": one})
        layer.transform()
        return layer

    def launch(self, a: torch.Tensor, prepared: Any, out: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = prepared(a, outputs=out, tuning_config=self.configuration)
        return product

    def sampled(self, layer: Any, count: int) -> list[Any]:
        """Its own tests' sample of legal configurations for a layer."""
        tuning = importlib.import_module("humming.testing.tuning")
        dense = importlib.import_module("humming.config").ComputeConfig(gemm_type="dense")
        found: list[Any] = tuning.sample_test_tuning_configs(layer.humming_config, dense, count)
        return found


class Marlin:
    """vLLM's operators out of one library; weights and scales are laid out as its Marlin NVFP4 layer does."""

    def __init__(self, path: Path) -> None:
        torch.ops.load_library(str(path))
        self.version = f"vllm {path.name}"
        self._ops = torch.ops._C
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        self._workspace = torch.zeros(sms, dtype=torch.int, device="cuda")

    def prepare(self, weight: Weight) -> Any:
        n, k = weight.shape
        columns = weight.codes.view(torch.int32).T.contiguous()
        none = torch.empty(0, dtype=torch.int, device="cuda")
        packed = self._ops.gptq_marlin_repack(columns, none, k, n, 4, False)
        order = [i + 8 * j for i in range(8) for j in range(8)]
        scales = weight.scales.view(torch.float8_e4m3fn).T.contiguous().to(torch.half)
        scales = scales.reshape(-1, 64)[:, order].reshape(-1, n)
        scales = scales.view(-1, 4)[:, [0, 2, 1, 3]].view(scales.shape[0], -1)
        # Scales become unsigned bytes of five exponent and three mantissa bits, as large as they can be; the global
        # scale makes up for that, and for the exponent bias that the decoded codes keep.
        raised = float((448 / scales.float().max()).log2().floor().exp2())
        scales = (scales.float() * raised).to(torch.half) * 2**7
        scales[scales < 2] = 0
        halves = (scales.view(torch.int16) << 1).view(torch.float8_e4m3fn)
        bias = torch.tensor([2.0 ** (126 - 7) / raised], dtype=torch.float32, device="cuda")
        return packed, halves[:, 1::2].contiguous(), bias, (n, k)

    def launch(self, a: torch.Tensor, prepared: Any, out: torch.Tensor) -> torch.Tensor:
        packed, scales, bias, (n, k) = prepared
        shape = (a.shape[0], n, k, True, False, True, False)
        operands = (a, out, packed, None, scales, None, bias, None, None, None, self._workspace)
        product: torch.Tensor = self._ops.marlin_gemm(*operands, _FLOAT4_E2M1F, *shape)
        return product


class Bench:
    """One (N, K): operands, and every peer on them."""

    def __init__(self, n: int, k: int, rows: Sequence[int]) -> None:
        self.n, self.k = n, k
        copies = -(-ROTATION // (n * k * 9 // 16))
        self._weights = [Weight(*self._drawn(n)) for _ in range(copies)]
        self._exact = values(*self._weights[0])
        self.inputs = {m: values(*self._drawn(m)).to(torch.bfloat16) for m in rows}

    def _drawn(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        codes, _, linear = operand(rows, self.k, 48, 71)
        return codes, linear

    def prepared(self, peer: Peer) -> list[Any]:
        """The peer's form of as many copies as the rotation takes."""
        wide = max(2, -(-ROTATION // (2 * self.n * self.k)))
        return [peer.prepare(weight) for weight in self._weights[: wide if isinstance(peer, Cublas) else None]]

    def measured(self, peer: Peer, prepared: Sequence[Any], m: int) -> tuple[float, float]:
        """Microseconds, and the relative error on the first weight."""
        a, out = self.inputs[m], torch.full((m, self.n), float("nan"), dtype=torch.bfloat16, device="cuda")
        exact = a.double() @ self._exact.T
        seen = peer.launch(a, prepared[0], out)
        error = float((seen.double() - exact).norm() / exact.norm())
        del exact, seen
        launches: list[Launch] = [partial(peer.launch, a, one, out) for one in prepared]
        return torch_replays(torch, launches, floor_us(m, self.n, self.k)), error


def ours(backend: CudaBackend, n: int, k: int, rows: Sequence[int]) -> dict[int, tuple[float, str]]:
    """The fastest tactic by M: microseconds and its name."""
    best = dict.fromkeys(rows, (float("inf"), ""))
    for m, tactic, microseconds in cold_times(backend, n, k, rows):
        if microseconds is not None:
            best[m] = min(best[m], (microseconds, ":".join(map(str, backend.tactics.named(tactic)))))
    return best


def tuned(bench: Bench, peer: Humming, layers: Sequence[Any], rows: Sequence[int], count: int) -> dict[int, float]:
    """The best of `count` sampled configurations by M, among those that are right."""
    best: dict[int, float] = {}
    for configuration in peer.sampled(layers[0], count):
        peer.configuration = configuration
        for m in rows:
            try:
                microseconds, error = bench.measured(peer, layers, m)
            except Exception:  # not for this M, or not compiled: the others decide
                continue
            if error < _TOLERANCE:
                best[m] = min(best.get(m, microseconds), microseconds)
    peer.configuration = None
    return best


class Table:
    """What was measured, written after every peer of every shape."""

    def __init__(self, out: Path, reasons: dict[str, str]) -> None:
        self._out = out
        self.reasons = reasons
        self.versions: dict[str, str] = {}
        self.rows: dict[tuple[int, int, int], dict[str, Any]] = {}

    def put(self, m: int, n: int, k: int, **said: Any) -> None:
        unknown = {f"{name}_us": None for name in ("ours", *_PEERS)}
        row = self.rows.setdefault((n, k, m), {"floor_us": floor_us(m, n, k), "k": k, "m": m, "n": n, **unknown})
        row.update(said)

    def write(self) -> None:
        card = {"gpu": torch.cuda.get_device_name(0), "reasons": self.reasons, "versions": self.versions}
        text = json.dumps({**card, "rows": list(self.rows.values())}, indent=1, sort_keys=True)
        self._out.mkdir(parents=True, exist_ok=True)
        (self._out / "peers.json").write_text(text + "\n")
        (self._out / "peers.md").write_text(self._markdown())

    def _markdown(self) -> str:
        lines = [f"# {torch.cuda.get_device_name(0)}: ours and the public 4-bit GEMMs", ""]
        lines += [f"* {name}: {text}" for name, text in sorted({**self.versions, **self.reasons}.items())]
        lines += ["", "Microseconds, L2-cold, median of nine graph replays.", ""]
        lines += [
            f"| N x K | M | floor | ours | {' | '.join(_PEERS)} | best peer / ours |",
            "|---" * (5 + len(_PEERS)) + "|",
        ]
        for row in self.rows.values():
            peers = [row.get(f"{name}_us") for name in _PEERS]
            known, mine = [time for time in peers if time], row.get("ours_us")
            ratio = f"{min(known) / mine:.2f}" if known and mine else "-"
            shown = [f"{time:.1f}" if time else "-" for time in (row["floor_us"], mine, *peers)]
            lines.append(f"| {row['n']}x{row['k']} | {row['m']} | {' | '.join(shown)} | {ratio} |")
        return "\n".join(lines) + "\n"


def _attempt(table: Table, name: str, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:
        table.reasons[name] = f"{type(error).__name__}: {error}"[:500]
        print(f"  {name}: {table.reasons[name]}", flush=True)
        return None


def peers(table: Table, marlin: Path | None) -> dict[str, Peer]:
    """Those that load here; the others' reasons go into the table."""

    def marlin_peer() -> Peer:
        if marlin is None:
            raise FileNotFoundError("no --marlin FILE was given")
        return Marlin(marlin)

    makers: dict[str, Callable[[], Peer]] = {"cublas": Cublas, "humming": Humming, "marlin": marlin_peer}
    found = {name: _attempt(table, name, maker) for name, maker in makers.items()}
    present = {name: peer for name, peer in found.items() if peer is not None}
    table.versions = {name: peer.version for name, peer in present.items()}
    return present


def measure_shape(table: Table, present: dict[str, Peer], n: int, k: int, options: argparse.Namespace) -> None:
    bench = Bench(n, k, options.rows)
    for name, peer in present.items():
        prepared = _attempt(table, name, partial(bench.prepared, peer))
        for m in options.rows if prepared else ():
            found = _attempt(table, f"{name} {m}x{n}x{k}", partial(bench.measured, peer, prepared, m))
            microseconds, error = found or (None, None)
            table.put(m, n, k, **{f"{name}_us": microseconds, f"{name}_error": error})
        if options.tuned and prepared and isinstance(peer, Humming):
            best = tuned(bench, peer, prepared, options.rows, options.tuned)
            for m, microseconds in best.items():
                table.put(m, n, k, humming_tuned_us=microseconds)
        table.write()
        print(f"  {n}x{k} {name}", flush=True)
        del prepared
        torch.cuda.empty_cache()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("--marlin", type=Path, help="vLLM's library of operators")
    parser.add_argument("--rows", type=lambda text: [int(part) for part in text.split(",")], default=list(ROWS))
    parser.add_argument("--tuned", type=int, default=0, metavar="COUNT")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "results")
    options = parser.parse_args(argv)
    torch.manual_seed(6)
    table = Table(options.out, {})
    present = peers(table, options.marlin)
    backend = _attempt(table, "ours", CudaBackend)
    for n, k in SHAPES:
        mine = _attempt(table, "ours", partial(ours, backend, n, k, options.rows)) if backend else None
        for m, (microseconds, tactic) in (mine or {}).items():
            table.put(m, n, k, ours_us=microseconds, tactic=tactic)
        table.write()
        measure_shape(table, present, n, k, options)
    print((options.out / "peers.md").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())

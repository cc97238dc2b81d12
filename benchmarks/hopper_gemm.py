"""Check and time the fused NVFP4 kernels of a built library on this machine's GPU, against cuBLAS in bfloat16 (torch).

    python benchmarks/hopper_gemm.py LIBRARY [--out FILE] [--rows 1,2,4,8,16,32]

Times are medians of CUDA-graph replays over rotated copies of the weight (at least 180 MB, so L2 is cold); the card's
clocks are left as found. Floor = max(bytes / 4.3 TB/s, flops / 790 TFLOP/s), bytes being codes, scales, activations as
bfloat16, and output. The check is against float64 of the operands, decoded here independently of `kernels.nvfp4`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
from collections.abc import Callable
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_void_p
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

SHAPES = ((14336, 5120), (34816, 5120), (5120, 6144), (5120, 17408))
ROTATION = 180_000_000
GEMM = (*(c_void_p,) * 6, *(c_int,) * 3, c_void_p, c_size_t, c_int, c_void_p)
CODES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class Call(NamedTuple):
    """One GEMM but for its weight: `shape` is (m, n, k)."""

    d: torch.Tensor
    a: torch.Tensor
    sfa: torch.Tensor
    alpha: torch.Tensor
    shape: tuple[int, int, int]


class Fused:
    """The library's fused entry points, on torch tensors."""

    def __init__(self, path: str) -> None:
        self.c = ctypes.CDLL(path)
        self.c.nvfp4_fused_version.restype = c_char_p
        self.c.nvfp4_fused_packed_bytes.restype = self.c.nvfp4_fused_workspace.restype = c_int64
        self.c.nvfp4_fused_pack.argtypes = (c_void_p, c_void_p, c_void_p, c_int, c_int, c_void_p)
        self.c.nvfp4_fused_run.argtypes = (c_int, *GEMM)
        self.count = int(self.c.nvfp4_fused_tactics())
        self.sms = torch.cuda.get_device_properties(0).multi_processor_count

    def pack(self, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        n, k = codes.shape[0], codes.shape[1] * 2
        out = torch.empty(self.c.nvfp4_fused_packed_bytes(n, k), dtype=torch.uint8, device="cuda")
        status = self.c.nvfp4_fused_pack(codes.data_ptr(), scales.data_ptr(), out.data_ptr(), n, k, stream())
        assert status == 0, status
        return out

    def workspace(self, tactic: int, m: int, n: int, k: int) -> torch.Tensor:
        size = self.c.nvfp4_fused_workspace(tactic, m, n, k, self.sms)
        return torch.zeros(size, dtype=torch.uint8, device="cuda")

    def run(self, tactic: int, call: Call, packed: torch.Tensor, ws: torch.Tensor) -> None:
        d, a, sfa, alpha, shape = call
        pointers = (d.data_ptr(), a.data_ptr(), packed.data_ptr(), sfa.data_ptr(), None, alpha.data_ptr())
        status = self.c.nvfp4_fused_run(tactic, *pointers, *shape, ws.data_ptr(), ws.numel(), self.sms, stream())
        assert status == 0, (tactic, shape, status)


def stream() -> int:
    return torch.cuda.current_stream().cuda_stream


def operand(rows: int, k: int, low: int, high: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random packed codes, swizzled scale bytes in [low, high], and the same bytes as (rows, k / 16)."""
    codes = torch.randint(0, 256, (rows, k // 2), dtype=torch.uint8, device="cuda")
    linear = torch.randint(low, high + 1, (rows, k // 16), dtype=torch.uint8, device="cuda")
    padded = torch.zeros((-(-rows // 128) * 128, k // 16), dtype=torch.uint8, device="cuda")
    padded[:rows] = linear
    tiles = padded.reshape(-1, 4, 32, k // 64, 4).permute(0, 3, 2, 1, 4).contiguous()
    return codes, tiles.reshape(-1), linear


def values(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Float64 values; the scale bytes are decoded by torch's own float8_e4m3fn."""
    table = torch.tensor([*CODES, *(-value for value in CODES)], dtype=torch.float64, device="cuda")
    pairs = torch.stack([codes & 15, codes >> 4], dim=-1).reshape(codes.shape[0], -1)
    return table[pairs.long()] * scales.view(torch.float8_e4m3fn).double().repeat_interleave(16, dim=1)


def check(fused: Fused, repeats: int) -> list[dict[str, Any]]:
    """Relative Frobenius error of every tactic, outputs poisoned with NaN, and whether repeats are bit-equal."""
    found = []
    cases = [(m, 5120, 6144, *s) for m in (1, 3, 8, 16, 17, 127) for s in ((48, 71), (0, 126))]
    cases += [(m, n, k, 48, 71) for m in (1, 16) for n, k in SHAPES]
    cases += [(3, 64, 64, 0, 126), (17, 192, 128, 0, 126), (1, 128, 17408, 0, 126)]
    for m, n, k, low, high in cases:
        a, sfa, a_scales = operand(m, k, low, high)
        b, sfb, b_scales = operand(-(-n // 128) * 128, k, low, high) if n % 128 else operand(n, k, low, high)
        b, b_scales = b[:n].contiguous(), b_scales[:n]
        alpha = torch.tensor([0.37], device="cuda")
        exact = float(alpha.item()) * (values(a, a_scales) @ values(b, b_scales).T)
        packed = fused.pack(b, sfb)
        for tactic in range(fused.count):
            out = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device="cuda")
            ws = fused.workspace(tactic, m, n, k)
            call = Call(out, a, sfa, alpha, (m, n, k))
            fused.run(tactic, call, packed, ws)
            error = float((out.double() - exact).norm() / exact.norm())
            first, equal = out.view(torch.int16).clone(), 0
            for _ in range(repeats):
                out.fill_(float("nan"))
                fused.run(tactic, call, packed, ws)
                equal += bool(torch.equal(out.view(torch.int16), first))
            case = {"m": m, "n": n, "k": k, "scales": [low, high], "tactic": tactic}
            found.append({**case, "error": error, "bit_equal": equal, "repeats": repeats})
    return found


def timed(launches: list[Callable[[], object]], replays: int) -> float:
    """Median microseconds of one launch, the list captured (several times over, if short) into one graph."""
    launches[0]()
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    rounds = max(1, 40 // len(launches))
    with torch.cuda.graph(graph, stream=side):
        for _ in range(rounds):
            for launch in launches:
                launch()
    graph.replay()
    samples = []
    for _ in range(replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1000 / (rounds * len(launches)))
    return statistics.median(samples)


def measure(fused: Fused, n: int, k: int, rows: list[int], replays: int) -> list[dict[str, Any]]:
    """One row a token count: floor, cuBLAS, every tactic."""
    b, sfb, _ = operand(n, k, 48, 71)
    packed = fused.pack(b, sfb)
    copies = [packed.clone() for _ in range(-(-ROTATION // packed.numel()) + 1)]
    dense = [torch.randn(n, k, dtype=torch.bfloat16, device="cuda") for _ in range(-(-ROTATION // (2 * n * k)) + 1)]
    alpha = torch.ones(1, device="cuda")
    found = []
    for m in rows:
        size = n * k / 2 + n * k / 16 + 2 * m * k + 2 * m * n
        floor = max(size / 4.3e12, 2 * m * n * k / 790e12) * 1e6
        a, sfa, _ = operand(m, k, 48, 71)
        x = torch.randn(m, k, dtype=torch.bfloat16, device="cuda")
        out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
        cublas = timed([partial(torch.matmul, x, w.T, out=out) for w in dense], replays)
        gemm = Call(out, a, sfa, alpha, (m, n, k))
        times: dict[int, float] = {}
        for tactic in range(fused.count):
            ws = fused.workspace(tactic, m, n, k)
            times[tactic] = timed([partial(fused.run, tactic, gemm, w, ws) for w in copies], replays)
        best = min(times, key=times.__getitem__)
        ws = fused.workspace(best, m, n, k)
        final = timed(
            [partial(fused.run, best, gemm, w, ws) for w in copies], replays
        )  # the winner timed afresh: the minimum of many is optimistic
        row = {"n": n, "k": k, "m": m, "floor_us": floor, "cublas_bf16_us": cublas, "best": best, "best_us": final}
        found.append({**row, "tactics_us": list(times.values())})
        ratios = f"{final / floor:5.2f} x floor  {cublas / final:5.2f} x faster than cuBLAS"
        each = " ".join(f"{value:.1f}" for value in times.values())
        begin = f"{n}x{k} M={m:<3} floor {floor:5.1f}  cuBLAS {cublas:6.1f}  t{best} {final:6.1f}"
        print(f"{begin}  {ratios} | {each}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("library")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", default="1,2,4,8,16,32")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--replays", type=int, default=11)
    options = parser.parse_args()
    torch.manual_seed(6)
    fused = Fused(options.library)
    card = torch.cuda.get_device_name(0)
    checks = check(fused, options.repeats)
    worst = max(checks, key=lambda item: item["error"])
    unequal = [item for item in checks if item["bit_equal"] != item["repeats"]]
    bad = [item for item in checks if not item["error"] < 1.8e-3]
    print(f"{card}, torch {torch.__version__}: {len(checks)} checks, worst error {worst['error']:.3e}, ", end="")
    print(f"{len(bad)} wrong, {len(unequal)} not bit-equal over {options.repeats} repeats", bad[:4], unequal[:4])
    rows = [int(text) for text in options.rows.split(",")]
    table = [row for n, k in SHAPES for row in measure(fused, n, k, rows, options.replays)]
    if options.out:
        facts = {"card": card, "torch": torch.__version__, "kernel": fused.c.nvfp4_fused_version().decode()}
        options.out.write_text(json.dumps({**facts, "checks": checks, "times": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""The real FlashInfer 0.6.13 and 0.7.4 and vLLM 0.25.0's warm-up code, as unpacked sources that nobody installs.

`python -m tests.oracle.flashinfer_env FOLDER [VLLM_BENCH_FOLDER]` prepares them by pip alone (115 MB, and 38 MB for
the vLLM archive unless the second folder already holds it); tests find them through the environment variable
NVFP4_GATES_FLASHINFER=FOLDER. NVFP4_GATES_FLASHINFER_TORCH=real runs them on the torch that is installed here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.oracle import vllm_bench_env

__all__ = ["FIRST", "LATER", "TORCH_VARIABLE", "VARIABLE", "Sources", "decode", "encode", "find", "prepare"]

VARIABLE = "NVFP4_GATES_FLASHINFER"
TORCH_VARIABLE = "NVFP4_GATES_FLASHINFER_TORCH"
FIRST = "0.6.13"
LATER = "0.7.4"
_WHEELS = {
    FIRST: "239e6ddc3cbbaf0bee251861a8c7c69438b1171830d69ddfa133ddea4494850d",
    LATER: "a051a62e09a2738e8b0de47a1944fd2f0f3eff01b728b662141ea660cb09dd32",
}
# Parts of a wheel's `flashinfer/` that run or are cut from; the rest is 100 MB of CUDA headers and cubins.
_PARTS = (
    "autotune",
    "tactics_blocklist.py",
    "version.py",
    "_build_meta.py",
    "tllm_enums.py",
    "utils.py",
    "fused_moe/utils.py",
    "gemm/gemm_base.py",
)
_WARMUP = f"vllm-{vllm_bench_env.VERSION}/vllm/model_executor/warmup/"


@dataclass(frozen=True)
class Sources:
    """The prepared folder: `flashinfer-VERSION/flashinfer/…` twice and `vllm-VERSION/vllm/…` once."""

    folder: Path

    @property
    def vllm(self) -> Path:
        return self.folder / f"vllm-{vllm_bench_env.VERSION}"

    def flashinfer(self, version: str) -> Path:
        return self.folder / f"flashinfer-{version}"

    def complete(self) -> bool:
        marks = [self.flashinfer(version) / "flashinfer" / "gemm" / "gemm_base.py" for version in _WHEELS]
        return all(mark.exists() for mark in (*marks, self.folder / _WARMUP / "kernel_warmup.py"))

    def ask(self, version: str, requests: Sequence[dict[str, Any]], program: str = "run_flashinfer.py") -> list[Any]:
        """The answers of one process that runs the real tuner of `version` and takes each request in turn."""
        script = Path(__file__).with_name(program)
        torch = os.environ.get(TORCH_VARIABLE, "light")
        done = subprocess.run(
            [sys.executable, str(script), str(self.flashinfer(version)), torch, str(self.vllm)],
            input=json.dumps(list(requests)),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} on FlashInfer {version} failed: {done.stderr[-3000:]}")
        answers: list[Any] = json.loads(done.stdout)
        return answers


def encode(document: bytes) -> str:
    """A document as text for a request."""
    return base64.b64encode(document).decode("ascii")


def decode(text: str) -> bytes:
    return base64.b64decode(text)


def find() -> Sources | None:
    """The folder that NVFP4_GATES_FLASHINFER names; None where it is not set. A folder without sources is an error."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    sources = Sources(Path(folder).resolve())
    if not sources.complete():
        raise RuntimeError(f"{VARIABLE}={folder} holds no prepared sources; run python -m {__name__} {folder}")
    return sources


def prepare(folder: Path, bench: Path) -> Sources:
    """Fill `folder`, or return it when it is filled. `bench` is where vllm_bench_env keeps the vLLM archive."""
    sources = Sources(folder.resolve())
    folder.mkdir(parents=True, exist_ok=True)
    for version, digest in _WHEELS.items():
        if not (sources.flashinfer(version) / "flashinfer" / "gemm" / "gemm_base.py").exists():
            _unpack_wheel(_wheel(folder, version, digest), sources.flashinfer(version))
    if not sources.complete():
        _unpack_warmup(_vllm_archive(bench), folder)
    return sources


def _wheel(folder: Path, version: str, digest: str) -> Path:
    requirement = f"flashinfer-python=={version}"
    command = ["-m", "pip", "--quiet", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    done = subprocess.run([sys.executable, *command, requirement], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"pip download {requirement} failed: {done.stderr[-2000:]}")
    path = folder / f"flashinfer_python-{version}-py3-none-any.whl"
    _require_digest(path, digest)
    return path


def _vllm_archive(bench: Path) -> Path:
    vllm_bench_env.prepare(bench)
    return bench / f"vllm-{vllm_bench_env.VERSION}.tar.gz"


def _require_digest(path: Path, digest: str) -> None:
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != digest:
        raise RuntimeError(f"{path.name} has SHA-256 {found}, not {digest}; remove it and try again")


def _unpack_wheel(path: Path, target: Path) -> None:
    prefixes = tuple(f"flashinfer/{part}" for part in _PARTS)
    with zipfile.ZipFile(path) as archive:
        archive.extractall(target, _sources(archive.namelist(), prefixes))


def _sources(names: Iterable[str], prefixes: tuple[str, ...]) -> list[str]:
    # gemm_base.py is what says that a folder is filled, so it comes last.
    wanted = [name for name in names if name.startswith(prefixes) and name.endswith(".py")]
    return sorted(wanted, key=lambda name: name.endswith("gemm_base.py"))


def _unpack_warmup(path: Path, folder: Path) -> None:
    _require_digest(path, vllm_bench_env.SDIST_SHA256)
    with tarfile.open(path) as archive:
        wanted = [member for member in archive if member.name.startswith(_WARMUP) and member.name.endswith(".py")]
        archive.extractall(folder, wanted, filter="data")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python -m tests.oracle.flashinfer_env FOLDER [VLLM_BENCH_FOLDER]")
    where = Path(sys.argv[1])
    prepare(where, Path(sys.argv[2]) if len(sys.argv) == 3 else where / "vllm-bench")
    print(f"{VARIABLE}={where.resolve()}")

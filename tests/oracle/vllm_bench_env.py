"""The real vLLM 0.25.0 bench client in an environment of its own: about 180 MB instead of a whole vLLM.

`python -m tests.oracle.vllm_bench_env FOLDER` prepares it by pip alone; tests and benchmarks find it through the
environment variable NVFP4_GATES_VLLM_BENCH=FOLDER.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["SDIST_SHA256", "VARIABLE", "VERSION", "VllmBench", "find", "prepare"]

VARIABLE = "NVFP4_GATES_VLLM_BENCH"
VERSION = "0.25.0"
SDIST_SHA256 = "7e04e2b37164de8c4012f27f75af6c4768039b32610865e9b6fb8c49c34a84aa"
_RUN = ("aiohttp==3.14.5", "numpy==2.4.6", "tqdm==4.70.1", "regex==2026.11.19")
# pip prepares an sdist's metadata even to download it; these are what vLLM's setup.py imports to say its name.
_BUILD = (
    "setuptools==80.9.0",
    "setuptools-scm==10.3.4",
    "setuptools-rust==1.13.0",
    "wheel==0.48.0",
    "packaging==26.2",
    "jinja2==3.1.6",
)
# setup.py also imports torch, to choose a device that VLLM_TARGET_DEVICE=empty has chosen; 200 MB less this way.
_TORCH = {
    "torch/__init__.py": "__version__ = '2.13.0'\nclass version:\n    cuda = hip = None\n",
    "torch/utils/__init__.py": "",
    "torch/utils/cpp_extension.py": "CUDA_HOME = ROCM_HOME = None\n",
}


@dataclass(frozen=True)
class VllmBench:
    """A prepared environment: its interpreter, and the unpacked source whose benchmark modules run."""

    python: Path
    source: Path

    def command(self, port: int, dataset: Path, result: Path, options: Sequence[str]) -> list[str]:
        """The command line of one `vllm bench serve` run, greedy, detailed, results to the file `result`."""
        launcher = Path(__file__).with_name("run_vllm_bench.py")
        fixed = ["--backend", "openai", "--base-url", f"http://127.0.0.1:{port}", "--endpoint", "/v1/completions"]
        fixed += ["--model", "gate", "--dataset-name", "custom", "--dataset-path", str(dataset)]
        fixed += ["--ready-check-timeout-sec", "0", "--temperature", "0", "--ignore-eos", "--disable-tqdm"]
        fixed += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,99"]
        fixed += ["--save-result", "--save-detailed", "--result-dir", str(result.parent)]
        return [str(self.python), str(launcher), str(self.source), *fixed, "--result-filename", result.name, *options]

    def run(self, port: int, dataset: Path, result: Path, options: Sequence[str]) -> dict[str, Any]:
        """Run it and return its result document; its log is the error's text when it fails."""
        done = subprocess.run(
            self.command(port, dataset, result, options), capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode != 0 or not result.exists():
            raise RuntimeError(f"the vLLM bench client failed with {done.returncode}: {done.stderr[-2000:]}")
        document: dict[str, Any] = json.loads(result.read_text())
        return document


def find() -> VllmBench | None:
    """The environment that NVFP4_GATES_VLLM_BENCH names, if it is a prepared one."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    bench = _at(Path(folder).resolve())
    return bench if bench.python.exists() and (bench.source / "vllm" / "benchmarks" / "serve.py").exists() else None


def prepare(folder: Path) -> VllmBench:
    """Make the environment in `folder`, or return it when it is there. Needs pip's index; about 10 s."""
    folder = folder.resolve()
    bench = _at(folder)
    if not bench.python.exists():
        venv.create(folder / "venv", with_pip=True)
    _pip(folder, "install", *_RUN, *_BUILD)
    if not (bench.source / "vllm" / "benchmarks" / "serve.py").exists():
        _unpack(_download(folder), folder)
    return bench


def _at(folder: Path) -> VllmBench:
    return VllmBench(folder / "venv" / "bin" / "python", folder / f"vllm-{VERSION}")


def _pip(folder: Path, *arguments: str, **environment: str) -> None:
    command = [str(_at(folder).python), "-m", "pip", "--quiet", "--cache-dir", str(folder / "cache"), *arguments]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"pip {' '.join(arguments)} failed: {done.stderr[-2000:]}")


def _download(folder: Path) -> Path:
    for name, text in _TORCH.items():
        path = folder / "stand-in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    _pip(
        folder,
        *("download", "--dest", str(folder), "--no-deps", "--no-build-isolation", "--no-binary", "vllm"),
        f"vllm=={VERSION}",
        PYTHONPATH=str(folder / "stand-in"),
        VLLM_TARGET_DEVICE="empty",
        VLLM_VERSION_OVERRIDE=VERSION,
    )
    return folder / f"vllm-{VERSION}.tar.gz"


def _unpack(archive: Path, folder: Path) -> None:
    """Only the benchmark modules, out of exactly the archive that this project was written against."""
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SDIST_SHA256:
        raise RuntimeError(f"{archive.name} has SHA-256 {found}, not {SDIST_SHA256}; remove it and try again")
    with tarfile.open(archive) as tar:
        wanted = [member for member in tar if member.name.startswith(f"vllm-{VERSION}/vllm/benchmarks/")]
        tar.extractall(folder, wanted, filter="data")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.oracle.vllm_bench_env FOLDER")
    prepare(Path(sys.argv[1]))
    print(f"{VARIABLE}={Path(sys.argv[1]).resolve()}")

"""Where a host keeps its CUDA tools: a session over SSH has them on no search path."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

__all__ = ["FOLDERS", "find"]

# Beside a system's search path; the newest folder of each pattern counts.
FOLDERS = ("/usr/local/cuda/bin", "/usr/local/cuda-*/bin", "/opt/nvidia/nsight-systems/*/bin", "/usr/local/nvidia/bin")


def find(name: str) -> str | None:
    """Its absolute path, found without running it: nvidia-smi hangs with its driver."""
    folders = [str(one) for pattern in FOLDERS for one in sorted(Path("/").glob(pattern[1:]), reverse=True)]
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))

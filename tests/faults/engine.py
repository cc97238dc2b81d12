"""The reference engine with a worker of its own, as real servers have, that can be held while loading or stopping.

As a program it is the front: it double-forks a worker in a session of its own, serves, and dies when the worker dies.
As an adapter it is registered by `tests.faults.child` alone.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.engines.base import Launch
from harness.engines.reference import Reference

FOLDER, INJECT = "FAULTS_FOLDER", "FAULTS_INJECT"
ROOT = Path(__file__).resolve().parents[2]


class Faulty(Reference):
    """The engine `faulty`: `engine.options.folder` is where its fronts say where they are and wait to be let on."""

    name = "faulty"

    def __init__(self, options: Mapping[str, Any], cache_dir: Path) -> None:
        self._folder = Path(str(options["folder"]))
        super().__init__({key: value for key, value in options.items() if key != "folder"}, cache_dir)
        gpu = {"gpu"} if os.environ.get(INJECT, "").startswith("nvml-") else set()
        self.capabilities = self.capabilities - {"sequential_proof"} | gpu

    def launch(self, arm: Mapping[str, Any], port: int, plan: Path | None, read_only: bool) -> Launch:
        known = super().launch(arm, port, plan, read_only)
        argv = [word if word != "kernels.serve" else "tests.faults.engine" for word in known.argv]
        return replace(known, argv=argv, env={**known.env, FOLDER: str(self._folder)}, cwd=ROOT)


def hold(folder: Path, phase: str) -> None:
    """Say that `phase` is reached, and stay in it while the file `hold-PHASE` is there."""
    held = folder / f"hold-{phase}"
    if held.exists():
        (folder / f"at-{phase}").touch()
        while held.exists():
            time.sleep(0.01)


def work(folder: Path, pipe: int) -> None:
    """The worker: says goodbye on TERM, and knows nothing of its front's end, as a daemon does not."""

    def leave(*_: object) -> None:
        hold(folder, "stopping")
        os.write(pipe, b"bye")
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    (folder / f"worker-{os.getpid()}").touch()
    os.write(pipe, b"on.")
    while True:
        signal.pause()


def start_worker(folder: Path) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setsid()
        if os.fork():
            os._exit(0)
        work(folder, writing)
    os.close(writing)
    os.waitpid(child, 0)
    os.read(reading, 3)
    threading.Thread(target=mourn, args=(reading,), daemon=True).start()


def mourn(pipe: int) -> None:
    """A front is of no use without its worker."""
    if os.read(pipe, 3) != b"bye":
        print("the worker died", flush=True)
        os._exit(1)


def main() -> int:
    folder = Path(os.environ[FOLDER])
    start_worker(folder)
    hold(folder, "loading")
    from kernels.serve.__main__ import main as serve

    code = serve(sys.argv[1:])
    hold(folder, "stopping")
    return code


if __name__ == "__main__":
    sys.exit(main())

"""GPU memory of an engine's tree for the sampler, which goes on when NVML does not answer any more."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

from harness import canonical
from harness.errors import HarnessError
from harness.telemetry import nvml, procfs
from harness.telemetry.procfs import ProcessId

__all__ = ["HANGS", "Gpu", "Worker"]

START_S = 20.0  # nvmlInit wakes a GPU without persistence mode, which takes seconds
READ_S = 2.0  # a look takes about 1 ms
HANGS = "nvml-hangs"


class Worker:
    """Calls in one thread of their own, so that one which never returns costs `READ_S` once and not the whole leg.

    A call into a stuck driver cannot be ended from outside; the thread is a daemon and goes with the process.
    """

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self.stuck = False
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            call = self._asked.get()
            try:
                self._answers.put((call(), None))
            except Exception as error:
                self._answers.put((None, error))

    def call(self, work: Callable[[], Any], timeout_s: float) -> Any:
        """What `work` returns or raises. HarnessError `nvml-hangs` after `timeout_s`, and at once from then on."""
        if not self.stuck:
            self._asked.put(work)
            try:
                value, error = self._answers.get(timeout=timeout_s)
            except queue.Empty:
                self.stuck = True
            else:
                if error is not None:
                    raise error
                return value
        raise HarnessError(HANGS, f"NVML did not answer within {timeout_s:g} s; look at dmesg and nvidia-smi")


class Gpu:
    """GPU memory of a tree, and the whole reading as a row of its own. Absence has a reason."""

    def __init__(self, out: BinaryIO | None, module: Any = None, read_s: float = READ_S) -> None:
        self._out = out
        self._read_s = read_s
        self._worker = Worker()
        self._nvml: nvml.Nvml | None = None
        self.reason: str | None = None
        try:
            self._nvml = self._worker.call(lambda: nvml.Nvml(module), START_S)
        except HarnessError as error:
            self.reason = error.code
        self._write({"identity": None if self._nvml is None else self._nvml.identity(), "reason": self.reason})

    @property
    def method(self) -> str | None:
        return None if self._nvml is None else nvml.METHOD

    def read(self, t_ns: int, pids: Sequence[ProcessId]) -> tuple[int | None, str | None]:
        if self._nvml is None:
            return None, self.reason
        try:
            reading = self._worker.call(self._nvml.read, self._read_s)
        except HarnessError as error:
            if self.reason is None:
                self._write({"t_ns": str(t_ns), "processes": None, "reason": error.code})
            self.reason = error.code
            return None, error.code
        self._write({"t_ns": str(t_ns), **reading.to_json()})
        if not pids:
            return None, "no process"
        known = [process.pid for process in pids]
        aliases = {pid: procfs.namespace_pids(pid) for pid in known}
        return nvml.attribute(reading, known, lambda pid: procfs.read_stat(pid) is not None, aliases)

    def _write(self, row: dict[str, Any]) -> None:
        if self._out is not None:
            self._out.write(canonical.dumps(row))
            self._out.flush()

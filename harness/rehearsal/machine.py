"""The made machine: processes that are none, a clock that jumps, a host on which all is well."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from harness import canonical
from harness.context import Context
from harness.engines.base import Address, Rehearsing, Said
from harness.errors import HarnessError
from harness.machine import CLIENT, ENGINE, Machine
from harness.plan import LegPlan
from harness.ports import PortOwner
from harness.process import Exit, Owned, StopReport
from harness.readiness import ANSWER_TIMEOUT_S, Answer
from harness.records import Canary, GpuState, MemorySample
from harness.rehearsal import load
from harness.telemetry import host
from harness.telemetry.host import ReturnCheck
from harness.telemetry.nvml import METHOD
from harness.telemetry.pagecache import DropReport
from harness.telemetry.probe import GpuAnswer
from harness.telemetry.procfs import ProcessId
from harness.telemetry.sampler import Summary

__all__ = ["BOOT", "KINDS", "NOBODY", "Made"]

BOOT = "rehearsed"
# Kinds of legs for which `Rehearsing.rehearsed` knows what their processes say.
SERVERS = ("seed", "sequential", "concurrent", "inertness", "replay", "structure", "timed")
PROGRAMS = ("model-gate", "collect", "suite", "build", "sanitizer")
KINDS = frozenset((*SERVERS, *PROGRAMS))
NOBODY = ProcessId(1 << 23, 0)  # above what a kernel gives: a process that never exists
S = 1_000_000_000
LOADING_S, WARMING_S = 5, 1
GIB_KIB = 1 << 20
FREE_KIB, ENGINE_KIB, GPU_MIB = 64 * GIB_KIB, 8 * GIB_KIB, 4096
SPREAD = 0.01
CANARY = {"cpu_copy": 2_500_000, "cpu_gemv": 15_000}
GPU_CANARY = {"gpu_copy": 900_000, "gpu_gemv": 500_000}
COUNTERS = ("sw_thermal", "hw_thermal", "hw_power_brake")


class Actor(Owned):
    """A process that was never started. A server lives until it is stopped; anything else has ended when asked."""

    def __init__(self, server: bool = False, at_end: Callable[[], None] = lambda: None) -> None:
        self.pid, self.start_ticks, self.pgid, self.identity = NOBODY.pid, NOBODY.start_ticks, NOBODY.pid, NOBODY
        self.server = server
        self._at_end = at_end
        self._how: Exit | None = None

    def alive(self) -> bool:
        return self._how is None

    def descendants(self) -> tuple[ProcessId, ...]:
        return ()

    @property
    def recorded(self) -> frozenset[ProcessId]:
        return frozenset()

    def poll(self) -> Exit | None:
        return self._how

    def wait(self, timeout_s: float) -> Exit | None:
        return self._how if self.server else self.end()

    def end(self) -> Exit:
        if self._how is None:
            self._how = Exit(0, None)
            self._at_end()
        return self._how


class Made(Machine):
    """What a healthy host and a healthy engine would do. `context` is set before the first leg begins."""

    context: Context

    def __init__(self) -> None:
        self._now_ns = 1000 * S
        self._begun_ns = self._ready_ns = self._done_ns = self._now_ns
        self._said = Said()
        self._loaded = False
        self._draw = Random(0)

    def begin(self, leg: LegPlan) -> None:
        """HarnessError `no-rehearsal` for a kind of leg of which is not known what its processes leave."""
        if leg.kind not in KINDS:
            raise HarnessError(
                "no-rehearsal",
                f"legs of kind {leg.kind!r} cannot be rehearsed: say in the adapters' `rehearsed` what their "
                "processes leave, then add the kind to harness/rehearsal/machine.py",
            )
        engine = self.context.engine
        arm = self.context.arm(leg.arm)
        self._said = engine.rehearsed(leg.kind, arm, self.context.frozen) if isinstance(engine, Rehearsing) else Said()
        self._loaded = False
        self._draw = Random(leg.name)

    def on_term(self, action: Callable[[int, FrameType | None], None]) -> None:
        """The signal stays whose it is."""

    def now_ns(self) -> int:
        return self._now_ns

    def start(
        self,
        role: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        log: Path,
        *,
        pass_fds: Sequence[int] = (),
        reaper: int | None = None,
    ) -> Owned:
        log.write_text(self._said.log if role == ENGINE else "", encoding="utf-8")
        if role == ENGINE:
            self._begun_ns = self._now_ns
            if self._said.document is not None and self.context.frozen is not None:
                self.context.frozen.write_bytes(self._said.document)
            return Actor()
        if role == CLIENT:
            spec = next(Path(word) for word in argv if word.endswith("spec.json"))
            self._loaded = True
            self._now_ns = load.play(spec, self.context.plan, self._draw, self._now_ns + WARMING_S * S)
            return Actor()
        places = {word: Path(argv[number + 1]) for number, word in enumerate(argv) if word.startswith("--")}
        return Actor(at_end=lambda: self._sampled(places))

    def _sampled(self, places: Mapping[str, Path]) -> None:
        """The files of a sampler that saw the engine from its start to its end."""
        summary = Summary(None, S)
        moments = (self._begun_ns, self._ready_ns, (self._ready_ns + self._now_ns) // 2, self._now_ns)
        rows = [self._sample(moment, True) for moment in moments] + [self._sample(self._now_ns + S, False)]
        for row in rows:
            summary.add(row)
        summary.ended, summary.smaps_samples = "tree-gone", len(moments)
        summary.gpu_method = METHOD if self.context.plan.gpu else None
        places["--out"].write_bytes(b"".join(canonical.dumps(row.to_json()) for row in rows))
        places["--gpu"].write_bytes(b"")
        places["--summary"].write_bytes(canonical.dumps(summary.to_json()))

    def _sample(self, t_ns: int, alive: bool) -> MemorySample:
        factor = 1 + self._draw.uniform(-SPREAD, SPREAD)
        gpu = self.context.plan.gpu
        return MemorySample(
            t_ns=t_ns,
            alive=alive,
            pids=((NOBODY.pid, NOBODY.start_ticks),) if alive else (),
            pss_kib=round(ENGINE_KIB * factor) if alive else None,
            rss_kib=round(ENGINE_KIB * factor) if alive else None,
            mem_available_kib=FREE_KIB - (round(ENGINE_KIB * factor) if alive else 0),
            gpu_mib=round(GPU_MIB * factor) if alive and gpu else None,
            gpu_reason=None if alive and gpu else "rehearsed",
        )

    def stop(self, owned: Owned, grace_s: float) -> StopReport:
        assert isinstance(owned, Actor)
        return StopReport(None, None, (), owned.end())

    def require_free(self, port: int, key: str) -> None:
        """No port is used."""

    def port_owner(self, port: int) -> PortOwner | None:
        return None

    def await_ready(
        self,
        owned: Owned,
        port: int,
        model: str,
        prompt: Sequence[int],
        *,
        log: Path,
        timeout_s: float,
        check: Callable[[], None],
    ) -> None:
        assert isinstance(owned, Actor)
        owned.server = True
        self._now_ns += LOADING_S * S
        self._ready_ns = self._now_ns
        check()

    def require_answer(self, address: Address, model: str, prompt: Sequence[int], *, timeout_s: float) -> None:
        """Somebody else's server answers."""

    def get(self, port: int, path: str, timeout_s: float = ANSWER_TIMEOUT_S) -> Answer:
        answers = {**self._said.answers, **(self._said.after if self._loaded else {})}
        found = answers.get(path)
        return Answer(HTTPStatus.NOT_FOUND, b"") if found is None else Answer(HTTPStatus.OK, found.encode())

    def drop(self, roots: Sequence[Path]) -> DropReport:
        names = canonical.sha256_bytes(canonical.dumps(sorted(root.name for root in roots)))
        return DropReport("rehearsed", 4096, names, len(roots), 0, 0, 0, 0, True, ())

    def gpus(self) -> GpuAnswer:
        """The devices of the plan, idle and cool; none where it names none."""
        identity = self.context.plan.host.get("gpu")
        if identity is None:
            return GpuAnswer(None, (), "rehearsed without a GPU")
        boards = [
            GpuState(uuid, 50, 30_000, 2400, None, (), dict.fromkeys(COUNTERS, 0), {"memory_mhz": "rehearsed"})
            for uuid, _ in identity.get("devices", ())
        ]
        return GpuAnswer(identity, (), None, tuple(boards))

    def sing(self, gpu: bool) -> Canary:
        return Canary({**CANARY, **(GPU_CANARY if gpu else {})}, {} if gpu else dict.fromkeys(GPU_CANARY, "rehearsed"))

    def snapshot(self, paths: Mapping[str, Path]) -> dict[str, Any]:
        """The fields of a real one, from this machine; what decides anything is made up."""
        made = {"boot_id": BOOT, "hostname": BOOT, "mem_available_kib": FREE_KIB, "loadavg": [0.0, 0.0, 0.0]}
        return {**host.snapshot(paths), **made, "disk_free_bytes": dict.fromkeys(paths, 1 << 50)}

    def settle(self) -> None:
        """It is settled."""

    def wait_returned(self, baseline_kib: int | None, drop_kib: int | None, timeout_s: float) -> ReturnCheck:
        return host.memory_returned(baseline_kib, baseline_kib, drop_kib)

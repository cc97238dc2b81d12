"""The engine: model, scheduler and plan runtime of one process, and the loop that turns steps into streamed tokens."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kernels.backends import cpu, cuda
from kernels.backends.base import Backend
from kernels.backends.cpu import CpuBackend, blas_threads
from kernels.backends.cuda import CudaBackend
from kernels.errors import KernelError
from kernels.nvfp4 import F32
from kernels.plans.metadata import Metadata
from kernels.plans.settings import Settings
from kernels.serve import tokenizer, weights
from kernels.serve.graphs import DecodeGraphs
from kernels.serve.model import Decoder
from kernels.serve.scheduler import Batch, Limits, Piece, Scheduler, Sequence
from kernels.tactics import TacticSet
from kernels.warmup import PlanRuntime

__all__ = ["Engine", "Ticket", "log_line"]

# Turns of the event loop between two steps: one lets the streams write their tokens, the next two let the selector see
# what arrived meanwhile and its request be parsed and submitted, so that it does not miss the coming step (one turn:
# median TTFT at 16 streams 936 ms, three: 620 to 650).
_TURNS = 3


def log_line(text: str) -> None:
    """One line to stderr in one write, so that lines of other writers never cut it."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


@dataclass(eq=False)
class Ticket:
    """One submitted request. `events` gets (token, finish reason) for each token and None if the engine stops first."""

    sequence: Sequence
    events: asyncio.Queue[tuple[int, str | None] | None] = field(default_factory=asyncio.Queue)


class Engine:
    """Settings and plan documents come from `env`. SettingsError and other KernelErrors as their owners describe.

    The step runs inside the event loop, not beside it: with 16 streams the median gap between tokens was 5.0 ms, with
    the step in a thread of its own 5.9 to 7.9 (interpreter lock, switch intervals of 0.5 and 5 ms), throughput 8,200
    against 6,700 to 8,500 tokens/s on a shared machine.
    """

    def __init__(self, path: Path, limits: Limits, env: Mapping[str, str], device: str = "cpu") -> None:
        self.limits = limits
        self._device = device
        self._path = path
        self._stopping = threading.Event()
        settings = Settings.from_env(env)
        self.backend, described = _backend(device, settings, env, self._stopping.is_set)
        self._direct_sf = settings.direct_sf
        self.producer = self.backend.producer(settings.direct_sf)
        self.runtime = PlanRuntime(
            settings,
            described,
            self.backend.tactics,
            tune=self.backend.tune,
            log=log_line,
            env=env,
            plan_fields=self.backend.plan_fields,
        )
        self.model: Decoder | None = None
        self._graphs: DecodeGraphs | None = None
        self.ready = False
        self.requests_total = 0
        self.prompt_tokens_total = 0
        self.generation_tokens_total = 0
        self._scheduler = Scheduler(limits)
        self._tickets: dict[Sequence, Ticket] = {}
        self._wake = asyncio.Event()

    def load(self) -> Decoder:
        """Read the weights, lay them out and settle every plan with one request of the maximum token count. Blocking.

        KernelError `blas-threads` when NumPy was imported before this package limited its BLAS to one thread.
        """
        with self.backend.session():
            return self._load()

    def _load(self) -> Decoder:
        threads = blas_threads()
        if threads is not None and threads != 1:
            raise KernelError(
                "blas-threads", f"the BLAS has {threads} threads; set OPENBLAS_NUM_THREADS=1 and start again"
            )
        drawn = weights.load(self._path)
        self.model = model = Decoder(drawn, self.limits, self.backend, self.producer, self._tactic)
        tokens = self.limits.max_num_batched_tokens
        log_line(f"kernels.serve: warming NVFP4 profiles at {tokens} tokens before serving")
        with self.runtime.warmup(tokens, model.shapes()) as scope:
            model.step(self._warmup_batch(tokens))
            scope.complete()
        for failure in self.backend.failed_candidates:
            log_line(f"kernels.serve: failed candidate: {failure}")
        self.backend.forget_operands()
        if isinstance(self.backend, CudaBackend):
            self._graphs = DecodeGraphs(model, self.backend, self.producer, self.limits)
        return model

    def _tactic(self, m: int, n: int, k: int) -> int:
        return self.runtime.tactic(m, n, k, capturing=self.backend.capturing)

    def _warmup_batch(self, tokens: int) -> Batch:
        """One step of exactly `tokens` rows, over as many slots as the longest sequence makes necessary."""
        pieces: list[Piece] = []
        while tokens > 0 and len(pieces) < self.limits.max_num_seqs:
            count = min(tokens, self.limits.max_model_len)
            sequence = Sequence([1] * count, 1, slot=len(pieces))
            pieces.append(Piece(sequence, 0, count, True))
            tokens -= count
        return Batch((), tuple(pieces))

    async def run(self) -> None:
        """Load, then serve until `stop`. Raises what loading raises; a stop while loading is no error."""
        try:
            model = await asyncio.to_thread(self.load)
        except KernelError:
            if self._stopping.is_set():
                return
            raise
        gc.collect()
        gc.freeze()  # what is loaded stays: later collections need not walk it
        self.ready = True
        log_line("kernels.serve: ready")
        try:
            while not self._stopping.is_set():
                if self._scheduler.has_work():
                    self._step(model)
                    for _ in range(_TURNS):
                        await asyncio.sleep(0)
                else:
                    self._wake.clear()
                    await self._wake.wait()
        finally:
            self.ready = False
            for ticket in self._tickets.values():
                ticket.events.put_nowait(None)
            self._tickets.clear()

    def stop(self) -> None:
        """Ask `run` to end after the step in progress. From the event loop's thread."""
        self._stopping.set()
        self._wake.set()

    def submit(self, prompt: tuple[int, ...], max_tokens: int, ignore_eos: bool) -> Ticket:
        sequence = Sequence(prompt, max_tokens, None if ignore_eos else tokenizer.END_OF_TEXT)
        ticket = self._tickets[sequence] = Ticket(sequence)
        self.requests_total += 1
        self._scheduler.add(sequence)
        self._wake.set()
        return ticket

    def abort(self, ticket: Ticket) -> None:
        """Forget a request whose client has gone; harmless after its end."""
        if self._tickets.pop(ticket.sequence, None) is not None:
            self._scheduler.abort(ticket.sequence)

    def _step(self, model: Decoder) -> None:
        batch = self._scheduler.next_batch()
        with self.backend.session():
            sampled = greedy(self.logits(model, batch))
        self.prompt_tokens_total += sum(piece.count for piece in batch.prefills)
        for sequence, token in self._scheduler.advance(batch, sampled):
            self.generation_tokens_total += 1
            self._tickets[sequence].events.put_nowait((token, sequence.finish_reason))
            if sequence.finish_reason is not None:
                del self._tickets[sequence]

    def logits(self, model: Decoder, batch: Batch) -> F32:
        """One step's logits, out of a graph where there is one for it. Inside the backend's session."""
        replayed = None if self._graphs is None else self._graphs.run(batch)
        return model.step(batch) if replayed is None else replayed

    def arguments(self) -> dict[str, dict[str, object]]:
        """What this process runs with, as /server_info says it, and what makes servers different engines."""
        asked = {"backend": self._device, "direct_sf": self._direct_sf, **asdict(self.limits)}
        capacity = "max_num_seqs x max_model_len"  # key and value rows of every slot are held from the start
        configuration = {"async_scheduling": False, "prefix_caching": False, "capacity": capacity, "dtype": "nvfp4"}
        return {"arguments": asked, "configuration": configuration}

    def metrics(self) -> str:
        """Prometheus text."""
        stats = self.runtime.stats
        values: tuple[tuple[str, str, int], ...] = (
            ("nvfp4_plans_tuned_total", "counter", stats.profiles_tuned),
            ("nvfp4_plans_loaded_total", "counter", stats.profiles_loaded),
            ("nvfp4_plan_documents_parsed_total", "counter", stats.documents_parsed),
            ("nvfp4_lazy_misses_total", "counter", stats.lazy_misses),
            ("nvfp4_standalone_swizzles_total", "counter", self.producer.standalone_swizzles),
            ("nvfp4_gemms_total", "counter", self.backend.gemms),
            ("nvfp4_forwards_total", "counter", 0 if self.model is None else self.model.forwards),
            ("nvfp4_failed_candidates_total", "counter", len(self.backend.failed_candidates)),
            ("nvfp4_tuning_candidates_total", "counter", self.backend.counts.candidates),
            ("nvfp4_tuning_warmups_total", "counter", self.backend.counts.warmups),
            ("nvfp4_tuning_delays_total", "counter", self.backend.counts.delays),
            ("nvfp4_tuning_timed_total", "counter", self.backend.counts.timed),
            ("requests_running", "gauge", len(self._tickets)),
            ("requests_total", "counter", self.requests_total),
            ("generation_tokens_total", "counter", self.generation_tokens_total),
            ("prompt_tokens_total", "counter", self.prompt_tokens_total),
        )
        if isinstance(self.backend, CudaBackend):
            values += (("nvfp4_graph_launches_total", "counter", self.backend.graph_launches),)
        values += tuple((f"nvfp4_gpu_{name}_bytes", "gauge", size) for name, size in self.backend.memory().items())
        text = "".join(f"# TYPE {name} {kind}\n{name} {value}\n" for name, kind, value in values)
        return text + _first_tactics(self.backend.tactics)


def _first_tactics(tactics: TacticSet) -> str:
    """Where each runner's tactics begin among the ids of this process: documents name a runner and its own id."""
    name = "nvfp4_runner_first_tactic"
    first: dict[str, int] = {}
    for tactic in tactics:
        runner, own = tactics.named(tactic.id)
        first.setdefault(runner, tactic.id - own)
    return f"# TYPE {name} gauge\n" + "".join(
        f'{name}{{runner="{runner}"}} {begin}\n' for runner, begin in first.items()
    )


def _backend(
    device: str, settings: Settings, env: Mapping[str, str], cancelled: Callable[[], bool]
) -> tuple[Backend, Metadata]:
    if device == "cpu":
        return CpuBackend(cancelled=cancelled), cpu.metadata(settings)
    backend = CudaBackend(env=env, cancelled=cancelled, delay_us=settings.delay_us)
    return backend, cuda.metadata(settings, backend)


def greedy(logits: F32) -> list[int]:
    """The largest logit of each row; the lowest id of equals."""
    tokens: list[int] = logits.argmax(axis=-1).tolist()
    return tokens

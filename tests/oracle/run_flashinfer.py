"""Answers questions about documents by running the real FlashInfer autotuner.

usage: run_flashinfer.py FLASHINFER_SOURCE light|real, with a JSON list of requests on standard input

Each request names what to `do` (a function of this module) and its arguments; the answers come as one JSON list.
Documents travel as base64 text, shapes as [M, N, K].
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from real_flashinfer import Upstream, load

Shape = Sequence[int]
OPERATION = "fp4_gemm"


class Answers:
    """One method a kind of request. Every answer starts from a fresh tuner."""

    def __init__(self, upstream: Upstream, folder: Path) -> None:
        self._upstream = upstream
        self._folder = folder
        self._runner = upstream.runner()
        self._other = upstream.other_runner()
        self._collect = upstream.core._collect_metadata
        self._sizes: dict[tuple[int, ...], Any] = {}

    def probe(self, document: str, metadata: dict[str, str], shapes: Sequence[Shape]) -> dict[str, Any]:
        """What load_configs does with a document, and what look-ups find afterwards.

        `alone` has [M, N, K, index of the runner, tactic] for each hit with the CUTLASS runner alone, `behind` the same
        with another runner listed first; tactics as Python writes them.
        """
        path = self._write(document)
        tuner = self._upstream.fresh(metadata)
        loaded = outcome(lambda: tuner.load_configs(str(path)))
        installed = len(tuner._file_configs)
        found = {}
        for name, runners in (("alone", [self._runner]), ("behind", [self._other, self._runner])):
            answers = [(shape, self.search(tuner, shape, runners)) for shape in shapes]
            found[name] = [[*shape, at, tactic] for shape, (hit, at, tactic) in answers if hit]
        return {
            "loaded": loaded,
            "installed": installed,
            **found,
            **self._enter(path, metadata, shapes[0]),
        }

    def lookups(self, document: str, metadata: dict[str, str], columns: Sequence[Shape], max_m: int) -> list[Any]:
        """For each (N, K) of `columns` the tactic that each M from 0 to `max_m` finds, None for a miss."""
        tuner = self._upstream.fresh(metadata)
        tuner.load_configs(str(self._write(document)))
        answers = []
        for n, k in columns:
            found = [self.search(tuner, (m, n, k), [self._runner]) for m in range(max_m + 1)]
            answers.append([int(tactic) if hit else None for hit, _, tactic in found])
        return answers

    def tune(
        self, metadata: dict[str, str], winners: Sequence[Sequence[int]], columns: Sequence[Shape], max_m: int
    ) -> dict[str, Any]:
        """Tune as a warm-up of `max_m` rows does, on a clock by which the winners are fastest, and save.

        `winners` has [M, N, K, tactic]; a shape that is not in it has equal times. `timed` lists [M, N, K, tactic] in
        the order of timing.
        """
        tuner = self._upstream.fresh(metadata)
        path = self._folder / "tuned.json"
        path.unlink(missing_ok=True)
        with self.clock(winners) as timed, self._upstream.core.autotune(True, cache=str(path)):
            for column in columns:
                self.choose(tuner, max_m, *column)
        return {"document": read(path), "timed": timed}

    def resave(self, document: str, metadata: dict[str, str], onto: str | None = None) -> dict[str, Any]:
        """Load a document and save it to a new path, or onto the document `onto`."""
        tuner = self._upstream.fresh(metadata)
        loaded = outcome(lambda: tuner.load_configs(str(self._write(document))))
        path = self._folder / "saved.json"
        path.unlink(missing_ok=True)
        if onto is not None:
            path.write_bytes(decode(onto))
        tuner.save_configs(str(path))
        return {"loaded": loaded, "document": read(path)}

    def metadata(self) -> dict[str, str]:
        """What the tuner's own look at this machine says, before any of it is replaced."""
        found: dict[str, str] = self._collect()
        return found

    def manage(
        self,
        metadata: dict[str, str],
        winners: Sequence[Sequence[int]],
        columns: Sequence[Shape],
        max_m: int,
        root: str,
    ) -> dict[str, Any]:
        """The same as `tune` into 0.7's managed store at `root`, twice: the second time finds what the first wrote."""
        cache = importlib.import_module("flashinfer.autotune_cache")
        timed = []
        for _ in range(2):
            tuner = self._upstream.fresh(metadata)
            with self.clock(winners) as calls, cache.autotune_v2(mode="tune", cache_root=root):
                for column in columns:
                    self.choose(tuner, max_m, *column)
            timed.append(len(calls))
        return {"timed": timed}

    def trace(self, shape: Shape, tactic: int) -> list[str]:
        """The GPU calls of one measurement, in order."""
        calls: list[str] = []
        runner = self._upstream.runner(lambda *arguments: calls.append(f"gemm {arguments[-1]}"))
        tuner = self._upstream.fresh({})
        inputs = self._upstream.inputs(*shape)
        with _recorded(self._upstream, calls):
            elapsed = tuner._profile_single_kernel(runner, inputs, tactic, self._upstream.config)
        return [*calls, f"returns {elapsed}"]

    def _enter(self, path: Path, metadata: dict[str, str], shape: Shape) -> dict[str, Any]:
        """What `autotune(True, cache=path)` does around one call, and what the file is afterwards."""
        before = path.read_bytes()
        tuner = self._upstream.fresh(metadata)

        def warm_up() -> bool:
            with self._upstream.core.autotune(True, cache=str(path)):
                self.choose(tuner, *shape)
            return True

        with self.clock([]) as timed:
            entered = outcome(warm_up)
        return {"entered": entered, "timed": len(timed), "rewritten": path.read_bytes() != before}

    def search(self, tuner: Any, shape: Shape, runners: list[Any]) -> tuple[bool, int, str]:
        """Whether a look-up hits, the index of the runner it selects, and the tactic or what the look-up raised."""
        sizes = self._sizes.get(tuple(shape))
        if sizes is None:
            sizes = self._sizes[tuple(shape)] = tuple(tuner._get_input_sizes(self._upstream.inputs(*shape)))
        try:
            hit, at, tactic, _ = tuner.search_cache(OPERATION, runners, sizes, self._upstream.config)
        except Exception as error:
            return True, len(runners) - 1, f"raises {type(error).__name__}"
        return hit, at, repr(tactic)

    def choose(self, tuner: Any, m: int, n: int, k: int) -> None:
        """One call of mm_fp4's choice of a tactic."""
        tuner.choose_one(OPERATION, [self._runner], self._upstream.config, self._upstream.inputs(m, n, k))

    @contextlib.contextmanager
    def clock(self, winners: Sequence[Sequence[int]]) -> Iterator[list[list[int]]]:
        """A clock on which each [M, N, K, tactic] of `winners` is the fastest; it yields what it has timed."""
        fastest = {tuple(shape): tactic for *shape, tactic in winners}
        timed: list[list[int]] = []

        def profile(_tuner: Any, _runner: Any, inputs: Any, tactic: int, _config: Any, **_: Any) -> float:
            m, packed_k = inputs[0].shape
            n = inputs[1].shape[1]
            timed.append([m, n, 2 * packed_k, tactic])
            return 1.0 if fastest.get((m, n, 2 * packed_k)) == tactic else 2.0

        # The real torch without CUDA cannot even say that nothing is being captured, which 0.7 asks before it times.
        idle = _replaced(self._upstream.torch.cuda, is_current_stream_capturing=lambda: False)
        with idle, _replaced(self._upstream.core.AutoTuner, _profile_single_kernel=profile):
            yield timed

    def _write(self, document: str) -> Path:
        path = self._folder / "document.json"
        path.write_bytes(decode(document))
        return path


def outcome(call: Callable[[], Any]) -> Any:
    """What the call returned, or the name of what it raised."""
    try:
        return call()
    except Exception as error:
        return type(error).__name__


def decode(document: str) -> bytes:
    return base64.b64decode(document)


def read(path: Path) -> str | None:
    """The file as a document of an answer; None where there is none."""
    return base64.b64encode(path.read_bytes()).decode("ascii") if path.exists() else None


@contextlib.contextmanager
def _replaced(owner: Any, **attributes: Any) -> Iterator[None]:
    kept = {name: getattr(owner, name) for name in attributes}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(owner, name, value)


@contextlib.contextmanager
def _recorded(upstream: Upstream, calls: list[str]) -> Iterator[None]:
    """The CUDA calls that a measurement makes, each of which only notes its name."""

    def note(text: str) -> Callable[..., None]:
        return lambda *_, **__: calls.append(text)

    event = SimpleNamespace(record=note("record"), elapsed_time=lambda _: calls.append("elapsed") or 20.0)
    stream = SimpleNamespace(synchronize=note("synchronise"))
    cuda = {
        "Event": lambda **_: event,
        "CUDAGraph": SimpleNamespace,
        "current_stream": lambda: stream,
        "stream": contextlib.nullcontext,
    }
    delay = {"delay_kernel": lambda microseconds: calls.append(f"delay {microseconds}")}
    with _replaced(upstream.torch.cuda, **cuda), _replaced(upstream.core, **delay):
        yield


def main(arguments: list[str], kind: Callable[[Upstream, Path], Any] = Answers) -> None:
    upstream = load(Path(arguments[0]), arguments[1] == "real")
    with tempfile.TemporaryDirectory() as folder:
        answers = kind(upstream, Path(folder))
        requests = json.load(sys.stdin)
        result = [getattr(answers, request.pop("do"))(**request) for request in requests]
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])

"""The real server in its own environment. Opt-in: NVFP4_GATES_LLAMA_ENV names a cache folder that holds it.

Make it with `python -m harness prepare engine=llama_cpp host.cache_dir=FOLDER`.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from harness import canonical
from harness.engines.llama_cpp import LlamaCpp

VARIABLE = "NVFP4_GATES_LLAMA_ENV"
SMALL = {"hidden": 64, "heads": 2, "kv_heads": 1, "intermediate": 64, "vocabulary": 512, "slot_context": 256}
BATCHED: dict[str, Any] = {"flags": {"slots": 4}, "env": {}}
ALONE: dict[str, Any] = {"flags": {"slots": 1}, "env": {}}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache folder of our own that borrows the prepared environment, so that no model is left in the real one."""
    given = os.environ.get(VARIABLE)
    if given is None:
        pytest.skip(
            f"{VARIABLE} does not name a cache folder with llama.cpp's environment (see this module's first lines)"
        )
    prepared = LlamaCpp({}, Path(given))._environment
    if prepared.installed() is None:
        pytest.skip(f"{VARIABLE}={given} holds no finished environment for this Python (see this module's first lines)")
    (tmp_path / "llama_cpp").mkdir()
    (tmp_path / "llama_cpp" / prepared.root.name).symlink_to(prepared.root)
    return tmp_path


@dataclass(frozen=True)
class Stream:
    texts: tuple[str, ...]
    usage: dict[str, Any]
    finish_reason: str | None
    done: bool


@dataclass(frozen=True)
class Served:
    port: int
    process: subprocess.Popen[str]

    def get(self, path: str) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path)
        return connection.getresponse().read().decode()

    def proof_text(self, engine: LlamaCpp) -> str:
        return "\n".join(self.get(path) for path in ("/metrics", *engine.proof_paths()))

    def complete(self, prompt: list[int], tokens: int) -> Stream:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        lines = [line.strip().removeprefix(b"data: ") for line in answer if line.strip()]
        events = [json.loads(line) for line in lines if line != b"[DONE]"]
        choices = [choice for event in events for choice in event["choices"]]
        usage = next(event["usage"] for event in reversed(events) if event.get("usage"))
        return Stream(
            tuple(choice["text"] for choice in choices), usage, choices[-1]["finish_reason"], lines[-1] == b"[DONE]"
        )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(engine: LlamaCpp, arm: dict[str, Any], port: int) -> subprocess.Popen[str]:
    launch = engine.launch(arm, port, None, True)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(launch.argv, env=dict(launch.env), cwd=launch.cwd, text=True, **pipes)  # type: ignore[call-overload, no-any-return]


@contextmanager
def serving(engine: LlamaCpp, arm: dict[str, Any]) -> Iterator[Served]:
    """The server, once it has said that it is ready; killed at the end if it still runs."""
    port = free_port()
    with start(engine, arm, port) as process:
        watchdog = Timer(60, process.kill)  # a server that never gets ready then ends the loop below
        watchdog.start()
        try:
            assert process.stdout is not None
            said = []
            for line in process.stdout:
                said.append(line)
                if line.startswith("ready on"):
                    break
            assert said[-1].startswith(f"ready on http://127.0.0.1:{port} "), "".join(said)
            watchdog.cancel()
            yield Served(port, process)
        finally:
            watchdog.cancel()
            process.kill()


def small(cache: Path, **options: int) -> LlamaCpp:
    engine = LlamaCpp({**SMALL, **options}, cache)
    engine.prepare()
    return engine


def prompts(count: int, length: int) -> list[list[int]]:
    source = random.Random(7)
    return [[source.randrange(260, SMALL["vocabulary"]) for _ in range(length)] for _ in range(count)]


def test_two_builds_of_a_model_are_the_same_bytes_and_a_seed_changes_them(cache: Path) -> None:
    engine = small(cache)
    weights = Path(engine.cache_roots()[0])
    first = weights.read_bytes()
    weights.unlink()
    engine.prepare()
    assert weights.read_bytes() == first
    assert Path(small(cache, seed=1).cache_roots()[0]).read_bytes() != first


def test_a_model_is_written_once_and_anew_when_its_bytes_changed(cache: Path) -> None:
    engine = small(cache)
    weights = Path(engine.cache_roots()[0])
    before, digest = weights.stat(), canonical.sha256_file(weights)
    engine.prepare()
    assert (weights.stat().st_ino, weights.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    with weights.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    assert canonical.sha256_file(weights) != digest
    engine.prepare()
    assert canonical.sha256_file(weights) == digest
    assert not list(cache.rglob("*.partial"))


def test_the_identity_names_versions_and_weights_and_no_path(cache: Path) -> None:
    engine = small(cache)
    identity = engine.identity()
    assert (identity["xllamacpp"], identity["gguf"]) == ("2026.10.11549", "0.19.0")
    assert identity["weights_sha256"] == canonical.sha256_file(Path(engine.cache_roots()[0]))
    assert b"/" not in canonical.dumps(identity)


@pytest.mark.parametrize("arm", [BATCHED, ALONE])
def test_a_stream_has_exact_counts_and_text_in_each_chunk_but_the_last(cache: Path, arm: dict[str, Any]) -> None:
    with serving(small(cache), arm) as served:
        for prompt in prompts(3, 100):
            stream = served.complete(prompt, 96)
            assert (stream.usage["prompt_tokens"], stream.usage["completion_tokens"]) == (100, 96)
            assert (stream.finish_reason, stream.done) == ("length", True)
            assert len(stream.texts) == 97
            assert all(stream.texts[:-1])
            assert stream.texts[-1] == ""
            assert "".join(stream.texts).isascii()
            assert "".join(stream.texts).isprintable()


def test_greedy_text_of_lone_requests_is_equal_across_arms_and_restarts(cache: Path) -> None:
    engine, seen = small(cache), []
    for arm in (BATCHED, ALONE, BATCHED):
        with serving(engine, arm) as served:
            seen.append([served.complete(prompt, 64).texts for prompt in prompts(4, 64)])
    assert seen[0] == seen[1] == seen[2]
    assert len(set(seen[0])) == 4  # the text depends on the prompt: equality proves something


def test_a_repeated_prompt_is_computed_again(cache: Path) -> None:
    with serving(small(cache), ALONE) as served:
        twice = [served.complete(prompts(1, 64)[0], 16) for _ in range(2)]
    assert twice[0].texts == twice[1].texts
    assert [stream.usage["prompt_tokens_details"]["cached_tokens"] for stream in twice] == [0, 0]


def test_each_arm_is_proven_for_itself_and_refuted_for_the_other(cache: Path) -> None:
    engine = small(cache)
    for arm, other in ((BATCHED, ALONE), (ALONE, BATCHED)):
        with serving(engine, arm) as served:
            served.complete(prompts(1, 8)[0], 4)
            text = served.proof_text(engine)
        own, foreign = engine.arm_proof(arm, "", text), engine.arm_proof(other, "", text)
        assert own is not None
        assert foreign is not None
        assert (own.active, foreign.active) == (True, False), own


def test_only_the_batched_arm_decodes_streams_together(cache: Path) -> None:
    engine, busy = small(cache), {}
    for slots, arm in ((4, BATCHED), (1, ALONE)):
        with serving(engine, arm) as served, ThreadPoolExecutor(4) as pool:
            streams = list(pool.map(lambda prompt: served.complete(prompt, 128), prompts(8, 64)))
            assert {stream.usage["completion_tokens"] for stream in streams} == {128}
            proof = engine.arm_proof(arm, "", served.get("/metrics"))
        assert proof is not None
        assert proof.active, proof
        busy[slots] = proof.values["busy_slots_per_decode"]
    assert busy[1] == 1 < busy[4] <= 4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_in_order_also_inside_a_stream(cache: Path, number: signal.Signals) -> None:
    with serving(small(cache), ALONE) as served:
        body = json.dumps({"model": "tiny", "prompt": [300] * 8, "max_tokens": 200, "ignore_eos": True, "stream": True})
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        assert connection.getresponse().readline().startswith(b"data: ")
        served.process.send_signal(number)
        rest, _ = served.process.communicate(timeout=60)
        assert served.process.returncode == 0
        assert f"stopping on {number.name}" in rest.splitlines()


def test_a_port_in_use_ends_the_server_with_a_sentence(cache: Path) -> None:
    engine = small(cache)
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        with start(engine, ALONE, port) as process:
            said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert [line for line in said.splitlines() if line.startswith("cannot serve ") and f" on port {port}: " in line]
    assert "Traceback" not in said

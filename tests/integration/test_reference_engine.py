"""The reference engine as a process: real server, real sockets, real plan documents. Plans are tuned for few tokens."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.engines.reference import Reference
from kernels.serve import weights

ROOT = Path(__file__).parents[2]
SMALL = ("--max-num-seqs", "4", "--max-num-batched-tokens", "16", "--max-model-len", "96")
PROMPTS = [[(7 * i + j * j) % 1024 for j in range(40)] for i in range(6)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "seed0"
    weights.save(weights.draw(0, weights.Config()), path)
    return path


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def post(self, **fields: Any) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("POST", "/v1/completions", json.dumps({"model": "gate", **fields}))
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def metric(self, name: str) -> int:
        found = re.search(rf"^{name} (\d+)$", self.get("/metrics")[1], re.MULTILINE)
        assert found is not None
        return int(found[1])

    def text(self) -> str:
        return self.log.read_text()


def start(model: Path, folder: Path, port: int = 0, flags: tuple[str, ...] = SMALL, **env: str) -> Server:
    if port == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    log = folder / f"log-{time.monotonic_ns()}"
    clean = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    command = [sys.executable, "-m", "kernels.serve", "--model", str(model), "--port", str(port), *flags]
    command += ["--served-model-name", "gate"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**clean, "HOME": str(folder), **env}, stdout=output, stderr=subprocess.STDOUT
        )
    return Server(process, port, log)


def wait_ready(server: Server) -> list[int]:
    """Statuses of /health until it answers 200. Polls, since a process has no other way to say that it is ready."""
    seen = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            seen.append(server.get("/health")[0])
        except OSError:
            continue
        if seen[-1] == 200:
            return seen
    raise AssertionError(f"not ready: {server.text()}")


@contextmanager
def running(model: Path, folder: Path, **env: str) -> Iterator[Server]:
    server = start(model, folder, **env)
    try:
        wait_ready(server)
        yield server
    finally:
        server.process.kill()
        server.process.wait()


@pytest.fixture(scope="module")
def plan(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A native document tuned once by a real read-write run."""
    folder = tmp_path_factory.mktemp("plan")
    path = folder / "plans.json"
    with running(model, folder, VT_FP4_AUTOTUNE_CACHE_PATH=str(path)) as server:
        assert server.metric("nvfp4_plans_tuned_total") == 4 * 5
    return path


def frozen(plan: Path) -> dict[str, str]:
    return {"VT_FP4_AUTOTUNE_CACHE_PATH": str(plan), "VT_FP4_AUTOTUNE_CACHE_READONLY": "1"}


def events(body: str) -> list[Any]:
    parts = [part.removeprefix("data: ") for part in body.split("\n\n") if part]
    return [part if part == "[DONE]" else json.loads(part) for part in parts]


def test_a_stream_has_one_event_a_token_then_usage_then_done(model: Path, plan: Path, tmp_path: Path) -> None:
    with running(model, tmp_path, **frozen(plan)) as server:
        assert json.loads(server.get("/v1/models")[1])["data"][0]["id"] == "gate"
        status, body = server.post(
            prompt=PROMPTS[0], max_tokens=12, temperature=0, seed=0, ignore_eos=True, stream=True,
            repetition_penalty=1.0, stream_options={"include_usage": True},
        )  # fmt: skip
        *tokens, usage, done = events(body)
        assert (status, done) == (200, "[DONE]")
        assert len(tokens) == 12
        assert all(len(event["choices"]) == 1 and event["choices"][0]["text"] for event in tokens)
        assert tokens[-1]["choices"][0]["finish_reason"] == "length"
        assert (usage["choices"], usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == ([], 40, 12)
        status, body = server.post(prompt=PROMPTS[0], max_tokens=12)
        text = "".join(event["choices"][0]["text"] for event in tokens)
        assert json.loads(body)["choices"][0]["text"] == text
        assert server.metric("requests_total") == 2
        assert server.metric("prompt_tokens_total") == 80
        assert server.metric("generation_tokens_total") == 24
        assert server.metric("requests_running") == 0
        assert (server.metric("nvfp4_plans_loaded_total"), server.metric("nvfp4_plans_tuned_total")) == (20, 0)
        assert server.metric("nvfp4_lazy_misses_total") == 0


def test_bad_requests_are_answered_and_leave_the_server_serving(model: Path, plan: Path, tmp_path: Path) -> None:
    with running(model, tmp_path, **frozen(plan)) as server:
        for fields, status in (
            ({"prompt": "x", "temperature": 0.3}, 400),
            ({"prompt": [1] * 90, "max_tokens": 7}, 400),
            ({"prompt": "x", "model": "other"}, 404),
        ):
            answer = server.post(**fields)
            assert (answer[0], json.loads(answer[1])["error"]["code"]) == (status, status)
        assert server.get("/nowhere")[0] == 404
        assert server.get("/v1/completions")[0] == 405
        assert server.post(prompt="x", max_tokens=1)[0] == 200


def assert_says_its_arguments(server: Server, switch: str) -> None:
    """The adapter's reading of the page: every planned argument as resolved, and not what it was not started with."""
    engine = Reference({}, Path("unused"))
    page = server.get("/metrics")[1] + "\n" + server.get("/server_info")[1]
    arm: dict[str, Any] = {"flags": {}, "env": {"VT_FP4_DIRECT_SF": switch}}
    said = engine.server_report(arm, "", page)
    assert said is not None
    assert said.planned["direct_sf"] == said.resolved["direct_sf"] == ("true" if switch == "1" else "false")
    assert said.resolved["backend"] == "cpu"
    assert set(said.configuration.values()) >= {"nvfp4", "false"}
    other = engine.server_report({**arm, "flags": {"max_num_seqs": 7}}, "", page)
    assert other is not None
    assert other.planned["max_num_seqs"] == "7" != other.resolved["max_num_seqs"]


def test_both_arms_give_the_same_tokens_and_only_the_composed_one_swizzles(
    model: Path, plan: Path, tmp_path: Path
) -> None:
    answers = []
    for switch in ("1", "0"):
        with running(model, tmp_path, VT_FP4_DIRECT_SF=switch, **frozen(plan)) as server:
            texts = [json.loads(server.post(prompt=prompt, max_tokens=20, ignore_eos=True)[1]) for prompt in PROMPTS]
            answers.append([answer["choices"][0]["text"] for answer in texts])
            swizzles, gemms = server.metric("nvfp4_standalone_swizzles_total"), server.metric("nvfp4_gemms_total")
            assert swizzles == (8 if switch == "1" else 8 + gemms)
            assert_says_its_arguments(server, switch)
    assert answers[0] == answers[1]
    assert len(set(answers[0])) == len(PROMPTS)


def test_a_missing_plan_in_a_read_only_process_ends_it_before_readiness(
    model: Path, plan: Path, tmp_path: Path
) -> None:
    document = json.loads(plan.read_text())
    del document["plans"][3]
    cut = tmp_path / "cut.json"
    cut.write_text(json.dumps(document))
    server = start(model, tmp_path, **frozen(cut))
    assert server.process.wait(timeout=30) == 1
    last = server.text().splitlines()[-1]
    assert last.startswith("kernels.serve: NVFP4 frozen persistent cache miss before readiness: M=")
    assert "Traceback" not in server.text()


def test_a_malformed_document_in_a_read_only_process_ends_it_with_a_sentence(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    server = start(model, tmp_path, **frozen(broken))
    assert server.process.wait(timeout=30) == 1
    assert "broken.json" in server.text()
    assert "Traceback" not in server.text()


def test_a_bad_switch_ends_the_process_with_a_sentence(model: Path, tmp_path: Path) -> None:
    server = start(model, tmp_path, VT_FP4_DIRECT_SF="maybe")
    assert server.process.wait(timeout=30) == 1
    assert "VT_FP4_DIRECT_SF='maybe'" in server.text()
    assert "Traceback" not in server.text()


def test_a_port_in_use_is_named_and_ends_the_process(model: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = start(model, tmp_path, port=taken.getsockname()[1])
        assert server.process.wait(timeout=30) == 1
        assert re.search(rf"port {server.port}: .*in use.*; choose another --port", server.text())


def test_health_says_loading_until_warm_up_is_over_and_term_ends_even_that(model: Path, tmp_path: Path) -> None:
    # Plans for 2,048 tokens take ten seconds to tune, so that readiness cannot come before the signal.
    server = start(model, tmp_path, flags=())
    try:
        while True:
            assert server.process.poll() is None
            try:
                assert server.get("/health") == (503, '{"status":"loading"}')
                break
            except ConnectionError:
                continue
        assert server.post(prompt="x", max_tokens=1)[0] == 503
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=20) == 0
        assert "Traceback" not in server.text()
        assert not list(tmp_path.glob(".cache/**/*.json"))
    finally:
        server.process.kill()
        server.process.wait()


def test_term_ends_the_server_with_status_0_while_streams_are_open(model: Path, plan: Path, tmp_path: Path) -> None:
    with running(model, tmp_path, **frozen(plan)) as server:
        body = json.dumps({"model": "gate", "prompt": [5], "max_tokens": 95, "ignore_eos": True, "stream": True})
        connections = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=20) for _ in range(8)]
        for connection in connections:
            connection.request("POST", "/v1/completions", body)
        assert connections[0].getresponse().readline().startswith(b"data: ")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=20) == 0
        assert "Traceback" not in server.text()
        for connection in connections:
            connection.close()


def test_a_client_that_goes_away_frees_its_slot(model: Path, plan: Path, tmp_path: Path) -> None:
    with running(model, tmp_path, **frozen(plan)) as server:
        body = json.dumps({"model": "gate", "prompt": [5], "max_tokens": 95, "ignore_eos": True, "stream": True})
        for _ in range(8):  # twice as many as there are slots
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
            connection.request("POST", "/v1/completions", body)
            assert connection.getresponse().readline().startswith(b"data: ")
            connection.close()
        assert server.post(prompt=[1], max_tokens=5)[0] == 200
        deadline = time.monotonic() + 20
        while server.metric("requests_running") and time.monotonic() < deadline:
            pass
        assert server.metric("requests_running") == 0


def test_the_model_gate_passes_in_both_arms_with_the_same_fixed_counts(model: Path, tmp_path: Path) -> None:
    """Without a plan cache every GEMM runs the default tactic, so that this needs no tuning."""
    reports = []
    for switch in ("1", "0"):
        env = {**os.environ, "VT_FP4_DIRECT_SF": switch, "VT_FP4_PLAN_CACHE": "0", "HOME": str(tmp_path)}
        command = [sys.executable, "-m", "kernels.serve.gate", "--model", str(model)]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "produced 16/16 tokens\n" in done.stdout
        assert "skipping" not in done.stdout + done.stderr
        reports.append(re.findall(r"(?:cases|assertions): .*", done.stdout))
    assert reports[0] == reports[1]
    assert [int(count) for count in re.findall(r": (\d+) ", " ".join(reports[0]))] == [7, 166]
    assert reports[0][0].endswith("0 failed | 0 skipped")


def test_the_model_gate_fails_on_weights_of_another_seed(tmp_path: Path) -> None:
    weights.save(weights.draw(1, weights.Config()), tmp_path / "seed1")
    env = {**os.environ, "VT_FP4_PLAN_CACHE": "0", "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "kernels.serve.gate", "--model", str(tmp_path / "seed1")]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stdout.count("FAILED greedy stream of the loaded engine: token") > 12


def test_streamed_tokens_are_not_held_back_by_nagles_algorithm() -> None:
    """asyncio sets TCP_NODELAY only on sockets that name TCP: without it tokens came together, 40 ms late."""
    from kernels.serve.__main__ import _bind

    with _bind("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP

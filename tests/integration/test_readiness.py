"""An engine is ready when it completed a token, and not when it says so."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import ports, process
from harness.errors import HarnessError
from harness.process import Owned
from harness.readiness import await_ready

SERVER = """
import http.server, json, sys
port, requests_until_ready, model, dies = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4] == "dies"
completions = 0

class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status, document):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/health":
            return self.answer(200, {"status": "loading"})
        self.answer(200, {"data": [{"id": model}] if completions or seen() > 2 else []})

    def do_POST(self):
        global completions
        completions += 1
        if completions < requests_until_ready:
            if dies:
                print("out of memory", flush=True)
                sys.stdout.flush()
                import os
                os._exit(7)
            return self.answer(503, {"error": "loading"})
        self.answer(200, {"usage": {"completion_tokens": 1}, "choices": [{"text": "a"}]})

    def log_message(self, *_):
        pass

asked = 0
def seen():
    global asked
    asked += 1
    return asked

http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Owned]]:
    owned: list[Owned] = []
    yield owned
    for one in owned:
        process.stop(one, 1.0)


def serve(tmp_path: Path, started: list[Owned], *, until_ready: int, model: str = "gate", ending: str = "lives") -> int:
    port = ports.free_port()
    argv = [sys.executable, "-c", SERVER, str(port), str(until_ready), model, ending]
    started.append(process.start(argv, {}, tmp_path, tmp_path / "engine.log"))
    return port


def wait(owned: Owned, port: int, tmp_path: Path, timeout_s: float = 30.0) -> float:
    log = tmp_path / "engine.log"
    return await_ready(owned, port, "gate", [300], log=log, timeout_s=timeout_s, check=lambda: None)


def test_ready_only_after_a_completion_although_health_and_models_answer_before(
    tmp_path: Path, started: list[Owned]
) -> None:
    port = serve(tmp_path, started, until_ready=4)
    assert wait(started[0], port, tmp_path) > 0


def test_an_engine_that_exits_while_loading_is_reported_at_once_with_its_log(
    tmp_path: Path, started: list[Owned]
) -> None:
    port = serve(tmp_path, started, until_ready=4, ending="dies")
    with pytest.raises(HarnessError) as caught:
        wait(started[0], port, tmp_path)
    assert caught.value.code == "engine-died"
    assert "exit code 7" in caught.value.message
    assert "out of memory" in caught.value.message


def test_another_model_is_an_error_and_not_a_wait(tmp_path: Path, started: list[Owned]) -> None:
    port = serve(tmp_path, started, until_ready=1, model="other")
    with pytest.raises(HarnessError, match="serves other, not gate"):
        wait(started[0], port, tmp_path)


def test_a_server_that_never_completes_is_given_up_with_a_sentence(tmp_path: Path, started: list[Owned]) -> None:
    port = serve(tmp_path, started, until_ready=10**9)
    with pytest.raises(HarnessError, match="no completion within 1 s"):
        wait(started[0], port, tmp_path, timeout_s=1.0)


def test_a_stranger_on_the_port_is_not_taken_for_the_engine(tmp_path: Path, started: list[Owned]) -> None:
    port = serve(tmp_path, started, until_ready=1)
    idle = process.start([sys.executable, "-c", "import signal; signal.pause()"], {}, tmp_path, tmp_path / "idle.log")
    started.append(idle)
    with pytest.raises(HarnessError) as caught:
        wait(idle, port, tmp_path)
    assert caught.value.code == "foreign-server"
    assert str(started[0].pid) in caught.value.message

"""A whole G4 against two servers that run already: nothing of them is started, stopped or sampled."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from harness import canonical, ports
from harness.engines.reference import Reference
from harness.errors import EXIT_FAIL, EXIT_PASS, EXIT_VOID
from harness.verify import verify

ARM = {"flags": {}, "env": {}}


@contextmanager
def serving(engine: Reference, log: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    port = ports.free_port()
    launch = engine.launch(ARM, port, None, False)
    env = {"PATH": os.environ["PATH"], "HOME": str(log.parent), **launch.env, "VT_FP4_PERSISTENT_CACHE": "0"}
    with (
        log.open("wb") as file,
        subprocess.Popen(launch.argv, env=env, cwd=launch.cwd, stdout=file, stderr=file) as one,
    ):
        try:
            _await(port, one, log)
            yield port, one
        finally:
            one.kill()


def _await(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.05)
        finally:
            connection.close()
    pytest.fail(f"the server never answered: {log.read_text()}")


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[int, int]]:
    engine = Reference({"max_num_batched_tokens": 32}, tmp_path / "cache")
    engine.prepare()
    with ExitStack() as stack:
        (one, first), (two, second) = (stack.enter_context(serving(engine, tmp_path / f"{n}.log")) for n in "ab")
        yield one, two
        assert (first.poll(), second.poll()) == (None, None), "a run must not end servers that are not its own"


def run(tmp_path: Path, one: int, two: int) -> subprocess.CompletedProcess[str]:
    port, other = ports.free_port(), f"http://localhost:{two}/v1"
    words = [
        *("gate=g4", "engine=openai", "engine.options.model=gate", "engine.options.vocabulary=1024"),
        *(f"engine.candidate.flags.url=http://127.0.0.1:{one}", f"engine.baseline.flags.url={other}"),
        *("workload=rehearsal", "workload.input_tokens=32", "workload.output_tokens=4", "gate.concurrencies=[2]"),
        *("workload.points={2: 4}", "gate.repetitions=1", "gate.sequential_requests=1", f"host.port={port}"),
        *(f"host.lease_path={tmp_path / 'lock'}", f"host.state_dir={tmp_path / 'state'}"),
        *(f"host.cache_dir={tmp_path / 'cache'}", f"evidence.root={tmp_path / 'evidence'}"),
    ]
    command = [sys.executable, "-m", "harness", "run", *words]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)


def test_two_urls_are_compared_on_timing_alone_and_never_bind(two: tuple[int, int], tmp_path: Path) -> None:
    done = run(tmp_path, *two)
    assert done.returncode in (EXIT_PASS, EXIT_FAIL), done.stdout + done.stderr
    (bundle,) = (tmp_path / "evidence").glob("g4-*")
    verdict = canonical.loads((bundle / "verdict.json").read_bytes(), "verdict.json")
    assert (verdict["counts"]["timing"]["of"], verdict["counts"]["memory"]["of"]) == (20, 0)
    assert not verdict["binding"]
    assert any("memory axes: null" in reason for reason in verdict["not_binding_because"])
    assert verify(bundle).outcome in ("PASS", "FAIL")
    assert json.loads((bundle / "plan.json").read_bytes())["difference"][0].startswith("flag url: http://127.0.0.1")


def test_a_server_that_does_not_answer_voids_the_run_with_its_address(two: tuple[int, int], tmp_path: Path) -> None:
    nobody = ports.free_port()
    done = run(tmp_path, two[0], nobody)
    assert done.returncode == EXIT_VOID, done.stdout + done.stderr
    assert f"no server answers on localhost:{nobody}" in done.stdout

"""Whole runs against the real reference engine, small: what a person gets, and what is left when things go wrong."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from harness import canonical, lease, ports
from harness.errors import EXIT_FAIL, EXIT_PASS, EXIT_USAGE, EXIT_VOID
from harness.holder import HolderRecord
from harness.verify import verify

SINGLE_FILE = Path(__file__).resolve().parents[2] / "evidence" / "verify.py"
DISTURBED = {"axis-null", "canary-slow", "client-lag", "memory-return", "same-stamps"}
VALID = (EXIT_PASS, EXIT_FAIL)
LIMIT_S = 120.0
TINY = (
    "gate=g4",
    "workload=rehearsal",
    "workload.input_tokens=32",
    "workload.output_tokens=4",
    "gate.concurrencies=[2]",
    "workload.points={2: 2}",
    "gate.repetitions=1",
    "gate.sequential_requests=1",
    "engine.options.max_num_batched_tokens=32",
    "host.memory_return_timeout_s=60",
)
LONG = ("workload.points={2: 400}", "workload.output_tokens=64", "gate.model_gate=false", "gate.sequential_requests=0")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@dataclass
class Bench:
    """One place to run from: its own lease, port, state and evidence."""

    root: Path
    cache: Path
    port: int

    @property
    def lease(self) -> Path:
        return self.root / "gpu.lock"

    def command(self, *overrides: str, multirun: bool = False, verb: str = "run") -> list[str]:
        places = (f"host.port={self.port}", f"host.lease_path={self.lease}", f"host.state_dir={self.root / 'state'}")
        more = ("host.lease_timeout_s=1", f"host.cache_dir={self.cache}")
        mode = ["-m"] if multirun else []
        return [sys.executable, "-m", "harness", verb, *mode, *TINY, *places, *more, *overrides]

    def run(
        self, *overrides: str, multirun: bool = False, verb: str = "run", limit_s: float = LIMIT_S, **env: str
    ) -> subprocess.CompletedProcess[str]:
        command = self.command(*overrides, multirun=multirun, verb=verb)
        return subprocess.run(
            command,
            cwd=self.root,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )

    def start(self, *overrides: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*overrides), cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def bundle(self) -> Path:
        found = sorted((self.root / "evidence").glob("g4-*"))
        assert len(found) == 1, found
        return found[0]

    def state(self) -> Path:
        return next(iter((self.root / "state").glob("g4-*")))

    def mine(self, word: str) -> list[psutil.Process]:
        """Live processes of this bench whose command line holds `word`."""
        return [process for process in psutil.process_iter() if _is(process, str(self.root), str(self.port), word)]


def _is(process: psutil.Process, root: str, port: str, word: str) -> bool:
    try:
        line = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return word in line and (root in line or f"--port {port}" in line)


@pytest.fixture
def bench(tmp_path: Path, cache: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, cache, ports.free_port())
    yield made
    for process in made.mine("harness.keeper") + made.mine("harness.supervisor") + made.mine("kernels.serve"):
        process.kill()


def new_key(path: Path) -> Path:
    """A private Ed25519 key at `path`; returns the file of its public half."""
    key = Ed25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)
    public = path.with_suffix(".pub")
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    return public


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


def under_load(bench: Bench) -> bool:
    return bool(bench.mine("harness.client"))


def assert_nothing_left(bench: Bench) -> None:
    until(lambda: not bench.mine("harness.keeper"), "the keeper's end")
    for word in ("kernels.serve", "harness.supervisor", "harness.client", "harness.telemetry.sampler"):
        assert bench.mine(word) == [], word
    assert not ports.listening(bench.port)
    with lease.acquire(bench.lease, 1.0, HolderRecord.mine("test"), lambda _: None):
        pass


def assert_void(bench: Bench, code: str) -> str:
    """The bundle is sealed and void with `code`; returns the message."""
    found = verify(bench.bundle())
    assert found.outcome == "VOID", found
    assert found.verdict is not None
    assert code in found.verdict["void"], found.verdict["void"]
    return str(next(check["seen"] for check in found.verdict["checks"] if check["code"] == code and not check["ok"]))


def assert_whole(bench: Bench, code: int, said: str) -> None:
    """Sealed, and ended by itself. Others on this machine may free memory meanwhile, so that an axis has no ratio."""
    found = verify(bench.bundle())
    assert found.faults == ()
    assert found.verdict is not None
    assert code in VALID or set(found.verdict["void"]) <= {"axis-null", "same-stamps"}, said


def assert_whole_or_disturbed(code: int, bundles: list[Path], said: str) -> None:
    """Valid, or void for what others on this machine do: their load, and memory that they take or give back."""
    found = [verify(path).verdict for path in bundles]
    void = {name for verdict in found if verdict is not None for name in verdict["void"]}
    assert code in VALID or (void and void <= DISTURBED), said


def test_a_run_ends_with_a_sealed_bundle_that_verifies_and_leaves_nothing(bench: Bench) -> None:
    public = new_key(bench.root / "sign.pem")
    leftovers = {"VT_FP4_DIRECT_SF": "0", "VT_FP4_PLAN_CACHE": "0", "OPENBLAS_NUM_THREADS": "9"}  # of a shell
    done = bench.run("signing.key=sign.pem", **leftovers)
    assert done.returncode in VALID, done.stdout + done.stderr
    outcome = "PASS" if done.returncode == EXIT_PASS else "FAIL"
    said = subprocess.run(
        [sys.executable, "-m", "harness", "verify", str(bench.bundle()), "--key", str(public)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "signed by the key that was given" in said.stdout, said.stdout
    assert (said.returncode, said.stdout.split(":")[0]) == (done.returncode, outcome)
    alone = ["env", "-i", sys.executable, "-I", "-S", str(SINGLE_FILE), str(bench.bundle())]
    bare = subprocess.run(alone, cwd=bench.root, capture_output=True, text=True, check=False)
    assert (bare.returncode, bare.stderr) == (done.returncode, "")
    assert bare.stdout.splitlines()[:-1] == said.stdout.splitlines()[:-1]  # the last is on the signature: not asked
    for word in (f"{outcome}: ", "leg 1 of ", "timing", "plan control: PASS", "bundle evidence/g4-", "digest "):
        assert word in done.stdout, done.stdout
    row = json.loads((bench.root / "evidence" / "index.jsonl").read_text())
    assert (row["outcome"], row["run"]) == (outcome, bench.bundle().name)
    assert bench.bundle().name.startswith(f"g4-{canonical.sha256_file(bench.bundle() / 'plan.json')[:12]}-")
    assert list((bench.root / "state").iterdir()) == []
    assert_nothing_left(bench)
    for path in bench.bundle().rglob("requests.jsonl.gz"):
        assert str(bench.root).encode() not in path.read_bytes()
    assert str(bench.root) not in (bench.bundle() / "plan.json").read_text()
    noted = [json.loads(line) for line in (bench.bundle() / "journal.jsonl").read_text().splitlines()]
    assert {"command.json", "plan.json"} <= noted[-1]["files"].keys()
    assert all("leg.json" in event["files"] for event in noted if event["event"] == "leg")


@pytest.mark.slow
def test_a_floor_is_measured_two_runs_are_labelled_by_it_and_joined(bench: Bench) -> None:
    """The least that shows the whole way: the released rule wants eight campaigns."""
    few = ("rule.interpretation.min_campaigns=2", "gate.model_gate=false", "gate.sequential_requests=0")
    made = bench.run(*few, "floor.campaigns=2", "floor.attempts=8", verb="floor", limit_s=4 * LIMIT_S)
    assert made.returncode == EXIT_PASS, made.stdout + made.stderr
    folder = next((bench.root / "evidence" / "floors").iterdir())
    plans, runs = f"engine.plan={folder / 'frozen-plans.json'}", bench.root / "evidence"
    valid = []
    for _ in range(6):
        done = bench.run(*few, plans)
        valid = [path for path in sorted(runs.glob("g4-*")) if verify(path).outcome in ("PASS", "FAIL")]
        if len(valid) == 2:
            break
        assert_whole_or_disturbed(done.returncode, sorted(runs.glob("g4-*")), done.stdout)
    if len(valid) < 2:
        pytest.skip("others on this machine disturbed five of six runs")
    verdicts = [verify(path).verdict for path in valid]
    assert [verdict["interpretation"]["floor"]["status"] for verdict in verdicts if verdict] == ["used", "used"]
    out = bench.root / "joint.json"
    join = [sys.executable, "-m", "harness", "report", "--join", *map(str, valid), "--json", str(out)]
    said = subprocess.run(join, cwd=bench.root, capture_output=True, text=True, check=False)
    assert said.returncode == EXIT_PASS, said.stdout + said.stderr
    found = json.loads(out.read_text())
    assert sorted(run["bundle"] for run in found["runs"]) == sorted(verify(path).digest for path in valid)
    assert (found["omitted"], found["campaigns"]) == ([], 2)
    assert sum(found["counts"].values()) == found["tests"]
    assert "2 of the 2 valid runs of this plan that are known; none is left out." in said.stdout


def test_an_engine_that_dies_under_load_voids_the_run_with_its_log(bench: Bench) -> None:
    running = bench.start(*LONG)
    until(lambda: under_load(bench), "load")
    for process in bench.mine("kernels.serve"):
        process.kill()
    running.communicate(timeout=LIMIT_S)
    assert running.returncode == EXIT_VOID
    message = assert_void(bench, "engine-died")
    assert "SIGKILL" in message
    assert "[VT_FP4_CACHE]" in message
    assert_nothing_left(bench)


def test_an_engine_that_hangs_voids_the_run(bench: Bench) -> None:
    running = bench.start(*LONG, "client.stall_timeout_s=2")
    until(lambda: under_load(bench), "load")
    for process in bench.mine("kernels.serve"):
        process.suspend()
    running.communicate(timeout=LIMIT_S)
    assert running.returncode == EXIT_VOID
    assert_void(bench, "engine-stalled")
    assert_nothing_left(bench)


def test_requests_that_the_engine_refuses_void_the_run_with_its_words(bench: Bench) -> None:
    done = bench.run("workload.input_tokens=3000", "gate.model_gate=false", "gate.sequential_requests=0")
    assert done.returncode == EXIT_VOID
    assert "http-400" in assert_void(bench, "failed-requests")
    assert_nothing_left(bench)


def test_a_killed_supervisor_voids_the_run_and_takes_the_engine_with_it(bench: Bench) -> None:
    running = bench.start(*LONG)
    until(lambda: under_load(bench), "load")
    for process in bench.mine("harness.supervisor"):
        if "harness.keeper" not in " ".join(process.cmdline()):
            process.kill()
    running.communicate(timeout=LIMIT_S)
    assert running.returncode == EXIT_VOID
    assert_void(bench, "supervisor-died")
    assert_nothing_left(bench)


def test_ctrl_c_twice_stops_now_and_seals_a_void_bundle(bench: Bench) -> None:
    running = bench.start(*LONG)
    until(lambda: under_load(bench), "load")
    running.send_signal(signal.SIGINT)
    assert running.stdout is not None
    until(lambda: "Ctrl-C again" in (running.stdout.readline() if running.stdout else ""), "the question")
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=LIMIT_S)
    assert running.returncode == EXIT_VOID
    assert_void(bench, "interrupted")
    assert_nothing_left(bench)


def test_a_dead_controller_stops_nothing_and_the_same_command_attaches_and_seals(bench: Bench) -> None:
    slow = (
        "workload.points={2: 40}",
        "workload.output_tokens=64",
        "gate.model_gate=false",
        "gate.sequential_requests=0",
    )
    first = bench.start(*slow)
    until(lambda: under_load(bench), "load")
    first.kill()
    first.communicate()
    second = bench.run(*slow)
    assert "attaching to the unfinished run" in second.stdout, second.stdout + second.stderr
    assert_whole(bench, second.returncode, second.stdout)
    assert_nothing_left(bench)


def test_a_port_in_use_is_named_before_anything_starts(bench: Bench) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", bench.port))
        stranger.listen()
        done = bench.run()
    assert done.returncode == EXIT_USAGE
    assert f"host.port={bench.port}" in done.stderr
    assert str(os.getpid()) in done.stderr
    assert not (bench.root / "evidence").exists()


def test_a_lease_that_somebody_holds_is_named_with_since_when(bench: Bench) -> None:
    with lease.acquire(bench.lease, 1.0, HolderRecord.mine("another-run"), lambda _: None):
        done = bench.run()
    assert done.returncode == EXIT_USAGE, done.stdout + done.stderr
    for word in ("lease-held", "another-run", "since", str(os.getpid())):
        assert word in done.stderr, done.stderr
    assert not (bench.root / "evidence").exists()
    assert list((bench.root / "state").iterdir()) == []


def test_an_unreadable_plan_document_is_refused_before_anything_starts(bench: Bench) -> None:
    done = bench.run("engine.plan=missing.json")
    assert done.returncode == EXIT_USAGE
    assert str(bench.root / "missing.json") in done.stderr


def test_a_malformed_plan_document_is_rejected_as_a_unit_and_says_why(bench: Bench) -> None:
    (bench.root / "plans.json").write_text('{"_metadata": {"format": "other"}, "plans": []}')
    done = bench.run("engine.plan=plans.json", "gate.model_gate=false")
    assert done.returncode == EXIT_VOID
    assert "metadata" in assert_void(bench, "engine-died")
    assert (bench.root / "plans.json").read_text() == '{"_metadata": {"format": "other"}, "plans": []}'
    assert_nothing_left(bench)


def test_a_sweep_reports_each_job_and_ends_with_the_worst(bench: Bench) -> None:
    quick = ("gate.model_gate=false", "gate.sequential_requests=0")
    done = bench.run(*quick, "rule.order=seed,nonsense", multirun=True)
    assert done.returncode == EXIT_USAGE, done.stdout + done.stderr
    assert "job 1: exit 64 bad-value: rule.order='nonsense'" in done.stdout
    records = sorted((bench.root / "multirun").rglob("outcome.json"))
    assert [json.loads(path.read_text())["exit"] for path in records][1] == EXIT_USAGE
    assert_whole(bench, json.loads(records[0].read_text())["exit"], done.stdout)


def test_a_full_disk_under_the_evidence_root_loses_nothing_and_the_same_command_seals(bench: Bench) -> None:
    quick = ("gate.model_gate=false", "gate.sequential_requests=0")
    small = bench.root / "evidence"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(small)], check=False).returncode != 0:
        pytest.skip("needs the right to mount a small file system")
    try:
        first = bench.run(*quick)
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert first.returncode == EXIT_USAGE, first.stdout + first.stderr
    assert "evidence-unwritable" in first.stderr
    assert str(bench.state()) in first.stderr
    second = bench.run(*quick)
    assert "attaching to the unfinished run" in second.stdout
    assert_whole(bench, second.returncode, second.stdout)
    assert_nothing_left(bench)

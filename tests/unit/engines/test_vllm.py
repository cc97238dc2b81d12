"""The vLLM adapter on lines and answers as a real server of version 0.32.0 wrote them, shortened and typed again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.engines import tiny_hf
from harness.engines.base import Engine
from harness.engines.vllm import Vllm
from harness.errors import UsageError

A: dict[str, Any] = {"flags": {"max_num_seqs": 16}, "env": {}}
B: dict[str, Any] = {"flags": {"max_num_seqs": 1}, "env": {}}
LOG = (
    "(APIServer pid=7707) INFO 12-07 09:45:05 [api_utils.py:286] non-default args: {'model_tag': '/m', 'port': 8961, "
    "'max_model_len': 2048, 'enforce_eager': True, 'served_model_name': ['gate'], 'load_format': 'dummy', "
    "'enable_prefix_caching': False, 'max_num_seqs': 16, 'async_scheduling': False}\n"
)
SCHEDULING = "(APIServer pid=1) INFO 08-25 19:32:10 [vllm.py:1109] Asynchronous scheduling is enabled.\n"
INFO = {
    "vllm_config": {
        "model_config": {"dtype": "torch.bfloat16", "max_model_len": 2048, "enforce_eager": True, "seed": 0},
        "cache_config": {
            **{"enable_prefix_caching": False, "cache_dtype": "auto", "gpu_memory_utilization": 0.92},
            **{"kv_cache_memory_bytes": 1073741824, "num_gpu_blocks_override": None},
        },
        "scheduler_config": {"max_num_seqs": 16, "max_num_batched_tokens": 2048, "async_scheduling": False},
        "load_config": {"load_format": "dummy"},
    },
    "vllm_env": {"VLLM_CPU_KVCACHE_SPACE": 1},
}
METRICS = f"vllm:num_requests_running 0.0\n{json.dumps(INFO)}"


def engine(tmp_path: Path, **options: Any) -> Vllm:
    return Vllm(options, tmp_path)


def test_the_arms_differ_in_one_flag_alone_and_the_rest_is_said_outright(tmp_path: Path) -> None:
    one, two = (engine(tmp_path).launch(arm, 8100, None, True) for arm in (A, B))
    assert [pair for pair in zip(one.argv, two.argv, strict=True) if pair[0] != pair[1]] == [("16", "1")]
    words = " ".join(one.argv)
    for said in (
        "serve",
        "--port 8100",
        "--served-model-name gate",
        "--no-enable-prefix-caching",
        "--load-format dummy",
    ):
        assert said in words
    assert one.env["HF_HUB_OFFLINE"] == "1"
    assert one.env["PATH"].split(":")[0] == str(Path(one.argv[1]).parent)  # its workers look for ninja beside it


def test_resolved_arguments_come_from_the_server_and_agree_with_the_plan(tmp_path: Path) -> None:
    report = engine(tmp_path).server_report(A, LOG, METRICS)
    assert report is not None
    assert report.source == "/server_info"
    assert report.planned == report.resolved
    assert report.planned["max_num_seqs"] == "16"
    expected = {"async_scheduling": "false", "prefix_caching": "false", "dtype": "torch.bfloat16"}
    assert report.configuration == {**expected, "capacity": "1073741824 bytes set"}


def test_a_server_that_resolved_otherwise_is_seen(tmp_path: Path) -> None:
    report = engine(tmp_path).server_report(B, LOG, METRICS)
    assert report is not None
    assert (report.planned["max_num_seqs"], report.resolved["max_num_seqs"]) == ("1", "16")


def test_without_the_page_the_logs_own_line_says_what_is_not_default(tmp_path: Path) -> None:
    report = engine(tmp_path).server_report(A, LOG + SCHEDULING, "")
    assert report is not None
    assert (report.source, report.resolved["max_num_seqs"]) == ("log", "16")
    assert report.resolved["max_num_batched_tokens"] is None
    only_line = engine(tmp_path).server_report(A, SCHEDULING, "")
    assert only_line is not None
    assert only_line.configuration["async_scheduling"] == "true"


@pytest.mark.parametrize(("arm", "text", "active"), [(A, METRICS, True), (B, METRICS, False), (A, "", False)])
def test_the_proof_of_an_arm_is_its_own_flag_as_the_server_says_it(
    arm: dict[str, Any], text: str, active: bool, tmp_path: Path
) -> None:
    proof = engine(tmp_path).arm_proof(arm, "", text)
    assert proof is not None
    assert proof.active is active
    assert "max_num_seqs=" in proof.required


def test_an_arm_of_environment_alone_is_proven_by_the_environment_that_the_server_read(tmp_path: Path) -> None:
    arm = {"flags": {}, "env": {"VLLM_CPU_KVCACHE_SPACE": "1"}}
    other = {"flags": {}, "env": {"VLLM_CPU_KVCACHE_SPACE": "2"}}
    proofs = [engine(tmp_path).arm_proof(item, "", METRICS) for item in (arm, other)]
    assert [proof is not None and proof.active for proof in proofs] == [True, False]
    silent = engine(tmp_path).arm_proof({"flags": {}, "env": {"SOME_SWITCH": "1"}}, "", METRICS)
    assert silent is not None
    assert not silent.active  # nothing says it back: no proof


def test_a_log_that_is_no_python_literal_says_nothing(tmp_path: Path) -> None:
    hostile = "non-default args: {'a': __import__('os')}\n"
    report = engine(tmp_path).server_report(A, hostile, "")
    assert report is not None
    assert set(report.resolved.values()) == {None}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"exe": "/x"}, ("engine.options.exe", "executable")),
        ({"executable": "vllm"}, ("engine.options.executable='vllm'", "absolute path")),
        ({"flags": {"port": 1}}, ("engine.options.flags.port", "host.port")),
    ],
)
def test_a_bad_option_is_refused(options: dict[str, Any], words: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        Vllm(options, tmp_path)
    assert all(word in caught.value.message for word in words), caught.value.message


def test_what_is_not_installed_is_said_with_the_command_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="python -m harness prepare engine=vllm_cpu"):
        engine(tmp_path).prepare()
    given = Vllm({"executable": str(tmp_path / "vllm"), "model": str(tmp_path)}, tmp_path)
    with pytest.raises(UsageError, match="is no file on this host"):
        given.prepare()


def test_a_server_on_a_gpu_host_is_named_by_path_and_has_gpu_memory(tmp_path: Path) -> None:
    given = Vllm({"executable": "/opt/v/bin/vllm", "model": "/models/m"}, tmp_path)
    assert "gpu" in given.capabilities
    assert "gpu" not in engine(tmp_path).capabilities
    assert given.launch(A, 8001, None, True).argv[:3] == ["/opt/v/bin/vllm", "serve", "/models/m"]
    adapter: Engine = given  # what the harness asks of an adapter is there
    assert adapter.tokenizer() == Path("/models/m/tokenizer.json")


def test_the_tiny_model_is_whole_deterministic_and_mended_when_damaged(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    tiny_hf.write(folder, tiny_hf.Shape())
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "config.json").write_bytes(b"{}")
    tiny_hf.write(folder, tiny_hf.Shape())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first
    assert len(json.loads(first["tokenizer.json"])["model"]["vocab"]) == tiny_hf.Shape().vocabulary
    with pytest.raises(ValueError, match="outside"):
        tiny_hf.tokenizer(10)

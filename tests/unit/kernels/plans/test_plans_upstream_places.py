"""Directories: the managed store, vLLM's layouts, and paths that are neither file nor directory of plans."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import PlanDocumentError
from kernels.plans import directories, oracle
from kernels.plans.flashinfer import (
    GB10_ORACLE,
    UpstreamDocument,
    export_flashinfer,
    match,
    read_upstream,
)
from kernels.plans.flashinfer_key import RUNNER, Shape, key_text, profile
from kernels.plans.upstream import FORMAT_06, FORMAT_07, FORMAT_MANAGED
from kernels.tactics import CUTLASS_TACTICS

HERE = replace(GB10_ORACLE, flashinfer_version="0.7.4", cutlass_dsl_version="4.6.1")
SHAPE: Shape = (16, 4096, 2560)
KEY = key_text(*SHAPE)
HASH = "5" * 64


def refusal(path: Path) -> PlanDocumentError:
    with pytest.raises(PlanDocumentError) as caught:
        read_upstream(path)
    return caught.value


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def structural(value: object) -> object:
    return {"__tuple__": [structural(item) for item in value]} if isinstance(value, tuple) else value


def entry(shape: Shape, tactic: int, **changes: Any) -> dict[str, Any]:
    fields = structural(("fp4_gemm", RUNNER, profile(*shape), ()))
    policy = ["cuda_graph_profile_replays", 10, "l2_cache_policy", "cold"]
    found = {"key": key_text(*shape), "key_fields": fields, "profiling_policy": policy, "runner": RUNNER}
    return {**found, "tactic": tactic, **changes}


def store(root: Path, plans: Mapping[Shape, int], **manifest: str) -> Path:
    """A managed store as autotune_v2 leaves it; the environment's directory."""
    full = {**HERE.stated(), "cache_schema": "v2", **manifest}
    home = root / "v2" / digest(json.dumps(full, sort_keys=True, separators=(",", ":")))[:16]
    (home / "entries").mkdir(parents=True)
    (home / "manifest.json").write_text(json.dumps(full, indent=2, sort_keys=True))
    for shape, tactic in plans.items():
        put(home, entry(shape, tactic))
    return home


def put(home: Path, value: dict[str, Any], name: str | None = None) -> Path:
    path = home / "entries" / (name or f"{digest(value['key'])[:24]}.json")
    path.write_text(json.dumps(value, indent=2, sort_keys=True))
    return path


def test_a_managed_store_gives_its_plans_by_root_schema_or_environment(tmp_path: Path) -> None:
    home = store(tmp_path, oracle.plans(), measure_cold_l2="True")
    for path in tmp_path, tmp_path / "v2", home:
        document = read_upstream(path)
        assert (document.format, document.layout, document.version) == (FORMAT_MANAGED, "managed-store", "0.7.4")
        assert document.plans == oracle.plans() and len(document.policies) == 64
        assert document.metadata == HERE.stated()
        assert len(document.files) == 65 and "measured with measure_cold_l2=True" in document.notes
        assert match(document, HERE, "x") == oracle.plans()


def test_other_operations_of_a_store_are_counted_and_leftovers_ignored(tmp_path: Path) -> None:
    home = store(tmp_path, {SHAPE: 5})
    put(home, {"key": "('trtllm_moe', 'MoERunner', ((1, 2),), ())", "runner": "MoERunner", "tactic": [1, [2]]})
    (home / "entries" / ".autotune_x.tmp").write_text("{")
    document = read_upstream(home)
    assert (document.plans, document.foreign) == ({SHAPE: 5}, 1)
    assert any(note.startswith("1 files in entries") for note in document.notes)


def test_an_entry_without_structure_or_policy_is_still_a_plan(tmp_path: Path) -> None:
    home = store(tmp_path, {})
    put(home, {"key": KEY, "runner": RUNNER, "tactic": 5})
    assert (read_upstream(home).plans, read_upstream(home).policies) == ({SHAPE: 5}, {})


def test_the_fallback_that_won_in_a_store_is_the_id_of_the_same_configuration(tmp_path: Path) -> None:
    document = read_upstream(store(tmp_path, {SHAPE: -1}))
    assert document.plans == {SHAPE: 21}
    assert CUTLASS_TACTICS.by_id(21).descriptor == "21:128:128:256:0:0:128x128x256/ordinary/dp;"
    assert document.notes == ("1 plans chose the fallback -1, which is tactic 21",)


def test_the_fallback_of_an_unknown_version_is_no_plan(tmp_path: Path) -> None:
    assert refusal(store(tmp_path, {SHAPE: -1}, flashinfer_version="0.8.0")).code == "unknown-tactic"


STRUCTURE_OF_ANOTHER = structural(("fp4_gemm", RUNNER, profile(32, 4096, 2560), ()))
ENTRIES: list[tuple[dict[str, Any], str]] = [
    ({"tactic": "5"}, "bad-value"),
    ({"tactic": [5]}, "bad-value"),
    ({"tactic": True}, "bad-value"),
    ({"tactic": 32}, "unknown-tactic"),
    ({"tactic": -2}, "unknown-tactic"),
    ({"tactic": -1.0}, "bad-value"),
    ({"runner": "CudnnFp4GemmRunner"}, "unknown-runner"),
    ({"runner": None}, "bad-value"),
    ({"profiling_policy": "cold"}, "bad-value"),
    ({"key_fields": STRUCTURE_OF_ANOTHER}, "bad-value"),
    ({"key_fields": []}, "bad-value"),
    ({"key_fields": {"__tuple__": 1}}, "bad-value"),
    ({"key_fields": {"__dtype__": "uint8"}}, "bad-value"),
    ({"key": KEY[:-1] + "(True,))"}, "bad-key"),
    ({"key": KEY[: -len("())")] + "(True,))"}, "bad-key"),
]


@pytest.mark.parametrize(("changes", "code"), ENTRIES)
def test_a_malformed_plan_refuses_the_store_and_names_the_file(
    tmp_path: Path, changes: dict[str, Any], code: str
) -> None:
    home = store(tmp_path, {(32, 4096, 2560): 4})
    path = put(home, {**entry(SHAPE, 5), **changes})
    error = refusal(home)
    assert error.code == code and path.name in error.message


def test_a_moved_entry_is_refused(tmp_path: Path) -> None:
    home = store(tmp_path, {SHAPE: 5})
    put(home, entry((32, 4096, 2560), 5), f"{digest(KEY)[:24]}.json")
    assert refusal(home).code == "bad-name"


@pytest.mark.parametrize("key", [None, 1, ["x"]])
def test_an_entry_without_a_key_is_refused(tmp_path: Path, key: object) -> None:
    home = store(tmp_path, {})
    put(home, entry(SHAPE, 5, key=key), "0" * 24 + ".json")
    assert refusal(home).code == "bad-key"


def test_a_manifest_of_another_environment_is_refused(tmp_path: Path) -> None:
    home = store(tmp_path, {SHAPE: 5})
    manifest = home / "manifest.json"
    manifest.write_text(manifest.read_text().replace("NVIDIA GB10", "NVIDIA B200"))
    assert refusal(home).code == "bad-name"


@pytest.mark.parametrize("value", [1, None, ["13.0"]])
def test_a_manifest_that_is_no_texts_is_refused(tmp_path: Path, value: object) -> None:
    home = store(tmp_path, {})
    (home / "manifest.json").write_text(json.dumps({**HERE.stated(), "cache_schema": "v2", "cuda_version": value}))
    assert refusal(home).code == "bad-manifest"


def test_another_schema_is_refused(tmp_path: Path) -> None:
    home = store(tmp_path, {}, cache_schema="v3")
    assert "'v3'" in refusal(home).message


def test_a_store_without_manifest_entries_or_environment_is_incomplete(tmp_path: Path) -> None:
    home = store(tmp_path, {SHAPE: 5})
    (home / "manifest.json").unlink()
    assert refusal(tmp_path).code == "absent"
    (tmp_path / "empty" / "v2").mkdir(parents=True)
    assert refusal(tmp_path / "empty").code == "absent"


def test_of_several_environments_one_must_be_named(tmp_path: Path) -> None:
    first, second = store(tmp_path, {SHAPE: 5}), store(tmp_path, {SHAPE: 6}, gpu="NVIDIA B200")
    error = refusal(tmp_path)
    assert error.code == "ambiguous" and first.name in error.message and second.name in error.message
    assert read_upstream(second).plans == {SHAPE: 6}


@pytest.mark.parametrize("name", ["manifest.json", "entries"])
def test_one_file_of_a_store_is_refused_with_the_directory_to_give(tmp_path: Path, name: str) -> None:
    home = store(tmp_path, {SHAPE: 5})
    path = home / name if name == "manifest.json" else next((home / name).iterdir())
    assert refusal(path).code == "not-flashinfer"


def vllm(root: Path, files: Mapping[str, bytes], version: str = "0.6.13") -> Path:
    home = root / "flashinfer_autotune_cache" / version / "121a" / HASH
    home.mkdir(parents=True)
    for name, data in files.items():
        (home / name).write_bytes(data)
    return home


def ranks(*data: bytes, dp: int = 0) -> dict[str, bytes]:
    return {f"autotune_configs_dp{dp}_rank{rank}.json": item for rank, item in enumerate(data)}


def new_file(plans: Mapping[Shape, int], **changes: str) -> bytes:
    return export_flashinfer(plans, replace(HERE, **changes), "0.7.4")


def test_the_single_file_of_vllm_0_25_is_read_by_file_or_directory(tmp_path: Path) -> None:
    home = vllm(tmp_path, {"autotune_configs.json": oracle.document_bytes()})
    for path in home, home / "autotune_configs.json":
        document = read_upstream(path)
        assert (document.layout, document.format, document.notes) == ("vllm-0.25", FORMAT_06, ())
        assert document.plans == oracle.plans()


def test_a_directory_of_another_version_is_noted(tmp_path: Path) -> None:
    home = vllm(tmp_path, {"autotune_configs.json": oracle.document_bytes()}, version="0.7.4")
    assert any("directory of FlashInfer '0.7.4'" in note for note in read_upstream(home).notes)


def test_ranks_that_agree_are_one_document(tmp_path: Path) -> None:
    data = new_file(oracle.plans())
    home = vllm(tmp_path, {**ranks(data, data), **ranks(data, dp=1)}, version="0.7.4")
    document = read_upstream(home)
    assert (document.layout, document.format, len(document.files)) == ("vllm-0.33", FORMAT_07, 3)
    assert match(document, HERE, "x") == oracle.plans()
    assert document.notes[-1] == "3 ranks with the same plans: dp0 rank0, dp0 rank1, dp1 rank0"


def test_ten_ranks_are_taken_in_numeric_order(tmp_path: Path) -> None:
    data = new_file({SHAPE: 5})
    names = [Path(file.path).name for file in read_upstream(vllm(tmp_path, ranks(*[data] * 11))).files]
    assert names == [f"autotune_configs_dp0_rank{rank}.json" for rank in range(11)]


def policy(text: str) -> bytes:
    return export_flashinfer({SHAPE: 5}, HERE, "0.7.4", policies={SHAPE: ("l2_cache_policy", text)})


DIFFERING = [
    (new_file({SHAPE: 5}), new_file({SHAPE: 6}), "M=16 N=4096 K=2560 tactic=6, not 5"),
    (new_file({SHAPE: 5}), new_file({}), "M=16 N=4096 K=2560 tactic=absent, not 5"),
    (new_file({}), new_file({SHAPE: 5}), "M=16 N=4096 K=2560 tactic=5, not absent"),
    (new_file({SHAPE: 5}), new_file({SHAPE: 5}, gpu="NVIDIA B200"), "_metadata"),
    (policy("cold"), policy("hot"), "other policies"),
]


@pytest.mark.parametrize(("one", "two", "reason"), DIFFERING)
def test_a_rank_that_differs_is_named(tmp_path: Path, one: bytes, two: bytes, reason: str) -> None:
    error = refusal(vllm(tmp_path, ranks(one, one, two)))
    assert error.code == "ranks-differ"
    assert "autotune_configs_dp0_rank2.json differs from autotune_configs_dp0_rank0.json" in error.message
    assert reason in error.message


def test_a_malformed_rank_refuses_all(tmp_path: Path) -> None:
    error = refusal(vllm(tmp_path, ranks(new_file({SHAPE: 5}), b"{")))
    assert error.code == "bad-json" and "rank1" in error.message


def test_the_file_of_one_rank_says_that_the_others_were_not_compared(tmp_path: Path) -> None:
    home = vllm(tmp_path, ranks(new_file({SHAPE: 5}), new_file({SHAPE: 6})))
    document = read_upstream(home / "autotune_configs_dp0_rank1.json")
    assert document.plans == {SHAPE: 6} and "one rank" in document.notes[-1]


def test_files_of_both_vllm_layouts_in_one_directory_are_ambiguous(tmp_path: Path) -> None:
    files = {**ranks(new_file({SHAPE: 5})), "autotune_configs.json": oracle.document_bytes()}
    assert refusal(vllm(tmp_path, files)).code == "ambiguous"


def test_names_that_only_resemble_ranks_are_not_read(tmp_path: Path) -> None:
    names = ("autotune_configs_dp0_rank01.json", "autotune_configs_dp0_rank1.json.bak", ".autotune_configs.json.x")
    assert refusal(vllm(tmp_path, dict.fromkeys(names, b"{"))).code == "no-document"


def test_a_directory_of_anything_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plans.json").write_bytes(oracle.document_bytes())
    assert refusal(tmp_path).code == "no-document"
    assert read_upstream(tmp_path / "plans.json").layout == "file"


def test_a_directory_of_very_many_files_is_not_listed_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directories, "MAX_NAMES", 2)
    for name in "abc":
        (tmp_path / name).touch()
    assert refusal(tmp_path).code == "too-many-entries"


def test_special_paths_are_refused_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "pool")
    (tmp_path / "pool").symlink_to(tmp_path / "loop")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(tmp_path / "socket"))
        codes = {name: refusal(tmp_path / name).code for name in ("fifo", "loop", "socket", "absent", "a\0b", "fifo/x")}
    wanted = {"fifo": "not-a-file", "loop": "symlink-loop", "socket": "not-a-file", "absent": "absent"}
    assert codes == {**wanted, "a\0b": "unreadable", "fifo/x": "unreadable"}
    assert refusal(Path("/dev/zero")).code == "not-a-file"


@pytest.mark.parametrize("name", ["autotune_configs.json", "autotune_configs_dp0_rank0.json"])
@pytest.mark.parametrize("kind", ["fifo", "directory"])
def test_a_special_file_in_a_vllm_directory_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    home = vllm(tmp_path, {})
    (home / name).mkdir() if kind == "directory" else os.mkfifo(home / name)
    assert refusal(home).code == "not-a-file"


@pytest.mark.parametrize("name", ["manifest.json", "entries/0123456789abcdef01234567.json"])
def test_a_special_file_in_a_store_is_refused(tmp_path: Path, name: str) -> None:
    home = store(tmp_path, {SHAPE: 5})
    (home / name).unlink(missing_ok=True)
    os.mkfifo(home / name)
    assert refusal(home).code == "not-a-file"


def test_entries_that_are_a_file_are_refused(tmp_path: Path) -> None:
    home = store(tmp_path, {})
    (home / "entries").rmdir()
    (home / "entries").touch()
    assert refusal(home).code == "unreadable"


def test_200_mb_of_brackets_are_refused_by_their_size(tmp_path: Path) -> None:
    path = tmp_path / "brackets.json"
    path.write_bytes(b"[" * 1000)
    os.truncate(path, 200_000_000)
    assert refusal(path).code == "too-large"


def test_links_are_followed_and_sources_stay_untouched(tmp_path: Path) -> None:
    home = store(tmp_path / "store", {SHAPE: 5})
    link = tmp_path / "link"
    link.symlink_to(home)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in home.rglob("*")}
    document: UpstreamDocument = read_upstream(link)
    assert document.plans == {SHAPE: 5}
    assert before == {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in home.rglob("*")}


PARTS = st.sampled_from(["key", "runner", "tactic", "profiling_policy", "key_fields", "x"])
PART = (
    st.none()
    | st.booleans()
    | st.integers(-3, 40)
    | st.text(max_size=5)
    | st.sampled_from([RUNNER, KEY, KEY.replace("16", "32", 1)])
    | st.lists(st.none() | st.text(max_size=3) | st.integers(), max_size=4)
    | st.dictionaries(st.sampled_from(["__tuple__", "__dtype__"]), st.lists(st.integers(), max_size=2), max_size=2)
)


@settings(max_examples=200)
@given(st.dictionaries(PARTS, PART), st.booleans())
def test_any_entry_of_a_store_is_a_plan_a_foreign_operation_or_refused(changes: dict[str, Any], named: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = store(Path(folder), {})
        value = {**entry(SHAPE, 5), **changes}
        put(home, value, None if named and isinstance(value["key"], str) else f"{digest(KEY)[:24]}.json")
        try:
            document = read_upstream(home)
        except PlanDocumentError as error:
            assert error.message.isprintable()
        else:
            assert len(document.plans) + document.foreign == 1

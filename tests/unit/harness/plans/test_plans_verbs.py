"""The verbs as functions of their arguments: files in, text or JSON and an exit code out."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from kernels.backends import cpu
from kernels.plans import document as native
from kernels.plans import oracle
from kernels.plans.flashinfer_key import RUNNER, key_text
from kernels.plans.settings import Settings

MAP_SHA256 = "f2d9be7fc4a89de1cfa994ab9be08a423e0c4f6981fe46cb808cef485f4c1fa4"
SOURCE_SHA256 = "e81e9181db20d0537a43a101fe4f93aa57df9e42900e8a21c91cafa61e107edd"
BUILD = ("--cuda", "13.0", "--driver", "580.95", "--cutlass", "4.2.0", "--build-id", "b1")
KEY = key_text(1, 5120, 6144)

Change = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    error: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def plans(capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Result]:
    def run(*words: object) -> Result:
        code = main(["plans", *map(str, words)])
        out, error = capfdbinary.readouterr()
        return Result(code, out.decode(), error.decode())

    return run


@pytest.fixture
def gb10(tmp_path: Path) -> Path:
    path = tmp_path / "gb10.json"
    path.write_bytes(oracle.document_bytes())
    return path


def changed(path: Path, change: Change, name: str = "changed.json") -> Path:
    document = json.loads(path.read_bytes())
    change(document)
    target = path.with_name(name)
    target.write_text(json.dumps(document, indent=2))
    return target


def native_gb10(plans: Callable[..., Result], gb10: Path, name: str = "native.json", *more: str) -> Path:
    out = gb10.with_name(name)
    assert plans("import", gb10, "--target", "gb10", "--out", out, *BUILD, *more).code == 0
    return out


def native_here(tmp_path: Path, tactics: Mapping[tuple[int, int, int], int], name: str = "here.json") -> Path:
    metadata = cpu.metadata(Settings.from_env({}))
    keyed = {native.key_for(metadata, *shape): tactic for shape, tactic in tactics.items()}
    path = tmp_path / name
    path.write_bytes(native.serialise(metadata, cpu.CPU_TACTICS, keyed))
    return path


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_show_prints_format_counts_digest_metadata_and_the_table(plans: Callable[..., Result], gb10: Path) -> None:
    found = plans("show", gb10)
    lines = found.out.splitlines()
    assert (found.code, found.error) == (0, "")
    assert "FlashInfer 0.6.13" in found.out
    assert "64 (16 M buckets x 4 shapes)" in found.out
    assert MAP_SHA256 in found.out
    assert SOURCE_SHA256 in found.out
    header = next(line for line in lines if line.startswith("M \\ N,K"))
    assert header.split()[3:] == ["5120,6144", "5120,17408", "14336,5120", "34816,5120"]
    assert lines[-16].split() == ["1", "4", "4", "4", "6"]
    assert lines[-1].split() == ["2048", "18", "20", "22", "16"]
    assert len({len(line) for line in [header, *lines[-16:]]}) == 1


def test_show_as_json_is_canonical_and_whole(plans: Callable[..., Result], gb10: Path) -> None:
    found = plans("show", gb10, "--json")
    document = found.json
    assert json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n" == found.out
    assert (document["format"], document["layout"], document["foreign"]) == ("flashinfer-0.6.13", "file", 0)
    assert document["map_sha256"] == MAP_SHA256
    assert document["files"] == [{"path": str(gb10), "sha256": SOURCE_SHA256, "size": 11948}]
    shown = {(row["m"], row["n"], row["k"]): row["tactic"] for row in document["plans"]}
    assert shown == oracle.plans()


FAULTS: list[tuple[str, Change, str, str]] = [
    ("unknown runner", lambda d: d.update({KEY: [f"{RUNNER}X", 7]}), "unknown-runner", f"{RUNNER}X"),
    ("tactic 32", lambda d: d.update({KEY: [RUNNER, 32]}), "unknown-tactic", "32"),
    ("runner 0", lambda d: d.update({KEY: [0, 7]}), "bad-value", "must be a text"),
    ("compound id", lambda d: d.update({KEY: [RUNNER, [7, 1]]}), "bad-value", "[7, 1]"),
    ("true", lambda d: d.update({KEY: [RUNNER, True]}), "bad-value", "True"),
    ("-1", lambda d: d.update({KEY: [RUNNER, -1]}), "unknown-tactic", "-1"),
    ("three-part key", lambda d: d.update({KEY[: -len(", ())")] + ")": [RUNNER, 5]}), "bad-key", "3 parts"),
    ("extras", lambda d: d.update({KEY[: -len("())")] + "(True,))": [RUNNER, 5]}), "bad-key", "extras (True,)"),
    ("3,000 brackets", lambda d: d.update({"('fp4_gemm', " + "(" * 3000: [RUNNER, 5]}), "bad-key", "characters"),
]


@pytest.mark.parametrize("verb", ["show", "import", "freeze", "export"])
@pytest.mark.parametrize("fault", FAULTS, ids=[row[0] for row in FAULTS])
def test_a_malformed_entry_refuses_the_file_with_the_entry_and_the_reason(
    plans: Callable[..., Result], gb10: Path, verb: str, fault: tuple[str, Change, str, str]
) -> None:
    _, change, code, reason = fault
    path = changed(gb10, change)
    before = tree(gb10.parent)
    options: Mapping[str, tuple[object, ...]] = {
        "show": (),
        "import": ("--target", "gb10", "--out", gb10.with_name("out.json"), *BUILD),
        "freeze": ("--out", gb10.with_name("out.json")),
        "export": ("--to", "0.6.13", "--out", gb10.with_name("out.json")),
    }
    found = plans(verb, path, *options[verb])
    assert (found.code, found.out) == (64, "")
    assert found.error.startswith(f"{code}: ")
    assert reason in found.error
    assert "fp4_gemm" in found.error
    assert tree(gb10.parent) == before


def test_a_refusal_with_json_is_json_and_the_sentence_is_still_there(plans: Callable[..., Result], gb10: Path) -> None:
    found = plans("show", changed(gb10, lambda d: d.update({KEY: [RUNNER, 32]})), "--json")
    assert (found.code, found.json["command"], found.json["error"]["code"]) == (64, "show", "unknown-tactic")
    assert found.json["error"]["message"] in found.error


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir(), os.mkfifo])
@pytest.mark.parametrize("verb", ["show", "import", "audit"])
def test_what_is_no_file_is_refused_without_blocking(
    plans: Callable[..., Result], tmp_path: Path, make: Callable[[Path], object], verb: str
) -> None:
    path = tmp_path / "place"
    make(path)
    found = plans(verb, path, *(["--as", "0.6.13"] if verb == "audit" else []))
    assert (found.code, str(path) in found.error) == (64, True)


def test_import_for_a_named_target_writes_the_whole_map_and_the_metadata_that_was_stated(
    plans: Callable[..., Result], gb10: Path
) -> None:
    out = native_gb10(plans, gb10)
    document = json.loads(out.read_bytes())
    saved = document["_metadata"]
    assert {(row["m_bucket"], row["n"], row["k"]): row["tactic_id"] for row in document["plans"]} == oracle.plans()
    assert (saved["gpu"], saved["architecture"], saved["tactic_descriptor_digest"]) == (
        "NVIDIA GB10",
        121,
        "5f63ff989d840dfb",
    )
    assert [saved[name] for name in ("cuda_runtime", "cuda_driver", "cutlass_version", "build_id")] == list(BUILD[1::2])
    assert plans("show", out, "--json").json["map_sha256"] == MAP_SHA256
    assert gb10.read_bytes() == oracle.document_bytes()


def test_import_invents_nothing_and_names_every_value_that_is_missing(plans: Callable[..., Result], gb10: Path) -> None:
    out = gb10.with_name("native.json")
    found = plans("import", gb10, "--target", "gb10", "--out", out, "--driver", "580.95")
    assert (found.code, out.exists()) == (64, False)
    assert all(option in found.error for option in ("--cuda", "--cutlass", "--build-id"))
    assert "--driver" not in found.error


def test_import_takes_the_metadata_of_a_document_that_the_target_wrote(
    plans: Callable[..., Result], gb10: Path
) -> None:
    first, second = native_gb10(plans, gb10), gb10.with_name("second.json")
    assert plans("import", gb10, "--target", "gb10", "--out", second, "--like", first).code == 0
    assert second.read_bytes() == first.read_bytes()


def test_import_without_an_output_checks_the_match_alone(plans: Callable[..., Result], gb10: Path) -> None:
    before = tree(gb10.parent)
    found = plans("import", gb10, "--target", "gb10", "--json")
    assert (found.code, found.json["map_sha256"], found.json["metadata"]) == (0, MAP_SHA256, None)
    assert tree(gb10.parent) == before


@pytest.mark.parametrize(
    ("field", "value"), [("gpu", "NVIDIA RTX PRO 6000"), ("cuda_version", "12.9"), ("flashinfer_version", "0.6.14")]
)
def test_import_refuses_plans_of_another_environment_and_prints_the_difference(
    plans: Callable[..., Result], gb10: Path, field: str, value: str
) -> None:
    path = changed(gb10, lambda d: d["_metadata"].update({field: value}))
    out = gb10.with_name("out.json")
    found = plans("import", path, "--target", "gb10", "--out", out, *BUILD)
    assert (found.code, out.exists()) == (64, False)
    assert found.error.startswith("metadata-mismatch: ")
    assert f"{field} ({value!r} in the document" in found.error
    assert plans("show", path).code == 0


def test_import_on_this_machine_takes_its_own_document_and_no_other(
    plans: Callable[..., Result], tmp_path: Path, gb10: Path
) -> None:
    here = native_here(tmp_path, {(1, 64, 32): 2, (2, 64, 32): 0})
    assert plans("import", here, "--json").json["plans"] == [
        {"k": 32, "m": 1, "n": 64, "tactic": 2},
        {"k": 32, "m": 2, "n": 64, "tactic": 0},
    ]
    other = changed(here, lambda d: d["_metadata"].update(gpu="another processor"), "other.json")
    assert plans("show", other).code == 0
    found = plans("import", other)
    assert (found.code, "gpu ('another processor'" in found.error) == (64, True)
    found = plans("import", gb10)
    assert (found.code, "--target gb10" in found.error) == (64, True)


def test_the_device_ordinal_alone_is_a_difference(plans: Callable[..., Result], gb10: Path) -> None:
    first = native_gb10(plans, gb10)
    second = native_gb10(plans, gb10, "second.json", "--device", "1")
    found = plans("import", second, "--target", "gb10", "--like", first)
    assert (found.code, "device_ordinal (1 in the document, 0 here)" in found.error) == (64, True)
    assert plans("diff", first, second).code == 0


def test_options_of_a_target_are_refused_where_there_is_none(plans: Callable[..., Result], tmp_path: Path) -> None:
    found = plans("import", native_here(tmp_path, {(1, 64, 32): 2}), "--driver", "580")
    assert (found.code, "--target gb10" in found.error) == (64, True)


def test_nothing_is_overwritten_unless_that_is_asked_for(plans: Callable[..., Result], gb10: Path) -> None:
    out = gb10.with_name("out.json")
    for verb, *words in (
        ("import", gb10, "--target", "gb10", *BUILD),
        ("export", gb10, "--to", "0.6.13"),
        ("merge", gb10, gb10),
        ("freeze", gb10),
    ):
        out.unlink(missing_ok=True)
        out.write_text("mine")
        found = plans(verb, *words, "--out", out)
        assert (found.code, found.error.startswith("exists: "), out.read_text()) == (64, True, "mine")
        assert plans(verb, *words, "--out", out, "--force").code == 0
        assert plans("show", out, "--json").json["map_sha256"] == MAP_SHA256


@pytest.mark.parametrize("alias", ["itself", "hard link", "symbolic link"])
def test_a_source_is_never_the_target_even_with_force(plans: Callable[..., Result], gb10: Path, alias: str) -> None:
    out = gb10 if alias == "itself" else gb10.with_name("alias.json")
    if alias == "hard link":
        os.link(gb10, out)
    elif alias == "symbolic link":
        out.symlink_to(gb10)
    for verb, *words in (
        ("import", gb10, "--target", "gb10", *BUILD),
        ("export", gb10, "--to", "0.6.13"),
        ("merge", gb10, gb10),
        ("freeze", gb10),
    ):
        found = plans(verb, *words, "--out", out, "--force")
        assert (found.code, found.error.startswith("source-is-target: ")) == (64, True)
    assert gb10.read_bytes() == oracle.document_bytes()


def test_a_directory_that_is_not_there_is_named(plans: Callable[..., Result], gb10: Path) -> None:
    found = plans("export", gb10, "--to", "0.6.13", "--out", gb10.parent / "no" / "x.json")
    assert (found.code, "unwritable: " in found.error) == (64, True)


def test_export_of_the_oracle_is_what_flashinfer_saved(plans: Callable[..., Result], gb10: Path) -> None:
    direct, through_native = gb10.with_name("direct.json"), gb10.with_name("through.json")
    assert plans("export", gb10, "--to", "0.6.13", "--out", direct).code == 0
    source = native_gb10(plans, gb10)
    assert plans("export", source, "--to", "0.6.13", "--target", "gb10", "--out", through_native).code == 0
    assert direct.read_bytes() == through_native.read_bytes() == oracle.document_bytes()[:-1]


def test_export_to_07_needs_the_dsl_version_and_says_that_07_times_again(
    plans: Callable[..., Result], gb10: Path
) -> None:
    out = gb10.with_name("out.json")
    found = plans("export", gb10, "--to", "0.7", "--out", out)
    assert (found.code, "cutlass_dsl_version" in found.error, out.exists()) == (64, True, False)
    found = plans("export", gb10, "--to", "0.7", "--out", out, "--env", "cutlass_dsl_version=*", "--json")
    assert (found.code, found.json["version"], found.json["without_policy"]) == (0, "0.7.4", 64)
    assert plans("show", out, "--json").json["format"] == "flashinfer-0.7"
    assert plans("diff", gb10, out).code == 0


def test_export_of_a_native_document_asks_for_what_it_does_not_say(plans: Callable[..., Result], gb10: Path) -> None:
    found = plans("export", native_gb10(plans, gb10), "--to", "0.6.13", "--out", gb10.with_name("out.json"))
    assert (found.code, "--env cudnn_version=" in found.error, "--env gpu=" in found.error) == (64, True, False)


def test_export_refuses_the_cpu_backends_plans(plans: Callable[..., Result], tmp_path: Path) -> None:
    here = native_here(tmp_path, {(1, 64, 32): 2})
    found = plans("export", here, "--to", "0.6.13", "--target", "gb10", "--out", tmp_path / "out.json")
    assert (found.code, found.error.startswith("unknown-runner: ")) == (64, True)


def test_diff_of_equal_maps_is_0_across_formats(plans: Callable[..., Result], gb10: Path) -> None:
    found = plans("diff", gb10, native_gb10(plans, gb10))
    assert (found.code, f"equal: 64 plans, selected-map SHA-256 {MAP_SHA256}" in found.out) == (0, True)


def test_diff_names_changed_ids_and_what_only_one_side_has(plans: Callable[..., Result], gb10: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        document[KEY] = [RUNNER, 6]
        del document[key_text(2, 5120, 6144)]
        document[key_text(4096, 5120, 6144)] = [RUNNER, 9]

    other = changed(gb10, change)
    found = plans("diff", gb10, other, "--json")
    assert found.code == 1
    assert found.json["changed"] == [{"a": 4, "b": 6, "k": 6144, "m": 1, "n": 5120}]
    assert found.json["only_a"] == [{"k": 6144, "m": 2, "n": 5120, "tactic": 4}]
    assert found.json["only_b"] == [{"k": 6144, "m": 4096, "n": 5120, "tactic": 9}]
    assert (found.json["equal"], found.json["same"]) == (False, 62)
    assert found.json["a"]["map_sha256"] != found.json["b"]["map_sha256"]
    text = plans("diff", gb10, other).out
    assert ["1", "5120", "6144", "4", "6"] in [line.split() for line in text.splitlines()]
    assert "different: 1 ids differ, 1 only in A, 1 only in B, 62 equal" in text


def test_diff_refuses_ids_of_two_tactic_lists(plans: Callable[..., Result], gb10: Path, tmp_path: Path) -> None:
    found = plans("diff", gb10, native_here(tmp_path, {(1, 64, 32): 2}))
    assert (found.code, found.error.startswith("different-tactics: ")) == (64, True)


def test_merge_keeps_a_where_both_have_a_plan(plans: Callable[..., Result], gb10: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        document[KEY] = [RUNNER, 6]
        del document[key_text(2, 5120, 6144)]
        document[key_text(4096, 5120, 6144)] = [RUNNER, 9]

    other, out = changed(gb10, change), gb10.with_name("out.json")
    found = plans("merge", other, gb10, "--out", out, "--json")
    counts = {name: found.json[name] for name in ("plan_count", "a_kept", "only_a", "only_b", "same")}
    assert counts == {"plan_count": 65, "a_kept": 1, "only_a": 1, "only_b": 1, "same": 62}
    merged = {(row["m"], row["n"], row["k"]): row["tactic"] for row in plans("show", out, "--json").json["plans"]}
    assert merged == {**oracle.plans(), (1, 5120, 6144): 6, (4096, 5120, 6144): 9}


def test_merge_carries_other_operations_and_two_spellings_of_a_key_are_one_plan(
    plans: Callable[..., Result], gb10: Path
) -> None:
    moe = "('moe', 'Moe', ((1,),), ())"

    def change(document: dict[str, Any]) -> None:
        document[KEY.replace(", ", ",")] = document.pop(KEY)
        document[moe] = ["Moe", [1, 2]]

    out = gb10.with_name("out.json")
    assert plans("merge", changed(gb10, change), gb10, "--out", out).code == 0
    shown = plans("show", out, "--json").json
    assert (shown["map_sha256"], shown["foreign"]) == (MAP_SHA256, 1)
    assert json.loads(out.read_bytes())[moe] == ["Moe", [1, 2]]


def test_merge_of_07_files_keeps_policies_and_states_a_generation_that_is_right(
    plans: Callable[..., Result], gb10: Path
) -> None:
    whole, out = gb10.with_name("whole.json"), gb10.with_name("out.json")
    assert plans("export", gb10, "--to", "0.7", "--out", whole, "--env", "cutlass_dsl_version=4.3").code == 0

    def change(document: dict[str, Any]) -> None:
        del document["_generation"]
        document[KEY] = [RUNNER, 6, ["cuda_graph_profile_replays", 1, "l2_cache_policy", "cold"], {"margin": 0.5}]

    part = changed(whole, change)
    assert plans("merge", part, whole, "--out", out).code == 0
    merged = json.loads(out.read_bytes())
    assert merged[KEY] == json.loads(part.read_bytes())[KEY]
    assert "_generation agrees with the content" in plans("show", out, "--json").json["notes"]


def test_merge_of_native_documents_keeps_metadata_and_unknown_fields(plans: Callable[..., Result], gb10: Path) -> None:
    whole = native_gb10(plans, gb10)

    def change(document: dict[str, Any]) -> None:
        document["later"] = "kept"
        document["plans"] = [{**document["plans"][0], "tactic_id": 9, "why": "mine"}]

    part, out = changed(whole, change, "part.json"), gb10.with_name("out.json")
    assert plans("merge", part, whole, "--out", out).code == 0
    merged, before = json.loads(out.read_bytes()), json.loads(whole.read_bytes())
    assert (merged["later"], merged["_metadata"]) == ("kept", before["_metadata"])
    assert (merged["plans"][0]["tactic_id"], merged["plans"][0]["why"]) == (9, "mine")
    assert merged["plans"][1:] == before["plans"][1:]


def test_merge_refuses_two_environments_and_names_the_field(plans: Callable[..., Result], gb10: Path) -> None:
    other, out = changed(gb10, lambda d: d["_metadata"].update(gpu="NVIDIA RTX PRO 6000")), gb10.with_name("out.json")
    found = plans("merge", gb10, other, "--out", out)
    assert (found.code, out.exists()) == (64, False)
    assert "gpu ('NVIDIA GB10' in A, 'NVIDIA RTX PRO 6000' in B)" in found.error
    found = plans("merge", gb10, native_gb10(plans, gb10), "--out", out)
    assert (found.code, found.error.startswith("different-formats: ")) == (64, True)


def test_freeze_leaves_the_same_bytes_read_only_with_their_provenance(plans: Callable[..., Result], gb10: Path) -> None:
    out, mask = gb10.with_name("frozen.json"), os.umask(0o077)
    try:
        assert plans("freeze", gb10, "--out", out).code == 0
    finally:
        os.umask(mask)
    beside = out.with_name("frozen.json.provenance.json")
    assert out.read_bytes() == gb10.read_bytes()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (out, beside)] == [0o444, 0o444]
    found = json.loads(beside.read_bytes())
    assert (found["source_name"], found["source_sha256"], found["source_size"]) == ("gb10.json", SOURCE_SHA256, 11948)
    assert (found["map_sha256"], found["plan_count"], found["document"]) == (MAP_SHA256, 64, "frozen.json")
    assert found["tool"].startswith("nvfp4-gates ")
    assert found["date"].endswith("+00:00")
    assert str(gb10.parent) not in beside.read_text()
    assert sorted(tree(gb10.parent)) == ["frozen.json", "frozen.json.provenance.json", "gb10.json"]


def test_audit_of_a_sound_file_is_0_and_of_any_fault_1(plans: Callable[..., Result], gb10: Path) -> None:
    found = plans("audit", gb10, "--as", "0.6.13", "--json")
    assert (found.code, found.json["agreed"], found.json["counts"], found.json["load"]) == (
        0,
        True,
        {"hit": 64},
        "loaded",
    )
    wrong = changed(gb10, lambda d: d.update({KEY: [f"{RUNNER}X", 7]}))
    found = plans("audit", wrong, "--as", "0.6.13", "--json")
    entry = next(item for item in found.json["entries"] if item["key"] == KEY)
    assert (found.code, entry["fate"], entry["ours"], entry["value"]) == (
        1,
        "wrong-runner",
        "refused",
        f'["{RUNNER}X", 7]',
    )
    assert entry["shape"] == {"k": 6144, "m": 1, "n": 5120}
    assert plans("audit", wrong, "--as", "0.6.18").code == 1


def test_audit_says_how_far_a_half_loaded_file_got(plans: Callable[..., Result], gb10: Path) -> None:
    key = list(json.loads(gb10.read_bytes()))[32]
    found = plans("audit", changed(gb10, lambda d: d.update({key: None})), "--as", "0.6.13")
    assert found.code == 1
    assert "raises TypeError" in found.out
    assert "31 of 64 entries stay installed" in found.out
    assert "crash-at-load" in found.out
    assert "This project refuses the document" in found.out


def test_audit_of_what_is_no_json_predicts_the_crash(plans: Callable[..., Result], gb10: Path) -> None:
    gb10.write_bytes(oracle.document_bytes()[:500])
    found = plans("audit", gb10, "--as", "0.6.13", "--json")
    assert (found.code, found.json["load_error"], found.json["refusal"]["code"]) == (1, "JSONDecodeError", "bad-json")
    assert found.json["entries"] == []


def test_audit_for_another_machine_says_that_the_file_is_ignored(plans: Callable[..., Result], gb10: Path) -> None:
    other = changed(gb10, lambda d: d["_metadata"].update(gpu="NVIDIA RTX PRO 6000"))
    assert plans("audit", other, "--as", "0.6.13").code == 0
    for words in (("--target", "gb10"), ("--env", "gpu=NVIDIA GB10")):
        found = plans("audit", other, "--as", "0.6.13", *words, "--json")
        assert (found.code, found.json["load"], found.json["counts"]) == (1, "ignored", {"ignored": 64})
    found = plans("audit", other, "--as", "0.6.13", "--env", "cutlass_dsl_version=4")
    assert (found.code, "unknown-field" in found.error) == (64, True)


def test_audit_shows_what_only_flashinfer_reads(plans: Callable[..., Result], gb10: Path) -> None:
    text = gb10.read_text().replace(f'"{KEY}"', f'"\\ud800\\u001b[31m": ["R", NaN],\n  "{KEY}"')
    gb10.write_text(text)
    found = plans("audit", gb10, "--as", "0.6.13", "--json")
    assert (found.code, found.json["refusal"]["code"]) == (1, "bad-json")
    assert any(item["value"] == '["R", NaN]' for item in found.json["entries"])
    assert "\x1b" not in plans("audit", gb10, "--as", "0.6.13").out


def test_audit_of_a_directory_names_the_file_to_give(plans: Callable[..., Result], tmp_path: Path) -> None:
    found = plans("audit", tmp_path, "--as", "0.6.13")
    assert (found.code, str(tmp_path / "autotune_configs.json") in found.error) == (64, True)


def test_a_vllm_directory_and_one_file_of_a_rank_are_named(plans: Callable[..., Result], tmp_path: Path) -> None:
    single, ranks = tmp_path / "single", tmp_path / "ranks"
    for folder, names in (
        (single, ["autotune_configs.json"]),
        (ranks, ["autotune_configs_dp0_rank0.json", "autotune_configs_dp0_rank1.json"]),
    ):
        folder.mkdir()
        for name in names:
            (folder / name).write_bytes(oracle.document_bytes())
    assert plans("show", single, "--json").json["layout"] == "vllm-0.25"
    found = plans("show", ranks, "--json").json
    assert (found["layout"], len(found["files"]), found["map_sha256"]) == ("vllm-0.33", 2, MAP_SHA256)
    assert plans("diff", single, ranks).code == 0
    found_text = plans("freeze", ranks, "--out", tmp_path / "out.json")
    assert (found_text.code, found_text.error.startswith("is-a-directory: ")) == (64, True)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda d: d["_metadata"].pop("build_id"), "missing-field"),
        (lambda d: d["_metadata"].update(format="v2"), "unknown-format"),
        (lambda d: d["_metadata"].update(tactic_descriptor_digest="0" * 16), "unknown-tactics"),
        (lambda d: d["_metadata"].update(warmups="3"), "bad-metadata"),
        (lambda d: d.update(_metadata=[]), "wrong-type"),
        (lambda d: d["plans"][3].update(tactic_id=32), "unknown-tactic"),
        (lambda d: d["plans"].append(d["plans"][0]), "duplicate-plan"),
    ],
)
def test_a_malformed_native_document_is_refused_whatever_machine_it_is_of(
    plans: Callable[..., Result], gb10: Path, change: Change, code: str
) -> None:
    found = plans("show", changed(native_gb10(plans, gb10), change))
    assert (found.code, found.error.split(":")[0]) == (64, code)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("show",),
        ("shew", "x"),
        ("audit", "x", "--as", "0.5.0"),
        ("import", "x", "--target", "h100"),
        ("import", "x", "--device", "-1"),
        ("import", "x", "--device", "1_0"),
        ("export", "x", "--to", "0.6.13"),
        ("audit", "x", "--as", "0.6.13", "--env", "gpu"),
        ("audit", "x", "--as", "0.6.13", "--runners", "a,,b"),
    ],
)
def test_bad_usage_is_64_with_the_help_to_ask_for(plans: Callable[..., Result], words: tuple[str, ...]) -> None:
    found = plans(*words)
    assert (found.code, found.out) == (64, "")
    assert f"python -m harness plans {words[0] + ' ' if words and words[0] != 'shew' else ''}--help" in found.error

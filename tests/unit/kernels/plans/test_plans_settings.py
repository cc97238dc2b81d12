from __future__ import annotations

from pathlib import Path

import pytest

from kernels.errors import SettingsError
from kernels.plans.metadata import Metadata
from kernels.plans.settings import Settings, native_path
from kernels.tactics import CUTLASS_TACTICS

METADATA = Metadata(
    architecture=121,
    build_id="build-1",
    cuda_driver="13000",
    cuda_runtime="13000",
    cutlass_version="4.5.0",
    delay_microseconds=5000,
    device_ordinal=0,
    gpu="NVIDIA GB10",
    tactic_descriptor_digest=CUTLASS_TACTICS.digest,
    tactic_set_version=2,
)
SWITCHES = {
    "VT_FP4_PERSISTENT_CACHE": "persistent_cache",
    "VT_FP4_PLAN_CACHE": "plan_cache",
    "VT_FP4_AUTOTUNE_CACHE_READONLY": "read_only",
    "VT_FP4_DIRECT_SF": "direct_sf",
    "VT_FP4_AUTOTUNE_VERBOSE": "autotune_verbose",
}


def refusal(env: dict[str, str]) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env(env)
    return caught.value


def test_an_empty_environment_means_the_defaults() -> None:
    settings = Settings.from_env({})
    assert settings == Settings()
    assert (settings.persistent, settings.read_only, settings.delay_us, settings.direct_sf) == (True, False, 5000, True)


def test_empty_variables_mean_the_defaults_too() -> None:
    names = (*SWITCHES, "VT_FP4_AUTOTUNE_CACHE_PATH", "VT_FP4_FLASHINFER_CACHE_PATH", "VT_FP4_AUTOTUNE_DELAY_US")
    assert Settings.from_env(dict.fromkeys(names, "")) == Settings()


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize(
    ("word", "value"), [("1", True), ("true", True), ("on", True), ("0", False), ("false", False), ("off", False)]
)
def test_each_switch_takes_the_six_words(name: str, word: str, value: bool) -> None:
    assert getattr(Settings.from_env({name: word}), SWITCHES[name]) is value


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("word", ["yes", "2", "TRUE", " 1", "1\n"])
def test_any_other_word_is_refused_with_variable_value_and_mend(name: str, word: str) -> None:
    error = refusal({name: word})
    assert error.code == "bad-switch"
    assert name in error.message and repr(word) in error.message and "write 1, true, on" in error.message


@pytest.mark.parametrize(("text", "delay"), [("0", 0), ("5000", 5000), ("1000000", 1_000_000), ("0000005000", 5000)])
def test_a_decimal_delay_is_read(text: str, delay: int) -> None:
    assert Settings.from_env({"VT_FP4_AUTOTUNE_DELAY_US": text}).delay_us == delay


@pytest.mark.parametrize(
    "text", ["-1", "+5", "5.0", "1e3", "0x10", " 5", "1000001", "5000000", "٥", "9" * 100_000, "1_0"]
)
def test_any_other_delay_is_refused(text: str) -> None:
    error = refusal({"VT_FP4_AUTOTUNE_DELAY_US": text})
    assert error.code == "bad-delay"
    assert "VT_FP4_AUTOTUNE_DELAY_US" in error.message and "0..1000000" in error.message
    assert len(error.message) < 400


@pytest.mark.parametrize("switch", ["VT_FP4_PERSISTENT_CACHE", "VT_FP4_PLAN_CACHE"])
def test_without_persistence_the_other_variables_are_not_even_looked_at(switch: str) -> None:
    env = {
        switch: "0",
        "VT_FP4_AUTOTUNE_DELAY_US": "nonsense",
        "VT_FP4_AUTOTUNE_CACHE_READONLY": "nonsense",
        "VT_FP4_AUTOTUNE_CACHE_PATH": "a\nb",
        "VT_FP4_DIRECT_SF": "0",
    }
    settings = Settings.from_env(env)
    assert not settings.persistent and not settings.direct_sf
    assert (settings.delay_us, settings.read_only, settings.autotune_cache_path) == (5000, False, None)


def test_paths_may_hold_blanks_but_no_control_characters() -> None:
    assert Settings.from_env({"VT_FP4_AUTOTUNE_CACHE_PATH": "/a b/c"}).autotune_cache_path == "/a b/c"
    assert refusal({"VT_FP4_FLASHINFER_CACHE_PATH": "/a\nb"}).code == "bad-path"


@pytest.mark.parametrize(
    ("env", "root"),
    [
        ({"XDG_CACHE_HOME": "/cache", "HOME": "/home/u"}, "/cache"),
        ({"XDG_CACHE_HOME": "", "HOME": "/home/u"}, "/home/u/.cache"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/u"}, "/home/u/.cache"),
        ({"XDG_CACHE_HOME": "/a\nb", "HOME": "/home/u"}, "/home/u/.cache"),
    ],
)
def test_the_default_path_lies_in_the_cache_root_under_the_namespace(env: dict[str, str], root: str) -> None:
    target = native_path(Settings(), METADATA, env)
    assert target.path == Path(root) / "vllm.cpp" / "nvfp4_autotune" / METADATA.namespace()
    assert target.reason is None


def test_an_explicit_path_needs_no_root() -> None:
    assert native_path(Settings(autotune_cache_path="/x/p.json"), METADATA, {}).path == Path("/x/p.json")


@pytest.mark.parametrize("env", [{}, {"HOME": ""}, {"HOME": "relative"}])
def test_without_a_root_there_is_a_reason_and_no_path(env: dict[str, str]) -> None:
    target = native_path(Settings(), METADATA, env)
    assert target.path is None and "HOME" in str(target.reason)


def test_read_only_without_any_document_is_an_error_but_a_flashinfer_path_is_enough() -> None:
    with pytest.raises(SettingsError, match="VT_FP4_AUTOTUNE_CACHE_READONLY=1") as caught:
        native_path(Settings(read_only=True), METADATA, {})
    assert caught.value.code == "no-plan-source"
    assert native_path(Settings(read_only=True, flashinfer_cache_path="/f"), METADATA, {}).path is None


@pytest.mark.parametrize(
    ("settings", "name"), [(Settings(persistent_cache=False), "PERSISTENT"), (Settings(plan_cache=False), "PLAN")]
)
def test_a_disabled_cache_has_no_path_and_names_the_switch(settings: Settings, name: str) -> None:
    target = native_path(settings, METADATA, {"HOME": "/home/u"})
    assert target.path is None and f"VT_FP4_{name}_CACHE=0" == target.reason

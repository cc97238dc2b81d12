"""What is wrong with a configuration is found before anything is started, and said with key, value and mend."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import cli, settings
from harness.config import keys
from harness.engines import registry
from harness.errors import EXIT_USAGE, UsageError
from harness.explain import explain


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("host.port=abc", ("host.port", "abc", "Integer")),
        ("host.port=70000", ("host.port", "70000", "65535")),
        ("gate.repetitions=1.5", ("gate.repetitions", "1.5")),
        ("engine=vllm9", ("engine/vllm9", "reference")),
        ("gate=g99", ("gate/g99", "g4")),
        ("host.nope=1", ("host.nope", "nope")),
        ("+zork=1", ("zork",)),
        ("no-equals-sign", ("no-equals-sign",)),
        ("host.state_dir=${oc.env:NO_SUCH_VAR}", ("host.state_dir", "NO_SUCH_VAR")),
        ("evidence.root=${paths.typo}/x", ("evidence.root", "paths.typo")),
        ("engine.name=???", ("engine.name",)),
        ("+engine.options.model=???", ("engine.options.model",)),
        ("rule.order=random", ("rule.order", "random", "abba")),
        ("gate.concurrencies=[3]", ("workload.points", "3")),
        ("gate.sequential_requests=7", ("gate.sequential_requests", "7")),
    ],
)
def test_a_bad_override_is_exit_64_with_key_value_and_mend(
    override: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", override]) == EXIT_USAGE
    said = capsys.readouterr().err
    assert "Traceback" not in said
    for word in words:
        assert word in said


def test_the_default_configuration_is_the_seeds_workload() -> None:
    config = settings.compose_config([])
    assert (config.gate.name, config.engine.name, config.rule.name) == ("g4", "reference", "strict-mean")
    assert (config.workload.input_tokens, config.workload.output_tokens, config.workload.seed) == (1024, 128, 0)
    assert {c: config.workload.points[c] for c in config.gate.concurrencies} == {2: 6, 16: 96}


@pytest.mark.parametrize("chdir", ["hydra.job.chdir=true", "hydra.job.chdir=false", None])
def test_composing_never_changes_the_working_directory(
    chdir: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings.compose_config([chdir] if chdir else [])
    assert Path.cwd() == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_users_own_groups_are_found_under_xdg_config_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvfp4-gates" / "host").mkdir(parents=True)
    (tmp_path / "nvfp4-gates" / "host" / "mine.yaml").write_text("name: mine\nport: 8123\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert settings.compose_config(["host=mine"]).host.port == 8123


def test_every_key_is_explained_with_type_unit_default_and_meaning() -> None:
    for name, key in keys().items():
        text = explain(name)
        assert name in text
        assert key.meaning
        assert "default" in text
    assert "unit     s" in explain("host.lease_timeout_s")
    assert "1024" in explain("workload.input_tokens")


def test_explaining_an_unknown_key_proposes_a_near_one() -> None:
    with pytest.raises(UsageError, match=r"host\.port"):
        explain("host.prt")


def test_an_unknown_engine_lists_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="llama_cpp, openai, reference"):
        registry.create("vllm9", {}, tmp_path)


@pytest.mark.parametrize("options", [{"seed": "zero"}, {"seed": True}, {"sed": 0}, {"max_num_seqs": -1}])
def test_a_bad_engine_option_is_named(options: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"engine\.options\."):
        registry.create("reference", options, tmp_path)


@pytest.mark.parametrize("argv", [[], ["nope"], ["verify"], ["run", "--nope"]])
def test_bad_usage_is_exit_64_and_not_argparses_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == EXIT_USAGE
    assert "help" in capsys.readouterr().err

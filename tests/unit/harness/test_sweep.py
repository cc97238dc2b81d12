"""A sweep says what is missing before it starts, and loses no job's outcome."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.plugins import Plugins

from harness import cli, sweep
from harness.errors import EXIT_BUG, EXIT_FAIL, EXIT_PASS, EXIT_USAGE, UsageError
from harness.settings import conf_dir, register


@pytest.mark.parametrize(
    ("launcher", "extra"), [("ray_cluster", "ray"), ("slurm", "slurm"), ("submitit_local", "slurm")]
)
def test_a_launcher_that_is_not_installed_is_named_with_its_extra_and_nothing_is_made(
    launcher: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(metadata, "version", absent)
    assert cli.main(["run", "-m", "gate=g4", f"hydra/launcher={launcher}"]) == EXIT_USAGE
    said = capsys.readouterr().err
    assert said.startswith("missing-extra: ")
    assert f"nvfp4-gates[{extra}]" in said
    assert len(said.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_host_starts_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", "-m", "gate=g4", "host=local,nowhere"]) == EXIT_USAGE
    said = capfd.readouterr().err
    assert "host/nowhere" in said
    assert "sweep-not-started: no job was started" in said
    assert list(tmp_path.rglob("outcome.json")) == []
    assert not (tmp_path / "evidence").exists()


def left(folder: Path, number: int, code: int) -> None:
    (folder / str(number)).mkdir()
    (folder / str(number) / "outcome.json").write_text(json.dumps({"exit": code, "message": "said"}))


def test_the_worst_job_is_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left(tmp_path, 0, EXIT_PASS)
    left(tmp_path, 1, EXIT_FAIL)
    (tmp_path / ".submitit").mkdir()
    assert sweep._tell(tmp_path, gave_up=False) == EXIT_FAIL
    assert capsys.readouterr().out.splitlines() == ["job 0: exit 0 said", "job 1: exit 1 said"]


def test_a_job_that_died_without_a_word_is_our_failure_and_the_others_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left(tmp_path, 0, EXIT_PASS)
    (tmp_path / "1").mkdir()
    assert sweep._tell(tmp_path, gave_up=False) == EXIT_BUG
    assert "job 1: exit 70 the job left no outcome" in capsys.readouterr().out


def test_a_launcher_that_gives_up_is_never_a_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left(tmp_path, 0, EXIT_PASS)
    assert sweep._tell(tmp_path, gave_up=True) == EXIT_BUG
    said = capsys.readouterr()
    assert "job 0: exit 0" in said.out
    assert "gave up" in said.err


def test_a_launcher_that_gives_up_before_the_first_job_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no job was started") as caught:
        sweep._tell(tmp_path, gave_up=True)
    assert caught.value.code == "sweep-not-started"


@pytest.mark.parametrize(
    ("name", "distribution", "key", "value"),
    [
        ("ray_cluster", "hydra-ray-launcher", "ray.remote.max_retries", 0),
        ("slurm", "hydra-submitit-launcher", "timeout_min", 1440),
    ],
)
def test_the_shipped_launchers_compose_over_the_installed_plugins(
    name: str, distribution: str, key: str, value: int
) -> None:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        pytest.skip(f"needs {distribution}; `nox -s many_hosts` has it")
    from omegaconf import OmegaConf

    register()
    Plugins.instance()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        composed = compose("config", overrides=[f"hydra/launcher={name}"], return_hydra_config=True)
    assert OmegaConf.select(composed, f"hydra.launcher.{key}") == value

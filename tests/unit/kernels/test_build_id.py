from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from kernels.backends import cpu
from kernels.build_id import PACKAGE, build_id
from kernels.errors import SettingsError
from kernels.plans.settings import Settings, native_path

SOURCES = cpu._ABI_SOURCES


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for source in SOURCES:
        (tmp_path / source).parent.mkdir(exist_ok=True)
        shutil.copy(PACKAGE / source, tmp_path / source)
    return tmp_path


@pytest.mark.parametrize("source", SOURCES)
def test_an_edited_source_moves_the_default_path_without_any_commit(copy: Path, source: str) -> None:
    def path() -> Path | None:
        metadata = replace(cpu.metadata(Settings()), build_id=build_id(SOURCES, package=copy))
        return native_path(Settings(), metadata, {"XDG_CACHE_HOME": "/cache"}).path

    before = path()
    (copy / source).touch()
    assert path() == before
    with (copy / source).open("a") as file:
        file.write("# one more line\n")
    after = path()
    assert before is not None and after is not None
    assert (after != before, after.parts[:-2] == before.parts[:-2]) == (True, True)


def test_the_cpu_backend_is_bound_to_its_sources_and_its_numpy() -> None:
    found = cpu.metadata(Settings()).build_id
    assert found == build_id(SOURCES, numpy=cpu.np.__version__)
    assert found != build_id(SOURCES, numpy="0.0.0")
    assert found != build_id(SOURCES[1:], numpy=cpu.np.__version__)


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"gone\.py") as caught:
        build_id(["gone.py"], package=tmp_path)
    assert caught.value.code == "no-source"

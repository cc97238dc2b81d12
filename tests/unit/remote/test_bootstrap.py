"""Sources and wheels for a host: equal trees give equal archives, and what does not fit is said."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from harness import _onhost, bootstrap
from harness.bootstrap import HostPython
from harness.errors import UsageError
from harness.settings import compose_config


def tree(root: Path, text: str = "one") -> Path:
    for name in ("harness/a.py", "harness/sub/b.py", "kernels/c.cu", "gates/g.py", "conf/config.yaml", "LICENSE"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_equal_trees_give_equal_archives_whatever_their_times_modes_and_caches(tmp_path: Path) -> None:
    one, two = tree(tmp_path / "one"), tree(tmp_path / "two")
    os.utime(two / "harness/a.py", (1, 1))
    (two / "harness/a.py").chmod(0o600)
    (two / "harness/__pycache__").mkdir()
    (two / "harness/__pycache__/a.pyc").write_bytes(b"x")
    (two / "harness/.a.py.swp").write_bytes(b"x")
    (two / "tests").mkdir()
    (two / "tests/t.py").write_text("x")
    assert bootstrap.sources(one) == bootstrap.sources(two)


def test_one_changed_character_is_another_folder(tmp_path: Path) -> None:
    one, two = bootstrap.sources(tree(tmp_path / "one")), bootstrap.sources(tree(tmp_path / "two", "onf"))
    assert one.name != two.name


def test_this_checkout_holds_what_a_run_needs_there() -> None:
    with tarfile.open(fileobj=io.BytesIO(bootstrap.sources().archive)) as tar:
        names = set(tar.getnames())
    assert {"harness/agent/__main__.py", "harness/supervisor.py", "kernels/serve/__main__.py", "gates/g4.py"} <= names
    assert {"conf/config.yaml", "kernels/plans/data/nvfp4_flashinfer_v025_gb10.csv"} <= names
    assert not [name for name in names if name.startswith(("/", "tests", ".", "evidence")) or ".." in name]


def test_what_a_run_needs_is_pinned_as_it_is_installed_here_and_nothing_else() -> None:
    pins = dict(pin.split("==") for pin in bootstrap.pins())
    assert {"hydra-core", "numpy", "psutil", "uvicorn", "PyYAML", "antlr4-python3-runtime"} <= pins.keys()
    assert not {"pytest", "mypy", "nox", "nvfp4-gates", "paramiko"} & pins.keys()


def test_wheel_tags_go_from_the_hosts_own_library_down() -> None:
    tags = bootstrap.platforms(HostPython("3.12.3", "aarch64", "2.39"))
    assert tags[0] == "manylinux_2_39_aarch64"
    assert tags[-2:] == ["manylinux_2_17_aarch64", "manylinux2014_aarch64"]


@pytest.mark.parametrize("glibc", ["", "2.12", "musl"])
def test_a_host_without_a_usable_c_library_is_refused(glibc: str) -> None:
    with pytest.raises(UsageError, match="glibc"):
        bootstrap.platforms(HostPython("3.12.3", "aarch64", glibc))


def test_a_file_that_did_not_arrive_whole_is_never_installed(tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources/x.tar").write_bytes(b"half")
    row = {"path": "sources/x.tar", "size": 5, "sha256": "a" * 64}
    request = {"folder": str(tmp_path), "files": [row], "sources": "x", "archive": "sources/x.tar"}
    assert _onhost.missing(request) == {"missing": ["sources/x.tar"]}
    with pytest.raises(_onhost.Failure, match="did not arrive whole"):
        _onhost.install(request)
    assert not (tmp_path / "prepared").exists()


@pytest.mark.parametrize(
    ("overrides", "word"),
    [
        (["host.transport=carrier-pigeon"], "local or ssh"),
        (["host.transport=ssh"], "host.address"),
        (["host=dgx", "host.state_dir=here"], "absolute"),
        (["host=dgx", "host.silence_s=0"], "positive"),
    ],
)
def test_a_transport_that_cannot_work_is_refused_by_its_key(overrides: list[str], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        compose_config(overrides)


def test_the_example_of_a_remote_host_is_whole() -> None:
    host = compose_config(["host=dgx"]).host
    assert (host.transport, host.address, host.lease_path) == ("ssh", "dgx", "/tmp/gpu")

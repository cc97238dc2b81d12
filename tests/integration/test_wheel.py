"""What is installed from a wheel is whole: configuration, plan table and packages, found from any folder."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content as pip would put it into site-packages."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(folder.glob("nvfp4_gates-*.whl"))) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(unpacked: Path, cwd: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """In isolated mode with the wheel's content first on the path, so that nothing comes from the checkout."""
    program = f"import sys; sys.path.insert(0, {str(unpacked)!r}); {argv[0]}"
    return subprocess.run([sys.executable, "-I", "-c", program], cwd=cwd, capture_output=True, text=True, check=False)


def test_only_the_three_packages_are_installed(unpacked: Path) -> None:
    names = {path.name for path in unpacked.iterdir() if not path.name.endswith(".dist-info")}
    assert names == {"harness", "kernels", "gates"}


def test_the_configuration_is_found_from_any_folder(unpacked: Path, tmp_path: Path) -> None:
    done = run(unpacked, tmp_path, "from harness import cli; sys.exit(cli.main(['explain', 'workload.input_tokens']))")
    assert done.returncode == 0, done.stderr
    assert "default  1024" in done.stdout


def test_the_oracles_plan_table_is_inside(unpacked: Path, tmp_path: Path) -> None:
    code = (
        "from kernels.plans import oracle; import hashlib; print(hashlib.sha256(oracle.document_bytes()).hexdigest())"
    )
    done = run(unpacked, tmp_path, code)
    assert done.stdout.startswith("e81e9181"), done.stderr

"""The arrows go one way, and reviewers need neither numpy nor Linux."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REFUSED = ("numpy", "paramiko", "hydra", "omegaconf", "rich", "psutil", "pynvml", "fcntl", "uvicorn", "httptools")


def imports(path: Path) -> set[str]:
    """Every module that a file imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", modules("kernels"), ids=lambda path: str(path.relative_to(ROOT)))
def test_kernels_know_nothing_of_harness_and_gates(path: Path) -> None:
    assert not {name for name in imports(path) if name.split(".")[0] in ("harness", "gates")}


@pytest.mark.parametrize("path", modules("harness"), ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_reference_adapter_and_the_plans_verbs_know_the_kernels(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    if name != "harness/engines/reference.py" and not name.startswith("harness/plans/"):
        assert not {name for name in imports(path) if name.split(".")[0] == "kernels"}


@pytest.mark.parametrize("path", modules("gates"), ids=lambda path: str(path.relative_to(ROOT)))
def test_gates_are_predicates_over_values(path: Path) -> None:
    ours = {name for name in imports(path) if name.split(".")[0] in ("harness", "kernels")}
    assert not {name for name in ours if not name.startswith(("harness.plan", "harness.records", "harness.axes"))}
    assert not {
        name for name in imports(path) if name.split(".")[0] in ("os", "pathlib", "socket", "subprocess", "time")
    }


@pytest.mark.parametrize("module", ["harness.verify", "harness.report.markdown", "harness.cli"])
def test_a_reviewer_needs_the_standard_library_alone(module: str) -> None:
    program = (
        "import sys\n"
        f"REFUSED = {REFUSED!r}\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in REFUSED:\n"
        "            raise ImportError('refused: ' + name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        f"import {module}\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["harness.controller", "harness.lease", "harness.keeper", "harness.sweep"])
def test_the_controller_imports_where_there_is_no_fcntl(module: str) -> None:
    program = f"import sys\nsys.modules['fcntl'] = None\nimport {module}\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["model", "attention"])
def test_the_model_names_no_array_library(name: str) -> None:
    """One model serves numpy and CuPy: it takes the namespace of the arrays it is given."""
    found = imports(ROOT / "kernels" / "serve" / f"{name}.py")
    assert not {module for module in found if module.split(".")[0] in ("numpy", "cupy", "torch")}
    assert not {module for module in found if module.startswith("kernels.backends.") and "base" not in module}

"""`verify` as one file: it runs without a checkout, packages or an environment, and says what the checkout's says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import single_file
from harness.errors import HarnessError

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "evidence" / "example"
NETWORK = {"asyncio", "ftplib", "http", "multiprocessing", "smtplib", "socket", "ssl", "subprocess", "urllib"}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("alone") / "verify.py"
    single_file.write(path)
    return path


def run(script: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """As a reviewer may: no environment, no site packages, another folder."""
    command = [sys.executable, "-I", "-S", str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=more, cwd="/", encoding="utf-8")


def test_the_file_says_of_the_example_what_the_checkout_says(alone: Path) -> None:
    command = [sys.executable, "-m", "harness", "verify", str(EXAMPLE)]
    checkout = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    done = run(alone, str(EXAMPLE))
    assert (done.returncode, done.stdout, done.stderr) == (checkout.returncode, checkout.stdout, checkout.stderr)
    assert done.returncode == 1
    assert done.stdout.startswith("FAIL:")


def test_the_file_recomputes_and_names_what_was_altered(alone: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(EXAMPLE, tmp_path / "copy"))
    target = next(copy.glob("legs/*-c2-A-r1/memory.jsonl"))
    target.write_bytes(target.read_bytes().replace(b"1", b"2", 1))
    done = run(alone, str(copy))
    assert done.returncode == 3
    assert f"{target.relative_to(copy)}: SHA-256" in done.stdout


def test_a_terminal_that_knows_no_ellipsis_still_gets_the_answer(alone: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(EXAMPLE, tmp_path / "copy"))
    (copy / "plan.json").write_bytes(b"{}\n")
    done = run(alone, str(copy), LC_ALL="POSIX", PYTHONIOENCODING="ascii")
    assert done.returncode == 3
    assert "plan.json" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"), [((), "usage: "), (("/nowhere",), "no-bundle: "), (("a", "b"), "usage: ")]
)
def test_wrong_use_is_a_sentence_and_64(alone: Path, arguments: tuple[str, ...], said: str) -> None:
    done = run(alone, *arguments)
    assert done.returncode == 64
    assert done.stderr.startswith(said)
    assert "Traceback" not in done.stderr


def test_nothing_outside_the_standard_library_is_needed() -> None:
    assert single_file.foreign() == {}


def test_nothing_that_could_reach_a_network_or_start_a_process_is_imported() -> None:
    for name, source in single_file.closure().items():
        tops = {module.split(".")[0] for module in single_file.imported(source)}
        assert not tops & NETWORK, name


def test_the_closure_is_what_verify_imports_and_no_more() -> None:
    program = "import sys, harness.verify_command; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {name for name in done.stdout.split() if name.split(".")[0] in ("harness", "gates", "kernels")}
    lazy = single_file.closure().keys() - loaded
    assert loaded <= single_file.closure().keys()
    assert not any(name.startswith(("kernels", "harness.transport", "harness.agent")) for name in lazy)


def test_the_same_sources_give_the_same_bytes(alone: Path) -> None:
    assert alone.read_text(encoding="utf-8") == single_file.render()
    assert str(ROOT) not in single_file.render()


def test_the_committed_file_is_current() -> None:
    path = ROOT / "evidence" / "verify.py"
    assert path.read_text(encoding="utf-8") == single_file.render(), (
        f"evidence/verify.py is older than the modules it is made of; run `{single_file.COMMAND}` and commit it"
    )


def test_a_source_that_would_end_its_own_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_file, "closure", lambda: {"harness.verify": "x = '''y'''\n"})
    with pytest.raises(HarnessError, match=r"harness\.verify") as caught:
        single_file.render()
    assert caught.value.code == "not-single"


def test_a_package_in_the_closure_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_file, "closure", lambda: {"harness.verify": "import numpy as np\n"})
    with pytest.raises(HarnessError, match="numpy"):
        single_file.render()

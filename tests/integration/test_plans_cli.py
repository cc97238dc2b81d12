"""The plans verbs as processes: streams, exit codes, locales and machines without the engine's packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.plans import oracle

ROOT = Path(__file__).resolve().parents[2]
MAP_SHA256 = "f2d9be7fc4a89de1cfa994ab9be08a423e0c4f6981fe46cb808cef485f4c1fa4"


def plans(
    *words: str | bytes | Path, env: dict[str, str] | None = None, code: str | None = None
) -> subprocess.CompletedProcess[bytes]:
    start = ["-m", "harness", "plans"] if code is None else ["-c", code, "plans"]
    return subprocess.run(
        [sys.executable, *start, *words],
        capture_output=True,
        check=False,
        cwd=ROOT,
        timeout=60,
        env={**os.environ, **(env or {})},
    )


@pytest.fixture
def gb10(tmp_path: Path) -> Path:
    path = tmp_path / "gb10.json"
    path.write_bytes(oracle.document_bytes())
    return path


def test_a_document_travels_through_every_format_and_comes_back_byte_for_byte(gb10: Path) -> None:
    native, newer, back, frozen = (gb10.with_name(name) for name in ("native", "newer", "back", "frozen"))
    build = ("--cuda", "13.0", "--driver", "580.95", "--cutlass", "4.2.0", "--build-id", "b1")
    steps: list[tuple[str | Path, ...]] = [
        ("import", gb10, "--target", "gb10", "--out", native, *build),
        ("export", native, "--to", "0.7", "--target", "gb10", "--env", "cutlass_dsl_version=4.3", "--out", newer),
        ("export", newer, "--to", "0.6.13", "--out", back),
        ("freeze", back, "--out", frozen),
        ("diff", native, frozen),
    ]
    for step in steps:
        done = plans(*step)
        assert (done.returncode, done.stderr) == (0, b""), step
    assert frozen.read_bytes() == oracle.document_bytes()[:-1]


def test_without_a_terminal_there_are_no_escape_codes(gb10: Path) -> None:
    for words in (("show", gb10), ("audit", gb10, "--as", "0.7.4"), ("diff", gb10, gb10), ("--help",)):
        done = plans(*words, env={"FORCE_COLOR": "", "TERM": "xterm-256color"})
        assert b"\x1b" not in done.stdout + done.stderr
        assert done.stdout


def test_a_reader_that_has_seen_enough_is_no_error(gb10: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as output:
        done = subprocess.run(
            [sys.executable, "-m", "harness", "plans", "show", str(gb10)],
            stdout=output,
            stderr=subprocess.PIPE,
            check=False,
            cwd=ROOT,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_names_that_are_no_text_and_an_ascii_locale_are_no_error(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/x\xff\xc3\xa9.json"
    Path(os.fsdecode(path)).write_bytes(oracle.document_bytes())
    for words in ((b"show", path), (b"show", path, b"--json")):
        done = plans(*words, env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
        assert (done.returncode, done.stderr) == (0, b"")
        assert MAP_SHA256.encode() in done.stdout
    assert json.loads(done.stdout)["map_sha256"] == MAP_SHA256


def test_a_fifo_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for words in (("show",), ("audit", "--as", "0.6.13")):
        done = plans(words[0], tmp_path / "fifo", *words[1:])
        assert (done.returncode, b"a FIFO" in done.stderr, done.stdout) == (64, True, b"")


def test_documents_of_a_gpu_are_read_without_the_engines_packages(gb10: Path) -> None:
    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('numpy', 'hydra', 'omegaconf', 'rich', 'psutil', 'uvicorn'):\n"
        "            raise ImportError('refused: ' + name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from harness.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    for words in (("show", gb10), ("audit", gb10, "--as", "0.6.13"), ("diff", gb10, gb10)):
        done = plans(*words, code=code)
        assert (done.returncode, done.stderr) == (0, b"")


def test_two_processes_that_write_one_new_path_leave_one_document_and_one_refusal(gb10: Path) -> None:
    out = gb10.with_name("out.json")
    command = [sys.executable, "-m", "harness", "plans", "export", gb10, "--to", "0.6.13", "--out", out]
    started = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(4)]
    ended = [(process.communicate(timeout=60)[1], process.returncode) for process in started]
    assert sorted(code for _, code in ended) == [0, 64, 64, 64]
    assert all(error.startswith(b"exists: ") for error, code in ended if code)
    assert out.read_bytes() == oracle.document_bytes()[:-1]
    assert sorted(path.name for path in gb10.parent.iterdir()) == ["gb10.json", "out.json"]

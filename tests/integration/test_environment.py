"""Real environments out of a wheel written here, so that no index is asked."""

from __future__ import annotations

import os
import socket
import subprocess
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.engines.environment import Environment
from harness.errors import UsageError

PIN = "gatepebble==1.5"
MEND = "make it again"


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder holding one wheel, and the only place where pip may look."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    info = "gatepebble-1.5.dist-info"
    with zipfile.ZipFile(folder / "gatepebble-1.5-py3-none-any.whl", "w") as wheel:
        wheel.writestr("gatepebble.py", "WEIGHT = 3\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: gatepebble\nVersion: 1.5\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: here\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", f"gatepebble.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def environment(parent: Path, pin: str = PIN, module: str = "gatepebble") -> Environment:
    return Environment(parent, "env", (pin,), (module,), MEND)


def test_an_environment_is_made_once_and_records_what_is_inside(wheels: Path, tmp_path: Path) -> None:
    subject = environment(tmp_path / "cache")
    made = subject.install()
    assert (made.packages, made.version("gatepebble"), made.version("pip")) == ((PIN,), "1.5", None)
    asked = [
        str(subject.python),
        "-I",
        "-c",
        "import gatepebble, platform; print(gatepebble.WEIGHT, platform.python_version())",
    ]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split() == ["3", made.python]
    (wheels / "gatepebble-1.5-py3-none-any.whl").unlink()  # a second installation could not succeed now
    assert subject.install() == made
    assert list((tmp_path / "cache").iterdir()) == [subject.root]


def test_an_environment_whose_interpreter_is_gone_is_made_anew(wheels: Path, tmp_path: Path) -> None:
    subject = environment(tmp_path / "cache")
    made = subject.install()
    subject.python.unlink()
    assert subject.installed() is None
    assert subject.install() == made
    assert list((tmp_path / "cache").iterdir()) == [subject.root]


def test_two_installations_at_once_end_in_one_environment(wheels: Path, tmp_path: Path) -> None:
    subject = environment(tmp_path / "cache")
    with ThreadPoolExecutor(2) as pool:
        first, second = (each.result() for each in [pool.submit(subject.install), pool.submit(subject.install)])
    assert first == second == subject.installed()
    assert list((tmp_path / "cache").iterdir()) == [subject.root]


@pytest.mark.parametrize(
    ("pin", "module", "words"),
    [
        ("gatepebble==9.9", "gatepebble", ("cannot install gatepebble==9.9", "needs a wheel", MEND)),
        (PIN, "gateboulder", ("cannot import gatepebble==1.5", "gateboulder", MEND)),
    ],
)
def test_a_pin_that_cannot_be_had_or_imported_leaves_nothing(
    wheels: Path, tmp_path: Path, pin: str, module: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as caught:
        environment(tmp_path / "cache", pin, module).install()
    assert caught.value.code == "environment-failed"
    assert all(word in caught.value.message for word in words), caught.value.message
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_index_that_does_not_answer_is_said_so_with_the_mend(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:  # bound and never listening: a connection is refused
        closed.bind(("127.0.0.1", 0))
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.delenv("PIP_FIND_LINKS")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{closed.getsockname()[1]}/simple")
        monkeypatch.setenv("PIP_RETRIES", "1")
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(UsageError, match="PIP_INDEX_URL") as caught:
            environment(tmp_path / "cache").install()
    assert caught.value.code == "index-unreachable"
    assert MEND in caught.value.message
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_the_index_does_not_hold_is_said_with_the_adapters_own_mend(wheels: Path, tmp_path: Path) -> None:
    absent = "take the wheel from elsewhere"
    subject = Environment(tmp_path / "cache", "env", ("gatepebble==9.9+cpu",), ("gatepebble",), MEND, absent=absent)
    with pytest.raises(UsageError, match=f"{absent}, then run again: {MEND}") as caught:
        subject.install()
    assert caught.value.code == "environment-failed"
    assert list((tmp_path / "cache").iterdir()) == []


def test_packages_are_taken_out_and_another_name_is_shown(wheels: Path, tmp_path: Path) -> None:
    aliases = {"pebble": "1.5+cpu"}
    subject = Environment(tmp_path / "cache", "env", (PIN,), ("json",), MEND, without=("gatepebble",), aliases=aliases)
    subject.install()
    program = (
        "import importlib.metadata as m, importlib.util as u; print(m.version('pebble'), u.find_spec('gatepebble'))"
    )
    said = subprocess.run([str(subject.python), "-I", "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["1.5+cpu", "None"]
    assert subject.root != environment(tmp_path / "cache").root  # what is inside differs

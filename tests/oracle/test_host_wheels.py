"""The pinned wheels really exist for the hosts that are promised, and make an environment without an index."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness import bootstrap
from harness.bootstrap import HostPython


@pytest.mark.parametrize(
    "host",
    [
        HostPython("3.12.3", "aarch64", "2.39"),  # GB10: DGX OS on Ubuntu 24.04
        HostPython("3.11.2", "x86_64", "2.36"),
        HostPython("3.13.1", "x86_64", "2.34"),
    ],
    ids=lambda host: f"{host.short}-{host.machine}",
)
def test_every_pin_has_a_wheel_for_the_host(host: HostPython, tmp_path: Path) -> None:
    pins = bootstrap.pins()
    wheels = bootstrap.download(host, pins, tmp_path)
    names = {path.name.split("-")[0].lower().replace("_", "-") for path in wheels}
    assert {pin.split("==")[0].lower() for pin in pins} | {"pip"} <= names
    compiled = [path.name for path in wheels if not path.name.endswith("-any.whl")]
    assert compiled
    assert all(name.endswith(f"{host.machine}.whl") for name in compiled), compiled
    assert bootstrap.download(host, pins, tmp_path) == wheels  # kept, not asked for again


def test_the_wheels_alone_make_an_environment_that_runs_the_command_line(tmp_path: Path) -> None:
    import platform

    from harness import _onhost

    version, machine, glibc = platform.python_version(), platform.machine(), platform.libc_ver()[1]
    wheels = bootstrap.download(HostPython(version, machine, glibc), bootstrap.pins(), tmp_path / "wheels")
    ours = bootstrap.sources()
    (tmp_path / "sources.tar").write_bytes(ours.archive)
    sources = _onhost.unpack(tmp_path / "sources.tar", tmp_path / "sources")
    _onhost.make_environment(tmp_path / "environment", wheels, bootstrap.IMPORTS)
    _onhost.make_interpreter(tmp_path / "interpreter", sources, tmp_path / "environment")
    command = [str(tmp_path / "interpreter" / "bin" / "python"), "-P", "-m", "harness", "explain", "host.port"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={}, cwd="/")
    assert done.returncode == 0, done.stderr
    assert "host.port" in done.stdout
    where = "import harness, numpy; print(harness.__file__, numpy.__file__)"
    said = subprocess.run([command[0], "-P", "-c", where], capture_output=True, text=True, check=True, env={}, cwd="/")
    assert all(path.startswith(str(tmp_path)) for path in said.stdout.split()), said.stdout
    assert f"{sys.prefix}/lib" not in said.stdout

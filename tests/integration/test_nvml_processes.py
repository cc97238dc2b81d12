"""NVML asked in processes of their own, with a stand-in of the vendor's module before the real one on their path."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import process
from harness.errors import HarnessError
from harness.machine import Machine
from harness.telemetry import canary, probe, procfs, record
from harness.telemetry.gpu import HANGS
from harness.telemetry.nvml import METHOD

# The real module under another name gives constants, structures and errors; what would ask a driver is replaced.
STAND_IN = """
import importlib.util, os, site, sys, threading
for folder in [path for path in sys.path if path != os.path.dirname(__file__)]:
    if os.path.isfile(os.path.join(folder, "pynvml.py")):
        spec = importlib.util.spec_from_file_location("real_pynvml", os.path.join(folder, "pynvml.py"))
        real = sys.modules["real_pynvml"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(real)
        globals().update({name: value for name, value in vars(real).items() if not name.startswith("__")})
        break
LEG = os.path.join(os.path.dirname(__file__), "legs")
class Row:
    pid, usedGpuMemory = os.getppid(), 4096 << 20
def refuse(*_):
    raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
def nvmlInit():
    with open(LEG, "a") as file:
        file.write("x")
    if os.path.getsize(LEG) > int(os.environ.get("UPGRADED_AFTER", "999")):
        raise NVMLError(NVML_ERROR_LIB_RM_VERSION_MISMATCH)
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetUUID(handle): return "GPU-0"
def nvmlDeviceGetName(handle): return b"NVIDIA GB10"
def nvmlSystemGetDriverVersion(): return "580.10"
def nvmlSystemGetNVMLVersion(): return os.environ.get("LIBRARY", "13.580.10")
def nvmlDeviceGetComputeRunningProcesses(handle):
    if os.path.exists(LEG + ".hang"):
        threading.Event().wait()
    return [Row]
def nvmlDeviceGetTemperature(handle, sensor): return 49
for name in ("MigMode", "MemoryInfo", "PowerUsage", "ClockInfo", "CurrentClocksEventReasons", "FieldValues"):
    globals()["nvmlDeviceGet" + name] = refuse
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the stand-in; a file `legs.hang` in it makes the list of processes hang."""
    folder = tmp_path / "driver"
    folder.mkdir()
    (folder / "pynvml.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(Path(probe.__file__).parents[2])]))
    return folder


def test_a_gpu_is_told_with_absences_and_never_zeros(driver: Path) -> None:
    """C01."""
    answer = probe.ask()
    assert answer.identity is not None and answer.identity["devices"] == [["GPU-0", "NVIDIA GB10"]]
    assert (answer.identity["method"], answer.identity["binding"]) == (METHOD, "nvidia-ml-py")
    assert answer.processes == ((os.getpid(), 4096 << 20),)
    board = answer.boards[0]
    assert (board.temperature_c, board.power_mw, board.reasons) == (49, None, None)
    assert set(board.counters_ns.values()) == {None} and board.absent["power_mw"] == "Not Supported"


def test_nvml_that_hangs_is_bounded_and_its_process_is_gone(driver: Path) -> None:
    (driver / "legs.hang").touch()
    earlier = children()  # of other tests in this process
    with pytest.raises(HarnessError) as caught:
        probe.ask(timeout_s=2.0)
    assert caught.value.code == "nvml-hangs"
    assert children() <= earlier


def children() -> set[int]:
    return {pid for pid, stat in procfs.scan().items() if stat.ppid == os.getpid() and stat.alive}


def test_a_driver_upgraded_in_the_middle_stops_the_series_before_its_next_leg(
    driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C10: good for six legs, a mismatch in front of the seventh."""
    monkeypatch.setenv("UPGRADED_AFTER", "6")
    looks = [probe.ask().look() for _ in range(6)]
    assert {str(look.identity) for look in looks} == {str(looks[0].identity)} and looks[0].identity is not None
    with pytest.raises(HarnessError) as caught:
        record.before(Machine())
    assert caught.value.code == "nvml-version-mismatch" and "reboot" in caught.value.message


def test_a_library_of_another_release_than_its_kernel_module_is_refused_before_a_run(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C10: the module 580.10 may still answer under the library 580.20; the next program may not start any more."""
    monkeypatch.setenv("LIBRARY", "13.580.20")
    with pytest.raises(HarnessError) as caught:
        probe.ask()
    assert caught.value.code == "nvml-version-mismatch" and "580.20" in caught.value.message


def test_what_a_leg_records_after_itself_says_what_throttled(driver: Path, tmp_path: Path) -> None:
    before = tmp_path / "host-before.json"
    before.write_text(json.dumps(record.before(Machine())))
    after = record.after(before, Machine())
    assert after["throttled_ns"]["GPU-0"]["sw_thermal"] is None
    canaries = after["canary"]
    assert {"cpu_copy", "cpu_gemv"} <= canaries["best_ns"].keys()
    assert ("gpu_gemv" in canaries["best_ns"]) is not ("gpu_gemv" in canaries["absent"])


FORKED = """
import json, multiprocessing, os, sys
from harness.errors import HarnessError
from harness.machine import Machine
from harness.telemetry.nvml import Nvml
opened = Nvml()
def ask(queue, reopen):
    try:
        queue.put((Nvml() if reopen else opened).read().to_json()["device_used_mib"] is None)
    except HarnessError as error:
        queue.put(error.code)
found = []
for method, reopen in (("fork", False), ("spawn", True)):
    if __name__ == "__main__":
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        child = context.Process(target=ask, args=(queue, reopen))
        child.start()
        found.append(queue.get())
        child.join()
if __name__ == "__main__":
    print(json.dumps(found))
"""


def test_a_forked_copy_is_an_error_and_a_fresh_process_has_the_answer(driver: Path, tmp_path: Path) -> None:
    """C11."""
    program = tmp_path / "forked.py"
    program.write_text(FORKED)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False, timeout=60)
    assert json.loads(done.stdout) == ["nvml-forked", True], done.stderr


@pytest.fixture
def engine() -> Iterator[subprocess.Popen[bytes]]:
    running = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
    yield running
    running.kill()
    running.wait()


def until(look: Callable[[], bool], alive: subprocess.Popen[bytes]) -> None:
    """Look in short steps until it is so; a sampler that ends meanwhile fails the test."""
    identity = procfs.identify(alive.pid)
    assert identity is not None
    while not look():
        assert alive.poll() is None
        process.wait_gone([identity], 0.02)


def test_the_sampler_goes_on_with_the_other_axes_when_nvml_hangs(
    driver: Path, engine: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    identity = procfs.identify(engine.pid)
    assert identity is not None
    rows = tmp_path / "memory.jsonl"
    argv = ["--pid", engine.pid, "--start", identity.start_ticks, "--out", rows, "--period", 0.02]
    argv += ["--summary", tmp_path / "sampler.json"]
    sampler = subprocess.Popen([sys.executable, "-m", "harness.telemetry.sampler", *map(str, argv)])
    try:
        until(lambda: rows.exists() and b"\n" in rows.read_bytes(), sampler)
        (driver / "legs.hang").touch()
        until(lambda: rows.read_bytes().count(HANGS.encode()) >= 3, sampler)
        engine.send_signal(signal.SIGKILL)
        engine.wait()
        assert sampler.wait(60) == 0
    finally:
        sampler.kill()
        sampler.wait()
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    stuck = [row for row in found if row["gpu_reason"] == HANGS and row["alive"]]
    assert stuck and all(row["gpu_mib"] is None and row["rss_kib"] and row["mem_available_kib"] for row in stuck)
    summary = json.loads((tmp_path / "sampler.json").read_text())
    assert (summary["ended"], summary["gpu_method"]) == ("tree-gone", METHOD)


def test_the_canary_sings_on_the_cpu_and_says_why_not_on_the_gpu() -> None:
    sung = canary.sing(gpu=False)
    assert sung.best_ns.keys() == {"cpu_copy", "cpu_gemv"} and min(sung.best_ns.values()) > 0
    assert sung.absent == {"gpu_copy": "no NVML device", "gpu_gemv": "no NVML device"}


def test_a_canary_that_cannot_be_started_is_absent_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numpy.py").write_text("raise RuntimeError('broken wheel')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(probe.__file__).parents[2])]))
    sung = canary.sing(gpu=False)
    assert not sung.best_ns and "broken wheel" in sung.absent["cpu_gemv"]

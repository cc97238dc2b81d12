"""The cells: one fault at one moment each, and the reason code that the sealed bundle must carry."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import keeper, lease, process, watchdog
from harness.errors import EXIT_USAGE
from tests.faults.place import Missed, Place, until

__all__ = ["CELLS", "Cell"]

Ended = tuple[int, str]
LOADING, LOAD, STOPPING = "while loading", "under load", "while stopping"
PHASES = (LOADING, LOAD, STOPPING)
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP, "SIGTERM": signal.SIGTERM}
HUNG = {"not-ready", "engine-stalled", "client-stalled", "leg-deadline"}  # these must leave an autopsy

BLAME = {("boot-id",): ("supervisor-died",), ("supervisor-died",): ("boot-id",)}  # the other one would be wrong


@dataclass(frozen=True)
class Cell:
    """`codes`: one of them must be among the reasons; empty: the run must end valid all the same. `never`: reasons that
    would blame something else."""

    name: str
    act: Callable[[Place], Ended]
    codes: frozenset[str]
    leaves_autopsy: bool = False
    never: frozenset[str] = frozenset()


def cell(name: str, act: Callable[[Place], Ended], *codes: str) -> Cell:
    never = frozenset(BLAME.get(codes, ()))
    return Cell(name, act, frozenset(codes), bool(HUNG & set(codes)), never)


def arrive(place: Place, phase: str) -> None:
    if phase == LOAD:
        place.under_load()
    else:
        place.reached(phase.removeprefix("while "))


def strike(number: str, role: str, phase: str, *overrides: str, detached: bool = False) -> Callable[[Place], Ended]:
    """The signal to the role's process in that phase. `detached`: the controller is killed before, another attaches."""

    def act(place: Place) -> Ended:
        if phase != LOAD:
            place.hold(phase.removeprefix("while "))
        controller = place.start(*overrides)
        arrive(place, phase)
        if detached:
            controller.kill()
            controller.wait()
        victim = place.target(role)
        if not process.send(victim, SIGNALS[number]):
            raise Missed(f"{role} was gone before {number}")
        if number == "SIGSTOP" and role in ("front", "keeper", "supervisor"):
            until(lambda: watchdog.stopped(victim), f"the stop of the {role}")
        place.go()
        if role == "controller":
            return _controller(place, number, overrides)
        ended = place.end(place.start(*overrides) if detached else controller)
        if role == "keeper":
            _honestly_held(place)
        return ended

    return act


def _controller(place: Place, number: str, overrides: Sequence[str]) -> Ended:
    first = place.controllers[-1]
    if number == "SIGKILL":
        first.wait()
        code, said = place.end(place.start(*overrides))
        if "attaching to the unfinished run" not in said:
            raise Missed(f"the same command did not attach: {said[-300:]}")
        return code, said
    process.wait_gone([place.target("keeper")], 60.0)
    first.send_signal(signal.SIGCONT)
    return place.end(first)


def _honestly_held(place: Place) -> None:
    """A worker that outlived a killed keeper has the lease, is named as its holder, and is not touched by anybody."""
    for worker in place.workers():
        seen = lease.describe(place.lease)
        if not seen.held or worker not in [one.process for one in seen.survivors]:
            raise Missed(f"worker {worker.pid} lives, but the lease says: {seen.sentence}")
        code, said = place.end(place.start())
        if code != EXIT_USAGE or f"pid {worker.pid}" not in said:
            raise Missed(f"a run beside a survivor gave {code}: {said[-300:]}")
        process.send(worker, signal.SIGKILL)
        process.wait_gone([worker], 10.0)


def gate(number: str) -> Callable[[Place], Ended]:
    def act(place: Place) -> Ended:
        controller = place.start("gate.model_gate=true", "client.leg_deadline_s=6")
        process.send(place.target("gate"), SIGNALS[number])
        return place.end(controller)

    return act


def deadline(place: Place) -> Ended:
    place.hold("loading")
    controller = place.start("client.leg_deadline_s=4")
    place.reached("loading")
    return place.end(controller)


def _asked(place: Place, word: str) -> bool:
    """Whether the request is there. The first one leaves the leg running, so it cannot be missed."""
    stop = next(iter((place.root / "state").glob("g4-*/stop")), None)
    return stop is not None and stop.read_text() == word


def interrupt(times: int) -> Callable[[Place], Ended]:
    def act(place: Place) -> Ended:
        controller = place.start()
        place.under_load()
        for word in ("after-leg", "now")[:times]:
            controller.send_signal(signal.SIGINT)
            until(functools.partial(_asked, place, word), f"the request {word}")
        return place.end(controller)

    return act


def request(word: str) -> Callable[[Place], Ended]:
    def act(place: Place) -> Ended:
        controller = place.start()
        place.under_load()
        (place.state() / "stop").write_text(word)
        return place.end(controller)

    return act


def twice(place: Place) -> Ended:
    controller = place.start()
    place.under_load()
    holder = place.target("keeper")
    process.send(holder, signal.SIGTERM)
    until(lambda: '"stop_asked":true' in (place.state() / "keeper.state.json").read_text(), "the first TERM")
    process.send(holder, signal.SIGTERM)
    return place.end(controller)


@contextlib.contextmanager
def small_disk(where: Path, size: str) -> Iterator[None]:
    where.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(where)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


def full_state(phase: str) -> Callable[[Place], Ended]:
    def act(place: Place) -> Ended:
        state = place.root / "state"
        with small_disk(state, "24m"):
            if phase != LOAD:
                place.hold(phase.removeprefix("while "))
            controller = place.start()
            arrive(place, phase)
            with contextlib.suppress(OSError), (state / "filler").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            place.go()
            return place.end(controller)

    return act


def full_evidence(place: Place) -> Ended:
    kept = place.root / "full"
    with small_disk(kept, "16k"):
        code, said = place.end(place.start(f"evidence.root={kept}"))
        if code != EXIT_USAGE or "evidence-unwritable" not in said:
            raise Missed(f"a full evidence folder gave {code}: {said[-300:]}")
    return place.end(place.start())


def lose_lease(how: str) -> Callable[[Place], Ended]:
    def act(place: Place) -> Ended:
        controller = place.start()
        place.under_load()
        place.lease.unlink()
        stranger = None
        if how == "taken":
            stranger = os.open(place.lease, os.O_RDONLY | os.O_CREAT, 0o666)
            fcntl.flock(stranger, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if how == "folder":
            place.lease.mkdir()
        ended = place.end(controller)
        if stranger is not None:
            os.close(stranger)
        if how == "folder":
            place.lease.rmdir()
        return ended

    return act


def lose_port(family: socket.AddressFamily, address: str) -> Callable[[Place], Ended]:
    def act(place: Place) -> Ended:
        place.hold("stopping")
        controller = place.start()
        place.reached("stopping")
        with socket.socket(family) as stranger:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

            def bound() -> bool:
                with contextlib.suppress(OSError):
                    stranger.bind((address, place.port))
                    return True
                return False

            until(bound, "the engine to leave its port")
            stranger.listen()
            place.go()
            return place.end(controller)

    return act


def told_wrongly(kind: str, *overrides: str) -> Callable[[Place], Ended]:
    def act(place: Place) -> Ended:
        if kind.startswith("nvml-"):
            place.trip()
            return place.end(place.start(*overrides, inject=kind))
        controller = place.start(*overrides, inject=kind)
        place.under_load()
        place.trip()
        return place.end(controller)

    return act


def restarted(number: str) -> Callable[[Place], Ended]:
    """The host is started anew: all of the run is gone at once, and what its keeper wrote is of another boot."""

    def act(place: Place) -> Ended:
        controller = place.start()
        place.under_load()
        process.send(place.target("controller"), SIGNALS[number])
        if number == "SIGKILL":
            controller.wait()
        path = place.state() / keeper.STATE
        gone = [one for one in (*place.mine(), *place.workers()) if one.pid != controller.pid]
        for one in gone:
            process.send(one, signal.SIGKILL)
        process.wait_gone(gone, 30.0)
        state = json.loads(path.read_text())
        path.write_text(json.dumps({**state, "boot_id": "00000000-0000-4000-8000-000000000000"}))
        controller.send_signal(signal.SIGCONT)
        return place.end(place.start() if number == "SIGKILL" else controller)

    return act


EXPECTED: dict[tuple[str, str], tuple[tuple[str, ...], ...]] = {
    ("SIGKILL", "controller"): ((), (), ()),
    ("SIGSTOP", "controller"): ((), (), ()),
    ("SIGKILL", "supervisor"): (("supervisor-died",),) * 3,
    ("SIGSTOP", "supervisor"): (("supervisor-died",),) * 3,
    ("SIGKILL", "keeper"): (("supervisor-died",),) * 3,
    ("SIGSTOP", "keeper"): ((), (), ()),
    ("SIGKILL", "front"): (("engine-died",), ("engine-died",), ("clean-exit",)),
    ("SIGSTOP", "front"): (("not-ready",), ("engine-stalled",), ("clean-exit",)),
    ("SIGKILL", "worker"): (("engine-died",), ("engine-died",), ("clean-exit",)),
    ("SIGSTOP", "worker"): ((), (), ()),
    ("SIGKILL", "sampler"): (("sampler-died",),) * 3,
    ("SIGSTOP", "sampler"): (("sampler-hangs",),) * 3,
}
NVML = {
    "nvml-failing": ("nvml-failed",),
    "nvml-hanging": ("nvml-hangs",),
    "nvml-dying": ("nvml-hangs", "nvml-failed"),
    "nvml-blind": ("gpu-unreadable",),
    "nvml-gone": ("gpu-unreadable",),
    "nvml-lying": ("gpu-busy",),
}


def _cells() -> Iterator[Cell]:
    for (number, role), codes in EXPECTED.items():
        for phase, code in zip(PHASES, codes, strict=True):
            quick = ("host.ready_timeout_s=5",) if "not-ready" in code else ()
            yield cell(f"{number} {role} {phase}", strike(number, role, phase, *quick), *code)
    yield cell("SIGKILL client under load", strike("SIGKILL", "client", LOAD), "client-failed")
    yield cell("SIGSTOP client under load", strike("SIGSTOP", "client", LOAD), "client-stalled")
    yield cell("SIGKILL model gate", gate("SIGKILL"), "clean-exit")
    yield cell("SIGSTOP model gate", gate("SIGSTOP"), "leg-deadline")
    for role, codes in (
        ("supervisor", ("interrupted",)),
        ("keeper", ("interrupted",)),
        ("front", ("engine-died", "failed-requests")),  # it finishes its streams, so its end may come after the load's
        ("client", ("client-failed",)),
        ("sampler", ("memory-samples",)),
    ):
        yield cell(f"SIGTERM {role} under load", strike("SIGTERM", role, LOAD), *codes)
    for role, code in (
        ("supervisor", "supervisor-died"),
        ("keeper", "supervisor-died"),
        ("front", "engine-died"),
        ("worker", "engine-died"),
        ("sampler", "sampler-died"),
        ("client", "client-failed"),
    ):
        act = strike("SIGKILL", role, LOAD, detached=True)
        yield cell(f"SIGKILL {role}, controller dead, attach", act, code)
    yield from _others()


def _others() -> Iterator[Cell]:
    yield cell("deadline of the leg while loading", deadline, "leg-deadline")
    yield cell("Ctrl-C once", interrupt(1), "interrupted")
    yield cell("Ctrl-C twice", interrupt(2), "interrupted")
    yield cell("stop request after-leg", request("after-leg"), "interrupted")
    yield cell("stop request now", request("now"), "interrupted")
    yield cell("SIGTERM keeper twice", twice, "supervisor-died", "interrupted")
    for phase in PHASES:
        yield cell(f"disk full: state {phase}", full_state(phase), "disk-full")
    yield cell("disk full: evidence", full_evidence)
    yield cell("lease removed between legs", lose_lease("removed"), "lease-lost")
    yield cell("lease taken between legs", lose_lease("taken"), "lease-lost")
    yield cell("lease replaced by a folder", lose_lease("folder"), "lease-lost")
    yield cell("port taken between legs", lose_port(socket.AF_INET, "127.0.0.1"), "port-in-use")
    yield cell("port taken on IPv6 between legs", lose_port(socket.AF_INET6, "::1"), "port-in-use")
    for kind, codes in NVML.items():
        quick = ("host.memory_return_timeout_s=2",)
        yield cell(kind.replace("-", " ").replace("nvml", "NVML"), told_wrongly(kind, *quick), *codes)
    yield cell("reboot between legs", told_wrongly("reboot"), "boot-id")
    yield cell("reboot, controller dead, attach", restarted("SIGKILL"), "boot-id")
    yield cell("reboot while the controller sleeps", restarted("SIGSTOP"), "boot-id")
    yield cell("clock stepped forward a day", told_wrongly("clock-forward"))
    yield cell("clock stepped back a day", told_wrongly("clock-back"))


CELLS = tuple(_cells())

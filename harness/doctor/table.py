"""From the facts of a host to the rows of `harness doctor`: what, seen, verdict, what to do. Pure; standard library."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.telemetry.nvml import UPGRADED, same_release

__all__ = ["Limits", "Row", "bare_rows", "rows"]

OK, WARN, BAD = "ok", "warn", "bad"
PYTHON = ((3, 11), (3, 14))
MIB = 1 << 20
STEADY = ("tsc", "arch_sys_counter", "kvm-clock")  # clock sources that are read without a system call
HOT = ("sw_thermal", "hw_thermal", "hw_power_brake")


@dataclass(frozen=True)
class Row:
    """One line of the table. `verdict`: ok; warn, which a run may live with; bad, which voids or prevents it."""

    what: str
    seen: str
    verdict: str
    do: str = ""


UNSEEN = Row(
    "NVML, port, page cache",
    "not looked at",
    WARN,
    "they need this project there: run `host prepare`, then doctor again",
)


@dataclass(frozen=True)
class Limits:
    """What the configuration asks of the host, and whether its engine computes on a GPU."""

    min_mem_available_mib: int
    min_disk_free_mib: int
    max_load_average: float | None
    gpu: bool


def rows(facts: Mapping[str, Any], limits: Limits) -> list[Row]:
    """The table. `facts` is the document of `harness.doctor.facts`, from this machine or from another."""
    parts: Sequence[Callable[[Mapping[str, Any], Limits], Iterator[Row]]] = (
        _python,
        _packages,
        _tools,
        _driver,
        _devices,
        _queries,
        _throttle,
        _gpu_users,
        _lease_and_port,
        _room,
        _load,
        _cgroup,
        _weights,
        _clock,
    )
    return [row for part in parts for row in part(facts, limits)]


def bare_rows(facts: Mapping[str, Any], limits: Limits) -> list[Row]:
    """The rows of a host that was not prepared. `facts` is the answer of `harness._onhost.facts`."""
    parts = (_python, _tools, _bare_driver, _bare_lease, _room, _load, _clock)
    return [*(row for part in parts for row in part(facts, limits)), UNSEEN]


def _bare_driver(facts: Mapping[str, Any], limits: Limits) -> Iterator[Row]:
    module, gpus = facts["kernel_module"], facts["gpus"]
    need = "" if module else "GPU memory is not applicable without a driver, so a run does not bind"
    yield Row("driver", module or "no kernel module", OK if module else BAD if limits.gpu else WARN, need)
    for name, uuid in gpus:
        yield Row("GPU", f"{name} {uuid}", OK)


def _bare_lease(facts: Mapping[str, Any], _limits: Limits) -> Iterator[Row]:
    path, locked, said = (facts["lease"][name] for name in ("path", "locked", "record"))
    last = f"; its record: {said}" if said else ""
    seen = f"lease {path} is {'unknown: no lock table' if locked is None else 'locked' if locked else 'free'}{last}"
    yield Row("lease", seen, WARN if locked is not False else OK, "a run waits for it" if locked else "")


def _python(facts: Mapping[str, Any], _limits: Limits) -> Iterator[Row]:
    python = facts["python"]
    version = tuple(int(part) for part in python["version"].split(".")[:2])
    good = PYTHON[0] <= version < PYTHON[1]
    mend = "" if good else "use Python 3.11, 3.12 or 3.13"
    yield Row("Python", f"{python['version']} at {python['executable']}", OK if good else BAD, mend)


def _packages(facts: Mapping[str, Any], _limits: Limits) -> Iterator[Row]:
    python = facts["python"]
    missing = sorted(name for name, found in python["packages"].items() if found is None)
    seen = ", ".join(f"{name} {found}" for name, found in sorted(python["packages"].items()) if found) or "none"
    mend = f"install this project there again; it needs {', '.join(missing)}" if missing else ""
    yield Row("packages", seen, BAD if missing else OK, mend)


def _tools(facts: Mapping[str, Any], limits: Limits) -> Iterator[Row]:
    for name, path in facts["tools"].items():
        verdict = OK if path or not limits.gpu else WARN
        need = (
            "only the GPU gates need it" if not limits.gpu else "add it to the search path or install the CUDA toolkit"
        )
        yield Row(name, path or "not found", verdict, "" if path else need)


def _identity(facts: Mapping[str, Any]) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = facts["gpu"]["nvml"].get("identity")
    return found


def _driver(facts: Mapping[str, Any], limits: Limits) -> Iterator[Row]:
    gpu, identity = facts["gpu"], _identity(facts)
    binding = gpu["binding"]
    verdict = BAD if binding["owner"] is None else OK
    yield Row("module pynvml", binding["owner"] or "in conflict", verdict, binding.get("reason") or "")
    if identity is None:
        code, message = gpu["nvml"]["code"], gpu["nvml"]["message"]
        broken = code != "no-nvml"
        mend = "mend the driver first" if broken else "GPU memory is not applicable here, so a run does not bind"
        verdict = BAD if broken or limits.gpu else WARN
        yield Row("driver", f"{code}: {message}", verdict, mend)
        return
    library, module = identity["library_version"], gpu["kernel_module"] or identity["driver_version"]
    seen = f"kernel module {module or 'unknown'}, library {library or 'unknown'}"
    if not module or not library:
        yield Row("driver and library", seen, WARN, "compare them by hand: one of them does not tell its version")
        return
    same = same_release(module, library)
    mend = "" if same else UPGRADED
    yield Row("driver and library", seen, OK if same else BAD, mend)


def _devices(facts: Mapping[str, Any], _limits: Limits) -> Iterator[Row]:
    for uuid, name in (_identity(facts) or {}).get("devices", ()):
        yield Row("GPU", f"{name} {uuid}", OK)
    for warning in facts["gpu"]["nvml"].get("warnings", ()):
        yield Row("GPU", warning, WARN, "harmless: the name is shown with replacement characters")


def _queries(facts: Mapping[str, Any], _limits: Limits) -> Iterator[Row]:
    """What NVML answers on this machine: on GB10 not the device's memory, but each process's."""
    nvml = facts["gpu"]["nvml"]
    if _identity(facts) is None:
        return
    readable = nvml["processes"] is not None
    mend = "" if readable else "GPU memory cannot be measured: run as a user who may see compute processes"
    seen = "answered" if readable else str(nvml["reason"])
    yield Row("NVML memory by process", seen, OK if readable else BAD, mend)
    total = nvml["device_total_mib"]
    seen, do = (f"{total} MiB", "") if total else ("not supported", "nothing: the sum over processes is used")
    yield Row("NVML memory of the device", seen, OK, do)
    for board in nvml["boards"]:
        for name, reason in sorted(board["absent"].items()):
            yield Row(f"NVML {name}", f"{board['uuid']}: {reason}", OK, "nothing: recorded as absent")


def _throttle(facts: Mapping[str, Any], _limits: Limits) -> Iterator[Row]:
    for board in facts["gpu"]["nvml"].get("boards", ()):
        counters = {name: board["counters_ns"].get(name) for name in HOT}
        times = ", ".join(
            f"{name} {int(value) / 1e9:.1f} s" if value is not None else f"{name} unknown"
            for name, value in counters.items()
        )
        active = [name for name in HOT if name in (board["reasons"] or ())]
        heat = "unknown" if board["temperature_c"] is None else f"{board['temperature_c']} °C"
        blind = board["reasons"] is None and all(value is None for value in counters.values())
        verdict = BAD if active or blind else OK
        mend = (
            "let it cool and look at its power supply"
            if active
            else "a throttled leg could not be told"
            if blind
            else ""
        )
        now = f"; now {', '.join(active)}" if active else ""
        yield Row("throttling since boot", f"{board['uuid']}: {times}; {heat}{now}", verdict, mend)


def _gpu_users(facts: Mapping[str, Any], _limits: Limits) -> Iterator[Row]:
    if _identity(facts) is None:
        return
    for pid, used, command in facts["gpu"]["nvml"]["processes"] or ():
        size = "unknown" if used is None else f"{used // MIB} MiB"
        who = command or "not visible here: in another container"
        yield Row("uses the GPU", f"pid {pid}, {size}: {who}", BAD, "end it, or wait: legs begin on an idle GPU only")


def _lease_and_port(facts: Mapping[str, Any], _limits: Limits) -> Iterator[Row]:
    lease = facts["lease"]
    if lease["held"] is None:
        yield Row("lease", lease["sentence"], BAD, "choose a usable file with host.lease_path")
    elif lease["held"]:
        left = f"; end {', '.join(lease['survivors'])}" if lease["survivors"] else ""
        yield Row("lease", lease["sentence"], WARN, f"a run waits for it up to host.lease_timeout_s{left}")
    else:
        yield Row("lease", lease["sentence"], OK)
    port = facts["port"]
    who = port["owner"]
    mend = "stop it or set another host.port" if who else ""
    yield Row(f"port {port['port']}", f"{who} listens" if who else "free", BAD if who else OK, mend)


def _room(facts: Mapping[str, Any], limits: Limits) -> Iterator[Row]:
    host = facts["host"]
    free = host["disk_free_bytes"]["state"] // MIB
    low = free < limits.min_disk_free_mib
    mend = f"free {limits.min_disk_free_mib - free} MiB or move host.state_dir" if low else ""
    yield Row("free disk", f"{free} MiB for {facts['state_dir']}", BAD if low else OK, mend)
    available = host["mem_available_kib"]
    if available is None:
        yield Row("MemAvailable", "unknown", BAD, f"no memory axis can be measured: {host['mem_reason']}")
        return
    low = available // 1024 < limits.min_mem_available_mib
    mend = f"end something: host.min_mem_available_mib is {limits.min_mem_available_mib}" if low else ""
    yield Row(
        "MemAvailable", f"{available // 1024} MiB of {(host['mem_total_kib'] or 0) // 1024}", BAD if low else OK, mend
    )


def _load(facts: Mapping[str, Any], limits: Limits) -> Iterator[Row]:
    host = facts["host"]
    load, cores = host["loadavg"], host["usable_cores"] or host["cores"]
    if load is None:
        yield Row("load", "unknown", WARN, "whether the host is quiet cannot be told")
        return
    seen, bound = f"{load[0]:.2f} over one minute, {cores} cores", limits.max_load_average
    if bound is not None and load[0] > bound:
        yield Row("load", seen, BAD, f"wait: host.max_load_average is {bound:g}")
    elif cores and load[0] > cores / 2:
        yield Row("load", seen, WARN, "others use this host: timings will be noisy")
    else:
        yield Row("load", seen, OK)


def _cgroup(facts: Mapping[str, Any], _limits: Limits) -> Iterator[Row]:
    found, total = facts["cgroup"], facts["host"]["mem_total_kib"]
    memory, cores = found["memory_max_bytes"], found["cpu_max_cores"]
    tight = memory is not None and (total is None or memory < total * 1024)
    limits = ([f"{memory // MIB} MiB"] if tight else []) + ([f"{cores:g} cores"] if cores is not None else [])
    seen = f"at most {', '.join(limits)}" if limits else found["reason"] or "no limit"
    mend = "MemAvailable does not know this limit: an engine may be killed below it" if tight else ""
    mend = mend or ("a core quota pauses the engine: lift it for measurements" if cores is not None else "")
    yield Row("cgroup", seen, WARN if limits else OK, mend)


def _weights(facts: Mapping[str, Any], _limits: Limits) -> Iterator[Row]:
    for one in facts["weights"]:
        seen = f"{one['path']}: {one['files']} files"
        if one["told"] is None:
            yield Row("page cache", f"{one['path']}: {one['reason']}", OK, "nothing: it is made before the first run")
        elif one["reason"]:
            yield Row("page cache", f"{one['path']}: {one['reason']}", BAD, "give the weights to the user of the run")
        elif not one["told"]:
            yield Row("page cache", f"{seen}, residency not told", BAD, "run as their owner or make them writable")
        elif one["mapped_by"]:
            pids = ", ".join(map(str, one["mapped_by"]))
            yield Row("page cache", f"{seen}, mapped by pid {pids}", BAD, "end these processes: a drop would fail")
        else:
            yield Row("page cache", f"{seen}, can be dropped and proven so", OK)


def _clock(facts: Mapping[str, Any], _limits: Limits) -> Iterator[Row]:
    source = facts["clocksource"]
    good = source in STEADY
    mend = "" if good else "each stamp is a system call here: the client's own time weighs more"
    yield Row("clock source", source or "unknown", OK if good else WARN, mend)

"""What Linux says about processes and memory: pure parsers, and thin readers that return None for what is gone.

The kernel's "kB" are 1024 bytes, so every figure here is in KiB. Missing is None, never 0. Layouts: proc(5).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = [
    "Footprint",
    "MemInfo",
    "ProcessId",
    "Stat",
    "boot_id",
    "command",
    "footprint",
    "identify",
    "is_alive",
    "loadavg",
    "meminfo",
    "namespace_pids",
    "parse_loadavg",
    "parse_meminfo",
    "parse_namespace_pids",
    "parse_smaps_rollup",
    "parse_stat",
    "pids",
    "read_stat",
    "resident",
    "scan",
    "started_at",
]


@dataclass(frozen=True, order=True)
class ProcessId:
    """A process that cannot be mistaken for a later one: pid and start time in clock ticks since boot."""

    pid: int
    start_ticks: int

    def to_json(self) -> list[int]:
        return [self.pid, self.start_ticks]


@dataclass(frozen=True)
class Stat:
    """The fields of /proc/PID/stat that tell who a process is and to whom it belongs."""

    pid: int
    comm: str
    state: str
    ppid: int
    pgid: int
    session: int
    threads: int
    start_ticks: int

    @property
    def identity(self) -> ProcessId:
        return ProcessId(self.pid, self.start_ticks)

    @property
    def alive(self) -> bool:
        """A zombie is gone, unless only its first thread has ended: the others still hold memory and the GPU."""
        return self.state not in "ZXx" or self.threads > 1


@dataclass(frozen=True)
class MemInfo:
    """/proc/meminfo in KiB. `reason` names the fields that this kernel does not print."""

    total_kib: int | None
    free_kib: int | None
    available_kib: int | None
    cached_kib: int | None
    reason: str | None


@dataclass(frozen=True)
class Footprint:
    """Proportional and resident set in KiB, of one process or summed over `pids`."""

    pss_kib: int | None
    rss_kib: int | None
    pids: tuple[ProcessId, ...] = ()


def parse_stat(data: bytes) -> Stat:
    """A command may hold spaces, brackets and line ends: the last `)` closes it. ValueError if cut off."""
    opened, closed = data.index(b"("), data.rindex(b")")
    rest = data[closed + 1 :].split()
    if len(rest) < 20:
        raise ValueError(f"a stat line of {len(rest) + 2} fields; 22 are needed")
    numbers = [int(rest[index]) for index in (1, 2, 3, 17, 19)]
    comm = data[opened + 1 : closed].decode("utf-8", "replace")
    return Stat(int(data[:opened]), comm, rest[0].decode("ascii"), *numbers)


def _kib(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            found[name.strip()] = int(words[0])
    return found


def parse_meminfo(text: str) -> MemInfo:
    found = _kib(text)
    missing = [name for name in ("MemTotal", "MemFree", "MemAvailable", "Cached") if name not in found]
    return MemInfo(
        total_kib=found.get("MemTotal"),
        free_kib=found.get("MemFree"),
        available_kib=found.get("MemAvailable"),
        cached_kib=found.get("Cached"),
        reason=f"/proc/meminfo lacks {', '.join(missing)}" if missing else None,
    )


def parse_smaps_rollup(text: str) -> Footprint:
    found = _kib(text)
    return Footprint(found.get("Pss"), found.get("Rss"))


def parse_loadavg(text: str) -> tuple[float, float, float]:
    one, five, fifteen = (float(word) for word in text.split()[:3])
    return one, five, fifteen


def parse_namespace_pids(status: str) -> tuple[int, ...]:
    """The pids of one process from the outermost visible namespace to its own (`NSpid:` of /proc/PID/status)."""
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            return tuple(int(word) for word in line.split()[1:])
    return ()


def _read(path: str) -> bytes | None:
    """Whole file, or None when the process is gone or may not be looked at."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while part := os.read(descriptor, 65536):
            parts.append(part)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return b"".join(parts)


def _read_text(path: str) -> str | None:
    data = _read(path)
    return None if data is None else data.decode("utf-8", "replace")


def read_stat(pid: int) -> Stat | None:
    data = _read(f"/proc/{pid}/stat")
    return parse_stat(data) if data else None


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - ten times a second


def scan() -> dict[int, Stat]:
    """Every process that can be seen. Not atomic: a process may have ended or started meanwhile."""
    return {stat.pid: stat for stat in map(read_stat, pids()) if stat is not None}


def identify(pid: int) -> ProcessId | None:
    stat = read_stat(pid)
    return stat.identity if stat else None


def is_alive(process: ProcessId) -> bool:
    """False also when the pid now belongs to another process."""
    stat = read_stat(process.pid)
    return stat is not None and stat.alive and stat.start_ticks == process.start_ticks


def footprint(processes: Iterable[ProcessId]) -> Footprint:
    """Sums over those still alive. One that lives but may not be read makes both sums None: a part is not a sum."""
    pss: int | None = 0
    rss: int | None = 0
    seen = []
    for process in processes:
        text = _read_text(f"/proc/{process.pid}/smaps_rollup")
        if not text and not is_alive(process):
            continue
        one = parse_smaps_rollup(text or "")
        seen.append(process)
        pss = None if pss is None or one.pss_kib is None else pss + one.pss_kib
        rss = None if rss is None or one.rss_kib is None else rss + one.rss_kib
    return Footprint(pss, rss, tuple(seen)) if seen else Footprint(None, None)


def resident(processes: Iterable[ProcessId]) -> Footprint:
    """As `footprint` without PSS, from statm: some µs where smaps_rollup walks every page table.

    Since Linux 6.2 statm may lag by some hundred KiB a process and core, so a sum that mixes both is as exact as that.
    """
    rss: int | None = 0
    seen = []
    for process in processes:
        words = (_read(f"/proc/{process.pid}/statm") or b"").split()
        known = len(words) > 1 and int(words[0]) > 0  # a zombie has a line of zeros
        if not known and not is_alive(process):
            continue
        seen.append(process)
        rss = rss + int(words[1]) * os.sysconf("SC_PAGE_SIZE") // 1024 if known and rss is not None else None
    return Footprint(None, rss, tuple(seen)) if seen else Footprint(None, None)


def meminfo() -> MemInfo:
    return parse_meminfo(_read_text("/proc/meminfo") or "")


def loadavg() -> tuple[float, float, float] | None:
    text = _read_text("/proc/loadavg")
    return parse_loadavg(text) if text else None


def boot_id() -> str | None:
    text = _read_text("/proc/sys/kernel/random/boot_id")
    return text.strip() if text else None


def command(pid: int) -> str:
    """The command line in one line as a person would recognise it, at most 200 characters; `[name]` without one."""
    text = _read_text(f"/proc/{pid}/cmdline")
    words = " ".join((text or "").replace("\0", " ").split())
    stat = None if words else read_stat(pid)
    return words[:200] if words else f"[{stat.comm}]" if stat else "[gone]"


def namespace_pids(pid: int) -> tuple[int, ...]:
    return parse_namespace_pids(_read_text(f"/proc/{pid}/status") or "")


def started_at(process: ProcessId) -> float | None:
    """Seconds since 1970 at which it started, from the boot time of /proc/stat; whole seconds are exact enough."""
    for line in (_read_text("/proc/stat") or "").splitlines():
        if line.startswith("btime "):
            return int(line.split()[1]) + process.start_ticks / os.sysconf("SC_CLK_TCK")
    return None

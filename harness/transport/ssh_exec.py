"""One program on the far side: its streams, how it ended, and at a timeout the proof that nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from harness.errors import HarnessError, UsageError
from harness.transport.ssh_link import Link

__all__ = ["Outcome", "command_line", "run"]

Kind = Literal["exit", "signal", "timeout", "lost"]

CHUNK = 1 << 16
LINGER_S = 2.0  # silence after which a stream is given up that a daemon of the program still holds open
SETTLE_S = 2.0  # sshd reports an ended program within milliseconds
SWEEPS = 3  # how often the far side is believed to be empty while its own channel says otherwise
TICKS_PER_S = 4  # a tick is 0.2 s of sleep and about 0.05 s of reading /proc
MAX_COMMAND = 100_000  # bytes; Linux takes 128 KiB in one argument, and the whole line is one argument of the shell
RUN = "NVFP4_GATES_RUN"
PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=@,+")

# Arguments come as octal escapes, since login shells (csh, fish) disagree about quotes. `exec` to the end: the program
# takes the place of the shell, so sshd itself reports its exit or its signal, and 137 stays an exit code.
START = 'n=$#; while [ $n -gt 0 ]; do a=$(printf %bx "$1"); shift; set -- "$@" "${a%x}"; n=$((n-1)); done; exec "$@"'

# Members are all whose environment carries the token, and all in a process group led by one of them: the one finds
# daemons with sessions of their own, the other programs that cleaned their environment. BusyBox's grep ends a line at
# the first NUL, would find nobody and so prove anything; there each environment is translated first.
END = r"""
token=$1; ticks=$2; groups=
[ -r /proc/self/environ ] || { echo no-proc; exit 0; }
pgrp_of() { s=; { read -r s < "/proc/$1/stat"; } 2>/dev/null; set -- ${s##*") "}; state=$1; pgrp=$3; }
if printf 'a\000b\n' | grep -qF b; then
  carriers() { grep -lsF "$token" /proc/[0-9]*/environ; }
else
  carriers() {
    for f in /proc/[0-9]*/environ; do
      { tr '\000' '\n' <"$f"; } 2>/dev/null | grep -qF "$token" && echo "$f"
    done
  }
fi
scan() {
  marked=' '; all=; living=
  for f in $(carriers); do
    p=${f#/proc/}; p=${p%/environ}; marked="$marked$p "; pgrp_of "$p"
    [ "$pgrp" = "$p" ] && case " $groups " in *" $p "*) ;; *) groups="$groups $p" ;; esac
  done
  for d in /proc/[0-9]*; do
    p=${d#/proc/}; pgrp_of "$p"
    case $state in ''|Z|X) continue ;; esac
    case " $groups " in
      *" $pgrp "*) all="$all $p"; living="$living $pgrp" ;;
      *) case $marked in *" $p "*) all="$all $p" ;; esac ;;
    esac
  done
  groups=$living
  [ -z "$all" ]
}
sweep() {
  i=0
  while [ $i -lt "$2" ]; do
    scan && { echo gone; exit 0; }
    [ "$1" = KILL ] || [ $i -eq 0 ] && kill -s "$1" $all 2>/dev/null
    sleep 0.2 2>/dev/null || sleep 1; i=$((i+1))
  done
}
sweep TERM "$ticks"; sweep KILL 25; scan && { echo gone; exit 0; }
echo "left$all"
"""


@dataclass(frozen=True)
class Outcome:
    """How a remote program ended.

    `exit`: `code` 0 to 255. `signal`: `signal` as `SIGKILL`. `timeout`: it and all it started are proven gone.
    `lost`: the link ended first, so nothing is known. Streams are empty where they went to files; `cut` says that
    one was longer than the limit.
    """

    kind: Kind
    code: int | None
    signal: str | None
    stdout: bytes
    stderr: bytes
    cut: bool = False


@dataclass
class _Sink:
    """Where one stream goes: a file, or memory up to a limit. Always read to the end, or the program would block."""

    limit: int
    file: BinaryIO | None = None
    data: bytearray = field(default_factory=bytearray)
    seen: int = 0
    error: OSError | None = None

    def take(self, block: bytes) -> None:
        self.seen += len(block)
        if self.file is None:
            self.data += block[: max(0, self.limit - len(self.data))]
        elif self.error is None:
            try:
                view = memoryview(block)
                while view:
                    view = view[self.file.write(view) :]  # unbuffered, so a full disk is seen here and not at close
            except OSError as error:
                self.error = error

    @property
    def cut(self) -> bool:
        return self.file is None and self.seen > self.limit


@dataclass(frozen=True)
class _Bound:
    """When a program's time is up, and what finds it then."""

    name: str
    token: str
    deadline: float
    grace_s: float


def command_line(argv: Sequence[str], token: str) -> str:
    """The line for any login shell that starts `argv` under `token`. UsageError `remote-command` when impossible."""
    if not argv:
        raise UsageError("remote-command", "an empty command was to be run on the host; name a program")
    line = f"exec env {RUN}={token} /bin/sh -c {shlex.quote(START)} sh {' '.join(map(_octal, argv))}"
    if len(line) > MAX_COMMAND:
        raise UsageError("remote-command", f"{argv[0]}: {len(line)} bytes of arguments; send them on standard input")
    return line


def _octal(argument: str) -> str:
    raw = os.fsencode(argument)
    if 0 in raw:
        raise UsageError("remote-command", f"the argument {argument!r} has a NUL byte, which no program can be given")
    return "'" + "".join(chr(byte) if byte in PLAIN else f"\\0{byte:03o}" for byte in raw) + "'"


def run(
    link: Link,
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    timeout_s: float,
    stdout: Path | None = None,
    stderr: Path | None = None,
    limit: int = 1 << 20,
    grace_s: float = 3.0,
) -> Outcome:
    """Run `argv` and return when it has ended, at `timeout_s` plus at most `grace_s` and the proof, or with the link.

    HarnessError `remote-survivor` when something outlived KILL, `ssh-output` when a local file cannot be written.
    """
    bound = _Bound(argv[0] if argv else "", secrets.token_hex(16), time.monotonic() + timeout_s, grace_s)
    line = command_line(argv, bound.token)
    with _sink(stdout, limit) as out, _sink(stderr, limit) as err:
        try:
            with link.channel() as channel:
                with link.guarded(f"starting {argv[0]}"):
                    channel.exec_command(line)
                kind = _follow(link, channel, stdin, (out, err), bound)
        except HarnessError as error:
            if error.code != "ssh-lost":
                raise
            kind = "lost"
        return _outcome(kind, channel if kind != "lost" else None, out, err)


def _follow(link: Link, channel: Any, stdin: bytes, sinks: tuple[_Sink, _Sink], bound: _Bound) -> Kind:
    """Wait for the end while three threads move the streams; none can hold up another (8 MiB on both at once)."""
    _thread(_feed, channel, stdin)
    readers = [
        _thread(_drain, channel.recv, sinks[0]),
        _thread(_drain, channel.recv_stderr, sinks[1]),
    ]
    timed_out = not channel.status_event.wait(max(0.0, bound.deadline - time.monotonic()))
    if timed_out:
        _end(link, channel, bound)
    _settle(readers, sinks)
    if timed_out:
        return "timeout"
    if not channel.eof_received and not any(reader.is_alive() for reader in readers):
        return "lost"  # the status may have come, but not all of the output
    if channel.exit_signal is not None:
        return "signal"
    return "exit" if channel.exit_status >= 0 else "lost"


def _settle(readers: list[threading.Thread], sinks: tuple[_Sink, _Sink]) -> None:
    """Let the readers come to the end of the streams, or to `LINGER_S` of silence where a daemon holds them."""
    seen = -1
    while any(reader.is_alive() for reader in readers) and seen != (seen := sum(sink.seen for sink in sinks)):
        deadline = time.monotonic() + LINGER_S
        for reader in readers:
            reader.join(max(0.0, deadline - time.monotonic()))


def _outcome(kind: Kind, channel: Any, out: _Sink, err: _Sink) -> Outcome:
    for sink in (out, err):
        if sink.error is not None:
            name = getattr(sink.file, "name", "?")
            raise HarnessError("ssh-output", f"{name}: {sink.error.strerror}; free the disk or name another file")
    signal = f"SIG{channel.exit_signal.split('@')[0]}" if kind == "signal" else None
    code = channel.exit_status if kind == "exit" else None
    return Outcome(kind, code, signal, bytes(out.data), bytes(err.data), out.cut or err.cut)


def _end(link: Link, channel: Any, bound: _Bound) -> None:
    """End the program until its own channel says so too: a login shell may not yet have become the program."""
    for _ in range(SWEEPS):
        _sweep(link, bound)
        if channel.status_event.wait(SETTLE_S):
            return
    raise HarnessError(
        "remote-survivor",
        f"{link.target}: {bound.name} ran out of time; nothing of it is found there, yet the server says that it runs",
    )


def _sweep(link: Link, bound: _Bound) -> None:
    """TERM, grace, KILL, proof, through a second channel."""
    ticks = str(max(1, round(bound.grace_s * TICKS_PER_S)))
    argv = ["/bin/sh", "-c", END, "sh", f"{RUN}={bound.token}", ticks]
    done = run(link, argv, timeout_s=bound.grace_s + 30, grace_s=0.1)
    if done.kind == "lost":
        raise link.lost_error(f"ending {bound.name} after its timeout")
    if done.stdout.split() != [b"gone"]:
        said = (done.stdout + done.stderr).decode("utf-8", "replace").strip()
        raise HarnessError(
            "remote-survivor",
            f"{link.target}: {bound.name} ran out of time and is not proven gone ({said or done.kind}); look there",
        )


@contextlib.contextmanager
def _sink(path: Path | None, limit: int) -> Iterator[_Sink]:
    if path is None:
        yield _Sink(limit)
        return
    try:
        file = path.open("wb", buffering=0)
    except OSError as error:
        raise HarnessError("ssh-output", f"{path}: {error.strerror}; name a file that can be written") from error
    with file:
        yield _Sink(limit, file)


def _thread(work: Callable[..., None], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, name=f"ssh-{work.__name__}", daemon=True)
    thread.start()
    return thread


def _drain(read: Callable[[int], bytes], sink: _Sink) -> None:
    while block := read(CHUNK):
        sink.take(block)


def _feed(channel: Any, stdin: bytes) -> None:
    with contextlib.suppress(OSError, EOFError):  # a program need not read what it is given
        channel.sendall(stdin)
        channel.shutdown_write()

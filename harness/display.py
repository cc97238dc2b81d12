"""What a person sees while a run goes on: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import errno
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

__all__ = ["Display", "describe", "terminal"]

PLAIN_EVERY_S = 10.0


class _Terminal(Console):
    """rich would end the program with exit code 1, which is that of a FAIL."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "nobody reads the output any more")


def terminal() -> Console:
    """Standard output, for people."""
    return _Terminal()


def describe(news: Mapping[str, Any], timed_s: float | None) -> str:
    """One line: leg k of n, requests done, tokens/s, time left. `timed_s` is the time since the timed series began."""
    leg, legs = news.get("leg"), news.get("legs")
    if not leg or not legs:
        return str(news.get("phase", "starting"))
    parts = [f"leg {leg} of {legs} {news.get('name', '')}"]
    if news.get("phase") == "load":
        parts.append(f"{news.get('done', 0)} of {news.get('requests', 0)} requests")
        seconds, tokens = float(news.get("seconds") or 0), float(news.get("tokens", 0))
        if seconds > 0 and tokens > 0:
            parts.append(f"{tokens / seconds:.0f} tok/s")
    else:
        parts.append(str(news.get("phase", "")))
    left = None if timed_s is None else _left(news, timed_s)
    return ", ".join([*parts, f"about {left:.0f} s left"] if left is not None else parts)


def _work(news: Mapping[str, Any]) -> tuple[float, float]:
    """How much of the timed series is done, and how much there is."""
    return float(news.get("work_done", 0)) + float(news.get("done", 0)), float(news.get("work_total", 0))


def _left(news: Mapping[str, Any], timed_s: float) -> float | None:
    done, total = _work(news)
    return None if done <= 0 else timed_s * max(0.0, total - done) / done


class Display:
    """Context manager; `show` takes the supervisor's progress as often as it comes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._timed_since: float | None = None
        self._last_plain = 0.0
        self._last_leg: object = None
        self._progress: Progress | None = None
        self._task: Any = None

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"), BarColumn(), console=self._console, transient=True, auto_refresh=False
            )
            self._progress.start()
            self._task = self._progress.add_task("starting", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, news: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if news.get("timed") and self._timed_since is None:
            self._timed_since = now
        text = describe(news, None if self._timed_since is None else now - self._timed_since)
        if self._progress is not None:
            done, total = _work(news)
            self._progress.update(self._task, description=text, completed=done, total=total or None)
            self._progress.refresh()
        else:
            self._plain(news, text)

    def _plain(self, news: Mapping[str, Any], text: str) -> None:
        """A line for every leg, and one now and then inside a long one."""
        now = time.monotonic()
        if news.get("leg") != self._last_leg or now - self._last_plain > PLAIN_EVERY_S:
            self._last_leg, self._last_plain = news.get("leg"), now
            self.note(text)

    def note(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

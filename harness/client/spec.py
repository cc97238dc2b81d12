"""The specification of one series as the harness writes it for the client's own process. Strict, in sentences."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.client.load import Prompt, Target
from harness.errors import UsageError

__all__ = ["Spec", "read_prompts", "read_spec"]

_FIXED = ("model", "prompt", "max_tokens", "stream", "stream_options")
_REQUIRED: Mapping[str, type] = {
    "host": str,
    "port": int,
    "path": str,
    "model": str,
    "prompts_file": str,
    "concurrency": int,
    "warmups": int,
    "max_tokens": int,
    "out_dir": str,
}
_OPTIONAL: Mapping[str, tuple[type, Any]] = {
    "extra_body": (dict, {}),
    "request_timeout_s": (float, 600.0),
    "deadline_s": (float, 3600.0),
    "keep_text": (bool, False),
    "running_usage": (bool, False),
}
_LEAST = {"port": 1, "concurrency": 1, "warmups": 0, "max_tokens": 1}


@dataclass(frozen=True)
class Spec:
    """One series: where to send, what to send, and where its records go. Paths are the host's own."""

    target: Target
    prompts_file: Path
    out_dir: Path


def read_spec(path: Path) -> Spec:
    """Parse a spec file. UsageError `bad-spec` names the key, its value and the mend."""
    values = _object(path)
    unknown = sorted(values.keys() - _REQUIRED.keys() - _OPTIONAL.keys())
    missing = sorted(_REQUIRED.keys() - values.keys())
    if unknown or missing:
        parts = [f"lacks {', '.join(missing)}"] if missing else []
        parts += [f"has unknown {', '.join(unknown)}"] if unknown else []
        raise UsageError("bad-spec", f"the client's spec {' and '.join(parts)}")
    types = {**_REQUIRED, **{key: kind for key, (kind, _) in _OPTIONAL.items()}}
    full = {**{key: default for key, (_, default) in _OPTIONAL.items()}, **values}
    for key, value in full.items():
        _check(key, value, types[key])
    _check_ranges(full)
    prompts_file, out_dir = Path(full.pop("prompts_file")), Path(full.pop("out_dir"))
    return Spec(Target(**full), prompts_file, out_dir)


def read_prompts(path: Path) -> list[Prompt]:
    """The corpus rows of one series. UsageError `bad-prompts` names the line."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError("bad-prompts", f"the prompts file cannot be read: {error.strerror}") from error
    prompts = [_prompt(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise UsageError("bad-prompts", "the prompts file holds no prompt; it needs one JSON object a line")
    return prompts


def _object(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError("bad-spec", f"the client's spec cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError("bad-spec", f"the client's spec is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise UsageError("bad-spec", f"the client's spec must be a JSON object, not {type(values).__name__}")
    return values


def _check(key: str, value: Any, kind: type) -> None:
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise UsageError("bad-spec", f"{key} = {value!r} in the client's spec must be of type {kind.__name__}")


def _check_ranges(values: Mapping[str, Any]) -> None:
    for key, least in _LEAST.items():
        if values[key] < least or (key == "port" and values[key] > 65535):
            raise UsageError("bad-spec", f"{key} = {values[key]} in the client's spec must be at least {least}")
    for key in ("request_timeout_s", "deadline_s"):
        if not 0 < values[key] < 1e9:
            raise UsageError(
                "bad-spec", f"{key} = {values[key]} in the client's spec must be a positive number of seconds"
            )
    if not values["path"].startswith("/") or not values["path"].isascii() or set(values["path"]) & set(" \r\n"):
        raise UsageError("bad-spec", f"path = {values['path']!r} must begin with / and be ASCII without blanks")
    taken = sorted(values["extra_body"].keys() & set(_FIXED))
    if taken:
        raise UsageError("bad-spec", f"extra_body may not set {', '.join(taken)}: the series itself fixes them")


def _prompt(number: int, line: bytes) -> Prompt:
    try:
        row = json.loads(line)
        ids, text = row.get("prompt_token_ids"), row.get("prompt")
        value = tuple(ids) if ids is not None else text
        whole = isinstance(value, str) or all(type(item) is int for item in value)
        if not whole or type(row["index"]) is not int or not isinstance(row["prompt_sha256"], str):
            raise TypeError("a field has the wrong type")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            "bad-prompts",
            f"line {number} of the prompts file needs index, prompt_sha256 and prompt_token_ids or prompt ({error})",
        ) from error
    return Prompt(row["index"], row["prompt_sha256"], value)

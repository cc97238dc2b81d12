"""Server options as a person writes them, as a command line takes them, and as a server says them back.

Names are written with underscores and are the server's own; a dash is taken for one. Values are whole numbers, decimal
numbers, texts, truth values (`--name` and `--no-name`), lists, or null, which leaves an option to the server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.errors import UsageError

__all__ = ["as_text", "checked", "command_line", "flatten", "token_range"]

LOW_SPECIALS = 1024  # special tokens below this id are at the vocabulary's beginning, others at its end


def checked(where: str, flags: Mapping[str, Any], taken: Mapping[str, str]) -> dict[str, Any]:
    """Flags by name with underscores. `taken` maps a name that the adapter sets itself to what a person sets instead.

    UsageError `bad-value` names the flag and the mend.
    """
    found: dict[str, Any] = {}
    for given, value in flags.items():
        name = str(given).lstrip("-").replace("-", "_")
        if name in taken:
            raise UsageError("bad-value", f"{where}.{given}={value!r} is the harness's own; set {taken[name]} instead")
        if name in found:
            raise UsageError("bad-value", f"{where}.{given} is given twice; leave one of them out")
        plain = value is None or isinstance(value, bool | int | float | str)
        listed = isinstance(value, list | tuple) and all(isinstance(item, int | float | str) for item in value)
        if not plain and not listed:
            raise UsageError("bad-value", f"{where}.{given}={value!r}: must be a number, a text, true, false or a list")
        found[name] = value
    return found


def command_line(flags: Mapping[str, Any], *, underscores: bool = False, negative: str | None = "--no-") -> list[str]:
    """The words for `flags`. `negative` is how false is said, before the name; None leaves false out."""
    words: list[str] = []
    for name, value in flags.items():
        spelt = name if underscores else name.replace("_", "-")
        if value is None or (value is False and negative is None):
            continue
        if isinstance(value, bool):
            words.append(f"--{spelt}" if value else f"{negative}{spelt}")
        else:
            words += [
                f"--{spelt}",
                *([str(item) for item in value] if isinstance(value, list | tuple) else [str(value)]),
            ]
    return words


def as_text(value: Any) -> str | None:
    """A value as evidence keeps it: true and false as words, numbers in shortest form, null as None."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def flatten(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(name, value) of every plain value in nested objects, outermost first."""
    nested = []
    for name, value in document.items():
        if isinstance(value, dict):
            nested.append(value)
        else:
            yield name, value
    for inner in nested:
        yield from flatten(inner)


def token_range(model: Path) -> tuple[int, int]:
    """[first, end) of the token ids that prompts may be drawn from: no special token of `model`'s tokenizer in it.

    UsageError `no-tokenizer` where the folder lacks config.json or tokenizer.json.
    """
    try:
        config = json.loads((model / "config.json").read_bytes())
        tokens = json.loads((model / "tokenizer.json").read_bytes())
        size = int(config["vocab_size"] if "vocab_size" in config else config["text_config"]["vocab_size"])
        special = sorted(int(item["id"]) for item in tokens.get("added_tokens", []))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            "no-tokenizer",
            f"the token ids of {model.name} cannot be told ({error}); engine.options.model must be a folder with "
            "config.json (vocab_size) and tokenizer.json",
        ) from error
    low = [number for number in special if number < LOW_SPECIALS]
    high = [number for number in special if number >= LOW_SPECIALS]
    return max(low, default=-1) + 1, min([*high, size])

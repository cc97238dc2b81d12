"""`harness explain`: what a configuration key means, out of the classes that type it."""

from __future__ import annotations

import difflib

from omegaconf import OmegaConf

from harness.config import Key, keys
from harness.errors import UsageError
from harness.settings import compose_config

__all__ = ["explain"]

TITLE_WIDTH = 34


def explain(name: str) -> str:
    """The key's type, unit, default and meaning; every key of a group for `host`, all of them for nothing."""
    known = keys()
    if name in known:
        return _one(known[name])
    group = [key for key in known.values() if not name or key.name.startswith(f"{name}.")]
    if not group:
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UsageError(
            "unknown-key", f"{name} is not a configuration key{hint}; `python -m harness explain` lists all"
        )
    return "\n".join(f"{key.name:{TITLE_WIDTH}} {key.meaning}" for key in group)


def _one(key: Key) -> str:
    default = OmegaConf.select(OmegaConf.structured(compose_config([])), key.name)
    lines = [key.name, f"  type     {key.type}"]
    if key.unit:
        lines.append(f"  unit     {key.unit}")
    shown = OmegaConf.to_container(default) if OmegaConf.is_config(default) else default
    lines += [f"  default  {'null' if shown is None else shown}", f"  meaning  {key.meaning}"]
    return "\n".join(lines)

"""SGLang's server, by flags. Its command line and what it says are tested on recorded lines; it was not run here."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.engines import flags as flag
from harness.engines.base import Said
from harness.engines.served import SERVED_AS, Served, json_line

__all__ = ["Sglang"]

SAID = re.compile(r"server_args=(ServerArgs\(.*\))\s*$", re.MULTILINE)


class Sglang(Served):
    """`engine.options.executable` is the Python of SGLang's environment; a flag that is false is left out."""

    name = "sglang"
    own_flags: Mapping[str, str] = {
        **Served.own_flags,
        "model_path": "options.model",
        "served_model_name": "nothing: it is fixed",
    }

    def base_flags(self) -> dict[str, Any]:
        return {"disable_radix_cache": True, "enable_metrics": True}

    def base_env(self) -> dict[str, str]:
        return {"HF_HUB_OFFLINE": "1", "PATH": f"{Path(self._executable()).parent}:/usr/local/bin:/usr/bin:/bin"}

    def argv(self, port: int, flags: Mapping[str, Any]) -> list[str]:
        fixed = ["--model-path", str(self._model()), "--host", "127.0.0.1", "--port", str(port)]
        fixed += ["--served-model-name", SERVED_AS]
        return [self._executable(), "-m", "sglang.launch_server", *fixed, *flag.command_line(flags, negative=None)]

    def proof_paths(self) -> Sequence[str]:
        """The page has two names, by version; the one that is not there answers 404 and is passed over."""
        return ("/server_info", "/get_server_info")

    def rehearsed(self, kind: str, arm: Mapping[str, Any], plan: Path | None) -> Said:
        page = {"model_path": str(self._model()), **self.set_flags(arm)}
        return Said(answers={self.proof_paths()[0]: json.dumps(page)})

    def resolved(self, log: str, metrics: str) -> tuple[str, dict[str, Any]]:
        page = json_line(metrics, "model_path")
        if page:
            return "/server_info", page
        said = SAID.search(log)
        return "log", {} if said is None else _keywords(said[1])

    def configuration(self, resolved: Mapping[str, Any], log: str) -> dict[str, str | None]:
        tokens, share = resolved.get("max_total_tokens"), resolved.get("mem_fraction_static")
        capacity = f"{tokens} tokens set" if tokens is not None else None if share is None else f"{share} of the memory"
        return {
            "async_scheduling": _inverted(resolved.get("disable_overlap_schedule")),
            "prefix_caching": _inverted(resolved.get("disable_radix_cache")),
            "capacity": capacity,
            "dtype": flag.as_text(resolved.get("dtype")),
        }


def _inverted(value: Any) -> str | None:
    return flag.as_text(not value) if isinstance(value, bool) else None


def _keywords(text: str) -> dict[str, Any]:
    """The plain keyword values of a printed call; {} where the text is none. Nothing of it is ever executed."""
    try:
        call = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return {}
    found: dict[str, Any] = {}
    for word in call.keywords if isinstance(call, ast.Call) else ():
        if word.arg is not None:
            try:
                found[word.arg] = ast.literal_eval(word.value)
            except ValueError:  # an enumeration or an object: not a plain value
                continue
    return found

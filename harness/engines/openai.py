"""Any OpenAI-compatible completions server that runs already, by its URL. Nothing is started, stopped or sampled.

So no process is fresh, no memory is measured and no page cache is dropped: each is not-applicable in the plan, and a
verdict on such a server never binds. The twenty timing axes a concurrency are what is compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harness.engines.base import Address, Launch
from harness.errors import UsageError
from harness.records import ArmProof, ModelGate, PlanReport, ServerReport

__all__ = ["OpenAi"]

OPTIONS = ("model", "first_token", "vocabulary", "tokenizer", "running_usage")
DEFAULTS = {"first_token": 256, "vocabulary": 32000}


class OpenAi:
    """`engine.options`: `model` (its id in /v1/models), the range of token ids for prompts, a tokenizer.json, and
    whether it gives usage in every chunk when asked. Each arm's flags hold `url` and nothing else.
    """

    name = "openai"
    capabilities = frozenset({"external", "sequential_proof", "token_ids"})

    def __init__(self, options: Mapping[str, Any], cache_dir: Path) -> None:
        unknown = sorted(options.keys() - set(OPTIONS))
        if unknown:
            raise UsageError("bad-value", f"engine.options.{unknown[0]}: openai takes {', '.join(OPTIONS)}; remove it")
        model = options.get("model")
        if not isinstance(model, str) or not model:
            raise UsageError("missing-value", "engine.options.model: say under which id the server knows the model")
        self._model = model
        self.first_token, self.vocabulary = (_whole(options, name) for name in ("first_token", "vocabulary"))
        if self.first_token >= self.vocabulary:
            raise UsageError("bad-value", f"engine.options.vocabulary={self.vocabulary} must be above first_token")
        self.running_usage = bool(options.get("running_usage", False))
        given = options.get("tokenizer")
        self._tokenizer = None if given is None else Path(str(given))

    def identity(self) -> Mapping[str, Any]:
        return {"model": self._model}

    def prepare(self) -> None:
        """Nothing is needed on this host."""

    def cache_roots(self) -> Sequence[Path]:
        return ()

    def launch(self, arm: Mapping[str, Any], port: int, plan: Path | None, read_only: bool) -> Launch:
        """Checks the arm, and starts nothing."""
        self.attached(arm)
        return Launch([], {}, Path("/"))

    def attached(self, arm: Mapping[str, Any]) -> Address:
        """UsageError `bad-value` for anything but one plain http URL and no environment."""
        flags, env = arm.get("flags") or {}, arm.get("env") or {}
        extra = sorted((flags.keys() - {"url"}) | env.keys())
        if extra:
            raise UsageError(
                "bad-value", f"arm.{extra[0]}: a server that runs already takes no options; leave only flags.url"
            )
        return _address(flags.get("url"))

    def served_model(self) -> str:
        return self._model

    def plan_report(self, log: str, metrics: str) -> PlanReport | None:
        return None

    def proof_paths(self) -> Sequence[str]:
        return ()

    def arm_proof(self, arm: Mapping[str, Any], log: str, metrics: str) -> ArmProof | None:
        return None

    def tokenizer(self) -> Path | None:
        return self._tokenizer

    def server_report(self, arm: Mapping[str, Any], log: str, metrics: str) -> ServerReport | None:
        return None

    def model_gate_argv(self, arm: Mapping[str, Any], plan: Path | None) -> Launch | None:
        return None

    def model_gate_report(self, log: str) -> ModelGate | None:
        return None


def _whole(options: Mapping[str, Any], name: str) -> int:
    value = options.get(name, DEFAULTS[name])
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < math.inf:
        raise UsageError(
            "bad-value", f"engine.options.{name}={value!r}: must be a whole number, such as {DEFAULTS[name]}"
        )
    return value


def _address(url: Any) -> Address:
    need = "must be http://HOST:PORT with nothing secret in it; put a TLS server behind a local proxy"
    try:
        parts = urlsplit(str(url))
        port = parts.port or 80
    except ValueError as error:
        raise UsageError("bad-value", f"arm.flags.url={url!r}: {error}; it {need}") from error
    if parts.scheme != "http" or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise UsageError("bad-value", f"arm.flags.url={url!r}: {need}")
    return Address(parts.hostname, port, parts.path.rstrip("/").removesuffix("/v1"))

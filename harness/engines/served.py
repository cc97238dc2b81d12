"""What is common to servers that are started by one command with flags and know a model folder: the adapters' base."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gates import servers
from harness import canonical
from harness.engines import flags as flag
from harness.engines.base import Address, Launch, Said
from harness.errors import UsageError
from harness.records import ArmProof, ModelGate, PlanReport, ServerReport

__all__ = ["CONFIGURATION", "Served", "report"]

SERVED_AS = "gate"
CAPABILITIES = frozenset({"arm_counters", "gpu", "sequential_proof", "server_arguments", "token_ids"})
# What makes two servers different engines although nobody set out to compare it.
CONFIGURATION = ("async_scheduling", "prefix_caching", "capacity", "dtype")
SMALL_FILE = 64 << 20  # a model folder's files up to this size are hashed whole, larger ones by name and size


class Served:
    """`engine.options`: `executable`, `model` (a folder), `flags` and `env` of both arms, and what an engine adds.

    An arm's flags overlay the common ones, so that a lever is said once and the rest is the same by construction.
    """

    name = "served"
    capabilities: frozenset[str] = CAPABILITIES
    running_usage = True  # asks for usage in every chunk, so that chunks that carry several tokens can be told
    own_flags: Mapping[str, str] = {"port": "host.port", "host": "nothing: it is 127.0.0.1", "model": "options.model"}
    options: Sequence[str] = ("executable", "model", "flags", "env")

    def __init__(self, options: Mapping[str, Any], cache_dir: Path) -> None:
        unknown = sorted(options.keys() - set(self.options))
        if unknown:
            raise UsageError(
                "bad-value", f"engine.options.{unknown[0]}: {self.name} takes {', '.join(self.options)}; remove it"
            )
        self.cache_dir = cache_dir / self.name
        self.executable = self._text(options, "executable")
        model = self._text(options, "model")
        self.model = None if model is None else Path(model)
        self.flags = flag.checked("engine.options.flags", options.get("flags") or {}, self.own_flags)
        self.env = {str(name): str(value) for name, value in (options.get("env") or {}).items()}

    def _text(self, options: Mapping[str, Any], name: str) -> str | None:
        value = options.get(name)
        if value is not None and (not isinstance(value, str) or not value.startswith("/")):
            raise UsageError("bad-value", f"engine.options.{name}={value!r}: must be an absolute path on the host")
        return value

    # What a subclass says.

    def base_flags(self) -> dict[str, Any]:
        """Flags that both arms have unless options or arm say otherwise."""
        return {}

    def base_env(self) -> dict[str, str]:
        return {}

    def argv(self, port: int, flags: Mapping[str, Any]) -> list[str]:
        raise NotImplementedError

    def resolved(self, log: str, metrics: str) -> tuple[str, dict[str, Any]]:
        """(where it was read, the server's own arguments by name)."""
        raise NotImplementedError

    def configuration(self, resolved: Mapping[str, Any], log: str) -> dict[str, str | None]:
        """CONFIGURATION by name; None where the server does not say."""
        raise NotImplementedError

    # The adapter.

    @property
    def vocabulary(self) -> int:
        return flag.token_range(self._model())[1]

    @property
    def first_token(self) -> int:
        return flag.token_range(self._model())[0]

    def _model(self) -> Path:
        if self.model is None:
            raise UsageError("missing-value", f"engine.options.model: {self.name} needs the folder of a model")
        return self.model

    def _executable(self) -> str:
        if self.executable is None:
            raise UsageError("missing-value", f"engine.options.executable: {self.name} needs the server's program")
        return self.executable

    def identity(self) -> Mapping[str, Any]:
        program = Path(self._executable())
        return {"model_sha256": inventory(self._model()), "program_sha256": canonical.sha256_file(program)}

    def prepare(self) -> None:
        """Nothing is written; UsageError where program or model are not there."""
        program, model = Path(self._executable()), self._model()
        if not program.is_file():
            raise UsageError("engine-not-installed", f"engine.options.executable={program} is no file on this host")
        if not model.is_dir():
            raise UsageError("no-model", f"engine.options.model={model} is no folder on this host; put the model there")

    def cache_roots(self) -> Sequence[Path]:
        return (self._model(),)

    def merged(self, arm: Mapping[str, Any]) -> dict[str, Any]:
        """Every flag of an arm, by name. UsageError for one that the harness sets itself."""
        own = flag.checked("arm.flags", arm.get("flags") or {}, self.own_flags)
        return {**self.base_flags(), **self.flags, **own}

    def environment(self, arm: Mapping[str, Any]) -> dict[str, str]:
        own = {str(name): str(value) for name, value in (arm.get("env") or {}).items()}
        return {**self.base_env(), **self.env, **own}

    def launch(self, arm: Mapping[str, Any], port: int, plan: Path | None, read_only: bool) -> Launch:
        return Launch(self.argv(port, self.merged(arm)), self.environment(arm), Path("/"))

    def attached(self, arm: Mapping[str, Any]) -> Address | None:
        return None

    def served_model(self) -> str:
        return SERVED_AS

    def plan_report(self, log: str, metrics: str) -> PlanReport | None:
        return None

    def proof_paths(self) -> Sequence[str]:
        return ()

    def tokenizer(self) -> Path | None:
        return self._model() / "tokenizer.json"

    def server_report(self, arm: Mapping[str, Any], log: str, metrics: str) -> ServerReport | None:
        """The arm's arguments beside what the server says it resolved them to."""
        where, resolved = self.resolved(log, metrics)
        return report(self.merged(arm), resolved, self.configuration(resolved, log), where)

    def arm_proof(self, arm: Mapping[str, Any], log: str, metrics: str) -> ArmProof | None:
        """The arm's own flags, as the server says them. An arm that differs in environment alone shows no flag."""
        _, resolved = self.resolved(log, metrics)
        own = flag.checked("arm.flags", arm.get("flags") or {}, self.own_flags)
        own |= {name: value for name, value in (arm.get("env") or {}).items() if name in resolved}
        wanted = {name: flag.as_text(value) for name, value in own.items() if value is not None}
        seen = {name: flag.as_text(resolved.get(name)) for name in wanted}
        good = bool(wanted) and all(servers.same(value or "", seen[name]) for name, value in wanted.items())
        return ArmProof(good, shown(seen) or "no switch of this arm", shown(wanted) or "a switch that is said back")

    def model_gate_argv(self, arm: Mapping[str, Any], plan: Path | None) -> Launch | None:
        return None

    def model_gate_report(self, log: str) -> ModelGate | None:
        return None

    def rehearsed(self, kind: str, arm: Mapping[str, Any], plan: Path | None) -> Said:
        return Said()

    def set_flags(self, arm: Mapping[str, Any]) -> dict[str, Any]:
        """Flags of an arm that are not left to the server: what a rehearsed one says back."""
        return {name: value for name, value in self.merged(arm).items() if value is not None}


def report(
    flags: Mapping[str, Any], resolved: Mapping[str, Any], configuration: Mapping[str, str | None], where: str
) -> ServerReport:
    """Planned beside resolved, as text; a flag that is left to the server (null) is not planned."""
    planned = {name: flag.as_text(value) or "" for name, value in flags.items() if value is not None}
    return ServerReport(
        planned=planned,
        resolved={name: flag.as_text(resolved.get(name)) for name in planned},
        configuration={name: configuration.get(name) for name in CONFIGURATION},
        source=where,
    )


def shown(values: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name}={'not said' if value is None else value}" for name, value in sorted(values.items()))


def inventory(model: Path) -> str:
    """SHA-256 over a model folder: small files by content, weights by name and size (hashing them takes minutes)."""
    rows = []
    for path in sorted(item for item in model.rglob("*") if item.is_file()):
        size = path.stat().st_size
        digest = canonical.sha256_file(path) if size <= SMALL_FILE else f"{size} bytes"
        rows.append([path.relative_to(model).as_posix(), digest])
    return canonical.sha256_bytes(canonical.dumps(rows))


def json_line(text: str, key: str) -> dict[str, Any]:
    """The JSON object with `key` that stands on a line of its own in `text`; {} where there is none."""
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                document = json.loads(line)
            except ValueError:
                continue
            if isinstance(document, dict) and key in document:
                return document
    return {}

"""From a command's name and request to its answer. Every failure becomes part of the reply, never a traceback."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

from harness.agent.values import BUG, PROTOCOL
from harness.errors import HarnessError, UsageError

__all__ = ["COMMANDS", "answer"]

COMMANDS = ("install", "prepare", "find", "start", "poll", "stop", "pack", "forget", "list", "facts", "inspect")


def answer(command: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """The reply: `protocol` and either `answer` or `error` (code, message, usage)."""
    try:
        if request.get("protocol") != PROTOCOL:
            raise HarnessError(
                "agent-protocol", f"the controller speaks protocol {request.get('protocol')}, this agent {PROTOCOL}"
            )
        return {"protocol": PROTOCOL, "answer": _run(command, request)}
    except HarnessError as error:
        return _failed(error.code, error.message, isinstance(error, UsageError))
    except Exception as error:
        return _failed(BUG, f"{command} failed on the host: {error!r}\n{traceback.format_exc()}", False)


def _failed(code: str, message: str, usage: bool) -> dict[str, Any]:
    return {"protocol": PROTOCOL, "error": {"code": code, "message": message, "usage": usage}}


def _run(command: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Imports what the command needs and no more: Hydra and numpy would be most of a poll's cost."""
    if command in ("install", "prepare"):
        from harness.agent import preparing

        return preparing.install(request) if command == "install" else preparing.prepare(request)
    if command in ("find", "start"):
        from harness.agent import starting

        return starting.find(request) if command == "find" else starting.start(request)
    if command in ("facts", "inspect"):
        from harness.agent import looking

        return looking.facts(request) if command == "facts" else looking.inspect(request)
    from harness.agent import running

    known = {
        "poll": running.poll,
        "stop": running.stop,
        "pack": running.pack,
        "forget": running.forget,
        "list": running.listing,
    }
    if command not in known:
        raise HarnessError("agent-protocol", f"unknown command {command!r}; this agent knows {', '.join(COMMANDS)}")
    return known[command](request)

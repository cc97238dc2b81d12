"""When may load begin: after a real one-token completion, on the expected model, from the process we started.

`/health` and an empty model list answer too early on every engine known here, so neither decides.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import ports
from harness.engines.base import Address
from harness.errors import HarnessError
from harness.process import Owned, tail

__all__ = ["Answer", "await_ready", "get", "judge_completion", "judge_models", "require_answer"]

LOOPBACK = "127.0.0.1"
POLL_S = 0.05
ANSWER_TIMEOUT_S = 30.0
BUSY = (503, 429)


@dataclass(frozen=True)
class Answer:
    """One HTTP answer; `status` is None when nothing answered, and `body` then says why."""

    status: int | None
    body: bytes

    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


def get(port: int, path: str, timeout_s: float = ANSWER_TIMEOUT_S, host: str = LOOPBACK) -> Answer:
    return _ask(port, "GET", path, None, timeout_s, host=host)


def _ask(port: int, method: str, path: str, document: Any, timeout_s: float, *, host: str = LOOPBACK) -> Answer:
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    body = None if document is None else json.dumps(document).encode()
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return Answer(response.status, response.read())
    except (OSError, http.client.HTTPException) as error:
        return Answer(None, str(error).encode())
    finally:
        connection.close()


def judge_models(answer: Answer, model: str) -> bool:
    """True once the model list names `model`. HarnessError `wrong-model` when it names only others."""
    names = _model_names(answer)
    if names and model not in names:
        raise HarnessError(
            "wrong-model", f"the server serves {', '.join(names)}, not {model}; check the engine's options"
        )
    return bool(names)


def _model_names(answer: Answer) -> list[str]:
    if answer.status != http.HTTPStatus.OK:
        return []
    try:
        return [str(item["id"]) for item in json.loads(answer.body)["data"]]
    except (ValueError, KeyError, TypeError):
        return []


def judge_completion(answer: Answer) -> bool:
    """True for a completion of exactly one token, False while busy. HarnessError `not-ready` for a refusal."""
    if answer.status is None or answer.status in BUSY:
        return False
    if answer.status != http.HTTPStatus.OK:
        raise HarnessError("not-ready", f"the first completion was refused with {answer.status}: {answer.text()[:300]}")
    try:
        tokens = json.loads(answer.body)["usage"]["completion_tokens"]
    except (ValueError, KeyError, TypeError):
        raise HarnessError("not-ready", f"the first completion carries no usage: {answer.text()[:300]}")
    if tokens != 1:
        raise HarnessError("not-ready", f"the first completion has {tokens} tokens where 1 was asked for")
    return True


def await_ready(
    owned: Owned,
    port: int,
    model: str,
    prompt: Sequence[int],
    *,
    log: Path,
    timeout_s: float,
    check: Callable[[], None],
) -> float:
    """Wait for the proof; returns seconds waited. `check` may raise to stop the wait.

    HarnessError `engine-died` at once when the process ends, `not-ready` after `timeout_s`, `foreign-server` when
    another process answers on the port; each carries the tail of the engine's log.
    """
    began = time.monotonic()
    body = {"model": model, "prompt": list(prompt), "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    while True:
        check()
        ended = owned.poll()
        if ended is not None:
            raise HarnessError(
                "engine-died", f"the engine ended before it was ready ({ended}); its log ends:\n{tail(log)}"
            )
        patience = min(
            ANSWER_TIMEOUT_S, max(1.0, began + timeout_s - time.monotonic())
        )  # a stopped engine says nothing
        if judge_models(get(port, "/v1/models", patience), model) and judge_completion(
            _ask(port, "POST", "/v1/completions", body, patience)
        ):
            _check_owner(owned, port)
            return time.monotonic() - began
        if time.monotonic() - began > timeout_s:
            raise HarnessError(
                "not-ready", f"no completion within {timeout_s:g} s; the engine's log ends:\n{tail(log)}"
            )
        owned.wait(POLL_S)  # ends early when the process does


def require_answer(address: Address, model: str, prompt: Sequence[int], *, timeout_s: float) -> None:
    """A server that somebody else runs must give a one-token completion now. HarnessError says what it gave instead."""
    body = {"model": model, "prompt": list(prompt), "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    patience, host = min(ANSWER_TIMEOUT_S, timeout_s), address.host
    models = get(address.port, f"{address.prefix}/v1/models", patience, host)
    if models.status is None:
        where = f"{host}:{address.port}"
        raise HarnessError("not-ready", f"no server answers on {where}: {models.text()}; start it, then run again")
    if not judge_models(models, model):
        raise HarnessError("not-ready", f"{host}:{address.port} lists no model: {models.text()[:300]}")
    answer = _ask(address.port, "POST", f"{address.prefix}/v1/completions", body, patience, host=host)
    if not judge_completion(answer):
        raise HarnessError("not-ready", f"the first completion was not given: {answer.text()[:300]}")


def _check_owner(owned: Owned, port: int) -> None:
    found = ports.owner(port)
    if (
        found is not None
        and found.pid is not None
        and found.pid not in {process.pid for process in owned.descendants()}
    ):
        raise HarnessError("foreign-server", f"port {port} is answered by {found.who()}, not by the engine")

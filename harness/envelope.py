"""DSSE envelopes (Dead Simple Signing Envelope, version 1), one a line, as in-toto bundles keep them. Standard library.

What is signed is the pre-authentication encoding: payload type and payload, each with its length, so that neither can
be taken for the other.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from harness import canonical
from harness.errors import HarnessError

__all__ = ["PAYLOAD_TYPE", "Envelope", "encode", "from_lines", "to_lines"]

PAYLOAD_TYPE = "application/vnd.in-toto+json"


@dataclass(frozen=True)
class Envelope:
    """One signed payload. `keyid` is a hint that no signature covers."""

    payload_type: str
    payload: bytes
    keyid: str
    signature: bytes

    def to_json(self) -> dict[str, Any]:
        signature = {"keyid": self.keyid, "sig": base64.b64encode(self.signature).decode()}
        payload = base64.b64encode(self.payload).decode()
        return {"payload": payload, "payloadType": self.payload_type, "signatures": [signature]}

    @classmethod
    def from_json(cls, data: Any) -> Envelope:
        """KeyError, TypeError or ValueError where `data` is no envelope of one signature."""
        (signature,) = data["signatures"]
        payload, raw = (base64.b64decode(text, validate=True) for text in (data["payload"], signature["sig"]))
        return cls(str(data["payloadType"]), payload, str(signature["keyid"]), raw)


def encode(payload_type: str, payload: bytes) -> bytes:
    """The bytes that are signed."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def to_lines(envelopes: Iterable[Envelope]) -> bytes:
    return b"".join(canonical.dumps(item.to_json()) for item in envelopes)


def from_lines(data: bytes, name: str) -> list[Envelope]:
    """HarnessError `bad-envelope` names the line that is none, or is not as `to_lines` writes it."""
    found: list[Envelope] = []
    for number, line in enumerate(data.splitlines(keepends=True), 1):
        try:
            found.append(Envelope.from_json(canonical.loads(line, name)))
        except (HarnessError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise HarnessError("bad-envelope", f"{name}: line {number} is not a DSSE envelope: {error}") from error
        if to_lines(found[-1:]) != line:
            raise HarnessError("bad-envelope", f"{name}: line {number} is not canonical")
    return found

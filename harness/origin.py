"""Who vouches for a bundle: its signatures against what it states. Standard library only; a key does the arithmetic.

`signatures.intoto.jsonl` has two lines for each signer: one envelope for each statement, in the statements' order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness import envelope
from harness.bundle import SIGNATURES
from harness.ed25519 import PrivateKey, PublicKey
from harness.envelope import PAYLOAD_TYPE, Envelope
from harness.errors import HarnessError

__all__ = ["doubt", "faults", "keyids", "sign"]


def sign(statements: Mapping[str, bytes], key: PrivateKey) -> bytes:
    """The lines of one signer."""
    return envelope.to_lines(
        Envelope(PAYLOAD_TYPE, payload, key.public.keyid, key.sign(envelope.encode(PAYLOAD_TYPE, payload)))
        for payload in statements.values()
    )


def faults(data: bytes, statements: Mapping[str, bytes]) -> list[str]:
    """What can be seen without a key: lines that are no envelopes, or that state something else than this bundle."""
    try:
        signers = _signers(data, statements)
    except HarnessError as error:
        return [error.message]
    found: list[str] = []
    for number, lines in enumerate(signers):
        for offset, (item, name) in enumerate(zip(lines, statements, strict=True), 1):
            where = f"{SIGNATURES}: line {number * len(statements) + offset}"
            if item.payload_type != PAYLOAD_TYPE:
                found.append(f"{where} has the payload type {item.payload_type!r}, not {PAYLOAD_TYPE!r}")
            elif item.payload != statements[name]:
                found.append(f"{where} signs something else than this bundle's {name}")
    return found


def keyids(data: bytes, statements: Mapping[str, bytes]) -> list[str]:
    """The ids that the signers gave, unchecked. `data` has no `faults`."""
    return [lines[0].keyid for lines in _signers(data, statements)]


def doubt(data: bytes | None, statements: Mapping[str, bytes], key: PublicKey) -> str | None:
    """Why `key` does not vouch for the bundle, or None where it does. `data` has no `faults`."""
    if not data:
        return f"it is not signed (there is no {SIGNATURES})"
    mine = [lines for lines in _signers(data, statements) if any(item.keyid == key.keyid for item in lines)]
    if not mine:
        others = ", ".join(keyid[:16] for keyid in keyids(data, statements))
        return f"it is signed by another key ({others}), not by {key.keyid[:16]}"
    if any(_holds(lines, key) for lines in mine):
        return None
    return f"{SIGNATURES}: the signature under the id of this key was not made by it on these statements"


def _holds(lines: Sequence[Envelope], key: PublicKey) -> bool:
    return all(
        item.keyid == key.keyid and key.signed(item.signature, envelope.encode(item.payload_type, item.payload))
        for item in lines
    )


def _signers(data: bytes, statements: Mapping[str, bytes]) -> list[list[Envelope]]:
    """The lines of each signer. HarnessError `bad-envelope`, also where a signer lacks a line."""
    lines = envelope.from_lines(data, SIGNATURES)
    size = len(statements)
    if not lines or len(lines) % size:
        raise HarnessError("bad-envelope", f"{SIGNATURES}: {len(lines)} lines, and each signer has {size}")
    return [lines[start : start + size] for start in range(0, len(lines), size)]

"""Ed25519 keys from files, by the library `cryptography`, which is imported only where a key is asked for.

A private key is PEM (PKCS #8, as `openssl genpkey -algorithm ed25519` writes it) or OpenSSH's; a public one is PEM or a
line of `ssh-keygen`. A key's id is the SHA-256 of its public half as DER (SubjectPublicKeyInfo).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.errors import UsageError

__all__ = ["PrivateKey", "PublicKey", "read_private", "read_public"]

OTHERS = 0o077


class PublicKey:
    """`key` is an Ed25519PublicKey of the library."""

    def __init__(self, key: Any) -> None:
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        self._key = key
        self.keyid = hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()

    def signed(self, signature: bytes, data: bytes) -> bool:
        """Whether `signature` is this key's on `data`."""
        from cryptography.exceptions import InvalidSignature

        try:
            self._key.verify(signature, data)
        except InvalidSignature:
            return False
        return True


class PrivateKey:
    """`key` is an Ed25519PrivateKey of the library."""

    def __init__(self, key: Any) -> None:
        self._key = key
        self.public = PublicKey(key.public_key())

    def sign(self, data: bytes) -> bytes:
        return bytes(self._key.sign(data))


def read_private(path: Path) -> PrivateKey:
    """UsageError `bad-key` for a file that others may read, holds no such key, or is locked by a passphrase."""
    library = _library()
    data = _bytes(path)
    if path.stat().st_mode & OTHERS:
        raise UsageError("bad-key", f"{path}: others may read this private key; `chmod 600 {path}`")
    openssh = b"BEGIN OPENSSH" in data
    load = library.load_ssh_private_key if openssh else library.load_pem_private_key
    key = _parsed(path, lambda: load(data, password=None), "private")
    return PrivateKey(_of_kind(path, key, "Ed25519PrivateKey", "private"))


def read_public(path: Path) -> PublicKey:
    """UsageError `bad-key` for a file that holds no public Ed25519 key."""
    library = _library()
    data = _bytes(path)
    load = library.load_ssh_public_key if data.startswith(b"ssh-") else library.load_pem_public_key
    return PublicKey(_of_kind(path, _parsed(path, lambda: load(data), "public"), "Ed25519PublicKey", "public"))


def _library() -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError:
        mend = "`pip install cryptography`, and run Python with its site packages (without -S)"
        raise UsageError("no-cryptography", f"a signature needs the library cryptography; {mend}") from None
    return serialization


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError("bad-key", f"{path}: {error.strerror}; give a file with an Ed25519 key") from error


def _parsed(path: Path, load: Callable[[], Any], half: str) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        return load()
    except TypeError as error:  # the library's word for a key under a passphrase
        raise UsageError("bad-key", f"{path}: this key has a passphrase; give a copy without one") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        hint = "" if half == "private" else " (--key takes the public half)"
        raise UsageError("bad-key", f"{path} holds no {half} key in PEM or OpenSSH form{hint}") from error


def _of_kind(path: Path, key: Any, kind: str, half: str) -> Any:
    from cryptography.hazmat.primitives.asymmetric import ed25519

    if not isinstance(key, getattr(ed25519, kind)):
        raise UsageError(
            "bad-key", f"{path} holds a {half} key that is not Ed25519; make one with ssh-keygen -t ed25519"
        )
    return key

"""The build id: a digest over the sources whose change may change what a plan means.

It is part of a document's metadata and of its default path, so an edited kernel finds no old plans, also in a working
tree with uncommitted changes, where a commit hash would say that nothing had changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from kernels.errors import SettingsError

__all__ = ["PACKAGE", "build_id"]

PACKAGE = Path(__file__).parent


def build_id(sources: Iterable[str], *, package: Path = PACKAGE, **facts: str) -> str:
    """SHA-256, 64 hexadecimal digits, over `facts` (`name=value;`, such as a library's version) and, in the order
    given, each source (`path=SHA-256;`, paths relative to `package`).

    SettingsError `no-source` names a source that cannot be read.
    """
    digest = hashlib.sha256("".join(f"{name}={value};" for name, value in sorted(facts.items())).encode())
    for source in sources:
        try:
            data = (package / source).read_bytes()
        except OSError as error:
            text = f"the build id needs the source {package / source}: {error.strerror}; install the package whole"
            raise SettingsError("no-source", text) from error
        digest.update(f"{source}={hashlib.sha256(data).hexdigest()};".encode())
    return digest.hexdigest()

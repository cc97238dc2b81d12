"""The prepared upstream sources, once a session."""

from __future__ import annotations

import pytest

from tests.oracle import flashinfer_env


@pytest.fixture(scope="session")
def sources() -> flashinfer_env.Sources:
    found = flashinfer_env.find()
    if found is None:
        pytest.skip(f"{flashinfer_env.VARIABLE} names no prepared FlashInfer; `nox -s oracle` prepares one and sets it")
    return found

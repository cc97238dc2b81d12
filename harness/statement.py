"""What a signature on a bundle says, as in-toto statements (Statement v1). Pure; standard library only.

The subject of both is manifest.json, whose SHA-256 is the bundle's identity. `statement.json` has this project's own
predicate; `test-result.json` the standard one, version 0.1, for tools that know nothing of gates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness import canonical
from harness.axes import place
from harness.plan import Plan

__all__ = ["TEST_RESULT", "VERDICT", "statements"]

STATEMENT = "https://in-toto.io/Statement/v1"
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
VERDICT = "urn:nvfp4-gates:verdict:v1"


def statements(plan: Plan, digest: str, verdict: Mapping[str, Any]) -> dict[str, bytes]:
    """Canonical bytes of both statements by file name. `digest` is the manifest's SHA-256."""
    return {
        "statement.json": canonical.dumps(_statement(digest, VERDICT, _verdict(plan, verdict))),
        "test-result.json": canonical.dumps(_statement(digest, TEST_RESULT, _test_result(plan, verdict))),
    }


def _statement(digest: str, kind: str, predicate: Mapping[str, Any]) -> dict[str, Any]:
    subject = {"name": "manifest.json", "digest": {"sha256": digest}}
    return {"_type": STATEMENT, "subject": [subject], "predicateType": kind, "predicate": predicate}


def _verdict(plan: Plan, verdict: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{name: verdict[name] for name in ("outcome", "binding", "not_binding_because", "void", "counts")},
        "gate": plan.gate,
        "engine": plan.engine,
        "difference": list(plan.difference),
        "rule": {name: plan.rule[name] for name in ("name", "version")},
        "plan_sha256": plan.digest(),
        "verdict_sha256": canonical.sha256_bytes(canonical.dumps(verdict)),
    }


def _test_result(plan: Plan, verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Each validity check (by code) and each axis is a test; why a run does not bind is a warning."""
    codes: dict[str, bool] = {}
    for check in verdict["checks"]:
        codes[check["code"]] = codes.get(check["code"], True) and check["ok"]
    tests = {f"validity {code}": ok for code, ok in codes.items()}
    tests |= {f"{place(row['concurrency'])} {row['name']}": row["pass"] for row in verdict["axes"]}
    warned = [f"not binding: {reason}" for reason in verdict["not_binding_because"]]
    return {
        "result": "FAILED" if verdict["outcome"] != "PASS" else "WARNED" if warned else "PASSED",
        "configuration": [{"name": "plan.json", "digest": {"sha256": plan.digest()}}],
        "passedTests": [name for name, ok in tests.items() if ok],
        "warnedTests": warned,
        "failedTests": [name for name, ok in tests.items() if not ok],
    }

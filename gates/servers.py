"""What a server says of its own arguments, for every gate that starts one: it must be what the plan says.

Engines that say nothing back lack `server_arguments`, and are not asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness.plan import Plan
from harness.records import Check, Leg

__all__ = ["SAYS", "checks", "configurations", "differences", "leg_checks", "same"]

SAYS = "server_arguments"
ASKED = ("timed", "sequential", "structure")
NO_DIFFERENCE = ("auto",)  # planned: left to the server, on purpose


def leg_checks(plan: Plan, leg: Leg) -> Iterator[Check]:
    """Every planned argument, as the server resolved it."""
    if SAYS not in plan.capabilities or leg.kind not in ASKED:
        return
    if leg.server is None:
        yield Check("server-arguments", leg.name, "no report", "the server's own arguments", False)
        return
    planned, resolved = leg.server.planned, leg.server.resolved
    wrong = [name for name, value in sorted(planned.items()) if not same(value, resolved.get(name))]
    seen = ", ".join(f"{name}={_shown(resolved.get(name))}" for name in wrong)
    required = ", ".join(f"{name}={planned[name]}" for name in wrong)
    every = f"{len(planned)} arguments as planned, in {leg.server.source}"
    yield Check("server-arguments", leg.name, seen or every, required or every, not wrong)


def checks(plan: Plan, legs: Sequence[Leg]) -> Iterator[Check]:
    """One configuration in every process of an arm. That the arms' differ is named, and voids nothing."""
    if SAYS not in plan.capabilities:
        return
    for arm in "AB":
        found = {
            tuple(sorted((name, _shown(value)) for name, value in leg.server.configuration.items()))
            for leg in legs
            if leg.arm == arm and leg.kind in ASKED and leg.server is not None
        }
        seen = " / ".join(", ".join(f"{name}={value}" for name, value in one) for one in sorted(found))
        need = "one engine configuration in every process of the arm"
        yield Check("server-configuration", f"arm {arm}", seen or "none", need, len(found) == 1)


def configurations(legs: Sequence[Leg]) -> dict[str, Mapping[str, str | None]]:
    """The engine configuration of each arm, out of its first process that said one."""
    found: dict[str, Mapping[str, str | None]] = {}
    for leg in legs:
        if leg.server is not None:
            found.setdefault(leg.arm, leg.server.configuration)
    return found


def differences(legs: Sequence[Leg]) -> list[str]:
    """In what the arms are differently configured engines, whether or not that was the lever."""
    found = configurations(legs)
    if len(found) != 2:
        return []
    first, second = found["A"], found["B"]
    return [
        f"engine-configuration difference: {name} is {_shown(first.get(name))} in A, {_shown(second.get(name))} in B"
        for name in sorted(first.keys() | second.keys())
        if first.get(name) != second.get(name)
    ]


def same(planned: str, resolved: str | None) -> bool:
    """`torch.` before a dtype and a list of one are spelling, not another value."""
    if resolved is None:
        return False
    plain = (resolved, resolved.removeprefix("torch."), resolved.removeprefix('["').removesuffix('"]'))
    return planned in NO_DIFFERENCE or planned in plain


def _shown(value: str | None) -> str:
    return "not said" if value is None else value

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import canonical
from harness.engines.base import Engine
from harness.engines.environment import Environment
from harness.engines.llama_cpp import LlamaCpp
from harness.errors import EXIT_USAGE, UsageError

BATCHED: dict[str, Any] = {"flags": {"slots": 16}, "env": {}}
ALONE: dict[str, Any] = {"flags": {"slots": 1}, "env": {}}


def metrics(busy: str) -> str:
    name = "llamacpp:n_busy_slots_per_decode"
    return f"# HELP {name} Average number of busy slots\n# TYPE {name} gauge\n{name} {busy}\n"


def props(slots: int) -> str:
    return f'{{"default_generation_settings":{{"n_ctx":1280}},"total_slots":{slots},"model_alias":"tiny"}}'


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layer": 2}, ("engine.options.layer=2", "layers", "remove it")),
        ({"layers": "2"}, ("engine.options.layers='2'", "whole number", "such as 1")),
        ({"threads": True}, ("engine.options.threads=True", "whole number")),
        ({"seed": -1}, ("engine.options.seed=-1", "from 0")),
        ({"hidden": 640.0}, ("engine.options.hidden=640.0", "whole number")),
        ({"heads": 7}, ("engine.options.heads=7", "hidden=640", "multiple of 14")),
        ({"kv_heads": 2}, ("engine.options.kv_heads=2", "heads=5", "divisor of 5")),
        ({"vocabulary": 242433}, ("engine.options.vocabulary=242433", "to 242432")),
    ],
)
def test_a_bad_option_is_refused_with_its_key_value_and_mend(
    options: dict[str, Any], words: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        LlamaCpp(options, tmp_path)
    assert (caught.value.code, caught.value.exit_code) == ("bad-value", EXIT_USAGE)
    assert all(word in caught.value.message for word in words), caught.value.message


@pytest.mark.parametrize("flags", [{"slot": 16}, {"slots": 0}, {"slots": "16"}, {"slots": True}, {"slot_context": 64}])
def test_an_arm_may_set_only_known_flags_to_sane_values(flags: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"arm\.flags\.slot"):
        LlamaCpp({}, tmp_path).launch({"flags": flags, "env": {}}, 8100, None, True)


def test_the_arms_differ_in_slots_alone(tmp_path: Path) -> None:
    engine = LlamaCpp({}, tmp_path)
    batched, alone = (engine.launch(arm, 8100, None, True) for arm in (BATCHED, ALONE))
    differing = [pair for pair in zip(batched.argv, alone.argv, strict=True) if pair[0] != pair[1]]
    assert differing == [("16", "1")]
    assert batched.argv[batched.argv.index("16") - 1] == "--slots"
    assert (batched.env, batched.cwd) == (alone.env, alone.cwd)


def test_options_reach_the_server_and_flags_overrule_them(tmp_path: Path) -> None:
    engine = LlamaCpp({"threads": 2, "ubatch": 128}, tmp_path)
    argv = list(engine.launch({"flags": {"ubatch": 64}, "env": {}}, 8123, None, True).argv)
    said = {name: argv[argv.index(name) + 1] for name in ("--threads", "--ubatch", "--port", "--slot-context")}
    assert said == {"--threads": "2", "--ubatch": "64", "--port": "8123", "--slot-context": "1280"}


def test_no_openmp_thread_may_spin_and_an_arm_can_set_variables(tmp_path: Path) -> None:
    env = LlamaCpp({"threads": 2}, tmp_path).launch({"flags": {}, "env": {"LLAMA_TRACE": 1}}, 8100, None, True).env
    assert (env["GOMP_SPINCOUNT"], env["OMP_WAIT_POLICY"], env["OMP_NUM_THREADS"]) == ("0", "PASSIVE", "2")
    assert env["LLAMA_TRACE"] == "1"


def test_prompts_are_drawn_from_printable_tokens_of_the_configured_vocabulary(tmp_path: Path) -> None:
    engine: Engine = LlamaCpp({"vocabulary": 5000}, tmp_path)
    assert (engine.first_token, engine.vocabulary) == (260, 5000)


def test_what_the_engine_lacks_is_not_claimed(tmp_path: Path) -> None:
    engine: Engine = LlamaCpp({}, tmp_path)
    assert engine.capabilities == {"arm_counters", "sequential_proof", "server_arguments", "token_ids"}
    assert engine.plan_report("", "") is None
    assert engine.model_gate_argv(BATCHED, None) is None
    assert engine.model_gate_report("") is None


@pytest.mark.parametrize(
    ("arm", "text", "active"),
    [
        (BATCHED, metrics("1") + "\n" + props(16), True),  # lone requests never fill a second slot; /props still proves
        (BATCHED, metrics("6.48205") + "\n" + props(1), False),
        (ALONE, metrics("1") + "\n" + props(1), True),
        (ALONE, metrics("1") + "\n" + props(16), False),
        (BATCHED, metrics("6.48205"), True),
        (BATCHED, metrics("1"), False),
        (BATCHED, metrics("17"), False),
        (ALONE, metrics("1"), True),
        (ALONE, metrics("1.01"), False),
        (ALONE, metrics("0"), False),
        (ALONE, "", False),
        (ALONE, "{broken", False),
        (ALONE, '{"total_slots":true}', False),
    ],
)
def test_slots_prove_the_arm(arm: dict[str, Any], text: str, active: bool, tmp_path: Path) -> None:
    proof = LlamaCpp({}, tmp_path).arm_proof(arm, "", text)
    assert proof is not None
    assert proof.active is active, proof


def test_slots_and_context_are_read_back_and_a_missing_page_says_nothing(tmp_path: Path) -> None:
    engine = LlamaCpp({}, tmp_path)
    said = engine.server_report(BATCHED, "", metrics("1") + "\n" + props(1))
    assert said is not None
    assert said.planned == {"slots": "16", "slot_context": "1280"}
    assert said.resolved == {"slots": "1", "slot_context": "1280"}
    silent = engine.server_report(BATCHED, "", metrics("1"))
    assert silent is not None
    assert set(silent.resolved.values()) == {None}


def test_the_proof_needs_props_beside_metrics(tmp_path: Path) -> None:
    assert list(LlamaCpp({}, tmp_path).proof_paths()) == ["/props"]


def test_without_its_environment_prepare_and_identity_name_the_command_that_makes_it(tmp_path: Path) -> None:
    engine = LlamaCpp({}, tmp_path)
    for ask in (engine.prepare, engine.identity):
        with pytest.raises(UsageError, match="python -m harness prepare engine=llama_cpp") as caught:
            ask()
        assert caught.value.code == "engine-not-installed"
    assert list(tmp_path.iterdir()) == []


def test_another_shape_or_seed_is_another_model_file(tmp_path: Path) -> None:
    options: list[dict[str, Any]] = [{}, {"seed": 1}, {"layers": 2}]
    assert len({tuple(LlamaCpp(each, tmp_path).cache_roots()) for each in options}) == 3
    assert LlamaCpp({"threads": 2}, tmp_path).cache_roots() == LlamaCpp({}, tmp_path).cache_roots()


def environment(parent: Path, *pins: str) -> Environment:
    return Environment(parent, "env", pins, ("left",), "do it again")


def test_an_environment_is_named_by_its_pins_in_any_order(tmp_path: Path) -> None:
    both = environment(tmp_path, "left==1", "right==2")
    assert both.root == environment(tmp_path, "right==2", "left==1").root
    assert both.root != environment(tmp_path, "left==1", "right==3").root


def test_an_environment_without_its_record_or_interpreter_is_not_there(tmp_path: Path) -> None:
    subject = environment(tmp_path, "left==1")
    subject.python.parent.mkdir(parents=True)
    subject.python.touch()
    assert subject.installed() is None
    record = {"packages": ["left==1"], "python": "3.11.7", "sha256": "0" * 64}
    (subject.root / "installed.json").write_bytes(canonical.dumps(record))
    found = subject.installed()
    assert found is not None
    assert (found.version("left"), found.version("right")) == ("1", None)
    subject.python.unlink()
    assert subject.installed() is None

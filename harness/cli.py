"""The command line. Every error leaves as a sentence and an exit code: 64 for bad usage, 70 for our own bug.

0 PASS, 1 FAIL, 2 VOID, 3 TAMPERED: 1 always means a complete, valid measurement that failed. `plans diff` and `plans
audit` measure nothing; theirs is 1 where two maps differ or an entry goes wrong.
"""

from __future__ import annotations

import argparse
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

from harness import pipe
from harness.errors import EXIT_BUG, EXIT_PASS, EXIT_USAGE, HarnessError, UsageError
from harness.plans.arguments import add_verbs
from harness.report.arguments import add_report_arguments

__all__ = ["main"]

HOST_WORD = re.compile(r"\+{0,2}host(\.\w+)?=")  # an override among file names


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError("usage", f"{message}; see `python -m harness {self._command()}--help`")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """`stop RUN --now host=dgx`: argparse would not find the words after an option, so options go first."""
        if self.get_default("options_first") and args is not None:
            args = sorted(args, key=lambda word: not word.startswith("-"))
        return super().parse_known_args(args, namespace)

    def _command(self) -> str:
        return "".join(f"{word} " for word in self.prog.split()[1:])


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="harness", description="Gates for NVFP4 kernels and serving engines.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    run = commands.add_parser("run", help="run a gate: `run gate=g4 engine=reference host.port=8100`")
    run.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides")
    run.add_argument("-m", "--multirun", action="store_true", help="one run for every combination of a=x,y")
    verify = commands.add_parser("verify", help="check a bundle's seal and recompute its verdict, offline")
    verify.add_argument("bundle", type=Path, nargs="?", help="folder of a sealed run")
    verify.add_argument("--key", type=Path, metavar="PUB", help="public Ed25519 key that must have signed it")
    verify.add_argument("--single-file", type=Path, metavar="PATH", help="write verify as one file that runs alone")
    sign = commands.add_parser("sign", help="sign a sealed bundle: `sign BUNDLE --key KEY`")
    sign.add_argument("bundle", type=Path, help="folder of a sealed run")
    sign.add_argument("--key", type=Path, required=True, metavar="KEY", help="private Ed25519 key, PEM or OpenSSH")
    report = commands.add_parser("report", help="a bundle as pages to read: `report BUNDLE --html report.html`")
    add_report_arguments(report)
    explain = commands.add_parser("explain", help="type, unit, default and meaning of a configuration key")
    explain.add_argument("key", nargs="?", default="")
    prepare = commands.add_parser("prepare", help="install what an engine needs: `prepare engine=llama_cpp`")
    prepare.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    floor = commands.add_parser("floor", help="measure what identical arms do: `floor host=dgx engine=vllm_cpp`")
    floor.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    floor.add_argument(
        "--from",
        nargs="+",
        dest="bundles",
        type=Path,
        default=[],
        metavar="BUNDLE",
        help="measure nothing: pool the residuals within the arms of these bundles",
    )
    host = commands.add_parser("host", help="`host prepare host=NAME`: put sources and environment on a GPU host")
    host.add_argument("verb", choices=["prepare"])
    host.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    status = commands.add_parser("status", help="the lease and the runs of a host: `status host=dgx`")
    status.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    attach = commands.add_parser("attach", help="watch a run that goes on and seal it: `attach RUN host=dgx`")
    stop = commands.add_parser("stop", help="ask a run to stop after its leg: `stop RUN host=dgx`")
    stop.set_defaults(options_first=True)
    stop.add_argument("--now", action="store_true", help="stop in the middle of the leg")
    for verb in (attach, stop):
        verb.add_argument("run", metavar="RUN", help="its name, or the beginning of it")
        verb.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    doctor = commands.add_parser("doctor", help="what of a host helps or hinders a run, and what to do")
    doctor.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    doctor.add_argument("--json", action="store_true", help="rows and facts as one JSON document")
    inspect = commands.add_parser(
        "inspect", help="read-only: matching lines, SHA-256 and size: `inspect host=dgx FILE`"
    )
    inspect.add_argument(
        "files", nargs="+", metavar="[host=NAME] FILE", help="a file called host=… is given as ./host=…"
    )
    inspect.add_argument("--match", metavar="REGEX", help="show the lines in which it is found; none is a fault")
    inspect.add_argument("--expect-sha256", action="append", default=[], metavar="HEX", help="once for each FILE")
    inspect.add_argument("--expect-size", action="append", default=[], type=int, metavar="N", help="bytes, likewise")
    inspect.add_argument("--json", action="store_true", help="the findings as one JSON document")
    add_verbs(commands.add_parser("plans", help="plan documents: show, import, export, diff, merge, freeze, audit"))
    return parser


def _run(options: argparse.Namespace) -> int:
    if options.multirun:
        from harness.sweep import sweep

        return sweep(options.overrides)
    from harness.controller import run
    from harness.display import terminal
    from harness.settings import compose_config

    return run(compose_config(options.overrides), Path.cwd(), terminal()).exit_code


def _verify(options: argparse.Namespace) -> int:
    if options.single_file is not None:
        from harness import single_file

        print(f"{single_file.write(options.single_file)}  {options.single_file}")
        return EXIT_PASS
    if options.bundle is None:
        raise UsageError("usage", "which bundle? see `python -m harness verify --help`")
    from harness import verify_command

    return verify_command.run(options)


def _sign(options: argparse.Namespace) -> int:
    from harness import ed25519, signing

    key = ed25519.read_private(options.key)
    done = signing.sign(options.bundle, key)
    print(f"{'signed' if done else 'signed already'} by key {key.public.keyid}")
    return EXIT_PASS


def _report(options: argparse.Namespace) -> int:
    from harness.report import command

    return command.run(options)


def _explain(options: argparse.Namespace) -> int:
    from harness.explain import explain

    print(explain(options.key))
    return EXIT_PASS


def _prepare(options: argparse.Namespace) -> int:
    from harness import settings, transport
    from harness.controller import PREPARE_S

    config = settings.compose_config(options.overrides)
    with closing(transport.connect(config.host)) as link:
        print(f"installing what {config.engine.name} needs on {link.where}")
        link.call("install", {"config": settings.dump(config)}, timeout_s=PREPARE_S)
    print(f"{config.engine.name} is ready")
    return EXIT_PASS


def _floor(options: argparse.Namespace) -> int:
    from harness import floor_making
    from harness.display import terminal
    from harness.floor_store import read
    from harness.settings import compose_config

    config = compose_config(options.overrides)
    if options.bundles:
        path = floor_making.from_bundles(options.bundles, (Path.cwd() / config.evidence.root).resolve())
    else:
        path = floor_making.make(config, Path.cwd(), terminal())
    print(f"floor {path}\ndigest {read(path)[1].digest}")
    return EXIT_PASS


def _host(options: argparse.Namespace) -> int:
    from harness.host_prepare import prepare_host
    from harness.settings import compose_config

    prepare_host(compose_config(options.overrides).host, lambda line: print(line, flush=True))
    return EXIT_PASS


def _status(options: argparse.Namespace) -> int:
    from harness.runs import status
    from harness.settings import compose_config

    print("\n".join(status(compose_config(options.overrides))))
    return EXIT_PASS


def _attach(options: argparse.Namespace) -> int:
    from harness.display import terminal
    from harness.runs import attach
    from harness.settings import compose_config

    return attach(compose_config(options.overrides), options.run, Path.cwd(), terminal()).exit_code


def _stop(options: argparse.Namespace) -> int:
    from harness.runs import stop
    from harness.settings import compose_config

    print(stop(compose_config(options.overrides), options.run, "now" if options.now else "after-leg"))
    return EXIT_PASS


def _doctor(options: argparse.Namespace) -> int:
    from harness.doctor.command import doctor

    return doctor(options.overrides, options.json)


def _inspect(options: argparse.Namespace) -> int:
    from harness.inspect import expectations, look, tell

    overrides = [word for word in options.files if HOST_WORD.match(word)]
    files = [word for word in options.files if not HOST_WORD.match(word)]
    if not files:
        raise UsageError("usage", f"{' '.join(overrides)} names no file; see `python -m harness inspect --help`")
    wanted = expectations(files, options.expect_sha256, options.expect_size)
    if not overrides:
        return tell(look(wanted, options.match), options.json)
    from harness import inspect_host
    from harness.settings import compose_config

    return tell(inspect_host.look(compose_config(overrides).host, wanted, options.match), options.json)


def _plans(options: argparse.Namespace) -> int:
    from harness.plans.verbs import run

    return run(options)


COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "attach": _attach,
    "explain": _explain,
    "floor": _floor,
    "host": _host,
    "plans": _plans,
    "doctor": _doctor,
    "inspect": _inspect,
    "prepare": _prepare,
    "report": _report,
    "run": _run,
    "sign": _sign,
    "status": _status,
    "stop": _stop,
    "verify": _verify,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; 141 where whoever read its output closed it early."""
    return pipe.quietly(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    try:
        options = _parser().parse_args(argv)
        return COMMANDS[options.command](options)
    except HarnessError as error:
        print(f"{error.code}: {error.message}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted before anything was started", file=sys.stderr)
        return EXIT_USAGE
    except Exception as error:
        if pipe.unread(error):
            raise
        traceback.print_exc()
        print("internal error: this is a bug of the harness; please report the lines above", file=sys.stderr)
        return EXIT_BUG

"""The command line of `plans`. Standard library alone: a reviewer's machine must be able to print the help."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_verbs"]

VERSIONS = ("0.6.13", "0.6.18", "0.7.4")
_FILE = "native or FlashInfer document, managed store or vLLM cache directory"


def add_verbs(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the verbs; `options.verb` holds the chosen one."""
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=type(parser))

    def verb(name: str, text: str) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
        added.add_argument("--json", action="store_true", help="canonical JSON on stdout; fields in docs/plans.md")
        return added

    show = verb("show", "validate a document, whatever machine it is of, and print what it says")
    show.add_argument("file", type=Path, metavar="FILE", help=_FILE)
    _add_import(verb("import", "check that a document fits a target, and write it as a native one"))
    _add_export(verb("export", "write a document in FlashInfer's format"))
    diff = verb("diff", "compare two maps of any format: exit 0 where they are equal, 1 where they differ")
    _add_two(diff)
    merge = verb("merge", "two documents of the same metadata as one; where both have a plan, A's is kept")
    _add_two(merge)
    _add_out(merge, required=True)
    freeze = verb("freeze", "copy a document, read-only, with its provenance beside it")
    freeze.add_argument("file", type=Path, metavar="FILE", help="native or FlashInfer document")
    _add_out(freeze, required=True)
    _add_stability(verb("stability", "tune several times in fresh processes: which keys differ, and their regret"))
    _add_audit(verb("audit", "say entry by entry what the real FlashInfer would do with a file, and what this does"))


def _add_stability(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    parser.add_argument("--tunings", type=_several, default=3, metavar="COUNT", help="2 or more, default 3")
    text = "a GEMM's N and K; may be repeated; default: the gates' four, which take a CPU hours"
    parser.add_argument("--shape", type=_shape, action="append", metavar="N,K", help=text)
    parser.add_argument("--max-tokens", type=_number, default=2048, metavar="M", help="largest M, default 2048")
    text = 'JSON object "M N K runner tactic": microseconds, L2-cold, of every tactic'
    parser.add_argument("--cold", type=Path, metavar="FILE", help=text)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the documents there as tuning-1.json, …")


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help=_FILE)
    parser.add_argument("--target", choices=("this", "gb10"), default="this", help="default: this machine's backend")
    _add_out(parser, required=False)
    _add_environment(parser)
    parser.add_argument("--like", type=Path, metavar="NATIVE", help="take the native metadata from this document")
    text = "the native metadata's {}, as the target process states it"
    parser.add_argument("--cuda", metavar="VERSION", help=text.format("cuda_runtime"))
    parser.add_argument("--driver", metavar="VERSION", help=text.format("cuda_driver"))
    parser.add_argument("--cutlass", metavar="VERSION", help=text.format("cutlass_version"))
    parser.add_argument("--build-id", metavar="ID", help=text.format("build_id"))
    parser.add_argument("--device", type=_number, default=0, metavar="N", help="device ordinal, default 0")
    parser.add_argument("--delay-us", type=_number, default=5000, metavar="N", help="VT_FP4_AUTOTUNE_DELAY_US, 5000")


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help=_FILE)
    parser.add_argument("--to", choices=("0.6.13", "0.7"), required=True)
    parser.add_argument("--target", choices=("gb10",), help="bind it to this environment")
    _add_environment(parser)
    _add_out(parser, required=True)


def _add_audit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="the autotune file that FlashInfer would open")
    parser.add_argument("--as", dest="version", choices=VERSIONS, required=True, help="the FlashInfer version")
    parser.add_argument("--target", choices=("gb10",), help="the machine; default: the one that wrote the file")
    _add_environment(parser)
    parser.add_argument(
        "--runners",
        type=_names,
        default=("CutlassFp4GemmRunner",),
        metavar="NAME,…",
        help="runner classes that the caller offers, in its order; default: CutlassFp4GemmRunner",
    )


def _add_two(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", type=Path, metavar="A", help=_FILE)
    parser.add_argument("b", type=Path, metavar="B", help=_FILE)


def _add_out(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--out", type=Path, required=required, metavar="PATH", help="the file to write; new unless …")
    parser.add_argument("--force", action="store_true", help="… an existing one may be replaced")


def _add_environment(parser: argparse.ArgumentParser) -> None:
    text = "a field of FlashInfer's metadata, such as gpu='NVIDIA GB10'; may be repeated"
    parser.add_argument("--env", type=_setting, action="append", default=[], metavar="FIELD=VALUE", help=text)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not FIELD=VALUE")
    return name, value


def _shape(text: str) -> tuple[int, int]:
    n, comma, k = text.partition(",")
    if not comma or not 0 < _number(n) < 2**31 or not 0 < _number(k) < 2**31 or int(k) % 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not N,K with K a multiple of 16")
    return int(n), int(k)


def _several(text: str) -> int:
    count = _number(text)
    if count < 2:
        raise argparse.ArgumentTypeError(f"{text} tuning cannot differ from itself; give 2 or more")
    return count


def _names(text: str) -> tuple[str, ...]:
    found = tuple(text.split(","))
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text!r} holds an empty name")
    return found


def _number(text: str) -> int:
    # argparse would take 1_0, blanks and a sign.
    if not (text.isascii() and text.isdigit()) or len(text) > 10:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at most 10 digits")
    return int(text)

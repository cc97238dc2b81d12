"""`python -m harness.client SPEC.json`: one closed-loop series in a process of its own.

Writes requests.jsonl.gz, load.json and, when asked, texts.jsonl into the spec's out_dir; JSON lines of progress go to
standard output. Exit 0 whenever the series was carried out (failed requests are data), 64 for a bad spec, 70 for a
fault of the client.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import select
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from harness import canonical
from harness.client.completion import Completion
from harness.client.load import LoadResult, run_load
from harness.client.loop import Progress
from harness.client.spec import read_prompts, read_spec
from harness.errors import EXIT_BUG, EXIT_USAGE, HarnessError, UsageError


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m harness.client SPEC.json", file=sys.stderr)
        return EXIT_USAGE
    try:
        spec = read_spec(Path(arguments[0]))
        result = run_load(spec.target, read_prompts(spec.prompts_file), _print_progress)
        write(spec.out_dir, result)
    except UsageError as error:
        print(f"{error.code}: {error.message}", file=sys.stderr)
        return EXIT_USAGE
    except HarnessError as error:
        print(f"{error.code}: {error.message}", file=sys.stderr)
        return EXIT_BUG
    return 0


def write(out_dir: Path, result: LoadResult) -> None:
    """The files of one series. UsageError `bad-spec` where the folder cannot be written."""
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        (out_dir / "requests.jsonl.gz").write_bytes(gzip_rows(record.to_json() for record in result.records))
        if result.completions:
            texts = b"".join(canonical.dumps(_text(completion)) for completion in result.completions)
            (out_dir / "texts.jsonl").write_bytes(texts)
        (out_dir / "load.json").write_bytes(canonical.dumps(result.report.to_json()))
    except OSError as error:
        raise UsageError("bad-spec", f"out_dir cannot be written: {error.strerror}") from error


def gzip_rows(rows: Iterable[dict[str, Any]]) -> bytes:
    """Deterministic: no name and no time in the header, so equal records are equal bytes."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as file:
        for row in rows:
            file.write(canonical.dumps(row))
    return buffer.getvalue()


def _text(completion: Completion) -> dict[str, Any]:
    # A lone surrogate is no character: UTF-8 cannot carry it. The record's digest is of the text as it came.
    text = completion.text.encode("utf-8", "replace").decode("utf-8")
    ids = completion.token_ids
    return {"index": completion.record.index, "text": text, "token_ids": None if ids is None else list(ids)}


def _print_progress(progress: Progress) -> None:
    """One short line; dropped when the reader is behind, since a full pipe must not stop the loop."""
    fd = sys.stdout.fileno()
    if select.select([], [fd], [], 0)[1]:
        os.write(fd, json.dumps(vars(progress)).encode("ascii") + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

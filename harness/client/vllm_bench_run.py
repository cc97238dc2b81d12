"""`python -m harness.client.vllm_bench_run SPEC.json BENCH.json`: one series by the real vLLM client.

SPEC is our client's own; BENCH names the client's command (`argv`), its environment (`env`) and the tokenizer's folder.
Writes requests.jsonl.gz, load.json, vllm-bench.json (its result as it came) and, when asked, texts.jsonl.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import canonical
from harness.client.__main__ import gzip_rows
from harness.client.load import Prompt
from harness.client.spec import Spec, read_prompts, read_spec
from harness.client.vllm_bench import Series, arguments, read_result
from harness.errors import EXIT_BUG, EXIT_USAGE, HarnessError, UsageError

RESULT = "vllm-bench.json"


def main(words: Sequence[str]) -> int:
    if len(words) != 2:
        print("usage: python -m harness.client.vllm_bench_run SPEC.json BENCH.json", file=sys.stderr)
        return EXIT_USAGE
    try:
        run(read_spec(Path(words[0])), json.loads(Path(words[1]).read_bytes()))
    except UsageError as error:
        print(f"{error.code}: {error.message}", file=sys.stderr)
        return EXIT_USAGE
    except HarnessError as error:
        print(f"{error.code}: {error.message}", file=sys.stderr)
        return EXIT_BUG
    return 0


def run(spec: Spec, bench: dict[str, Any]) -> None:
    """HarnessError `bench-failed` when the client ends without a result, `bench-result` when that is not valid."""
    prompts, target = read_prompts(spec.prompts_file), spec.target
    series = Series(len(prompts), target.concurrency, target.warmups, target.max_tokens)
    result = spec.out_dir / RESULT
    tail = arguments(
        series,
        port=target.port,
        model=target.model,
        tokenizer=Path(bench["tokenizer"]),
        prompts=_jsonl(spec),
        result=result,
    )
    argv = [*bench["argv"], "bench", "serve", *tail]
    print(f"command: {json.dumps(argv)}", flush=True)
    done = subprocess.run(argv, env=bench["env"], stdin=subprocess.DEVNULL, check=False, timeout=target.deadline_s)
    if done.returncode != 0 or not result.is_file():
        raise HarnessError("bench-failed", f"vllm bench serve ended with status {done.returncode}; its lines are above")
    keep(spec, series, prompts)


def keep(spec: Spec, series: Series, prompts: Sequence[Prompt]) -> None:
    """The client's result, which lies in the spec's folder, turned into our files beside it."""
    document = json.loads((spec.out_dir / RESULT).read_bytes())
    report, records = read_result(document, series, prompts)
    (spec.out_dir / "requests.jsonl.gz").write_bytes(gzip_rows(record.to_json() for record in records))
    if spec.target.keep_text:
        rows = [{"index": item.index, "text": text, "token_ids": None} for item, text in _texts(records, document)]
        (spec.out_dir / "texts.jsonl").write_bytes(b"".join(map(canonical.dumps, rows)))
    (spec.out_dir / "load.json").write_bytes(canonical.dumps(report.to_json()))


def _texts(records: Sequence[Any], document: dict[str, Any]) -> list[tuple[Any, str]]:
    texts = (text.encode("utf-8", "replace").decode("utf-8") for text in document["generated_texts"])
    return list(zip(records, texts, strict=True))


def _jsonl(spec: Spec) -> Path:
    """The client takes texts alone, and only from a file whose name ends in .jsonl."""
    rows = []
    for prompt in read_prompts(spec.prompts_file):
        if not isinstance(prompt.value, str):
            raise UsageError(
                "bad-prompts", "the vLLM client takes text prompts alone; set workload.tokenizer=engine to make them"
            )
        rows.append(json.dumps({"prompt": prompt.value}))
    path = spec.out_dir / "prompts.jsonl"
    path.write_text("".join(f"{row}\n" for row in rows), encoding="ascii")
    return path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

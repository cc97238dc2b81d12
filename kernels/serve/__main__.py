"""`python -m kernels.serve`: the reference engine as a server. Exit 0 after TERM, 1 with a sentence on stderr else."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from kernels.errors import KernelError
from kernels.serve.app import Application
from kernels.serve.engine import Engine, log_line
from kernels.serve.scheduler import Limits


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kernels.serve", description="Serve the reference engine.")
    parser.add_argument("--model", type=Path, required=True, help="weights file of `python -m kernels.serve.weights`")
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-num-seqs", type=_positive, default=32, help="sequences running at once")
    parser.add_argument("--max-num-batched-tokens", type=_positive, default=2048, help="tokens in one step")
    parser.add_argument(
        "--max-model-len", type=_positive, default=2048, help="prompt and completion tokens of a sequence"
    )
    parser.add_argument("--served-model-name", default="gate")
    options = parser.parse_args(argv)
    if options.max_num_batched_tokens > options.max_num_seqs * options.max_model_len:
        parser.error("--max-num-batched-tokens exceeds --max-num-seqs x --max-model-len: no step can be that large")
    return options


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def _bind(host: str, port: int) -> socket.socket:
    """A listening socket before anything is loaded, so that /health answers from the start."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # asyncio sets TCP_NODELAY on sockets that name their protocol only; with Nagle's algorithm and a delayed ACK
        # the second to last tokens of a stream arrived together, 40 ms after the first
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except (OSError, OverflowError) as error:
        raise KernelError("no-port", f"cannot listen on {host} port {port}: {error}; choose another --port") from error
    return listener


class _Server(uvicorn.Server):
    """uvicorn, except for signals: it raises TERM again after its shutdown, so that a clean stop would look killed."""

    def __init__(self, config: uvicorn.Config, engine: Engine) -> None:
        super().__init__(config)
        self._engine = engine

    def stop(self) -> None:
        self._engine.stop()
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


async def _serve(options: argparse.Namespace) -> None:
    limits = Limits(options.max_num_seqs, options.max_num_batched_tokens, options.max_model_len)
    engine = Engine(options.model, limits, os.environ, options.backend)
    with _bind(options.host, options.port) as listener:
        config = uvicorn.Config(
            Application(engine, options.served_model_name),
            http="httptools",
            ws="none",
            lifespan="off",
            loop="asyncio",
            access_log=False,
            log_level="warning",
            timeout_graceful_shutdown=1,
            timeout_keep_alive=600,
        )
        server = _Server(config, engine)
        running = asyncio.create_task(engine.run())
        running.add_done_callback(lambda _: server.stop())
        await server.serve(sockets=[listener])
        await running


def main(argv: Sequence[str] | None = None) -> int:
    try:
        asyncio.run(_serve(_arguments(argv)))
    except KernelError as error:
        log_line(f"kernels.serve: {error.message} [{error.code}]")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

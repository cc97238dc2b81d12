from __future__ import annotations

import gc
import socket
import threading
import time

import pytest

from harness.client.clock import StampClock
from harness.client.load import LoadResult, Prompt, Target, run_load
from harness.client.loop import Progress
from harness.client.metrics import timing_axes
from harness.errors import UsageError
from tests.servers.scripted import Request, Script, ScriptedServer, Wire, complete
from tests.servers.streams import DONE, END, HEAD, MS, chunk, event, framed, usage


def prompts(count: int) -> list[Prompt]:
    return [Prompt(index, f"digest-{index}", (index, 1, 2)) for index in range(count)]


def target(port: int, **changes: object) -> Target:
    values = {"host": "127.0.0.1", "port": port, "model": "gate", "concurrency": 1, "warmups": 0, "max_tokens": 3}
    return Target(**{**values, **changes})  # type: ignore[arg-type]


def load(script: Script, count: int = 1, **changes: object) -> tuple[LoadResult, ScriptedServer]:
    with ScriptedServer(script) as server:
        result = run_load(target(server.port, **changes), prompts(count))
    return result, server


def answer(request: Request, wire: Wire) -> None:
    complete(wire)


def errors(result: LoadResult) -> list[str | None]:
    return [record.error for record in result.records]


def test_every_prompt_is_sent_once_and_recorded_in_order() -> None:
    result, server = load(answer, 20, concurrency=4, warmups=4)
    assert errors(result) == [None] * 20
    assert [record.index for record in result.records] == list(range(20))
    assert [record.prompt_sha256 for record in result.records] == [f"digest-{index}" for index in range(20)]
    assert sorted(request.body["prompt"][0] for request in server.requests[4:]) == list(range(20))
    assert {request.path for request in server.requests} == {"/v1/completions"}
    assert {(record.prompt_tokens, record.output_tokens) for record in result.records} == {(5, 3)}
    assert (result.report.requests, result.report.itl_basis, result.report.warnings) == (20, "token", ())


def test_connections_are_opened_once_and_reused() -> None:
    _, server = load(answer, 20, concurrency=4, warmups=4)
    assert len({request.connection for request in server.requests}) == 4


@pytest.mark.parametrize("warmups", [0, 2, 4, 100])
def test_warm_ups_resend_prompt_0_stay_in_flight_limits_and_enter_no_record(warmups: int) -> None:
    """B15: a server whose first four answers hang until four are in flight at once stands for cold slots."""
    slow = threading.Barrier(min(warmups, 4) or 1)

    def script(request: Request, wire: Wire) -> None:
        if request.number < min(warmups, 4):
            slow.wait(timeout=30)
            wire.head()
            wire.piece(chunk("cold", finish="cold"))
        else:
            wire.head()
            wire.piece(chunk("warm", finish="warm"))
        wire.piece(usage(1) + DONE)
        wire.end()

    result, server = load(script, 64, concurrency=4, warmups=warmups)
    assert len(server.requests) == warmups + 64
    assert all(request.body["prompt"] == [0, 1, 2] for request in server.requests[:warmups])
    assert server.peak <= 4
    assert result.report.peak_in_flight <= 4
    assert {record.finish_reason for record in result.records} == {"warm"}
    assert result.report.warmups == warmups
    warned = [warning for warning in result.report.warnings if warning.startswith("warm-up below concurrency")]
    assert bool(warned) == (warmups < 4)


def test_failed_warm_ups_are_a_warning_not_a_record() -> None:
    def script(request: Request, wire: Wire) -> None:
        if request.number < 2:
            wire.raw(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
        else:
            complete(wire)

    result, _ = load(script, 2, warmups=2)
    assert errors(result) == [None, None]
    assert result.report.warnings == ("2 of 2 warm-ups failed, the first with http-503: Busy",)


def test_the_peak_is_the_concurrency_when_all_are_really_in_flight() -> None:
    together = threading.Barrier(3)

    def script(request: Request, wire: Wire) -> None:
        together.wait(timeout=30)
        complete(wire)

    result, server = load(script, 6, concurrency=3, warmups=3)
    assert (server.peak, result.report.peak_in_flight) == (3, 3)


def test_an_idle_connection_that_the_server_closed_is_replaced_before_use() -> None:
    """B13: the close has arrived before the next wave starts."""
    closed = threading.Event()

    def script(request: Request, wire: Wire) -> None:
        complete(wire)
        if request.number == 0:
            wire.close()
            closed.set()

    with ScriptedServer(script) as server:
        result = run_load(target(server.port, warmups=1), prompts(3))
    assert closed.is_set()
    assert errors(result) == [None] * 3


def test_silence_on_a_reused_connection_is_retried_once_and_its_clock_restarts() -> None:
    """B13: the server closes just as the next request arrives; the stale attempt's time is in no latency."""
    sent: list[int] = []

    def script(request: Request, wire: Wire) -> None:
        if request.on_connection == 1:
            sent.append(time.monotonic_ns())
            wire.close()
        else:
            complete(wire)

    result, server = load(script, 2)
    assert errors(result) == [None, None]
    assert [record.retries for record in result.records] == [0, 1]
    assert result.records[1].start_ns > sent[0]
    assert len(server.requests) == 3


def test_silence_on_a_fresh_connection_is_a_failure() -> None:
    result, server = load(lambda request, wire: wire.close())
    assert errors(result) == ["cut-stream: the server closed the connection before it answered (0 events had come)"]
    assert len(server.requests) == 1


def test_a_reset_after_four_tokens_is_never_retried() -> None:
    """B13, on a connection that has served before."""

    def script(request: Request, wire: Wire) -> None:
        if request.number == 0:
            complete(wire)
            return
        wire.head()
        wire.piece(b"".join(chunk(f"t{number}") for number in range(4)))
        wire.close()

    result, server = load(script, 2)
    assert len(server.requests) == 2
    assert errors(result) == [None, "cut-stream: the connection closed inside the response (4 events had come)"]
    assert result.records[1].retries == 0


def test_a_reset_by_the_peer_is_a_cut_stream_and_the_next_request_has_a_new_connection() -> None:
    def script(request: Request, wire: Wire) -> None:
        if request.number == 0:
            wire.head()
            wire.reset()
        else:
            complete(wire)

    result, _ = load(script, 2)
    first, second = errors(result)
    assert first is not None
    assert first.startswith("cut-stream: the connection")
    assert second is None


def test_a_dead_engine_leaves_each_request_a_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    result = run_load(target(port, concurrency=2, warmups=2), prompts(5))
    assert {error and error.partition(": ")[0] for error in errors(result)} == {"connect-failed"}
    assert "Connection refused" in str(errors(result)[0])


def test_a_host_without_an_address_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"no-such-host\.invalid"):
        run_load(Target("no-such-host.invalid", 1, "m", 1, 0, 1), prompts(1))


def test_a_hung_request_times_out_and_its_place_goes_on() -> None:
    def script(request: Request, wire: Wire) -> None:
        if request.number == 1:
            wire.head()
            wire.piece(chunk("t"))
            wire.wait_for_close()
        else:
            complete(wire)

    result, _ = load(script, 3, request_timeout_s=0.3)
    assert errors(result) == [None, "timeout: the request had not ended after 0.3 s", None]
    assert len(result.records[1].chunk_ns) == 1


def test_the_leg_s_deadline_ends_what_runs_and_what_waits() -> None:
    result, server = load(lambda request, wire: wire.wait_for_close(), 3, deadline_s=0.3)
    assert errors(result) == [
        "timeout: the leg's deadline passed before the request ended",
        "timeout: the leg's deadline passed before the request was sent",
        "timeout: the leg's deadline passed before the request was sent",
    ]
    assert len(server.requests) == 1
    assert all(axis.value is None for axis in timing_axes(result.records, result.report.duration_ns).values())


def test_a_server_that_goes_on_after_done_does_not_hold_the_place() -> None:
    def script(request: Request, wire: Wire) -> None:
        wire.head()
        wire.piece(chunk("t") + usage(1) + DONE)
        if request.number == 0:
            wire.wait_for_close()
        else:
            wire.end()

    result, _ = load(script, 2)
    assert errors(result) == [None, None]


def test_failures_inside_streams_and_refusals_are_data() -> None:
    """B08 over real sockets."""

    def script(request: Request, wire: Wire) -> None:
        kind = request.number
        if kind == 0:
            wire.raw(b'HTTP/1.1 500 Boom\r\nContent-Length: 29\r\n\r\n{"error":{"message":"no: x"}}')
        elif kind == 1:
            wire.head()
            wire.piece(chunk("a") + event({"error": {"message": "engine died"}}) + DONE)
            wire.end()
        elif kind == 2:
            wire.raw(b"SSH-2.0-OpenSSH_9.2\r\n")
            wire.close()
        else:
            complete(wire)

    result, _ = load(script, 4)
    found = errors(result)
    assert found[0] == "http-500: no: x"
    assert found[1] == "stream-error: engine died"
    assert found[2] is not None
    assert found[2].startswith("bad-http: ")
    assert found[3] is None


def test_answers_by_length_and_by_close_are_read_like_chunked_ones() -> None:
    body = b"".join([chunk("a"), chunk("b"), usage(2), DONE])

    def script(request: Request, wire: Wire) -> None:
        if request.number == 0:
            wire.raw(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        elif request.number == 1:
            wire.raw(b"HTTP/1.1 200 OK\r\n\r\n" + body)
            wire.close()
        else:
            wire.raw(b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + framed(body) + END)
            wire.close()

    result, _ = load(script, 3, keep_text=True)
    assert errors(result) == [None] * 3
    assert [completion.text for completion in result.completions] == ["ab"] * 3
    assert [record.retries for record in result.records] == [0, 0, 0]


def test_a_prompt_larger_than_the_socket_s_buffer_arrives_whole() -> None:
    big = Prompt(0, "digest", tuple(range(1_000_000)))
    with ScriptedServer(answer) as server:
        result = run_load(target(server.port), [big])
    assert errors(result) == [None]
    assert server.requests[0].body["prompt"] == list(range(1_000_000))


def test_events_of_one_write_share_a_stamp_and_say_so() -> None:
    def script(request: Request, wire: Wire) -> None:
        wire.raw(HEAD + framed(chunk("a") + chunk("b") + chunk("c") + usage(3) + DONE) + END)

    result, _ = load(script)
    record = result.records[0]
    assert record.shared_stamps == 2
    assert len(set(record.chunk_ns)) == 1


def test_a_wall_clock_step_in_mid_stream_moves_no_latency() -> None:
    """B17: the wall clock falls back 2 s after the second token; events go on in order, on the monotonic clock."""
    stepped = threading.Event()

    def behind() -> int:
        return 2_000 * MS if stepped.is_set() else 0

    class SteppedClock(StampClock):
        """Kernel and program read the same wall clock, which is set back while the stream goes on."""

        def stamp(self, kernel_ns: int | None, fallback_ns: int) -> int:
            return super().stamp(None if kernel_ns is None else kernel_ns - behind(), fallback_ns)

    def script(request: Request, wire: Wire) -> None:
        wire.head()
        for number in range(4):
            if number == 2:
                stepped.set()
            wire.piece(chunk(f"t{number}"))
            time.sleep(0.02)  # the pace of the stream: what is measured, not a wait
        wire.piece(usage(4) + DONE)
        wire.end()

    before = time.monotonic_ns()
    with ScriptedServer(script) as server:
        result = run_load(
            target(server.port), prompts(1), clock=SteppedClock(realtime=lambda: time.time_ns() - behind())
        )
    elapsed = time.monotonic_ns() - before
    record = result.records[0]
    assert record.error is None
    gaps = [after - before for before, after in zip(record.chunk_ns, record.chunk_ns[1:], strict=False)]
    assert all(gap >= 0 for gap in gaps)
    assert 40 * MS <= record.chunk_ns[-1] - record.chunk_ns[0] <= elapsed
    assert "loop" in result.report.stamp_source
    assert any("stepped by -2.0" in warning for warning in result.report.warnings)


def test_stamps_lie_between_the_server_s_send_and_the_leg_s_end() -> None:
    sent: list[int] = []

    def script(request: Request, wire: Wire) -> None:
        wire.head()
        for number in range(5):
            sent.append(time.monotonic_ns())
            wire.piece(chunk(f"t{number}"))
        wire.piece(usage(5) + DONE)
        wire.end()

    result, _ = load(script)
    now = time.monotonic_ns()
    record = result.records[0]
    stamps = [record.start_ns + offset for offset in record.chunk_ns]
    # 20 µs: what converting one clock into the other may cost.
    assert all(before - 20_000 <= stamp <= now for before, stamp in zip(sent, stamps, strict=True))


def test_texts_and_token_ids_are_kept_only_when_asked_for() -> None:
    def script(request: Request, wire: Wire) -> None:
        wire.head()
        wire.piece(chunk("a", token_ids=[11]) + chunk("b", token_ids=[12]) + usage(2) + DONE)
        wire.end()

    asked, _ = load(script, keep_text=True)
    assert [(item.text, item.token_ids) for item in asked.completions] == [("ab", (11, 12))]
    quiet, _ = load(script)
    assert quiet.completions == ()


def test_progress_ends_at_the_whole_and_the_collector_is_back() -> None:
    seen: list[Progress] = []
    collecting: list[bool] = []

    def note(progress: Progress) -> None:
        seen.append(progress)
        collecting.append(gc.isenabled())

    with ScriptedServer(answer) as server:
        run_load(target(server.port, concurrency=2, warmups=2), prompts(6), note)
    assert seen[-1].done == seen[-1].total == 6
    assert seen[-1].tokens >= 18
    assert not any(collecting)
    assert gc.isenabled()


def test_loop_lag_and_duration_are_recorded() -> None:
    result, _ = load(answer, 4, concurrency=2, warmups=2)
    ends = [record.start_ns + (record.done_ns or 0) for record in result.records]
    assert result.report.duration_ns == max(ends) - min(record.start_ns for record in result.records)
    assert result.report.loop_lag_p99_ns > 0

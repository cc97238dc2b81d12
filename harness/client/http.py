"""One HTTP/1.1 exchange as bytes: the request to send, and a response fed as it arrives. No sockets here.

httptools parses: it is uvicorn's llhttp, already pinned, strict about chunk sizes, and costs about 2 µs a read.
"""

from __future__ import annotations

import httptools

from harness.errors import HarnessError

__all__ = ["ResponseParser", "post_bytes"]


def post_bytes(host: str, port: int, path: str, body: bytes) -> bytes:
    """A complete POST of a JSON body; `host` may be an IPv6 address without brackets."""
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/json\r\n"
        f"Accept: text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("ascii") + body


class ResponseParser:
    """A response by chunked coding, by content length, or until the connection closes.

    `complete` is True once the message has ended, `reusable` whether the connection may carry another. Interim 1xx
    answers are passed over.
    """

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._framed = False
        self.status: int | None = None
        self.reason = ""
        self.complete = False
        self.reusable = False

    def feed(self, data: bytes) -> bytes:
        """The body bytes in `data`. HarnessError `bad-http` for what is not HTTP/1.1.

        Bytes after the response's end are nobody's: they only make the connection unusable.
        """
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.reusable = False
            if not self.complete:
                raise HarnessError("bad-http", f"the server's answer is not HTTP/1.1: {error}") from error
        if not self._body:
            return b""
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        return body

    def eof(self) -> None:
        """The peer closed. HarnessError `cut-stream` unless that was how the message had to end."""
        self.reusable = False
        if self.complete:
            return
        if self.status is None:
            raise HarnessError("cut-stream", "the server closed the connection before it answered")
        if self._framed:
            raise HarnessError("cut-stream", "the connection closed inside the response")
        self.complete = True

    # Callbacks of httptools.

    def on_message_begin(self) -> None:
        if self.complete:
            raise httptools.HttpParserError("bytes follow the end of the response")

    def on_status(self, status: bytes) -> None:
        self.reason += status.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in {b"content-length", b"transfer-encoding"}:
            self._framed = True

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status
            self.reusable = self._parser.should_keep_alive()
        else:
            self.reason = ""

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self.status is not None:
            self.complete = True

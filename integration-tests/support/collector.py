"""A collector of traces in the test: what a server sends by OTLP, over gRPC or HTTP."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector(TraceServiceServicer):
    """Keeps all that it is sent."""

    endpoint: str = ""
    messages: list[ExportTraceServiceRequest] = field(default_factory=list)

    def Export(self, request: ExportTraceServiceRequest, context: Any = None) -> ExportTraceServiceResponse:
        """Takes a message; the name is gRPC's."""
        self.messages.append(request)
        return ExportTraceServiceResponse()

    def spans(self, trace: str) -> dict[str, Span]:
        """The spans of one trace, by name."""
        scopes = (scope for message in self.messages for one in message.resource_spans for scope in one.scope_spans)
        return {span.name: span for scope in scopes for span in scope.spans if span.trace_id.hex() == trace}

    def services(self) -> set[str]:
        """What the senders are called."""
        attributes = (
            attribute for message in self.messages for one in message.resource_spans
            for attribute in one.resource.attributes
        )  # fmt: skip
        return {attribute.value.string_value for attribute in attributes if attribute.key == "service.name"}


@dataclass(frozen=True)
class Identity:
    """What a collector shows who it is by: PEM files."""

    cert: Path
    key: Path


@contextmanager
def by_grpc(identity: Identity | None = None) -> Iterator[Collector]:
    server = grpc.server(ThreadPoolExecutor(2))
    collector = Collector()
    add_TraceServiceServicer_to_server(collector, server)
    if identity is None:
        collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    else:
        credentials = grpc.ssl_server_credentials([(identity.key.read_bytes(), identity.cert.read_bytes())])
        collector.endpoint = f"https://127.0.0.1:{server.add_secure_port('127.0.0.1:0', credentials)}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(0).wait()


@contextmanager
def by_http(identity: Identity | None = None) -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the library's name
            body = self.rfile.read(int(self.headers["content-length"]))
            known = self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf"
            if known:
                collector.Export(ExportTraceServiceRequest.FromString(body))
            self.send_response(200 if known else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    if identity is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(identity.cert, identity.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        collector.endpoint = collector.endpoint.replace("http://", "https://")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

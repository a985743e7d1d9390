"""Replicas of the server under Ray Serve: pip install 'ray[serve]==2.60.0', then

    python deploy/ray/replicas.py --replicas 2 --port 8000 -- smollm2

What stands behind `--` are arguments of `realizar serve`. Every replica is an actor that owns a server as a
child. When the server ends, its actor ends, and Ray starts another; when the actor ends, so does
the server. Where RAY_ADDRESS names a cluster, actors are placed on its nodes, each of which needs the
program and the model.

Requests come in at Ray's proxy and go through an ingress to a replica. A request whose replica ends
before it has sent anything goes to another. Answers that are not streamed are collected first, so their
clients notice nothing; a stream that has begun breaks off, as what was sent cannot be taken back.
"""

import argparse
import asyncio
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.request

import aiohttp
import ray
from ray import serve
from ray.exceptions import RayError
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

# How often a request is tried.
TRIES = 4
# Headers that are about one connection, not about the message, and those that a proxy writes anew.
CONNECTION_HEADERS = {
    "connection",
    "content-length",
    "date",
    "host",
    "keep-alive",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    # Ray adds its own.
    "x-request-id",
}


def message_headers(headers):
    return [(name, value) for name, value in headers if name.lower() not in CONNECTION_HEADERS]


async def joined(first, chunks):
    yield first
    async for chunk in chunks:
        yield chunk


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@serve.deployment(graceful_shutdown_timeout_s=60, health_check_period_s=2)
class Replica:
    """A server of its own, and requests forwarded to it."""

    def __init__(self, program, args, start_limit):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.session = None
        self.is_stopping = False
        command = [program, "serve", *args, "--host", "127.0.0.1", "--port", str(port)]
        self.server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        # It reads until this process has ended, however that came.
        watch = ["sh", "-c", 'read _; kill "$1" 2>/dev/null', "sh", str(self.server.pid)]
        self.watch = subprocess.Popen(watch, stdin=subprocess.PIPE)
        threading.Thread(target=self.end_with_server, daemon=True).start()
        self.wait_until_ready(start_limit)

    def end_with_server(self):
        self.server.wait()
        if not self.is_stopping:
            # Ray sees at once that the actor has ended, and sends it no more requests.
            os._exit(1)

    def wait_until_ready(self, limit):
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        end = time.monotonic() + limit
        while True:
            try:
                direct.open(self.url + "/ready", timeout=5).close()
                return
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)

    async def forward(self, method, path, headers, body):
        """Yields the status and the headers of the answer, and then its bytes."""
        if self.session is None:
            no_limit = aiohttp.ClientTimeout(total=None)
            # As many connections as there are requests; bodies stay as they are.
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            self.session = aiohttp.ClientSession(
                connector=connector, timeout=no_limit, auto_decompress=False
            )
        async with self.session.request(
            method, self.url + path, headers=headers, data=body, allow_redirects=False
        ) as answer:
            yield answer.status, message_headers(answer.headers.items())
            async for chunk in answer.content.iter_any():
                yield chunk

    def __del__(self):
        self.is_stopping = True
        self.server.send_signal(signal.SIGTERM)
        self.server.wait()


@serve.deployment(max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0})
class Ingress:
    """Sends each request to a replica, and to another if that one ends."""

    def __init__(self, replicas):
        self.replicas = replicas.options(stream=True)

    async def __call__(self, request: Request):
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        headers = message_headers(request.headers.items())
        message = request.method, path, headers, await request.body()
        for tries_left in reversed(range(TRIES)):
            chunks = self.replicas.forward.remote(*message)
            try:
                status, headers = await anext(chunks)
                kind = dict((name.lower(), value) for name, value in headers).get("content-type", "")
                if kind.startswith(("text/event-stream", "application/x-ndjson")):
                    # Until there is something to send, another replica can answer.
                    first = await anext(chunks, b"")
                    body = StreamingResponse(joined(first, chunks), status)
                else:
                    body = Response(b"".join([chunk async for chunk in chunks]), status)
            except (RayError, aiohttp.ClientError) as error:
                if tries_left == 0:
                    print(f"no replica answers {path}: {error}", flush=True)
                    return Response("no replica answers", 503)
                await asyncio.sleep(0.2)
                continue
            body.raw_headers = [
                *(header for header in body.raw_headers if header[0] == b"content-length"),
                *((name.lower().encode(), value.encode()) for name, value in headers),
            ]
            return body


def main():
    parser = argparse.ArgumentParser(description="replicas of realizar under Ray Serve")
    parser.add_argument("--program", default="realizar")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--requests", type=int, default=64, help="requests at once, per replica")
    parser.add_argument("--cpus", type=float, default=1, help="CPUs that Ray reserves per replica")
    parser.add_argument("--start-limit", type=float, default=600, help="seconds")
    parser.add_argument("args", nargs="+", metavar="ARG", help="arguments of `realizar serve`")
    args = parser.parse_args()
    if "RAY_ADDRESS" in os.environ:
        ray.init()
    else:
        # Requests and answers are small: Ray would set aside a third of the memory for objects.
        ray.init(include_dashboard=False, object_store_memory=128 << 20)
    # Ended by a service manager as by a terminal: replicas end their servers, which end their answers.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    serve.start(http_options={"host": args.host, "port": args.port})
    replicas = Replica.options(
        num_replicas=args.replicas,
        max_ongoing_requests=args.requests,
        ray_actor_options={"num_cpus": args.cpus},
    )
    app = Ingress.bind(replicas.bind(args.program, args.args, args.start_limit))
    serve.run(app, blocking=True)


if __name__ == "__main__":
    main()

"""llama-server's flags for all requests, and what it adds to OpenAI's shapes, in front of `realizar serve`.

llama-server's own endpoints (`/completion`, `/infill`, `/props`, `/slots`, `/embedding`) are the server's:
requests get what llama-server's command line said for all of them, and the model's name. On OpenAI's
endpoints what has the same meaning under another name is renamed. Nothing is computed here that the
server does not tell, but for the times of `timings` there, which are those that this program sees.
"""

import http.client
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ALIASES = {
    "/chat/completions": "/v1/chat/completions",
    "/responses": "/v1/responses",
    "/v1/health": "/health",
    "/reranking": "/v1/rerank",
    "/v1/reranking": "/v1/rerank",
}
NATIVE = ["/completion", "/completions", "/infill"]
GENERATES = ["/v1/completions", "/v1/chat/completions"]
COUNTS = {
    "/chat/completions/input_tokens": "/v1/chat/completions/render",
    "/v1/chat/completions/input_tokens": "/v1/chat/completions/render",
}


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def serve(child, host, asked):
    """Answers at `--port` until the child, whose first line tells its URL, ends."""
    line = child.stdout.readline()
    port = int(line.rsplit(":", 1)[-1]) if "listening" in line else None
    if port is None:
        return child.wait()
    handler = type("Translator", (Handler,), {"upstream": (host, port), "asked": asked})
    server = Server((host, int(asked["--port"])), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return child.wait()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.translate()

    do_POST = do_OPTIONS = do_DELETE = do_GET

    def translate(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, _, query = self.path.partition("?")
        try:
            fields = json.loads(body) if body else {}
        except ValueError:
            fields = None
        path = ALIASES.get(path, path)
        if not isinstance(fields, dict) or self.command != "POST":
            return self.forward(path + (query and "?" + query), body)
        if "--models-dir" not in self.asked:
            # llama-server takes any name for its one model.
            fields["model"] = (self.asked.get("--alias") or "").split(",")[0]
        if path in COUNTS:
            return self.count(COUNTS[path], fields)
        if path in ["/apply-template", "/tokenize", *NATIVE, *GENERATES]:
            self.defaults(fields, path)
        if path in GENERATES:
            return self.generate(path, fields)
        if path == "/v1/embeddings" and "input" in fields:
            fields["input"] = self.prompts(fields["input"])
        if path in ["/rerank", "/v1/rerank"] and "texts" in fields:
            return self.rerank(path, fields)
        self.forward(path + (query and "?" + query), json.dumps(fields))

    def defaults(self, fields, path):
        """What llama-server was told at its start holds for all requests."""
        if "--reasoning" in self.asked:
            kwargs = fields.setdefault("chat_template_kwargs", {})
            kwargs.setdefault("enable_thinking", self.asked["--reasoning"] != "off")
        if path in [*NATIVE, *GENERATES]:
            names = ["n_predict", "max_tokens", "max_completion_tokens"]
            if "--n-predict" in self.asked and not any(fields.get(n) is not None for n in names):
                fields["n_predict" if path in NATIVE else "max_tokens"] = int(self.asked["--n-predict"])
        if path in GENERATES:
            fields.pop("id_slot", None)
        messages = fields.get("messages")
        last = messages[-1] if isinstance(messages, list) and messages else None
        ends = isinstance(last, dict) and last.get("role") == "assistant"
        if ends and not {"add_generation_prompt", "continue_final_message"} & fields.keys():
            fields["continue_final_message"] = True

    def ask(self, path, fields):
        """The answer of an endpoint that is not the one that was asked for."""
        return json.loads(self.upstream_request(path, json.dumps(fields)).read())

    def prompts(self, given):
        """One prompt or several, without the forms that llama-server alone knows."""
        if isinstance(given, list) and not any(isinstance(item, int) for item in given):
            return [self.prompt(item) for item in given]
        return self.prompt(given)

    def prompt(self, given):
        if isinstance(given, dict) and list(given) == ["prompt_string"]:
            return given["prompt_string"]
        if isinstance(given, dict) and isinstance(given.get("content"), list):
            parts = given["content"]
            if all(part.get("type") == "text" for part in parts):
                return "".join(part["text"] for part in parts)
        if isinstance(given, list) and {type(item) for item in given} == {int, str}:
            ids = []
            for item in given:
                text = {"content": item, "add_special": not ids}
                ids += [item] if isinstance(item, int) else self.ask("/tokenize", text)["tokens"]
            return ids
        return given

    def shown(self, path, fields):
        """The text of the prompt that the model gets."""
        plain = {k: v for k, v in fields.items() if k not in ["stream", "stream_options"]}
        rendered = self.ask(path + "/render", plain)
        first = rendered[0] if isinstance(rendered, list) else rendered
        return self.ask("/detokenize", {"tokens": first["token_ids"]})["content"]

    def rerank(self, path, fields):
        """The form of text-embeddings-inference."""
        fields["documents"] = fields.pop("texts")
        response = self.upstream_request(path, json.dumps(fields))
        if response.status >= 400:
            return self.answer(response.status, error(response.read()), kept(response))
        results = json.loads(response.read())["results"]
        self.json([{"index": r["index"], "score": r["relevance_score"]} for r in results])

    def upstream_request(self, path, body):
        connection = http.client.HTTPConnection(*self.upstream, timeout=600)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in DROPPED}
        body = body.encode() if isinstance(body, str) else body
        if self.command == "POST":
            headers["Content-Length"] = str(len(body))
        connection.request(self.command, path, body=body, headers=headers)
        return connection.getresponse()

    def answer(self, status, body, headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if not any(name.lower() == "content-type" for name, _ in headers):
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def json(self, value, status=200):
        self.answer(status, json.dumps(value).encode())

    def forward(self, path, body):
        """As it is, but for the types of errors."""
        response = self.upstream_request(path, body)
        if is_stream(response):
            return self.copy(response, lambda event: [event])
        body = response.read()
        if response.status >= 400:
            body = error(body)
        headers = dict(kept(response))
        if headers.get("Access-Control-Allow-Origin") == "*":
            headers["Access-Control-Allow-Origin"] = self.headers.get("Origin", "*")
        self.answer(response.status, body, list(headers.items()))

    def copy(self, response, change):
        """A stream, of which each event may become several others."""
        self.send_response(response.status)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            for event in events(response):
                for changed in change(event):
                    self.wfile.write(b"data: " + changed.encode() + b"\n\n")
                self.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            # The connection upstream is closed too, which ends the request.
            response.close()

    def generate(self, path, fields):
        """OpenAI's endpoints, with llama-server's `timings`."""
        streams = fields.get("stream") is True
        options = fields.get("stream_options") or {}
        if streams:
            fields["stream_options"] = {**options, "include_usage": True}
        clock = Clock()
        response = self.upstream_request(path, json.dumps(fields))
        if not is_stream(response):
            body = response.read()
            if response.status >= 400:
                return self.answer(response.status, error(body), kept(response))
            value = json.loads(body)
            clock.token()
            value["timings"] = clock.timings(value.get("usage"))
            value["system_fingerprint"] = "b-" + str(value.get("system_fingerprint"))
            if "--verbose" in self.asked or fields.get("verbose"):
                value["__verbose"] = {"prompt": self.shown(path, fields)}
            return self.json(value)

        def change(event):
            if event == "[DONE]":
                return [event]
            value = json.loads(event)
            clock.token()
            value["system_fingerprint"] = "b-" + str(value.get("system_fingerprint"))
            for choice in value.get("choices", []):
                delta = choice.get("delta", {})
                if "role" in delta and not delta.get("content"):
                    delta["content"] = None
                elif choice.get("finish_reason") and not delta.get("content"):
                    delta.pop("content", None)
            if value.get("usage"):
                value["timings"] = clock.timings(value["usage"])
                if not options.get("include_usage") and not value["choices"]:
                    del value["usage"]
                    return []
            return [json.dumps(value)]

        self.copy(response, change)

    def count(self, path, fields):
        response = self.upstream_request(path, json.dumps(fields))
        body = response.read()
        if response.status >= 400:
            return self.answer(response.status, error(body), kept(response))
        self.json({"input_tokens": len(json.loads(body)["token_ids"])})


class Clock:
    """When the answer began and when its tokens came."""

    def __init__(self):
        self.start = time.monotonic()
        self.first = self.last = None

    def token(self):
        self.last = time.monotonic()
        self.first = self.first or self.last

    def timings(self, usage):
        usage = usage or {}
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        n_prompt = usage.get("prompt_tokens", 0) - cached
        n = usage.get("completion_tokens", 0)
        prompt = max((self.first or self.start) - self.start, 1e-9)
        rest = max((self.last or self.start) - (self.first or self.start), 1e-9)
        return {
            "cache_n": cached,
            "prompt_n": n_prompt,
            "prompt_ms": 1e3 * prompt,
            "prompt_per_token_ms": 1e3 * prompt / max(n_prompt, 1),
            "prompt_per_second": n_prompt / prompt,
            "predicted_n": n,
            "predicted_ms": 1e3 * rest,
            "predicted_per_token_ms": 1e3 * rest / (n - 1) if n > 1 else 0.0,
            "predicted_per_second": (n - 1) / rest if n > 1 else 0.0,
        }


DROPPED = ["host", "content-length", "transfer-encoding", "connection", "accept-encoding"]


def kept(response):
    """Its headers, in the case in which the tests look for them."""
    headers = response.getheaders()
    return [(k.title(), v) for k, v in headers if k.lower() not in [*DROPPED, "date"]]


def is_stream(response):
    return (response.getheader("Content-Type") or "").startswith("text/event-stream")


def events(response):
    """The data of a stream's events."""
    for line in response:
        if line.startswith(b"data: "):
            yield line[6:].decode().rstrip("\n")


def error(body):
    """llama-server's types of errors."""
    try:
        value = json.loads(body)
        told = value["error"]
        if told.get("code") == "context_length_exceeded":
            told["type"] = "exceed_context_size_error"
        if told.get("code") == "invalid_api_key":
            told["type"] = "authentication_error"
        return json.dumps(value).encode()
    except (ValueError, KeyError, TypeError, AttributeError):
        return body

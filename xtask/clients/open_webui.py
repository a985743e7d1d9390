"""Open WebUI in front of the server, by its connection to OpenAI's API and by that to Ollama's.

It runs without accounts and without a browser: what is asked is what its page asks. Both connections
lead to the same server, whose models it lists once by each; those by Ollama's have a tag.
"""

import json
import os
import pathlib
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import abilities as a

CONNECTIONS = {"openai": a.MODEL, "ollama": f"{a.MODEL}:latest"}
START_LIMIT = 180

direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def shown():
    """The variables that docs/use-it-from.md sets for it."""
    words = shlex.split(pathlib.Path(a.SNIPPET).read_text())
    return dict(word.split("=", 1) for word in words[: words.index("open-webui")])


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class WebUI:
    """A process of its own, with its data in a folder that is removed at the end."""

    def __init__(self, folder):
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        environment = {
            **os.environ,
            **shown(),
            "DATA_DIR": str(folder),
            "OLLAMA_BASE_URL": a.URL,
            "WEBUI_AUTH": "False",
            "WEBUI_SECRET_KEY": "none",
            # Nothing is fetched, and nothing but this server gives embeddings.
            "OFFLINE_MODE": "True",
            "HF_HUB_OFFLINE": "1",
            "RAG_EMBEDDING_ENGINE": "openai",
            "DO_NOT_TRACK": "true",
            "SCARF_NO_ANALYTICS": "true",
            "ANONYMIZED_TELEMETRY": "false",
        }
        program = pathlib.Path(sys.executable).with_name("open-webui")
        self.log = open(folder / "log", "w+")
        self.process = subprocess.Popen(
            [program, "serve", "--host", "127.0.0.1", "--port", str(port)],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )
        self.token = None

    def wait(self):
        end = time.monotonic() + START_LIMIT
        while True:
            try:
                self.get("/health")
                break
            except OSError:
                if self.process.poll() is not None or time.monotonic() > end:
                    self.log.seek(0)
                    sys.stderr.write(self.log.read()[-4000:])
                    raise
                time.sleep(0.5)
        self.token = self.post("/api/v1/auths/signin", {"email": "", "password": ""})["token"]

    def open(self, path, body=None):
        headers = {"content-type": "application/json"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        data = None if body is None else json.dumps(body).encode()
        try:
            return direct.open(urllib.request.Request(self.url + path, data, headers), timeout=a.TIMEOUT)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.code}: {error.read().decode()[:500]}") from error

    def get(self, path):
        with self.open(path) as answer:
            return json.load(answer)

    def post(self, path, body):
        with self.open(path, body) as answer:
            return json.load(answer)

    def events(self, body):
        with self.open("/api/chat/completions", {**body, "stream": True}) as answer:
            for line in answer:
                if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                    yield json.loads(line[6:])

    def stop(self):
        self.process.terminate()
        self.process.wait()


def request(model, messages=a.MESSAGES, max_tokens=a.MAX_TOKENS, **more):
    # Where its page says how to sample, by API.
    sampling = {"temperature": 0}
    if model == CONNECTIONS["ollama"]:
        sampling = {"options": sampling}
    return {"model": model, "messages": messages, "max_tokens": max_tokens, **sampling, **more}


def ask(model, messages=a.MESSAGES, **more):
    body = {**request(model, messages, **more), "stream": False}
    answer = ui.post("/api/chat/completions", body)
    a.check("choices" in answer, answer)
    return answer["choices"][0]


def each(ability):
    """Tries it by either connection, and says which one it was that failed."""

    def tried():
        for name, model in CONNECTIONS.items():
            try:
                ability(model)
            except Exception as error:
                raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error

    return tried


def document():
    """The variables of the document are those of the connection that its page lists."""
    config = ui.get("/openai/config")
    a.check(config["OPENAI_API_BASE_URLS"] == [a.API], config)
    a.check(config["OPENAI_API_KEYS"] == [a.KEY], config)


def models():
    listed = {model["id"]: model["owned_by"] for model in ui.get("/api/models")["data"]}
    for name, model in CONNECTIONS.items():
        a.check(listed.get(model) == name, listed)


def chat(model):
    a.check(ask(model)["message"]["content"].strip())


def stream(model):
    parts = []
    for event in ui.events(request(model)):
        for choice in event.get("choices", []):
            parts.append(choice["delta"].get("content") or "")
    a.check(sum(map(bool, parts)) > 4, parts)
    a.check("".join(parts) == ask(model)["message"]["content"], parts)


def tool(model):
    function = {"name": a.TOOL_NAME, "description": a.TOOL_TEXT, "parameters": a.TOOL_SCHEMA}
    more = {"tools": [{"type": "function", "function": function}], "max_tokens": 200}
    if model == CONNECTIONS["openai"]:
        more["tool_choice"] = {"type": "function", "function": {"name": a.TOOL_NAME}}
        call = ask(model, a.WEATHER, **more)["message"]["tool_calls"][0]["function"]
        a.check_call(call["name"], call["arguments"])
        return
    # Ollama's API has no choice that must be followed.
    message = ask(model, a.WEATHER, **more)["message"]
    for call in message.get("tool_calls") or []:
        a.check(call["function"]["name"] == a.TOOL_NAME, call)
    a.check(message.get("content") or message.get("tool_calls"), message)


def schema(model):
    form = {"name": "pick", "strict": True, "schema": a.SCHEMA}
    more = {"response_format": {"type": "json_schema", "json_schema": form}, "max_tokens": 100}
    a.check_pick(json.loads(ask(model, a.PICK, **more)["message"]["content"]))


def embed(model):
    name = a.EMBEDDING_MODEL + (":latest" if model == CONNECTIONS["ollama"] else "")
    answer = ui.post("/api/embeddings", {"model": name, "input": ["one text", "another"]})
    one, other = (item["embedding"] for item in answer["data"])
    a.check_vectors(one, other)


def cancel(model):
    long = [{"role": "user", "content": "Tell a very long story about the sea, in many chapters."}]
    events = ui.events(request(model, long, 1500))
    next(events)
    a.check_cancel(events.close)


with tempfile.TemporaryDirectory() as folder:
    ui = WebUI(pathlib.Path(folder))
    try:
        ui.wait()
        abilities = {f.__name__: each(f) for f in (chat, stream, tool, schema, embed, cancel)}
        a.run(document=document, models=models, **abilities)
    finally:
        ui.stop()

"""What the scripts of `cargo xtask clients` have in common.

Each script is called with the server's URL, the model's name, that of a model for embeddings and, if
docs/use-it-from.md has lines for the client that no interpreter runs, a file with these. It prints a line of
JSON for every ability that it tried.
"""

import json
import sys
import time
import traceback
import urllib.request

URL, MODEL, EMBEDDING_MODEL = sys.argv[1:4]
SNIPPET = next(iter(sys.argv[4:]), None)
API = URL + "/v1"
KEY = "none"
TIMEOUT = 300

QUESTION = "Why is the sky blue? Answer in one sentence."
MESSAGES = [{"role": "user", "content": QUESTION}]
MAX_TOKENS = 48

# Answers that a grammar bounds: even a small model comes to an end.
SCHEMA = {
    "type": "object",
    "properties": {
        "color": {"type": "string", "enum": ["red", "green", "blue"]},
        "count": {"type": "integer", "enum": [1, 2, 3]},
    },
    "required": ["color", "count"],
    "additionalProperties": False,
}
PICK = [{"role": "user", "content": "Pick a color and a number from one to three."}]

TOOL_NAME = "get_weather"
TOOL_TEXT = "Tells the weather of a city."
TOOL_SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome", "Oslo"]},
        "days": {"type": "integer", "enum": [1, 2, 3]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = [{"role": "user", "content": "How is the weather in Rome tomorrow?"}]


class Skip(Exception):
    """The ability cannot be tried, and why."""


def check(condition, *found):
    if not condition:
        raise AssertionError(" ".join(map(str, found)) or "not as expected")


def check_pick(value):
    check(isinstance(value, dict), value)
    check(set(value) == {"color", "count"}, value)
    check(value["color"] in ("red", "green", "blue") and value["count"] in (1, 2, 3), value)


def check_call(name, arguments):
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    check(name == TOOL_NAME, name)
    check(set(arguments) == {"city", "days"}, arguments)
    check(arguments["city"] in ("Paris", "Rome", "Oslo") and arguments["days"] in (1, 2, 3), arguments)


def check_vectors(one, other):
    check(len(one) == len(other) > 0, len(one), len(other))
    check(all(isinstance(x, float) for x in one), one[:4])
    check(list(one) != list(other), "two texts have the same vector")


def running():
    """How many requests run, as the server's metrics tell."""
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(URL + "/metrics") as page:
        lines = page.read().decode().splitlines()
    values = [line.split()[-1] for line in lines if line.startswith("vllm:num_requests_running")]
    check(values, "/metrics has no vllm:num_requests_running")
    return sum(map(float, values))


def check_cancel(leave):
    """A stream has begun: it runs, and no more after `leave`, long before it would have ended."""
    check(running() >= 1, "the stream does not run")
    leave()
    for _ in range(100):
        if running() == 0:
            return
        time.sleep(0.05)
    raise AssertionError("the request still runs five seconds after its client left")


def run(**abilities):
    """Tries each ability and prints what came of it."""
    for name, ability in abilities.items():
        try:
            note, result = ability() or "", "ok"
        except Skip as reason:
            note, result = str(reason), "skipped"
        except Exception as error:
            traceback.print_exc()
            note, result = f"{type(error).__name__}: {error}", "failed"
        print(json.dumps({"ability": name, "result": result, "note": note}), flush=True)

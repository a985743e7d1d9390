"""Ollama's package for Python, against Ollama's API."""

import abilities as a
import ollama

client = ollama.Client(host=a.URL, timeout=a.TIMEOUT)
OPTIONS = {"temperature": 0, "num_predict": a.MAX_TOKENS}


def ask():
    return client.chat(model=a.MODEL, messages=a.MESSAGES, options=OPTIONS)


def chat():
    answer = ask()
    a.check(answer.message.content.strip(), answer)
    a.check(answer.done and answer.done_reason in ("stop", "length"), answer)
    a.check(0 < answer.eval_count <= a.MAX_TOKENS, answer)
    a.check(answer.prompt_eval_count > 0 and answer.total_duration > 0, answer)
    names = [model.model for model in client.list().models]
    a.check(f"{a.MODEL}:latest" in names, names)
    shown = client.show(f"{a.MODEL}:latest")
    a.check("completion" in shown.capabilities and shown.template, shown)
    a.check(shown.modelinfo[f"{shown.details.family}.context_length"] > 0, shown.modelinfo)
    a.check(client.ps().models[0].context_length > 0)
    text = client.generate(model=a.MODEL, prompt=a.QUESTION, options=OPTIONS)
    a.check(text.response == answer.message.content, text)
    try:
        client.chat(model="unknown", messages=a.MESSAGES)
    except ollama.ResponseError as error:
        a.check(error.status_code == 404 and "unknown" in error.error, error)
    else:
        a.check(False, "an unknown model answers")


def stream():
    chunks = list(client.chat(model=a.MODEL, messages=a.MESSAGES, options=OPTIONS, stream=True))
    text = "".join(chunk.message.content for chunk in chunks)
    a.check(len(chunks) > 4, len(chunks))
    a.check(text == ask().message.content, text)
    a.check(chunks[-1].done and chunks[-1].eval_count > 0, chunks[-1])
    states = [state.status for state in client.pull(a.MODEL, stream=True)]
    a.check(states[-1] == "success", states)


def tool():
    function = {"name": a.TOOL_NAME, "description": a.TOOL_TEXT, "parameters": a.TOOL_SCHEMA}
    call = {"function": {"name": a.TOOL_NAME, "arguments": {"city": "Rome", "days": 1}}}
    answer = client.chat(
        model=a.MODEL,
        messages=a.WEATHER
        + [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_name": a.TOOL_NAME, "content": "Sunny, 21 degrees."},
        ],
        tools=[{"type": "function", "function": function}],
        options=OPTIONS,
    )
    a.check(answer.message.content or answer.message.tool_calls, answer)
    # The API has no choice that must be followed: the model may answer by a text as well.
    answer = client.chat(
        model=a.MODEL,
        messages=a.WEATHER,
        tools=[{"type": "function", "function": function}],
        options={"temperature": 0, "num_predict": 200},
    )
    for call in answer.message.tool_calls or []:
        a.check(call.function.name == a.TOOL_NAME, call)
        a.check(isinstance(call.function.arguments, dict), call)
    a.check(answer.message.content or answer.message.tool_calls, answer)


def schema():
    options = {"temperature": 0, "num_predict": 100}
    answer = client.chat(model=a.MODEL, messages=a.PICK, format=a.SCHEMA, options=options)
    a.check_pick(a.json.loads(answer.message.content))


def embed():
    answer = client.embed(model=a.EMBEDDING_MODEL, input=["one text", "another"])
    a.check_vectors(list(answer.embeddings[0]), list(answer.embeddings[1]))
    one = client.embeddings(model=a.EMBEDDING_MODEL, prompt="one text")
    a.check(len(one.embedding) == len(answer.embeddings[0]), len(one.embedding))


def cancel():
    options = {"temperature": 0, "num_predict": 1500}
    stream = client.generate(model=a.MODEL, prompt="1, 2, 3, 4,", raw=True, options=options, stream=True)
    next(stream)
    a.check_cancel(stream.close)


a.run(chat=chat, stream=stream, tool=tool, schema=schema, embed=embed, cancel=cancel)

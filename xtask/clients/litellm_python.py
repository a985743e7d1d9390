"""The litellm package with the server as a provider of OpenAI's API."""

import json
import os

import abilities as a

# Otherwise it asks the network for prices while it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

litellm.telemetry = False
common = {
    "model": f"openai/{a.MODEL}",
    "api_base": a.API,
    "api_key": a.KEY,
    "timeout": a.TIMEOUT,
    "num_retries": 0,
}


def ask(messages, **more):
    return litellm.completion(
        messages=messages, **{"temperature": 0, "max_tokens": a.MAX_TOKENS, **common, **more}
    )


def chat():
    answer = ask(a.MESSAGES)
    a.check(answer.choices[0].message.content.strip(), answer)
    a.check(answer.usage.completion_tokens > 0, answer)


def stream():
    chunks = [c.choices[0].delta.content or "" for c in ask(a.MESSAGES, stream=True)]
    a.check(len(chunks) > 4, len(chunks))
    a.check("".join(chunks) == ask(a.MESSAGES).choices[0].message.content, chunks)


def tool():
    function = {"name": a.TOOL_NAME, "description": a.TOOL_TEXT, "parameters": a.TOOL_SCHEMA}
    answer = ask(
        a.WEATHER,
        tools=[{"type": "function", "function": function}],
        tool_choice="required",
        max_tokens=200,
    )
    call = answer.choices[0].message.tool_calls[0]
    a.check_call(call.function.name, call.function.arguments)


def schema():
    schema = {"name": "pick", "strict": True, "schema": a.SCHEMA}
    form = {"type": "json_schema", "json_schema": schema}
    answer = ask(a.PICK, response_format=form, max_tokens=100)
    a.check_pick(json.loads(answer.choices[0].message.content))


def embed():
    embedding = {**common, "model": "openai/" + a.EMBEDDING_MODEL}
    answer = litellm.embedding(input=["one text", "another"], **embedding)
    a.check_vectors(answer.data[0]["embedding"], answer.data[1]["embedding"])


def cancel():
    stream = ask(a.MESSAGES, stream=True, max_tokens=1500, extra_body={"ignore_eos": True})
    next(stream)
    a.check_cancel(stream.completion_stream.close)


a.run(chat=chat, stream=stream, tool=tool, schema=schema, embed=embed, cancel=cancel)

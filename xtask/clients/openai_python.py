"""The openai package for Python."""

from typing import Literal

import abilities as a
import openai
from pydantic import BaseModel

client = openai.OpenAI(base_url=a.API, api_key=a.KEY, timeout=a.TIMEOUT, max_retries=0)
common = {"model": a.MODEL, "temperature": 0}


class Pick(BaseModel):
    color: Literal["red", "green", "blue"]
    count: Literal[1, 2, 3]


def ask():
    return client.chat.completions.create(messages=a.MESSAGES, max_tokens=a.MAX_TOKENS, **common)


def chat():
    answer = ask()
    choice, usage = answer.choices[0], answer.usage
    a.check(choice.message.content.strip(), choice)
    a.check(choice.finish_reason in ("stop", "length"), choice)
    a.check(0 < usage.completion_tokens <= a.MAX_TOKENS, usage)
    a.check(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage)
    a.check(a.MODEL in [model.id for model in client.models.list()])


def stream():
    chunks = list(
        client.chat.completions.create(
            messages=a.MESSAGES,
            max_tokens=a.MAX_TOKENS,
            stream=True,
            stream_options={"include_usage": True},
            **common,
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    a.check(len(chunks) > 4, len(chunks))
    a.check(text == ask().choices[0].message.content, text)
    a.check(chunks[-1].usage.completion_tokens > 0, chunks[-1])


def tool():
    function = {"name": a.TOOL_NAME, "description": a.TOOL_TEXT, "parameters": a.TOOL_SCHEMA}
    options = {
        "messages": a.WEATHER,
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
        "max_tokens": 200,
        **common,
    }
    choice = client.chat.completions.create(**options).choices[0]
    a.check(choice.finish_reason == "tool_calls", choice)
    call = choice.message.tool_calls[0]
    a.check_call(call.function.name, call.function.arguments)

    calls = {}
    for chunk in client.chat.completions.create(stream=True, **options):
        for part in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
            name, arguments = calls.get(part.index, ("", ""))
            arguments += part.function.arguments or ""
            calls[part.index] = name + (part.function.name or ""), arguments
    whole = [(c.function.name, c.function.arguments) for c in choice.message.tool_calls]
    a.check(list(calls.values()) == whole, calls, whole)

    answer = client.chat.completions.create(
        messages=a.WEATHER
        + [
            choice.message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 21 degrees."},
        ],
        tools=options["tools"],
        tool_choice="none",
        max_tokens=a.MAX_TOKENS,
        **common,
    )
    a.check(answer.choices[0].message.content, answer)
    a.check(not answer.choices[0].message.tool_calls, answer)


def schema():
    answer = client.chat.completions.parse(
        messages=a.PICK, response_format=Pick, max_tokens=100, **common
    )
    a.check_pick(answer.choices[0].message.parsed.model_dump())


def embed():
    answer = client.embeddings.create(model=a.EMBEDDING_MODEL, input=["one text", "another"])
    a.check_vectors(answer.data[0].embedding, answer.data[1].embedding)


def cancel():
    stream = client.chat.completions.create(
        messages=a.MESSAGES,
        max_tokens=1500,
        stream=True,
        extra_body={"ignore_eos": True},
        **common,
    )
    next(iter(stream))
    a.check_cancel(stream.close)


a.run(chat=chat, stream=stream, tool=tool, schema=schema, embed=embed, cancel=cancel)

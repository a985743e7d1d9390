"""The anthropic package for Python."""

import json

import abilities as a
import anthropic

client = anthropic.Anthropic(base_url=a.URL, api_key=a.KEY, timeout=a.TIMEOUT, max_retries=0)
# The package has no parameter for the temperature.
common = {"model": a.MODEL, "extra_body": {"temperature": 0}}


def ask():
    return client.messages.create(messages=a.MESSAGES, max_tokens=a.MAX_TOKENS, **common)


def chat():
    answer = ask()
    a.check(answer.role == "assistant" and answer.content[0].type == "text", answer)
    a.check(answer.content[0].text.strip(), answer)
    a.check(answer.stop_reason in ("end_turn", "max_tokens"), answer)
    a.check(answer.usage.input_tokens > 0, answer)
    a.check(0 < answer.usage.output_tokens <= a.MAX_TOKENS, answer)


def stream():
    parts = []
    with client.messages.stream(messages=a.MESSAGES, max_tokens=a.MAX_TOKENS, **common) as events:
        parts.extend(events.text_stream)
        final = events.get_final_message()
    a.check(len(parts) > 4, len(parts))
    a.check("".join(parts) == ask().content[0].text == final.content[0].text, parts)
    a.check(final.usage.output_tokens > 0, final)


def tool():
    options = {
        "tools": [
            {"name": a.TOOL_NAME, "description": a.TOOL_TEXT, "input_schema": a.TOOL_SCHEMA}
        ],
        "tool_choice": {"type": "tool", "name": a.TOOL_NAME},
        "messages": a.WEATHER,
        "max_tokens": 200,
        **common,
    }
    answer = client.messages.create(**options)
    a.check(answer.stop_reason == "tool_use", answer)
    call = next(block for block in answer.content if block.type == "tool_use")
    a.check_call(call.name, call.input)
    with client.messages.stream(**options) as events:
        streamed = events.get_final_message()
    again = next(block for block in streamed.content if block.type == "tool_use")
    a.check(again.input == call.input, again)

    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny, 21 degrees."}
    turns = [
        {"role": "assistant", "content": [block.model_dump() for block in answer.content]},
        {"role": "user", "content": [result]},
    ]
    last = client.messages.create(
        messages=a.WEATHER + turns,
        tools=options["tools"],
        tool_choice={"type": "none"},
        max_tokens=a.MAX_TOKENS,
        **common,
    )
    a.check(last.content[0].type == "text", last)


def schema():
    answer = client.messages.create(
        messages=a.PICK,
        max_tokens=100,
        output_config={"format": {"type": "json_schema", "schema": a.SCHEMA}},
        **common,
    )
    a.check_pick(json.loads(answer.content[0].text))


def embed():
    raise a.Skip("the API has no embeddings")


def cancel():
    # The API has no way to ask for more than the model wants to say.
    long = [{"role": "user", "content": "Tell a very long story about the sea, in many chapters."}]
    stream = client.messages.create(messages=long, max_tokens=1500, stream=True, **common)
    # A loop that is left would close the stream before it is seen to run.
    events = iter(stream)
    while next(events).type != "content_block_delta":
        pass
    a.check_cancel(stream.close)


a.run(chat=chat, stream=stream, tool=tool, schema=schema, embed=embed, cancel=cancel)

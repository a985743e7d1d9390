"""LlamaIndex' packages for servers of OpenAI's API."""

from typing import Literal

import abilities as a
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

options = {"api_base": a.API, "api_key": a.KEY, "max_retries": 0, "timeout": a.TIMEOUT}


def model(**more):
    common = {"is_chat_model": True, "is_function_calling_model": True, "context_window": 2048}
    return OpenAILike(
        model=a.MODEL, temperature=0, **{**common, "max_tokens": a.MAX_TOKENS, **options, **more}
    )


class Pick(BaseModel):
    """A color and a number."""

    color: Literal["red", "green", "blue"]
    count: Literal[1, 2, 3]


def get_weather(city: Literal["Paris", "Rome", "Oslo"], days: Literal[1, 2, 3]) -> str:
    """Tells the weather of a city."""
    return f"Sunny in {city} for {days} days."


def chat():
    answer = model().complete(a.QUESTION)
    a.check(answer.text.strip(), answer)
    a.check(answer.raw.usage.completion_tokens > 0, answer)


def stream():
    parts = [part.delta for part in model().stream_complete(a.QUESTION)]
    a.check(len(parts) > 4, len(parts))
    a.check("".join(parts) == model().complete(a.QUESTION).text, parts)


def tool():
    llm = model(max_tokens=200)
    weather = FunctionTool.from_defaults(get_weather)
    answer = llm.chat_with_tools([weather], a.WEATHER[0]["content"], tool_required=True)
    call = llm.get_tool_calls_from_response(answer)[0]
    a.check_call(call.tool_name, call.tool_kwargs)
    a.check("Sunny in" in weather.call(**call.tool_kwargs).content)


def schema():
    llm = model(max_tokens=100, should_use_structured_outputs=True).as_structured_llm(Pick)
    a.check_pick(llm.complete(a.PICK[0]["content"]).raw.model_dump())


def embed():
    embeddings = OpenAILikeEmbedding(model_name=a.EMBEDDING_MODEL, **options)
    one, other = embeddings.get_text_embedding_batch(["one text", "another"])
    a.check_vectors(one, other)


def cancel():
    long = model(max_tokens=1500, additional_kwargs={"extra_body": {"ignore_eos": True}})
    parts = long.stream_complete(a.QUESTION)
    next(parts)
    a.check_cancel(parts.close)


a.run(chat=chat, stream=stream, tool=tool, schema=schema, embed=embed, cancel=cancel)

"""LangChain's package for OpenAI's API."""

from typing import Literal

import abilities as a
from langchain_core.tools import tool as as_tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

options = {"base_url": a.API, "api_key": a.KEY, "model": a.MODEL, "max_retries": 0}
model = ChatOpenAI(temperature=0, timeout=a.TIMEOUT, max_tokens=a.MAX_TOKENS, **options)


class Pick(BaseModel):
    """A color and a number."""

    color: Literal["red", "green", "blue"]
    count: Literal[1, 2, 3]


@as_tool
def get_weather(city: Literal["Paris", "Rome", "Oslo"], days: Literal[1, 2, 3]) -> str:
    """Tells the weather of a city."""
    return f"Sunny in {city} for {days} days."


def chat():
    answer = model.invoke(a.QUESTION)
    a.check(answer.content.strip(), answer)
    a.check(answer.usage_metadata["output_tokens"] > 0, answer)


def stream():
    chunks = [chunk.content for chunk in model.stream(a.QUESTION)]
    a.check(len(chunks) > 4, len(chunks))
    a.check("".join(chunks) == model.invoke(a.QUESTION).content, chunks)


def tool():
    bound = model.bind_tools([get_weather], tool_choice="required")
    answer = bound.invoke(a.WEATHER[0]["content"], max_tokens=200)
    call = answer.tool_calls[0]
    a.check_call(call["name"], call["args"])
    a.check("Sunny in" in get_weather.invoke(call).content)


def schema():
    structured = model.with_structured_output(Pick, method="json_schema")
    a.check_pick(structured.invoke(a.PICK[0]["content"]).model_dump())


def embed():
    embedding = {**options, "model": a.EMBEDDING_MODEL}
    embeddings = OpenAIEmbeddings(check_embedding_ctx_length=False, **embedding)
    one, other = embeddings.embed_documents(["one text", "another"])
    a.check_vectors(one, other)


def cancel():
    long = model.bind(max_tokens=1500, extra_body={"ignore_eos": True})
    chunks = long.stream(a.QUESTION)
    next(chunks)
    a.check_cancel(chunks.close)


a.run(chat=chat, stream=stream, tool=tool, schema=schema, embed=embed, cancel=cancel)

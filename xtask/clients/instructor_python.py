"""The instructor package over the openai package."""

from typing import Literal

import abilities as a
import instructor
import openai
from pydantic import BaseModel

plain = openai.OpenAI(base_url=a.API, api_key=a.KEY, timeout=a.TIMEOUT, max_retries=0)
common = {"model": a.MODEL, "temperature": 0, "max_retries": 1}


class Pick(BaseModel):
    """A color and a number."""

    color: Literal["red", "green", "blue"]
    count: Literal[1, 2, 3]


def create(mode, messages, response_model, **more):
    client = instructor.from_openai(plain, mode=mode)
    return client.chat.completions.create(
        messages=messages, response_model=response_model, **{"max_tokens": 100, **common, **more}
    )


def chat():
    answer = create(instructor.Mode.TOOLS, a.MESSAGES, None)
    a.check(answer.choices[0].message.content.strip(), answer)


def stream():
    client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
    parts = list(
        client.chat.completions.create_partial(
            messages=a.PICK, response_model=Pick, max_tokens=100, **common
        )
    )
    a.check(len(parts) > 1, len(parts))
    a.check_pick(parts[-1].model_dump())


def tool():
    a.check_pick(create(instructor.Mode.TOOLS, a.PICK, Pick).model_dump())


def schema():
    a.check_pick(create(instructor.Mode.JSON_SCHEMA, a.PICK, Pick).model_dump())


def embed():
    raise a.Skip("the package has no embeddings")


def cancel():
    # Streams of objects are read to their end before the first is handed out; plain ones are not.
    stream = create(
        instructor.Mode.TOOLS,
        a.MESSAGES,
        None,
        stream=True,
        max_tokens=1500,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    a.check_cancel(stream.close)


a.run(chat=chat, stream=stream, tool=tool, schema=schema, embed=embed, cancel=cancel)

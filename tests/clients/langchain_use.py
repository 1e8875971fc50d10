"""LangChain's ChatOpenAI against a server: BASE_URL MODEL. Prints what it got, as JSON."""

import json
import sys
from typing import Annotated

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

base_url, model = sys.argv[1:]
SETTINGS = dict(base_url=base_url, api_key="unused", model=model, temperature=0, max_retries=0)
TALK = [SystemMessage("Answer in one word."), HumanMessage("The capital of France?"),
        AIMessage("Paris."), HumanMessage("And of Italy?")]


@tool
def weather(city: Annotated[str, Field(max_length=12)]) -> str:
    """The weather of a city."""
    return f"It rains in {city}."


class Place(BaseModel):
    """A place."""
    city: str = Field(max_length=12)
    people: int = Field(ge=0, le=10**7)


chat = ChatOpenAI(**SETTINGS, max_tokens=12)
answer = chat.invoke(TALK)
chunks = list(chat.stream(TALK, stream_usage=True))
whole = chunks[0]
for chunk in chunks[1:]:
    whole += chunk
batch = chat.batch([[HumanMessage(f"Count to {number}.")] for number in (2, 3, 4)])
scored = chat.bind(logprobs=True, top_logprobs=2).invoke(TALK)
stopped = chat.bind(stop=["."]).invoke(TALK)
text = OpenAI(**SETTINGS, max_tokens=8).invoke("Once upon a time")

# The grammar makes the model call the tool, whose result then goes back to it.
caller = ChatOpenAI(**SETTINGS, max_tokens=100)
talk = [HumanMessage("What is the weather in Rome?")]
forced = caller.bind_tools([weather], tool_choice="weather")
call = forced.invoke(talk)
streamed = None
for chunk in forced.stream(talk):
    streamed = chunk if streamed is None else streamed + chunk
results = [weather.invoke(one) for one in call.tool_calls]
after = caller.bind_tools([weather], tool_choice="none").invoke([*talk, call, *results])
place = caller.with_structured_output(Place, method="json_schema").invoke(talk)
print(json.dumps({
    "invoke": answer.content, "usage": answer.usage_metadata,
    "stream": whole.content, "chunks": len(chunks), "stream_usage": whole.usage_metadata,
    "batch": [one.content for one in batch], "stopped": stopped.content, "text": text,
    "logprobs": scored.response_metadata["logprobs"]["content"],
    "calls": [[one["name"], one["args"]] for one in call.tool_calls],
    "streamed_calls": [[one["name"], one["args"]] for one in streamed.tool_calls],
    "results": [one.content for one in results if isinstance(one, ToolMessage)],
    "after": after.content, "place": place.model_dump()}))

"""LangChain's ChatOpenAI against a server: BASE_URL MODEL. Prints what it got, as JSON."""

import json
import sys

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

base_url, model = sys.argv[1:]
SETTINGS = dict(base_url=base_url, api_key="unused", model=model, temperature=0, max_retries=0)
TALK = [SystemMessage("Answer in one word."), HumanMessage("The capital of France?"),
        AIMessage("Paris."), HumanMessage("And of Italy?")]

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
print(json.dumps({
    "invoke": answer.content, "usage": answer.usage_metadata,
    "stream": whole.content, "chunks": len(chunks), "stream_usage": whole.usage_metadata,
    "batch": [one.content for one in batch], "stopped": stopped.content, "text": text,
    "logprobs": scored.response_metadata["logprobs"]["content"]}))

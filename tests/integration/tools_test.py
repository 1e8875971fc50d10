"""Tools and reasoning through OpenAI's own client. Most answers are scripted, because the model of
the other tests does not call tools (tests/support/tool_server.cc). Calls that must come are asked of
the model itself, too, to which a template shows the tools."""

import json
import pathlib
import subprocess

import jsonschema
import openai
import pytest

from flotilla_server import MODEL, binary, model_path
from tool_model import server_of_tools

ADD = {"type": "function", "function": {
    "name": "add", "description": "Adds two numbers.",
    "parameters": {"type": "object", "required": ["a", "b"],
                   "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}}}
ASK = {"role": "user", "content": "What are 1 + 2 and 3 + 4?"}


def call(a, b):
    return ('<tool_call>\n{"name": "add", "arguments": {"a": %d, "b": %d}}\n</tool_call>' % (a, b))


CALLS = f"<think>\nTwo sums.\n</think>\n\nI add.\n{call(1, 2)}\n{call(3, 4)}"


class Scripted:
    """OpenAI's client of a server that answers what `say` was told."""

    def __init__(self):
        tool = pathlib.Path(binary()).parents[1] / "tests/support/tool_server"
        self.process = subprocess.Popen([tool, model_path()], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        port = int(self.process.stdout.readline())
        self.chat = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none",
                                  max_retries=0).chat.completions

    def say(self, text):
        self.process.stdin.write(json.dumps(text) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline()

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=30) == 0


@pytest.fixture(scope="module")
def scripted():
    server = Scripted()
    yield server
    server.close()


def test_a_round_trip(scripted):
    messages = [ASK]
    scripted.say(CALLS)
    answer = scripted.chat.create(model="q", messages=messages, tools=[ADD])
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I add."
    assert choice.message.reasoning_content == "Two sums."
    sums = []
    messages.append(choice.message)  # as the client has it, with all of its members
    for one in choice.message.tool_calls:
        assert (one.type, one.function.name) == ("function", "add")
        given = json.loads(one.function.arguments)
        sums.append(given["a"] + given["b"])
        messages.append({"role": "tool", "tool_call_id": one.id, "content": str(sums[-1])})
    assert sums == [3, 7] and len({one.id for one in choice.message.tool_calls}) == 2
    scripted.say("3 and 7.")
    answer = scripted.chat.create(model="q", messages=messages, tools=[ADD])
    assert answer.choices[0].message.content == "3 and 7."
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"


def test_a_streamed_round_trip(scripted):
    scripted.say(CALLS)
    with scripted.chat.stream(model="q", messages=[ASK], tools=[ADD]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert final.message.content == "I add."
    assert [json.loads(one.function.arguments) for one in final.message.tool_calls] == [
        {"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert kinds.count("tool_calls.function.arguments.done") == 2
    assert kinds.count("tool_calls.function.arguments.delta") > 4

    scripted.say(CALLS)
    chunks = list(scripted.chat.create(model="q", messages=[ASK], tools=[ADD], stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    thoughts = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert thoughts == "Two sums."
    pieces = [delta.tool_calls[0] for delta in deltas if delta.tool_calls]
    assert [(one.index, one.function.name) for one in pieces if one.id] == [(0, "add"), (1, "add")]
    assert all(one.function.name is None for one in pieces if not one.id)


def test_one_call_and_none(scripted):
    scripted.say(CALLS)
    answer = scripted.chat.create(model="q", messages=[ASK], tools=[ADD],
                                  parallel_tool_calls=False)
    assert len(answer.choices[0].message.tool_calls) == 1
    scripted.say(CALLS)
    answer = scripted.chat.create(model="q", messages=[ASK], tools=[ADD], tool_choice="none")
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_calls_that_must_come(scripted, choice):
    scripted.say(call(1, 2))
    answer = scripted.chat.create(model="q", messages=[ASK], tools=[ADD], tool_choice=choice)
    assert answer.choices[0].finish_reason == "tool_calls"
    hostile = {"type": "function", "function": {
        "name": "f", "parameters": {"type": "object", "not": {"type": "null"}}}}
    with pytest.raises(openai.BadRequestError, match='"not" is not supported') as error:
        scripted.chat.create(model="q", messages=[ASK], tools=[hostile], tool_choice="required")
    assert error.value.param == "tools"



WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "The weather of a city.",
    "parameters": {"type": "object", "required": ["city", "days"], "additionalProperties": False,
                   "properties": {"city": {"enum": ["Paris", "Lyon", "Nice"]},
                                  "days": {"type": "integer", "minimum": 1, "maximum": 7}}}}}
LAMP = {"type": "function", "function": {
    "name": "lamp", "description": "Switches a lamp.",
    "parameters": {"type": "object", "required": ["on"], "additionalProperties": False,
                   "properties": {"on": {"type": "boolean"},
                                  "room": {"type": "string", "maxLength": 10}}}}}
PARAMETERS = {one["function"]["name"]: one["function"]["parameters"] for one in (WEATHER, LAMP)}
WISH = {"role": "user", "content": "How is the weather in Lyon today?"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The real server, whose model sees tools."""
    with server_of_tools(tmp_path_factory.mktemp("tools")) as server:
        yield server


@pytest.fixture(scope="module")
def chat(server):
    """OpenAI's client of that server."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client.chat.completions


def only_call(choice):
    """The function of the only call of an answer, whose arguments are as its schema says."""
    assert choice.finish_reason == "tool_calls" and not choice.message.content
    call, = choice.message.tool_calls
    assert call.type == "function" and call.id
    jsonschema.validate(json.loads(call.function.arguments), PARAMETERS[call.function.name])
    return call.function


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("choice", ["required", "weather", "lamp"])
def test_calls_of_the_model_are_as_their_schema_says(chat, choice, temperature):
    fields = dict(
        model=MODEL, messages=[WISH], tools=[WEATHER, LAMP], temperature=temperature, seed=7,
        max_tokens=200, parallel_tool_calls=False, tool_choice=choice if choice == "required" else
        {"type": "function", "function": {"name": choice}})
    function = only_call(chat.create(**fields).choices[0])
    assert choice in ("required", function.name)
    with chat.stream(**fields) as stream:
        kinds = [event.type for event in stream]
        streamed = only_call(stream.get_final_completion().choices[0])
    assert (streamed.name, streamed.arguments) == (function.name, function.arguments)
    assert kinds.count("tool_calls.function.arguments.delta") > 1
    assert kinds.count("tool_calls.function.arguments.done") == 1


def test_beams_call_as_the_schema_says(chat):
    answer = chat.create(
        model=MODEL, messages=[WISH], tools=[WEATHER, LAMP], n=2, max_tokens=200,
        parallel_tool_calls=False, tool_choice="required", extra_body={"use_beam_search": True})
    first, second = map(only_call, answer.choices)
    assert (first.name, first.arguments) != (second.name, second.arguments)


@pytest.mark.parametrize("begin", ["{", "<"])
def test_an_answer_has_its_form_or_is_a_call(server, chat, begin):
    """The model may answer or call a tool, and either is as its schema says. A bias makes it begin one of them."""
    place = {"type": "object", "required": ["city"], "additionalProperties": False,
             "properties": {"city": {"enum": ["Lyon", "Nice"]}}}
    token, = server.post("/tokenize", model=MODEL, prompt=begin)["tokens"]
    fields = dict(
        model=MODEL, messages=[WISH], tools=[WEATHER, LAMP], max_tokens=200, parallel_tool_calls=False,
        logit_bias={str(token): 100}, response_format={
            "type": "json_schema", "json_schema": {"name": "place", "schema": place, "strict": True}})
    for seed in range(4):
        choice = chat.create(**fields, seed=seed).choices[0]
        if begin == "<":
            only_call(choice)
            continue
        assert choice.finish_reason == "stop" and choice.message.tool_calls is None
        jsonschema.validate(json.loads(choice.message.content), place)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chat.create(
        **fields, seed=seed, stream=True))
    assert streamed == (choice.message.content or "")


def test_a_round_trip_with_the_model(chat):
    """The template shows the model its call, and what the tool says."""
    fields = dict(model=MODEL, tools=[WEATHER], temperature=0, max_tokens=60)
    called = chat.create(**fields, messages=[WISH], tool_choice="required",
                         parallel_tool_calls=False).choices[0].message
    messages = [WISH, called, {"role": "tool", "tool_call_id": called.tool_calls[0].id,
                               "content": "21 degrees and sunny"}]
    answer = chat.create(**fields, messages=messages, extra_body={"prompt_logprobs": 0})
    prompt = "".join(next(iter(one.values()))["decoded_token"]
                     for one in answer.prompt_logprobs if one)
    assert json.dumps(json.loads(called.tool_calls[0].function.arguments)) in prompt
    assert "<tool_response>21 degrees and sunny</tool_response>" in prompt
    assert answer.choices[0].message.content and answer.choices[0].message.tool_calls is None

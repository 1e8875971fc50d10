"""Tools and reasoning through OpenAI's own client. The answers are scripted, because the model of
the other tests does not call tools (tests/support/tool_server.cc)."""

import json
import pathlib
import subprocess

import openai
import pytest

from flotilla_server import binary, model_path

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

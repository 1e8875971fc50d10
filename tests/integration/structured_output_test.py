"""Answers of a form, end to end: schemas, choices, expressions and grammars at a real server.
What finishes is valid; what is cut ends with `length`."""

import concurrent.futures
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tarfile
import time
from enum import Enum

import httpx
import jsonschema
import openai
import pydantic
import pytest

from flotilla_server import LONG, MODEL, ROOT, Server, wait_until
from format_values import CHECKS

ASK = [{"role": "user", "content": "Describe a city in France, with a person who lives there."}]


def accepted(name, **marks):
    """The schemas of a file in tests/data/schemas that are not refused, and have these marks."""
    lines = (ROOT / "tests" / "data" / "schemas" / name).read_text().splitlines()
    tests = [json.loads(line) for line in lines]
    return [one["schema"] for one in tests
            if "refused" not in one and all(one.get(key) == mark for key, mark in marks.items())]


SUITE_PACKAGE = "jsonschema==4.26.0"
SUITE_FOLDER = "/json/tests/draft2020-12/"


@pytest.mark.skipif(not LONG, reason="fetches a package")
def test_the_suite_is_the_packages(tmp_path):
    """Each schema of the JSON Schema Test Suite is in draft2020-12.jsonl, and nothing else is."""
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary",
                    SUITE_PACKAGE.split("==")[0], "--dest", tmp_path, SUITE_PACKAGE], check=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        files = {name.partition(SUITE_FOLDER)[2].removesuffix(".json"): json.load(archive.extractfile(name))
                 for name in archive.getnames() if SUITE_FOLDER in name and name.endswith(".json")}
    draft = ("$schema", "https://json-schema.org/draft/2020-12/schema")
    theirs = [(f"{name}: {case['description']}", case["schema"]) for name, cases in files.items() for case in cases]
    theirs = [(name, dict(one for one in schema.items() if one != draft) if isinstance(schema, dict) else schema)
              for name, schema in theirs]
    lines = (ROOT / "tests" / "data" / "schemas" / "draft2020-12.jsonl").read_text().splitlines()
    ours = [(one["from"], json.loads(one["schema"]) if isinstance(one["schema"], str) else one["schema"])
            for one in map(json.loads, lines)]

    def sorted_texts(cases):
        return sorted(json.dumps(one, sort_keys=True) for one in cases)

    assert len(ours) == 438 and sorted_texts(ours) == sorted_texts(theirs)


def some(schemas, count):
    """So many of them, evenly; all of them in long runs."""
    return schemas if LONG else schemas[::max(1, len(schemas) // count)][:count]


OURS, SUITE, BOUNDED = (accepted("own.jsonl"), accepted("draft2020-12.jsonl"),
                        accepted("own.jsonl", bounded=True))
FINISHED = 0.6  # at least this share, in 256 tokens
# More than the longest answer to a bounded schema has bytes, but for white space.
BOUNDED_TOKENS = 128


def valid(text, schema):
    schema = json.loads(schema) if isinstance(schema, str) else schema
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))


def answer_to(server, schema, in_tag=False, **fields):
    """The only choice. As clients do, it asks again if the form was not compiled in time."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    if in_tag:
        schema = json.loads(schema) if isinstance(schema, str) else schema
        form = {"type": "structural_tag", "format": {
            "type": "tag", "begin": "<a>", "content": {"type": "json_schema", "json_schema": schema}, "end": "</a>"}}
    for _ in range(5):
        response = server.http.post("/v1/chat/completions", json=dict(
            model=MODEL, messages=ASK, response_format=form, **fields))
        if response.status_code != 429:
            break
        time.sleep(int(response.headers["retry-after"]))
    assert response.status_code == 200, response.text
    choice, = response.json()["choices"]
    assert choice["finish_reason"] in ("stop", "length"), schema
    text = choice["message"]["content"]
    if choice["finish_reason"] == "stop":
        valid(text.removeprefix("<a>").removesuffix("</a>") if in_tag else text, schema)
    return choice["finish_reason"], text


def test_what_finishes_is_valid(server):
    """Half of the schemas are the JSON Schema Test Suite's. All are asked at once; in the short form
    one half of them at temperature 0 and the other at 1, in the long form all at both."""
    asked = [(schema, temperature)
             for schemas in (some(OURS, 20), some(SUITE, 20))
             for number, schema in enumerate(schemas)
             for temperature in ((0, 1) if LONG else (number % 2,))]
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        reasons = list(pool.map(
            lambda one: answer_to(server, one[1][0], max_tokens=256, temperature=one[1][1], seed=one[0])[0],
            enumerate(asked)))
    shares = {f"temperature {wanted}": [reason == "stop" for (_, temperature), reason
                                        in zip(asked, reasons) if temperature == wanted]
              for wanted in (0, 1)}
    print({kind: f"{sum(ended)} of {len(ended)}" for kind, ended in shares.items()})
    assert all(sum(ended) >= len(ended) * FINISHED for ended in shares.values())


@pytest.mark.parametrize("in_tag", [False, True], ids=["alone", "in a tag"])
def test_bounded_answers_finish_at_temperature_2(server, in_tag):
    """White space between the parts of JSON has an end, too."""
    schemas = some(BOUNDED, 8)
    assert len(BOUNDED) == 50
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(
            lambda one: answer_to(server, one[1], in_tag=in_tag, max_tokens=BOUNDED_TOKENS, temperature=2,
                                  seed=one[0]), enumerate(schemas)))
    for schema, (reason, text) in zip(schemas, answers):
        assert reason == "stop", (schema, text)


def test_values_of_formats_are_such_values(server):
    """At temperature 0 the model writes long addresses, whose masks must be in time, too."""
    tries = [(form, seed) for form in CHECKS for seed in range(12 if LONG else 4)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda one: server.post(
            "/v1/chat/completions", model=MODEL, messages=ASK, max_tokens=60, seed=one[1],
            temperature=[0, 1, 2][one[1] % 3],
            response_format={"type": "json_schema", "json_schema": {
                "name": "x", "schema": {"type": "string", "format": one[0]}}}), tries))
    ended = set()
    for (form, _), answer in zip(tries, answers):
        choice = answer["choices"][0]
        if choice["finish_reason"] == "stop":
            CHECKS[form](json.loads(choice["message"]["content"]))
            ended.add(form)
    assert len(ended) > len(CHECKS) // 2, ended


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=120)
    color: Color
    nickname: str | None = pydantic.Field(max_length=8)


def test_a_pydantic_model_comes_back(client):
    answer = client.chat.completions.parse(model=MODEL, messages=ASK, response_format=Person,
                                           max_tokens=300, temperature=0)
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(answer.choices[0].message.parsed, Person)

    with client.chat.completions.stream(model=MODEL, messages=ASK, response_format=Person,
                                        max_tokens=300, temperature=0) as stream:
        events = list(stream)
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == "stop"
    assert streamed.message.parsed == answer.choices[0].message.parsed
    deltas = [event for event in events if event.type == "content.delta"]
    assert len(deltas) > 3 and "".join(event.delta for event in deltas) == streamed.message.content
    done, = [event for event in events if event.type == "content.done"]
    assert done.parsed == streamed.message.parsed


def test_json_object(client):
    """Each answer is the beginning of an object, and those that finish are one."""
    ended = []
    for seed in range(8):
        choice, = client.chat.completions.create(
            model=MODEL, messages=ASK, response_format={"type": "json_object"}, max_tokens=256,
            temperature=0.5, seed=seed).choices
        assert choice.message.content.lstrip().startswith("{")
        if choice.finish_reason == "stop":
            ended.append(json.loads(choice.message.content))
    assert ended and all(isinstance(one, dict) for one in ended)


def test_choices(client):
    texts = ["yes", "no", "it depends"]
    for seed in range(5):
        answer = client.chat.completions.create(
            model=MODEL, messages=ASK, temperature=1, seed=seed, max_tokens=20,
            extra_body={"structured_outputs": {"choice": texts}})
        assert answer.choices[0].message.content in texts
        assert answer.choices[0].finish_reason == "stop"


def test_regex(client):
    pattern = r"^(?:[A-Z][a-z]{1,8} ){2}\d{4}-\d{2}$"
    for seed in range(5):
        answer = client.chat.completions.create(
            model=MODEL, messages=ASK, temperature=1, seed=seed, max_tokens=60,
            extra_body={"structured_outputs": {"regex": pattern}})
        assert answer.choices[0].finish_reason == "stop"
        assert re.fullmatch(pattern, answer.choices[0].message.content)


def test_grammar(client):
    grammar = 'root ::= "(" term (" + " term){0,3} ")"\nterm ::= [0-9]{1,3}'
    answer = client.chat.completions.create(
        model=MODEL, messages=ASK, temperature=0, max_tokens=60,
        extra_body={"structured_outputs": {"grammar": grammar}})
    assert answer.choices[0].finish_reason == "stop"
    assert re.fullmatch(r"\(\d{1,3}( \+ \d{1,3}){0,3}\)", answer.choices[0].message.content)


def test_a_stream_is_the_whole_answer(client):
    fields = dict(model=MODEL, messages=ASK, temperature=0, max_tokens=100, response_format={
        "type": "json_schema", "json_schema": {"name": "x", "schema": OURS[0]}})
    whole = client.chat.completions.create(**fields).choices[0].message.content
    parts = client.chat.completions.create(**fields, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in parts if c.choices) == whole


def test_each_of_n_answers_is_valid(client):
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 9},
                                               "b": {"enum": ["x", "y"]}}, "required": ["a", "b"]}
    answer = client.chat.completions.create(
        model=MODEL, messages=ASK, temperature=1, n=3, seed=1, max_tokens=40, response_format={
            "type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    assert [choice.finish_reason for choice in answer.choices] == ["stop"] * 3
    for choice in answer.choices:
        valid(choice.message.content, schema)


def test_a_cut_answer_ends_with_length(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=ASK, temperature=0, max_tokens=3, response_format={
            "type": "json_schema", "json_schema": {"name": "x", "schema": {
                "type": "array", "items": {"type": "integer"}, "minItems": 100}}})
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content.lstrip().startswith("[")


def test_what_leaves_no_token_gives_way_to_the_form(client):
    """A bias and a list of allowed tokens that exclude every token of the grammar."""
    answer = client.chat.completions.create(
        model=MODEL, messages=ASK, temperature=0, max_tokens=10,
        extra_body={"structured_outputs": {"choice": ["yes"]}, "allowed_token_ids": [5]})
    assert answer.choices[0].message.content == "yes"


def test_grpc(stub, pb):
    request = pb.messages.GenerateRequest(model=MODEL, text="One to nine:", max_tokens=10)
    request.structured_outputs.regex = "[1-9]"
    text = "".join(delta.text for part in stub.Generate(request) for delta in part.deltas)
    assert re.fullmatch("[1-9]", text)


@pytest.mark.parametrize("outputs", [
    {"grammar": "root ::= missing"},                          # refused where it is compiled
    {"grammar": "root ::= root"},
    {"grammar": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000},
    {"grammar": 'root ::= ("a"{1,60000}){1,60000}'},
    {"regex": "((a{0,200}){0,200}b?)+"},
    {"json": {"type": "array", "items": {"$ref": "#/$defs/x"}, "$defs": {"x": {"anyOf": [
        {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 10000}, {"type": "null"}]}}}},
    {"json": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(998)},
              "minProperties": 499}},
])
def test_hostile_forms_are_served_or_refused(client, outputs):
    """Others are served meanwhile."""
    def ask(tokens, **fields):
        return client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=tokens,
                                              extra_body=fields)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        hostile = pool.submit(ask, 5, structured_outputs=outputs)
        for _ in range(2):  # at once, and after an answer
            assert ask(2, ignore_eos=True).choices[0].finish_reason == "length"
        error = hostile.exception()
    assert error is None or error.status_code in (400, 429, 503, 504), error
    assert ask(2, ignore_eos=True).choices[0].finish_reason == "length"


def slow(number=0):
    """A grammar that takes all of its processor time."""
    return "root ::= " + " ".join(f'"{number}" [^{chr(97 + i)}]{{0,1000}}' for i in range(20))


BEGUN = {}  # by process: its processor time when it was first seen with its low priority


def compiler_of(server):
    """The process that compiles the server's grammars, if it has begun with one. It has its low priority
    once it has read the vocabulary, before the first grammar."""
    for children in pathlib.Path(f"/proc/{server.process.pid}/task").glob("*/children"):
        for child in children.read_text().split():
            fields = pathlib.Path(f"/proc/{child}/stat").read_text().split()
            if fields[1] == "(flotilla-gram)" and int(fields[18]) > os.nice(0):
                begun = BEGUN.setdefault(child, int(fields[13]))
                if int(fields[13]) > begun + 20:  # 0.2 s of processor time later
                    return int(child)
    return None


def test_a_compile_that_crashes_fails_one_request(tmp_path):
    with concurrent.futures.ThreadPoolExecutor(2) as pool, \
            Server(tmp_path, "--grammar-cpu-ms", "20000") as server:
        def ask(outputs):
            return pool.submit(httpx.post, f"{server.url}/v1/completions", timeout=60, json=dict(
                model=MODEL, prompt="x", max_tokens=5, structured_outputs=outputs))

        hostile, other = ask({"grammar": slow()}), ask({"choice": ["yes", "no"]})
        wait_until(lambda: compiler_of(server), "it compiles")
        os.kill(compiler_of(server), signal.SIGSEGV)
        assert hostile.result().status_code == 400
        assert "crashes the process" in hostile.result().json()["error"]["message"]
        assert other.result().json()["choices"][0]["text"] in ("yes", "no")


def test_too_many_forms_are_an_overload(tmp_path):
    """A client may try again, which differs from a form that is refused for itself."""
    with concurrent.futures.ThreadPoolExecutor(80) as pool, \
            Server(tmp_path, "--max-seqs", "80", "--drain-seconds", "0") as server:
        asked = [pool.submit(httpx.post, f"{server.url}/v1/completions", timeout=60, json=dict(
            model=MODEL, prompt="x", max_tokens=5, structured_outputs={"grammar": slow(number)}))
                 for number in range(80)]
        done = next(one.result() for one in concurrent.futures.as_completed(asked)
                    if one.exception() is None and one.result().status_code == 429)
    assert int(done.headers["retry-after"]) >= 1
    assert "others wait to be compiled" in done.json()["error"]["message"]


def test_beams_of_a_form_that_has_fewer_answers(client):
    answer = client.completions.create(
        model=MODEL, prompt="Yes or no?", max_tokens=10, n=3, temperature=0,
        extra_body={"structured_outputs": {"regex": "7"}, "use_beam_search": True})
    # The model has two tokens that end an answer.
    assert [(one.text, one.finish_reason) for one in answer.choices] == [
        ("7", "stop"), ("7", "stop"), ("", "length")]


def test_a_refused_grammar_is_an_error_event_in_a_stream(client):
    with pytest.raises(openai.APIError, match="grammar is refused"):
        for _ in client.chat.completions.create(
                model=MODEL, messages=ASK, max_tokens=5, stream=True,
                extra_body={"structured_outputs": {"grammar": "root ::= missing"}}):
            pass

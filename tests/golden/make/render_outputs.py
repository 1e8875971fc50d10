#!/usr/bin/env python3
"""Records tests/data/rendered_outputs.jsonl: whole answers of gpt-oss, DeepSeek and Qwen3-Coder, as the
published chat template of each model writes them in a history, some of them cut off. What they say is
what the template was given; the parsers have no part in it.

    tests/golden/make/render_outputs.py FOLDER > tests/data/rendered_outputs.jsonl

FOLDER has the .jinja files that tests/model/templates fetches (~/.cache/flotilla/templates/*).
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests" / "model" / "templates"))
from templates_test import expected  # noqa: E402

TOOLS = json.loads((ROOT / "tests" / "data" / "written_tools.json").read_text())
USER = {"role": "user", "content": "?"}

PARIS = ("get_weather", {"city": "Paris", "days": 3})
TOKYO = ("get_weather", {"city": "東京", "days": -1, "unit": "celsius"})
ADD = ("add", {"a": 1, "b": [2.5, -300.0], "exact": True})
SEARCH = ("search", {"query": "C++", "where": {"site": "a.example"}, "after": "1999"})
CODE = ("search", {"query": "def f(x):\n    if x < 2 and x > 0:\n\treturn {\"a\": [x]}\n\n# end\n"})
ESCAPES = ("search", {"query": "\"quoted\" \\ back\\slash / \\n \\u0041 \x01\x1f\x7f \b\f\r\t end\n"})
UNICODE = ("search", {"query": "Zürich 😀 e\u0301 \u05e9\u05dc\u05d5\u05dd \u200d \u2028 ｜▁ \U0010ffff",
                      "where": {"site": "münchen.example"}})
NESTED = ("search", {"query": "x", "where": {"site": "s", "deep": {"a": [[], {}, [{"b": [1, {"c": None}]}], "]}"]}}})
EMPTY = ("search", {"query": "", "where": {}})
NOTHING = ("add", {})
NULL = ("search", {"query": "null", "after": None})
NUMBERS = ("add", {"a": -1e-07, "b": [0, -0.5, 1e+22, 12345678901234567890]})
# What begins like a marker, and is none.
ALMOST = ("search", {"query": "<|cal <|en <|messag <｜tool▁call▁en <｜ ``` ```json </tool_cal </param </functio "
                              "<tool_call <think"})
LONG = ("search", {"query": "word " * 60 + "end"})

# Name, thoughts, content, calls.
MESSAGES = [
    ("one call", "", "", [PARIS]),
    ("two calls", "", "", [PARIS, ADD]),
    ("three calls", "", "", [TOKYO, SEARCH, TOKYO]),
    ("content and a call", "", "I look it up.", [SEARCH]),
    ("content of lines and two calls", "", "First:\n\n* the weather <b>\n* a sum {\"a\": 1}", [TOKYO, ADD]),
    ("source code", "", "", [CODE]),
    ("escapes", "", "", [ESCAPES, PARIS]),
    ("characters of all planes", "", "Ünïcode 😀:", [UNICODE]),
    ("nested values", "", "", [NESTED, NESTED]),
    ("empty values", "", "", [EMPTY]),
    ("no arguments", "", "", [NOTHING, NOTHING]),
    ("a null", "", "", [NULL]),
    ("numbers", "", "", [NUMBERS]),
    ("parts of markers", "", "Not <tool_call, not <|chan and not <｜tool.", [ALMOST]),
    ("a long text", "", "", [LONG]),
    ("thoughts and a call", "The user wants the weather.\n\nI call \"get_weather\" {for} 東京.", "", [TOKYO]),
    ("thoughts, content and two calls", "Hm.\n1 < 2 & <b>", "Two things.", [PARIS, SEARCH]),
    ("thoughts and an answer", "It is easy: 2 + 2.", "4.\n\nNo tool <|was needed 😀.", []),
    ("an answer", "", "Hello, <tool> \"world\"!\n\n```json\n{\"a\": 1}\n```\nBye.", []),
]


def assistant(content, calls, **more):
    message = {"role": "assistant", "content": content, **more}
    if calls:
        message["tool_calls"] = [
            {"id": f"call{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(calls)]
    return message


class Model:
    def __init__(self, folder, template, form, reasoning, begin, ends):
        self.template = (folder / template).read_text(encoding="utf-8")
        self.form, self.reasoning, self.begin, self.ends = form, reasoning, begin, ends

    def render(self, *messages):
        """What stands behind the first `begin`, without `ends`."""
        text = expected(self.template, [USER, *messages], generate=False)
        text = text[text.index(self.begin) + len(self.begin):]
        for end in self.ends:
            text = text.removesuffix(end)
        return text


class GptOss(Model):
    def text(self, thoughts, content, calls):
        if not calls:
            return self.render(assistant(content, [], **({"thinking": thoughts} if thoughts else {})))
        # A message has one call, and thoughts or content in front of it.
        first = assistant("" if thoughts else content, calls[:1],
                          **({"thinking": thoughts} if thoughts else {}))
        return self.render(first, *(assistant("", [call]) for call in calls[1:]))

    def says(self, thoughts, content, calls):
        """Content in front of a call is thoughts."""
        return (thoughts or content, "", calls) if calls else (thoughts, content, calls)


class DeepSeek(Model):
    """Thoughts are in no history, and content is not everywhere: they are put in front."""

    def text(self, thoughts, content, calls):
        text = self.render(assistant("" if calls else content, calls))
        text = (content if calls else "") + text
        return f"{thoughts}\n</think>\n\n{text}" if self.reasoning else text

    def says(self, thoughts, content, calls):
        return thoughts, content, calls


class Qwen(Model):
    def text(self, thoughts, content, calls):
        return self.render(assistant(content, calls,
                                     **({"reasoning_content": thoughts} if self.reasoning else {})))

    def says(self, thoughts, content, calls):
        return thoughts, content, calls


def models(folder):
    begin, ends = "<｜Assistant｜>", ["<｜end▁of▁sentence｜>"]
    im_begin, im_ends = "<|im_start|>assistant\n", ["\n", "<|im_end|>"]
    return [
        GptOss(folder, "openai-gpt-oss-120b.jinja", "openai", "openai", "<|start|>assistant", []),
        DeepSeek(folder, "llama-cpp-deepseek-r1.jinja", "deepseek_v3", "", begin, ends),
        DeepSeek(folder, "llama-cpp-deepseek-r1.jinja", "deepseek_v3", "think", begin, ends),
        DeepSeek(folder, "deepseek-ai-DeepSeek-V3.1.jinja", "deepseek_v31", "", begin + "<think></think>", ends),
        Qwen(folder, "Qwen3-Coder.jinja", "qwen3_coder", "", im_begin, im_ends),
        Qwen(folder, "Qwen3.5-4B.jinja", "qwen3_coder", "think", im_begin + "<think>\n", im_ends),
    ]


def dump(arguments):
    return json.dumps(arguments, ensure_ascii=False)


def row(model, name, text, thoughts, content, calls):
    """`calls`: names, and arguments as texts."""
    inside = model.reasoning == "think"
    line = {"name": f"{model.form}, {name}", "format": model.form, "reasoning": model.reasoning, "inside": inside,
            "one_call": False, "tools": list(TOOLS)}
    if model.form == "qwen3_coder":
        line["parameters"] = TOOLS
    return {**line, "text": text, "expected": {"content": content, "reasoning": thoughts, "calls": calls}}


def whole(model):
    for name, thoughts, content, calls in MESSAGES:
        if thoughts and not model.reasoning:
            continue
        said, answered, called = model.says(thoughts, content, calls)
        yield row(model, name, model.text(thoughts, content, calls), said, answered,
                  [[tool, dump(arguments)] for tool, arguments in called])


def cut(model):
    """Answers that end too early, or go on behind their end: behind the text `at`, `more` follows."""
    call, two = model.text("Hm.", "", [PARIS]), model.text("Hm.", "", [PARIS, TOKYO])
    thoughts = "Hm." if model.reasoning else ""
    whole_call, other = ["get_weather", dump(PARIS[1])], ["get_weather", dump(TOKYO[1])]

    def cut_off(name, text, at, content, calls, more=""):
        end = text.index(at) + len(at)
        return row(model, name, text[:end] + more, thoughts, content, calls)

    if model.form == "openai":
        yield cut_off("cut off in the name", call, "functions.get_w", "", [])
        yield cut_off("cut off in the arguments", call, '"Par', "", [["get_weather", '{"city": "Par']])
        yield cut_off("cut off behind the arguments", call, "3}", "", [whole_call])
        yield cut_off("cut off in an end", call, "3}", "", [["get_weather", dump(PARIS[1]) + "<|cal"]], more="<|cal")
        yield cut_off("cut off in the second call", two, '"東', "", [whole_call, ["get_weather", '{"city": "東']])
        yield cut_off("an answer behind a call", call, "<|call|>", "It rains.", [whole_call],
                      more="<|start|>assistant<|channel|>final<|message|>It rains.<|return|>")
    elif model.form == "qwen3_coder":
        city = '{"city": "Paris"'
        yield cut_off("cut off in the arguments", call, "Par", "", [["get_weather", '{"city": "Par']])
        yield cut_off("cut off behind an argument", call, "Paris\n</parameter>\n", "", [["get_weather", city]])
        yield cut_off("cut off behind the function", call, "</function>", "", [whole_call])
        yield cut_off("cut off in the second call", two, "東", "", [whole_call, ["get_weather", '{"city": "東']])
        yield cut_off("text behind a call", call, "</tool_call>", "It rains.", [whole_call], more="\n\nIt rains.")
        yield row(model, "text between calls", two.replace("</tool_call>\n", "</tool_call>\nThen:\n"), thoughts,
                  "Then:", [whole_call, other])
    else:
        yield cut_off("cut off in the arguments", call, '"Par', "", [["get_weather", '{"city": "Par']])
        yield cut_off("cut off behind the arguments", call, "3}", "", [whole_call])
        yield cut_off("cut off behind a call", call, "<｜tool▁call▁end｜>", "", [whole_call])
        yield cut_off("cut off in the second call", two, '"東', "", [whole_call, ["get_weather", '{"city": "東']])
        yield cut_off("text behind the calls", call, "<｜tool▁calls▁end｜>", "It rains.", [whole_call],
                      more="\n\nIt rains.")
        yield row(model, "without the end of the calls", two.removesuffix("<｜tool▁calls▁end｜>"), thoughts, "",
                  [whole_call, other])


def main():
    for model in models(pathlib.Path(sys.argv[1])):
        for rows in (whole(model), cut(model)):
            for one in rows:
                print(json.dumps(one, ensure_ascii=False))


main()

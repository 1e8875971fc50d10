#!/usr/bin/env python3
"""Prints the rows of model/huggingface/class_defaults.cc: what the configuration classes of Hugging
Face's transformers take for keys that config.json lacks. It reads the classes' sources, and runs
nothing of them.

    pip download transformers==4.57.1 --no-deps && unzip -q transformers-*.whl
    make_class_defaults.py transformers
"""

import ast
import json
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[3]
# Keys that hf_configuration.cc reads by other ways than its lists of names.
MORE = {"partial_rotary_factor", "rotary_pct", "rope_scaling", "use_sliding_window"}


def quoted(path, begin="", end="\\Z"):
    text = re.search(f"{begin}.*?{end}", (ROOT / path).read_text(), re.S).group()
    return set(re.findall(r'"([a-z0-9_]+)"', text))


def defaults(folder, model_type):
    """The defaults of the class's constructor; those without a value are left out."""
    for path in folder.glob("models/*/configuration_*.py"):
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.ClassDef):
                continue
            named = [s.value for s in node.body
                     if isinstance(s, ast.Assign) and s.targets[0].id == "model_type"]
            if not named or ast.literal_eval(named[0]) != model_type:
                continue
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    values = method.args.defaults
                    names = [a.arg for a in method.args.args][-len(values):]
                    found = {"tie_word_embeddings": True}  # that of PretrainedConfig
                    found.update((n, eval(compile(ast.Expression(v), "", "eval"), {}))
                                 for n, v in zip(names, values))
                    return {n: v for n, v in found.items() if v is not None}
    sys.exit(f"transformers has no class of {model_type}")


def main():
    folder = pathlib.Path(sys.argv[1])
    known = MORE | quoted("model/huggingface/hf_configuration.cc", "kNames", "const Json\\* Member")
    types = re.findall(r"^\| [^|]+ \| `([a-z0-9_]+)` \|", (ROOT / "docs/models.md").read_text(), re.M)
    for model_type in sorted(types):
        # A folder without a head is tied in any case.
        row = {n: v for n, v in defaults(folder, model_type).items()
               if n in known and not (n == "tie_word_embeddings" and v is False)}
        lines = textwrap.wrap(json.dumps(row), 90, initial_indent="     ", subsequent_indent="      ",
                              break_long_words=False)
        print(f'    {{"{model_type}", R"(\n' + "\n".join(lines) + ')"},')


if __name__ == "__main__":
    main()

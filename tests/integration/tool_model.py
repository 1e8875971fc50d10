"""The real model with a template that shows it tools."""

import contextlib
import pathlib

import pytest

from flotilla_server import Server, model_path

# The model's own, with tools as Qwen's models have them.
TEMPLATE = """{% if tools %}<|im_start|>system
You call tools: {% for tool in tools %}{{ tool | tojson }}
{% endfor %}For each call return <tool_call>
{"name": ..., "arguments": ...}
</tool_call><|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}
{% if m.role == 'tool' %}<tool_response>{{ m.content }}</tool_response>{% else %}{{ m.content or '' }}\
{% endif %}{% for call in m.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def model_with(template, path):
    """The model's file with another chat template. What follows it stays at multiples of 32 bytes."""
    data = pathlib.Path(model_path()).read_bytes()
    key = b"tokenizer.chat_template"
    at = data.index(key) + len(key) + 4  # behind the type
    length = int.from_bytes(data[at:at + 8], "little")
    text = template.encode()
    text += b"{#" + b" " * ((length - len(text) - 4) % 32) + b"#}"
    path.write_bytes(data[:at] + len(text).to_bytes(8, "little") + text + data[at + 8 + length:])


@contextlib.contextmanager
def server_of_tools(folder):
    """A server of that model."""
    model_with(TEMPLATE, folder / "model.gguf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLOTILLA_MODEL", str(folder / "model.gguf"))
        with Server(folder) as server:
            yield server

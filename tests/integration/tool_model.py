"""The real model with a template that shows it tools."""

from flotilla_server import Server

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


def server_of_tools(folder):
    """A server of that model."""
    (folder / "tools.jinja").write_text(TEMPLATE)
    return Server(folder, "--chat-template", str(folder / "tools.jinja"))

// Chat templates with tools and thoughts for tests, and a tokenizer whose markers are control
// tokens.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "common/types/tokenizer_bundle.h"

namespace flotilla::testing {

// As Qwen 3's, with less text.
inline constexpr char kHermesTemplate[] =
    "{% if tools %}<|im_start|>system\n<tools>{% for tool in tools %}\n{{ tool | tojson }}"
    "{% endfor %}\n</tools> For each call return <tool_call>\n{...}\n</tool_call><|im_end|>\n"
    "{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ "
    "m.content.split('</think>')[-1] }}"
    "{% for call in m.tool_calls %}<tool_call>\n{\"name\": \"{{ call.function.name }}\", "
    "\"arguments\": {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking %}<think>\n{% endif %}{% endif %}";

// As Qwen3-Coder's, with less text.
inline constexpr char kQwenCoderTemplate[] =
    "{% if tools %}<|im_start|>system\n<tools>{% for tool in tools %}\n{{ tool | tojson }}"
    "{% endfor %}\n</tools> For each call return <tool_call>\n<function=name>\n...</function>\n"
    "</tool_call><|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content }}{% for call in m.tool_calls %}"
    "{{ '<tool_call>\n<function=' + call.function.name + '>\n' }}"
    "{% for name, value in call.function.arguments | items %}{{ '<parameter=' + name + '>\n' }}"
    "{{ value | tojson | safe if value is mapping or (value is sequence and value is not string) "
    "else value | string }}{{ '\n</parameter>\n' }}{% endfor %}{{ '</function>\n</tool_call>' }}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% endif %}";

// As GLM 4.5's, with less text.
inline constexpr char kGlmTemplate[] =
    "{% if tools %}<|system|>\n<tools>{% for tool in tools %}\n{{ tool | "
    "tojson(ensure_ascii=False) }}"
    "{% endfor %}\n</tools> For each call return <tool_call>{name}\n<arg_key>{key}</arg_key>\n"
    "<arg_value>{value}</arg_value>\n</tool_call>{% endif %}{% for m in messages %}<|{{ m.role "
    "}}|>\n"
    "{{ m.content }}{% for call in m.tool_calls %}{{ '\n<tool_call>' + call.function.name }}\n"
    "{% set arguments = call.function.arguments or {} %}{% for k, v in arguments.items() %}"
    "<arg_key>{{ k }}</arg_key>\n<arg_value>"
    "{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>\n{% endfor %}"
    "</tool_call>{% endfor %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

// SmolLM2's tokenizer, but some of its control tokens, which text never has, are the markers.
inline TokenizerBundle WithMarkers(TokenizerBundle bundle) {
  constexpr std::pair<std::string_view, std::string_view> kRenamed[] = {
      {"<repo_name>", "<tool_call>"},
      {"<reponame>", "</tool_call>"},
      {"<file_sep>", "<think>"},
      {"<filename>", "</think>"}};
  for (const auto& [from, to] : kRenamed) {
    std::replace(bundle.tokens.begin(), bundle.tokens.end(), std::string(from), std::string(to));
  }
  return bundle;
}

}  // namespace flotilla::testing

#include "router/core/tools/tool_format.h"

#include <algorithm>
#include <cstddef>

#include "router/core/tools/channel_parser.h"

namespace flotilla::router {
namespace {

using Shape = ToolFormat::Shape;

// The first row whose signs a template has is its format, so rows whose signs say more come first.
constexpr ToolFormat kToolFormats[] = {
    {.name = "openai",  // gpt-oss
     .signs = {"<|channel|>", "<|message|>"},
     .shape = Shape::kChannels,
     .begin = "<|channel|>",
     .end = "<|call|>",
     .before_name = "<|channel|>commentary to=functions.",
     .before_arguments = " <|constrain|>json<|message|>",
     .after_arguments = "<|call|>",
     .between_calls = "<|start|>assistant"},
    // DeepSeek V3 and R1: "function", separator, name and a fenced block.
    {.name = "deepseek_v3",
     .signs = {"<｜tool▁calls▁begin｜>", "```json"},
     .shape = Shape::kNamed,
     .begin = "<｜tool▁call▁begin｜>",
     .end = "<｜tool▁call▁end｜>",
     .section_begin = "<｜tool▁calls▁begin｜>",
     .section_end = "<｜tool▁calls▁end｜>",
     .separator = "<｜tool▁sep｜>",
     .before_name = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
     .before_arguments = "\n```json\n",
     .after_arguments = "\n```<｜tool▁call▁end｜>",
     .between_calls = "\n"},
    // DeepSeek V3.1: name, separator, arguments.
    {.name = "deepseek_v31",
     .signs = {"<｜tool▁calls▁begin｜>", ""},
     .shape = Shape::kNamed,
     .begin = "<｜tool▁call▁begin｜>",
     .end = "<｜tool▁call▁end｜>",
     .section_begin = "<｜tool▁calls▁begin｜>",
     .section_end = "<｜tool▁calls▁end｜>",
     .separator = "<｜tool▁sep｜>",
     .before_name = "<｜tool▁call▁begin｜>",
     .before_arguments = "<｜tool▁sep｜>",
     .after_arguments = "<｜tool▁call▁end｜>"},
    {.name = "mistral_v11",
     .signs = {"[TOOL_CALLS]", "[ARGS]"},
     .shape = Shape::kNamed,
     .begin = "[TOOL_CALLS]",
     .end = "",
     .separator = "[ARGS]",
     .aside = "[CALL_ID]",
     .before_name = "[TOOL_CALLS]",
     .before_arguments = "[ARGS]",
     .short_ids = true},
    {.name = "mistral",
     .signs = {"[TOOL_CALLS]", ""},
     .shape = Shape::kNamed,
     .begin = "[TOOL_CALLS]",
     .end = "",
     .separator = "",
     .aside = "[CALL_ID]",
     .before_name = "[TOOL_CALLS][{\"name\": \"",
     .before_arguments = "\", \"arguments\": ",
     .after_arguments = "}]",
     .short_ids = true},
    {.name = "qwen3_coder",  // and Qwen 3.5
     .signs = {"<tool_call>", "<function="},
     .shape = Shape::kXml,
     .begin = "<tool_call>",
     .end = "</tool_call>",
     .xml = {.style = "qwen_xml",
             .name_begin = "<function=",
             .name_end = ">",
             .key_begin = "<parameter=",
             .key_end = ">",
             .value_begin = "",
             .value_end = "</parameter>",
             .lost_end = "</function>\n</tool_call>",
             .body_end = "</function>",
             .has_lines = true},
     .before_name = "<tool_call>\n<function=",
     .before_arguments = ">\n",
     .after_arguments = "</function>\n</tool_call>",
     .between_calls = "\n"},
    {.name = "glm45",  // GLM 4.5 to 4.7
     .signs = {"<tool_call>", "<arg_key>"},
     .shape = Shape::kXml,
     .begin = "<tool_call>",
     .end = "</tool_call>",
     .xml = {.style = "glm_xml",
             .name_begin = "",
             .name_end = "",
             .key_begin = "<arg_key>",
             .key_end = "</arg_key>",
             .value_begin = "<arg_value>",
             .value_end = "</arg_value>",
             .guesses = true},
     .before_name = "<tool_call>",
     .before_arguments = "\n",
     .after_arguments = "</tool_call>",
     .between_calls = "\n"},
    {.name = "hermes",  // and Qwen 2.5, Qwen 3
     .signs = {"<tool_call>", "</tool_call>"},
     .begin = "<tool_call>",
     .end = "</tool_call>",
     .before_name = "<tool_call>\n{\"name\": \"",
     .before_arguments = "\", \"arguments\": ",
     .after_arguments = "}\n</tool_call>",
     .between_calls = "\n"},
    {.name = "granite",
     .signs = {"<|tool_call|>", ""},
     .begin = "<|tool_call|>",
     .end = "<|/tool_call|>",
     .before_name = "<|tool_call|>[{\"name\": \"",
     .before_arguments = "\", \"arguments\": ",
     .after_arguments = "}]"},
    {.name = "llama3_json",
     .signs = {"<|start_header_id|>", "\"parameters\""},
     .begin = "<|python_tag|>",
     .end = "",
     .bare = true,
     .before_name = "{\"name\": \"",
     .before_arguments = "\", \"parameters\": ",
     .after_arguments = "}",
     .between_calls = "; "},
};

constexpr ReasoningFormat kReasoningFormats[] = {
    {.name = "openai",
     .signs = {"<|channel|>", "<|message|>"},
     .begin = "",
     .end = "",
     .channel_begin = "<|channel|>analysis<|message|>",
     .channel_end = "<|end|>",
     .next_message = "<|start|>assistant",
     .answer_header = "<|channel|>final<|message|>"},
    {.name = "think", .signs = {"</think>", ""}, .begin = "<think>", .end = "</think>"},
    {.name = "seed_oss",
     .signs = {"</seed:think>", ""},
     .begin = "<seed:think>",
     .end = "</seed:think>"},
    {.name = "mistral", .signs = {"[/THINK]", ""}, .begin = "[THINK]", .end = "[/THINK]"},
};

template <class Format>
const Format* Recognise(std::span<const Format> formats, std::string_view text) {
  const auto has = [text](std::string_view sign) { return text.find(sign) != text.npos; };
  const auto row = std::find_if(formats.begin(), formats.end(), [&](const Format& format) {
    return std::all_of(format.signs.begin(), format.signs.end(), has);
  });
  return row == formats.end() ? nullptr : &*row;
}

bool IsPart(std::string_view token, std::span<const std::string_view> markers) {
  return !token.empty() &&
         std::any_of(markers.begin(), markers.end(), [token](std::string_view marker) {
           return marker.find(token) != marker.npos;
         });
}

// FNV-1a with the finaliser of SplitMix64.
std::uint64_t Mix(std::string_view text, std::uint64_t salt) {
  std::uint64_t h = 0xcbf29ce484222325ull ^ salt;
  for (char c : text) h = (h ^ static_cast<std::uint8_t>(c)) * 0x100000001b3ull;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
  return h ^ (h >> 31);
}

}  // namespace

std::span<const ToolFormat> ToolFormats() { return kToolFormats; }
std::span<const ReasoningFormat> ReasoningFormats() { return kReasoningFormats; }

const ToolFormat* RecogniseToolFormat(std::string_view chat_template) {
  const ToolFormat* format = Recognise(ToolFormats(), chat_template);
  if (format != nullptr && format->shape == Shape::kXml) return format;
  // XML within other tags is of a format that is not known.
  for (std::string_view xml : {"<function=", "<arg_key>"}) {
    if (chat_template.find(xml) != std::string_view::npos) return nullptr;
  }
  return format;
}

const ReasoningFormat* RecogniseReasoning(std::string_view chat_template) {
  return Recognise(ReasoningFormats(), chat_template);
}

bool IsMarker(std::string_view token, const ToolFormat& format) {
  if (format.shape == Shape::kChannels) return IsPart(token, kChannelMarkers);
  const XmlTags& xml = format.xml;
  const std::string_view markers[] = {format.begin,       format.end,       format.section_begin,
                                      format.section_end, format.separator, format.aside,
                                      xml.key_begin,      xml.key_end,      xml.value_begin,
                                      xml.value_end,      xml.name_begin,   xml.body_end};
  return IsPart(token, markers);
}

bool IsMarker(std::string_view token, const ReasoningFormat& format) {
  if (format.has_channel()) return IsPart(token, kChannelMarkers);
  const std::string_view markers[] = {format.begin, format.end};
  return IsPart(token, markers);
}

std::string ToolCallId(const ToolFormat* format, std::string_view answer_id, std::uint32_t choice,
                       std::uint32_t index) {
  constexpr std::string_view kDigits =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  const bool is_short = format != nullptr && format->short_ids;
  std::string id = is_short ? "" : "call_";
  const std::size_t length = is_short ? 9 : 5 + 24;
  for (std::uint64_t part = 0; id.size() < length; ++part) {
    std::uint64_t bits = Mix(answer_id, part << 60 ^ std::uint64_t{choice} << 32 ^ index);
    for (int i = 0; i < 9 && id.size() < length; ++i, bits /= kDigits.size()) {
      id.push_back(kDigits[bits % kDigits.size()]);
    }
  }
  return id;
}

}  // namespace flotilla::router

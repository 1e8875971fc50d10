// How models write their calls of tools and their thoughts: a table of formats. Pure data, and the
// functions that find the row of a model by the text of its chat template.
//
// A new model's format is a row. Rows say what is read (output_parser.h) and what a grammar may
// enforce (tool_constraint.h).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace flotilla::router {

// The tags of a call in XML. An argument is `key_begin`, its name, `key_end`, `value_begin`, its
// value, `value_end`. White space may be between the tags. A value is a text, without quotes and
// escapes, if the tool's parameters say so (argument_types.h), else JSON.
struct XmlTags {
  std::string_view style;       // XGrammar's name of the form of the arguments
  std::string_view name_begin;  // may be empty
  // One character. Empty: the name ends with its line or at a tag, and must be that of a tool,
  // because other text may be so, too.
  std::string_view name_end;
  std::string_view key_begin, key_end;
  std::string_view value_begin;  // may be empty
  std::string_view value_end;
  // The end of the whole call, if models are known to write it without `value_end` in front of it.
  // It then ends a value, too. May be empty.
  std::string_view lost_end = {};
  std::string_view body_end = {};  // behind the arguments; empty: there is only the call's `end`
  // A line break at the begin and one at the end of a value are no part of it.
  bool has_lines = false;
  // A value of which the parameters say nothing is JSON if it reads as such, else a text. If not
  // set, it is a text.
  bool guesses = false;
};

struct ToolFormat {
  enum class Shape : std::uint8_t {
    // `begin`, a JSON object with name and arguments (or parameters) or a list of such, `end`.
    kJson,
    // `begin`, the name, `separator`, the JSON of the arguments, `end`. JSON as in kJson may
    // follow `begin`, too.
    kNamed,
    // Messages with a header that says whom they are for (gpt-oss).
    kChannels,
    // `begin`, name and arguments between the tags of `xml`, `end`.
    kXml,
  };

  std::string_view name;  // mostly vLLM's name of its parser
  // A template with all of these texts is of this format. Empty: no text.
  std::array<std::string_view, 2> signs;
  Shape shape = Shape::kJson;
  std::string_view begin;  // of a call, or of a list of calls
  std::string_view end;    // may be empty
  // Around all calls of an answer; may be empty.
  std::string_view section_begin = {};
  std::string_view section_end = {};
  // kJson: an answer that is nothing but a call may lack `begin`. The name must then be that of a
  // tool, because other answers may be JSON, too.
  bool bare = false;
  // kNamed: between name and arguments. May be empty, and is then not needed.
  std::string_view separator = {};
  // kNamed: what follows this, up to the separator, is not part of the name.
  std::string_view aside = {};
  XmlTags xml = {};  // of kXml
  // How a grammar has the model write a call: text, the name, text, the arguments, text. And what
  // is between two calls.
  std::string_view before_name = {};
  std::string_view before_arguments = {};
  std::string_view after_arguments = {};
  std::string_view between_calls = {};
  // The ids of calls have nine letters and digits, and nothing else.
  bool short_ids = false;
};

struct ReasoningFormat {
  std::string_view name;
  std::array<std::string_view, 2> signs;  // as a ToolFormat's
  // Around the thoughts, with which an answer begins. Both empty: they have a channel.
  std::string_view begin;
  std::string_view end;
  // Around thoughts that have a channel, how the next message begins behind them, and how its
  // header goes on if it is the answer.
  std::string_view channel_begin = {};
  std::string_view channel_end = {};
  std::string_view next_message = {};
  std::string_view answer_header = {};

  bool has_channel() const { return end.empty(); }
};

std::span<const ToolFormat> ToolFormats();
std::span<const ReasoningFormat> ReasoningFormats();

// The row of the model whose chat template has this text; null: there is none. The result lives as
// long as the program.
const ToolFormat* RecogniseToolFormat(std::string_view chat_template);
const ReasoningFormat* RecogniseReasoning(std::string_view chat_template);

// Whether `token`, the text of a control token, is one of the format's markers or a part of one.
bool IsMarker(std::string_view token, const ToolFormat& format);
bool IsMarker(std::string_view token, const ReasoningFormat& format);

// The id of call `index` of a choice: made of the answer's id, which nobody can guess. `format` may
// be null.
std::string ToolCallId(const ToolFormat* format, std::string_view answer_id, std::uint32_t choice,
                       std::uint32_t index);

}  // namespace flotilla::router

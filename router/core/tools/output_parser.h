// OutputParser: takes a model's answer apart into content, thoughts and calls of tools while it is
// written. Pure; owned by one choice of a generation.
//
// The result does not depend on how the text is cut into pieces: the events of the same kind, put
// together, are those of the whole text. What turns out not to be a call is content. Only the
// markers of the format and white space beside them are dropped. Text is held back only while it
// may still be a marker, or the beginning of a call up to its name, at most kMaxHeldBytes. A value
// that is written in XML and may be no text is held back until it is complete, at most
// kMaxValueBytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "router/core/tools/argument_types.h"
#include "router/core/tools/tool_format.h"

namespace flotilla::router {

struct OutputEvent {
  enum class Kind : std::uint8_t {
    kContent,
    kReasoning,
    kCall,       // a call begins; `text` is the tool's name
    kArguments,  // `text` is a piece of the call's arguments
  };
  Kind kind = Kind::kContent;
  std::string text;
  std::uint32_t call = 0;  // of kCall and kArguments: the call's number, from 0

  bool operator==(const OutputEvent&) const = default;
};

struct OutputOptions {
  const ToolFormat* tools = nullptr;           // null: calls are content
  const ReasoningFormat* reasoning = nullptr;  // null: thoughts are content
  bool begins_in_reasoning = false;            // the prompt has the begin of the thoughts
  std::vector<std::string> tool_names;         // that the model may call
  bool one_call = false;                       // the answer ends with its first call
  // The answer is either text or calls, so text that has begun has none.
  bool text_or_calls = false;
  // Of the tools, for formats in XML; null: nothing is known of them.
  std::shared_ptr<const ArgumentTypes> argument_types = nullptr;
};

class OutputParser {
 public:
  static constexpr std::size_t kMaxHeldBytes = 16 << 10;
  // What began like a call and was none may have calls within it, so it is read again. Text in
  // which calls begin again and again would be read again for each. Of an answer that had so many
  // bytes read again, what is no call is content as a whole.
  static constexpr std::size_t kMaxReadAgain = 16 * kMaxHeldBytes;
  // A longer value is a text. Lists and objects of that size are rare, and the memory of a choice
  // grows by no more than its answer.
  static constexpr std::size_t kMaxValueBytes = 256 << 10;
  // More are content.
  static constexpr std::uint32_t kMaxCalls = 128;

  virtual ~OutputParser() = default;

  // Adds text. Appends what became certain to `events`; neighbours that belong together are one.
  virtual void Push(std::string_view text, std::vector<OutputEvent>& events) = 0;
  // The text has ended.
  virtual void Finish(std::vector<OutputEvent>& events) = 0;
  // With one_call: the call is complete, and text that follows is dropped.
  virtual bool finished() const = 0;
};

// Null if there is nothing to take apart: all text is content.
std::unique_ptr<OutputParser> MakeOutputParser(OutputOptions options);

// Appends an event, or its text to the last event if that is of the same kind and call.
void AddEvent(OutputEvent::Kind kind, std::string_view text, std::uint32_t call,
              std::vector<OutputEvent>& events);

}  // namespace flotilla::router

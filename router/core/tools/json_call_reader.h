// JsonCallReader: the CallReader of the formats whose arguments are JSON.
//
// The arguments end where their JSON ends, at the end marker, or with the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "router/core/tools/call_reader.h"
#include "router/core/tools/json_string.h"

namespace flotilla::router {

class JsonCallReader final : public CallReader {
 public:
  using CallReader::CallReader;

  void Begin(bool bare) override;
  Verdict Push(char c, std::vector<OutputEvent>& events) override;
  bool Finish(std::vector<OutputEvent>& events) override;

 private:
  enum class Step : std::uint8_t {
    kStart,          // a value may begin
    kHeader,         // the name of a kNamed call
    kKey,            // a member's name, or the object's end
    kKeyText,        // within it
    kColon,          // between a member's name and its value
    kValue,          // a member's value begins
    kNameText,       // the name's string
    kArguments,      // within an object or list that is the arguments
    kArgumentsText,  // within a string that holds the arguments' JSON
    kArgumentsWord,  // within a number or word that is the arguments
    kSkipped,        // within another value that is an object or list
    kSkippedText,    // within a string
    kSkippedWord,    // within a number or word
    kComma,          // a member has ended
    kAfter,          // a call has ended
  };

  Verdict ReadHeader(char c, std::vector<OutputEvent>& events);
  Verdict ReadStart(char c);
  Verdict ReadValue(char c, std::vector<OutputEvent>& events);
  Verdict ReadArguments(char c, std::vector<OutputEvent>& events);
  Verdict ReadComma(char c, std::vector<OutputEvent>& events);
  Verdict ReadAfter(char c);
  // What comes cannot go on with the object.
  Verdict Break();
  Verdict EndObject(std::vector<OutputEvent>& events);
  void AddArguments(std::string_view text, std::vector<OutputEvent>& events);
  void EndCall();
  // The name that a header of kNamed gives; none: it is no header.
  std::optional<std::string> NameOf(std::string_view header) const;
  void BeginObject();

  bool in_list_ = false;

  // Of the call being read.
  Step step_ = Step::kStart;
  std::string header_;   // of kNamed
  bool fenced_ = false;  // its arguments are in a block between ```
  std::string key_, name_;
  std::string held_arguments_;  // before the name
  bool has_arguments_ = false;
  bool is_nested_ = false;  // within the member "function"
  JsonStringReader text_;
  std::size_t depth_ = 0;
  bool in_string_ = false, escaped_ = false;
  std::string word_;
  std::string maybe_end_;  // what may become the end marker
};

}  // namespace flotilla::router

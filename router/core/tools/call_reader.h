// CallReader: reads one call, or a list of calls, byte by byte, from behind the marker that begins
// it. Pure; a part of TaggedParser.
//
// Until the tool's name and the begin of its arguments are there, the text may still turn out not
// to be a call. From then on it is one, whatever follows: its arguments end where their JSON ends,
// at the end marker, or with the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "router/core/tools/json_string.h"
#include "router/core/tools/output_parser.h"

namespace flotilla::router {

class CallReader {
 public:
  enum class Verdict : std::uint8_t {
    kReading,
    kNoCall,  // what has come since the begin or the last call, this byte included, is no call
    kLeft,    // the calls are complete, and this byte is behind them
    kEnded,   // the calls are complete, and this byte completed the end marker
  };

  // `options` outlives the reader and has a format.
  explicit CallReader(const OutputOptions& options) : options_(options) {}

  // Begins with the text behind a marker, or, if `bare`, with that of an answer without one.
  void Begin(bool bare);
  Verdict Push(char c, std::vector<OutputEvent>& events);
  // The text has ended. False: what has come since the begin or the last call is no call.
  bool Finish(std::vector<OutputEvent>& events);
  // Calls that have ended, since the first Begin.
  std::uint32_t complete() const { return complete_; }
  // Whether all that has come belongs to calls.
  bool is_certain() const { return committed_; }

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
  // The name is known. False: there is no such tool where it must exist.
  bool Commit(std::vector<OutputEvent>& events);
  void AddArguments(std::string_view text, std::vector<OutputEvent>& events);
  void EndCall();
  // The name that a header of kNamed gives; none: it is no header.
  std::optional<std::string> NameOf(std::string_view header) const;
  void BeginObject();

  const OutputOptions& options_;
  bool bare_ = false;
  bool in_list_ = false;
  std::uint32_t begun_ = 0, complete_ = 0;

  // Of the call being read.
  Step step_ = Step::kStart;
  std::string header_;   // of kNamed
  bool fenced_ = false;  // its arguments are in a block between ```
  std::string key_, name_;
  std::string held_arguments_;  // before the name
  bool committed_ = false;
  bool has_arguments_ = false;
  bool is_nested_ = false;  // within the member "function"
  JsonStringReader text_;
  std::size_t depth_ = 0;
  bool in_string_ = false, escaped_ = false;
  std::string word_;
  std::string maybe_end_;  // what may become the end marker
};

}  // namespace flotilla::router

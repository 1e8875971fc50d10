// XmlCallReader: the CallReader of the formats whose arguments are in XML.
//
// It writes the arguments as a JSON object. A value that is a text comes piece by piece; any other
// one comes when it is complete, and is a text if it is no JSON of its types (argument_types.h).
// What belongs to no tag ends the arguments, except in values. An end tag within a string of an
// object or a list is a part of it, as long as that may be JSON.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "router/core/tools/argument_types.h"
#include "router/core/tools/call_reader.h"
#include "router/core/tools/marker_scanner.h"

namespace flotilla::router {

class XmlCallReader final : public CallReader {
 public:
  explicit XmlCallReader(const OutputOptions& options)
      : CallReader(options), tags_(options.tools->xml) {}

  void Begin(bool bare) override;
  Verdict Push(char c, std::vector<OutputEvent>& events) override;
  bool Finish(std::vector<OutputEvent>& events) override;

 private:
  enum class Step : std::uint8_t {
    kStart,       // the tag in front of the name may come
    kName,        // within the name
    kBetween,     // an argument may begin, or the call may end
    kKey,         // within an argument's name
    kValueBegin,  // the tag in front of a value may come
    kValue,       // within a value
    kAfter,       // a call has ended, and another one may begin
  };

  void BeginName();
  Verdict ReadName(char c, std::vector<OutputEvent>& events);
  Verdict ReadBetween(char c, std::vector<OutputEvent>& events);
  Verdict ReadKey(char c, std::vector<OutputEvent>& events);
  Verdict ReadValueBegin(char c, std::vector<OutputEvent>& events);
  Verdict ReadValue(char c, std::vector<OutputEvent>& events);
  Verdict ReadAfter(char c, std::vector<OutputEvent>& events);
  // Adds a byte in front of a tag or within it. True if `tag_` is then empty or may become one of
  // the tags.
  bool ReadTag(char c, std::initializer_list<std::string_view> tags);
  // `text` and the byte that came last cannot go on with the call.
  Verdict Leave(std::string_view text, std::vector<OutputEvent>& events);

  bool MayBeText() const { return (type_.types & kStringType) != 0; }
  void BeginValue(std::vector<OutputEvent>& events);
  void AddValue(std::string_view text, std::vector<OutputEvent>& events);
  void AddText(std::string_view text, std::vector<OutputEvent>& events);
  void EndValue(std::vector<OutputEvent>& events);
  void EndCall(std::vector<OutputEvent>& events);
  void AddArguments(std::string_view text, std::vector<OutputEvent>& events);

  const XmlTags& tags_;
  Step step_ = Step::kStart;
  std::string tag_;  // what may become a tag

  // Of the call being read.
  std::string name_;
  bool has_arguments_ = false;

  // Of the argument being read.
  std::string key_;  // with its end tag, while that is read
  MarkerScanner scanner_;
  ArgumentType type_;
  bool is_text_ = false;    // it is written as a text, as it comes
  std::string value_;       // else: what has come
  bool is_nested_ = false;  // `value_` must be an object or a list, as which it begins
  bool in_string_ = false, escaped_ = false;  // where its JSON is
  // An end tag within a string has come. It is a part of the string, unless a line break follows,
  // which no string of JSON has.
  bool owes_tag_ = false;
  bool at_begin_ = false;   // of the text
  bool owes_line_ = false;  // a line break, unless it is the text's last
};

}  // namespace flotilla::router

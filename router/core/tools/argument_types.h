// ArgumentTypes: what the arguments of tools may be by their schemas. XML does not tell the text 5
// from the number, so a reader of calls in XML asks here. Pure; immutable once it is made.
#pragma once

#include <cstddef>
#include <limits>
#include <map>
#include <string>
#include <string_view>

#include "router/core/constraint/keywords.h"

namespace flotilla::router {

inline constexpr std::size_t kNoMaxLength = std::numeric_limits<std::size_t>::max();

struct ArgumentType {
  unsigned types = kAllTypes;  // of JsonType; all: nothing is known
  // White space at the ends is no part of a text: it is one of some values, or has a pattern or a
  // format, and grammars may have a model write white space around such a text.
  bool trims = false;
  // In characters. White space at the ends of a longer text is no part of it, either.
  std::size_t max_length = kNoMaxLength;
};

class ArgumentTypes {
 public:
  // `parameters` is a tool's JSON Schema. Of one that cannot be read nothing is known, and of one
  // that is large only what comes first. Time and memory are bounded.
  void Add(std::string_view tool, std::string_view parameters);

  ArgumentType Of(std::string_view tool, std::string_view argument) const;

  struct Tool {
    std::map<std::string, ArgumentType, std::less<>> named;
    ArgumentType others;  // of arguments that are not named
  };

 private:
  std::map<std::string, Tool, std::less<>> tools_;
};

}  // namespace flotilla::router

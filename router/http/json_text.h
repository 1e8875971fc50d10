// Writes JSON by appending to a string. This runs for every token on its way to a client, so
// nothing here builds a tree.
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace flotilla::router {

// `text` (valid UTF-8) with quotes, backslashes and control characters escaped;
// without the surrounding quotes.
void AppendJsonEscaped(std::string_view text, std::string& out);

// Writes the same in quotes.
void AppendJsonString(std::string_view text, std::string& out);

void AppendJsonInt(std::integral auto value, std::string& out) { out += std::to_string(value); }

// The shortest decimal that reads back as the same float. JSON has no
// infinities: a log-probability of minus infinity becomes -9999, NaN null.
void AppendJsonFloat(float value, std::string& out);

// [1,2,3]
template <class Range>
void AppendJsonIntArray(const Range& values, std::string& out) {
  out.push_back('[');
  bool first = true;
  for (auto value : values) {
    if (!first) out.push_back(',');
    first = false;
    AppendJsonInt(value, out);
  }
  out.push_back(']');
}

}  // namespace flotilla::router

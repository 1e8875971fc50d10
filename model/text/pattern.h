// A regular expression or a fixed text that splits other text.
//
// A Pattern is immutable after creation; any number of threads may use it at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace flotilla::model {

// White space for a class of a regular expression. PCRE2's \s also matches U+180E, but the \s of
// the reference tokenizers does not, so white space is spelled out.
#define FLOTILLA_WHITE_SPACE \
  R"(\x09-\x0d\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})"

// Processor time of the calling thread, which does not grow while others have the processor.
int64_t ThreadNanoseconds();

class Pattern {
 public:
  // An expression of our own, as PCRE2 reads it. INVALID_ARGUMENT: it is none. UNIMPLEMENTED: it
  // may match the empty text.
  static absl::StatusOr<Pattern> Pcre2(std::string_view expression);
  // An expression of a file, as Oniguruma reads it. UNIMPLEMENTED names what it has that is not
  // known to mean the same here, or says that it may match the empty text.
  static absl::StatusOr<Pattern> Regex(std::string_view expression);
  // A text that stands for itself; an empty one matches nowhere.
  static Pattern Text(std::string text);

  Pattern(Pattern&&);
  Pattern& operator=(Pattern&&);
  ~Pattern();

  // Calls `part` with the consecutive parts of `text`, which is valid UTF-8: the matches and what
  // is between them, none empty. Stops when it returns false or an error, and returns that; it does
  // not look at the rest of the text then. RESOURCE_EXHAUSTED: a match takes too many steps or is
  // empty, or the text takes more than 10 ms and 4 us a byte of the thread's processor time.
  using Part = absl::FunctionRef<absl::StatusOr<bool>(std::string_view part, bool matches)>;
  absl::StatusOr<bool> Split(std::string_view text, Part part) const;

 private:
  struct Compiled;
  class Search;
  Pattern();
  // `source` is what messages show. The time of a trusted expression need not be bounded.
  static absl::StatusOr<Pattern> Compile(std::string_view expression, std::string_view source,
                                         bool trusted);

  std::unique_ptr<const Compiled> regex_;  // null: text_
  std::string text_;
};

}  // namespace flotilla::model

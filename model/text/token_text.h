// TokenText: what the tokens of a vocabulary stand for in a text, by the decoder of a
// tokenizer.json.
//
// It is immutable after creation; any number of threads may use it at once.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types/tokenizer_bundle.h"
#include "model/text/pattern.h"

namespace flotilla::model {

class TokenText {
 public:
  // UNIMPLEMENTED: a step does not work on the text of tokens, or needs more than one token at a
  // time, which a stream does not have.
  static absl::StatusOr<TokenText> Create(std::span<const TextStep> steps);

  // The bytes that `token` stands for, which are not always whole characters. `first`: it is the
  // first of its text. INVALID_ARGUMENT: it becomes more than 32 times as long and 4 KiB.
  absl::StatusOr<std::string> Of(std::string_view token, bool first) const;

  // Whether the first token may stand for other bytes than it does behind others.
  bool first_differs() const { return first_differs_; }
  // Whether it matches regular expressions, whose time depends on the token.
  bool has_patterns() const { return has_patterns_; }
  // Whether a text loses a space at its beginning, besides.
  bool strips_first_space() const { return strips_first_space_; }

 private:
  struct Step {
    TextStep step;
    std::optional<Pattern> pattern;  // of Replace
  };

  TokenText() = default;

  std::vector<Step> steps_;
  bool first_differs_ = false;
  bool has_patterns_ = false;
  bool strips_first_space_ = false;
};

}  // namespace flotilla::model

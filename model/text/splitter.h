// Splitter: splits a text into pieces by the steps of a tokenizer.json. Models never look across
// the border of two pieces.
//
// Steps behind ByteLevel split what ByteLevel makes of a text: the characters that stand for its
// bytes. The pieces are bytes again.
//
// It is immutable after creation; any number of threads may use it at once.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types/tokenizer_bundle.h"
#include "model/text/pattern.h"

namespace flotilla::model {

class Splitter {
 public:
  // UNIMPLEMENTED or INVALID_ARGUMENT: a step does not split text, has a pattern that cannot be
  // used, or puts in characters that stand for no byte.
  static absl::StatusOr<Splitter> Create(std::span<const TextStep> steps);

  // Calls `piece` with the pieces of `text`, which is valid UTF-8, until it returns false. A piece
  // lives as long as the call; behind ByteLevel it may begin or end inside a character. `first`:
  // nothing comes before the text. RESOURCE_EXHAUSTED: a pattern takes too many steps.
  using Piece = absl::FunctionRef<bool(std::string_view)>;
  absl::Status Split(std::string_view text, bool first, Piece piece) const;

 private:
  struct Step {
    TextStep step;
    std::optional<Pattern> pattern;
  };
  class Run;

  Splitter() = default;

  std::vector<Step> steps_;
  bool ends_in_alphabet_ = false;  // the last step splits characters that stand for bytes
};

}  // namespace flotilla::model

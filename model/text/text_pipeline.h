// TextPipeline: the parts of a tokenizer around its model. A text is normalised and split into
// pieces, which a model turns into tokens; the texts of tokens become text again.
//
// It is immutable after creation; any number of threads may use it at once.
#pragma once

#include <utility>

#include "absl/status/statusor.h"
#include "common/types/tokenizer_bundle.h"
#include "model/text/normalizer.h"
#include "model/text/splitter.h"
#include "model/text/token_text.h"

namespace flotilla::model {

class TextPipeline {
 public:
  // Of a bundle with steps. UNIMPLEMENTED or INVALID_ARGUMENT: a step cannot be used.
  static absl::StatusOr<TextPipeline> Create(const TextSteps& steps);

  const Normalizer& normalizer() const { return normalizer_; }
  const Splitter& splitter() const { return splitter_; }

  const TokenText& token_text() const { return token_text_; }

 private:
  TextPipeline(Normalizer normalizer, Splitter splitter, TokenText token_text)
      : normalizer_(std::move(normalizer)),
        splitter_(std::move(splitter)),
        token_text_(std::move(token_text)) {}

  Normalizer normalizer_;
  Splitter splitter_;
  TokenText token_text_;
};

}  // namespace flotilla::model

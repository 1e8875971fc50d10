#include "model/text/text_pipeline.h"

#include <string>
#include <utility>

namespace flotilla::model {

absl::StatusOr<TextPipeline> TextPipeline::Create(const TextSteps& steps) {
  auto normalizer = Normalizer::Create(steps.normalizer);
  if (!normalizer.ok()) return normalizer.status();
  auto splitter = Splitter::Create(steps.pre_tokenizer);
  if (!splitter.ok()) return splitter.status();
  auto token_text = TokenText::Create(steps.decoder);
  if (!token_text.ok()) return token_text.status();
  return TextPipeline(*std::move(normalizer), *std::move(splitter), *std::move(token_text));
}

absl::Status TextPipeline::Split(std::string_view text, bool first, Splitter::Piece piece) const {
  std::string normalized(text);
  bool keeps_begin = true;
  if (absl::Status status = normalizer_.Apply(normalized, keeps_begin); !status.ok()) {
    return status;
  }
  return splitter_.Split(normalized, first && keeps_begin, piece);
}

}  // namespace flotilla::model

#include "model/text/text_pipeline.h"

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

}  // namespace flotilla::model

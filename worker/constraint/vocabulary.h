// What a grammar sees of a model's vocabulary: the bytes that each token adds to an answer, and the
// tokens that end one. A plain value.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types/ids.h"
#include "common/types/tokenizer_bundle.h"

namespace flotilla::worker {

struct ConstraintVocabulary {
  // [vocabulary] the bytes of each token; empty for tokens that have none.
  std::vector<std::string> tokens;
  // Control tokens, ascending, but for the stops. Only a structural tag that names one allows it,
  // and not where it allows any text.
  std::vector<TokenId> controls = {};
  // The tokens that end an answer, ascending. They are allowed where a grammar is complete.
  std::vector<TokenId> stops;

  bool operator==(const ConstraintVocabulary&) const = default;
};

// Reads it from a model's tokenizer. The bytes are those that routers make text of, and the stops
// are model::StopTokens. Errors are those of model::Tokenizer::Create.
absl::StatusOr<ConstraintVocabulary> ReadConstraintVocabulary(const TokenizerBundle& bundle);

}  // namespace flotilla::worker

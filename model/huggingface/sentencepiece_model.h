// SentencePiece's tokenizer.model as a bundle.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/types/tokenizer_bundle.h"
#include "model/huggingface/json_file.h"

namespace flotilla::model {

// Reads the protobuf message `ModelProto` of sentencepiece_model.proto: pieces, and what the
// trainer and the normalizer say that matters for encoding. INVALID_ARGUMENT: it is no such
// message, or contradicts itself; UNIMPLEMENTED names a model that is neither BPE nor Unigram.
absl::StatusOr<TokenizerBundle> ReadSentencePieceModel(std::string_view bytes);

// The same with the tokens that `config` (tokenizer_config.json) adds, and unused ones up to
// `rows`; added tokens beyond `rows` are left out. Where it says nothing, BPE puts bos in front of
// a text, and Unigram eos behind it. UNIMPLEMENTED: its class numbers the pieces otherwise.
absl::StatusOr<TokenizerBundle> ReadSentencePieceFolder(std::string_view bytes, const Json& config,
                                                        uint64_t rows);

}  // namespace flotilla::model

// The parts of a tokenizer.json around its model, as steps.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types/ids.h"
#include "common/types/tokenizer_bundle.h"
#include "model/huggingface/json_file.h"

namespace flotilla::model {

// The member `name` of an object; null if it has none, or is no object.
const Json& JsonAt(const Json& object, const char* name);
// A string; empty if it is none.
std::string_view JsonText(const Json& value);
bool JsonFlag(const Json& object, const char* name, bool fallback);
// For an error: quoted, shortened and escaped.
std::string Quoted(std::string_view text);

// The settings of an added token.
AddedTokenRule ReadAddedRule(TokenId id, const Json& token);

// What is beside the sequence A in the template of a post-processor.
struct TemplateTokens {
  std::vector<TokenId> prefix, suffix;
};

// UNIMPLEMENTED names a type or a setting that is not known; INVALID_ARGUMENT: a part contradicts
// itself.
absl::StatusOr<TextSteps> ReadTextSteps(const Json& tokenizer);
// Of a single text. INVALID_ARGUMENT: an id is not below `tokens`.
absl::StatusOr<TemplateTokens> ReadTemplateTokens(const Json& post_processor, uint64_t tokens);

}  // namespace flotilla::model

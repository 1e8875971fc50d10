#include "model/content_hash.h"

#include <xxhash.h>

#include <memory>
#include <string>

#include "common/types/text.h"

namespace flotilla::model {
namespace {

class Hasher {
 public:
  Hasher() : state_(XXH64_createState(), XXH64_freeState) { XXH64_reset(state_.get(), 0); }

  // Adds the length first, so that neighbouring fields cannot run into each other.
  void Add(std::span<const std::byte> bytes) {
    const uint64_t size = bytes.size();
    XXH64_update(state_.get(), &size, sizeof size);
    XXH64_update(state_.get(), bytes.data(), bytes.size());
  }

  uint64_t Finish() const { return XXH64_digest(state_.get()); }

 private:
  std::unique_ptr<XXH64_state_t, decltype(&XXH64_freeState)> state_;
};

constexpr std::string_view kTokenizerKeys[] = {
    "ggml.model",
    "ggml.pre",
    "ggml.tokens",
    "ggml.token_type",
    "ggml.merges",
    "ggml.scores",
    "ggml.bos_token_id",
    "ggml.eos_token_id",
    "ggml.eot_token_id",
    "ggml.eom_token_id",
    "ggml.add_bos_token",
    "ggml.add_eos_token",
    "ggml.unknown_token_id",
    "ggml.add_space_prefix",
    "chat_template",
};

}  // namespace

uint64_t TokenizerHash(const GgufFile& file) {
  Hasher hasher;
  for (const std::string_view key : kTokenizerKeys) {
    const GgufValue* value = file.Find(Cat("tokenizer.", key));
    hasher.Add(value == nullptr ? std::span<const std::byte>{} : value->bytes);
  }
  return hasher.Finish();
}

}  // namespace flotilla::model

// Mutated tokenizer.model files of SentencePiece.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "model/huggingface/sentencepiece_model.h"
#include "tests/fuzz/input_limits.h"
#include "tests/support/use_checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(input), size);
  const flotilla::testing::InputLimits limits(size);
  flotilla::testing::UseTokenizer(flotilla::model::ReadSentencePieceModel(bytes));
  return 0;
}

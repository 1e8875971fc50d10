// A GGUF writer and a tiny model for tests, a Llama or a Qwen3. The model has a real container, a
// real byte-level BPE tokenizer, the ChatML template and seeded random weights. Equal
// options give equal bytes. No file is needed: pass the bytes to ParseCheckpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/ggml_type.h"

namespace flotilla::testing {

// Writes a GGUF v3 file into memory; keys and tensors keep the order of calls.
class GgufBuilder {
 public:
  void AddUint32(std::string_view key, uint32_t value);
  void AddUint64(std::string_view key, uint64_t value);
  void AddFloat(std::string_view key, float value);
  void AddBool(std::string_view key, bool value);
  void AddBools(std::string_view key, const std::vector<bool>& values);
  void AddString(std::string_view key, std::string_view value);
  void AddStrings(std::string_view key, const std::vector<std::string>& values);
  void AddInts(std::string_view key, const std::vector<int32_t>& values);

  // dims[0] is the contiguous dimension; `data` holds the blocks as stored.
  void AddTensor(std::string_view name, const std::vector<uint64_t>& dims, model::GgmlType type,
                 std::vector<std::byte> data);

  std::vector<std::byte> Build() const;
  // The same as `count` >= 2 files (model/gguf/gguf_parts.h); the last ones have the more tensors.
  std::vector<std::vector<std::byte>> BuildParts(size_t count) const;

 private:
  void BeginValue(std::string_view key, uint32_t type);

  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;
    model::GgmlType type;
    std::vector<std::byte> data;
  };
  std::vector<std::byte> values_;
  uint64_t value_count_ = 0;
  std::vector<Tensor> tensors_;
};

struct TinyModelOptions {
  uint32_t hidden = 128;  // multiple of 32
  uint32_t layers = 2;
  uint32_t heads = 4;
  uint32_t kv_heads = 2;
  uint32_t head_dim = 32;
  uint32_t value_dim = 0;  // 0: as head_dim
  uint32_t ffn = 288;      // multiple of 32; two whole FFN splits and a short one
  // In place of the FFN so many experts of that width, two of which each row goes through; 0: none.
  uint32_t experts = 0;
  uint32_t vocab = 320;       // at least kTinyVocabMin
  uint32_t padding = 0;       // of these rows the last ones that belong to no token
  bool lists_padding = true;  // among the tokens, as llama.cpp's converter does
  uint32_t context_length = 512;
  float rope_base = 10000.0f;
  bool head_norms = false;  // q and k are normed by head, as in Qwen3, which the model then is
  bool tied_embedding = true;
  model::GgmlType matrix_type = model::GgmlType::kQ4_1;
  // Of V, up and down; none: as the other matrices.
  std::optional<model::GgmlType> other_type = std::nullopt;
  model::GgmlType embedding_type = model::GgmlType::kQ8_0;
  model::GgmlType norm_type = model::GgmlType::kF32;
  uint64_t seed = 1;
  std::string_view pretokenizer = "smollm";
};

// Token ids of the tiny vocabulary: three control tokens, the 256 bytes (byte b
// is token kTinyFirstByte + b), tokens made by merges, then unused ones.
inline constexpr int32_t kTinyEndOfText = 0;  // <|endoftext|>
inline constexpr int32_t kTinyImStart = 1;    // <|im_start|>, bos
inline constexpr int32_t kTinyImEnd = 2;      // <|im_end|>, eos
inline constexpr int32_t kTinyFirstByte = 3;
inline constexpr uint32_t kTinyVocabMin = 3 + 256;

// A complete model that LoadSpec and Tokenizer::Create accept.
GgufBuilder TinyGgufBuilder(const TinyModelOptions& options = {});
std::vector<std::byte> TinyGguf(const TinyModelOptions& options = {});

// Writes the same model to a file at `path`. Aborts the test process if that fails.
void WriteTinyGguf(const std::string& path, const TinyModelOptions& options = {});

}  // namespace flotilla::testing

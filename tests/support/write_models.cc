// Writes one Llama in several containers, for tests of real processes:
//
//   write_models GGUF DIR      a model of a GGUF file; "tiny" is a tiny one with random weights
//
//   DIR/folder                 a Hugging Face folder, its weights rounded to bf16
//   DIR/one_layer              the same without all layers but the first
//   DIR/model.gguf             the weights of the folder in BF16
//   DIR/one_layer.gguf         those of one_layer
//   DIR/parts-0000N-of-00003.gguf  the same in three parts
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "model/load_spec.h"
#include "tests/support/encode_weights.h"
#include "tests/support/hf_folder.h"
#include "tests/support/tiny_gguf.h"

namespace flotilla::testing {
namespace {

void Write(const std::string& path, const std::vector<std::byte>& bytes) {
  WriteFile(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

void AddMetadata(const model::Checkpoint& llama, const model::ModelSpec& spec, uint32_t layers,
                 GgufBuilder& builder) {
  const model::AttentionSpec& attention = spec.attention();
  builder.AddString("general.architecture", "llama");
  builder.AddUint32("llama.block_count", layers);
  builder.AddUint32("llama.context_length", spec.context_length);
  builder.AddUint32("llama.embedding_length", spec.hidden);
  builder.AddUint32("llama.feed_forward_length", spec.ffn().width);
  builder.AddUint32("llama.attention.head_count", attention.heads);
  builder.AddUint32("llama.attention.head_count_kv", attention.kv_heads);
  builder.AddUint32("llama.attention.key_length", attention.head_dim);
  builder.AddUint32("llama.attention.value_length", attention.head_dim);
  builder.AddFloat("llama.attention.layer_norm_rms_epsilon", spec.output_norm.eps);
  const double base = llama.configuration().Float("rope.freq_base").value_or(10000);
  builder.AddFloat("llama.rope.freq_base", static_cast<float>(base));
  const auto bundle = llama.ReadTokenizer().value();
  builder.AddString("tokenizer.ggml.model", bundle.kind);
  builder.AddString("tokenizer.ggml.pre", bundle.pretokenizer);
  builder.AddStrings("tokenizer.ggml.tokens", bundle.tokens);
  std::vector<int32_t> kinds;
  for (const TokenKind kind : bundle.kinds) kinds.push_back(static_cast<int32_t>(kind));
  builder.AddInts("tokenizer.ggml.token_type", kinds);
  builder.AddStrings("tokenizer.ggml.merges", bundle.merges);
  if (bundle.bos >= 0) builder.AddUint32("tokenizer.ggml.bos_token_id", bundle.bos);
  if (bundle.eos >= 0) builder.AddUint32("tokenizer.ggml.eos_token_id", bundle.eos);
  if (bundle.add_bos) builder.AddBool("tokenizer.ggml.add_bos_token", *bundle.add_bos);
  builder.AddString("tokenizer.chat_template", bundle.chat_template.value_or(""));
}

// The first layers of the model with the values that its folder has: matrices in BF16, vectors in
// F32.
GgufBuilder Bf16Gguf(const model::Checkpoint& llama, const model::ModelSpec& spec,
                     uint32_t layers) {
  GgufBuilder builder;
  AddMetadata(llama, spec, layers, builder);
  for (const model::Tensor& tensor : llama.tensors()) {
    unsigned layer = 0;
    if (std::sscanf(std::string(tensor.name).c_str(), "blk.%u.", &layer) == 1 && layer >= layers) {
      continue;
    }
    std::vector<float> values(tensor.elements());
    if (!model::DequantizeRow(tensor.type, tensor.data, values).ok()) std::abort();
    for (float& value : values) value = std::bit_cast<float>(uint32_t{ToBf16(value)} << 16);
    const auto type = tensor.rank > 1 ? model::GgmlType::kBF16 : model::GgmlType::kF32;
    builder.AddTensor(tensor.name, {tensor.dims, tensor.dims + tensor.rank}, type,
                      EncodeTensor(type, values));
  }
  return builder;
}

int Main(const std::string& source, const std::string& folder) {
  constexpr size_t kParts = 3;
  const std::vector<std::byte> tiny = TinyGguf();
  const auto llama =
      source == "tiny" ? model::ParseCheckpoint(tiny) : model::OpenCheckpoint(source);
  if (!llama.ok()) {
    std::fprintf(stderr, "%s\n", llama.status().ToString().c_str());
    return 1;
  }
  const auto spec = model::LoadSpec(**llama);
  if (!spec.ok()) return 1;
  WriteLlamaFolder(**llama, folder + "/folder");
  WriteLlamaFolder(**llama, folder + "/one_layer", 1);
  const auto layers = static_cast<uint32_t>(spec->layers.size());
  const GgufBuilder builder = Bf16Gguf(**llama, *spec, layers);
  Write(folder + "/model.gguf", builder.Build());
  Write(folder + "/one_layer.gguf", Bf16Gguf(**llama, *spec, 1).Build());
  const auto parts = builder.BuildParts(kParts);
  for (size_t i = 0; i < kParts; ++i) {
    Write(folder + "/" + absl::StrFormat("parts-%05d-of-%05d.gguf", i + 1, kParts), parts[i]);
  }
  return 0;
}

}  // namespace
}  // namespace flotilla::testing

int main(int argc, char** argv) {
  if (argc == 3) return flotilla::testing::Main(argv[1], argv[2]);
  std::fprintf(stderr, "usage: write_models GGUF|tiny DIR\n");
  return 2;
}

#include "tests/gpu_check/model_cases.h"

#include <iterator>
#include <string_view>
#include <utility>

#include "common/types/text.h"
#include "model/load_spec.h"

namespace flotilla::kernels::cuda {
namespace {

using model::GgmlType;
using worker::Recipe;

std::string_view NameOf(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
      return "F32";
    case GgmlType::kF16:
      return "F16";
    case GgmlType::kBF16:
      return "BF16";
    case GgmlType::kQ4_0:
      return "Q4_0";
    case GgmlType::kQ4_1:
      return "Q4_1";
    default:
      return "Q8_0";
  }
}

ModelCase MakeCase(std::string_view shape, ModelCase c) {
  c.name = Cat(shape, ", ", NameOf(c.options.matrix_type), ", ", RecipeName(c.recipe), ", KV ",
               c.format == KvFormat::kF32 ? "fp32" : "bf16");
  return c;
}

ModelCase MakeTinyCase(ModelCase c) {
  const testing::TinyModelOptions& options = c.options;
  const std::string shape =
      Cat("tiny, ", options.head_norms ? "norms of q and k, " : "", options.heads, " heads of ",
          options.head_dim, " over ", options.kv_heads);
  return MakeCase(shape, std::move(c));
}

}  // namespace

Model::Model(const testing::TinyModelOptions& options) : bytes(testing::TinyGguf(options)) {
  file = model::ParseCheckpoint(bytes).value();
  spec = model::LoadSpec(*file).value();
}

std::vector<ModelCase> TinyModels(ModelTarget target, uint64_t seed) {
  constexpr GgmlType kTypes[] = {GgmlType::kF32,  GgmlType::kF16,  GgmlType::kBF16,
                                 GgmlType::kQ4_0, GgmlType::kQ4_1, GgmlType::kQ8_0};
  constexpr GgmlType kEmbeddings[] = {GgmlType::kQ8_0, GgmlType::kF16, GgmlType::kF32,
                                      GgmlType::kBF16, GgmlType::kQ4_0};
  constexpr uint32_t kHeadDims[] = {32, 64, 128};
  const bool fibers = target == ModelTarget::kFibers;
  std::vector<ModelCase> cases;
  uint32_t number = 0;
  for (const GgmlType type : kTypes) {
    for (const Recipe recipe : {Recipe::kAccurate, Recipe::kFp32}) {
      for (const KvFormat format : {KvFormat::kBf16, KvFormat::kF32}) {
        const uint32_t n = number++;
        const uint32_t head_dim = kHeadDims[n % 3], group = 1 + n % 4;
        ModelCase c{.recipe = recipe, .format = format};
        c.options = {.hidden = fibers ? 64u : 128u,
                     .heads = 2 * group,
                     .kv_heads = 2,
                     .head_dim = head_dim,
                     .vocab = !fibers && n % 2 == 0 ? 2100u : 300u,
                     .head_norms = n % 5 == 3,
                     .tied_embedding = n % 3 == 0,
                     .matrix_type = type,
                     .embedding_type = kEmbeddings[n % std::size(kEmbeddings)],
                     .seed = seed + n};
        c.tokens = fibers ? 20 : n % 5 == 0 ? 300 : 90;
        c.neighbour_tokens = fibers ? 6 : 60;
        cases.push_back(MakeTinyCase(std::move(c)));
      }
    }
  }
  return cases;
}

std::vector<ModelCase> NcclModels(ModelTarget target, uint64_t seed) {
  std::vector<ModelCase> tiny = TinyModels(target, seed);
  ModelCase norms = tiny[13];
  norms.options.heads = 6;
  norms.options.kv_heads = 3;
  // NCCL has other ways for longer messages.
  if (target == ModelTarget::kGpu) norms.options.hidden = 1024;
  return {std::move(tiny[16]), std::move(tiny[10]), MakeTinyCase(std::move(norms))};
}

std::vector<ModelCase> LargeModels(ModelTarget target, uint64_t seed) {
  const bool whole = target == ModelTarget::kGpu;
  ModelCase smol{.tokens = whole ? 1100 : 300, .neighbour_tokens = 60, .large = true};
  smol.options = {.hidden = 576,
                  .layers = whole ? 30u : 2u,
                  .heads = 9,
                  .kv_heads = 3,
                  .head_dim = 64,
                  .ffn = 1536,
                  .vocab = whole ? 49152u : 4096u,
                  .context_length = 2048,
                  .matrix_type = GgmlType::kQ4_1,
                  .seed = seed};
  ModelCase llama{.tokens = whole ? 200 : 40, .neighbour_tokens = 40, .large = true};
  llama.options = {.hidden = whole ? 4096u : 512u,
                   .layers = whole ? 4u : 2u,
                   .heads = whole ? 32u : 8u,
                   .kv_heads = whole ? 8u : 2u,
                   .head_dim = 128,
                   .ffn = whole ? 14336u : 1792u,
                   .vocab = whole ? 16384u : 2048u,
                   .rope_base = 500000.0f,
                   .tied_embedding = false,
                   .matrix_type = GgmlType::kQ4_0,
                   .seed = seed + 1};
  ModelCase bf16 = llama;
  bf16.recipe = Recipe::kFp32;
  bf16.tokens = 100;
  bf16.options.layers = 2;
  bf16.options.matrix_type = bf16.options.embedding_type = GgmlType::kBF16;
  std::vector<ModelCase> cases;
  cases.push_back(MakeCase("SmolLM2's shape", smol));
  cases.push_back(MakeCase("layers of Llama 3 8B's shape", llama));
  cases.push_back(MakeCase("layers of Llama 3 8B's shape", bf16));
  return cases;
}

}  // namespace flotilla::kernels::cuda

#include "worker/exec/numerics_id.h"

#include <xxhash.h>

#include <bit>

#include "absl/strings/str_cat.h"

namespace flotilla::worker {

std::uint64_t NumericsId(const Numerics& numerics) {
  std::string text = absl::StrCat(
      numerics.model_hash, "|", std::string(RecipeName(numerics.recipe)), "|",
      numerics.recipe_version, "|", numerics.kv_format.Name(), "|", numerics.constraint_engine);
  // Versions before this one saw the codes of position 0.
  if (numerics.kv_format.has_runs()) absl::StrAppend(&text, "|first");
  // Versions before this one drew tokens from all entries of a row.
  if (numerics.tokens < numerics.vocab) absl::StrAppend(&text, "|", numerics.tokens);
  if (numerics.rope_context > 0) absl::StrAppend(&text, "|rope|", numerics.rope_context);
  // Versions before this one gave each token its own scales.
  for (std::uint32_t layer = 0; layer < numerics.kv_scales.size(); ++layer) {
    const kernels::KvFormat format = numerics.kv_format.Of(layer);
    const model::KvScales& scales = numerics.kv_scales[layer];
    const auto add = [&](kernels::KvType type, const char* name, float scale) {
      if (type != kernels::KvType::kFp8 || scale == 0) return;
      absl::StrAppend(&text, "|", name, layer, "|", std::bit_cast<std::uint32_t>(scale));
    };
    add(format.key, "k", scales.key);
    add(format.value, "v", scales.value);
  }
  if (numerics.cuda_is_unproven) absl::StrAppend(&text, "|cuda-unproven");
  if (numerics.nccl_is_unproven) absl::StrAppend(&text, "|nccl-unproven");
  return XXH3_64bits(text.data(), text.size());
}

}  // namespace flotilla::worker

#include "worker/exec/numerics_id.h"

#include <xxhash.h>

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
  if (numerics.cuda_is_unproven) absl::StrAppend(&text, "|cuda-unproven");
  if (numerics.nccl_is_unproven) absl::StrAppend(&text, "|nccl-unproven");
  return XXH3_64bits(text.data(), text.size());
}

}  // namespace flotilla::worker

#include "tests/support/fused_folder.h"

#include <cstdint>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "model/checkpoint.h"
#include "model/load_spec.h"
#include "model/tensor_table.h"
#include "tests/support/hf_folder.h"

namespace flotilla::testing {

void WriteFusedFolder(const std::string& from, const std::string& folder, bool turned) {
  std::filesystem::copy(from + "/config.json", folder);
  const auto file = model::OpenCheckpoint(from);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto spec = model::LoadSpec(**file);
  ASSERT_TRUE(spec.ok()) << spec.status();
  std::vector<HfTensor> tensors;
  std::set<std::string_view> fused;
  for (uint32_t layer = 0; layer < spec->layers.size(); ++layer) {
    const auto& moe = spec->layers[layer].moe;
    if (!moe.has_value()) continue;
    const std::string stem = absl::StrCat("model.layers.", layer, ".mlp.experts.");
    const uint64_t both = 2 * moe->expert.width;
    HfTensor gate_up{stem + "gate_up_proj", "BF16", {moe->experts, both, spec->hidden}, {}};
    HfTensor down{stem + "down_proj", "BF16", {moe->experts, spec->hidden, moe->expert.width}, {}};
    if (turned) std::swap(gate_up.shape[1], gate_up.shape[2]);
    for (uint32_t expert = 0; expert < moe->experts; ++expert) {
      for (const model::TensorRole role :
           {model::TensorRole::kExpertGate, model::TensorRole::kExpertUp,
            model::TensorRole::kExpertDown}) {
        const auto weight =
            model::FindWeight(**file, *spec, *model::FindRow(*spec, role), layer, expert);
        ASSERT_TRUE(weight.ok()) << weight.status();
        std::string& data = role == model::TensorRole::kExpertDown ? down.data : gate_up.data;
        data.append(reinterpret_cast<const char*>(weight->data.data()), weight->data.size());
        fused.insert(weight->name);
      }
    }
    tensors.push_back(std::move(gate_up));
    tensors.push_back(std::move(down));
  }
  for (const model::Tensor& tensor : (*file)->tensors()) {
    if (fused.contains(tensor.name)) continue;
    tensors.push_back(CopyOf(tensor));
    tensors.back().name =
        absl::StrReplaceAll(std::string(tensor.name), {{"block_sparse_moe", "mlp"}});
  }
  WriteFile(folder + "/model.safetensors", Safetensors(tensors));
}

}  // namespace flotilla::testing

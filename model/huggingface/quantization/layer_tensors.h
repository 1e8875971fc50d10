// LayerTensors: the tensors of a quantised folder by layer, while a method joins them. A layer is
// what is before a suffix, e.g. "model.layers.0.mlp.up_proj" before ".qweight".
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types/text.h"
#include "model/composite_tensor.h"
#include "model/huggingface/quantization/quantization.h"

namespace flotilla::model {

class LayerTensors {
 public:
  // `folder` outlives the object and is not changed before Finish.
  explicit LayerTensors(FolderTensors& folder);

  // The layers that have a tensor with this suffix, in the folder's order. The names live as long
  // as the folder.
  std::vector<std::string_view> With(std::string_view suffix) const;

  // A tensor of a layer; null if there is none.
  const Tensor* Find(std::string_view layer, std::string_view suffix) const;
  // The same; INVALID_ARGUMENT names the tensor if it is missing, has another type than one of
  // `types`, or another shape. The shape is that of Hugging Face.
  absl::StatusOr<const Tensor*> Get(std::string_view layer, std::string_view suffix,
                                    std::initializer_list<GgmlType> types,
                                    std::initializer_list<uint64_t> shape) const;

  // Puts a matrix called LAYER.weight, of `rows` x `inputs`, in the place of all tensors of the
  // layer with these suffixes.
  void Replace(std::string_view layer, std::initializer_list<std::string_view> suffixes,
               std::unique_ptr<const CompositeTensor> composite, int64_t rows, int64_t inputs);
  // Leaves out what is said of activations, of which the recipes decide.
  void DropActivationScales();
  // Which scales are those of K and V in FP8: by the names k_scale, v_scale and kv_scale, and those
  // of the outputs of k_proj and v_proj.
  struct Fp8KvScales {
    bool by_name = true;
    bool of_outputs = true;
  };
  // Takes the scales of K and V out of the tensors. Of those of FP8, what is one positive number
  // for a layer goes to FolderTensors::kv_scales. The others are counted. INVALID_ARGUMENT names a
  // tensor that is no scale, or that contradicts another.
  absl::Status TakeKvScales(Fp8KvScales fp8);

  int replaced() const { return static_cast<int>(made_.size()); }
  // Changes the folder.
  void Finish();

 private:
  void Drop(std::string_view layer, std::string_view suffix);
  // False: it is none of those that are used.
  absl::StatusOr<bool> TakeKvScale(const Tensor& tensor, bool of_keys, bool of_values);

  FolderTensors& folder_;
  absl::flat_hash_map<std::string_view, const Tensor*, TextHash, TextEqual> by_name_;
  absl::flat_hash_set<std::string_view, TextHash, TextEqual> dropped_;
  std::vector<Tensor> made_;
};

// The data of tensors, which the composite of a layer is made of. Those that are null are left out.
std::vector<std::span<const std::byte>> DataOf(std::initializer_list<const Tensor*> tensors);

// The group of each k that a tensor [K] of int32 says, for groups of `group` k; empty if they are
// those of neighbours. INVALID_ARGUMENT names an element that is none of the groups.
absl::StatusOr<std::vector<int32_t>> ReadOrder(const Tensor& g_idx, int64_t group, int64_t groups);

// The k of a group of a layer with so many inputs; group_size = -1 is all of them.
// INVALID_ARGUMENT names `tensor` if a group has more.
absl::StatusOr<int64_t> GroupOf(int64_t group_size, int64_t inputs, const Tensor& tensor);

// The status, with what quantization_config says of the layer.
absl::Status WithSettings(const absl::Status& status, int64_t bits, int64_t group_size);

// What a key of quantization_config says that is not served.
absl::Status NotSupported(std::string_view key, std::string_view value, std::string_view known);
// A method whose tensors are missing.
absl::Status NoSuchTensors(std::string_view method, std::string_view suffix);

// The whole number of a key in an object of config.json. INVALID_ARGUMENT names the key if it is no
// such number, or if it is missing and there is no `other`.
absl::StatusOr<int64_t> WholeNumber(const Json& object, std::string_view key,
                                    std::optional<int64_t> other = std::nullopt);

// The block that has a scale, by a key whose value is [rows, inputs]; all 0 if there is none.
struct BlockSize {
  int64_t rows = 0;
  int64_t inputs = 0;
};
absl::StatusOr<BlockSize> ReadBlockSize(const Json& object, std::string_view key);

// The bool of a key; false if there is none.
absl::StatusOr<bool> Flag(const Json& object, std::string_view key);

// The string of a key; `other` if there is none.
absl::StatusOr<std::string> Word(const Json& object, std::string_view key, std::string_view other);

}  // namespace flotilla::model

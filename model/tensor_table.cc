#include "model/tensor_table.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "common/types/text.h"
#include "model/spec.h"

namespace flotilla::model {
namespace {

std::string Shape(const uint64_t (&dims)[4]) {
  return Cat("[", dims[0], ", ", dims[1], ", ", dims[2], ", ", dims[3], "]");
}

absl::Status CheckTensor(const Checkpoint& checkpoint, const ModelSpec& spec, const TensorRow& row,
                         const std::string& name) {
  const Tensor* tensor = checkpoint.FindTensor(name);
  if (tensor == nullptr) return InvalidArgument("tensor ", name, " is missing");
  const bool vector = row.rows == Extent::kOne;
  const uint64_t want[4] = {SizeOf(row.columns, spec), SizeOf(row.rows, spec), 1, 1};
  if (tensor->rank != (vector ? 1u : 2u) || !std::equal(want, want + 4, tensor->dims)) {
    return InvalidArgument("tensor ", name, " is ", Shape(tensor->dims), ", not ", Shape(want));
  }
  if (!IsDecodable(tensor->type)) {
    return Unimplemented("tensor ", name, " has type ", GgmlTypeName(tensor->type),
                         ", which cannot be decoded");
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view RoleName(TensorRole role) {
  static constexpr std::string_view kNames[] = {
      "token embedding",  "attention norm", "query", "key", "value", "query norm",  "key norm",
      "attention output", "FFN norm",       "gate",  "up",  "down",  "output norm", "head",
      "RoPE factors"};
  return kNames[static_cast<size_t>(role)];
}

uint64_t SizeOf(Extent extent, const ModelSpec& spec) {
  const AttentionSpec& attention = spec.attention();
  switch (extent) {
    case Extent::kOne:
      return 1;
    case Extent::kHidden:
      return spec.hidden;
    case Extent::kHeadDim:
      return attention.head_dim;
    case Extent::kPairs:
      return attention.head_dim / 2;
    case Extent::kQueries:
      return uint64_t{attention.heads} * attention.head_dim;
    case Extent::kKeys:
      return uint64_t{attention.kv_heads} * attention.head_dim;
    case Extent::kFfn:
      return spec.ffn().width;
    case Extent::kVocabulary:
      return spec.vocab;
  }
  return 0;
}

bool IsPerLayer(const TensorRow& row) { return row.name.find('*') != std::string_view::npos; }

std::string NameInFile(const TensorRow& row, uint32_t layer) {
  const size_t star = row.name.find('*');
  if (star == std::string_view::npos) return std::string(row.name);
  return Cat(row.name.substr(0, star), layer, row.name.substr(star + 1));
}

int64_t IndexInFile(int64_t index, int64_t pairs_of) {
  if (pairs_of == 0) return index;
  const int64_t in_head = index % pairs_of;
  return index - in_head + in_head / 2 + in_head % 2 * (pairs_of / 2);
}

TensorRole HeadRole(const ModelSpec& spec) {
  return spec.tied_embedding ? TensorRole::kTokenEmbedding : TensorRole::kHead;
}

const TensorRow* FindRow(const ModelSpec& spec, TensorRole role) {
  const auto row = std::ranges::find(spec.tensors, role, &TensorRow::role);
  return row == spec.tensors.end() ? nullptr : &*row;
}

absl::Status CheckTensors(const Checkpoint& checkpoint, const ModelSpec& spec) {
  absl::flat_hash_set<std::string> expected;
  for (const TensorRow& row : spec.tensors) {
    const size_t count = IsPerLayer(row) ? spec.layers.size() : 1;
    for (uint32_t layer = 0; layer < count; ++layer) {
      std::string name = NameInFile(row, layer);
      absl::Status status = CheckTensor(checkpoint, spec, row, name);
      if (!status.ok()) return status;
      expected.insert(std::move(name));
    }
  }
  for (const Tensor& tensor : checkpoint.tensors()) {
    if (!expected.contains(std::string(tensor.name))) {
      return Unimplemented("tensor ", tensor.name, " has no meaning in this architecture");
    }
  }
  return absl::OkStatus();
}

}  // namespace flotilla::model

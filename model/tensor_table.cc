#include "model/tensor_table.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "common/types/text.h"
#include "model/spec.h"

namespace flotilla::model {
namespace {

std::string Shape(const uint64_t (&dims)[4]) {
  return Cat("[", dims[0], ", ", dims[1], ", ", dims[2], ", ", dims[3], "]");
}

// Whether the last axis of the row's tensors is the expert.
bool HasExpertAxis(const TensorRow& row) {
  return IsPerExpert(row.role) && row.name.find('#') == std::string::npos;
}

// `name` with a number in place of the first `mark`, if it has one.
std::string WithNumber(std::string_view name, char mark, uint32_t number) {
  const size_t at = name.find(mark);
  if (at == std::string_view::npos) return std::string(name);
  return Cat(name.substr(0, at), number, name.substr(at + 1));
}

absl::Status CheckTensor(const Checkpoint& checkpoint, const ModelSpec& spec, const TensorRow& row,
                         const std::string& name) {
  const Tensor* tensor = checkpoint.FindTensor(name);
  if (tensor == nullptr) return InvalidArgument("tensor ", name, " is missing");
  const bool vector = row.rows == Extent::kOne;
  uint64_t want[4] = {SizeOf(row.columns, spec), SizeOf(row.rows, spec), 1, 1};
  if (row.rows_in_file != 0) want[vector ? 0 : 1] = row.rows_in_file;
  if (IsPerHead(row.role)) want[1] = SizeOf(row.rows, spec);
  if (row.transposed) std::swap(want[0], want[1]);
  uint32_t rank = vector ? 1 : 2;
  if (IsPerHead(row.role) && row.rows_in_file != 0) {
    want[1] = row.rows_in_file;
  } else if (IsPerHead(row.role)) {
    want[rank++] = SizeOf(Extent::kHeads, spec);
  }
  if (HasExpertAxis(row)) want[rank++] = SizeOf(Extent::kExperts, spec);
  // Hugging Face has the one row of this matrix as a matrix, and llama.cpp as a vector.
  if (row.role == TensorRole::kSharedRouter) rank = tensor->rank;
  if (!std::equal(want, want + 4, tensor->dims)) {
    return InvalidArgument("tensor ", name, " is ", Shape(tensor->dims), ", not ", Shape(want));
  }
  if (tensor->rank != rank) {
    return InvalidArgument("tensor ", name, " has ", tensor->rank, " dimensions, not ", rank);
  }
  const auto cannot = [&](std::string_view what) {
    return Unimplemented("tensor ", name, " has type ", TypeName(*tensor), ", which cannot be ",
                         what);
  };
  // Tools quantise the matrix of a layer as PyTorch's Linear has it, which other layers have not.
  if (row.transposed && !IsPerHead(row.role) &&
      (!IsPlain(*tensor) || tensor->composite != nullptr)) {
    return cannot("transposed");
  }
  if (vector && tensor->composite != nullptr) return cannot("a vector");
  if (!IsDecodable(*tensor)) return cannot("decoded");
  return absl::OkStatus();
}

bool IsAllZero(const Tensor& tensor) {
  return tensor.composite == nullptr &&
         std::ranges::all_of(tensor.data, [](std::byte byte) { return byte == std::byte{0}; });
}

}  // namespace

std::string_view RoleName(TensorRole role) {
  static constexpr std::string_view kNames[] = {"token embedding",
                                                "position embedding",
                                                "embedding norm",
                                                "embedding norm bias",
                                                "attention norm",
                                                "attention norm bias",
                                                "query",
                                                "query bias",
                                                "key",
                                                "key bias",
                                                "value",
                                                "value bias",
                                                "query norm",
                                                "key norm",
                                                "sinks",
                                                "query down",
                                                "query down bias",
                                                "query down norm",
                                                "latent",
                                                "latent bias",
                                                "latent norm",
                                                "latent keys",
                                                "latent values",
                                                "attention output",
                                                "attention output bias",
                                                "attention post-norm",
                                                "FFN norm",
                                                "FFN norm bias",
                                                "gate",
                                                "gate bias",
                                                "up",
                                                "up bias",
                                                "down",
                                                "down bias",
                                                "router",
                                                "router bias",
                                                "expert bias",
                                                "expert gate",
                                                "expert gate bias",
                                                "expert up",
                                                "expert up bias",
                                                "expert down",
                                                "expert down bias",
                                                "shared expert router",
                                                "shared expert gate",
                                                "shared expert gate bias",
                                                "shared expert up",
                                                "shared expert up bias",
                                                "shared expert down",
                                                "shared expert down bias",
                                                "FFN post-norm",
                                                "output norm",
                                                "output norm bias",
                                                "head",
                                                "head bias",
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
      return spec.ropes.empty() ? 0 : spec.ropes.front().frequencies.size();
    case Extent::kHeads:
      return attention.heads;
    case Extent::kKvHeads:
      return attention.kv_heads;
    case Extent::kQueries:
    case Extent::kAllQueries:
      return uint64_t{attention.heads} * attention.head_dim;
    case Extent::kKeys:
    case Extent::kAllKeys:
      return uint64_t{attention.kv_heads} * attention.head_dim;
    case Extent::kValues:
      return uint64_t{attention.kv_heads} * attention.value_dim;
    case Extent::kResults:
      return uint64_t{attention.heads} * attention.value_dim;
    case Extent::kQueryRank:
      return attention.latent.has_value() ? attention.latent->query_rank : 0;
    case Extent::kLatentRank:
      return attention.latent.has_value() ? attention.latent->rank : 0;
    case Extent::kLatentKey:
      return attention.key_dim();
    case Extent::kNopeDim:
      return attention.latent.has_value() ? attention.latent->nope_dim : 0;
    case Extent::kValueDim:
      return attention.value_dim;
    case Extent::kFfn:
      return spec.ffn().width;
    case Extent::kExpertFfn:
      return spec.ffn(FfnKind::kExpert).width;
    case Extent::kSharedFfn:
      return spec.ffn(FfnKind::kShared).width;
    case Extent::kExperts:
      return spec.moe() == nullptr ? 0 : spec.moe()->experts;
    case Extent::kVocabulary:
      return spec.vocab;
    case Extent::kPositions:
      return uint64_t{spec.context_length} + spec.position_offset;
  }
  return 0;
}

bool IsPerLayer(const TensorRow& row) { return row.name.find('*') != std::string::npos; }

bool IsInLayer(TensorRole role, const LayerSpec& layer) {
  if (role >= TensorRole::kGate && role <= TensorRole::kDownBias) return !layer.moe.has_value();
  if (role >= TensorRole::kRouter && role <= TensorRole::kSharedDownBias) {
    return layer.moe.has_value();
  }
  return true;
}

bool IsPerExpert(TensorRole role) {
  return role >= TensorRole::kExpertGate && role <= TensorRole::kExpertDownBias;
}

bool IsPerHead(TensorRole role) {
  return role == TensorRole::kLatentKeys || role == TensorRole::kLatentValues;
}

std::string NameInFile(const TensorRow& row, uint32_t layer, uint32_t expert) {
  return WithNumber(WithNumber(row.name, '*', layer), '#', expert);
}

std::vector<std::string> NamesInFile(const TensorRow& row, const ModelSpec& spec) {
  std::vector<std::string> names;
  const size_t layers = IsPerLayer(row) ? spec.layers.size() : 1;
  for (uint32_t layer = 0; layer < layers; ++layer) {
    const LayerSpec& part = spec.layers[layer];
    if (!IsInLayer(row.role, part)) continue;
    const bool each = IsPerExpert(row.role) && !HasExpertAxis(row);
    for (uint32_t expert = 0; expert < (each ? part.moe->experts : 1); ++expert) {
      names.push_back(NameInFile(row, layer, expert));
    }
  }
  return names;
}

absl::StatusOr<Tensor> FindWeight(const Checkpoint& checkpoint, const ModelSpec& spec,
                                  const TensorRow& row, uint32_t layer, uint32_t expert) {
  const std::string name = NameInFile(row, layer, expert);
  const Tensor* tensor = checkpoint.FindTensor(name);
  if (tensor == nullptr) return absl::NotFoundError(Cat("tensor ", name, " is missing"));
  Tensor weight = *tensor;
  if (!HasExpertAxis(row)) return weight;
  const uint64_t experts = SizeOf(Extent::kExperts, spec);
  const size_t bytes = weight.data.size() / experts;
  weight.data = weight.data.subspan(bytes * expert, bytes);
  const uint64_t rows = weight.elements() / weight.dims[0] / experts;
  weight.first_row += static_cast<int64_t>(rows * expert);
  weight.dims[--weight.rank] = 1;
  return weight;
}

absl::StatusOr<Tensor> FindHeadWeight(const Checkpoint& checkpoint, const ModelSpec& spec,
                                      const TensorRow& row, uint32_t layer, uint32_t head) {
  const std::string name = NameInFile(row, layer);
  const Tensor* tensor = checkpoint.FindTensor(name);
  if (tensor == nullptr) return absl::NotFoundError(Cat("tensor ", name, " is missing"));
  Tensor weight = *tensor;
  // Rows of the file.
  const uint64_t count = SizeOf(row.transposed ? row.columns : row.rows, spec);
  const uint64_t first = row.rows_in_file == 0 ? head * count
                                               : static_cast<uint64_t>(row.map.first) +
                                                     head * static_cast<uint64_t>(row.map.stride);
  const uint64_t row_bytes = weight.data.size() / (weight.dims[1] * weight.dims[2]);
  weight.data = weight.data.subspan(row_bytes * first, row_bytes * count);
  weight.first_row += static_cast<int64_t>(first);
  weight.rank = 2;
  weight.dims[1] = count;
  weight.dims[2] = 1;
  return weight;
}

int64_t RowMap::At(int64_t index) const {
  if (pairs != 0 && index % head < pairs) {
    const int64_t in_head = index % head;
    index += in_head / 2 + in_head % 2 * (pairs / 2) - in_head;
  }
  return first + (run == 0 ? index : index / run * stride + index % run);
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
    for (std::string& name : NamesInFile(row, spec)) {
      absl::Status status = CheckTensor(checkpoint, spec, row, name);
      if (!status.ok()) return status;
      expected.insert(std::move(name));
    }
  }
  std::vector<std::string_view> unused;
  for (const std::string& name : spec.unused_tensors) {
    if (name.ends_with('.')) unused.push_back(name);
    const TensorRow row{.role = {}, .name = name, .columns = {}, .map = {}};
    for (uint32_t layer = 0; layer < spec.layers.size(); ++layer) {
      expected.insert(NameInFile(row, layer));
    }
  }
  for (const Tensor& tensor : checkpoint.tensors()) {
    const auto begins = [&](std::string_view prefix) { return tensor.name.starts_with(prefix); };
    if (!expected.contains(std::string(tensor.name)) && std::ranges::none_of(unused, begins)) {
      constexpr std::string_view kBias = ".bias", kWeight = ".weight";
      std::string weight(tensor.name);
      if (weight.ends_with(kBias)) {
        weight.replace(weight.size() - kBias.size(), kBias.npos, kWeight);
        // Tools that quantise give a bias to each layer.
        if (expected.contains(weight) && IsAllZero(tensor)) continue;
      }
      return Unimplemented("tensor ", tensor.name,
                           tensor.name.ends_with(kBias) && expected.contains(weight)
                               ? ": the configuration says that there is no such bias"
                               : " has no meaning in this architecture");
    }
  }
  return absl::OkStatus();
}

}  // namespace flotilla::model

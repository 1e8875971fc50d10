#include "model/load_spec.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "common/types/text.h"
#include "model/architectures/architecture.h"
#include "model/config_reader.h"
#include "model/kv_groups.h"

namespace flotilla::model {
namespace {

constexpr uint64_t kMaxVocab = 1 << 20;

// The vocabulary's size is that of the embedding's table. A stated size must agree. The file's
// tokenizer may have fewer tokens.
absl::Status ReadVocab(const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
  const std::string name = NameInFile(*FindRow(spec, TensorRole::kTokenEmbedding), 0);
  const Tensor* table = checkpoint.FindTensor(name);
  if (table == nullptr) return InvalidArgument("tensor ", name, " is missing");
  const uint64_t rows = table->dims[1];
  if (rows == 0 || rows > kMaxVocab) {
    return InvalidArgument("tensor ", name, " has ", rows, " rows, not 1..", kMaxVocab);
  }
  const uint64_t tokens = checkpoint.token_count();
  if (tokens > rows) {
    return InvalidArgument("the tokenizer has ", tokens, " tokens; tensor ", name, " has only ",
                           rows, " rows");
  }
  spec.vocab = in.Uint("vocab_size", rows, rows, rows);
  spec.tokens = tokens != 0 ? static_cast<uint32_t>(tokens) : spec.vocab;
  return in.status();
}

absl::Status ReadKvScales(const Checkpoint& checkpoint, ModelSpec& spec) {
  const std::span<const KvScales> scales = checkpoint.kv_scales();
  for (size_t layer = spec.layers.size(); layer < scales.size(); ++layer) {
    // All tensors of some layers behind the last are unused.
    const std::string tensors = Cat("model.layers.", layer, ".");
    const bool unused =
        std::ranges::find(spec.unused_tensors, tensors) != spec.unused_tensors.end();
    if (scales[layer] == KvScales() || unused) continue;
    return InvalidArgument("there are scales of K and V for layer ", layer,
                           ", but the model has only ", spec.layers.size(), " layers");
  }
  if (scales.empty()) return absl::OkStatus();
  spec.kv_scales.assign(scales.begin(), scales.end());
  spec.kv_scales.resize(spec.layers.size());
  return absl::OkStatus();
}

absl::StatusOr<ModelSpec> Load(const Checkpoint& checkpoint, uint32_t served_context) {
  const Configuration& configuration = checkpoint.configuration();
  const auto name = configuration.architecture();
  if (!name.ok()) return name.status();
  const auto architectures = Architectures();
  const auto found = std::ranges::find_if(architectures, [&](const Architecture* each) {
    return *name == each->name || (!name->empty() && *name == each->other_name);
  });
  if (found == architectures.end()) {
    std::string known;
    for (const std::string_view each : KnownArchitectures()) {
      known += Cat(known.empty() ? "" : ", ", each);
    }
    return Unimplemented("architecture '", name->substr(0, 64),
                         "' is not supported; supported: ", known);
  }
  ModelSpec spec;
  spec.architecture = (*found)->name;
  spec.name = configuration.title();
  spec.served_context = served_context;
  ConfigReader in(configuration);
  (*found)->read(checkpoint, in, spec);
  absl::Status status = in.status();
  if (status.ok()) status = ReadVocab(checkpoint, in, spec);
  if (status.ok()) status = CheckTensors(checkpoint, spec);
  if (status.ok()) status = ReadKvScales(checkpoint, spec);
  if (!status.ok()) return status;
  DealKvGroups(spec);
  return spec;
}

}  // namespace

std::vector<std::string_view> KnownArchitectures() {
  std::vector<std::string_view> names;
  for (const Architecture* architecture : Architectures()) names.push_back(architecture->name);
  return names;
}

absl::StatusOr<ModelSpec> LoadSpec(const Checkpoint& checkpoint, uint32_t served_context) {
  auto spec = Load(checkpoint, served_context);
  if (!spec.ok()) return InFile(checkpoint.path(), spec.status());
  return spec;
}

}  // namespace flotilla::model

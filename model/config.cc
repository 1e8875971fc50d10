#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "common/types/text.h"

namespace flotilla::model {
namespace {

// A row of the model table. It says how an architecture differs from the others; all of them
// use the same decoder.
struct Architecture {
  std::string_view name;
  RopeStyle rope_style;
};

constexpr Architecture kArchitectures[] = {
    {"llama", RopeStyle::kInterleaved},  // Llama 1-3, Mistral, SmolLM2
};

// Bounds of accepted values. They are several times those of the largest published model,
// and small enough that products of two stay far below 2^63.
constexpr uint64_t kMaxLayers = 512;
constexpr uint64_t kMaxHidden = 1 << 16;
constexpr uint64_t kMaxHeads = 1 << 10;
constexpr uint64_t kMaxHeadDim = 512;
constexpr uint64_t kMaxFfn = 1 << 20;
constexpr uint64_t kMaxVocab = 1 << 20;
constexpr uint64_t kMaxContext = 1 << 24;

constexpr char kEmbedding[] = "token_embd.weight";

// Reads bounded values. The first failure sticks, and later reads return 0.
class ConfigReader {
 public:
  explicit ConfigReader(const Configuration& in) : in_(in) {}

  const absl::Status& status() const { return status_; }

  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  // Fails unless `holds`, naming the key and the problem.
  void Require(bool holds, std::string_view key, std::string_view problem) {
    if (!holds) Fail(InvalidArgument(in_.NameOf(key), " ", problem));
  }

  // An integer in [min, max]; an absent key is an error unless there is a fallback.
  uint32_t Uint(std::string_view key, uint64_t min, uint64_t max,
                std::optional<uint64_t> fallback = std::nullopt) {
    const auto value = fallback && !in_.Has(key) ? *fallback : in_.Uint(key);
    return static_cast<uint32_t>(Bounded(key, value, min, max));
  }

  float Float(std::string_view key, double min, double max, std::optional<double> fallback) {
    const auto value = fallback && !in_.Has(key) ? *fallback : in_.Float(key);
    return static_cast<float>(Bounded(key, value, min, max));
  }

  // Refuses a file that asks for a feature by setting an integer other than 0.
  void RefuseIfSet(std::string_view key) {
    if (!in_.Has(key)) return;
    const auto value = in_.Uint(key);
    if (!value.ok() || *value != 0) Fail(Unimplemented(in_.NameOf(key), " is not supported"));
  }

 private:
  template <class Number>
  Number Bounded(std::string_view key, const absl::StatusOr<Number>& value, Number min,
                 Number max) {
    if (!value.ok()) {
      // A missing key is an error of the file.
      Fail(absl::InvalidArgumentError(value.status().message()));
      return 0;
    }
    if (*value >= min && *value <= max) return *value;  // a NaN is refused too
    Fail(InvalidArgument(in_.NameOf(key), " = ", *value, " is not in ", min, "..", max));
    return 0;
  }

  const Configuration& in_;
  absl::Status status_;
};

void ReadShape(ConfigReader& in, ModelConfig& config) {
  config.layers = in.Uint("block_count", 1, kMaxLayers);
  config.hidden = in.Uint("embedding_length", 32, kMaxHidden);
  config.heads = in.Uint("attention.head_count", 1, kMaxHeads);
  config.kv_heads = in.Uint("attention.head_count_kv", 1, kMaxHeads, config.heads);
  config.ffn = in.Uint("feed_forward_length", 32, kMaxFfn);
  config.context_length = in.Uint("context_length", 1, kMaxContext);
  if (!in.status().ok()) return;
  const uint64_t default_dim = config.hidden / config.heads;
  config.head_dim = in.Uint("attention.key_length", 16, kMaxHeadDim, default_dim);
  const uint32_t value_dim = in.Uint("attention.value_length", 16, kMaxHeadDim, default_dim);
  config.rope_dim = in.Uint("rope.dimension_count", 2, config.head_dim, config.head_dim);
  config.rope_base = in.Float("rope.freq_base", 1, 1e9, 10000.0);
  config.rms_eps = in.Float("attention.layer_norm_rms_epsilon", 1e-12, 1e-1, std::nullopt);
  if (!in.status().ok()) return;
  in.Require(config.hidden % 32 == 0, "embedding_length", "is not a multiple of 32");
  in.Require(config.ffn % 32 == 0, "feed_forward_length", "is not a multiple of 32");
  in.Require(config.heads % config.kv_heads == 0, "attention.head_count",
             "is not a multiple of attention.head_count_kv");
  in.Require(config.head_dim % 16 == 0, "attention.key_length", "is not a multiple of 16");
  in.Require(value_dim == config.head_dim, "attention.value_length", "differs from key_length");
  in.Require(config.rope_dim % 2 == 0, "rope.dimension_count", "is odd");
}

void RefuseUnknownFeatures(const Configuration& configuration, ConfigReader& in) {
  in.RefuseIfSet("expert_count");
  in.RefuseIfSet("attention.sliding_window");
  constexpr std::string_view kScaling = "rope.scaling.type";
  if (const auto scaling = configuration.String(kScaling); scaling.ok() && *scaling != "none") {
    in.Fail(Unimplemented(configuration.NameOf(kScaling), " = '", *scaling, "' is not supported"));
  }
}

std::string Shape(const uint64_t (&dims)[4]) {
  return Cat("[", dims[0], ", ", dims[1], ", ", dims[2], ", ", dims[3], "]");
}

// Checks each tensor of the architecture when the caller names it, and counts them.
class TensorChecker {
 public:
  explicit TensorChecker(const Checkpoint& file) : file_(file) {}

  void Matrix(const std::string& name, uint64_t columns, uint64_t rows) {
    Check(name, columns, rows, /*rank=*/2);
  }

  void Vector(const std::string& name, uint64_t size) {
    const Tensor* tensor = Check(name, size, 1, /*rank=*/1);
    if (tensor != nullptr && tensor->type != GgmlType::kF32) {
      Fail(Cat("tensor ", name, " is ", GgmlTypeName(tensor->type), ", not F32"));
    }
  }

  // Call it after all expected tensors were named.
  absl::Status Finish() {
    if (status_.ok() && expected_.size() != file_.tensors().size()) {
      for (const Tensor& tensor : file_.tensors()) {
        if (!expected_.contains(tensor.name)) {
          return Unimplemented("tensor ", tensor.name, " has no meaning in this architecture");
        }
      }
    }
    return status_;
  }

 private:
  void Fail(std::string_view problem) {
    if (status_.ok()) status_ = InvalidArgument(problem);
  }

  const Tensor* Check(const std::string& name, uint64_t columns, uint64_t rows, uint32_t rank) {
    const Tensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) return Fail(Cat("tensor ", name, " is missing")), nullptr;
    expected_.insert(tensor->name);
    const uint64_t want[4] = {columns, rows, 1, 1};
    if (tensor->rank != rank || !std::equal(want, want + 4, tensor->dims)) {
      Fail(Cat("tensor ", name, " is ", Shape(tensor->dims), ", not ", Shape(want)));
    } else if (!IsDecodable(tensor->type)) {
      if (status_.ok()) {
        status_ = Unimplemented("tensor ", name, " has type ", GgmlTypeName(tensor->type),
                                ", which cannot be decoded");
      }
    }
    return tensor;
  }

  const Checkpoint& file_;
  absl::flat_hash_set<std::string_view, TextHash, TextEqual> expected_;
  absl::Status status_;
};

absl::Status CheckTensors(const Checkpoint& file, const ModelConfig& config) {
  TensorChecker check(file);
  const uint64_t q_width = uint64_t{config.heads} * config.head_dim;
  const uint64_t kv_width = uint64_t{config.kv_heads} * config.head_dim;
  check.Matrix(kEmbedding, config.hidden, config.vocab);
  for (uint32_t layer = 0; layer < config.layers; ++layer) {
    const std::string prefix = Cat("blk.", layer, ".");
    check.Vector(prefix + "attn_norm.weight", config.hidden);
    check.Matrix(prefix + "attn_q.weight", config.hidden, q_width);
    check.Matrix(prefix + "attn_k.weight", config.hidden, kv_width);
    check.Matrix(prefix + "attn_v.weight", config.hidden, kv_width);
    check.Matrix(prefix + "attn_output.weight", q_width, config.hidden);
    check.Vector(prefix + "ffn_norm.weight", config.hidden);
    check.Matrix(prefix + "ffn_gate.weight", config.hidden, config.ffn);
    check.Matrix(prefix + "ffn_up.weight", config.hidden, config.ffn);
    check.Matrix(prefix + "ffn_down.weight", config.ffn, config.hidden);
  }
  check.Vector("output_norm.weight", config.hidden);
  if (!config.tied_embedding) check.Matrix("output.weight", config.hidden, config.vocab);
  return check.Finish();
}

// The vocabulary's size is that of the embedding's table. A stated size must agree, and so must the
// tokenizer of the file.
absl::Status ReadVocab(const Checkpoint& checkpoint, ConfigReader& in, ModelConfig& config) {
  const Tensor* table = checkpoint.FindTensor(kEmbedding);
  if (table == nullptr) return InvalidArgument("tensor ", kEmbedding, " is missing");
  const uint64_t rows = table->dims[1];
  if (rows == 0 || rows > kMaxVocab) {
    return InvalidArgument("tensor ", kEmbedding, " has ", rows, " rows, not 1..", kMaxVocab);
  }
  const uint64_t tokens = checkpoint.token_count();
  if (tokens != 0 && tokens != rows) {
    return InvalidArgument("the tokenizer has ", tokens, " tokens; tensor ", kEmbedding, " has ",
                           rows, " rows");
  }
  config.vocab = in.Uint("vocab_size", rows, rows, rows);
  return in.status();
}

}  // namespace

std::vector<std::string_view> KnownArchitectures() {
  std::vector<std::string_view> names;
  for (const Architecture& row : kArchitectures) names.push_back(row.name);
  return names;
}

absl::StatusOr<ModelConfig> LoadConfig(const Checkpoint& checkpoint) {
  const Configuration& configuration = checkpoint.configuration();
  const auto name = configuration.architecture();
  if (!name.ok()) return name.status();
  const auto* row = std::ranges::find(kArchitectures, *name, &Architecture::name);
  if (row == std::end(kArchitectures)) {
    std::string known;
    for (const std::string_view each : KnownArchitectures()) {
      known += Cat(known.empty() ? "" : ", ", each);
    }
    return Unimplemented("architecture '", name->substr(0, 64),
                         "' is not supported; supported: ", known);
  }
  ModelConfig config;
  config.architecture = row->name;
  config.rope_style = row->rope_style;
  config.name = configuration.title();
  config.tied_embedding = checkpoint.FindTensor("output.weight") == nullptr;

  ConfigReader in(configuration);
  ReadShape(in, config);
  RefuseUnknownFeatures(configuration, in);
  absl::Status status = in.status();
  if (status.ok()) status = ReadVocab(checkpoint, in, config);
  if (status.ok()) status = CheckTensors(checkpoint, config);
  if (!status.ok()) return status;
  return config;
}

}  // namespace flotilla::model

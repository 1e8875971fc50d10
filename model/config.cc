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

// Control tokens that end a turn or a text, whatever the file's eos says.
constexpr std::string_view kStopTokens[] = {
    "<|im_end|>",    "<|eot_id|>",      "<|eom_id|>", "<|end|>",  "<end_of_turn>",
    "<|endoftext|>", "<|end_of_text|>", "<|return|>", "<|call|>", "</s>",
    "<|endofturn|>", "<|end_of_turn|>", "<EOT>",      "[EOS]",    "<eos>",
};

// Reads bounded values. The first failure sticks, and later reads return 0.
class ConfigReader {
 public:
  ConfigReader(const GgufFile& file, std::string prefix)
      : file_(file), prefix_(std::move(prefix)) {}

  const absl::Status& status() const { return status_; }
  const std::string& prefix() const { return prefix_; }

  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  // An integer in [min, max]; an absent key is an error unless there is a fallback.
  uint32_t Uint(std::string_view suffix, uint64_t min, uint64_t max,
                std::optional<uint64_t> fallback = std::nullopt) {
    const std::string key = Cat(prefix_, suffix);
    const auto value = fallback ? file_.GetUintOr(key, *fallback) : file_.GetUint(key);
    if (!value.ok()) return Fail(AsInvalid(value.status())), 0;
    if (*value < min || *value > max) {
      Fail(InvalidArgument(key, " = ", *value, " is not in ", min, "..", max));
      return 0;
    }
    return static_cast<uint32_t>(*value);
  }

  float Float(std::string_view suffix, double min, double max, std::optional<double> fallback) {
    const std::string key = Cat(prefix_, suffix);
    const auto value = fallback ? file_.GetFloatOr(key, *fallback) : file_.GetFloat(key);
    if (!value.ok()) return Fail(AsInvalid(value.status())), 0;
    if (!(*value >= min && *value <= max)) {  // NaN is refused too
      Fail(InvalidArgument(key, " = ", *value, " is not in ", min, "..", max));
      return 0;
    }
    return static_cast<float>(*value);
  }

  // Refuses a file that asks for a feature by setting an integer other than 0.
  void RefuseIfSet(std::string_view suffix) {
    const std::string key = Cat(prefix_, suffix);
    const auto value = file_.GetUintOr(key, 0);
    if (!value.ok() || *value != 0) {
      Fail(Unimplemented(key, " is not supported"));
    }
  }

 private:
  // A missing key is an error of the file, so its NotFound becomes InvalidArgument.
  static absl::Status AsInvalid(const absl::Status& status) {
    return absl::InvalidArgumentError(status.message());
  }

  const GgufFile& file_;
  std::string prefix_;
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
  const auto require = [&in](bool holds, std::string_view what) {
    if (!holds) in.Fail(InvalidArgument(in.prefix(), what));
  };
  require(config.hidden % 32 == 0, "embedding_length is not a multiple of 32");
  require(config.ffn % 32 == 0, "feed_forward_length is not a multiple of 32");
  require(config.heads % config.kv_heads == 0,
          "attention.head_count is not a multiple of "
          "attention.head_count_kv");
  require(config.head_dim % 16 == 0, "attention.key_length is not a multiple of 16");
  require(value_dim == config.head_dim, "attention.value_length differs from key_length");
  require(config.rope_dim % 2 == 0, "rope.dimension_count is odd");
}

void RefuseUnknownFeatures(const GgufFile& file, ConfigReader& in) {
  in.RefuseIfSet("expert_count");
  in.RefuseIfSet("attention.sliding_window");
  const std::string key = Cat(in.prefix(), "rope.scaling.type");
  if (const auto scaling = file.GetString(key); scaling.ok() && *scaling != "none") {
    in.Fail(Unimplemented(key, " = '", *scaling, "' is not supported"));
  }
}

std::string Shape(const uint64_t (&dims)[4]) {
  return Cat("[", dims[0], ", ", dims[1], ", ", dims[2], ", ", dims[3], "]");
}

// Checks each tensor of the architecture when the caller names it, and counts them.
class TensorChecker {
 public:
  explicit TensorChecker(const GgufFile& file) : file_(file) {}

  void Matrix(const std::string& name, uint64_t columns, uint64_t rows) {
    Check(name, columns, rows, /*rank=*/2);
  }

  void Vector(const std::string& name, uint64_t size) {
    const GgufTensor* tensor = Check(name, size, 1, /*rank=*/1);
    if (tensor != nullptr && tensor->type != GgmlType::kF32) {
      Fail(Cat("tensor ", name, " is ", GgmlTypeName(tensor->type), ", not F32"));
    }
  }

  // Call it after all expected tensors were named.
  absl::Status Finish() {
    if (status_.ok() && expected_.size() != file_.tensors().size()) {
      for (const GgufTensor& tensor : file_.tensors()) {
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

  const GgufTensor* Check(const std::string& name, uint64_t columns, uint64_t rows, uint32_t rank) {
    const GgufTensor* tensor = file_.FindTensor(name);
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

  const GgufFile& file_;
  absl::flat_hash_set<std::string_view, TextHash, TextEqual> expected_;
  absl::Status status_;
};

absl::Status CheckTensors(const GgufFile& file, const ModelConfig& config) {
  TensorChecker check(file);
  const uint64_t q_width = uint64_t{config.heads} * config.head_dim;
  const uint64_t kv_width = uint64_t{config.kv_heads} * config.head_dim;
  check.Matrix("token_embd.weight", config.hidden, config.vocab);
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

// Reads the ids of the special tokens of `file`, and the stop set.
absl::Status ReadTokenIds(const GgufFile& file, ModelConfig& config) {
  absl::Status status;
  const auto read = [&](std::string_view name) -> TokenId {
    const std::string key = Cat("tokenizer.ggml.", name, "_token_id");
    if (file.Find(key) == nullptr) return -1;
    const auto id = file.GetUint(key);
    if (id.ok() && *id < config.vocab) return static_cast<TokenId>(*id);
    status.Update(
        id.ok() ? InvalidArgument(key, " = ", *id, " is outside the vocabulary of ", config.vocab)
                : id.status());
    return -1;
  };
  config.bos_id = read("bos");
  config.eos_id = read("eos");
  for (const TokenId id : {config.eos_id, read("eot"), read("eom")}) {
    if (id >= 0) config.stop_ids.push_back(id);
  }
  const auto tokens = file.GetStrings("tokenizer.ggml.tokens");
  const auto types = file.GetInts("tokenizer.ggml.token_type");
  if (!tokens.ok()) status.Update(tokens.status());
  if (!types.ok()) status.Update(types.status());
  if (!status.ok()) return status;
  if (types->size() != tokens->size()) {
    return absl::InvalidArgumentError("tokenizer.ggml: tokens and token_type differ in length");
  }
  constexpr int64_t kControl = 3;
  for (size_t id = 0; id < tokens->size(); ++id) {
    if ((*types)[id] != kControl) continue;
    if (std::ranges::find(kStopTokens, (*tokens)[id]) != std::end(kStopTokens)) {
      config.stop_ids.push_back(static_cast<TokenId>(id));
    }
  }
  std::ranges::sort(config.stop_ids);
  const auto repeated = std::ranges::unique(config.stop_ids);
  config.stop_ids.erase(repeated.begin(), repeated.end());
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> CountTokens(const GgufFile& file) {
  const GgufValue* tokens = file.Find("tokenizer.ggml.tokens");
  if (tokens == nullptr || tokens->type != GgufType::kArray || tokens->count == 0 ||
      tokens->count > kMaxVocab) {
    return InvalidArgument("tokenizer.ggml.tokens is not a list of 1..", kMaxVocab, " strings");
  }
  return static_cast<uint32_t>(tokens->count);
}

// The vocabulary's size is that of the token list; a stated size must agree.
absl::Status ReadVocab(const GgufFile& file, ConfigReader& in, ModelConfig& config) {
  const absl::StatusOr<uint32_t> tokens = CountTokens(file);
  if (!tokens.ok()) return tokens.status();
  config.vocab = in.Uint("vocab_size", *tokens, *tokens, *tokens);
  return in.status();
}

}  // namespace

std::vector<std::string_view> KnownArchitectures() {
  std::vector<std::string_view> names;
  for (const Architecture& row : kArchitectures) names.push_back(row.name);
  return names;
}

absl::StatusOr<ModelConfig> LoadConfig(const GgufFile& file) {
  const auto name = file.GetString("general.architecture");
  if (!name.ok()) return absl::InvalidArgumentError(name.status().message());
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
  if (const auto title = file.GetString("general.name"); title.ok()) config.name = *title;
  config.tied_embedding = file.FindTensor("output.weight") == nullptr;

  ConfigReader in(file, Cat(row->name, "."));
  ReadShape(in, config);
  RefuseUnknownFeatures(file, in);
  absl::Status status = in.status();
  if (status.ok()) status = ReadVocab(file, in, config);
  if (status.ok()) status = ReadTokenIds(file, config);
  if (status.ok()) status = CheckTensors(file, config);
  if (!status.ok()) return status;
  return config;
}

absl::StatusOr<std::vector<TokenId>> LoadStopTokens(const GgufFile& file) {
  const absl::StatusOr<uint32_t> tokens = CountTokens(file);
  if (!tokens.ok()) return tokens.status();
  ModelConfig config;
  config.vocab = *tokens;
  if (absl::Status status = ReadTokenIds(file, config); !status.ok()) return status;
  return std::move(config.stop_ids);
}

}  // namespace flotilla::model

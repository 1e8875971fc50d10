// What a model file holds: configuration, tensors and tokenizer. This is the only view of a model
// file that anyone outside model/ has, so a container is one folder here (model/gguf/,
// model/huggingface/) and a line in checkpoint.cc.
//
// A checkpoint is immutable, and any thread may read it. All views that it hands out live as long
// as it does. The file is untrusted: a checkpoint has checked that every view lies inside it, and
// takes memory of at most a small multiple of the file's metadata. It does not know what the
// numbers mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types/tokenizer_bundle.h"
#include "model/configuration.h"
#include "model/tensor.h"

namespace flotilla::model {

// One entry of a file's metadata, for people.
struct MetadataEntry {
  std::string name;   // escaped: safe for a terminal
  std::string type;   // as the container names it
  std::string value;  // shortened and escaped
};

// Tensors of a file that the text model does not use, e.g. of an encoder of images.
struct SkippedTensors {
  std::string prefix;  // of their names, or what they are
  uint64_t count = 0;
  uint64_t bytes = 0;
  bool are_a_part = true;  // of the model, for other input than text
};

// What the K and V of a layer are divided by before they are rounded to FP8, in a cache of FP8; 0:
// the file does not say it.
struct KvScales {
  static constexpr float kLeast = 1e-30f, kLargest = 1e30f;

  float key = 0;
  float value = 0;

  bool operator==(const KvScales&) const = default;
};

// Whose names the tensors have. It also says how the pairs of a head that RoPE turns are ordered.
enum class Naming : uint8_t {
  kLlamaCpp,     // "blk.0.attn_q.weight"; pairs as llama.cpp's converter orders them
  kHuggingFace,  // "model.layers.0.self_attn.q_proj.weight"; pairs are half a head apart
};

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  // The container and its version, e.g. "GGUF v3".
  virtual std::string format() const = 0;
  // The path of the file or folder, for errors; empty if it has none.
  virtual std::string_view path() const = 0;
  virtual const Configuration& configuration() const = 0;
  virtual Naming naming() const { return Naming::kLlamaCpp; }

  // The tensors in the file's order.
  virtual std::span<const Tensor> tensors() const = 0;
  // Those of the file that are not among tensors().
  virtual std::span<const SkippedTensors> skipped_tensors() const { return {}; }
  // By layer, each from KvScales::kLeast to kLargest; layers behind the last have none.
  virtual std::span<const KvScales> kv_scales() const { return {}; }
  // Null if there is no tensor of that name.
  virtual const Tensor* FindTensor(std::string_view name) const = 0;

  // One more than the largest id of a token of the tokenizer; 0 if the file has none. Padding does
  // not count: unused tokens "[PAD7]", named after their ids, that ReadTokenizer may give behind
  // all others.
  virtual uint64_t token_count() const = 0;
  // INVALID_ARGUMENT: the file has no tokenizer, or one that contradicts itself. UNIMPLEMENTED:
  // a token of an unknown type.
  virtual absl::StatusOr<TokenizerBundle> ReadTokenizer() const = 0;

  // Gives memory back that only caches what was read of the file. Views stay valid; who reads them
  // again waits for the file. Any thread may call it, also while others read.
  virtual void ReleasePages() const = 0;

  // A hash of everything but the tensors' data. It tells files apart and is no defence against
  // forgery.
  virtual uint64_t MetadataHash() const = 0;
  // All metadata, sorted by name.
  virtual std::vector<MetadataEntry> Metadata() const = 0;
};

// Maps the GGUF file at `path`, with its other parts if it is the first of several, or the files of
// the Hugging Face folder there. NOT_FOUND or another errno code if one cannot be opened;
// INVALID_ARGUMENT, which says what and where, if it is not valid.
absl::StatusOr<std::shared_ptr<const Checkpoint>> OpenCheckpoint(const std::string& path);

// The status, whose message names the file or folder at `path` first.
absl::Status InFile(std::string_view path, const absl::Status& status);

// What a model is called whose file or folder has this name: without ".gguf", and without the
// number of a part ("-00001-of-00005"). A view into `file`.
std::string_view ModelNameOf(std::string_view file);

// Reads a GGUF file that is held in memory. `bytes` outlive the result. INVALID_ARGUMENT as above.
absl::StatusOr<std::shared_ptr<const Checkpoint>> ParseCheckpoint(std::span<const std::byte> bytes);

}  // namespace flotilla::model

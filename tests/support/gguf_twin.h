// The GGUF file that llama.cpp's converter makes of a Hugging Face folder, made by rules of our
// own.
//
// A case has the converter's file as a list (gguf.tsv, which
// tests/golden/make/make_gguf_manifests.py writes): its keys, and the name, type, shape and SHA-256
// of each tensor. The keys are taken from the list. The tensors come from the folder; the list only
// says which there are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "model/checkpoint.h"

namespace flotilla::testing {

struct GgufManifest {
  struct Key {
    std::string name, type, value;  // the type as in "uint32", the value as JSON
  };
  struct Tensor {
    std::string name, type;      // the type as in "BF16"
    std::vector<uint64_t> dims;  // dims[0] is the contiguous dimension
    std::string sha256;          // of its bytes, in hexadecimal
  };
  std::vector<Key> keys;
  std::vector<Tensor> tensors;

  // The value of a key without the architecture in front; empty if there is none.
  std::string Value(std::string_view key) const;
};

// Reads a case's list. None: the case has no such file, because llama.cpp does not know the model.
std::optional<GgufManifest> ReadGgufManifest(const std::string& case_folder);

// Makes gate and up of all experts of a layer one tensor: ffn_gate_up_exps, which the converter's
// lists have not.
void FuseExperts(GgufManifest& manifest);

struct TwinTensor {
  model::GgmlType type;
  std::vector<uint64_t> dims;
  std::vector<std::byte> data;
};

// The tensor of that name. It is empty if the folder has none that it comes from; else the names of
// those that do are added to `used`.
TwinTensor MakeTwinTensor(const model::Checkpoint& folder, const GgufManifest& manifest,
                          std::string_view name, std::set<std::string>& used);

// The whole file, for ParseCheckpoint. `mended` replaces values of the list's keys, or adds keys to
// them.
std::vector<std::byte> GgufTwin(const model::Checkpoint& folder, const GgufManifest& manifest,
                                const std::vector<GgufManifest::Key>& mended = {});

}  // namespace flotilla::testing

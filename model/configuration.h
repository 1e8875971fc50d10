// The numbers that describe a model, as its file states them: a typed view by key.
//
// Keys are those of llama.cpp without the architecture in front, for example
// "attention.head_count". Every container has its own spelling of them (GGUF writes
// "llama.attention.head_count"), which errors name. Nothing is judged here: the reader of a value
// bounds it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace flotilla::model {

class Configuration {
 public:
  virtual ~Configuration() = default;

  // What the model calls its kind, e.g. "llama". INVALID_ARGUMENT: the file does not say it.
  virtual absl::StatusOr<std::string_view> architecture() const = 0;
  // The model's name for people; may be empty.
  virtual std::string_view title() const = 0;
  // How the file spells `key`.
  virtual std::string NameOf(std::string_view key) const = 0;

  virtual bool Has(std::string_view key) const = 0;
  // Typed reads; strings lie in the checkpoint. NOT_FOUND: the file has no such key.
  // INVALID_ARGUMENT: its value has another type. An integer of any width and sign is accepted
  // if its value fits.
  virtual absl::StatusOr<uint64_t> Uint(std::string_view key) const = 0;
  virtual absl::StatusOr<double> Float(std::string_view key) const = 0;
  virtual absl::StatusOr<std::string_view> String(std::string_view key) const = 0;
  virtual absl::StatusOr<bool> Bool(std::string_view key) const = 0;
  // The numbers of an array, or the one number; booleans count as 0 and 1.
  virtual absl::StatusOr<std::vector<double>> Numbers(std::string_view key) const = 0;
};

}  // namespace flotilla::model

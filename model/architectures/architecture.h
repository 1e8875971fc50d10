// The architectures that can be served. Each is a file of its own in this folder and a line in
// architecture.cc: a function from the configuration of a model file to its spec.
#pragma once

#include <span>
#include <string_view>

#include "model/checkpoint.h"
#include "model/config_reader.h"
#include "model/spec.h"

namespace flotilla::model {

struct Architecture {
  // As Configuration::architecture gives it; llama.cpp and Hugging Face may have a name each.
  std::string_view name;
  std::string_view other_name;  // may be empty
  // Fills in the spec but for architecture, name and vocabulary. Failures go to `in`, and the spec
  // is then of no use.
  void (*read)(const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec);
};

// All of them, by name.
std::span<const Architecture* const> Architectures();

}  // namespace flotilla::model

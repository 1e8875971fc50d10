// What a worker and the process that compiles its grammars say to each other: frames on a socket
// (common/rt/frames.h). The first one has limits and vocabulary, and each later one a constraint.
// The process answers each with one frame: an empty one, or the result. Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/types/constraint.h"
#include "worker/constraint/vocabulary.h"

namespace flotilla::worker {

// Limits of the process.
struct CompileLimits {
  std::int64_t cpu_us = 2'000'000;            // processor time of one compile
  std::uint64_t memory_bytes = 512ull << 20;  // above what it has after the vocabulary
  // Of a compiled grammar, which takes about as much memory. (An object of 200 optional properties
  // has 1.3 MB with a vocabulary of 49,152 tokens.)
  std::uint64_t compiled_bytes = 32ull << 20;
};

struct CompileSetup {
  CompileLimits limits;
  ConstraintVocabulary vocabulary;
};

std::string EncodeSetup(const CompileSetup& setup);
// INVALID_ARGUMENT: the message is no such one. The same holds below.
absl::StatusOr<CompileSetup> DecodeSetup(absl::string_view message);

std::string EncodeConstraint(const Constraint& constraint);
absl::StatusOr<Constraint> DecodeConstraint(absl::string_view message);

// `compiled` is a text, or INVALID_ARGUMENT or RESOURCE_EXHAUSTED with a message for the client.
std::string EncodeCompiled(const absl::StatusOr<std::string>& compiled);
absl::StatusOr<std::string> DecodeCompiled(absl::string_view message);

}  // namespace flotilla::worker

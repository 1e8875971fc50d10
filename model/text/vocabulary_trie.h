// The trie of a vocabulary that comes from a file.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "model/text/trie.h"

namespace flotilla::model {

// A look-up walks at most the longest token. Published ones have less than 100 bytes.
inline constexpr size_t kMostTokenBytes = 512;

// Of the texts that are not empty; ids are their places. UNIMPLEMENTED: a text is longer than
// that, or all are longer than 16 MiB.
absl::StatusOr<Trie> VocabularyTrie(std::span<const std::string_view> texts);

}  // namespace flotilla::model

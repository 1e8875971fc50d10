// The trie of a vocabulary that comes from a file.
#pragma once

#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "model/text/trie.h"

namespace flotilla::model {

// Of the texts that are not empty; ids are their places. UNIMPLEMENTED: a text is longer than 512
// bytes, or all are longer than 16 MiB.
absl::StatusOr<Trie> VocabularyTrie(std::span<const std::string_view> texts);

}  // namespace flotilla::model

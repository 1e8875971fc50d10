// AddedTokens: finds tokens in a text that is not split yet, by what they are written as.
//
// It is filled once and then only read; any number of threads may use it at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/types/ids.h"
#include "common/types/text.h"
#include "common/types/tokenizer_bundle.h"

namespace flotilla::model {

// A part of a text: which control tokens may begin and end in it.
struct TextRun {
  size_t end;  // offset in the whole text
  bool special_allowed;
};

class AddedTokens {
 public:
  // The longest text of a token. It bounds the look-ups at one place of a text: one for each length
  // of a token. Published ones have at most 100 bytes.
  static constexpr size_t kMostBytes = 256;

  // Adds a token with a text of 1 to kMostBytes bytes. Of equal texts the first one stays.
  // `special`: it counts only where special tokens are allowed.
  void Add(std::string_view text, TokenId id, bool special, const AddedTokenRule& rule);

  bool empty() const { return tokens_.empty(); }
  // The token with exactly this text, or -1.
  TokenId Find(std::string_view text) const;

  // Calls `token` with the tokens of `text`, which is valid UTF-8, and `plain` with the ranges
  // between them, in order, until one fails. The token that begins first counts, and the longest of
  // those. One whose rule says no takes its text with it, and white space may belong to two tokens,
  // as in `tokenizers`. There as here one that strips to the left loses what others took.
  using Plain = absl::FunctionRef<absl::Status(size_t begin, size_t end)>;
  using Token = absl::FunctionRef<absl::Status(TokenId id)>;
  absl::Status Split(std::string_view text, std::span<const TextRun> runs, Plain plain,
                     Token token) const;

 private:
  struct Entry {
    AddedTokenRule rule;
    bool special;
  };
  // The longest token at `at` that ends at `end` at the latest, with its size; null: there is none.
  struct Found {
    const Entry* entry;
    size_t size;
  };
  Found LongestAt(std::string_view text, size_t at, size_t end, bool special_allowed) const;

  absl::flat_hash_map<std::string, Entry, TextHash, TextEqual> tokens_;
  std::vector<size_t> sizes_;       // distinct, longest first
  std::array<bool, 256> begins_{};  // some token begins with this byte
};

}  // namespace flotilla::model

// CharacterMap: SentencePiece's map from characters to others ("precompiled_charsmap"): a double
// array (Darts) of what is replaced, and the texts that take its place.
//
// It is immutable after creation; any number of threads may use it at once. The map comes from a
// file, so every index that it holds is checked when it is used.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace flotilla::model {

class CharacterMap {
 public:
  // INVALID_ARGUMENT: `bytes` is no map: u32 size of the array in bytes, the array of u32 units,
  // and texts that each end with a zero byte; all little-endian.
  static absl::StatusOr<CharacterMap> Create(std::string_view bytes);

  struct Match {
    size_t bytes;           // of the text that is replaced
    std::string_view text;  // what takes its place
  };
  // The shortest or the longest part at the beginning of `text` that is replaced.
  std::optional<Match> Find(std::string_view text, bool longest) const;

  // Whether no text that begins with this ASCII character is replaced.
  bool keeps(uint8_t ascii) const { return keeps_[ascii]; }

 private:
  CharacterMap() = default;

  std::vector<uint32_t> units_;
  std::string texts_;
  bool keeps_[128] = {};
};

}  // namespace flotilla::model

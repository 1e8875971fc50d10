#include "model/text/piece_cache.h"

#include <algorithm>
#include <cstring>

namespace flotilla::model {
namespace {

// Mixes eight bytes at a time; the multipliers are those of MurmurHash3's finalizer and of the
// golden ratio. Who forces collisions only makes pieces push each other out.
uint64_t Hash(std::string_view piece) {
  constexpr uint64_t kMix = 0xff51afd7ed558ccd;
  uint64_t hash = piece.size() * 0x9e3779b97f4a7c15;
  for (; piece.size() >= sizeof hash; piece.remove_prefix(sizeof hash)) {
    uint64_t word;
    std::memcpy(&word, piece.data(), sizeof word);
    hash = (hash ^ word) * kMix;
    hash ^= hash >> 32;
  }
  uint64_t word = 0;
  std::memcpy(&word, piece.data(), piece.size());
  hash = (hash ^ word) * kMix;
  return hash ^ hash >> 29;
}

}  // namespace

bool PieceCache::EndWindow() {
  const bool pays = hits_ >= kWindow / 8;
  pieces_ = hits_ = 0;
  if (pays) {
    next_pause_ = kShortPause;
    return true;
  }
  pause_ = next_pause_;
  next_pause_ = std::min(2 * next_pause_, kLongPause);
  return false;
}

bool PieceCache::Find(std::string_view piece, std::vector<TokenId>& out) {
  if (piece.size() > kMostBytes) return false;
  const uint64_t hash = Hash(piece);
  const Entry& entry = PlaceOf(hash);
  if (entry.hash != hash || entry.bytes != piece.size() ||
      std::memcmp(entry.text, piece.data(), piece.size()) != 0) {
    return false;
  }
  ++hits_;
  out.insert(out.end(), entry.ids, entry.ids + entry.tokens);
  return true;
}

void PieceCache::Keep(std::string_view piece, std::span<const TokenId> ids) {
  if (piece.empty() || piece.size() > kMostBytes || ids.size() > kMostTokens) return;
  const uint64_t hash = Hash(piece);
  Entry& entry = PlaceOf(hash);
  entry.hash = hash;
  entry.bytes = static_cast<uint8_t>(piece.size());
  entry.tokens = static_cast<uint8_t>(ids.size());
  std::ranges::copy(piece, entry.text);
  std::ranges::copy(ids, entry.ids);
}

}  // namespace flotilla::model

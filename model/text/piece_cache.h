// PieceCache: what the pieces of earlier texts became, so that a common word is merged or cut once.
//
// A cache belongs to one thread at a time. PieceCaches lends the caches of a tokenizer to its
// threads: who finds none free encodes without, so that nobody waits.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "common/types/ids.h"

namespace flotilla::model {

class PieceCache {
 public:
  // `entries`: a power of two. A piece has one place by its hash, and the latest one stays. An
  // entry takes 64 bytes.
  explicit PieceCache(size_t entries = 4096) : entries_(entries) {}

  // Appends the tokens of `piece`, which `encode` appends where they are not known. They must
  // depend on the piece only. `cache` may be null.
  template <class Encode>
  static void Append(PieceCache* cache, std::string_view piece, std::vector<TokenId>& out,
                     const Encode& encode) {
    const bool looks = cache != nullptr && cache->Pays();
    if (looks && cache->Find(piece, out)) return;
    const size_t before = out.size();
    encode();
    if (looks) cache->Keep(piece, std::span(out).subspan(before));
  }

 private:
  // Longer pieces, and those of more tokens, are rare in text that repeats itself.
  static constexpr size_t kMostBytes = 30, kMostTokens = 6;
  // Text whose pieces are all distinct takes longer with a cache. So the cache pauses when fewer
  // than an eighth of a window's pieces were known, and longer each time.
  static constexpr uint32_t kWindow = 256, kShortPause = 16 * kWindow, kLongPause = 256 * kWindow;

  struct Entry {
    uint64_t hash = 0;
    uint8_t bytes = 0;  // 0: there is no entry
    uint8_t tokens = 0;
    char text[kMostBytes];
    TokenId ids[kMostTokens];
  };
  static_assert(sizeof(Entry) == 64);

  // Called for each piece: whether to look it up.
  bool Pays() {
    if (pause_ == 0) [[likely]]
      return pieces_++ < kWindow || EndWindow();
    --pause_;
    return false;
  }
  bool EndWindow();
  // Appends the tokens of `piece`, if they are known.
  bool Find(std::string_view piece, std::vector<TokenId>& out);
  void Keep(std::string_view piece, std::span<const TokenId> ids);
  Entry& PlaceOf(uint64_t hash) { return entries_[hash & (entries_.size() - 1)]; }

  std::vector<Entry> entries_;
  uint32_t pieces_ = 0, hits_ = 0;  // of the window
  uint32_t pause_ = 0;              // pieces for which there is no look-up yet
  uint32_t next_pause_ = kShortPause;
};

class PieceCaches {
  struct Slot {
    std::atomic<bool> lent = false;
    std::unique_ptr<PieceCache> cache;  // made when it is first lent
  };

 public:
  // One cache, or none; gives it back at the end. `caches` may be null.
  class Lease {
   public:
    explicit Lease(PieceCaches* caches) {
      if (caches == nullptr) return;
      for (Slot& slot : caches->slots_) {
        if (slot.lent.exchange(true, std::memory_order_acquire)) continue;
        if (slot.cache == nullptr) slot.cache = std::make_unique<PieceCache>();
        slot_ = &slot;
        return;
      }
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() {
      if (slot_ != nullptr) slot_->lent.store(false, std::memory_order_release);
    }
    PieceCache* get() const { return slot_ == nullptr ? nullptr : slot_->cache.get(); }

   private:
    Slot* slot_ = nullptr;
  };

 private:
  std::array<Slot, 4> slots_;  // 1 MiB in all
};

}  // namespace flotilla::model

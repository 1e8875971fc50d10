#include "worker/compute/host/tier_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace flotilla::worker {

absl::StatusOr<std::unique_ptr<TierStore>> TierStore::Create(const TierOptions& options,
                                                             TieredBlocks& blocks,
                                                             const Clock& clock,
                                                             LoadProgress* progress) {
  auto store = std::unique_ptr<TierStore>(new TierStore(blocks));
  if (options.host_blocks > 0) {
    if (absl::Status s = store->AddHost(options.host_blocks, progress); !s.ok()) return s;
  }
  if (options.disk_blocks > 0) {
    const std::string directory = options.disk_directory.empty() ? "/tmp" : options.disk_directory;
    if (absl::Status s = store->AddDisk(options.disk_blocks, directory, progress); !s.ok())
      return s;
  }
  if (store->tiers_.empty()) return store;
  if (absl::Status s = store->Measure(clock); !s.ok()) return s;
  store->thread_ = std::thread([raw = store.get()] { raw->Loop(); });
  return store;
}

TierStore::~TierStore() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
  }
  if (thread_.joinable()) thread_.join();
  if (disk_ >= 0) close(disk_);
}

absl::Status TierStore::AddHost(std::uint32_t blocks, LoadProgress* progress) {
  piece_slots_ = std::min(blocks, blocks_.blocks_at_a_time());
  for (std::uint32_t at = 0; at < blocks; at += piece_slots_) {
    const auto piece = blocks_.Reserve(std::min(piece_slots_, blocks - at));
    if (!piece.ok()) return piece.status();
    host_.push_back(*piece);
    if (progress != nullptr) progress->Move();
    if (blocks - at <= piece_slots_) break;  // the sum may have no room in the number
  }
  tiers_.push_back({.kind = KvTier::Kind::kHost, .block_count = blocks});
  return absl::OkStatus();
}

absl::Status TierStore::AddDisk(std::uint32_t blocks, const std::string& directory,
                                LoadProgress* progress) {
  const auto staged = blocks_.Reserve(1);
  if (!staged.ok()) return staged.status();
  staged_ = *staged;
  disk_ = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (disk_ < 0) {
    return absl::UnavailableError(absl::StrCat("no file for KV blocks can be made in '", directory,
                                               "': ", std::strerror(errno)));
  }
  const off_t bytes = off_t{blocks} * blocks_.bytes_per_block();
  // Some file systems write every block, so a large file takes a while.
  constexpr off_t kPiece = off_t{64} << 20;
  int error = 0;
  for (off_t at = 0; at < bytes && error == 0; at += kPiece) {
    error = posix_fallocate(disk_, at, std::min(kPiece, bytes - at));
    if (progress != nullptr) progress->Move();
  }
  if (error != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("no ", bytes, " bytes for KV blocks in '",
                                                     directory, "': ", std::strerror(error)));
  }
  tiers_.push_back({.kind = KvTier::Kind::kDisk, .block_count = blocks});
  return absl::OkStatus();
}

// Writes and reads the null block a few times. The fastest time counts, because the first
// ones also pay for fresh memory.
absl::Status TierStore::Measure(const Clock& clock) {
  constexpr int kRounds = 8;
  for (std::uint32_t t = 0; t < tiers_.size(); ++t) {
    for (const BackgroundCopy::Kind kind :
         {BackgroundCopy::Kind::kOut, BackgroundCopy::Kind::kIn}) {
      std::int64_t best_ns = INT64_MAX;
      for (int round = 0; round < kRounds; ++round) {
        const std::int64_t start = clock.NowNs();
        const BackgroundCopy copy{.kind = kind, .tier = t, .moves = {{.block = kNullBlock}}};
        if (absl::Status s = Copy(copy); !s.ok()) return s;
        best_ns = std::min(best_ns, clock.NowNs() - start);
      }
      KvTier& tier = tiers_[t];
      (kind == BackgroundCopy::Kind::kOut ? tier.out_ns_per_block : tier.in_ns_per_block) =
          std::max<std::int64_t>(best_ns, 1);
    }
  }
  return absl::OkStatus();
}

void TierStore::Start(BackgroundCopy copy) {
  absl::MutexLock lock(&mu_);
  queue_.push_back(std::move(copy));
}

absl::StatusOr<std::vector<std::uint64_t>> TierStore::TakeDone(bool wait) {
  if (tiers_.empty()) return std::vector<std::uint64_t>{};
  absl::MutexLock lock(&mu_);
  if (wait) mu_.Await(absl::Condition(this, &TierStore::HasNews));
  if (!failure_.ok()) return failure_;
  return std::exchange(done_, {});
}

void TierStore::Reset() {
  absl::MutexLock lock(&mu_);
  queue_.clear();
  mu_.Await(absl::Condition(this, &TierStore::Quiet));
  done_.clear();
  failure_ = absl::OkStatus();
}

void TierStore::Loop() {
  while (true) {
    BackgroundCopy copy;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &TierStore::Wakes));
      if (stopped_) return;
      copy = std::move(queue_.front());
      queue_.pop_front();
      copying_ = true;
    }
    const absl::Status copied = Copy(copy);
    absl::MutexLock lock(&mu_);
    copying_ = false;
    failure_.Update(copied);
    done_.push_back(copy.id);
  }
}

absl::Status TierStore::Copy(const BackgroundCopy& copy) {
  const bool out = copy.kind == BackgroundCopy::Kind::kOut;
  const bool disk = tiers_[copy.tier].kind == KvTier::Kind::kDisk;
  for (const BackgroundCopy::Move& move : copy.moves) {
    std::byte* const slot = disk ? staged_
                                 : host_[move.slot / piece_slots_] +
                                       move.slot % piece_slots_ * blocks_.bytes_per_block();
    absl::Status status;
    if (disk && !out) status = MoveDisk(copy.kind, move.slot);
    if (status.ok()) {
      status = out ? blocks_.CopyOut(move.block, slot) : blocks_.CopyIn(slot, move.block);
    }
    if (status.ok() && disk && out) status = MoveDisk(copy.kind, move.slot);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status TierStore::MoveDisk(BackgroundCopy::Kind kind, std::uint32_t slot) {
  const auto size = static_cast<std::size_t>(blocks_.bytes_per_block());
  const off_t begin = off_t{slot} * static_cast<off_t>(size);
  for (std::size_t at = 0; at < size;) {
    const off_t offset = begin + static_cast<off_t>(at);
    const ssize_t moved = kind == BackgroundCopy::Kind::kOut
                              ? pwrite(disk_, staged_ + at, size - at, offset)
                              : pread(disk_, staged_ + at, size - at, offset);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) {
      return absl::UnavailableError(
          absl::StrCat("the disk tier failed: ", moved < 0 ? std::strerror(errno) : "end of file"));
    }
    at += static_cast<std::size_t>(moved);
  }
  return absl::OkStatus();
}

}  // namespace flotilla::worker

// Damaged model files are refused or served. They never cause a crash, nor take more memory than a
// small multiple of the file.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "model/checkpoint.h"
#include "model/gguf/gguf_file.h"
#include "tests/support/allocations.h"
#include "tests/support/tiny_gguf.h"
#include "tests/support/use_checkpoint.h"

namespace flotilla::model {
namespace {

// Uses as much of the file as is accepted. True: all of it was.
bool Serve(std::span<const std::byte> bytes) {
  const auto file = ParseCheckpoint(bytes);
  return file.ok() && testing::UseCheckpoint(**file);
}

// Makes one to four changes, most of them in the metadata.
void Mutate(std::vector<std::byte>& bytes, size_t metadata, std::mt19937_64& random) {
  for (uint64_t n = 1 + random() % 4; n > 0 && bytes.size() > 8; --n) {
    const size_t at = random() % (random() % 16 ? std::min(metadata, bytes.size()) : bytes.size());
    // A change in place gets further into the parser than one that moves all later bytes.
    switch (random() % 12) {
      case 0:
        bytes[at] = static_cast<std::byte>(random());
        break;
      case 1:
        bytes[at] ^= static_cast<std::byte>(1u << random() % 8);
        break;
      case 2: {  // an extreme integer
        const uint64_t extremes[] = {0, 1, ~0ull, 1ull << 63, 1ull << 32, 0xffffffff, bytes.size()};
        const uint64_t value = extremes[random() % std::size(extremes)];
        for (size_t i = 0; i < 8 && at + i < bytes.size(); ++i) {
          bytes[at + i] = static_cast<std::byte>(value >> 8 * i);
        }
        break;
      }
      case 3:
        bytes.resize(at);
        break;
      case 4:
        bytes.erase(bytes.begin() + at,
                    bytes.begin() + std::min(at + 1 + random() % 8, bytes.size()));
        break;
      case 5:
        bytes.insert(bytes.begin() + at, 1 + random() % 8, static_cast<std::byte>(random()));
        break;
      default:
        bytes[at] = bytes[random() % bytes.size()];
    }
  }
}

TEST(HostileFile, MutationsAreRefusedOrServed) {
  testing::TinyModelOptions small;
  small.hidden = small.ffn = 32;
  small.heads = small.kv_heads = 1;
  small.layers = 1;
  const std::vector<std::byte> whole = testing::TinyGguf(small);
  ASSERT_TRUE(Serve(whole));
  const size_t metadata = GgufFile::Parse(whole)->metadata().size();
  const bool full = std::getenv("FLOTILLA_LONG") != nullptr;
  const int rounds = full ? 100'000 : 5'000;
  constexpr uint64_t kSeed = 20260726;
  size_t largest = 0;
  int served = 0;
  for (int round = 0; round < rounds; ++round) {
    std::mt19937_64 random(kSeed + static_cast<uint64_t>(round));
    std::vector<std::byte> bytes = whole;
    Mutate(bytes, metadata, random);
    const testing::AllocationCount allocated;
    served += Serve(bytes);
    largest = std::max(largest, allocated.bytes());
    // This covers a rendering that reaches its bounds, and the index of a file.
    ASSERT_LT(allocated.bytes(), size_t{16} << 20) << "seed " << kSeed + round;
  }
  std::printf("seeds from %llu: %d of %d files were served; at most %zu bytes allocated\n",
              static_cast<unsigned long long>(kSeed), served, rounds, largest);
  RecordProperty("mutated GGUF files; most bytes allocated for one",
                 std::to_string(rounds) + "; " + std::to_string(largest));
  EXPECT_GT(served, 0);
  EXPECT_LT(served, rounds);
}

}  // namespace
}  // namespace flotilla::model

#include "model/text/piece_cache.h"

#include <array>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "model/text/character_bpe.h"
#include "model/text/tokenizer.h"
#include "tests/support/sentence_pieces.h"

namespace flotilla::model {
namespace {

std::string Words(std::mt19937& random, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    text += random() % 4 != 0 ? " " : "\xe2\x96\x81";
    // Some words are longer than an entry, or have more tokens.
    const size_t size = random() % 12 == 0 ? 40 : random() % 4;
    for (size_t at = 0; at < size; ++at)
      text += std::array{"a", "b", "x", "?", "\xc3\xa9"}[random() % 5];
  }
  return text;
}

// `unknown_space`: a word may begin with an unknown character, which joins those before it.
CharacterBpe Characters(bool unknown_space) {
  CharacterBpe::Vocabulary vocabulary{.texts = {"", "a", "b", "ab", "aa", "aab", " a", " "},
                                      .unknown = 0};
  if (unknown_space) vocabulary.texts.resize(6);
  vocabulary.bytes.fill(-1);
  return *CharacterBpe::Create(vocabulary);
}

TEST(PieceCache, IdsAreThoseWithoutACache) {
  for (const bool unknown_space : {false, true}) {
    const CharacterBpe characters = Characters(unknown_space);
    for (const size_t entries : {1, 2, 4096}) {
      std::mt19937 random(5);
      PieceCache cache(entries);
      for (int round = 0; round < 50; ++round) {
        const std::string text = Words(random, 100);
        std::vector<TokenId> with, without;
        characters.Encode(text, round % 2 == 0, &cache, with);
        characters.Encode(text, round % 2 == 0, nullptr, without);
        ASSERT_EQ(with, without) << entries << " " << text;
      }
    }
  }
}

// Asks for a piece and returns whether it had to be encoded.
bool Encodes(PieceCache& cache, std::string_view piece) {
  bool encoded = false;
  std::vector<TokenId> out = {7};
  PieceCache::Append(&cache, piece, out, [&] {
    encoded = true;
    out.insert(out.end(), {1, 2});
  });
  EXPECT_EQ(out, (std::vector<TokenId>{7, 1, 2}));
  return encoded;
}

TEST(PieceCache, KnowsTheLatestPieces) {
  PieceCache one(1);
  EXPECT_TRUE(Encodes(one, "ab"));
  EXPECT_FALSE(Encodes(one, "ab"));
  EXPECT_TRUE(Encodes(one, "ac"));
  EXPECT_TRUE(Encodes(one, "ab"));
  PieceCache many;
  for (int round = 0; round < 2; ++round) {
    for (const char* piece : {"ab", "ac", "abc", "012345678901234567890123456789"}) {
      EXPECT_EQ(Encodes(many, piece), round == 0) << piece;
    }
    EXPECT_TRUE(Encodes(many, "0123456789012345678901234567890"));  // 31 bytes
  }
}

TEST(PieceCache, PausesWhileAllPiecesAreDistinct) {
  PieceCache cache;
  EXPECT_TRUE(Encodes(cache, "known"));
  EXPECT_FALSE(Encodes(cache, "known"));
  int asked = 0;
  for (; asked < 300; ++asked) EXPECT_TRUE(Encodes(cache, std::to_string(asked)));
  EXPECT_TRUE(Encodes(cache, "known"));  // the cache does not look
  int more = 0;
  while (more < 10'000 && Encodes(cache, "known")) ++more;
  EXPECT_GT(more, 3000);
  EXPECT_LT(more, 4200);
}

TEST(PieceCache, IsLentToOneThreadAtATime) {
  PieceCaches caches;
  {
    const PieceCaches::Lease a(&caches), b(&caches), c(&caches), d(&caches), e(&caches);
    EXPECT_TRUE(a.get() != nullptr && b.get() != nullptr && c.get() != nullptr);
    EXPECT_TRUE(a.get() != b.get() && c.get() != d.get() && a.get() != d.get());
    EXPECT_NE(d.get(), nullptr);
    EXPECT_EQ(e.get(), nullptr);
  }
  EXPECT_NE(PieceCaches::Lease(&caches).get(), nullptr);
  EXPECT_EQ(PieceCaches::Lease(nullptr).get(), nullptr);
}

// More threads than caches, which all have the same words.
TEST(PieceCache, ThreadsGetTheSameIds) {
  const auto tokenizer = Tokenizer::Create(testing::SentencePieces());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::mt19937 random(6);
  std::vector<std::string> texts;
  std::vector<std::vector<TokenId>> expected;
  for (int i = 0; i < 20; ++i) {
    texts.push_back(Words(random, 200));
    expected.push_back(*Tokenizer::Create(testing::SentencePieces())->Encode(texts.back()));
  }
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 7; ++thread) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        for (size_t i = 0; i < texts.size(); ++i)
          EXPECT_EQ(*tokenizer->Encode(texts[i]), expected[i]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace flotilla::model

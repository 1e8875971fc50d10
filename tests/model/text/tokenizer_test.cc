#include "model/text/tokenizer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unicode/normalizer2.h>
#include <unicode/unistr.h>

#include "model/checkpoint.h"
#include "model/text/detokenizer.h"
#include "model/text/utf8.h"
#include "tests/support/allocations.h"
#include "tests/support/sentence_pieces.h"
#include "tests/support/test_model.h"
#include "tests/support/tiny_gguf.h"

namespace flotilla::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The real vocabulary, loaded once.
const Tokenizer& SmolLm2() {
  static const Tokenizer* tokenizer = [] {
    const auto file = OpenCheckpoint(testing::ModelPath());
    if (!file.ok()) {
      std::fprintf(stderr, "the test model is missing (scripts/test fetches it): %s\n",
                   file.status().ToString().c_str());
      std::abort();
    }
    auto loaded = Tokenizer::Create(*(*file)->ReadTokenizer());
    if (!loaded.ok()) {
      std::fprintf(stderr, "%s\n", loaded.status().ToString().c_str());
      std::abort();
    }
    return new Tokenizer(*std::move(loaded));
  }();
  return *tokenizer;
}

TEST(Tokenizer, GoldenTextsInBothModes) {
  const auto cases = testing::ReadJsonLines("smollm2/tokenize.jsonl");
  ASSERT_EQ(cases.size(), 217u);
  for (const auto& test : cases) {
    const std::string text = test["text"];
    const auto plain = SmolLm2().Encode(text);
    ASSERT_TRUE(plain.ok()) << plain.status();
    EXPECT_EQ(*plain, test["ids"].get<std::vector<TokenId>>()) << test["text"];
    const auto parsed = SmolLm2().Encode(text, {.parse_special = true});
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, test["ids_parse_special"].get<std::vector<TokenId>>()) << test["text"];
  }
}

TEST(Tokenizer, ManyThreadsGetTheSameIds) {
  const auto cases = testing::ReadJsonLines("smollm2/tokenize.jsonl");
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (const auto& test : cases) {
        const auto ids = SmolLm2().Encode(test["text"].get<std::string>());
        wrong[t] += !ids.ok() || *ids != test["ids"].get<std::vector<TokenId>>();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

// A text that is split over pieces is encoded as one text. Special tokens count only in pieces that
// allow them, and never across the border to a user's text.
TEST(Tokenizer, PiecesAreOneText) {
  const auto encode = [](std::vector<TextPiece> pieces) { return *SmolLm2().EncodePieces(pieces); };
  EXPECT_EQ(encode({{"Hel", true}, {"lo, wor", false}, {"ld!", true}}),
            *SmolLm2().Encode("Hello, world!"));
  EXPECT_THAT(encode({{"<|im_end|>", true}}), ElementsAre(2));
  EXPECT_THAT(encode({{"<|im_", true}, {"end|>", true}}), ElementsAre(2));
  EXPECT_EQ(encode({{"<|im_end|>", false}}), *SmolLm2().Encode("<|im_end|>"));
  EXPECT_EQ(encode({{"<|im_", true}, {"end|>", false}}), *SmolLm2().Encode("<|im_end|>"));
  EXPECT_THAT(encode({}), ElementsAre());
  EXPECT_EQ(SmolLm2().FindSpecial("<|im_end|>"), 2);
  EXPECT_EQ(SmolLm2().FindSpecial("the"), -1);
}

TEST(Tokenizer, InvalidUtf8IsRefusedWithItsPlace) {
  for (const std::string bad : {"abc\xff", "abc\xc3", "abc\xed\xa0\x80", "abc\xc0\xaf"}) {
    const auto ids = SmolLm2().Encode(bad);
    EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(ids.status().message()), HasSubstr("at byte 3"));
  }
}

// A quadratic merge would take hours here.
TEST(Tokenizer, MegabyteWithoutASpace) {
  std::mt19937 random(7);
  std::string letters;
  for (int i = 0; i < 1 << 20; ++i) letters += static_cast<char>('a' + random() % 26);
  const std::string texts[] = {letters, std::string(1 << 20, 'a'), std::string(1 << 20, ' '),
                               std::string(1 << 20, '<'), std::string(1 << 20, '\n')};
  for (const std::string& text : texts) {
    const auto begin = std::chrono::steady_clock::now();
    const auto ids = SmolLm2().Encode(text, {.parse_special = true});
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(SmolLm2().Decode(*ids), text);
  }
}

// A tokenizer whose vocabulary is the bytes, and which normalises texts.
const Tokenizer& Normalising() {
  static const Tokenizer* tokenizer = [] {
    const auto bytes = testing::TinyGguf({.pretokenizer = "qwen2"});
    return new Tokenizer(*Tokenizer::Create(*(*ParseCheckpoint(bytes))->ReadTokenizer()));
  }();
  return *tokenizer;
}

void ExpectExactBound(const Tokenizer& tokenizer, const std::string& text) {
  EncodeOptions options{.parse_special = true, .add_special = true};
  const auto ids = tokenizer.Encode(text, options);
  ASSERT_TRUE(ids.ok()) << ids.status();
  options.max_tokens = ids->size();
  const auto fits = tokenizer.Encode(text, options);
  ASSERT_TRUE(fits.ok()) << fits.status();
  EXPECT_EQ(*fits, *ids);
  for (size_t less = 1; less <= ids->size(); less *= 2) {
    options.max_tokens = ids->size() - less;
    EXPECT_EQ(tokenizer.Encode(text, options).status().code(), absl::StatusCode::kOutOfRange);
  }
}

// A bound refuses exactly the texts with more tokens, and changes no ids.
TEST(Tokenizer, ABoundRefusesWhatHasMoreTokensAndNothingElse) {
  const std::string units[] = {" ",
                               "a",
                               "=",
                               "-",
                               "\n",
                               "the ",
                               "\t",
                               "7",
                               "<",
                               "\u00e9",
                               "\u4e2d",
                               "\U0001f600",
                               "\r\n",
                               "Zebra",
                               "*",
                               "_",
                               "e\u0301",
                               "<|im_end|>",
                               "\u1fbe\u0308\u0301"};
  for (const auto& test : testing::ReadJsonLines("smollm2/tokenize.jsonl")) {
    ExpectExactBound(SmolLm2(), test["text"].get<std::string>());
    ExpectExactBound(Normalising(), test["text"].get<std::string>());
  }
  for (uint32_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string text;
    for (uint32_t runs = 1 + random() % 8; runs > 0; --runs) {
      const std::string& unit = units[random() % std::size(units)];
      for (uint32_t i = 1 + random() % (random() % 4 == 0 ? 400 : 8); i > 0; --i) text += unit;
    }
    ExpectExactBound(SmolLm2(), text);
    ExpectExactBound(Normalising(), text);
  }
}

std::string Repeated(std::string_view unit, size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += unit;
  return text;
}

// The cost of a refused text depends on the bound, not on the length of the text. The test has 16
// kinds of long texts. The lower bound of tokens does not refuse the last one, so encoding has to
// stop.
TEST(Tokenizer, WhatIsTooLongIsNotEncoded) {
  constexpr size_t kBytes = 4 << 20, kBound = 2048;
  std::mt19937 random(7);
  std::string letters;
  while (letters.size() < kBytes) letters += static_cast<char>('a' + random() % 26);
  std::vector<std::string> texts = {letters};
  for (const std::string unit : {"a", " ", "7", "=", "<", "\n", "\n    ", "<|im_", "\u4e2d",
                                 "\U0001f600", "e\u0301", "the quick brown fox ", "a b ", "{\"}"}) {
    texts.push_back(Repeated(unit, kBytes));
  }
  texts.push_back(Repeated(" a", 40'000));  // 20,000 tokens
  for (const std::string& text : texts) {
    SCOPED_TRACE(text.substr(0, 20));
    const testing::AllocationCount count;
    const auto ids = SmolLm2().Encode(text, {.parse_special = true, .max_tokens = kBound});
    EXPECT_EQ(ids.status().code(), absl::StatusCode::kOutOfRange);
    EXPECT_LT(count.bytes(), 64u << 10);  // twice the ids that fit, and their growth
    // The text is normalised in parts of 64 KiB if the lower bound does not refuse it.
    const testing::AllocationCount normalising;
    EXPECT_EQ(Normalising().Encode(text, {.max_tokens = kBound}).status().code(),
              absl::StatusCode::kOutOfRange);
    EXPECT_LT(normalising.bytes(), 1u << 20);
    const TextPiece piece{text, false};
    EXPECT_EQ(SmolLm2().EncodePieces({&piece, 1}, {.max_tokens = kBound}).status().code(),
              absl::StatusCode::kOutOfRange);
  }
}

TEST(Tokenizer, BytesAndDecoding) {
  EXPECT_EQ(SmolLm2().TokenBytes(905), " world");
  EXPECT_EQ(SmolLm2().TokenBytes(2), "<|im_end|>");
  EXPECT_EQ(SmolLm2().TokenBytes(-1), "");
  EXPECT_EQ(SmolLm2().TokenBytes(1 << 30), "");
  EXPECT_TRUE(SmolLm2().IsSpecial(0));
  EXPECT_FALSE(SmolLm2().IsSpecial(905));
  EXPECT_FALSE(SmolLm2().IsSpecial(-5));
  EXPECT_EQ(SmolLm2().vocab_size(), 49152u);
  const TokenId ids[] = {1, 19556, 905, 2};
  EXPECT_EQ(SmolLm2().Decode(ids), "Hello world");
  EXPECT_EQ(SmolLm2().Decode(ids, /*skip_special=*/false), "<|im_start|>Hello world<|im_end|>");
}

TokenizerBundle Named(std::string_view pretokenizer) {
  TokenizerBundle bundle;
  bundle.pretokenizer = pretokenizer;
  return bundle;
}

// Each length of an added token costs a look-up at each place of a text.
TEST(Tokenizer, AddedTokensAreShort) {
  const std::vector<std::byte> file = testing::TinyGguf();
  TokenizerBundle bundle = *(*ParseCheckpoint(file))->ReadTokenizer();
  std::string& added = bundle.tokens[testing::kTinyEndOfText];
  added = std::string(256, 'x');
  EXPECT_TRUE(Tokenizer::Create(bundle).ok());
  added += 'x';
  EXPECT_THAT(std::string(Tokenizer::Create(bundle).status().message()),
              HasSubstr("the added token 0 has 257 bytes, not at most 256"));
}

TEST(Tokenizer, EveryPretokenizerSplitsAsPublished) {
  const auto split = [](std::string_view pre, std::string_view text) {
    std::vector<std::string> pieces;
    const auto made = Pretokenizer::Create(Named(pre));
    EXPECT_TRUE(made.ok()) << made.status();
    const auto keep = [&](std::string_view p) {
      pieces.emplace_back(p);
      return true;
    };
    EXPECT_TRUE(made->Split(text, keep).ok());
    return pieces;
  };
  EXPECT_THAT(split("gpt-2", "I'm 12  x\n"), ElementsAre("I", "'m", " 12", " ", " x", "\n"));
  EXPECT_THAT(split("smollm", "a 12  3x"), ElementsAre("a", " ", "1", "2", "  ", "3", "x"));
  EXPECT_THAT(split("llama-bpe", "I'M 12345\n\n(x)"),
              ElementsAre("I", "'M", " ", "123", "45", "\n\n", "(x", ")"));
  EXPECT_THAT(split("qwen2", "v12"), ElementsAre("v", "1", "2"));
  // U+180E is no white space.
  EXPECT_THAT(split("gpt-2", "a \u180e b"), ElementsAre("a", " \u180e", " b"));
  EXPECT_THAT(split("falcon", "a+1234.5"), ElementsAre("a", "+", "123", "4", ".", "5"));
  EXPECT_THAT(split("deepseek-v3", "12345\u4e00\u4e01b"),
              ElementsAre("123", "45", "\u4e00\u4e01", "b"));
  EXPECT_EQ(Pretokenizer::Create(Named("qwen2"))->Normalize("e\u0301"), "\u00e9");
  EXPECT_THAT(std::string(Pretokenizer::Create(Named("nosuch")).status().message()),
              HasSubstr("'nosuch' is not supported; supported: default, gpt-2, phi-2"));
}

TEST(Tokenizer, OtherKindsAreRefusedByName) {
  for (const char* kind : {"rwkv", "plamo2", ""}) {
    TokenizerBundle bundle;
    bundle.kind = kind;
    const absl::Status status = Tokenizer::Create(bundle).status();
    EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
    EXPECT_EQ(status.message(),
              absl::StrCat("tokenizer model '", kind,
                           "' is not supported; supported: bert, gpt2, llama, t5"));
  }
}

// Accents in any order are normalised as by ICU alone. A megabyte of accents takes little time; ICU
// alone took hours.
TEST(Tokenizer, LongRunsOfMarksAreNormalisedAsIcuWould) {
  const auto pre = Pretokenizer::Create(Named("qwen2"));
  ASSERT_TRUE(pre.ok());
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* nfc = icu::Normalizer2::getNFCInstance(error);
  ASSERT_TRUE(U_SUCCESS(error));
  // Marks below and above, some that decompose, starters that compose backwards, and others.
  const UChar32 characters[] = {0x301,  0x316,  0x327, 0x344, 0x345,  0xf73,   0xf81,
                                0x1161, 0x11a8, 0x9be, 0x94d, 0x20d0, 0x1d165, 0x340};
  const UChar32 bases[] = {'e', 0xe9, 0x1100, 0xac00, 0x9c7, 0x1ea5, ' '};
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    icu::UnicodeString text;
    for (int part = 0; part < 3; ++part) {
      text.append(bases[random() % std::size(bases)]);
      for (uint32_t i = random() % 300; i > 0; --i) {
        text.append(characters[random() % std::size(characters)]);
      }
    }
    std::string utf8, expected;
    text.toUTF8String(utf8);
    nfc->normalize(text, error).toUTF8String(expected);
    ASSERT_EQ(pre->Normalize(utf8), expected);
  }
  std::string marks;
  while (marks.size() < 1 << 20) marks += "\xcc\x81\xcc\x96";
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(pre->Normalize("e" + marks).size(), marks.size());  // one accent joins the e
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

// Returns the text of `bytes` by Unicode's table of well-formed sequences.
std::string LossyText(std::string_view bytes) {
  std::string out;
  for (size_t at = 0; at < bytes.size();) {
    const auto in = [&](size_t i, int low, int high) {
      const int b = at + i < bytes.size() ? static_cast<uint8_t>(bytes[at + i]) : -1;
      return b >= low && b <= high;
    };
    const int lead = static_cast<uint8_t>(bytes[at]);
    size_t need = 1, have = 1;
    if (in(0, 0xc2, 0xdf)) need = 2;
    if (in(0, 0xe0, 0xef)) need = 3;
    if (in(0, 0xf0, 0xf4)) need = 4;
    const int low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const int high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (need > 1 && in(1, low, high)) have = 2;
    while (have >= 2 && have < need && in(have, 0x80, 0xbf)) ++have;
    const bool whole = have == need && (need > 1 || lead < 0x80);
    out += whole ? bytes.substr(at, have) : kReplacementCharacter;
    at += have;
  }
  return out;
}

TEST(Detokenizer, StreamsEqualTheWholeText) {
  const auto file_bytes = testing::TinyGguf();
  const auto tokenizer = Tokenizer::Create(*(*ParseCheckpoint(file_bytes))->ReadTokenizer());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string characters[] = {"a",    "\u00e9",   "\u20ac", "\U0001f600",
                                    "\xff", "\xf0\x9f", "\xe2"};
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    std::string bytes;
    for (int i = 0; i < 30; ++i) {
      if (random() % 3 == 0) {
        bytes += static_cast<char>(random() % 256);
      } else {
        bytes += characters[random() % std::size(characters)];
      }
    }
    IncrementalDetokenizer stream(&*tokenizer);
    std::string text;
    size_t pushed = 0;
    for (const char byte : bytes) {
      const std::string part = stream.Push(testing::kTinyFirstByte + static_cast<uint8_t>(byte));
      EXPECT_EQ(FindInvalidUtf8(part), std::string_view::npos);
      text += part;
      ++pushed;
      // The detokenizer holds back at most the beginning of one character.
      ASSERT_LE(LossyText(std::string_view(bytes).substr(0, pushed)).size(), text.size() + 3);
    }
    text += stream.Flush();
    ASSERT_EQ(text, LossyText(bytes)) << "seed " << seed;
  }
}

TEST(Detokenizer, SpecialTokensEndACharacter) {
  const auto file_bytes = testing::TinyGguf();
  const auto tokenizer = Tokenizer::Create(*(*ParseCheckpoint(file_bytes))->ReadTokenizer());
  const TokenId half = testing::kTinyFirstByte + 0xc3;
  IncrementalDetokenizer quiet(&*tokenizer);
  EXPECT_EQ(quiet.Push(half), "");
  EXPECT_EQ(quiet.Push(testing::kTinyImEnd), "\ufffd");
  EXPECT_EQ(quiet.Push(100000), "");
  EXPECT_EQ(quiet.Flush(), "");
  IncrementalDetokenizer loud(&*tokenizer, /*skip_special=*/false);
  EXPECT_EQ(loud.Push(half), "");
  EXPECT_EQ(loud.Push(testing::kTinyImEnd), "\ufffd<|im_end|>");
}

// Control tokens may stand for bytes, and a file may call one what is no text.
TEST(Detokenizer, TheBytesOfSpecialTokensAreWholeCharacters) {
  auto bundle = testing::SentencePieces();
  const auto add = [&](std::string_view name, bool byte) {
    const auto id = static_cast<TokenId>(bundle.tokens.size());
    bundle.tokens.emplace_back(name);
    bundle.kinds.push_back(TokenKind::kControl);
    bundle.scores.push_back(0);
    bundle.added_rules.push_back({.id = id, .byte = byte});
    return id;
  };
  const TokenId half = add("<0xC3>", true), other_half = add("<0xA9>", true),
                no_text = add("\xff", false);
  const auto tokenizer = Tokenizer::Create(bundle);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  IncrementalDetokenizer loud(&*tokenizer, /*skip_special=*/false);
  EXPECT_EQ(loud.Push(half), "");
  EXPECT_EQ(loud.Push(other_half), "\u00e9");
  EXPECT_EQ(loud.Push(no_text), "\ufffd");
}

TEST(Tokenizer, CharactersMergeByTheScoreOfTheResult) {
  const auto tokenizer = Tokenizer::Create(testing::SentencePieces());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto texts = [&](std::string_view text) {
    std::vector<std::string> parts;
    for (const TokenId id : tokenizer->Encode(text).value_or(std::vector<TokenId>())) {
      parts.emplace_back(tokenizer->TokenBytes(id));
    }
    return parts;
  };
  EXPECT_THAT(texts("aab"), ElementsAre(" a", "ab"));
  EXPECT_THAT(texts("aaaab"), ElementsAre(" ", "aa", "a", "ab"));
  EXPECT_THAT(texts(" b"), ElementsAre(" ", " ", "b"));
  EXPECT_THAT(texts("x\u00e9"), ElementsAre(" ", "x\u00e9"));
  // Characters without a token are bytes.
  EXPECT_THAT(texts("\u00e9"), ElementsAre(" ", "\xc3", "\xa9"));
  EXPECT_THAT(texts("\u2581a"), ElementsAre(" ", " a"));
  EXPECT_THAT(texts("</s>"), ElementsAre(" ", "<", "/", "s", ">"));
  const auto special = tokenizer->Encode("a</s>a", {.parse_special = true, .add_special = true});
  EXPECT_THAT(*special, ElementsAre(1, testing::kFirstPiece + 2, 2, testing::kFirstPiece + 2));
}

TEST(Detokenizer, ATextLosesTheSpaceThatItGot) {
  const auto tokenizer = Tokenizer::Create(testing::SentencePieces());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const TokenId ids[] = {1, testing::kFirstPiece + 2, testing::kFirstPiece + 2};
  EXPECT_EQ(tokenizer->Decode(ids), "a a");
  IncrementalDetokenizer message(&*tokenizer, true, /*begins_text=*/true), rest(&*tokenizer);
  std::string text;
  for (const TokenId id : ids) text += message.Push(id);
  EXPECT_EQ(text, "a a");
  EXPECT_EQ(rest.Push(testing::kFirstPiece + 2), " a");
}

TEST(Tokenizer, AContradictionInAVocabularyOfCharactersIsRefused) {
  const auto refusal = [](auto change) {
    TokenizerBundle bundle = testing::SentencePieces();
    change(bundle);
    return std::string(Tokenizer::Create(bundle).status().message());
  };
  EXPECT_EQ(refusal([](auto&) {}), "");
  EXPECT_THAT(refusal([](auto& b) { b.scores[5] = std::nanf(""); }), HasSubstr("not a number"));
  EXPECT_THAT(refusal([](auto& b) { b.scores.pop_back(); }), HasSubstr("scores"));
  EXPECT_THAT(refusal([](auto& b) { b.tokens[9] = "<0xZZ>"; }), HasSubstr("token 9"));
  EXPECT_THAT(refusal([](auto& b) { b.merges = {"a nosuch"}; }), HasSubstr("merge rule 0"));
  // Rules are made of all its cuts.
  EXPECT_THAT(refusal([](auto& b) { b.tokens.back() = std::string(513, 'a'); }),
              HasSubstr("has 513 bytes, not at most 512"));
}

// A text without spaces that repeats itself is one word. Its time grows with its length.
TEST(Tokenizer, ALongWordOfCharactersTakesLittleTime) {
  const auto tokenizer = Tokenizer::Create(testing::SentencePieces());
  const auto begin = std::chrono::steady_clock::now();
  const auto ids = tokenizer->Encode(std::string(1 << 20, 'a'));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("1 MiB of one word: %.2f s\n", took.count());
  EXPECT_EQ(ids->size(), (1u << 19) + 1);
  EXPECT_LT(took.count(), 10);  // measured at a tenth of it; what is quadratic takes an hour
}

TEST(Tokenizer, LoadTime) {
  const auto file = OpenCheckpoint(testing::ModelPath());
  ASSERT_TRUE(file.ok()) << file.status();
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(Tokenizer::Create(*(*file)->ReadTokenizer()).ok());
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  std::printf("49,152 tokens loaded in %.1f ms\n", took.count());
  // Measured at 16 ms; a second would mean that something became quadratic.
  EXPECT_LT(took.count(), 1000);
}

}  // namespace
}  // namespace flotilla::model

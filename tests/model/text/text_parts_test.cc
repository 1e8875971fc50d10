// The parts of tokenizers with files that nobody trained, and with long texts. What ordinary files
// mean is compared with the reference tokenizers in tests/model/tokenizers.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/types/text.h"
#include "model/huggingface/sentencepiece_model.h"
#include "model/text/character_map.h"
#include "model/text/detokenizer.h"
#include "model/text/normalizer.h"
#include "model/text/pattern.h"
#include "model/text/piece_model.h"
#include "model/text/splitter.h"
#include "model/text/token_text.h"
#include "model/text/tokenizer.h"
#include "model/text/utf8.h"
#include "tests/support/random.h"

namespace flotilla::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = TextStep::Kind;

const std::string kMark = "\xe2\x96\x81";

std::string Message(const absl::Status& status) { return std::string(status.message()); }

std::string U32(uint32_t value) {
  std::string bytes;
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>(value >> 8 * i);
  return bytes;
}

// What a Unigram tokenizer makes of a text without looking at its parts.
std::vector<TokenId> BestCut(std::span<const std::string_view> texts,
                             std::span<const double> scores, const std::string& text) {
  struct Best {
    double sum = -std::numeric_limits<double>::infinity();
    size_t begin = 0;
    TokenId id = 0;  // of the last token; 0: a foreign character
  };
  std::vector<Best> best(text.size() + 1);
  best[0].sum = 0;
  const double foreign = *std::ranges::min_element(scores) - 10;
  for (size_t at = 0; at < text.size(); ++at) {
    const auto offer = [&](size_t end, double score, TokenId id) {
      if (best[at].sum + score > best[end].sum) best[end] = {best[at].sum + score, at, id};
    };
    bool known = false;
    for (size_t id = 1; id < texts.size(); ++id) {
      if (std::string_view(text).substr(at).starts_with(texts[id])) {
        offer(at + texts[id].size(), scores[id], static_cast<TokenId>(id));
        known = known || texts[id].size() == 1;
      }
    }
    if (!known) offer(at + 1, foreign, 0);
  }
  std::vector<TokenId> ids;
  for (size_t end = text.size(), last = end; end > 0; last = end) {
    const TokenId id = best[end].id;
    end = best[end].begin;
    while (id == 0 && end > 0 && best[end].id == 0) end = best[end].begin;
    // Foreign characters that follow each other may be a token after all.
    const auto all = std::ranges::find(texts, std::string_view(text).substr(end, last - end));
    ids.push_back(all == texts.end() ? 0 : static_cast<TokenId>(all - texts.begin()));
  }
  std::ranges::reverse(ids);
  return ids;
}

// A long piece is cut where all ways meet, but not between foreign characters, which are one token.
TEST(Unigram, LongPiecesAreCutAtBest) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> tokens = {"?", "a", "b"};  // 'c' and 'd' are foreign alone
    while (tokens.size() < 12) {
      std::string token;
      for (size_t size = 2 + random() % 5; token.size() < size;) token += "abcd"[random() % 4];
      if (std::ranges::find(tokens, token) == tokens.end()) tokens.push_back(token);
    }
    std::vector<std::string_view> texts(tokens.begin(), tokens.end());
    texts[0] = {};
    std::vector<double> scores = {0};
    while (scores.size() < texts.size()) scores.push_back(-1.0 - random() % 1000 / 256.0);
    std::array<TokenId, 256> no_bytes;
    no_bytes.fill(-1);
    const auto model =
        MakeUnigram({.texts = texts, .bytes = no_bytes, .unknown = 0, .scores = scores});
    ASSERT_TRUE(model.ok()) << model.status();
    std::string text;
    const auto foreign = 1 + random() % 60;  // one of as many characters is foreign
    while (text.size() < 3000) {
      text += random() % foreign == 0 ? "cd"[random() % 2] : "ab"[random() % 2];
    }
    // No place of a run of a token that overlaps itself is cut.
    text.insert(1000, std::string(1500, round % 2 == 0 ? 'c' : 'a'));
    std::vector<TokenId> ids;
    (*model)->Encode(text, ids);
    ASSERT_EQ(ids, BestCut(texts, scores, text)) << round;
  }
}

TEST(CharacterMap, BytesThatAreNoMapAreRefused) {
  const auto refusal = [](const std::string& bytes) {
    return Message(CharacterMap::Create(bytes).status());
  };
  EXPECT_THAT(refusal("abc"), HasSubstr("has 3 bytes, not at least 4"));
  EXPECT_THAT(refusal(U32(0)), HasSubstr("an array of 0 bytes"));
  EXPECT_THAT(refusal(U32(6) + "abcdef"), HasSubstr("an array of 6 bytes"));
  EXPECT_THAT(refusal(U32(8) + U32(0)), HasSubstr("(wanted: a multiple of 4 up to 4)"));
  EXPECT_THAT(refusal(U32(4) + U32(0) + "\xff"), HasSubstr("not UTF-8 at byte 8"));
}

// Arrays of random units: whatever they say, a text stays UTF-8 and takes no time.
TEST(CharacterMap, NoArrayLeadsOutside) {
  size_t found = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string units;
    for (uint32_t i = 0; i < 256; ++i) {
      // A leaf, or a child where it lies with any offset. The first byte counts from unit 0.
      const uint32_t child = i | (random() % 2) << 8 | (random() % 300) << 10;
      units += U32(i == 0 ? 0 : random() % 3 == 0 ? 1u << 31 | random() % 8 : child);
    }
    const std::string bytes =
        U32(static_cast<uint32_t>(units.size())) + units + std::string("x\0\xc3\xa9\0", 5);
    for (const uint32_t flags : {0u, uint32_t{TextStep::kLongest}}) {
      const TextStep step{.kind = Kind::kPrecompiled, .flags = flags, .text = bytes};
      const auto normalizer = Normalizer::Create({&step, 1});
      ASSERT_TRUE(normalizer.ok()) << normalizer.status();
      std::string text = "abc \xc3\xa9\xe4\xb8\xad\xcc\x81 z";
      const std::string before = text;
      bool keeps_begin = false;
      if (!normalizer->Apply(text, keeps_begin).ok()) continue;
      EXPECT_EQ(FindInvalidUtf8(text), std::string::npos);
      found += text != before;
    }
  }
  EXPECT_GT(found, 10u);
}

// An array whose walk never ends: each "a" leads back to the same unit.
TEST(CharacterMap, AWalkInCirclesEnds) {
  std::vector<uint32_t> units(256, 0);
  units['a'] = 'a' | ('a' << 10);  // 'a' ^ 'a' is where the next byte counts from
  units[0] = 0;
  std::string packed;
  for (const uint32_t unit : units) packed += U32(unit);
  const auto map = CharacterMap::Create(U32(static_cast<uint32_t>(packed.size())) + packed);
  ASSERT_TRUE(map.ok());
  const std::string text(1 << 20, 'a');
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(map->Find(text, /*longest=*/true).has_value());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
}

// The parts that a pattern of a tokenizer.json splits a text into, or why it is refused.
std::string SplitBy(std::string_view expression, std::string_view text) {
  const auto pattern = Pattern::Regex(expression);
  if (!pattern.ok()) return Message(pattern.status());
  std::string parts;
  const auto split = pattern->Split(text, [&](std::string_view part, bool matches) {
    parts +=
        (parts.empty() ? "" : " ") + (matches ? "<" + std::string(part) + ">" : std::string(part));
    return true;
  });
  return split.ok() ? parts : Message(split.status());
}

TEST(Pattern, AClassInAClassStandsForItsMembers) {
  EXPECT_EQ(SplitBy(" ?[^(\\s|[.,!])]+", "one (two), x|y"), "<one>  ( <two> ), < x> | <y>");
  EXPECT_EQ(SplitBy("[a-c[x[.-]]-]+", "ab-.wxz"), "<ab-.> w <x> z");
  EXPECT_EQ(SplitBy("[]a]", "a]b"), "<a> <]> b");
  EXPECT_EQ(SplitBy("[[a]-z]", "a-z"), "<a> <-> <z>");
  EXPECT_THAT(SplitBy("[a[^b]]", ""), HasSubstr("has a negated class in a class"));
  EXPECT_THAT(SplitBy("[a&&[b]]", ""), HasSubstr("has an intersection of classes"));
  EXPECT_THAT(SplitBy("[[:alpha:]]", ""), HasSubstr("has [: in a class"));
  EXPECT_THAT(SplitBy("[\\d-z]", ""), HasSubstr("has a range that begins with a set"));
  EXPECT_THAT(SplitBy("[+-\\d]", ""), HasSubstr("has a range that ends with a set"));
  EXPECT_THAT(SplitBy("[a[b]", ""), HasSubstr("ends in a class"));
  EXPECT_THAT(SplitBy(std::string(100000, '['), ""), HasSubstr("too many classes in each other"));
}

TEST(Pattern, MeansWhatOnigurumaReads) {
  EXPECT_EQ(SplitBy("^a", "aa\na"), "<a> a\n <a>");
  EXPECT_EQ(SplitBy("a$", "aa\na"), "a <a> \n <a>");
  EXPECT_EQ(SplitBy("\\s+$", "a \n b "), "a < > \n b < >");
  EXPECT_EQ(SplitBy(".+", "a\nb"), "<a> \n <b>");
  EXPECT_EQ(SplitBy("(?m).+", "a\nb"), "<a\nb>");
  EXPECT_EQ(SplitBy("(?m:.)(?-m:.)", "a\nb"), "a <\nb>");
  EXPECT_EQ(SplitBy("(?:a(?i)b|c)d", "aBd aCd cd"), "<aBd>   <aCd>  cd");
  EXPECT_EQ(SplitBy("ba{,2}", "baaab"), "<baa> a <b>");
  EXPECT_EQ(SplitBy("a{,}", "a{,}a{1"), "<a{,}> a{1");
  EXPECT_EQ(SplitBy("a(?#\\)[)b", "ab"), "<ab>");
  EXPECT_EQ(SplitBy("\\p{Katakana}", "\u30a1\u30fc"), "<\u30a1> \u30fc");  // U+30FC is Common
  EXPECT_EQ(SplitBy("\\p{^Han}\\P{L}", "\u4e00a1"), "\u4e00 <a1>");
}

TEST(Pattern, WhatOnigurumaLacksOrReadsOtherwiseIsRefusedByName) {
  for (const char* what :
       {"(?s", "(?R", "(?C", "(?|", "(?x", "(?i-m-", "(?P", "(?(", "(?&", "(?+", "(?1", "(?'", "(*",
        "\\p{L&}", "\\p{Xan}", "\\p{Letter}", "\\P{}", "\\w", "\\1"}) {
    EXPECT_THAT(SplitBy("b|" + std::string(what) + "a)", ""), HasSubstr(Cat(" has ", what)));
  }
  EXPECT_THAT(SplitBy("a(?" + std::string(1000, 'i') + ")b", ""), HasSubstr("has (?iiiiiiiii"));
  EXPECT_THAT(SplitBy("\\pL", ""), HasSubstr("has \\p"));
  EXPECT_THAT(SplitBy("a{2}+", ""), HasSubstr("has + behind an interval"));
  EXPECT_THAT(SplitBy("a{2}?", ""), HasSubstr("has ? behind a number of times"));
  EXPECT_THAT(SplitBy("^*a", ""), HasSubstr("has a repeated ^ or $"));
  for (const char* ends : {"a(?#", "a(?#\\", "a(?i", "a\\", "[a"}) {
    EXPECT_THAT(SplitBy(ends, ""), HasSubstr("ends"));
  }
  for (const char* wrong : {"(a", "a)", "(?i:a", "a(?i))"}) {
    EXPECT_THAT(SplitBy(wrong, ""), HasSubstr("is no regular expression"));
  }
}

// Such a match would be no part of a text.
TEST(Pattern, AMatchIsNeverEmpty) {
  for (const std::string empty :
       {"", "a*", "^", "$", "(?:)", "x{0}", "a{,2}", "a|", "(?=a)", "(?<=a)"}) {
    EXPECT_EQ(SplitBy(empty, "a"), Cat("the pattern '", empty, "' may match the empty text"));
  }
  EXPECT_EQ(SplitBy("(?=a)a", "a"), "<a>");
}

// A group that repeats needs memory for each time.
TEST(Pattern, LongWordsAreSplitInEveryThread) {
  const std::string word(200'000, 'a');
  const auto pattern = Pattern::Regex("(?:\\p{L}|\\p{N})+");
  ASSERT_TRUE(pattern.ok());
  std::array<size_t, 4> longest{};
  std::vector<std::thread> threads;
  for (size_t& own : longest) {
    threads.emplace_back([&] {
      const auto split = pattern->Split(word, [&](std::string_view part, bool matches) {
        if (matches) own = part.size();
        return true;
      });
      EXPECT_TRUE(split.ok()) << split.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(longest, ElementsAre(200'000, 200'000, 200'000, 200'000));
}

// The pattern of a file sees a part of the text at once. The parts are those of the whole text.
TEST(Pattern, PartsDoNotDependOnWindows) {
  const char* const kPatterns[] = {
      "\\p{L}+|\\p{N}{1,3}", "[^a]+?b", "a(?=.*z)",         "a(?!b)| $", "(?:ab|a)+b?",
      " +(?! )| +",          "c.{130}", "\\p{Lu}*\\p{Ll}+", "(?<=ab)c",  "(?i)abA+"};
  testing::Random random(7);
  for (const char* expression : kPatterns) {
    const auto whole = Pattern::Pcre2(expression), windows = Pattern::Regex(expression);
    ASSERT_TRUE(whole.ok() && windows.ok()) << expression;
    for (int round = 0; round < 200; ++round) {
      std::string text;
      while (text.size() < 700) {
        static constexpr const char* kPieces[] = {"a", "b", "c",      "A",     "z",
                                                  " ", "1", "\u00e9", "\u4e00"};
        const char* const piece = kPieces[random.Int(0, std::size(kPieces) - 1)];
        for (int n = random.Int(0, 4) > 0 ? 1 : random.Int(1, 300); n > 0; --n) text += piece;
      }
      const auto parts_of = [&](const Pattern& pattern) {
        std::vector<std::pair<std::string, bool>> parts;
        const auto split = pattern.Split(text, [&](std::string_view part, bool matches) {
          parts.emplace_back(part, matches);
          return true;
        });
        EXPECT_TRUE(split.ok()) << split.status();
        return parts;
      };
      ASSERT_EQ(parts_of(*whole), parts_of(*windows)) << expression << "\n" << text;
    }
  }
}

// Each look-ahead reads the whole rest, in one match after the other, or in each step of one match.
TEST(Pattern, ATextHasABoundOfProcessorTime) {
  const std::string text = std::string(399'999, 'a') + "b";
  for (const auto& [quadratic, refusal] :
       {std::pair("a(?=.*z)|a", " of 400000: the pattern takes more than 4 us"),
        std::pair("(?:a(?=.*z|.))*b", "splitting the text stopped at byte 0")}) {
    const std::clock_t begin = std::clock();
    EXPECT_THAT(SplitBy(quadratic, text), HasSubstr(refusal)) << quadratic;
    EXPECT_LT(std::clock() - begin, 10 * CLOCKS_PER_SEC);
  }
  // One match that goes back over a megabyte is quick.
  EXPECT_EQ(SplitBy("[a-z]*[a-y]+|z+", std::string(1 << 20, 'z')).size(), (1 << 20) + 2);
  EXPECT_EQ(SplitBy("[a-z]*?1", std::string(1 << 20, 'z') + "1").size(), (1 << 20) + 3);
}

TEST(Normalizer, TextsDoNotGrowWithoutBound) {
  const TextStep grow{.kind = Kind::kReplace, .pattern = "a", .text = std::string(200, 'a')};
  const std::vector<TextStep> steps(8, grow);
  const auto normalizer = Normalizer::Create(steps);
  ASSERT_TRUE(normalizer.ok());
  std::string text(1000, 'a');
  bool keeps_begin = true;
  EXPECT_THAT(Message(normalizer->Apply(text, keeps_begin)), HasSubstr("longer than 36096 bytes"));
  const std::vector<TextStep> many(17, grow);
  EXPECT_THAT(Message(Normalizer::Create(many).status()), HasSubstr("17 steps, not at most 16"));
  const TextStep wide{.kind = Kind::kPrepend, .text = std::string(257, 'a')};
  EXPECT_THAT(Message(Normalizer::Create({&wide, 1}).status()), HasSubstr("puts 257 bytes"));
  const TextStep splits{.kind = Kind::kDigits};
  EXPECT_TRUE(absl::IsUnimplemented(Normalizer::Create({&splits, 1}).status()));
}

TEST(Normalizer, WhiteSpaceAsSentencePieceHasIt) {
  const auto apply = [](uint32_t flags, std::string text) {
    const TextStep step{.kind = Kind::kSentencePiece, .flags = flags};
    bool keeps_begin = true;
    EXPECT_TRUE(Normalizer::Create({&step, 1})->Apply(text, keeps_begin).ok());
    std::string shown;
    for (size_t at = 0; at < text.size(); ++at) {
      if (text.compare(at, 3, kMark) == 0) {
        shown += '_';
        at += 2;
      } else {
        shown += text[at];
      }
    }
    return shown;
  };
  EXPECT_EQ(apply(0, " a  b "), "_a__b_");
  EXPECT_EQ(apply(TextStep::kSpaceFirst, " a  b "), "__a__b_");
  EXPECT_EQ(apply(TextStep::kExtraSpaces, "  a  b "), "a_b");
  EXPECT_EQ(apply(TextStep::kExtraSpaces | TextStep::kSpaceFirst, "  a  b "), "_a_b");
  EXPECT_EQ(apply(TextStep::kExtraSpaces | TextStep::kSpaceBehind, "  a  b "), "a_b_");
  EXPECT_EQ(apply(TextStep::kExtraSpaces | TextStep::kSpaceFirst, "   "), "");
}

TEST(TokenText, WhatNeedsManyTokensIsRefused) {
  const std::vector<TextStep> replaces = {{.kind = Kind::kFuse},
                                          {.kind = Kind::kReplace, .pattern = "a", .text = "b"}};
  EXPECT_THAT(Message(TokenText::Create(replaces).status()), HasSubstr("behind Fuse"));
  const TextStep changes{.kind = Kind::kNfc};
  EXPECT_TRUE(absl::IsUnimplemented(TokenText::Create({&changes, 1}).status()));
}

TEST(TokenText, TokensDoNotGrowWithoutBound) {
  const TextStep grow{.kind = Kind::kReplace, .pattern = "a", .text = std::string(200, 'a')};
  const std::vector<TextStep> steps(8, grow);
  const auto decoder = TokenText::Create(steps);
  ASSERT_TRUE(decoder.ok()) << decoder.status();
  EXPECT_THAT(Message(decoder->Of("a", true).status()), HasSubstr("of 1 bytes longer than 4128"));
  const TextStep wide{.kind = Kind::kReplace, .pattern = "a", .text = std::string(257, 'a')};
  EXPECT_THAT(Message(TokenText::Create({&wide, 1}).status()), HasSubstr("puts 257 bytes"));
  // Many marks in one token are one walk through it.
  const TextStep marks{.kind = Kind::kMetaspace};
  const auto spaces = TokenText::Create({&marks, 1});
  std::string many;
  for (int i = 0; i < 1 << 18; ++i) many += kMark;
  const std::clock_t begin = std::clock();
  EXPECT_EQ(spaces->Of(many, false).value_or(""), std::string(1 << 18, ' '));
  EXPECT_LT(std::clock() - begin, CLOCKS_PER_SEC);
}

// Each prompt would have twice the bytes with each step.
TEST(Splitter, TwoStepsAreByteLevelAtMost) {
  std::vector<TextStep> steps(2, {.kind = Kind::kByteLevel});
  EXPECT_TRUE(Splitter::Create(steps).ok());
  steps.push_back(steps[0]);
  EXPECT_THAT(Message(Splitter::Create(steps).status()),
              HasSubstr("more than two steps ByteLevel"));
}

// "_a", "b", "ab" and more, with <unk>, </s> and a token that is added.
TokenizerBundle Pieces(std::string_view kind) {
  TokenizerBundle bundle;
  bundle.kind = kind;
  bundle.tokens = {"<unk>", "</s>", "<x>", kMark + "a", "b", "ab", "a", "##b", "##ab", kMark};
  bundle.kinds.assign(bundle.tokens.size(), TokenKind::kNormal);
  bundle.kinds[0] = TokenKind::kUnknown;
  bundle.kinds[1] = TokenKind::kControl;
  bundle.kinds[2] = TokenKind::kUserDefined;
  bundle.scores = {0, 0, 0, -1, -2, -3, -3.5, -9, -9, -1};
  bundle.unknown = 0;
  bundle.suffix = {1};
  bundle.word_prefix = "##";
  bundle.max_word_characters = 100;
  TextSteps& steps = bundle.steps.emplace();
  if (kind == "t5") {
    steps.pre_tokenizer = {
        {.kind = Kind::kMetaspace, .flags = TextStep::kSpaceAlways | TextStep::kEach}};
    steps.decoder = {{.kind = Kind::kMetaspace, .flags = TextStep::kSpaceAlways}};
  } else {
    steps.pre_tokenizer = {{.kind = Kind::kWhitespaceSplit}};
    steps.decoder = {{.kind = Kind::kWordPiece, .pattern = "##"}};
  }
  return bundle;
}

TEST(PieceModels, FindTheBestTokens) {
  const auto unigram = Tokenizer::Create(Pieces("t5"));
  ASSERT_TRUE(unigram.ok()) << unigram.status();
  EXPECT_THAT(*unigram->Encode("abab b"), ElementsAre(3, 4, 5, 9, 4));  // -1 -2 -3, -1 -2
  EXPECT_THAT(*unigram->Encode("a", {.add_special = true}), ElementsAre(3, 1));
  // What no token has is one token, however long, and control tokens in text are text.
  EXPECT_THAT(*unigram->Encode("axyzb"), ElementsAre(3, 0, 4));
  EXPECT_THAT(*unigram->Encode("a</s>"), ElementsAre(3, 0));
  EXPECT_THAT(*unigram->Encode("a</s>", {.parse_special = true}), ElementsAre(3, 1));
  EXPECT_THAT(*unigram->Encode("a<x>b"), ElementsAre(3, 2, 9, 4));
  EXPECT_EQ(unigram->Encode("abab b", {.max_tokens = 4}).status().code(),
            absl::StatusCode::kOutOfRange);
  const std::vector<TokenId> ids = {3, 4, 9, 4};
  EXPECT_EQ(unigram->Decode(ids), "ab b");
  IncrementalDetokenizer goes_on(&*unigram);  // a completion does not begin a text
  EXPECT_EQ(goes_on.Push(3), " a");

  // An unknown character costs 10 more than the worst token: "_ab" has -3, "_a" and "b" 5 - 13.
  TokenizerBundle dear = Pieces("t5");
  dear.tokens[4] = dear.tokens[7] = dear.tokens[8] = dear.tokens[9] = "zz";
  dear.scores = {0, 0, 0, 5, -2, -3, 5, -2, -2, -2};
  dear.tokens[5] = kMark + "ab";
  EXPECT_THAT(*Tokenizer::Create(dear)->Encode("ab"), ElementsAre(5));

  const auto word_piece = Tokenizer::Create(Pieces("bert"));
  ASSERT_TRUE(word_piece.ok()) << word_piece.status();
  EXPECT_THAT(*word_piece->Encode("abab a b ac aabb"), ElementsAre(5, 8, 6, 4, 0, 6, 8, 7));
  EXPECT_THAT(*word_piece->Encode(std::string(101, 'b')), ElementsAre(0));
  EXPECT_EQ(word_piece->Encode(std::string(100, 'b'))->size(), 100u);
  const std::vector<TokenId> words = {5, 8, 6, 4};
  EXPECT_EQ(word_piece->Decode(words), "abab a b");
}

// Each space is a token that takes the white space in front of it. If it looked at what other
// tokens have taken, a text of spaces would take minutes.
TEST(PieceModels, AddedTokensOfWhiteSpaceTakeLittleTime) {
  TokenizerBundle bundle = Pieces("bert");
  bundle.tokens[2] = " ";
  bundle.added_rules = {{.id = 2, .strips_left = true}};
  const auto tokenizer = Tokenizer::Create(bundle);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*tokenizer->Encode("a\t  b"), ElementsAre(6, 2, 2, 4));
  const std::clock_t begin = std::clock();
  EXPECT_EQ(tokenizer->Encode(std::string(200'000, ' '))->size(), 200'000u);
  EXPECT_LT(std::clock() - begin, 5 * CLOCKS_PER_SEC);
}

// The template's control tokens count wherever its text is, and a user's never do: neither written
// out, nor made by the normalizer, nor by the model.
TEST(PieceModels, UsersWriteNoControlTokens) {
  TokenizerBundle bundle = Pieces("bert");
  bundle.tokens[1] = "AB";
  bundle.added_rules = {{.id = 1, .in_model = true, .normalized = true}};
  const auto pieces = [&](const std::string& front, const std::string& user) {
    const auto tokenizer = Tokenizer::Create(bundle);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return *tokenizer->EncodePieces(
        std::vector<TextPiece>{{.text = front, .special_allowed = true}, {.text = user}});
  };
  EXPECT_THAT(pieces("AB", " AB AB"), ElementsAre(1, 0, 0));
  EXPECT_THAT(pieces("AB AB", " "), ElementsAre(1, 1));
  EXPECT_THAT(pieces("A", "B"), ElementsAre(0));  // the text of both is the user's, too
  bundle.steps->normalizer = {{.kind = Kind::kLowercase}};
  bundle.tokens[5] = "unused";
  EXPECT_THAT(pieces("AB ", "AB ab"), ElementsAre(1, 6, 7, 6, 7));
  EXPECT_THAT(pieces("AB", ""), ElementsAre(1));
}

TEST(PieceModels, VocabulariesThatContradictThemselvesAreRefused) {
  TokenizerBundle bundle = Pieces("t5");
  bundle.scores.pop_back();
  EXPECT_THAT(Message(Tokenizer::Create(bundle).status()), HasSubstr("10 tokens and 9 scores"));
  bundle.scores.push_back(std::numeric_limits<double>::infinity());
  EXPECT_THAT(Message(Tokenizer::Create(bundle).status()), HasSubstr("not a finite number"));
  bundle = Pieces("bert");
  bundle.tokens[5] = std::string(513, 'a');
  EXPECT_THAT(Message(Tokenizer::Create(bundle).status()), HasSubstr("token 5 has 513 bytes"));
  bundle.steps.reset();
  EXPECT_THAT(Message(Tokenizer::Create(bundle).status()), HasSubstr("'bert' has no steps"));
}

// A token's text has a bound of time; that of all of them has one, too.
TEST(PieceModels, PatternsOfAFileTakeLittleTimeForItsTokens) {
  TokenizerBundle bundle = Pieces("t5");
  bundle.steps->decoder = {
      {.kind = Kind::kReplace, .flags = TextStep::kRegex, .pattern = "(?:a|a)+[bc]", .text = "x"}};
  const auto refusal = [&] {
    const std::clock_t begin = std::clock();
    const std::string message = Message(Tokenizer::Create(bundle).status());
    EXPECT_LT(std::clock() - begin, 10 * CLOCKS_PER_SEC);
    return message;
  };
  EXPECT_EQ(refusal(), "");
  for (int i = 0; i < 20'000; ++i) {
    bundle.tokens.push_back(absl::StrCat(std::string(60, 'a'), i));
    bundle.kinds.push_back(TokenKind::kNormal);
    bundle.scores.push_back(-10);
  }
  EXPECT_THAT(refusal(), HasSubstr("more than 300 ms for its own tokens"));
}

TEST(PieceModels, NormalFormsOfAddedTokensAreShort) {
  TokenizerBundle bundle = Pieces("t5");
  bundle.steps->normalizer = {
      {.kind = Kind::kReplace, .pattern = "a", .text = std::string(200, 'a')}};
  bundle.added_rules = {{.id = 2, .normalized = true}};
  EXPECT_EQ(Message(Tokenizer::Create(bundle).status()), "");
  for (const char* text : {"aa", "a"}) {
    bundle.tokens[2] = text == std::string("aa") ? text : std::string(257, 'x');
    EXPECT_THAT(Message(Tokenizer::Create(bundle).status()), HasSubstr("not at most 256"));
  }
}

// Quadratic work would take hours here.
TEST(PieceModels, MegabyteWithoutASpace) {
  for (const char* kind : {"t5", "bert"}) {
    TokenizerBundle bundle = Pieces(kind);
    bundle.max_word_characters = 1 << 30;
    const auto tokenizer = Tokenizer::Create(bundle);
    ASSERT_TRUE(tokenizer.ok());
    for (const std::string unit : {"a", "ab", "b", "\xe4\xb8\xad"}) {
      std::string text;
      while (text.size() < 1 << 20) text += unit;
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_TRUE(tokenizer->Encode(text).ok());
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
    }
  }
}

// A message of a protobuf that is cut anywhere, or changed anywhere, is read without harm.
TEST(SentencePieceModel, MutationsDoNoHarm) {
  const std::string piece = std::string("\x0a\x08\x0a\x01", 4) + "a" + "\x15" + U32(0xbf800000);
  const std::string model = piece + piece + std::string("\x12\x02\x18\x02", 4);
  ASSERT_TRUE(ReadSentencePieceModel(model).ok());
  EXPECT_THAT(ReadSentencePieceModel(model)->scores, ElementsAre(-1, -1));
  for (size_t at = 0; at < model.size(); ++at) {
    static_cast<void>(ReadSentencePieceModel(model.substr(0, at)));
    for (int byte = 0; byte < 256; ++byte) {
      std::string changed = model;
      changed[at] = static_cast<char>(byte);
      const auto read = ReadSentencePieceModel(changed);
      if (read.ok()) static_cast<void>(Tokenizer::Create(*read));
    }
  }
}

}  // namespace
}  // namespace flotilla::model

#include "worker/constraint/vocabulary.h"

#include <algorithm>

#include "model/checkpoint.h"
#include "tests/support/test_model.h"
#include "tests/support/tiny_gguf.h"
#include "tests/worker/constraint/small_vocabulary.h"

namespace flotilla::worker {
namespace {

TEST(ConstraintVocabulary, HasTheBytesOfTextAndTheEnds) {
  const auto checkpoint = model::OpenCheckpoint(testing::ModelPath());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const TokenizerBundle bundle = *(*checkpoint)->ReadTokenizer();
  const auto vocabulary = ReadConstraintVocabulary(bundle);
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
  ASSERT_EQ(vocabulary->tokens.size(), 49152u);
  EXPECT_EQ(vocabulary->stops, (std::vector<TokenId>{0, 2}));  // <|endoftext|>, <|im_end|>
  EXPECT_EQ(vocabulary->tokens[1], "");                        // <|im_start|>
  ASSERT_FALSE(vocabulary->controls.empty());
  EXPECT_EQ(vocabulary->controls[0], 1);
  EXPECT_EQ(std::ranges::count(vocabulary->controls, 2), 0);
  EXPECT_GE(TokenOf(*vocabulary, " the"), 0);
  EXPECT_GE(TokenOf(*vocabulary, "\n"), 0);
  EXPECT_GE(TokenOf(*vocabulary, "\xe2\x80"), 0);  // a part of a character
  EXPECT_TRUE(GrammarVocabulary::Create(*vocabulary).ok());
}

TEST(ConstraintVocabulary, ReadsBytesOfSentencePieces) {
  TokenizerBundle bundle;
  bundle.kind = "llama";
  bundle.tokens = {"<unk>",
                   "<s>",
                   "</s>",
                   "<0x0A>",
                   "\xe2\x96\x81",
                   "a",
                   "\xe2\x96\x81"
                   "a",
                   "<pad>"};
  bundle.kinds = {TokenKind::kUnknown, TokenKind::kControl, TokenKind::kControl,
                  TokenKind::kByte,    TokenKind::kNormal,  TokenKind::kNormal,
                  TokenKind::kNormal,  TokenKind::kUnused};
  bundle.scores = {0, 0, 0, 0, -1, -2, -3, 0};
  bundle.eos = 2;
  const auto vocabulary = ReadConstraintVocabulary(bundle);
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
  EXPECT_EQ(vocabulary->tokens, (std::vector<std::string>{"", "", "", "\n", " ", "a", " a", ""}));
  EXPECT_EQ(vocabulary->stops, std::vector<TokenId>{2});
  EXPECT_EQ(vocabulary->controls, std::vector<TokenId>{1});
}

}  // namespace
}  // namespace flotilla::worker

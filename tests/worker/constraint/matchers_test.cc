// Which matchers go on, are rolled back, copied, rebuilt and dropped.
#include "worker/constraint/matchers.h"

#include "tests/worker/constraint/small_vocabulary.h"

namespace flotilla::worker {
namespace {

class MatchersTest : public ::testing::Test {
 protected:
  std::shared_ptr<const Grammar> Compile(const std::string& grammar) {
    const auto compiled =
        CompileConstraint({Constraint::Kind::kGrammar, grammar}, *vocabulary_, 1 << 24);
    return *Grammar::Read(*compiled, {}, vocabulary_);
  }
  // The mask after a text for a sequence, or empty.
  std::vector<std::uint32_t> Mask(Matchers& matchers, std::uint32_t sequence,
                                  const std::shared_ptr<const Grammar>& grammar,
                                  std::string_view text) {
    const auto place = matchers.MoveTo(SequenceHandle(sequence), grammar, Bytes(text));
    if (!place.ok()) return {};
    const auto mask = (*place)->Mask();
    return {mask.begin(), mask.end()};
  }
  // The same by a matcher that has seen nothing else.
  std::vector<std::uint32_t> Fresh(const std::shared_ptr<const Grammar>& grammar,
                                   std::string_view text) {
    Matchers matchers({});
    return Mask(matchers, 0, grammar, text);
  }

  const std::shared_ptr<const GrammarVocabulary> vocabulary_ =
      *GrammarVocabulary::Create(SmallVocabulary());
  const std::shared_ptr<const Grammar> lists_ =
      Compile("root ::= \"[\" (item (\",\" item)*)? \"]\"\nitem ::= [a-c]+ | root");
};

TEST_F(MatchersTest, MasksDependOnTheTextAlone) {
  Matchers matchers({});
  // Sequence 0 goes on and back; 1 is a fork of it; 2 replays; 3 is another text.
  const std::pair<std::uint32_t, const char*> moves[] = {
      {0, ""},     {0, "["},   {0, "[ab"},    {1, "[ab"},  {1, "[ab,"}, {0, "[ab]"}, {0, "[a"},
      {2, "[ab,"}, {3, "[[["}, {2, "[ab,c]"}, {0, "[[[a"}, {3, "["},    {1, ""},     {4, "[[[a]"}};
  for (const auto& [sequence, text] : moves) {
    EXPECT_EQ(Mask(matchers, sequence, lists_, text), Fresh(lists_, text)) << sequence << text;
  }
  EXPECT_EQ(matchers.size(), 5u);
}

TEST_F(MatchersTest, AHandleMayGetAnotherGrammar) {
  Matchers matchers({});
  const std::shared_ptr<const Grammar> other = Compile("root ::= \"[\" [0-9]");
  EXPECT_EQ(Mask(matchers, 0, lists_, "["), Fresh(lists_, "["));
  EXPECT_EQ(Mask(matchers, 0, other, "["), Fresh(other, "["));
  EXPECT_NE(Fresh(lists_, "["), Fresh(other, "["));
}

TEST_F(MatchersTest, SaysWhichTokenDoesNotFollow) {
  Matchers matchers({});
  const auto place = matchers.MoveTo(SequenceHandle(0), lists_, Bytes("[ab[")).status();
  EXPECT_EQ(place.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(place.message(), "The grammar does not allow token 3 of the answer, 91");
  EXPECT_EQ(matchers.size(), 0u);
}

TEST_F(MatchersTest, CountsWhatIsMissing) {
  Matchers matchers({});
  const auto missing = [&](std::uint32_t sequence, const char* text) {
    return matchers.Missing(SequenceHandle(sequence), *lists_, Bytes(text));
  };
  EXPECT_EQ(missing(0, "["), SIZE_MAX);
  Mask(matchers, 0, lists_, "[a");
  EXPECT_EQ(missing(0, "[a"), 0u);
  EXPECT_EQ(missing(0, "[ab,"), 2u);
  EXPECT_EQ(missing(0, "[b,"), 2u);
}

TEST_F(MatchersTest, DropsTheOldestAndTheIdle) {
  Matchers matchers({.count = 3, .idle_steps = 100});
  for (std::uint32_t i = 0; i < 5; ++i) {
    matchers.NextStep();
    Mask(matchers, i, lists_, "[");
  }
  EXPECT_EQ(matchers.size(), 3u);
  EXPECT_EQ(matchers.Missing(SequenceHandle(1), *lists_, {}), SIZE_MAX);
  EXPECT_EQ(matchers.Missing(SequenceHandle(2), *lists_, {}), 0u);
  for (int i = 0; i < 200; ++i) {
    matchers.NextStep();
    Mask(matchers, 2, lists_, "[a");
  }
  EXPECT_EQ(matchers.size(), 1u);
  EXPECT_EQ(matchers.Missing(SequenceHandle(2), *lists_, Bytes("[a")), 0u);
}

TEST_F(MatchersTest, RefusesAMatcherThatGrowsTooLarge) {
  Matchers matchers({.bytes_each = 1 << 20});
  const std::shared_ptr<const Grammar> square = Compile("root ::= \"a\" root \"a\" | \"a\"");
  EXPECT_FALSE(Mask(matchers, 0, square, std::string(100, 'a')).empty());
  const auto refused = matchers.MoveTo(SequenceHandle(0), square, Bytes(std::string(5000, 'a')));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kOutOfRange) << refused.status();
  EXPECT_EQ(matchers.size(), 0u);
  EXPECT_EQ(matchers.bytes(), 0u);
}

// There is room for one matcher, so that one which is made again is seen: it drops the other.
TEST_F(MatchersTest, ARefusedMatcherIsNotMadeAgain) {
  Matchers matchers({.count = 1, .idle_steps = 100, .bytes_each = 1 << 20});
  const std::shared_ptr<const Grammar> square = Compile("root ::= \"a\" root \"a\" | \"a\"");
  const auto other_stays = [&] {
    const bool stays = matchers.Missing(SequenceHandle(1), *lists_, Bytes("[")) == 0;
    Mask(matchers, 1, lists_, "[");
    return stays;
  };
  const auto move = [&](const std::string& text) {
    return matchers.MoveTo(SequenceHandle(0), square, Bytes(text)).status();
  };
  const absl::Status too_large = move(std::string(5000, 'a'));
  EXPECT_EQ(too_large.code(), absl::StatusCode::kOutOfRange) << too_large;
  other_stays();
  EXPECT_EQ(move(std::string(5000, 'a')), too_large);
  EXPECT_EQ(move(std::string(6000, 'a')), too_large);
  EXPECT_TRUE(other_stays());
  // The next owner of the handle has less or something else.
  EXPECT_EQ(move("aaa"), absl::OkStatus());
  EXPECT_FALSE(other_stays());
  const absl::Status forbidden = move("aab");
  EXPECT_EQ(forbidden.code(), absl::StatusCode::kFailedPrecondition) << forbidden;
  other_stays();
  EXPECT_EQ(move("aabaa"), forbidden);
  EXPECT_TRUE(other_stays());
  EXPECT_EQ(matchers.MoveTo(SequenceHandle(0), lists_, Bytes("[")).status(), absl::OkStatus());
  EXPECT_FALSE(other_stays());
  // It is forgotten when nobody asks any more.
  EXPECT_EQ(move("aab"), forbidden);
  other_stays();
  for (int i = 0; i < 200; ++i) matchers.NextStep();
  Mask(matchers, 1, lists_, "[");
  EXPECT_EQ(move("aab"), forbidden);
  EXPECT_FALSE(other_stays());
}

TEST_F(MatchersTest, TheLargestGoWhenAllTakeTooMuch) {
  Matchers matchers({.bytes = 1 << 20});
  const std::shared_ptr<const Grammar> square = Compile("root ::= \"a\" root \"a\" | \"a\"");
  for (std::uint32_t i = 1; i <= 3; ++i) EXPECT_FALSE(Mask(matchers, i, lists_, "[a,b").empty());
  const auto refused = matchers.MoveTo(SequenceHandle(0), square, Bytes(std::string(1000, 'a')));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << refused.status();
  EXPECT_FALSE(Mask(matchers, 1, lists_, "[a,bb").empty());
}

}  // namespace
}  // namespace flotilla::worker

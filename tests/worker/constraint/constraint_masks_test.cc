// Masks of steps: for sequences that begin, go on, draft, are replayed and forked, and for grammars
// that are slow.
#include "worker/constraint/constraint_masks.h"

#include "common/rt/clock.h"
#include "model/checkpoint.h"
#include "tests/support/test_model.h"
#include "tests/worker/constraint/room.h"
#include "tests/worker/constraint/small_vocabulary.h"

namespace flotilla::worker {
namespace {

using State = MaskOutcome::State;
constexpr absl::Duration kLong = absl::Seconds(60);

class ConstraintMasksTest : public ::testing::Test {
 protected:
  void Start(ConstraintMasksOptions options = {}) {
    if (options.vocabulary.tokens.empty()) options.vocabulary = SmallVocabulary();
    if (options.compiler.program == CompilerOptions().program)
      options.compiler = SmallCompiler(FLOTILLA_PROGRAM);
    options.clock = &clock_;
    masks_ = *ConstraintMasks::Create(std::move(options));
  }
  // The outcome of a row, after the grammar is compiled.
  MaskOutcome Wait(StepMasks& step, std::size_t item, std::size_t row = 0) {
    MaskOutcome outcome;
    AwaitThat([&] {
      outcome = step.Wait(item, row, kLong);
      return outcome.state != State::kLate;
    });
    return outcome;
  }
  MaskItem Item(std::uint32_t sequence, const Constraint& constraint, std::string_view outputs,
                std::string_view drafts = "") {
    kept_.push_back(Bytes(outputs));
    const auto& output_tokens = kept_.back();
    kept_.push_back(Bytes(drafts));
    return {.sequence = SequenceHandle(sequence),
            .constraint = &constraint,
            .outputs = output_tokens,
            .drafts = kept_.back()};
  }
  // The bytes that a mask allows, and '$' for the end.
  std::string Allowed(const MaskOutcome& outcome) {
    if (outcome.state != State::kReady) return std::string(outcome.refusal.message());
    std::string allowed;
    for (int byte = 0; byte < 256; ++byte) {
      if (Has(outcome.allowed, byte)) allowed += static_cast<char>(byte);
    }
    EXPECT_FALSE(Has(outcome.allowed, 256));
    if (Has(outcome.allowed, 257)) allowed += '$';
    return allowed;
  }
  std::string AllowedAfter(std::uint32_t sequence, const Constraint& constraint,
                           std::string_view outputs) {
    const std::shared_ptr<StepMasks> step = masks_->Begin({Item(sequence, constraint, outputs)});
    return Allowed(Wait(*step, 0));
  }

  SharedClock clock_;
  std::deque<std::vector<TokenId>> kept_;
  std::unique_ptr<ConstraintMasks> masks_;
  const Constraint ab_ = Regex("(ab)+c?");
};

TEST_F(ConstraintMasksTest, FollowsSequences) {
  Start();
  const Constraint digits = Regex("[0-9]{2}");
  for (int i = 0; i < 3; ++i) {
    const std::string answer = std::string("abab").substr(0, i + 1);
    const std::shared_ptr<StepMasks> step = masks_->Begin(
        {Item(0, ab_, answer), Item(1, digits, std::string("12").substr(0, i)), Item(2, ab_, "")});
    EXPECT_EQ(Allowed(Wait(*step, 0)), i == 1 ? "ac$" : "b");
    EXPECT_EQ(Allowed(Wait(*step, 1)), i == 2 ? "$" : "0123456789");
    EXPECT_EQ(Allowed(Wait(*step, 2)), "a");
  }
  EXPECT_EQ(AllowedAfter(0, ab_, "ababc"), "$");
  EXPECT_EQ(AllowedAfter(7, ab_, "aba"), "b");  // a fork, or a replay elsewhere
  EXPECT_EQ(AllowedAfter(0, ab_, "a"), "b");    // the handle's next owner
  EXPECT_EQ(AllowedAfter(0, digits, "1"), "0123456789");
}

TEST_F(ConstraintMasksTest, EachDraftRowHasItsMask) {
  Start();
  for (int round = 0; round < 2; ++round) {  // the drafts leave no trace
    const std::shared_ptr<StepMasks> step = masks_->Begin({Item(0, ab_, "a", "babc")});
    EXPECT_EQ(Allowed(Wait(*step, 0, 0)), "b");
    EXPECT_EQ(Allowed(Wait(*step, 0, 1)), "ac$");
    EXPECT_EQ(Allowed(Wait(*step, 0, 2)), "b");
    EXPECT_EQ(Allowed(Wait(*step, 0, 3)), "ac$");
    EXPECT_EQ(Allowed(Wait(*step, 0, 4)), "$");
  }
  // What comes after a wrong draft has no mask.
  const std::shared_ptr<StepMasks> step = masks_->Begin({Item(0, ab_, "a", "bxab")});
  EXPECT_EQ(Allowed(Wait(*step, 0, 1)), "ac$");
  for (const std::size_t row : {2, 3, 4}) EXPECT_EQ(Allowed(Wait(*step, 0, row)), "");
  EXPECT_EQ(AllowedAfter(0, ab_, "ab"), "ac$");
}

TEST_F(ConstraintMasksTest, DraftsEndWhereTheGrammarDoesNotAllowThem) {
  Start();
  const auto check = [&](std::vector<MaskItem> items) { return masks_->CheckDrafts(items, kLong); };
  // Nothing is known before the grammar is compiled.
  EXPECT_EQ(check({Item(0, ab_, "a", "bab")}), std::vector<std::size_t>{0});
  EXPECT_EQ(AllowedAfter(0, ab_, "a"), "b");
  EXPECT_EQ(check({Item(0, ab_, "a", "bxab"), Item(1, ab_, "ab", "cc"), Item(2, ab_, "", "ab"),
                   Item(3, ab_, "ax", "a"), Item(4, ab_, "ab", "x")}),
            (std::vector<std::size_t>{1, 1, 2, 0, 0}));
  EXPECT_EQ(AllowedAfter(0, ab_, "ab"), "ac$");  // it leaves no trace
  EXPECT_EQ(masks_->CheckDrafts({}, kLong), std::vector<std::size_t>{});
}

TEST_F(ConstraintMasksTest, DraftsThatAreCheckedTooLateAreDropped) {
  const SharedClock clock(absl::Milliseconds(20));  // stands for the time that waits take
  ConstraintMasksOptions options{.vocabulary = SmallVocabulary(), .clock = &clock};
  options.compiler = SmallCompiler(FLOTILLA_PROGRAM);
  options.compiler.patience = absl::Hours(10);
  masks_ = *ConstraintMasks::Create(options);
  const Constraint hostile{Constraint::Kind::kGrammar,
                           "root ::= root root root | root root | [a-z]"};
  EXPECT_EQ(AllowedAfter(1, ab_, "a"), "b");
  ASSERT_FALSE(AllowedAfter(0, hostile, "a").empty());
  const MaskItem item = Item(1, ab_, "a", "b");
  std::size_t tokens = 100;
  std::shared_ptr<StepMasks> step;
  AwaitThat([&] {  // the thread may still have nothing else to do
    step = masks_->Begin({Item(0, hostile, std::string(tokens += 10, 'a'))});
    return masks_->CheckDrafts({item}, absl::ZeroDuration()) == std::vector<std::size_t>{0};
  });
  EXPECT_EQ(masks_->CheckDrafts({item}, kLong), std::vector<std::size_t>{1});
}

TEST_F(ConstraintMasksTest, DraftsGoBeyondTheEnd) {
  Start();
  std::vector<TokenId> outputs = Bytes("ab"), drafts = {257, 257};
  const std::shared_ptr<StepMasks> step = masks_->Begin(
      {{.sequence = SequenceHandle(0), .constraint = &ab_, .outputs = outputs, .drafts = drafts}});
  EXPECT_EQ(Allowed(Wait(*step, 0, 2)), "$");
  EXPECT_EQ(AllowedAfter(0, ab_, "ab"), "ac$");
}

TEST_F(ConstraintMasksTest, RefusesAnswersThatDoNotFollow) {
  Start();
  EXPECT_EQ(AllowedAfter(0, ab_, "ax"), "The grammar does not allow token 1 of the answer, 120");
  EXPECT_EQ(AllowedAfter(0, ab_, "a"), "b");
  const Constraint nothing{Constraint::Kind::kJsonSchema, R"({"$ref":"#"})"};
  EXPECT_EQ(AllowedAfter(1, nothing, ""),
            "The grammar allows no token of the vocabulary here, and no end");
  const std::shared_ptr<StepMasks> step =
      masks_->Begin({Item(1, nothing, ""), Item(2, Regex("("), ""), Item(3, ab_, "ax")});
  const absl::StatusCode codes[] = {absl::StatusCode::kNotFound, absl::StatusCode::kInvalidArgument,
                                    absl::StatusCode::kFailedPrecondition};
  for (std::size_t i = 0; i < 3; ++i) {
    const MaskOutcome outcome = Wait(*step, i);
    EXPECT_EQ(outcome.state, State::kRefused);
    EXPECT_EQ(outcome.refusal.code(), codes[i]);
  }
}

TEST_F(ConstraintMasksTest, IsLateWhileAGrammarIsCompiled) {
  ConstraintMasksOptions options;
  options.compiler = SmallCompiler(FLOTILLA_PROGRAM);
  options.compiler.limits.cpu_us = 60'000'000;
  options.compiler.limits.memory_bytes = 1u << 30;
  Start(options);
  EXPECT_EQ(AllowedAfter(0, ab_, "a"), "b");
  const Constraint slow = SlowConstraint();
  const std::shared_ptr<StepMasks> step = masks_->Begin({Item(0, ab_, "ab"), Item(1, slow, "")});
  EXPECT_EQ(step->Wait(1, 0, kLong).state, State::kLate);  // at once
  EXPECT_EQ(Allowed(Wait(*step, 0)), "ac$");
  clock_.Advance(absl::Minutes(1) - absl::Nanoseconds(1));
  EXPECT_EQ(step->Wait(1, 0, kLong).state, State::kLate);
  clock_.Advance(absl::Nanoseconds(1));
  const MaskOutcome outcome = step->Wait(1, 0, kLong);
  EXPECT_EQ(outcome.state, State::kRefused);
  EXPECT_EQ(outcome.refusal,
            absl::ResourceExhaustedError("The grammar is refused: it was not compiled within 1m"));
}

TEST_F(ConstraintMasksTest, GrammarsOfSequencesThatAreGoneLeaveTheQueue) {
  ConstraintMasksOptions options;
  options.compiler = SmallCompiler(FLOTILLA_PROGRAM);
  options.compiler.limits.cpu_us = 60'000'000;
  options.compiler.limits.memory_bytes = 1u << 30;
  options.compiler.queue = 4;
  Start(options);
  std::vector<Constraint> slow;
  for (int i = 0; i < 6; ++i) slow.push_back(SlowConstraint(i));
  std::vector<MaskItem> all;
  for (std::uint32_t i = 0; i < 5; ++i) all.push_back(Item(i, slow[i], ""));
  // The first one is being compiled, three others fill the queue, and one has no place.
  AwaitThat([&] {
    const auto step = masks_->Begin(all);
    int refused = 0;
    for (std::size_t i = 0; i < 5; ++i) {
      refused += step->Wait(i, 0, kLong).state == State::kRefused ? 1 : 0;
    }
    return refused == 1;
  });
  for (int step = 0; step < 20; ++step) masks_->Begin({Item(0, slow[0], "")});
  // The thread may still look at the first step, for a moment.
  State state = State::kRefused;
  for (int tries = 0; tries < 50 && state == State::kRefused; ++tries) {
    const auto step = masks_->Begin({Item(0, slow[0], ""), Item(5, slow[5], "")});
    state = step->Wait(1, 0, kLong).state;
  }
  EXPECT_EQ(state, State::kLate);
}

TEST_F(ConstraintMasksTest, AGrammarMayBePrepared) {
  Start();
  masks_->Prepare(SequenceHandle(0), ab_, 0);
  const auto ready = [&] {
    return masks_->Begin({Item(0, ab_, "")})->Wait(0, 0, kLong).state == State::kReady;
  };
  AwaitThat(ready);
  EXPECT_TRUE(ready());
}

TEST_F(ConstraintMasksTest, RefusesASequenceWhoseMasksAreLateTooOften) {
  const SharedClock clock(absl::Milliseconds(20));  // stands for the time that waits take
  ConstraintMasksOptions options{.vocabulary = SmallVocabulary(), .clock = &clock};
  options.compiler = SmallCompiler(FLOTILLA_PROGRAM);
  options.compiler.patience = absl::Hours(10);
  masks_ = *ConstraintMasks::Create(options);
  // Each token takes longer than the one before.
  const Constraint hostile{Constraint::Kind::kGrammar,
                           "root ::= root root root | root root | [a-z]"};
  EXPECT_EQ(AllowedAfter(1, ab_, "a"), "b");
  ASSERT_FALSE(AllowedAfter(0, hostile, "a").empty());
  const std::string answer(160, 'a');  // a quarter of a second
  int late = 0;
  MaskOutcome outcome;
  while (outcome.state == State::kLate) {
    // Every other step has other rows, and does not wait.
    const std::shared_ptr<StepMasks> step =
        masks_->Begin({Item(0, hostile, answer)}, late % 2 == 0);
    outcome = step->Wait(0, 0, absl::Milliseconds(1));
    late += outcome.state == State::kLate;
  }
  EXPECT_EQ(outcome.state, State::kRefused);
  EXPECT_EQ(outcome.refusal, absl::DeadlineExceededError("The grammar's masks take too long"));
  EXPECT_LE(late, 1000);  // the first waits may come before the thread begins
  // Others are served again when the thread is free, and have paid nothing.
  EXPECT_EQ(AllowedAfter(1, ab_, "ab"), "ac$");
}

// A mask may take a hundred steps. The first one waits for it, and the others have other rows to
// do.
TEST_F(ConstraintMasksTest, OneStepWaitsForAMask) {
  Start();
  const Constraint hostile{Constraint::Kind::kGrammar,
                           "root ::= root root root | root root | [a-z]"};
  EXPECT_EQ(AllowedAfter(1, ab_, "a"), "b");
  ASSERT_FALSE(AllowedAfter(0, hostile, "a").empty());
  const std::string answer(160, 'a');  // a quarter of a second
  const MaskItem item = Item(0, hostile, answer);
  MaskOutcome outcome = masks_->Begin({item}, false)->Wait(0, 0, absl::Milliseconds(1));
  ASSERT_EQ(outcome.state, State::kLate);
  EXPECT_TRUE(outcome.was_awaited);
  const std::shared_ptr<StepMasks> next = masks_->Begin({item}, false);
  outcome = next->Wait(0, 0, kLong);
  EXPECT_EQ(outcome.state, State::kLate);
  EXPECT_FALSE(outcome.was_awaited);
  // A constrained row that was not late is another row, too, and is waited for.
  const std::shared_ptr<StepMasks> both = masks_->Begin({item, Item(1, ab_, "ab")});
  EXPECT_EQ(both->Wait(0, 0, kLong).state, State::kLate);
  EXPECT_EQ(Allowed(Wait(*both, 1)), "ac$");
  // A step that has nothing else to do waits.
  EXPECT_EQ(masks_->Begin({item})->Wait(0, 0, kLong).state, State::kReady);
}

// The scheduler leaves out sequences whose masks are late. They are refused no later for that.
TEST_F(ConstraintMasksTest, RoundsThatLeaveASequenceOutCountAsWaits) {
  const SharedClock clock(absl::Milliseconds(20));  // stands for the time of a round
  const Constraint hostile{Constraint::Kind::kGrammar,
                           "root ::= root root root | root root | [a-z]"};
  for (const std::uint32_t steps_per_row : {1u, 2u}) {
    ConstraintMasksOptions options{
        .vocabulary = SmallVocabulary(), .steps_per_row = steps_per_row, .clock = &clock};
    options.compiler = SmallCompiler(FLOTILLA_PROGRAM);
    options.compiler.patience = absl::Hours(10);
    masks_ = *ConstraintMasks::Create(options);
    ASSERT_FALSE(AllowedAfter(0, hostile, "a").empty());
    const std::string answer(240, 'a');  // a second
    const std::shared_ptr<StepMasks> first = masks_->Begin({Item(0, hostile, answer)}, false);
    // The thread begins meanwhile.
    MaskOutcome outcome = first->Wait(0, 0, absl::Milliseconds(100));
    int late = 0;
    for (; outcome.state == State::kLate; ++late) {
      for (std::uint32_t i = 1; i < 4 * steps_per_row; ++i) masks_->Begin({}, false);
      outcome = masks_->Begin({Item(0, hostile, answer)}, false)->Wait(0, 0, absl::Milliseconds(1));
    }
    EXPECT_EQ(outcome.state, State::kRefused);
    EXPECT_EQ(late, 480 / 4);  // of 500 ms the first wait has taken 20
  }
}

// Four others come back in turn, each after four rounds. Together they charge each round once.
TEST_F(ConstraintMasksTest, ARoundIsChargedOnceWhoeverComesBack) {
  const SharedClock clock(absl::Milliseconds(20));  // stands for the time of a round
  const Constraint hostile{Constraint::Kind::kGrammar,
                           "root ::= root root root | root root | [a-z]"};
  ConstraintMasksOptions options{.vocabulary = SmallVocabulary(), .clock = &clock};
  options.compiler = SmallCompiler(FLOTILLA_PROGRAM);
  options.compiler.patience = absl::Hours(10);
  masks_ = *ConstraintMasks::Create(options);
  ASSERT_FALSE(AllowedAfter(0, hostile, "a").empty());
  ASSERT_FALSE(AllowedAfter(1, ab_, "a").empty());
  const std::string answer(240, 'a');  // a second
  const std::shared_ptr<StepMasks> first = masks_->Begin({Item(0, hostile, answer)}, false);
  // The thread begins meanwhile.
  MaskOutcome outcome = first->Wait(0, 0, absl::Milliseconds(100));
  int rounds = 0;
  for (std::uint32_t i = 0; outcome.state == State::kLate; ++rounds, i = (i + 1) % 4) {
    const std::shared_ptr<StepMasks> step =
        masks_->Begin({Item(1 + i, ab_, "ab"), Item(0, hostile, answer)}, false);
    EXPECT_EQ(step->Wait(0, 0, absl::Milliseconds(1)).state, State::kLate);
    outcome = step->Wait(1, 0, absl::Milliseconds(1));
  }
  EXPECT_EQ(outcome.state, State::kRefused);
  // Of 500 ms the first waits for five masks take 100, and each round after that one.
  EXPECT_NEAR(rounds, 400, 20);
}

// Each of two owners may wait in vain 24 times for 20 ms, but not one of them 48 times. The second
// one is first seen by another call than Begin.
TEST_F(ConstraintMasksTest, LatenessDoesNotPassToTheNextOwnerOfAHandle) {
  const SharedClock clock(absl::Milliseconds(20));  // stands for the time that waits take
  const Constraint hostile{Constraint::Kind::kGrammar,
                           "root ::= root root root | root root | [a-z]"};
  for (const bool drafts : {false, true}) {
    ConstraintMasksOptions options{.vocabulary = SmallVocabulary(), .clock = &clock};
    options.compiler = SmallCompiler(FLOTILLA_PROGRAM);
    options.compiler.patience = absl::Hours(10);
    masks_ = *ConstraintMasks::Create(options);
    ASSERT_FALSE(AllowedAfter(0, hostile, "a").empty());
    const auto wait = [&](const std::string& answer) {
      for (int i = 0; i < 24; ++i) {
        const std::shared_ptr<StepMasks> step = masks_->Begin({Item(0, hostile, answer)});
        const MaskOutcome outcome = step->Wait(0, 0, absl::Milliseconds(1));
        ASSERT_NE(outcome.state, State::kRefused) << outcome.refusal;
      }
    };
    wait(std::string(160, 'a'));  // a quarter of a second
    if (drafts) {
      masks_->CheckDrafts({Item(0, hostile, "", "b")}, absl::ZeroDuration());
    } else {
      masks_->Prepare(SequenceHandle(0), hostile, 0);
    }
    wait(std::string(161, 'b'));
  }
}

TEST_F(ConstraintMasksTest, ManySequencesOfOneGrammar) {
  Start();
  std::vector<MaskItem> items;
  for (std::uint32_t i = 0; i < 64; ++i) {
    items.push_back(Item(i, ab_, i % 2 == 0 ? "ab" : "a", i % 3 == 0 ? "b" : ""));
  }
  const std::shared_ptr<StepMasks> step = masks_->Begin(items);
  for (std::uint32_t i = 0; i < 64; ++i)
    EXPECT_EQ(Allowed(Wait(*step, i)), i % 2 == 0 ? "ac$" : "b");
}

TEST_F(ConstraintMasksTest, StepsMayOutliveTheRoom) {
  Start();
  const std::shared_ptr<StepMasks> step = masks_->Begin({Item(0, SlowConstraint(), "")});
  masks_.reset();
  EXPECT_EQ(step->Wait(0, 0, absl::ZeroDuration()).state, State::kLate);
}

// Begin, masks and compiles with the vocabulary of a real model. It prints what they take.
TEST(ConstraintMasksSpeed, Measure) {
  const auto checkpoint = model::OpenCheckpoint(testing::ModelPath());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto words = *ReadConstraintVocabulary(*(*checkpoint)->ReadTokenizer());
  const SteadyClock clock;
  CompilerOptions compiler;
  compiler.program = FLOTILLA_PROGRAM;
  compiler.priority.nice = 0;
  const auto room =
      *ConstraintMasks::Create({.vocabulary = words, .compiler = compiler, .clock = &clock});
  const std::string field = R"("type":"object","additionalProperties":false,)";
  const std::string schemas[] = {
      R"({"type":"object"})",
      "{" + field +
          R"("properties":{"name":{"type":"string"},"age":{"type":"integer"}},"required":["name","age"]})",
      R"({"type":"array","items":{"type":"string"},"minItems":1,"maxItems":5})",
      R"({"enum":["positive","negative","neutral"]})",
      "{" + field +
          R"("properties":{"city":{"type":"string"},"unit":{"enum":["C","F"]}},"required":["city"]})",
      "{" + field +
          R"("properties":{"zip":{"type":"string","pattern":"^[0-9]{5}$"}},"required":["zip"]})",
      "{" + field +
          R"("properties":{"point":{"type":"array","items":{"type":"number"},"minItems":2,"maxItems":2}}})",
      R"({"anyOf":[{"type":"null"},{"type":"boolean"},{"type":"integer","minimum":0,"maximum":100}]})",
      R"({"$defs":{"node":{"type":"object","properties":{"value":{"type":"string"},"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["value","next"]}},"$ref":"#/$defs/node"})",
      "{" + field +
          R"("properties":{"title":{"type":"string","minLength":1},"tags":{"type":"array","items":{"type":"string"}},"price":{"type":"number"},"at":{"type":"string","format":"date-time"}},"required":["title","tags","price","at"]})"};
  std::vector<double> compiles, begins, masks;
  std::uint64_t random = 88172645463325252u;
  std::uint32_t sequence = 0;
  for (const std::string& schema : schemas) {
    const Constraint constraint{Constraint::Kind::kJsonSchema, schema};
    std::int64_t begin = clock.NowNs();
    MaskOutcome outcome;
    AwaitThat([&] {
      outcome = room->Begin({{.sequence = SequenceHandle(sequence), .constraint = &constraint}})
                    ->Wait(0, 0, kLong);
      return outcome.state != State::kLate;
    });
    ASSERT_EQ(outcome.state, State::kReady) << schema << outcome.refusal;
    compiles.push_back((clock.NowNs() - begin) * 1e-6);
    std::vector<TokenId> outputs;
    for (int i = 0; i < 100; ++i) {
      begin = clock.NowNs();
      const auto step = room->Begin(
          {{.sequence = SequenceHandle(sequence), .constraint = &constraint, .outputs = outputs}});
      const std::int64_t begun = clock.NowNs();
      outcome = step->Wait(0, 0, kLong);
      ASSERT_EQ(outcome.state, State::kReady) << outcome.refusal;
      begins.push_back((begun - begin) * 1e-3);
      masks.push_back((clock.NowNs() - begin) * 1e-3);
      std::vector<TokenId> allowed;
      for (TokenId id = 0; id < static_cast<TokenId>(words.tokens.size()); ++id) {
        if (Has(outcome.allowed, id)) allowed.push_back(id);
      }
      random ^= random << 13, random ^= random >> 7, random ^= random << 17;
      outputs.push_back(allowed[random % allowed.size()]);
      if (std::ranges::find(words.stops, outputs.back()) != words.stops.end()) break;
    }
    ++sequence;
  }
  const auto print = [](const char* what, std::vector<double> values, const char* unit) {
    std::ranges::sort(values);
    std::cout << what << ": median " << values[values.size() / 2] << ", p99 "
              << values[values.size() * 99 / 100] << ", most " << values.back() << " " << unit
              << "\n";
  };
  std::cout << "compiles, the first with the start of the process:";
  for (const double ms : compiles) std::cout << " " << ms;
  std::cout << " ms\n";
  print("Begin of 1 row", begins, "us");
  print("Begin and the mask", masks, "us");
  const Constraint constraint{Constraint::Kind::kJsonSchema, schemas[0]};
  const std::vector<TokenId> outputs(1000, 0);
  std::vector<MaskItem> items(
      64, {.sequence = SequenceHandle(99), .constraint = &constraint, .outputs = outputs});
  begins.clear();
  for (int i = 0; i < 20; ++i) {
    const std::int64_t begin = clock.NowNs();
    const auto step = room->Begin(items);
    begins.push_back((clock.NowNs() - begin) * 1e-3);
    step->Wait(63, 0, kLong);
  }
  print("Begin of 64 rows with 1000 tokens each", begins, "us");
  // A lost order of magnitude fails.
  std::ranges::sort(masks);
  EXPECT_LT(masks[masks.size() / 2], 5000);
}

}  // namespace
}  // namespace flotilla::worker

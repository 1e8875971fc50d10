// Constraints that are compiled by a real process, and what becomes of those that harm it.
#include "worker/constraint/compiler.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/worker/constraint/room.h"
#include "tests/worker/constraint/small_vocabulary.h"

namespace flotilla::worker {
namespace {

class CompilerTest : public ::testing::Test {
 protected:
  void Start(CompilerOptions options) {
    const ConstraintVocabulary words = SmallVocabulary();
    compiler_ = std::make_unique<GrammarCompiler>(
        std::move(options), words, *GrammarVocabulary::Create(words), clock_, [this] {
          absl::MutexLock lock(&mu_);
          ++done_;
          for (std::size_t i = 0; i < watched_.size(); ++i) {
            if (compiler_->IsDone(*watched_[i]) && std::ranges::count(order_, i) == 0) {
              order_.push_back(i);
            }
          }
        });
  }
  absl::StatusOr<std::shared_ptr<const Grammar>> Compile(const Constraint& constraint) {
    const auto entry = compiler_->Get(constraint);
    Await(*entry);
    return compiler_->GrammarOf(*entry);
  }
  void Await(const GrammarCompiler::Entry& entry) {
    AwaitThat([&] { return compiler_->IsDone(entry); });
  }

  SharedClock clock_;
  absl::Mutex mu_;
  int done_ = 0;
  std::vector<std::shared_ptr<const GrammarCompiler::Entry>> watched_;
  std::vector<std::size_t> order_;  // in which the watched ones were done
  std::unique_ptr<GrammarCompiler> compiler_;
};

TEST_F(CompilerTest, StartsNothingBeforeTheFirstConstraint) {
  CompilerOptions options;
  options.program = FLOTILLA_PROGRAM;
  options.priority.starving = absl::Minutes(1);  // whatever else the machine does
  Start(options);
  EXPECT_EQ(CompileProcessId(), 0);
  EXPECT_TRUE(Compile(Regex("a+")).ok());
  const pid_t process = CompileProcessId();
  EXPECT_NE(process, 0);
  EXPECT_TRUE(Compile(Regex("b+")).ok());
  EXPECT_EQ(CompileProcessId(), process);
  EXPECT_EQ(getpriority(PRIO_PROCESS, process), 19);
  // It has no descriptor but its socket and the standard ones.
  int descriptors = 0;
  for ([[maybe_unused]] const auto& fd :
       std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/fd")) {
    ++descriptors;
  }
  EXPECT_EQ(descriptors, 4);
  compiler_.reset();
  EXPECT_EQ(CompileProcessId(), 0);
}

// What the loader or a library writes there is no part of an answer.
TEST_F(CompilerTest, StandardErrorIsNotTheSocket) {
  const std::string program = ::testing::TempDir() + "/noisy_flotilla";
  std::ofstream(program) << "#!/bin/sh\necho noise >&2\nexec " << FLOTILLA_PROGRAM << " \"$@\"\n";
  ASSERT_EQ(chmod(program.c_str(), 0700), 0);
  Start(SmallCompiler(program));
  const auto grammar = Compile(Regex("a+"));
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  compiler_.reset();
  std::filesystem::remove(program);
}

// As on a machine with much to do: the process is stopped, so it has no time at all. Its nice
// values are 9, 7, 6 and 5 above the worker's own.
TEST_F(CompilerTest, AStarvedCompileBeginsAgainAtAHigherPriority) {
  const int own = getpriority(PRIO_PROCESS, 0);
  CompilerOptions options = SmallCompiler(FLOTILLA_PROGRAM);
  options.limits.cpu_us = 60'000'000;
  options.priority = {.nice = own + 9, .starving = absl::Seconds(1), .raised = absl::Minutes(5)};
  Start(options);
  ASSERT_TRUE(Compile(Regex("a+")).ok());
  const pid_t first = CompileProcessId();
  EXPECT_EQ(getpriority(PRIO_PROCESS, first), own + 9);
  kill(first, SIGSTOP);
  EXPECT_TRUE(Compile(Regex("b+")).ok());
  const pid_t second = CompileProcessId();
  EXPECT_NE(second, first);
  EXPECT_EQ(getpriority(PRIO_PROCESS, second), own + 7);
  EXPECT_TRUE(Compile(Regex("c+")).ok());
  EXPECT_EQ(getpriority(PRIO_PROCESS, second), own + 7);  // it is kept for a while
  EXPECT_EQ(CompileProcessId(), second);
}

TEST_F(CompilerTest, AHigherPriorityEnds) {
  const int own = getpriority(PRIO_PROCESS, 0);
  CompilerOptions options = SmallCompiler(FLOTILLA_PROGRAM);
  options.priority = {
      .nice = own + 9, .starving = absl::Seconds(1), .raised = absl::ZeroDuration()};
  Start(options);
  ASSERT_TRUE(Compile(Regex("a+")).ok());
  kill(CompileProcessId(), SIGSTOP);
  EXPECT_TRUE(Compile(Regex("b+")).ok());
  const pid_t second = CompileProcessId();
  EXPECT_TRUE(Compile(Regex("c+")).ok());
  EXPECT_EQ(CompileProcessId(), second);
  EXPECT_EQ(getpriority(PRIO_PROCESS, second), own + 9);
}

TEST_F(CompilerTest, KeepsGrammarsAndRefusals) {
  Start(SmallCompiler(FLOTILLA_PROGRAM));
  const auto first = Compile(Regex("a+"));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(*Compile(Regex("a+")), *first);
  const auto refused = Compile(Regex("("));
  EXPECT_EQ(refused.status(),
            absl::InvalidArgumentError("The grammar is refused: Regex parsing error at position 2: "
                                       "The parenthesis is not closed."));
  clock_.Advance(absl::Hours(10));
  EXPECT_EQ(Compile(Regex("(")).status(), refused.status());
  EXPECT_NE(*Compile({Constraint::Kind::kGrammar, "root ::= \"a\""}), *first);
  absl::MutexLock lock(&mu_);
  EXPECT_EQ(done_, 3);
}

TEST_F(CompilerTest, RefusesSlowConstraintsForAWhile) {
  Start(SmallCompiler(FLOTILLA_PROGRAM));
  const auto slow = Compile(SlowConstraint());
  EXPECT_EQ(slow.status(),
            absl::AbortedError("The grammar is refused: it takes more than 100 ms to compile"));
  EXPECT_TRUE(Compile(Regex("a+")).ok());  // in another process
  const pid_t process = CompileProcessId();
  EXPECT_EQ(Compile(SlowConstraint()).status(), slow.status());
  clock_.Advance(absl::Minutes(10) - absl::Nanoseconds(1));
  EXPECT_EQ(Compile(SlowConstraint()).status(), slow.status());
  EXPECT_EQ(CompileProcessId(), process);
  clock_.Advance(absl::Nanoseconds(1));
  EXPECT_EQ(Compile(SlowConstraint()).status(), slow.status());
  EXPECT_NE(CompileProcessId(), process);  // it was tried again
}

TEST_F(CompilerTest, RefusesConstraintsThatTakeTooMuchMemory) {
  CompilerOptions options = SmallCompiler(FLOTILLA_PROGRAM);
  options.limits.cpu_us = 60'000'000;
  options.limits.memory_bytes = 24u << 20;
  Start(options);
  const absl::Status status = Compile(LargeConstraint()).status();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  EXPECT_TRUE(absl::IsAborted(status)) << status;  // a sanitizer's allocator ends the process
#else
  EXPECT_EQ(status,
            absl::OutOfRangeError("The grammar is refused: it takes too much memory to compile"));
#endif
  EXPECT_TRUE(Compile(Regex("a+")).ok());
}

TEST_F(CompilerTest, RefusesWhatCrashesTheProcess) {
  CompilerOptions options = SmallCompiler(FLOTILLA_PROGRAM);
  options.limits.cpu_us = 60'000'000;
  options.limits.memory_bytes = 1u << 30;
  Start(options);
  ASSERT_TRUE(Compile(Regex("a+")).ok());
  const pid_t process = CompileProcessId();
  const long before = CpuTicks(process);
  const auto entry = compiler_->Get(SlowConstraint());
  const auto next = compiler_->Get(Regex("b+"));
  AwaitThat([&] { return compiler_->IsDone(*entry) || CpuTicks(process) > before + 2; });
  kill(process, SIGSEGV);
  Await(*entry);
  EXPECT_EQ(compiler_->GrammarOf(*entry).status(),
            absl::AbortedError("The grammar is refused: it crashes the process that compiles it"));
  Await(*next);
  EXPECT_TRUE(compiler_->GrammarOf(*next).ok());
}

TEST_F(CompilerTest, BlamesNobodyForAProcessThatDiedIdle) {
  Start(SmallCompiler(FLOTILLA_PROGRAM));
  ASSERT_TRUE(Compile(Regex("a+")).ok());
  kill(CompileProcessId(), SIGKILL);
  AwaitThat([] { return CompileProcessId() == 0; });
  EXPECT_TRUE(Compile(Regex("b+")).ok());
}

TEST_F(CompilerTest, SaysThatTheProcessCannotBeStarted) {
  CompilerOptions options = SmallCompiler(FLOTILLA_PROGRAM);
  options.program = "/nonexistent/flotilla";
  Start(options);
  EXPECT_TRUE(absl::IsResourceExhausted(Compile(Regex("a+")).status()));
  options.program = "/bin/false";
  Start(options);
  EXPECT_TRUE(absl::IsResourceExhausted(Compile(Regex("a+")).status()));
}

TEST_F(CompilerTest, HasABoundedQueue) {
  CompilerOptions options = SmallCompiler(FLOTILLA_PROGRAM);
  options.queue = 4;
  options.limits.cpu_us = 60'000'000;
  Start(options);
  std::vector<std::shared_ptr<const GrammarCompiler::Entry>> entries;
  for (int i = 0; i < 5; ++i) entries.push_back(compiler_->Get(SlowConstraint(i)));
  // One may already be in the process, and three have places. The fourth is for other tenants.
  EXPECT_FALSE(compiler_->IsDone(*entries[0]));
  int refused = 0;
  for (const auto& entry : entries) {
    if (!compiler_->IsDone(*entry)) continue;
    ++refused;
    EXPECT_EQ(compiler_->GrammarOf(*entry).status(),
              absl::ResourceExhaustedError("The grammar is refused: 3 others wait to be compiled"));
  }
  EXPECT_GE(refused, 1);
  EXPECT_LE(refused, 2);
  EXPECT_FALSE(compiler_->IsDone(*compiler_->Get(OfTenant(1, SlowConstraint(5)))));
  compiler_.reset();  // does not wait for them
}

TEST_F(CompilerTest, WhatNobodyWaitsForAnyMoreIsNotCompiled) {
  CompilerOptions options = SmallCompiler(FLOTILLA_PROGRAM);
  options.queue = 4;
  Start(options);
  const auto first = compiler_->Get(SlowConstraint(0));
  std::vector<std::shared_ptr<const GrammarCompiler::Entry>> gone;
  for (int i = 1; i < 5; ++i) gone.push_back(compiler_->Get(SlowConstraint(i)));
  EXPECT_TRUE(compiler_->IsDone(*gone.back()));  // there is no place for it
  gone.clear();
  const auto last = compiler_->Get(Regex("a+"));
  EXPECT_FALSE(compiler_->IsDone(*last));  // the places of the others are free
  Await(*last);
  EXPECT_TRUE(compiler_->IsDone(*first));
  AwaitThat([&] {
    absl::MutexLock lock(&mu_);
    return done_ >= 2;
  });
  absl::MutexLock lock(&mu_);
  EXPECT_EQ(done_, 2);
}

// A tenant with many grammars, each of which takes all the time that it may, makes others wait for
// one of them.
TEST_F(CompilerTest, TenantsTakeTurns) {
  Start(SmallCompiler(FLOTILLA_PROGRAM));
  {
    absl::MutexLock lock(&mu_);
    const auto watch = [&](std::uint32_t tenant, const Constraint& constraint) {
      watched_.push_back(compiler_->Get(OfTenant(tenant, constraint)));
    };
    for (int i = 0; i < 4; ++i) watch(7, SlowConstraint(i));
    for (const char* text : {"a+", "b+"}) watch(8, Regex(text));
    watch(9, Regex("c+"));
    watch(7, Regex("d+"));
    watch(9, Regex("d+"));  // the same one, which need not wait for the other tenant
  }
  for (const auto& entry : watched_) Await(*entry);
  AwaitThat([&] {
    absl::MutexLock lock(&mu_);
    return order_.size() == watched_.size();
  });
  absl::MutexLock lock(&mu_);
  const auto place = [&](std::size_t entry) {
    return std::ranges::find(order_, entry) - order_.begin();
  };
  EXPECT_EQ(place(0), 0);
  // Whether the first one is taken before the others come or not, they have the same turns as the
  // second or third of its tenant.
  for (const auto& [other, own] :
       {std::pair<std::size_t, std::size_t>{4, 2}, {6, 2}, {5, 3}, {7, 3}}) {
    EXPECT_LT(place(other), place(own)) << other;
  }
  EXPECT_TRUE(compiler_->GrammarOf(*watched_[5]).ok());
}

TEST_F(CompilerTest, GivesUpWhatWaitsTooLong) {
  Start(SmallCompiler(FLOTILLA_PROGRAM));
  const auto slow = compiler_->Get(SlowConstraint());
  const auto next = compiler_->Get(Regex("a+"));
  clock_.Advance(absl::Minutes(1));
  Await(*next);
  EXPECT_EQ(compiler_->GrammarOf(*next).status(),
            absl::ResourceExhaustedError("The grammar is refused: it was not compiled within 1m"));
  EXPECT_TRUE(Compile(Regex("a+")).ok());  // it was not the grammar's fault
}

TEST_F(CompilerTest, DropsWhatWasNotUsedForTheLongest) {
  CompilerOptions options = SmallCompiler(FLOTILLA_PROGRAM);
  options.cache_bytes = 60'000;
  Start(options);
  const auto first = *Compile(Regex("0+"));
  std::shared_ptr<const Grammar> last;
  for (int i = 1; i <= 10; ++i) {
    last = *Compile(Regex(absl::StrCat("[a-z]{1,20}", i)));
    EXPECT_EQ(*Compile(Regex("0+")), first);
    EXPECT_LE(compiler_->cached_bytes(), 60'000u);
  }
  EXPECT_GT(compiler_->cached_bytes(), 30'000u);
  EXPECT_EQ(*Compile(Regex("[a-z]{1,20}10")), last);
  for (int i = 1; i < 10; ++i) ASSERT_TRUE(Compile(Regex(absl::StrCat("[a-z]{1,20}", i))).ok());
  EXPECT_NE(*Compile(Regex("0+")), first);  // it was compiled again
}

TEST_F(CompilerTest, KeepsWhatIsHeldAndRefusesMore) {
  CompilerOptions options = SmallCompiler(FLOTILLA_PROGRAM);
  options.cache_bytes = 60'000;
  Start(options);
  std::vector<std::shared_ptr<const GrammarCompiler::Entry>> held;
  const auto expression = [](std::size_t i) { return Regex(absl::StrCat("[a-z]{1,20}", i)); };
  while (held.size() < 100) {
    held.push_back(compiler_->Get(expression(held.size())));
    Await(*held.back());
    if (!compiler_->IsUsable(*held.back())) break;
  }
  EXPECT_EQ(
      compiler_->GrammarOf(*held.back()).status(),
      absl::ResourceExhaustedError("The grammar is refused: the grammars of other answers take "
                                   "all memory for grammars"));
  ASSERT_GT(held.size(), 2u);
  for (std::size_t i = 0; i + 1 < held.size(); ++i)
    EXPECT_EQ(compiler_->Get(expression(i)), held[i]);
  const std::size_t refused = held.size() - 1;
  held.clear();
  EXPECT_TRUE(Compile(expression(refused)).ok());
}

TEST_F(CompilerTest, RefusesLongTexts) {
  Start(SmallCompiler(FLOTILLA_PROGRAM));
  EXPECT_EQ(Compile(Regex(std::string(Constraint::kMaxBytes + 1, 'a'))).status(),
            absl::InvalidArgumentError("The grammar is refused: it has more than 65536 bytes"));
  EXPECT_EQ(CompileProcessId(), 0);
}

TEST_F(CompilerTest, SleepsWhenThereIsNothingToDo) {
  Start(SmallCompiler(FLOTILLA_PROGRAM));
  ASSERT_TRUE(Compile(Regex("a+")).ok());
  const pid_t process = CompileProcessId();
  // It sleeps in recv, and is waked only by the next constraint.
  const auto state = [&] {
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    std::string word;
    file >> word >> word >> word;
    return word;
  };
  AwaitThat([&] { return state() == "S"; });
  const auto switches = [&] {
    std::ifstream file("/proc/" + std::to_string(process) + "/status");
    long count = -1;
    for (std::string word; count < 0 && file >> word;) {
      if (word == "voluntary_ctxt_switches:") file >> count;
    }
    return count;
  };
  const long before = switches();
  const absl::Time end = absl::Now() + absl::Milliseconds(100);
  AwaitThat([&] { return absl::Now() > end; });
  EXPECT_EQ(switches(), before);
}

}  // namespace
}  // namespace flotilla::worker

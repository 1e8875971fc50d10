// What tests of the compiler and of masks share: the program that compiles, its process, and
// hostile constraints.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/rt/clock.h"
#include "common/types/constraint.h"
#include "worker/constraint/compiler.h"

namespace flotilla::worker {

// A clock that tests move while others read it.
class SharedClock final : public Clock {
 public:
  // `per_read`: how far it moves by itself whenever it is read.
  explicit SharedClock(absl::Duration per_read = absl::ZeroDuration())
      : per_read_ns_(absl::ToInt64Nanoseconds(per_read)) {}
  std::int64_t NowNs() const override { return now_ns_ += per_read_ns_; }
  void Advance(absl::Duration by) { now_ns_ += absl::ToInt64Nanoseconds(by); }

 private:
  const std::int64_t per_read_ns_;
  mutable std::atomic<std::int64_t> now_ns_ = 0;
};

// `program`: a flotilla.
inline CompilerOptions SmallCompiler(std::string program) {
  CompilerOptions options;
  options.program = std::move(program);
  options.patience = absl::Minutes(1);
  options.limits.cpu_us = 100'000;
  options.priority.nice = 0;  // so that no other test makes this one wait
  options.limits.memory_bytes = 512u << 20;
  return options;
}

inline Constraint Regex(const std::string& text) { return {Constraint::Kind::kRegex, text}; }

inline Constraint OfTenant(std::uint32_t tenant, Constraint constraint) {
  constraint.tenant = tenant;
  return constraint;
}

// Repetitions of so many classes, of which each is another one: what is equal is compiled once.
inline std::string ManyClasses(int count) {
  std::string text;
  for (int i = 0; i < count; ++i)
    absl::StrAppend(&text, " [a-z\\u", absl::Hex(0x1000 + i), "-\\uffff]{0,16}");
  return text;
}

// It takes seconds.
inline Constraint SlowConstraint(int number = 0) {
  return Regex(absl::StrCat(number, ManyClasses(2000)));
}

// It takes some 100 MB.
inline Constraint LargeConstraint() {
  return {Constraint::Kind::kGrammar, absl::StrCat("root ::=", ManyClasses(2000))};
}

// The process of the compiler, or 0. There is one at most in a test.
inline pid_t CompileProcessId() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream children(task.path() / "children");
    for (pid_t child = 0; children >> child;) {
      std::ifstream state("/proc/" + std::to_string(child) + "/stat");
      std::string word;
      state >> word >> word >> word;
      if (word != "Z") return child;
    }
  }
  return 0;
}

// The processor time of a process, in ticks of 10 ms.
inline long CpuTicks(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string word;
  for (int i = 0; i < 13; ++i) file >> word;
  long user = 0, system = 0;
  file >> user >> system;
  return user + system;
}

// Waits until `done()`.
template <typename Done>
void AwaitThat(Done done) {
  while (!done()) std::this_thread::yield();
}

}  // namespace flotilla::worker

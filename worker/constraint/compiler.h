// The compiled grammars of a worker: each constraint is compiled once, in another process, and kept
// while there is room.
//
// Tenants take turns: before a tenant's next constraint, one of each other tenant that waits.
//
// Any thread may call it; no call waits for a compile. One thread of its own feeds the process.
// Both start with the first constraint.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/rt/clock.h"
#include "common/types/constraint.h"
#include "worker/constraint/compile_messages.h"
#include "worker/constraint/compile_process.h"
#include "worker/constraint/grammar.h"

namespace flotilla::worker {

struct CompilerOptions {
  std::string program = "/proc/self/exe";
  CompileLimits limits;
  CompilePriority priority;
  // Constraints that wait; more are refused. A tenant takes at most three times as many places as
  // it leaves free.
  std::size_t queue = 64;
  std::size_t cache_bytes = 64u << 20;  // of grammars and texts
  // From the first request for a constraint to its grammar.
  absl::Duration patience = absl::Seconds(30);
  // How long a constraint is refused that has ended the process or has taken too much memory.
  absl::Duration ban = absl::Minutes(10);
};

class GrammarCompiler {
 public:
  // A constraint, and what has become of it.
  class Entry {
   public:
    explicit Entry(Constraint constraint, std::int64_t since_ns)
        : constraint(std::move(constraint)),
          since_ns_(since_ns),
          tenants_{this->constraint.tenant} {}
    const Constraint constraint;
    // When it was first asked for, by the last one of the tenants that wait for it.
    std::int64_t since_ns() const { return since_ns_; }

   private:
    friend class GrammarCompiler;
    // UNAVAILABLE while it is not compiled. The mutex of the compiler guards all that follows.
    absl::StatusOr<std::shared_ptr<const Grammar>> grammar_ = absl::UnavailableError("");
    bool done_ = false;
    std::atomic<std::int64_t> since_ns_;
    std::vector<std::uint32_t> tenants_;  // who wait for it
    std::uint64_t turn_ = 0;
    std::int64_t until_ns_ = INT64_MAX;  // a refusal counts until then
    std::size_t bytes_ = 0;
  };

  // `vocabulary` is `grammars` in another form. `on_done` is called by the compiler's thread
  // whenever a constraint is compiled or refused. `clock` outlives the compiler.
  GrammarCompiler(CompilerOptions options, ConstraintVocabulary vocabulary,
                  std::shared_ptr<const GrammarVocabulary> grammars, const Clock& clock,
                  std::function<void()> on_done);
  // Ends the process.
  ~GrammarCompiler();

  // The entry of a constraint, which is put into the queue if it is new. An entry without a place
  // in the queue is refused with RESOURCE_EXHAUSTED, and later ones of the same constraint are not.
  // One that is not held any more before its turn leaves the queue, and is not compiled.
  std::shared_ptr<const Entry> Get(const Constraint& constraint) ABSL_LOCKS_EXCLUDED(mu_);

  // Whether the entry has its result, which does not change any more.
  bool IsDone(const Entry& entry) const ABSL_LOCKS_EXCLUDED(mu_);
  // The grammar of an entry that is done, or why it has none, in one sentence of at most 160 bytes
  // for the client: INVALID_ARGUMENT, OUT_OF_RANGE (it takes too much memory), ABORTED (it ended
  // the process); RESOURCE_EXHAUSTED if the constraint is not at fault: queue or cache is full, its
  // turn did not come in time, or there is no process.
  absl::StatusOr<std::shared_ptr<const Grammar>> GrammarOf(const Entry& entry) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // False: the entry is refused.
  bool IsUsable(const Entry& entry) const ABSL_LOCKS_EXCLUDED(mu_);

  // Bytes that the cache counts.
  std::size_t cached_bytes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Key = std::pair<Constraint::Kind, std::string_view>;
  using Entries = std::list<std::shared_ptr<Entry>>;

  void Loop();
  bool HasWorkOrStops() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stops_ || !queue_.empty();
  }
  // Whether the tenant is one of those that wait for the entry.
  static bool WaitsFor(std::uint32_t tenant, const Entry& entry);
  // The tenant asks for an entry that others wait for.
  void Join(Entry& entry, std::uint32_t tenant, std::int64_t now_ns)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The turn of a tenant's next constraint: one after its last one, and after the turn that it is
  // now (start-time fair queueing, Goyal et al. 1996).
  std::uint64_t NextTurn(std::uint32_t tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Entries that nobody waits for any more leave the queue, and are forgotten.
  void DropUnwanted() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The next constraint to compile, which leaves the queue: the first one of the lowest turn. Null:
  // nobody waits for any.
  std::shared_ptr<Entry> TakeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::shared_ptr<const Grammar>> Compile(const Entry& entry);
  void Finish(const std::shared_ptr<Entry>& entry,
              absl::StatusOr<std::shared_ptr<const Grammar>> grammar) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(Entries::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes entries that nobody holds, those first that nobody has used for the longest time, until
  // the rest has room, or all are held.
  void MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const CompilerOptions options_;
  const std::shared_ptr<const GrammarVocabulary> grammars_;
  const Clock& clock_;
  const std::function<void()> on_done_;
  CompileProcess process_;  // the thread's, but for Stop

  mutable absl::Mutex mu_;
  bool stops_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::shared_ptr<Entry>> queue_ ABSL_GUARDED_BY(mu_);  // in the order they came
  std::uint64_t turn_ ABSL_GUARDED_BY(mu_) = 0;  // of the constraint that was taken last
  // Of tenants whose last turn is still to come.
  absl::flat_hash_map<std::uint32_t, std::uint64_t> last_turns_ ABSL_GUARDED_BY(mu_);
  Entries entries_ ABSL_GUARDED_BY(mu_);  // the one used last comes first
  // Keys view the texts of entries_.
  absl::flat_hash_map<Key, Entries::iterator> by_key_ ABSL_GUARDED_BY(mu_);
  std::size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace flotilla::worker

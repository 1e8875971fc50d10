#include "worker/constraint/compiler.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/rt/allocator.h"

namespace flotilla::worker {
namespace {

constexpr std::size_t kEntryBytes = 512;  // an entry with its places in list and map
// Compiled bytes from which on what reading them took is given back to the system.
constexpr std::size_t kMany = 1 << 20;

// A message of at most 160 bytes.
absl::Status Refusal(absl::StatusCode code, absl::string_view reason) {
  constexpr std::size_t kMost = 160;
  std::string message = absl::StrCat("The grammar is refused: ", reason);
  if (message.size() > kMost) {
    std::size_t end = kMost - 3;
    while ((message[end] & 0xc0) == 0x80) --end;  // no part of a character stays
    message = message.substr(0, end) + "...";
  }
  return absl::Status(code, message);
}

}  // namespace

GrammarCompiler::GrammarCompiler(CompilerOptions options, ConstraintVocabulary vocabulary,
                                 std::shared_ptr<const GrammarVocabulary> grammars,
                                 const Clock& clock, std::function<void()> on_done)
    : options_(std::move(options)),
      grammars_(std::move(grammars)),
      clock_(clock),
      on_done_(std::move(on_done)),
      process_(options_.program, {options_.limits, std::move(vocabulary)}, options_.priority) {}

GrammarCompiler::~GrammarCompiler() {
  std::thread thread;
  {
    absl::MutexLock lock(&mu_);
    stops_ = true;
    thread.swap(thread_);
  }
  process_.Stop();
  if (thread.joinable()) thread.join();
}

std::shared_ptr<const GrammarCompiler::Entry> GrammarCompiler::Get(const Constraint& constraint) {
  const std::int64_t now_ns = clock_.NowNs();
  absl::MutexLock lock(&mu_);
  DropUnwanted();
  if (const auto found = by_key_.find(Key(constraint.kind, constraint.text));
      found != by_key_.end()) {
    const Entries::iterator at = found->second;
    if (!(*at)->done_ || now_ns < (*at)->until_ns_) {
      Join(**at, constraint.tenant, now_ns);
      entries_.splice(entries_.begin(), entries_, at);
      return *at;
    }
    Remove(at);
  }
  auto entry = std::make_shared<Entry>(constraint, now_ns);
  if (constraint.text.size() > Constraint::kMaxBytes) {
    entry->grammar_ = Refusal(absl::StatusCode::kInvalidArgument,
                              absl::StrCat("it has more than ", Constraint::kMaxBytes, " bytes"));
    entry->done_ = true;
    return entry;
  }
  const auto of_tenant = static_cast<std::size_t>(std::ranges::count_if(
      queue_, [&](const auto& one) { return WaitsFor(constraint.tenant, *one); }));
  const std::size_t free = options_.queue - std::min(options_.queue, queue_.size());
  if (of_tenant >= 3 * free || stops_) {
    entry->grammar_ = Refusal(absl::StatusCode::kResourceExhausted,
                              absl::StrCat(queue_.size(), " others wait to be compiled"));
    entry->done_ = true;
    return entry;
  }
  entry->bytes_ = kEntryBytes + constraint.text.size();
  bytes_ += entry->bytes_;
  entries_.push_front(entry);
  by_key_.emplace(Key(entry->constraint.kind, entry->constraint.text), entries_.begin());
  MakeRoom();
  entry->turn_ = NextTurn(constraint.tenant);
  queue_.push_back(entry);
  if (!thread_.joinable()) thread_ = std::thread([this] { Loop(); });
  return entry;
}

bool GrammarCompiler::IsDone(const Entry& entry) const {
  absl::MutexLock lock(&mu_);
  return entry.done_;
}

bool GrammarCompiler::IsUsable(const Entry& entry) const {
  absl::MutexLock lock(&mu_);
  return !entry.done_ || entry.grammar_.ok();
}

absl::StatusOr<std::shared_ptr<const Grammar>> GrammarCompiler::GrammarOf(
    const Entry& entry) const {
  absl::MutexLock lock(&mu_);
  return entry.grammar_;
}

std::size_t GrammarCompiler::cached_bytes() const {
  absl::MutexLock lock(&mu_);
  return bytes_;
}

void GrammarCompiler::Loop() {
  while (true) {
    std::shared_ptr<Entry> entry;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &GrammarCompiler::HasWorkOrStops));
      if (stops_) return;
      entry = TakeNext();
    }
    if (entry == nullptr) continue;
    Finish(entry, Compile(*entry));
    on_done_();
  }
}

bool GrammarCompiler::WaitsFor(std::uint32_t tenant, const Entry& entry) {
  return std::ranges::find(entry.tenants_, tenant) != entry.tenants_.end();
}

std::uint64_t GrammarCompiler::NextTurn(std::uint32_t tenant) {
  std::uint64_t& last = last_turns_[tenant];
  return last = std::max(turn_, last) + 1;
}

void GrammarCompiler::Join(Entry& entry, std::uint32_t tenant, std::int64_t now_ns) {
  const bool is_new = !entry.done_ && !WaitsFor(tenant, entry);
  if (!is_new || entry.tenants_.size() >= options_.queue) return;
  entry.tenants_.push_back(tenant);
  entry.turn_ = std::min(entry.turn_, NextTurn(tenant));
  entry.since_ns_ = now_ns;
}

void GrammarCompiler::DropUnwanted() {
  // That of entries_ and that of the queue. Only Get gives others, under the mutex.
  constexpr int kOwnHolders = 2;
  for (auto at = queue_.begin(); at != queue_.end();) {
    if (at->use_count() > kOwnHolders) {
      ++at;
      continue;
    }
    const std::shared_ptr<Entry> dropped = std::move(*at);
    at = queue_.erase(at);
    Remove(by_key_.find(Key(dropped->constraint.kind, dropped->constraint.text))->second);
    // What was not compiled has taken no turn of those who have nothing else here.
    for (const std::uint32_t tenant : dropped->tenants_) {
      const auto waits = [&](const auto& one) { return WaitsFor(tenant, *one); };
      if (std::ranges::none_of(queue_, waits)) last_turns_.erase(tenant);
    }
  }
}

std::shared_ptr<GrammarCompiler::Entry> GrammarCompiler::TakeNext() {
  DropUnwanted();
  if (queue_.empty()) return nullptr;
  const auto next =
      std::ranges::min_element(queue_, {}, [](const auto& entry) { return entry->turn_; });
  std::shared_ptr<Entry> entry = std::move(*next);
  queue_.erase(next);
  turn_ = std::max(turn_, entry->turn_);
  absl::erase_if(last_turns_, [turn = turn_](const auto& one) { return one.second <= turn; });
  return entry;
}

absl::StatusOr<std::shared_ptr<const Grammar>> GrammarCompiler::Compile(const Entry& entry) {
  const absl::Duration patience =
      options_.patience - absl::Nanoseconds(clock_.NowNs() - entry.since_ns());
  absl::StatusOr<std::string> compiled = absl::DeadlineExceededError("");
  if (patience > absl::ZeroDuration()) compiled = process_.Compile(entry.constraint, patience);
  absl::Status why = compiled.status();
  if (compiled.ok()) {
    absl::StatusOr<std::shared_ptr<const Grammar>> grammar =
        Grammar::Read(*compiled, entry.constraint, grammars_);
    if (compiled->size() >= kMany) ReturnFreeMemory();
    if (grammar.ok()) return grammar;
    why = grammar.status();
  }
  switch (why.code()) {
    case absl::StatusCode::kResourceExhausted:
      return Refusal(absl::StatusCode::kOutOfRange, why.message());
    case absl::StatusCode::kUnavailable:
      return Refusal(absl::StatusCode::kResourceExhausted, why.message());
    case absl::StatusCode::kDeadlineExceeded:
      // Others have taken the time: its own processor time has a limit.
      return Refusal(
          absl::StatusCode::kResourceExhausted,
          absl::StrCat("it was not compiled within ", absl::FormatDuration(options_.patience)));
    default:
      return Refusal(why.code(), why.message());
  }
}

void GrammarCompiler::Finish(const std::shared_ptr<Entry>& entry,
                             absl::StatusOr<std::shared_ptr<const Grammar>> grammar) {
  const std::int64_t now_ns = clock_.NowNs();
  absl::MutexLock lock(&mu_);
  const std::size_t bytes = grammar.ok() ? (*grammar)->bytes() : 0;
  switch (grammar.status().code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kInvalidArgument:
      break;  // it would be so again
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kOutOfRange:
      entry->until_ns_ = now_ns + absl::ToInt64Nanoseconds(options_.ban);
      break;
    default:
      entry->until_ns_ = now_ns;  // the constraint is not the cause
  }
  entry->grammar_ = std::move(grammar);
  entry->done_ = true;
  const auto found = by_key_.find(Key(entry->constraint.kind, entry->constraint.text));
  if (found == by_key_.end() || *found->second != entry) return;  // there was no room
  entry->bytes_ += bytes;
  bytes_ += bytes;
  MakeRoom();
  if (bytes_ <= options_.cache_bytes || entries_.size() == 1) return;
  entry->bytes_ -= bytes;
  bytes_ -= bytes;
  entry->until_ns_ = now_ns;
  entry->grammar_ = Refusal(absl::StatusCode::kResourceExhausted,
                            "the grammars of other answers take all memory for grammars");
}

void GrammarCompiler::Remove(Entries::iterator entry) {
  bytes_ -= (*entry)->bytes_;
  by_key_.erase(Key((*entry)->constraint.kind, (*entry)->constraint.text));
  entries_.erase(entry);
}

void GrammarCompiler::MakeRoom() {
  for (auto at = entries_.end(); bytes_ > options_.cache_bytes && at != entries_.begin();) {
    const auto entry = std::prev(at);
    const bool is_held = entry->use_count() > 1 || entry == entries_.begin();
    if (is_held) {
      at = entry;
    } else {
      Remove(entry);
    }
  }
}

}  // namespace flotilla::worker

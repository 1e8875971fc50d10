#include "router/core/fair_queue.h"

#include <algorithm>
#include <utility>

namespace flotilla::router {
namespace {

// The least cost of a job. It stands for the hand-over and the answer, which a short text needs
// too.
constexpr std::size_t kLeastCost = 1024;

}  // namespace

FairQueue::Size FairQueue::SizeOf(std::size_t bytes) {
  if (bytes <= kSmallBytes) return Size::kSmall;
  return bytes <= kMediumBytes ? Size::kMedium : Size::kLarge;
}

bool FairQueue::HasRoom(std::string_view tenant, std::size_t bytes) const {
  if (jobs_ >= limits_.max_jobs || bytes > limits_.max_bytes - bytes_) return false;
  const auto held = held_.find(std::string(tenant));
  if (held == held_.end()) return true;
  return held->second.jobs < kRoomShare * (limits_.max_jobs - jobs_) &&
         held->second.bytes + bytes <= kRoomShare * (limits_.max_bytes - bytes_);
}

bool FairQueue::Push(std::string_view tenant, std::size_t bytes, std::uint64_t id) {
  if (!HasRoom(tenant, bytes)) return false;
  Class& its = classes_[Index(SizeOf(bytes))];
  Forget(its);
  std::uint64_t& finish = its.finish[std::string(tenant)];
  const std::uint64_t start = std::max(its.now, finish);
  finish = start + std::max(bytes, kLeastCost);
  its.waiting.push_back({id, std::string(tenant), bytes, start});
  Held& held = held_[std::string(tenant)];
  ++held.jobs;
  held.bytes += bytes;
  ++jobs_;
  bytes_ += bytes;
  return true;
}

// A class without work forgets all its tenants, because there is nothing to be fair about.
// A tenant whose turn is over counts like a new one and can be forgotten, too. A client can
// invent any number of tenant names, so at most four times as many are remembered as jobs fit in.
void FairQueue::Forget(Class& of) {
  if (of.waiting.empty()) of.passed = 0;
  if (of.waiting.empty() && of.running == 0) {
    of.finish.clear();
    of.now = 0;
  } else if (of.finish.size() >= 4 * limits_.max_jobs) {
    absl::erase_if(of.finish, [&](const auto& entry) { return entry.second <= of.now; });
    if (of.finish.size() >= 4 * limits_.max_jobs) of.finish.clear();
  }
}

// A class and the larger classes together may use all threads except one for each smaller class.
// They may always use one. A job counts for its class and for all smaller ones.
bool FairQueue::MayRun(std::size_t size) const {
  std::uint32_t running = 0;
  for (std::size_t i = kSizes; i-- > 0;) {
    running += classes_[i].running;
    const auto smaller = static_cast<std::uint32_t>(i);
    const std::uint32_t most = limits_.threads > smaller ? limits_.threads - smaller : 1;
    if (i <= size && running >= most) return false;
  }
  return true;
}

std::optional<std::size_t> FairQueue::Choose() const {
  std::optional<std::size_t> chosen;
  for (std::size_t i = 0; i < kSizes; ++i) {
    if (classes_[i].waiting.empty() || !MayRun(i)) continue;
    const bool due = classes_[i].passed >= kMaxPassed;
    if (!chosen || (due && classes_[i].passed > classes_[*chosen].passed)) chosen = i;
  }
  return chosen;
}

std::optional<FairQueue::Job> FairQueue::Next() {
  const std::optional<std::size_t> chosen = Choose();
  if (!chosen) return std::nullopt;
  for (std::size_t i = *chosen + 1; i < kSizes; ++i) {
    if (!classes_[i].waiting.empty() && MayRun(i)) ++classes_[i].passed;
  }
  Class& its = classes_[*chosen];
  its.passed = 0;
  // Takes the first of the earliest, so jobs with the same start run in the order of arrival.
  const auto first =
      std::min_element(its.waiting.begin(), its.waiting.end(),
                       [](const Waiting& a, const Waiting& b) { return a.start < b.start; });
  const Waiting job = Take(its, static_cast<std::size_t>(first - its.waiting.begin()));
  its.now = std::max(its.now, job.start);
  ++its.running;
  return Job{job.id, static_cast<Size>(*chosen)};
}

void FairQueue::Remove(std::uint64_t id) {
  for (Class& each : classes_) {
    const auto found = std::find_if(each.waiting.begin(), each.waiting.end(),
                                    [id](const Waiting& job) { return job.id == id; });
    if (found == each.waiting.end()) continue;
    Take(each, static_cast<std::size_t>(found - each.waiting.begin()));
    return;
  }
}

FairQueue::Waiting FairQueue::Take(Class& from, std::size_t at) {
  Waiting job = std::move(from.waiting[at]);
  from.waiting.erase(from.waiting.begin() + static_cast<std::ptrdiff_t>(at));
  const auto held = held_.find(job.tenant);
  --held->second.jobs;
  held->second.bytes -= job.bytes;
  if (held->second.jobs == 0) held_.erase(held);
  --jobs_;
  bytes_ -= job.bytes;
  return job;
}

}  // namespace flotilla::router

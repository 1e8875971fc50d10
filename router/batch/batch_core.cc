#include "router/batch/batch_core.h"

#include <algorithm>
#include <utility>

#include "common/types/text.h"

namespace flotilla::router {
namespace {

constexpr std::int64_t kMsNs = 1'000'000;
// The wait after a refusal that names none, and the longest wait. No line is lost by a wait that is
// too short, so there is no need to wait as long as a client of a busy server should.
constexpr std::int64_t kDefaultRetryMs = 200, kMaxRetryMs = 2000;

}  // namespace

absl::Status BatchCore::Add(const std::string& custom_id, LinePlace place) {
  if (lines_.size() >= kMaxBatchLines) {
    return absl::ResourceExhaustedError(
        Cat("a batch has at most ", kMaxBatchLines, " lines; split the file"));
  }
  const auto [at, is_new] = index_.try_emplace(custom_id, lines_.size());
  if (!is_new) {
    return absl::AlreadyExistsError(
        Cat("line ", at->second + 1, " has the same custom_id '", custom_id, "'"));
  }
  lines_.push_back({.custom_id = &at->first, .place = place});
  counts_.lines = lines_.size();
  return absl::OkStatus();
}

absl::Status BatchCore::Recover(const AnswerSummary& answer) {
  const auto at = index_.find(answer.custom_id);
  if (at == index_.end()) {
    return absl::NotFoundError(Cat("the input has no custom_id '", answer.custom_id, "'"));
  }
  Line& line = lines_[at->second];
  if (line.state == State::kAnswered) {
    return absl::AlreadyExistsError(
        Cat("custom_id '", answer.custom_id, "' is answered a second time"));
  }
  line.state = State::kAnswered;
  Count(answer);
  return absl::OkStatus();
}

std::optional<std::size_t> BatchCore::Next(std::int64_t now_ns) {
  if (stopping_ || in_flight_ >= concurrency_ || now_ns < resume_ns_) return std::nullopt;
  while (next_ < lines_.size() && lines_[next_].state == State::kAnswered) ++next_;
  const bool has_new = next_ < lines_.size();
  std::size_t line = 0;
  if (!again_.empty() && (!has_new || !new_is_next_)) {
    line = again_.front();
    again_.pop_front();
    new_is_next_ = true;
  } else if (has_new) {
    line = next_++;
    lines_[line].began = ++began_;
    new_is_next_ = false;
  } else {
    return std::nullopt;
  }
  lines_[line].state = State::kInFlight;
  ++in_flight_;
  return line;
}

void BatchCore::OnAnswered(std::size_t line, const AnswerSummary& answer) {
  lines_[line].state = State::kAnswered;
  last_answered_ = std::max(last_answered_, lines_[line].began);
  --in_flight_;
  Count(answer);
}

bool BatchCore::OnRefused(std::size_t line, int status, std::int64_t retry_after_ms,
                          std::int64_t now_ns) {
  Line& refused = lines_[line];
  if (max_unavailable_ > 0) {
    if (status == 503 && ++refused.unavailable >= max_unavailable_) return false;
    const bool passed_by = last_answered_ > refused.began || in_flight_ == 1;
    if (status != 503 && passed_by && ++refused.passed_by >= kMaxPassedBy) return false;
  }
  refused.state = State::kWaiting;
  --in_flight_;
  again_.push_back(line);
  const std::int64_t wait_ms = std::clamp<std::int64_t>(
      retry_after_ms > 0 ? retry_after_ms : kDefaultRetryMs, 1, kMaxRetryMs);
  resume_ns_ = std::max(resume_ns_, now_ns + wait_ms * kMsNs);
  return true;
}

std::optional<std::int64_t> BatchCore::resume_ns(std::int64_t now_ns) const {
  if (stopping_ || now_ns >= resume_ns_) return std::nullopt;
  return resume_ns_;
}

void BatchCore::Count(const AnswerSummary& answer) {
  ++counts_.answered;
  ++counts_.by_status[answer.status];
  counts_.prompt_tokens += answer.prompt_tokens;
  counts_.completion_tokens += answer.completion_tokens;
}

}  // namespace flotilla::router

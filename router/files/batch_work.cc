#include "router/files/batch_work.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "common/types/text.h"
#include "router/batch/batch_line.h"
#include "router/errors.h"

namespace flotilla::router {
namespace {

// The bytes of the input, or of answers, that one turn of the files thread reads: some
// milliseconds.
constexpr std::size_t kSliceBytes = 256 << 10;
// The wrong lines that a batch tells of.
constexpr std::size_t kMaxErrors = 10;
// Lines of failures are written in pieces of about this size.
constexpr std::size_t kWriteBytes = 256 << 10;

bool IsEmpty(std::string_view line) {
  return std::all_of(line.begin(), line.end(),
                     [](unsigned char c) { return absl::ascii_isspace(c); });
}

}  // namespace

BatchWork::BatchWork(const Parts& parts, const StoredBatch& batch, const KeptAnswers& kept)
    : parts_(parts), batch_(batch), kept_(kept), core_(1, /*max_unavailable=*/0) {}

BatchWork::~BatchWork() {
  runner_.reset();
  parts_.store->ledger().Release(batch_.tenant, reserved_);
}

// --- The input ---------------------------------------------------------------

absl::Status BatchWork::Read() {
  if (!reader_.has_value()) {
    absl::StatusOr<UniqueFd> input = parts_.store->OpenData(batch_.order.input_file_id);
    if (!input.ok()) return input.status();
    input_ = *std::move(input);
    reader_.emplace(input_.get(), kMaxBatchLineBytes);
  }
  for (std::size_t bytes = 0; bytes < kSliceBytes;) {
    const absl::StatusOr<std::optional<TextLine>> line = reader_->Next();
    if (!line.ok() && !absl::IsResourceExhausted(line.status())) return line.status();
    if (!line.ok()) {
      AddError({.code = "line_too_long", .message = std::string(line.status().message())});
    } else if (line->has_value()) {
      bytes += (*line)->text.size() + 1;
      if (AddLine(**line).ok()) continue;
    } else if (core_.counts().lines == 0 && errors_.empty()) {
      AddError(
          {.code = "empty_file", .message = "the input has no lines", .param = "input_file_id"});
    }
    // The input is read, or so wrong that the rest does not matter.
    phase_ = errors_.empty() ? Phase::kRead : Phase::kWrong;
    return absl::OkStatus();
  }
  return absl::OkStatus();
}

// An error: no further line matters.
absl::Status BatchWork::AddLine(const TextLine& line) {
  if (IsEmpty(line.text)) {  // at the end they do not count
    if (empty_ == 0) empty_ = line.number;
    return absl::OkStatus();
  }
  if (empty_ != 0) {
    AddError({.code = "invalid_json_line",
              .message = "the line is empty",
              .line = std::exchange(empty_, 0)});
  }
  if (core_.counts().lines >= kMaxClientLines) {
    AddError({.code = "too_many_lines",
              .message = Cat("a batch has at most ", kMaxClientLines, " lines"),
              .param = "input_file_id",
              .line = line.number});
    return absl::ResourceExhaustedError("");
  }
  const absl::StatusOr<BatchRequest> request = ParseBatchRequest(line.text);
  if (!request.ok()) {
    AddError({.code = "invalid_request",
              .message = std::string(request.status().message()),
              .param = ErrorField(request.status()),
              .line = line.number});
  } else if (request->url != batch_.order.endpoint) {
    AddError({.code = "mismatched_endpoint",
              .message = Cat("'url' is ", request->url, " and the endpoint of the batch is ",
                             batch_.order.endpoint),
              .param = "url",
              .line = line.number});
  }
  const LinePlace place{line.begin, static_cast<std::uint32_t>(line.text.size())};
  const absl::Status added = request.ok() ? core_.Add(request->custom_id, place) : absl::OkStatus();
  if (!added.ok()) {
    AddError({.code = "duplicate_custom_id",
              .message = std::string(added.message()),
              .param = "custom_id",
              .line = line.number});
  }
  return errors_.size() < kMaxErrors ? absl::OkStatus() : absl::InvalidArgumentError("");
}

// --- The answers -------------------------------------------------------------

absl::Status BatchWork::Begin() {
  absl::StatusOr<AnswerFile> output = AnswerFile::Open(parts_.store->DataPath(batch_.output_id),
                                                       &parts_.store->disk(), kept_.output);
  if (!output.ok()) return output.status();
  absl::StatusOr<AnswerFile> errors = AnswerFile::Open(parts_.store->DataPath(batch_.error_id),
                                                       &parts_.store->disk(), kept_.errors);
  if (!errors.ok()) return errors.status();
  output_ = *std::move(output);
  error_output_ = *std::move(errors);
  reader_.reset();
  phase_ = Phase::kRecovering;
  return Reserve(
      parts_.store->DataBytes(batch_.output_id) + parts_.store->DataBytes(batch_.error_id),
      /*within_quota=*/false);
}

absl::Status BatchWork::Recover() {
  AnswerFile& file = output_recovered_ ? *error_output_ : *output_;
  const absl::StatusOr<AnswerFile::Recovered> recovered = file.Recover(
      [this](std::string_view line) -> absl::Status {
        const absl::StatusOr<AnswerSummary> answer = ReadBatchAnswer(line);
        if (!answer.ok()) return absl::DataLossError(Cat(answer.status().message()));
        return core_.Recover(*answer);
      },
      kSliceBytes);
  if (!recovered.ok()) return recovered.status();
  if (*recovered == AnswerFile::Recovered::kMore) return absl::OkStatus();
  if (*recovered == AnswerFile::Recovered::kDamaged) damaged_ = true;
  if (!std::exchange(output_recovered_, true)) return absl::OkStatus();
  BeginAnswering();
  return absl::OkStatus();
}

void BatchWork::BeginAnswering() {
  const std::uint64_t kept =
      parts_.store->DataBytes(batch_.output_id) + parts_.store->DataBytes(batch_.error_id);
  parts_.store->ledger().Release(batch_.tenant, reserved_);
  parts_.store->ledger().Hold(batch_.tenant, kept);  // fewer, if some were cut off
  reserved_ = kept;
  runner_.emplace(LineRunner::Parts{
      .handler = parts_.handler,
      .clock = parts_.clock,
      .core = &core_,
      .input = input_.get(),
      .output = &*output_,
      .errors = &*error_output_,
      .tenant = batch_.tenant,
      .background = true,
      .models_due_ns = parts_.models_due_ns,
      .reserve = [this](std::size_t bytes) { return Reserve(bytes, /*within_quota=*/true); },
      .on_reply = parts_.on_reply});
  phase_ = Phase::kAnswering;
}

absl::Status BatchWork::Reserve(std::size_t bytes, bool within_quota) {
  FileLedger& ledger = parts_.store->ledger();
  if (within_quota) {
    if (absl::Status s = ledger.Reserve(batch_.tenant, bytes); !s.ok()) return s;
  } else {
    ledger.Hold(batch_.tenant, bytes);
  }
  reserved_ += bytes;
  return absl::OkStatus();
}

absl::Status BatchWork::Step() { return runner_->Step(); }

std::int64_t BatchWork::due_ns(std::int64_t now_ns, std::int64_t rest_ns) const {
  return runner_.has_value() ? runner_->due_ns(now_ns, rest_ns) : now_ns + rest_ns;
}

void BatchWork::Stop() {
  core_.Stop();
  if (runner_.has_value()) runner_->Drop();
}

absl::Status BatchWork::FailTheRest() {
  std::string text;
  for (std::size_t line = 0; line < core_.counts().lines; ++line) {
    if (!core_.answered(line)) {
      text += BatchFailureLine(line + 1, core_.custom_id(line), "batch_expired",
                               "the completion window was over before this request was answered");
    }
    if (text.size() < kWriteBytes && line + 1 < core_.counts().lines) continue;
    if (absl::Status s = Reserve(text.size(), /*within_quota=*/false); !s.ok()) return s;
    if (absl::Status s = error_output_->Append(text); !s.ok()) return s;
    text.clear();
  }
  return absl::OkStatus();
}

absl::Status BatchWork::Sync() {
  if (!output_.has_value()) return absl::OkStatus();
  if (absl::Status s = output_->Sync(); !s.ok()) return s;
  return error_output_->Sync();
}

KeptAnswers BatchWork::kept() const {
  if (!output_.has_value()) return kept_;
  return {.output = output_->kept(), .errors = error_output_->kept()};
}

RequestCounts BatchWork::counts() const {
  const BatchCounts& counts = core_.counts();
  const auto ok = counts.by_status.find(200);
  const std::uint64_t completed = ok == counts.by_status.end() ? 0 : ok->second;
  return {.total = counts.lines, .completed = completed, .failed = counts.answered - completed};
}

BatchEnd BatchWork::End(BatchStatus status) const {
  BatchEnd end{.status = status,
               .counts = counts(),
               .output_bytes = parts_.store->DataBytes(batch_.output_id),
               .error_bytes = parts_.store->DataBytes(batch_.error_id),
               .errors = errors_};
  if (status == BatchStatus::kExpired) end.counts.failed = end.counts.total - end.counts.completed;
  return end;
}

}  // namespace flotilla::router

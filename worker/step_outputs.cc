#include "worker/step_outputs.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include "worker/sampling/sampler.h"

namespace flotilla {
namespace {

// The most entries that one request has: of the best tokens, or of candidates.
constexpr std::int64_t kMostEntries =
    std::max<std::int64_t>(LogprobSpec::kMaxTop, BeamOptions::kMaxCandidates);

template <class T>
void Put(const T& value, std::vector<std::byte>& note) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  note.insert(note.end(), bytes, bytes + sizeof(T));
}

template <class T>
bool Get(absl::Span<const std::byte>& note, T& value) {
  if (note.size() < sizeof(T)) return false;
  std::memcpy(&value, note.data(), sizeof(T));
  note.remove_prefix(sizeof(T));
  return true;
}

void PutEntries(const std::vector<TopLogprob>& entries, std::vector<std::byte>& note) {
  Put(static_cast<std::uint32_t>(entries.size()), note);
  for (const TopLogprob& entry : entries) Put(entry, note);
}

bool GetEntries(absl::Span<const std::byte>& note, std::vector<TopLogprob>& entries) {
  std::uint32_t count = 0;
  if (!Get(note, count) || count > kMostEntries) return false;
  entries.resize(count);
  for (TopLogprob& entry : entries) {
    if (!Get(note, entry)) return false;
  }
  return true;
}

void PutToken(const SampledToken& token, std::vector<std::byte>& note) {
  Put(token.token, note);
  Put(token.logprob, note);
  PutEntries(token.top, note);
}

bool GetToken(absl::Span<const std::byte>& note, SampledToken& token) {
  return Get(note, token.token) && Get(note, token.logprob) && GetEntries(note, token.top);
}

// The place of sample `at` of an item.
TokenPlace PlaceOf(const Batch& batch, const BatchItem& item, std::uint32_t at) {
  const std::uint32_t first = item.row_begin + item.row_count - item.drafts;
  return PlaceAfter(item.index, item.known, item.output_index,
                    absl::MakeConstSpan(batch.tokens).subspan(first, at), *item.stop);
}

}  // namespace

StepOutputs::StepOutputs(const Batch& batch) : outputs_(batch.items.size()) {
  for (std::size_t i = 0; i < batch.items.size(); ++i) {
    const BatchItem& item = batch.items[i];
    outputs_[i].prompt.resize(item.prompt_targets.size());
    for (std::size_t t = 0; t < item.prompt_targets.size(); ++t) {
      rows_.push_back(static_cast<std::int32_t>(item.row_begin + t));
      requests_.push_back({.item = static_cast<std::int32_t>(i),
                           .kind = Request::Kind::kPrompt,
                           .at = static_cast<std::uint32_t>(t)});
    }
    if (!item.samples && item.candidates == 0) continue;
    if (item.samples) outputs_[i].sampled.resize(1 + item.drafts);
    const std::uint32_t first = item.row_begin + item.row_count - 1 - item.drafts;
    for (std::uint32_t at = 0; at <= item.drafts; ++at) {
      rows_.push_back(static_cast<std::int32_t>(first + at));
      requests_.push_back(
          {.item = static_cast<std::int32_t>(i),
           .kind = item.samples ? Request::Kind::kSample : Request::Kind::kCandidates,
           .at = at});
    }
  }
}

void StepOutputs::Take(const kernels::Ops& ops, const Batch& batch, int request,
                       absl::Span<const float> logits) {
  Request& wanted = requests_[request];
  const BatchItem& item = batch.items[wanted.item];
  ItemOutput& output = outputs_[wanted.item];
  if (wanted.kind == Request::Kind::kSample) {
    auto token =
        SampleRow(ops, logits, *item.sampling, *item.logprobs, PlaceOf(batch, item, wanted.at));
    wanted.failed = !token.ok();
    if (token.ok()) output.sampled[wanted.at] = *std::move(token);
  } else if (wanted.kind == Request::Kind::kCandidates) {
    auto candidates = RowCandidates(ops, logits, item.candidates);
    wanted.failed = !candidates.ok();
    if (candidates.ok()) output.candidates = *std::move(candidates);
  } else {
    auto token =
        RowLogprobs(ops, logits, item.prompt_targets[wanted.at], item.logprobs->prompt_top);
    wanted.failed = !token.ok();
    if (token.ok()) output.prompt[wanted.at] = *std::move(token);
  }
}

void StepOutputs::Write(std::uint32_t first, std::uint32_t stride,
                        std::vector<std::byte>& note) const {
  for (std::size_t i = first; i < requests_.size(); i += stride) {
    const Request& request = requests_[i];
    const ItemOutput& output = outputs_[request.item];
    Put(static_cast<std::uint8_t>(request.failed), note);
    if (request.failed) continue;
    switch (request.kind) {
      case Request::Kind::kPrompt:
        PutToken(output.prompt[request.at], note);
        break;
      case Request::Kind::kSample:
        PutToken(output.sampled[request.at], note);
        break;
      case Request::Kind::kCandidates:
        PutEntries(output.candidates, note);
        break;
    }
  }
}

absl::Status StepOutputs::Read(std::uint32_t first, std::uint32_t stride,
                               absl::Span<const std::byte> note) {
  bool good = true;
  for (std::size_t i = first; good && i < requests_.size(); i += stride) {
    Request& request = requests_[i];
    ItemOutput& output = outputs_[request.item];
    std::uint8_t failed = 0;
    good = Get(note, failed);
    request.failed = failed != 0;
    if (!good || request.failed) continue;
    switch (request.kind) {
      case Request::Kind::kPrompt:
        good = GetToken(note, output.prompt[request.at]);
        break;
      case Request::Kind::kSample:
        good = GetToken(note, output.sampled[request.at]);
        break;
      case Request::Kind::kCandidates:
        good = GetEntries(note, output.candidates);
        break;
    }
  }
  if (!good || !note.empty()) {
    return absl::InvalidArgumentError("a rank's note is not about this step's logits");
  }
  return absl::OkStatus();
}

std::int64_t StepOutputs::MaxNoteBytes(std::int64_t requests) {
  return requests *
         static_cast<std::int64_t>(sizeof(std::uint8_t) + sizeof(TokenId) + sizeof(float) +
                                   sizeof(std::uint32_t) + kMostEntries * sizeof(TopLogprob));
}

absl::Span<const ItemOutput> StepOutputs::Finish() {
  for (const Request& request : requests_) {
    if (!request.failed) continue;
    ItemOutput& output = outputs_[request.item];
    output.failed = true;
    if (request.kind == Request::Kind::kSample && request.at < output.sampled.size()) {
      output.sampled.resize(request.at);
    }
  }
  return outputs_;
}

}  // namespace flotilla

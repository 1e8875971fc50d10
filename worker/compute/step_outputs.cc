#include "worker/compute/step_outputs.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace flotilla::worker {
namespace {

// The most entries in the list of one request, which holds best tokens or candidates.
constexpr std::int64_t kMostEntries =
    std::max<std::int64_t>(LogprobSpec::kMaxTop, BeamOptions::kMaxCandidates);

// How long a row waits for a mask that is not there. Those that come after it has given up do not
// wait, so that a step is late by no more than this.
constexpr absl::Duration kPatience = absl::Milliseconds(5);

template <class T>
void Put(const T& value, std::vector<std::byte>& metadata) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  metadata.insert(metadata.end(), bytes, bytes + sizeof(T));
}

template <class T>
bool Get(absl::Span<const std::byte>& metadata, T& value) {
  if (metadata.size() < sizeof(T)) return false;
  std::memcpy(&value, metadata.data(), sizeof(T));
  metadata.remove_prefix(sizeof(T));
  return true;
}

template <class T>
void PutEntries(const std::vector<T>& entries, std::vector<std::byte>& metadata) {
  Put(static_cast<std::uint32_t>(entries.size()), metadata);
  for (const T& entry : entries) Put(entry, metadata);
}

template <class T>
bool GetEntries(absl::Span<const std::byte>& metadata, std::int64_t most, std::vector<T>& entries) {
  std::uint32_t count = 0;
  if (!Get(metadata, count) || count > most) return false;
  entries.resize(count);
  for (T& entry : entries) {
    if (!Get(metadata, entry)) return false;
  }
  return true;
}

void PutToken(const SampledToken& token, std::vector<std::byte>& metadata) {
  Put(token.token, metadata);
  Put(token.logprob, metadata);
  PutEntries(token.top, metadata);
}

bool GetToken(absl::Span<const std::byte>& metadata, SampledToken& token) {
  return Get(metadata, token.token) && Get(metadata, token.logprob) &&
         GetEntries(metadata, kMostEntries, token.top);
}

void PutPartial(const RowPartial& partial, std::vector<std::byte>& metadata) {
  Put(partial.winner, metadata);
  Put(partial.logit, metadata);
  PutEntries(partial.stats, metadata);
  PutEntries(partial.best, metadata);
}

bool GetPartial(absl::Span<const std::byte>& metadata, std::size_t subtrees, RowPartial& partial) {
  return Get(metadata, partial.winner) && Get(metadata, partial.logit) &&
         GetEntries(metadata, static_cast<std::int64_t>(subtrees), partial.stats) &&
         partial.stats.size() == subtrees && GetEntries(metadata, kMostEntries, partial.best);
}

// Longer ones are cut.
void PutText(absl::string_view text, std::vector<std::byte>& metadata) {
  text = text.substr(0, SequenceResult::kMaxReason);
  Put(static_cast<std::uint32_t>(text.size()), metadata);
  for (const char c : text) Put(c, metadata);
}

bool GetText(absl::Span<const std::byte>& metadata, std::string& text) {
  std::uint32_t size = 0;
  if (!Get(metadata, size) || size > SequenceResult::kMaxReason || size > metadata.size()) {
    return false;
  }
  text.assign(reinterpret_cast<const char*>(metadata.data()), size);
  metadata.remove_prefix(size);
  return true;
}

// The position of sample `at` of an item.
TokenPosition PositionOf(const Batch& batch, const BatchItem& item, std::uint32_t at) {
  const std::uint32_t first = item.row_begin + item.row_count - item.drafts;
  return PositionAfter(item.index, item.known, item.output_index,
                       absl::MakeConstSpan(batch.tokens).subspan(first, at), *item.stop);
}

}  // namespace

StepOutputs::StepOutputs(const Batch& batch, const VocabularyShards& vocabulary,
                         const kernels::Ops& ops)
    : vocabulary_(vocabulary), ops_(ops), outputs_(batch.items.size()) {
  for (std::size_t i = 0; i < batch.items.size(); ++i) {
    const BatchItem& item = batch.items[i];
    outputs_[i].prompt.resize(item.prompt_targets.size());
    Request request{.item = static_cast<std::int32_t>(i), .kind = Request::Kind::kPrompt};
    if (!item.prompt_targets.empty()) request.top = item.logprobs->prompt_top;
    const auto want = [&](std::uint32_t first_row, std::uint32_t at) {
      request.row = static_cast<std::int32_t>(first_row + at);
      request.at = at;
      requests_.push_back(request);
    };
    for (std::uint32_t t = 0; t < item.prompt_targets.size(); ++t) want(item.row_begin, t);
    if (!item.samples && item.candidates == 0) continue;
    if (item.samples) outputs_[i].sampled.resize(1 + item.drafts);
    const std::uint32_t first = item.row_begin + item.row_count - 1 - item.drafts;
    request.kind = item.samples ? Request::Kind::kSample : Request::Kind::kCandidates;
    request.top = item.samples ? item.logprobs->output_top : std::int32_t(item.candidates);
    request.is_masked = item.is_constrained();
    request.full_row = request.is_masked || (item.samples && NeedsFullRow(*item.sampling));
    for (std::uint32_t at = 0; at <= item.drafts; ++at) want(first, at);
  }
}

void StepOutputs::AddRequests(const Batch& batch, OnHost on_host, StepInputs& inputs) {
  draws_.resize(requests_.size());
  const auto make_draw = [&](std::int64_t i) {
    const Request& wanted = requests_[i];
    if (wanted.kind != Request::Kind::kSample) return;
    const BatchItem& item = batch.items[wanted.item];
    draws_[i] = MakeDraw(*item.sampling, PositionOf(batch, item, wanted.at));
  };
  const auto penalises = [](const BatchItem& item) { return Penalises(*item.sampling); };
  const auto count = static_cast<std::int64_t>(requests_.size());
  if (std::any_of(batch.items.begin(), batch.items.end(), penalises)) {
    on_host(count, make_draw);
  } else {
    for (std::int64_t i = 0; i < count; ++i) make_draw(i);
  }
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const Request& wanted = requests_[i];
    RowRequest& request = inputs.requests.emplace_back();
    request.row = wanted.row;
    request.full_row = wanted.full_row;
    request.top = wanted.top;
    if (wanted.kind == Request::Kind::kPrompt) {
      request.pick = RowRequest::Pick::kKnown;
      request.token = batch.items[wanted.item].prompt_targets[wanted.at];
    }
    if (wanted.kind != Request::Kind::kSample || wanted.full_row) continue;
    const TokenDraw draw = std::move(draws_[i]);  // the inputs have the edits from here on
    request.pick = draw.greedy() ? RowRequest::Pick::kGreedy : RowRequest::Pick::kGumbel;
    if (!draw.greedy()) request.inverse_temperature = 1.0f / draw.temperature;
    request.noise = draw.noise;
    request.edits_begin = static_cast<std::int64_t>(inputs.edits.size());
    inputs.edits.insert(inputs.edits.end(), draw.edits.begin(), draw.edits.end());
    request.edits_end = static_cast<std::int64_t>(inputs.edits.size());
  }
}

std::vector<std::size_t> StepOutputs::ConstrainedItems(std::uint32_t rank, std::uint32_t ranks) {
  std::vector<std::size_t> items;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    Request& request = requests_[i];
    if (!request.is_masked || i % ranks != rank) continue;
    const auto item = static_cast<std::size_t>(request.item);
    if (items.empty() || items.back() != item) items.push_back(item);
    request.mask_of = items.size() - 1;
  }
  refusals_.resize(items.empty() ? 0 : requests_.size());
  return items;
}

void StepOutputs::TakeRow(int request, absl::Span<const float> logits) {
  Request& wanted = requests_[request];
  RowMask mask;
  if (wanted.is_masked) {
    mask =
        masks_->Wait(wanted.mask_of, wanted.at, mask_was_late_ ? absl::ZeroDuration() : kPatience);
    if (mask.state == RowMask::State::kLate) {
      if (mask.was_awaited) mask_was_late_ = true;
      wanted.state = Request::State::kLate;
      return;
    }
    if (mask.state != RowMask::State::kReady) {
      const bool chooses = wanted.kind == Request::Kind::kCandidates;
      wanted.state = mask.state == RowMask::State::kNoRoom               ? Request::State::kNoRoom
                     : mask.state == RowMask::State::kNoToken && chooses ? Request::State::kNoToken
                                                                         : Request::State::kRefused;
      refusals_[request] = std::move(mask.reason);
      return;
    }
  }
  if (wanted.kind == Request::Kind::kCandidates) {
    Store(wanted, BestTokens(ops_, logits, vocabulary_.tokens(), wanted.top, mask.allowed));
    return;
  }
  Store(wanted,
        SampleRow(ops_, logits, vocabulary_.tokens(), draws_[request], wanted.top, mask.allowed));
}

void StepOutputs::Store(Request& wanted, absl::StatusOr<SampledToken> token) {
  if (!token.ok()) {
    wanted.state = Request::State::kFailed;
    return;
  }
  ItemOutput& output = outputs_[wanted.item];
  const bool sample = wanted.kind == Request::Kind::kSample;
  (sample ? output.sampled : output.prompt)[wanted.at] = *std::move(token);
}

void StepOutputs::Store(Request& wanted, absl::StatusOr<std::vector<TopLogprob>> candidates) {
  if (!candidates.ok()) {
    wanted.state = Request::State::kFailed;
    return;
  }
  outputs_[wanted.item].candidates = *std::move(candidates);
}

void StepOutputs::Write(std::uint32_t rank, std::uint32_t ranks,
                        std::vector<std::byte>& metadata) const {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const Request& request = requests_[i];
    if (!request.full_row) {
      PutPartial(own_partials_[i], metadata);
      continue;
    }
    if (i % ranks != rank) continue;
    Put(request.state, metadata);
    if (IsRefused(request)) PutText(refusals_[i], metadata);
    if (request.state != Request::State::kDone) continue;
    const ItemOutput& output = outputs_[request.item];
    if (request.kind == Request::Kind::kCandidates) {
      PutEntries(output.candidates, metadata);
    } else {
      PutToken(output.sampled[request.at], metadata);
    }
  }
}

absl::Status StepOutputs::Read(std::uint32_t rank, std::uint32_t ranks,
                               absl::Span<const std::byte> metadata) {
  all_partials_.resize(requests_.size());
  bool good = true;
  for (std::size_t i = 0; good && i < requests_.size(); ++i) {
    if (!requests_[i].full_row) {
      good = ReadPartial(i, rank, metadata);
    } else if (i % ranks == rank) {
      good = ReadFullRow(requests_[i], metadata);
    }
  }
  if (!good || !metadata.empty()) {
    return absl::InvalidArgumentError("a rank's step metadata is not about this step's logits");
  }
  return absl::OkStatus();
}

bool StepOutputs::ReadPartial(std::size_t i, std::uint32_t rank,
                              absl::Span<const std::byte>& metadata) {
  RowPartial partial;
  if (!GetPartial(metadata, vocabulary_.shard(rank).subtrees.size(), partial)) return false;
  Append(std::move(partial), all_partials_[i]);
  return true;
}

bool StepOutputs::ReadFullRow(Request& request, absl::Span<const std::byte>& metadata) {
  if (!Get(metadata, request.state)) return false;
  switch (request.state) {
    case Request::State::kDone: {
      ItemOutput& output = outputs_[request.item];
      return request.kind == Request::Kind::kCandidates
                 ? GetEntries(metadata, request.top, output.candidates)
                 : GetToken(metadata, output.sampled[request.at]);
    }
    case Request::State::kNoToken:
    case Request::State::kRefused:
    case Request::State::kNoRoom: {
      std::string reason;
      const bool may_be =
          request.state != Request::State::kNoToken || request.kind == Request::Kind::kCandidates;
      if (!request.is_masked || !may_be || !GetText(metadata, reason)) return false;
      Refuse(request, std::move(reason));
      return true;
    }
    case Request::State::kLate:
      return request.is_masked;
    case Request::State::kFailed:
      return true;
  }
  return false;
}

void StepOutputs::Refuse(const Request& request, std::string reason) {
  ItemOutput& output = outputs_[request.item];
  if (!output.refused.empty()) return;
  output.refused = std::move(reason);
  output.is_overload = request.state == Request::State::kNoRoom;
}

std::int64_t StepOutputs::MaxMetadataBytes(std::int64_t requests,
                                           const VocabularyShards& vocabulary) {
  constexpr std::int64_t kEntries = sizeof(std::uint32_t) + kMostEntries * sizeof(TopLogprob);
  constexpr std::int64_t kWhole = sizeof(std::uint8_t) + sizeof(TokenId) + sizeof(float) + kEntries;
  static_assert(sizeof(TopLogprob) == sizeof(kernels::TokenScore));
  static_assert(sizeof(std::uint32_t) + SequenceResult::kMaxReason <= kEntries);
  const auto stats =
      static_cast<std::int64_t>(vocabulary.most_subtrees() * sizeof(kernels::SoftmaxStats));
  return requests * (kWhole + sizeof(kernels::TokenScore) + sizeof(std::uint32_t) + stats);
}

// A rank that is alone has not read its own refusals.
absl::Span<const ItemOutput> StepOutputs::Finish() {
  if (all_partials_.empty()) {
    all_partials_ = std::move(own_partials_);
    for (std::size_t i = 0; i < refusals_.size(); ++i) {
      if (IsRefused(requests_[i])) Refuse(requests_[i], refusals_[i]);
    }
  }
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    Request& request = requests_[i];
    if (request.full_row) continue;
    if (request.kind == Request::Kind::kCandidates) {
      Store(request, ConcludeCandidates(all_partials_[i], vocabulary_, request.top));
    } else {
      Store(request, ConcludeToken(all_partials_[i], vocabulary_, request.top));
    }
  }
  for (const Request& request : requests_) {
    if (request.state == Request::State::kDone) continue;
    ItemOutput& output = outputs_[request.item];
    if (request.kind == Request::Kind::kSample) {
      // What comes of a row behind one without a token means nothing.
      if (request.at >= output.sampled.size()) continue;
      output.sampled.resize(request.at);
    }
    output.failed |=
        request.state != Request::State::kLate && request.state != Request::State::kNoToken;
  }
  return outputs_;
}

}  // namespace flotilla::worker

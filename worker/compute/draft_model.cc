#include "worker/compute/draft_model.h"

#include <utility>

#include "worker/compute/sampler.h"

namespace flotilla::worker {

void DraftModel::Propose(absl::Span<DraftRequest> requests) {
  for (std::uint32_t at = 0; ProposeOne(requests, at); ++at) {
  }
}

bool DraftModel::ProposeOne(absl::Span<DraftRequest> requests, std::uint32_t at) {
  static constexpr LogprobSpec kNoLogprobs;
  Batch batch;
  batch.group_count = 1;
  std::vector<std::int32_t> rows;
  std::vector<DraftRequest*> asked;
  for (DraftRequest& request : requests) {
    // A row without a softmax gave no draft token. The sequence's draft ends there.
    if (request.drafts.size() != at || at >= request.limit) continue;
    const auto row = static_cast<std::uint32_t>(batch.tokens.size());
    BatchItem item{.sequence = request.sequence, .index = request.index};
    item.first_position = static_cast<std::uint32_t>(request.tokens.size()) - 1 + at;
    item.row_begin = row;
    item.row_count = 1;
    item.sampling = request.sampling;
    item.logprobs = &kNoLogprobs;
    batch.items.push_back(item);
    batch.tokens.push_back(at == 0 ? request.tokens.back() : request.drafts.back());
    batch.tables.emplace_back(request.tables[0]);
    rows.push_back(static_cast<std::int32_t>(row));
    asked.push_back(&request);
  }
  if (batch.items.empty()) return false;
  forward_->RunFirst(layers_, batch, rows, [&](int index, absl::Span<const float> logits) {
    DraftRequest& request = *asked[static_cast<std::size_t>(index)];
    const TokenPosition position = PositionAfter(
        request.index, request.tokens, request.output_index, request.drafts, *request.stop);
    auto token = SampleRow(*ops_, logits, *request.sampling, kNoLogprobs, position);
    if (token.ok()) request.drafts.push_back(token->token);
  });
  return true;
}

}  // namespace flotilla::worker

#include "worker/compute/draft_model.h"

#include <utility>

#include "worker/compute/sampler.h"

namespace flotilla::worker {
namespace {

// Draws the draft token of each row.
class Drawer final : public RowReceiver {
 public:
  Drawer(absl::Span<DraftRequest* const> asked, std::uint32_t tokens, const kernels::Ops& ops)
      : asked_(asked), tokens_(tokens), ops_(ops) {}

  void TakeRow(int index, absl::Span<const float> logits) override {
    DraftRequest& request = *asked_[index];
    const TokenPosition position = PositionAfter(
        request.index, request.tokens, request.output_index, request.drafts, *request.stop);
    auto token =
        SampleRow(ops_, logits, tokens_, MakeDraw(*request.sampling, position), LogprobSpec::kOff);
    if (token.ok()) request.drafts.push_back(token->token);
  }

 private:
  const absl::Span<DraftRequest* const> asked_;
  const std::uint32_t tokens_;
  const kernels::Ops& ops_;
};

}  // namespace

void DraftModel::Propose(absl::Span<DraftRequest> requests) {
  for (std::uint32_t at = 0; ProposeOne(requests, at); ++at) {
  }
}

bool DraftModel::ProposeOne(absl::Span<DraftRequest> requests, std::uint32_t at) {
  StepInputs inputs;
  inputs.full_rows_to_all = true;
  std::vector<DraftRequest*> asked;
  for (DraftRequest& request : requests) {
    // A row without a softmax gave no draft token. The sequence's draft ends there.
    if (request.drafts.size() != at || at >= request.limit) continue;
    const TokenId token = at == 0 ? request.tokens.back() : request.drafts.back();
    RowRequest& row = inputs.requests.emplace_back();
    row.row = inputs.rows();
    row.full_row = true;
    const std::vector<absl::Span<const std::int32_t>> tables(request.tables.begin(),
                                                             request.tables.end());
    inputs.group_count = static_cast<std::uint32_t>(tables.size());
    AddSequence(request.sequence, static_cast<std::int32_t>(request.tokens.size() - 1 + at),
                {token}, tables, inputs);
    asked.push_back(&request);
  }
  if (asked.empty()) return false;
  Drawer drawer(asked, tokens_, ops_);
  decoder_.StartFirst(layers_, std::move(inputs), &drawer);
  // The steps that follow report the failure of a backend.
  return decoder_.backend().Finish().ok();
}

}  // namespace flotilla::worker

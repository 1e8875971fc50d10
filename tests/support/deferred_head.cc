// This part of Device computes the head, and reduces rows of logits.
#include "tests/support/deferred_device.h"

namespace flotilla::testing {
namespace {

// The partial of one shard of a row, as row_partials.h defines it.
RowPartial Reduce(const worker::VocabularyShard& shard, const std::vector<float>& logits,
                  const RowRequest& request, absl::Span<const worker::LogitEdit> edits) {
  const int size = shard.tokens;
  RowPartial partial;
  int begin = 0;
  for (const std::int32_t subtree : shard.subtrees) {
    partial.stats.push_back(Reference().softmax_stats(logits.data() + begin, subtree));
    begin += subtree;
  }
  if (size == 0) return partial;
  if (request.top > 0) {
    partial.best.resize(static_cast<std::size_t>(std::min(request.top, size)));
    Reference().top_n(logits.data(), size, static_cast<int>(partial.best.size()),
                      partial.best.data());
    for (kernels::TokenScore& token : partial.best) token.token += shard.first_token;
  }
  std::vector<float> changed = logits;
  for (const worker::LogitEdit& edit : edits) {
    const std::int64_t at = std::int64_t{edit.token} - shard.first_token;
    if (at < 0 || at >= size) continue;
    float& logit = changed[static_cast<std::size_t>(at)];
    if (edit.kind == worker::LogitEdit::Kind::kSet) logit = edit.value;
    if (edit.kind == worker::LogitEdit::Kind::kAdd) logit = logit + edit.value;
    if (edit.kind != worker::LogitEdit::Kind::kRepetition) continue;
    logit = logit > 0 ? logit / edit.value : logit * edit.value;
  }
  std::int64_t winner = -1;  // index into the shard
  switch (request.pick) {
    case RowRequest::Pick::kNone:
      return partial;
    case RowRequest::Pick::kGreedy:
      partial.winner = Reference().argmax(changed.data(), size);
      partial.winner.token += shard.first_token;
      winner = partial.winner.token - shard.first_token;
      break;
    case RowRequest::Pick::kGumbel:
      partial.winner =
          Reference().gumbel_argmax(changed.data(), size,
                                    {.inverse_temperature = request.inverse_temperature,
                                     .key = request.noise,
                                     .first_token = shard.first_token});
      winner = partial.winner.token - shard.first_token;
      break;
    case RowRequest::Pick::kKnown:
      winner = std::int64_t{request.token} - shard.first_token;
      if (winner < 0 || winner >= size) return partial;
      partial.winner = {request.token, 0};
      break;
  }
  partial.logit = logits[static_cast<std::size_t>(winner)];
  return partial;
}

}  // namespace

absl::Status DeferredBackend::Device::Head(BufferHandle x_handle, const NormOp& norm,
                                           HeadHandle handle) {
  const Buffer& x = buffers_.at(x_handle.index());
  const HeadWeights& head = heads_.at(handle.index());
  if (x.width != head.hidden || SizeOf(norm) != head.hidden) {
    return Misfit("Head");
  }
  form_ = {};
  const absl::Span<const RowRequest> requests = inputs().requests;
  for (std::size_t first = 0; first < requests.size(); first += kLogitRows) {
    const absl::Span<const RowRequest> tile = requests.subspan(first, kLogitRows);
    std::vector<std::vector<float>> logits;  // of the shard
    for (const RowRequest& request : tile) {
      logits.emplace_back(static_cast<std::size_t>(head.tokens()), kNaN);
      if (!head.weights.has_value()) continue;
      const float* const row = x.rows[static_cast<std::size_t>(request.row)].data();
      Operand operand = head.weights->OperandOf(options_.recipe, Normed(norm, row, x.width).data());
      float* const out = logits.back().data();
      head.weights->Multiply(operand, out);
      if (!head.bias.empty()) Reference().add(head.bias.data(), out, head.tokens());
      if (head.factor != 1) Reference().scale(out, head.factor, head.tokens());
      if (head.softcap != 0) Reference().softcap(out, head.softcap, head.tokens());
    }
    const bool any_full =
        std::any_of(tile.begin(), tile.end(), [](const RowRequest& r) { return r.full_row; });
    const float* const shared = any_full && !alone() ? ShareTile(head, first, logits) : nullptr;
    for (std::size_t i = 0; i < tile.size(); ++i) {
      const std::size_t request = first + i;
      if (!tile[i].full_row) {
        step_->partials[request] =
            Reduce(head.shard, logits[i], tile[i], inputs().edits_of(tile[i]));
        continue;
      }
      const bool own =
          inputs().full_rows_to_all || request % options_.tensor_ranks == options_.tensor_rank;
      if (!own) continue;
      const float* const row = alone() ? logits[i].data() : shared + i * head.vocabulary;
      absl::Status s = GiveRow(request, {row, static_cast<std::size_t>(head.vocabulary)});
      if (!s.ok()) return s;
    }
  }
  return absl::OkStatus();
}

const float* DeferredBackend::Device::ShareTile(const HeadWeights& head, std::size_t first,
                                                const std::vector<std::vector<float>>& rows) {
  float* const tile = options_.exchange->Logits();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::copy(rows[i].begin(), rows[i].end(),
              tile + static_cast<std::int64_t>(i) * head.vocabulary + head.shard.first_token);
  }
  options_.exchange->ShareLogits(
      static_cast<std::int64_t>(rows.size()),
      {.all = inputs().full_rows_to_all, .first_owner = static_cast<std::uint32_t>(first)});
  return tile;
}

absl::Status DeferredBackend::Device::GiveRow(std::size_t request, absl::Span<const float> logits) {
  if (step_->receiver == nullptr) {
    return absl::FailedPreconditionError("nobody takes the full rows of the step");
  }
  std::vector<float> row(logits.begin(), logits.end());
  step_->receiver->TakeRow(static_cast<int>(request), row);
  std::fill(row.begin(), row.end(), kNaN);
  return absl::OkStatus();
}

}  // namespace flotilla::testing

#include "worker/compute/step_inputs.h"

#include <algorithm>

#include "kernels/kv_layout.h"

namespace flotilla::worker {

void AddSequence(SequenceHandle handle, std::int32_t first_position,
                 absl::Span<const TokenId> tokens,
                 absl::Span<const absl::Span<const std::int32_t>> tables, StepInputs& inputs) {
  inputs.sequences.push_back({.handle = static_cast<std::int32_t>(handle.value()),
                              .row_begin = inputs.rows(),
                              .row_count = static_cast<std::int32_t>(tokens.size()),
                              .first_position = first_position});
  for (const TokenId token : tokens) {
    inputs.tokens.push_back({token});
    inputs.positions.push_back(first_position++);
  }
  // `first_position` is behind the last row now. Nothing reads a block behind that; blocks have no
  // fewer positions than records.
  const int most = (first_position + kernels::kKvRecordTokens - 1) / kernels::kKvRecordTokens;
  for (const absl::Span<const std::int32_t> table : tables) {
    inputs.table_begins.push_back(static_cast<std::int64_t>(inputs.block_ids.size()));
    const auto needed = table.first(std::min(table.size(), static_cast<std::size_t>(most)));
    inputs.block_ids.insert(inputs.block_ids.end(), needed.begin(), needed.end());
  }
}

StepInputs MakeStepInputs(const Batch& batch) {
  StepInputs inputs;
  inputs.copies = batch.copies;
  inputs.run_copies = batch.run_copies;
  inputs.background = batch.background;
  inputs.group_count = batch.group_count;
  inputs.tokens.reserve(batch.tokens.size() + batch.first_rows.size());
  inputs.positions.reserve(batch.tokens.size() + batch.first_rows.size());
  inputs.sequences.reserve(batch.items.size() + batch.first_rows.size());
  inputs.table_begins.reserve(batch.tables.size());
  for (std::size_t i = 0; i < batch.items.size(); ++i) {
    const BatchItem& item = batch.items[i];
    AddSequence(item.sequence, static_cast<std::int32_t>(item.first_position),
                absl::MakeConstSpan(batch.tokens).subspan(item.row_begin, item.row_count),
                absl::MakeConstSpan(batch.tables).subspan(i * batch.group_count, batch.group_count),
                inputs);
  }
  const std::vector<absl::Span<const std::int32_t>> no_tables(batch.group_count);
  for (const FirstRow& row : batch.first_rows) {
    AddSequence(row.sequence, 0, {row.token}, no_tables, inputs);
    inputs.sequences.back().is_first_row = true;
  }
  return inputs;
}

}  // namespace flotilla::worker

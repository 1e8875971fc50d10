#include "tests/support/memory_meter.h"

#include <algorithm>
#include <utility>

namespace flotilla::testing {
namespace {

constexpr std::uint32_t kSlots = 16;

}  // namespace

MemoryMeter::Look MemoryMeter::LookAt(const scheduler::SchedulerCore& core) {
  const std::vector<scheduler::OpenSequenceView> sequences = core.OpenSequences();
  Look look;
  look.sequences = static_cast<std::uint32_t>(sequences.size());
  for (const scheduler::OpenSequenceView& sequence : sequences) {
    const absl::Span<const BlockId> table = sequence.tables[0];
    const std::uint32_t length = sequence.length.scheduled_max;
    look.unshared_blocks += (length + kSlots - 1) / kSlots;
    const auto held = static_cast<std::uint32_t>(table.size()) * kSlots;
    look.worst_waste = std::max(look.worst_waste, held - std::min(held, length));
    for (std::uint32_t i = 0; i < table.size(); ++i) {
      const std::uint32_t before = std::min(length, i * kSlots);
      std::uint8_t& written = written_[table[i].value()];
      written = std::max(written, static_cast<std::uint8_t>(1 + std::min(kSlots, length - before)));
    }
  }
  for (const scheduler::OpenSequenceView& sequence : sequences) {
    for (const BlockId block : sequence.tables[0]) {
      const std::uint8_t written = std::exchange(written_[block.value()], 0);
      if (written == 0) continue;  // counted already
      ++look.blocks;
      look.used_slots += written - 1u;
    }
  }
  return look;
}

void MemoryMeter::Sample(const scheduler::SchedulerCore& core) {
  const scheduler::CoreSnapshot snapshot = core.Snapshot();
  absl::MutexLock lock(&mu_);
  const auto steps = static_cast<double>(snapshot.counters.plans - plans_);
  plans_ = snapshot.counters.plans;
  written_.resize(snapshot.load.blocks_total + 1);
  const Look look = LookAt(core);
  use_.mismatches += look.blocks != snapshot.load.blocks_used;
  use_.peak_blocks = std::max(use_.peak_blocks, look.blocks);
  use_.worst_waste = std::max(use_.worst_waste, look.worst_waste);
  if (look.blocks == 0) return;
  use_.steps += steps;
  use_.blocks += steps * look.blocks;
  use_.unshared_blocks += steps * look.unshared_blocks;
  use_.sequences += steps * look.sequences;
  use_.wasted_slots +=
      steps * static_cast<double>(std::uint64_t{look.blocks} * kSlots - look.used_slots);
}

MemoryUse MemoryMeter::Take() {
  absl::MutexLock lock(&mu_);
  return std::exchange(use_, {});
}

}  // namespace flotilla::testing

// What sequences take of the KV pool, by the KV groups of the model. Pure arithmetic.
//
// A table has an entry for each block of positions, from the first position on. In a window group
// the leading entries name no block any more: those that no later row sees
// (KvGroup::UnneededBlocks). They are given back after each plan, so a table never names more
// blocks than its window and the rows of one plan touch.
#pragma once

#include <cstdint>

#include "common/types/executor.h"

namespace flotilla {

// The entries of a table that holds `positions` positions.
std::uint64_t TableEntries(const KvGroup& group, std::uint64_t positions);

// The most blocks that a table names at a time while its sequence grows to `positions`. One plan
// adds at most `slack` positions to what is certain (RowsOfPlans); 0: as it is between two plans
// without draft tokens.
std::uint64_t MostNamed(const KvGroup& group, std::uint64_t positions, std::uint32_t slack);

// The most positions that plans which are not answered add to one sequence: a chunk of a prompt, or
// draft tokens of several plans that may all be wrong.
std::uint32_t RowsOfPlans(const ExecutorDescription& description);

}  // namespace flotilla

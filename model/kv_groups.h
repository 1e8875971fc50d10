// KV groups: which layers share block tables.
//
// Layers that keep the same positions, all or a window, are of one kind. They are dealt into groups
// of at most `size` layers, so that a page of the KV pool holds the K and V of one group, whichever
// it is: a page has room for `size` layers, and groups that have fewer leave the rest unused.
// Few large groups waste little of a table, small ones little of a page: of all sizes that give at
// most kMostKvGroups groups, the one with the fewest unused places is taken, and of several the
// largest.
#pragma once

#include <cstdint>

#include "model/spec.h"

namespace flotilla::model {

inline constexpr uint32_t kMostKvGroups = 8;

// Sets the KV groups of `spec`, and the group of each layer. The layers of one kind take turns, so
// that every stage of a pipeline has about as many of each group. A window that is not shorter than
// the context is none.
void DealKvGroups(ModelSpec& spec);

// Puts all layers into one group that keeps every position: no window saves memory.
void KeepEveryPosition(ModelSpec& spec);

// Of the layers [begin, end), which are a stage of a pipeline, the number in its largest group: a
// page of the stage has room for so many.
uint32_t LayersPerPage(const ModelSpec& spec, uint32_t begin, uint32_t end);

}  // namespace flotilla::model

// SinkBatches: gathers the events of many requests, so that each sink gets all its events
// in one call, in order. It has one owner.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/types/engine.h"

namespace flotilla {

class SinkBatches {
 public:
  void Add(const std::shared_ptr<EventSink>& sink, EngineEvent event) {
    const auto [at, added] = index_.try_emplace(sink.get(), batches_.size());
    if (added) batches_.push_back({.sink = sink, .events = {}});
    batches_[at->second].events.push_back(std::move(event));
  }

  // Posts the batches in the order in which the sinks came, and forgets them.
  void Post() {
    for (Batch& batch : batches_) batch.sink->Post(std::move(batch.events));
    batches_.clear();
    index_.clear();
  }

 private:
  struct Batch {
    std::shared_ptr<EventSink> sink;
    std::vector<EngineEvent> events;
  };
  std::vector<Batch> batches_;
  absl::flat_hash_map<EventSink*, std::size_t> index_;
};

}  // namespace flotilla

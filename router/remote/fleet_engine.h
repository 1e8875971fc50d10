// FleetEngine: one model of a Fleet as an Engine.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/types/engine.h"
#include "router/remote/fleet.h"

namespace flotilla::router {

class FleetEngine final : public Engine {
 public:
  // `model` is an index of Fleet::Models(). `fleet` outlives it.
  FleetEngine(Fleet* fleet, std::size_t model) : fleet_(fleet), model_(model) {}

  // The description that every replica of the model meets. The numerics id is one replica's.
  absl::StatusOr<EngineDescription> Describe() const override { return fleet_->Describe(model_); }
  void Submit(TokenizedRequest request, std::shared_ptr<EventSink> sink) override {
    fleet_->Run([&](FleetCore& core) {
      core.Submit(fleet_->clock_->NowNs(), model_, std::move(request), std::move(sink));
    });
  }
  void Cancel(const CancelRequest& cancel) override {
    fleet_->Run([&](FleetCore& core) { core.Cancel(cancel); });
  }
  // The sum over its replicas. It is draining if no replica takes new requests.
  EngineLoad Load() const override { return fleet_->Load(model_); }
  // Asks its replicas, one after the other; 10 seconds each at most.
  absl::StatusOr<std::string> TokenizerBytes() const override {
    return fleet_->TokenizerBytes(model_);
  }
  // Drains this router's requests. The schedulers go on serving other routers.
  void Drain(std::function<void()> done) override { fleet_->DrainModel(model_, std::move(done)); }

 private:
  Fleet* const fleet_;
  const std::size_t model_;
};

}  // namespace flotilla::router

#include "worker/exec/metrics.h"

namespace flotilla::worker {
namespace {

struct RankSeries {
  Gauge &up, &heartbeat_age, &resident_bytes;
  Counter& cpu;
  Gauge &loaded, &to_load;
  std::array<Gauge*, kLoadPhases> phases;
};

RankSeries AddRank(Metrics& metrics, std::size_t rank) {
  const Metrics::Labels labels = {{"rank", std::to_string(rank)}};
  std::array<Gauge*, kLoadPhases> phases{};
  for (std::size_t i = 0; i < kLoadPhases; ++i) {
    Metrics::Labels all = labels;
    all["phase"] = LoadPhaseName(static_cast<LoadPhase>(i));
    phases[i] = &metrics.AddGauge("flotilla_worker_rank_loading",
                                  "1 for the phase in which the rank loads the model.", all);
  }
  return {
      .up = metrics.AddGauge("flotilla_worker_up", "1 while the rank runs.", labels),
      .heartbeat_age = metrics.AddGauge("flotilla_worker_heartbeat_age_seconds",
                                        "Since the rank's last heartbeat.", labels),
      .resident_bytes = metrics.AddGauge("flotilla_worker_rank_resident_memory_bytes",
                                         "Resident memory of the rank's process.", labels),
      .cpu = metrics.AddCounter("flotilla_worker_rank_cpu_seconds_total",
                                "User and system CPU time of the rank's processes.", labels),
      .loaded = metrics.AddGauge("flotilla_worker_rank_loaded_bytes",
                                 "Bytes that the rank has loaded in the present phase.", labels),
      .to_load = metrics.AddGauge("flotilla_worker_rank_load_bytes",
                                  "Bytes that the rank loads in the present phase.", labels),
      .phases = phases};
}

}  // namespace

void WatchKvConfig(Metrics& metrics, const std::string& kv_type, std::uint32_t block_tokens,
                   const WorkerProbe* worker) {
  const auto add = [&metrics, kv_type, block_tokens](std::uint32_t blocks) -> Gauge& {
    return metrics.AddGauge("flotilla_kv_cache_config_info",
                            "1 for the configuration of the KV pool since the last load.",
                            {{"block_size", std::to_string(block_tokens)},
                             {"num_blocks", std::to_string(blocks)},
                             {"dtype", kv_type}});
  };
  metrics.OnRender([add, worker, shown = std::uint32_t{0}]() mutable {
    const std::uint32_t blocks = worker->kv_blocks;
    if (blocks == shown) return;
    if (shown > 0) add(shown).Set(0);
    add(blocks).Set(1);
    shown = blocks;
  });
}

void WatchWorker(Metrics& metrics, const WorkerProbe* worker) {
  Counter& steps = metrics.AddCounter("flotilla_worker_steps_total", "Plans executed.");
  Counter& prefill = metrics.AddCounter("flotilla_worker_rows_total", "Tokens computed, by phase.",
                                        {{"phase", "prefill"}});
  Counter& decode = metrics.AddCounter("flotilla_worker_rows_total", "Tokens computed, by phase.",
                                       {{"phase", "decode"}});
  Counter& compute =
      metrics.AddCounter("flotilla_worker_compute_seconds_total", "Forward and sampling.");
  Counter& lost = metrics.AddCounter("flotilla_worker_epochs_lost_total", "Epochs that ended.");
  Gauge& weights = metrics.AddGauge("flotilla_worker_weight_bytes", "Memory of the weights.");
  Gauge& buffers = metrics.AddGauge("flotilla_worker_buffer_bytes",
                                    "Memory of activations; the KV pool is not in it.");
  const auto add_backend = [&](const char* name) -> Gauge& {
    return metrics.AddGauge("flotilla_worker_backend", "1 for what the ranks compute on.",
                            {{"backend", name}});
  };
  Gauge &cpus = add_backend("cpu"), &gpus = add_backend("cuda");
  metrics.OnRender(
      [=, &steps, &prefill, &decode, &compute, &lost, &weights, &buffers, &cpus, &gpus] {
        cpus.Set(worker->on_cpus ? 1 : 0);
        gpus.Set(worker->on_gpus ? 1 : 0);
        const auto decoded = static_cast<double>(worker->decode_rows);
        RaiseTo(steps, static_cast<double>(worker->steps));
        RaiseTo(prefill, static_cast<double>(worker->rows) - decoded);
        RaiseTo(decode, decoded);
        RaiseTo(compute, Seconds(worker->compute_ns));
        RaiseTo(lost, static_cast<double>(worker->epochs_lost));
        weights.Set(static_cast<double>(worker->weight_bytes));
        buffers.Set(static_cast<double>(worker->buffer_bytes));
      });
}

void WatchGroup(Metrics& metrics, const GroupProbe* group, const Clock* clock) {
  std::vector<RankSeries> ranks;
  for (std::size_t rank = 0; rank < group->ranks.size(); ++rank) {
    ranks.push_back(AddRank(metrics, rank));
  }
  std::vector<Counter*> restarts;
  for (std::size_t i = 0; i < kFaults; ++i) {
    restarts.push_back(&metrics.AddCounter("flotilla_worker_restarts_total",
                                           "Times that the ranks were started again, by cause.",
                                           {{"cause", FaultName(static_cast<Fault>(i))}}));
  }
  metrics.OnRender([group, clock, ranks, restarts] {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const GroupProbe::Rank& one = group->ranks[rank];
      const std::int64_t beat = one.heartbeat_ns;
      ranks[rank].up.Set(one.up ? 1 : 0);
      ranks[rank].heartbeat_age.Set(beat == 0 ? 0 : Seconds(clock->NowNs() - beat));
      ranks[rank].resident_bytes.Set(static_cast<double>(one.resident_bytes));
      RaiseTo(ranks[rank].cpu, Seconds(one.cpu_ns));
      ranks[rank].loaded.Set(one.loading ? static_cast<double>(one.loaded_bytes) : 0);
      ranks[rank].to_load.Set(one.loading ? static_cast<double>(one.load_bytes) : 0);
      for (std::size_t i = 0; i < kLoadPhases; ++i) {
        const bool is = one.loading && one.load_phase == static_cast<LoadPhase>(i);
        ranks[rank].phases[i]->Set(is ? 1 : 0);
      }
    }
    for (std::size_t i = 0; i < kFaults; ++i) {
      RaiseTo(*restarts[i], static_cast<double>(group->restarts[i]));
    }
  });
}

}  // namespace flotilla::worker

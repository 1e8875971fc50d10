// Metrics: the process's metric registry and its text exposition.
//
// main makes it. A component's series are in metrics.cc beside the component. They count
// events (a request was refused), or copy a snapshot (queue depth, KV blocks) into gauges at each
// scrape. Cores return values and know no metrics.
//
//   Metrics metrics;
//   Histogram& ttft = metrics.AddHistogram("flotilla_router_time_to_first_token_seconds",
//                                          "Time from arrival to the first token.", kTtftBuckets);
//   ttft.Observe(0.012);
//   std::string page = metrics.Render();
//
// Add series at start, so that each is there with 0 from the first scrape on,
// and keep the reference: finding a series costs more than counting in it.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace flotilla {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;

class Metrics {
 public:
  using Labels = std::map<std::string, std::string>;
  // Upper bounds, ascending; the one for infinity is implied.
  using Buckets = std::vector<double>;

  // `common` labels are on every series.
  explicit Metrics(Labels common = {});
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // A series of the family `name`; the same labels name the same series. All
  // series of a family have the same type and help. References stay valid while
  // the registry lives, and may be used from any thread. Names follow
  // Prometheus' rules (base units, counters end in _total); a name that breaks
  // its grammar, or is used with two types, is a programming error (throws).
  Counter& AddCounter(const std::string& name, const std::string& help, const Labels& labels = {});
  Gauge& AddGauge(const std::string& name, const std::string& help, const Labels& labels = {});
  Histogram& AddHistogram(const std::string& name, const std::string& help, const Buckets& buckets,
                          const Labels& labels = {});

  // Runs `update` at the start of every Render, on its thread. For values that
  // live elsewhere. Not while another thread renders.
  void OnRender(std::function<void()> update);

  // All series in Prometheus' text format 0.0.4. Any thread; renders are done
  // one at a time.
  std::string Render();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

inline double Seconds(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }

// Brings a counter up to a running total that is kept elsewhere. Totals that
// went backwards are ignored.
void RaiseTo(Counter& counter, double total);

// Bucket bounds, in seconds unless the name says otherwise.
extern const Metrics::Buckets kRequestBuckets;       // 0.01 · 2^k up to 655
extern const Metrics::Buckets kTtftBuckets;          // OpenTelemetry's, up to 160
extern const Metrics::Buckets kInterTokenBuckets;    // 1 ms to 8 s
extern const Metrics::Buckets kStepBuckets;          // 0.2 ms to 2 s
extern const Metrics::Buckets kBatchSizeBuckets;     // sequences: powers of two
extern const Metrics::Buckets kStepTokenBuckets;     // tokens: 1, then powers of two
extern const Metrics::Buckets kRequestTokenBuckets;  // tokens: 1-2-5 to 100,000

}  // namespace flotilla

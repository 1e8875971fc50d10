#include "common/obs/metrics.h"

#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace flotilla {

struct Metrics::Impl {
  explicit Impl(Labels common) : common(std::move(common)) {}

  std::vector<prometheus::MetricFamily> Collect() ABSL_LOCKS_EXCLUDED(mu) {
    absl::MutexLock lock(&mu);
    for (const std::function<void()>& update : updates) update();
    return registry.Collect();
  }

  const Labels common;
  prometheus::Registry registry;
  absl::Mutex mu;
  std::vector<std::function<void()>> updates ABSL_GUARDED_BY(mu);
};

Metrics::Metrics(Labels common) : impl_(std::make_unique<Impl>(std::move(common))) {}
Metrics::~Metrics() = default;

Counter& Metrics::AddCounter(const std::string& name, const std::string& help,
                             const Labels& labels) {
  return prometheus::BuildCounter()
      .Name(name)
      .Help(help)
      .Labels(impl_->common)
      .Register(impl_->registry)
      .Add(labels);
}

Gauge& Metrics::AddGauge(const std::string& name, const std::string& help, const Labels& labels) {
  return prometheus::BuildGauge()
      .Name(name)
      .Help(help)
      .Labels(impl_->common)
      .Register(impl_->registry)
      .Add(labels);
}

Histogram& Metrics::AddHistogram(const std::string& name, const std::string& help,
                                 const Buckets& buckets, const Labels& labels) {
  return prometheus::BuildHistogram()
      .Name(name)
      .Help(help)
      .Labels(impl_->common)
      .Register(impl_->registry)
      .Add(labels, buckets);
}

void Metrics::OnRender(std::function<void()> update) {
  absl::MutexLock lock(&impl_->mu);
  impl_->updates.push_back(std::move(update));
}

std::string Metrics::Render() { return prometheus::TextSerializer().Serialize(impl_->Collect()); }

void RaiseTo(Counter& counter, double total) {
  const double missing = total - counter.Value();
  if (missing > 0) counter.Increment(missing);
}

const Metrics::Buckets kRequestBuckets = {.01,   .02,   .04,    .08,    .16,   .32,
                                          .64,   1.28,  2.56,   5.12,   10.24, 20.48,
                                          40.96, 81.92, 163.84, 327.68, 655.36};
const Metrics::Buckets kTtftBuckets = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,
                                       .75,  1,    2.5, 5,   7.5, 10,  20,  40, 80,  160};
const Metrics::Buckets kInterTokenBuckets = {.001, .002, .004, .006, .008, .01, .015, .02,
                                             .025, .03,  .035, .04,  .06,  .08, .1,   .2,
                                             .4,   .6,   .8,   1,    2,    4,   6,    8};
const Metrics::Buckets kStepBuckets = {.0002, .0005, .001, .002, .004, .006, .008, .01, .015,
                                       .02,   .03,   .05,  .1,   .2,   .5,   1,    2};
const Metrics::Buckets kBatchSizeBuckets = {1, 2, 4, 8, 16, 32, 64, 128, 256};
const Metrics::Buckets kStepTokenBuckets = {1,   8,    16,   32,   64,   128,  256,
                                            512, 1024, 2048, 4096, 8192, 16384};
const Metrics::Buckets kRequestTokenBuckets = {1,   2,    5,    10,   20,    50,    100,   200,
                                               500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

}  // namespace flotilla

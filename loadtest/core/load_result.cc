#include "loadtest/core/load_result.h"

#include <array>

namespace flotilla::loadtest {
namespace {

constexpr auto kFigures = std::to_array<Figure>({
    {"offered_per_s", "offered requests/s", 2, &LoadResult::offered_per_s, true},
    {"seconds", "time, s", 1, &LoadResult::seconds},
    {"requests", "requests", 0, &LoadResult::requests},
    {"finished", "  finished", 0, &LoadResult::finished},
    {"failed", "  failed", 0, &LoadResult::failed},
    {"requests_per_s", "requests/s", 2, &LoadResult::requests_per_s},
    {"output_tokens", "output tokens", 0, &LoadResult::output_tokens},
    {"output_tokens_per_s", "output tokens/s", 1, &LoadResult::output_tokens_per_s},
    {"prompt_tokens", "prompt tokens", 0, &LoadResult::prompt_tokens},
    {"prompt_tokens_per_s", "prompt tokens/s", 1, &LoadResult::prompt_tokens_per_s},
    {"cached_tokens", "  of them cached", 0, &LoadResult::cached_tokens, true},
    {"goodput_per_s", "goodput, requests/s", 2, &LoadResult::goodput_per_s},
    {"good_share", "good share of requests", 3, &LoadResult::good_share},
    {"peak_in_flight", "most requests in flight", 0, &LoadResult::peak_in_flight},
    {"cpu_seconds", "own processor time, s", 2, &LoadResult::cpu_seconds, true},
    {"cpu_share", "  share of a core", 3, &LoadResult::cpu_share, true},
});

constexpr auto kLatencies = std::to_array<LatencyFigure>({
    {"ttft_ms", "TTFT", &LoadResult::ttft_ms},
    {"itl_ms", "ITL", &LoadResult::itl_ms},
    {"tpot_ms", "TPOT", &LoadResult::tpot_ms},
    {"e2e_ms", "E2E", &LoadResult::e2e_ms},
    {"send_lag_ms", "send lag", &LoadResult::send_lag_ms},
});

constexpr auto kColumns = std::to_array<LatencyColumn>({{"mean", &Latency::mean},
                                                        {"p50", &Latency::p50},
                                                        {"p90", &Latency::p90},
                                                        {"p95", &Latency::p95},
                                                        {"p99", &Latency::p99},
                                                        {"p99.9", &Latency::p999},
                                                        {"max", &Latency::max}});

}  // namespace

absl::Span<const Figure> Figures() { return kFigures; }
absl::Span<const LatencyFigure> LatencyFigures() { return kLatencies; }
absl::Span<const LatencyColumn> LatencyColumns() { return kColumns; }

}  // namespace flotilla::loadtest

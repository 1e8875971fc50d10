#include "worker/compute/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/noise.h"
#include "kernels/scalar_math.h"
#include "worker/compute/dry.h"

namespace flotilla::worker {
namespace {

using kernels::TokenScore;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
// The most that Ops::top_n lists.
constexpr int kMaxTopN = 64;
static_assert(BeamOptions::kMaxCandidates <= kMaxTopN && LogprobSpec::kMaxTop <= kMaxTopN);
// Of shares above this there is at most one, so XTC excludes nothing.
constexpr float kMostExcluding = 0.5f;
// The draw of XTC is that of the hash at this number, which is no token's.
constexpr std::uint32_t kDrawOfXtc = 0xFFFFFFFFu;
// Logits scaled at a time, on the stack.
constexpr std::size_t kChunk = kernels::kVocabularyChunk;

// One row and its statistics.
struct Row {
  const kernels::Ops& ops;
  absl::Span<const float> logits;  // of tokens
  kernels::SoftmaxStats stats;
  float lse;

  int size() const { return static_cast<int>(logits.size()); }
};

absl::StatusOr<Row> Measure(const kernels::Ops& ops, absl::Span<const float> logits) {
  const kernels::SoftmaxStats stats =
      ops.softmax_stats(logits.data(), static_cast<int>(logits.size()));
  const absl::StatusOr<float> lse = RowLogSumExp(stats);
  if (!lse.ok()) return lse.status();
  return Row{ops, logits, stats, *lse};
}

// The best tokens, at most kMaxTopN of them.
std::vector<TopLogprob> Best(const Row& row, int wanted) {
  std::vector<TopLogprob> result;
  const int count = std::min(wanted, row.size());
  if (count <= 0) return result;
  std::array<TokenScore, kMaxTopN> best;
  row.ops.top_n(row.logits.data(), row.size(), count, best.data());
  result.reserve(count);
  for (int i = 0; i < count && best[i].score > kMinusInfinity; ++i) {
    result.push_back({best[i].token, best[i].score - row.lse});
  }
  return result;
}

SampledToken Describe(const Row& row, TokenId token, std::int32_t top) {
  return {.token = token, .logprob = row.logits[token] - row.lse, .top = Best(row, top)};
}

// The k-th largest logit, 1 <= k < vocabulary.
float KthLargest(const Row& row, int k) {
  if (k <= kMaxTopN) {
    std::array<TokenScore, kMaxTopN> best;
    row.ops.top_n(row.logits.data(), row.size(), k, best.data());
    return best[k - 1].score;
  }
  std::vector<float> values(row.logits.begin(), row.logits.end());
  std::nth_element(values.begin(), values.begin() + (k - 1), values.end(), std::greater<>());
  return values[k - 1];
}

// A token's mass relative to that of the best token: e^((logit - max) / T).
float Weight(const Row& row, float logit, float inverse_temperature) {
  return kernels::Exp((logit - row.stats.max) * inverse_temperature);
}

// The mass of the whole row. It adds chunks of 1,024, as softmax_stats sums them, in
// ascending order.
double TotalWeight(const Row& row, float inverse_temperature) {
  double total = 0;
  std::array<float, kChunk> scaled;
  for (std::size_t begin = 0; begin < row.logits.size(); begin += kChunk) {
    const absl::Span<const float> chunk = row.logits.subspan(begin, kChunk);
    for (std::size_t i = 0; i < chunk.size(); ++i) {
      scaled[i] = (chunk[i] - row.stats.max) * inverse_temperature;
    }
    const kernels::SoftmaxStats stats =
        row.ops.softmax_stats(scaled.data(), static_cast<int>(chunk.size()));
    if (stats.max > kMinusInfinity) {
      total += static_cast<double>(stats.sum) * kernels::Exp(stats.max);
    }
  }
  return total;
}

// Returns a logit such that a mass of top_p cannot need any token below it. All tokens below it
// together have at most n times the mass at that distance from the best token, which is
// less than the 1 - top_p that may be left out (the best token alone has mass 1). One more
// in the exponent covers rounding.
float NucleusFloor(const Row& row, float top_p, float temperature) {
  const float distance = kernels::Log(static_cast<float>(row.size()) / (1.0f - top_p)) + 1.0f;
  return row.stats.max - distance * temperature;
}

// The last token that top-p keeps among those with a logit of at least `kept`
// (-infinity: all). Only tokens near the best are gathered, and they are ordered
// only as far as the answer reaches.
TokenScore NucleusCutoff(const Row& row, const TokenDraw& sampling, float kept,
                         float inverse_temperature) {
  const bool all = kept == kMinusInfinity;
  const float floor = all ? NucleusFloor(row, sampling.top_p, sampling.temperature) : kept;
  std::vector<TokenScore> heap;
  double total = 0;
  for (int token = 0; token < row.size(); ++token) {
    const float logit = row.logits[token];
    if (logit < floor || logit == kMinusInfinity) continue;
    heap.push_back({token, logit});
    if (!all) total += Weight(row, logit, inverse_temperature);
  }
  if (all) total = TotalWeight(row, inverse_temperature);

  const auto after = [](const TokenScore& a, const TokenScore& b) {
    return a.score != b.score ? a.score < b.score : a.token > b.token;
  };
  std::make_heap(heap.begin(), heap.end(), after);
  const double wanted = static_cast<double>(sampling.top_p) * total;
  double mass = 0;
  while (true) {
    const TokenScore best = heap.front();
    mass += Weight(row, best.score, inverse_temperature);
    if (mass >= wanted || heap.size() == 1) return best;
    std::pop_heap(heap.begin(), heap.end(), after);
    heap.pop_back();
  }
}

// Whether `args` keeps a token of this logit.
bool IsKept(const kernels::GumbelArgs& args, TokenId token, float logit) {
  return logit > args.cutoff.score || (logit == args.cutoff.score && token <= args.cutoff.token);
}

// Fills `kept` [vocabulary] with the logits of the tokens that typical-p keeps among those that
// `args` keeps, and with -infinity for all others.
void KeepTypical(const Row& row, const TokenDraw& sampling, const kernels::GumbelArgs& args,
                 std::vector<float>& kept) {
  // The log of a token's mass (Weight); -infinity: `args` does not keep the token.
  const auto exponent_of = [&](TokenId token) {
    const float logit = row.logits[token];
    return IsKept(args, token, logit) ? double{logit - row.stats.max} * args.inverse_temperature
                                      : kMinusInfinity;
  };
  double total = 0, mean = 0;
  for (int token = 0; token < row.size(); ++token) {
    const double exponent = exponent_of(token);
    const double mass = Weight(row, row.logits[token], args.inverse_temperature);
    if (mass == 0 || exponent == kMinusInfinity) continue;
    total += mass;
    mean += mass * exponent;
  }
  // A token's surprise is log(total) - exponent, and the entropy is log(total) - mean.
  mean /= total;
  // Tokens below 2 * mean are farther from the mean than all above it, and those below the floor
  // of top-p are not needed for the mass. So tokens below both are never kept.
  const float floor = NucleusFloor(row, sampling.typical_p, sampling.temperature);
  const double least = std::min(2 * mean, double{floor - row.stats.max} * args.inverse_temperature);
  struct Candidate {
    TokenId token;
    float mass;
    double distance;
  };
  std::vector<Candidate> candidates;
  for (int token = 0; token < row.size(); ++token) {
    const double exponent = exponent_of(token);
    if (exponent == kMinusInfinity || exponent < least) continue;
    candidates.push_back({token, Weight(row, row.logits[token], args.inverse_temperature),
                          std::abs(exponent - mean)});
  }
  const auto nearer = [](const Candidate& a, const Candidate& b) {
    return a.distance != b.distance ? a.distance < b.distance : a.token < b.token;
  };
  // Halves [begin, end), which has the token that reaches the mass, before anything is sorted.
  const double wanted = static_cast<double>(sampling.typical_p) * total;
  double mass = 0, farthest = 0;  // of the tokens before `begin`
  auto begin = candidates.begin(), end = candidates.end();
  while (end - begin > 32) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, nearer);
    double sum = mass;
    for (auto at = begin; at != middle; ++at) sum += at->mass;
    if (sum >= wanted) {
      end = middle;
    } else {
      begin = middle;
      mass = sum;
    }
  }
  std::sort(begin, end, nearer);
  for (; begin != end && mass < wanted; ++begin) {
    mass += begin->mass;
    farthest = begin->distance;
  }
  kept.assign(row.logits.size(), kMinusInfinity);
  for (const Candidate& candidate : candidates) {
    if (candidate.distance <= farthest) kept[candidate.token] = row.logits[candidate.token];
  }
}

// The standard deviation of the logits above -infinity. Sums are in double, tokens ascending.
double Deviation(const Row& row) {
  double sum = 0, squares = 0;
  int count = 0;
  for (const float logit : row.logits) {
    if (logit == kMinusInfinity) continue;
    sum += logit;
    ++count;
  }
  const double mean = sum / count;
  for (const float logit : row.logits) {
    if (logit != kMinusInfinity) squares += (logit - mean) * (logit - mean);
  }
  return std::sqrt(squares / count);
}

// Fills `kept` with the logits of the tokens that `args` keeps, and with -infinity for all others.
void KeepAboveCutoff(const Row& row, const kernels::GumbelArgs& args, std::vector<float>& kept) {
  kept.assign(row.logits.begin(), row.logits.end());
  for (int token = 0; token < row.size(); ++token) {
    if (!IsKept(args, token, kept[token])) kept[token] = kMinusInfinity;
  }
}

// Of the tokens that are at least `threshold` likely among the kept ones, only the least likely and
// its ties stay.
void ExcludeTop(const Row& row, float threshold, float inverse_temperature,
                std::vector<float>& kept) {
  double total = 0;
  for (const float logit : kept) {
    if (logit > kMinusInfinity) total += Weight(row, logit, inverse_temperature);
  }
  const double wanted = threshold * total;
  float least = std::numeric_limits<float>::infinity();
  for (const float logit : kept) {
    if (logit > kMinusInfinity && Weight(row, logit, inverse_temperature) >= wanted) {
      least = std::min(least, logit);
    }
  }
  for (float& logit : kept) {
    if (logit > least) logit = kMinusInfinity;
  }
}

TokenId Draw(const Row& row, const TokenDraw& sampling) {
  if (sampling.greedy()) {
    return row.ops.argmax(row.logits.data(), row.size()).token;
  }
  kernels::GumbelArgs args;
  args.inverse_temperature = 1.0f / sampling.temperature;
  args.key = sampling.noise;
  if (sampling.top_n_sigma > 0) {
    args.cutoff.score =
        static_cast<float>(row.stats.max - double{sampling.top_n_sigma} * Deviation(row));
  }
  if (sampling.min_p > 0) {
    args.cutoff.score = std::max(
        args.cutoff.score, row.stats.max + kernels::Log(sampling.min_p) * sampling.temperature);
  }
  if (sampling.top_k > 0 && sampling.top_k < row.size()) {
    args.cutoff.score = std::max(args.cutoff.score, KthLargest(row, sampling.top_k));
  }
  if (sampling.top_p < 1.0f) {
    args.cutoff = NucleusCutoff(row, sampling, args.cutoff.score, args.inverse_temperature);
  }
  const bool excludes = sampling.xtc_threshold <= kMostExcluding;
  if (sampling.typical_p < 1.0f || excludes) {
    static thread_local std::vector<float> kept;
    if (sampling.typical_p < 1.0f) {
      KeepTypical(row, sampling, args, kept);
    } else {
      KeepAboveCutoff(row, args, kept);
    }
    if (excludes) ExcludeTop(row, sampling.xtc_threshold, args.inverse_temperature, kept);
    return row.ops.gumbel_argmax(kept.data(), row.size(), args).token;
  }
  return row.ops.gumbel_argmax(row.logits.data(), row.size(), args).token;
}

bool HasPenalty(const SamplingParams& sampling) {
  return sampling.repetition_penalty != 1 || sampling.frequency_penalty != 0 ||
         sampling.presence_penalty != 0;
}

void AddPenalties(const SamplingParams& sampling, const TokenPosition& position,
                  std::vector<LogitEdit>& edits) {
  constexpr std::uint32_t kInPrompt = 1u << 31;
  // By token: how often it is in the output, and kInPrompt. All entries are zero between calls.
  static thread_local std::vector<std::uint32_t> seen;
  const auto lists = {position.prompt, position.output, position.drafts};
  for (const auto& tokens : lists) {
    for (const TokenId token : tokens) {
      const auto at = static_cast<std::size_t>(token);
      if (at >= seen.size()) seen.resize(at + at / 2 + 1);
    }
  }
  for (const TokenId token : position.prompt) seen[token] = kInPrompt;
  for (const TokenId token : position.output) ++seen[token];
  for (const TokenId token : position.drafts) ++seen[token];
  for (const auto& tokens : lists) {
    for (const TokenId token : tokens) {
      const std::uint32_t found = std::exchange(seen[token], 0);
      if (found == 0) continue;  // not its first time in these lists
      const auto add = [&](LogitEdit::Kind kind, float value) {
        edits.push_back({.token = token, .kind = kind, .value = value});
      };
      if (sampling.repetition_penalty != 1) {
        add(LogitEdit::Kind::kRepetition, sampling.repetition_penalty);
      }
      const std::uint32_t count = found & ~kInPrompt;
      if (count == 0) continue;
      if (sampling.frequency_penalty != 0) {
        add(LogitEdit::Kind::kAdd, -(sampling.frequency_penalty * static_cast<float>(count)));
      }
      if (sampling.presence_penalty != 0) add(LogitEdit::Kind::kAdd, -sampling.presence_penalty);
    }
  }
}

// Whether a constraint's mask allows a token.
bool Allows(absl::Span<const std::uint32_t> mask, std::size_t token) {
  const std::size_t word = token / 32;
  return word < mask.size() && (mask[word] >> token % 32 & 1) != 0;
}

// Excludes the tokens that a constraint's mask, if there is one, does not allow.
void Exclude(absl::Span<const std::uint32_t> mask, absl::Span<float> logits) {
  if (mask.empty()) return;
  for (std::size_t token = 0; token < logits.size(); ++token) {
    if (!Allows(mask, token)) logits[token] = kMinusInfinity;
  }
}

// Whether the tokens before the position are those of the word before its last one.
bool IsNextOf(absl::Span<const TokenId> word, const TokenPosition& position) {
  const std::size_t before = word.size() - 1;
  const std::size_t drafts = position.drafts.size(), output = position.output.size();
  if (before > output + drafts) return false;
  for (std::size_t i = 1; i <= before; ++i) {
    const TokenId token =
        i <= drafts ? position.drafts[drafts - i] : position.output[output - (i - drafts)];
    if (token != word[before - i]) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<float> RowLogSumExp(const kernels::SoftmaxStats& stats) {
  // A NaN anywhere reaches the sum; without any number the maximum is -infinity.
  if (!std::isfinite(stats.max) || !std::isfinite(stats.sum)) {
    return absl::InternalError("the model gave a row of logits that has no softmax");
  }
  return kernels::LogSumExp(stats);
}

bool Penalises(const SamplingParams& sampling) { return HasPenalty(sampling) || UsesDry(sampling); }

TokenDraw MakeDraw(const SamplingParams& sampling, const TokenPosition& position) {
  TokenDraw draw{.temperature = sampling.temperature,
                 .top_k = sampling.top_k,
                 .top_p = sampling.top_p,
                 .min_p = sampling.min_p,
                 .typical_p = sampling.typical_p,
                 .top_n_sigma = sampling.top_n_sigma,
                 .noise = kernels::MakeNoiseKey(SequenceSeed(sampling.seed, position.sequence),
                                                position.output_index),
                 .forced = ForcedToken(sampling.thinking, position.output, position.drafts),
                 .allowed = sampling.allowed_tokens,
                 .edits = {}};
  if (kernels::NoiseUniform(draw.noise, kDrawOfXtc) < sampling.xtc_probability) {
    draw.xtc_threshold = sampling.xtc_threshold;
  }
  const auto exclude = [&draw](TokenId token) {
    draw.edits.push_back({.token = token, .kind = LogitEdit::Kind::kSet, .value = kMinusInfinity});
  };
  for (const std::vector<TokenId>& word : sampling.bad_words) {
    if (IsNextOf(word, position)) exclude(word.back());
  }
  for (const TokenId token : position.banned) exclude(token);
  for (const LogitBias& entry : sampling.logit_bias) {
    draw.edits.push_back(
        {.token = entry.token, .kind = LogitEdit::Kind::kAdd, .value = entry.bias});
  }
  if (HasPenalty(sampling)) AddPenalties(sampling, position, draw.edits);
  if (UsesDry(sampling)) AddDry(sampling, position, draw.edits);
  return draw;
}

bool NeedsFullRow(const SamplingParams& sampling) {
  if (!sampling.allowed_tokens.empty() || sampling.constraint || sampling.thinking) return true;
  if (sampling.temperature < kMinTemperature) return false;
  return sampling.top_n_sigma > 0 || sampling.min_p > 0 || sampling.top_k > 0 ||
         sampling.top_p < 1.0f || sampling.typical_p < 1.0f || sampling.xtc_probability > 0;
}

void EditLogits(absl::Span<const LogitEdit> edits, TokenId first_token, absl::Span<float> logits) {
  for (const LogitEdit& edit : edits) {
    const auto at = static_cast<std::size_t>(edit.token - first_token);
    if (at >= logits.size()) continue;
    float& logit = logits[at];
    switch (edit.kind) {
      case LogitEdit::Kind::kSet:
        logit = edit.value;
        break;
      case LogitEdit::Kind::kAdd:
        logit += edit.value;
        break;
      case LogitEdit::Kind::kRepetition:
        logit = logit > 0 ? logit / edit.value : logit * edit.value;
        break;
    }
  }
}

TokenPosition PositionAfter(SequenceIndex sequence, absl::Span<const TokenId> known,
                            std::uint32_t outputs, absl::Span<const TokenId> drafts,
                            const StopRule& stop) {
  TokenPosition position{.sequence = sequence,
                         .output_index = outputs + static_cast<std::uint32_t>(drafts.size()),
                         .prompt = known.first(known.size() - outputs),
                         .output = known.last(outputs),
                         .drafts = drafts,
                         .banned = {}};
  if (position.output_index < stop.min_tokens) position.banned = stop.stop_tokens;
  return position;
}

absl::StatusOr<SampledToken> SampleRow(const kernels::Ops& ops, absl::Span<const float> logits,
                                       std::uint32_t tokens, const TokenDraw& draw,
                                       std::int32_t top, absl::Span<const std::uint32_t> mask) {
  absl::StatusOr<Row> row = Measure(ops, logits);
  if (!row.ok()) return row.status();
  row->logits = logits.first(tokens);
  if (draw.forced.has_value() && (mask.empty() || Allows(mask, *draw.forced))) {
    return Describe(*row, *draw.forced, top);
  }
  absl::Span<const float> drawn_from = row->logits;
  static thread_local std::vector<float> copy;
  if (!draw.edits.empty() || !draw.allowed.empty() || !mask.empty()) {
    if (draw.allowed.empty()) {
      copy.assign(drawn_from.begin(), drawn_from.end());
    } else {
      copy.assign(drawn_from.size(), kMinusInfinity);
      for (const TokenId token : draw.allowed) copy[token] = drawn_from[token];
    }
    Exclude(mask, absl::MakeSpan(copy));
    EditLogits(draw.edits, 0, absl::MakeSpan(copy));
    drawn_from = copy;
  } else if (tokens == logits.size()) {
    return Describe(*row, Draw(*row, draw), top);
  }
  const absl::StatusOr<Row> changed = Measure(ops, drawn_from);
  if (!changed.ok() && !mask.empty() && !(draw.edits.empty() && draw.allowed.empty())) {
    TokenDraw constrained = draw;  // the constraint wins
    constrained.edits.clear();
    constrained.allowed.clear();
    return SampleRow(ops, logits, tokens, constrained, top, mask);
  }
  if (!changed.ok() && !draw.allowed.empty()) {
    TokenDraw allowed = draw;  // allowed tokens win over bad words and end tokens that may not come
    const auto excluded = std::erase_if(
        allowed.edits, [](const LogitEdit& edit) { return edit.kind == LogitEdit::Kind::kSet; });
    if (excluded > 0) return SampleRow(ops, logits, tokens, allowed, top, mask);
  }
  if (!changed.ok()) return absl::InternalError("no token that may come has a finite logit");
  return Describe(*row, Draw(*changed, draw), top);
}

absl::StatusOr<std::vector<TopLogprob>> BestTokens(const kernels::Ops& ops,
                                                   absl::Span<const float> logits,
                                                   std::uint32_t tokens, std::int32_t count,
                                                   absl::Span<const std::uint32_t> mask) {
  absl::StatusOr<Row> row = Measure(ops, logits);
  if (!row.ok()) return row.status();
  static thread_local std::vector<float> allowed;
  allowed.assign(logits.begin(), logits.begin() + tokens);
  Exclude(mask, absl::MakeSpan(allowed));
  row->logits = allowed;
  std::vector<TopLogprob> best = Best(*row, count);
  if (best.empty()) return absl::InternalError("the constraint leaves no token of the row");
  return best;
}

}  // namespace flotilla::worker

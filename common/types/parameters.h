// The parameters of a generation: one row each, in one table.
//
// A row names a parameter on both public APIs, gives its default and its range, and says which
// modes take it, which member holds what a client asked for, and which member the sampler reads.
// These go by the rows: reading JSON and gRPC, validation and its errors, /openapi.json, the
// messages between the processes of a fleet, and the tests that compare docs/api.md and the protos
// with the code. So a new parameter of the sampler is
//
//   a member of RequestParameters and a row, here,
//   a member of SamplingParams (common/types/sampling.h) and its use (the sampler),
//   a field of flotilla.v1.SamplingParams and an optional one of flotilla.v1.Sampling,
//   a line in docs/api.md.
//
// Pure values and functions, which may be used on any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/types/request.h"

namespace flotilla {

// What a client asks for, before any check. Absent optionals are parameters that the client
// left out. Numbers are as wide as the public APIs allow.
struct RequestParameters {
  std::optional<double> temperature;  // 0 is greedy
  std::optional<double> top_p;
  std::optional<std::int64_t> top_k;
  std::optional<double> top_n_sigma;
  std::optional<double> min_p;
  std::optional<double> typical_p;
  std::optional<double> xtc_probability, xtc_threshold;
  std::optional<double> frequency_penalty, presence_penalty, repetition_penalty;
  std::optional<double> dry_multiplier, dry_base;
  std::optional<std::int64_t> dry_allowed_length, dry_penalty_last_n;
  std::vector<std::string> dry_sequence_breakers;           // empty: kDefaultDryBreakers
  std::vector<std::pair<std::int64_t, double>> logit_bias;  // by token id
  std::vector<std::int64_t> allowed_token_ids;              // empty: all
  std::vector<std::string> bad_words;                       // never in the output
  std::optional<std::int64_t> thinking_token_budget;        // -1: thoughts have no limit
  std::optional<std::uint64_t> seed;                        // absent: see InferenceService::Start
  // The form of the answer. It has several fields on each API, so it has no row.
  Constraint constraint;
  std::string constraint_field;  // the one that `constraint` is from, as the client calls it

  std::vector<std::string> stop;             // cut from the output
  std::vector<std::int64_t> stop_token_ids;  // besides the model's own end tokens
  bool ignore_eos = false;                   // the model's end tokens do not stop
  bool include_stop_str_in_output = false;   // the text has what stopped it, too
  // Output tokens; 0 computes the prompt only.
  std::optional<std::int64_t> max_tokens;
  // Nothing stops a choice within its first min_tokens output tokens.
  std::optional<std::int64_t> min_tokens;

  // Alternatives per token; absent: no log-probabilities.
  std::optional<std::int64_t> logprobs, prompt_logprobs;

  std::optional<std::int64_t> timeout_ms;
  std::optional<std::int64_t> priority;  // higher goes first
  std::string cache_salt;
  // The client's own name for the request: a label for logs and for the seed, never a key.
  std::string client_request_id;

  std::optional<std::int64_t> n;  // choices that come back
  // The number of continuations computed. The n best by mean log-probability come back. With
  // beam search it is the number of beams. Default n.
  std::optional<std::int64_t> best_of;
  // Beam search ranks whole sequences by the model's own log-probabilities (BeamOptions), so it
  // excludes sampling parameters and stop strings.
  bool use_beam_search = false;
  std::optional<double> length_penalty;
  std::optional<BeamOptions::EarlyStopping> early_stopping;

  // Text prompts only: whether to add the tokens that the tokenizer adds by itself (BOS).
  bool add_special_tokens = true;
  bool return_token_ids = false;    // the answer has the ids of its tokens
  bool skip_special_tokens = true;  // control tokens give no text
  // Only so many tokens of the prompt are used, the last ones.
  std::optional<std::int64_t> truncate_prompt_tokens;
};

// llama.cpp's: DRY does not count across lines, names of speakers, speech and actions.
inline constexpr std::string_view kDefaultDryBreakers[] = {"\n", ":", "\"", "*"};

// An upper bound that is not a constant.
enum class Limit : std::uint8_t {
  kNone,
  kVocabulary,  // the model's
  kContext,     // the model's: prompt and output tokens
  kMaxTokens,   // the request's own max_tokens
  kSequences,   // the engine's limit for one request
  kTimeout,     // the router's
};

struct Range {
  double low = 0, high = 0;
  Limit limit = Limit::kNone;  // if set, the upper bound instead of `high`
  bool above_low = false;      // `low` itself is outside
};

// Which modes take a parameter. Another mode refuses any value but the default.
enum class Modes : std::uint8_t { kAll, kSampling, kBeams };

// What is not as usual about a parameter.
struct Exceptions {
  // A number outside the range that clients send for the default.
  std::optional<double> also_default = {};
  // A number besides the default that has no effect on a beam search, which takes it.
  std::optional<double> beams_take = {};
  // Whether both HTTP bodies have it, by its name and with its type. If not, a body has it in a
  // form of its own, or not at all.
  bool http = true;
};

struct Parameter {
  template <class T>
  using Member = T RequestParameters::*;

  // Over HTTP, in errors, and in flotilla.v1.Sampling.
  std::string_view name;
  // The field of flotilla.v1.GenerateRequest; empty: there is none.
  std::string_view grpc;
  // Where a client's wish is kept.
  std::variant<Member<std::optional<double>>, Member<std::optional<std::int64_t>>,
               Member<std::optional<std::uint64_t>>, Member<bool>, Member<std::string>,
               Member<std::vector<std::string>>, Member<std::vector<std::int64_t>>,
               Member<std::vector<std::pair<std::int64_t, double>>>,
               Member<std::optional<BeamOptions::EarlyStopping>>>
      asked;
  // Of a number. Lists and texts have bounds of their own (RequestLimits).
  Range range = {};
  // If it is a constant number.
  std::optional<double> default_value = {};
  Modes modes = Modes::kAll;
  // Where the sampler reads it, if it does.
  std::variant<std::monostate, float SamplingParams::*, std::int32_t SamplingParams::*> sampler =
      {};
  Exceptions exceptions = {};
};

namespace parameters {
using R = RequestParameters;
using S = SamplingParams;
inline constexpr Modes kAll = Modes::kAll, kSampling = Modes::kSampling, kBeams = Modes::kBeams;
inline constexpr Range kShare = {.low = 0, .high = 1};
inline constexpr Range kShareAbove0 = {.low = 0, .high = 1, .above_low = true};
constexpr Range From(double low, Limit limit) { return {.low = low, .limit = limit}; }

// The rows are in the order in which they are checked: an error names the first one at fault.
// clang-format off
inline constexpr Parameter kRows[] = {
    {"temperature", "sampling.temperature", &R::temperature, {0, 2}, 1, kSampling,
     &S::temperature, {.beams_take = 0}},
    {"top_p", "sampling.top_p", &R::top_p, kShareAbove0, 1, kSampling, &S::top_p},
    {"top_k", "sampling.top_k", &R::top_k, From(0, Limit::kVocabulary), 0, kSampling,
     &S::top_k, {.also_default = -1}},
    {"top_n_sigma", "sampling.top_n_sigma", &R::top_n_sigma, {0, 100}, 0, kSampling,
     &S::top_n_sigma, {.also_default = -1}},
    {"min_p", "sampling.min_p", &R::min_p, kShare, 0, kSampling, &S::min_p},
    {"typical_p", "sampling.typical_p", &R::typical_p, kShareAbove0, 1, kSampling, &S::typical_p},
    {"xtc_probability", "sampling.xtc_probability", &R::xtc_probability, kShare, 0, kSampling,
     &S::xtc_probability},
    {"xtc_threshold", "sampling.xtc_threshold", &R::xtc_threshold, kShare, 0.1f, kSampling,
     &S::xtc_threshold},  // gRPC's 0.1 is a float
    {"frequency_penalty", "sampling.frequency_penalty", &R::frequency_penalty, {-2, 2}, 0,
     kSampling, &S::frequency_penalty},
    {"presence_penalty", "sampling.presence_penalty", &R::presence_penalty, {-2, 2}, 0,
     kSampling, &S::presence_penalty},
    {"repetition_penalty", "sampling.repetition_penalty", &R::repetition_penalty,
     {0.01f, 100}, 1, kSampling, &S::repetition_penalty},  // gRPC's 0.01 is a float
    {"dry_multiplier", "sampling.dry_multiplier", &R::dry_multiplier, {0, 100}, 0, kSampling,
     &S::dry_multiplier},
    {"dry_base", "sampling.dry_base", &R::dry_base, {1, 100}, 1.75, kSampling, &S::dry_base},
    {"dry_allowed_length", "sampling.dry_allowed_length", &R::dry_allowed_length, {0, 999999}, 2,
     kSampling, &S::dry_allowed_length},
    {"dry_penalty_last_n", "sampling.dry_penalty_last_n", &R::dry_penalty_last_n, {-1, 999999},
     -1, kSampling, &S::dry_penalty_last_n},
    {"dry_sequence_breakers", "sampling.dry_sequence_breakers", &R::dry_sequence_breakers, {}, {},
     kSampling},
    {"logit_bias", "sampling.logit_bias", &R::logit_bias, {-S::kMaxBias, S::kMaxBias}, {},
     kSampling},
    {"allowed_token_ids", "sampling.allowed_token_ids", &R::allowed_token_ids, {}, {}, kSampling},
    {"bad_words", "sampling.bad_words", &R::bad_words, {}, {}, kSampling},
    {"thinking_token_budget", "sampling.thinking_token_budget", &R::thinking_token_budget,
     {-1, 999999}, -1, kSampling},
    {"stop", "stop.strings", &R::stop},
    {"stop_token_ids", "stop.token_ids", &R::stop_token_ids},
    {"ignore_eos", "stop.ignore_eos", &R::ignore_eos},
    {"include_stop_str_in_output", "stop.include_in_output", &R::include_stop_str_in_output},
    {"max_tokens", "max_tokens", &R::max_tokens, From(0, Limit::kContext)},
    {"min_tokens", "stop.min_tokens", &R::min_tokens, From(0, Limit::kMaxTokens), 0, kSampling},
    {"seed", "sampling.seed", &R::seed, {}, {}, kSampling},
    {"logprobs", "logprobs.output_top", &R::logprobs, {0, LogprobSpec::kMaxTop}, {}, kAll,
     {}, {.http = false}},
    {"prompt_logprobs", "logprobs.prompt_top", &R::prompt_logprobs, {0, LogprobSpec::kMaxTop}},
    {"timeout_ms", "", &R::timeout_ms, From(1, Limit::kTimeout)},
    {"priority", "priority", &R::priority, {-100, 100}, 0},
    {"cache_salt", "cache_salt", &R::cache_salt},
    {"request_id", "request_id", &R::client_request_id},
    {"n", "n", &R::n, From(1, Limit::kSequences), 1},
    {"best_of", "best_of", &R::best_of, From(1, Limit::kSequences)},
    {"use_beam_search", "beam_search", &R::use_beam_search},
    // Tokens of any context to this power fit a double.
    {"length_penalty", "beam_search.length_penalty", &R::length_penalty, {-10, 10}, 1, kBeams},
    {"early_stopping", "beam_search.early_stopping", &R::early_stopping, {}, {}, kBeams},
    {"add_special_tokens", "add_special_tokens", &R::add_special_tokens, {}, {}, kAll,
     {}, {.http = false}},
    {"return_token_ids", "return_token_ids", &R::return_token_ids},
    {"skip_special_tokens", "skip_special_tokens", &R::skip_special_tokens},
    {"truncate_prompt_tokens", "truncate_prompt_tokens", &R::truncate_prompt_tokens,
     From(1, Limit::kContext)},
};
// clang-format on
}  // namespace parameters

inline constexpr const auto& kParameters = parameters::kRows;

// The row of a parameter that exists.
consteval const Parameter& ParameterNamed(std::string_view name) {
  for (const Parameter& row : kParameters) {
    if (row.name == name) return row;
  }
  throw "there is no such parameter";  // at compile time
}

// Calls visit(row, member) for each row that the sampler uses. `member` points to a member of
// SamplingParams, a float or an int32.
template <class Visit>
constexpr void ForEachOfSampler(Visit visit) {
  for (const Parameter& row : kParameters) {
    // With UndefinedBehaviorSanitizer, gcc 12 takes std::get_if for no constant expression.
    if (row.sampler.index() == 1) visit(row, std::get<1>(row.sampler));
    if (row.sampler.index() == 2) visit(row, std::get<2>(row.sampler));
  }
}

// "min_p is 1.5; it must be from 0 to 1", or nothing if `value` is within the bounds. NaN never
// is. `row` gives the name, and whether `low` itself is outside.
template <class T>
std::string RangeError(const Parameter& row, T value, T low, T high) {
  const bool open = row.range.above_low;
  if ((open ? value > low : value >= low) && value <= high) return {};
  const std::string start = absl::StrCat(std::string(row.name), " is ", value, "; it must be ");
  return open ? absl::StrCat(start, "greater than ", low, " and at most ", high)
              : absl::StrCat(start, "from ", low, " to ", high);
}

}  // namespace flotilla

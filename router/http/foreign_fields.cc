#include "router/http/foreign_fields.h"

#include <utility>

namespace flotilla::router {
namespace {

// vLLM's extensions of the OpenAI API.
std::vector<ForeignField> OfVllm() {
  return {
      {"chat_template", {}},
      {"detokenize", {true}},
      {"guided_decoding_backend", {}, /*ignored=*/true},  // there is one
      {"guided_whitespace_pattern", {}},
      {"kv_transfer_params", {}},
      {"logits_processors", {Json::array()}},
      {"media_io_kwargs", {Json::object()}},
      {"mm_processor_kwargs", {Json::object()}},
      {"prompt_embeds", {}},
      {"spaces_between_special_tokens", {true}},
      {"truncation_side", {}},
      {"vllm_xargs", {Json::object()}},
  };
}

// The fields of llama.cpp's server. The parameters of a sampler that is off are ignored.
std::vector<ForeignField> OfLlamaCpp() {
  return {
      {"cache_prompt", {true}},
      {"dynatemp_exponent", {}, /*ignored=*/true},
      {"dynatemp_range", {0}},
      {"id_slot", {-1}},
      {"lora", {Json::array()}},
      {"min_keep", {0}},
      {"mirostat", {0}},
      {"mirostat_eta", {}, /*ignored=*/true},
      {"mirostat_tau", {}, /*ignored=*/true},
      {"n_discard", {0}},
      {"n_indent", {0}},
      {"n_keep", {0, -1}},  // nothing is ever thrown out of the context
      {"n_probs", {0}},
      {"parse_tool_calls", {false}},
      {"post_sampling_probs", {false}},
      {"repeat_penalty", {1}},
      {"response_fields", {Json::array()}},
      {"return_progress", {false}},
      {"return_timings", {false}},
      {"return_tokens", {false}},
      {"samplers", {}},  // their order is another one here
      {"slot_id", {-1}},
      {"speculative.n_max", {}, /*ignored=*/true},  // speculation changes no answer
      {"speculative.n_min", {}, /*ignored=*/true},
      {"speculative.p_min", {}, /*ignored=*/true},
      {"t_max_predict_ms", {0, -1}},
      {"t_max_prompt_ms", {0, -1}},
      {"tfs_z", {1}},
      {"thinking_forced_open", {false}},
      {"timings_per_token", {false}},
  };
}

// `n_predict` is llama.cpp's name of max_tokens. It passes if it equals max_tokens, and as -1,
// its default, which adds no bound to that of max_tokens.
void CheckPredict(ObjectReader& body) {
  const Json* predict = body.Value("n_predict");
  const Json* max_tokens = body.Value("max_tokens");
  if (predict == nullptr || *predict == -1 || (max_tokens != nullptr && *predict == *max_tokens)) {
    return;
  }
  body.Unsupported("n_predict", "is not supported, except as -1 or equal to 'max_tokens'");
}

// `repeat_last_n` says how far back llama.cpp's penalties look. Here they look at everything.
void CheckRepeatWindow(ObjectReader& body) {
  constexpr std::pair<std::string_view, int> kPenalties[] = {
      {"frequency_penalty", 0}, {"presence_penalty", 0}, {"repetition_penalty", 1}};
  for (const auto& [penalty, off] : kPenalties) {
    const Json* value = body.Value(penalty);
    if (value != nullptr && *value != off) return body.UnsupportedUnless("repeat_last_n", {-1});
  }
  body.Ignored({"repeat_last_n"});
}

}  // namespace

const std::vector<ForeignField>& ForeignFields() {
  static const std::vector<ForeignField>* const fields = [] {
    auto* all = new std::vector<ForeignField>(OfVllm());
    for (ForeignField& field : OfLlamaCpp()) all->push_back(std::move(field));
    return all;
  }();
  return *fields;
}

void CheckForeignFields(ObjectReader& body) {
  for (const ForeignField& field : ForeignFields()) {
    if (field.ignored) {
      body.Ignored({field.name});
    } else {
      body.UnsupportedUnless(field.name, field.accepted);
    }
  }
  CheckPredict(body);
  CheckRepeatWindow(body);
}

}  // namespace flotilla::router

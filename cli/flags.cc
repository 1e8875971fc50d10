#include "cli/flags.h"

#include <array>
#include <sstream>
#include <string_view>
#include <variant>
#include <vector>

namespace flotilla {
namespace {

using Text = std::string ServeFlags::*;
using Number = std::int64_t ServeFlags::*;
using Switch = bool ServeFlags::*;

struct Knob {
  std::string_view name;
  std::variant<Text, Number, Switch> field;
  // Numbers: the unit. Text: what it is, or the choices as "a|b|c".
  std::string_view unit;
  std::int64_t min = 0, max = 0;  // numbers only
  std::string_view group;
  std::string_view help;
};

constexpr std::string_view kModel = "Model";
constexpr std::string_view kListen = "Listening";
constexpr std::string_view kCompute = "Computing";
constexpr std::string_view kSchedule = "Scheduling and memory";
constexpr std::string_view kProcess = "Process";

// Numbers are bounded so that no product of them overflows 64 bits.
constexpr auto kKnobs = std::to_array<Knob>({
    {"--model", &ServeFlags::model, "PATH", 0, 0, kModel, "GGUF file to serve (required)"},
    {"--served-model-name", &ServeFlags::served_model_name, "NAME", 0, 0, kModel,
     "name that clients use; default: the file's name without .gguf"},
    {"--max-model-len", &ServeFlags::max_model_len, "tokens", 0, 1 << 24, kModel,
     "prompt + output of one request; 0: what the model was trained for"},

    {"--host", &ServeFlags::host, "ADDRESS", 0, 0, kListen, "address to listen on"},
    {"--http-port", &ServeFlags::http_port, "port", 0, 65535, kListen,
     "OpenAI HTTP API; 0: any free port"},
    {"--grpc-port", &ServeFlags::grpc_port, "port", 0, 65535, kListen,
     "gRPC API flotilla.v1; 0: any free port"},
    {"--lenient", &ServeFlags::lenient, "", 0, 0, kListen,
     "warn about unknown fields of requests instead of refusing them"},

    {"--tenant-header", &ServeFlags::tenant_header, "NAME", 0, 0, kListen,
     "header or metadata key, in small letters, that names the tenant of a request; only behind a "
     "gateway that sets it"},

    {"--compute", &ServeFlags::compute, "accurate|fp32|fast", 0, 0, kCompute,
     "numeric recipe: fp32 is the slow reference, accurate and fast use int16 activations"},
    {"--kv-type", &ServeFlags::kv_type, "bf16|fp32", 0, 0, kCompute,
     "how keys and values are kept"},
    {"--cpu-isa", &ServeFlags::cpu_isa, "auto|reference|avx2|avx512", 0, 0, kCompute,
     "instruction path; auto: the best this CPU has"},
    {"--threads", &ServeFlags::threads, "threads", 0, 1024, kCompute,
     "compute threads; 0: what the cgroup's CPU quota allows; never changes results"},

    {"--kv-blocks", &ServeFlags::kv_blocks, "blocks", 2, 1 << 26, kSchedule,
     "blocks of the KV pool"},
    {"--block-tokens", &ServeFlags::block_tokens, "tokens", 16, 16, kSchedule,
     "tokens per KV block"},
    {"--max-batch-tokens", &ServeFlags::max_batch_tokens, "tokens", 1, 1 << 16, kSchedule,
     "token budget of a step, prefill and decode together"},
    {"--max-chunk-tokens", &ServeFlags::max_chunk_tokens, "tokens", 1, 1 << 16, kSchedule,
     "largest piece of one prompt in a step"},
    {"--max-seqs", &ServeFlags::max_seqs, "sequences", 1, 4096, kSchedule,
     "sequences that run at once"},
    {"--prefix-cache", &ServeFlags::prefix_cache, "on|off", 0, 0, kSchedule,
     "keep KV of prompts and answers for requests that begin alike; never changes results"},
    {"--host-blocks", &ServeFlags::host_blocks, "blocks", 0, 1 << 26, kSchedule,
     "memory outside the pool for blocks of preempted requests and old prefixes"},
    {"--disk-blocks", &ServeFlags::disk_blocks, "blocks", 0, 1 << 26, kSchedule,
     "the same on disk; a block goes where it is cheaper to read it back than to compute it"},
    {"--disk-dir", &ServeFlags::disk_directory, "PATH", 0, 0, kSchedule,
     "directory of the disk blocks' file, which has no name and goes with the process"},
    {"--policy", &ServeFlags::policy, "priority|fcfs|srpt|edf", 0, 0, kSchedule,
     "who goes first: by priority then arrival, by arrival alone, shortest predicted, or "
     "earliest deadline, which ends what will hardly make it before it starts"},
    {"--fair-share", &ServeFlags::fair_share, "", 0, 0, kSchedule,
     "tenants take turns by the tokens they were served"},
    {"--tenant-weights", &ServeFlags::tenant_weights, "NAME=WEIGHT,...", 0, 0, kSchedule,
     "shares of tenants under --fair-share; others have 1"},
    {"--itl-target-ms", &ServeFlags::itl_target_ms, "ms", 0, 60'000, kSchedule,
     "aim at steps of at most this while anybody decodes, by smaller prefill chunks; 0: no aim"},
    {"--max-preemptions", &ServeFlags::max_preemptions, "times", 0, 1000, kSchedule,
     "how often a request may lose its blocks before it runs undisturbed"},
    {"--max-wait-ms", &ServeFlags::max_wait_ms, "ms", 0, 3'600'000, kSchedule,
     "refuse requests (429) whose wait is predicted to be longer; 0: only a full queue refuses"},
    {"--speculation", &ServeFlags::speculation, "off|ngram|draft", 0, 0, kSchedule,
     "guess tokens ahead where it pays: ngram, as the request's own text went on before; draft, by "
     "the model's first layers; never changes results"},
    {"--draft-tokens", &ServeFlags::draft_tokens, "tokens", 1, 64, kSchedule,
     "tokens that one sequence guesses ahead at most"},
    {"--draft-layers", &ServeFlags::draft_layers, "layers", 0, 1024, kSchedule,
     "layers that a draft computes; 0: a third of the model's"},
    {"--queue-requests", &ServeFlags::queue_requests, "requests", 1, 1 << 20, kSchedule,
     "requests that may wait; more are refused with 429"},
    {"--queue-tokens", &ServeFlags::queue_tokens, "tokens", 1, 1 << 30, kSchedule,
     "prompt tokens that may wait; more are refused with 429"},

    {"--drain-seconds", &ServeFlags::drain_seconds, "seconds", 0, 86400, kProcess,
     "time for running requests to finish after SIGTERM or SIGINT"},
    {"--ready-file", &ServeFlags::ready_file, "PATH", 0, 0, kProcess,
     "written once the server is ready: {\"http\":PORT,\"grpc\":PORT,\"pid\":PID}"},
    {"--log-level", &ServeFlags::log_level, "debug|info|warning|error", 0, 0, kProcess,
     "least severe log lines on standard error"},
});

std::vector<std::string> Split(std::string_view choices) {
  std::vector<std::string> all;
  std::istringstream in{std::string(choices)};
  for (std::string one; std::getline(in, one, '|');) all.push_back(one);
  return all;
}

// A validator without a description: bounds are part of the knob's help.
CLI::Validator Silent(CLI::Validator validator) { return validator.description(""); }

void Add(CLI::App& app, const Knob& knob, ServeFlags* flags) {
  const std::string name(knob.name), unit(knob.unit);
  std::string help(knob.help);
  CLI::Option* option = nullptr;
  if (const Switch* field = std::get_if<Switch>(&knob.field)) {
    option = app.add_flag(name, flags->**field, help);
  } else if (const Number* field = std::get_if<Number>(&knob.field)) {
    std::int64_t& value = flags->**field;
    help += " [" + std::to_string(knob.min) + ".." + std::to_string(knob.max) + ", default " +
            std::to_string(value) + "]";
    option = app.add_option(name, value, help);
    option->check(Silent(CLI::Range(knob.min, knob.max)))->type_name(unit);
  } else {
    std::string& value = flags->*std::get<Text>(knob.field);
    if (!value.empty()) help += " [default " + value + "]";
    option = app.add_option(name, value, help)->type_name(unit);
    if (unit.find('|') != std::string::npos) option->check(Silent(CLI::IsMember(Split(unit))));
  }
  option->group(std::string(knob.group));
}

}  // namespace

void AddServeFlags(CLI::App& app, ServeFlags* flags) {
  for (const Knob& knob : kKnobs) Add(app, knob, flags);
  app.get_formatter()->column_width(38);
  app.get_formatter()->label("REQUIRED", "");
  app.get_option("--model")->required();
}

}  // namespace flotilla

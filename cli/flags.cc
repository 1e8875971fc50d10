#include "cli/flags.h"

#include <array>
#include <sstream>
#include <string_view>
#include <variant>
#include <vector>

namespace flotilla {
namespace {

using Text = std::string RoleFlags::*;
using Texts = std::vector<std::string> RoleFlags::*;  // may be given several times
using Number = std::int64_t RoleFlags::*;
using Switch = bool RoleFlags::*;

struct FlagSpec {
  std::string_view name;
  std::variant<Text, Texts, Number, Switch> field;
  // Numbers: the unit. Text: what it is, or the choices as "a|b|c".
  std::string_view unit;
  std::int64_t min = 0, max = 0;  // numbers only
  std::string_view group;
  std::string_view help;
  unsigned roles;
};

constexpr unsigned Of(Role role) { return 1u << static_cast<unsigned>(role); }
constexpr unsigned kServe = Of(Role::kServe), kRouter = Of(Role::kRouter),
                   kScheduler = Of(Role::kScheduler), kWorker = Of(Role::kWorker),
                   kRank = Of(Role::kRank), kNode = Of(Role::kNode);
// A scheduler that was given a model: it runs the worker group itself.
constexpr unsigned kOwnGroup = 1u << 8;
constexpr unsigned kGroup = kServe | kWorker | kRank | kOwnGroup;
constexpr unsigned kFleet = kRouter | kScheduler | kWorker | kNode, kAll = kServe | kFleet;

constexpr std::string_view kModel = "Model";
constexpr std::string_view kListen = "Listening";
constexpr std::string_view kSecurity = "Security";
constexpr std::string_view kCompute = "Computing";
constexpr std::string_view kSchedule = "Scheduling and memory";
constexpr std::string_view kProcess = "Process";

// Numbers are bounded so that no product of them overflows 64 bits.
constexpr auto kFlags = std::to_array<FlagSpec>({
    {"--model", &RoleFlags::model, "PATH", 0, 0, kModel, "GGUF file to serve",
     kServe | kWorker | kRank},
    {"--model", &RoleFlags::model, "PATH", 0, 0, kModel,
     "GGUF file of the worker group that this process runs itself, instead of --worker", kOwnGroup},
    {"--served-model-name", &RoleFlags::served_model_name, "NAME", 0, 0, kModel,
     "name that clients use; default: the file's name without .gguf, whose format (.Q4_1) they may "
     "leave out",
     kGroup},
    {"--max-model-len", &RoleFlags::max_model_len, "tokens", 0, 1 << 24, kModel,
     "prompt + output of one request; 0: what the model was trained for", kGroup},

    {"--host", &RoleFlags::host, "ADDRESS", 0, 0, kListen, "address to listen on", kAll},
    {"--http-port", &RoleFlags::http_port, "port", 0, 65535, kListen,
     "OpenAI HTTP API; 0: any free port", kServe | kRouter},
    {"--grpc-port", &RoleFlags::grpc_port, "port", 0, 65535, kListen,
     "gRPC API flotilla.v1; 0: any free port", kServe | kRouter},
    {"--health-port", &RoleFlags::health_port, "port", -1, 65535, kListen,
     "/health, /ready and /metrics once more, with connections of their own, which no client of "
     "the API takes away; 0: any free port; -1: none",
     kServe | kRouter},
    {"--max-connections", &RoleFlags::max_connections, "connections", 1, 1 << 20, kListen,
     "of HTTP; fewer where the limit of file descriptors is low; one more takes the place of the "
     "one that has been idle for longest",
     kServe | kRouter},
    {"--allowed-hosts", &RoleFlags::allowed_hosts, "NAME,NAME...", 0, 0, kListen,
     "names that HTTP requests may have in their Host, besides those of loopback; *: any; default: "
     "any, but on a loopback address those of loopback",
     kServe | kRouter},
    {"--listen-port", &RoleFlags::listen_port, "port", 0, 65535, kListen,
     "where the rest of the fleet finds this process; 0: any free port",
     kScheduler | kWorker | kNode},
    {"--metrics-port", &RoleFlags::metrics_port, "port", 0, 65535, kListen,
     "metrics for Prometheus; 0: any free port", kScheduler | kWorker | kNode},
    {"--scheduler", &RoleFlags::schedulers, "HOST:PORT", 0, 0, kListen,
     "a scheduler whose model is served, several times for several; dns:///NAME:PORT for all "
     "addresses of a name, looked up again every 5 seconds",
     kRouter},
    {"--worker", &RoleFlags::worker, "HOST:PORT", 0, 0, kListen,
     "the agent of the worker group that serves; or --model", kScheduler},
    {"--hold-seconds", &RoleFlags::hold_seconds, "seconds", 0, 3600, kListen,
     "how long requests wait for a scheduler that went away", kRouter},
    {"--move-after-seconds", &RoleFlags::move_after_seconds, "seconds", 0, 3600, kListen,
     "how long requests wait for a worker group that went away, before another group goes on with "
     "them",
     kRouter},
    {"--permissive", &RoleFlags::permissive, "", 0, 0, kListen,
     "warn about unknown fields of requests instead of refusing them", kServe | kRouter},

    {"--group-dir", &RoleFlags::group_directory, "PATH", 0, 0, kListen,
     "directory of the worker group's agent", kRank},
    {"--heartbeats", &RoleFlags::heartbeats, "PATH", 0, 0, kListen,
     "page of the agent's memory for heartbeats", kRank},
    {"--agent", &RoleFlags::agent, "HOST:PORT", 0, 0, kListen,
     "the agent, of a rank that may be on another host", kRank},

    {"--tenant-header", &RoleFlags::tenant_header, "NAME", 0, 0, kListen,
     "header or metadata key, in small letters, that names the tenant of a request; only behind a "
     "gateway that sets it",
     kServe | kRouter},

    {"--api-keys-file", &RoleFlags::api_keys_file, "PATH", 0, 0, kSecurity,
     "clients need a key of this file, with lines NAME KEY or NAME sha256:HEX, and then "
     "max-priority=N where a key shall not use any priority; NAME is their tenant; read again "
     "when it changes",
     kServe | kRouter},
    {"--fleet-secret-file", &RoleFlags::fleet_secret_file, "PATH", 0, 0, kSecurity,
     "streams between the roles need the secret of this file: 32 to 256 characters; a second line "
     "is accepted, too; read again when it changes",
     kFleet},
    {"--tls-cert", &RoleFlags::tls_cert, "PATH", 0, 0, kSecurity,
     "PEM certificate of this process: streams between the roles are encrypted, and both ends "
     "need one; read again when it changes",
     kFleet},
    {"--tls-key", &RoleFlags::tls_key, "PATH", 0, 0, kSecurity, "its private key, PEM", kFleet},
    {"--tls-ca", &RoleFlags::tls_ca, "PATH", 0, 0, kSecurity,
     "the fleet's certificate authorities, PEM: whoever has a certificate of theirs is a member",
     kFleet},
    {"--insecure-internal", &RoleFlags::insecure_internal, "", 0, 0, kSecurity,
     "listen for the fleet on any --host without secret and certificates: the network keeps "
     "others out",
     kScheduler | kWorker | kNode},

    {"--compute", &RoleFlags::compute, "accurate|fp32|fast", 0, 0, kCompute,
     "numeric recipe: fp32 is the slow reference, accurate and fast use int16 activations", kGroup},
    {"--kv-type", &RoleFlags::kv_type, "bf16|fp32", 0, 0, kCompute, "how keys and values are kept",
     kGroup},
    {"--cpu-isa", &RoleFlags::cpu_isa, "auto|reference|avx2|avx512", 0, 0, kCompute,
     "instruction path; auto: the best this CPU has", kGroup},
    {"--threads", &RoleFlags::threads, "threads", 0, 1024, kCompute,
     "compute threads of a rank; 0: its share of what the cgroup's CPU quota allows; never changes "
     "results",
     kGroup},

    {"--tp", &RoleFlags::tensor_parallel, "ranks", 1, 64, kCompute,
     "ranks that share every layer (tensor parallel); never changes results", kGroup},
    {"--pp", &RoleFlags::pipeline_parallel, "stages", 1, 64, kCompute,
     "stages of layers, each of --tp ranks (pipeline parallel); never changes results", kGroup},
    {"--balance", &RoleFlags::balance, "step|bytes", 0, 0, kCompute,
     "what --tp cuts alike: each layer's parts, for the fastest step, or the bytes of a rank, "
     "where "
     "memory is short; never changes results",
     kGroup},
    {"--launcher", &RoleFlags::launcher, "auto|mpi|none", 0, 0, kCompute,
     "mpi: ranks are processes that mpirun starts, watched and started again by this one; none: "
     "they are threads of this process; auto: mpi",
     kWorker | kOwnGroup},
    {"--transport", &RoleFlags::transport, "auto|shared|mpi", 0, 0, kCompute,
     "how ranks that are processes exchange activations: through memory that they share, or by MPI "
     "messages; auto: shared where all are on one host; never changes results",
     kWorker | kRank | kOwnGroup},
    {"--group-network", &RoleFlags::group_network, "ADDRESS/BITS", 0, 0, kCompute,
     "ranks may be on other hosts: the private network, such as 10.1.0.0/16, by which hosts reach "
     "each other; what they say there is not encrypted",
     kWorker | kOwnGroup},
    {"--hosts", &RoleFlags::hosts, "HOST,HOST...", 0, 0, kCompute,
     "with --group-network: the hosts of the ranks, this one first; HOST:RANKS for several",
     kWorker | kOwnGroup},
    {"--hostfile", &RoleFlags::hostfile, "PATH", 0, 0, kCompute,
     "the same as mpirun's file; with neither, as its environment says (Slurm)",
     kWorker | kOwnGroup},
    {"--hosts-port", &RoleFlags::hosts_port, "port", 0, 65535, kCompute,
     "with --group-network: other hosts run `flotilla node` on this port, which starts ranks "
     "there; 0: --remote-shell does",
     kWorker | kOwnGroup},
    {"--remote-shell", &RoleFlags::remote_shell, "COMMAND", 0, 0, kCompute,
     "with --group-network: what starts a process on a host, called with the host and the command; "
     "none: mpirun's choice, ssh",
     kWorker | kOwnGroup},

    {"--kv-blocks", &RoleFlags::kv_blocks, "blocks", 2, 1 << 26, kSchedule, "blocks of the KV pool",
     kGroup},
    {"--block-tokens", &RoleFlags::block_tokens, "tokens", 16, 16, kSchedule, "tokens per KV block",
     kServe | kWorker | kOwnGroup},
    {"--max-batch-tokens", &RoleFlags::max_batch_tokens, "tokens", 1, 1 << 16, kSchedule,
     "token budget of a step, prefill and decode together", kServe | kScheduler | kWorker | kRank},
    {"--max-chunk-tokens", &RoleFlags::max_chunk_tokens, "tokens", 1, 1 << 16, kSchedule,
     "largest piece of one prompt in a step", kServe | kScheduler},
    {"--max-seqs", &RoleFlags::max_seqs, "sequences", 1, 4096, kSchedule,
     "sequences that run at once", kServe | kScheduler | kWorker | kRank},
    {"--prefix-cache", &RoleFlags::prefix_cache, "on|off", 0, 0, kSchedule,
     "keep KV of prompts and answers for requests that begin alike; never changes results",
     kServe | kScheduler},
    {"--host-blocks", &RoleFlags::host_blocks, "blocks", 0, 1 << 26, kSchedule,
     "memory outside the pool for blocks of preempted requests and old prefixes", kGroup},
    {"--disk-blocks", &RoleFlags::disk_blocks, "blocks", 0, 1 << 26, kSchedule,
     "the same on disk; a block goes where it is cheaper to read it back than to compute it",
     kGroup},
    {"--disk-dir", &RoleFlags::disk_directory, "PATH", 0, 0, kSchedule,
     "directory of the disk blocks' file, which has no name and goes with the process", kGroup},
    {"--policy", &RoleFlags::policy, "priority|fcfs|srpt|edf", 0, 0, kSchedule,
     "who goes first: by priority then arrival, by arrival alone, shortest predicted, or "
     "earliest deadline, which ends what will hardly make it before it starts",
     kServe | kScheduler},
    {"--fair-share", &RoleFlags::fair_share, "", 0, 0, kSchedule,
     "tenants take turns by the tokens they were served", kServe | kScheduler},
    {"--tenant-weights", &RoleFlags::tenant_weights, "NAME=WEIGHT,...", 0, 0, kSchedule,
     "shares of tenants under --fair-share; others have 1", kServe | kScheduler},
    {"--itl-target-ms", &RoleFlags::itl_target_ms, "ms", 0, 60'000, kSchedule,
     "aim at steps of at most this while anybody decodes, by smaller prefill chunks; 0: no aim",
     kServe | kScheduler},
    {"--max-preemptions", &RoleFlags::max_preemptions, "times", 0, 1000, kSchedule,
     "how often a request may lose its blocks before it becomes non-preemptible",
     kServe | kScheduler},
    {"--max-wait-ms", &RoleFlags::max_wait_ms, "ms", 0, 3'600'000, kSchedule,
     "refuse requests (429) whose wait is predicted to be longer; 0: only a full queue refuses",
     kServe | kScheduler},
    {"--speculation", &RoleFlags::speculation, "off|ngram|draft", 0, 0, kSchedule,
     "draft tokens ahead where it pays: ngram, as the request's own text went on before; draft, by "
     "the model's first layers; never changes results",
     kGroup},
    {"--draft-tokens", &RoleFlags::draft_tokens, "tokens", 1, 64, kSchedule,
     "draft tokens of one sequence in a step at most", kServe | kScheduler | kWorker | kRank},
    {"--draft-layers", &RoleFlags::draft_layers, "layers", 0, 1024, kSchedule,
     "layers that a draft computes; 0: a third of the model's", kGroup},
    {"--queue-requests", &RoleFlags::queue_requests, "requests", 1, 1 << 20, kSchedule,
     "requests that may wait; more are refused with 429", kServe | kScheduler},
    {"--queue-tokens", &RoleFlags::queue_tokens, "tokens", 1, 1 << 30, kSchedule,
     "prompt tokens that may wait; more are refused with 429", kServe | kScheduler},

    {"--drain-seconds", &RoleFlags::drain_seconds, "seconds", 0, 86400, kProcess,
     "time for running requests to finish after SIGTERM or SIGINT", kServe | kRouter | kScheduler},
    {"--ready-file", &RoleFlags::ready_file, "PATH", 0, 0, kProcess,
     "written once the process is ready: {\"http\":PORT,\"grpc\":PORT,\"health\":PORT,"
     "\"pid\":PID}, with the ports that it has",
     kAll},
    {"--log-level", &RoleFlags::log_level, "debug|info|warning|error", 0, 0, kProcess,
     "least severe log lines on standard error", kAll},
});

std::vector<std::string> Split(std::string_view choices) {
  std::vector<std::string> all;
  std::istringstream in{std::string(choices)};
  for (std::string one; std::getline(in, one, '|');) all.push_back(one);
  return all;
}

// A validator without a description: bounds are part of the flag's help.
CLI::Validator Silent(CLI::Validator validator) { return validator.description(""); }

CLI::Option* Add(CLI::App& app, const FlagSpec& flag, RoleFlags* flags) {
  const std::string name(flag.name), unit(flag.unit);
  std::string help(flag.help);
  CLI::Option* option = nullptr;
  if (const Switch* field = std::get_if<Switch>(&flag.field)) {
    option = app.add_flag(name, flags->**field, help);
  } else if (const Number* field = std::get_if<Number>(&flag.field)) {
    std::int64_t& value = flags->**field;
    help += " [" + std::to_string(flag.min) + ".." + std::to_string(flag.max) + ", default " +
            std::to_string(value) + "]";
    option = app.add_option(name, value, help);
    option->check(Silent(CLI::Range(flag.min, flag.max)))->type_name(unit);
  } else if (const Texts* field = std::get_if<Texts>(&flag.field)) {
    option = app.add_option(name, flags->**field, help)->type_name(unit);
    option->allow_extra_args(false);  // one value each time
  } else {
    std::string& value = flags->*std::get<Text>(flag.field);
    if (!value.empty()) help += " [default " + value + "]";
    option = app.add_option(name, value, help)->type_name(unit);
    if (unit.find('|') != std::string::npos) option->check(Silent(CLI::IsMember(Split(unit))));
  }
  return option->group(std::string(flag.group));
}

}  // namespace

void AddRoleFlags(CLI::App& app, Role role, RoleFlags* flags) {
  const unsigned mine = Of(role) | (role == Role::kScheduler ? kOwnGroup : 0);
  std::vector<CLI::Option*> of_own_group;
  for (const FlagSpec& flag : kFlags) {
    if ((flag.roles & mine) == 0) continue;
    CLI::Option* option = Add(app, flag, flags);
    if ((flag.roles & Of(role)) == 0) of_own_group.push_back(option);
  }
  app.get_formatter()->column_width(38);
  app.get_formatter()->label("REQUIRED", "");
  for (const char* name : {"--hosts", "--hostfile", "--hosts-port", "--remote-shell"}) {
    CLI::Option* option = app.get_option_no_throw(name);
    if (option != nullptr) option->needs(app.get_option("--group-network"));
  }
  if (CLI::Option* hosts = app.get_option_no_throw("--hosts"); hosts != nullptr) {
    hosts->excludes(app.get_option("--hostfile"));
    app.get_option("--hosts-port")->excludes(app.get_option("--remote-shell"));
  }
  if (role == Role::kScheduler) {
    CLI::Option* model = app.get_option("--model");
    model->excludes(app.get_option("--worker"));
    for (CLI::Option* option : of_own_group) {
      if (option != model) option->needs(model);
    }
    return;
  }
  for (const char* name : {"--model", "--scheduler", "--group-dir"}) {
    CLI::Option* option = app.get_option_no_throw(name);
    if (option == nullptr) continue;
    option->required()->description(option->get_description() + " (required)");
  }
}

std::vector<std::string> RankArguments(const RoleFlags& worker) {
  std::vector<std::string> words;
  for (const FlagSpec& flag : kFlags) {
    if ((flag.roles & kWorker) == 0 || (flag.roles & kRank) == 0) continue;
    std::string value;
    if (const Switch* field = std::get_if<Switch>(&flag.field)) {
      if (worker.**field) words.emplace_back(flag.name);
      continue;
    } else if (const Number* field = std::get_if<Number>(&flag.field)) {
      value = std::to_string(worker.**field);
    } else {
      value = worker.*std::get<Text>(flag.field);
      if (value.empty()) continue;
    }
    words.push_back(std::string(flag.name) + "=" + value);
  }
  return words;
}

}  // namespace flotilla

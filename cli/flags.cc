#include "cli/flags.h"

#include <CLI/CLI.hpp>
#include <array>
#include <sstream>
#include <string_view>
#include <variant>
#include <vector>

namespace flotilla::cli {
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
                   kRank = Of(Role::kRank), kNode = Of(Role::kNode), kRun = Of(Role::kRun);
// A scheduler with --model, which runs the worker group itself.
constexpr unsigned kOwnGroup = 1u << 8;
constexpr unsigned kGroup = kServe | kRun | kWorker | kRank | kOwnGroup;
constexpr unsigned kFleet = kRouter | kScheduler | kWorker | kNode, kAll = kServe | kFleet;

constexpr std::string_view kModel = "Model";
constexpr std::string_view kListen = "Listening";
constexpr std::string_view kFiles = "Files and batches";
constexpr std::string_view kSecurity = "Security";
constexpr std::string_view kCompute = "Computing";
constexpr std::string_view kSchedule = "Scheduling and memory";
constexpr std::string_view kProcess = "Process";

// Numbers are bounded so that no product of them overflows 64 bits.
constexpr auto kFlags = std::to_array<FlagSpec>({
    {"--model", &RoleFlags::model, "PATH", 0, 0, kModel,
     "The model that this process runs: a GGUF file or a Hugging Face folder.",
     kServe | kRun | kWorker | kRank},
    {"--model", &RoleFlags::model, "PATH", 0, 0, kModel,
     "The model of the worker group that this process runs itself, in place of --worker: a GGUF "
     "file or a Hugging Face folder.",
     kOwnGroup},
    {"--served-model-name", &RoleFlags::served_model_name, "NAME", 0, 0, kModel,
     "The name of the model for clients. The default is the name of the file, without .gguf, or of "
     "the folder. Clients "
     "may leave out a weight format at the end of the name, such as .Q4_1.",
     kGroup},
    {"--max-model-len", &RoleFlags::max_model_len, "tokens", 0, 1 << 24, kModel,
     "The most tokens of one request, prompt and output together. 0 means the length that the "
     "model was trained for.",
     kGroup},
    {"--chat-template", &RoleFlags::chat_template, "PATH", 0, 0, kModel,
     "A file with the chat template (Jinja) that takes the place of all that the model's files "
     "have. Example: --chat-template=tool_chat_template.jinja",
     kServe | kRun | kWorker | kOwnGroup},
    {"--model-sampling", &RoleFlags::model_sampling, "", 0, 0, kModel,
     "Parameters of sampling that a request leaves out are what the model's files recommend: "
     "generation_config.json of a folder, or general.sampling of a GGUF file. /v1/models always "
     "shows them.",
     kServe | kRouter | kRun},

    {"--host", &RoleFlags::host, "ADDRESS", 0, 0, kListen,
     "The address that this process listens on.", kAll},
    {"--http-port", &RoleFlags::http_port, "port", 0, 65535, kListen,
     "The port of the OpenAI HTTP API. 0 means any free port.", kServe | kRouter},
    {"--grpc-port", &RoleFlags::grpc_port, "port", 0, 65535, kListen,
     "The port of the gRPC API flotilla.v1. 0 means any free port.", kServe | kRouter},
    {"--health-port", &RoleFlags::health_port, "port", -1, 65535, kListen,
     "A further port for /health, /ready and /metrics. It answers even when clients of the API "
     "use all their connections. 0 means any free port, -1 means none.",
     kServe | kRouter},
    {"--max-connections", &RoleFlags::max_connections, "connections", 1, 1 << 20, kListen,
     "The most HTTP connections at a time. A low limit of file descriptors lowers this number. "
     "A new connection above it replaces the one that has been idle for longest, and is refused if "
     "none has been idle for 0.25 seconds.",
     kServe | kRouter},
    {"--allowed-hosts", &RoleFlags::allowed_hosts, "NAME,NAME...", 0, 0, kListen,
     "The names that a request's Host header may have, besides those of loopback. * allows any "
     "name. The default is * unless the server listens on loopback; then only the names of "
     "loopback are allowed.",
     kServe | kRouter},
    {"--cors-origin", &RoleFlags::cors_origins, "ORIGIN", 0, 0, kListen,
     "An origin whose web pages may call the API and read its answers, such as "
     "https://chat.example. Repeat the flag for several origins; * means all. By default browsers "
     "keep the answers from pages of other origins.",
     kServe | kRouter},
    {"--listen-port", &RoleFlags::listen_port, "port", 0, 65535, kListen,
     "The port where the rest of the fleet reaches this process. 0 means any free port.",
     kScheduler | kWorker | kNode},
    {"--metrics-port", &RoleFlags::metrics_port, "port", 0, 65535, kListen,
     "The port where Prometheus reads metrics. 0 means any free port.",
     kScheduler | kWorker | kNode},
    {"--scheduler", &RoleFlags::schedulers, "HOST:PORT", 0, 0, kListen,
     "A scheduler whose model this router serves. Repeat the flag for several schedulers. "
     "dns:///NAME:PORT means all addresses of NAME, which is looked up every 5 seconds.",
     kRouter},
    {"--worker", &RoleFlags::worker, "HOST:PORT", 0, 0, kListen,
     "The address of the worker that runs the model. With --model the scheduler starts the ranks "
     "itself and needs no worker.",
     kScheduler},
    {"--hold-seconds", &RoleFlags::hold_seconds, "seconds", 0, 3600, kListen,
     "How long a request waits when its scheduler went away and no other can continue it.",
     kRouter},
    {"--move-after-seconds", &RoleFlags::move_after_seconds, "seconds", 0, 3600, kListen,
     "How long a request waits at a replica that has lost its worker group. Then another replica "
     "continues the request.",
     kRouter},
    {"--files-dir", &RoleFlags::files_dir, "PATH", 0, 0, kFiles,
     "The folder for the files and batches of clients (/v1/files, /v1/batches). The server makes "
     "it "
     "if it does not exist. Each router needs a folder of its own. Without this flag the server "
     "keeps no files and runs no batches.",
     kServe | kRouter},
    {"--files-mib", &RoleFlags::files_mib, "MiB", 1, 1 << 30, kFiles,
     "The most MiB of files that one tenant may have, with what its batches write.",
     kServe | kRouter},
    {"--files-count", &RoleFlags::files_count, "files", 1, 10'000, kFiles,
     "The most files that one tenant may have.", kServe | kRouter},
    {"--file-mib", &RoleFlags::file_mib, "MiB", 1, 1 << 20, kFiles,
     "The most MiB of one file that a client sends.", kServe | kRouter},
    {"--files-days", &RoleFlags::files_days, "days", 1, 3650, kFiles,
     "How long a file is kept, unless its client says otherwise, and how long a batch that is over "
     "is remembered.",
     kServe | kRouter},
    {"--batch-concurrency", &RoleFlags::batch_concurrency, "requests", 1, 65'536, kFiles,
     "The most requests of batches in flight. They have the lowest priority, but a step that "
     "computes more sequences takes longer for all of them.",
     kServe | kRouter},
    {"--permissive", &RoleFlags::permissive, "", 0, 0, kListen,
     "The server ignores unknown fields of requests and names them in the answer's header "
     "x-flotilla-ignored-fields. Without this flag it refuses them.",
     kServe | kRouter},

    {"--group-dir", &RoleFlags::group_directory, "PATH", 0, 0, kListen,
     "The directory of the worker group's agent.", kRank},
    {"--heartbeats", &RoleFlags::heartbeats, "PATH", 0, 0, kListen,
     "The path of the agent's shared memory page for heartbeats.", kRank},
    {"--agent", &RoleFlags::agent, "HOST:PORT", 0, 0, kListen,
     "The agent's address, for a rank that may run on another host.", kRank},

    {"--tenant-header", &RoleFlags::tenant_header, "NAME", 0, 0, kListen,
     "The HTTP header or gRPC metadata key, in lower case, that names the tenant of a "
     "request. Use it only behind a gateway that sets it.",
     kServe | kRouter},

    {"--api-keys-file", &RoleFlags::api_keys_file, "PATH", 0, 0, kSecurity,
     "Clients need a key from this file. A line is NAME KEY CLASS or NAME sha256:HEX CLASS, where "
     "CLASS is user or admin, and user if it is left out. NAME is the tenant. max-priority=N at "
     "the "
     "end of a line bounds the priority of requests with this key, and tokens-per-minute=N and "
     "max-concurrent=N what the requests of NAME use. The file is read again when it changes.",
     kServe | kRouter},
    {"--admin", &RoleFlags::admin, "", 0, 0, kSecurity,
     "Without --api-keys-file: everybody who reaches the server may use the routes under /admin. "
     "The server then listens on loopback only.",
     kServe | kRouter},
    {"--api-tls-cert", &RoleFlags::api_tls_cert, "PATH", 0, 0, kSecurity,
     "The PEM certificate of the HTTP and gRPC ports, followed by those between it and its "
     "authority. Clients then reach both by TLS only. The health port is not encrypted. The file "
     "is read again when it changes.",
     kServe | kRouter},
    {"--api-tls-key", &RoleFlags::api_tls_key, "PATH", 0, 0, kSecurity,
     "The PEM private key that belongs to --api-tls-cert.", kServe | kRouter},
    {"--api-tls-ca", &RoleFlags::api_tls_ca, "PATH", 0, 0, kSecurity,
     "Clients need a certificate that one of these PEM certificate authorities has signed, besides "
     "a key where --api-keys-file is given.",
     kServe | kRouter},
    {"--fleet-secret-file", &RoleFlags::fleet_secret_file, "PATH", 0, 0, kSecurity,
     "Streams between the roles need the secret in the first line of this file, 32 to 256 "
     "characters. The secret in a second line is accepted as well, for rotation. The file is "
     "read again when it changes.",
     kFleet},
    {"--tls-cert", &RoleFlags::tls_cert, "PATH", 0, 0, kSecurity,
     "The PEM certificate of this process. Streams between the roles are then encrypted, and "
     "both ends need a certificate. The file is read again when it changes.",
     kFleet},
    {"--tls-key", &RoleFlags::tls_key, "PATH", 0, 0, kSecurity,
     "The PEM private key that belongs to --tls-cert.", kFleet},
    {"--tls-ca", &RoleFlags::tls_ca, "PATH", 0, 0, kSecurity,
     "The PEM certificate authorities of the fleet. A process is a member of the fleet if one of "
     "them has signed its certificate.",
     kFleet},
    {"--insecure-internal", &RoleFlags::insecure_internal, "", 0, 0, kSecurity,
     "The process listens for the fleet on any --host, without a secret or certificates. Use "
     "this flag only on a network that keeps others out.",
     kScheduler | kWorker | kNode},

    {"--device", &RoleFlags::device, "DEVICE", 0, 0, kCompute,
     "What the ranks compute on: auto, cpu, cuda or cuda:N. cuda means NVIDIA GPUs: the ranks of a "
     "host take one each, from GPU 0 or GPU N on, and share them where they are fewer. auto means "
     "GPUs if every rank can compute the model on one, else CPUs, and the log says why. "
     "Example: --device=cuda:1",
     kGroup},
    {"--gpu-exchange", &RoleFlags::gpu_exchange, "auto|host", 0, 0, kCompute,
     "How ranks on GPUs exchange activations. auto means NCCL where every rank has a GPU of its "
     "own and NCCL works, else the host's memory, and the log says why. host means the host's "
     "memory.",
     kGroup},
    {"--compute", &RoleFlags::compute, "accurate|fp32|fast", 0, 0, kCompute,
     "The numeric recipe. accurate multiplies 16-bit activations. fast is the same, but multiplies "
     "the matrices of a W8A8 checkpoint by 8-bit activations, as it says; flotilla inspect names "
     "them. fp32 is the slow reference.",
     kGroup},
    {"--quantize", &RoleFlags::quantize, "none|int8|int4|nf4|fp8", 0, 0, kCompute,
     "What the matrices of a model in float32, float16 or bfloat16 are quantized to while they "
     "are loaded: int8 takes about half of the memory of bfloat16, and int4 a third. Head and "
     "token vectors stay as they are. Example: --quantize=int4",
     kGroup},
    {"--kv-type", &RoleFlags::kv_type, "bf16|fp16|fp32|fp8|fp8_e5m2|int8|int4|int2", 0, 0, kCompute,
     "The type of stored keys and values. Those of 8 bits take about half of the memory of bf16, "
     "int4 two sevenths and int2 a sixth. int8 is the most accurate of them. fp8 takes the scales "
     "that a checkpoint has. Where any layer has "
     "int4 or int2, a KV block holds 64 tokens, else 16.",
     kGroup},
    {"--kv-value-type", &RoleFlags::kv_value_type,
     "same|bf16|fp16|fp32|fp8|fp8_e5m2|int8|int4|int2", 0, 0, kCompute,
     "The type of stored values, if it is another than that of keys. Values of few bits cost less "
     "accuracy than such keys: with keys of int8, int4 takes two fifths of the memory of bf16. "
     "Example: --kv-type=int8 --kv-value-type=int4",
     kGroup},
    {"--kv-layers", &RoleFlags::kv_layers, "LAYERS=TYPE,...", 0, 0, kCompute,
     "The types of stored keys and values in some layers, if they are others: LAYERS is a number "
     "from 0 on, or FIRST-LAST, and TYPE one type, or KEY/VALUE. Example: "
     "--kv-type=int8 --kv-layers=0-1=bf16,5=int8/fp16",
     kGroup},
    {"--cpu-isa", &RoleFlags::cpu_isa, "auto|reference|avx2|avx512", 0, 0, kCompute,
     "The instruction path. auto takes the best that this CPU has. The choice never changes "
     "results.",
     kGroup},
    {"--threads", &RoleFlags::threads, "threads", 0, 1024, kCompute,
     "The number of compute threads of a rank. 0 means the rank's share of the cgroup's CPU "
     "quota. The number never changes results.",
     kGroup},

    {"--tp", &RoleFlags::tensor_parallel, "ranks", 1, 64, kCompute,
     "The number of ranks that share every layer (tensor parallel). The number never changes "
     "results.",
     kGroup},
    {"--pp", &RoleFlags::pipeline_parallel, "stages", 1, 64, kCompute,
     "The number of pipeline stages, each of --tp ranks (pipeline parallel). The number never "
     "changes results.",
     kGroup},
    {"--balance", &RoleFlags::balance, "step|bytes", 0, 0, kCompute,
     "What --tp divides evenly. step divides the work of each layer, which gives the fastest "
     "step; bytes divides the memory. The choice never changes results.",
     kGroup},
    {"--launcher", &RoleFlags::launcher, "auto|mpi|none", 0, 0, kCompute,
     "How ranks run. mpi starts them as processes with mpirun, watches them, and starts them "
     "again when they fail. none runs them as threads of this process. auto means mpi.",
     kWorker | kOwnGroup},
    {"--load-stall-ms", &RoleFlags::load_stall_ms, "ms", 0, 3'600'000, kCompute,
     "How long a rank process may load the model without getting further. A rank that reads "
     "nothing "
     "for longer is ended and started again; one that is slow but gets further never is. 0 means "
     "no "
     "limit. Example: --load-stall-ms=60000 for a network disk that pauses for up to a minute.",
     kWorker | kOwnGroup},
    {"--transport", &RoleFlags::transport, "auto|shared|mpi", 0, 0, kCompute,
     "How rank processes exchange activations: through shared memory, or by MPI messages. "
     "auto uses shared memory if all ranks are on one host. The choice never changes results.",
     kWorker | kRank | kOwnGroup},
    {"--group-network", &RoleFlags::group_network, "ADDRESS/BITS", 0, 0, kCompute,
     "The private network by which the hosts of the ranks reach each other, such as "
     "10.1.0.0/16. With this flag ranks may be on several hosts. Their traffic is not encrypted.",
     kWorker | kOwnGroup},
    {"--hosts", &RoleFlags::hosts, "HOST,HOST...", 0, 0, kCompute,
     "The hosts of the ranks. This host is the first. HOST:RANKS places several ranks on a host. "
     "The flag needs --group-network.",
     kWorker | kOwnGroup},
    {"--hostfile", &RoleFlags::hostfile, "PATH", 0, 0, kCompute,
     "A file with the hosts of the ranks, in mpirun's format. Without --hosts and --hostfile, "
     "mpirun takes the hosts from its environment, as under Slurm. The flag needs "
     "--group-network.",
     kWorker | kOwnGroup},
    {"--hosts-port", &RoleFlags::hosts_port, "port", 0, 65535, kCompute,
     "The port where `flotilla node` listens on the other hosts, to start ranks there. 0 means "
     "that --remote-shell starts them. The flag needs --group-network.",
     kWorker | kOwnGroup},
    {"--remote-shell", &RoleFlags::remote_shell, "COMMAND", 0, 0, kCompute,
     "The program that mpirun calls to start a command on another host. Its arguments are the "
     "host and the command. The default is ssh. The flag needs --group-network.",
     kWorker | kOwnGroup},

    {"--kv-blocks", &RoleFlags::kv_blocks, "blocks", 0, 1 << 26, kSchedule,
     "The number of blocks in the KV pool. 0 means as many as --kv-memory-share of the available "
     "memory holds; the log says how many that are.",
     kGroup},
    {"--kv-memory-share", &RoleFlags::kv_memory_share, "percent", 0, 100, kSchedule,
     "The share of the memory available after loading the weights that the KV pool may take, if "
     "--kv-blocks is 0. 0 means 50 on CPUs and 100 on GPUs. Ranks of one host or GPU share it.",
     kGroup},
    {"--block-tokens", &RoleFlags::block_tokens, "tokens", 16, 16, kSchedule,
     "The number of tokens in a KV block. Only 16 is supported.",
     kServe | kRun | kWorker | kOwnGroup},
    {"--max-batch-tokens", &RoleFlags::max_batch_tokens, "tokens", 1, 1 << 16, kSchedule,
     "The token budget of a step, for prefill and decode together.",
     kServe | kRun | kScheduler | kWorker | kRank},
    {"--max-chunk-tokens", &RoleFlags::max_chunk_tokens, "tokens", 1, 1 << 16, kSchedule,
     "The most tokens of one prompt that a step computes.", kServe | kRun | kScheduler},
    {"--max-seqs", &RoleFlags::max_seqs, "sequences", 1, 4096, kSchedule,
     "The most sequences that run at once.", kServe | kRun | kScheduler | kWorker | kRank},
    {"--prefix-cache", &RoleFlags::prefix_cache, "on|off", 0, 0, kSchedule,
     "Whether KV blocks of prompts and answers are kept for later requests that begin with the "
     "same tokens. The choice never changes results.",
     kServe | kRun | kScheduler},
    {"--host-blocks", &RoleFlags::host_blocks, "blocks", 0, 1 << 26, kSchedule,
     "The number of KV blocks in host memory, outside the pool, for preempted requests and for "
     "prefixes that the pool evicts.",
     kGroup},
    {"--disk-blocks", &RoleFlags::disk_blocks, "blocks", 0, 1 << 26, kSchedule,
     "The number of KV blocks on disk, for the same purpose. Memory or disk keeps a block only if "
     "reading it back is cheaper than computing it.",
     kGroup},
    {"--disk-dir", &RoleFlags::disk_directory, "PATH", 0, 0, kSchedule,
     "The directory of the file that holds the blocks on disk. The file has no name and "
     "disappears with the process.",
     kGroup},
    {"--policy", &RoleFlags::policy, "priority|fcfs|srpt|edf", 0, 0, kSchedule,
     "The order in which requests run. fcfs runs them in the order of arrival. The other policies "
     "run higher priorities first. Requests of equal priority run in the order of arrival under "
     "priority, in the order of the predicted time to finish under srpt, and in the order of "
     "deadlines under edf.",
     kServe | kRun | kScheduler},
    {"--fair-share", &RoleFlags::fair_share, "", 0, 0, kSchedule,
     "The next request is taken from the waiting tenant whose served tokens, divided by its "
     "weight, are the fewest. An output token counts as two prompt tokens.",
     kServe | kScheduler},
    {"--tenant-weights", &RoleFlags::tenant_weights, "NAME=WEIGHT,...", 0, 0, kSchedule,
     "The weights of tenants under --fair-share. Tenants that are not listed have weight 1.",
     kServe | kScheduler},
    {"--itl-target-ms", &RoleFlags::itl_target_ms, "ms", 0, 60'000, kSchedule,
     "The target for the longest step while a sequence decodes. Prefill chunks become smaller "
     "to meet it. 0 means 2.5 times what a step takes without chunks.",
     kServe | kScheduler},
    {"--max-preemptions", &RoleFlags::max_preemptions, "times", 0, 1000, kSchedule,
     "How often a request may be preempted. One time before that, blocks are reserved for it.",
     kServe | kRun | kScheduler},
    {"--max-overtaken-rows", &RoleFlags::max_overtaken_rows, "tokens", -1, 1 << 30, kSchedule,
     "While a request waits for memory or for a free sequence, later requests whose prompts have "
     "at most this many tokens in total may start before it. 0 means none, and -1 means 32 times "
     "--max-batch-tokens.",
     kServe | kRun | kScheduler},
    {"--max-wait-ms", &RoleFlags::max_wait_ms, "ms", 0, 3'600'000, kSchedule,
     "The longest predicted wait in the queue. A request whose predicted wait is longer is "
     "refused with 429. 0 means that only a full queue refuses requests.",
     kServe | kScheduler},
    {"--speculation", &RoleFlags::speculation, "off|ngram|draft", 0, 0, kSchedule,
     "How draft tokens are proposed. ngram proposes the tokens that followed the same tokens "
     "earlier in the sequence. draft runs the model's first layers. The scheduler uses draft "
     "tokens only where they save time. The choice never changes results.",
     kGroup},
    {"--draft-tokens", &RoleFlags::draft_tokens, "tokens", 1, 64, kSchedule,
     "The most draft tokens of a sequence in a step.",
     kServe | kRun | kScheduler | kWorker | kRank},
    {"--draft-layers", &RoleFlags::draft_layers, "layers", 0, 1024, kSchedule,
     "The number of layers that --speculation=draft runs. 0 means a third of the model's layers.",
     kGroup},
    {"--grammar-cpu-ms", &RoleFlags::grammar_cpu_ms, "ms", 100, 20'000, kSchedule,
     "The processor time that a worker may take to compile the grammar of an answer's form. A form "
     "that takes more is refused. Other requests do not wait for it.",
     kGroup},
    {"--grammar-memory-mib", &RoleFlags::grammar_memory_mib, "MiB", 64, 1 << 20, kSchedule,
     "The memory that the process which compiles grammars may take beside the vocabulary. A form "
     "that takes more is refused.",
     kGroup},
    {"--queue-requests", &RoleFlags::queue_requests, "requests", 1, 1 << 20, kSchedule,
     "The most requests that may wait. A further request is refused with 429.",
     kServe | kScheduler},
    {"--queue-tokens", &RoleFlags::queue_tokens, "tokens", 0, 1 << 30, kSchedule,
     "The most prompt tokens that may wait. A request with which they would be more is refused "
     "with 429. 0 means 65,536, or the longest prompt that the model and its KV pool can hold if "
     "that is more. A process refuses to start with a smaller number than that prompt has.",
     kServe | kScheduler},

    {"--drain-seconds", &RoleFlags::drain_seconds, "seconds", 0, 86400, kProcess,
     "How long running requests may take to finish after SIGTERM or SIGINT.",
     kServe | kRouter | kScheduler},
    {"--stop-step-seconds", &RoleFlags::stop_step_seconds, "seconds", 0, 3600, kProcess,
     "How long the steps under way may take to finish after SIGTERM or SIGINT. The worker then "
     "tells its scheduler that it stops, so that no request is blamed. Example: "
     "--stop-step-seconds=20 for a model whose steps take several seconds.",
     kWorker},
    {"--ready-file", &RoleFlags::ready_file, "PATH", 0, 0, kProcess,
     "A JSON file that the process writes once it is ready. It has the pid, and the ports http, "
     "grpc and health of a router or of serve, or the ports listen and metrics of another role.",
     kAll},
    {"--log-level", &RoleFlags::log_level, "debug|info|warning|error", 0, 0, kProcess,
     "The least severe level that is logged to standard error.", kAll | kRun},
});

std::vector<std::string> Split(std::string_view choices) {
  std::vector<std::string> all;
  std::istringstream in{std::string(choices)};
  for (std::string one; std::getline(in, one, '|');) all.push_back(one);
  return all;
}

// A validator without a description, because the flag's help has the bounds.
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
  if (CLI::Option* cert = app.get_option_no_throw("--api-tls-cert"); cert != nullptr) {
    CLI::Option* key = app.get_option("--api-tls-key");
    cert->needs(key);
    key->needs(cert);
    app.get_option("--api-tls-ca")->needs(cert);
  }
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

}  // namespace flotilla::cli

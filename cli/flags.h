// The flags of the roles. Each flag has one field here with its default, and one row of the
// table in flags.cc with its name, unit, bounds, help and roles. Only cli/ knows flags;
// libraries take their own Options.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace flotilla::cli {

// What a process is. `serve` is router, scheduler and worker in one, and so is `run`, which has no
// clients. A worker starts ranks; a node starts ranks of workers on other hosts.
enum class Role { kServe, kRouter, kScheduler, kWorker, kRank, kNode, kRun };

struct RoleFlags {
  std::string model;
  std::string served_model_name;  // empty: the file's name without .gguf, or the folder's
  std::string chat_template;      // the path of a file; empty: what the model's files have
  std::string host = "127.0.0.1";
  std::int64_t http_port = 8080;
  std::int64_t grpc_port = 50051;
  std::int64_t listen_port = 0;         // where the fleet reaches a scheduler, worker or node
  std::int64_t metrics_port = 0;        // of scheduler, worker and node
  std::int64_t health_port = -1;        // -1: none
  std::int64_t max_connections = 1024;  // over HTTP
  std::string allowed_hosts;            // comma-separated
  std::vector<std::string> cors_origins;
  std::vector<std::string> schedulers;  // HOST:PORT or dns:///NAME:PORT
  std::string worker;                   // HOST:PORT
  std::int64_t hold_seconds = 60;
  std::int64_t move_after_seconds = 10;
  std::int64_t tensor_parallel = 1;
  std::int64_t pipeline_parallel = 1;
  std::string balance = "step";
  std::string launcher = "auto";
  std::int64_t load_stall_ms = 10'000;
  std::string transport = "auto";
  // This and the next four are for a worker group on several hosts.
  std::string group_network;  // ADDRESS/BITS
  std::string hosts;          // HOST or HOST:RANKS, comma-separated; excludes `hostfile`
  std::string hostfile;
  std::int64_t hosts_port = 0;  // the port of `flotilla node`; 0: remote_shell starts processes
  std::string remote_shell;
  std::string group_directory;  // only for a rank; its agent sets this and the next two
  std::string heartbeats;
  std::string agent;
  std::string device = "auto";
  std::string gpu_exchange = "auto";
  std::string compute = "accurate";
  std::string kv_type = "bf16";
  std::string kv_value_type = "same";
  std::string kv_layers;  // LAYERS=TYPE,...
  std::string quantize = "none";
  std::int64_t kv_blocks = 0;        // 0: what memory allows
  std::int64_t kv_memory_share = 0;  // percent; 0: that of the device
  std::int64_t block_tokens = 16;
  std::int64_t max_batch_tokens = 256;
  std::int64_t max_chunk_tokens = 256;
  std::int64_t max_seqs = 64;
  std::string prefix_cache = "on";
  std::int64_t host_blocks = 0;
  std::int64_t disk_blocks = 0;
  std::string disk_directory = "/tmp";
  std::string policy = "priority";
  bool fair_share = false;
  std::string tenant_weights;  // NAME=WEIGHT,...
  std::int64_t itl_target_ms = 0;
  std::int64_t max_preemptions = 3;
  std::int64_t max_wait_ms = 0;
  std::int64_t max_overtaken_rows = -1;
  std::string speculation = "off";
  std::int64_t draft_tokens = 8;
  std::int64_t draft_layers = 0;
  std::int64_t grammar_cpu_ms = 2000;
  std::int64_t grammar_memory_mib = 512;
  std::int64_t queue_requests = 1024;
  std::int64_t queue_tokens = 0;  // 0: 65,536, or the longest prompt if that is more
  std::int64_t max_model_len = 0;
  std::int64_t threads = 0;
  std::string cpu_isa = "auto";
  std::int64_t drain_seconds = 30;
  std::int64_t stop_step_seconds = 5;
  std::string files_dir;  // empty: no files are kept
  std::int64_t files_mib = 1024;
  std::int64_t files_count = 1000;
  std::int64_t file_mib = 200;
  std::int64_t files_days = 30;
  std::int64_t batch_concurrency = 4;
  bool permissive = false;
  bool model_sampling = false;
  std::string tenant_header;
  std::string api_keys_file;
  bool admin = false;
  std::string api_tls_cert, api_tls_key, api_tls_ca;  // for the ports of clients
  std::string tls_cert, tls_key, tls_ca;              // for the fleet's own streams
  std::string fleet_secret_file;
  bool insecure_internal = false;
  std::string ready_file;
  std::string log_level = "info";
};

// Adds every flag of the role to `app`. Parsing fills `flags`, which outlives `app`,
// and refuses values outside the bounds with a message that names them.
void AddRoleFlags(CLI::App& app, Role role, RoleFlags* flags);

// The arguments that make a rank compute as the flags of its worker say.
std::vector<std::string> RankArguments(const RoleFlags& worker);

}  // namespace flotilla::cli

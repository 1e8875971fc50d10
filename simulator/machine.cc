#include "simulator/machine.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace flotilla::simulator {
namespace {

// SmolLM2-135M Q4_1, `accurate`, bf16 KV, on two cores of a Zen 5: fitted to the steps that
//   flotilla simulate --measure SmolLM2-135M-Instruct.Q4_1.gguf --out DIR
// measured; docs/simulate.md states the residuals.
Machine ThisCpu() {
  LinearModel m;
  m.step_ns = 2.49e6;
  m.prefill_row_ns = 382e3;
  m.decode_row_ns = 601e3;
  m.prefill_context_ns = 183;
  m.decode_context_ns = 852;
  return {.name = "this-cpu",
          .model = "SmolLM2-135M Q4_1, two CPU cores (fitted)",
          .cost = m,
          .kv_tokens = 65536,
          .max_context = 8192,
          .max_seqs = 64,
          .max_step_tokens = 256};
}

// Llama 3 8B in bf16 on one H200.
//   Sizes (Llama 3 model card): 8.03 G parameters, of them 0.525 G each in the
//   embedding (not read by products) and the head; 32 layers, 32 heads and 8 KV
//   heads of 128.
//   H200 (NVIDIA data sheet): 4.8 TB/s, 141 GB, 989 TFLOPS dense bf16.
//   Efficiencies: decode kernels reach 90 % of the memory's rate (FlashMLA: 3,000 of
//   3,350 GB/s on an H800), large products about 65 % of the peak.
//   Overhead of 0.6 ms a step: with it, one sequence takes 4.1 ms, where NIM 1.8
//   publishes 4.6 ms and the memory alone would allow 3.2.
Machine H200() {
  RooflineModel m;
  m.weight_bytes = 2 * (8.03e9 - 0.525e9);
  m.kv_bytes_per_token = 2.0 * 8 * 128 * 32 * 2;
  m.flops_per_row = 2 * (8.03e9 - 2 * 0.525e9);
  m.flops_per_sample = 2 * 0.525e9;
  m.flops_per_context = 4.0 * 32 * 128 * 32;
  m.bytes_per_second = 4.8e12;
  m.flops_per_second = 989e12;
  m.memory_efficiency = 0.90;
  m.compute_efficiency = 0.65;
  m.step_overhead_ns = 0.6e6;
  m.row_overhead_ns = 500;
  return {.name = "h200",
          .model = "Llama 3 8B, bf16, one H200 (roofline)",
          .cost = m,
          // 90 % of the memory, less the weights (embedding included).
          .kv_tokens = static_cast<std::uint64_t>((0.9 * 141e9 - 2 * 8.03e9) / 131072),
          .max_context = 8192,
          .max_seqs = 512,
          .max_step_tokens = 2048};
}

// Llama 3 70B in bf16 on eight H200, tensor parallel.
//   Sizes: 70.55 G parameters, 1.051 G each in embedding and head; 80 layers, 64
//   heads and 8 KV heads of 128, hidden size 8192.
//   Two all-reduces a layer of 2 bytes * 8192 a row. Each costs at least 7.8 us (8
//   H100, smallest size, SGLang pull request 2904); a large one moves 2 * 7/8 of its
//   bytes over 450 GB/s of NVLink, so 257 GB/s.
Machine EightH200() {
  RooflineModel m;
  m.weight_bytes = 2 * (70.55e9 - 1.051e9);
  m.kv_bytes_per_token = 2.0 * 8 * 128 * 80 * 2;
  m.flops_per_row = 2 * (70.55e9 - 2 * 1.051e9);
  m.flops_per_sample = 2 * 1.051e9;
  m.flops_per_context = 4.0 * 64 * 128 * 80;
  m.bytes_per_second = 8 * 4.8e12;
  m.flops_per_second = 8 * 989e12;
  m.memory_efficiency = 0.90;
  m.compute_efficiency = 0.65;
  m.step_overhead_ns = 1.2e6;  // 80 layers instead of 32, with graphs
  m.row_overhead_ns = 500;
  m.allreduces = 2 * 80;
  m.allreduce_ns = 7800;
  m.allreduce_bytes_per_row = 2 * 8192;
  m.allreduce_bytes_per_second = 257e9;
  return {.name = "8xh200",
          .model = "Llama 3 70B, bf16, 8 H200, tensor parallel (roofline)",
          .cost = m,
          .kv_tokens = static_cast<std::uint64_t>((0.9 * 8 * 141e9 - 2 * 70.55e9) / 327680),
          .max_context = 8192,
          .max_seqs = 512,
          .max_step_tokens = 2048};
}

// OPT-13B in fp16 on one A100 of 40 GB: the machine of Kwon et al. 2023, to compare
// with their figures.
//   Sizes (Zhang et al. 2022): 12.85 G parameters, of them 0.257 G in the embedding,
//   which is also the head; 40 layers and heads of 128, as many KV heads.
//   A100 (NVIDIA data sheet): 1.555 TB/s, 312 TFLOPS dense fp16.
//   12 GB for KV, 15.7 k slots (their table 1); sequences of up to 2,048 tokens.
//   Efficiencies as above; overhead of 2 ms a step: engines of that time launched
//   each kernel by itself from Python.
Machine A100() {
  RooflineModel m;
  m.weight_bytes = 2 * 12.85e9;
  m.kv_bytes_per_token = 2.0 * 40 * 128 * 40 * 2;
  m.flops_per_row = 2 * (12.85e9 - 0.257e9);
  m.flops_per_sample = 2 * 0.257e9;
  m.flops_per_context = 4.0 * 40 * 128 * 40;
  m.bytes_per_second = 1.555e12;
  m.flops_per_second = 312e12;
  m.memory_efficiency = 0.90;
  m.compute_efficiency = 0.65;
  m.step_overhead_ns = 2e6;
  m.row_overhead_ns = 500;
  return {.name = "a100-opt-13b",
          .model = "OPT-13B, fp16, one A100 40 GB (roofline)",
          .cost = m,
          .kv_tokens = 15'700,
          .max_context = 2048,
          .max_seqs = 256,
          .max_step_tokens = 2048};
}

}  // namespace

absl::StatusOr<Machine> FindMachine(absl::string_view name) {
  for (const Machine& machine : BuiltInMachines()) {
    if (machine.name == name) return machine;
  }
  const auto name_of = [](std::string* out, const Machine& m) { absl::StrAppend(out, m.name); };
  return absl::NotFoundError(absl::StrCat("no machine named \"", name, "\"; there are ",
                                          absl::StrJoin(BuiltInMachines(), ", ", name_of),
                                          ", or give the path of a .json file"));
}

std::vector<Machine> BuiltInMachines() { return {ThisCpu(), H200(), EightH200(), A100()}; }

ExecutorDescription Describe(const Machine& machine, const scheduler::CoreOptions& core) {
  ExecutorDescription d;
  d.model_id = machine.model;
  d.vocab_size = kSimulatedVocabulary;
  d.max_context = machine.max_context;
  for (const std::uint32_t window : machine.kv_windows) {
    d.groups.push_back({.kind = window > 0 ? KvGroup::Kind::kWindow : KvGroup::Kind::kFull,
                        .window = window,
                        .tokens_per_block = machine.block_tokens});
  }
  const auto blocks_for = [&](std::uint64_t tokens) {
    return static_cast<std::uint32_t>(tokens / machine.block_tokens * d.groups.size());
  };
  d.block_count = blocks_for(machine.kv_tokens) + 1;
  const auto* roofline = std::get_if<RooflineModel>(&machine.cost);
  if (machine.host_tokens > 0 && roofline != nullptr) {
    const double bytes =
        roofline->kv_bytes_per_token * machine.block_tokens / static_cast<double>(d.groups.size());
    const auto ns = static_cast<std::int64_t>(bytes / machine.link_bytes_per_second * 1e9);
    d.tiers.push_back({.block_count = blocks_for(machine.host_tokens),
                       .out_ns_per_block = ns,
                       .in_ns_per_block = ns});
  }
  d.max_sequences = 2 * core.max_seqs + 1;  // handles are reused one plan late
  d.max_step_tokens = core.max_step_tokens;
  d.lag = machine.lag;
  const StepShape prefill{.prefill_rows = core.max_step_tokens, .samples = 1};
  d.prefill_ns_per_token = CostOf(machine.cost, prefill).ns / core.max_step_tokens;
  d.decode_ns_per_step = CostOf(machine.cost, {.decode_rows = 1, .samples = 1}).ns;
  return d;
}

scheduler::CoreOptions DefaultOptions(const Machine& machine) {
  scheduler::CoreOptions options;
  options.max_seqs = machine.max_seqs;
  options.max_step_tokens = machine.max_step_tokens;
  options.max_chunk_tokens = machine.max_step_tokens;
  options.max_queued_requests = 1u << 30;
  options.max_queued_tokens = 1u << 31;
  return options;
}

}  // namespace flotilla::simulator

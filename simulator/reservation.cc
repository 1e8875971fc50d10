#include "simulator/reservation.h"

#include <algorithm>
#include <bit>
#include <vector>

namespace flotilla::simulator {
namespace {

class ReservingRun {
 public:
  ReservingRun(const Machine& machine, const Workload& workload, const SimulationOptions& options,
               Reservation reservation, std::uint32_t max_tokens)
      : machine_(machine),
        workload_(workload),
        options_(options),
        reservation_(reservation),
        max_tokens_(max_tokens) {}

  absl::StatusOr<RunRecord> ToTheEnd();

 private:
  struct Running {
    std::uint32_t index;
    std::uint64_t reserved;
    std::uint32_t length = 0;  // positions written
    std::uint32_t outputs = 0;
    std::uint32_t rows = 0;  // in this step
  };
  const SimulatedRequest& Of(const Running& r) const { return workload_.requests[r.index]; }
  void Arrive();
  void Start();
  StepShape Fill();
  void RunStep(const StepShape& shape);
  void Finish(const StepShape& shape);
  void Account(std::int64_t now_ns);

  const Machine& machine_;
  const Workload& workload_;
  const SimulationOptions& options_;
  const Reservation reservation_;
  const std::uint32_t max_tokens_;
  RunRecord record_;
  std::int64_t now_ns_ = 0;
  std::uint32_t arrived_ = 0;  // requests
  std::uint32_t started_ = 0;  // of them; the others wait in this order
  std::uint64_t ended_ = 0;
  std::uint64_t reserved_ = 0, written_ = 0;
  std::vector<Running> running_;  // in order of start
};

absl::StatusOr<RunRecord> ReservingRun::ToTheEnd() {
  const std::size_t count = workload_.requests.size();
  record_.requests.resize(count);
  record_.contended_tokens.resize(workload_.tenants.size());
  record_.memory.pool = machine_.kv_tokens;
  std::uint64_t steps = 0;
  while (ended_ < count) {
    Arrive();
    Start();
    const StepShape shape = Fill();
    if (shape.rows() > 0) {
      RunStep(shape);
    } else if (ended_ < count && workload_.concurrency == 0 && arrived_ < count) {
      Account(workload_.requests[arrived_].arrival_ns);  // idle until then
    }
    if (++steps % 1024 == 0 && options_.progress != nullptr &&
        !options_.progress({now_ns_, ended_, count})) {
      return absl::CancelledError("the simulation was stopped");
    }
  }
  record_.end_ns = now_ns_;
  return std::move(record_);
}

void ReservingRun::Arrive() {
  const std::uint64_t allowed = workload_.concurrency > 0 ? ended_ + workload_.concurrency : ~0ull;
  while (arrived_ < workload_.requests.size() && arrived_ < allowed &&
         (workload_.concurrency > 0 || workload_.requests[arrived_].arrival_ns <= now_ns_)) {
    record_.requests[arrived_++].arrival_ns = now_ns_;
  }
}

// First come, first served: the head waits for its slots, and all others wait behind it.
void ReservingRun::Start() {
  while (started_ < arrived_ && running_.size() < options_.core.max_seqs) {
    const SimulatedRequest& request = workload_.requests[started_];
    const std::uint64_t slots = ReservedSlots(reservation_, request, max_tokens_);
    if (slots > machine_.kv_tokens || request.prompt_tokens + request.output_tokens > max_tokens_) {
      record_.requests[started_++].outcome = RequestOutcome::kRefused;
      ++ended_;
      continue;
    }
    if (reserved_ + slots > machine_.kv_tokens) break;
    reserved_ += slots;
    running_.push_back({.index = started_++, .reserved = slots});
  }
  record_.memory.peak_used = std::max(record_.memory.peak_used, reserved_);
  const auto running = static_cast<std::uint32_t>(running_.size());
  record_.load.peak_running = std::max(record_.load.peak_running, running);
  record_.load.peak_waiting = std::max(record_.load.peak_waiting, arrived_ - started_);
}

// Decodes first, then prompts in order of start, under the core's budgets.
StepShape ReservingRun::Fill() {
  StepShape shape;
  std::uint32_t budget = options_.core.max_step_tokens;
  const auto run = [&](Running& r, std::uint32_t rows, bool decode) {
    r.rows = rows;
    budget -= rows;
    const std::uint64_t end = r.length + rows;
    const std::uint64_t context =
        std::uint64_t{rows} * r.length + std::uint64_t{rows} * (rows + 1) / 2;
    (decode ? shape.decode_rows : shape.prefill_rows) += rows;
    (decode ? shape.decode_context : shape.prefill_context) += context;
    shape.kv_positions += end;
    shape.samples += end >= Of(r).prompt_tokens;
  };
  for (Running& r : running_) {
    r.rows = 0;
    if (r.length >= Of(r).prompt_tokens && budget > 0) run(r, 1, true);
  }
  for (Running& r : running_) {
    if (r.length >= Of(r).prompt_tokens || budget == 0) continue;
    run(r, std::min({budget, options_.core.max_chunk_tokens, Of(r).prompt_tokens - r.length}),
        false);
  }
  return shape;
}

void ReservingRun::RunStep(const StepShape& shape) {
  for (const Running& r : running_) written_ += r.rows;
  const StepCost cost = CostOf(machine_.cost, shape);
  Account(now_ns_ + cost.ns);
  ++record_.group.steps;
  record_.group.busy_ns += cost.ns;
  record_.group.memory_bound += cost.bound == Bound::kMemory;
  record_.group.compute_bound += cost.bound == Bound::kCompute;
  Finish(shape);
}

void ReservingRun::Finish(const StepShape& shape) {
  record_.group.rows.prefill_rows += shape.prefill_rows;
  record_.group.rows.decode_rows += shape.decode_rows;
  for (Running& r : running_) {
    r.length += r.rows;
    if (r.rows == 0 || r.length < Of(r).prompt_tokens) continue;
    record_.AddToken(r.index, now_ns_);
    const bool first = r.outputs++ == 0;
    if (arrived_ > started_) {
      record_.contended_tokens[Of(r).tenant] += 1 + (first ? Of(r).prompt_tokens : 0);
    }
    if (r.outputs < Of(r).output_tokens) continue;
    record_.requests[r.index].outcome = RequestOutcome::kFinished;
    ++ended_;
    reserved_ -= r.reserved;
    written_ -= r.length;
  }
  std::erase_if(running_, [this](const Running& r) { return r.outputs >= Of(r).output_tokens; });
}

void ReservingRun::Account(std::int64_t now_ns) {
  const double passed = static_cast<double>(now_ns - now_ns_);
  const auto running = static_cast<double>(running_.size());
  const double waiting = arrived_ - started_;
  record_.memory.used += passed * static_cast<double>(reserved_);
  record_.memory.wasted += passed * static_cast<double>(reserved_ - written_);
  record_.load.running += passed * running;
  record_.load.waiting += passed * waiting;
  record_.running.Hold(now_ns_, now_ns, running);
  record_.waiting.Hold(now_ns_, now_ns, waiting);
  record_.used_blocks.Hold(now_ns_, now_ns, static_cast<double>(reserved_) / machine_.block_tokens);
  now_ns_ = now_ns;
}

}  // namespace

std::uint64_t ReservedSlots(Reservation reservation, const SimulatedRequest& request,
                            std::uint32_t max_tokens) {
  const std::uint64_t exact = std::uint64_t{request.prompt_tokens} + request.output_tokens;
  switch (reservation) {
    case Reservation::kMax:
      return max_tokens;
    case Reservation::kPowerOfTwo:
      return std::min<std::uint64_t>(
          std::max<std::uint64_t>(max_tokens, exact),
          request.prompt_tokens + std::bit_ceil(std::uint64_t{request.output_tokens}));
    case Reservation::kOracle:
      return exact;
  }
  return exact;
}

absl::StatusOr<RunRecord> SimulateReservation(const Machine& machine, const Workload& workload,
                                              const SimulationOptions& options,
                                              Reservation reservation, std::uint32_t max_tokens) {
  if (max_tokens == 0) return absl::InvalidArgumentError("a reservation of no tokens");
  return ReservingRun(machine, workload, options, reservation, max_tokens).ToTheEnd();
}

Machine MachineWithReservation(Machine machine, std::uint32_t slots) {
  machine.block_tokens = slots;
  machine.kv_tokens = std::max<std::uint64_t>(machine.kv_tokens / slots, 1) * slots;
  return machine;
}

}  // namespace flotilla::simulator

#include "simulator/machine_json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"

namespace flotilla::simulator {
namespace {

using Json = nlohmann::ordered_json;

template <class Model>
struct Field {
  const char* name;
  double Model::*member;
};

constexpr Field<LinearModel> kLinearFields[] = {
    {"step_ns", &LinearModel::step_ns},
    {"prefill_row_ns", &LinearModel::prefill_row_ns},
    {"decode_row_ns", &LinearModel::decode_row_ns},
    {"prefill_context_ns", &LinearModel::prefill_context_ns},
    {"decode_context_ns", &LinearModel::decode_context_ns},
};

constexpr Field<RooflineModel> kRooflineFields[] = {
    {"weight_bytes", &RooflineModel::weight_bytes},
    {"kv_bytes_per_token", &RooflineModel::kv_bytes_per_token},
    {"flops_per_row", &RooflineModel::flops_per_row},
    {"flops_per_sample", &RooflineModel::flops_per_sample},
    {"flops_per_context", &RooflineModel::flops_per_context},
    {"bytes_per_second", &RooflineModel::bytes_per_second},
    {"flops_per_second", &RooflineModel::flops_per_second},
    {"memory_efficiency", &RooflineModel::memory_efficiency},
    {"compute_efficiency", &RooflineModel::compute_efficiency},
    {"step_overhead_ns", &RooflineModel::step_overhead_ns},
    {"row_overhead_ns", &RooflineModel::row_overhead_ns},
    {"allreduces", &RooflineModel::allreduces},
    {"allreduce_ns", &RooflineModel::allreduce_ns},
    {"allreduce_bytes_per_row", &RooflineModel::allreduce_bytes_per_row},
    {"allreduce_bytes_per_second", &RooflineModel::allreduce_bytes_per_second},
};

struct Limit {
  const char* name;
  std::uint32_t Machine::*member;
  std::uint32_t min, max;
};

// The limits keep the size of every pool and table that is built from these fields sensible.
constexpr Limit kLimits[] = {
    {"block_tokens", &Machine::block_tokens, 1, 1 << 20},
    {"max_context", &Machine::max_context, 1, 1 << 24},
    {"lag", &Machine::lag, 1, 64},
    {"max_seqs", &Machine::max_seqs, 1, 1 << 16},
    {"max_step_tokens", &Machine::max_step_tokens, 1, 1 << 20},
};

absl::Status BadField(absl::string_view name, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("machine: field \"", name, "\" ", what));
}

// Reads fields of a JSON object and knows at the end which were not read.
class Reader {
 public:
  explicit Reader(const Json& object) : object_(object) {}

  absl::Status Text(const char* name, std::string& into) {
    const Json* value = Take(name);
    if (value == nullptr) return absl::OkStatus();
    if (!value->is_string()) return BadField(name, "is not a string");
    into = value->get<std::string>();
    return absl::OkStatus();
  }
  absl::Status Number(const char* name, double min, double max, bool whole, double& into) {
    const Json* value = Take(name);
    if (value == nullptr) return absl::OkStatus();
    if (!value->is_number()) return BadField(name, "is not a number");
    const double number = value->get<double>();
    if (!(number >= min) || !(number <= max) || (whole && number != std::floor(number))) {
      return BadField(
          name, absl::StrCat("is not ", whole ? "a whole number " : "", "in ", min, "..", max));
    }
    into = number;
    return absl::OkStatus();
  }
  // Of at least one number and at most `count`.
  absl::Status Numbers(const char* name, std::uint32_t max, std::size_t count,
                       std::vector<std::uint32_t>& into) {
    const Json* value = Take(name);
    if (value == nullptr) return absl::OkStatus();
    const auto is_valid = [&](const Json& one) {
      return one.is_number_unsigned() && one.get<std::uint64_t>() <= max;
    };
    if (!value->is_array() || value->empty() || value->size() > count ||
        !std::all_of(value->begin(), value->end(), is_valid)) {
      return BadField(name,
                      absl::StrCat("is not a list of 1 to ", count, " whole numbers in 0..", max));
    }
    into = value->get<std::vector<std::uint32_t>>();
    return absl::OkStatus();
  }
  absl::Status AllRead() const {
    for (const auto& [key, value] : object_.items()) {
      if (std::find(taken_.begin(), taken_.end(), key) == taken_.end()) {
        return BadField(key, "is unknown");
      }
    }
    return absl::OkStatus();
  }

 private:
  const Json* Take(const char* name) {
    const auto it = object_.find(name);
    taken_.emplace_back(name);
    return it == object_.end() ? nullptr : &*it;
  }

  const Json& object_;
  std::vector<std::string> taken_;
};

template <class Model, std::size_t kCount>
absl::Status ReadModel(Reader& reader, const Field<Model> (&fields)[kCount], Model& model) {
  for (const Field<Model>& field : fields) {
    absl::Status s = reader.Number(field.name, 0, 1e18, false, model.*field.member);
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status CheckRates(const RooflineModel& m) {
  if (m.bytes_per_second < 1) return BadField("bytes_per_second", "is missing or 0");
  if (m.flops_per_second < 1) return BadField("flops_per_second", "is missing or 0");
  if (m.allreduce_bytes_per_second < 1) return BadField("allreduce_bytes_per_second", "is 0");
  if (m.memory_efficiency <= 0) return BadField("memory_efficiency", "is 0");
  if (m.compute_efficiency <= 0) return BadField("compute_efficiency", "is 0");
  return absl::OkStatus();
}

absl::Status ReadCost(Reader& reader, CostModel& cost) {
  std::string kind;
  if (absl::Status s = reader.Text("kind", kind); !s.ok()) return s;
  if (kind == "linear") {
    cost = LinearModel{};
    return ReadModel(reader, kLinearFields, std::get<LinearModel>(cost));
  }
  if (kind != "roofline") return BadField("kind", "must be \"linear\" or \"roofline\"");
  RooflineModel model;
  if (absl::Status s = ReadModel(reader, kRooflineFields, model); !s.ok()) return s;
  cost = model;
  return CheckRates(model);
}

absl::Status ReadLimits(Reader& reader, Machine& machine) {
  for (const Limit& limit : kLimits) {
    double value = machine.*limit.member;
    if (absl::Status s = reader.Number(limit.name, limit.min, limit.max, true, value); !s.ok()) {
      return s;
    }
    machine.*limit.member = static_cast<std::uint32_t>(value);
  }
  constexpr std::uint32_t kMaxWindow = 1 << 24;
  if (absl::Status s = reader.Numbers("kv_windows", kMaxWindow, kMostKvGroups, machine.kv_windows);
      !s.ok()) {
    return s;
  }
  double tokens = static_cast<double>(machine.kv_tokens);
  const auto most = static_cast<double>(kMostKvPositions / machine.kv_windows.size());
  if (absl::Status s = reader.Number("kv_tokens", 1, most, true, tokens); !s.ok()) return s;
  machine.kv_tokens = static_cast<std::uint64_t>(tokens);
  if (machine.kv_tokens < machine.block_tokens) return BadField("kv_tokens", "is below one block");
  return absl::OkStatus();
}

template <class Model, std::size_t kCount>
void WriteModel(const Field<Model> (&fields)[kCount], const Model& model, Json& out) {
  for (const Field<Model>& field : fields) out[field.name] = model.*field.member;
}

}  // namespace

absl::StatusOr<Machine> ParseMachine(absl::string_view json) {
  const Json object = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) return absl::InvalidArgumentError("machine: not JSON");
  if (!object.is_object()) return absl::InvalidArgumentError("machine: not a JSON object");
  Reader reader(object);
  Machine machine;
  machine.name = "custom";
  if (absl::Status s = reader.Text("name", machine.name); !s.ok()) return s;
  if (absl::Status s = reader.Text("model", machine.model); !s.ok()) return s;
  if (absl::Status s = ReadCost(reader, machine.cost); !s.ok()) return s;
  if (absl::Status s = ReadLimits(reader, machine); !s.ok()) return s;
  if (absl::Status s = reader.AllRead(); !s.ok()) return s;
  return machine;
}

std::string MachineJson(const Machine& machine) {
  Json out;
  out["name"] = machine.name;
  out["model"] = machine.model;
  if (const auto* linear = std::get_if<LinearModel>(&machine.cost)) {
    out["kind"] = "linear";
    WriteModel(kLinearFields, *linear, out);
  } else {
    out["kind"] = "roofline";
    WriteModel(kRooflineFields, std::get<RooflineModel>(machine.cost), out);
  }
  out["kv_tokens"] = machine.kv_tokens;
  out["kv_windows"] = machine.kv_windows;
  for (const Limit& limit : kLimits) out[limit.name] = machine.*limit.member;
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace flotilla::simulator

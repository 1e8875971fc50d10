#include "cli/machine_file.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "cli/text_file.h"
#include "simulator/machine_json.h"

namespace flotilla::cli {

absl::StatusOr<simulator::Machine> LoadMachine(const std::string& name) {
  if (!absl::EndsWith(name, ".json")) return simulator::FindMachine(name);
  const absl::StatusOr<std::string> text = ReadTextFile(name);
  if (!text.ok()) return text.status();
  return simulator::ParseMachine(*text);
}

std::string MachineNames() {
  std::vector<std::string> names;
  for (const simulator::Machine& machine : simulator::BuiltInMachines()) {
    names.push_back(machine.name);
  }
  return absl::StrJoin(names, ", ");
}

}  // namespace flotilla::cli

#include "cli/exec.h"

#include <sys/prctl.h>
#include <CLI/CLI.hpp>

#include <csignal>
#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "cli/role_options.h"
#include "common/obs/log.h"
#include "common/rt/clock.h"
#include "rpc/endpoint.h"
#include "worker/hosts/run_on_host.h"

namespace flotilla::cli {
namespace {

constexpr char kPort[] = "FLOTILLA_EXEC_PORT";
// A flag with a path, and the environment variable that passes the path to `flotilla exec`. The
// passed path is absolute, because that process may have another working directory.
struct PathFlag {
  const char* name;
  const char* variable;
  std::string RoleFlags::*field;
};
constexpr PathFlag kPaths[] = {
    {"--fleet-secret-file", "FLOTILLA_EXEC_FLEET_SECRET_FILE", &RoleFlags::fleet_secret_file},
    {"--tls-cert", "FLOTILLA_EXEC_TLS_CERT", &RoleFlags::tls_cert},
    {"--tls-key", "FLOTILLA_EXEC_TLS_KEY", &RoleFlags::tls_key},
    {"--tls-ca", "FLOTILLA_EXEC_TLS_CA", &RoleFlags::tls_ca},
};

}  // namespace

std::vector<std::pair<std::string, std::string>> ExecEnvironment(const RoleFlags& worker) {
  std::vector<std::pair<std::string, std::string>> variables;
  variables.emplace_back(kPort, absl::StrCat(worker.hosts_port));
  // Without this setting a daemon leaves its session and its parent, and outlives the call that
  // started it.
  variables.emplace_back("OMPI_MCA_orte_leave_session_attached", "1");
  for (const PathFlag& path : kPaths) {
    const std::string& value = worker.*path.field;
    if (value.empty()) continue;
    variables.emplace_back(path.variable, std::filesystem::absolute(value).string());
  }
  return variables;
}

absl::StatusOr<std::string> ExecCommand() {
  std::error_code error;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error || program.find_first_of(" :") != std::string::npos) {
    return absl::FailedPreconditionError(absl::StrCat("--hosts-port: mpirun cannot call '", program,
                                                      "': the path has a space or a colon"));
  }
  return absl::StrCat(program, " exec");
}

void AddExecFlags(CLI::App& app, RoleFlags* flags) {
  app.prefix_command();
  app.add_option("--port", flags->hosts_port)->envname(kPort);
  for (const PathFlag& path : kPaths) {
    app.add_option(path.name, flags->*path.field)->envname(path.variable);
  }
}

absl::StatusOr<int> RunExec(const RoleFlags& flags, const std::vector<std::string>& words) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // if mpirun dies without stopping this process
  if (words.size() < 2) {
    return absl::InvalidArgumentError(
        "flotilla exec needs a host and a command, as in: flotilla exec 10.1.0.2 hostname");
  }
  auto arguments = worker::DaemonArguments({words.begin() + 1, words.end()});
  if (!arguments.ok()) return arguments.status();
  Logger log(LogLevel::kError);
  const SteadyClock clock;
  auto credentials = MakeCredentials(flags, /*listens=*/false, &clock, &log);
  if (!credentials.ok()) return credentials.status();
  return worker::RunOnHost(
      {.address = rpc::JoinAddress(words[0], static_cast<int>(flags.hosts_port)),
       .arguments = *std::move(arguments),
       .credentials = credentials->get(),
       .on_output = [](std::string_view output) {
         std::fwrite(output.data(), 1, output.size(), stderr);
         return true;
       }});
}

}  // namespace flotilla::cli

#include "worker/group/launch.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rt/unique_fd.h"
#include "worker/group/directory.h"
#include "worker/group/spawn.h"

namespace flotilla::worker {
namespace {

using Settings = EnvironmentSettings;

// Settings for one host: no remote start, shared memory only, control connections on loopback.
Settings OneHost(const std::string& directory) {
  return {{"OMPI_MCA_plm", "isolated"},
          {"OMPI_MCA_btl", "self,vader"},
          {"OMPI_MCA_orte_tmpdir_base", directory},
          {"OMPI_MCA_btl_vader_backing_directory", directory},
          {"OMPI_MCA_oob_tcp_if_include", "lo"}};
}

// Settings for several hosts. Open MPI's session directories on other hosts are in their
// default place, because TMPDIR names a directory of this host.
Settings SeveralHosts(const RemoteLaunch& remote) {
  Settings settings = {{"OMPI_MCA_btl", "self,vader,tcp"},
                       {"OMPI_MCA_btl_tcp_if_include", remote.network},
                       {"OMPI_MCA_oob_tcp_if_include", remote.network},
                       {kTokenVariable, remote.token}};
  if (!remote.remote_shell.empty()) {
    settings.emplace_back("OMPI_MCA_plm", "rsh");
    settings.emplace_back("OMPI_MCA_plm_rsh_agent", remote.remote_shell);
    // This host starts all daemons, because another host may not have this remote shell.
    settings.emplace_back("OMPI_MCA_plm_rsh_no_tree_spawn", "1");
  }
  // The remote shell gets the host names exactly as they were given.
  settings.emplace_back("OMPI_MCA_orte_keep_fqdn_hostnames", "1");
  settings.insert(settings.end(), remote.environment.begin(), remote.environment.end());
  return settings;
}

// The settings that Open MPI gets through its environment.
Settings MpiSettings(const LaunchOptions& options) {
  Settings settings =
      options.remote.has_value() ? SeveralHosts(*options.remote) : OneHost(options.directory);
  settings.insert(settings.end(), {{"TMPDIR", options.directory},
                                   {"OMPI_MCA_pml", "ob1"},
                                   // Containers forbid process_vm_readv.
                                   {"OMPI_MCA_btl_vader_single_copy_mechanism", "none"},
                                   {"OMPI_MCA_mpi_yield_when_idle", "1"}});
  if (geteuid() == 0) {  // as in a container; mpirun wants two settings
    settings.emplace_back("OMPI_ALLOW_RUN_AS_ROOT", "1");
    settings.emplace_back("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  }
  return settings;
}

// This process's environment with the settings in it.
std::vector<std::string> Environment(const LaunchOptions& options) {
  const Settings settings = MpiSettings(options);
  std::vector<std::string> variables = OwnEnvironment();
  std::erase_if(variables, [&](const std::string& variable) {
    return std::any_of(settings.begin(), settings.end(), [&](const auto& setting) {
      return absl::StartsWith(variable, absl::StrCat(setting.first, "="));
    });
  });
  for (const auto& [name, value] : settings) variables.push_back(absl::StrCat(name, "=", value));
  return variables;
}

std::vector<std::string> CommandLine(const LaunchOptions& options) {
  std::vector<std::string> words = {options.launcher,  "-n",        absl::StrCat(options.ranks),
                                    "--oversubscribe", "--bind-to", "none"};
  std::vector<std::string> added = {"--group-dir", options.directory};
  if (options.remote.has_value()) {
    words.insert(words.end(), {"-x", kTokenVariable});
    if (!options.remote->hostfile.empty()) {
      words.insert(words.end(), {"--hostfile", options.remote->hostfile});
    }
    if (!options.remote->hosts.empty()) {
      words.insert(words.end(), {"--host", options.remote->hosts});
    }
    added.insert(added.end(), {"--agent", options.remote->agent});
  } else {
    added.insert(added.end(), {"--heartbeats", options.heartbeats});
  }
  words.insert(words.end(), options.command.begin(), options.command.end());
  words.insert(words.end(), added.begin(), added.end());
  return words;
}

}  // namespace

absl::StatusOr<pid_t> LaunchJob(const LaunchOptions& options) {
  const std::string path = absl::StrCat(options.directory, "/", kLauncherLog);
  const UniqueFd log(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.ok()) return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  return Spawn(
      {.words = CommandLine(options), .environment = Environment(options), .output = log.get()});
}

}  // namespace flotilla::worker

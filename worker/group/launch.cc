#include "worker/group/launch.h"

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/group/directory.h"

namespace flotilla {
namespace {

using Settings = std::vector<std::pair<std::string, std::string>>;

// One host: no remote start, shared memory only, control connections on loopback.
Settings OneHost(const std::string& directory) {
  return {{"OMPI_MCA_plm", "isolated"},
          {"OMPI_MCA_btl", "self,vader"},
          {"OMPI_MCA_orte_tmpdir_base", directory},
          {"OMPI_MCA_btl_vader_backing_directory", directory},
          {"OMPI_MCA_oob_tcp_if_include", "lo"}};
}

// Other hosts' session directories are where they always are: TMPDIR is this host's.
Settings SeveralHosts(const RemoteLaunch& remote) {
  Settings settings = {{"OMPI_MCA_btl", "self,vader,tcp"},
                       {"OMPI_MCA_btl_tcp_if_include", remote.network},
                       {"OMPI_MCA_oob_tcp_if_include", remote.network},
                       {kTokenVariable, remote.token}};
  if (!remote.remote_shell.empty()) {
    settings.emplace_back("OMPI_MCA_plm", "rsh");
    settings.emplace_back("OMPI_MCA_plm_rsh_agent", remote.remote_shell);
  }
  return settings;
}

// What Open MPI is told by its environment.
Settings MpiSettings(const LaunchOptions& options) {
  Settings settings =
      options.remote.has_value() ? SeveralHosts(*options.remote) : OneHost(options.directory);
  settings.insert(settings.end(), {{"TMPDIR", options.directory},
                                   {"OMPI_MCA_pml", "ob1"},
                                   // Containers forbid process_vm_readv.
                                   {"OMPI_MCA_btl_vader_single_copy_mechanism", "none"},
                                   {"OMPI_MCA_mpi_yield_when_idle", "1"}});
  if (geteuid() == 0) {  // as in a container; mpirun asks to be told twice
    settings.emplace_back("OMPI_ALLOW_RUN_AS_ROOT", "1");
    settings.emplace_back("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  }
  return settings;
}

// This process's environment with the settings in it.
std::vector<std::string> Environment(const LaunchOptions& options) {
  const Settings settings = MpiSettings(options);
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    bool ours = false;
    for (const auto& [name, value] : settings) {
      ours |= absl::StartsWith(*variable, absl::StrCat(name, "="));
    }
    if (!ours) variables.emplace_back(*variable);
  }
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
    added.insert(added.end(), {"--agent", options.remote->agent});
  } else {
    added.insert(added.end(), {"--heartbeats", options.heartbeats});
  }
  words.insert(words.end(), options.command.begin(), options.command.end());
  words.insert(words.end(), added.begin(), added.end());
  return words;
}

std::vector<char*> Pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

absl::StatusOr<pid_t> LaunchJob(const LaunchOptions& options) {
  std::vector<std::string> words = CommandLine(options);
  std::vector<std::string> environment = Environment(options);
  const std::string log = absl::StrCat(options.directory, "/", kLauncherLog);

  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, log.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);

  // The agent blocks and ignores signals that the job must get.
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, options.launcher.c_str(), &files, &attributes,
                                 Pointers(words).data(), Pointers(environment).data());
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (error == 0) return pid;
  const std::string what = absl::StrCat("'", options.launcher, "': ", std::strerror(error));
  if (error == ENOENT || error == EACCES) return absl::NotFoundError(what);
  return absl::UnavailableError(what);
}

}  // namespace flotilla

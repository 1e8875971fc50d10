#include "worker/hosts/run_on_host.h"

#include <memory>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "flotilla/v1/host.grpc.pb.h"
#include "rpc/endpoint.h"

namespace flotilla::worker {
namespace {

// The characters in a word on which a shell would act. It acts on $ and ` inside quotes too.
constexpr std::string_view kShellCharacters = "\"'\\$`;&|<>()*?~#\n";

// Returns a word that is plain or in double quotes, without the quotes. None: a shell would
// turn the word into something else.
std::optional<std::string> Unquote(const std::string& word) {
  const absl::string_view trimmed = absl::StripAsciiWhitespace(word);
  std::string_view text(trimmed.data(), trimmed.size());
  const bool quoted = text.size() >= 2 && text.front() == '"' && text.back() == '"';
  if (quoted) text = text.substr(1, text.size() - 2);
  const std::string_view special = quoted ? "\"\\$`\n" : kShellCharacters;
  if (text.find_first_of(special) != std::string_view::npos) return std::nullopt;
  if (!quoted && text.find(' ') != std::string_view::npos) return std::nullopt;
  return std::string(text);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> DaemonArguments(const std::vector<std::string>& words) {
  std::vector<std::string> arguments;
  for (const std::string& word : words) {
    std::optional<std::string> argument = Unquote(word);
    if (!argument.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("this needs a shell: ", word));
    }
    arguments.push_back(*std::move(argument));
  }
  const std::string command = arguments.empty() ? "" : arguments[0];
  if (command.substr(command.rfind('/') + 1) != "orted") {
    return absl::InvalidArgumentError(
        absl::StrCat("only orted can be started on another host, not '", command, "'"));
  }
  arguments.erase(arguments.begin());
  return arguments;
}

absl::StatusOr<int> RunOnHost(const RunOnHostOptions& options) {
  const std::shared_ptr<grpc::Channel> channel =
      rpc::ConnectTo(options.address, options.credentials);
  if (!channel->WaitForConnected(absl::ToChronoTime(absl::Now() + options.patience))) {
    return absl::UnavailableError(absl::StrCat("no `flotilla node` answers at ", options.address,
                                               " within ", absl::FormatDuration(options.patience)));
  }
  grpc::ClientContext context;
  v1::RunRequest request;
  for (const std::string& argument : options.arguments) request.add_arguments(argument);
  const auto stub = v1::Host::NewStub(channel);
  const auto events = stub->Run(&context, request);
  std::optional<int> exit_code;
  v1::RunEvent event;
  while (events->Read(&event)) {
    if (event.has_exit_code()) {
      exit_code = event.exit_code();
    } else if (options.on_output && !options.on_output(event.output())) {
      context.TryCancel();
    }
  }
  const grpc::Status status = events->Finish();
  if (!status.ok()) return rpc::ToAbslStatus(status);
  if (!exit_code.has_value()) return absl::UnavailableError("the host did not report the end");
  return *exit_code;
}

}  // namespace flotilla::worker

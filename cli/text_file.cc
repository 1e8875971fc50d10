#include "cli/text_file.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace flotilla::cli {
namespace {
constexpr std::size_t kMaxBytes = std::size_t{1} << 30;
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  std::string text;
  char chunk[1 << 16];
  while (file.read(chunk, sizeof(chunk)) || file.gcount() > 0) {
    text.append(chunk, static_cast<std::size_t>(file.gcount()));
    if (text.size() > kMaxBytes) {
      return absl::ResourceExhaustedError(absl::StrCat(path, " is larger than 1 GiB"));
    }
  }
  if (file.bad() || !file.eof()) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  return text;
}

absl::Status WriteTextFile(const std::string& folder, const std::string& name,
                           const std::string& text) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string path = (std::filesystem::path(folder) / name).string();
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  if (!file) return absl::FailedPreconditionError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

}  // namespace flotilla::cli

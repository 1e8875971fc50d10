#include "cli/run_input.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/rt/write_to_file.h"
#include "router/files/file_io.h"

namespace flotilla::cli {
namespace {

using router::ErrnoError;
using router::IsRegular;

absl::StatusOr<UniqueFd> MakeNamelessFile() {
  const char* folder = std::getenv("TMPDIR");
  std::string path = absl::StrCat(folder == nullptr ? "/tmp" : folder, "/flotilla-run-XXXXXX");
  UniqueFd fd(mkstemp(path.data()));
  if (!fd.ok()) return ErrnoError("cannot make the file", path);
  unlink(path.c_str());
  return fd;
}

absl::StatusOr<UniqueFd> CopyOf(int from, const std::string& name) {
  absl::StatusOr<UniqueFd> copy = MakeNamelessFile();
  if (!copy.ok()) return copy;
  std::array<char, 64 << 10> chunk;
  while (true) {
    const ssize_t got = read(from, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError("cannot read", name);
    if (got == 0) break;
    if (!WriteToFile(copy->get(), {chunk.data(), static_cast<std::size_t>(got)})) {
      return ErrnoError("cannot keep a copy of", name);
    }
  }
  if (lseek(copy->get(), 0, SEEK_SET) != 0) return ErrnoError("cannot read the copy of", name);
  return copy;
}

}  // namespace

absl::StatusOr<UniqueFd> OpenInput(const std::string& path) {
  if (path == "-") return CopyOf(STDIN_FILENO, "standard input");
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.ok()) return ErrnoError("cannot open", path);
  if (IsRegular(fd.get())) return fd;
  return CopyOf(fd.get(), path);
}

}  // namespace flotilla::cli

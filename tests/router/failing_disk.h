// A disk that fails when a test says so, and then forgets as Linux does: what a failed sync was to
// write stays readable, and later syncs succeed without it. Crash shows what is on the disk.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "router/files/disk.h"

namespace flotilla::router {

class FailingDisk final : public Disk {
 public:
  // Whether a sync of this path fails. Empty: none does.
  std::function<bool(std::string_view path)> fails;
  std::size_t written_again = 0;  // bytes

  bool WriteAgain(int fd, std::uint64_t at, std::string_view text) override {
    written_again += text.size();
    std::string& bytes = bytes_[PathOf(fd)];
    const std::size_t end = std::min<std::size_t>(bytes.size(), at + text.size());
    for (std::size_t i = at; i < end; ++i) bytes[i] = kDirty;
    return Disk::WriteAgain(fd, at, text);
  }

  // How many bytes of the files below `folder` can be read, and will never be on the disk unless
  // they are written again.
  std::size_t Lost(const std::string& folder) {
    std::size_t lost = 0;
    ForEachFile(folder, [&lost](const std::string&, const std::string& bytes) {
      lost += static_cast<std::size_t>(std::count(bytes.begin(), bytes.end(), kLost));
    });
    return lost;
  }
  // The machine dies: what is not on the disk is zeros in each file below `folder`.
  void Crash(const std::string& folder) {
    ForEachFile(folder, [](const std::string& path, std::string& bytes) {
      std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        if (bytes[i] != kKept) file.seekp(static_cast<std::streamoff>(i)).put('\0');
      }
      bytes.assign(bytes.size(), kKept);
    });
  }

 protected:
  bool DoSync(int fd) override {
    const std::string path = PathOf(fd);
    const bool failed = fails && fails(path);
    struct stat stat {};
    if (fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode)) {
      std::string& bytes = bytes_[path];
      bytes.resize(static_cast<std::size_t>(stat.st_size), kDirty);
      std::replace(bytes.begin(), bytes.end(), kDirty, failed ? kLost : kKept);
      if (std::string_view(path).ends_with(kNew)) {  // takes the place of another file, or goes
        const std::string whole(bytes.size(), kKept);
        bytes.clear();
        if (!failed) bytes_[path.substr(0, path.size() - kNew.size())] = whole;
      }
    }
    if (failed) errno = EIO;
    return !failed;
  }

 private:
  static constexpr char kDirty = 'd', kKept = 'k', kLost = 'l';
  static constexpr std::string_view kNew = ".new";

  static std::string PathOf(int fd) {
    std::array<char, 4096> path{};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    const ssize_t size = readlink(link.c_str(), path.data(), path.size());
    return {path.data(), size < 0 ? 0 : static_cast<std::size_t>(size)};
  }
  void ForEachFile(const std::string& folder,
                   const std::function<void(const std::string& path, std::string& bytes)>& visit) {
    namespace fs = std::filesystem;
    for (const auto& entry : fs::recursive_directory_iterator(fs::canonical(folder))) {
      if (!entry.is_regular_file()) continue;
      std::string& bytes = bytes_[entry.path().string()];
      bytes.resize(entry.file_size(), kDirty);
      visit(entry.path().string(), bytes);
    }
  }

  std::map<std::string, std::string> bytes_;  // by path: what has become of each byte of the file
};

}  // namespace flotilla::router

// Disk: how the bytes of files come to the disk for certain. Tests pass one that fails. The owner
// is who opens a FileStore or an AnswerFile, and it outlives them. One thread.
//
// A failed sync may leave bytes that can be read and are not on the disk. Linux reports the error
// once, and takes the bytes for written from then on: neither a later sync nor another process
// hears of it. Only bytes that are written again, and then synced, are on the disk.
#pragma once

#include <cstdint>
#include <string_view>

namespace flotilla::router {

class Disk {
 public:
  virtual ~Disk() = default;

  // Returns when the bytes of a file, or the names in a folder, are on the disk. False: errno says
  // why not.
  bool Sync(int fd);
  // How many syncs have failed.
  std::uint64_t failures() const { return failures_; }

  // Writes what a file has at `at` once more, so that the next Sync says whether it is on the disk,
  // whatever earlier ones have said. False: errno says why not.
  virtual bool WriteAgain(int fd, std::uint64_t at, std::string_view text);

 protected:
  virtual bool DoSync(int fd);

 private:
  std::uint64_t failures_ = 0;
};

}  // namespace flotilla::router

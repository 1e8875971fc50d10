#include "model/huggingface/own_files.h"

namespace flotilla::model {

bool IsOwnFile(const std::filesystem::path& root, const std::filesystem::path& part,
               const std::filesystem::path& file, std::error_code& error) {
  namespace fs = std::filesystem;
  const fs::path whole = fs::canonical(root, error);
  const fs::path target = error ? fs::path() : fs::canonical(file, error);
  if (error) return false;
  // A part that is a link itself would be elsewhere.
  const fs::path folder = part == root ? whole : whole / part.filename();
  const fs::path parent = target.parent_path();
  return parent == folder || (whole.parent_path().filename() == "snapshots" &&
                              parent == whole.parent_path().parent_path() / "blobs");
}

}  // namespace flotilla::model

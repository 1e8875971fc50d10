// Which files are those of a folder, whatever links say.
#pragma once

#include <filesystem>
#include <system_error>

namespace flotilla::model {

// Whether `file`, after all links, lies in the folder `part`, which is `root` or a folder in it, or
// in the cache of Hugging Face's hub that `root` is in: there the folder snapshots/HASH has links
// into ../../blobs. `error` is set if one of them does not exist.
bool IsOwnFile(const std::filesystem::path& root, const std::filesystem::path& part,
               const std::filesystem::path& file, std::error_code& error);

}  // namespace flotilla::model

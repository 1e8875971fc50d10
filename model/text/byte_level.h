// How files write bytes as text. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flotilla::model {

// Appends the bytes that `text` means in GPT-2's byte-level alphabet; false (and nothing appended)
// if a character is not of that alphabet.
bool AppendByteLevel(std::string_view text, std::string& out);

// Appends the text that stands for `bytes` in that alphabet.
void AppendInByteLevel(std::string_view bytes, std::string& out);

// The byte that a token like <0x0A> stands for.
std::optional<uint8_t> ByteOf(std::string_view token);

}  // namespace flotilla::model

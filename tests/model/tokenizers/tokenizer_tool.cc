// Encodes and decodes with the tokenizer of a file, for tests in Python:
//   tokenizer_tool PATH     a GGUF file, or a folder with tokenizer.json or tokenizer.model
// It reads a JSON object of a line and answers with one:
//   {"text": ..., "special": false, "around": false}
//                                    the ids of the text; special: control tokens count in it;
//                                    around: with those that go in front of and behind a text
//   {"ids": [...], "special": false} {"text": the whole, "streamed": the same as it comes};
//                                    special: with the names of control tokens
//   {"time": ...}                    {"seconds": CPU time of the text, "tokens": how many}
#include <malloc.h>

#include <cstdio>
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "common/types/tokenizer_bundle.h"
#include "model/checkpoint.h"
#include "model/huggingface/hf_tokenizer.h"
#include "model/huggingface/json_file.h"
#include "model/text/detokenizer.h"
#include "model/text/tokenizer.h"

namespace flotilla::model {
namespace {

absl::StatusOr<TokenizerBundle> ReadBundle(const std::string& path) {
  HfTokenizerFiles files;
  if (std::ifstream model(path + "/tokenizer.model", std::ios::binary); model) {
    files.sentencepiece.emplace(std::istreambuf_iterator<char>(model),
                                std::istreambuf_iterator<char>());
  }
  if (std::ifstream(path + "/tokenizer.json") || files.sentencepiece.has_value()) {
    const auto read = [&](const char* name) {
      const auto text = ReadTextFile(path + "/" + name, 64 << 20);
      if (!text.ok()) return absl::StatusOr<Json>(Json());
      return ParseJsonObject(*text, name, {.bytes = 64 << 20}, &files.merges);
    };
    auto tokenizer = read("tokenizer.json"), config = read("tokenizer_config.json");
    if (!tokenizer.ok()) return tokenizer.status();
    if (!config.ok()) return config.status();
    files.tokenizer = *std::move(tokenizer);
    files.tokenizer_config = *std::move(config);
    return ReadHfTokenizer(std::move(files));
  }
  const auto file = OpenCheckpoint(path);
  if (!file.ok()) return file.status();
  return (*file)->ReadTokenizer();
}

nlohmann::json Time(const Tokenizer& tokenizer, const std::string& text) {
  const std::clock_t begin = std::clock();
  const auto ids = tokenizer.Encode(text);
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  if (!ids.ok()) return {{"error", std::string(ids.status().message())}};
  return {{"seconds", seconds}, {"tokens", ids->size()}};
}

nlohmann::json Answer(const Tokenizer& tokenizer, const nlohmann::json& question) {
  if (question.contains("time")) return Time(tokenizer, question["time"].get<std::string>());
  if (question.contains("text")) {
    const auto ids = tokenizer.Encode(question["text"].get<std::string>(),
                                      {.parse_special = question.value("special", false),
                                       .add_special = question.value("around", false)});
    if (!ids.ok()) return {{"error", std::string(ids.status().message())}};
    return *ids;
  }
  const auto ids = question["ids"].get<std::vector<TokenId>>();
  const bool skip_special = !question.value("special", false);
  IncrementalDetokenizer detokenizer(&tokenizer, skip_special, /*begins_text=*/true);
  std::string streamed;
  for (const TokenId id : ids) streamed += detokenizer.Push(id);
  return {{"text", tokenizer.Decode(ids, skip_special)},
          {"streamed", streamed + detokenizer.Flush()}};
}

int Run(const std::string& path) {
  const auto bundle = ReadBundle(path);
  const auto tokenizer =
      bundle.ok() ? Tokenizer::Create(*bundle) : absl::StatusOr<Tokenizer>(bundle.status());
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status().message() << "\n";
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << Answer(*tokenizer, nlohmann::json::parse(line)).dump() << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace flotilla::model

int main(int argc, char** argv) {
  // glibc's default, which it would raise with each large block that is freed. The time of a text
  // would then depend on the texts before it, because fresh memory costs page faults.
  mallopt(M_MMAP_THRESHOLD, 128 << 10);
  return argc == 2 ? flotilla::model::Run(argv[1]) : 2;
}

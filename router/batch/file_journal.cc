#include "router/batch/file_journal.h"

#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/types/text.h"
#include "nlohmann/json.hpp"

namespace flotilla::router {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kChecksumDigits = 16;

// FNV-1a with 64 bits. It finds lines that a crash has torn; nobody forges them.
std::uint64_t Checksum(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const unsigned char c : text) hash = (hash ^ c) * 0x100000001b3ull;
  return hash;
}

std::string ChecksumText(std::string_view text) { return absl::StrFormat("%016x", Checksum(text)); }

Json ToJson(const StoredFile& file) {
  return {{"id", file.id},
          {"number", file.number},
          {"tenant", file.tenant},
          {"name", file.name},
          {"purpose", file.purpose},
          {"bytes", file.bytes},
          {"created", file.created_s},
          {"expires", file.expires_s}};
}

StoredFile FileOf(const Json& json) {
  return {.id = json.at("id"),
          .number = json.at("number"),
          .tenant = json.at("tenant"),
          .name = json.at("name"),
          .purpose = json.at("purpose"),
          .bytes = json.at("bytes"),
          .created_s = json.at("created"),
          .expires_s = json.at("expires")};
}

Json ToJson(const StoredBatch& batch) {
  Json errors = Json::array();
  for (const BatchError& error : batch.errors) {
    errors.push_back({{"code", error.code},
                      {"message", error.message},
                      {"param", error.param},
                      {"line", error.line}});
  }
  const BatchOrder& order = batch.order;
  return {{"id", batch.id},
          {"number", batch.number},
          {"tenant", batch.tenant},
          {"input", order.input_file_id},
          {"endpoint", order.endpoint},
          {"window", order.completion_window},
          {"window_s", order.window_s},
          {"metadata", order.metadata},
          {"output_life", order.output_life_s},
          {"status", std::string(NameOf(batch.status))},
          {"since", batch.since_s},
          {"expires", batch.expires_s},
          {"output", batch.output_id},
          {"error", batch.error_id},
          {"has_output", batch.has_output},
          {"has_errors", batch.has_errors},
          {"counts", {batch.counts.total, batch.counts.completed, batch.counts.failed}},
          {"errors", std::move(errors)}};
}

// None: the status has no such name.
std::optional<StoredBatch> BatchOf(const Json& json) {
  StoredBatch batch{
      .id = json.at("id"),
      .number = json.at("number"),
      .tenant = json.at("tenant"),
      .order = {.input_file_id = json.at("input"),
                .endpoint = json.at("endpoint"),
                .completion_window = json.at("window"),
                .window_s = json.at("window_s"),
                .metadata = json.at("metadata"),
                .output_life_s = json.at("output_life")},
      .since_s = json.at("since").get<std::array<std::int64_t, kBatchStatuses>>(),
      .expires_s = json.at("expires"),
      .output_id = json.at("output"),
      .error_id = json.at("error"),
      .has_output = json.at("has_output"),
      .has_errors = json.at("has_errors"),
      .counts = {json.at("counts").at(0), json.at("counts").at(1), json.at("counts").at(2)},
      .errors = {}};
  for (const Json& error : json.at("errors")) {
    batch.errors.push_back({.code = error.at("code"),
                            .message = error.at("message"),
                            .param = error.at("param"),
                            .line = error.at("line")});
  }
  const std::optional<BatchStatus> status = BatchStatusNamed(json.at("status").get<std::string>());
  if (!status.has_value()) return std::nullopt;
  batch.status = *status;
  return batch;
}

absl::Status Damaged() { return absl::DataLossError("the line is damaged"); }

}  // namespace

std::string JournalLine(const LedgerRecord& record) {
  Json json = Json::object();
  for (const StoredFile& file : record.files) json["files"].push_back(ToJson(file));
  if (record.batch.has_value()) json["batch"] = ToJson(*record.batch);
  for (const std::string& id : record.removed) json["removed"].push_back(id);
  const std::string text = json.dump();
  return Cat(ChecksumText(text), " ", text, "\n");
}

absl::StatusOr<LedgerRecord> ReadJournalLine(std::string_view line) {
  if (line.size() <= kChecksumDigits || line[kChecksumDigits] != ' ') return Damaged();
  const std::string_view text = line.substr(kChecksumDigits + 1);
  if (line.substr(0, kChecksumDigits) != ChecksumText(text)) return Damaged();
  try {
    const Json json = Json::parse(text);
    LedgerRecord record;
    if (const auto files = json.find("files"); files != json.end()) {
      for (const Json& file : *files) record.files.push_back(FileOf(file));
    }
    if (const auto batch = json.find("batch"); batch != json.end()) {
      record.batch = BatchOf(*batch);
      if (!record.batch.has_value()) return Damaged();
    }
    if (const auto removed = json.find("removed"); removed != json.end()) {
      record.removed = removed->get<std::vector<std::string>>();
    }
    return record;
  } catch (const Json::exception&) {
    return absl::DataLossError("the line is no record of this version");
  }
}

absl::StatusOr<std::size_t> ReplayJournal(std::string_view journal, FileLedger& ledger) {
  std::size_t at = 0, good = 0;
  std::uint64_t number = 0, damaged = 0;
  while (true) {
    const std::size_t end = journal.find('\n', at);
    if (end == std::string_view::npos) return good;
    ++number;
    absl::StatusOr<LedgerRecord> record = ReadJournalLine(journal.substr(at, end - at));
    at = end + 1;
    if (!record.ok()) {
      if (damaged == 0) damaged = number;
      continue;
    }
    absl::Status fits = damaged == 0 ? ledger.Apply(*std::move(record))
                                     : absl::DataLossError(Cat("line ", damaged, " is damaged"));
    if (!fits.ok()) {
      return absl::DataLossError(
          Cat(damaged == 0 ? Cat("line ", number, ": ") : std::string(), fits.message()));
    }
    good = at;
  }
}

}  // namespace flotilla::router

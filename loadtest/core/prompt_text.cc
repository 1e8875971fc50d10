#include "loadtest/core/prompt_text.h"

#include <array>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/traces/seeded_random.h"

namespace flotilla::loadtest {
namespace {

constexpr auto kWords = std::to_array<absl::string_view>(
    {"time",     "year",    "people",      "way",      "day",        "man",    "thing",   "woman",
     "life",     "child",   "world",       "school",   "state",      "family", "student", "group",
     "country",  "problem", "hand",        "part",     "place",      "case",   "week",    "company",
     "system",   "program", "question",    "work",     "government", "number", "night",   "point",
     "home",     "water",   "room",        "mother",   "area",       "money",  "story",   "fact",
     "month",    "lot",     "right",       "study",    "book",       "eye",    "job",     "word",
     "business", "issue",   "side",        "kind",     "head",       "house",  "service", "friend",
     "father",   "power",   "hour",        "game",     "line",       "end",    "member",  "law",
     "car",      "city",    "community",   "name",     "president",  "team",   "minute",  "idea",
     "kid",      "body",    "information", "back",     "parent",     "face",   "others",  "level",
     "office",   "door",    "health",      "person",   "art",        "war",    "history", "party",
     "result",   "change",  "morning",     "reason",   "research",   "girl",   "guy",     "moment",
     "air",      "teacher", "force",       "education"});

// What a word of a prompt is drawn for: the three kinds never have a source in common.
constexpr std::uint64_t kOfGroup = 1ull << 60, kOfBlock = 2ull << 60, kOfRequest = 3ull << 60;

}  // namespace

std::string PromptText(const LoadPlan& plan, std::size_t index) {
  const PlannedRequest& request = plan.requests[index];
  std::string text;
  text.reserve(request.prompt_words * 7);  // bytes of a word and a space, in the mean 5.9
  for (std::uint32_t i = 0; i < request.prompt_words; ++i) {
    std::uint64_t source = kOfRequest + index;
    if (request.prefix_group != 0 && i < request.prefix_words) {
      source = kOfGroup + request.prefix_group;
    }
    if (const std::size_t block = i / kTraceBlockTokens; block < request.blocks.size()) {
      source = kOfBlock ^ request.blocks[block];
    }
    const std::uint64_t hash = MixBits(MixBits(plan.seed ^ MixBits(source)) ^ i);
    absl::StrAppend(&text, i == 0 ? "" : " ", kWords[hash % kWords.size()]);
  }
  return text;
}

}  // namespace flotilla::loadtest

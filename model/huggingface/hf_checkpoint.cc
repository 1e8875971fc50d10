#include "model/huggingface/hf_checkpoint.h"

#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "common/types/text.h"
#include "model/huggingface/hf_configuration.h"
#include "model/huggingface/hf_tokenizer.h"
#include "model/huggingface/json_file.h"
#include "model/huggingface/own_files.h"
#include "model/huggingface/quantization/quantization.h"
#include "model/huggingface/safetensors_file.h"
#include "model/padding_token.h"

namespace flotilla::model {
namespace {

constexpr JsonBounds kConfigBounds = {.bytes = 1 << 20, .depth = 16};
// It may describe each added token; Gemma 3's 6,400 take more than 1 MiB.
constexpr JsonBounds kTokenizerConfigBounds = {.bytes = 8 << 20, .depth = 16};
constexpr JsonBounds kIndexBounds = {.bytes = 16 << 20, .depth = 4};
constexpr JsonBounds kTokenizerBounds = {.bytes = 64 << 20, .depth = 16};
constexpr size_t kMaxModelBytes = 16 << 20;  // tokenizer.model; the largest published one has 5 MB
constexpr size_t kMaxTemplateBytes = 1 << 20;
constexpr size_t kMaxFiles = 1000;
constexpr size_t kMaxFolderTensors = 1 << 18;  // of all files
constexpr size_t kMaxTemplates = 16;

// Folders of models for several kinds of input have these in front of the names of the text model's
// tensors, and other prefixes in front of the rest.
constexpr std::pair<std::string_view, std::string_view> kTextPrefixes[] = {
    {"language_model.", ""}, {"model.language_model.", "model."}};
constexpr std::string_view kSkippedPrefixes[] = {"vision_tower.", "vision_model.",
                                                 "visual.",       "multi_modal_projector.",
                                                 "audio_tower.",  "image_newline"};

// Reads the files of one folder.
class Folder {
 public:
  explicit Folder(std::string path) : path_(std::move(path)), root_(path_) {}

  // A folder in this one.
  Folder Inner(std::string_view name) const {
    Folder inner(PathOf(name));
    inner.root_ = root_;
    return inner;
  }
  // The names of the files that end so, sorted, but at most `most` and one. A folder that is not
  // there has none.
  std::vector<std::string> NamesWith(std::string_view ending, size_t most) const {
    std::vector<std::string> names;
    std::error_code error;
    for (auto entry = std::filesystem::directory_iterator(path_, error);
         !error && entry != std::filesystem::directory_iterator() && names.size() <= most;
         entry.increment(error)) {
      std::string name = entry->path().filename().string();
      if (name.ends_with(ending)) names.push_back(std::move(name));
    }
    std::ranges::sort(names);
    return names;
  }

  const std::string& path() const { return path_; }
  std::string PathOf(std::string_view name) const { return Cat(path_, "/", name); }
  // Whether there is such a name. A link that leads nowhere counts; to read it is an error.
  bool Has(std::string_view name) const {
    std::error_code error;
    return std::filesystem::exists(std::filesystem::symlink_status(PathOf(name), error));
  }
  // Refuses a name with parts, and a link to a file elsewhere. The cache of Hugging Face's hub has
  // a folder of links into the folder "blobs" beside its parent.
  absl::Status Check(std::string_view name) const {
    if (name.empty() || name.find('/') != std::string_view::npos || name == "." || name == "..") {
      return InvalidArgument(path_, ": '", absl::CHexEscape(ToAbsl(name.substr(0, 80))),
                             "' is not the name of a file");
    }
    std::error_code error;
    const bool is_own = IsOwnFile(root_, path_, PathOf(name), error);
    if (error) return absl::NotFoundError(Cat("cannot open ", PathOf(name)));
    if (is_own) return absl::OkStatus();
    return InvalidArgument(PathOf(name), " is a link out of its folder");
  }
  absl::StatusOr<std::string> Read(std::string_view name, size_t max_bytes) const {
    if (absl::Status status = Check(name); !status.ok()) return status;
    return ReadTextFile(PathOf(name), max_bytes);
  }

 private:
  std::string path_;
  std::string root_;  // the folder of the model
};

class HfCheckpoint final : public Checkpoint {
 public:
  // `text` is that of the files that `config` is made of.
  HfCheckpoint(std::string path, Json config, std::string title, std::string_view text)
      : path_(std::move(path)), configuration_(std::move(config), std::move(title)) {
    Hash(text);
  }

  absl::Status Load(const Folder& folder) {
    absl::Status status = LoadTensors(folder);
    if (status.ok()) status = JoinTensors();
    if (status.ok()) status = LoadTokenizer(folder);
    return status;
  }

  std::string format() const override {
    return Cat("Hugging Face folder with ", files_.size(), " safetensors file",
               files_.size() == 1 ? "" : "s");
  }
  std::string_view path() const override { return path_; }
  const Configuration& configuration() const override { return configuration_; }
  Naming naming() const override { return Naming::kHuggingFace; }
  std::span<const Tensor> tensors() const override { return content_.tensors; }
  std::span<const SkippedTensors> skipped_tensors() const override { return skipped_; }
  std::span<const KvScales> kv_scales() const override { return content_.kv_scales; }
  const Tensor* FindTensor(std::string_view name) const override {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : &content_.tensors[found->second];
  }
  uint64_t token_count() const override { return tokens_; }
  absl::StatusOr<TokenizerBundle> ReadTokenizer() const override {
    if (!tokenizer_status_.ok()) return InFile(path_, tokenizer_status_);
    return tokenizer_;
  }
  void ReleasePages() const override {
    for (const SafetensorsFile& file : files_) file.ReleasePages();
  }
  uint64_t MetadataHash() const override {
    std::vector<uint64_t> hashes = hashes_;
    for (const SafetensorsFile& file : files_) {
      hashes.push_back(XXH3_64bits(file.header().data(), file.header().size()));
    }
    return XXH3_64bits(hashes.data(), hashes.size() * sizeof hashes[0]);
  }
  std::vector<MetadataEntry> Metadata() const override {
    constexpr size_t kShown = 100;
    std::vector<MetadataEntry> entries;
    for (const auto& [name, value] : configuration_.all().items()) {
      std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
      if (text.size() > kShown) text = Cat(text.substr(0, kShown), " ...");
      entries.push_back({absl::CHexEscape(name), value.type_name(), std::move(text)});
    }
    return entries;
  }

 private:
  void Hash(std::string_view text) { hashes_.push_back(XXH3_64bits(text.data(), text.size())); }

  absl::StatusOr<Json> ReadJson(const Folder& folder, std::string_view name,
                                const JsonBounds& bounds, MergeList* merges = nullptr) {
    const auto text = folder.Read(name, bounds.bytes);
    if (!text.ok()) return text.status();
    Hash(*text);
    return ParseJsonObject(*text, folder.PathOf(name), bounds, merges);
  }

  // `index` is the object that says in which file a tensor is; null: there is none.
  absl::Status AddFile(const Folder& folder, const std::string& name, const Json* index) {
    if (absl::Status status = folder.Check(name); !status.ok()) return status;
    auto file = SafetensorsFile::Open(folder.PathOf(name));
    if (!file.ok()) return file.status();
    if (names_.size() + file->tensors().size() > kMaxFolderTensors) {
      return InvalidArgument(folder.PathOf(name), ": the files have more than ", kMaxFolderTensors,
                             " tensors");
    }
    for (const Tensor& tensor : file->tensors()) {
      if (!names_.insert(tensor.name).second) {
        return InvalidArgument(folder.PathOf(name), ": tensor ", tensor.name,
                               " is in another file, too");
      }
      if (index != nullptr) {
        const auto listed = index->find(std::string(tensor.name));
        if (listed == index->end() || *listed != name) {
          return InvalidArgument(folder.PathOf(name), ": tensor ", tensor.name,
                                 " is not listed for this file in the index");
        }
      }
      if (Skips(tensor)) continue;
      content_.tensors.push_back(tensor);
      Rename(content_.tensors.back());
      const auto place = static_cast<uint32_t>(content_.tensors.size() - 1);
      if (!by_name_.emplace(content_.tensors.back().name, place).second) {
        return InvalidArgument(folder.PathOf(name), ": tensor ", tensor.name, " is also called ",
                               content_.tensors.back().name);
      }
    }
    files_.push_back(*std::move(file));
    return absl::OkStatus();
  }

  // Whether the tensor belongs to no text model; it is then counted.
  bool Skips(const Tensor& tensor) {
    if (!configuration_.is_part()) return false;
    std::string_view name = tensor.name;
    if (name.starts_with("model.")) name.remove_prefix(6);
    const auto* prefix = std::ranges::find_if(
        kSkippedPrefixes, [&](std::string_view each) { return name.starts_with(each); });
    if (prefix == std::end(kSkippedPrefixes)) return false;
    auto entry = std::ranges::find(skipped_, *prefix, &SkippedTensors::prefix);
    if (entry == skipped_.end()) {
      entry = skipped_.insert(entry, {.prefix = std::string(*prefix)});
    }
    ++entry->count;
    entry->bytes += tensor.data.size();
    return true;
  }
  // Gives a tensor the name that it has in a folder of the text model alone.
  void Rename(Tensor& tensor) {
    if (!configuration_.is_part()) return;
    for (const auto& [prefix, alone] : kTextPrefixes) {
      if (!tensor.name.starts_with(prefix)) continue;
      tensor.name = content_.names.emplace_back(Cat(alone, tensor.name.substr(prefix.size())));
      return;
    }
  }

  // Makes the tensors of a quantised folder into those of the model.
  absl::Status JoinTensors() {
    const auto& quantization = configuration_.quantization();
    // A folder that cannot be served can be looked at.
    if (!quantization.ok()) return absl::OkStatus();
    if (quantization->method == nullptr) return RefuseQuantised();
    const absl::Status status = quantization->method->join(*quantization->settings, content_);
    if (!status.ok()) return InFile(path_, status);
    if (content_.unused_kv_scales.count > 0) skipped_.push_back(content_.unused_kv_scales);
    by_name_.clear();
    for (const Tensor& tensor : content_.tensors) {
      if (by_name_.emplace(tensor.name, static_cast<uint32_t>(by_name_.size())).second) continue;
      return InFile(path_, InvalidArgument("tensor ", tensor.name,
                                           " is there twice, quantised and as it is"));
    }
    return absl::OkStatus();
  }

  // Refuses tensors of a quantised layer if nothing says how it is quantised.
  absl::Status RefuseQuantised() const {
    for (const Tensor& tensor : content_.tensors) {
      for (const std::string_view suffix : {".qweight", ".weight_packed", ".weight_scale",
                                            ".weight_scale_inv", ".weight.absmax", ".SCB"}) {
        if (!tensor.name.ends_with(suffix)) continue;
        return InFile(path_, InvalidArgument("tensor ", tensor.name,
                                             " is that of a quantised layer, but config.json has "
                                             "no quantization_config"));
      }
    }
    return absl::OkStatus();
  }

  static absl::Status RefusePyTorch(const Folder& folder) {
    for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
      if (!folder.Has(name)) continue;
      return InvalidArgument(
          folder.PathOf(name),
          " is in PyTorch's format, which flotilla does not read; convert the model to "
          "safetensors, e.g. with save_pretrained of Hugging Face's transformers");
    }
    return absl::OkStatus();
  }

  absl::Status LoadTensors(const Folder& folder) {
    constexpr char kOne[] = "model.safetensors", kIndex[] = "model.safetensors.index.json";
    if (!folder.Has(kIndex)) {
      if (!folder.Has(kOne)) {
        if (absl::Status status = RefusePyTorch(folder); !status.ok()) return status;
      }
      return AddFile(folder, kOne, nullptr);
    }
    auto index = ReadJson(folder, kIndex, kIndexBounds);
    if (!index.ok()) return index.status();
    const absl::Status status = LoadIndexed(folder, kIndex, *index);
    FreeJson(*index);
    return status;
  }

  // `index` is the content of the file `name`.
  absl::Status LoadIndexed(const Folder& folder, std::string_view name, const Json& index) {
    const auto map = index.find("weight_map");
    if (map == index.end() || !map->is_object()) {
      return InvalidArgument(folder.PathOf(name), " has no weight_map");
    }
    std::set<std::string> names;
    for (const auto& [tensor, file] : map->items()) {
      if (!file.is_string()) {
        return InvalidArgument(folder.PathOf(name), ": weight_map has a file that is no string");
      }
      names.insert(file.get<std::string>());
      if (names.size() > kMaxFiles) {
        return InvalidArgument(folder.PathOf(name), " names more than ", kMaxFiles, " files");
      }
    }
    for (const std::string& file : names) {
      const absl::Status status = AddFile(folder, file, &*map);
      if (absl::IsNotFound(status)) {
        return absl::NotFoundError(Cat(std::string(status.message()), ", which ", name, " lists"));
      }
      if (!status.ok()) return status;
    }
    for (const auto& [tensor, file] : map->items()) {
      if (names_.contains(tensor)) continue;
      return InvalidArgument(folder.PathOf(file.get_ref<const std::string&>()), " lacks tensor ",
                             tensor.substr(0, 255), ", which the index lists");
    }
    return absl::OkStatus();
  }

  // Adds the ids of an `eos_token_id`: one or a list of them.
  static absl::Status AddEnds(const Json* value, std::string_view file,
                              std::vector<uint64_t>& ends) {
    constexpr size_t kMost = TokenizerBundle::kMaxEnds;
    if (value == nullptr || value->is_null()) return absl::OkStatus();
    const auto add = [&](const Json& id) {
      if (!id.is_number_unsigned()) return false;
      const bool is_new = std::ranges::find(ends, id.get<uint64_t>()) == ends.end();
      if (is_new) ends.push_back(id.get<uint64_t>());
      return ends.size() <= kMost;
    };
    const bool good =
        value->is_array() ? std::all_of(value->begin(), value->end(), add) : add(*value);
    if (good) return absl::OkStatus();
    return InvalidArgument(file, ": eos_token_id is neither a token id nor a list of up to ",
                           kMost);
  }

  // A folder without tokenizer.json and tokenizer.model can be inspected; ReadTokenizer says what
  // is missing.
  absl::Status LoadTokenizer(const Folder& folder) {
    constexpr char kTokenizer[] = "tokenizer.json", kModel[] = "tokenizer.model";
    constexpr std::string_view kTemplate = ".jinja";
    HfTokenizerFiles files;
    if (folder.Has(kTokenizer)) {
      auto tokenizer = ReadJson(folder, kTokenizer, kTokenizerBounds, &files.merges);
      if (!tokenizer.ok()) return tokenizer.status();
      files.tokenizer = *std::move(tokenizer);
    } else if (folder.Has(kModel)) {
      auto model = folder.Read(kModel, kMaxModelBytes);
      if (!model.ok()) return model.status();
      Hash(*model);
      files.sentencepiece = *std::move(model);
    } else {
      tokenizer_status_ =
          InvalidArgument(kTokenizer, " and ", kModel,
                          " are missing; save_pretrained of the tokenizer in Hugging Face's "
                          "transformers writes ",
                          kTokenizer);
      return absl::OkStatus();
    }
    files.rows = configuration_.Uint("vocab_size").value_or(0);
    if (folder.Has("tokenizer_config.json")) {
      auto config = ReadJson(folder, "tokenizer_config.json", kTokenizerConfigBounds);
      if (!config.ok()) return config.status();
      files.tokenizer_config = *std::move(config);
    }
    if (folder.Has("chat_template.jinja")) {
      auto text = folder.Read("chat_template.jinja", kMaxTemplateBytes);
      if (!text.ok()) return text.status();
      Hash(*text);
      files.chat_template = *std::move(text);
    }
    const Folder more = folder.Inner("additional_chat_templates");
    const std::vector<std::string> names = more.NamesWith(kTemplate, kMaxTemplates);
    if (names.size() > kMaxTemplates) {
      return InvalidArgument(more.path(), " has more than ", kMaxTemplates, " chat templates");
    }
    for (const std::string& name : names) {
      auto text = more.Read(name, kMaxTemplateBytes);
      if (!text.ok()) return text.status();
      Hash(*text);
      files.more_templates.push_back(
          {.name = name.substr(0, name.size() - kTemplate.size()), .text = *std::move(text)});
    }
    const Json* const text = Member(&configuration_.all(), "text_config");
    for (const Json* config : {&configuration_.all(), text}) {
      if (config == nullptr) continue;
      const absl::Status status =
          AddEnds(Member(config, "eos_token_id"), "config.json", files.end_ids);
      if (!status.ok()) return status;
    }
    if (folder.Has("generation_config.json")) {
      auto generation = ReadJson(folder, "generation_config.json", kConfigBounds);
      if (!generation.ok()) return generation.status();
      const absl::Status status =
          AddEnds(Member(&*generation, "eos_token_id"), "generation_config.json", files.end_ids);
      if (!status.ok()) return status;
      files.generation = *std::move(generation);
    }
    auto bundle = ReadHfTokenizer(std::move(files));
    tokenizer_status_ = bundle.status();
    if (!bundle.ok()) return absl::OkStatus();
    tokenizer_ = *std::move(bundle);
    tokens_ = CountWithoutPadding(tokenizer_.tokens, tokenizer_.kinds);
    return absl::OkStatus();
  }

  const std::string path_;
  const HfConfiguration configuration_;
  std::vector<SafetensorsFile> files_;
  FolderTensors content_;
  absl::flat_hash_set<std::string_view, TextHash, TextEqual> names_;  // of all tensors of the files
  std::vector<SkippedTensors> skipped_;
  absl::flat_hash_map<std::string_view, uint32_t, TextHash, TextEqual> by_name_;
  std::vector<uint64_t> hashes_;  // of the folder's small files
  uint64_t tokens_ = 0;
  TokenizerBundle tokenizer_;
  absl::Status tokenizer_status_;
};

// Adds what tools wrote beside config.json before it had a place for it: AutoGPTQ
// quantize_config.json, and AutoAWQ quant_config.json, whose keys have other names.
absl::Status AddQuantizeConfig(const Folder& folder, std::string& text, Json& config) {
  constexpr char kKey[] = "quantization_config";
  if (Member(&config, kKey) != nullptr) return absl::OkStatus();
  for (const auto& [file, method] :
       {std::pair("quantize_config.json", "gptq"), std::pair("quant_config.json", "awq")}) {
    if (!folder.Has(file)) continue;
    const auto more = folder.Read(file, kConfigBounds.bytes);
    if (!more.ok()) return more.status();
    auto settings = ParseJsonObject(*more, folder.PathOf(file), kConfigBounds);
    if (!settings.ok()) return settings.status();
    text += *more;
    for (const auto& [old, name] :
         {std::pair("w_bit", "bits"), std::pair("q_group_size", "group_size")}) {
      const Json* const value = Member(&*settings, old);
      if (value != nullptr && Member(&*settings, name) == nullptr) {
        Json copy = *value;
        (*settings)[name] = std::move(copy);
      }
    }
    if (Member(&*settings, "quant_method") == nullptr) (*settings)["quant_method"] = method;
    config[kKey] = *std::move(settings);
    return absl::OkStatus();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Checkpoint>> OpenHuggingFace(const std::string& path) {
  const Folder folder(path);
  if (!folder.Has("config.json")) {
    return absl::NotFoundError(Cat(path,
                                   " has no config.json, so that it is no Hugging Face folder; "
                                   "of a GGUF file, give the path of the file"));
  }
  auto text = folder.Read("config.json", kConfigBounds.bytes);
  if (!text.ok()) return text.status();
  auto config = ParseJsonObject(*text, folder.PathOf("config.json"), kConfigBounds);
  if (!config.ok()) return config.status();
  if (absl::Status status = AddQuantizeConfig(folder, *text, *config); !status.ok()) return status;
  const auto normal = std::filesystem::path(path).lexically_normal();
  const auto last = normal.has_filename() ? normal : normal.parent_path();
  std::string title = last.filename().string();
  const auto checkpoint =
      std::make_shared<HfCheckpoint>(path, *std::move(config), std::move(title), *text);
  if (absl::Status status = checkpoint->Load(folder); !status.ok()) return status;
  return checkpoint;
}

}  // namespace flotilla::model
